"""The demo in a workspace: its files, its datasets, and the jobs that fill and check them.

``odf demo`` makes it in a folder of its own, the screen in an empty workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from odf_engine.coordinator.protocol import Pull, Request, Verify
from odf_engine.errors import Conflict, OdfError
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.demo_data import MANIFESTS, demo_files


def write_files(folder: Path) -> None:
    """Writes manifests and sources; what is there already stays.

    Raises:
        Conflict: a file has the name of one of the demo's, and is another; nothing was written.
        OdfError: the folder cannot be written to.
    """
    files = demo_files()
    try:
        for name, text in files.items():
            path = folder / name
            if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
                raise Conflict(
                    f"{name} is there already, and is none of the demo's: nothing was written",
                    hint="odf demo FOLDER makes the demo in a folder of its own",
                )
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OdfError(f"the demo cannot be written: {error.strerror}", where=str(error.filename)) from None


def add_datasets(workspace: Workspace) -> list[DatasetEntry]:
    """Adds those of the demo's datasets that are not there yet; all of them, inputs first."""
    from odf_engine.metadata.yaml import read_manifests

    wanted = []
    for name in MANIFESTS:
        path = workspace.folder / "manifests" / name
        wanted += read_manifests(path.read_text(encoding="utf-8"), str(path))
    there = {str(entry.alias).lower() for entry in workspace.datasets()}
    workspace.add([snapshot for snapshot in wanted if snapshot.name.lower() not in there])
    return [workspace.resolve(snapshot.name) for snapshot in wanted]


def requests_for(workspace: Workspace, entries: Sequence[DatasetEntry]) -> list[tuple[Request, str]]:
    """A pull and a verification of each dataset, and its name."""
    graph = DatasetGraph(workspace.summaries())
    requests: list[tuple[Request, str]] = []
    for entry in entries:
        after = [str(each) for each in graph.upstream(entry.id)]
        requests.append((Pull(dataset=str(entry.id), after=after), str(entry.alias)))
        requests.append((Verify(dataset=str(entry.id)), str(entry.alias)))
    return requests


def make_demo(workspace: Workspace) -> list[tuple[Request, str]]:
    """Writes the demo into a workspace and adds its datasets; what is to be done with them.

    Raises:
        OdfError: see :func:`write_files`.
    """
    write_files(workspace.folder)
    return requests_for(workspace, add_datasets(workspace))
