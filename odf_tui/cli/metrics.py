"""Print metrics of the workspace in the text format of Prometheus.

The metrics are numbers of rows and blocks, watermarks, ended jobs, states of flows, and deliveries of
alerts. `odf serve --metrics` serves them over HTTP.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from odf_tui.cli.shared.options import FILE, define_command
from odf_tui.cli.shared.output import check_parent_folder, print_note
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 450
MEANINGS = "prometheus monitoring exporter"


@define_command("metrics", help=__doc__, example="odf metrics -o /var/lib/node_exporter/odf.prom")
@click.option("-o", "--output", type=FILE, help="Replace this file atomically, instead of writing to stdout.")
def command(output: Path | None) -> None:
    workspace = open_workspace()
    if output is None:
        sys.stdout.write(workspace.metrics())
        return
    check_parent_folder(output)
    workspace.write_metrics(output.absolute())
    print_note(f"wrote {output}")
