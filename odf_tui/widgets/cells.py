"""Values of a slice as cells: text that is exact, safe to show, and aligned by type.

Imported in a thread, because it brings Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt
from rich.cells import cell_len

from odf_tui.humane import plain
from odf_tui.source import RowWindow

NULL: Final = "∅"
OPS: Final = {"0": ("+A", "good"), "1": ("-R", "bad"), "2": ("-C", "warn"), "3": ("+C", "warn")}

_SCAN_ROWS: Final = 65_536
_MAX_CELL: Final = 400
_MIDNIGHT: Final = " 00:00:00"


def texts(column: pa.ChunkedArray) -> list[str | None]:
    """The values of a column in full, as people write them; null is None."""
    kind = column.type
    if pt.is_timestamp(kind):
        return _moments(column)
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return [None if value is None else "0x" + value.hex() for value in column.to_pylist()]
    if pt.is_floating(kind):
        return [None if value is None else repr(value) for value in column.to_pylist()]
    try:
        return column.cast(pa.string()).to_pylist()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return [None if not value.is_valid else str(value.as_py()) for value in column]


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
    return str(kind).replace("timestamp[ms, tz=UTC]", "timestamp").replace("date32[day]", "date")


class Chunk:
    """Some rows, whose columns become text when they are first seen.

    Attributes:
        rows: how many.
    """

    def __init__(self, table: pa.Table, system: Sequence[str]) -> None:
        self._table = table
        self._system = system
        self._full: dict[int, list[str | None]] = {}
        self._cells: dict[int, list[str]] = {}
        self._widths: dict[int, int] = {}
        self.rows: int = table.num_rows

    def value(self, row: int, column: int) -> str | None:
        """A value in full; None for null."""
        if column not in self._full:
            self._full[column] = texts(self._table.column(column))
        return self._full[column][row]

    def cell(self, row: int, column: int) -> str:
        """A value as one safe line."""
        if column not in self._cells:
            self._make(column)
        return self._cells[column][row]

    def width(self, column: int) -> int:
        """Cells of the widest value."""
        if column not in self._cells:
            self._make(column)
        return self._widths[column]

    def _make(self, column: int) -> None:
        if self.rows:
            self.value(0, column)
        full = self._full.get(column, [])
        if self._table.column_names[column] == self._system[1]:
            full = [OPS.get(text or "", (text, ""))[0] for text in full]
        elif pt.is_timestamp(self._table.column(column).type):
            full = self._shortened(full, self._table.column_names[column] in self._system)
        cells = [NULL if text is None else plain(text[:_MAX_CELL]) for text in full]
        self._cells[column] = cells
        self._widths[column] = max(map(cell_len, cells), default=0)

    def _shortened(self, full: list[str | None], system: bool) -> list[str | None]:
        """Times without what says nothing: days as days, and the system's times at the second."""
        bare = [text.removesuffix("Z") if text is not None else None for text in full]
        if all(text is None or text.endswith(_MIDNIGHT) for text in bare):
            return [text and text.removesuffix(_MIDNIGHT) for text in bare]
        return [text and text.partition(".")[0] for text in bare] if system else bare


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
        self.right = [
            pt.is_integer(field.type) or pt.is_floating(field.type) or pt.is_decimal(field.type)
            for field in schema
        ]
        system = window.system_columns
        self.muted = [name in system for name in schema.names]
        self.op = schema.names.index(system[1]) if system[1] in schema.names else -1
        # Offset and operation stay in sight when they come first, as the specification has them.
        self.fixed = 2 if tuple(schema.names[:2]) == system[:2] else 0


def search(
    window: RowWindow, text: str, limit: int, stop: Callable[[], bool]
) -> Iterator[tuple[Sequence[pa.Table], int]]:
    """Rows in which a column's text holds ``text``, whatever its case: matches so far, rows looked at.

    Yields after every piece; ends at the last row, at ``limit`` matches, or when ``stop`` says so.
    """
    import pyarrow.compute as pc

    found: list[pa.Table] = []
    matches = 0
    for start in range(0, window.row_count, _SCAN_ROWS):
        if stop():
            return
        table = window.window(start, _SCAN_ROWS)
        mask: pa.Array | pa.ChunkedArray | None = None
        for column in table.columns:
            try:
                words = column if pt.is_string(column.type) else column.cast(pa.string())
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
                continue
            hit = pc.match_substring(words, text, ignore_case=True).fill_null(False)  # type: ignore[attr-defined]
            mask = hit if mask is None else pc.or_(mask, hit)  # type: ignore[attr-defined]
        if mask is not None:
            piece = table.filter(mask).slice(0, limit - matches)
            if piece.num_rows:
                found.append(piece)
                matches += piece.num_rows
        yield found, min(start + _SCAN_ROWS, window.row_count)
        if matches >= limit:
            return
