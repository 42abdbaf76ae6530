"""Merge adjacent small slices of a root dataset.

Rows, offsets, times and order do not change. Blocks are immutable, so this writes a new chain with the
same identity. The old head remains under a reference such as compacted-20260103T040500Z-1a2b3c4d until
`odf gc` removes it. Datasets derived from the old chain remain valid. See `odf help compaction`.

Exits with 4 if the dataset changes during the compaction.
"""

from __future__ import annotations

import click

from odf_engine.api import Compact, CompactResult
from odf_engine.api.text import format_bytes
from odf_tui.cli.shared.job_progress import run_request
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import print_result, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.format import with_spaced_thousands

ORDER = 310
MEANINGS = "optimize merge squash compaction"


@define_command("compact", help=__doc__, example="odf compact com.example.cases --dry-run", json=True)
@click.argument("name", type=DATASET)
@click.option("--dry-run", is_flag=True, help="Show what would be merged, and change nothing.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=2),
    help="Maximum rows of a merged slice. Default: compaction.maxRows.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1024),
    help="Maximum total size of slices merged into one. Default: compaction.maxBytes.",
)
def command(name: str, dry_run: bool, max_rows: int | None, max_bytes: int | None) -> None:
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    request = Compact(dataset.id, dry_run=dry_run, max_rows=max_rows, max_bytes=max_bytes)
    result = run_request(workspace, request, dataset.name)
    show(result, lambda: print_result(_compact_line(result)))


def _compact_line(result: CompactResult) -> str:
    """Describe the result of a compaction in a line."""
    summary = with_spaced_thousands(Compact.summarize(result).text)
    if result.status == "unchanged":
        return f"{result.name}: {summary}"
    if result.status == "planned":
        size = format_bytes(result.merged_bytes)
        return f"{result.name}: would merge {summary}, and rewrite {size}"
    sizes = f"{format_bytes(result.merged_bytes)} to {format_bytes(result.written_bytes)}"
    return f"{result.name}: {summary}, {sizes}; the old head is refs/{result.reference}"
