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
class BlocksWanted(Message):
    """The block explorer shows blocks that it does not have: from a place on, or the newest."""

    dataset: str
    first: int | None
    want: BlockFilter


PAGE: Final = 100
KEPT: Final = 10
"""How many pages are kept: however long a chain is and wherever one scrolls, no more."""
WRONG: Final = "≠"
PROVEN: Final = "§"
_WIDE: Final = 76
_EVENT: Final = 16
_SHORT_EVENT: Final = 13
_MOMENT: Final = 16
_DAY: Final = 10
_WHAT: Final = 34
_MIN_WHAT: Final = 28
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
        self.want = BlockFilter()
        self.error = ""
        self.broken = False
        self.findings: Mapping[str, Finding] = {}
        self.proven: frozenset[str] = frozenset()
        self._shown: int | None = None  # how many are wanted, as far as is known
        self._pages: OrderedDict[int, tuple[BlockSummary, ...]] = OrderedDict()
        self._old: set[int] = set()  # pages from before the chain changed
        self._asked: set[int | None] = set()

    # --- What is shown ------------------------------------------------------------------------

    def open(self, dataset: str, total: int) -> None:
        """Shows a dataset's chain; for the same dataset, what is new in it."""
        if dataset != self.dataset:
            self.dataset, self.findings, self.proven = dataset, {}, frozenset()
            self._forget()
        elif self.cursor and total > self.total and not self.want:
            self.cursor += total - self.total  # stays on its block
        self.total, self.error = total, ""
        self._old = set(self._pages)
        self._asked.clear()
        if not self.want and total and not self.broken:
            self._shown = total
            self._ask((total - 1) // PAGE)  # also while the pane is hidden
        else:
            self._ask(None)
        self.reset()

    def narrow(self, want: BlockFilter) -> None:
        """Shows only some of the blocks."""
        if want == self.want:
            return
        self.want = want
        self._forget()
        self._asked.clear()
        if not want and self.total:
            self._shown = self.total
        elif self.dataset:
            self._ask(None)
        self.reset()
        self.post_message(self.Moved(self))

    def _forget(self) -> None:
        self.cursor, self._shown, self.broken = 0, None, False
        self._pages.clear()
        self._old.clear()
        self.scroll_to(y=0, animate=False)

    def take(self, asked: BlocksWanted, page: BlockPage | None, error: str) -> None:
        """Take in blocks that were read, or why they could not be."""
        if asked.dataset != self.dataset or asked.want != self.want:
            return
        self.error = error
        if page is not None:
            before = self._shown
            if page.broken != self.broken:
                self._pages.clear()
            self.broken, self.proven = page.broken, page.proven
            if self.want or self.broken or not self.total:
                self._shown = page.total
                if self.cursor and before is not None and page.total > before:
                    self.cursor += page.total - before
            self._keep(page.first, page.lines)
        self.reset()
        self.post_message(self.Moved(self))

    def _keep(self, first: int, lines: Sequence[BlockSummary]) -> None:
        """Keeps lines by whole pages, and no more of them than there may be."""
        end = first + len(lines)
        for page in range(first // PAGE, (end - 1) // PAGE + 1 if lines else 0):
            start = page * PAGE
            if start >= first:
                self._pages[page] = tuple(lines[start - first : start - first + PAGE])
                self._pages.move_to_end(page)
                self._old.discard(page)
                self._asked.discard(page)
        while len(self._pages) > KEPT:
            gone, _ = self._pages.popitem(last=False)
            self._old.discard(gone)

    @property
    def block(self) -> BlockSummary | None:
        """The block under the cursor, if it was read already."""
        return self._at(self.cursor)

    def _at(self, index: int) -> BlockSummary | None:
        place = self.count() - 1 - index
        page = place // PAGE
        lines = self._pages.get(page)
        if place < 0 or lines is None or place % PAGE >= len(lines):
            return None
        self._pages.move_to_end(page)
        return lines[place % PAGE]

    def index_of(self, number: int) -> int | None:
        """The line of a block by its number, where that is known."""
        if not self.want and not self.broken:
            return self.total - 1 - number if 0 <= number < self.total else None
        for page, lines in self._pages.items():
            for at, line in enumerate(lines):
                if line.sequence_number == number:
                    return self.count() - 1 - (page * PAGE + at)
        return None

    # --- Lines --------------------------------------------------------------------------------

    def count(self) -> int:
        """All blocks, or those that are wanted."""
        return 0 if self.error else self._shown or 0

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
        what: Span,
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
        times = _MOMENT if room >= _MOMENT + _WHAT else _DAY
        if room >= times + _MIN_WHAT:
            cells.append((fit_width(time[:times], times) + "  ", styles[3]))
            room -= times + 2
        if room > 0:
            cells += _what(*what, room)
        return [*cells, (f" {block[-8:]:>8}", styles[4])]

    def spans(self, index: int) -> Sequence[Span]:
        """A block; what was not read yet, or before the chain changed, is asked for."""
        place = self.count() - 1 - index
        block = self._at(index)
        if block is None or place // PAGE in self._old:
            self._ask(place // PAGE)
        if block is None:
            number = "" if self.want or self.broken else str(place)
            return self._columns("", number, "…", "", ("", ""), "", ["muted"] * 5)
        wrong = block.broken or block.hash in self.findings
        signed = block.hash in self.proven
        name = "bad" if wrong else _EVENT_STYLES.get(block.event, "")
        return self._columns(
            WRONG if wrong else PROVEN if signed else "",
            str(block.sequence_number) if block.sequence_number >= 0 else "?",
            block.event,
            format_time(block.time),
            (printable(block.summary), "bad" if block.broken else ""),
            block.hash,
            ["bad" if wrong else "good", "bad" if wrong else "muted", name, "muted", "muted"],
        )

    def _ask(self, page: int | None) -> None:
        if page not in self._asked:
            self._asked.add(page)
            first = None if page is None else page * PAGE
            self.post_message(BlocksWanted(self.dataset, first, self.want))

    def empty(self) -> Sequence[Sequence[Span]]:
        """Why there is nothing."""
        if self.error:
            return [[(f" {printable(self.error)}", "bad")]]
        if not self.dataset:
            return [[(" A dataset's chain shows here.", "muted")]]
        if self._shown is None:
            return [[(" looking …", "muted")]]
        if self.want.text:
            return [
                [(" No block has ", "muted"), (printable(self.want.text), "strong"), (" in it.", "muted")]
            ]
        return [[(f" This chain has no {'such ' if self.want else ''}blocks.", "muted")]]


def _what(text: str, style: str, width: int) -> list[Span]:
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
        self.view.narrow(BlockFilter(self.kinds, text))

    def set_kinds(self, kinds: tuple[str, ...]) -> None:
        """Shows only some kinds of events; none: all."""
        self.kinds = kinds
        self.view.narrow(BlockFilter(kinds, self.filter))
        self.tell_place()

    def show_findings(self, findings: Sequence[Finding], verdict: Verdict) -> None:
        """What a verification found."""
        by_hash = {finding.block: finding for finding in reversed(findings)}
        changed = by_hash != self.view.findings
        self.view.findings, self.verdict, self._found = by_hash, verdict, len(findings)
        if changed:
            self.view.refresh()
        self.tell_place()

    _found: int = 0

    @on(LineView.Moved)
    def tell_place(self) -> None:
        """In the lower border: what is chosen, what the block under the cursor is, what was found."""
        view = self.view
        block = view.block
        parts: list[str] = []
        if self.kinds:
            parts.append("only " + ", ".join(self.kinds))
        if view.want and not view.error:
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
            parts.append(f"{WRONG} {count_of(self._found, 'finding')}")
        if block is not None and (finding := view.findings.get(block.hash)) is not None:
            parts.append(f"{finding.kind}: {finding.message}")
        elif block is not None and block.hash in view.proven:
            parts.append(f"{PROVEN} signed by the dataset's owner")
        elif block is not None and block.time:
            parts.append(format_time_seconds(block.time))
        text, room = " · ".join(parts), max(self.size.width - 4, 0)
        self.set_subtitle(text if cell_len(text) <= room else fit_width(text, room))

    def on_resize(self) -> None:
        """There is room for more or less in the lower border."""
        self.tell_place()

    def selection(self) -> tuple[str, str] | None:
        """The block's hash."""
        block = self.view.block
        return None if block is None else ("hash", block.hash)
