"""Pane 2: the list of blocks, newest first, read page by page."""

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

from odf_engine.api.model import BlockFilter, BlockLine, BlockLines
from odf_engine.api.text import (
    count_of,
    format_count,
    format_time,
    format_zoned_time,
    printable,
    short_hash,
    signer_text,
    zone_label,
)
from odf_tui.state.model import ShownFinding, Verdict
from odf_tui.text.format import Span, fit_width, format_summary, right
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.pane_frame import Pane


@dataclass
class BlocksRequested(Message):
    """Requests blocks that the list shows and does not have.

    Attributes:
        dataset: id of the dataset.
        first: position of the first block, or None for the newest blocks that match the filter.
        block_filter: which blocks are counted and returned.
    """

    dataset: str
    first: int | None
    block_filter: BlockFilter


PAGE: Final = 100
MAX_PAGES: Final = 10
"""The number of pages in memory, for chains of any length."""
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
    """The list of blocks. Line 0 is the newest block.

    Pages are stored by positions that count from the oldest block. New blocks do not change them.

    Attributes:
        dataset, total: id of the dataset, and the number of blocks in its chain.
        block_filter: which blocks are shown.
        error: why the chain cannot be read.
        broken: whether the chain breaks at its oldest listed block.
        findings: findings of the newest verification, by the hash of the block.
        signers: who signed blocks with the dataset's key, by the hash of the block.
    """

    headed = True

    class Moved(LineView.Moved):
        """The cursor is on another block, or the list has changed."""

    def __init__(self) -> None:
        super().__init__(id="chain")
        self.dataset = ""
        self.total = 0
        self.block_filter = BlockFilter()
        self.error = ""
        self.broken = False
        self.findings: Mapping[str, ShownFinding] = {}
        self.signers: Mapping[str, str] = {}
        self._count: int | None = None  # how many blocks match the filter; None: unknown
        self._pages: OrderedDict[int, tuple[BlockLine, ...]] = OrderedDict()
        self._stale: set[int] = set()  # pages that were read before the chain changed
        self._requested: set[int | None] = set()

    def open(self, dataset: str, total: int) -> None:
        """Show the chain of a dataset. For the same dataset, the cursor stays on its block."""
        if dataset != self.dataset:
            self.dataset, self.findings, self.signers = dataset, {}, {}
            self._clear()
        elif self.cursor and total > self.total and not self.block_filter:
            self.cursor += total - self.total  # the cursor stays on its block
        self.total, self.error = total, ""
        self._stale = set(self._pages)
        self._requested.clear()
        if not self.block_filter and total and not self.broken:
            self._count = total
            self._request((total - 1) // PAGE)  # a hidden pane paints nothing, and would request nothing
        else:
            self._request(None)
        self.reset()

    def apply_filter(self, block_filter: BlockFilter) -> None:
        """Show only the blocks that match a filter."""
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

    def load(self, requested: BlocksRequested, page: BlockLines | None, error: str) -> None:
        """Store the blocks of a request, or show why they cannot be read.

        The result of a request for another dataset or filter is dropped.
        """
        if requested.dataset != self.dataset or requested.block_filter != self.block_filter:
            return
        self.error = error
        if page is not None:
            before = self._count
            if page.broken != self.broken:
                self._pages.clear()
            self.broken, self.signers = page.broken, page.signers
            if self.block_filter or self.broken or not self.total:
                self._count = page.total
                if self.cursor and before is not None and page.total > before:
                    self.cursor += page.total - before
            self._store(page.first, page.lines)
        self.reset()
        self.post_message(self.Moved(self))

    def _store(self, first: int, lines: Sequence[BlockLine]) -> None:
        """Store blocks by complete pages, at most MAX_PAGES of them."""
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
    def block(self) -> BlockLine | None:
        """The block under the cursor, or None if its page is not loaded."""
        return self._at(self.cursor)

    def _at(self, index: int) -> BlockLine | None:
        position = self.count() - 1 - index
        page = position // PAGE
        lines = self._pages.get(page)
        if position < 0 or lines is None or position % PAGE >= len(lines):
            return None
        self._pages.move_to_end(page)
        return lines[position % PAGE]

    def index_of(self, number: int) -> int | None:
        """Return the line of a block by its number, or None if its page is not loaded."""
        if not self.block_filter and not self.broken:
            return self.total - 1 - number if 0 <= number < self.total else None
        for page, lines in self._pages.items():
            for at, line in enumerate(lines):
                if line.sequence_number == number:
                    return self.count() - 1 - (page * PAGE + at)
        return None

    def count(self) -> int:
        """Return the number of blocks that match the filter."""
        return 0 if self.error else self._count or 0

    def header(self) -> Sequence[Span]:
        """Return the names of the columns."""
        time = f"time ({zone_label()})"
        return self._columns("", "block", "event", time, ("summary", "head"), "hash", ["head"] * 5)

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
        return [*cells, (f" {short_hash(block):>8}", styles[4])]

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line of a block. A page that is not loaded, or is stale, is requested."""
        position = self.count() - 1 - index
        block = self._at(index)
        if block is None or position // PAGE in self._stale:
            self._request(position // PAGE)
        if block is None:
            number = "" if self.block_filter or self.broken else str(position)
            return self._columns("", number, "…", "", ("", ""), "", ["muted"] * 5)
        has_problem = block.broken or block.hash in self.findings
        signed = block.hash in self.signers
        name = "bad" if has_problem else _EVENT_STYLES.get(block.event, "")
        return self._columns(
            FINDING_MARK if has_problem else PROOF_MARK if signed else "",
            str(block.sequence_number) if block.sequence_number >= 0 else "?",
            block.event,
            format_time(block.time),
            (printable(format_summary(block.summary)), "bad" if block.broken else ""),
            block.hash,
            ["bad" if has_problem else "good", "bad" if has_problem else "muted", name, "muted", "muted"],
        )

    def _request(self, page: int | None) -> None:
        if page not in self._requested:
            self._requested.add(page)
            first = None if page is None else page * PAGE
            self.post_message(BlocksRequested(self.dataset, first, self.block_filter))

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return why the list is empty."""
        if self.error:
            return [[(f" {printable(self.error)}", "bad")]]
        if not self.dataset:
            return [[(" Select a dataset to see its blocks", "muted")]]
        if self._count is None:
            return [[(" loading …", "muted")]]
        if self.block_filter.text:
            return [
                [
                    (" No block contains ", "muted"),
                    (printable(self.block_filter.text), "strong"),
                ]
            ]
        return [
            [(" No blocks of these kinds" if self.block_filter else " This chain has no blocks", "muted")]
        ]


def _summary_spans(text: str, style: str, width: int) -> list[Span]:
    """Return the summary of a block in exactly ``width`` cells; the number of rows is highlighted."""
    if cell_len(text) > width:
        text = text.replace(_WATERMARK, " → ").removeprefix("watermark ")
    match = _ROWS.match(text)
    if match is None or match.end() >= width:
        return [(fit_width(text, width), style)]
    return [(match[0], "good"), (fit_width(text[match.end() :], width - match.end()), style)]


class BlocksPane(Pane):
    """The pane of blocks.

    Attributes:
        kinds: the kinds of events that are shown. If it is empty, all are.
        verdict: the result of the newest verification, as far as it holds for the head.
    """

    number = 2
    label = "Blocks"

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self.kinds: tuple[str, ...] = ()
        self.verdict: Verdict = ""

    def compose(self) -> ComposeResult:
        """Yield the list."""
        yield BlocksView()

    @property
    def view(self) -> BlocksView:
        """The list."""
        return self.query_one(BlocksView)

    def set_filter(self, text: str) -> None:
        """Show the blocks that match a text."""
        super().set_filter(text)
        self.view.apply_filter(BlockFilter(self.kinds, text))

    def set_kinds(self, kinds: tuple[str, ...]) -> None:
        """Show only some kinds of events, or all if ``kinds`` is empty."""
        self.kinds = kinds
        self.view.apply_filter(BlockFilter(kinds, self.filter))
        self.show_position()

    def show_findings(self, findings: Sequence[ShownFinding], verdict: Verdict) -> None:
        """Show the findings and the verdict of a verification."""
        by_hash = {finding.block: finding for finding in reversed(findings)}
        changed = by_hash != self.view.findings
        self.view.findings, self.verdict, self._finding_count = by_hash, verdict, len(findings)
        if changed:
            self.view.refresh()
        self.show_position()

    _finding_count: int = 0

    @on(LineView.Moved)
    def show_position(self) -> None:
        """Show the filter, the verdict, and the block under the cursor in the lower border."""
        view = self.view
        block = view.block
        parts: list[str] = []
        if self.kinds:
            parts.append("only " + ", ".join(self.kinds))
        if view.block_filter and not view.error:
            parts.append(f"{format_count(view.count())} of {format_count(view.total)}")
        if view.broken:
            parts.append(
                "the chain is broken here: ⏎ shows details"
                if block and block.broken
                else "the chain is broken: G goes there"
            )
        elif self.verdict == "verified":
            parts.append("✓ verified")
        elif self.verdict == "findings":
            parts.append(f"{FINDING_MARK} {count_of(self._finding_count, 'finding')}")
        if block is not None and (finding := view.findings.get(block.hash)) is not None:
            parts.append(f"{finding.kind}: {finding.message}")
        elif block is not None and block.hash in view.signers:
            parts.append(f"{PROOF_MARK} signed {signer_text(view.signers[block.hash])}")
        elif block is not None and block.time:
            when = format_zoned_time(block.time, seconds=True)
            parts.append(f"block {format_count(block.sequence_number)} committed {when}")
        text, room = " · ".join(parts), max(self.size.width - 4, 0)
        self.set_subtitle(text if cell_len(text) <= room else fit_width(text, room))

    def on_resize(self) -> None:
        """Fit the text of the lower border to the width."""
        self.show_position()

    def selection(self) -> tuple[str, str] | None:
        """Return the hash of the block under the cursor."""
        block = self.view.block
        return None if block is None else ("hash", block.hash)
