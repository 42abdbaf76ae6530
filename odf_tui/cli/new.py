"""Print a commented manifest for a new dataset.

The manifest is valid without changes. Edit it, then add the dataset with `odf add`.
"""

from __future__ import annotations

import click

from odf_engine.api import DatasetAlias
from odf_engine.api.samples import DERIVATIVE, PUSH, ROOT
from odf_engine.errors import UsageError
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import data_stream

ORDER = 30
MEANINGS = "create template"


@define_command("new", help=__doc__, example="odf new com.example.cases --root > cases.yaml")
@click.argument("name")
@click.option("--root", is_flag=True, help="Root dataset with a polling source.")
@click.option("--push", is_flag=True, help="Root dataset with a push source.")
@click.option("--derivative", is_flag=True, help="Derivative dataset: a query over other datasets.")
def command(name: str, root: bool, push: bool, derivative: bool) -> None:
    if (root or push) == derivative:
        raise UsageError("missing kind of dataset", hint="use --root, --push or --derivative")
    alias = DatasetAlias.parse(name)
    template = DERIVATIVE if derivative else PUSH if push else ROOT
    data_stream().write(template.replace("NAME", str(alias)))
