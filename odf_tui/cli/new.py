"""Print a commented manifest for a new dataset.

The manifest is valid without changes. Edit it, then add the dataset with `odf add`.
With --from FILE, format and columns are inferred from the first rows of a data file. Metadata beside
the file are used: FILE-metadata.json (CSV on the Web) and datapackage.json (Data Package).

For a collection, it prints a manifest for each table, named NAME.TABLE. Collections are archives with
several data files, such as GTFS feeds, datapackage.json and CSVW metadata. --member selects one table, or
members of a zip or tar archive that are one table: 'week-*.csv'. It can be given several times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from odf_engine.api import DatasetAlias, Reporter, is_url, propose_manifests
from odf_engine.api.samples import DERIVATIVE, PUSH, ROOT
from odf_engine.api.text import printable
from odf_engine.errors import NotFound, UsageError
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import data_stream, print_note
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 30
MEANINGS = "create template"


@define_command("new", help=__doc__, example="odf new com.example.cases --root > cases.yaml")
@click.argument("name")
@click.option("--root", is_flag=True, help="Root dataset with a polling source.")
@click.option("--push", is_flag=True, help="Root dataset with a push source.")
@click.option("--derivative", is_flag=True, help="Derivative dataset: a query over other datasets.")
@click.option(
    "--from",
    "source",
    metavar="FILE|PATTERN|URL",
    help="Root dataset with the rows of this file, or of all files of a pattern.",
)
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="TABLE|PATTERN",
    help="Take only this table of a collection, or the members of an archive that match.",
)
def command(
    name: str, root: bool, push: bool, derivative: bool, source: str | None, members: tuple[str, ...]
) -> None:
    alias = DatasetAlias.parse(name)
    if source is not None:
        if push or derivative:
            raise UsageError("--from is for root datasets with a polling source", hint="use only --from")
        manifests = list(_inferred_manifests(str(alias), source, members))  # all or nothing
        data_stream().write("---\n".join(manifests))
        return
    if members:
        raise UsageError("--member requires --from", hint="specify the file or URL of a collection")
    if (root or push) == derivative:
        raise UsageError("missing kind of dataset", hint="use --root, --push, --derivative or --from FILE")
    template = DERIVATIVE if derivative else PUSH if push else ROOT
    data_stream().write(template.replace("NAME", str(alias)))


class _WarningReporter(Reporter):
    """Prints warnings to stderr."""

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        print_note(f"warning: {printable(text)}")


def _inferred_manifests(name: str, source: str, members: tuple[str, ...]) -> Iterator[str]:
    """Yield the manifests for a file or a collection.

    Paths are relative to the folder of the workspace, if there is one.
    """
    try:
        folder = open_workspace().folder.resolve()
    except NotFound:
        folder = Path.cwd()
    location = source
    if not is_url(source):
        path = Path(source).expanduser().resolve()
        location = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
    yield from propose_manifests(location, name, folder, _WarningReporter(), members)
