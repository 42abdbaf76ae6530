"""Delta Lake tables over the slices of a dataset, as other programs read them."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.schema_evolution import declare_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.errors import NotFound, Unsupported
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DEFAULT_VOCABULARY, DatasetKind
from odf_engine.tables import delta_table
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync.builders import START, add_blocks, add_slices, commit, make_root
from tests.tables.conftest import add_rows, as_values, make_wide, opened


def read(folder: Path | str, version: int | None = None) -> pa.Table:
    return DeltaTable(str(folder), version=version).to_pyarrow_table()


def check_all_versions(workspace: Workspace, name: str = "numbers") -> None:
    """Compare the rows of all versions from the first schema with the rows at their blocks."""
    dataset = opened(workspace, name)
    table = DeltaTable(str(dataset.folder))
    assert table.version() == dataset.state.sequence_number
    commits = {commit["version"]: commit for commit in table.history()}
    for number in range(table.version() + 1):
        assert commits[number]["odfBlock"] == str(dataset.block(number).hash)
        assert commits[number]["odfSequenceNumber"] == number
        expected = dataset.scan(as_at=number).to_arrow()
        actual = read(dataset.folder, number)
        later = set(expected.schema.names) - set(actual.schema.names)  # columns of later schemas
        assert all(expected.column(name).null_count == len(expected) for name in later)
        assert as_values(actual) == as_values(expected.select(actual.schema.names))


def test_every_version_has_the_rows_at_its_block(workspace: Workspace, numbers: DatasetEntry) -> None:
    written = opened(workspace).write_table("delta")
    assert written.version == 6 and written.path == str(numbers.dataset.folder)
    check_all_versions(workspace)
    assert [len(read(written.path, number)) for number in range(7)] == [0, 0, 3, 3, 6, 9, 12]


def test_table_at_a_time_has_the_rows_that_were_known(workspace: Workspace, numbers: DatasetEntry) -> None:
    path = opened(workspace).write_table("delta").path
    for block in opened(workspace).blocks()[2:]:
        moment = block.block.system_time.to_datetime() + timedelta(milliseconds=500)
        table = DeltaTable(path)
        table.load_as_version(moment)
        assert table.version() == block.block.sequence_number


def test_all_types_and_names_of_columns(workspace: Workspace) -> None:
    entry = make_wide(workspace)
    dataset = opened(workspace, "wide")
    path = dataset.write_table("delta").path
    check_all_versions(workspace, "wide")
    expected = as_values(dataset.scan().to_arrow())
    table = DeltaTable(path)
    query = QueryBuilder().register("wide", table)
    assert as_values(pa.table(query.execute("SELECT * FROM wide").read_all())) == expected
    rows = table.to_pyarrow_dataset()
    assert duckdb.sql('SELECT sum("a.b, größe"), count(*) FROM rows').fetchall() == [(-4, 4)]
    files = table.file_uris()
    assert duckdb.read_parquet(files).shape == (4, len(rows.schema))
    assert [Path(file).parent for file in files] == [entry.dataset.folder / "data"] * 2


@pytest.mark.parametrize("statement", ["before a checkpoint", "after a checkpoint"])
def test_commits_keep_the_table_current(statement: str, workspace: Workspace, numbers: DatasetEntry) -> None:
    dataset = opened(workspace)
    path = dataset.write_table("delta").path
    with mock.patch.object(delta_table, "_MIN_INTERVAL", 2 if statement.startswith("after") else 100):
        for _ in range(5):
            add_slices(numbers)
            add_blocks(numbers)
    assert Path(path, "_delta_log/_last_checkpoint").exists() is statement.startswith("after")
    check_all_versions(workspace)


def test_added_column_is_null_in_earlier_rows(workspace: Workspace, numbers: DatasetEntry) -> None:
    path = opened(workspace).write_table("delta").path
    wider = slice_schema(
        pa.schema([("city", pa.string()), ("people", pa.int64()), ("area", pa.float64())]),
        DEFAULT_VOCABULARY,
    )
    commit(numbers, [declare_schema(wider, numbers.dataset.state(), odf=False)])
    add_rows(numbers, pa.table({"city": ["Bern"], "people": [1], "area": [51.6]}), wider)
    check_all_versions(workspace)
    assert read(path).column("area").to_pylist().count(None) == 12
    assert "area" not in read(path, 6).schema.names


def test_reset_removes_the_versions_after_its_block(workspace: Workspace, numbers: DatasetEntry) -> None:
    dataset = opened(workspace)
    with mock.patch.object(delta_table, "_MIN_INTERVAL", 2):
        path = dataset.write_table("delta").path
    dataset.reset(dataset.version("4"))
    assert DeltaTable(path).version() == 4
    check_all_versions(workspace)
    add_slices(numbers, 2, city="Chur")
    check_all_versions(workspace)


def test_table_after_compaction_and_gc(workspace: Workspace, numbers: DatasetEntry) -> None:
    dataset = opened(workspace)
    path = dataset.write_table("delta").path
    before = as_values(read(path))
    compact(numbers.dataset, CompactionPolicy(1000, 1 << 20), Reporter())
    for name, block in dataset.references.items():
        numbers.dataset.remove_reference(name, block)
    assert call_odf("gc", "--now", "--yes", cwd=workspace.folder).code == 0
    assert len(list((numbers.dataset.folder / "data").iterdir())) == 1
    check_all_versions(workspace)
    assert as_values(read(path)) == before
    checked = call_odf("fsck", cwd=workspace.folder)
    assert checked.code == 0, checked.out


def test_interrupted_write_leaves_a_readable_table(workspace: Workspace, numbers: DatasetEntry) -> None:
    dataset = opened(workspace)
    with mock.patch.object(delta_table, "_MIN_INTERVAL", 2):
        for stop in range(1, 6):

            def interrupt(done: int, _total: int, stop: int = stop) -> None:
                if done == stop:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                dataset.write_table("delta", interrupt)
            table = DeltaTable(str(dataset.folder))
            assert table.version() == stop - 1
            assert len(table.to_pyarrow_table()) == len(dataset.scan(as_at=stop - 1).to_arrow())
            dataset.remove_table("delta")
        with pytest.raises(KeyboardInterrupt):
            dataset.write_table("delta", interrupt)
    dataset.write_table("delta")
    check_all_versions(workspace)


def test_damaged_version_is_written_again(workspace: Workspace, numbers: DatasetEntry) -> None:
    log = Path(opened(workspace).write_table("delta").path, "_delta_log")
    (log / f"{6:020}.json").write_bytes(b"")  # as after a power failure
    (log / f"{7:020}.json").write_text('{"commitInfo":{}}')  # of another program
    add_slices(numbers)
    check_all_versions(workspace)
    (log / f"{3:020}.json").unlink()
    add_slices(numbers)
    check_all_versions(workspace)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{3:020}.json", b""),
        (f"{3:020}.json", None),
        (f"{2:020}.json", b'{"commitInfo":{"odfBlock":"'),
        (f"{1:020}.json", b'{"commitInfo":{}}'),
        (f"{4:020}.checkpoint.parquet", b"PAR1"),
        ("_last_checkpoint", b'{"version":'),
        ("_last_checkpoint", b'{"version":2}'),
    ],
)
def test_fsck_repairs_damaged_files(
    name: str, content: bytes | None, workspace: Workspace, numbers: DatasetEntry
) -> None:
    with mock.patch.object(delta_table, "_MIN_INTERVAL", 2):
        log = Path(opened(workspace).write_table("delta").path, "_delta_log")
    assert call_odf("fsck", cwd=workspace.folder).code == 0
    path = log / name
    assert path.exists()
    path.unlink() if content is None else path.write_bytes(content)
    checked = call_odf("fsck", cwd=workspace.folder)
    assert "table-outdated" in checked.out, checked.out
    assert call_odf("fsck", "--repair", cwd=workspace.folder).code == 0
    check_all_versions(workspace)
    assert "table-" not in call_odf("fsck", cwd=workspace.folder).out


def test_missing_slice_does_not_shorten_the_table(workspace: Workspace, numbers: DatasetEntry) -> None:
    path = opened(workspace).write_table("delta").path
    numbers.dataset.slice_path(numbers.dataset.slices()[2]).unlink()
    assert "table-" not in call_odf("fsck", "--repair", cwd=workspace.folder).out
    assert DeltaTable(path).version() == 6


def test_failed_update_does_not_fail_the_commit(
    workspace: Workspace, numbers: DatasetEntry, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = opened(workspace)
    log = Path(dataset.write_table("delta").path, "_delta_log")
    with mock.patch("odf_engine.tables.table_folder.atomic_file", side_effect=OSError("no space")):
        add_slices(numbers)
    assert dataset.state.sequence_number == 7 and DeltaTable(log.parent).version() == 6
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the delta table was not updated" in caplog.text
    assert "table-outdated" in call_odf("fsck", cwd=workspace.folder).out
    assert call_odf("fsck", "--repair", cwd=workspace.folder).code == 0
    check_all_versions(workspace)


def test_commit_repairs_an_outdated_table(workspace: Workspace, numbers: DatasetEntry) -> None:
    opened(workspace).write_table("delta")
    with mock.patch("odf_engine.tables.table_folder.atomic_file", side_effect=OSError("no space")):
        add_slices(numbers)
    add_slices(numbers)
    check_all_versions(workspace)


def test_statistics_skip_files(workspace: Workspace, numbers: DatasetEntry) -> None:
    path = opened(workspace).write_table("delta").path
    for row in numbers.dataset.slices()[:-1]:
        numbers.dataset.slice_path(row).write_bytes(b"damaged")
    condition = ds.field("people") > 8
    assert DeltaTable(path).to_pyarrow_dataset().to_table(filter=condition).num_rows == 3
    query = QueryBuilder().register("numbers", DeltaTable(path))
    assert len(pa.table(query.execute("SELECT * FROM numbers WHERE people > 8").read_all())) == 3


def test_bounds_of_long_texts_include_all_values(workspace: Workspace) -> None:
    make_wide(workspace)
    path = opened(workspace, "wide").write_table("delta").path
    rows = DeltaTable(path).to_pyarrow_dataset()
    for condition in (ds.field("text") == "ü" * 40, ds.field("text") == "", ds.field("tiny") == 65535):
        assert rows.to_table(filter=condition).num_rows >= 1
    texts = Path(path, "_delta_log", f"{2:020}.json").read_text().splitlines()
    statistics = json.loads(json.loads(texts[1])["add"]["stats"])
    assert statistics["numRecords"] == 3 and statistics["nullCount"]["none"] == 3
    assert statistics["minValues"]["at"] == "2024-01-01T01:02:03.456789Z"
    assert "share" not in statistics["maxValues"] and "none" not in statistics["minValues"]


def test_other_programs_cannot_change_the_table(workspace: Workspace, numbers: DatasetEntry) -> None:
    path = opened(workspace).write_table("delta").path
    before = sorted(numbers.dataset.folder.rglob("*"))
    table = DeltaTable(path)
    with pytest.raises(CommitFailedError, match="odfReadOnly"):
        write_deltalake(path, table.to_pyarrow_table(), mode="append")
    with pytest.raises(CommitFailedError, match="odfReadOnly"):
        table.optimize.compact()
    with pytest.raises(CommitFailedError, match="odfReadOnly"):
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert sorted(numbers.dataset.folder.rglob("*")) == before


def test_missing_slice_is_an_error_of_view(workspace: Workspace, numbers: DatasetEntry) -> None:
    row = numbers.dataset.slices()[2]
    numbers.dataset.slice_path(row).unlink()
    failed = call_odf("view", "numbers", "--format", "delta", cwd=workspace.folder)
    assert failed.code == 1
    assert f"block {row.sequence_number}, slice {row.physical_hash}: slice is missing" in failed.err
    assert "hint: restore it" in failed.err


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (pa.time64("us"), 1, "column 'x' has the type time64[us], which Delta Lake does not have"),
        (pa.float16(), 1, "column 'x' has the type halffloat"),
        (pa.uint64(), 2**64 - 1, "column 'x' has the value 18446744073709551615"),
    ],
)
def test_column_that_delta_cannot_have_is_refused(
    kind: pa.DataType, value: int, problem: str, workspace: Workspace
) -> None:
    entry = make_root(workspace, "odd")
    schema = slice_schema(
        pa.schema([("city", pa.string()), ("people", pa.int64()), ("x", kind)]), DEFAULT_VOCABULARY
    )
    commit(entry, [declare_schema(schema, entry.dataset.state(), odf=False)])
    rows = {"city": ["Bern"], "people": [1], "x": pa.array([value], kind)}
    add_rows(entry, pa.table(rows), schema)
    with pytest.raises(Unsupported) as caught:
        opened(workspace, "odd").write_table("delta")
    assert problem in caught.value.message and caught.value.hint


def test_dataset_without_columns_has_no_table(workspace: Workspace) -> None:
    workspace.create_dataset(DatasetAlias.parse("empty"), DatasetKind.Root, [], START)
    with pytest.raises(NotFound, match="has no columns yet"):
        opened(workspace, "empty").write_table("delta")


def test_view_writes_and_removes_tables(workspace: Workspace, numbers: DatasetEntry) -> None:
    make_root(workspace, "nothing", slices=1)
    written = call_odf("view", "n%", "--format", "delta", cwd=workspace.folder)
    paths = written.out.splitlines()
    assert written.code == 0 and sorted(len(read(path)) for path in paths) == [3, 12]
    (table,) = call_odf("view", "numbers", "--format", "delta", "--json", cwd=workspace.folder).json
    assert table == {
        "name": "numbers", "format": "delta", "path": str(numbers.dataset.folder), "version": 6,
    }  # fmt: skip
    removed = call_odf("view", "numbers", "--format", "delta", "--remove", cwd=workspace.folder)
    assert "numbers: table removed" in removed.err
    assert not Path(table["path"], "_delta_log").exists() and len(opened(workspace).scan().to_arrow()) == 12
    refused = call_odf("view", "numbers", "--format", "delta", "--csv", cwd=workspace.folder)
    assert refused.code == 2 and "hint:" in refused.err
