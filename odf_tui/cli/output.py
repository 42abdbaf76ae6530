"""What all verbs share: the options, tables for people, JSON for scripts, and errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from odf_engine.errors import NotFound, UsageError
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from rich.console import Console

MOST_TEXT_BYTES: Final = 16 << 20
"""Of a manifest or a query; larger input is refused instead of read into memory."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Options:
    """The options that every verb takes, before or after its name."""

    workspace: Path | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False


def options_of(ctx: click.Context | None = None) -> Options:
    """The options of the command that runs."""
    ctx = ctx or click.get_current_context()
    root = ctx.find_root()
    if not isinstance(root.obj, Options):
        root.obj = Options()
    return root.obj


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
        if value:
            setattr(options_of(ctx), name, value)
        return value

    return callback


def common_options(command: F) -> F:
    """Adds ``-w``, ``-q``, ``-v`` and ``--no-color``."""
    for option in (
        click.option(
            "-w",
            "--workspace",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_keep("workspace"),
            help="Workspace folder (else $ODF_WORKSPACE, else the nearest parent).",
        ),
        click.option(
            "-q", "--quiet", is_flag=True, expose_value=False, callback=_keep("quiet"), help="Say less."
        ),
        click.option(
            "-v", "--verbose", is_flag=True, expose_value=False, callback=_keep("verbose"), help="Say more."
        ),
        click.option(
            "--no-color", is_flag=True, expose_value=False, callback=_keep("no_color"), help="No colours."
        ),
    ):
        command = option(command)
    return command


def verb(name: str, *, example: str, json: bool = False) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a verb: with the common options, ``--json`` if it has that, and its example in the help."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        if json:
            option = click.option(
                "--json",
                "as_json",
                is_flag=True,
                expose_value=False,
                callback=_keep("json"),
                help="One JSON document on stdout.",
            )
            function = option(function)
        return click.command(name, epilog=f"Example:  {example}")(common_options(function))

    return decorate


def open_workspace(options: Options | None = None) -> Workspace:
    """The workspace that the options, the environment or the current folder name.

    Raises:
        NotFound: there is none; the hint says how to make one.
    """
    options = options or options_of()
    return Workspace.find(Path.cwd(), options.workspace)


def console(stderr: bool = False) -> Console:
    """A rich console that respects ``--no-color``, ``NO_COLOR`` and pipes."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    options = options_of()
    width = None if stream.isatty() else 200
    return Console(
        file=stream,
        no_color=options.no_color or bool(os.environ.get("NO_COLOR")),
        highlight=False,
        markup=False,
        emoji=False,
        width=width,
        soft_wrap=not stream.isatty(),
    )


def read_bytes(name: str, at_most: int = MOST_TEXT_BYTES, *, hint: str | None = None) -> bytes:
    """Reads a file that an argument names, or stdin for ``-``, into memory.

    Raises:
        NotFound: the file cannot be read.
        UsageError: it has more than ``at_most`` bytes.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(at_most + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(at_most + 1)
    except OSError as error:
        raise NotFound(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > at_most:
        raise UsageError(f"{'stdin' if name == '-' else name} has more than {at_most:,} bytes", hint=hint)
    return data


def read_text(name: str) -> str:
    """Reads UTF-8 text like :func:`read_bytes`; all line ends become line feeds.

    Raises:
        NotFound, UsageError: as there.
        UnicodeDecodeError: it is not UTF-8.
    """
    return io.TextIOWrapper(io.BytesIO(read_bytes(name)), encoding="utf-8").read()


def print_json(document: Any) -> None:
    """The one JSON document of a verb."""
    import msgspec

    from odf_engine.metadata.model import encode_hook

    data = msgspec.json.format(msgspec.json.encode(document, enc_hook=encode_hook), indent=2)
    sys.stdout.write(data.decode() + "\n")


def print_yaml(document: Any) -> None:
    """A document for people, in block style."""
    import msgspec
    import yaml

    from odf_engine.metadata.model import encode_hook

    plain = msgspec.to_builtins(document, enc_hook=encode_hook)
    sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """A table for people; plain aligned columns when piped. ``right`` names the right-aligned columns."""
    rows = [list(row) for row in rows]
    out = console()
    if not sys.stdout.isatty():
        widths = [max([len(header), *(len(row[at]) for row in rows)]) for at, header in enumerate(headers)]
        for row in [[header.upper() for header in headers], *rows]:
            cells = [
                cell.rjust(width) if header in right else cell.ljust(width)
                for cell, width, header in zip(row, widths, headers, strict=True)
            ]
            sys.stdout.write("  ".join(cells).rstrip() + "\n")
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def say(text: str) -> None:
    """A word to the person on stderr, unless ``-q``."""
    options = options_of()
    if not options.quiet:
        sys.stderr.write(text + "\n")
