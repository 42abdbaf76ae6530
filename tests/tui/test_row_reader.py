"""Tests of the reads: columns, statistics and files of derived rows of a real workspace."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.api.readers.row_window import read_part
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import slice_schema, write_slice
from odf_engine.errors import NotFound
from odf_engine.metadata.model import AddData, DataSlice, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.projection import build_projection
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import compute_statistics
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.text.row_text import TableWindow

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: berths
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        schema:
          - "ship STRING NOT NULL COMMENT 'the captain''s name for it'"
          - "`berth no` INT COMMENT \\"counted from the quay\\""
          - comment STRING
      merge: {kind: Ledger, primaryKey: [ship]}
"""


def commit(dataset: Dataset, table: pa.Table) -> None:
    state, now = dataset.state(), Timestamp.now()
    schema = slice_schema(table.schema, state.vocabulary)
    written = write_slice(
        table.to_batches(),
        SliceProperties(
            schema=schema, vocab=state.vocabulary, first_offset=0, system_time=now, fallback_event_time=now
        ),
        path=dataset.staging_path("data"),
        reporter=Reporter(),
    )
    assert written is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    events = [SetDataSchema(encode_schema(schema)), AddData(prev_offset=None, new_data=data)]
    dataset.commit(events, system_time=now, expected_head=dataset.head(), data=written.path)


@pytest.fixture
def entry(tmp_path: Path) -> DatasetEntry:
    entry = Workspace.init(tmp_path / "home").add(read_manifests(MANIFEST, "berths.yaml"))[0]
    numbers = pa.array([7, 8, 9], pa.int32())
    commit(
        entry.dataset,
        pa.table({"ship": ["Ada", "Bo", "Ada"], "berth no": numbers, "comment": ["", "x", None]}),
    )
    return entry


@pytest.fixture
def source(tmp_path: Path, entry: DatasetEntry) -> OpenWorkspace:
    return OpenWorkspace(Workspace.find(explicit=tmp_path / "home"))


def test_column_statistics_are_partial_until_computed(source: OpenWorkspace, entry: DatasetEntry) -> None:
    told = source.column_statistics(str(entry.id), None)
    assert not told.whole
    assert told.types["system_time"] == "timestamp"
    assert set(told.required) == {"offset", "op", "system_time"}
    assert told.comments == {"ship": "the captain's name for it", "berth no": "counted from the quay"}
    berth = next(column for column in told.statistics.columns if column.name == "berth no")
    assert (berth.least, berth.greatest, berth.nulls, berth.distinct) == ("7", "9", 0, None)
    compute_statistics(source._workspace.odf, Scan.of_dataset(entry.dataset), Reporter())
    counted = source.column_statistics(str(entry.id), None)
    assert counted.whole
    assert [column.distinct for column in counted.statistics.columns][-3:] == [2, 3, 2]


def test_projection_rows_are_read_until_evicted(source: OpenWorkspace, entry: DatasetEntry) -> None:
    assert source.primary_key(str(entry.id)) == ["ship"]
    found = build_projection(source._workspace.odf, entry.dataset, [], Reporter())
    window = source.file_rows(str(entry.id), str(found.file))
    assert window.row_count == 2
    assert window.window(0, 9).column("berth no").to_pylist() == [8, 9]
    part, gaps = read_part(window, 1, 5, [5])
    assert (part.to_pydict(), list(gaps)) == ({"berth no": [9]}, [])
    assert window.system_columns == ("offset", "op", "system_time", "event_time")
    told = source.column_statistics(str(entry.id), str(found.file))
    assert (told.statistics.rows, told.whole, told.required) == (2, False, ())
    of_none = source.column_statistics("", str(found.file))
    assert of_none.statistics.rows == 2 and not of_none.comments
    found.file.unlink()
    with pytest.raises(NotFound, match="evicted from the cache") as error:
        source.file_rows(str(entry.id), str(found.file))
    assert error.value.hint == "press K to compute them again"


def test_rows_are_written_to_temporary_files(source: OpenWorkspace, tmp_path: Path) -> None:
    table = pa.table({"a": list(range(40_000))})
    path = source.write_temporary_rows(TableWindow(table, ("offset", "op", "system_time", "event_time")))
    assert Path(path).is_relative_to(source._workspace.odf)
    assert pq.read_table(path) == table
    other = tmp_path / "mine.parquet"
    other.write_text("x")
    for file in (path, str(other), ""):
        source.remove_temporary_rows(file)
    assert not Path(path).exists()
    assert other.exists()
