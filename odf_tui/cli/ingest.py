"""The verb that pushes rows into a dataset: ingest."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click

from odf_engine.coordinator.protocol import Ingest
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.storage.scratch import spool_stream
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.data import exit_code, moment, pull_entry, say_pull
from odf_tui.cli.follow import SECONDS_BETWEEN_LINES, follow
from odf_tui.cli.output import clear_line, open_workspace, options_of, print_json, say, verb

FORMATS: Final = ("csv", "json", "ndjson", "geojson", "ndgeojson", "parquet", "esrishapefile")
_SPECIAL: Final = ("/dev/", "/proc/")


@verb("ingest", example="odf ingest port-haven.events today.ndjson", json=True)
@click.argument("name")
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE…|-]")
@click.option("--source", metavar="S", help="The push source, when the dataset has several.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS, case_sensitive=False),
    help="Of the files, when it is not the source's own.",
)
@click.option("--event-time", metavar="TIME", help="Of rows that have none (RFC 3339); else the time of now.")
@click.option("--ignore-unknown", is_flag=True, help="Leave out unknown columns, and make missing ones null.")
@click.option("--strict", is_flag=True, help="Rows that a ledger has with other values are an error.")
def ingest_verb(
    name: str,
    files: tuple[str, ...],
    source: str | None,
    format_: str | None,
    event_time: str | None,
    ignore_unknown: bool,
    strict: bool,
) -> None:
    """Pushes the rows of files, or of what is piped in, into a dataset.

    Every file becomes one commit. A file whose name ends in .csv, .json, .ndjson or .parquet is read as
    that even if the source has another format; --format goes before both. Columns go by name, and all of
    those that the source declares have to be there, and no others; CSV without a header goes by position.
    """
    workspace = open_workspace()
    entry = workspace.resolve(name)
    time_ = moment("--event-time", event_time)
    if not files and sys.stdin.isatty():
        raise UsageError("which files?", hint="name some, or pipe rows in")
    with ExitStack() as spools:
        paths = [spools.enter_context(_readable(workspace, file)) for file in files or ("-",)]
        request = Ingest(
            dataset=str(entry.id),
            files=[str(path) for path in paths],
            source=source,
            format=format_,
            event_time=time_,
            ignore_unknown=ignore_unknown,
            strict=strict,
        )
        jobs = follow(workspace, [(request, str(entry.alias))])
    if options_of().json:
        print_json([pull_entry(job) for job in jobs])
    else:
        for job in jobs:
            say_pull(job)
    sys.exit(exit_code(jobs))


@contextmanager
def _readable(workspace: Workspace, file: str) -> Iterator[Path]:
    """A file that the worker can read: the one that was named, or a copy of what is no plain file."""
    path = Path.cwd() / file
    if file != "-" and not path.exists():
        raise NotFound("there is no such file", where=file)
    if path.is_dir():
        raise UsageError("is a folder", hint=f"name its files: {file.rstrip('/')}/*")
    # What /dev and /proc show is this process's own: the worker would find something else there.
    if file != "-" and path.is_file() and not str(path).startswith(_SPECIAL):
        yield path.resolve()
        return
    name = "stdin" if file == "-" else path.name
    with ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if file == "-" else stack.enter_context(path.open("rb"))
            copy = stack.enter_context(_spooled(workspace, stream, name))
        except OSError as error:
            problem = error.strerror or str(error)
            raise OdfError(
                f"cannot be read or copied: {problem}", where=str(error.filename or name)
            ) from error
        yield copy


@contextmanager
def _spooled(workspace: Workspace, stream: BinaryIO, name: str) -> Iterator[Path]:
    with spool_stream(workspace.odf, stream, name, _teller(name)) as path:
        if sys.stderr.isatty() and not options_of().quiet:
            clear_line()
        yield path


def _teller(name: str) -> Callable[[int], None]:
    """Says now and then how much has come: on one line of a terminal, or in lines when piped."""
    live = sys.stderr.isatty()
    pause = 0.25 if live else SECONDS_BETWEEN_LINES
    spoke = time.monotonic()

    def tell(size: int) -> None:
        nonlocal spoke
        if time.monotonic() - spoke < pause:
            return
        spoke = time.monotonic()
        text = f"{name}: {humane.size(size)} so far"
        if not live:
            say(text)
        elif not options_of().quiet:
            with contextlib.suppress(OSError):
                clear_line()
                sys.stderr.write(text)
                sys.stderr.flush()

    return tell
