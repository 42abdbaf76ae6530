"""Ingestion and transformation in Arrow: the jobs of the engine, with their commits, but without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.data.parquet.slice_rows import SliceProperties
from odf_engine.data.parquet.slice_tasks import SliceTask, write_task_slices
from odf_engine.data.parquet.slices import WrittenSlice, slice_schema, write_slice
from odf_engine.engines import engine_router
from odf_engine.engines.contract import Operation, TransactionResult
from odf_engine.errors import BadData, Unsupported
from odf_engine.ingest.merge.merge_plan import PreparedMerge, run_merge
from odf_engine.ingest.payload import PayloadJob
from odf_engine.ingest.result_schema import result_schema
from odf_engine.jobs.base import JobContext
from odf_engine.metadata.model import TransformRequest
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.time_digits import TimeDigits
from tests.faults.workspace_model import Changed, Query, Row, merge

_DAY: Final = 86_400_000
_START: Final = Timestamp.parse("2024-01-01T00:00:00Z").ns // 1_000_000
_RESULT: Final = ("event_time TIMESTAMP", "city STRING", "people BIGINT")
_QUERY: Final = re.compile(r"people \+ (\d+) AS people FROM (\w+) WHERE city >= '(\w+)'")


def query_sql(query: Query) -> str:
    """Return the SQL of a query, whose inputs have the names ``i0``, ``i1`` and so on."""
    return " UNION ALL ".join(
        f"SELECT event_time, city, people + {query.plus} AS people"
        f" FROM i{number} WHERE city >= '{query.city}'"
        for number in range(len(query.inputs))
    )


def parse_query(inputs: Sequence[str], text: str) -> Query:
    """Return the query of an SQL text by :func:`query_sql`."""
    found = _QUERY.search(text)
    assert found is not None, text
    return Query(tuple(inputs), int(found[1]), found[3])


def day_of(time: Timestamp | None) -> int | None:
    """Return the day of an event time or a watermark."""
    return None if time is None else (time.ns // 1_000_000 - _START) // _DAY


def read_rows(path: Path, first_offset: int | None = None) -> tuple[Row, ...]:
    """Return the rows of a slice; check that its offsets are gapless from ``first_offset`` on."""
    table = pq.ParquetFile(path).read()
    if first_offset is not None:
        expected = list(range(first_offset, first_offset + table.num_rows))
        assert table["offset"].to_pylist() == expected, table["offset"]
    columns: list[Any] = [table["event_time"].cast(pa.int64()), table["op"], table["city"], table["people"]]
    notes = table["note"].to_pylist() if "note" in table.schema.names else [None] * table.num_rows
    times, ops, cities, people = (column.to_pylist() for column in columns)
    return tuple(
        Row(op, (time - _START) // _DAY, city, count, note)
        for op, time, city, count, note in zip(ops, times, cities, people, notes, strict=True)
    )


def payload_text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return rows as lines of JSON."""
    lines = []
    for row in rows:
        fields = {"event_time": str(Timestamp.from_ms(_START + row.day * _DAY)), **row._asdict()}
        lines.append(json.dumps({name: fields[name] for name in columns}) + "\n")
    return "".join(lines)


def payload_rows(path: Path) -> list[Row]:
    """Return the rows of a file by :func:`payload_text`."""
    rows = []
    for line in path.read_text().splitlines():
        found = json.loads(line)
        day = day_of(Timestamp.parse(found.pop("event_time")))
        rows.append(Row(0, day or 0, **found))
    return rows


def _batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "event_time": pa.array([_START + row.day * _DAY for row in rows], pa.timestamp("ms", "UTC")),
        "op": pa.array([row.op for row in rows], pa.int32()),
        "city": pa.array([row.city for row in rows], pa.string()),
        "people": pa.array([row.people for row in rows], pa.int64()),
        "note": pa.array([row.note for row in rows], pa.string()),
    }
    return pa.record_batch({name: columns[name] for name in columns if name in schema.names})


@dataclass
class _File:
    """A payload that was read."""

    rows: list[Row]
    columns: pa.Schema | None
    digits: TimeDigits = field(default_factory=TimeDigits)


class Jobs:
    """Runs the requests of a workspace in this process, as the worker does.

    Attributes:
        during: called once while a payload or a query is processed, before its commit; for another writer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.during: Callable[[], object] | None = None

    def spark(self, reporter: Reporter) -> Any:
        """Return what jobs use instead of Spark."""
        return mock.Mock()

    def run(self, request: Any) -> Any:
        """Run a request and return its result; raise its error."""
        context = JobContext(self)  # type: ignore[arg-type]
        try:
            with self._without_spark():
                return request.run(context, Reporter())
        finally:
            context.close()

    @contextmanager
    def _without_spark(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(PayloadJob, "_read", self._read))
            stack.enter_context(mock.patch.object(PayloadJob, "_write", _write))
            engine = ArrowEngine(self)
            stack.enter_context(
                mock.patch.object(engine_router, "engines_for", lambda *_: nullcontext(engine))
            )
            yield

    def interrupt(self) -> None:
        """Let the other writer work, if there is one."""
        during, self.during = self.during, None
        if during is not None:
            during()

    @property
    def _read(self) -> Any:
        def read(job: Any, prepared: Any) -> _File | None:
            self.interrupt()
            rows = payload_rows(prepared.path)
            return _File(rows, columns_of_step(job._source.read)) if rows else None

        return read


def _write(job: Any, file: _File) -> Any:
    """Merge the rows of a payload with those of the dataset, and write slices."""
    from odf_engine.ingest.payload import StagedSlices

    vocab, dataset, strategy = job._state.vocabulary, job._dataset, type(job._source.merge).__name__
    schema = result_schema(file.columns, file.columns, job._declared, vocab)
    stored = [row for each in dataset.slices() for row in read_rows(dataset.slice_path(each))]
    try:
        rows = merge(strategy, stored, file.rows, job._conflict_action())  # type: ignore[arg-type]
    except Changed:
        raise BadData("a row of a known key has changed") from None

    def merged() -> Iterator[pa.RecordBatch]:
        if rows:
            yield _batch(rows, schema)

    def write(batches: Iterator[pa.RecordBatch]) -> list[WrittenSlice]:
        task = SliceTask(job._slice_properties(schema), job._slice_limits(), job._folder)
        new_path = partial(dataset.staging_path, "data")
        slices = write_task_slices(batches, task, new_path, job._progress.writes)
        job._report_written(slices, monotonic())
        return slices

    prepared = PreparedMerge(lambda plan: merged())  # type: ignore[arg-type, return-value]
    written = run_merge(prepared, write, job._reporter)
    return StagedSlices(schema, written)


class ArrowEngine:
    """Runs the queries of :func:`query_sql`; all have no state."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def find_external(self, name: str) -> None:
        """Return no external engine."""

    def run(
        self,
        operation: Operation,
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
    ) -> TransactionResult:
        """Run one transaction."""
        if operation != "execute":
            raise Unsupported("no query has a state")
        self._jobs.interrupt()
        step = (request.transform.queries or [])[0]
        query = parse_query([str(each.dataset_id) for each in request.query_inputs], step.query)
        rows: list[Row] = []
        for each in request.query_inputs:
            stored = [row for path in each.data_paths for row in read_rows(Path(path))]
            if (offsets := each.offset_interval) is not None:
                assert len(stored) == offsets.end - offsets.start + 1, "the slices are not the interval"
            rows += query.rows(stored)
        fields = [("event_time", pa.timestamp("ms", "UTC")), ("city", pa.string()), ("people", pa.int64())]
        schema = declared or slice_schema(pa.schema(fields), request.vocab)
        if not rows:
            return TransactionResult(None, schema)
        written = write_slice(
            [_batch(rows, schema)],
            SliceProperties(
                schema=schema,
                vocab=request.vocab,
                first_offset=request.next_offset,
                system_time=request.system_time,
                fallback_event_time=request.system_time,
            ),
            path=Path(request.new_data_path),
            reporter=reporter,
        )
        return TransactionResult(written, schema)
