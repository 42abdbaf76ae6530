"""The table of rows: it draws only what is in the window, and reads only what it draws.

Imported after the first paint, because it needs Arrow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NoReturn

import pyarrow as pa
from rich.text import Text
from textual.binding import BindingType
from textual.message import Message
from textual_fastdatatable import DataTableBackend
from textual_fastdatatable.data_table import DataTable

from odf_engine.errors import OdfError
from odf_tui.humane import plain
from odf_tui.state import RowWindow
from odf_tui.widgets.cells import Cells, text_of, widths

CHUNK: Final = 256
KEPT: Final = 32
MAX_WIDTH: Final = 36


class WindowBackend(DataTableBackend[RowWindow]):
    """Cells from chunks of rows; a chunk that is not here is asked for, and shows as an ellipsis."""

    def __init__(
        self, data: RowWindow, cells: Cells, first: pa.Table, missing: Callable[[int], object]
    ) -> None:
        self._render_markup = False
        self.data = data
        self._cells = cells
        self._missing = missing
        self._count = data.row_count
        self._names = [plain(name) for name in data.columns.names]
        self._widths = widths(first.slice(0, CHUNK), cells, MAX_WIDTH)
        self._chunks: OrderedDict[int, pa.Table] = OrderedDict({0: first})

    def put(self, chunk: int, table: pa.Table) -> None:
        """Takes in a chunk."""
        self._chunks[chunk] = table
        while len(self._chunks) > KEPT:
            self._chunks.popitem(last=False)

    def value(self, row: int, column: int) -> pa.Scalar | None:
        """A value, or None when its chunk is not here."""
        chunk = row // CHUNK
        table = self._chunks.get(chunk)
        if table is None or row % CHUNK >= table.num_rows:
            self._missing(chunk)
            return None
        self._chunks.move_to_end(chunk)
        return table.column(column)[row % CHUNK]

    def get_cell_at(self, row_index: int, column_index: int) -> Text:
        """A cell."""
        value = self.value(row_index, column_index)
        return self._cells.waiting if value is None else self._cells.make(value, column_index)

    def get_row_at(self, index: int) -> Sequence[Any]:
        """A row of cells."""
        return [self.get_cell_at(index, column) for column in range(len(self._names))]

    @property
    def source_data(self) -> RowWindow:
        """The rows."""
        return self.data

    @property
    def source_row_count(self) -> int:
        """How many rows there are."""
        return self._count

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return self._count

    @property
    def columns(self) -> Sequence[str]:
        """The names."""
        return self._names

    @property
    def column_content_widths(self) -> Sequence[int]:
        """Widths from a sample: measuring every value would read them all."""
        return self._widths

    # The table shows; it is never edited.

    @classmethod
    def from_pydict(
        cls,
        data: Mapping[str, Sequence[Any]],
        max_rows: int | None = None,
        column_names: Sequence[str] | None = None,
    ) -> NoReturn:
        """Not for this table."""
        raise NotImplementedError

    def get_column_at(self, index: int) -> NoReturn:
        """Not for this table."""
        raise NotImplementedError

    def append_column(self, label: str, default: Any | None = None) -> NoReturn:
        """Not for this table."""
        raise NotImplementedError

    def append_rows(self, records: Iterable[Iterable[Any]]) -> NoReturn:
        """Not for this table."""
        raise NotImplementedError

    def drop_row(self, row_index: int) -> NoReturn:
        """Not for this table."""
        raise NotImplementedError

    def update_cell(self, row_index: int, column_index: int, value: Any) -> NoReturn:
        """Not for this table."""
        raise NotImplementedError

    def sort(self, by: list[tuple[str, Literal["ascending", "descending"]]] | str) -> NoReturn:
        """Not for this table."""
        raise NotImplementedError


class RowsTable(DataTable, can_focus=False, inherit_bindings=False):
    """Rows of a window. Its pane has the focus and the keys."""

    BINDINGS: ClassVar[list[BindingType]] = []

    @dataclass
    class ChunkRead(Message):
        """A chunk was read, or could not be."""

        chunk: int
        table: pa.Table | None
        error: str = ""

    @dataclass
    class Failed(Message):
        """Rows could not be read."""

        error: str

    def __init__(self, window: RowWindow, first: pa.Table, cells: Cells) -> None:
        self._wanted: list[int] = []
        self._reading = False
        self._bad: set[int] = set()
        self.window, self.first = window, first
        self._rows = WindowBackend(window, cells, first, self._want)
        super().__init__(
            backend=self._rows,
            column_labels=[cells.label(name, index) for index, name in enumerate(window.columns.names)],
            id="rows",
            max_column_content_width=MAX_WIDTH,
            cursor_foreground_priority="css",
            cursor_background_priority="css",
            render_markup=False,
            fixed_columns=2 if tuple(window.columns.names[:2]) == window.system_columns[:2] else 0,
        )

    def move(self, move: str) -> None:
        """Moves the cursor."""
        match move:
            case "down":
                self.action_cursor_down()
            case "above":
                self.action_cursor_up()
            case "left":
                self.action_cursor_left()
            case "right":
                self.action_cursor_right()
            case "first":
                self.move_cursor(row=0)
            case "last":
                self.move_cursor(row=self.row_count - 1)
            case "page_down":
                self.move_cursor(row=min(self.cursor_row + self._page, self.row_count - 1))
            case "page_up":
                self.move_cursor(row=max(self.cursor_row - self._page, 0))

    @property
    def _page(self) -> int:
        return max(self.scrollable_content_region.height - 2, 1)

    def record(self) -> list[tuple[str, str, str]] | None:
        """The row under the cursor as (column, type, text), or None while it is read."""
        found: list[tuple[str, str, str]] = []
        for index, field in enumerate(self.window.columns):
            value = self._rows.value(self.cursor_row, index)
            if value is None:
                return None
            found.append((field.name, str(field.type), text_of(value) if value.is_valid else "∅"))
        return found

    def cell(self) -> str | None:
        """The whole text of the cell under the cursor, or None while it is read."""
        value = self._rows.value(self.cursor_row, self.cursor_column)
        return None if value is None else text_of(value)

    def _want(self, chunk: int) -> None:
        if chunk in self._wanted or chunk in self._bad:
            return
        self._wanted.append(chunk)
        if not self._reading:
            self._reading = True
            self.call_later(self._read_next)

    def _read_next(self) -> None:
        """Reads the newest wish that is still in the window; the others went by."""
        top = int(self.scroll_offset.y)
        seen = range(top // CHUNK, (top + self.size.height) // CHUNK + 1)
        wishes = [chunk for chunk in self._wanted if chunk in seen] or self._wanted[-1:]
        self._wanted = wishes[1:]
        if not wishes:
            self._reading = False
            return
        chunk = wishes[0]
        self.run_worker(lambda: self._read(chunk), thread=True, exit_on_error=False)

    def _read(self, chunk: int) -> None:
        try:
            table = self.window.window(chunk * CHUNK, CHUNK)
        except (OdfError, OSError, pa.ArrowException) as error:
            self.post_message(self.ChunkRead(chunk, None, str(error)))
        else:
            self.post_message(self.ChunkRead(chunk, table))

    def on_rows_table_chunk_read(self, message: ChunkRead) -> None:
        """Shows a chunk."""
        message.stop()
        if message.table is None or not message.table.num_rows:
            self._bad.add(message.chunk)
            self.post_message(self.Failed(message.error or "these rows are not there"))
        else:
            self._rows.put(message.chunk, message.table)
        self.notify_style_update()
        self._read_next()
