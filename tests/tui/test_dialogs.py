"""Dialogs: adding manifests, lists of keys, fuzzy search."""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Input, Static

import odf_tui
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.progress import Reporter
from odf_engine.identity.did import DatasetId, KeyStore
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.pull import Pull, PullResult
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.remotes import RemoteInputs, Remotes, ResolvedUrl
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.definitions.controller import DefinitionsController
from odf_tui.features.definitions.manifest_dialogs import (
    AddManifestDialog,
    UnresolvedManifest,
    find_manifest_files,
)
from odf_tui.panes.datasets.view import GraphView
from odf_tui.text.highlight import yaml_spans
from odf_tui.widgets.choice_list import fuzzy_rank, fuzzy_score
from odf_tui.widgets.dialogs import ConfirmDialog, Dialog, TextDialog, TimeDialog
from tests.sync.builders import as_repository, make_root
from tests.tui.context import Fakes
from tests.tui.haven import ROOT, did
from tests.tui.scripted_worker import Scenario
from tests.tui.waiting import until
from tests.tui.widget_app import shown


async def test_add_manifest_dialog_completes_paths_and_locates_errors(source: Scenario) -> None:
    folder = source.folder / "manifests"
    manifest = ROOT.format(name="boats")
    (folder / "bad.yaml").write_text(manifest.replace("description:", "descripton:"))
    (folder / "boats.yaml").write_text(manifest)
    (source.folder / "notes.txt").write_text("no manifest\n")
    opened: Any = source
    async with shown(AddManifestDialog(opened)) as (app, pilot):
        line = app.screen.query_one(Input)
        await until(pilot, lambda: "manifests/boats.yaml" in app.text())
        assert "notes.txt" not in app.text()
        # An error is shown at its position in the file.
        line.value = "manifests/bad.yaml"
        await pilot.press("enter")
        await until(pilot, lambda: "unknown field 'descripton'" in app.text())
        text = app.text()
        assert "bad.yaml:12:7" in text
        assert "did you mean 'description'?" in text
        lines = text.splitlines()
        at = next(index for index, line in enumerate(lines) if "descripton: Hourly" in line)
        assert lines[at + 1].index("^") == lines[at].index("descripton")
        await pilot.press("backspace")
        await until(pilot, lambda: "unknown field" not in app.text())
        line.value = "nowhere.yaml"
        await pilot.press("enter")
        await until(pilot, lambda: "file not found" in app.text())
        # Some letters are enough; tab completes the path.
        line.value = "boa"
        await until(pilot, lambda: "manifests/boats.yaml" in app.text())
        await pilot.press("tab")
        assert line.value == "manifests/boats.yaml"
        await pilot.press("enter")
        await until(pilot, lambda: app.result == {source.rows_[1].id: "boats"})
    async with shown(AddManifestDialog(opened)) as (app, pilot):
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, AddManifestDialog))
        assert app.result is None


def _files(source: Scenario) -> list[str]:
    """Return the names of the folders of datasets, and of the keys."""
    folders = (source.folder / ".odf" / name for name in ("datasets", "keys"))
    return sorted(path.name for folder in folders for path in folder.iterdir())


async def test_adding_datasets_shows_progress_and_escape_cancels_it(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["boats", "ships", "ferries", "buoys"]
    (source.folder / "many.yaml").write_text("---\n".join(ROOT.format(name=name) for name in names))
    before = _files(source)
    added, may_continue = [], threading.Event()

    def wait(keys: KeyStore, dataset_id: DatasetId) -> None:
        added.append(dataset_id)
        if len(added) == 3:
            may_continue.wait()

    monkeypatch.setattr("odf_engine.workspace.workspace.mark_own", wait)
    opened: Any = source
    async with shown(AddManifestDialog(opened)) as (app, pilot):
        app.screen.query_one(Input).value = "many.yaml"
        await pilot.press("enter")
        await until(pilot, lambda: "adding: 50 % · esc cancels" in app.text())
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, AddManifestDialog))
        may_continue.set()
        await until(pilot, lambda: _files(source) == before)
    assert len(added) == 3


async def test_questions_and_errors_are_shown_completely() -> None:
    address = f"s3://bucket/{'folder/' * 12}numbers"
    async with shown(ConfirmDialog(f"Pull numbers from {address}?", "Its source does not run " * 3)) as (
        app,
        pilot,
    ):
        await until(pilot, lambda: _words(app.text()).count("not run") == 3)
        assert address in _words(app.text()).replace(" ", "")
        await pilot.press("y")
        await until(pilot, lambda: app.result is True)
    async with shown(TimeDialog("As of", "event time")) as (app, pilot):
        await pilot.press(*"nonsense", "enter")
        await until(pilot, lambda: "2026-03-01T14:00:00Z" in _words(app.text()))


def _words(text: str) -> str:
    """Return a text without frames, with single spaces."""
    return " ".join(text.replace("│", " ").split())


def test_an_added_dataset_is_selected(source: Scenario) -> None:
    graph = SimpleNamespace(selected=None)
    for choose in (False, True):
        answers: list[object] = [{did("boats"): "boats"}, None]
        fakes = Fakes(
            source, widgets={GraphView: graph}, answers=["manifest", *answers] if choose else answers
        )
        outdated: list[None] = []
        fakes.state.datasets_outdated.connect(outdated.append)
        controller = DefinitionsController(fakes.context)
        add = controller.add_dataset if choose else controller.add_from_manifest
        graph.selected = None
        add()
        assert isinstance(fakes.host.dialogs[-1], AddManifestDialog)
        assert graph.selected == did("boats")
        assert fakes.host.last_notice == "added boats: p pulls"
        assert len(outdated) == 1
    controller.add_from_manifest()  # closed without a result
    assert len(outdated) == 1


async def test_a_dialog_lists_and_runs_its_keys() -> None:
    copied: list[str] = []
    async with shown(TextDialog("a text", [[("one", "")]], copied.append)) as (app, pilot):
        dialog = app.screen
        await pilot.press("question_mark")
        await until(pilot, lambda: "copy the complete text" in app.text())
        assert "Focus Next" not in app.text(), "a key of Textual"
        await pilot.press("escape")  # closes the list alone
        await until(pilot, lambda: app.screen is dialog)
        await pilot.pause()
        assert app.screen is dialog
        await pilot.press("question_mark")
        await until(pilot, lambda: "copy the complete text" in app.text())
        await pilot.press("y")
        await until(pilot, lambda: copied == ["one"])
        assert app.screen is dialog
        await pilot.press("q")
        await until(pilot, lambda: app.screen is not dialog)


def dialogs() -> list[type[ModalScreen[object]]]:
    """Return every class of a dialog."""
    for module in pkgutil.walk_packages(odf_tui.__path__, "odf_tui."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found: list[type[ModalScreen[object]]] = []
    todo: list[type[ModalScreen[object]]] = [ModalScreen]
    while todo:
        for each in todo.pop().__subclasses__():
            todo.append(each)
            if each.__module__.startswith("odf_tui") and each.__name__ != "Dialog":
                found.append(each)
    return found


def test_every_dialog_names_its_keys() -> None:
    assert TextDialog in dialogs()
    for dialog in dialogs():
        classes = [each for each in dialog.__mro__ if each.__module__.startswith("odf_tui")]
        words = ("border_subtitle", '"key")', "set_subtitle")
        assert any(word in inspect.getsource(each) for each in classes for word in words), dialog


def test_hidden_and_deep_files_are_not_listed(tmp_path: Path) -> None:
    for name in ("a.yaml", "m/b.yml", "m/c.txt", ".odf/config.yaml", "1/2/3/4/5/deep.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [str(path) for path in find_manifest_files(tmp_path)] == ["a.yaml", "m/b.yml"]


def test_scores_prefer_substrings_and_starts_of_words() -> None:
    names = ["weather.hourly", "covid.weather", "where", "a-we-b"]
    assert fuzzy_rank("weather", ((name, name) for name in names)) == ["weather.hourly", "covid.weather"]
    assert fuzzy_rank("we", ((name, name) for name in names))[0] == "weather.hourly"
    assert fuzzy_rank("", ((name, name) for name in names)) == names
    assert fuzzy_score("xyz", "weather") is None
    assert fuzzy_score("cw", "covid.weather") is not None


def test_yaml_highlights_keys_and_escapes_control_characters() -> None:
    lines = yaml_spans("# a block\nkey: value\n  - kind: \x1b[31mred\n    |\n")
    assert lines[0] == [("# a block", "muted")]
    assert lines[1] == [("", ""), ("key:", "name"), (" value", "")]
    assert lines[2] == [("  - ", ""), ("kind:", "name"), (" ␛[31mred", "")]


async def test_inputs_that_are_in_a_remote_are_pulled(tmp_path: Path) -> None:
    shop, there = tmp_path / "shop", Workspace.init(tmp_path / "there")
    as_repository(make_root(there, "numbers", slices=1).dataset.folder, shop / "numbers")
    workspace = Workspace.init(tmp_path / "here")
    Remotes(workspace.odf).add("shop", str(shop))
    manifest = workspace.folder / "ours.yaml"
    query = "{kind: Sql, engine: spark, query: SELECT event_time FROM x}"
    manifest.write_text(
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: ours\n  kind: Derivative\n  metadata:\n"
        "    - kind: SetTransform\n      inputs: [{datasetRef: shop/numbers, alias: x}]\n"
        f"      transform: {query}\n"
    )
    opened: Any = OpenWorkspace(workspace)
    async with shown(AddManifestDialog(opened)) as (app, pilot):
        app.screen.query_one(Input).value = "ours.yaml"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.result, UnresolvedManifest))
    unresolved = app.result

    def pull(request: Pull) -> object:
        assert request.url and request.alias
        remote, alias = FolderRemote(request.url), DatasetAlias.parse(request.alias)
        entry, _ = clone_dataset(workspace, alias, remote, Reporter(), parallel=1)
        Remotes(workspace.odf).attach(entry.id, request.url, "pull")
        return PullResult()

    graph = SimpleNamespace(selected=None)
    for confirmed in (False, True):
        answers = [unresolved, confirmed]
        fakes = Fakes(opened, widgets={GraphView: graph}, answers=answers, results={Pull: pull})
        DefinitionsController(fakes.context).add_from_manifest()
        await fakes.host.stories()
        names = [str(entry.alias) for entry in workspace.datasets()]
        assert names == (["numbers", "ours"] if confirmed else [])
        assert fakes.host.last_notice == ("added ours: p pulls" if confirmed else "nothing was added")
    # A pull that fails adds nothing.
    manifest.write_text(manifest.read_text().replace("ours", "more").replace("numbers", "others"))
    (tmp_path / "shop" / "others").mkdir()
    unresolved = UnresolvedManifest(
        manifest, RemoteInputs("", [ResolvedUrl(f"file://{shop}/others/", "others")])
    )
    fakes = Fakes(opened, answers=[unresolved, True], results={Pull: pull})
    DefinitionsController(fakes.context).add_from_manifest()
    await fakes.host.stories()
    assert fakes.host.notices[-1][1] == "bad" and len(workspace.datasets()) == 2


class _ReadingDialog(Dialog[None]):
    """A dialog whose read ends after its widgets were removed."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = asyncio.Event()

    def compose(self) -> ComposeResult:
        closing = self.closing

        class Slow(Static):
            async def on_unmount(self) -> None:
                closing.set()
                await asyncio.sleep(0.1)

        yield Static(id="result")
        yield Slow()

    def on_mount(self) -> None:
        self.run_worker(self._read())

    async def _read(self) -> None:
        await self.closing.wait()
        await asyncio.sleep(0.02)
        self.query_one("#result", Static).update("read")


async def test_dialog_that_is_closed_stops_its_reads_first() -> None:
    dialog = _ReadingDialog()
    async with shown(dialog) as (_, pilot):
        await pilot.pause()
        dialog.dismiss(None)
        await until(pilot, lambda: not dialog.is_running)
    assert dialog.closing.is_set()
