"""Values of a slice as cells: text that is exact, safe to show, and aligned by type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt
from rich.style import Style
from rich.text import Text

from odf_tui.humane import plain
from odf_tui.state import RowWindow

NULL: Final = "∅"
OPS: Final = {0: ("+A", "good"), 1: ("-R", "bad"), 2: ("-C", "warn"), 3: ("+C", "warn")}

_SCAN_ROWS: Final = 65_536
_MAX_CELL: Final = 2000


def text_of(value: pa.Scalar) -> str:
    """A value in full, as people write it; null is empty."""
    if not value.is_valid:
        return ""
    kind = value.type
    if pt.is_timestamp(kind):
        return _moment(value)
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return "0x" + value.as_py().hex()
    if pt.is_floating(kind):
        return repr(value.as_py())
    return str(value.as_py()) if not pt.is_boolean(kind) else str(value.as_py()).lower()


def _moment(value: pa.Scalar) -> str:
    # Through Arrow, because Python has no years beyond 9999 and no nanoseconds.
    text = str(value.cast(pa.timestamp(value.type.unit)).cast(pa.string()))
    head, dot, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    return head + (dot + fraction if fraction else "") + ("Z" if value.type.tz else "")


def is_right(kind: pa.DataType) -> bool:
    """Whether values of a type are aligned right."""
    return pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)


def type_name(kind: pa.DataType) -> str:
    """A type as people call it."""
    return str(kind).replace("timestamp[ms, tz=UTC]", "timestamp").replace("date32[day]", "date")


def _precision(column: pa.ChunkedArray, cut: bool) -> int:
    """How many characters of a time say something in this column."""
    texts = [text_of(value).removesuffix("Z") for value in column if value.is_valid]
    if texts and all(text[10:] == " 00:00:00" for text in texts):
        return 10
    return 19 if cut else 40


class Cells:
    """Makes cells of a window's columns."""

    def __init__(self, sample: pa.Table, system: Sequence[str], styles: dict[str, Style]) -> None:
        schema = sample.schema
        self._right = [is_right(field.type) for field in schema]
        self._op = schema.get_field_index(system[1])
        self._muted = {index for index, name in enumerate(schema.names) if name in system}
        self._styles = styles
        # Times are cut where the sample has nothing, and the system's at the second; copied they are whole.
        self._times = {
            index: _precision(column, index in self._muted)
            for index, column in enumerate(sample.columns)
            if pt.is_timestamp(column.type)
        }
        self.waiting = Text("…", style=styles["muted"])
        self._nulls = [
            Text(NULL, styles["muted"], justify="right" if right else "left") for right in self._right
        ]

    def label(self, name: str, column: int) -> Text:
        """The name of a column."""
        return Text(plain(name), justify="right" if self._right[column] else "left", no_wrap=True)

    def make(self, value: pa.Scalar, column: int) -> Text:
        """A value as one line."""
        if not value.is_valid:
            return self._nulls[column]
        if column == self._op and value.as_py() in OPS:
            code, style = OPS[value.as_py()]
            return Text(code, style=self._styles[style])
        text = plain(text_of(value)[:_MAX_CELL])
        if (cells := self._times.get(column)) is not None:
            text = text[:cells].removesuffix("Z")
        style = self._styles["muted"] if column in self._muted else ""
        return Text(text, style=style, justify="right" if self._right[column] else "left", no_wrap=True)


def widths(table: pa.Table, cells: Cells, most: int) -> list[int]:
    """Widths of the columns, from a sample of rows and the names."""
    found: list[int] = []
    for index, name in enumerate(table.column_names):
        column = table.column(index)
        values = (cells.make(column[row], index).cell_len for row in range(table.num_rows))
        found.append(min(max([Text(plain(name)).cell_len, *values]), most))
    return found


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
