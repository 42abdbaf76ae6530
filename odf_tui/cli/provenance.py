"""The verb provenance."""

from __future__ import annotations

import click

from odf_engine.errors import Unsupported
from odf_tui.cli.output import verb


@verb("provenance", example="odf provenance port-haven.air-daily 0", json=True)
@click.argument("name")
def provenance_verb(name: str) -> None:
    """Not yet."""
    raise Unsupported("not yet")
