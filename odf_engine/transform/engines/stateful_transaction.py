"""Stateful transactions: batch boundaries, execution, row order."""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import reduce
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import INPUT_BITS, OPERATION, ROWS, Op
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded
from odf_engine.data.slices import WrittenSlice, copy_rows, read_batches
from odf_engine.errors import BadData, InvalidQuery, NotFound, Unsupported
from odf_engine.metadata.model import (
    Checkpoint,
    DatasetVocabulary,
    Sql,
    TransformRequest,
    TransformRequestInput,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.plan_rewrite import run_sql
from odf_engine.spark.readers import query_schema, slices_frame
from odf_engine.spark.row_order import (
    SortOrder,
    external_sort,
    sort_by_all_columns,
    sort_by_terms,
)
from odf_engine.spark.sql_types import arrow_schema, identifier, spark_schema
from odf_engine.spark.stateful.changelog_stages import RANK, ChangelogPlanner
from odf_engine.spark.stateful.incremental import (
    IS_ADDITION,
    BatchWatermarks,
    StateFiles,
    nullable,
    write_batches,
)
from odf_engine.spark.stateful.stateful_query import WATERMARK, StreamingPlan, StreamPlanner, stream_view
from odf_engine.spark.stateful.window_functions import BATCH
from odf_engine.spark.user_query import run_query
from odf_engine.transform.engines.checkpoint import (
    FORMAT,
    CheckpointMetadata,
    read_checkpoint,
    read_usable_metadata,
    write_checkpoint,
)
from odf_engine.transform.engines.contract import LateRows, QueryInput, TransactionResult
from odf_engine.transform.engines.output_contract import (
    EmittedRows,
    OutputContract,
    input_schemas,
    read_emitted_rows,
    write_result,
)

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


@dataclass(frozen=True)
class BatchSorter:
    """Sorts the rows of batches.

    Attributes:
        session: session of the job.
        folder: folder for files that must exist while the rows are read.
        reporter: receives amounts; checked for cancellation.
    """

    session: SparkSession
    folder: Path
    reporter: Reporter

    def sort_by_time(
        self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, time: str, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Return rows sorted by batch, event time and every other column; retractions before additions.

        All rows have been read at return. ``number`` identifies the files.
        """
        path = self._path(number)
        if any(types.is_nested(field.type) for field in schema):
            self._write(rows, schema, path)
            frame = sort_by_all_columns(self._read(schema, path), *_first_order(schema), identifier(time))
            return arrow_batches(frame, self.reporter, progress=False)[1]
        first = [*_first_order(schema), time]
        order = SortOrder((*first, *(name for name in schema.names if name not in first)))
        sorted_rows = external_sort(rows, order, path)
        first = next(sorted_rows, None)
        return iter(()) if first is None else chain([first], sorted_rows)

    def store(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, number: int) -> None:
        """Store rows for :meth:`sort_by_query`; ``number`` identifies the file."""
        self._write(rows, schema, self._path(number))

    def sort_by_query(
        self, numbers: Iterable[int], schema: pa.Schema, order: Sequence[str], time: str
    ) -> Iterator[pa.RecordBatch]:
        """Return all stored rows by the query's ORDER BY (:attr:`StreamingPlan.order`), then by time and
        every other column.
        """
        frame = sort_by_terms(self._read(schema, *map(self._path, numbers)), order, time)
        return arrow_batches(frame, self.reporter, progress=False)[1]

    def _path(self, number: int) -> Path:
        return self.folder / f"rows-{number}.parquet"

    def _write(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
        selected = (batch.select(schema.names) for batch in rows)
        write_batches(path, nullable(schema), selected, "lz4")

    def _read(self, schema: pa.Schema, *paths: Path) -> DataFrame:
        return parquet_frame(self.session, paths, spark_schema(schema))


def _first_order(schema: pa.Schema) -> list[str]:
    """Return the columns that precede the event time in the order of rows."""
    return [name for name in (BATCH, IS_ADDITION, RANK) if name in schema.names]


END_OF_TIME: Final = 253_402_300_799_000
"""A watermark in milliseconds after all rows: the end of the year 9999."""


@dataclass(frozen=True)
class Slice:
    """A slice of an input.

    Attributes:
        path: path of the file.
        input_index: index of the input.
        added: system time of its commit, in milliseconds.
        earliest: minimum event time in milliseconds, or None without rows.
        changes: whether it has retractions or corrections.
        rows: number of its rows.
    """

    path: Path
    input_index: int
    added: int
    earliest: int | None
    changes: bool
    rows: int


@dataclass(frozen=True)
class Batch:
    """The slices of one batch.

    Attributes:
        slices: the slices in the order of their commits.
        watermark: watermark after them, in milliseconds, or None if unknown.
    """

    slices: Sequence[Slice]
    watermark: int | None


@dataclass(frozen=True)
class Watermarks:
    """The latest watermark of each input, by its alias, in milliseconds."""

    by_alias: Mapping[str, int]

    def combined(self, aliases: Sequence[str]) -> int | None:
        """Return the minimum of the watermarks, or None if an input has none."""
        watermarks = [self.by_alias.get(alias) for alias in aliases]
        known = [watermark for watermark in watermarks if watermark is not None]
        return min(known, default=None) if len(known) == len(watermarks) else None

    def after(self, inputs: Sequence[TransformRequestInput], until: int | None) -> Watermarks:
        """Return the watermarks just before a time, or None for the end of the transaction."""
        updated = dict(self.by_alias)
        for each in inputs:
            for watermark in each.explicit_watermarks:
                if until is None or watermark.system_time.ms < until:
                    alias = each.query_alias
                    updated[alias] = max(updated.get(alias, watermark.event_time.ms), watermark.event_time.ms)
        return Watermarks(updated)


def read_slices(inputs: Sequence[TransformRequestInput]) -> list[Slice]:
    """Read the properties of a transaction's slices, in the order of their commits.

    A slice with the rows of several commits is copied to one file for each: results can depend on commits.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    slices = [
        item
        for index, each in enumerate(inputs)
        for path in each.data_paths
        for item in _slices_of_commits(Path(path), index, each)
    ]
    return sorted(slices, key=lambda each: each.added)


def batches_by_slice(
    slices: Sequence[Slice], inputs: Sequence[TransformRequestInput], before: Watermarks, *, each: bool
) -> Iterator[Batch]:
    """Yield the batches of a transaction. Larger batches produce the same rows as single slices.

    Args:
        slices: in order.
        inputs: the inputs, with the new watermarks.
        before: watermarks at the start.
        each: every slice must be a separate batch.
    """
    aliases = [item.query_alias for item in inputs]
    watermark_before = before.combined(aliases)
    pending: list[Slice] = []
    for added, group in groupby(slices, key=lambda item: item.added):
        new = list(group)
        watermark = before.after(inputs, added).combined(aliases)
        if watermark is None or (watermark_before is not None and watermark <= watermark_before):
            watermark = watermark_before
        late = (
            watermark is not None
            and watermark != watermark_before
            and any(is_late(item, watermark) for item in new)
        )
        if late or (each and pending):
            if pending or not each:
                yield Batch(pending, watermark)
            pending, watermark_before = [], watermark
        pending += new
    last = before.after(inputs, None).combined(aliases)
    if pending or (last != watermark_before and not each):
        yield Batch(pending, last)


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
    batch_watermark = reached = before.combined(aliases)
    pending: list[Slice] = []
    times = {item.added for item in slices}
    times |= {watermark.system_time.ms for item in inputs for watermark in item.explicit_watermarks}
    for time in sorted(times):
        new = [item for item in slices if item.added == time]
        # A version may arrive for the exact time up to which rows were emitted.
        late = reached is not None and any(is_late(item, reached + 1) for item in new)
        if (late or each) and (pending or reached != batch_watermark):
            yield Batch(pending, reached)
            pending, batch_watermark = [], reached
        pending += new
        watermark = before.after(inputs, time + 1).combined(aliases)
        reached = watermark if reached is None or (watermark is not None and watermark > reached) else reached
    if pending or reached != batch_watermark:
        yield Batch(pending, reached)


def split_batches(
    slices: Sequence[Slice],
    inputs: Sequence[TransformRequestInput],
    before: Watermarks,
    query: StreamingPlan,
    *,
    as_of: bool,
) -> list[Batch]:
    """Return the batches of a transaction of a query; ``as_of`` if it has as-of joins.

    The other arguments are as for :func:`batches_by_watermark`.
    """
    split = batches_by_watermark if as_of or query.by_commit else batches_by_slice
    return list(split(slices, inputs, before, each=query.by_commit or query.mode == "update"))


def is_late(slice: Slice, watermark: int) -> bool:
    """Return whether a slice has rows before a watermark in milliseconds."""
    return slice.earliest is not None and slice.earliest < watermark


def _slices_of_commits(path: Path, input_index: int, input: TransformRequestInput) -> Iterator[Slice]:
    """Yield a slice, or the rows of each commit in it. Each commit has one system time."""
    vocab = input.vocab
    found, last_added = read_slice(path, input_index, vocab)
    if found.added == last_added:
        yield found
        return
    times = pa.chunked_array([batch.column(0) for batch in read_batches(path, [vocab.system_time_column])])
    in_milliseconds = times.cast(pa.timestamp("ms", "UTC"), safe=False).combine_chunks()
    ends = pc.run_end_encode(in_milliseconds).run_ends.to_pylist()
    for first, stop in pairwise([0, *ends]):
        copy = Path(input.schema_file).with_name(f"{input_index}-{path.stem[-16:]}-commit-{first}.parquet")
        if not copy.exists():
            copy_rows(path, copy, (first, stop), vocab=vocab, reporter=Reporter())
        yield read_slice(copy, input_index, vocab)[0]


def read_slice(path: Path, input_index: int, vocab: DatasetVocabulary) -> tuple[Slice, int]:
    """Return a slice, and the latest system time of its rows in milliseconds."""
    names = (vocab.system_time_column, vocab.event_time_column, vocab.operation_type_column)
    try:
        with open_parquet(path) as file:
            rows = file.metadata.num_rows
            ranges = _ranges_from_statistics(file, names) or _ranges_from_rows(path, names)
    except FileNotFoundError:
        raise NotFound(
            "slice is missing", where=str(path), hint="run odf verify to find all errors"
        ) from None
    except UNREADABLE as error:
        raise BadData(f"the data slice cannot be read: {error}", where=str(path)) from error
    added, times, operations = ranges
    found = Slice(
        path,
        input_index,
        _to_milliseconds(added[0]) or 0,
        _to_milliseconds(times[0]),
        operations[1] is not None and operations[1] > 0,
        rows,
    )
    return found, _to_milliseconds(added[1]) or 0


def _ranges_from_statistics(file: pq.ParquetFile, names: Sequence[str]) -> list[tuple[Any, Any]] | None:
    """Return minimum and maximum of columns from the file's statistics, or None without statistics."""
    metadata = file.metadata
    column_indexes = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    ranges: list[tuple[Any, Any]] = []
    for name in names:
        parts = [
            metadata.row_group(group).column(column_indexes[name]).statistics
            for group in range(metadata.num_row_groups)
        ]
        if not parts or not all(part is not None and part.has_min_max for part in parts):
            return None
        ranges.append((min(part.min for part in parts), max(part.max for part in parts)))
    return ranges


def _ranges_from_rows(path: Path, names: Sequence[str]) -> list[tuple[Any, Any]]:
    ranges: list[tuple[Any, Any]] = []
    for name in names:
        ends = [pc.min_max(batch.column(0)) for batch in read_bounded(path, [name])]
        least = [end["min"].as_py() for end in ends if end["min"].is_valid]
        greatest = [end["max"].as_py() for end in ends if end["max"].is_valid]
        ranges.append((min(least, default=None), max(greatest, default=None)))
    return ranges


def _to_milliseconds(value: date | datetime | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


_MILLISECOND = datetime(1970, 1, 1, microsecond=1000) - datetime(1970, 1, 1)


_EMITTED: Final = "emitted.arrow"
_BATCHES_AT_ONCE: Final = 32
_SMALL_ROWS: Final = 20_000
"""Rows that one task processes sooner than Spark compiles the query and starts several tasks."""
_SMALL_SLICES: Final = 200
_INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_PLANS: Final[dict[tuple[str | bytes, ...], StreamingPlan]] = {}
"""Plans of recent queries, which depend on the query and the schemas of its inputs."""
_MAX_PLANS: Final = 256


class QuerySource(NamedTuple):
    """The result of a query over streaming views: ``frame``, ``inputs`` and ``system`` of
    :class:`StreamPlanner`.
    """

    frame: DataFrame
    inputs: Mapping[str, DatasetVocabulary]
    system: Mapping[int, str] | None = None


class PreparedQuery(NamedTuple):
    """A query that is ready to run: its slices, and the emitted rows of a grouping without a window."""

    query: StreamingPlan
    source: QuerySource
    contract: OutputContract
    slices: list[Slice]
    emitted: EmittedRows | None

    @property
    def retracts_emitted(self) -> bool:
        """Whether all retractions are of rows in ``emitted``: the query returns no operations."""
        return self.emitted is not None and self.contract.operation is None


def input_streams(session: SparkSession, inputs: Sequence[QueryInput]) -> dict[str, DataFrame]:
    """Return the inputs of a query as streams without rows, whose plan alone is used."""
    return {
        each.alias: stream_view(session, index, query_schema(each.schema, each.vocab), each.vocab)
        for index, each in enumerate(inputs)
    }


def plan_query(
    session: SparkSession, transform: Sql, inputs: Sequence[QueryInput], time: str
) -> tuple[StreamingPlan, QuerySource]:
    """Return the plan of a stateful query without as-of joins, and its result over streaming views.

    Args:
        session: session of the job.
        transform: the query.
        inputs: its inputs, in the order of declaration.
        time: event time column of the result.

    Raises:
        InvalidQuery, Unsupported: the query is invalid or not supported.
    """
    steps = transform.queries or []
    frame = run_query(session, input_streams(session, inputs), steps)
    vocabs = {each.alias: each.vocab for each in inputs}
    key = (
        msgspec.json.encode(steps),
        time,
        *(f"{each.alias} {each.vocab} {each.schema}" for each in inputs),
    )
    plan = _PLANS.get(key)
    if plan is None:
        plan = StreamPlanner(session, vocabs, time).plan_query(frame)
        if len(_PLANS) == _MAX_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan
    return plan, QuerySource(frame, vocabs)


class StatefulTransaction:
    """A transaction of a stateful query.

    Args:
        session: session of the job; it defines ``system_time()``.
        request: the request; the folder of its new checkpoint is used for temporary files.
        declared: schema of the dataset, or None before it has one.
        reporter: receives amounts and late rows; checked for cancellation.
        state: fingerprint of the query's state (:attr:`ValidatedQuery.state`).
    """

    _has_as_of_joins = False

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
        self._fingerprint = state
        self._inputs = [QueryInput.from_request(query_input) for query_input in request.query_inputs]
        self._aliases = [each.alias for each in self._inputs]
        self._declared = declared
        self._reporter = reporter
        self._values = False
        self._is_small = False
        self._new_checkpoint = Path(request.new_checkpoint_path)
        folder = self._folder = self._new_checkpoint.with_name("stateful")
        self._checkpoint_folder = folder / "kept"
        self._scratch = folder / "scratch"
        self._scratch.mkdir(parents=True)
        self._state = StateFiles(session, self._checkpoint_folder / "state", reporter)
        self._sorter = BatchSorter(session, self._scratch, reporter)
        self._late_positions: list[pa.Array] = []
        self._pending: int | None = None
        """Number of rows that wait for the watermark of the inputs, or None if it is unknown."""

    def run(self) -> TransactionResult:
        """Run it; write the slice and the checkpoint.

        Raises:
            InvalidQuery, Unsupported: the query is invalid or not supported.
            BadData: a value, a slice or the checkpoint is invalid.
            Cancelled: no output files remain.
        """
        with self._temporary_files():
            watermarks = self._load_state()
            ready = self._prepare()
            planned = self._plan_batches(ready, watermarks)
            written = self._write_slice(self._run_batches(ready, planned, watermarks), ready.contract)
            after = watermarks.after(self._request.query_inputs, None)
            checkpoint = None
            if planned or after != watermarks or self._request.prev_checkpoint_path is None:
                checkpoint = self._write_checkpoint(ready, after)
            return replace(self._result(ready, written, checkpoint, after), late=self._late_rows())

    def finish(self) -> TransactionResult:
        """Write the remaining rows and no checkpoint; the request has no new input data.

        Raises:
            OdfError: as for :meth:`run`.
        """
        with self._temporary_files():
            watermarks = self._load_state()
            ready = self._prepare()
            rows = self._run_batches(ready, [Batch([], END_OF_TIME)], watermarks)
            written = self._write_slice(rows, ready.contract)
            return TransactionResult(written, ready.contract.schema, None, ready.retracts_emitted)

    def rebuild(self) -> TransactionResult:
        """Write the state after all input data of the request, from an empty state.

        The rows are dropped. The state has the single values that retractions require.
        For a grouping without a window the slice has the changes that turn the rows of
        the query whose checkpoint is in the request into its own rows.

        Raises:
            OdfError: as for :meth:`run`.
        """
        with self._temporary_files():
            self._values = True
            ready, no_watermarks = self._prepare(), Watermarks({})
            planned = self._plan_batches(ready, no_watermarks)
            for rows in self._run_batches(ready, planned, no_watermarks):
                deque(rows, maxlen=0)
            written = None
            if ready.emitted is not None:
                changes = _with_operations(*ready.emitted.replacement_changes(self._load_previous_rows()))
                written = self._write_slice([iter(changes)], ready.contract)
            after = no_watermarks.after(self._request.query_inputs, None)
            checkpoint = self._write_checkpoint(ready, after)
            return self._result(ready, written, checkpoint, after)

    @contextmanager
    def _temporary_files(self) -> Iterator[None]:
        try:
            yield
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _result(
        self,
        ready: PreparedQuery,
        written: WrittenSlice | None,
        checkpoint: Checkpoint | None,
        after: Watermarks,
    ) -> TransactionResult:
        return TransactionResult(
            written,
            ready.contract.schema,
            checkpoint,
            ready.retracts_emitted,
            self._output_watermark(ready, after),
            pending=self._pending if ready.emitted is None else 0,  # groups without a window do not wait
        )

    def _output_watermark(self, ready: PreparedQuery, watermarks: Watermarks) -> Timestamp | None:
        """Return the watermark of the rows, or None if it is the inputs' watermark."""
        watermark = watermarks.combined(self._aliases)
        if watermark is None or not ready.query.delay:
            return None
        return Timestamp.from_ms(watermark).shifted(ms=-ready.query.delay)

    def _prepare(self) -> PreparedQuery:
        slices = read_slices(self._request.query_inputs)
        self._is_small = (
            sum(data_slice.rows for data_slice in slices) + self._state.count_rows() <= _SMALL_ROWS
        )
        if self._is_small:
            interpret_queries(self._session)
        self._values = self._values or any(data_slice.changes for data_slice in slices)
        query, source = self._plan_query()
        contract = OutputContract(
            query.query_schema, self._request.vocab, self._declared, input_schemas(self._request)
        )
        self._check_slices(query, slices)
        emitted = None
        if query.mode == "update":
            emitted = EmittedRows(query.query_schema, query.keys, contract.event_time)
            emitted.load(self._checkpoint_folder / _EMITTED)
        return PreparedQuery(query, source, contract, slices, emitted)

    def _plan_batches(self, ready: PreparedQuery, watermarks: Watermarks) -> list[Batch]:
        inputs, as_of = self._request.query_inputs, self._has_as_of_joins
        return split_batches(ready.slices, inputs, watermarks, ready.query, as_of=as_of)

    def _run_batches(
        self, ready: PreparedQuery, batches: Sequence[Batch], before: Watermarks
    ) -> list[Iterator[pa.RecordBatch]]:
        """Run batches; return their rows in order, in parts.

        Args:
            ready: the query.
            batches: the batches.
            before: watermarks before them.
        """
        exact = ready.query.exact
        watermark = _exclusive(before.combined(self._aliases), exact)
        results: list[Iterator[pa.RecordBatch]] = []
        for number, group in enumerate(self._group_batches(ready.query, batches, before)):
            watermarks = BatchWatermarks(watermark, [_exclusive(each.watermark, exact) for each in group])
            rows = self._run_group(ready, group, watermarks, number)
            results.append(rows if ready.emitted is None else _yield_changes(ready.emitted, rows))
            watermark = watermarks.last
        if not ready.query.order or not results:
            return results
        numbers, time = range(len(results)), ready.contract.event_time
        return [self._sorter.sort_by_query(numbers, ready.query.schema, ready.query.order, time)]

    def _group_batches(
        self, query: StreamingPlan, batches: Sequence[Batch], before: Watermarks
    ) -> Iterator[list[Batch]]:
        """Yield the batches that run as one query."""
        has_values = self._values or self._state.has_values()
        is_sequential = query.sequential == "always" or (query.sequential == "changes" and has_values)
        size = 1 if is_sequential else _BATCHES_AT_ONCE
        watermark = before.combined(self._aliases)
        group: list[Batch] = []
        for batch in batches:
            # A session that was emitted is not extended.
            late = watermark is not None and any(
                is_late(data_slice, watermark + 1) for data_slice in batch.slices
            )
            if group and (len(group) == size or (query.sessions and late)):
                yield group
                group = []
            group.append(batch)
            watermark = batch.watermark
        if group:
            yield group

    def _plan_query(self) -> tuple[StreamingPlan, QuerySource]:
        time = self._request.vocab.event_time_column
        return plan_query(self._session, self._request.transform, self._inputs, time)

    def _load_state(self) -> Watermarks:
        """Extract the state of the previous transaction, and return its watermarks."""
        path = self._request.prev_checkpoint_path
        if path is None:
            return Watermarks({})
        metadata = read_checkpoint(Path(path), self._checkpoint_folder)
        if metadata.query != query_hash(self._request) and metadata.state != self._fingerprint:
            raise Unsupported(
                "the checkpoint belongs to another query or to other inputs",
                where=path,
                hint="restore the old query, and change it with odf add --update, which migrates the state",
            )
        return Watermarks(metadata.watermarks)

    def _load_previous_rows(self) -> pa.Table | None:
        """Return the latest rows of the previous query's groups, if it had any."""
        path, folder = self._request.prev_checkpoint_path, self._scratch / "before"
        if path is None:
            return None
        folder.mkdir()
        read_checkpoint(Path(path), folder)
        return read_emitted_rows(folder / _EMITTED)

    def _write_checkpoint(self, ready: PreparedQuery, watermarks: Watermarks) -> Checkpoint:
        if ready.emitted is not None:
            ready.emitted.save(self._checkpoint_folder / _EMITTED)
        metadata = CheckpointMetadata(
            format=FORMAT,
            engine=spark_engine_version(),
            query=query_hash(self._request),
            state=self._fingerprint,
            watermarks=dict(watermarks.by_alias),
            watermark=watermarks.combined(self._aliases),
        )
        return write_checkpoint(self._new_checkpoint, metadata, self._checkpoint_folder)

    def _check_slices(self, query: StreamingPlan, slices: Sequence[Slice]) -> None:
        """Reject rows that the query cannot process correctly."""
        unsupported = self._unsupported_changes(query)
        for data_slice in slices:
            name = self._alias(data_slice)
            if data_slice.changes and name in unsupported:
                raise InvalidQuery(
                    f"the input '{name}' has retractions or corrections, which {unsupported[name]} "
                    "does not support",
                    where="query",
                    hint="filter by operation, such as WHERE op = 0, or use aggregates over windows",
                )

    def _unsupported_changes(self, query: StreamingPlan) -> Mapping[str, str]:
        """Return the inputs whose changes are not supported, with the operation that prevents it."""
        return query.unsupported_changes

    def _run_group(
        self, ready: PreparedQuery, batches: Sequence[Batch], watermarks: BatchWatermarks, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Run consecutive batches as one query, store the state, and return the rows in order."""
        query = ready.query
        late = late_slices(batches, [watermarks.before, *watermarks.after])
        planner = ChangelogPlanner(
            self._session,
            ready.source.inputs,
            self._request.vocab.event_time_column,
            {
                self._alias(data_slice)
                for batch in batches
                for data_slice in batch.slices
                if data_slice.changes
            }
            | (ready.source.inputs.keys() - set(self._aliases)),
            self._tables(batches, watermarks, number),
            watermarks,
            self._state,
            ready.source.system,
            may_have_late_rows=any(True for _ in late),
            read_operations=query.read_operations,
            values=self._values,
            single_task=self._is_small,
        )
        try:
            frame = planner.result(ready.source.frame)
            found = arrow_batches(frame, self._reporter)[1]
            schema = arrow_schema(frame.schema)
            if planner.open_groups is not None:
                found = self._state.split_open_groups(planner.open_groups, found, schema)
                schema = pa.schema([each for each in schema if each.name not in planner.open_groups.columns])
            found = map(ready.contract.require_event_time, found)
            if query.order:
                self._sorter.store(found, schema, number)
                rows = iter(())
            else:
                rows = self._sorter.sort_by_time(found, schema, ready.contract.event_time, number)
            self._state.replace(planner.states, planner.open_groups)
            self._find_late_rows(planner)
        finally:
            for each in planner.cached:
                each.unpersist()
        return rows

    def _alias(self, slice: Slice) -> str:
        return self._aliases[slice.input_index]

    def _find_late_rows(self, planner: ChangelogPlanner) -> None:
        """Find the rows that were dropped because they are late."""
        if not planner.late:
            return
        with translate_errors(self._reporter):
            late = [run_sql(query, new=new) for new, query in planner.late]
            rows = reduce(lambda one, other: one.unionAll(other), late).distinct()
            found = arrow_batches(rows, self._reporter, progress=False)[1]
            self._late_positions += [batch.column(0) for batch in found]

    def _late_rows(self) -> list[LateRows]:
        """Return the late rows of each input that has any, and log their numbers."""
        late_rows: list[LateRows] = []
        positions = pa.chunked_array(self._late_positions, pa.int64())
        inputs = pc.shift_right(positions, INPUT_BITS)
        for index, each in enumerate(self._request.query_inputs):
            offsets = pc.bit_wise_and(positions.filter(pc.equal(inputs, index)), (1 << INPUT_BITS) - 1)
            if len(offsets):
                late_rows.append(LateRows(each.query_alias, offsets.take(pc.array_sort_indices(offsets))))
        if late_rows:
            numbers = ", ".join(f"{row.alias}: {len(row.offsets):,}" for row in late_rows)
            text = f"late rows dropped: {len(positions):,} ({numbers})"
            self._reporter.warn(text, "late-rows", len(positions))
        return late_rows

    def _tables(
        self, batches: Sequence[Batch], watermarks: BatchWatermarks, number: int
    ) -> dict[str, DataFrame]:
        """Return the new rows of each input, with their batch and the watermark before it."""
        tables: dict[str, DataFrame] = {}
        before = [watermarks.before, *watermarks.after]
        for index, batch in enumerate(batches):
            mark = before[index]
            time = "CAST(NULL AS TIMESTAMP)" if mark is None else f"timestamp_millis({mark}L)"
            for name, frame in self._batch_tables(batch, number * _BATCHES_AT_ONCE + index).items():
                rows = frame.selectExpr("*", f"{index + 1} AS {BATCH}", f"{time} AS {WATERMARK}")
                tables[name] = tables[name].unionAll(rows) if name in tables else rows
        return tables

    def _batch_tables(self, batch: Batch, number: int) -> dict[str, DataFrame]:
        """Return the rows of a batch by input."""
        return self._input_frames(batch.slices, self._aliases)

    def _input_frames(self, slices: Sequence[Slice], names: Collection[str]) -> dict[str, DataFrame]:
        """Return inputs as frames, with the rows of some slices."""
        return {
            each.alias: input_frame(
                self._session, [slice.path for slice in slices if slice.input_index == index], each
            )
            for index, each in enumerate(self._inputs)
            if each.alias in names
        }

    def _write_slice(
        self, parts: Sequence[Iterator[pa.RecordBatch]], contract: OutputContract
    ) -> WrittenSlice | None:
        selected = (_select_columns(contract, batch) for rows in parts for batch in rows)
        return write_result(selected, contract.schema, self._request, self._reporter)


def interpret_queries(session: SparkSession) -> None:
    """Let Spark interpret the queries of a session instead of compiling them: faster for few rows."""
    for name, value in _INTERPRETED.items():
        session.conf.set(name, value)


def has_few_rows(paths: Sequence[Path]) -> bool:
    """Return whether Spark interprets a query over these slices sooner than it compiles it.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    if len(paths) > _SMALL_SLICES:
        return False
    try:
        return sum(pq.read_metadata(path).num_rows for path in paths) <= _SMALL_ROWS
    except UNREADABLE:
        return False  # the query reports it


def matching_checkpoint(request: TransformRequest) -> CheckpointMetadata | None:
    """Return the checkpoint's metadata if it belongs to exactly this query; else None.

    Raises:
        StateUnusable: an earlier version of the engine wrote the checkpoint.
        BadData, Unsupported: the checkpoint cannot be read.
    """
    if request.prev_checkpoint_path is None:
        return None
    metadata = read_usable_metadata(Path(request.prev_checkpoint_path))
    return metadata if metadata.query == query_hash(request) else None


def query_hash(request: TransformRequest) -> str:
    """Return the hash of the query and its inputs, to which the state belongs."""
    steps = msgspec.json.encode(request.transform.queries or [], order="sorted")
    if request.transform.temporal_tables:
        steps += msgspec.json.encode(request.transform.temporal_tables, order="sorted")
    aliases = [f"{query_input.dataset_id} {query_input.query_alias}" for query_input in request.query_inputs]
    return hashlib.sha3_256(b"\n".join([steps, *map(str.encode, aliases)])).hexdigest()


def input_views(session: SparkSession, request: TransformRequest) -> dict[str, DataFrame]:
    """Return the rows of the inputs of a transaction, by their alias."""
    return {
        query_input.query_alias: slices_frame(
            session,
            list(map(Path, query_input.data_paths)),
            pq.read_schema(query_input.schema_file),
            query_input.vocab,
        )
        for query_input in request.query_inputs
    }


def input_frame(session: SparkSession, paths: Sequence[Path], input: QueryInput) -> DataFrame:
    """Return the rows of an input, with the types of a stream."""
    frame = slices_frame(session, paths, input.schema, input.vocab)
    time = input.vocab.event_time_column
    if types.is_date(input.schema.field(time).type):
        frame = frame.withColumn(time, frame[identifier(time)].cast("timestamp"))
    return frame


def late_slices(batches: Iterable[Batch], watermarks: Iterable[int | None]) -> Iterator[Slice]:
    """Yield the slices with rows at or before the watermark before their batch, in milliseconds."""
    for batch, watermark in zip(batches, watermarks, strict=False):
        if watermark is not None:
            yield from (data_slice for data_slice in batch.slices if is_late(data_slice, watermark + 1))


def _exclusive(watermark: int | None, exact: bool) -> int | None:
    """Return a watermark that rows with its own time have not reached, if they may still arrive."""
    return None if watermark is None else watermark - exact


def _select_columns(contract: OutputContract, batch: pa.RecordBatch) -> pa.RecordBatch:
    if OPERATION in batch.schema.names:
        return contract.select_columns(batch, batch.column(OPERATION))
    return contract.select_columns(batch, pa.repeat(pa.scalar(int(Op.APPEND), pa.int32()), batch.num_rows))


def _yield_changes(emitted: EmittedRows, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the latest rows of groups, with the operation of each row."""
    batches = list(rows)
    if not batches:
        return iter(())
    table = pa.Table.from_batches(batches)  # sorted by batch
    ends = pc.run_end_encode(table.column(BATCH).combine_chunks()).run_ends.to_pylist()
    changes: list[pa.RecordBatch] = []
    for start, end in pairwise([0, *ends]):
        part = table.slice(start, end - start)
        in_result = [count > 0 for count in part.column(ROWS).to_pylist()]
        changes += _with_operations(*emitted.update(part, in_result))
    return iter(changes)


def _with_operations(changes: pa.Table, operations: Sequence[int]) -> list[pa.RecordBatch]:
    table = changes.append_column(OPERATION, pa.array(operations, pa.int32()))
    return table.to_batches(max_chunksize=1 << 16)
