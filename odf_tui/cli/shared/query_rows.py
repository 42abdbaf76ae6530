"""Runs queries, and prints their rows as tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec
from rich.cells import cell_len

from odf_engine.api import (
    GROUP_ROWS,
    JobState,
    Query,
    QueryResult,
    ResultRows,
    escape_controls,
    escape_json,
    one_line_summary,
)
from odf_engine.api.text import count_of, printable
from odf_tui.cli.shared.job_progress import exit_code, follow
from odf_tui.cli.shared.output import aligned_line, json_records, print_table
from odf_tui.text.format import ellipsize_middle
from odf_tui.text.job_text import query_failure_lines
from odf_tui.text.values import is_number

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace

_WIDEST: Final = 36


def write_plain(rows: ResultRows, out: TextIO) -> None:
    """Write aligned columns, for a pipe."""
    titles = [escape_controls(name.upper()) for name in rows.columns.names]
    widths = [len(title) for title in titles]
    for cells in _text_rows(rows, rows.row_count):
        widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)]
    right = [is_number(field.type) for field in rows.columns]
    for cells in chain([titles], _text_rows(rows, rows.row_count)):
        out.write(aligned_line(cells, widths, right) + "\n")


def write_table(rows: ResultRows, count: int, width: int) -> int:
    """Write the first rows as a table, for a terminal.

    Args:
        count: number of rows.
        width: cells of the terminal; columns that do not fit are omitted.

    Returns:
        The number of columns shown.
    """
    import pyarrow.types as pt

    names = rows.columns.names
    are_times = [pt.is_timestamp(field.type) for field in rows.columns]
    cells = [
        [
            ellipsize_middle(_shorten_time(cell) if is_time else cell, _WIDEST)
            for cell, is_time in zip(line, are_times, strict=True)
        ]
        for line in _text_rows(rows, count)
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


def _shorten_time(text: str) -> str:
    """Return a time without its zone, and as a date if it is midnight."""
    day, _, time = text.removesuffix("Z").partition("T")
    return day if time in ("", "00:00:00") else f"{day} {time}"


def _text_rows(rows: ResultRows, count: int) -> Iterator[list[str]]:
    count = min(count, rows.row_count)
    for start in range(0, count, GROUP_ROWS):
        for record in json_records(rows.window(start, min(GROUP_ROWS, count - start))):
            yield ["" if value is None else printable(_cell_text(value)) for value in record.values()]


def _cell_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return str(value)


def try_query(workspace: Workspace, query: Query) -> tuple[QueryResult | None, int]:
    """Run a query; return its result and the exit code. A failure is printed."""
    query = workspace.complete_query(query)
    (job,) = follow(workspace, [(query, one_line_summary(query.sql))])
    result = job.result_of(Query)
    if job.state is JobState.done and result is not None:
        return result, 0
    for line in query_failure_lines(job):
        sys.stderr.write(line + "\n")
    return None, exit_code([job])


def print_rows(file: Path) -> int:
    """Print rows as a table; return the number of columns shown."""
    rows = ResultRows(file)
    if sys.stdout.isatty():
        return write_table(rows, rows_that_fit(), shutil.get_terminal_size().columns)
    write_plain(rows, sys.stdout)
    return len(rows.columns)


def copy_to_stdout(file: Path, form: str) -> None:
    """Copy a file to stdout, as UTF-8 in any locale; on a terminal, control characters are escaped."""
    clean = escape_json if form == "json" else escape_controls if sys.stdout.isatty() else str
    sys.stdout.flush()
    with file.open(encoding="utf-8", newline="") as rows:
        while text := rows.read(1 << 20):
            sys.stdout.buffer.write(clean(text).encode())
    sys.stdout.buffer.flush()


def rows_that_fit() -> int:
    """Return the number of rows that a table on the terminal shows."""
    return max(shutil.get_terminal_size().lines - 5, 10)


def summary_text(result: QueryResult, output: Path | None, shown: int) -> str:
    """Describe the size and duration of a result; ``shown`` is the number of printed columns."""
    count = result.rows
    rows = count_of(count, "row")
    if output is not None:
        rows += f" in {output}"
    elif sys.stdout.isatty() and count > rows_that_fit():
        rows += f", the first {rows_that_fit()} shown"
    of = len(result.columns)
    some = f" · {shown} of {of} columns shown, use --csv for all" if shown < of else ""
    more = " · truncated, use --limit for more" if result.truncated else ""
    return f"{rows} · {result.seconds:.1f} s{some}{more}"
