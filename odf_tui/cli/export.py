"""Write all rows of a dataset to a file.

The extension of FILE selects the format: .csv, .json, .ndjson or .parquet. To write only some rows or
columns, or the latest state, use `odf sql QUERY -o FILE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from odf_engine.api import Export, JobState
from odf_engine.errors import AlreadyExists
from odf_tui.cli.shared.job_progress import exit_code, follow, print_failure
from odf_tui.cli.shared.options import DATASET, FILE, define_command
from odf_tui.cli.shared.output import check_parent_folder, file_format, print_note
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.job_text import job_outcome

ORDER = 230
MEANINGS = "dump save write copy cp csv parquet"


@define_command("export", help=__doc__, example="odf export port-haven.stations stations.csv")
@click.argument("name", type=DATASET)
@click.argument("file", type=FILE)
@click.option("--no-system", is_flag=True, help="Omit the system columns, such as offset and op.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def command(name: str, file: Path, no_system: bool, force: bool) -> None:
    form = file_format(file)
    check_parent_folder(file)
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    if file.exists() and not force:
        raise AlreadyExists(f"{file} already exists", hint="use --force to overwrite it")
    request = Export(dataset.id, str(file.absolute()), format=form, system=not no_system, replace=force)
    (job,) = follow(workspace, [(request, dataset.name)])
    if job.state is not JobState.done:
        print_failure(job)
    else:
        print_note(job_outcome(job)[0])
    sys.exit(exit_code([job]))
