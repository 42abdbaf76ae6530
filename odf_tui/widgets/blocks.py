"""Pane 2: the blocks of a dataset, newest first, read as they come into the window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from textual.app import ComposeResult

from odf_tui.humane import clip, count, moment, plain
from odf_tui.messages import BlocksWanted
from odf_tui.state import BlockLine
from odf_tui.widgets.lines import LineView, Span, right
from odf_tui.widgets.pane import Pane

PAGE: Final = 100
MATCHES: Final = 500
_EVENT_STYLES: Final = {"AddData": "name", "ExecuteTransform": "name", "Seed": "title"}


class BlocksView(LineView):
    """Line 0 is the newest block. Blocks are kept by sequence number, so that new ones disturb nothing."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="chain")
        self.dataset = ""
        self.total = 0
        self.text = ""
        self.error = ""
        self._known: dict[int, BlockLine] = {}
        self._asked: set[int] = set()
        self._matches: list[BlockLine] | None = None

    def open(self, dataset: str, total: int) -> None:
        """Shows a dataset's chain; for the same dataset, what is new in it."""
        if dataset != self.dataset:
            self.dataset, self._known, self.cursor = dataset, {}, 0
            self._matches = None
            self.scroll_to(y=0, animate=False)
        elif self.cursor and total > self.total and not self.text:
            self.cursor += total - self.total  # stays on its block
        changed = total != self.total
        self.total, self.error = total, ""
        self._asked.clear()
        if self.text and (changed or self._matches is None):
            self.match(self.text)
        self.reset()

    def match(self, text: str) -> None:
        """Shows only blocks that match ``text``; empty: all."""
        self.text, self._matches, self.cursor = text, None, 0
        if text and self.dataset:
            self.post_message(BlocksWanted(self.dataset, MATCHES, None, text))
        self.reset()

    def take(self, blocks: Iterable[BlockLine], text: str, error: str) -> None:
        """Takes in blocks that were read."""
        if text != self.text and text:
            return
        self.error = error
        if text:
            self._matches = list(blocks)
            self.cursor = 0
        else:
            self._known.update((block.sequence_number, block) for block in blocks)
        self.reset()
        self.post_message(self.Moved(self))

    @property
    def block(self) -> BlockLine | None:
        """The block under the cursor, if it was read already."""
        return self._at(self.cursor)

    def _at(self, index: int) -> BlockLine | None:
        if self.text:
            found = self._matches or []
            return found[index] if index < len(found) else None
        return self._known.get(self.total - 1 - index)

    def count(self) -> int:
        """All blocks, or those that match."""
        if self.error:
            return 0
        return len(self._matches or ()) if self.text else self.total

    def header(self) -> Sequence[Span]:
        """Names of the columns."""
        return self._columns("seq", "event", "rows", "what", "system time (UTC)", "block", ["head"] * 6)

    def _columns(
        self, seq: str, event: str, rows: str, what: str, time: str, block: str, styles: Sequence[str]
    ) -> list[Span]:
        width = self.room.width
        digits = max(len(str(self.total)), 3)
        kind = max(min(width - digits - 26, 18), 8)
        cells = [
            (right(seq, digits + 1) + "  ", styles[0]),
            (clip(event, kind) + " ", styles[1]),
            (right(rows, 10) + "  ", styles[2]),
        ]
        taken = sum(len(text) for text, _ in cells)
        tail = [(time[:16].ljust(16) + "  ", styles[4]), (block[-8:], styles[5])]
        if width < taken + 26:
            tail = tail[1:]
        room = width - taken - sum(len(text) for text, _ in tail) - 1
        if room >= 12:
            cells.append((clip(what, room) + " ", styles[3]))
        return cells + tail

    def spans(self, index: int) -> Sequence[Span]:
        """A block; what was not read yet is asked for."""
        block = self._at(index)
        if block is None:
            sequence_number = self.total - 1 - index
            self._ask(sequence_number // PAGE)
            return self._columns(str(sequence_number), "…", "", "", "", "", ["muted"] * 6)
        return self._columns(
            str(block.sequence_number),
            block.event,
            "" if block.rows is None else f"+{count(block.rows)}",
            plain(block.summary),
            moment(block.time),
            block.hash,
            ["muted", _EVENT_STYLES.get(block.event, ""), "good", "muted", "muted", "muted"],
        )

    def _ask(self, page: int) -> None:
        if page not in self._asked:
            self._asked.add(page)
            self.post_message(BlocksWanted(self.dataset, PAGE, (page + 1) * PAGE))

    def empty(self) -> Sequence[Sequence[Span]]:
        """Why there is nothing."""
        if self.error:
            return [[(f" {plain(self.error)}", "bad")]]
        if self.text:
            what = "looking …" if self._matches is None else f"no block matches {self.text}"
            return [[(f" {what}", "muted")]]
        if self.dataset:
            return [[(" This chain has no blocks.", "muted")]]
        return [[(" A dataset's chain shows here.", "muted")]]


class BlocksPane(Pane):
    """The block explorer."""

    number = 2
    label = "Blocks"

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
        self.view.match(text)

    def copied(self) -> tuple[str, str] | None:
        """The block's hash."""
        block = self.view.block
        return None if block is None else ("hash", block.hash)
