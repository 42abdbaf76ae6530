"""Verbs about the workspace and its datasets: init, add, new, delete, rename, list, show, graph, path."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread
from typing import Any, Final

import click

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.errors import InvalidManifest, NotFound, SourceUnavailable, UsageError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.urls import redact_url
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import Summary
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.output import (
    MOST_TEXT_BYTES,
    data_stream,
    open_workspace,
    options_of,
    print_json,
    print_table,
    print_yaml,
    read_text,
    say,
    verb,
)
from odf_tui.status import Status, read_statuses

_DOWNLOAD_SECONDS: Final = 60.0


@verb("init", example="odf init")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
def init_verb(folder: Path) -> None:
    """Makes a workspace in FOLDER (this one by default)."""
    workspace = Workspace.init(folder)
    say(f"a new workspace in {workspace.folder}")
    say("next: odf new NAME --root > dataset.yaml, edit it, odf add dataset.yaml, odf pull NAME")


@verb("add", example="odf add covid.yaml air-quality.yaml", json=True)
@click.argument("manifests", nargs=-1, required=True, type=click.Path())
@click.option("-r", "--recursive", is_flag=True, help="Look for *.yaml in folders and below.")
@click.option("--update", is_flag=True, help="Append what changed to datasets that are there already.")
@click.option("--dry-run", is_flag=True, help="Only show what would be added or appended.")
@click.option("--check", is_flag=True, help="Only look whether queries can be run, and what they make.")
@click.option(
    "--flush",
    "state",
    flag_value="flush",
    help="A changed query begins anew; what the old one has still to give comes out now.",
)
@click.option(
    "--rebuild",
    "state",
    flag_value="rebuild",
    help="A changed query gets the state that it would have by now, from the start of its inputs.",
)
@click.option("--accept-columns", is_flag=True, help="Take in columns that inputs have gained.")
def add_verb(
    manifests: tuple[str, ...],
    recursive: bool,
    update: bool,
    dry_run: bool,
    check: bool,
    state: str | None,
    accept_columns: bool,
) -> None:
    """Adds datasets from YAML manifests: files, folders with -r, or - for stdin.

    The order of manifests does not matter: a derivative dataset may come before its inputs.

    With --update, a manifest may be of a dataset that is there: what differs from its chain is shown
    and appended. What the manifest does not mention stays as it is; a source goes when the manifest
    has others instead, or says DisablePollingSource or DisablePushSource.

    A derivative dataset whose query changes first takes in what is there with the old one. A query
    with a state, such as one with windows, goes on from the state of the old query where it groups
    and keeps the same; else say --flush or --rebuild.
    """
    workspace = open_workspace()
    snapshots: list[DatasetSnapshot] = []
    origins: dict[str, str] = {}
    for name in manifests:
        for source, text in _read_sources(name, recursive):
            found = _read(text, source)
            snapshots.extend(found)
            if _is_url(name):
                origins.update((snapshot.name, redact_url(name)) for snapshot in found)
    if not snapshots:
        raise UsageError("no manifest found", hint="name YAML files, or a folder with -r")
    if dry_run and not update:
        raise UsageError("--dry-run goes with --update", hint="it takes new datasets too")
    if (state or accept_columns) and (not update or dry_run):
        given = f"--{state}" if state else "--accept-columns"
        raise UsageError(f"{given} goes with --update", hint="it says how a dataset changes that is there")
    if check:
        from odf_tui.cli.changes import check_queries

        sys.exit(check_queries(workspace, snapshots))
    if update:
        from odf_tui.cli.changes import Updating

        updating = Updating(workspace, origins, state=state or "", accept_columns=accept_columns)
        changed, code = updating.run(snapshots, dry_run=dry_run)
    else:
        changed, code = [str(entry.alias) for entry in workspace.add(snapshots, origins)], 0
        if options_of().json:
            print_json([{"name": name, "status": "added"} for name in changed])
        for name in changed:
            say(f"added {name}")
    notify_datasets_changed(workspace.folder)
    for snapshot in snapshots:
        foreign = snapshot.name in origins and snapshot.kind is DatasetKind.Root
        if foreign and snapshot.name.lower() in map(str.lower, changed):
            say(f"{snapshot.name} runs nothing before you allow it: odf trust {snapshot.name}")
    if code:
        sys.exit(code)


def _read(text: str, source: str) -> list[DatasetSnapshot]:
    from odf_engine.metadata.yaml import read_manifests

    return read_manifests(text, source)


def _read_sources(name: str, recursive: bool) -> list[tuple[str, str]]:
    if name == "-":
        return [("stdin", _decoded(name, "stdin"))]
    if _is_url(name):
        return [(name, _download(name))]
    path = Path(name)
    if path.is_dir():
        if not recursive:
            raise UsageError(f"{name} is a folder", hint="add -r to take every *.yaml in it and below")
        files = sorted([*path.rglob("*.yaml"), *path.rglob("*.yml")])
        return [(str(file), _text(file)) for file in files if ".odf" not in file.parts]
    return [(name, _text(path))]


def _is_url(name: str) -> bool:
    return name.lower().startswith(("http://", "https://"))


def _download(url: str) -> str:
    """Downloads a manifest.

    Raises:
        NotFound: the server does not have it, or cannot be reached.
        SourceUnavailable: it does not arrive in :data:`_DOWNLOAD_SECONDS`.
        InvalidManifest: it is too large, or not UTF-8 text.
    """
    from concurrent.futures import Future  # only a download needs it, and its logging

    result: Future[bytes] = Future()

    def fetch() -> None:
        try:
            result.set_result(_fetch(url))
        except BaseException as error:
            result.set_exception(error)

    # The time limit of a socket is for one call: a server that sends a byte now and then never exceeds it.
    Thread(target=fetch, daemon=True).start()
    try:
        return result.result(_DOWNLOAD_SECONDS).decode("utf-8")
    except TimeoutError:
        raise SourceUnavailable(
            f"the manifest did not arrive within {_DOWNLOAD_SECONDS:.0f} seconds",
            hint="check the address; or download the manifest, and add the file",
            where=url,
        ) from None
    except UnicodeDecodeError:
        raise InvalidManifest("the answer is not UTF-8 text", where=url) from None


def _fetch(url: str) -> bytes:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=30) as response:
            data = response.read(MOST_TEXT_BYTES + 1)
    except HTTPError as error:
        raise NotFound(f"the server answered {error.code} {error.reason}", where=url) from None
    except (HTTPException, OSError) as error:
        raise NotFound(f"it could not be fetched: {error}", where=url) from None
    if len(data) > MOST_TEXT_BYTES:
        raise InvalidManifest(
            f"the answer has more than {MOST_TEXT_BYTES:,} bytes", hint="check the address", where=url
        )
    return data


def _text(path: Path) -> str:
    if not path.exists():
        raise NotFound(f"there is no file {path}")
    return _decoded(str(path), str(path))


def _decoded(name: str, source: str) -> str:
    try:
        return read_text(name)
    except UnicodeDecodeError as error:
        raise InvalidManifest("the file is not UTF-8 text", where=f"{source}: byte {error.start}") from None


@verb("new", example="odf new com.example.cases --root > cases.yaml")
@click.argument("name")
@click.option("--root", is_flag=True, help="Ingests outside data.")
@click.option("--push", is_flag=True, help="Takes rows that are pushed into it; also a root dataset.")
@click.option("--derivative", is_flag=True, help="A query over other datasets.")
def new_verb(name: str, root: bool, push: bool, derivative: bool) -> None:
    """Prints a commented manifest to start from; it is valid as it is."""
    from odf_tui.cli.templates import DERIVATIVE, PUSH, ROOT

    if (root or push) == derivative:
        raise UsageError("which kind of dataset?", hint="give --root, --root --push, or --derivative")
    alias = DatasetAlias.parse(name)
    template = DERIVATIVE if derivative else PUSH if push else ROOT
    sys.stdout.write(template.replace("NAME", str(alias)))


@verb("delete", example="odf delete com.example.cases")
@click.argument("names", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete_verb(names: tuple[str, ...], yes: bool) -> None:
    """Removes datasets with their data; refuses while another dataset is made from one of them."""
    workspace = open_workspace()
    entries = workspace.match(names)
    if not yes:
        listed = ", ".join(str(entry.alias) for entry in entries)
        if not sys.stdin.isatty():
            raise UsageError(f"this would delete {listed}", hint="add --yes to do it without a question")
        click.confirm(f"Delete {listed} and all their data?", abort=True, err=True)
    # A dataset goes after those that are made from it.
    by_id = {entry.id: entry for entry in entries}
    for dataset in reversed(DatasetGraph(workspace.summaries()).order(by_id)):
        entry = by_id[dataset]
        workspace.delete(entry)
        say(f"deleted {entry.alias}")
    notify_datasets_changed(workspace.folder)


@verb("rename", example="odf rename cases com.example.cases")
@click.argument("old")
@click.argument("new")
def rename_verb(old: str, new: str) -> None:
    """Gives a dataset another name; its id, and so whatever is made from it, stays."""
    workspace = open_workspace()
    entry = workspace.resolve(old)
    workspace.rename(entry, DatasetAlias.parse(new))
    notify_datasets_changed(workspace.folder)
    say(f"{entry.alias} is now {new}")


@verb("list", example="odf list --json", json=True)
def list_verb() -> None:
    """Lists the datasets of the workspace."""
    workspace = open_workspace()
    summaries = workspace.summaries()
    statuses = read_statuses(workspace, summaries, say)
    if options_of().json:
        print_json([_summary_json(summary, statuses[summary.id]) for summary in summaries])
        return
    if not summaries:
        say("no datasets yet: odf new NAME --root prints a manifest to start from, odf add adds it")
        return
    columns = ["name", "kind", "status", "blocks", "records", "size", "watermark", "last pulled"]
    origins = _origins(workspace, summaries)
    print_table(
        [*columns, "from"] if origins else columns,
        [
            [
                summary.name,
                summary.kind.value,
                statuses[summary.id].state,
                humane.count(summary.blocks),
                humane.count(summary.records),
                humane.size(summary.size),
                _moment(summary.watermark),
                _moment(summary.last_pulled),
                *([origins.get(str(summary.id), "")] if origins else ()),
            ]
            for summary in summaries
        ],
        right=["blocks", "records", "size"],
    )
    for summary in summaries:
        if summary.problem is not None:
            say(humane.plain(f"{summary.name}: {summary.problem}"))


def _origins(workspace: Workspace, summaries: list[Summary]) -> dict[str, str]:
    """Where datasets come from, by their ids, if some come from elsewhere."""
    from odf_tui.cli.standing import remotes_of

    known = remotes_of(workspace, summaries)
    found = {dataset: [each.label for each in remotes if each.pull] for dataset, remotes in known.items()}
    return {dataset: ", ".join(labels) for dataset, labels in found.items() if labels}


def _moment(moment: Timestamp | None) -> str:
    return humane.moment(None if moment is None else str(moment))


def _summary_json(summary: Summary, status: Status) -> dict[str, Any]:
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
        "status": status.state,
    }


@verb("show", example="odf show port-haven.stations", json=True)
@click.argument("name")
@click.option(
    "--manifest", is_flag=True, help="Its definition as a manifest: edit it, then odf add --update it."
)
def show_verb(name: str, manifest: bool) -> None:
    """Shows everything that is known of a dataset."""
    from odf_tui.cli.details import bounded, definition_of, details
    from odf_tui.cli.standing import document as remote_document
    from odf_tui.cli.standing import remotes_of, sentence

    workspace = open_workspace()
    entry = workspace.resolve(name)
    if manifest:
        _print_manifest(definition_of(workspace, entry))
        return
    summaries = workspace.summaries()
    summary = next(summary for summary in summaries if summary.id == entry.id)
    statuses = read_statuses(workspace, summaries, say)
    document = _summary_json(summary, statuses[entry.id])
    document.update(details(workspace, entry, summaries))
    document["last_verification"] = statuses[entry.id].last_verification
    remotes = remotes_of(workspace, [summary]).get(str(entry.id), ())
    document["remotes"] = [remote_document(remote) for remote in remotes]
    if options_of().json:
        print_json(document)
        return
    document["remotes"] = [sentence(remote) for remote in remotes]
    print_yaml({key: bounded(value) for key, value in document.items() if value not in (None, [], {})})


def _print_manifest(snapshot: DatasetSnapshot) -> None:
    """The manifest of a definition, which `odf add` takes, in YAML or JSON."""
    from odf_engine.metadata.yaml import snapshot_to_yaml, to_builtins

    if options_of().json:
        print_json({"kind": "DatasetSnapshot", "version": 1, "content": to_builtins(snapshot)})
    else:
        sys.stdout.write(snapshot_to_yaml(snapshot))


@verb("graph", example="odf graph --dot | dot -Tsvg > graph.svg", json=True)
@click.argument("names", nargs=-1)
@click.option("--columns", is_flag=True, help="Which columns are made from which.")
@click.option("--dot", is_flag=True, help="As a Graphviz document.")
def graph_verb(names: tuple[str, ...], columns: bool, dot: bool) -> None:
    """Shows which datasets are made from which; with --columns, their columns, of all or of NAMES.

    What feeds a column is found in the queries alone: no data is read. Whatever has part in a value is
    there; where a query cannot be followed, that is said, and everything may come from everything.
    """
    if dot and options_of().json:
        raise UsageError("either --json or --dot")
    if columns:
        from odf_tui.cli.columns import show_columns

        show_columns(open_workspace(), names, dot=dot)
        return
    if names:
        raise UsageError("names go with --columns", hint="odf graph shows the graph of all datasets")
    summaries = open_workspace().summaries()
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
        lines = ["digraph {", "  rankdir=LR;"]
        for each in summaries:
            shape = "box" if each.kind is DatasetKind.Root else "ellipse"
            lines.append(f'  "{each.name}" [shape={shape}];')
        lines += [f'  "{source}" -> "{target}";' for source, target in edges]
        sys.stdout.write("\n".join([*lines, "}"]) + "\n")
    else:
        _draw(summaries, edges)


def _draw(summaries: list[Summary], edges: list[tuple[str, str]]) -> None:
    """Draws the graph as text; inputs that are not in the workspace are marked with a question mark."""
    from odf_tui.dag import layout

    labels = {source: f"? {source}" for source, _ in edges}
    labels |= {each.name: ("◇ " if each.kind is DatasetKind.Root else "◆ ") + each.name for each in summaries}
    drawn = layout({name: len(label) for name, label in labels.items()}, edges)
    canvas = [list(line) for line in drawn.lines]
    for name, place in drawn.places.items():
        canvas[place.y][place.x : place.x + len(labels[name])] = labels[name]
    sys.stdout.write("".join("".join(line).rstrip() + "\n" for line in canvas))


@verb("path", example="ls $(odf path port-haven.stations)/data")
@click.argument("name")
def path_verb(name: str) -> None:
    """Prints the dataset's folder: refs/, blocks/, data/, checkpoints/."""
    data_stream().write(f"{open_workspace().resolve(name).dataset.folder}\n")
