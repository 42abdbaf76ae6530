"""Rows of a window as text: chunks of cells, one complete row, TSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from odf_engine import api
from odf_engine.api import pa
from odf_engine.api.readers.row_window import RowWindow, UnreadableRange, read_part
from odf_engine.api.text import printable, type_name
from odf_engine.errors import NotFound
from odf_tui.text.format import OPERATION_SIGNS, OPERATION_WORDS
from odf_tui.text.values import (
    CellColumn,
    as_json,
    cell_column,
    column_texts,
    is_bytes,
    is_number,
    release_memory,
)

_DUMP_LINE: Final = 16
_DUMP_BYTES: Final = 4096
_SHOWN: Final = 20_000
_JSON_SHOWN: Final = 200_000


class Value(msgspec.Struct, frozen=True):
    """A value of a row.

    Attributes:
        column: number of the column.
        text: the complete value, for copies, or None for null.
        lines: the value as it is shown.
    """

    column: int
    name: str
    type: str
    text: str | None
    lines: Sequence[str]


class Record(msgspec.Struct, frozen=True):
    """One row of a window."""

    row: int
    rows: int
    values: Sequence[Value]


def read_record(window: RowWindow, row: int, columns: Sequence[int]) -> Record:
    """Read one row.

    Args:
        window: the rows.
        row: number of the row.
        columns: numbers of the columns, in their order.

    Raises:
        NotFound: the row cannot be read.
    """
    table, gaps = read_part(window, row, 1, columns)
    if gaps or not table.num_rows:
        raise NotFound(gaps[0][2] if gaps else "the row no longer exists")
    schema = window.columns
    op = window.system_columns[1]
    values = [
        _value(column, schema.field(column), table.column(at), op=schema.field(column).name == op)
        for at, column in enumerate(columns)
    ]
    del table
    release_memory()
    return Record(row, window.row_count, values)


def _value(number: int, field: pa.Field, column: pa.ChunkedArray, *, op: bool) -> Value:
    (text,) = column_texts(column)
    if op and text in OPERATION_WORDS:
        lines = [f"{OPERATION_SIGNS[text][0]}  {OPERATION_WORDS[text]}, {text} in JSON and SQL"]
        return Value(number, field.name, type_name(field.type), text, lines)
    return Value(number, field.name, type_name(field.type), text, value_lines(text, field.type, column))


def value_lines(text: str | None, kind: pa.DataType, column: pa.ChunkedArray) -> list[str]:
    """Format a value over several lines. A very long value is truncated, with a remark."""
    if text is None:
        return []
    if is_bytes(kind):
        data: bytes = column[0].as_py()
        lines = _dump(data[:_DUMP_BYTES]) if len(data) > _DUMP_LINE else [text]
        return lines + ([f"… {len(data)} bytes in total"] if len(data) > _DUMP_BYTES else [])
    if pa.types.is_nested(kind):
        text = as_json(api.python_values(column[:1])[0])
    if len(text) <= _JSON_SHOWN and (pretty := pretty_json(text)) is not None:
        text = pretty
    lines = text[:_SHOWN].splitlines() or [""]
    return lines + ([f"… {len(text)} characters in total"] if len(text) > _SHOWN else [])


def _dump(data: bytes) -> list[str]:
    """Return a hex dump with the printable characters."""
    lines: list[str] = []
    for at in range(0, len(data), _DUMP_LINE):
        part = data[at : at + _DUMP_LINE]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * _DUMP_LINE - 1}}  {letters}")
    return lines


def pretty_json(text: str) -> str | None:
    """Indent a JSON object or list, or None for other texts.

    Numbers and strings are copied verbatim, because parsing would change some of them.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = at = 0
    while at < len(text):
        letter = text[at]
        if letter == '"':
            end = _end_of_string(text, at)
            parts.append(text[at:end])
            at = end
            continue
        if letter in "{[":
            rest = text[at + 1 :].lstrip()
            if rest[:1] in ("}", "]"):
                parts.append(letter + rest[0])
                at = len(text) - len(rest) + 1
                continue
            depth += 1
            parts.append(letter + "\n" + "  " * depth)
        elif letter in "}]":
            depth -= 1
            parts.append("\n" + "  " * depth + letter)
        elif letter == ",":
            parts.append(",\n" + "  " * depth)
        elif letter == ":":
            parts.append(": ")
        elif not letter.isspace():
            parts.append(letter)
        at += 1
    return "".join(parts)


def _end_of_string(text: str, start: int) -> int:
    at = start + 1
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at + 1


def rows_as_tsv(window: RowWindow, ranges: Sequence[tuple[int, int]], columns: Sequence[int]) -> str:
    """Return rows as tab-separated values with a header. Tabs, line ends and backslashes are escaped."""
    names = window.columns.names
    lines = ["\t".join(_escape(names[column]) for column in columns)]
    for start, stop in ranges:
        table, _ = read_part(window, start, stop - start, columns)
        cells = [column_texts(column) for column in table.columns]
        lines += ["\t".join(_escape(cell or "") for cell in row) for row in zip(*cells, strict=True)]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    for letter, sign in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(letter, sign)
    return text


def rows_as_json(window: RowWindow, ranges: Sequence[tuple[int, int]], columns: Sequence[int]) -> str:
    """Return rows as JSON, one object per line."""
    lines: list[str] = []
    for start, stop in ranges:
        table, _ = read_part(window, start, stop - start, columns)
        values = [_json_values(column) for column in table.columns]
        lines += [
            as_json(dict(zip(table.column_names, row, strict=True))) for row in zip(*values, strict=True)
        ]
    return "\n".join(lines) + "\n"


def _json_values(column: pa.ChunkedArray) -> Sequence[Any]:
    """Return values as JSON types; as texts where JSON has no such type."""
    kind = column.type
    same = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_nested(kind)
    if same or pa.types.is_string(kind):
        return api.python_values(column)
    if pa.types.is_floating(kind):
        return [value if value is None or (value == value and abs(value) != float("inf")) else str(value)
                for value in column.to_pylist()]  # fmt: skip
    return column_texts(column)


class CellChunk:
    """Consecutive rows as cells. Columns are added when they become visible.

    Attributes:
        rows: the number of rows.
        columns: the loaded columns, by their numbers.
    """

    def __init__(
        self, rows: int, columns: dict[int, CellColumn], gaps: Sequence[UnreadableRange] = ()
    ) -> None:
        self.rows = rows
        self.columns = columns
        self._gaps = gaps

    def gap(self, row: int) -> str:
        """Return why a row cannot be read, or "" if it can."""
        return next((problem for start, stop, problem in self._gaps if start <= row < stop), "")

    def cell(self, row: int, column: int) -> str | None:
        """Return a value as one printable line, cut if it is long, or None if its column is not loaded."""
        chunk = self.columns.get(column)
        return None if chunk is None else chunk.cells[row]

    def merge(self, other: CellChunk) -> None:
        """Add other columns of the same rows."""
        self.columns |= other.columns


def read_chunk(window: RowWindow, start: int, count: int, columns: Sequence[int]) -> CellChunk:
    """Read some columns of consecutive rows as cells."""
    table, gaps = read_part(window, start, count, columns)
    system, names = window.system_columns, window.columns.names
    cells = {
        column: cell_column(
            table.column(at), op=names[column] == system[1], system=names[column] in (system[0], system[2])
        )
        for at, column in enumerate(columns)
    }
    chunk = CellChunk(
        table.num_rows, cells, [(first - start, stop - start, why) for first, stop, why in gaps]
    )
    del table
    release_memory()
    return chunk


class TableWindow:
    """A window over a table in memory."""

    def __init__(self, table: pa.Table, system_columns: tuple[str, str, str, str]) -> None:
        self._table = table
        self.system_columns = system_columns

    @property
    def columns(self) -> pa.Schema:
        """The schema."""
        return self._table.schema

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return self._table.num_rows

    def window(self, start: int, count: int) -> pa.Table:
        """Return rows."""
        return self._table.slice(start, count)


class Columns:
    """Names, types and alignment of the columns of a window."""

    def __init__(self, window: RowWindow) -> None:
        schema = window.columns
        self.names = [printable(name) for name in schema.names]
        self.types = [printable(type_name(field.type)) for field in schema]
        self.right = [is_number(field.type) for field in schema]
        self.has_times = any(getattr(field.type, "tz", None) for field in schema)
        system = window.system_columns
        self.muted = [name in system[:3] for name in schema.names]
        self.hidden = [at for at, name in enumerate(schema.names) if name in (system[0], system[2])]
        self.op = schema.names.index(system[1]) if system[1] in schema.names else -1
        # Offset and operation are frozen if they come first, as in the specification.
        self.fixed = 2 if tuple(schema.names[:2]) == system[:2] else 0


def read_scalar(window: RowWindow, row: int, column: int) -> Any:
    """Return one value as an Arrow scalar, or None if the row cannot be read."""
    table, gaps = read_part(window, row, 1, [column])
    return None if gaps or not table.num_rows else table.column(0)[0]
