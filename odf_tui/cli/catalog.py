"""Write a catalog of the datasets for data portals.

The catalog is a JSON-LD document with the terms of DCAT 3 and of schema.org: title, description, keywords,
licence, times, period of the event times, size and media type of the data. `odf serve` serves the catalog
of its datasets at /catalog.jsonld. See `odf help cite`.
"""

from __future__ import annotations

from pathlib import Path

import click

from odf_engine.api import atomic_file
from odf_engine.errors import UsageError
from odf_tui.cli.shared.options import DATASET, FILE, define_command
from odf_tui.cli.shared.output import check_parent_folder, print_note, write_document
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 365
MEANINGS = "dcat schema.org json-ld portal harvest metadata"


@define_command(
    "catalog", help=__doc__, example="odf catalog -o catalog.jsonld --url https://data.example.com/"
)
@click.option("-o", "--output", type=FILE, help="Output file. Default: stdout.")
@click.option(
    "--dataset",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    type=DATASET,
    help="Only these datasets. Can be repeated.",
)
@click.option(
    "--url",
    "base",
    default="",
    metavar="BASE",
    help="Address of the server or repository that has the datasets, for their access URLs.",
)
def command(output: Path | None, patterns: tuple[str, ...], base: str) -> None:
    if base and not base.startswith(("https://", "http://")):
        raise UsageError(
            f"--url {base}: not a web address", hint="use a URL such as https://data.example.com/"
        )
    text = open_workspace().catalog(*patterns, base=base).decode()
    if output is None:
        write_document(text)
        return
    check_parent_folder(output)
    with atomic_file(output, 0o666) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print_note(f"wrote {output}")
