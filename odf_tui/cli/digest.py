"""Print the logical and the physical hash of a data file.

FILE is a Parquet or an Arrow IPC file.
"""

from __future__ import annotations

from pathlib import Path

import click

from odf_engine.api import digest_file
from odf_engine.errors import NotFound
from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import select_fields, show

ORDER = 510
MEANINGS = "hash checksum sha"


@define_command("digest", help=__doc__, example="odf digest data.parquet --json", json=True)
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    if not file.is_file():
        raise NotFound(f"file not found: {file}")
    digest = digest_file(file)
    show(
        select_fields(digest, "logical_hash", "physical_hash", "size", "rows"),
        f"logical   {digest.logical_hash}\nphysical  {digest.physical_hash}\n"
        f"size      {digest.size} bytes\nrows      {digest.rows}",
    )
