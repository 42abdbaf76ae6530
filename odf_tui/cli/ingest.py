"""Ingest rows from files or stdin into a push source.

Each file is one commit. The extensions .csv, .json, .ndjson and .parquet select the format of a
file. Other files have the format of the source. --format overrides both.

Columns are matched by name. A file must have exactly the columns that the source declares. In CSV
without a header, columns are matched by position.

A file that has not changed since it was ingested is skipped, unless --force is used. Equal contents in
another file or on stdin are new rows. To repeat a push safely, use --idempotency-key: a push with the
key of an earlier one is skipped. The exit code is 0 in both cases.

Columns with links to objects have the hashes of files, or the names of attached files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from odf_engine.api import INGEST_FORMATS, Ingest, branch_title
from odf_engine.api.text import format_bytes
from odf_engine.api.workspace import Workspace
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_tui.cli.shared.job_progress import exit_code, follow
from odf_tui.cli.shared.options import (
    DATASET,
    branch_option,
    define_command,
    on_warning_option,
    parse_time_option,
)
from odf_tui.cli.shared.output import live_progress, show
from odf_tui.cli.shared.pulls import print_pulls, pull_entry
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 220
MEANINGS = "import insert load append put"

_SPECIAL: Final = ("/dev/", "/proc/")


@define_command("ingest", help=__doc__, example="odf ingest port-haven.events today.ndjson", json=True)
@click.argument("name", type=DATASET)
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE…|-]")
@click.option("--source", metavar="S", help="Push source. Required if the dataset has several.")
@click.option(
    "--format",
    type=click.Choice(INGEST_FORMATS, case_sensitive=False),
    help="Format of the files. Default: by the file name, else the format of the source.",
)
@click.option(
    "--event-time",
    metavar="TIME",
    help="Event time of rows without one (RFC 3339). Default: the current time.",
)
@click.option("--ignore-unknown", is_flag=True, help="Ignore unknown columns, and set missing ones to null.")
@click.option(
    "--strict", is_flag=True, help="Fail on rows whose key is already in the ledger with other values."
)
@on_warning_option
@click.option("--idempotency-key", metavar="KEY", help="Skip the push if an earlier one had this key.")
@click.option(
    "--attach",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Store this file, or the files of this folder, as linked objects. Can be repeated.",
)
@click.option("--force", is_flag=True, help="Ingest files again that are already ingested.")
@branch_option("Ingest into this branch. The head of the dataset does not move.")
def command(
    name: str,
    files: tuple[str, ...],
    event_time: str | None,
    attach: tuple[Path, ...],
    branch: str,
    **options: Any,
) -> None:
    workspace = open_workspace()
    dataset = workspace.resolve(name).on_branch(branch)
    event_time = parse_time_option("--event-time", event_time)
    if options["idempotency_key"] is not None and len(files) > 1:
        raise UsageError(
            f"--idempotency-key identifies one file, not {len(files)}", hint="ingest the files separately"
        )
    for path in attach:
        if not path.exists():
            raise NotFound("file not found", where=str(path))
    if not files and sys.stdin.isatty():
        raise UsageError("no files specified", hint="specify files, or pipe rows to stdin")
    with ExitStack() as spools:
        paths = [spools.enter_context(_open_readable(workspace, file)) for file in files or ("-",)]
        request = Ingest(
            dataset=dataset.id,
            files=[str(path) for path in paths],
            event_time=event_time,
            attach=[str(path.resolve()) for path in attach],
            branch=branch,
            **options,
        )
        jobs = follow(workspace, [(request, branch_title(dataset.name, branch))])
    show(
        [pull_entry(job, dataset.name) for job in jobs],
        lambda: print_pulls([(job, None) for job in jobs]),
    )
    sys.exit(exit_code(jobs))


@contextmanager
def _open_readable(workspace: Workspace, file: str) -> Iterator[Path]:
    """Yield a path that the worker can read: the file itself, or a copy of a pipe or a device."""
    path = Path.cwd() / file
    if file != "-" and not path.exists():
        raise NotFound("file not found", where=file)
    if path.is_dir():
        raise UsageError("is a folder", hint=f"specify its files: {file.rstrip('/')}/*")
    # Files in /dev and /proc depend on the process: the worker would read others.
    if file != "-" and path.is_file() and not str(path).startswith(_SPECIAL):
        yield path.resolve()
        return
    name = "stdin" if file == "-" else path.name
    with ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if file == "-" else stack.enter_context(path.open("rb"))
            with live_progress() as show:
                spool = workspace.spool(stream, name, lambda size: show(f"{name}: {format_bytes(size)} read"))
                copy = stack.enter_context(spool)
        except OSError as error:
            problem = error.strerror or str(error)
            raise OdfError(
                f"cannot be read or copied: {problem}", where=str(error.filename or name)
            ) from error
        yield copy
