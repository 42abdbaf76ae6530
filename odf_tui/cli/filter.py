"""Turn what publishers release into files that datasets can read.

Reads standard input and writes standard output. A filter opens no file and no connection. It can also be
a step of a manifest: {kind: Pipe, command: [odf, filter, csv, --skip, "3"]}. Such a step needs no trust.

\b
Filters:
  csv     any CSV to RFC 4180 CSV with one header row
  lines   some lines of a text
  sheet   a sheet of a spreadsheet (xlsx, xlsm, xlsb, xls, ods) to CSV
  json    the items of a JSON document as lines
  xml     the rows of an XML document as JSON lines
  fixed   columns of fixed widths to CSV
  rdb     RDB of the USGS to CSV
  unpack  the members of an archive (zip, tar, gzip, bzip2, xz, zst)

odf filter NAME --help lists the options of a filter. See odf help filters.
"""

from __future__ import annotations

import sys

import click

from odf_engine.api import run_contained
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import print_note

ORDER = 165
MEANINGS = "sed xlsx unpivot unzip"


@define_command(
    "filter",
    help=__doc__,
    example="odf filter csv --skip 3 < report.csv > clean.csv",
)
@click.argument("name")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def command(name: str, options: tuple[str, ...]) -> None:
    warning = run_contained([name, *options], sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout.flush()
    if warning:
        print_note(f"warning: {warning}")


command.allow_interspersed_args = False  # options after NAME are the filter's
