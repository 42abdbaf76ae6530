"""The verb diff."""

from __future__ import annotations

import click

from odf_engine.errors import Unsupported
from odf_tui.cli.output import verb


@verb("diff", example="odf diff port-haven.stations --from 2026-01-01T00:00:00Z", json=True)
@click.argument("name")
def diff_verb(name: str) -> None:
    """Not yet."""
    raise Unsupported("not yet")
