"""Look at data files, URLs or folders, or write a dataset as a Delta or Iceberg table.

On a terminal, a screen opens with filters, statistics and SQL over the rows. In a pipe, or with -n,
--json, --csv or -o, the rows are printed. A workspace is not required.

FILE is CSV, JSON, NDJSON, GeoJSON, Parquet or a zipped shapefile, also compressed with gzip or zip, or
a URL, or - for stdin. A folder, or several files, have to be of one format; columns are united by name.

The types are those that a new dataset from the file would have. If a value is not of the type of its
column, the column is shown as text, and a note says so.

The command name may be omitted: odf cases.csv

With --format, the arguments are names of datasets. The table of a dataset is written, and its path, or
its URL in a store, is printed. Its data files are the slices themselves, without a copy, and commits keep
it current. The version of a Delta table, and the id of an Iceberg snapshot, is the number of a block, so
that time travel is AS AT; their metadata have the hash of the block. The rows have the column op: retracted
and corrected rows are part of the table. With --latest, the table has a copy of the latest row of each key,
in one file. See `odf help tables`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from odf_engine.api import TABLE_FORMATS, FileRows, LazyModule, Reporter, TableFormat, open_file_table
from odf_engine.api.text import count_of
from odf_engine.errors import UsageError
from odf_tui.cli.shared.job_progress import LiveReporter
from odf_tui.cli.shared.options import FILE, OpenFiles, define_command, options_of
from odf_tui.cli.shared.output import file_format, live_progress, print_note, row_form, select_fields, show
from odf_tui.cli.shared.query_rows import copy_to_stdout, print_rows, rows_that_fit
from odf_tui.cli.shared.workspace import open_workspace

if TYPE_CHECKING:
    from odf_engine.api import rows as api_rows
else:
    api_rows = LazyModule("odf_engine.api.rows")

ORDER = 15
MEANINGS = "less spreadsheet lakehouse"


@define_command("view", help=__doc__, example="odf view cases.csv -n 20", json=True)
@click.argument("files", metavar="FILE...|NAME...", nargs=-1, required=True)
@click.option("--format", "table_format", type=click.Choice(TABLE_FORMATS), help="Write datasets as tables.")
@click.option("--latest", is_flag=True, help="With --format: a table of the latest state by key.")
@click.option("--remove", is_flag=True, help="With --format: remove the tables. The datasets remain.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV to stdout.")
@click.option("-o", "--output", type=FILE, help="Write the rows to a .csv, .json, .ndjson or .parquet file.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="ROWS", help="Maximum number of rows.")
@click.option("--raw", is_flag=True, help="Print the texts of the cells as they are in the file.")
def command(
    files: tuple[str, ...],
    table_format: TableFormat | None,
    latest: bool,
    remove: bool,
    as_csv: bool,
    output: Path | None,
    limit: int | None,
    raw: bool,
) -> OpenFiles | None:
    if table_format is not None:
        if as_csv or output is not None or limit is not None or raw:
            raise UsageError("--format excludes --csv, -o, -n and --raw", hint="omit these options")
        (_remove_tables if remove else _write_tables)(files, table_format, latest)
        return None
    if remove or latest:
        option = "--remove" if remove else "--latest"
        raise UsageError(f"{option} requires --format", hint="add --format delta")
    form = row_form(as_csv, output)
    if form == "table" and limit is None and not raw and sys.stdout.isatty():
        return OpenFiles(files, options_of().workspace)
    if form == "table" and limit is None and sys.stdout.isatty():
        limit = rows_that_fit()
    with open_file_table(files, sys.stdin.buffer) as table:
        with live_progress() as show_progress:
            rows = table.read(
                Reporter(),
                limit=limit,
                raw=raw,
                on_progress=lambda percent: show_progress(f"reading: {percent:.0f} %"),
            )
        shown = _print(rows, form, output)
    for note in rows.notes:
        print_note(note)
    if form in ("file", "table"):
        where = f" in {output}" if output is not None else ""
        some = f" · {shown} of {len(rows.columns)} columns shown" if shown < len(rows.columns) else ""
        print_note(f"{count_of(rows.row_count, 'row')}{where} · {rows.format}{some}")
    return None


def _write_tables(names: Sequence[str], table_format: TableFormat, latest: bool) -> None:
    tables: list[dict[str, object]] = []
    for dataset in open_workspace().match(names):
        with live_progress() as show_progress:
            if latest:
                table = dataset.write_latest_table(table_format, LiveReporter("latest state", show_progress))
            else:
                table = dataset.write_table(table_format, partial(_show_versions, show_progress))
        tables.append({"name": dataset.name, **select_fields(table, "format", "path", "version")})
    show(tables, lambda: "\n".join(str(table["path"]) for table in tables))


def _remove_tables(names: Sequence[str], table_format: TableFormat, latest: bool) -> None:
    """Remove both tables of the datasets, or only the tables of the latest state."""
    tables: list[dict[str, object]] = []
    notes: list[str] = []
    for dataset in open_workspace().match(names):
        for is_latest in (True,) if latest else (False, True):
            path = dataset.table_path(table_format, latest=is_latest)
            removed = dataset.remove_table(table_format, latest=is_latest)
            tables.append({"name": dataset.name, "format": table_format, "path": path, "removed": removed})
            if removed:
                notes.append(f"{dataset.name}: {'latest ' if is_latest else ''}table removed")
            elif latest or not is_latest:
                notes.append(f"{dataset.name}: no {'latest ' if is_latest else ''}{table_format} table")
    show(tables, lambda: print_note("\n".join(notes)))


def _show_versions(show_progress: Callable[[str], None], done: int, total: int) -> None:
    show_progress(f"writing: {done:,} of {total:,} versions")


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
