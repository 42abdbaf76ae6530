"""Show the rows that the next pull of a root dataset would commit.

Fetches and reads the source as `odf pull` does, and commits nothing. If the source has several new
files, shows the first one with new rows. Checks of the dataset are not evaluated.
"""

from __future__ import annotations

import click

from odf_engine.api import Preview, PreviewResult, ResultRows, change_counts
from odf_engine.api.text import count_of, printable
from odf_tui.cli.shared.job_progress import run_request
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import json_records, print_note, select_fields, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.cli.tail import print_rows

ORDER = 205
MEANINGS = "dry-run try sample"


@define_command("preview", help=__doc__, example="odf preview port-haven.stations -n 20", json=True)
@click.argument("name", type=DATASET)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Maximum number of rows.",
)
@click.option("--force", is_flag=True, help="Fetch the source even if it reports no change.")
def command(name: str, limit: int, force: bool) -> None:
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    result = run_request(workspace, Preview(dataset.id, limit, force), dataset.name)
    file = workspace.folder / result.path
    fields = ("name", "origin", "rows", "added", "retracted", "corrected")
    show(
        lambda: {
            **select_fields(result, *fields),
            "records": json_records(ResultRows(file).window(0, limit)) if result.rows else [],
        },
        lambda: print_rows(dataset, ResultRows(file).window(0, limit), empty=False) if result.rows else None,
    )
    print_note(_summary(result))


def _summary(result: PreviewResult) -> str:
    if not result.rows:
        return f"{result.name}: no new rows"
    changes = change_counts(result.added, result.retracted, result.corrected)
    rows = count_of(result.rows, "row") + (f" ({changes})" if changes else "")
    return f"{result.name}: {rows} from {printable(result.origin)}, not committed"
