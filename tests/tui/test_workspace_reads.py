"""The workstation on a real workspace: adds datasets, and reads blocks, rows and errors from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.api.model import BlockFilter
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import slice_schema, write_slice
from odf_engine.errors import InvalidManifest, NotFound, OdfError
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    DataSlice,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.app import Workstation
from odf_tui.state import saved_session
from odf_tui.state.saved_session import SavedLayout
from tests.tui.conftest import Driven
from tests.tui.scripted_worker import Scenario, ScriptedLink

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: boats
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: "file:sources/boats.csv"}
      read: {kind: Csv, header: true, schema: [name STRING, length DOUBLE]}
      merge: {kind: Ledger, primaryKey: [name]}
    - kind: SetInfo
      description: Boats in the harbour
---
kind: DatasetSnapshot
version: 1
content:
  name: long-boats
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: boats}]
      transform: {kind: Sql, engine: spark, query: SELECT * FROM boats}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return an empty workspace with a manifest in its folder."""
    made = Workspace.init(tmp_path / "harbour")
    (made.folder / "boats.yaml").write_text(MANIFEST)
    return made


def add_rows(entry: DatasetEntry, batches: int, rows: int) -> None:
    """Commit slices of boats."""
    dataset = entry.dataset
    data = pa.schema([("name", pa.string()), ("length", pa.float64())])
    schema = slice_schema(data, DEFAULT_VOCABULARY)
    now = Timestamp.now()
    dataset.commit([SetDataSchema(encode_schema(schema))], system_time=now, expected_head=dataset.head())
    for number in range(batches):
        first = number * rows
        names = [f"boat {index}" for index in range(first, first + rows)]
        batch = pa.record_batch(
            [pa.array(names), pa.array([index / 4 for index in range(rows)])], schema=data
        )
        written = write_slice(
            [batch],
            SliceProperties(
                schema=schema,
                vocab=DEFAULT_VOCABULARY,
                first_offset=first,
                system_time=now,
                fallback_event_time=now,
            ),
            path=dataset.staging_path("data"),
            reporter=Reporter(),
        )
        assert written is not None
        new = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
        event = AddData(prev_offset=first - 1 if first else None, new_data=new)
        dataset.commit([event], system_time=now, expected_head=dataset.head(), data=written.path)


class LonelySource(OpenWorkspace):
    """A workspace with a worker that does nothing. Its job log is read as users read it."""

    async def connect(self, *, start: bool = True) -> Any:
        """Return a connection."""
        return ScriptedLink(Scenario(self._workspace))


@pytest.mark.app
async def test_added_manifest_and_committed_rows_appear_on_screen(workspace: Workspace) -> None:
    app = Workstation(LonelySource(workspace))
    async with app.run_test(size=(120, 36)) as pilot:
        drive = Driven(app, pilot, None)  # type: ignore[arg-type]
        await drive.settle()
        assert "No datasets yet" in drive.text()
        await drive.press("A", "=boats.yaml", "enter")
        await drive.until(lambda: drive.graph.row and drive.graph.row.name == "boats")
        await drive.settle()
        assert "◆ long-boats ·" in drive.text()
        assert "No rows yet. Press p to pull" in drive.text()
        assert "Boats in" in drive.text()
        add_rows(workspace.resolve("boats"), batches=3, rows=1000)
        await drive.press("r")
        await drive.until(lambda: drive.data_pane.view.count() == 3000)
        await drive.press("3", "G")
        await drive.until(lambda: "boat 2999" in drive.text())
        text = drive.text()
        assert "row 3 000 of 3 000" in text
        assert "◇ boats ✓" in text
        await drive.press("2", "enter")
        assert "kind: AddData" in drive.text()
        assert "start: 2000" in drive.text()
        await drive.press("escape", "slash", "=schema", "enter")
        view = drive.blocks_pane.view
        await drive.until(lambda: view.block is not None and view.block.event == "SetDataSchema")
        await drive.press("enter")
        assert "kind: SetDataSchema" in drive.text()
        await drive.press("escape", "escape", "1", "enter")
        assert "file:sources/boats.csv" in drive.text()
        await drive.press("tab")
        assert "name: boats" in drive.text()
        await drive.press("escape", "l", "p")
        assert "pull long-boats: queued" in drive.hint()


def test_details_and_block_pages_are_read_from_disk(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    first, second = source.add_manifest(workspace.folder / "boats.yaml")
    add_rows(workspace.resolve("boats"), batches=2, rows=10)
    facts = dict(source.detail(first).facts)
    assert facts["rows"] == "20"
    assert facts["data"].endswith("in 2 slices")
    assert facts["merge"] == "Ledger on name"
    assert facts["source"] == "file:sources/boats.csv"
    assert dict(source.detail(second).facts)["inputs"] == "boats"
    text = source.detail(first).text
    assert "kind: SetPollingSource" in text
    assert "length: double" in text
    blocks = source.blocks(first, None, 100, BlockFilter()).lines
    assert [block.event for block in blocks] == [
        "Seed",
        "SetPollingSource",
        "SetInfo",
        "SetDataSchema",
        "AddData",
        "AddData",
    ]
    assert [block.rows for block in blocks[3:]] == [None, 10, 10]
    assert source.blocks(first, 2, 2, BlockFilter()).lines == blocks[2:4]
    assert source.blocks(first, None, 10, BlockFilter(text="info")).lines == blocks[2:3]
    assert source.blocks(first, None, 10, BlockFilter(("Seed",))).lines == blocks[:1]
    assert source.blocks(first, None, 10, BlockFilter(text=blocks[3].hash[-8:])).lines == blocks[3:4]
    assert source.blocks(first, None, 10, BlockFilter(text="nothing")).lines == ()
    with pytest.raises(NotFound):
        source.detail("did:odf:gone")


def test_invalid_manifest_is_refused_with_its_position(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    path = workspace.folder / "wrong.yaml"
    path.write_text(MANIFEST.replace("merge:", "mrge:"))
    with pytest.raises(InvalidManifest) as wrong:
        source.add_manifest(path)
    assert wrong.value.where == "wrong.yaml:7:7"
    assert "wrong.yaml:10:7" in wrong.value.message
    assert "did you mean 'merge'?" in wrong.value.message
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidManifest, match="not UTF-8"):
        source.add_manifest(path)
    with pytest.raises(OdfError, match="file not found"):
        source.add_manifest(workspace.folder / "nowhere.yaml")
    with pytest.raises(OdfError):
        source.add_manifest(workspace.folder)
    assert source.datasets() == []


def test_a_damaged_dataset_is_listed(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    first, _ = source.add_manifest(workspace.folder / "boats.yaml")
    entry = workspace.resolve("boats")
    (entry.dataset.folder / "blocks" / str(entry.dataset.head())).write_bytes(b"rubbish")
    for path in workspace.odf.glob("index.sqlite*"):
        path.unlink()
    found = {row.id: row for row in OpenWorkspace(Workspace(workspace.folder)).datasets()}
    assert found[first].problem
    assert found[first].name == "boats"


def test_the_chosen_theme_is_restored(workspace: Workspace) -> None:
    chosen = SavedLayout(theme="paper", theme_setting=OpenWorkspace(workspace).ui.theme)
    saved_session.save_layout(workspace.folder, saved_session.encode_layout(chosen))
    assert saved_session.effective_theme(saved_session.load_layout(workspace.folder), "auto") == "paper"


def test_new_workspace_has_an_empty_journal(workspace: Workspace) -> None:
    source = OpenWorkspace(workspace)
    assert source.jobs() == ([], 0)
    assert list(source.log("1")) == []
