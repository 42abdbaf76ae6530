"""Show the metadata chain of a dataset, newest block first.

A reset, or a pull or push with --force, replaces the history of a dataset. The earlier history
remains under a reference such as before-reset-1a2b3c4d, which `odf show` lists and --as-at accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import click

from odf_engine.api import (
    BlockSummary,
    JobWarning,
    MetadataEvent,
    Multihash,
    Opaque,
    Rejects,
    result_json,
    to_builtins,
)
from odf_engine.api.dataset import Dataset
from odf_engine.api.text import count_of, format_time_seconds
from odf_engine.errors import NotFound, OdfError
from odf_tui.cli.shared.options import DATASET, branch_option, define_command
from odf_tui.cli.shared.output import Table, select_fields, show
from odf_tui.cli.shared.workspace import open_workspace, use_timezone
from odf_tui.text.format import format_summary
from odf_tui.text.job_text import warnings_text

ORDER = 130
MEANINGS = "history blocks commits chain"


@define_command("log", help=__doc__, example="odf log port-haven.stations -n 5 --json", json=True)
@click.argument("name", type=DATASET)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Maximum number of blocks.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="EVENT",
    help="Only events of this kind, such as AddData. Can be repeated.",
)
@click.option(
    "--as-at", metavar="TIME|BLOCK|REF", help="Start with the block at a time, a block, or a reference."
)
@branch_option("Show the chain of this branch.")
def command(name: str, limit: int | None, kinds: tuple[str, ...], as_at: str | None, branch: str) -> None:
    workspace = open_workspace()
    dataset = workspace.resolve(name).on_branch(branch)
    event_names = _parse_event_names(kinds)
    before = None
    if as_at is not None:
        version = dataset.version(as_at)
        dataset, before = dataset.at(version), version.sequence_number + 1
    blocks = dataset.list_blocks(limit, before=before, kinds=event_names)
    rejects = dataset.rejects()
    warnings = dataset.warnings(str(row.hash) for row in blocks)
    show(
        lambda: [
            _block_json(dataset, row.hash, rejects.get(str(row.hash)), warnings.get(str(row.hash)))
            for row in blocks
        ],
        lambda: _blocks_table(dataset, blocks, rejects, warnings, use_timezone(workspace)),
    )


def _block_json(
    dataset: Dataset, block: Multihash, rejects: Rejects | None, warnings: Sequence[JobWarning] | None
) -> dict[str, Any]:
    """Return a block for ``--json``, with the event as in a manifest and what is stored beside the chain."""
    stored = dataset.block(str(block))
    return {
        "hash": stored.hash,
        **select_fields(stored.block, "sequence_number", "prev_block_hash", "system_time"),
        "block_version": stored.version,
        "event": to_builtins(stored.block)["event"],
        **_checks_json(dataset, stored.block.event),
        **({"rejected": rejects.rows, "rejects_file": str(rejects.file)} if rejects else {}),
        **({"warnings": warnings} if warnings else {}),
    }


def _blocks_table(
    dataset: Dataset,
    blocks: Sequence[BlockSummary],
    rejects: Mapping[str, Rejects],
    warnings: Mapping[str, Sequence[JobWarning]],
    zone: str,
) -> Table:
    checks = {number: f", checks: {text}" for number, text in dataset.check_summaries().items()}
    return Table(
        ["block", "hash", f"system time ({zone})", "event", "summary"],
        [
            [
                str(row.sequence_number),
                row.hash.abbreviated,
                format_time_seconds(row.system_time),
                row.kind,
                format_summary(row.summary)
                + _rejected_text(rejects.get(str(row.hash)))
                + (f", {warnings_text(warnings[str(row.hash)])}" if str(row.hash) in warnings else "")
                + checks.get(row.sequence_number, ""),
            ]
            for row in blocks
        ],
        right=["block"],
    )


def _checks_json(dataset: Dataset, event: object) -> dict[str, Any]:
    """Return the results of checks of an event for ``--json``, or {} if it has none."""
    written = getattr(event, "new_data", None)
    try:
        stored = written and dataset.check_report(written.physical_hash)
    except OdfError as error:
        return {"checks_error": error.message}
    if not stored:
        return {}
    results = [result_json(result) for result in stored.report.results]
    return {"checks": results, "checks_signed": stored.signed}


def _rejected_text(rejects: Rejects | None) -> str:
    return f", {count_of(rejects.rows, 'row')} rejected" if rejects else ""


def _parse_event_names(kinds: tuple[str, ...]) -> set[str] | None:
    """Return the names of events in their canonical spelling, or None for all events."""
    if not kinds:
        return None
    from difflib import get_close_matches  # only errors need it

    names = {kind.__name__.lower(): kind.__name__ for kind in (*get_args(MetadataEvent), Opaque)}
    event_names: set[str] = set()
    for kind in kinds:
        if kind.lower() not in names:
            close = get_close_matches(kind.lower(), names, 1)
            raise NotFound(
                f"unknown event '{kind}'",
                hint=f"did you mean {names[close[0]]}?" if close else "events: " + ", ".join(names.values()),
            )
        event_names.add(names[kind.lower()])
    return event_names
