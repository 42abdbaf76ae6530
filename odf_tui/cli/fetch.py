"""Fetch a batch of a source as a container does: data to stdout, state to files.

Images named odf/pages and odf/listing run these commands, so that other implementations of Open Data
Fabric can use them. In odf, sources with these images need no container. See `odf help web-sources`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

import click

from odf_engine.api import Reporter, escape_controls, run_fetch_program
from odf_tui.cli.shared.options import CommandGroup, options_of

ORDER = 530
MEANINGS = "curl wget"

command = CommandGroup("fetch", help=__doc__, example="odf fetch pages --url https://example.com/items")
_ARGUMENTS = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)


class _LogReporter(Reporter):
    """Prints log lines to stderr; with ``quiet``, only problems."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._ignored = ("debug", "info") if quiet else ("debug",)

    def log(self, text: str, level: str = "info") -> None:
        if level not in self._ignored:
            click.echo(f"{level}: {escape_controls(text)}", err=True)


@command.subcommand("pages", example="odf fetch pages --url https://example.com/items --page page")
@_ARGUMENTS
def pages(arguments: tuple[str, ...]) -> None:
    """Print the items of a list in pages, one JSON object a line."""
    _print_batch("odf/pages", arguments)


@command.subcommand("listing", example="odf fetch listing --url https://example.com/data/ --pattern '*.csv'")
@_ARGUMENTS
def listing(arguments: tuple[str, ...]) -> None:
    """Print the next file of a folder, an index or a bucket."""
    _print_batch("odf/listing", arguments)


for _program in (pages, listing):
    # The engine parses the options, as in fetch.args.
    _program.ignore_unknown_options = True


def _print_batch(program: Literal["odf/pages", "odf/listing"], arguments: tuple[str, ...]) -> None:
    reporter = _LogReporter(quiet=options_of().quiet)
    with run_fetch_program(program, arguments, os.environ, reporter) as payload:
        if payload is None:
            return
        with payload.path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.flush()
        if payload.state is not None:
            _write("ODF_NEW_ETAG_PATH", payload.state.value)
        if payload.has_more:
            _write("ODF_NEW_HAS_MORE_DATA_PATH", "true")


def _write(variable: str, text: str) -> None:
    """Write a text to the file whose path is in a variable, if it is set."""
    if path := os.environ.get(variable):
        Path(path).write_text(text, encoding="utf-8")
