"""A table of any number of rows that reads only what is visible; columns arranged, rows marked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.cells import cell_len
from textual import on
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from odf_tui.gateway.protocol import Gateway
from odf_tui.gateway.row_window import RowWindow, SliceMark, extends, slice_at, slices_of
from odf_tui.text.format import NULL, Span, error_hint, error_line, fit_width, printable, right
from odf_tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from odf_tui.gateway.row_text import CellChunk, Columns


class ColumnArrangement:
    """Columns by their numbers; the reader's choice is plain data, see :meth:`choice`.

    Attributes:
        order: all columns, hidden ones too.
        hidden: those that are not shown.
        frozen: how many of ``order``, from its start, stay in sight.
    """

    def __init__(self, names: Sequence[str], fixed: int, choice: Mapping[str, Any] | None = None) -> None:
        self._names = list(names)
        self._fixed = fixed
        self.reset()
        if choice:
            self._apply_choice(choice)

    def reset(self) -> None:
        """All columns as they are stored."""
        self.order = list(range(len(self._names)))
        self.hidden: set[int] = set()
        self.frozen = self._fixed

    def _apply_choice(self, choice: Mapping[str, Any]) -> None:
        at = {name: number for number, name in enumerate(self._names)}
        first = [at[name] for name in choice.get("order", ()) if name in at]
        # Columns that came since stand at the end.
        self.order = list(dict.fromkeys([*first, *self.order]))
        self.hidden = {at[name] for name in choice.get("hidden", ()) if name in at}
        if len(self.hidden) == len(self.order):
            self.hidden = set()
        until = choice.get("frozen")
        if until is not None:
            self.frozen = self.order.index(at[until]) + 1 if until in at else 0

    def choice(self) -> dict[str, Any]:
        """What the reader has changed, by names of columns; empty: nothing."""
        found: dict[str, Any] = {}
        if self.order != list(range(len(self._names))):
            found["order"] = [self._names[column] for column in self.order]
        if self.hidden:
            found["hidden"] = [self._names[column] for column in self.order if column in self.hidden]
        if self.frozen != self._fixed or ("order" in found and self.frozen):
            found["frozen"] = self._names[self.order[self.frozen - 1]] if self.frozen else ""
        return found

    @property
    def frozen_columns(self) -> list[int]:
        """The columns that are shown and stay in sight."""
        return [column for column in self.order[: self.frozen] if column not in self.hidden]

    @property
    def scrolling_columns(self) -> list[int]:
        """The columns that are shown and can go out of sight."""
        return [column for column in self.order[self.frozen :] if column not in self.hidden]

    @property
    def shown(self) -> list[int]:
        """All columns that are shown."""
        return self.frozen_columns + self.scrolling_columns

    def toggle(self, column: int) -> bool:
        """Hides a column or shows it again; False when it is the last one that is shown."""
        if column in self.hidden:
            self.hidden.discard(column)
        elif len(self.shown) > 1:
            self.hidden.add(column)
        else:
            return False
        return True

    def move(self, column: int, by: int) -> None:
        """Moves a column among the others."""
        at = self.order.index(column)
        to = max(0, min(at + by, len(self.order) - 1))
        self.order.insert(to, self.order.pop(at))

    def freeze(self, column: int) -> bool:
        """Keeps the columns up to this one in sight; a second time lets go. Whether it keeps them."""
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
    """Rows that can be shown: the window over them, its columns, and its first chunk."""

    window: RowWindow
    columns: Columns
    first: CellChunk


def load_window(window: RowWindow) -> LoadedWindow:
    """Reads what is needed to show a window; in a thread."""
    from odf_tui.gateway.row_text import Columns, read_chunk  # brings Arrow, off the event loop

    columns = Columns(window)
    return LoadedWindow(
        window, columns, read_chunk(window, 0, CHUNK, range(len(columns.names))[:_FIRST_COLUMNS])
    )


def open_rows(source: Gateway, dataset: str) -> LoadedWindow | None:
    """Opens the rows of a dataset; in a thread. None when there are none."""
    window = source.rows(dataset)
    return load_window(window) if window is not None and window.row_count else None


def _share_rows(one: RowWindow, other: RowWindow) -> bool:
    """Whether all rows of one of them are the first rows of the other."""
    return extends(one, other) or extends(other, one)


class ChunkedLineView(LineView):
    """Lines that are made of chunks. What is not here yet is read when it is asked for."""

    @dataclass
    class ChunkRead(Message):
        """Some columns of a chunk were read, or could not be."""

        window: RowWindow
        number: int
        chunk: CellChunk | None
        error: str = ""

    @dataclass
    class Failed(Message):
        """Rows could not be read."""

        error: str

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._opened: LoadedWindow | None = None
        self._chunks: OrderedDict[int, CellChunk] = OrderedDict()
        self._requested: list[int] = []
        self._failed: set[int] = set()
        self._busy = False

    def visible_columns(self) -> Sequence[int]:
        """The columns that are in the window."""
        return ()

    def set_window(self, opened: LoadedWindow | None) -> None:
        """Another window; chunks that are in both stay."""
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
        """The chunk of a row if it is here, and the row in it."""
        return self._chunks.get(index // CHUNK), index % CHUNK

    def visible_chunks(self) -> range:
        """The numbers of the chunks that are in the window."""
        top = int(self.scroll_offset.y)
        return range(top // CHUNK, (top + max(self.room.height - 1, 0)) // CHUNK + 1)

    def go(self, index: int) -> None:
        """Puts the cursor on a line, and reads ahead what the next page would show."""
        ahead = index + 2 * self.room.height * (1 if index > self.cursor else -1)
        super().go(index)
        number = ahead // CHUNK
        if 0 <= ahead < self.count() and number in self._nearby_chunks() and number not in self._chunks:
            self.request_chunk(number)

    def _nearby_chunks(self) -> range:
        """The numbers of the chunks that are in the window or beside it."""
        seen = self.visible_chunks()
        return range(seen.start - 1, seen.stop + 1)

    def request_chunk(self, number: int) -> None:
        """Reads a chunk soon."""
        if number in self._requested or number in self._failed:
            return
        self._requested.append(number)
        if not self._busy:
            self._busy = True
            self.call_later(self._read_next)

    def _read_next(self) -> None:
        """Reads what is wanted and still in the window; what has gone by is forgotten."""
        near, opened = self._nearby_chunks(), self._opened
        while self._requested and opened is not None:
            number = self._requested.pop(0)
            loaded = self._chunks.get(number)
            columns = [
                each for each in self.visible_columns() if loaded is None or each not in loaded.columns
            ]
            if number in near and columns:  # none are missing when it was asked for while it was read
                self.run_worker(partial(self._read, opened.window, number, columns), thread=True)
                return
        self._requested, self._busy = [], False

    def _read(self, window: RowWindow, number: int, columns: Sequence[int]) -> None:
        from odf_tui.gateway.row_text import read_chunk

        try:
            chunk = read_chunk(window, number * CHUNK, CHUNK, columns)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self.post_message(self.ChunkRead(window, number, None, error_line(error) + error_hint(error)))
        else:
            self.post_message(self.ChunkRead(window, number, chunk))

    @on(ChunkRead)
    def _chunk_read(self, message: ChunkRead) -> None:
        """Shows a chunk."""
        message.stop()
        if self._opened is not None and message.window is self._opened.window:
            if message.chunk is None or not message.chunk.rows:
                self._failed.add(message.number)
                if message.number in self.visible_chunks():
                    self.post_message(self.Failed(message.error or "these rows are not there"))
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
    """Ranges of rows. The first mark begins a range, the second one ends it.

    Attributes:
        anchor: where a range was begun.
    """

    def __init__(self) -> None:
        self.anchor: int | None = None
        self._ranges: list[tuple[int, int]] = []

    def toggle_range(self, row: int) -> None:
        """Begins a range at a row, ends the one that was begun, or takes a marked row out."""
        if self.anchor is not None:
            self._add(min(self.anchor, row), max(self.anchor, row) + 1)
            self.anchor = None
        elif row in self:
            self._remove(row)
        else:
            self._add(row, row + 1)
            self.anchor = row

    def clear(self) -> bool:
        """Takes all marks away; whether there were some."""
        had_marks = bool(self._ranges)
        self._ranges, self.anchor = [], None
        return had_marks

    def __contains__(self, row: int) -> bool:
        return any(start <= row < stop for start, stop in self._ranges)

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """The ranges in order, each from a row to the one after its last."""
        return tuple(self._ranges)

    @property
    def count(self) -> int:
        """How many rows are marked."""
        return sum(stop - start for start, stop in self._ranges)

    def _add(self, start: int, stop: int) -> None:
        apart = [each for each in self._ranges if each[1] < start or each[0] > stop]
        near = [each for each in self._ranges if each not in apart]
        start = min([start, *(each[0] for each in near)])
        stop = max([stop, *(each[1] for each in near)])
        self._ranges = sorted([*apart, (start, stop)])

    def _remove(self, row: int) -> None:
        at = next(each for each in self._ranges if each[0] <= row < each[1])
        self._ranges.remove(at)
        left = [part for part in ((at[0], row), (row + 1, at[1])) if part[0] < part[1]]
        self._ranges = sorted([*self._ranges, *left])


MAX_WIDTH: Final = 36
_SPACE: Final = 2
_OPS: Final = {"+A": "muted", "-R": "bad"}  # what is usual does not stand out


class RowTable(ChunkedLineView):
    """The table. Chunks that are not here are read in a thread, and show as ellipses until then.

    Attributes:
        column: the number of the column under the cursor.
        arrangement: which columns are shown, and in what order.
        marks: the rows that the reader has marked.
        needle: a text that is looked for; cells that hold it stand out.
    """

    headed = True

    def __init__(self) -> None:
        super().__init__("rows")
        self.column = 0
        self.arrangement = ColumnArrangement([], 0)
        self.marks = MarkedRows()
        self.needle = ""
        self._message: Sequence[Sequence[Span]] = [[(" Rows show here.", "muted")]]
        self._slices: Sequence[SliceMark] = ()
        self._starts: frozenset[int] = frozenset()
        self._widths: list[int] = []
        self._integer_digits: list[int] = []
        self._decimal_digits: list[int] = []
        self._left = 0  # the first of the moving columns that is in the window
        self._cached_layout: list[tuple[int, int]] | None = None  # while lines are being drawn

    @property
    def opened(self) -> LoadedWindow | None:
        """What is shown."""
        return self._opened

    @property
    def slices(self) -> Sequence[SliceMark]:
        """The slices of what is shown, if it has some."""
        return self._slices

    @property
    def slice(self) -> int:
        """The number of the slice under the cursor, from 0; -1: there are none."""
        return slice_at(self._slices, self.cursor)

    def open(self, opened: LoadedWindow, *, stay: bool, choice: Mapping[str, Any] | None = None) -> None:
        """Shows rows; with ``stay`` the cursor and the columns stay where they are.

        Args:
            choice: how the columns are arranged, see :meth:`ColumnArrangement.choice`.
        """
        names = opened.columns.names
        if not stay or self._opened is None or self._opened.columns.names != names:
            self.cursor = self._left = 0
            self.arrangement = ColumnArrangement(names, opened.columns.fixed, choice)
            self.column = self.arrangement.shown[0] if names else 0
            self._widths = [min(cell_len(name), MAX_WIDTH) for name in names]
            self._integer_digits, self._decimal_digits = [0] * len(names), [0] * len(names)
            self.marks.clear()
            self.scroll_to(y=0, animate=False)
        self.set_window(opened)
        self._slices = slices_of(opened.window)
        self._starts = frozenset(each.start for each in self._slices)
        self.reset()

    def show_message(self, *lines: Sequence[Span]) -> None:
        """Shows words instead of rows."""
        self._message, self._slices, self._starts = lines, (), frozenset()
        self.cursor = 0
        self.marks.clear()
        self.set_window(None)
        self.reset()

    def value(self, row: int, column: int) -> str | None:
        """A cell's text: None while it is being read."""
        chunk, at = self.chunk_of(row)
        return None if chunk is None or at >= chunk.rows else chunk.cell(at, column)

    def problem(self, row: int) -> str:
        """Why a row cannot be read; empty: it can, or nobody knows yet."""
        chunk, at = self.chunk_of(row)
        return "" if chunk is None else chunk.gap(at)

    def highlight(self, needle: str) -> None:
        """Cells that hold a text stand out."""
        if needle != self.needle:
            self.needle = needle
            self.refresh()

    def mark(self) -> None:
        """Marks the row under the cursor, or the rows up to it."""
        self.marks.toggle_range(self.cursor)
        self.refresh()

    def clear_marks(self) -> bool:
        """Takes all marks away; whether there were some."""
        had_marks = self.marks.clear()
        if had_marks:
            self.refresh()
        return had_marks

    # --- Moving ---

    def move(self, move: str) -> None:
        """Moves the cursor through rows and columns."""
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
        """Puts the cursor on a cell."""
        if self._opened is not None and self.arrangement.shown:
            self._select_column(column if column in self.arrangement.shown else self.arrangement.shown[0])
            self.go(row)

    def go_to_middle(self, row: int) -> None:
        """Puts the cursor on a row, in the middle of the window if it was not in it."""
        top, height = int(self.scroll_offset.y), self.room.height
        if not top <= row < top + height:
            self.scroll_to(y=max(row - height // 2, 0), animate=False)
        self.go(row)

    def apply_arrangement(self) -> None:
        """The arrangement has changed."""
        shown = self.arrangement.shown
        if self.column not in shown:
            order = self.arrangement.order
            at = order.index(self.column)
            self.column = next((each for each in order[at:] if each in shown), shown[-1])
        self._left = max(0, min(self._left, len(self._split_columns()[1]) - 1))
        self._show_column()
        self.refresh()
        self.post_message(self.Moved(self))

    def _show_column(self) -> bool:
        """Scrolls as little as needed to have the column in the window; whether that was needed."""
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
        return any(each == column and width >= self._widths[each] for each, width in self._column_layout())

    def click_at(self, x: int, y: int) -> bool:
        """Puts the cursor at a cell of the window."""
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
        """The columns that are in the window."""
        return [column for column, _ in self._column_layout()]

    def _split_columns(self) -> tuple[list[int], list[int]]:
        """The columns that stay and those that move; where the first leave no room, all of them move."""
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
        """The columns in the window and the cells that each has; the last may have less than it needs."""
        if self._cached_layout is not None:
            return self._cached_layout
        room = self.room.width - 2  # a margin at each side
        found: list[tuple[int, int]] = []
        frozen_columns, scrolling_columns = self._split_columns()
        for column in [*frozen_columns, *scrolling_columns[self._left :]]:
            if room <= 0:
                break
            found.append((column, min(self._widths[column], room)))
            room -= self._widths[column] + _SPACE
        return found

    # --- Drawing ---

    def count(self) -> int:
        """All rows."""
        return 0 if self._opened is None else self._opened.window.row_count

    def style_of(self, index: int) -> str:
        """The cursor's row; its cell is marked in the row."""
        return "idle" if index == self.cursor and self._opened is not None else ""

    def empty(self) -> Sequence[Sequence[Span]]:
        """The words."""
        return [[(" There are no rows here.", "muted")]] if self._opened is not None else self._message

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draws, once the columns are wide enough for what comes into the window."""
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
        """Columns grow with what is shown: measuring every value would read them all."""
        grown = False
        for number in self.visible_chunks():
            if (chunk := self._chunks.get(number)) is None:
                continue
            for column in self.visible_columns():
                if (found := chunk.columns.get(column)) is None:
                    continue
                self._integer_digits[column] = max(self._integer_digits[column], found.whole)
                self._decimal_digits[column] = max(self._decimal_digits[column], found.points)
                aligned = (
                    self._integer_digits[column] + 1 + self._decimal_digits[column]
                    if self._decimal_digits[column]
                    else 0
                )
                width = min(max(found.width, aligned), MAX_WIDTH)
                if width > self._widths[column]:
                    self._widths[column], grown = width, True
        if grown:
            self._show_column()
        return grown

    def header(self) -> Sequence[Span]:
        """Names of the columns, and signs that there are more at a side."""
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
        """A line of the window's width, with a sign in its last cell."""
        room = self.room.width - 1
        used = sum(cell_len(text) for text, _ in spans)
        if used > room:  # only blanks are behind the last column
            text, style = spans[-1]
            spans[-1] = (text[: len(text) - (used - room)], style)
        return [*spans, (" " * max(room - used, 0), ""), (last, "key")]

    def spans(self, index: int) -> Sequence[Span]:
        """A row."""
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
            else:  # blanks in the style of their neighbours: each change of it costs bytes
                spans.append((before + fitted + " " * _SPACE, style))
        if missing:
            self.request_chunk(index // CHUNK)
        return spans

    def _margin(self, index: int) -> Span:
        if index in self.marks:
            return ("▸", "key")
        return ("┌", "title") if index in self._starts and len(self._slices) > 1 else (" ", "")

    def _gap(self, index: int, row: int, problem: str) -> list[Span]:
        """A row that cannot be read: the first of them in the window says why."""
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
        """A value in its cells: numbers at the right, points below each other."""
        if self._opened is None or not self._opened.columns.right[column]:
            return fit_width(text, width)
        points = self._decimal_digits[column]
        if points and text[-1:].isdigit() and "e" not in text:
            head, dot, tail = text.partition(".")
            text = head + (dot or " ") + tail + " " * (points - len(tail))
        return right(text, width) if cell_len(text) <= width else fit_width(text, width)
