"""An empty workspace: its first screen, the demo, and a dataset from a data file.

Golden texts: ``graph-*-empty`` shows what an empty workspace offers, ``graph-80x24-file`` the manifest
that was inferred from a CSV file, and ``graph-80x24-columns`` the dialog that shows how it is read.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from odf_engine.api.model import DatasetRow
from odf_engine.api.samples import make_demo
from odf_engine.errors import Conflict
from odf_engine.ingest.inference.file_manifest import suggest_name
from odf_engine.ingest.inference.file_sample import find_data_files
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.metadata.model import SetPollingSource
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.app import Workstation
from odf_tui.features.definitions.controller import DefinitionsController
from odf_tui.features.definitions.file_dialog import DataFileDialog
from odf_tui.features.definitions.manifest_dialogs import DataFilePicker
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.state.saved_session import TOUR
from odf_tui.widgets.dialogs import ConfirmDialog, DecisionDialog, PromptDialog
from tests.tui.conftest import Driven
from tests.tui.context import Fakes
from tests.tui.data_files import infer_manifest
from tests.tui.scripted_worker import Scenario
from tests.tui.test_damaged_workspaces import opened
from tests.tui.test_datasets import SIZES, compare
from tests.tui.test_golden_screens import resize

CSV = "id,plz,when,amount\n1,01234,2024-01-01T10:00:00Z,1.5\n2,80331,2024-01-02T11:00:00Z,\n"


async def test_workspace_is_not_called_empty_before_it_was_read(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, rows = threading.Event(), source.datasets()

    def read() -> list[DatasetRow]:
        may_read.wait()
        return rows

    monkeypatch.setattr(source, "datasets", read)
    app = Workstation(source)
    async with app.run_test(size=(80, 24)) as pilot:
        drive = Driven(app, pilot, source)
        await drive.until(lambda: "reading the datasets" in drive.text())
        assert "No datasets yet" not in drive.text() and " 0 datasets" not in drive.text()
        may_read.set()
        await drive.until(lambda: rows[0].name in drive.text())


@pytest.mark.app
async def test_data_file_is_added_to_an_empty_workspace(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "harbour")
    (workspace.folder / "boats.csv").write_text(CSV)
    async with opened(workspace, SIZES[0]) as drive:
        await drive.press("z")
        for size in (*SIZES, SIZES[0]):
            await resize(drive, size)
            compare(drive, "empty")
        await drive.press("n", "f")
        await drive.until(lambda: isinstance(drive.app.screen, DataFilePicker))
        await drive.settle()
        assert "boats.csv" in drive.text()
        await drive.press("enter")
        await drive.until(lambda: isinstance(drive.app.screen, PromptDialog))
        await drive.press("enter")
        await drive.until(lambda: isinstance(drive.app.screen, DataFileDialog))
        await drive.until(lambda: "2 rows" in drive.text())
        await drive.settle()
        compare(drive, "columns")
        await drive.press("enter")
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        text = drive.text()
        assert "- plz STRING" in text  # no number: it starts with a zero
        assert "e opens it in the editor" in text
        compare(drive, "file")
        await drive.pilot.press("e")  # the editor changes nothing: the dialog opens again
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.pilot.press("enter")
        await drive.until(lambda: drive.graph.row and drive.graph.row.name == "boats")
        assert "added boats (boats.yaml): p pulls it" in drive.hint()
        assert [path.name for path in workspace.folder.glob("*.yaml")] == ["boats.yaml"]
        await drive.press("d")
        assert "the workspace is not empty" in drive.hint()


async def test_the_demo_is_made_after_a_confirmation(tmp_path: Path) -> None:
    source = Scenario(Workspace.init(tmp_path / "empty"))
    moves: list[str] = []
    view = SimpleNamespace(move=moves.append)
    fakes = Fakes(source, answers=[False, True], widgets={JobsPane: SimpleNamespace(view=view)})
    fakes.host.classes.add("-narrow")
    guard = DEFAULT_KEYMAP.by_id["make_demo"].guard
    assert guard(Situation(datasets=0)) is None
    controller = DefinitionsController(fakes.context)
    controller.make_demo()
    await fakes.host.stories()
    (dialog,) = fakes.host.dialogs
    assert isinstance(dialog, ConfirmDialog)
    assert "files to sources/" in "".join(text for line in dialog._lines for text, _ in line)
    assert fakes.host.notices == [("nothing was written", "warn")]
    assert not fakes.jobs.submitted
    controller.make_demo()
    await fakes.host.stories()
    assert len(fakes.jobs.submitted) == 10
    assert {type(request) for request in fakes.jobs.requests} == {Pull, Verify}
    assert "port-haven.smoke-and-breath" in [row.name for row in fakes.state.datasets]
    assert fakes.state.pane == "jobs"
    assert moves == ["last"]
    assert fakes.host.loaded == ["features.tour.TourController"] and fakes.state.layout.tour == list(TOUR)
    assert "the workspace is not empty" in (guard(Situation(datasets=1)) or "")


def test_the_demo_overwrites_nothing(tmp_path: Path) -> None:
    made = Workspace.init(tmp_path / "harbour")
    mine = made.folder / "sources" / "air-readings.csv"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(Conflict, match="already exists with other contents"):
        make_demo(made)
    assert mine.read_text() == "mine"
    assert not (made.folder / "manifests").exists()
    mine.unlink()
    requests = make_demo(made)
    assert [type(request) for request, _ in requests] == [Pull, Verify] * 5
    assert requests[-1][1] == "port-haven.smoke-and-breath"
    assert len(make_demo(made)) == 10  # the second time, everything exists


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", CSV, ["id BIGINT NOT NULL", "when TIMESTAMP", "kind: Ledger", "[id]", "`when` AS"]),
        ("b.csv", "Stadt;Größe\nA;1,5\nA;2\n".encode("latin-1"), ['separator: ";"', "ISO-8859-1", "Append"]),
        ("c.csv", "1,2\n3,4\n", ["header: false", "c1 BIGINT"]),
        ("d.ndjson", '{"no":1,"n":{"x":[1]}}\n{"no":2}\n', ["NdJson", "STRUCT<x: ARRAY<BIGINT>>", '["no"]']),
        ("e.json", '{"data":{"items":[{"id":1},{"id":2}]}}', ["Json", 'subPath: "data.items"', "Snapshot"]),
        ("f.json", '[{"day":"2024-01-01"}]', ["kind: Json", "day DATE", "CAST(`day` AS TIMESTAMP)"]),
        ("g.csv", "", ["Example columns", "header: true"]),
        ("h.parquet", b"none", ["Example columns", "kind: Parquet"]),
    ],
)  # fmt: skip
def test_manifests_are_inferred_from_files(
    tmp_path: Path, name: str, content: str | bytes, expected: list[str]
) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert [found for found, _ in find_data_files(tmp_path)] == [name]
    text = infer_manifest(name, tmp_path, suggest_name(name, []))
    for part in expected:
        assert part in text
    (snapshot,) = read_manifests(text, name)
    assert snapshot.name == name[0]


def test_inferred_geojson_manifest_includes_the_feature_id(tmp_path: Path) -> None:
    feature = {"type": "Feature", "id": "a7", "properties": {"n": 1}, "geometry": None}
    other = {"type": "Feature", "properties": None, "geometry": {"type": "Point", "coordinates": [1, 2]}}
    text = json.dumps({"type": "FeatureCollection", "features": [feature, other]})
    (tmp_path / "a.geojson").write_text(text)
    (snapshot,) = read_manifests(infer_manifest("a.geojson", tmp_path, "a"), "a")
    (source,) = (each for each in snapshot.metadata if isinstance(each, SetPollingSource))
    assert source.read.schema == ["n BIGINT", "id STRING", "geometry STRING"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"[" * 100_000),
        ("a.ndjson", b"[" * 100_000),
        ("a.geojson", b"[1]"),
        ("a.geojson", b'{"features": {}}'),
        ("a.geojson", b'{"features": [1]}'),
        ("a.csv.zip", b"PK\x03\x04"),
        ("a.csv.gz", b"\x1f\x8b\x08\0" + bytes(20)),
        ("a.parquet", b"PAR1" + bytes(20)),
    ],
    ids=range(8),
)
def test_manifest_for_a_damaged_file_has_example_columns(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    text = infer_manifest(name, tmp_path, "a")
    assert "Example columns" in text
    assert read_manifests(text, name)[0].name == "a"


def test_files_whose_names_are_not_utf8_are_not_offered(tmp_path: Path) -> None:
    for name in ("a.csv", "caf\udce9.csv"):
        (tmp_path / name).write_text("id\n1\n")
    assert [found for found, _ in find_data_files(tmp_path)] == ["a.csv"]


def test_names_are_suggested_from_paths_and_urls() -> None:
    assert suggest_name("data/Meine Daten 2024.csv.gz", []) == "meine-daten-2024"
    assert suggest_name("https://example.com/cases.zip?x=1", ["Cases"]) == "cases-2"
    assert suggest_name("___.csv", []) == "my.dataset"
    text = infer_manifest("https://example.com/cases.csv.gz", Path(), "cases")
    assert "format: Gzip" in text
    assert 'url: "https://example.com/cases.csv.gz"' in text or "url: https://example.com" in text
