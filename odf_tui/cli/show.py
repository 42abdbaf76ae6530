"""Show the details of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from odf_engine.api import (
    REDACTED,
    ChainState,
    DatasetId,
    DisablePushSource,
    SetPollingSource,
    Summary,
    Timestamp,
    snapshot_documents,
    snapshot_to_yaml,
    to_builtins,
)
from odf_engine.api.dataset import Dataset
from odf_engine.api.model import Remote
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.datasets import read_labels, read_statuses, remote_json, remotes_of, summary_json
from odf_tui.cli.shared.options import DATASET, define_command
from odf_tui.cli.shared.output import print_yaml, show, write_document
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.remotes import remote_summary

ORDER = 80
MEANINGS = "describe desc info inspect get"

_DISABLING: Final = ("DisablePollingSource", "DisablePushSource")
_MAX_TEXT: Final = 2000
_MAX_BLOCKS: Final = 1000


@define_command("show", help=__doc__, example="odf show port-haven.stations", json=True)
@click.argument("name", type=DATASET)
@click.option("--manifest", is_flag=True, help="Print its definition as a manifest for odf add --update.")
@click.option("--attachments", is_flag=True, help="Write its attachments to files, and print their paths.")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the attachments. Default: .",
)
def command(name: str, manifest: bool, attachments: bool, output: Path | None) -> None:
    if output is not None and not attachments:
        raise UsageError("-o is the folder of the attachments", hint="add --attachments")
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    if attachments:
        files = dataset.write_attachments(output or Path())
        show([str(file) for file in files], "\n".join(map(str, files)))
        return
    if manifest:
        snapshot = dataset.snapshot()
        documents = snapshot_documents(snapshot)
        show(
            documents[0] if len(documents) == 1 else documents,
            lambda: write_document(snapshot_to_yaml(snapshot)),
        )
        return
    summaries = workspace.summaries()
    summary = next(summary for summary in summaries if str(summary.id) == dataset.id)
    statuses = read_statuses(workspace, summaries)
    labels = read_labels(workspace, [summary])[summary.id]
    remotes = remotes_of(workspace, [summary]).get(dataset.id, ())
    document = summary_json(summary, statuses[summary.id], labels) | dataset_details(
        workspace, dataset, summaries
    )
    document["last_verification"] = statuses[summary.id].last_verification
    document["remotes"] = [remote_json(remote) for remote in remotes]
    show(document, lambda: _print_details(document, remotes))


def _print_details(document: dict[str, Any], remotes: Sequence[Remote]) -> None:
    now = Timestamp.now()
    texts = document | {"remotes": [remote_summary(remote, now) for remote in remotes]}
    print_yaml({key: truncate_long_texts(text) for key, text in texts.items() if text not in (None, [], {})})


def dataset_details(workspace: Workspace, dataset: Dataset, summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the folder, the inputs and all settings of a dataset, for JSON and YAML."""
    state = dataset.state
    names = {summary.id: summary.name for summary in summaries}
    trust, proof = workspace.trust_status(dataset.id), dataset.newest_proven_block()

    def plain(event: Any) -> Any:
        return None if event is None else to_builtins(event)

    return {
        "path": str(dataset.folder),
        "trust": trust.trust,
        "origin": trust.origin,
        # The newest block with a valid ownership proof, and the number of blocks after it.
        "proof": proof
        and {"block": proof.number, "hash": proof.hash, "newer": proof.newer, "actor": proof.actor},
        "references": dataset.references,
        "branches": dataset.branch_names,
        "tags": dataset.tag_names,
        "inputs": [names.get(upstream, str(upstream)) for upstream in state.inputs()],
        "outputs": [other.name for other in summaries if DatasetId.parse(dataset.id) in other.inputs],
        "sources": list(_list_sources(dataset, state)),
        "transform": plain(state.transform),
        "vocabulary": plain(state.vocabulary),
        "license": plain(state.license),
        "info": plain(state.info),
        "attachments": plain(state.attachments),
        "not_understood": state.not_understood,
    }


def _list_sources(dataset: Dataset, state: ChainState) -> Iterator[dict[str, Any]]:
    """Yield the active sources with their known state, then the disabled ones."""
    if (private := dataset.private_source) is not None:
        yield {
            **_plain_source(private.source),
            "active": True,
            "stored": "outside the chain: not published",
            "config": dict(private.config),
        }
    if state.polling_source is not None:
        plain = _plain_source(state.polling_source)
        source = state.source_state
        known = None if source is None else {"kind": source.kind, "value": source.value}
        pulled = state.last_data_time if state.was_polled else None
        yield {**plain, "active": True, "state": known, "last_pulled": pulled}
    for pushed in state.push_sources.values():
        yield {**to_builtins(pushed), "active": True}
    yield from _list_disabled_sources(dataset, state)


def _plain_source(source: SetPollingSource) -> dict[str, Any]:
    plain = to_builtins(source)
    if "${{" not in (plain["fetch"].get("password") or "${{"):
        plain["fetch"]["password"] = REDACTED
    return plain


def _list_disabled_sources(dataset: Dataset, state: ChainState) -> Iterator[dict[str, Any]]:
    listed = set(state.push_sources)
    polling = state.polling_source is not None or dataset.private_source is not None
    for row in dataset.list_blocks(_MAX_BLOCKS, kinds=_DISABLING):
        event = dataset.block(str(row.hash)).block.event
        disabled = {"active": False, "disabled": row.system_time, "block": row.sequence_number}
        if isinstance(event, DisablePushSource):
            if event.source_name not in listed:
                listed.add(event.source_name)
                yield {"kind": "AddPushSource", "sourceName": event.source_name, **disabled}
        elif not polling:
            polling = True
            yield {"kind": "SetPollingSource", **disabled}


def truncate_long_texts(value: Any) -> Any:
    """Return a value with long texts truncated, such as attachments."""
    if isinstance(value, dict):
        return {key: truncate_long_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [truncate_long_texts(item) for item in value]
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"{value[:_MAX_TEXT]}\n… {len(value) - _MAX_TEXT:,} more characters (odf show --json has all)"
    return value
