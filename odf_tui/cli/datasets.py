"""init, list, show, graph, path, rename, delete, config: datasets and settings of a workspace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from odf_engine.api.model import DatasetRow
from odf_engine.api.readers.dataset_reader import RemoteReader, add_remotes, make_dataset_rows
from odf_engine.api.text import count_of, format_bytes, format_count, format_time, printable
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.config import Config
from odf_engine.coordinator.client import read_journal
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Job, JobState
from odf_engine.errors import OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.metadata.model import DatasetSnapshot, DisablePushSource
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import to_builtins
from odf_engine.storage.refs import is_branch_name
from odf_engine.workspace.column_lineage import (
    ROWS,
    ColumnEdge,
    ColumnGraph,
    ColumnRef,
    DatasetColumns,
    build_column_graph,
    is_source,
)
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary
from odf_engine.workspace.definition import read_definition
from odf_engine.workspace.environment import REDACTED
from odf_engine.workspace.trust import Trust, find_newest_proven_block
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.output import (
    data_stream,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_table,
    print_yaml,
    use_timezone,
    verb,
    write_document,
)
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.state.model import Health
from odf_tui.text.format import format_setting
from odf_tui.text.job_text import known_result


def show_columns(workspace: Workspace, names: Sequence[str], *, dot: bool) -> None:
    """Print the columns of datasets and their lineage; of all datasets, or of those with these names.

    Raises:
        NotFound: no dataset has one of the names.
    """
    from odf_tui.text.graphviz import column_graph_to_dot  # deferred: few verbs need it
    from odf_tui.text.lineage_text import column_rows

    entries = workspace.match(names) if names else workspace.datasets()
    graph = build_column_graph(workspace, [entry.id for entry in entries] if names else None)
    ids = [str(entry.id) for entry in entries]
    if options_of().json:
        print_json({"datasets": [_columns_json(graph, graph.datasets[each]) for each in ids]})
    elif dot:
        write_document(column_graph_to_dot(graph, ids))
    elif not entries:
        print_note("no datasets yet: odf new NAME --root prints a manifest, odf add adds it")
    else:
        print_table(["dataset", "column", "from", "type"], list(column_rows(graph, ids)))
        for entry in entries:
            if problem := graph.datasets[str(entry.id)].lineage.problem:
                print_note(
                    f"{entry.alias}: {printable(problem)}; each column may depend on every input column"
                )


def _columns_json(graph: ColumnGraph, dataset: DatasetColumns) -> dict[str, Any]:
    """Return the columns of a dataset for JSON; ``how`` is a term of OpenLineage's column lineage."""
    outputs = [
        {
            "name": column,
            "from": [_link_json(graph, link) for link in graph.inputs_of(ColumnRef(dataset.id, column))],
        }
        for column in dataset.columns
    ]
    return {
        "id": dataset.id,
        "name": dataset.name,
        "columns": outputs,
        "rows": [_link_json(graph, link) for link in graph.inputs_of(ColumnRef(dataset.id, ROWS))],
        "problem": dataset.lineage.problem,
    }


def _link_json(graph: ColumnGraph, link: ColumnEdge) -> dict[str, Any]:
    if is_source(link.source.dataset):
        return {"source": True, "column": link.source.column, "how": link.how}
    known = graph.datasets[link.source.dataset]
    return {"dataset": known.name, "id": known.id, "column": link.source.column, "how": link.how}


@verb("config", example="odf config set spark.master spark://cluster:7077", json=True)
@click.argument("what", type=click.Choice(["get", "set", "list", "keys"]))
@click.argument("key", required=False)
@click.argument("value", required=False)
@click.option("--user", is_flag=True, help="Use the configuration of the user, for all workspaces.")
def config_verb(what: str, key: str | None, value: str | None, user: bool) -> None:
    """Read and change settings.

    `get KEY` prints a setting, and `list` prints all of them. `set KEY VALUE` changes a setting, and
    `set KEY` without a value removes it.

    Settings of the workspace override those of --user. Settings that start programs or load code, such
    as spark.conf and engines, are never read from the folder of the workspace. `set` writes them to the
    configuration of the user, for this workspace only.

    `keys` lists the actions of the workstation with their keys. `odf config set ui.keys.ACTION KEY,KEY`
    changes the keys of an action, and the value none removes them.
    """
    from odf_engine import settings as config

    odf = None if user else open_workspace().odf
    if what == "set":
        if key is None:
            raise _missing_key_error()
        _change_setting(key, value, odf)
        return
    settings = config.load(config.user_file()) if odf is None else config.load_workspace(odf)
    if what == "list":
        listed = config.list_settings(settings)
        if options_of().json:
            print_json({entry.key: entry.value for entry in listed})
        else:
            print_table(
                ["key", "value", "description"],
                [[entry.key, format_setting(entry.value), entry.description] for entry in listed],
            )
        return
    if what == "keys":
        _list_keys(settings.ui.keys)
        return
    if key is None:
        raise _missing_key_error()
    found = config.get_value(settings, key)
    if options_of().json:
        print_json(found)
    else:
        sys.stdout.write(format_setting(found) + "\n")


def _missing_key_error() -> UsageError:
    return UsageError("missing KEY", hint="run odf config list to see all settings")


def _change_setting(key: str, value: str | None, odf: Path | None) -> None:
    """Change a setting of the workspace with the folder ``odf``; None: of the user, for all workspaces."""
    from odf_engine import settings
    from odf_engine.api.administration import change_setting  # deferred: few verbs need it

    check = None
    if key.startswith("ui.keys."):
        from odf_tui.actions.user_keys import check_key_setting  # deferred: it loads Textual

        check = partial(check_key_setting, key)
    path = change_setting(key, value, odf, check)
    print_note(f"removed {key}" if value is None else f"set {key} to {value}")
    if path is not None and (odf is None or settings.is_user_setting(key)):
        print_note(f"written to the configuration of the user: {path}")
    if key.startswith(("spark.", "worker.")):
        print_note("a running worker uses the old settings until it is restarted: run odf worker stop")


def _list_keys(keys: Mapping[str, str | Sequence[str]]) -> None:
    from odf_tui.actions import user_keys
    from odf_tui.actions.model import key_name

    found, problems = user_keys.load(keys, user_keys.user_keys_path())
    if options_of().json:
        print_json({action.id: list(action.keys) for action in found.actions})
        return
    print_table(
        ["action", "keys", "scope", "description"],
        [
            [
                action.id,
                " ".join(map(key_name, action.keys)) or found.display_key(action.id) or "none",
                action.scope,
                action.title,
            ]
            for action in found.actions
        ],
    )
    for problem in problems:
        print_note(f"! {problem}")


# The JSON contract has fewer states than the screen.
_WORDS: Final = {
    Health.verified: "current",
    Health.queued: "running",
    Health.invalid: "failed",
    Health.damaged: "failed",
}


@dataclass(frozen=True)
class Status:
    """The status of a dataset.

    Attributes:
        state: new, current, stale, diverged, running or failed.
        last_verification: the newest verification that ended.
        last_polled: end of the newest successful pull or ingest, with or without new rows.
    """

    state: str
    last_verification: dict[str, Any] | None = None
    last_polled: str | None = None


def status_word(health: Health) -> str:
    """Return the status of a dataset in the JSON contract."""
    return _WORDS.get(health, health.word)


def read_rows(
    workspace: Workspace, summaries: Sequence[Summary], warn: Callable[[str], None]
) -> tuple[list[DatasetRow], JobBook]:
    """Return datasets and jobs; ``warn`` is called if the journal of jobs cannot be read."""
    journal = read_journal(workspace.folder)
    book = JobBook()
    try:
        book.load(journal.jobs(), journal.last_seq())
    except OdfError as error:
        warn(f"warning: {error.format_line}")
    remotes = RemoteReader(workspace).read_remotes(list(summaries))
    return [add_remotes(row, remotes.get(row.id, ())) for row in make_dataset_rows(summaries)], book


def read_statuses(
    workspace: Workspace, summaries: Sequence[Summary], warn: Callable[[str], None]
) -> dict[DatasetId, Status]:
    """Return the status of each dataset by id; ``warn`` is called if the journal of jobs cannot be read."""
    rows, book = read_rows(workspace, summaries, warn)
    found = dataset_healths(rows, book)
    verified = {
        job.dataset: job
        for job in book.jobs.values()
        if job.kind == "verify" and job.state is JobState.done and not job.branch
    }
    polled = book.last_polls()
    return {
        summary.id: Status(
            status_word(found[str(summary.id)]),
            _verification_json(verified.get(str(summary.id))),
            polled.get(str(summary.id)),
        )
        for summary in summaries
    }


def _verification_json(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    report = known_result(job.result, Verify) or VerifyResult()
    return {"time": job.ended, "valid": report.valid, "findings": len(report.findings)}


@verb("init", example="odf init")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--store",
    metavar="URL",
    help="Object store for the datasets: s3://BUCKET/PREFIX, gs://, az:// or file:FOLDER.",
)
def init_verb(folder: Path, store: str | None) -> None:
    """Create a workspace.

    FOLDER is the current folder by default. It is created if it does not exist.

    With --store, the datasets are in an object store that several machines can use. The store is created if
    it does not exist. See `odf help stores`.
    """
    workspace = Workspace.init(folder, store)
    print_note(f"created a workspace in {workspace.folder}")
    if workspace.config.store.url:
        datasets = count_of(len(workspace.datasets()), "dataset")
        print_note(f"{datasets} in the store {workspace.config.store.url}")
    print_note("next: odf new NAME --root > dataset.yaml, edit the file, odf add dataset.yaml, odf pull NAME")


@verb("delete", example="odf delete com.example.cases")
@click.argument("names", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def delete_verb(names: tuple[str, ...], yes: bool) -> None:
    """Delete datasets and their data.

    NAMES are names of datasets, or patterns with %, such as 'weather.%'. A dataset is not deleted while
    other datasets are derived from it. Private keys remain: `odf keys delete` deletes them.
    """
    workspace = open_workspace()
    entries = workspace.match(names)
    workspace.check_deletable(entries)
    if not yes:
        listed = ", ".join(str(entry.alias) for entry in entries)
        keys = sum(workspace.keys.has_key(entry.id) for entry in entries)
        remark = "; the private key is not deleted" if keys == 1 else "; the private keys are not deleted"
        remark = remark if keys else ""
        if not sys.stdin.isatty():
            raise UsageError(
                f"deleting {listed} requires confirmation", hint=f"use --yes to skip the prompt{remark}"
            )
        whose = "its" if len(entries) == 1 else "their"
        click.confirm(f"Delete {listed} and all {whose} data{remark}?", abort=True, err=True)
    # Downstream datasets are deleted first.
    by_id = {entry.id: entry for entry in entries}
    for dataset in reversed(DatasetGraph(workspace.summaries()).order(by_id)):
        entry = by_id[dataset]
        workspace.delete(entry)
        remark = f"; odf keys delete {entry.id} deletes its private key"
        print_note(f"deleted {entry.alias}{remark if workspace.keys.has_key(entry.id) else ''}")
    notify_datasets_changed(workspace.folder)


@verb("rename", example="odf rename cases com.example.cases")
@click.argument("old")
@click.argument("new")
def rename_verb(old: str, new: str) -> None:
    """Rename a dataset.

    Its id does not change, so the datasets derived from it are not affected.
    """
    workspace = open_workspace()
    entry = workspace.resolve(old)
    workspace.rename(entry, DatasetAlias.parse(new))
    notify_datasets_changed(workspace.folder)
    print_note(f"renamed {entry.alias} to {new}")


@verb("reset", example="odf reset com.example.cases 12")
@click.argument("name")
@click.argument("version", metavar="BLOCK|TIME|REF")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def reset_verb(name: str, version: str, yes: bool) -> None:
    """Return a dataset to an earlier block.

    The blocks after it are no longer part of the dataset. They remain under a reference such as
    before-reset-1a2b3c4d, and `odf reset NAME REF` restores them. A time selects the newest block at
    that time.

    Datasets derived from the removed rows are diverged until `odf pull --reset-on-divergence`
    rebuilds them. A remote that has the removed blocks is ahead until `odf push --force`.
    """
    from odf_engine.views.as_at import resolve_as_at  # deferred: loads faster

    workspace = open_workspace()
    entry = workspace.resolve(name)
    head = entry.dataset.head()
    found = resolve_as_at(entry, version)
    if found.head:
        print_note(f"{entry.alias}: unchanged, block {found.sequence_number} is the newest block")
        return
    place = f"block {found.sequence_number}" + ("" if found.in_chain else " of another history")
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"resetting {entry.alias} requires confirmation", hint="use --yes to skip it")
        click.confirm(f"Reset {entry.alias} to {place}?", abort=True, err=True)
    assert head is not None  # it has the found block
    entry.dataset.reset(Multihash.parse(found.block), expected_head=head)
    notify_datasets_changed(workspace.folder)
    backup = next(
        name
        for name, block in entry.dataset.references().items()
        if block == head and not is_branch_name(name)
    )
    print_note(f"reset {entry.alias} to {place}; the earlier history is {backup}")


@verb("list", example="odf list --json", json=True)
def list_verb() -> None:
    """List the datasets of the workspace."""
    workspace = open_workspace()
    summaries = workspace.summaries()
    statuses = read_statuses(workspace, summaries, print_note)
    if options_of().json:
        labels = _read_labels(workspace, summaries)
        print_json([_summary_json(each, statuses[each.id], labels[each.id]) for each in summaries])
        return
    if not summaries:
        print_note("no datasets yet: odf new NAME --root prints a manifest, odf add adds it")
        return
    zone = use_timezone(workspace)
    columns = ["name", "kind", "status", "blocks", "rows", "size"]
    columns += [f"watermark ({zone})", f"last change ({zone})", f"last pull ({zone})"]
    origins = _read_origins(workspace, summaries)
    labels = _read_labels(workspace, summaries)
    columns += ["labels"] if any(labels.values()) else []
    print_table(
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
    )
    for summary in summaries:
        if summary.problem is not None:
            print_note(printable(f"{summary.name}: {summary.problem}"))


def _read_labels(workspace: Workspace, summaries: Sequence[Summary]) -> dict[DatasetId, dict[str, str]]:
    """Return the labels of datasets. Listing does not require valid settings."""
    try:
        config = workspace.config
    except OdfError as error:
        print_note(f"labels are not shown: {error}")
        config = Config()
    return {summary.id: config.labels_of(summary.name, str(summary.id)) for summary in summaries}


def _labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _read_origins(workspace: Workspace, summaries: list[Summary]) -> dict[str, str]:
    """Return the labels of the remotes that datasets are pulled from, by dataset id."""
    from odf_tui.cli.repositories import remotes_of

    known = remotes_of(workspace, summaries)
    found = {
        dataset: [remote.label for remote in remotes if remote.pull] for dataset, remotes in known.items()
    }
    return {dataset: ", ".join(labels) for dataset, labels in found.items() if labels}


def _summary_json(summary: Summary, status: Status, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": summary.id,
        "name": summary.name,
        "kind": summary.kind.value,
        "head": summary.head,
        "blocks": summary.blocks,
        "records": summary.records,
        "size": summary.size,
        "watermark": summary.watermark,
        "last_pulled": summary.last_pulled,
        "last_polled": status.last_polled,
        "status": status.state,
        "labels": labels,
        "branches": summary.branches,
    }


@verb("show", example="odf show port-haven.stations", json=True)
@click.argument("name")
@click.option(
    "--manifest",
    is_flag=True,
    help="Print its definition as a manifest for odf add --update.",
)
def show_verb(name: str, manifest: bool) -> None:
    """Show the details of a dataset."""
    from odf_tui.cli.repositories import remote_json, remotes_of
    from odf_tui.text.remotes import remote_summary

    workspace = open_workspace()
    entry = workspace.resolve(name)
    if manifest:
        _print_manifest(read_definition(entry, workspace.datasets()))
        return
    summaries = workspace.summaries()
    summary = next(summary for summary in summaries if summary.id == entry.id)
    statuses = read_statuses(workspace, summaries, print_note)
    labels = _read_labels(workspace, [summary])[entry.id]
    document = _summary_json(summary, statuses[entry.id], labels)
    document.update(dataset_details(workspace, entry, summaries))
    document["last_verification"] = statuses[entry.id].last_verification
    remotes = remotes_of(workspace, [summary]).get(str(entry.id), ())
    document["remotes"] = [remote_json(remote) for remote in remotes]
    if options_of().json:
        print_json(document)
        return
    now = Timestamp.now()
    document["remotes"] = [remote_summary(remote, now) for remote in remotes]
    print_yaml(
        {key: truncate_long_texts(value) for key, value in document.items() if value not in (None, [], {})}
    )


def _print_manifest(snapshot: DatasetSnapshot) -> None:
    """Print a definition as a manifest that `odf add` reads, in YAML or JSON."""
    from odf_engine.metadata.yaml import snapshot_to_yaml, to_builtins

    if options_of().json:
        print_json({"kind": "DatasetSnapshot", "version": 1, "content": to_builtins(snapshot)})
    else:
        write_document(snapshot_to_yaml(snapshot))


@verb("graph", example="odf graph --dot | dot -Tsvg > graph.svg", json=True)
@click.argument("names", nargs=-1)
@click.option("--columns", is_flag=True, help="Show column lineage.")
@click.option("--dot", is_flag=True, help="Print a Graphviz document.")
def graph_verb(names: tuple[str, ...], columns: bool, dot: bool) -> None:
    """Show the lineage of datasets or columns.

    With --columns, shows the columns of the datasets NAMES, or of all datasets. Column lineage is
    computed from the queries; no data is read. All columns that contribute to a value are shown. If a
    query cannot be analysed, this is reported, and each column may depend on every input column.
    """
    from odf_tui.text.graphviz import dataset_graph_to_dot
    from odf_tui.text.lineage_text import dataset_graph_lines

    if dot and options_of().json:
        raise UsageError("--json and --dot exclude each other", hint="use only one of them")
    if columns:
        show_columns(open_workspace(), names, dot=dot)
        return
    if names:
        raise UsageError("NAMES require --columns", hint="use --columns, or no names to show all datasets")
    summaries = open_workspace().summaries()
    datasets = [(each.name, each.kind) for each in summaries]
    known = {summary.id: summary.name for summary in summaries}
    edges = [
        (known.get(source, str(source)), summary.name) for summary in summaries for source in summary.inputs
    ]
    if options_of().json:
        print_json(
            {
                "datasets": [
                    {"id": each.id, "name": each.name, "kind": each.kind.value} for each in summaries
                ],
                "edges": [{"from": source, "to": target} for source, target in edges],
            }
        )
    elif dot:
        write_document(dataset_graph_to_dot(datasets, edges))
    else:
        for line in dataset_graph_lines(datasets, edges):
            sys.stdout.write(line + "\n")


@verb("path", example="ls $(odf path port-haven.stations)/data")
@click.argument("name")
def path_verb(name: str) -> None:
    """Print the folder of a dataset.

    It contains the folders refs, blocks, data and checkpoints.
    """
    data_stream().write(f"{open_workspace().resolve(name).dataset.folder}\n")


_DISABLING: Final = ("DisablePollingSource", "DisablePushSource")
_LONGEST: Final = 2000
_MANY: Final = 1000


def dataset_details(
    workspace: Workspace, entry: DatasetEntry, summaries: Sequence[Summary]
) -> dict[str, Any]:
    """Return the folder, the inputs and all settings of a dataset, for JSON and YAML."""
    state = entry.dataset.state()
    names = {summary.id: summary.name for summary in summaries}
    trust = Trust(workspace)

    def plain(event: Any) -> Any:
        return None if event is None else to_builtins(event)

    return {
        "path": str(entry.dataset.folder),
        "trust": trust.describe_status(entry),
        "origin": trust.read_origin(entry),
        "proof": _proof_json(entry),
        "references": entry.dataset.references(),
        "branches": entry.dataset.branch_names(),
        "inputs": [names.get(each, str(each)) for each in state.inputs()],
        "outputs": [other.name for other in summaries if entry.id in other.inputs],
        "sources": list(_list_sources(entry.dataset, state)),
        "transform": plain(state.transform),
        "vocabulary": plain(state.vocabulary),
        "license": plain(state.license),
        "info": plain(state.info),
        "attachments": plain(state.attachments),
        "not_understood": state.not_understood,
    }


def _proof_json(entry: DatasetEntry) -> dict[str, Any] | None:
    """Return the newest block with a valid ownership proof, and the number of blocks after it."""
    newest_proven_block = find_newest_proven_block(entry)
    return (
        None
        if newest_proven_block is None
        else {
            "block": newest_proven_block.number,
            "hash": newest_proven_block.hash,
            "newer": newest_proven_block.newer,
        }
    )


def _list_sources(dataset: Dataset, state: ChainState) -> Iterator[dict[str, Any]]:
    """Yield the active sources with their known state, then the disabled ones."""
    if state.polling_source is not None:
        plain = to_builtins(state.polling_source)
        if "${{" not in (plain["fetch"].get("password") or "${{"):
            plain["fetch"]["password"] = REDACTED
        source = state.source_state
        known = None if source is None else {"kind": source.kind, "value": source.value}
        pulled = state.last_data_time if state.was_polled else None
        yield {**plain, "active": True, "state": known, "last_pulled": pulled}
    for pushed in state.push_sources.values():
        yield {**to_builtins(pushed), "active": True}
    yield from _list_disabled_sources(dataset, state)


def _list_disabled_sources(dataset: Dataset, state: ChainState) -> Iterator[dict[str, Any]]:
    listed = set(state.push_sources)
    polling = state.polling_source is not None
    for row in dataset.list_blocks(_MANY, kinds=_DISABLING):
        event = dataset.block(row.hash).block.event
        when = {"active": False, "disabled": row.system_time, "block": row.sequence_number}
        if isinstance(event, DisablePushSource):
            if event.source_name not in listed:
                listed.add(event.source_name)
                yield {"kind": "AddPushSource", "sourceName": event.source_name, **when}
        elif not polling:
            polling = True
            yield {"kind": "SetPollingSource", **when}


def truncate_long_texts(value: Any) -> Any:
    """Return a value with long texts truncated, such as attachments."""
    if isinstance(value, dict):
        return {key: truncate_long_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [truncate_long_texts(item) for item in value]
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]}\n… {len(value) - _LONGEST:,} more characters (odf show --json has all)"
    return value
