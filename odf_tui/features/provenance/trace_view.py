"""TraceView: the lines of a trace, with rows as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from rich.cells import cell_len
from textual.message import Message

from odf_engine.api.readers.row_window import RowWindow
from odf_engine.api.text import format_count
from odf_engine.errors import NotFound
from odf_tui.features.provenance.trace_text import node_spans
from odf_tui.features.provenance.trace_tree import (
    Group,
    Heading,
    RowCells,
    TracedRowReader,
    TracedRows,
    TraceLine,
    TraceNode,
    TraceTree,
)
from odf_tui.text.format import NULL, Span, error_with_hint, fit_width, right
from odf_tui.widgets.line_view import LineView

PAGE: Final = 64
"""Number of rows of a page, which are read together."""
_MAX_PAGES: Final = 24
_MAX_WIDTH: Final = 24
_SPACE: Final = "  "
_OPS: Final = {"+A": "muted", "-R": "bad"}
_OP_WIDTH: Final = 2


class TraceView(LineView):
    """Shows the lines of a tree. The header has the column names of the topmost rows.

    Attributes:
        trace: the tree.

    Args:
        trace: the tree.
        rows: opens the rows of a dataset. It blocks.
    """

    headed = True

    @dataclass
    class PageRead(Message):
        """A page of rows was read, or its read failed."""

        group: Group
        page: int
        reader: TracedRowReader | None
        cells: RowCells | None
        error: str = ""

    def __init__(self, trace: TraceTree, rows: Callable[[str], RowWindow | None]) -> None:
        super().__init__(id="trace-tree")
        self.active = True
        self.trace = trace
        self._rows = rows
        self._requested: list[tuple[Group, int]] = []
        self._is_reading = False

    @property
    def line(self) -> TraceLine:
        """The line under the cursor."""
        return self.trace.line(min(self.cursor, self.trace.count - 1))

    def on_mount(self) -> None:
        """Show the tree."""
        self.show_trace(self.trace)

    def show_trace(self, trace: TraceTree) -> None:
        """Show another tree, with the cursor where it was."""
        self.trace = trace
        self.cursor = trace.cursor
        self.reset()
        self.scroll_to_cursor()
        self.post_message(self.Moved(self))

    def rebuild(self) -> None:
        """Show the changed tree. The cursor stays on its line, at its position in the window."""
        line: TraceLine | None = self.line
        self.trace.rebuild()
        while line is not None and (at := self.trace.index(line)) is None:
            line = self.trace.parent(line)
        at = self.trace.index(line) if line is not None else 0
        before, self.cursor = self.cursor, at or 0
        self.reset()
        if self.cursor != before:
            self.scroll_to(y=self.scroll_offset.y + self.cursor - before, animate=False)
        self.scroll_to_cursor()
        self.post_message(self.Moved(self))

    def select_line(self, line: TraceLine) -> None:
        """Move the cursor to a line, if it is shown."""
        at = self.trace.index(line)
        if at is not None:
            self.go(at)

    def count(self) -> int:
        """Return the number of lines."""
        return self.trace.count

    def header(self) -> Sequence[Span]:
        """Return the column names of the topmost rows."""
        group = self.trace.group(self.trace.line(min(int(self.scroll_offset.y), self.trace.count - 1)))
        at = self.trace.index(TraceLine(group.heading))
        guides = "" if at is None else self._cut_guides(self.trace.guides(at))
        return self._fit([(" " * len(guides) + _SPACE, ""), *self._heading(group.heading)], sign=True)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a line, cut to the width of the view."""
        (guides, style), *rest = self.spans_in_full(index, self.room.width)
        heading = isinstance(self.trace.line(index).node, Heading)
        return self._fit([(self._cut_guides(guides), style), *rest], sign=heading)

    def spans_in_full(self, index: int, width: int = 1000) -> list[Span]:
        """Return the spans of a line, in ``width`` cells if possible. Unread rows have only an offset."""
        line = self.trace.line(index)
        guides = (self.trace.guides(index), "rule")
        if isinstance(line.node, Heading):
            return [guides, (_SPACE, ""), *self._heading(line.node)]
        if line.row >= 0 and isinstance(line.node, Group):
            traced = line.node.traced.get(line.row)
            return [guides, _marker(traced, line.node), *self._row(line.node, line.row)]
        return [guides, _marker(line.node), *node_spans(line.node, width - len(guides[0]) - 2)]

    def _cut_guides(self, guides: str) -> str:
        """Truncate guides to half the width."""
        max_width = self.room.width // 2
        return guides if len(guides) <= max_width else "‹ " + guides[len(guides) - max_width + 2 :]

    def _fit(self, spans: list[Span], *, sign: bool = False) -> list[Span]:
        """Truncate spans to the width. With ``sign``, the last cell marks truncated spans."""
        left = self.room.width
        if sign and sum(cell_len(text) for text, _ in spans) > left:
            visible = self._cut_spans(spans, left - 1)
            used = sum(cell_len(text) for text, _ in visible)
            return [*visible, (" " * (left - 1 - used), ""), ("›", "key")]
        return self._cut_spans(spans, left)

    def _cut_spans(self, spans: list[Span], left: int) -> list[Span]:
        for at, (text, style) in enumerate(spans):
            width = cell_len(text)
            if width > left:
                return [*spans[:at], (fit_width(text, left), style)]
            left -= width
        return spans

    def _heading(self, heading: Heading) -> list[Span]:
        group = heading.parent
        assert isinstance(group, Group)
        spans: list[Span] = [(right("offset", _offset_width(group)) + " " * (_OP_WIDTH + 2), "head")]
        if group.reader is None:
            return spans
        widths = self._widths(group)
        for at, name in enumerate(group.reader.names):
            text = right(fit_width(name, min(cell_len(name), widths[at])), widths[at])
            text = text if group.reader.right[at] else fit_width(name, widths[at])
            spans += [(_SPACE, ""), (text, "lineage" if group.reader.marked[at] else "head")]
        return spans

    def _row(self, group: Group, row: int) -> list[Span]:
        offset = right(format_count(group.offsets.at(row)), _offset_width(group))
        page, at = divmod(row, PAGE)
        cells = group.cells.get(page)
        if cells is None or group.reader is None:
            if group.problem:
                return [(offset, ""), (f"  {group.problem}", "warn")]
            self.request_page(group, page)
            return [(offset, ""), ("  …", "muted")]
        if not cells.present[at]:
            return [(offset, ""), ("  this row cannot be read: v in pane 3 verifies the dataset", "warn")]
        op = cells.columns[0].cells[at]
        spans: list[Span] = [(offset, ""), (f"  {op:<{_OP_WIDTH}}", _OPS.get(op, "warn"))]
        for number, width in enumerate(self._widths(group)):
            text = cells.columns[number + 1].cells[at]
            fitted = right(text, width) if group.reader.right[number] else text
            style = "muted" if text is NULL else "lineage" if group.reader.marked[number] else ""
            spans += [(_SPACE, ""), (fit_width(fitted, width), style)]
        return spans

    @staticmethod
    def _widths(group: Group) -> list[int]:
        if not group.widths and group.reader is not None:
            group.widths = [min(cell_len(name), _MAX_WIDTH) for name in group.reader.names]
        return group.widths

    def request_page(self, group: Group, page: int) -> None:
        """Request a page of a group. Pages are read one at a time."""
        if (group, page) in self._requested:
            return
        self._requested.append((group, page))
        if not self._is_reading:
            self._is_reading = True
            self.call_later(self._read_next_page)

    def _read_next_page(self) -> None:
        """Read the page that was requested last, if it is still visible."""
        while self._requested:
            group, page = self._requested.pop()
            if page not in group.cells and not group.problem and self._is_visible(group, page):
                offsets = group.offsets.page(page * PAGE, PAGE)
                work = partial(self._read, group, page, offsets)
                self.run_worker(work, thread=True, group="trace rows", name="trace rows")
                return
        self._is_reading = False

    def _is_visible(self, group: Group, page: int) -> bool:
        first = self.trace.index(TraceLine(group, min(page * PAGE, len(group.offsets) - 1)))
        last = self.trace.index(TraceLine(group, min((page + 1) * PAGE, len(group.offsets)) - 1))
        top = int(self.scroll_offset.y)
        return first is not None and last is not None and first <= top + self.room.height and last >= top

    def _read(self, group: Group, page: int, offsets: Sequence[int]) -> None:
        try:
            reader = group.reader
            if reader is None:
                window = self._rows(group.dataset)
                if window is None:
                    raise NotFound("the dataset no longer has rows")
                reader = TracedRowReader(window, list(group.columns))
            self.post_message(self.PageRead(group, page, reader, reader.page(offsets)))
        except Exception as error:  # any error is shown, and the screen stays open
            self.post_message(self.PageRead(group, page, None, None, error_with_hint(error)))

    def on_trace_view_page_read(self, message: PageRead) -> None:
        """Show the rows of a page."""
        group, cells = message.group, message.cells
        if cells is None or message.reader is None:
            group.problem = message.error
        else:
            group.reader = message.reader
            group.cells[message.page] = cells
            widths = self._widths(group)
            for at, column in enumerate(cells.columns[1:]):
                widths[at] = min(max(widths[at], column.width), _MAX_WIDTH)
            while len(group.cells) > _MAX_PAGES:
                group.cells.popitem(last=False)
        self.refresh()
        self._read_next_page()


def _marker(node: TraceNode | None, group: Group | None = None) -> Span:
    """Return the marker of a line: open, closed, busy, or none."""
    if isinstance(node, TracedRows) and node.job:
        return ("◦ ", "busy")
    if node is None:  # a row that was never opened
        return ("▸ ", "key") if group is not None and not group.missing else (_SPACE, "")
    if not node.can_open:
        return ("─ ", "rule")
    return ("▾ " if node.open else "▸ ", "key")


def _offset_width(group: Group) -> int:
    runs = group.offsets.runs
    return max(len(format_count(runs[-1][1])) if runs else 0, len("offset"))  # in ascending order
