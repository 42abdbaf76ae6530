"""Updates of tables that are killed, that run in several processes, and after changes of the chain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.metadata.model import DEFAULT_VOCABULARY, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.tables import TABLE_FORMATS, TableFormat
from odf_engine.tables.dataset_tables import update_tables
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync.builders import SECOND, add_slices
from tests.tables.conftest import add_rows, opened
from tests.tables.test_delta_table import check_all_versions
from tests.tables.test_iceberg_table import check_all_snapshots


def run_program(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.tables.killed_updates", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_newest(workspace: Workspace, table_format: TableFormat, *, latest: bool = False) -> pa.Table:
    path = opened(workspace).table_path(table_format, latest=latest)
    if table_format == "delta":
        return DeltaTable(path).to_pyarrow_table()
    return StaticTable.from_metadata(path).scan().to_arrow()


def check_all(workspace: Workspace) -> None:
    check_all_versions(workspace)
    check_all_snapshots(workspace)


@pytest.mark.parametrize("next_update", ["commit", "view"])
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_killed_commit_leaves_a_readable_table(
    table_format: TableFormat, next_update: str, tmp_path: Path
) -> None:
    last = int(run_program("kill", tmp_path, table_format))
    sizes: list[int] = []
    for number in range(1, last + 1):
        workspace = Workspace.find(explicit=tmp_path / str(number))
        assert opened(workspace).state.records == 9
        sizes.append(len(read_newest(workspace, table_format)))
        if next_update == "commit":
            add_slices(workspace.resolve("numbers"))
        else:
            written = call_odf("view", "numbers", "--format", table_format, cwd=workspace.folder)
            assert written.code == 0, written.err
        assert call_odf("fsck", "--repair", "--now", cwd=workspace.folder).code == 0
        (check_all_versions if table_format == "delta" else check_all_snapshots)(workspace)
    assert sizes == sorted(sizes) and set(sizes) == {6, 9}


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_killed_update_leaves_a_readable_latest_state(table_format: TableFormat, tmp_path: Path) -> None:
    last = int(run_program("kill", tmp_path, f"{table_format}-latest"))
    sizes: list[int] = []
    for number in range(1, last + 1):
        workspace = Workspace.find(explicit=tmp_path / str(number))
        sizes.append(len(read_newest(workspace, table_format, latest=True)))
        written = call_odf("view", "numbers", "--format", table_format, "--latest", cwd=workspace.folder)
        assert written.code == 0, written.err
        assert len(read_newest(workspace, table_format, latest=True)) == 9
        files = [path for path in Path(written.out.strip()).rglob("*") if path.is_file()]
        assert len([path for path in files if path.suffix == ".part"]) == 0
        assert len([path for path in files if path.parent.name == "data"]) <= 2
    assert sizes == sorted(sizes) and set(sizes) == {6, 9}


def test_two_processes_commit_and_update_the_tables(workspace: Workspace, numbers: DatasetEntry) -> None:
    for table_format in TABLE_FORMATS:
        opened(workspace).write_table(table_format)
    run_program("race", workspace.folder, 15)
    assert opened(workspace).state.slices == 34
    check_all(workspace)


@pytest.mark.parametrize(
    ("table_format", "method"),
    [("delta", "delta_table.DeltaTable._last_common"), ("iceberg", "iceberg_table.IcebergTable._schemas")],
)
def test_history_that_is_replaced_during_an_update(
    table_format: TableFormat,
    method: str,
    workspace: Workspace,
    numbers: DatasetEntry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = opened(workspace)
    dataset.write_table(table_format)
    plain = Dataset(numbers.dataset.folder, BlockIndex(":memory:"))  # does not update the table
    other = DatasetEntry(numbers.id, numbers.alias, plain)
    add_slices(other)
    owner, _, name = method.rpartition(".")
    module, _, class_name = owner.partition(".")
    real = getattr(getattr(sys.modules[f"odf_engine.tables.{module}"], class_name), name)

    def replace_history(self: object, *arguments: object) -> object:
        result = real(self, *arguments)
        plain.reset(plain.block_hash(4), expected_head=plain.state().head)
        add_slices(other, 4, city="Chur")
        return result

    with mock.patch(f"odf_engine.tables.{method}", replace_history):
        update_tables(numbers.dataset)
    assert "the history was replaced in the meantime" in caplog.text
    add_slices(numbers)
    (check_all_versions if table_format == "delta" else check_all_snapshots)(workspace)


def test_promoted_branch_moves_the_tables(workspace: Workspace, numbers: DatasetEntry) -> None:
    for table_format in TABLE_FORMATS:
        opened(workspace).write_table(table_format)
    folder = workspace.folder
    assert call_odf("branch", "numbers", "fix", "--at", "4", cwd=folder).code == 0
    branch = DatasetEntry(numbers.id, numbers.alias, numbers.dataset.branch("fix"))
    add_slices(branch, 3, city="Chur")
    check_all(workspace)  # the tables do not follow the branch
    assert "Chur" not in read_newest(workspace, "delta")["city"].to_pylist()
    dataset = opened(workspace)
    dataset.reset(dataset.version("4"))
    promoted = call_odf("branch", "numbers", "--promote", "fix", cwd=folder)
    assert promoted.code == 0, promoted.err
    check_all(workspace)
    for table_format in TABLE_FORMATS:
        assert read_newest(workspace, table_format)["city"].to_pylist().count("Chur") == 9


def test_renamed_column_replaces_the_versions(workspace: Workspace, numbers: DatasetEntry) -> None:
    """The rules of chains forbid that a column is renamed in the same chain."""
    for table_format in TABLE_FORMATS:
        opened(workspace).write_table(table_format)
    columns = pa.schema([("town", pa.string()), ("people", pa.int64())])
    schema = slice_schema(columns, DEFAULT_VOCABULARY)
    state = numbers.dataset.state()
    numbers.dataset.restart_chain(
        [SetDataSchema(encode_schema(schema))],
        system_time=Timestamp(state.system_time.ns + SECOND),
        expected_head=state.head,
    )
    for table_format in TABLE_FORMATS:
        assert read_newest(workspace, table_format).schema.names[-2:] == ["town", "people"]
    add_rows(numbers, pa.table({"town": ["Bern"], "people": [1]}), schema)
    check_all(workspace)
    for table_format in TABLE_FORMATS:
        rows = read_newest(workspace, table_format)
        assert rows["town"].to_pylist() == ["Bern"] and "city" not in rows.schema.names
    checked = call_odf("fsck", cwd=workspace.folder)
    assert "table-" not in checked.out, checked.out
