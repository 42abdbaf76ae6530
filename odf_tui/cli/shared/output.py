"""Writes results as text, tables, JSON, YAML and CSV."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO

from odf_engine import api
from odf_engine.api import Timestamp, escape_controls, escape_json, has_controls, is_ascii_only, unwrap_stream
from odf_engine.errors import BadData, UsageError
from odf_tui.cli.shared.options import options_of

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console


class Table(NamedTuple):
    """A table of a result.

    Attributes:
        right: headers of the right-aligned columns.
        empty: the note that is printed instead of a table without rows; "" prints the headers.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    empty: str = ""


Text = Table | str | None
SECONDS_BETWEEN_LINES: Final = 5.0
"""Interval of progress in pipes and log files."""


def show(document: Any, text: Text | Callable[[], Text]) -> None:
    """Print the result of a command: as JSON with ``--json``, else as text.

    Args:
        document: the JSON document, or a function that returns it.
        text: a table or lines, or a function that returns them, or prints the text itself.
    """
    if options_of().json:
        print_json(document() if callable(document) else document)
        return
    form = text() if callable(text) else text
    if isinstance(form, str):
        sys.stdout.write(form + "\n")
    elif form is not None and form.empty and not form.rows:
        print_note(form.empty)
    elif form is not None:
        print_table(form.headers, form.rows, form.right)


def select_fields(source: object, *names: str) -> dict[str, Any]:
    """Return fields of a struct for JSON, if its public shape is a part of it."""
    return {name: getattr(source, name) for name in names}


FileFormat = Literal["csv", "json", "ndjson", "parquet"]
_FILE_FORMATS: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
}


def json_value(value: Any) -> Any:
    """Return a value for JSON: times as RFC 3339, decimals and bytes as text."""
    if isinstance(value, datetime):
        return str(Timestamp.from_datetime(value.astimezone(UTC) if value.tzinfo else value))
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    return value


def json_records(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows for JSON. Times that Python does not support become text."""
    names = table.schema.names
    columns = [_json_values(name, column) for name, column in zip(names, table.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _json_values(name: str, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    try:
        return [json_value(value) for value in api.python_values(column)]
    except (OverflowError, ValueError) as error:
        raise BadData(f"column '{name}' has a value that cannot be printed: {error}") from None


def console(stderr: bool = False) -> Console:
    """Return a rich console that respects ``--no-color``, ``NO_COLOR`` and pipes.

    It escapes control characters in texts. Its own control sequences bypass the stream that escapes all.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class EscapingConsole(Console):
        @property
        def encoding(self) -> str:
            return "ascii" if is_ascii_only() else super().encoding  # selects the lines of tables

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else escape_controls(text), style, control)

    stream = unwrap_stream(sys.stderr if stderr else sys.stdout)
    options = options_of()
    width = None if stream.isatty() else 200
    return EscapingConsole(
        file=stream,
        no_color=options.no_color or bool(os.environ.get("NO_COLOR")),
        highlight=False,
        markup=False,
        emoji=False,
        width=width,
        soft_wrap=not stream.isatty(),
    )


def print_json(document: Any) -> None:
    """Print the JSON document of a command."""
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(document, enc_hook=api.encode_hook), indent=2).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = json.dumps(msgspec.to_builtins(document, enc_hook=api.encode_hook), indent=2)
    sys.stdout.write(escape_json(text) + "\n")


def print_yaml(document: Any) -> None:
    """Print a document as YAML in block style."""
    import msgspec
    import yaml

    plain = msgspec.to_builtins(document, enc_hook=api.encode_hook)
    sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=not is_ascii_only(), width=1000))


def aligned_line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Return cells as a line of aligned columns; ``right`` flags the right-aligned columns."""
    padded = [
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; aligned columns without lines when piped.

    Args:
        right: headers of the right-aligned columns.
    """
    numbers = [header in right for header in headers]
    rows = [[escape_controls(cell) for cell in row] for row in rows]  # before widths are measured
    if not sys.stdout.isatty():
        titles = [escape_controls(header.upper()) for header in headers]
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        for row in [titles, *rows]:
            sys.stdout.write(aligned_line(row, widths, numbers) + "\n")
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for header, number in zip(headers, numbers, strict=True):
        table.add_column(escape_controls(header), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def file_format(output: Path) -> FileFormat:
    """Return the format of an output file by its extension; an unknown one is a UsageError."""
    if (form := _FILE_FORMATS.get(output.suffix.lower())) is None:
        hint = f"use one of the extensions {', '.join(_FILE_FORMATS)}"
        raise UsageError(f"{output.name}: unknown file format", hint=hint)
    return form


def row_form(as_csv: bool, output: Path | None) -> Literal["table", "csv", "json", "file"]:
    """Return how the rows of a result are written: on stdout, or to the file of ``-o``.

    Raises:
        UsageError: several of ``--json``, ``--csv`` and ``-o`` are given, or the file cannot be written.
    """
    if sum((as_csv, options_of().json, output is not None)) > 1:
        raise UsageError("--json, --csv and -o exclude each other", hint="use only one of them")
    if output is None:
        return "csv" if as_csv else "json" if options_of().json else "table"
    file_format(output)
    check_parent_folder(output)
    return "file"


def check_parent_folder(file: Path) -> None:
    """Raise a UsageError if the folder of an output file does not exist."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"folder not found: {folder}")


def data_stream() -> TextIO:
    """Return stdout for data: unchanged in a pipe or a file, escaped on a terminal."""
    return sys.stdout if sys.stdout.isatty() else unwrap_stream(sys.stdout)


def write_document(text: str) -> None:
    """Write a manifest or a graph to stdout: unchanged in a pipe, unless it has control characters."""
    (sys.stdout if has_controls(text) else data_stream()).write(text)


def clear_line() -> None:
    """Clear the current line of the terminal on stderr."""
    unwrap_stream(sys.stderr).write("\r\x1b[K")


@contextmanager
def live_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress on stderr: on one line of a terminal, or in lines at intervals.

    Any thread can call it.
    """
    live, quiet = sys.stderr.isatty(), options_of().quiet  # other threads have no options
    pause = 0.25 if live else SECONDS_BETWEEN_LINES
    last_shown = monotonic()
    drawn = False

    def show_progress(text: str) -> None:
        nonlocal last_shown, drawn
        if quiet or monotonic() - last_shown < pause:
            return
        last_shown = monotonic()
        if not live:
            sys.stderr.write(text + "\n")
        else:
            drawn = True
            with suppress(OSError):
                clear_line()
                sys.stderr.write(text)
                sys.stderr.flush()

    try:
        yield show_progress
    finally:
        if drawn:
            clear_line()


def print_result(text: str) -> None:
    """Print the result of a successful job to stdout, unless ``-q`` is given."""
    if not options_of().quiet:
        sys.stdout.write(text + "\n")


def print_note(text: str) -> None:
    """Print a note to stderr, unless ``-q`` is given."""
    options = options_of()
    if not options.quiet:
        sys.stderr.write(text + "\n")
