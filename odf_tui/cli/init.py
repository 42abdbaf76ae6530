"""Create a workspace.

FOLDER is by default the folder of -w, else the current folder. It is created if it does not exist.

With --store, the datasets are in an object store that several machines can use. The store is created if
it does not exist. See `odf help stores`.
"""

from __future__ import annotations

from pathlib import Path

import click

import odf_engine
from odf_engine.api.text import count_of
from odf_tui.cli.shared.options import define_command, options_of
from odf_tui.cli.shared.output import print_note

ORDER = 10


@define_command("init", help=__doc__, example="odf init")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option(
    "--store",
    metavar="URL",
    help="Object store for the datasets: s3://BUCKET/PREFIX, gs://, az:// or file:FOLDER.",
)
def command(folder: Path | None, store: str | None) -> None:
    folder = folder or options_of().workspace or Path()
    workspace = odf_engine.init(folder, store=store, progress=False)
    print_note(f"created a workspace in {workspace.folder}")
    if workspace.config.store.url:
        datasets = count_of(len(workspace), "dataset")
        print_note(f"{datasets} in the store {workspace.config.store.url}")
    print_note("next: odf new NAME --root > dataset.yaml, edit the file, odf add dataset.yaml, odf pull NAME")
