"""Cite a version of a dataset, or write it as a research object.

Without -o, prints the citation in APA style and as BibTeX. NAME@TAG cites the version of a tag.

With -o, writes an RO-Crate: a zip archive, or a folder if FILE does not end in .zip. It has the metadata
of the version, the manifest, the hashes of blocks and slices, the citation, and the lineage as W3C PROV.
With --with-data, it also has the blocks and data of the dataset and of everything upstream. `odf pull
crate.zip` pulls them without a network connection, and `odf verify -r NAME` verifies them.

The authors and the title come from the attachment CITATION.cff, if the dataset has one. See `odf help cite`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from odf_engine.api.dataset import Dataset
from odf_engine.api.text import count_of
from odf_engine.errors import UsageError
from odf_tui.cli.shared.job_progress import LiveReporter
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import check_parent_folder, live_progress, print_note, print_result, show
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 235
MEANINGS = "citation reference doi bibtex apa ro-crate prov research archive"


@define_command(
    "cite", help=__doc__, example="odf cite port-haven.stations@report-2024 --format bibtex", json=True
)
@click.argument("name", type=DATASET)
@click.option("--at", metavar="BLOCK|TAG|TIME", help="Cite this version. Default: the newest block.")
@click.option("--format", "form", type=click.Choice(["apa", "bibtex"]), help="Print only this format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write an RO-Crate.")
@click.option("--with-data", is_flag=True, help="Include the blocks and data of the dataset and its inputs.")
def command(name: str, at: str | None, form: str | None, output: Path | None, with_data: bool) -> None:
    if with_data and output is None:
        raise UsageError("--with-data requires -o", hint="name the crate: -o crate.zip")
    if form is not None and output is not None:
        raise UsageError(
            "--format and -o exclude each other", hint="a crate has the citation in both formats"
        )
    name, _, tag = name.partition("@")
    if tag and at is not None:
        raise UsageError("NAME@TAG and --at exclude each other", hint="omit one of them")
    dataset = open_workspace().resolve(name)
    if output is not None:
        _write_crate(dataset, output, at or tag or None, with_data=with_data)
        return
    citation = dataset.cite(at or tag or None)
    texts = [
        text for kind, text in (("apa", citation.apa), ("bibtex", citation.bibtex)) if form in (None, kind)
    ]
    show(citation, "\n\n".join(texts))


def _write_crate(dataset: Dataset, output: Path, at: str | None, **options: Any) -> None:
    check_parent_folder(output)
    with live_progress() as progress:
        reporter = LiveReporter("packing", progress)
        result = dataset.write_crate(output, at, reporter=reporter, **options)
    for warning in reporter.warnings.listed():
        print_note(f"warning: {warning.text}")
    for missing in result.missing:
        print_note(f"input {missing} is not in the workspace: its lineage is incomplete")
    data = f" with the data of {count_of(len(result.datasets), 'dataset')}" if result.datasets else ""
    show(result, lambda: print_result(f"{output}: {dataset.name} at block {result.citation.block}{data}"))
