"""Show the last rows of a dataset.

Rows are sorted by offset, oldest first. --as-of and --current use the primary key of the dataset,
unless --key specifies its columns.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from odf_engine.api import BuildProjection, JobState, Op, ResultRows, parse_user_time
from odf_engine.api.dataset import Dataset
from odf_engine.api.text import count_of, printable
from odf_tui.cli.shared.job_progress import exit_code, follow
from odf_tui.cli.shared.options import DATASET, branch_option, define_command, options_of
from odf_tui.cli.shared.output import json_records, print_json, print_note, print_table
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.pinned_blocks import as_at_text
from odf_tui.text.values import is_number

if TYPE_CHECKING:
    import pyarrow as pa

ORDER = 150
MEANINGS = "cat head rows peek data"


@define_command(
    "tail", help=__doc__, example="odf tail port-haven.air-readings -n 20 --as-at 2026-03-01", json=True
)
@click.argument("name", type=DATASET)
@click.option(
    "-n", "--rows", type=click.IntRange(min=1), default=10, show_default=True, help="Number of rows."
)
@click.option(
    "--as-at", metavar="TIME|BLOCK|REF", help="State as known at a system time, a block or a reference."
)
@click.option("--as-of", metavar="TIME", help="State as of an event time, with all corrections.")
@click.option("--current", is_flag=True, help="Latest row of each key, without retracted keys.")
@click.option("--key", multiple=True, metavar="COLUMN", help="Key column. Can be repeated.")
@branch_option("Show rows of this branch.")
def command(
    name: str,
    rows: int,
    as_at: str | None,
    as_of: str | None,
    current: bool,
    key: tuple[str, ...],
    branch: str,
) -> None:
    dataset = open_workspace().resolve(name).on_branch(branch)
    if branch:  # a job reads a block of any chain
        as_at = dataset.version(as_at).block
    if as_of is not None or current or key:
        table = _read_projection(dataset, rows, as_at, as_of, key)
    else:
        table = _read_newest_rows(dataset, rows, as_at)
    print_rows(dataset, table, empty=as_at is None and as_of is None)


def _read_newest_rows(dataset: Dataset, rows: int, as_at: str | None) -> pa.Table:
    """Return the newest rows, or those as known at a time or block, without a worker."""
    if as_at is None:
        return dataset.row_window().tail(rows)
    version = dataset.version(as_at)
    window = dataset.row_window(version)
    _print_version(as_at_text(version), window.row_count)
    return window.tail(rows)


def _read_projection(
    dataset: Dataset, rows: int, as_at: str | None, as_of: str | None, key: tuple[str, ...]
) -> pa.Table:
    """Return the last rows of a projection, which a job builds: as of an event time, or the latest state."""
    event_time = None if as_of is None else str(parse_user_time(as_of))
    request = BuildProjection(dataset.id, list(key), as_at=as_at, as_of=event_time)
    (job,) = follow(open_workspace(), [(request, dataset.name)])
    if job.error is not None:
        raise job.error.to_error()
    result = job.result_of(BuildProjection)
    if job.state is not JobState.done or result is None:
        sys.exit(exit_code([job]))
    rows_file = ResultRows(Path(result.file))
    parts = [
        as_at_text(result.pin) if as_at and result.pin else "",
        f"as of {event_time}" if event_time else "",
    ]
    parts.append(f"by {', '.join(map(printable, result.key))}" if result.key else "")
    _print_version(" · ".join(part for part in parts if part), rows_file.row_count)
    return rows_file.window(rows_file.row_count - rows, rows + min(rows_file.row_count - rows, 0))


def _print_version(version: str, rows: int) -> None:
    """Print which version of the dataset the rows are read from."""
    print_note(f"{version} · {count_of(rows, 'row')}")


def print_rows(dataset: Dataset, table: pa.Table, *, empty: bool) -> None:
    """Print rows, with operations as codes; ``empty`` notes that the dataset has no rows yet."""
    records = json_records(table)
    if options_of().json:
        print_json(records)
        return
    if not records:
        if empty:
            print_note(f"{dataset.name} has no rows yet: run odf pull {dataset.name}")
        return
    op = dataset.state.vocabulary.operation_type_column
    for record in records:
        if op in record:
            record[op] = Op(record[op]).code
    numbers = [name for name in table.column_names if is_number(table.schema.field(name).type)]
    print_table(
        table.column_names,
        [["" if cell is None else printable(str(cell)) for cell in record.values()] for record in records],
        numbers,
    )
