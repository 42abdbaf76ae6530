"""List the rows that a derivative dataset dropped because they are late.

A row is late if the watermark had passed its window before it was ingested. The rows remain in the
input. Each Parquet file has the late rows of one transaction and input. See `odf help event-time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import pyarrow.parquet as pq

from odf_engine.api import LateRowsFile, Multihash, Timestamp
from odf_engine.api.dataset import Dataset
from odf_engine.api.text import format_time_seconds, printable
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import Table, json_records, print_note, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.cli.tail import print_rows

ORDER = 160


@define_command("late", help=__doc__, example="odf late port-haven.air-by-day --rows", json=True)
@click.argument("name", type=DATASET)
@click.option("--rows", "show_rows", is_flag=True, help="Show the rows instead of their numbers.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Maximum number of blocks.",
)
def command(name: str, show_rows: bool, limit: int) -> None:
    dataset = open_workspace().resolve(name)
    files = dataset.late_rows()
    blocks = list(dict.fromkeys(file.block for file in files))[:limit]
    files = [file for file in files if file.block in blocks]
    show(
        lambda: [_file_json(dataset, file, with_rows=show_rows) for file in files],
        lambda: _print_rows_of_files(dataset, files) if show_rows and files else _files_table(dataset, files),
    )


def _system_time(dataset: Dataset, file: LateRowsFile) -> Timestamp:
    return dataset.block(file.block).block.system_time


def _file_json(dataset: Dataset, file: LateRowsFile, *, with_rows: bool) -> dict[str, Any]:
    document = {"block": file.block, "system_time": _system_time(dataset, file)}
    document |= {"input": file.input, "rows": file.rows, "file": str(file.path)}
    return document | ({"records": json_records(pq.read_table(file.path))} if with_rows else {})


def _print_rows_of_files(dataset: Dataset, files: Sequence[LateRowsFile]) -> None:
    for file in files:
        block = Multihash.parse(file.block).abbreviated
        print_note(f"block {block}, input {file.input}: {file.path}")
        print_rows(dataset, pq.read_table(file.path), empty=False)


def _files_table(dataset: Dataset, files: Sequence[LateRowsFile]) -> Table:
    return Table(
        ["block", "system time", "input", "rows"],
        [
            [
                Multihash.parse(file.block).abbreviated,
                format_time_seconds(_system_time(dataset, file)),
                printable(file.input),
                str(file.rows),
            ]
            for file in files
        ],
        right=["rows"],
        empty=f"{dataset.name} has dropped no late rows",
    )
