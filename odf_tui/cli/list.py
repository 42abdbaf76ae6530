"""List the datasets of the workspace."""

from __future__ import annotations

from collections.abc import Mapping

from odf_engine.api import DatasetId, Summary
from odf_engine.api.text import format_bytes, format_count, format_time, printable
from odf_engine.api.workspace import Workspace
from odf_tui.cli.shared.datasets import (
    NO_DATASETS,
    Status,
    read_labels,
    read_statuses,
    remotes_of,
    summary_json,
)
from odf_tui.cli.shared.options import define_command, options_of
from odf_tui.cli.shared.output import Table, print_note, show
from odf_tui.cli.shared.workspace import open_workspace, use_timezone

ORDER = 70
MEANINGS = "dir datasets"
ALIASES = "ls"


@define_command("list", help=__doc__, example="odf list --json", json=True)
def command() -> None:
    workspace = open_workspace()
    summaries = workspace.summaries()
    statuses = read_statuses(workspace, summaries)
    labels = read_labels(workspace, summaries)
    show(
        [summary_json(summary, statuses[summary.id], labels[summary.id]) for summary in summaries],
        lambda: _datasets_table(workspace, summaries, statuses, labels),
    )
    for summary in summaries:
        if summary.problem is not None and not options_of().json:
            print_note(printable(f"{summary.name}: {summary.problem}"))


def _datasets_table(
    workspace: Workspace,
    summaries: list[Summary],
    statuses: Mapping[DatasetId, Status],
    labels: Mapping[DatasetId, Mapping[str, str]],
) -> Table:
    zone = use_timezone(workspace)
    columns = ["name", "kind", "status", "blocks", "rows", "size"]
    columns += [f"watermark ({zone})", f"last change ({zone})", f"last pull ({zone})"]
    origins = _read_origins(workspace, summaries)
    columns += ["labels"] if any(labels.values()) else []
    return Table(
        [*columns, "from"] if origins else columns,
        [
            [
                summary.name,
                summary.kind.value,
                statuses[summary.id].state,
                format_count(summary.blocks),
                format_count(summary.records),
                format_bytes(summary.size),
                format_time(summary.watermark),
                format_time(summary.last_pulled),
                format_time(statuses[summary.id].last_polled),
                *([_labels_text(labels[summary.id])] if any(labels.values()) else ()),
                *([origins.get(str(summary.id), "")] if origins else ()),
            ]
            for summary in summaries
        ],
        right=["blocks", "rows", "size"],
        empty=NO_DATASETS,
    )


def _labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _read_origins(workspace: Workspace, summaries: list[Summary]) -> dict[str, str]:
    """Return the labels of the remotes that datasets are pulled from, by dataset id."""
    return {
        dataset: ", ".join(labels)
        for dataset, remotes in remotes_of(workspace, summaries).items()
        if (labels := [remote.label for remote in remotes if remote.pull])
    }
