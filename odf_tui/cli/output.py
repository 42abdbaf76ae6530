"""Options that all commands share; input, tables, JSON and YAML."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TextIO, TypeVar

import click

from odf_engine.errors import BadData, NotFound, OdfError, UsageError, has_surrogates
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.terminal_text import escape_controls, escape_json, has_controls, is_ascii_only, unwrap_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from odf_engine.workspace.workspace import Workspace


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
    """Return rows for JSON. Times that Python does not support become text.

    Raises:
        BadData: a value cannot be printed.
    """
    names = table.schema.names
    columns = [_json_values(*each) for each in zip(names, table.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _json_values(name: str, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    from odf_engine.data.arrow_compute import to_text  # deferred: PyArrow is slow to import

    try:
        return [json_value(value) for value in column.to_pylist()]
    except (OverflowError, ValueError):
        try:
            return to_text(column).to_pylist()
        except (OverflowError, ValueError) as error:
            raise BadData(f"column '{name}' has a value that cannot be printed: {error}") from None


MAX_TEXT_BYTES: Final = 16 << 20
"""Largest manifest or query in bytes; larger input is an error."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Options:
    """The options of all commands, given before or after the name of the command."""

    workspace: Path | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False


def options_of(ctx: click.Context | None = None) -> Options:
    """Return the options of the running command."""
    ctx = ctx or click.get_current_context()
    root = ctx.find_root()
    if not isinstance(root.obj, Options):
        root.obj = Options()
    return root.obj


def _store_option(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if value:
            setattr(options_of(ctx), name, value)
        return value

    return callback


def common_options(command: F) -> F:
    """Add ``-w``, ``-q``, ``-v`` and ``--no-color`` to a command."""
    options = (
        click.option(
            "-w",
            "--workspace",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_store_option("workspace"),
            help="Workspace folder. Default: $ODF_WORKSPACE, else the nearest parent folder with one.",
        ),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            expose_value=False,
            callback=_store_option("quiet"),
            help="Quiet output: only requested data, problems and errors.",
        ),
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_store_option("verbose"),
            help="Verbose output.",
        ),
        click.option(
            "--no-color",
            is_flag=True,
            expose_value=False,
            callback=_store_option("no_color"),
            help="Output without colours.",
        ),
    )
    for option in reversed(options):  # click lists them in reverse order
        command = option(command)
    return command


def branch_option(text: str) -> Callable[[F], F]:
    """Return a decorator that adds ``--branch`` to a command; it is empty for the head."""
    return click.option("--branch", metavar="BRANCH", default="", help=text)


class _VerbCommand(click.Command):
    """A command whose arguments must be UTF-8 text; only file names (``click.Path``) may be other bytes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for param in self.params:
            if isinstance(param.type, click.types.StringParamType):
                found = ctx.params.get(param.name or "")
                for text in found if isinstance(found, tuple) else (found,):
                    if text is not None and has_surrogates(text):
                        raise UsageError(f"{param.get_error_hint(ctx)} is not UTF-8 text: {text!r}")
        return rest


def verb(name: str, *, example: str, json: bool = False) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function.

    Args:
        example: shown at the end of the help.
        json: whether the command has ``--json``.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        # click lists options in the reverse order of their decorators: those of the verb come first.
        own: list[click.Parameter] = list(getattr(function, "__click_params__", ()))
        vars(function)["__click_params__"] = []
        function = common_options(function)
        if json:
            option = click.option(
                "--json",
                "as_json",
                is_flag=True,
                expose_value=False,
                callback=_store_option("json"),
                help="Print one JSON document to stdout.",
            )
            function = option(function)
        vars(function)["__click_params__"] += own
        return click.command(name, cls=_VerbCommand, epilog=f"Example:  {example}")(function)

    return decorate


class OpenWorkstation(NamedTuple):
    """The result of a command that opens the workstation afterwards.

    Attributes:
        folder: folder of the workspace, or None for the one that the environment or current folder selects.
    """

    folder: Path | None


def open_workspace(options: Options | None = None) -> Workspace:
    """Open the workspace that the options, the environment or the current folder selects.

    Raises:
        NotFound: there is no workspace.
    """
    from odf_engine.workspace.workspace import Workspace  # `odf help` starts without the engine

    options = options or options_of()
    workspace = Workspace.find(Path.cwd(), options.workspace)
    if (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(lambda: _note_store_problem(workspace))
    return workspace


def _note_store_problem(workspace: Workspace) -> None:
    """Note that the command has used the local copy of datasets, because their store cannot be read."""
    if workspace.store_problem is not None:
        print_note(
            f"the datasets are shown as they were last read: {escape_controls(str(workspace.store_problem))}"
        )


def use_timezone(workspace: Workspace) -> str:
    """Show times in the time zone of the settings. Returns its label, for the headings of tables."""
    from odf_engine.api.text import set_timezone, zone_label

    try:
        set_timezone(workspace.config.ui.timezone)
    except OdfError as error:  # Reading does not require valid settings.
        print_note(f"times are in UTC: {error}")
    return zone_label()


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


def read_bytes(name: str, max_bytes: int = MAX_TEXT_BYTES, *, hint: str | None = None) -> bytes:
    """Read a file, or stdin for ``-``, into memory.

    Raises:
        NotFound: the file cannot be read.
        UsageError: it has more than ``max_bytes`` bytes.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(max_bytes + 1)
    except OSError as error:
        raise NotFound(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise UsageError(f"{'stdin' if name == '-' else name} has more than {max_bytes:,} bytes", hint=hint)
    return data


def read_text(name: str) -> str:
    """Read UTF-8 text like :func:`read_bytes`; all line ends become line feeds.

    Raises:
        NotFound, UsageError: as :func:`read_bytes`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return io.TextIOWrapper(io.BytesIO(read_bytes(name)), encoding="utf-8").read()


def print_json(document: Any) -> None:
    """Print the JSON document of a command."""
    import msgspec

    from odf_engine.metadata.model import encode_hook

    try:
        text = msgspec.json.format(msgspec.json.encode(document, enc_hook=encode_hook), indent=2).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = json.dumps(msgspec.to_builtins(document, enc_hook=encode_hook), indent=2)
    sys.stdout.write(escape_json(text) + "\n")


def print_yaml(document: Any) -> None:
    """Print a document as YAML in block style."""
    import msgspec
    import yaml

    from odf_engine.metadata.model import encode_hook

    plain = msgspec.to_builtins(document, enc_hook=encode_hook)
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
    out = console()
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
    out.print(table)


FileFormat = Literal["csv", "json", "ndjson", "parquet"]
_FILE_FORMATS: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".parquet": "parquet",
}


def file_format(output: Path) -> FileFormat:
    """Return the format of an output file, which the extension of its name selects.

    Raises:
        UsageError: unknown extension.
    """
    found = _FILE_FORMATS.get(output.suffix.lower())
    if found is None:
        extensions = ", ".join(_FILE_FORMATS)
        raise UsageError(
            f"{output.name}: unknown file format", hint=f"use one of the extensions {extensions}"
        )
    return found


def check_one_format(as_csv: bool, output: Path | None) -> None:
    """Check that at most one of ``--json``, ``--csv`` and ``-o`` is given.

    Raises:
        UsageError: several of them are given.
    """
    if sum((as_csv, options_of().json, output is not None)) > 1:
        raise UsageError("--json, --csv and -o exclude each other", hint="use only one of them")


def check_parent_folder(file: Path) -> None:
    """Check that the folder of an output file exists.

    Raises:
        UsageError: it does not.
    """
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


def print_result(text: str) -> None:
    """Print the result of a successful job to stdout, unless ``-q`` is given."""
    if not options_of().quiet:
        sys.stdout.write(text + "\n")


def print_note(text: str) -> None:
    """Print a note to stderr, unless ``-q`` is given."""
    options = options_of()
    if not options.quiet:
        sys.stderr.write(text + "\n")
