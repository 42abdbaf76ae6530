"""Look at data files, URLs or folders.

On a terminal, a screen opens with filters, statistics and SQL over the rows. In a pipe, or with -n,
--json, --csv or -o, the rows are printed. A workspace is not required.

FILE is CSV, JSON, NDJSON, GeoJSON, Parquet or a zipped shapefile, also compressed with gzip or zip, or
a URL, or - for stdin. A folder, or several files, have to be of one format; columns are united by name.

The types are those that a new dataset from the file would have. If a value is not of the type of its
column, the column is shown as text, and a note says so.

The command name may be omitted: odf cases.csv
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from odf_engine.api import FileRows, LazyModule, Reporter, open_file_table
from odf_engine.api.text import count_of
from odf_tui.cli.shared.options import FILE, OpenFiles, define_command, options_of
from odf_tui.cli.shared.output import clear_line, file_format, print_note, row_form
from odf_tui.cli.shared.query_rows import copy_to_stdout, print_rows, rows_that_fit

if TYPE_CHECKING:
    from odf_engine.api import rows as api_rows
else:
    api_rows = LazyModule("odf_engine.api.rows")

ORDER = 15
MEANINGS = "less spreadsheet"


@define_command("view", help=__doc__, example="odf view cases.csv -n 20", json=True)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV to stdout.")
@click.option("-o", "--output", type=FILE, help="Write the rows to a .csv, .json, .ndjson or .parquet file.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="ROWS", help="Maximum number of rows.")
@click.option("--raw", is_flag=True, help="Print the texts of the cells as they are in the file.")
def command(
    files: tuple[str, ...], as_csv: bool, output: Path | None, limit: int | None, raw: bool
) -> OpenFiles | None:
    form = row_form(as_csv, output)
    if form == "table" and limit is None and not raw and sys.stdout.isatty():
        return OpenFiles(files, options_of().workspace)
    if form == "table" and limit is None and sys.stdout.isatty():
        limit = rows_that_fit()
    with open_file_table(files, sys.stdin.buffer) as table:
        rows = table.read(Reporter(), limit=limit, raw=raw, on_progress=_show_progress)
        if sys.stderr.isatty():
            clear_line()
        shown = _print(rows, form, output)
    for note in rows.notes:
        print_note(note)
    if form in ("file", "table"):
        where = f" in {output}" if output is not None else ""
        some = f" · {shown} of {len(rows.columns)} columns shown" if shown < len(rows.columns) else ""
        print_note(f"{count_of(rows.row_count, 'row')}{where} · {rows.format}{some}")
    return None


def _print(rows: FileRows, form: str, output: Path | None) -> int:
    """Print or write rows; return the number of columns shown."""
    if form == "table":
        return print_rows(rows.path)
    file = api_rows.Rows.of_file(rows.path, "")
    if output is not None:
        file.write(output, file_format(output), replace=True)
    else:
        with TemporaryDirectory(dir=rows.path.parent) as folder:
            path = Path(folder) / "rows"
            file.write(path, "csv" if form == "csv" else "json")
            copy_to_stdout(path, form)
    return len(rows.columns)


def _show_progress(percent: float) -> None:
    if sys.stderr.isatty() and not options_of().quiet:
        clear_line()
        sys.stderr.write(f"reading: {percent:.0f} %")
        sys.stderr.flush()
