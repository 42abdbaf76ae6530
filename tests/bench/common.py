"""Data and datasets of the benchmarks and of some tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slices import slice_schema, write_slice
from odf_engine.metadata.model import (
    DEFAULT_VOCABULARY,
    AddData,
    DataSlice,
    MetadataEvent,
    SetDataSchema,
    SourceState,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

COLUMNS = (
    "event_time TIMESTAMP", "id BIGINT NOT NULL", "device STRING", "region STRING", "temperature DOUBLE",
    "humidity DOUBLE", "visits INT", "note STRING",
)  # fmt: skip

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:{file}"}}
      read: {{{read}}}
      merge: {{{merge}}}
"""
ROOT = "{{kind: DatasetSnapshot, version: 1, content: {{name: {name}, kind: Root, metadata: []}}}}"
CSV = f"kind: Csv, header: true, schema: {json.dumps(COLUMNS)}"
STEP = 500_000


def make_csv(path: Path, rows: int) -> None:
    """Write a CSV file of eight columns, about 94 bytes a row; one note in ten is missing."""
    schema: pa.Schema | None = None
    with path.open("wb") as file:
        for first in range(0, rows, STEP):
            table = _rows(first, min(STEP, rows - first))
            schema = schema or table.schema
            options = pyarrow.csv.WriteOptions(include_header=first == 0, quoting_style="none")
            pyarrow.csv.write_csv(table, file, options)


def make_rows(first: int, count: int, step: int = 1) -> pa.Table:
    """Return rows as in the CSV file, numbered from ``first``; event times are timestamps."""
    table = _rows(first, count, step)
    times = table.column("event_time").cast(pa.timestamp("ms", "UTC"))
    return table.set_column(0, "event_time", times)


def _rows(first: int, count: int, step: int = 1) -> pa.Table:
    number = pa.array(range(first, first + count * step, step), pa.int64())

    def modulo(by: int) -> pa.Array:
        return pc.subtract(number, pc.multiply(pc.divide(number, by), by))

    def text(prefix: str, values: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(prefix, pc.cast(values, pa.string()), "")

    millis = pc.add(pc.multiply(number, 1000), 1_700_000_000_000)
    moments = pc.strftime(pc.cast(millis, pa.timestamp("ms", "UTC")), "%Y-%m-%dT%H:%M:%SZ")
    note = pc.if_else(pc.equal(modulo(10), 3), None, text("reading nr ", modulo(977)))
    return pa.table(
        {
            "event_time": moments,
            "id": number,
            "device": text("device-", modulo(20_000)),
            "region": text("region-", modulo(13)),
            "temperature": pc.divide(pc.cast(modulo(4_337), pa.float64()), 97.0),
            "humidity": pc.divide(pc.cast(modulo(99_991), pa.float64()), 1024.0),
            "visits": modulo(5_000),
            "note": note,
        }
    )


SCHEMA = slice_schema(make_rows(0, 1).schema, DEFAULT_VOCABULARY)


def make_dataset(
    workspace: Workspace, name: str, file: Path, read: str = CSV, merge: str = "kind: Append"
) -> DatasetEntry:
    """Create a root dataset with a file as its source; by default, a CSV file of :func:`make_csv`."""
    text = MANIFEST.format(name=name, file=file, read=read, merge=merge)
    return workspace.add(read_manifests(text, name))[0]


def make_empty(workspace: Workspace, name: str, schema: pa.Schema = SCHEMA) -> DatasetEntry:
    """Create a root dataset without rows; by default, for rows of :func:`make_rows`."""
    (entry,) = workspace.add(read_manifests(ROOT.format(name=name), name))
    commit(entry, [SetDataSchema(schema=encode_schema(schema))])
    return entry


def commit(entry: DatasetEntry, events: Sequence[MetadataEvent], data: Path | None = None) -> None:
    """Append events to the chain."""
    state = entry.dataset.state()
    entry.dataset.commit(
        events, system_time=max(Timestamp.now(), state.system_time), expected_head=state.head, data=data
    )


def append_slice(entry: DatasetEntry, batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> None:
    """Commit one slice."""
    state, now = entry.dataset.state(), Timestamp.now()
    staged = entry.dataset.staging_path("data")
    written = write_slice(
        batches,
        SliceProperties(
            schema=schema,
            vocab=DEFAULT_VOCABULARY,
            first_offset=0 if state.last_offset is None else state.last_offset + 1,
            system_time=now,
            fallback_event_time=now,
        ),
        path=staged,
        reporter=Reporter(),
    )
    assert written is not None and written.max_event_time is not None
    data = DataSlice(written.logical_hash, written.physical_hash, written.offset_interval, written.size)
    watermark = max(written.max_event_time, state.watermark or written.max_event_time)
    commit(entry, [AddData(prev_offset=state.last_offset, new_data=data, new_watermark=watermark)], staged)


def append_rows(entry: DatasetEntry, count: int) -> None:
    """Commit one slice of rows, numbered by their offsets."""
    last = entry.dataset.state().last_offset
    first = 0 if last is None else last + 1
    steps = range(first, first + count, STEP)
    tables = (make_rows(start, min(STEP, first + count - start)) for start in steps)
    append_slice(entry, (batch for table in tables for batch in table.to_batches()))


def append_blocks(entry: DatasetEntry, blocks: int) -> None:
    """Extend a chain to a number of blocks without rows, without waiting for the disk."""
    with no_fsync():
        while (count := entry.dataset.state().blocks) < blocks:
            state = entry.dataset.state()
            start = state.watermark.ns if state.watermark else 0
            events = [
                AddData(
                    prev_offset=state.last_offset,
                    new_watermark=Timestamp(start + number * 10**9),
                    new_source_state=SourceState("default", "odf/etag", str(count + number)),
                )
                for number in range(1, min(blocks - count, 1000) + 1)
            ]
            commit(entry, events)


def no_fsync() -> Any:
    """Return a context in which commits do not wait for the disk."""
    return mock.patch("os.fsync", lambda descriptor: None)
