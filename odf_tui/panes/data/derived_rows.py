"""Sort, filter and search the rows of a window. Results are row numbers. Loads Arrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from odf_engine.api import pa, pc
from odf_engine.api.readers.row_window import RowWindow, UnreadableRange, read_part
from odf_tui.text.row_text import read_scalar
from odf_tui.text.values import column_texts, is_bytes

_PERIOD: Final = r"(\d{4})-(\d\d)(?:-(\d\d)(?: (\d\d):(\d\d)(?::(\d\d))?)?)?"


def searchable_columns(schema: pa.Schema, columns: Sequence[int], text: str) -> list[int]:
    """Return the columns whose values can contain a text, judged by their types."""
    return [
        column
        for column in columns
        if set(text.lower()) <= _possible_characters(schema.field(column).type, text)
    ]


def _possible_characters(kind: pa.DataType, text: str) -> set[str]:
    """Return the characters that values of a type can contain."""
    if pa.types.is_integer(kind):
        return set("0123456789-")
    if pa.types.is_decimal(kind):
        return set("0123456789-.e+")
    if pa.types.is_floating(kind):
        return set("0123456789-.e+infa")
    if pa.types.is_boolean(kind):
        return set("truefals")
    if pa.types.is_temporal(kind):
        return set("0123456789-:. z")
    return set(text.lower())


def rows_containing(table: pa.Table, text: str) -> tuple[Any | None, list[Any]]:
    """Return a mask of the rows that contain a text, and a mask per column, or None without columns."""
    any_column: Any | None = None
    masks: list[Any] = []
    for column in table.columns:
        mask = _mask(column, text).fill_null(False)
        masks.append(mask)
        any_column = mask if any_column is None else pc.or_(any_column, mask)
    return any_column, masks


def _mask(column: pa.ChunkedArray, text: str) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind) and (period := _period(text, kind)) is not None:
        return pc.and_(pc.greater_equal(column, period[0]), pc.less(column, period[1]))
    if pa.types.is_temporal(kind):
        # Formatting a time takes a microsecond: each distinct value is formatted once.
        coded = column.combine_chunks().dictionary_encode()
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.combine_chunks()
        words = pa.array(column_texts(pa.chunked_array([coded.dictionary])), pa.string())
        return _contains(words, text).take(coded.indices)
    if pa.types.is_nested(kind) or is_bytes(kind):
        return _contains(pa.array(column_texts(column), pa.string()), text)
    try:
        return _contains(column if pa.types.is_string(kind) else column.cast(pa.string()), text)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return _contains(pa.array(column_texts(column), pa.string()), text)


def _contains(words: Any, text: str) -> Any:
    if text.isascii():  # several times faster than ignore_case
        return pc.match_substring(pc.ascii_lower(words), text.lower())
    return pc.match_substring(words, text, ignore_case=True)


def _period(text: str, kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return start and end of a typed month, day, minute or second, or None for other texts."""
    match = re.fullmatch(_PERIOD, text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in match.groups())
    try:
        start = datetime(year, month, day or 1, hour, minute, second, tzinfo=UTC)
        if match[6]:
            end = start + timedelta(seconds=1)
        elif match[4]:
            end = start + timedelta(minutes=1)
        elif match[3]:
            end = start + timedelta(days=1)
        else:
            end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if kind.tz is None:
            start, end = start.replace(tzinfo=None), end.replace(tzinfo=None)
        return pa.scalar(start, kind), pa.scalar(end, kind)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None


MAX_LOADED_ROWS: Final = 100_000
"""Maximum number of rows to sort or filter."""
_MAX_GAP: Final = 4096
_SCAN_ROWS: Final = 1 << 16
TestFunctions = dict[str, Callable[[Any, Any], Any]]
TESTS: Final[TestFunctions] = {
    "equal": lambda column, value: pc.equal(column, value),
    "other": lambda column, value: pc.not_equal(column, value),
    "less": lambda column, value: pc.less(column, value),
    "greater": lambda column, value: pc.greater(column, value),
    "null": lambda column, value: pc.is_null(column),
    "filled": lambda column, value: pc.is_valid(column),
}


class RowSelection:
    """Rows of another window, selected by their numbers.

    Attributes:
        base: the other window.
        numbers: the numbers of the rows.
    """

    def __init__(self, base: RowWindow, numbers: pa.Array) -> None:
        if isinstance(base, RowSelection):
            base, numbers = base.base, base.numbers.take(numbers)
        self.base = base
        self.numbers = numbers
        self.system_columns = base.system_columns

    @property
    def columns(self) -> pa.Schema:
        """The schema."""
        return self.base.columns

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.numbers)

    def window(self, start: int, count: int) -> pa.Table:
        """Return rows with all columns."""
        table, _ = self.part(start, count, range(len(self.columns)))
        return table

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Return some columns of rows."""
        requested: list[int] = self.numbers.slice(start, count).to_pylist()
        tables: list[pa.Table] = []
        positions: dict[int, int] = {}
        rows_read = 0
        for run in _group_nearby(sorted(requested)):
            table, _ = read_part(self.base, run[0], run[-1] - run[0] + 1, columns)
            positions |= {number: rows_read + number - run[0] for number in run}
            tables.append(table)
            rows_read += table.num_rows
        if not tables:
            return read_part(self.base, 0, 0, columns)
        indices = pa.array([positions[number] for number in requested], pa.int64())
        return pa.concat_tables(tables).take(indices), ()


def _group_nearby(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Group sorted row numbers that are close together. A group is read in one piece."""
    run: list[int] = []
    for number in numbers:
        if run and number - run[-1] > _MAX_GAP:
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def loaded_range(rows: int, cursor: int) -> tuple[int, int]:
    """Return the range of rows to sort or filter: all rows, or the allowed number around the cursor."""
    start = max(0, min(cursor - MAX_LOADED_ROWS // 2, rows - MAX_LOADED_ROWS))
    return start, min(start + MAX_LOADED_ROWS, rows)


def sorted_rows(window: RowWindow, start: int, stop: int, column: int, *, down: bool) -> pa.Array:
    """Return the row numbers in the order of a column. Nulls come last; the sort is stable."""
    values, numbers = _read_column(window, start, stop, column)
    table = pa.table({"value": _make_comparable(values)})
    order = "descending" if down else "ascending"
    indices = pc.sort_indices(table, sort_keys=[("value", order, "at_end")])
    return numbers.take(indices)


def filter_rows(window: RowWindow, start: int, stop: int, column: int, test: str, row: int) -> pa.Array:
    """Return the numbers of the rows that pass a test of :data:`TESTS` against the value of a row."""
    values, numbers = _read_column(window, start, stop, column)
    value = read_scalar(window, row, column)
    comparable = _make_comparable(values)
    if comparable is not values and value is not None:
        value = pa.scalar(column_texts(pa.chunked_array([pa.array([value], values.type)]))[0], pa.string())
    mask = TESTS[test](comparable, value)
    if test == "other":
        mask = pc.or_(mask.fill_null(True), pc.is_null(comparable))
    return numbers.filter(mask.fill_null(False))


def _read_column(window: RowWindow, start: int, stop: int, column: int) -> tuple[pa.ChunkedArray, pa.Array]:
    """Return the readable values of a column, and their row numbers."""
    table, gaps = read_part(window, start, stop - start, [column])
    values, numbers = table.column(0), pa.array(range(start, start + table.num_rows), pa.int64())
    for first, last, _ in gaps:
        is_readable = pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, last))
        values, numbers = values.filter(is_readable), numbers.filter(is_readable)
    return values, numbers


def _make_comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values that Arrow can compare: nested values become their texts."""
    if pa.types.is_nested(values.type):
        return pa.chunked_array([pa.array(column_texts(values), pa.string())])
    return values


def find_next_match(
    window: RowWindow, text: str, start: int, columns: Sequence[int], *, back: bool
) -> Iterator[tuple[tuple[int, int] | None, int]]:
    """Search for the next row that contains ``text``, from ``start`` on, around all rows.

    Yields after each chunk the row and its first matching column, or None, and the number of scanned rows.
    Ends at the first match, or when all rows were scanned.

    Args:
        window: the rows.
        text: the search text.
        start: the first row to scan.
        columns: the columns to scan.
        back: whether to scan towards the first row.
    """
    scanned = 0
    columns = searchable_columns(window.columns, columns, text)
    for first, stop in _scan_ranges(window.row_count, start, back):
        table, _ = read_part(window, first, stop - first, columns)
        scanned += stop - first
        any_column, masks = rows_containing(table, text)
        rows = pc.indices_nonzero(any_column) if any_column is not None else ()
        if not len(rows):
            yield None, scanned
            continue
        row: int = rows[len(rows) - 1 if back else 0].as_py()
        at = next(at for at, mask in enumerate(masks) if mask[row].as_py())
        yield (first + row, columns[at]), scanned
        return


def _scan_ranges(rows: int, start: int, back: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges that cover all rows once, starting at a row and wrapping around."""
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


def find_matches(
    window: RowWindow, text: str, columns: Sequence[int], limit: int
) -> Iterator[tuple[list[pa.Array], int]]:
    """Search all rows for ``text``.

    Yields after each chunk the row numbers found so far, and the number of scanned rows. Ends at
    the last row, or at ``limit`` matches.
    """
    numbers: list[pa.Array] = []
    matches = 0
    columns = searchable_columns(window.columns, columns, text)
    for first, stop in _scan_ranges(window.row_count, 0, back=False):
        table, _ = read_part(window, first, stop - first, columns)
        any_column, _ = rows_containing(table, text)
        if any_column is not None:
            rows = pc.indices_nonzero(any_column).slice(0, limit - matches)
            if len(rows):
                numbers.append(pc.add(rows.cast(pa.int64()), first))
                matches += len(rows)
        yield numbers, stop
        if matches >= limit:
            return
