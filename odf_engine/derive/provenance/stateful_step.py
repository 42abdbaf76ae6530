"""Row provenance of windows, joins, groupings and deduplication."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import python_rows
from odf_engine.data.changelog import ROWS, Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.derive.plan import Transaction
from odf_engine.derive.provenance.stateless_step import LOST, RowsToTrace, StepResult, record_ambiguity
from odf_engine.engines.contract import QueryInput
from odf_engine.engines.input_intervals import stored_offsets
from odf_engine.engines.stateful.batches import (
    END_OF_TIME,
    Batch,
    Watermarks,
    late_slices,
    read_slices,
    split_batches,
)
from odf_engine.engines.stateful.query_plan import input_frame, plan_query
from odf_engine.errors import Unsupported
from odf_engine.metadata.model import TransformRequest
from odf_engine.spark.arrow_batches import arrow_batches, cancellable
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.stateful.incremental import search_steps
from odf_engine.spark.stateful.row_lineage import (
    KEY_PREFIX,
    LAST_BATCH_COLUMN,
    ORIGINS_COLUMN,
    PrefixLineage,
    StreamLineage,
)
from odf_engine.spark.stateful.row_match import (
    LAST_BATCH,
    MATCH_COUNT,
    SLICE_COUNT,
    TargetRows,
    in_ranges,
    key_columns,
    match_rows,
    origins_by_key,
    prefilter,
    stored_form,
)
from odf_engine.spark.stateful.stateful_query import WATERMARK, StreamingPlan
from odf_engine.spark.stateful.window_functions import BATCH
from odf_engine.spark.text_files import spark_path

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


Group = tuple[Any, ...]
_IS_TARGET: Final = "odf_wanted"
_MAX_ENTRIES: Final = 200_000


@dataclass
class Entries:
    """The changelog entries of a group, and the batches with its rows.

    Attributes:
        traced: for each entry, whether it is to be traced.
        batches: in ascending order.
        retracts: whether a traced row retracts another one.
    """

    traced: list[bool] = field(default_factory=list[bool])
    batches: list[int] = field(default_factory=list[int])
    retracts: bool = False


@dataclass(frozen=True)
class Groups:
    """The groups of the traced rows.

    Attributes:
        entries: the entries by the comparable values of the group.
        keys: ``g0``, … and ``odf_key_0``, …: the comparable and the original values of each group.
    """

    entries: dict[Group, Entries]
    keys: DataFrame


def comparable_groups(
    names: Sequence[str], targets: TargetRows, keys: Sequence[str] | None = None
) -> list[str]:
    """Return the columns that identify groups as ``g0``, …, as slices store them.

    Args:
        names: columns of the result.
        targets: rows of a slice.
        keys: other columns with the same values.
    """
    expressions: list[str] = []
    rows = targets.rows
    indexes = match_columns(rows.columns, list(names))
    for index, (name, column_index) in enumerate(zip(names, indexes, strict=True)):
        column = rows.columns[column_index or 0]
        value = identifier(keys[index] if keys else name)
        form = stored_form(value, rows.schema[column].dataType, targets.stored.field(column).type)
        expressions.append(f"{form} AS g{index}")
    return expressions


def _read_changelog(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str], entries: dict[Group, Entries]
) -> None:
    for batch in batches:
        for row in python_rows(batch):
            group = entries.setdefault(group_key(row, columns), Entries())
            if row["op"] == Op.CORRECT_TO and group.traced:
                group.traced[-1] = group.traced[-1] or row[_IS_TARGET]
            else:
                group.traced.append(row[_IS_TARGET])
            is_retraction = row["op"] in (Op.RETRACT, Op.CORRECT_FROM)
            group.retracts = group.retracts or (row[_IS_TARGET] and is_retraction)


def last_batch_of(entries: Entries, batches: Sequence[int]) -> int | None:
    """Return the batch of the last traced entry, or None if entries and batches do not match one to one."""
    if len(entries.traced) != len(batches):
        return None
    return max(batch for batch, is_traced in zip(batches, entries.traced, strict=True) if is_traced)


def changing_batches(values: Sequence[tuple[int, dict[str, Any]]], first: int) -> list[int]:
    """Return the batches that changed the row of a group.

    Args:
        values: row of the group after batches, in their order.
        first: first batch of the transaction.
    """
    emitted: dict[str, Any] | None = None
    changing: list[int] = []
    for batch, row in values:
        values_only = {name: value for name, value in row.items() if name not in (ROWS, LAST_BATCH_COLUMN)}
        latest = values_only if row[ROWS] > 0 else None
        if not _are_values_equal(latest, emitted):
            changing += [batch] if batch >= first else []
            emitted = latest
    return changing


def _are_values_equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_values_equal(one[name], other[name]) for name in one)
    return one == other


def group_key(row: dict[str, Any], columns: Sequence[str]) -> Group:
    """Return the values of a group in comparable form."""
    values = (row[name] for name in columns)
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in values)


_MAX_SLICES: Final = 3000


@dataclass(frozen=True)
class PlannedTransaction:
    """A transaction as planned, with its request."""

    transaction: Transaction
    request: TransformRequest


class Timeline:
    """All batches up to the end of a transaction, numbered from the beginning of its state.

    Args:
        past: the earlier transactions as one, or None if the state begins with this transaction.
        own: the transaction.
        query: the plan of its query.
        as_of: whether the query has as-of joins.

    Attributes:
        first, last: numbers of the batches of the transaction itself.
        changing: names of inputs with retractions or corrections.
        late: names of inputs with late rows.

    Raises:
        Unsupported: there are too many slices.
    """

    def __init__(
        self, past: PlannedTransaction | None, own: PlannedTransaction, query: StreamingPlan, *, as_of: bool
    ) -> None:
        planned = [own] if past is None else [past, own]
        count = sum(len(input.data_paths) for part in planned for input in part.request.query_inputs)
        if count > _MAX_SLICES:
            raise Unsupported(f"the state covers {count:,} slices, more than can be traced at once")
        self._parts = planned
        self._request = own.request
        self._exact = query.exact
        watermarks, self._batches = Watermarks({}), list[Batch]()
        for part in planned:
            self.first = len(self._batches)
            if part is own and part.transaction.kind == "finish":
                self._batches.append(Batch([], END_OF_TIME))
            else:
                inputs = part.request.query_inputs
                self._batches += split_batches(read_slices(inputs), inputs, watermarks, query, as_of=as_of)
            watermarks = watermarks.after(part.request.query_inputs, None)
        self.last = len(self._batches) - 1
        aliases = [input.query_alias for input in own.request.query_inputs]
        slices = [data_slice for batch in self._batches for data_slice in batch.slices]
        self.changing = {aliases[data_slice.input_index] for data_slice in slices if data_slice.changes}
        before = [0, *map(self._watermark, self._batches)]
        self.late = {aliases[data_slice.input_index] for data_slice in late_slices(self._batches, before)}

    def watermarks_after(self, *, exact: bool | None = None) -> list[tuple[int, int]]:
        """Return the watermarks after batches, in milliseconds, each with the first batch that reached it.

        Args:
            exact: whether rows with a time equal to the watermark may still arrive; by default as for the
                query.
        """
        offset = self._exact if exact is None else exact
        watermarks: list[tuple[int, int]] = []
        for number, batch in enumerate(self._batches):
            watermark = max(0, (batch.watermark or 0) - offset)
            if batch.watermark is not None and (not watermarks or watermark > watermarks[-1][0]):
                watermarks.append((watermark, number))
        return watermarks

    def watermark_before(self) -> str:
        """Return the watermark before each batch in milliseconds, as SQL over ``odf_batch``."""
        watermarks = [0, *map(self._watermark, self._batches)]
        return _step_expression(BATCH, list(enumerate(watermarks[:-1])))

    def tables(self, session: SparkSession) -> dict[str, DataFrame]:
        """Return the rows of each input, with the columns for row lineage."""
        return {
            input.query_alias: self._input_table(session, index)
            for index, input in enumerate(self._request.query_inputs)
        }

    def _input_table(self, session: SparkSession, index: int) -> DataFrame:
        input = self._request.query_inputs[index]
        ends = {
            str(plan.entry.dataset.slice_path(row)): row.end
            for part in self._parts
            for plan in [part.transaction.inputs[index]]
            for row in plan.slices
        }
        batch_by_end: dict[int, int] = {}
        paths: list[Path] = []
        for number, batch in enumerate(self._batches):
            for data_slice in batch.slices:
                if data_slice.input_index == index:
                    paths.append(data_slice.path)
                    end = ends.get(str(data_slice.path))
                    if end is None:  # a copy of the rows of a commit in a merged slice
                        end = stored_offsets(data_slice.path, input.vocab.offset_column).end
                    batch_by_end[end] = number
        numbers = sorted(batch_by_end.items())
        watermarks = [
            (end, 0 if number == 0 else self._watermark(self._batches[number - 1])) for end, number in numbers
        ]
        frame = input_frame(session, paths, QueryInput.from_request(input))
        offset = identifier(input.vocab.offset_column)
        return frame.selectExpr(
            "*",
            f"array(struct({index} AS at, {offset} AS offset)) AS {ORIGINS_COLUMN}",
            f"{_step_expression(offset, numbers)} AS {BATCH}",
            f"timestamp_millis(CAST({_step_expression(offset, watermarks)} AS BIGINT)) AS {WATERMARK}",
        )

    def _watermark(self, batch: Batch) -> int:
        return max(0, (batch.watermark or 0) - self._exact)


def _step_expression(column: str, steps: Sequence[tuple[int, int]]) -> str:
    """Return an SQL expression of the value of the first step that reaches a column."""
    merged: list[tuple[int, int]] = []
    for end, value in steps:
        if merged and merged[-1][1] == value:
            merged.pop()
        merged.append((end, value))
    if not merged:
        return "CAST(NULL AS INT)"
    *values, (_, last) = [(end, str(value)) for end, value in merged]
    return search_steps(values, last, lambda end: f"{column} <= {end}", "IF({}, {}, {})".format)


_FINISHED: Final = "its transaction flushed the state of a query"


def _from_comparable(value: Any, data_type: pa.DataType) -> Any:
    return math.nan if value == "NaN" and pa.types.is_floating(data_type) else value


@dataclass
class StatefulTrace:
    """Traces a transaction of a stateful query.

    Args:
        session: created by :func:`odf_engine.derive.provenance.stateless_step.transaction_session`.
        past: the earlier transactions as one, or None if the state begins with this transaction.
        own: the transaction.
        selection: the rows.
        folder: folder for temporary files.
        reporter: receives amounts; checked for cancellation.
    """

    _session: SparkSession
    _past: PlannedTransaction | None
    _own: PlannedTransaction
    _selection: RowsToTrace
    _folder: Path
    _reporter: Reporter
    _as_of: ClassVar = False

    @property
    def _request(self) -> TransformRequest:
        return self._own.request

    @cached_property
    def _inputs(self) -> list[QueryInput]:
        return [QueryInput.from_request(input) for input in self._request.query_inputs]

    def trace(self) -> StepResult:
        """Trace the rows.

        Raises:
            StatefulQueryError: the query is not supported.
            OdfError: the query cannot run any more.
        """
        query = self._plan_query()
        time = Timeline(self._past, self._own, query, as_of=self._as_of)
        lineage = self._build_lineage(time)
        recomputed = lineage.recomputed_rows(self._empty_query())
        if query.mode == "update":
            traced = self._trace_groups(lineage, time)
        else:
            traced = self._trace_rows(lineage, recomputed, query, time)
        traced.operations += lineage.operations
        if self._own.transaction.kind == "finish":
            traced.operations.append(_FINISHED)
        return traced

    def _build_lineage(
        self, time: Timeline, lineage_class: type[StreamLineage] = StreamLineage
    ) -> StreamLineage:
        return lineage_class(
            self._session,
            {input.query_alias: input.vocab for input in self._request.query_inputs},
            self._request.vocab.event_time_column,
            time.changing,
            time.tables(self._session),
            time.watermarks_after(),
        )

    def _empty_query(self) -> DataFrame:
        """Return the query over streams without rows, whose plan alone is used."""
        return self._streaming_query

    def _plan_query(self) -> StreamingPlan:
        """Return the streaming plan of the query."""
        time = self._request.vocab.event_time_column
        query, source = plan_query(self._session, self._request.transform, self._inputs, time)
        self._streaming_query = source.frame
        return query

    def _is_signed(self, columns: Sequence[str]) -> bool:
        """Return whether the operation distinguishes a row from its retraction."""
        return False

    def _trace_rows(
        self, lineage: StreamLineage, recomputed: DataFrame, query: StreamingPlan, time: Timeline
    ) -> StepResult:
        recomputed = recomputed.where(f"{BATCH} IS NULL OR {BATCH} BETWEEN {time.first} AND {time.last}")
        columns = query.query_schema.names
        keys = key_columns(recomputed.columns)
        identity = [BATCH, *(keys if lineage.grouping_input is not None else [ORIGINS_COLUMN])]
        traced = StepResult.empty(self._request)
        for approximate in (False, True):
            targets = self._selection.target_rows(
                self._session, signed=self._is_signed(columns), approximate=approximate, ranked=True
            )
            rows = match_rows(recomputed, columns, identity, targets)
            traced = StepResult.empty(self._request)
            if lineage.grouping_input is None:
                self._add_origins(rows, traced)
            else:
                self._add_group_origins(rows, keys, lineage, traced)
            if not traced.lost:
                break
        return traced

    def _add_origins(self, rows: DataFrame, traced: StepResult) -> None:
        """Add the origins that rows carry."""
        origins = rows.selectExpr(SLICE_COUNT, MATCH_COUNT, f"explode_outer({ORIGINS_COLUMN}) AS place")
        origins = origins.selectExpr(SLICE_COUNT, MATCH_COUNT, "place.*")
        for batch in self._run_frame(origins):
            record_ambiguity(batch, traced)
            traced.add_rows(batch)

    def _add_group_origins(
        self, matched: DataFrame, keys: Sequence[str], lineage: StreamLineage, traced: StepResult
    ) -> None:
        """Add the origins of the rows of the matched groups."""
        groups = self._materialize(matched)
        for batch in self._run_frame(groups.select(SLICE_COUNT, MATCH_COUNT)):
            record_ambiguity(batch, traced)
        if traced.lost:
            return
        self._add_origins_of_groups(lineage, groups.select(*keys).distinct(), traced)

    def _add_origins_of_groups(self, lineage: StreamLineage, groups: DataFrame, traced: StepResult) -> None:
        assert lineage.grouping_input is not None
        sessions = lineage.grouping_input.sessions
        for batch in self._run_frame(origins_by_key(lineage.grouping_rows(), groups, sessions)):
            traced.add_rows(batch)

    def _trace_groups(self, lineage: StreamLineage, time: Timeline) -> StepResult:
        traced = StepResult.empty(self._request)
        targets = self._selection.target_rows(self._session, signed=False, ranked=True)
        groups = self._find_groups(lineage, targets, time)
        rebuilt = self._own.transaction.kind == "rebuild"
        requested = {group: entries for group, entries in groups.entries.items() if any(entries.traced)}
        if not all(entries.batches or rebuilt for entries in requested.values()):
            traced.lost, traced.reason = True, LOST
            return traced
        if rebuilt and any(entries.retracts for entries in requested.values()):
            traced.lost, traced.reason = True, _REPLACED
            return traced
        last_batches = {
            group: time.last if rebuilt else last_batch_of(entries, entries.batches)
            for group, entries in requested.items()
        }
        if None in last_batches.values():
            last_batches |= self._compute_last_batches(
                groups, [group for group, last_batch in last_batches.items() if last_batch is None], time
            )
        if None in last_batches.values():
            traced.reason = _UNKNOWN_BATCH
        self._add_origins_of_groups(
            lineage, self._keys_with_last_batches(groups, last_batches, time.last), traced
        )
        return traced

    def _find_groups(self, lineage: StreamLineage, targets: TargetRows, time: Timeline) -> Groups:
        """Return the groups of the traced rows.

        Raises:
            Unsupported: there are too many entries.
        """
        names, vocab = lineage.group_columns or [], self._selection.vocab
        keys = [f"{KEY_PREFIX}{index}" for index in range(len(names))]
        columns = [f"g{index}" for index in range(len(names))]
        rows = lineage.grouping_rows().selectExpr(*comparable_groups(names, targets, keys), *keys, BATCH)
        log = targets.rows.selectExpr(
            *comparable_groups(names, targets),
            f"{identifier(vocab.offset_column)} AS place",
            f"{identifier(vocab.operation_type_column)} AS op",
            f"{in_ranges(identifier(vocab.offset_column), self._selection.runs)} AS {_IS_TARGET}",
        )
        if columns:
            rows, log = prefilter(rows, log, columns)
        touched = rows.where(f"{BATCH} BETWEEN {time.first} AND {time.last}").select(*columns, BATCH)
        entries: dict[Group, Entries] = {}
        _read_changelog(self._run_limited(log.sort("place")), columns, entries)
        for batch in self._run_limited(touched.distinct().sort(BATCH)):
            for row in python_rows(batch):
                group = entries.get(group_key(row, columns))
                if group is not None:
                    group.batches.append(row[BATCH])
        return Groups(entries, rows.select(*columns, *keys).distinct() if columns else rows.limit(0))

    def _run_limited(self, frame: DataFrame) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in self._run_frame(frame):
            count += batch.num_rows
            if count > _MAX_ENTRIES:
                raise Unsupported(f"the groups of these rows changed more than {_MAX_ENTRIES:,} times")
            yield batch

    def _compute_last_batches(
        self, groups: Groups, unresolved: Sequence[Group], time: Timeline
    ) -> dict[Group, int | None]:
        """Compute the last batches of groups whose result did not change with every batch."""
        batches = sorted({batch for group in unresolved for batch in groups.entries[group].batches})
        if len(batches) > _MAX_PREFIXES:
            return {}
        numbers = ", ".join(map(str, [time.first - 1, *batches]))
        keys = key_columns(groups.keys.columns)
        prefixes = groups.keys.select(*keys).distinct() if keys else self._session.sql("SELECT 1 AS one")
        lineage = self._build_lineage(time, PrefixLineage)
        assert isinstance(lineage, PrefixLineage)
        lineage.targets = prefixes.selectExpr(*keys, f"explode(array({numbers})) AS {LAST_BATCH_COLUMN}")
        recomputed = lineage.recomputed_rows(self._empty_query())
        targets = self._selection.target_rows(self._session, signed=False, ranked=True)
        compared = comparable_groups(lineage.group_columns or [], targets)
        columns = [f"g{index}" for index in range(len(compared))]
        values: dict[Group, list[tuple[int, dict[str, Any]]]] = {group: [] for group in unresolved}
        for batch in self._run_frame(recomputed.selectExpr("*", *compared)):
            for row in python_rows(batch):
                group = group_key(row, columns)
                if group in values:
                    values_only = {name: value for name, value in row.items() if name not in columns}
                    values[group].append((row[LAST_BATCH_COLUMN], values_only))
        return {
            group: last_batch_of(
                groups.entries[group], changing_batches(sorted(rows, key=itemgetter(0)), time.first)
            )
            for group, rows in values.items()
        }

    def _keys_with_last_batches(
        self, groups: Groups, last_batches: Mapping[Group, int | None], last: int
    ) -> DataFrame:
        """Return the keys of groups with their last batches; ``last`` if unknown."""
        names = [name for name in groups.keys.columns if not name.startswith(KEY_PREFIX)]
        if not names:
            return groups.keys.sparkSession.sql(
                f"SELECT {last_batches.get((), last) or last} AS {LAST_BATCH}"
            )
        key_schema = arrow_schema(groups.keys.select(*names).schema)
        columns = [
            pa.array([_from_comparable(group[index], data_type) for group in last_batches], data_type)
            for index, data_type in enumerate(key_schema.types)
        ]
        values = [last if last_batch is None else last_batch for last_batch in last_batches.values()]
        table = pa.table([*columns, pa.array(values, pa.int32())], names=[*names, LAST_BATCH])
        self._session.createDataFrame(table).createOrReplaceTempView("odf_cuts")
        groups.keys.createOrReplaceTempView("odf_groups")
        same = " AND ".join(f"a.{name} <=> b.{name}" for name in names)
        keys = ", ".join(f"a.{name}" for name in key_columns(groups.keys.columns))
        return self._session.sql(
            f"SELECT DISTINCT {keys}, b.{LAST_BATCH} FROM odf_groups a JOIN odf_cuts b ON {same}"
        )

    def _materialize(self, frame: DataFrame) -> DataFrame:
        """Return the rows of a frame, materialized in a Parquet file."""
        path = self._folder / f"rows-{len(list(self._folder.iterdir()))}"
        with cancellable(self._session, self._reporter):
            frame.write.parquet(str(path))
        return self._session.read.schema(frame.schema).parquet(spark_path(path))

    def _run_frame(self, frame: DataFrame) -> Iterator[pa.RecordBatch]:
        for batch in arrow_batches(frame, self._reporter)[1]:
            self._reporter.raise_if_cancelled()
            yield batch


_MAX_PREFIXES: Final = 200
_REPLACED: Final = "the row is from a previous query and was retracted when the state was rebuilt"
_UNKNOWN_BATCH: Final = (
    "its group changed too often in this transaction to determine the input rows of this version"
)
