"""Tables of the latest state by key, as other programs read them."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from unittest import mock

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.table import StaticTable

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.schema_evolution import declare_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.errors import Conflict, NotFound, Unsupported, UsageError
from odf_engine.metadata.model import DEFAULT_VOCABULARY, SetInfo
from odf_engine.rows import latest_state
from odf_engine.tables import TABLE_FORMATS, TableFormat
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync.builders import add_slices, commit, make_root
from tests.tables.conftest import add_rows, as_values, make_keyed, opened


@pytest.fixture
def cities(workspace: Workspace) -> DatasetEntry:
    """A dataset with several rows of each key."""
    entry = make_keyed(workspace)
    for city in ("Bern", "Chur", "Bern"):
        add_slices(entry, city=city)
    return entry


def read(path: str | Path, table_format: TableFormat) -> pa.Table:
    if table_format == "delta":
        return DeltaTable(str(path)).to_pyarrow_table()
    return StaticTable.from_metadata(str(path)).scan().to_arrow()


def write(workspace: Workspace, table_format: TableFormat) -> Path:
    return Path(opened(workspace).write_latest_table(table_format).path)


def check_latest(workspace: Workspace, table_format: TableFormat) -> None:
    """Compare a table with the latest state that the engine computes."""
    dataset = opened(workspace)
    path = Path(dataset.table_path(table_format, latest=True))
    assert as_values(read(path, table_format)) == as_values(dataset.latest().to_arrow())
    assert len(list((path / "data").iterdir())) <= 2


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_table_has_the_latest_row_of_each_key(
    table_format: TableFormat, workspace: Workspace, cities: DatasetEntry
) -> None:
    path = write(workspace, table_format)
    rows = read(path, table_format)
    assert dict(zip(rows["city"].to_pylist(), rows["people"].to_pylist(), strict=True)) == {
        "Bern": 8, "Chur": 5,
    }  # fmt: skip
    check_latest(workspace, table_format)
    if table_format == "delta":
        files = DeltaTable(str(path)).file_uris()
    else:
        tasks = StaticTable.from_metadata(str(path)).scan(row_filter="people > 7").plan_files()
        files = [task.file.file_path for task in tasks]
    query = "SELECT city, people FROM read_parquet(?) WHERE people > 7"
    assert duckdb.execute(query, [files]).fetchall() == [("Bern", 8)]
    assert write(workspace, table_format) == path  # nothing has changed
    assert len(list((path / "data").iterdir())) == 1


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_next_version_replaces_the_file(
    table_format: TableFormat, workspace: Workspace, cities: DatasetEntry
) -> None:
    path = write(workspace, table_format)
    opened_before = (
        DeltaTable(str(path)) if table_format == "delta" else StaticTable.from_metadata(str(path)).scan()
    )
    for city in ("Chur", "Basel", "Basel"):
        add_slices(cities, city=city)
        write(workspace, table_format)
        check_latest(workspace, table_format)
        if city == "Chur":  # the version before is still complete
            before = (
                opened_before.to_pyarrow_table()
                if isinstance(opened_before, DeltaTable)
                else opened_before.to_arrow()
            )
            assert sorted(before["people"].to_pylist()) == [5, 8]
    commit(cities, [SetInfo("no rows")])
    assert len([file for file in path.rglob("*") if file.is_file()]) <= 11


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_table_follows_resets_and_new_columns(
    table_format: TableFormat, workspace: Workspace, cities: DatasetEntry
) -> None:
    write(workspace, table_format)
    columns = pa.schema([("city", pa.string()), ("people", pa.int64()), ("area", pa.float64())])
    wider = slice_schema(columns, DEFAULT_VOCABULARY)
    commit(cities, [declare_schema(wider, cities.dataset.state(), odf=False)])
    add_rows(cities, pa.table({"city": ["Bern"], "people": [1], "area": [51.6]}), wider)
    assert "area" in read(write(workspace, table_format), table_format).schema.names
    check_latest(workspace, table_format)
    dataset = opened(workspace)
    dataset.reset(dataset.version("4"))
    write(workspace, table_format)
    check_latest(workspace, table_format)


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_jobs_update_the_tables_of_small_datasets(
    table_format: TableFormat, workspace: Workspace, cities: DatasetEntry
) -> None:
    path = write(workspace, table_format)
    add_slices(cities, city="Basel")
    with mock.patch.object(latest_state, "MAX_ROWS", 11):
        opened(workspace).compact()
    assert "Basel" not in read(path, table_format)["city"].to_pylist()
    checked = call_odf("fsck", cwd=workspace.folder)
    assert checked.code == 0 and "odf view numbers --format" in checked.out + checked.err
    add_slices(cities, city="Basel")
    opened(workspace).compact()
    check_latest(workspace, table_format)
    assert "Basel" in read(path, table_format)["city"].to_pylist()
    assert call_odf("fsck", cwd=workspace.folder).out.count("table") == 0


def test_failed_update_does_not_fail_the_job(
    workspace: Workspace, cities: DatasetEntry, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(workspace, "delta")
    before = as_values(read(path, "delta"))
    add_slices(cities, city="Basel")
    with mock.patch("odf_engine.tables.table_folder.atomic_file", side_effect=OSError("no space")):
        opened(workspace).compact()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "was not written to the delta table" in caplog.text
    assert as_values(read(path, "delta")) == before
    opened(workspace).compact()
    check_latest(workspace, "delta")


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_fsck_repairs_damaged_files(
    table_format: TableFormat, workspace: Workspace, cities: DatasetEntry
) -> None:
    path = write(workspace, table_format)
    names = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
    assert len(names) >= 5
    for name in names:
        (path / name).write_bytes((path / name).read_bytes()[:-5])
        checked = call_odf("fsck", cwd=workspace.folder)
        assert checked.code == 3 and "table-damaged" in checked.out, name
        assert call_odf("fsck", "--repair", cwd=workspace.folder).code == 0
        check_latest(workspace, table_format)
        path = write(workspace, table_format)
        shutil.rmtree(path)
        write(workspace, table_format)


def test_compaction_and_gc_leave_the_tables(workspace: Workspace, cities: DatasetEntry) -> None:
    paths = {table_format: write(workspace, table_format) for table_format in TABLE_FORMATS}
    before = {name: as_values(read(path, name)) for name, path in paths.items()}
    compact(cities.dataset, CompactionPolicy(1000, 1 << 20), Reporter())
    for name, block in opened(workspace).references.items():
        cities.dataset.remove_reference(name, block)
    assert call_odf("gc", "--now", "--yes", cwd=workspace.folder).code == 0
    assert {name: as_values(read(path, name)) for name, path in paths.items()} == before
    for table_format in TABLE_FORMATS:
        write(workspace, table_format)
        check_latest(workspace, table_format)


def test_moved_workspace_writes_the_tables_again(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "old")
    add_slices(make_keyed(workspace))
    for table_format in TABLE_FORMATS:
        write(workspace, table_format)
    workspace.close()
    moved = Workspace.find(explicit=Path(shutil.move(tmp_path / "old", tmp_path / "new data")))
    for table_format in TABLE_FORMATS:
        write(moved, table_format)
        check_latest(moved, table_format)


def test_other_programs_cannot_change_the_table(workspace: Workspace, cities: DatasetEntry) -> None:
    path = write(workspace, "delta")
    with pytest.raises(CommitFailedError, match="odfReadOnly"):
        write_deltalake(str(path), read(path, "delta"), mode="append")


def test_dataset_that_has_no_latest_state_is_refused(workspace: Workspace) -> None:
    make_root(workspace, "plain", slices=1)
    make_keyed(workspace, name="empty")
    refused = call_odf("view", "plain", "--format", "delta", "--latest", cwd=workspace.folder)
    assert refused.code == 2 and "the dataset has no primary key" in refused.err and "hint:" in refused.err
    with pytest.raises(UsageError):
        opened(workspace, "plain").write_latest_table("iceberg")
    with pytest.raises(NotFound, match="has no rows yet"):
        opened(workspace, "empty").write_latest_table("delta")
    assert not Path(opened(workspace, "plain").table_path("delta", latest=True)).exists()


def test_table_is_removed_if_there_is_no_latest_state(workspace: Workspace, cities: DatasetEntry) -> None:
    path = write(workspace, "delta")
    dataset = opened(workspace)
    first = cities.dataset.slices()[0]
    dataset.reset(dataset.version(str(first.sequence_number - 1)))
    with pytest.raises(NotFound, match="has no rows yet"):
        write(workspace, "delta")
    assert not path.exists()


def test_failed_first_write_leaves_no_table(workspace: Workspace) -> None:
    entry = make_keyed(workspace)
    columns = pa.schema([("city", pa.string()), ("people", pa.int64()), ("at", pa.time64("us"))])
    schema = slice_schema(columns, DEFAULT_VOCABULARY)
    commit(entry, [declare_schema(schema, entry.dataset.state(), odf=False)])
    rows = {"city": ["Bern"], "people": [1], "at": pa.array([1], pa.time64("us"))}
    add_rows(entry, pa.table(rows), schema)
    with pytest.raises(Unsupported):
        write(workspace, "delta")
    assert not (entry.dataset.folder / "delta-latest").exists()
    assert "table" not in call_odf("fsck", cwd=workspace.folder).out


def test_history_that_is_replaced_during_an_update_is_not_recorded(
    workspace: Workspace, cities: DatasetEntry
) -> None:
    write(workspace, "iceberg")
    add_slices(cities, city="Basel")
    build = latest_state.build_projection

    def replaced(*arguments: object, **options: object) -> object:
        result = build(*arguments, **options)  # type: ignore[arg-type]
        dataset = opened(workspace)
        dataset.reset(dataset.version("5"))
        add_slices(cities, city="Zug")
        return result

    patch = mock.patch.object(latest_state, "build_projection", replaced)
    with patch, pytest.raises(Conflict, match="the history was replaced"):
        write(workspace, "iceberg")
    write(workspace, "iceberg")
    check_latest(workspace, "iceberg")


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_branch_has_no_table(table_format: TableFormat, workspace: Workspace, cities: DatasetEntry) -> None:
    opened(workspace).create_branch("fix")
    branch = opened(workspace).on_branch("fix")
    with pytest.raises(UsageError, match="a branch has no table"):
        branch.write_table(table_format)
    with pytest.raises(UsageError, match="a branch has no table"):
        branch.write_latest_table(table_format)


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_dataset_in_a_store_has_a_local_table(table_format: TableFormat, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    workspace = Workspace.init(tmp_path / "work", (tmp_path / "store").as_uri())
    entry = make_keyed(workspace)
    add_slices(entry)
    path = write(workspace, table_format)
    check_latest(workspace, table_format)
    shutil.rmtree(entry.dataset.folder / "data")  # a cache
    add_slices(entry, city="Chur")
    opened(workspace).compact()
    check_latest(workspace, table_format)
    assert sorted(read(path, table_format)["city"].to_pylist()) == ["Bern", "Chur"]
    assert not list((tmp_path / "store").rglob(f"{table_format}-latest"))
    assert call_odf("fsck", cwd=workspace.folder).out.count("table") == 0


def test_view_writes_and_removes_tables(workspace: Workspace, cities: DatasetEntry) -> None:
    def view(*arguments: str) -> object:
        return call_odf("view", "numbers", "--format", "iceberg", *arguments, "--json", cwd=folder).json

    folder, dataset = workspace.folder, opened(workspace)
    every, latest = dataset.table_path("iceberg"), dataset.table_path("iceberg", latest=True)
    view()
    assert view("--latest") == [{"name": "numbers", "format": "iceberg", "path": latest, "version": 1}]
    about = {"name": "numbers", "format": "iceberg"}
    assert view("--latest", "--remove") == [{**about, "path": latest, "removed": True}]
    assert Path(every).exists() and not Path(latest).exists()
    view("--latest")
    both = [{**about, "path": path, "removed": True} for path in (every, latest)]
    assert view("--remove") == both
    assert not Path(every).exists() and not Path(latest).exists()
    assert view("--remove") == [{**entry, "removed": False} for entry in both]
    assert opened(workspace).state.records == 9
    refused = call_odf("view", "numbers", "--latest", cwd=folder)
    assert refused.code == 2 and "--latest requires --format" in refused.err
