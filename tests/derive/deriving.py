"""Roots and derivatives for the tests of transformations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain import normal_form
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import read_batches, slice_schema
from odf_engine.derive.run import transform
from odf_engine.engines.contract import Engine
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.model import (
    AddData,
    DatasetSnapshot,
    ExecuteTransform,
    MetadataEvent,
    SetDataSchema,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import plan_datasets
from odf_engine.workspace.workspace import Workspace
from tests.slices import stage_slice

ROOT = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata: []
"""
DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{inputs}]
      transform:
        kind: Sql
        engine: spark
        temporalTables: [{tables}]
        query: |
          {query}
"""
DATA = pa.schema([("event_time", pa.timestamp("ms", "UTC")), ("city", pa.string()), ("x", pa.int64())])


@contextmanager
def earlier_rules(revision: int) -> Iterator[str]:
    """Let transactions record an earlier revision of the rules; yield the version of the engine."""
    with patch.dict(normal_form._PACKAGES, {normal_form.SPARK: ("pyspark", revision)}):
        yield normal_form.spark_engine_version()


class Deriving:
    """A workspace in which tests commit rows to roots and run derivatives."""

    def __init__(self, workspace: Workspace, runtime: SparkRuntime) -> None:
        self.workspace = workspace
        self.engine: Engine = SparkEngine(runtime)

    def root(self, name: str = "input", schema: pa.Schema = DATA) -> DatasetEntry:
        """An empty root dataset with a schema."""
        (entry,) = self.workspace.add(read_manifests(ROOT.format(name=name), "test"))
        vocab = entry.dataset.state().vocabulary
        self.commit(entry, [SetDataSchema(schema=encode_schema(slice_schema(schema, vocab)))])
        return entry

    def derivative(self, query: str, *inputs: str, name: str = "output", **keys: str) -> DatasetEntry:
        """A derivative dataset of these inputs (``input`` by default); ``keys`` of temporal tables."""
        listed = ", ".join(f"{{datasetRef: {each}, alias: {each}}}" for each in inputs or ("input",))
        indented = query.strip().replace("\n", "\n          ")
        tables = ", ".join(f"{{name: {each}, primaryKey: [{key}]}}" for each, key in keys.items())
        text = DERIVATIVE.format(name=name, inputs=listed, tables=tables, query=indented)
        return self.add_unchecked(*read_manifests(text, "test"))

    def add_unchecked(self, snapshot: DatasetSnapshot) -> DatasetEntry:
        """A dataset as others may have made it: its query is checked by the engine alone."""
        existing = {dataset.alias: dataset.id for dataset in self.workspace.datasets()}
        forms = self.workspace.config.metadata
        (plan,) = plan_datasets(existing, [snapshot], lambda: DatasetId(bytes(32)), forms)
        return self.workspace.create_dataset(plan.alias, snapshot.kind, plan.events[1:])

    def commit(
        self, entry: DatasetEntry, events: list[MetadataEvent], moment: Timestamp | None = None, **more: Any
    ) -> None:
        """Appends events."""
        state = entry.dataset.state()
        time = moment or max(Timestamp.now(), state.system_time)
        entry.dataset.commit(events, system_time=time, expected_head=state.head, **more)

    def rows(
        self, entry: DatasetEntry, *rows: tuple[Any, ...], watermark: str | None = None, advances: bool = True
    ) -> None:
        """One commit of rows: (day of January 2024, city, x) or with an operation as fourth value.

        With ``advances`` the watermark is at least the time of the rows.
        """
        state = entry.dataset.state()
        marks = [state.watermark, Timestamp.parse(watermark) if watermark else None]
        moment = max(Timestamp.now(), state.system_time)
        if not rows:
            mark = max((mark for mark in marks if mark), default=None)
            self.commit(entry, [AddData(prev_offset=state.last_offset, new_watermark=mark)], moment)
            return
        day = 86_400_000
        times = [1704067200000 + int((row[0] - 1) * day) for row in rows]
        if advances:
            marks.append(Timestamp.from_ms(max(times)))
        table = pa.table(
            {
                "event_time": pa.array(times, pa.timestamp("ms", "UTC")),
                "city": [row[1] for row in rows],
                "x": pa.array([row[2] for row in rows], pa.int64()),
                "op": pa.array([row[3] if len(row) > 3 else 0 for row in rows], pa.int32()),
            }
        )
        mark = max((mark for mark in marks if mark), default=None)
        schema = slice_schema(DATA, state.vocabulary)
        event, path = stage_slice(entry.dataset, table, schema, moment, new_watermark=mark)
        self.commit(entry, [event], moment, data=path)

    def batch(self, entry: DatasetEntry, batch: pa.RecordBatch, watermark: int) -> None:
        """One commit of rows of any schema; the watermark is in milliseconds."""
        state = entry.dataset.state()
        schema = declared_schema(state)
        assert schema is not None
        moment, mark = max(Timestamp.now(), state.system_time), Timestamp.from_ms(watermark)
        table = pa.Table.from_batches([batch])
        event, path = stage_slice(entry.dataset, table, schema, moment, new_watermark=mark)
        self.commit(entry, [event], moment, data=path)

    def set_version(self, entry: DatasetEntry, version: str) -> None:
        """Replace the engine version of a query."""
        transform = entry.dataset.state().transform
        assert transform is not None
        self.commit(entry, [replace(transform, transform=replace(transform.transform, version=version))])

    def run(self, entry: DatasetEntry, reporter: Reporter | None = None) -> int:
        """Brings a derivative up to date; how many transactions there were."""
        before = entry.dataset.state().sequence_number
        transform(self.workspace, entry, self.engine, reporter or Reporter())
        rows = entry.dataset.list_blocks(1000, kinds=("ExecuteTransform",))
        return sum(row.sequence_number > before for row in rows)

    def table(self, entry: DatasetEntry) -> pa.Table:
        """All rows."""
        paths = [entry.dataset.slice_path(row) for row in entry.dataset.slices()]
        return pa.concat_tables(pa.Table.from_batches(read_batches(path)) for path in paths)

    def result(self, entry: DatasetEntry, *columns: str) -> list[tuple[Any, ...]]:
        """All rows, of these columns."""
        return [tuple(row.values()) for row in self.table(entry).select(list(columns)).to_pylist()]

    def newest(self, entry: DatasetEntry) -> ExecuteTransform:
        """The newest block's event."""
        event = next(iter(entry.dataset.blocks())).block.event
        assert isinstance(event, ExecuteTransform)
        return event
