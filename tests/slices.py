"""Rows of tests as the next slice of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import write_slice
from odf_engine.metadata.model import AddData, DataSlice
from odf_engine.metadata.timestamp import Timestamp


def stage_slice(
    dataset: Dataset, rows: pa.Table, schema: pa.Schema, time: Timestamp, **event: Any
) -> tuple[AddData, Path]:
    """Write rows to a file that can be committed.

    Args:
        dataset: the dataset whose next offsets the rows get.
        rows: the data columns, and optionally the operation and the event time.
        schema: the schema of the slice.
        time: the system time of the rows.
        event: more attributes of the event. The watermark is the maximum event time by default.

    Returns:
        The event that adds the rows, and the file.
    """
    state = dataset.state()
    written = write_slice(
        rows.to_batches(),
        SliceProperties(
            schema=schema,
            vocab=state.vocabulary,
            first_offset=0 if state.last_offset is None else state.last_offset + 1,
            system_time=time,
            fallback_event_time=time,
        ),
        path=dataset.staging_path("data"),
        reporter=Reporter(),
    )
    assert written is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    attributes = {"prev_offset": state.last_offset, "new_watermark": written.max_event_time} | event
    return AddData(new_data=data, **attributes), written.path
