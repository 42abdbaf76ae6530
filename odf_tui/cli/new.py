"""Print a commented manifest for a new dataset.

The manifest is valid without changes. Edit it, then add the dataset with `odf add`.
With --from FILE, format and columns are inferred from the first rows of a data file.
"""

from __future__ import annotations

from pathlib import Path

import click

from odf_engine.api import DatasetAlias, FileChoices, Reporter, infer_file, is_url, load_sample, manifest_text
from odf_engine.api.samples import DERIVATIVE, PUSH, ROOT
from odf_engine.errors import NotFound, UsageError
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import data_stream
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 30
MEANINGS = "create template"


@define_command("new", help=__doc__, example="odf new com.example.cases --root > cases.yaml")
@click.argument("name")
@click.option("--root", is_flag=True, help="Root dataset with a polling source.")
@click.option("--push", is_flag=True, help="Root dataset with a push source.")
@click.option("--derivative", is_flag=True, help="Derivative dataset: a query over other datasets.")
@click.option("--from", "source", metavar="FILE|URL", help="Root dataset with the rows of this file.")
def command(name: str, root: bool, push: bool, derivative: bool, source: str | None) -> None:
    alias = DatasetAlias.parse(name)
    if source is not None:
        if push or derivative:
            raise UsageError("--from is for root datasets with a polling source", hint="use only --from")
        data_stream().write(_inferred_manifest(str(alias), source))
        return
    if (root or push) == derivative:
        raise UsageError("missing kind of dataset", hint="use --root, --push, --derivative or --from FILE")
    template = DERIVATIVE if derivative else PUSH if push else ROOT
    data_stream().write(template.replace("NAME", str(alias)))


def _inferred_manifest(name: str, source: str) -> str:
    """Return the manifest for a file. Paths are relative to the folder of the workspace, if there is one."""
    try:
        folder = open_workspace().folder.resolve()
    except NotFound:
        folder = Path.cwd()
    location = source
    if not is_url(source):
        path = Path(source).expanduser().resolve()
        location = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
    reporter = Reporter()
    return manifest_text(
        location, name, infer_file(load_sample(location, folder, reporter), FileChoices(), reporter)
    )
