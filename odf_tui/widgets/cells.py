"""Values of a slice as cells: text that is exact, safe to show, and aligned by type.

Imported in a thread, because it brings Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pt
from rich.cells import cell_len

from odf_engine.data.arrow_compute import pc
from odf_tui.humane import plain
from odf_tui.source import RowWindow
from odf_tui.windows import NULL, Gap, read_part

OPS: Final = {"0": ("+A", "good"), "1": ("-R", "bad"), "2": ("-C", "warn"), "3": ("+C", "warn")}

_MAX_CELL: Final = 400
_MOST_DIGITS: Final = 9
_MIDNIGHT: Final = " 00:00:00"
_TYPE_WORDS: Final = (
    ("timestamp[ms, tz=UTC]", "timestamp"), ("date32[day]", "date"), ("decimal128", "decimal"),
    ("list<item: ", "list<"), ("list<element: ", "list<"),
)  # fmt: skip


def texts(column: pa.ChunkedArray) -> list[str | None]:
    """The values of a column in full, as people write them; null is None."""
    kind = column.type
    if pt.is_timestamp(kind):
        return _moments(column)
    if is_bytes(kind):
        return [None if value is None else "0x" + value.hex() for value in column.to_pylist()]
    if pt.is_floating(kind):
        return [None if value is None else repr(value) for value in column.to_pylist()]
    if pt.is_nested(kind):
        return [None if value is None else as_json(value) for value in column.to_pylist()]
    try:
        return column.cast(pa.string()).to_pylist()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return [None if not value.is_valid else str(value.as_py()) for value in column]


def as_json(value: Any) -> str:
    """A nested value, with what JSON does not have as text."""
    return json.dumps(value, ensure_ascii=False, default=_said)


def _said(value: Any) -> str:
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values are bytes."""
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether values are numbers."""
    return pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)


def _moments(column: pa.ChunkedArray) -> list[str | None]:
    # Through Arrow, because Python has no years beyond 9999 and no nanoseconds.
    zone = "Z" if column.type.tz else ""
    found: list[str | None] = []
    for text in column.cast(pa.timestamp(column.type.unit)).cast(pa.string()).to_pylist():
        if text is None:
            found.append(None)
            continue
        head, dot, fraction = text.partition(".")
        fraction = fraction.rstrip("0")
        found.append(head + (dot + fraction if fraction else "") + zone)
    return found


def type_name(kind: pa.DataType) -> str:
    """A type as people call it."""
    text = str(kind)
    for arrow, word in _TYPE_WORDS:
        text = text.replace(arrow, word)
    return text


class CellColumn(NamedTuple):
    """A column of some rows as cells.

    Attributes:
        cells: safe lines; null is :data:`~odf_tui.windows.NULL` itself.
        width: cells of the widest.
        whole, points: for numbers with a fraction, the most characters before the point and after it.
    """

    cells: list[str]
    width: int
    whole: int = 0
    points: int = 0


def cell_column(column: pa.ChunkedArray, *, op: bool = False, system: bool = False) -> CellColumn:
    """Makes the cells of a column.

    Args:
        op: it says which operation a row is.
        system: the system wrote it.
    """
    full = texts(_shortened(column))
    if op:
        full = [OPS.get(text or "", (text, ""))[0] for text in full]
    elif pt.is_timestamp(column.type):
        full = _without_zeros(full, system)
    cells = [NULL if text is None else plain(text[:_MAX_CELL]) for text in full]
    width = max(map(cell_len, cells), default=0)
    if not pt.is_floating(column.type):
        return CellColumn(cells, width)
    parts = [cell.partition(".") for cell in cells if "e" not in cell]
    points = max((len(tail) for _, _, tail in parts), default=0)
    whole = max((len(head) for head, _, _ in parts), default=0)
    return CellColumn(cells, width, whole, points) if points <= _MOST_DIGITS else CellColumn(cells, width)


def _shortened(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Long texts and bytes cut before they become Python's: one value may have megabytes."""
    if pt.is_string(column.type) or pt.is_large_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, _MAX_CELL)
    return pc.binary_slice(column, 0, _MAX_CELL // 2) if pt.is_binary(column.type) else column


def _without_zeros(full: list[str | None], system: bool) -> list[str | None]:
    """Times without what says nothing: days as days, and the system's times at the minute."""
    bare = [text.removesuffix("Z") if text is not None else None for text in full]
    if all(text is None or text.endswith(_MIDNIGHT) for text in bare):
        return [text and text.removesuffix(_MIDNIGHT) for text in bare]
    return [text and text[:16] for text in bare] if system else bare


class Chunk:
    """Some rows as cells, column by column as these are seen.

    Attributes:
        rows: how many.
        columns: the columns that are here, by their numbers.
    """

    def __init__(self, rows: int, columns: dict[int, CellColumn], gaps: Sequence[Gap] = ()) -> None:
        self.rows = rows
        self.columns = columns
        self._gaps = gaps

    def gap(self, row: int) -> str:
        """Why a row cannot be read; empty: it can."""
        return next((problem for start, stop, problem in self._gaps if start <= row < stop), "")

    def cell(self, row: int, column: int) -> str | None:
        """A value as one safe line, cut when it is long; None when its column is not here."""
        found = self.columns.get(column)
        return None if found is None else found.cells[row]

    def merge(self, other: Chunk) -> None:
        """Takes in columns of the same rows."""
        self.columns |= other.columns


def read_chunk(window: RowWindow, start: int, count: int, columns: Sequence[int]) -> Chunk:
    """Reads some columns of some rows."""
    table, gaps = read_part(window, start, count, columns)
    system, names = window.system_columns, window.columns.names
    made = {
        column: cell_column(
            table.column(at), op=names[column] == system[1], system=names[column] in (system[0], system[2])
        )
        for at, column in enumerate(columns)
    }
    chunk = Chunk(table.num_rows, made, [(first - start, stop - start, why) for first, stop, why in gaps])
    del table
    trim()
    return chunk


def trim() -> None:
    """Gives back what was read and is not needed any more: whole row groups, for a few of their rows."""
    pa.default_memory_pool().release_unused()


class TableWindow:
    """Rows that are in memory."""

    def __init__(self, table: pa.Table, system_columns: tuple[str, str, str, str]) -> None:
        self._table = table
        self.system_columns = system_columns

    @property
    def columns(self) -> pa.Schema:
        """Names and types."""
        return self._table.schema

    @property
    def row_count(self) -> int:
        """How many rows."""
        return self._table.num_rows

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        return self._table.slice(start, count)


class Columns:
    """Names, types and alignment of a window's columns."""

    def __init__(self, window: RowWindow) -> None:
        schema = window.columns
        self.names = [plain(name) for name in schema.names]
        self.types = [plain(type_name(field.type)) for field in schema]
        self.right = [is_number(field.type) for field in schema]
        system = window.system_columns
        self.muted = [name in system[:3] for name in schema.names]
        self.op = schema.names.index(system[1]) if system[1] in schema.names else -1
        # Offset and operation stay in sight when they come first, as the specification has them.
        self.fixed = 2 if tuple(schema.names[:2]) == system[:2] else 0


def scalar(window: RowWindow, row: int, column: int) -> Any:
    """One value, as Arrow has it; None when the row cannot be read."""
    table, gaps = read_part(window, row, 1, [column])
    return None if gaps or not table.num_rows else table.column(0)[0]
