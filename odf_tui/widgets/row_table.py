"""A table that reads only the visible rows, with arranged columns and marked rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.cells import cell_len
from textual import on
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from odf_engine.api.readers.row_window import RowWindow, SliceMark, extends, slice_at, slices_of
from odf_engine.api.text import printable
from odf_tui.text.format import NULL, Span, error_hint, error_line, fit_width, right
from odf_tui.text.row_text import CellChunk, Columns, read_chunk
from odf_tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace


class ColumnArrangement:
    """The order, visibility and freezing of columns, by their numbers.

    Args:
        names: the names of the columns.
        fixed: the number of columns that are frozen by default.
        choice: a saved arrangement, see :meth:`choice`.
        hidden: the columns that are hidden by default; never all of them.

    Attributes:
        order: all columns, including hidden ones.
        hidden: the hidden columns.
        frozen: the number of columns at the start of ``order`` that do not scroll.
    """

    def __init__(
        self,
        names: Sequence[str],
        fixed: int,
        choice: Mapping[str, Any] | None = None,
        hidden: Collection[int] = (),
    ) -> None:
        self._names = list(names)
        self._fixed = fixed
        self._hidden_by_default = set(hidden) if len(set(hidden)) < len(names) else set[int]()
        self.reset()
        if choice:
            self._apply_choice(choice)

    def reset(self) -> None:
        """Show the columns in their stored order, except those that are hidden by default."""
        self.order = list(range(len(self._names)))
        self.hidden: set[int] = set(self._hidden_by_default)
        self.frozen = self._fixed

    def _apply_choice(self, choice: Mapping[str, Any]) -> None:
        at = {name: number for number, name in enumerate(self._names)}
        first = [at[name] for name in choice.get("order", ()) if name in at]
        # New columns are appended.
        self.order = list(dict.fromkeys([*first, *self.order]))
        if "hidden" in choice:
            self.hidden = {at[name] for name in choice["hidden"] if name in at}
        if len(self.hidden) == len(self.order):
            self.hidden = set()
        until = choice.get("frozen")
        if until is not None:
            self.frozen = self.order.index(at[until]) + 1 if until in at else 0

    def choice(self) -> dict[str, Any]:
        """Return the user's changes by column name, or {} if there are no changes."""
        changes: dict[str, Any] = {}
        if self.order != list(range(len(self._names))):
            changes["order"] = [self._names[column] for column in self.order]
        if self.hidden != self._hidden_by_default:
            changes["hidden"] = [self._names[column] for column in self.order if column in self.hidden]
        if self.frozen != self._fixed or ("order" in changes and self.frozen):
            changes["frozen"] = self._names[self.order[self.frozen - 1]] if self.frozen else ""
        return changes

    @property
    def frozen_columns(self) -> list[int]:
        """The shown columns that do not scroll."""
        return [column for column in self.order[: self.frozen] if column not in self.hidden]

    @property
    def scrolling_columns(self) -> list[int]:
        """The shown columns that scroll."""
        return [column for column in self.order[self.frozen :] if column not in self.hidden]

    @property
    def shown(self) -> list[int]:
        """All shown columns, in order."""
        return self.frozen_columns + self.scrolling_columns

    def toggle(self, column: int) -> bool:
        """Hide a column or show it again. Returns False if it is the only one shown."""
        if column in self.hidden:
            self.hidden.discard(column)
        elif len(self.shown) > 1:
            self.hidden.add(column)
        else:
            return False
        return True

    def move(self, column: int, by: int) -> None:
        """Move a column by some positions in the order."""
        at = self.order.index(column)
        to = max(0, min(at + by, len(self.order) - 1))
        self.order.insert(to, self.order.pop(at))

    def freeze(self, column: int) -> bool:
        """Freeze the columns up to this one, or release them if they are frozen.

        Returns:
            whether they are frozen now.
        """
        wanted = self.order.index(column) + 1
        if wanted != self.frozen:
            self.frozen = wanted
        else:
            self.frozen = self._fixed if wanted != self._fixed else 0
        return self.frozen == wanted


CHUNK: Final = 256
MAX_CHUNKS: Final = 12
_FIRST_COLUMNS: Final = 8


class LoadedWindow(msgspec.Struct, frozen=True):
    """Rows to show: the window over them, its columns, and its first chunk."""

    window: RowWindow
    columns: Columns
    first: CellChunk


def load_window(window: RowWindow) -> LoadedWindow:
    """Read the columns and the first chunk of a window. Called in a thread."""
    columns = Columns(window)
    return LoadedWindow(
        window, columns, read_chunk(window, 0, CHUNK, range(len(columns.names))[:_FIRST_COLUMNS])
    )


def open_rows(source: Workspace, dataset: str) -> LoadedWindow | None:
    """Open the rows of a dataset, or None if it has none. Called in a thread."""
    window = source.rows(dataset)
    return load_window(window) if window is not None and window.row_count else None


def _share_rows(one: RowWindow, other: RowWindow) -> bool:
    """Return whether all rows of one window are the first rows of the other."""
    return extends(one, other) or extends(other, one)


class ChunkedLineView(LineView):
    """Lines made of chunks of rows. Missing chunks are read in threads when they are shown."""

    @dataclass
    class ChunkRead(Message):
        """Some columns of a chunk were read, or the read failed."""

        window: RowWindow
        number: int
        chunk: CellChunk | None
        error: str = ""

    @dataclass
    class Failed(Message):
        """Visible rows could not be read."""

        error: str

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._opened: LoadedWindow | None = None
        self._chunks: OrderedDict[int, CellChunk] = OrderedDict()
        self._requested: list[int] = []
        self._failed: set[int] = set()
        self._busy = False

    def visible_columns(self) -> Sequence[int]:
        """Return the columns that are in the window."""
        return ()

    def set_window(self, opened: LoadedWindow | None) -> None:
        """Replace the window. Complete chunks that both windows share stay loaded."""
        before, self._opened = self._opened, opened
        kept: dict[int, CellChunk] = {}
        if before is not None and opened is not None and _share_rows(before.window, opened.window):
            full = min(before.window.row_count, opened.window.row_count) // CHUNK
            kept = {number: chunk for number, chunk in self._chunks.items() if number < full}
        self._chunks = OrderedDict(kept)
        if opened is not None:
            self._chunks.setdefault(0, opened.first)
        self._requested, self._failed = [], set()

    def chunk_of(self, index: int) -> tuple[CellChunk | None, int]:
        """Return the chunk of a row, None if it is not loaded, and the number of the row in it."""
        return self._chunks.get(index // CHUNK), index % CHUNK

    def visible_chunks(self) -> range:
        """Return the numbers of the chunks that are in the window."""
        top = int(self.scroll_offset.y)
        return range(top // CHUNK, (top + max(self.room.height - 1, 0)) // CHUNK + 1)

    def go(self, index: int) -> None:
        """Move the cursor to a line, and read the chunk of the next page ahead."""
        ahead = index + 2 * self.room.height * (1 if index > self.cursor else -1)
        super().go(index)
        number = ahead // CHUNK
        if 0 <= ahead < self.count() and number in self._nearby_chunks() and number not in self._chunks:
            self.request_chunk(number)

    def _nearby_chunks(self) -> range:
        """Return the numbers of the chunks that are in the window or next to it."""
        seen = self.visible_chunks()
        return range(seen.start - 1, seen.stop + 1)

    def request_chunk(self, number: int) -> None:
        """Queue the read of a chunk."""
        if number in self._requested or number in self._failed:
            return
        self._requested.append(number)
        if not self._busy:
            self._busy = True
            self.call_later(self._read_next)

    def _read_next(self) -> None:
        """Read the next queued chunk that is still near the window; drop the others."""
        near, opened = self._nearby_chunks(), self._opened
        while self._requested and opened is not None:
            number = self._requested.pop(0)
            loaded = self._chunks.get(number)
            columns = [
                column for column in self.visible_columns() if loaded is None or column not in loaded.columns
            ]
            if number in near and columns:  # empty if it was requested again during its read
                self.run_worker(partial(self._read, opened.window, number, columns), thread=True)
                return
        self._requested, self._busy = [], False

    def _read(self, window: RowWindow, number: int, columns: Sequence[int]) -> None:
        try:
            chunk = read_chunk(window, number * CHUNK, CHUNK, columns)
        except Exception as error:  # any error is shown, and the screen stays open
            self.post_message(self.ChunkRead(window, number, None, error_line(error) + error_hint(error)))
        else:
            self.post_message(self.ChunkRead(window, number, chunk))

    @on(ChunkRead)
    def _chunk_read(self, message: ChunkRead) -> None:
        """Store a chunk and show it."""
        message.stop()
        if self._opened is not None and message.window is self._opened.window:
            if message.chunk is None or not message.chunk.rows:
                self._failed.add(message.number)
                if message.number in self.visible_chunks():
                    self.post_message(self.Failed(message.error or "the rows do not exist"))
            elif message.number in self._chunks:
                self._chunks[message.number].merge(message.chunk)
            else:
                self._chunks[message.number] = message.chunk
            if message.number in self._chunks:
                self._chunks.move_to_end(message.number)
            while len(self._chunks) > MAX_CHUNKS:
                self._chunks.popitem(last=False)
            if message.number in self.visible_chunks():
                self.refresh()
        self._read_next()


class MarkedRows:
    """Ranges of marked rows. The first mark starts a range, and the second ends it.

    Attributes:
        anchor: the first row of a started range, or None if absent.
    """

    def __init__(self) -> None:
        self.anchor: int | None = None
        self._ranges: list[tuple[int, int]] = []

    def toggle_range(self, row: int) -> None:
        """Start a range at a row, end the started one, or remove the mark of a marked row."""
        if self.anchor is not None:
            self._add(min(self.anchor, row), max(self.anchor, row) + 1)
            self.anchor = None
        elif row in self:
            self._remove(row)
        else:
            self._add(row, row + 1)
            self.anchor = row

    def clear(self) -> bool:
        """Remove all marks. Returns whether there were any."""
        had_marks = bool(self._ranges)
        self._ranges, self.anchor = [], None
        return had_marks

    def __contains__(self, row: int) -> bool:
        return any(start <= row < stop for start, stop in self._ranges)

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """The ranges in order, as (first row, row after the last)."""
        return tuple(self._ranges)

    @property
    def count(self) -> int:
        """The number of marked rows."""
        return sum(stop - start for start, stop in self._ranges)

    def _add(self, start: int, stop: int) -> None:
        apart = [marked for marked in self._ranges if marked[1] < start or marked[0] > stop]
        near = [marked for marked in self._ranges if marked not in apart]
        start = min([start, *(marked[0] for marked in near)])
        stop = max([stop, *(marked[1] for marked in near)])
        self._ranges = sorted([*apart, (start, stop)])

    def _remove(self, row: int) -> None:
        at = next(marked for marked in self._ranges if marked[0] <= row < marked[1])
        self._ranges.remove(at)
        left = [part for part in ((at[0], row), (row + 1, at[1])) if part[0] < part[1]]
        self._ranges = sorted([*self._ranges, *left])


MAX_WIDTH: Final = 36
_SPACE: Final = 2
_OPS: Final = {"+A": "muted", "-R": "bad"}  # appends are not highlighted


class RowTable(ChunkedLineView):
    """A table of rows. Cells show an ellipsis until their chunk is read.

    Attributes:
        column: the number of the column under the cursor.
        arrangement: the shown columns and their order.
        marks: the marked rows.
        needle: the searched text, in lower case; cells that contain it are highlighted.
    """

    headed = True

    def __init__(self) -> None:
        super().__init__("rows")
        self.column = 0
        self.arrangement = ColumnArrangement([], 0)
        self.marks = MarkedRows()
        self.needle = ""
        self._message: Sequence[Sequence[Span]] = [[(" Select a dataset to see its rows", "muted")]]
        self._slices: Sequence[SliceMark] = ()
        self._starts: frozenset[int] = frozenset()
        self._widths: list[int] = []
        self._integer_digits: list[int] = []
        self._decimal_digits: list[int] = []
        self._left = 0  # the first scrolling column in the window
        self._cached_layout: list[tuple[int, int]] | None = None  # while lines are drawn

    @property
    def opened(self) -> LoadedWindow | None:
        """The shown rows, or None while a message is shown."""
        return self._opened

    @property
    def slices(self) -> Sequence[SliceMark]:
        """The slices of the shown rows, if the rows belong to a chain."""
        return self._slices

    @property
    def slice(self) -> int:
        """The number of the slice under the cursor, from 0; -1 if there are none."""
        return slice_at(self._slices, self.cursor)

    def open(self, opened: LoadedWindow, *, stay: bool, choice: Mapping[str, Any] | None = None) -> None:
        """Show rows.

        Args:
            opened: the rows.
            stay: whether cursor and columns stay the same, if the columns are the same.
            choice: a saved arrangement, see :meth:`ColumnArrangement.choice`.
        """
        names = opened.columns.names
        if not stay or self._opened is None or self._opened.columns.names != names:
            self.cursor = self._left = 0
            # System columns need half of a narrow window.
            hidden = opened.columns.hidden if self.screen.has_class("-narrow") else ()
            self.arrangement = ColumnArrangement(names, opened.columns.fixed, choice, hidden)
            self.column = self.arrangement.shown[0] if names else 0
            self._widths = [min(cell_len(name), MAX_WIDTH) for name in names]
            self._integer_digits, self._decimal_digits = [0] * len(names), [0] * len(names)
            self.marks.clear()
            self.scroll_to(y=0, animate=False)
        self.set_window(opened)
        self._slices = slices_of(opened.window)
        self._starts = frozenset(part.start for part in self._slices)
        self.reset()

    def show_message(self, *lines: Sequence[Span]) -> None:
        """Show a message instead of rows."""
        self._message, self._slices, self._starts = lines, (), frozenset()
        self.cursor = 0
        self.marks.clear()
        self.set_window(None)
        self.reset()

    def value(self, row: int, column: int) -> str | None:
        """Return the text of a cell, or None while it is read."""
        chunk, at = self.chunk_of(row)
        return None if chunk is None or at >= chunk.rows else chunk.cell(at, column)

    def problem(self, row: int) -> str:
        """Return why a row cannot be read, or "" if it can, or is not read yet."""
        chunk, at = self.chunk_of(row)
        return "" if chunk is None else chunk.gap(at)

    def highlight(self, needle: str) -> None:
        """Highlight the cells that contain a text."""
        if needle != self.needle:
            self.needle = needle
            self.refresh()

    def mark(self) -> None:
        """Mark the row under the cursor, or the rows from the anchor to it."""
        self.marks.toggle_range(self.cursor)
        self.refresh()

    def clear_marks(self) -> bool:
        """Remove all marks. Returns whether there were any."""
        had_marks = self.marks.clear()
        if had_marks:
            self.refresh()
        return had_marks

    def move(self, move: str) -> None:
        """Move the cursor through rows and columns."""
        if self._opened is None:
            return
        if move not in ("left", "right"):
            super().move(move)
            return
        shown = self.arrangement.shown
        if not shown:
            return
        at = shown.index(self.column) if self.column in shown else 0
        self._select_column(shown[max(0, min(at + (1 if move == "right" else -1), len(shown) - 1))])

    def _select_column(self, column: int) -> None:
        if column == self.column:
            return
        self.column = column
        if self._show_column():
            self.refresh()
        else:
            self.refresh_line(self.cursor + 1)
        self.post_message(self.Moved(self))

    def go_to(self, row: int, column: int) -> None:
        """Move the cursor to a cell."""
        if self._opened is not None and self.arrangement.shown:
            self._select_column(column if column in self.arrangement.shown else self.arrangement.shown[0])
            self.go(row)

    def go_to_middle(self, row: int) -> None:
        """Move the cursor to a row; scroll it to the middle if it was not in the window."""
        top, height = int(self.scroll_offset.y), self.room.height
        if not top <= row < top + height:
            self.scroll_to(y=max(row - height // 2, 0), animate=False)
        self.go(row)

    def apply_arrangement(self) -> None:
        """Update the table after the arrangement has changed."""
        shown = self.arrangement.shown
        if self.column not in shown:
            order = self.arrangement.order
            at = order.index(self.column)
            self.column = next((column for column in order[at:] if column in shown), shown[-1])
        self._left = max(0, min(self._left, len(self._split_columns()[1]) - 1))
        self._show_column()
        self.refresh()
        self.post_message(self.Moved(self))

    def _show_column(self) -> bool:
        """Scroll the column into the window, as little as needed. Returns whether it scrolled."""
        scrolling_columns, before = self._split_columns()[1], self._left
        if self.column not in scrolling_columns:
            return False
        at = scrolling_columns.index(self.column)
        self._left = min(self._left, at)
        while self._left < at and not self._is_fully_visible(self.column):
            self._left += 1
        return self._left != before

    def _is_fully_visible(self, column: int) -> bool:
        self._cached_layout = None
        return any(at == column and width >= self._widths[at] for at, width in self._column_layout())

    def click_at(self, x: int, y: int) -> bool:
        """Move the cursor to a cell of the window. Returns whether the cell has a row."""
        if self._opened is None or not super().click_at(x, y):
            return False
        edge = 1
        for column, width in self._column_layout():
            edge += width + _SPACE
            if x < edge:
                self._select_column(column)
                break
        return True

    def visible_columns(self) -> Sequence[int]:
        """Return the columns that are in the window."""
        return [column for column, _ in self._column_layout()]

    def _split_columns(self) -> tuple[list[int], list[int]]:
        """Return frozen and scrolling columns; all scroll if frozen ones need over 2/3 of the width."""
        frozen_columns, scrolling_columns = (
            self.arrangement.frozen_columns,
            self.arrangement.scrolling_columns,
        )
        taken = sum(self._widths[column] + _SPACE for column in frozen_columns)
        return (
            (frozen_columns, scrolling_columns)
            if 3 * taken <= 2 * self.room.width
            else ([], frozen_columns + scrolling_columns)
        )

    def _column_layout(self) -> list[tuple[int, int]]:
        """Return the columns in the window with their widths in cells; the last may be cut."""
        if self._cached_layout is not None:
            return self._cached_layout
        room = self.room.width - 2  # one cell of margin at each side
        layout: list[tuple[int, int]] = []
        frozen_columns, scrolling_columns = self._split_columns()
        for column in [*frozen_columns, *scrolling_columns[self._left :]]:
            if room <= 0:
                break
            layout.append((column, min(self._widths[column], room)))
            room -= self._widths[column] + _SPACE
        return layout

    def count(self) -> int:
        """Return the number of rows."""
        return 0 if self._opened is None else self._opened.window.row_count

    def style_of(self, index: int) -> str:
        """Return the style of the row under the cursor, or "" for other rows."""
        return "idle" if index == self.cursor and self._opened is not None else ""

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the message."""
        return [[(" No rows", "muted")]] if self._opened is not None else self._message

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render rows, after widening columns for the values in the window."""
        if self._opened is None:
            return super().render_lines(crop)
        if self._widen():
            self.call_later(self.refresh)
        self._cached_layout = None
        self._cached_layout = self._column_layout()
        try:
            return super().render_lines(crop)
        finally:
            self._cached_layout = None

    def _widen(self) -> bool:
        """Widen columns for the loaded values: measuring all values would read all rows.

        Returns:
            whether a column was widened.
        """
        grown = False
        for number in self.visible_chunks():
            if (chunk := self._chunks.get(number)) is None:
                continue
            for column in self.visible_columns():
                if (content := chunk.columns.get(column)) is None:
                    continue
                self._integer_digits[column] = max(self._integer_digits[column], content.integer_digits)
                self._decimal_digits[column] = max(self._decimal_digits[column], content.points)
                aligned = (
                    self._integer_digits[column] + 1 + self._decimal_digits[column]
                    if self._decimal_digits[column]
                    else 0
                )
                width = min(max(content.width, aligned), MAX_WIDTH)
                if width > self._widths[column]:
                    self._widths[column], grown = width, True
        if grown:
            self._show_column()
        return grown

    def header(self) -> Sequence[Span]:
        """Return the names of the columns, with signs at the sides if there are more."""
        if self._opened is None:
            return ()
        columns, layout = self._opened.columns, self._column_layout()
        spans: list[Span] = [("‹" if self._left else " ", "key")]
        for column, width in layout:
            name = columns.names[column]
            fits = columns.right[column] and cell_len(name) <= width
            text = right(name, width) if fits else fit_width(name, width)
            spans.append((text + " " * _SPACE, "strong" if column == self.column else "head"))
        shown = self.arrangement.shown
        more = bool(shown) and (not layout or layout[-1] != (shown[-1], self._widths[shown[-1]]))
        return self._filled(spans, "›" if more else "")

    def _filled(self, spans: list[Span], last: str) -> list[Span]:
        """Return spans padded to the width of the window, with a sign in the last cell."""
        room = self.room.width - 1
        used = sum(cell_len(text) for text, _ in spans)
        if used > room:  # the last column ends in blanks
            text, style = spans[-1]
            spans[-1] = (text[: len(text) - (used - room)], style)
        return [*spans, (" " * max(room - used, 0), ""), (last, "key")]

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a row; request its chunk if it is not loaded."""
        if self._opened is None:
            return ()
        chunk, row = self.chunk_of(index)
        margin = self._margin(index)
        if chunk is not None and (problem := chunk.gap(row)):
            return [margin, *self._gap(index, row, problem)]
        spans: list[Span] = [margin] if margin[0] != " " else []
        missing = chunk is None
        for column, width in self._column_layout():
            text = chunk.cell(row, column) if chunk is not None and row < chunk.rows else None
            missing = missing or text is None
            fitted, style = self._cell(index, column, width, text)
            before = "" if spans else " "
            if style in ("cursor", "strong"):
                spans += [(before, ""), (fitted, style), (" " * _SPACE, "")]
            else:  # blanks get the style of their neighbours: each change of style costs bytes
                spans.append((before + fitted + " " * _SPACE, style))
        if missing:
            self.request_chunk(index // CHUNK)
        return spans

    def _margin(self, index: int) -> Span:
        if index in self.marks:
            return ("▸", "key")
        is_start = index in self._starts and len(self._slices) > 1 and index != self.cursor
        return ("┌", "title") if is_start else (" ", "")

    def _gap(self, index: int, row: int, problem: str) -> list[Span]:
        """Return the spans of an unreadable row; the first of a run in the window shows why."""
        first = row == 0 or index == int(self.scroll_offset.y) or not self.problem(index - 1)
        first = first or index in self._starts
        return [("· ", "warn"), (printable(problem), "warn")] if first else [("·", "muted")]

    def _cell(self, index: int, column: int, width: int, text: str | None) -> Span:
        fitted = self._fit("…" if text is None else text, column, width)
        if index == self.cursor and column == self.column:
            return (fitted, "cursor" if self.active else "strong")
        if text is None or text is NULL:
            return (fitted, "muted")
        if self.needle and self.needle in text.casefold():
            return (fitted, "busy")
        columns = self._opened.columns if self._opened is not None else None
        if columns is None:
            return (fitted, "")
        if column == columns.op:
            return (fitted, _OPS.get(text, "warn"))
        return (fitted, "muted" if columns.muted[column] else "")

    def _fit(self, text: str, column: int, width: int) -> str:
        """Return a value in ``width`` cells; numbers are right-aligned at the decimal point."""
        if self._opened is None or not self._opened.columns.right[column]:
            return fit_width(text, width)
        points = self._decimal_digits[column]
        if points and text[-1:].isdigit() and "e" not in text:
            head, dot, tail = text.partition(".")
            text = head + (dot or " ") + tail + " " * (points - len(tail))
        return right(text, width) if cell_len(text) <= width else fit_width(text, width)
