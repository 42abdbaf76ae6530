"""Reads rows of a dataset by their offsets, a page at a time.

Imported in a thread, because it brings Arrow.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec import structs

from odf_engine.data.arrow_compute import pc
from odf_engine.errors import NotFound
from odf_engine.provenance.model import to_ranges
from odf_tui.records import Record, Value, read_record
from odf_tui.source import RowWindow
from odf_tui.widgets.cells import OPS, CellColumn, Columns, cell_column, trim
from odf_tui.windows import StoredWindow, read_part

_MOST_COLUMNS: Final = 12


def _as_sign(value: Value) -> Value:
    """An operation as people write it."""
    sign = OPS.get(value.text or "", (value.text or "",))[0]
    return structs.replace(value, text=sign, lines=[sign])


class RowCells:
    """Some rows as cells.

    Attributes:
        columns: the cells, column by column, the rows in order.
        there: for each row whether it could be read.
    """

    def __init__(self, columns: Sequence[CellColumn], there: Sequence[bool]) -> None:
        self.columns, self.there = columns, there


class RowReader:
    """Rows of a window by their offsets.

    Attributes:
        names, right: the columns that pages have, and which of them are numbers.
        marked: which of them are those that were asked for.
        all_names: of all columns that are not the system's own.

    Args:
        first: the names of columns that come before the others.
    """

    def __init__(self, window: RowWindow, first: Sequence[str]) -> None:
        self.window = window
        self._lock = threading.Lock()
        columns, names = Columns(window), window.columns.names
        system = set(window.system_columns[:3])
        wanted = [name for name in first if name in names]
        self.all_names = [name for name in names if name not in system]
        wanted += [name for name in self.all_names if name not in wanted]
        self._numbers = [names.index(name) for name in wanted[:_MOST_COLUMNS]]
        self._op = names.index(window.system_columns[1]) if window.system_columns[1] in names else -1
        self._offset = names.index(window.system_columns[0]) if window.system_columns[0] in names else -1
        self.names = [columns.names[at] for at in self._numbers]
        self.right = [columns.right[at] for at in self._numbers]
        self.marked = [names[at] in set(first) for at in self._numbers]

    def page(self, offsets: Sequence[int]) -> RowCells:
        """Rows with these offsets; the first of the columns is the operation.

        Raises:
            OdfError: they cannot be read at all.
        """
        wanted = ([self._op] if self._op >= 0 else []) + self._numbers
        with self._lock:
            table, places = self._read(offsets, wanted)
        there = [offset in places for offset in offsets]
        table = table.take(pa.array([places.get(offset) for offset in offsets], pa.int64()))
        cells = [cell_column(table.column(at), op=not at and self._op >= 0) for at in range(len(wanted))]
        if self._op < 0:
            cells.insert(0, CellColumn([""] * len(offsets), 0))
        del table
        trim()
        return RowCells(cells, there)

    def record(self, offset: int) -> Record:
        """A row in full.

        Raises:
            NotFound: it is not there.
        """
        with self._lock:
            row = self.row_of(offset)
            if row is None:
                raise NotFound(f"there is no row {offset}")
            found = read_record(self.window, row, range(len(self.window.columns.names)))
        op = self.window.system_columns[1]
        values = [_as_sign(value) if value.name == op else value for value in found.values]
        return structs.replace(found, values=values)

    def row_of(self, offset: int) -> int | None:
        """The number of a row by its offset."""
        if isinstance(self.window, StoredWindow):
            return self.window.row_of_offset(offset)
        return offset if 0 <= offset < self.window.row_count else None

    def _read(self, offsets: Sequence[int], wanted: Sequence[int]) -> tuple[pa.Table, dict[int, int]]:
        """Rows, and where in the table each of the offsets is."""
        parts: list[pa.Table] = []
        places: dict[int, int] = {}
        rows = 0
        for first, last in to_ranges(offsets):
            for table, found in self._run(first, last, wanted):
                parts.append(table)
                places |= {offset: rows + at for at, offset in enumerate(found) if first <= offset <= last}
                rows += table.num_rows
        if not parts:
            schema = self.window.columns
            return pa.schema([schema.field(at) for at in wanted]).empty_table(), places
        return pa.concat_tables(parts), places

    def _run(self, first: int, last: int, wanted: Sequence[int]) -> list[tuple[pa.Table, list[int]]]:
        """Rows that follow each other; one by one where they are not stored so."""
        row = self.row_of(first)
        if row is not None:
            table, found = self._stored(row, last - first + 1, wanted)
            if found == list(range(first, last + 1)):
                return [(table, found)]
        if first == last:
            return []
        rows = [self.row_of(offset) for offset in range(first, last + 1)]
        return [self._stored(row, 1, wanted) for row in rows if row is not None]

    def _stored(self, row: int, count: int, wanted: Sequence[int]) -> tuple[pa.Table, list[int]]:
        first = [self._offset] if self._offset >= 0 else []
        table, gaps = read_part(self.window, row, count, [*first, *wanted])
        if not first:
            return table, list(range(row, row + table.num_rows))
        offsets = pc.fill_null(table.column(0).cast(pa.int64()), -1).to_pylist()
        for start, stop, _ in gaps:  # nulls, but they are known to be there
            offsets[start - row : stop - row] = [-1] * (stop - start)
        return table.select(range(1, table.num_columns)), offsets
