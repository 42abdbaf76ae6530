"""The list of blocks, newest first, read page by page."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.message import Message

from odf_tui.state.model import BlockFilter, BlockPage, BlockSummary, Finding, Verdict
from odf_tui.text.format import (
    Span,
    count_of,
    fit_width,
    format_count,
    format_time,
    format_time_seconds,
    printable,
    right,
)
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.pane_frame import Pane


@dataclass
class BlocksRequested(Message):
    """The block explorer shows blocks that it does not have: from a place on, or the newest."""

    dataset: str
    first: int | None
    block_filter: BlockFilter


PAGE: Final = 100
MAX_PAGES: Final = 10
"""How many pages are kept: however long a chain is and wherever one scrolls, no more."""
FINDING_MARK: Final = "≠"
PROOF_MARK: Final = "§"
_WIDE: Final = 76
_EVENT: Final = 16
_SHORT_EVENT: Final = 13
_TIME: Final = 16
_DAY: Final = 10
_SUMMARY: Final = 34
_MIN_SUMMARY: Final = 28
_EVENT_STYLES: Final = {"AddData": "name", "ExecuteTransform": "name", "Seed": "title"}
_WATERMARK: Final = ", watermark → "
_ROWS: Final = re.compile(r"\+[\d ]+ rows?\b")


class BlocksView(LineView):
    """Line 0 is the newest block. Blocks are kept by their places, which count from the oldest, so that
    new ones disturb nothing.

    Attributes:
        dataset, total: whose chain it is, and how many blocks the chain has.
        want: which of them are shown.
        findings: what a verification found, by the hash of the block.
        proven: the hashes of blocks that the dataset's owner has signed.
    """

    headed = True

    class Moved(LineView.Moved):
        """The cursor is on another block, or other blocks are shown."""

    def __init__(self) -> None:
        super().__init__(id="chain")
        self.dataset = ""
        self.total = 0
        self.block_filter = BlockFilter()
        self.error = ""
        self.broken = False
        self.findings: Mapping[str, Finding] = {}
        self.proven: frozenset[str] = frozenset()
        self._count: int | None = None  # how many are wanted, as far as is known
        self._pages: OrderedDict[int, tuple[BlockSummary, ...]] = OrderedDict()
        self._stale: set[int] = set()  # pages from before the chain changed
        self._requested: set[int | None] = set()

    # --- What is shown ------------------------------------------------------------------------

    def open(self, dataset: str, total: int) -> None:
        """Shows a dataset's chain; for the same dataset, what is new in it."""
        if dataset != self.dataset:
            self.dataset, self.findings, self.proven = dataset, {}, frozenset()
            self._clear()
        elif self.cursor and total > self.total and not self.block_filter:
            self.cursor += total - self.total  # stays on its block
        self.total, self.error = total, ""
        self._stale = set(self._pages)
        self._requested.clear()
        if not self.block_filter and total and not self.broken:
            self._count = total
            self._request((total - 1) // PAGE)  # also while the pane is hidden
        else:
            self._request(None)
        self.reset()

    def apply_filter(self, block_filter: BlockFilter) -> None:
        """Shows only some of the blocks."""
        if block_filter == self.block_filter:
            return
        self.block_filter = block_filter
        self._clear()
        self._requested.clear()
        if not block_filter and self.total:
            self._count = self.total
        elif self.dataset:
            self._request(None)
        self.reset()
        self.post_message(self.Moved(self))

    def _clear(self) -> None:
        self.cursor, self._count, self.broken = 0, None, False
        self._pages.clear()
        self._stale.clear()
        self.scroll_to(y=0, animate=False)

    def load(self, requested: BlocksRequested, page: BlockPage | None, error: str) -> None:
        """Take in blocks that were read, or why they could not be."""
        if requested.dataset != self.dataset or requested.block_filter != self.block_filter:
            return
        self.error = error
        if page is not None:
            before = self._count
            if page.broken != self.broken:
                self._pages.clear()
            self.broken, self.proven = page.broken, page.proven
            if self.block_filter or self.broken or not self.total:
                self._count = page.total
                if self.cursor and before is not None and page.total > before:
                    self.cursor += page.total - before
            self._store(page.first, page.lines)
        self.reset()
        self.post_message(self.Moved(self))

    def _store(self, first: int, lines: Sequence[BlockSummary]) -> None:
        """Keeps lines by whole pages, and no more of them than there may be."""
        end = first + len(lines)
        for page in range(first // PAGE, (end - 1) // PAGE + 1 if lines else 0):
            start = page * PAGE
            if start >= first:
                self._pages[page] = tuple(lines[start - first : start - first + PAGE])
                self._pages.move_to_end(page)
                self._stale.discard(page)
                self._requested.discard(page)
        while len(self._pages) > MAX_PAGES:
            evicted, _ = self._pages.popitem(last=False)
            self._stale.discard(evicted)

    @property
    def block(self) -> BlockSummary | None:
        """The block under the cursor, if it was read already."""
        return self._at(self.cursor)

    def _at(self, index: int) -> BlockSummary | None:
        position = self.count() - 1 - index
        page = position // PAGE
        lines = self._pages.get(page)
        if position < 0 or lines is None or position % PAGE >= len(lines):
            return None
        self._pages.move_to_end(page)
        return lines[position % PAGE]

    def index_of(self, number: int) -> int | None:
        """The line of a block by its number, where that is known."""
        if not self.block_filter and not self.broken:
            return self.total - 1 - number if 0 <= number < self.total else None
        for page, lines in self._pages.items():
            for at, line in enumerate(lines):
                if line.sequence_number == number:
                    return self.count() - 1 - (page * PAGE + at)
        return None

    # --- Lines --------------------------------------------------------------------------------

    def count(self) -> int:
        """All blocks, or those that are wanted."""
        return 0 if self.error else self._count or 0

    def header(self) -> Sequence[Span]:
        """Names of the columns."""
        return self._columns(
            "", "block", "event", "time (UTC)", ("what it did", "head"), "hash", ["head"] * 5
        )

    def _columns(
        self,
        mark: str,
        number: str,
        event: str,
        time: str,
        summary: Span,
        block: str,
        styles: Sequence[str],
    ) -> list[Span]:
        width = self.room.width
        digits = max(len(str(self.total)), 5)
        kind = _EVENT if width >= _WIDE else max(min(width - digits - 30, _SHORT_EVENT), 8)
        cells = [
            (f"{mark:1}", styles[0]),
            (right(number, digits) + "  ", styles[1]),
            (fit_width(event, kind) + "  ", styles[2]),
        ]
        room = width - digits - kind - 14
        times = _TIME if room >= _TIME + _SUMMARY else _DAY
        if room >= times + _MIN_SUMMARY:
            cells.append((fit_width(time[:times], times) + "  ", styles[3]))
            room -= times + 2
        if room > 0:
            cells += _summary_spans(*summary, room)
        return [*cells, (f" {block[-8:]:>8}", styles[4])]

    def spans(self, index: int) -> Sequence[Span]:
        """A block; what was not read yet, or before the chain changed, is asked for."""
        position = self.count() - 1 - index
        block = self._at(index)
        if block is None or position // PAGE in self._stale:
            self._request(position // PAGE)
        if block is None:
            number = "" if self.block_filter or self.broken else str(position)
            return self._columns("", number, "…", "", ("", ""), "", ["muted"] * 5)
        has_problem = block.broken or block.hash in self.findings
        signed = block.hash in self.proven
        name = "bad" if has_problem else _EVENT_STYLES.get(block.event, "")
        return self._columns(
            FINDING_MARK if has_problem else PROOF_MARK if signed else "",
            str(block.sequence_number) if block.sequence_number >= 0 else "?",
            block.event,
            format_time(block.time),
            (printable(block.summary), "bad" if block.broken else ""),
            block.hash,
            ["bad" if has_problem else "good", "bad" if has_problem else "muted", name, "muted", "muted"],
        )

    def _request(self, page: int | None) -> None:
        if page not in self._requested:
            self._requested.add(page)
            first = None if page is None else page * PAGE
            self.post_message(BlocksRequested(self.dataset, first, self.block_filter))

    def empty(self) -> Sequence[Sequence[Span]]:
        """Why there is nothing."""
        if self.error:
            return [[(f" {printable(self.error)}", "bad")]]
        if not self.dataset:
            return [[(" A dataset's chain shows here.", "muted")]]
        if self._count is None:
            return [[(" looking …", "muted")]]
        if self.block_filter.text:
            return [
                [
                    (" No block has ", "muted"),
                    (printable(self.block_filter.text), "strong"),
                    (" in it.", "muted"),
                ]
            ]
        return [[(f" This chain has no {'such ' if self.block_filter else ''}blocks.", "muted")]]


def _summary_spans(text: str, style: str, width: int) -> list[Span]:
    """What a block did in exactly so many cells; rows stand out."""
    if cell_len(text) > width:
        text = text.replace(_WATERMARK, " → ").removeprefix("watermark ")
    match = _ROWS.match(text)
    if match is None or match.end() >= width:
        return [(fit_width(text, width), style)]
    return [(match[0], "good"), (fit_width(text[match.end() :], width - match.end()), style)]


class BlocksPane(Pane):
    """The block explorer.

    Attributes:
        verdict: what the newest verification says of the chain as it is now.
    """

    number = 2
    label = "Blocks"

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self.kinds: tuple[str, ...] = ()
        self.verdict: Verdict = ""

    def compose(self) -> ComposeResult:
        """The list."""
        yield BlocksView()

    @property
    def view(self) -> BlocksView:
        """The list."""
        return self.query_one(BlocksView)

    def set_filter(self, text: str) -> None:
        """Shows the blocks that match."""
        super().set_filter(text)
        self.view.apply_filter(BlockFilter(self.kinds, text))

    def set_kinds(self, kinds: tuple[str, ...]) -> None:
        """Shows only some kinds of events; none: all."""
        self.kinds = kinds
        self.view.apply_filter(BlockFilter(kinds, self.filter))
        self.show_position()

    def show_findings(self, findings: Sequence[Finding], verdict: Verdict) -> None:
        """What a verification found."""
        by_hash = {finding.block: finding for finding in reversed(findings)}
        changed = by_hash != self.view.findings
        self.view.findings, self.verdict, self._finding_count = by_hash, verdict, len(findings)
        if changed:
            self.view.refresh()
        self.show_position()

    _finding_count: int = 0

    @on(LineView.Moved)
    def show_position(self) -> None:
        """In the lower border: what is chosen, what the block under the cursor is, what was found."""
        view = self.view
        block = view.block
        parts: list[str] = []
        if self.kinds:
            parts.append("only " + ", ".join(self.kinds))
        if view.block_filter and not view.error:
            parts.append(f"{format_count(view.count())} of {format_count(view.total)}")
        if view.broken:
            parts.append(
                "the chain breaks here: ⏎ says what to do"
                if block and block.broken
                else "the chain breaks: G goes there"
            )
        elif self.verdict == "verified":
            parts.append("✓ verified")
        elif self.verdict == "findings":
            parts.append(f"{FINDING_MARK} {count_of(self._finding_count, 'finding')}")
        if block is not None and (finding := view.findings.get(block.hash)) is not None:
            parts.append(f"{finding.kind}: {finding.message}")
        elif block is not None and block.hash in view.proven:
            parts.append(f"{PROOF_MARK} signed by the dataset's owner")
        elif block is not None and block.time:
            parts.append(format_time_seconds(block.time))
        text, room = " · ".join(parts), max(self.size.width - 4, 0)
        self.set_subtitle(text if cell_len(text) <= room else fit_width(text, room))

    def on_resize(self) -> None:
        """There is room for more or less in the lower border."""
        self.show_position()

    def selection(self) -> tuple[str, str] | None:
        """The block's hash."""
        block = self.view.block
        return None if block is None else ("hash", block.hash)
