"""Apache Iceberg tables over the slices of a dataset, as other programs read them."""

from __future__ import annotations

import logging
import shutil
from datetime import timedelta
from pathlib import Path
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import StaticTable

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.schema_evolution import declare_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.errors import Unsupported
from odf_engine.metadata.model import DEFAULT_VOCABULARY, SetInfo
from odf_engine.tables.table_folder import TableFolder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync.builders import add_slices, commit, make_root
from tests.tables.conftest import add_rows, as_values, make_wide, opened


def check_all_snapshots(workspace: Workspace, name: str = "numbers") -> StaticTable:
    """Compare the rows of all snapshots with the rows at their blocks."""
    dataset = opened(workspace, name)
    table = StaticTable.from_metadata(str(dataset.folder / "iceberg"))
    blocks = [row.sequence_number for row in dataset.list_blocks() if row.rows][::-1]
    assert [snapshot.snapshot_id for snapshot in table.snapshots()] == blocks
    for snapshot in table.snapshots():
        number = snapshot.snapshot_id
        assert snapshot.summary["odf.block"] == str(dataset.block(number).hash)
        expected = dataset.scan(as_at=number).to_arrow()
        actual = table.scan(snapshot_id=number).to_arrow()
        assert int(snapshot.summary["total-records"]) == len(expected) == len(actual)
        later = set(expected.schema.names) - set(actual.schema.names)  # columns of later schemas
        assert all(expected.column(column).null_count == len(expected) for column in later)
        assert as_values(actual) == as_values(expected.select(actual.schema.names))
    assert table.metadata.properties["odf.head"] == dataset.head
    names = {path.name for path in (dataset.folder / "iceberg/metadata").iterdir()}
    used = {manifest.manifest_path for item in table.snapshots() for manifest in item.manifests(table.io)}
    used |= {snapshot.manifest_list for snapshot in table.snapshots()}
    assert {name for name in names if name.endswith(".avro")} == {path.rpartition("/")[2] for path in used}
    assert len(names) - len(used) <= 3  # the hint and two metadata files
    return table


def test_every_snapshot_has_the_rows_at_its_block(workspace: Workspace, numbers: DatasetEntry) -> None:
    written = opened(workspace).write_table("iceberg")
    assert written.version == 6 and written.path == str(numbers.dataset.folder / "iceberg")
    table = check_all_snapshots(workspace)
    for snapshot in table.snapshots():
        block = opened(workspace).block(snapshot.snapshot_id).block
        moment = block.system_time.to_datetime() + timedelta(milliseconds=500)
        known = table.snapshot_as_of_timestamp(int(moment.timestamp() * 1000))
        assert known is not None and known.snapshot_id == snapshot.snapshot_id


def test_all_types_and_names_of_columns(workspace: Workspace) -> None:
    entry = make_wide(workspace)
    opened(workspace, "wide").write_table("iceberg")
    table = check_all_snapshots(workspace, "wide")
    rows = table.scan(selected_fields=("a.b, größe",)).to_arrow()
    assert duckdb.from_arrow(rows).sum('"a.b, größe"').fetchall() == [(-4,)]
    files = [task.file.file_path for task in table.scan().plan_files()]
    folder = (entry.dataset.folder / "data").as_uri()
    assert {file.rpartition("/")[0] for file in files} == {folder}
    for condition, count in {
        f"text == '{'ü' * 40}'": 1, "text == ''": 2, "tiny == 65535": 2, "price == -1.10": 1,
        "day < '0002-01-01'": 2, "at == '2024-01-01T01:02:03.456789+00:00'": 1, "flag == false": 1,
        "big > 9223372036854775806": 2,
    }.items():  # fmt: skip
        assert len(table.scan(row_filter=condition).to_arrow()) == count


def test_commits_keep_the_table_current(workspace: Workspace, numbers: DatasetEntry) -> None:
    opened(workspace).write_table("iceberg")
    for _ in range(9):
        add_slices(numbers)
        commit(numbers, [SetInfo(str(numbers.dataset.state().blocks))])
    table = check_all_snapshots(workspace)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)  # ten manifests of a file were merged
    assert [manifest.existing_files_count for manifest in manifests] == [9, 0, 0, 0]
    statuses = [entry.status for entry in manifests[0].fetch_manifest_entry(table.io)]
    assert statuses == [ManifestEntryStatus.EXISTING] * 9 + [ManifestEntryStatus.ADDED]


def test_added_column_is_null_in_earlier_rows(workspace: Workspace, numbers: DatasetEntry) -> None:
    opened(workspace).write_table("iceberg")
    wider = slice_schema(
        pa.schema([("area", pa.float64()), ("city", pa.string()), ("people", pa.int64())]), DEFAULT_VOCABULARY
    )
    commit(numbers, [declare_schema(wider, numbers.dataset.state(), odf=False)])
    add_rows(numbers, pa.table({"area": [51.6], "city": ["Bern"], "people": [1]}), wider)
    table = check_all_snapshots(workspace)
    assert len(table.schemas()) == 2
    assert table.schemas()[0].find_field("city").field_id == table.schema().find_field("city").field_id
    assert "area" not in table.scan(snapshot_id=6).to_arrow().schema.names


def test_reset_removes_the_snapshots_after_its_block(workspace: Workspace, numbers: DatasetEntry) -> None:
    dataset = opened(workspace)
    dataset.write_table("iceberg")
    dataset.reset(dataset.version("4"))
    check_all_snapshots(workspace)
    add_slices(numbers, 2, city="Chur")
    check_all_snapshots(workspace)
    dataset.reset(dataset.version("1"))
    assert len(check_all_snapshots(workspace).scan().to_arrow()) == 0


def test_table_after_compaction_and_gc(workspace: Workspace, numbers: DatasetEntry) -> None:
    dataset = opened(workspace)
    dataset.write_table("iceberg")
    compact(numbers.dataset, CompactionPolicy(1000, 1 << 20), Reporter())
    for name, block in dataset.references.items():
        numbers.dataset.remove_reference(name, block)
    assert call_odf("gc", "--now", "--yes", cwd=workspace.folder).code == 0
    assert len(check_all_snapshots(workspace).scan().to_arrow()) == 12
    checked = call_odf("fsck", cwd=workspace.folder)
    assert checked.code == 0, checked.out


def test_moved_workspace_writes_the_table_again(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "old")
    make_root(workspace, slices=2)
    opened(workspace).write_table("iceberg")
    workspace.close()
    moved = Workspace.find(explicit=Path(shutil.move(tmp_path / "old", tmp_path / "new data")))
    assert "table-outdated" in call_odf("fsck", cwd=moved.folder).out
    add_slices(moved.resolve("numbers"))
    assert len(check_all_snapshots(moved).scan().to_arrow()) == 9


@pytest.mark.parametrize("part", [".avro", "metadata.json", "version-hint"])
def test_interrupted_update_leaves_the_earlier_table(
    part: str, workspace: Workspace, numbers: DatasetEntry, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = opened(workspace)
    folder = dataset.write_table("iceberg").path
    real = TableFolder.write

    def fail(self: TableFolder, name: str, *arguments: object, **options: object) -> None:
        if part in name:
            raise OSError("no space")
        real(self, name, *arguments, **options)  # type: ignore[arg-type]

    with mock.patch.object(TableFolder, "write", fail):
        add_slices(numbers)
    assert dataset.state.sequence_number == 7
    assert len(StaticTable.from_metadata(folder).scan().to_arrow()) == 12
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert call_odf("fsck", "--repair", cwd=workspace.folder).code == 0
    assert len(check_all_snapshots(workspace).scan().to_arrow()) == 15


@pytest.mark.parametrize("pattern", ["*-1-*.avro", "*-snapshot-*.avro", "v*.metadata.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "of another block"])
def test_fsck_repairs_damaged_files(
    pattern: str, damage: str, workspace: Workspace, numbers: DatasetEntry
) -> None:
    folder = Path(opened(workspace).write_table("iceberg").path, "metadata")
    assert call_odf("fsck", cwd=workspace.folder).code == 0
    path, *others = sorted(folder.glob(pattern))
    content = path.read_bytes()
    path.unlink()
    if damage == "of another block" and others:
        shutil.copyfile(others[0], path)
    elif damage != "missing":
        path.write_bytes(content[:-20] if damage == "truncated" else b"")
    checked = call_odf("fsck", cwd=workspace.folder)
    assert "table-outdated" in checked.out, checked.out
    assert call_odf("fsck", "--repair", cwd=workspace.folder).code == 0
    check_all_snapshots(workspace)
    assert "table-" not in call_odf("fsck", cwd=workspace.folder).out


def test_bounds_skip_files(workspace: Workspace, numbers: DatasetEntry) -> None:
    path = opened(workspace).write_table("iceberg").path
    for row in numbers.dataset.slices()[:-1]:
        numbers.dataset.slice_path(row).write_bytes(b"damaged")
    assert len(StaticTable.from_metadata(path).scan(row_filter="people > 8").to_arrow()) == 3


def test_column_that_iceberg_cannot_have_is_refused(workspace: Workspace) -> None:
    entry = make_root(workspace, "odd")
    columns = pa.schema([("city", pa.string()), ("people", pa.int64()), ("x", pa.list_(pa.float16()))])
    schema = slice_schema(columns, DEFAULT_VOCABULARY)
    commit(entry, [declare_schema(schema, entry.dataset.state(), odf=False)])
    with pytest.raises(Unsupported, match=r"column 'x\.element' has the type halffloat"):
        opened(workspace, "odd").write_table("iceberg")


def test_view_writes_and_removes_tables(workspace: Workspace, numbers: DatasetEntry) -> None:
    written = call_odf("view", "numbers", "--format", "iceberg", cwd=workspace.folder)
    table = StaticTable.from_metadata(written.out.strip())
    assert len(table.scan().to_arrow()) == 12
    removed = call_odf("view", "numbers", "--format", "iceberg", "--remove", cwd=workspace.folder)
    assert "numbers: table removed" in removed.err
    assert not (numbers.dataset.folder / "iceberg").exists()
