"""Rows of a window in another order, or only some of them: by their numbers, so that no row is copied.

Imported in a thread, because it brings Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_tui.source import RowWindow
from odf_tui.widgets.cells import scalar, texts
from odf_tui.widgets.holding import able_to_hold, holding
from odf_tui.windows import Gap, read_part

LOADED: Final = 100_000
"""The most rows that are sorted, or looked at to keep some of them."""

_NEAR: Final = 4096
_SCAN_ROWS: Final = 1 << 16

Tests = dict[str, Callable[[Any, Any], Any]]
TESTS: Final[Tests] = {
    "equal": lambda column, value: pc.equal(column, value),
    "other": lambda column, value: pc.not_equal(column, value),
    "less": lambda column, value: pc.less(column, value),
    "greater": lambda column, value: pc.greater(column, value),
    "null": lambda column, value: pc.is_null(column),
    "filled": lambda column, value: pc.is_valid(column),
}


class PickedWindow:
    """Rows of another window by their numbers.

    Attributes:
        base: the other window.
        numbers: the rows in it.
    """

    def __init__(self, base: RowWindow, numbers: pa.Array) -> None:
        if isinstance(base, PickedWindow):
            base, numbers = base.base, base.numbers.take(numbers)
        self.base = base
        self.numbers = numbers
        self.system_columns = base.system_columns

    @property
    def columns(self) -> pa.Schema:
        """Names and types."""
        return self.base.columns

    @property
    def row_count(self) -> int:
        """How many rows."""
        return len(self.numbers)

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        table, _ = self.part(start, count, range(len(self.columns)))
        return table

    def part(self, start: int, count: int, columns: Sequence[int]) -> tuple[pa.Table, Sequence[Gap]]:
        """Some columns of some rows."""
        wanted: list[int] = self.numbers.slice(start, count).to_pylist()
        tables: list[pa.Table] = []
        places: dict[int, int] = {}
        held = 0
        for run in _runs(sorted(wanted)):
            table, _ = read_part(self.base, run[0], run[-1] - run[0] + 1, columns)
            places |= {number: held + number - run[0] for number in run}
            tables.append(table)
            held += table.num_rows
        if not tables:
            return read_part(self.base, 0, 0, columns)
        indices = pa.array([places[number] for number in wanted], pa.int64())
        return pa.concat_tables(tables).take(indices), ()


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Numbers that are near each other: what lies between them is read in one go."""
    run: list[int] = []
    for number in numbers:
        if run and number - run[-1] > _NEAR:
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def loaded(rows: int, cursor: int) -> tuple[int, int]:
    """The rows that are sorted or looked at: all, or as many as are allowed around the cursor."""
    start = max(0, min(cursor - LOADED // 2, rows - LOADED))
    return start, min(start + LOADED, rows)


def sorted_rows(window: RowWindow, start: int, stop: int, column: int, *, down: bool) -> pa.Array:
    """Numbers of the rows in the order of a column; nulls come last, and equals stay in their order."""
    values, numbers = _readable(window, start, stop, column)
    table = pa.table({"value": _comparable(values)})
    order = "descending" if down else "ascending"
    indices = pc.sort_indices(table, sort_keys=[("value", order, "at_end")])
    return numbers.take(indices)


def kept_rows(window: RowWindow, start: int, stop: int, column: int, test: str, row: int) -> pa.Array:
    """Numbers of the rows whose value in a column passes a test of :data:`TESTS` against that of a row."""
    values, numbers = _readable(window, start, stop, column)
    value = scalar(window, row, column)
    comparable = _comparable(values)
    if comparable is not values and value is not None:
        value = pa.scalar(texts(pa.chunked_array([pa.array([value.as_py()], values.type)]))[0], pa.string())
    mask = TESTS[test](comparable, value)
    if test == "other":
        mask = pc.or_(mask.fill_null(True), pc.is_null(comparable))
    return numbers.filter(mask.fill_null(False))


def _readable(window: RowWindow, start: int, stop: int, column: int) -> tuple[pa.ChunkedArray, pa.Array]:
    """A column of the rows that can be read, and their numbers."""
    table, gaps = read_part(window, start, stop - start, [column])
    values, numbers = table.column(0), pa.array(range(start, start + table.num_rows), pa.int64())
    for first, last, _ in gaps:
        there = pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, last))
        values, numbers = values.filter(there), numbers.filter(there)
    return values, numbers


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that Arrow can compare: lists and records by their text."""
    if pa.types.is_nested(values.type):
        return pa.chunked_array([pa.array(texts(values), pa.string())])
    return values


def find(
    window: RowWindow, text: str, start: int, columns: Sequence[int], *, back: bool
) -> Iterator[tuple[tuple[int, int] | None, int]]:
    """Looks for the next row that holds ``text``, from ``start`` on and then round to it.

    Yields after every piece: the row and its first column that holds it, if any, and how many rows were
    looked at. Ends with the first that is found, or when all rows were looked at.

    Args:
        start: the first row to look at.
        back: towards the first row.
    """
    looked = 0
    columns = able_to_hold(window.columns, columns, text)
    for first, stop in _pieces(window.row_count, start, back):
        table, _ = read_part(window, first, stop - first, columns)
        looked += stop - first
        whole, masks = holding(table, text)
        rows = pc.indices_nonzero(whole) if whole is not None else ()
        if not len(rows):
            yield None, looked
            continue
        row: int = rows[len(rows) - 1 if back else 0].as_py()
        at = next(at for at, mask in enumerate(masks) if mask[row].as_py())
        yield (first + row, columns[at]), looked
        return


def _pieces(rows: int, start: int, back: bool) -> Iterator[tuple[int, int]]:
    """All rows, a piece at a time, from one of them on and round."""
    if back:
        for stop in range(start + 1, 0, -_SCAN_ROWS):
            yield max(stop - _SCAN_ROWS, 0), stop
        for stop in range(rows, start + 1, -_SCAN_ROWS):
            yield max(stop - _SCAN_ROWS, start + 1), stop
    else:
        for first in range(start, rows, _SCAN_ROWS):
            yield first, min(first + _SCAN_ROWS, rows)
        for first in range(0, start, _SCAN_ROWS):
            yield first, min(first + _SCAN_ROWS, start)


def search(
    window: RowWindow, text: str, columns: Sequence[int], limit: int
) -> Iterator[tuple[list[pa.Array], int]]:
    """Numbers of the rows that hold ``text``, so far, and how many rows were looked at.

    Yields after every piece; ends at the last row, or at ``limit`` matches.
    """
    found: list[pa.Array] = []
    matches = 0
    columns = able_to_hold(window.columns, columns, text)
    for first, stop in _pieces(window.row_count, 0, back=False):
        table, _ = read_part(window, first, stop - first, columns)
        whole, _ = holding(table, text)
        if whole is not None:
            rows = pc.indices_nonzero(whole).slice(0, limit - matches)
            if len(rows):
                found.append(pc.add(rows.cast(pa.int64()), first))
                matches += len(rows)
        yield found, stop
        if matches >= limit:
            return
