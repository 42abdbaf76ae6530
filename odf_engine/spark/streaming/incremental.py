"""Incremental plans: a stateful query as a batch query over new rows and stored state."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types
from pyspark.sql.types import StructType

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.errors import StateUnusable
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.progress import Reporter
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    INPUT_BITS,
    OPERATION,
    POSITION,
    StatefulQueryError,
    TrackedPlan,
    analyzed_plan,
    column_id,
    node_name,
    output_ids,
    referenced_ids,
    run_sql,
    to_list,
)
from odf_engine.spark.row_order import SortOrder, external_sort, sorted_batches, strip_order_by
from odf_engine.spark.sql_types import arrow_schema
from odf_engine.spark.streaming.group_aggregates import GroupAggregates
from odf_engine.spark.streaming.stateful_query import (
    ROWS,
    StreamPlanner,
    deduplication_keys,
    grouping_column_id,
    has_watermark,
    watermark_delays,
)
from odf_engine.spark.text_files import spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BATCH: Final = "odf_batch"
"""The batch in which a row was read or is emitted: 1, 2, … for the new batches, 0 for all earlier ones."""
WATERMARK: Final = "odf_mark"
"""The watermark before the batch that read a row; null without a watermark, and for computed rows."""
NEVER: Final = (1 << 31) - 1
"""The number of the batch of rows that are not emitted yet."""
_END: Final = "odf_end"
VALUES: Final = "-values"
"""Ending of the name of a state that has the single values which retractions require."""
_JOINS: Final = ("INNER", "CROSS", "LEFT OUTER", "RIGHT OUTER", "FULL OUTER")


@dataclass(frozen=True)
class BatchWatermarks:
    """The watermarks of consecutive batches, in milliseconds.

    Attributes:
        before: watermark before the first batch; None if unknown.
        after: watermark after each batch; None if unknown.
    """

    before: int | None
    after: Sequence[int | None]

    @property
    def last(self) -> int | None:
        """The watermark after the last batch."""
        return self.after[-1] if self.after else self.before

    def first_batch_reaching(self, time: str, delay: int) -> str:
        """Return an SQL expression of the batch whose watermark reaches a time.

        Args:
            time: SQL expression of the time.
            delay: how far the watermark must be past the time, in milliseconds.
        """
        steps: list[tuple[int, int]] = []
        for number, watermark in enumerate((self.before, *self.after)):
            if watermark is not None and (not steps or watermark > steps[-1][0]):
                steps.append((watermark, number))
        return first_batch_reaching(time, [(watermark - delay, number) for watermark, number in steps])


def first_batch_reaching(time: str, steps: Sequence[tuple[int, int]]) -> str:
    """Return an SQL expression of the first batch whose watermark reaches a time, as binary search.

    Args:
        time: SQL expression of the time.
        steps: watermarks in milliseconds, and the batch that reaches each, in ascending order.
    """
    if not steps:
        return str(NEVER)
    if len(steps) == 1:
        return f"IF({time} <= timestamp_millis({steps[0][0]}L), {steps[0][1]}, {NEVER})"
    middle = (len(steps) - 1) // 2
    left, right = (
        first_batch_reaching(time, steps[: middle + 1]),
        first_batch_reaching(time, steps[middle + 1 :]),
    )
    return f"IF({time} <= timestamp_millis({steps[middle][0]}L), {left}, {right})"


class StoredState(NamedTuple):
    """A part of the state after the batches.

    Attributes:
        name: name of its file.
        frame: its rows.
        keys: columns by which the rows are sorted.
    """

    name: str
    frame: DataFrame
    keys: Sequence[str]


class OpenGroups(NamedTuple):
    """A part of the state after the batches, as further columns of the rows of the query.

    Attributes:
        name: name of its file.
        columns: the columns of the state by their names in the rows.
        keys: columns by which the rows are sorted.
    """

    name: str
    columns: Mapping[str, str]
    keys: Sequence[str]


class StateFiles:
    """The state of a query: a Parquet file for each part.

    Args:
        session: session of the job.
        folder: folder of the files.
        reporter: checked for cancellation.
    """

    def __init__(self, session: SparkSession, folder: Path, reporter: Reporter) -> None:
        self._session = session
        self._folder = folder
        self._reporter = reporter

    def has(self, name: str) -> bool:
        """Return whether a part exists."""
        return self._path(name).exists()

    def read(self, name: str, schema: StructType) -> DataFrame:
        """Return the rows of a part, which exists."""
        return self._session.read.schema(schema).parquet(spark_path(self._path(name)))

    def replace(self, states: Sequence[StoredState], open_groups: OpenGroups | None) -> None:
        """Replace all parts by those of the next state, which may be computed from the present ones.

        Args:
            states: parts to compute.
            open_groups: a part that :meth:`split_open_groups` has stored.
        """
        new = self._folder.with_name("new-state")
        new.mkdir(parents=True)
        for each in states:
            keys = _sort_keys(arrow_schema(each.frame.schema), each.keys)
            rows = sorted_batches(
                lambda sort, frame=each.frame, keys=keys: (frame.sort(*keys) if sort else frame, _identity),
                SortOrder(keys),
                self._reporter,
            )
            _write(new / f"{each.name}.parquet", nullable_schema(each.frame), rows)
        if open_groups is not None:
            with pq.ParquetFile(self._unsorted) as file:
                schema = file.schema_arrow
                order = SortOrder(_sort_keys(schema, open_groups.keys))
                rows = external_sort(file.iter_batches(), order, self._unsorted.with_suffix(".sorted"))
                _write(new / f"{open_groups.name}.parquet", schema, rows)
            self._unsorted.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        new.rename(self._folder)

    def split_open_groups(
        self, groups: OpenGroups, rows: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are emitted, and store the columns of the others as rows of the state."""
        names = list(groups.columns)
        state = nullable(pa.schema([schema.field(each).with_name(groups.columns[each]) for each in names]))
        self._unsorted.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(self._unsorted, state, compression="lz4") as writer:
            for batch in rows:
                is_open = pc.equal(batch.column(BATCH), NEVER)
                columns = batch.filter(is_open).select(names).columns
                writer.write_batch(pa.record_batch(columns, schema=state))
                yield batch.filter(pc.invert(is_open)).drop_columns(names)

    @property
    def _unsorted(self) -> Path:
        return self._folder.with_name("open-groups.parquet")

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.parquet"


def _sort_keys(schema: pa.Schema, keys: Sequence[str]) -> tuple[str, ...]:
    """Return all columns that can be compared, beginning with some of them."""
    flat = [field.name for field in schema if not types.is_nested(field.type)]
    return (*(name for name in keys if name in flat), *(name for name in flat if name not in keys))


def _write(path: Path, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(pa.record_batch(batch.columns, schema=schema))


def _identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def nullable_schema(frame: DataFrame) -> pa.Schema:
    """Return the schema of a frame with all columns nullable, to append rows of other frames to a file."""
    return nullable(arrow_schema(frame.schema))


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema with all columns nullable."""
    return pa.schema([field.with_nullable(True) for field in schema])


class IncrementalPlanner(StreamPlanner):
    """Rewrites the analyzed plan of a query over streaming views to read new rows and the state.

    Each stateful operator processes its stored rows and the new rows below it, and has as new rows those that
    its batches emit.

    Args:
        session: the session of the query.
        inputs, event_time, changing, system: as for :func:`plan_stream`.
        tables: new rows of each input: its columns in order, then ``odf_batch`` and ``odf_mark``.
        watermarks: watermarks of the batches.
        files: the state before the batches.
        values: whether a new state has the single values that retractions require.

    Attributes:
        states: parts of the state after the batches.
        open_groups: a further part, which is in the rows of the result whose batch is :data:`NEVER`.
        late: for each operator, its new rows, and an SQL query of ``odf_position`` of those that are late.
        cached: frames that are read several times.
    """

    def __init__(
        self,
        session: SparkSession,
        inputs: Mapping[str, DatasetVocabulary],
        event_time: str,
        changing: Collection[str],
        tables: Mapping[str, DataFrame],
        watermarks: BatchWatermarks,
        files: StateFiles,
        system: Mapping[int, str] | None = None,
        *,
        values: bool = False,
    ) -> None:
        super().__init__(session, inputs, event_time, changing, system)
        self._tables = {name.lower(): frame for name, frame in tables.items()}
        self._watermarks = watermarks
        self._files = files
        self._values = values
        self._input_origins: set[int] = set()
        self._delays: dict[int, int] = {}
        self._stage = 0
        self._is_top = True
        self.states: list[StoredState] = []
        self.open_groups: OpenGroups | None = None
        self.late: list[tuple[DataFrame, str]] = []
        self.cached: list[DataFrame] = []

    @cached_property
    def _referenced(self) -> set[int]:
        """The ids of the columns that the query reads or returns."""
        return referenced_columns(self._plan)

    def result(self, frame: DataFrame) -> DataFrame:
        """Return the new rows of the query: its columns, then ``odf_batch``, or ``odf_rows`` for a grouping
        without a window.

        Raises:
            StateUnusable: the state does not suffice.
        """
        with translate_errors():
            plan = strip_order_by(self, self.inlined_plan(frame))[0]
            self._plan = plan
            tracked = self.track(plan)
            hidden = tracked.passed | {column_id(column) for column in tracked.origin}
            shown = [column for column in to_list(tracked.plan.output()) if column_id(column) not in hidden]
            added = tracked.origin if self._running is not None else [tracked.origin[2], *tracked.origin[4:]]
            return self.to_frame(self.project([*shown, *added], tracked.plan))

    # --- Nodes --------------------------------------------------------------------------------

    def track(self, plan: Any) -> TrackedPlan:
        self._is_top = self._is_top and node_name(plan) in ("Project", "SubqueryAlias", "Aggregate")
        return super().track(plan)

    def track_input(self, view: Any, index: int, vocab: DatasetVocabulary) -> TrackedPlan:
        name = view.desc().identifier().table().lower()
        table = analyzed_plan(self._tables[name])
        by_name = {column.name(): column for column in to_list(table.output())}
        columns = [
            self.replace_column(new, old)
            for new, old in zip(to_list(table.output()), to_list(view.output()), strict=False)
        ]
        position = by_name[vocab.offset_column]
        if index:
            base = self.expressions.Literal(index << INPUT_BITS, self.types.LongType)
            position = self.expressions.BitwiseOr(position, base)
        operation = by_name[vocab.operation_type_column]
        if self._names[name] not in self._changing:
            operation = self.literal(int(Op.APPEND))
        origin = self._origin_columns(position, operation, by_name[BATCH], by_name[WATERMARK])
        system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        passed = {column_id(old) for old in to_list(view.output()) if old.name() in system}
        for old in to_list(view.output()):
            if old.name() == vocab.operation_type_column:
                self._operations[column_id(old)] = self._names[name]
        attributes = [column.toAttribute() for column in origin]
        self._input_origins.add(column_id(attributes[0]))
        return TrackedPlan(
            self.project([*columns, *origin], table), attributes, frozenset(passed | self.system.keys())
        )

    def track_union(self, plan: Any) -> TrackedPlan:
        branches = [self.track(child) for child in to_list(plan.children())]
        tracked = self.combine_branches(plan, branches)
        if all(column_id(branch.origin[0]) in self._input_origins for branch in branches):
            self._input_origins.add(column_id(tracked.origin[0]))
        self._set_delay(tracked, max(map(self._delay, branches)))
        return tracked

    def track_join(self, plan: Any, condition: Any = None) -> TrackedPlan:
        if not (plan.left().isStreaming() and plan.right().isStreaming()):
            return super().track_join(plan)
        kind = plan.joinType().sql()
        if kind not in _JOINS:
            raise StatefulQueryError(f"a {kind} JOIN of inputs")
        tracked = [self.track(plan.left()), self.track(plan.right())]
        conditions = [plan.condition().get()] if plan.condition().isDefined() else []
        self._record_operations(conditions)
        delay = max(map(self._delay, tracked))
        delays = watermark_delays(self, plan, [*conditions, *([condition] if condition is not None else [])])
        retention = [sum(delays)] * 2 if "OUTER" in kind else list(delays)
        sides: list[_Side] = []
        for name, below, child, kept, own in zip(
            ("left", "right"), tracked, (plan.left(), plan.right()), retention, delays, strict=True
        ):
            sides.append(self._join_side(f"{self._stage}-{name}", below, child, delay + kept, delay + own))
        self._stage += 1
        left, right = sides
        joined = self.with_children(plan, [left.plan, right.plan])
        columns = {column_id(column): column for column in to_list(joined.output())}
        batches = [columns[column_id(side.batch)] for side in sides]
        closings = [columns[column_id(side.closing)] for side in sides]
        # A row without a partner is emitted when no partner can follow.
        batch = self.expressions.Greatest(self.seq(batches))
        for own, other in ((0, 1), (1, 0)):
            alone = self.expressions.Greatest(self.seq([batches[own], closings[own]]))
            batch = self.expressions.If(self.expressions.IsNull(batches[other]), alone, batch)
        origin = self._computed_origin(batch)
        shown = [
            columns[column_id(column)]
            for column in (*to_list(plan.left().output()), *to_list(plan.right().output()))
            if column_id(column) in columns
        ]
        result = self._emitted([*shown, *origin], origin, joined, tracked[0].passed | tracked[1].passed)
        self._set_delay(result, delay + max(delays))
        return result

    def _join_side(self, name: str, below: TrackedPlan, child: Any, retention: int, closing: int) -> _Side:
        """Return the stored and the new rows of one side of a join, and store what it retains."""
        columns = [each for each in to_list(child.output()) if column_id(each) in self._referenced]
        time = self._end_time(next(each for each in to_list(child.output()) if has_watermark(each)))
        named = [self.alias(each, f"c{index}") for index, each in enumerate(columns)]
        names = [*(each.name() for each in named), _END]
        rows, frames = self._all_rows(name, below, [*named, self.alias(time, _END)], names)
        reached = self._watermarks.first_batch_reaching(_END, closing)
        both = run_sql(f"SELECT *, CAST({reached} AS INT) AS odf_closing FROM ({rows})", **frames)
        kept = self._watermarks.first_batch_reaching(_END, retention)
        self._store(name, both, names, f"{kept} = {NEVER}", [_END])
        plan = analyzed_plan(both)
        by_name = {column.name(): column for column in to_list(plan.output())}
        batch, closed = self.alias(by_name[BATCH], BATCH), self.alias(by_name["odf_closing"], "odf_closing")
        renamed = [self.replace_column(by_name[f"c{index}"], column) for index, column in enumerate(columns)]
        projected = self.project([*renamed, batch, closed], plan)
        return _Side(projected, batch.toAttribute(), closed.toAttribute())

    def _track_distinct(self, plan: Any) -> TrackedPlan:
        below = self.track(plan.child())
        columns = [each for each in to_list(plan.output()) if column_id(each) not in below.passed]
        return self._first_of_keys(below, columns, columns)

    def _track_first_rows(self, plan: Any, window: Any) -> TrackedPlan:
        below = self.track(window.child())
        columns = [each for each in to_list(window.child().output()) if column_id(each) in self._referenced]
        found = self._first_of_keys(below, deduplication_keys(window, below), columns)
        number = self.replace_column(self.literal(1), to_list(window.windowExpressions())[0])
        rewritten = self.project([*columns, number, *found.origin], found.plan)
        node, projects = plan.child(), list[Any]()
        while node_name(node) != "Window":
            projects += [node] if node_name(node) == "Project" else []
            node = node.child()
        for project in reversed(projects):
            rewritten = self.project([*to_list(project.projectList()), *found.origin], rewritten)
        return TrackedPlan(rewritten, found.origin, below.passed)

    def _first_of_keys(self, below: TrackedPlan, keys: Sequence[Any], columns: Sequence[Any]) -> TrackedPlan:
        """Return the first row of each key. The state has the keys that may still occur."""
        name, delay = str(self._stage), self._delay(below)
        self._stage += 1
        time = self._end_time(next(key for key in keys if has_watermark(key)))
        key_names = [f"k{index}" for index in range(len(keys))]
        names = [f"c{index}" for index in range(len(columns))]
        rows, frames = self._all_rows(
            name,
            below,
            [*map(self.alias, keys, key_names), *map(self.alias, columns, names), self.alias(time, _END)],
            [*key_names, _END],
        )
        grouped = ", ".join([*key_names, _END])
        first = f"min_by(struct({', '.join((BATCH, *names))}), struct({BATCH}, {POSITION})) AS first"
        found = self._cache(run_sql(f"SELECT {grouped}, {first} FROM ({rows}) GROUP BY {grouped}", **frames))
        kept = self._watermarks.first_batch_reaching(_END, delay)
        self._store(name, found, [*key_names, _END], f"{kept} = {NEVER}", [_END, *key_names])
        flat = found.selectExpr(*(f"first.{each}" for each in (*names, BATCH)))
        result = self._restored(flat, names, columns)
        self._set_delay(result, delay)
        return result

    # --- Aggregations -------------------------------------------------------------------------

    def _track_aggregate(self, plan: Any) -> TrackedPlan:
        is_top, self._is_top = self._is_top, False
        below = self.track(plan.child())
        grouping, columns = to_list(plan.groupingExpressions()), to_list(plan.aggregateExpressions())
        self._record_operations([*grouping, *columns])
        from_inputs = column_id(below.origin[0]) in self._input_origins
        read = self._unaggregated_inputs(plan.child())
        signed = from_inputs and not read & self._read_operations
        windowed = any(has_watermark(each) for each in grouping)
        aggregates = GroupAggregates(
            self,
            grouping,
            columns,
            signed=signed,
            operation=below.origin[1] if signed and read & set(self._changing) else None,
            values=self._values,
            changed=None if windowed else self._event_time,
        )
        name, delay = str(self._stage), self._delay(below)
        self._stage += 1
        time = self._end_time(next(each for each in grouping if has_watermark(each))) if windowed else None
        added = [] if time is None else [self.alias(time, _END)]
        self._choose_form(name, aggregates)
        name += VALUES if aggregates.keeps_values else ""
        end = [_END] if windowed and aggregates.session is None else []
        rows, frames = self._all_rows(name, below, [*aggregates.row_columns(), *added],
                                      [*aggregates.state_names, *end])  # fmt: skip
        query = aggregates.merge(rows, [BATCH, POSITION], _END if windowed else None)
        if windowed:
            reached = self._watermarks.first_batch_reaching(_END, delay)
            query = f"SELECT *, CAST({reached} AS INT) AS {BATCH} FROM ({query})"
        groups = run_sql(query, **frames)
        key_names = [f"k{index}" for index in range(len(grouping))]
        if is_top and windowed and aggregates.is_plain:
            return self._all_groups(name, aggregates, groups, [*end, *key_names])
        groups = self._cache(groups)
        # A group without rows is stored, unless it is one of several for its key.
        kept = f"{BATCH} = {NEVER}" if windowed else "n <> 0" if aggregates.has_values else "true"
        self._store(name, groups, [*aggregates.state_names, *end], kept, [*end, *key_names])
        final = aggregates.finish(groups, f"{BATCH} <> {NEVER}" if windowed else f"{BATCH} > 0", [BATCH])
        rows_column = self.alias(final.rows, ROWS)
        if windowed:
            positive = self.filter(self.expressions.GreaterThan(final.rows, self.long_literal(0)), final.plan)
            origin = self._computed_origin(final.columns_by_name[BATCH])
            projected = self.project([*final.columns, *origin], positive)
            result = TrackedPlan(projected, [each.toAttribute() for each in origin], frozenset())
            self._set_delay(result, delay)
            return result
        self._running = [grouping_column_id(each, columns) for each in grouping]
        self._grouping = [each.sql() for each in grouping]
        projected = self.project([*final.columns, rows_column], final.plan)
        return TrackedPlan(projected, [rows_column.toAttribute()], frozenset())

    def _all_groups(
        self, name: str, aggregates: GroupAggregates, groups: DataFrame, keys: Sequence[str]
    ) -> TrackedPlan:
        """Return the groups that are emitted and the open ones, which are read in the same query."""
        final = aggregates.finish(groups, "true", [BATCH])
        by_name = final.columns_by_name
        is_open = self.expressions.EqualTo(by_name[BATCH], self.literal(NEVER))
        has_rows = self.expressions.GreaterThan(final.rows, self.long_literal(0))
        names = [*aggregates.state_names, _END]
        state = [self.alias(by_name[each], f"odf_state_{each}") for each in names]
        self.open_groups = OpenGroups(name, {f"odf_state_{each}": each for each in names}, keys)
        origin = [*self._computed_origin(by_name[BATCH]), *state]
        rows = self.filter(self.expressions.Or(is_open, has_rows), final.plan)
        projected = self.project([*final.columns, *origin], rows)
        return TrackedPlan(projected, [each.toAttribute() for each in origin], frozenset())

    def _choose_form(self, name: str, aggregates: GroupAggregates) -> None:
        """Choose the form of the state: that of the stored one.

        Raises:
            StateUnusable: the stored state has no single values, but rows are retracted.
        """
        if not aggregates.can_keep_values:
            return
        if self._files.has(f"{name}{VALUES}"):
            aggregates.keep_values()
        elif aggregates.keeps_values and self._files.has(name):
            error = StateUnusable("the state has no single values to retract")
            error.lacks_values = True
            raise error

    # --- State --------------------------------------------------------------------------------

    def _all_rows(
        self, name: str, below: TrackedPlan, columns: Sequence[Any], stored: Sequence[str]
    ) -> tuple[str, dict[str, DataFrame]]:
        """Return the stored rows of an operator, and the new ones that are not late.

        Args:
            name: name of the state.
            below: the new rows.
            columns: columns of the new rows.
            stored: names of the columns that are stored; the others are null in stored rows.

        Returns:
            SQL query of the columns, batch and position, and the frames for :func:`run_sql`.
        """
        position, _, batch, watermark = below.origin
        new = self.to_frame(self.project([*columns, batch, position, watermark], below.plan))
        names = [each.name() for each in columns]
        selected = ", ".join([*names, BATCH, POSITION])
        query, frames = f"SELECT {selected} FROM odf_new", {"new": new}
        if _END in names and column_id(position) in self._input_origins:
            late = f"coalesce({_END} <= {WATERMARK}, false)"
            self.late.append((new, f"SELECT {POSITION} FROM odf_new WHERE {late}"))
            query += f" WHERE NOT {late}"
        if not self._files.has(name):
            return query, frames
        schema = new.schema
        frames["state"] = self._files.read(name, StructType([schema[each] for each in stored]))
        values = [
            each if each in stored else f"CAST(NULL AS {schema[each].dataType.simpleString()})"
            for each in names
        ]
        return f"{query} UNION ALL SELECT {', '.join(values)}, 0, NULL FROM odf_state", frames

    def _store(
        self, name: str, frame: DataFrame, columns: Sequence[str], condition: str, keys: Sequence[str]
    ) -> None:
        """Store rows of a frame as a part of the state."""
        query = f"SELECT {', '.join(columns)} FROM odf_rows WHERE {condition}"
        self.states.append(StoredState(name, run_sql(query, rows=frame), keys))

    def _cache(self, frame: DataFrame) -> DataFrame:
        self.cached.append(frame.persist())
        return self.cached[-1]

    # --- Rows and their origin ----------------------------------------------------------------

    def _restored(self, frame: DataFrame, names: Sequence[str], columns: Sequence[Any]) -> TrackedPlan:
        """Return the emitted rows of a frame, with the columns of the original plan."""
        plan = analyzed_plan(frame)
        by_name = {column.name(): column for column in to_list(plan.output())}
        renamed = [
            self.replace_column(by_name[name], column) for name, column in zip(names, columns, strict=True)
        ]
        origin = self._computed_origin(by_name[BATCH])
        return self._emitted([*renamed, *origin], origin, plan, frozenset())

    def _emitted(
        self, columns: Sequence[Any], origin: Sequence[Any], plan: Any, passed: frozenset[int]
    ) -> TrackedPlan:
        """Return the rows that the new batches emit."""
        attributes = [each.toAttribute() for each in origin]
        batch = attributes[2]
        is_new = self.expressions.And(
            self.expressions.GreaterThan(batch, self.literal(0)),
            self.expressions.LessThan(batch, self.literal(NEVER)),
        )
        return TrackedPlan(self.filter(is_new, self.project(columns, plan)), attributes, passed)

    def _origin_columns(self, position: Any, operation: Any, batch: Any, watermark: Any) -> list[Any]:
        named = zip(
            (POSITION, OPERATION, BATCH, WATERMARK), (position, operation, batch, watermark), strict=True
        )
        return [self.alias(each, name) for name, each in named]

    def _computed_origin(self, batch: Any) -> list[Any]:
        """Return the origin columns of computed rows."""
        position = self.expressions.Literal(None, self.types.LongType)
        watermark = self.expressions.Literal(None, self.types.TimestampType)
        return self._origin_columns(position, self.literal(int(Op.APPEND)), batch, watermark)

    def _end_time(self, time: Any) -> Any:
        """Return a time, or the end of a window."""
        if time.dataType().typeName() != "struct":
            return time
        return self.expressions.GetStructField(time, 1, self.none())

    def _delay(self, tracked: TrackedPlan) -> int:
        """Return how far rows of a plan may lag behind the watermark of the inputs, in milliseconds."""
        return self._delays.get(column_id(tracked.origin[2]), 0)

    def _set_delay(self, tracked: TrackedPlan, delay: int) -> None:
        self._delays[column_id(tracked.origin[2])] = delay


class _Side(NamedTuple):
    """One side of a join: its rows, their batch, and the batch after which no partner can follow."""

    plan: Any
    batch: Any
    closing: Any


def referenced_columns(plan: Any) -> set[int]:
    """Return the ids of all columns that a plan reads or returns."""
    found = output_ids(plan)
    pending = [plan]
    while pending:
        node = pending.pop()
        children = to_list(node.children())
        found |= referenced_ids(node) if node_name(node) != "View" else set()
        if node_name(node) in ("Union", "Distinct"):
            found = found.union(*map(output_ids, children))
        pending += children
    return found
