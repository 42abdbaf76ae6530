"""Stateful transactions: batch boundaries, execution, row order."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded
from odf_engine.data.slices import WrittenSlice, write_slice
from odf_engine.errors import BadData, InvalidQuery, NotFound, Unsupported
from odf_engine.metadata.model import Checkpoint, DatasetVocabulary, TransformRequest, TransformRequestInput
from odf_engine.progress import Reporter
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.readers import query_schema, readable_slice
from odf_engine.spark.row_order import SortOrder, external_sort, sort_by_all_columns, sort_by_terms
from odf_engine.spark.runtime.spark_conf import is_on_this_machine
from odf_engine.spark.sql_types import arrow_schema, spark_schema
from odf_engine.spark.streaming.micro_batch import MicroBatchQuery, is_safe_path
from odf_engine.spark.streaming.stateful_query import ROWS, StreamingPlan, plan_stream
from odf_engine.spark.text_files import spark_path
from odf_engine.spark.user_query import run_query
from odf_engine.transform.engines.checkpoint import (
    ENGINE,
    FORMAT,
    CheckpointMetadata,
    read_checkpoint,
    read_checkpoint_metadata,
    write_checkpoint,
)
from odf_engine.transform.engines.contract import TransactionResult
from odf_engine.transform.engines.output_contract import EmittedRows, OutputContract, read_emitted

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


class BatchSorter:
    """Sorts the rows of batches.

    Args:
        session: session of the job.
        folder: folder for files that must exist while the rows are read.
        reporter: receives amounts; checked for cancellation.
    """

    def __init__(self, session: SparkSession, folder: Path, reporter: Reporter) -> None:
        self._session = session
        self._folder = folder
        self._reporter = reporter

    def sorted(self, frame: DataFrame, contract: OutputContract, number: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of batch ``number`` sorted by event time and then by every other column.

        All rows have been read from the frame at return.

        Raises:
            BadData: a row has no event time.
        """
        time, path = contract.event_time, self._path(number)
        schema = arrow_schema(frame.schema)
        if any(types.is_nested(field.type) for field in schema):
            self._write(self._rows(frame, contract), schema, path)
            return arrow_batches(self._by_spark(schema, path, time), self._reporter, progress=False)[1]
        order = SortOrder(tuple(sorted(schema.names, key=lambda name: name != time)))
        rows = self._rows(frame, contract)
        found = external_sort(
            rows, order, path, lambda kind: self._by_spark(kind, path, time), self._reporter
        )
        first = next(found, None)
        return iter(()) if first is None else chain([first], found)

    def kept(self, frame: DataFrame, contract: OutputContract, number: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of batch ``number`` unsorted, for :meth:`sort_by_query`.

        All rows have been read from the frame at return.

        Raises:
            BadData: a row has no event time.
        """
        path = self._path(number)
        self._write(self._rows(frame, contract), arrow_schema(frame.schema), path)
        return pq.ParquetFile(path).iter_batches()

    def ordered(
        self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, order: Sequence[str], time: str
    ) -> Iterator[pa.RecordBatch]:
        """Sort rows by the query's ORDER BY (:attr:`StreamingPlan.order`), then by time and every other
        column.
        """
        path = self._folder / "unsorted.parquet"
        self._write(rows, schema, path)
        frame = sort_by_terms(self._read(schema, path), order, time)
        return arrow_batches(frame, self._reporter, progress=False)[1]

    def _path(self, number: int) -> Path:
        return self._folder / f"rows-{number}.parquet"

    def _rows(self, frame: DataFrame, contract: OutputContract) -> Iterator[pa.RecordBatch]:
        return map(contract.require_event_time, arrow_batches(frame, self._reporter)[1])

    def _write(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
        with pq.ParquetWriter(path, schema, compression="lz4") as writer:
            for batch in rows:
                writer.write_batch(batch)

    def _by_spark(self, schema: pa.Schema, path: Path, time: str) -> DataFrame:
        return sort_by_all_columns(self._read(schema, path), time)

    def _read(self, schema: pa.Schema, path: Path) -> DataFrame:
        return self._session.read.schema(spark_schema(schema)).parquet(spark_path(path))


END_OF_TIME: Final = 253_402_300_799_000
"""A watermark in milliseconds after all rows: the end of the year 9999."""


@dataclass(frozen=True)
class Slice:
    """A slice of an input.

    Attributes:
        path: path of the file.
        at: index of the input.
        added: system time of its commit, in milliseconds.
        earliest: minimum event time in milliseconds; None without rows.
        changes: whether it has retractions or corrections.
    """

    path: Path
    at: int
    added: int
    earliest: int | None
    changes: bool


@dataclass(frozen=True)
class Batch:
    """The slices of one micro-batch.

    Attributes:
        slices: in the order of their commits.
        watermark: watermark after them, in milliseconds; None if unknown.
    """

    slices: Sequence[Slice]
    watermark: int | None


@dataclass(frozen=True)
class Watermarks:
    """The latest watermark of each input, by its alias, in milliseconds."""

    known: Mapping[str, int]

    def combined(self, aliases: Sequence[str]) -> int | None:
        """Return the minimum of the watermarks; None if an input has none."""
        found = [self.known.get(alias) for alias in aliases]
        return None if None in found else min(mark for mark in found if mark is not None)

    def after(self, inputs: Sequence[TransformRequestInput], until: int | None) -> Watermarks:
        """Return the watermarks just before a time; None for the end of the transaction."""
        known = dict(self.known)
        for each in inputs:
            for mark in each.explicit_watermarks:
                if until is None or mark.system_time.ms < until:
                    alias = each.query_alias
                    known[alias] = max(known.get(alias, mark.event_time.ms), mark.event_time.ms)
        return Watermarks(known)


def read_slices(inputs: Sequence[TransformRequestInput]) -> list[Slice]:
    """Read the properties of a transaction's slices, in the order of their commits.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    found = [_slice(Path(path), at, each.vocab) for at, each in enumerate(inputs) for path in each.data_paths]
    return sorted(found, key=lambda each: each.added)


def batches(
    slices: Sequence[Slice], inputs: Sequence[TransformRequestInput], before: Watermarks, *, each: bool
) -> Iterator[Batch]:
    """Yield the batches of a transaction. Larger batches give the same rows as single slices.

    Args:
        slices: in order.
        inputs: the inputs, with the new watermarks.
        before: watermarks at the start.
        each: every slice must be a separate batch.
    """
    aliases = [item.query_alias for item in inputs]
    reached = before.combined(aliases)
    held: list[Slice] = []
    for added, group in groupby(slices, key=lambda item: item.added):
        new = list(group)
        mark = before.after(inputs, added).combined(aliases)
        if mark is None or (reached is not None and mark <= reached):
            mark = reached
        late = mark is not None and mark != reached and any(_is_late(item, mark) for item in new)
        if late or (each and held):
            if held or not each:
                yield Batch(held, mark)
            held, reached = [], mark
        held += new
    last = before.after(inputs, None).combined(aliases)
    if held or (last != reached and not each):
        yield Batch(held, last)


def batches_by_watermark(
    slices: Sequence[Slice], inputs: Sequence[TransformRequestInput], before: Watermarks, *, each: bool
) -> Iterator[Batch]:
    """Yield the batches for queries that emit rows when the watermark reaches their time (as-of joins).

    Also for queries whose output depends on each commit.

    Args:
        slices: in order.
        inputs: the inputs, with the new watermarks.
        before: watermarks at the start.
        each: every commit must be a separate batch, even one with a watermark alone.
    """
    aliases = [item.query_alias for item in inputs]
    done = reached = before.combined(aliases)
    held: list[Slice] = []
    moments = {item.added for item in slices}
    moments |= {mark.system_time.ms for item in inputs for mark in item.explicit_watermarks}
    for moment in sorted(moments):
        new = [item for item in slices if item.added == moment]
        # A version may arrive for the exact time up to which rows were emitted.
        late = reached is not None and any(_is_late(item, reached + 1) for item in new)
        if (late or each) and (held or reached != done):
            yield Batch(held, reached)
            held, done = [], reached
        held += new
        mark = before.after(inputs, moment + 1).combined(aliases)
        reached = mark if reached is None or (mark is not None and mark > reached) else reached
    if held or reached != done:
        yield Batch(held, reached)


def _is_late(slice: Slice, mark: int) -> bool:
    return slice.earliest is not None and slice.earliest < mark


def _slice(path: Path, at: int, vocab: DatasetVocabulary) -> Slice:
    names = (vocab.system_time_column, vocab.event_time_column, vocab.operation_type_column)
    try:
        with open_parquet(path) as file:
            ranges = _recorded(file, names) or _computed(path, names)
    except FileNotFoundError:
        raise NotFound("a data slice is missing", where=str(path), hint="see: odf verify") from None
    except UNREADABLE as error:
        raise BadData(f"the data slice cannot be read: {error}", where=str(path)) from error
    added, times, operations = ranges
    return Slice(
        path,
        at,
        _milliseconds(added[0]) or 0,
        _milliseconds(times[0]),
        operations[1] is not None and operations[1] > 0,
    )


def _recorded(file: pq.ParquetFile, names: Sequence[str]) -> list[tuple[Any, Any]] | None:
    """Return minimum and maximum of columns from the file's statistics; None without statistics."""
    metadata = file.metadata
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    found: list[tuple[Any, Any]] = []
    for name in names:
        parts = [
            metadata.row_group(group).column(places[name]).statistics
            for group in range(metadata.num_row_groups)
        ]
        if not parts or not all(part is not None and part.has_min_max for part in parts):
            return None
        found.append((min(part.min for part in parts), max(part.max for part in parts)))
    return found


def _computed(path: Path, names: Sequence[str]) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for name in names:
        ends = [pc.min_max(batch.column(0)) for batch in read_bounded(path, [name])]
        least = [each["min"].as_py() for each in ends if each["min"].is_valid]
        greatest = [each["max"].as_py() for each in ends if each["max"].is_valid]
        found.append((min(least, default=None), max(greatest, default=None)))
    return found


def _milliseconds(value: date | datetime | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


_MILLISECOND = datetime(1970, 1, 1, microsecond=1000) - datetime(1970, 1, 1)


_EMITTED: Final = "emitted.arrow"


class PreparedQuery(NamedTuple):
    """A query that is ready to run: its slices, and the emitted rows of a grouping without a window."""

    query: StreamingPlan
    contract: OutputContract
    slices: list[Slice]
    emitted: EmittedRows | None


class StatefulTransaction:
    """A transaction of a stateful query.

    Args:
        session: session of the job, in which ``system_time()`` is defined.
        request: the request; the folder of its new checkpoint is used for temporary files.
        declared: schema of the dataset; None before it has one.
        reporter: receives amounts and late rows; checked for cancellation.
        state: fingerprint of the query's state (:attr:`ValidatedQuery.state`).
    """

    def __init__(
        self,
        session: SparkSession,
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
        state: str,
    ) -> None:
        self._session = session
        self._request = request
        self._depends = state
        self._declared = declared
        self._reporter = reporter
        self._new_checkpoint = Path(request.new_checkpoint_path)
        folder = self._folder = safe_folder(
            self._new_checkpoint.with_name("stream"), str(session.sparkContext.master)
        )
        self._kept = folder / "kept"
        self._scratch = folder / "scratch"
        self._scratch.mkdir(parents=True)
        self._arrange = BatchSorter(session, self._scratch, reporter)
        self._streams = MicroBatchQuery(session, self._kept / "state", folder)

    def run(self) -> TransactionResult:
        """Run it; write the slice and the checkpoint.

        Raises:
            InvalidQuery, Unsupported: the query is invalid or not supported.
            BadData: a value, a slice or the checkpoint is invalid.
            Cancelled: no output files remain.
        """
        return self._cleared(self._run)

    def finish(self) -> TransactionResult:
        """Write the remaining rows and no checkpoint; the request has no new input data.

        Raises:
            OdfError: as for :meth:`run`.
        """
        return self._cleared(self._finish)

    def rebuild(self) -> TransactionResult:
        """Write the state after all input data of the request, from an empty state.

        The rows are dropped. For a grouping without a window the slice has the changes that turn the rows of
        the query whose checkpoint is in the request into its own rows.

        Raises:
            OdfError: as for :meth:`run`.
        """
        return self._cleared(self._rebuild)

    def _cleared(self, work: Callable[[], TransactionResult]) -> TransactionResult:
        try:
            return work()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> TransactionResult:
        about = self._before()
        ready = self._ready()
        marks = Watermarks(about.watermarks)
        if ready.emitted is not None:
            ready.emitted.load(self._kept / _EMITTED)
        todo = self._batches(ready, marks)
        written = self._write(chain.from_iterable(self._results(ready, todo)), ready.contract)
        after = marks.after(self._request.query_inputs, None)
        checkpoint = None
        if todo or after != marks or self._request.prev_checkpoint_path is None:
            checkpoint = self._save(ready, after)
        return TransactionResult(written, ready.contract.schema, checkpoint)

    def _finish(self) -> TransactionResult:
        self._before()
        ready = self._ready()
        if ready.emitted is not None:
            ready.emitted.load(self._kept / _EMITTED)
        rows = self._results(ready, [Batch([], END_OF_TIME)])
        written = self._write(chain.from_iterable(rows), ready.contract)
        return TransactionResult(written, ready.contract.schema)

    def _rebuild(self) -> TransactionResult:
        ready, nothing = self._ready(), Watermarks({})
        todo = self._batches(ready, nothing)
        for rows in self._results(ready, todo):
            deque(rows, maxlen=0)
        written = None
        if ready.emitted is not None:
            changes = _with_operations(*ready.emitted.replacement_changes(self._emitted_before()))
            written = self._write(iter(changes), ready.contract)
        checkpoint = self._save(ready, nothing.after(self._request.query_inputs, None))
        return TransactionResult(written, ready.contract.schema, checkpoint)

    def _ready(self) -> PreparedQuery:
        slices = read_slices(self._request.query_inputs)
        aliases = {self._request.query_inputs[each.at].query_alias for each in slices if each.changes}
        query = self._query(aliases)
        columns = arrow_schema(query.frame.schema)
        own = pa.schema([columns.field(name) for name in query.query_columns(columns.names)])
        contract = OutputContract(own, self._request.vocab, self._declared)
        self._check(query, slices)
        emitted = EmittedRows(own, query.keys, contract.event_time) if query.mode == "update" else None
        return PreparedQuery(query, contract, slices, emitted)

    def _batches(self, ready: PreparedQuery, marks: Watermarks) -> list[Batch]:
        inputs = self._request.query_inputs
        if ready.query.by_commit:
            return list(batches_by_watermark(ready.slices, inputs, marks, each=True))
        return list(batches(ready.slices, inputs, marks, each=ready.emitted is not None))

    def _results(self, ready: PreparedQuery, todo: Sequence[Batch]) -> list[Iterator[pa.RecordBatch]]:
        """Run batches; return the rows of each in order."""
        results: list[Iterator[pa.RecordBatch]] = []
        for number, batch in enumerate(todo):
            rows = self._batch(ready.query, ready.contract, batch, number)
            results.append(rows if ready.emitted is None else _changed(ready.emitted, rows))
        if not ready.query.order:
            return results
        rows = chain.from_iterable(results)
        schema = arrow_schema(ready.query.frame.schema)
        return [self._arrange.ordered(rows, schema, ready.query.order, ready.contract.event_time)]

    # --- The query and its state --------------------------------------------------------------

    def _query(self, changing: set[str]) -> StreamingPlan:
        views: dict[str, DataFrame] = {}
        for at, each in enumerate(self._request.query_inputs):
            schema = query_schema(pq.read_schema(each.schema_file), each.vocab)
            views[each.query_alias] = self._streams.view(at, schema, each.vocab)
        frame = run_query(self._session, views, self._request.transform.queries or [])
        inputs = {each.query_alias: each.vocab for each in self._request.query_inputs}
        return plan_stream(self._session, frame, inputs, self._request.vocab.event_time_column, changing)

    def _before(self) -> CheckpointMetadata:
        """Extract and return the state of the previous transaction."""
        path = self._request.prev_checkpoint_path
        if path is None:
            return CheckpointMetadata(
                format=FORMAT, engine=ENGINE, query=_hash(self._request), watermarks={}, watermark=None
            )
        about = read_checkpoint(Path(path), self._kept)
        if about.query != _hash(self._request) and about.state != self._depends:
            raise Unsupported(
                "the checkpoint holds the state of another query or of other inputs",
                where=path,
                hint="put the old query back; odf add --update sees to the state where a query changes",
            )
        return about

    def _emitted_before(self) -> pa.Table | None:
        """Return the latest rows of the previous query's groups, if it had any."""
        path, folder = self._request.prev_checkpoint_path, self._scratch / "before"
        if path is None:
            return None
        folder.mkdir()
        read_checkpoint(Path(path), folder)
        return read_emitted(folder / _EMITTED)

    def _save(self, ready: PreparedQuery, marks: Watermarks) -> Checkpoint:
        if ready.emitted is not None:
            ready.emitted.save(self._kept / _EMITTED)
        aliases = [each.query_alias for each in self._request.query_inputs]
        about = CheckpointMetadata(
            format=FORMAT,
            engine=ENGINE,
            query=_hash(self._request),
            state=self._depends,
            watermarks=dict(marks.known),
            watermark=marks.combined(aliases),
        )
        return write_checkpoint(self._new_checkpoint, about, self._kept)

    def _check(self, query: StreamingPlan, slices: Sequence[Slice]) -> None:
        """Reject rows that the query cannot process correctly."""
        plain, streamed = self._plain(query), self._streamed(query)
        for each in slices:
            name = self._request.query_inputs[each.at].query_alias
            if each.changes and name in plain:
                raise InvalidQuery(
                    f"the input '{name}' has retractions or corrections, and {plain[name]} "
                    "cannot take rows back",
                    where="query",
                    hint="count, sum and avg can; or say what they mean to the query, such as WHERE op = 0",
                )
            if name in streamed and each.earliest is not None and each.earliest < 0:
                raise BadData(
                    f"the input '{name}' has rows from before 1970, which a query with state cannot have",
                    where=str(each.path),
                    hint="filter them out in a dataset of its own",
                )

    def _plain(self, query: StreamingPlan) -> Mapping[str, str]:
        """Return the inputs whose changes are not supported, with the operation that prevents it."""
        return query.unsupported_changes

    def _streamed(self, query: StreamingPlan) -> set[str]:
        """Return the inputs whose rows must be in the time range of Spark's streams."""
        aliases = {each.query_alias for each in self._request.query_inputs}
        return aliases if query.mode == "append" else set()

    # --- Batches ------------------------------------------------------------------------------

    def _batch(
        self, query: StreamingPlan, contract: OutputContract, batch: Batch, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Run a batch; return its rows in order."""
        files = self._files(batch, number)
        taken: list[Iterator[pa.RecordBatch]] = []

        def take(frame: DataFrame) -> None:
            gather = self._arrange.kept if query.order else self._arrange.sorted
            taken.append(gather(frame, contract, number))

        # A row with exactly the watermark's time may still arrive, if that makes a difference.
        mark = max(0, (batch.watermark or 0) - query.exact)
        late = self._streams.run(query.frame, query.mode, files, mark, take, self._reporter)
        if late:
            self._reporter.log(f"{late:,} rows came too late for what they belong to: left out", "warning")
        return chain.from_iterable(taken)

    def _files(self, batch: Batch, number: int) -> list[list[Path]]:
        """Return the files of a batch by input."""
        inputs = self._request.query_inputs
        files: list[list[Path]] = [[] for _ in inputs]
        for each in batch.slices:
            name = f"{number}-{each.at}-{len(files[each.at])}.parquet"
            path = readable_slice(each.path, inputs[each.at].vocab, self._scratch / f"copy-{name}")
            files[each.at].append(path if is_safe_path(path) else _link(self._scratch / f"link-{name}", path))
        return files

    def _write(self, rows: Iterator[pa.RecordBatch], contract: OutputContract) -> WrittenSlice | None:
        request = self._request
        return write_slice(
            (_finished(contract, batch) for batch in rows),
            schema=contract.schema,
            vocab=request.vocab,
            path=Path(request.new_data_path),
            first_offset=request.next_offset,
            system_time=request.system_time,
            fallback_event_time=request.system_time,
            reporter=self._reporter,
        )


def matching_checkpoint(request: TransformRequest) -> CheckpointMetadata | None:
    """Return the checkpoint's metadata if it belongs to exactly this query; else None.

    Raises:
        BadData, Unsupported: the checkpoint cannot be read.
    """
    path = request.prev_checkpoint_path
    about = None if path is None else read_checkpoint_metadata(Path(path))
    return about if about is not None and about.query == _hash(request) else None


def _hash(request: TransformRequest) -> str:
    """Return the hash of the query and its inputs, to which the state belongs."""
    steps = msgspec.json.encode(request.transform.queries or [], order="sorted")
    if request.transform.temporal_tables:
        steps += msgspec.json.encode(request.transform.temporal_tables, order="sorted")
    aliases = [f"{each.dataset_id} {each.query_alias}" for each in request.query_inputs]
    return hashlib.sha3_256(b"\n".join([steps, *map(str.encode, aliases)])).hexdigest()


def safe_folder(folder: Path, master: str) -> Path:
    """Return the folder, or a temporary one if Spark would interpret characters of its path.

    Raises:
        Unsupported: the machines of a cluster could not access a temporary folder.
    """
    if is_safe_path(folder):
        return folder
    if not is_on_this_machine(master):
        raise Unsupported(
            "on a cluster, a query with state needs a workspace whose path has no other characters than "
            "letters, digits and _ . - /",
            where=str(folder),
            hint="move the workspace, or run Spark here: odf config set spark.master 'local[*]'",
        )
    return Path(tempfile.mkdtemp(prefix="odf-stream-"))


def _link(link: Path, path: Path) -> Path:
    link.symlink_to(path)
    return link


_OPERATION: Final = "odf_operation"


def _finished(contract: OutputContract, batch: pa.RecordBatch) -> pa.RecordBatch:
    if _OPERATION in batch.schema.names:
        return contract.finished(batch, batch.column(_OPERATION))
    return contract.finished(batch, pa.repeat(pa.scalar(int(Op.APPEND), pa.int32()), batch.num_rows))


def _changed(emitted: EmittedRows, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the latest rows of groups, with the operation of each row."""
    found = list(rows)
    if not found:
        return iter(())
    table = pa.Table.from_batches(found)
    alive = [count > 0 for count in table.column(ROWS).to_pylist()]
    return iter(_with_operations(*emitted.changes(table, alive)))


def _with_operations(changes: pa.Table, operations: Sequence[int]) -> list[pa.RecordBatch]:
    made = changes.append_column(_OPERATION, pa.array(operations, pa.int32()))
    return made.to_batches(max_chunksize=1 << 16)
