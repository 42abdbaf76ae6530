"""Rows of a result as a table for people. Whatever their number, few are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, TextIO

import msgspec
import pyarrow.types as pt
from rich.cells import cell_len

from odf_engine.terminal_text import escape_controls
from odf_engine.views.query_results import GROUP_ROWS, ResultRows
from odf_tui import humane
from odf_tui.cli.chain import is_number, json_value
from odf_tui.cli.output import print_table

_WIDEST: Final = 36


def write_plain(rows: ResultRows, out: TextIO) -> None:
    """Aligned columns for people, through a pipe."""
    titles = [escape_controls(name.upper()) for name in rows.columns.names]
    widths = [len(title) for title in titles]
    for cells in _cells(rows, rows.row_count):
        widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)]
    right = [is_number(field.type) for field in rows.columns]
    for cells in chain([titles], _cells(rows, rows.row_count)):
        fitted = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        ]
        out.write("  ".join(fitted).rstrip() + "\n")


def write_table(rows: ResultRows, count: int, width: int) -> int:
    """The first rows as a table for people, on a terminal.

    Args:
        rows: the result.
        count: how many rows.
        width: of the terminal; columns that do not fit are left out.

    Returns:
        How many columns are shown.
    """
    names = rows.columns.names
    moments = [pt.is_timestamp(field.type) for field in rows.columns]
    cells = [
        [
            humane.shorten(_moment(cell) if moment else cell, _WIDEST)
            for cell, moment in zip(line, moments, strict=True)
        ]
        for line in _cells(rows, count)
    ]
    shown, used = 0, 0
    for at, name in enumerate(names):
        title = escape_controls(name)
        used += max(map(cell_len, [title, *(line[at] for line in cells)])) + 3 * bool(at)
        if at and used > width:
            break
        shown += 1
    numbers = [field.name for field in rows.columns if is_number(field.type)]
    print_table(names[:shown], [line[:shown] for line in cells], numbers)
    return shown


def _moment(text: str) -> str:
    """A time without what says nothing."""
    day, _, time = text.removesuffix("Z").partition("T")
    return day if time in ("", "00:00:00") else f"{day} {time}"


def _cells(rows: ResultRows, count: int) -> Iterator[list[str]]:
    for record in _records(rows, count):
        yield ["" if value is None else humane.plain(_text(value)) for value in record.values()]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return str(value)


def _records(rows: ResultRows, count: int | None = None) -> Iterator[dict[str, Any]]:
    count = rows.row_count if count is None else min(count, rows.row_count)
    for start in range(0, count, GROUP_ROWS):
        for record in rows.window(start, min(GROUP_ROWS, count - start)).to_pylist():
            yield {name: json_value(value) for name, value in record.items()}
