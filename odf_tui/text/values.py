"""Formats Arrow values as exact, printable text. Loads Arrow, so it is imported in threads."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

from odf_engine import api
from odf_engine.api import pa, pc
from odf_engine.api.text import printable
from odf_tui.text.format import NULL, OPERATION_SIGNS

_MAX_CELL: Final = 400
_MAX_DIGITS: Final = 9
_MIDNIGHT: Final = " 00:00:00"


def column_texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return the values of a column as texts in full, or None for null."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _timestamp_texts(column)
    if is_bytes(kind):
        return [None if value is None else "0x" + value.hex() for value in column.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if value is None else repr(value) for value in column.to_pylist()]
    if pa.types.is_nested(kind):
        return [None if value is None else as_json(value) for value in api.python_values(column)]
    try:
        return column.cast(pa.string()).to_pylist()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return [None if not value.is_valid else str(value.as_py()) for value in column]


def as_json(value: Any) -> str:
    """Return a nested value as JSON. Values without a JSON type become texts."""
    return json.dumps(value, ensure_ascii=False, default=_encode_value)


def _encode_value(value: Any) -> str:
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is binary."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is numeric."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _timestamp_texts(column: pa.ChunkedArray) -> list[str | None]:
    # Arrow formats them: Python has no years beyond 9999, and no nanoseconds.
    zone = "Z" if column.type.tz else ""
    texts: list[str | None] = []
    for text in column.cast(pa.timestamp(column.type.unit)).cast(pa.string()).to_pylist():
        if text is None:
            texts.append(None)
            continue
        head, dot, fraction = text.partition(".")
        fraction = fraction.rstrip("0")
        texts.append(head + (dot + fraction if fraction else "") + zone)
    return texts


class CellColumn(NamedTuple):
    """The cells of a column of consecutive rows.

    Attributes:
        cells: printable lines; null is :data:`~odf_tui.text.format.NULL` itself.
        width: width of the widest cell.
        integer_digits, points: for floating-point numbers, the most characters before and after the
            decimal point.
    """

    cells: list[str]
    width: int
    integer_digits: int = 0
    points: int = 0


def cell_column(column: pa.ChunkedArray, *, op: bool = False, system: bool = False) -> CellColumn:
    """Format the cells of a column.

    Args:
        column: the values.
        op: whether it is the operation column.
        system: whether it is another system column.
    """
    full = column_texts(_cut_long_values(column))
    if op:
        full = [OPERATION_SIGNS.get(text or "", (text, ""))[0] for text in full]
    elif pa.types.is_timestamp(column.type):
        full = _drop_zero_times(full, system)
    cells = [NULL if text is None else printable(text[:_MAX_CELL]) for text in full]
    width = max(map(cell_len, cells), default=0)
    if not pa.types.is_floating(column.type):
        return CellColumn(cells, width)
    parts = [cell.partition(".") for cell in cells if "e" not in cell]
    points = max((len(tail) for _, _, tail in parts), default=0)
    integer_digits = max((len(head) for head, _, _ in parts), default=0)
    return (
        CellColumn(cells, width, integer_digits, points)
        if points <= _MAX_DIGITS
        else CellColumn(cells, width)
    )


def _cut_long_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Truncate long texts and bytes before they become Python objects: a value may have megabytes."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, _MAX_CELL)
    return pc.binary_slice(column, 0, _MAX_CELL // 2) if pa.types.is_binary(column.type) else column


def _drop_zero_times(full: list[str | None], system: bool) -> list[str | None]:
    """Drop the time of day if all are midnight, and the seconds of system times."""
    bare = [text.removesuffix("Z") if text is not None else None for text in full]
    if all(text is None or text.endswith(_MIDNIGHT) for text in bare):
        return [text and text.removesuffix(_MIDNIGHT) for text in bare]
    return [text and text[:16] for text in bare] if system else bare


def release_memory() -> None:
    """Return unused memory to the system. Few rows may have needed complete row groups."""
    pa.default_memory_pool().release_unused()
