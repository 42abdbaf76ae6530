"""A workspace in a fresh folder, and a way to put rows into a dataset without ingestion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import SliceProperties, slice_schema, write_slice
from odf_engine.metadata.model import AddData, DataSlice, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace

Append = Callable[[Dataset, pa.Table], None]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.delenv("ODF_WORKSPACE", raising=False)
    return Workspace.init(tmp_path / "ws")


@pytest.fixture
def append() -> Append:
    """Commits a table as the dataset's next slice, with its schema when that is new."""

    def commit(dataset: Dataset, table: pa.Table) -> None:
        state = dataset.state()
        schema = slice_schema(table.schema, state.vocabulary)
        if state.schema != encode_schema(schema):
            set_schema = SetDataSchema(encode_schema(schema))
            dataset.commit([set_schema], system_time=Timestamp.now(), expected_head=state.head)
        now = Timestamp.now()
        written = write_slice(
            table.to_batches(),
            SliceProperties(
                schema=schema,
                vocab=state.vocabulary,
                first_offset=0 if state.last_offset is None else state.last_offset + 1,
                system_time=now,
                fallback_event_time=now,
            ),
            path=dataset.staging_path("data"),
            reporter=Reporter(),
        )
        assert written is not None
        data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
        event = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=written.max_event_time)
        dataset.commit([event], system_time=now, expected_head=dataset.head(), data=written.path)

    return commit
