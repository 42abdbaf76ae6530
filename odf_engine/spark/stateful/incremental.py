"""Incremental plans: a stateful query as a batch query over new rows and stored state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types
from pyspark.sql.types import StructType

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import OPERATION, POSITION, ROWS, Op
from odf_engine.errors import StateUnusable
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.plan_rewrite import (
    TrackedPlan,
    analyzed_plan,
    column_id,
    columns_except,
    node_name,
    null_value,
    output_ids,
    referenced_ids,
    run_sql,
    to_list,
)
from odf_engine.spark.row_order import SortOrder, external_sort, sorted_batches, strip_order_by
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.stateful.group_aggregates import IS_LAST, GroupAggregates
from odf_engine.spark.stateful.stateful_query import WATERMARK, TablePlanner, grouping_column_id
from odf_engine.spark.stateful.stream_checks import has_watermark, is_stream_join, watermark_delays
from odf_engine.spark.stateful.window_functions import (
    BATCH,
    FROM,
    NEVER,
    SIGN,
    UNTIL,
    add_operation,
    add_sign,
    lifetimes,
    net_changes,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ExpressionT = TypeVar("ExpressionT")
END: Final = "odf_end"
VALUES: Final = "-values"
"""Ending of the name of a state that has the single values which retractions require."""


@dataclass(frozen=True)
class BatchWatermarks:
    """The watermarks of consecutive batches, in milliseconds.

    Attributes:
        before: watermark before the first batch, or None if unknown.
        after: watermark after each batch, or None if unknown.
    """

    before: int | None
    after: Sequence[int | None]

    @property
    def last(self) -> int | None:
        """The watermark after the last batch."""
        return self.after[-1] if self.after else self.before

    def reached(self, time: str, delay: int) -> str:
        """Return an SQL condition of the times that the watermark after the batches reaches.

        The arguments are as for :meth:`first_batch_reaching`.
        """
        return "false" if self.last is None else f"{time} <= timestamp_millis({self.last - delay}L)"

    def not_reached_before(self, time: str, delay: int) -> str:
        """Return an SQL condition of the times that the watermark before the batches has not reached.

        The arguments are as for :meth:`first_batch_reaching`.
        """
        return "true" if self.before is None else f"{time} > timestamp_millis({self.before - delay}L)"

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
    """Return an SQL expression of the first batch whose watermark reaches a time.

    Args:
        time: SQL expression of the time.
        steps: watermarks in milliseconds, and the batch that reaches each, in ascending order.
    """
    batches = [(watermark, str(number)) for watermark, number in steps]
    return search_steps(
        batches, str(NEVER), lambda limit: f"{time} <= timestamp_millis({limit}L)", "IF({}, {}, {})".format
    )


def search_steps(
    steps: Sequence[tuple[int, ExpressionT]],
    otherwise: ExpressionT,
    is_reached: Callable[[int], ExpressionT],
    choose: Callable[[ExpressionT, ExpressionT, ExpressionT], ExpressionT],
) -> ExpressionT:
    """Return an expression of the value of the first step that reaches a number, as binary search.

    Args:
        steps: the limits of steps in ascending order, and their values.
        otherwise: the value if the number is above all limits.
        is_reached: returns the condition that the number is at or below a limit.
        choose: returns the expression of one of two values by a condition.
    """
    if not steps:
        return otherwise
    middle = len(steps) // 2
    limit, value = steps[middle]
    before = search_steps(steps[:middle], value, is_reached, choose)
    after = search_steps(steps[middle + 1 :], otherwise, is_reached, choose)
    return choose(is_reached(limit), before, after)


class StoredState(NamedTuple):
    """A part of the state after the batches.

    Attributes:
        name: name of its files.
        frame: its rows.
        keys: sort columns.
        added: the rows are added to the stored ones.
    """

    name: str
    frame: DataFrame
    keys: Sequence[str]
    added: bool = False


class OpenGroups(NamedTuple):
    """A part of the state after the batches, as further columns of the rows of the query.

    Attributes:
        name: name of its files.
        columns: the columns of the state by their names in the rows.
        keys: sort columns.
        added: the rows are added to the stored ones.
    """

    name: str
    columns: Mapping[str, str]
    keys: Sequence[str]
    added: bool = False


_LARGE_STATE: Final = 100_000
_MAX_ADDED_FILES: Final = 32


@dataclass(frozen=True)
class StateFiles:
    """The state of a query: a Parquet file for each part, and for large parts files of rows added later.

    Attributes:
        session: session of the job.
        folder: folder of the files.
        reporter: checked for cancellation.
    """

    session: SparkSession
    folder: Path
    reporter: Reporter

    def has(self, name: str) -> bool:
        """Return whether a part exists."""
        return self._path(name).exists()

    def has_values(self) -> bool:
        """Return whether a part has single values."""
        return any(self.folder.glob(f"*{VALUES}.parquet"))

    def count_rows(self) -> int:
        """Return the number of rows of all parts."""
        return sum(pq.read_metadata(path).num_rows for path in self.folder.glob("*.parquet"))

    def read(self, name: str, schema: StructType) -> DataFrame:
        """Return the rows of a part, which exists.

        Raises:
            StateUnusable: it lacks a column, because an earlier version wrote it.
        """
        if missing := sorted(set(schema.names).difference(pq.read_schema(self._path(name)).names)):
            raise StateUnusable(f"the state '{name}' has no column '{missing[0]}'")
        paths = [self._path(name), *self._added_files(name)]
        return parquet_frame(self.session, paths, schema)

    def can_add(self, name: str) -> bool:
        """Return whether rows can be added to a part: it is much larger than the rows that were added."""
        if not self.has(name):
            return False
        stored, *added = (
            pq.read_metadata(path).num_rows for path in (self._path(name), *self._added_files(name))
        )
        return stored >= _LARGE_STATE and len(added) < _MAX_ADDED_FILES and 2 * sum(added) < stored

    def replace(
        self,
        states: Sequence[StoredState],
        open_groups: OpenGroups | None = None,
        unchanged: Collection[str] = (),
    ) -> None:
        """Replace all parts by the next state's, which may be computed from the present ones.

        Args:
            states: parts to compute.
            open_groups: a part that :meth:`split_open_groups` has stored.
            unchanged: names of parts that stay.
        """
        new = self.folder.with_name("new-state")
        new.mkdir(parents=True)
        kept = [*unchanged, *(state.name for state in states if state.added)]
        for state in states:
            keys = sort_keys(arrow_schema(state.frame.schema), state.keys)
            nested = [name for name in state.keys if name not in keys]
            frame = state.frame.sort(*keys, *nested) if nested else state.frame
            rows = sorted_batches(
                lambda sort, frame=frame, keys=keys: (
                    frame.sort(*keys) if sort else frame,
                    lambda batch: batch,
                ),
                SortOrder(keys),
                self.reporter,
            )
            write_batches(new / self._next_file(state), nullable_schema(state.frame), rows, "zstd")
        if open_groups is not None:
            kept += [open_groups.name] if open_groups.added else []
            with pq.ParquetFile(self._unsorted) as file:
                schema = file.schema_arrow
                order = SortOrder(sort_keys(schema, open_groups.keys))
                rows = external_sort(file.iter_batches(), order, self._unsorted.with_suffix(".sorted"))
                write_batches(new / self._next_file(open_groups), schema, rows, "zstd")
            self._unsorted.unlink()
        for name in kept:
            for path in (self._path(name), *self._added_files(name)):
                path.rename(new / path.name)
        shutil.rmtree(self.folder, ignore_errors=True)
        new.rename(self.folder)

    def split_open_groups(
        self, groups: OpenGroups, rows: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are emitted, and store the columns of the others as rows of the state."""
        names = list(groups.columns)
        state = nullable(pa.schema([schema.field(name).with_name(groups.columns[name]) for name in names]))
        self._unsorted.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(self._unsorted, state, compression="lz4") as writer:
            for batch in rows:
                is_open = pc.equal(batch.column(BATCH), NEVER)
                columns = batch.filter(is_open).select(names).columns
                writer.write_batch(pa.record_batch(columns, schema=state))
                yield batch.filter(pc.invert(is_open)).drop_columns(names)

    def _next_file(self, part: StoredState | OpenGroups) -> str:
        """Return the name of the file for the new rows of a part."""
        return self._path(part.name, len(self._added_files(part.name)) + 1 if part.added else 0).name

    def _added_files(self, name: str) -> list[Path]:
        paths = (self._path(name, number) for number in range(1, _MAX_ADDED_FILES + 1))
        return [path for path in paths if path.exists()]

    @property
    def _unsorted(self) -> Path:
        return self.folder.with_name("open-groups.parquet")

    def _path(self, name: str, number: int = 0) -> Path:
        """Return the path of a file; ``number`` is above 0 for the files of added rows."""
        return self.folder / (f"{name}.{number}.parquet" if number else f"{name}.parquet")


def sort_keys(schema: pa.Schema, keys: Sequence[str]) -> tuple[str, ...]:
    """Return all columns that can be compared, beginning with some of them."""
    flat = [field.name for field in schema if not types.is_nested(field.type)]
    return (*(name for name in keys if name in flat), *(name for name in flat if name not in keys))


def write_batches(path: Path, schema: pa.Schema, rows: Iterable[pa.RecordBatch], compression: str) -> None:
    """Write rows with the columns of a schema to a Parquet file."""
    with pq.ParquetWriter(path, schema, compression=compression) as writer:
        for batch in rows:
            writer.write_batch(pa.record_batch(batch.columns, schema=schema))


def nullable_schema(frame: DataFrame) -> pa.Schema:
    """Return the schema of a frame with all columns nullable, to append rows of other frames to a file."""
    return nullable(arrow_schema(frame.schema))


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema with all columns nullable."""
    return pa.schema([field.with_nullable(True) for field in schema])


@dataclass(frozen=True)
class PlannedBatches:
    """The batches that a plan processes.

    Attributes:
        watermarks: watermarks of the batches.
        files: the state before the batches.
        may_have_late_rows: whether rows of inputs can be late; False saves a test of each row.
        read_operations: inputs whose operations the query reads. For it, their rows are not changes.
        values: whether a new state has all rows or single values that retractions require.
        single_task: read the rows of an operator in one task, which saves the exchange of few rows.
    """

    watermarks: BatchWatermarks
    files: StateFiles
    may_have_late_rows: bool
    read_operations: Collection[str] = ()
    values: bool = False
    single_task: bool = False


class IncrementalPlanner(TablePlanner):
    """Rewrites the analyzed plan of a query over streaming views to read new rows and the state.

    Each stateful operator processes its stored rows and the new rows below it, and has as new rows those that
    its batches emit.

    Args:
        session: the session of the query.
        inputs, event_time, changing, system: as for :class:`TablePlanner`.
        tables: new rows of each input: its columns in order, then ``odf_batch`` and ``odf_mark``.
        batches: the batches to process.

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
        batches: PlannedBatches,
        system: Mapping[int, str] | None = None,
    ) -> None:
        changing = set(changing).difference(batches.read_operations)
        super().__init__(session, inputs, event_time, changing, tables, system)
        self._may_have_late_rows = batches.may_have_late_rows
        self._read_operations.update(batches.read_operations)
        self._watermarks = batches.watermarks
        self._files = batches.files
        self._values = batches.values
        self._single_task = batches.single_task
        self._retractable: set[int] = set()
        """Ids of the position columns of rows that a row of a later transaction may retract."""
        self._retracting: set[int] = set()
        """Ids of the position columns of rows that may have retractions."""
        self._delays: dict[int, _Delay] = {}
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
        """Return the new rows of the query: its columns, for a grouping without a window ``odf_rows``, and
        ``odf_batch``.

        If there may be retractions, also ``odf_operation`` and :data:`IS_ADDITION`, without changes that
        cancel each other.

        Raises:
            StateUnusable: the state does not suffice.
        """
        with translate_errors():
            plan = strip_order_by(self, self.inlined_plan(frame))[0]
            self._plan = plan
            tracked = self.track(plan)
            hidden = tracked.passed | {column_id(column) for column in tracked.origin}
            shown = columns_except(tracked.plan, hidden)
            if self._running is not None:
                return self.to_frame(self.project([*shown, *tracked.origin], tracked.plan))
            added = [tracked.origin[2], *tracked.origin[4:]]
            if column_id(tracked.origin[0]) not in self._retracting:
                return self.to_frame(self.project([*shown, *added], tracked.plan))
            frame = self.to_frame(self.project([*shown, tracked.origin[1], *added], tracked.plan))
            names = [identifier(column.name()) for column in shown]
            carried = [column.name() for column in tracked.origin[4:]]
            changes = net_changes(add_sign("SELECT * FROM odf_changes"), names, frame.schema, carried)
            is_addition = f"IF({SIGN} < 0, 0, 1) AS {IS_ADDITION}"
            return run_sql(add_operation(f"SELECT *, {is_addition} FROM ({changes})"), changes=frame)

    def track(self, plan: Any) -> TrackedPlan:
        self._is_top = self._is_top and node_name(plan) in ("Project", "SubqueryAlias", "Aggregate")
        return super().track(plan)

    def track_input(self, view: Any, index: int, vocab: DatasetVocabulary) -> TrackedPlan:
        tracked = super().track_input(view, index, vocab)
        name = self._names[view.desc().identifier().table().lower()]
        if name not in self._read_operations:
            self._mark_changes(tracked, retracting=name in self._changing)
        return tracked

    def combine_branches(self, plan: Any, branches: Sequence[TrackedPlan]) -> TrackedPlan:
        tracked = super().combine_branches(plan, branches)
        if any(map(self._is_retractable, branches)):
            self._mark_changes(tracked, retracting=any(map(self._is_retracting, branches)))
        delays = list(map(self._delay, branches))
        longest = max(delay.milliseconds for delay in delays)
        self._set_delay(tracked, _Delay(longest, all(delay.on_time for delay in delays)))
        return tracked

    def track_join(self, plan: Any, condition: Any = None) -> TrackedPlan:
        if not is_stream_join(plan):
            return super().track_join(plan)
        kind = plan.joinType().sql()
        tracked = [self.track(plan.left()), self.track(plan.right())]
        conditions = [plan.condition().get()] if plan.condition().isDefined() else []
        self._record_operations(conditions)
        delay = max(self._delay(side).milliseconds for side in tracked)
        all_conditions = [*conditions, *([condition] if condition is not None else [])]
        delays = watermark_delays(self, plan, all_conditions)
        # A row can be retracted until the watermark passes it.
        retention = [
            max(0, delay_of_side) for delay_of_side in ([sum(delays)] * 2 if "OUTER" in kind else delays)
        ]
        # Rows of windows end within a millisecond, so that the watermark must be past them.
        on_time = max(delays) > 0 and not contains_node(plan, "Aggregate")
        changes = self._values and any(map(self._is_retracting, tracked))
        children = (plan.left(), plan.right())
        left, right = [
            self._join_side(
                f"{self._stage}-{name}", below, child, delay + kept, delay + own - on_time, changes=changes
            )
            for name, below, child, kept, own in zip(
                ("left", "right"), tracked, children, retention, delays, strict=True
            )
        ]
        self._stage += 1
        result = self._join_sides(plan, left, right, tracked[0].passed | tracked[1].passed)
        if any(map(self._is_retractable, tracked)):
            self._mark_changes(result, retracting=any(map(self._is_retracting, tracked)))
        self._set_delay(result, _Delay(delay + max(delays), on_time))
        return result

    def _join_sides(self, plan: Any, left: JoinSide, right: JoinSide, passed: frozenset[int]) -> TrackedPlan:
        """Return the joined rows that are new, without retractions."""
        joined = self.with_children(plan, [left.plan, right.plan])
        columns = {column_id(column): column for column in to_list(joined.output())}
        batches = [columns[column_id(side.batch)] for side in (left, right)]
        closings = [columns[column_id(side.closing)] for side in (left, right)]
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
        return self._emitted(self._with_origin(shown, origin, joined, passed))

    def _join_side(
        self, name: str, below: TrackedPlan, child: Any, retention: int, closing: int, *, changes: bool
    ) -> JoinSide:
        """Return the stored and the new rows of one side of a join, and store what it retains."""
        columns = [column for column in to_list(child.output()) if column_id(column) in self._referenced]
        time = self._end_time(next(column for column in to_list(child.output()) if has_watermark(column)))
        named = [self.alias(column, f"c{index}") for index, column in enumerate(columns)]
        names = [*(column.name() for column in named), END]
        operation = [self.alias(below.origin[1], OPERATION)] if changes else []
        rows, frames = self._all_rows(name, below, [*named, self.alias(time, END), *operation], names)
        if changes:
            values = [name for name, column in zip(names, columns, strict=False)
                      if column_id(column) not in below.passed]  # fmt: skip
            schema = run_sql(rows, **frames).schema
            rows = lifetimes(add_sign(rows), names, values, schema)
        reached = self._watermarks.first_batch_reaching(END, closing)
        both = run_sql(f"SELECT *, CAST({reached} AS INT) AS odf_closing FROM ({rows})", **frames)
        kept = f"{self._watermarks.first_batch_reaching(END, retention)} = {NEVER}"
        self._store(name, both, names, f"{kept} AND {UNTIL} = {NEVER}" if changes else kept, [END])
        plan = analyzed_plan(both)
        by_name = {column.name(): column for column in to_list(plan.output())}
        renamed = [self.replace_column(by_name[f"c{index}"], column) for index, column in enumerate(columns)]
        added = [
            by_name[FROM if changes else BATCH],
            by_name["odf_closing"],
            *([by_name[UNTIL]] if changes else []),
        ]
        hidden = [self.alias(column, column.name()) for column in added]
        projected = self.project([*renamed, *hidden], plan)
        return JoinSide(projected, *(column.toAttribute() for column in hidden))

    def _first_of_keys(self, below: TrackedPlan, keys: Sequence[Any], columns: Sequence[Any]) -> TrackedPlan:
        """Return the row of each key that arrives first. The state has the keys that may still occur."""
        name, delay = str(self._stage), self._delay(below)
        self._stage += 1
        time = self._end_time(next(key for key in keys if has_watermark(key)))
        key_names = [f"k{index}" for index in range(len(keys))]
        names = [f"c{index}" for index in range(len(columns))]
        rows, frames = self._all_rows(
            name,
            below,
            [*map(self.alias, keys, key_names), *map(self.alias, columns, names), self.alias(time, END)],
            [*key_names, END],
        )
        grouped = ", ".join([*key_names, END])
        first = f"min_by(struct({', '.join((BATCH, *names))}), struct({BATCH}, {POSITION})) AS first"
        groups = self._cache(run_sql(f"SELECT {grouped}, {first} FROM ({rows}) GROUP BY {grouped}", **frames))
        kept = self._watermarks.first_batch_reaching(END, delay.milliseconds)
        self._store(name, groups, [*key_names, END], f"{kept} = {NEVER}", [END, *key_names])
        flat = groups.selectExpr(*(f"first.{name}" for name in (*names, BATCH)))
        result = self._emitted(self._restored(flat, names, columns))
        if self._is_retractable(below):
            self._mark_changes(result, retracting=False)
        self._set_delay(result, delay)
        return result

    def _track_aggregate(self, plan: Any) -> TrackedPlan:
        is_top, self._is_top = self._is_top, False
        below = self.track(plan.child())
        grouping, columns = to_list(plan.groupingExpressions()), to_list(plan.aggregateExpressions())
        self._record_operations([*grouping, *columns])
        signed = self._is_retractable(below)
        windowed = any(has_watermark(key) for key in grouping)
        aggregates = GroupAggregates(
            self,
            grouping,
            columns,
            signed=signed,
            operation=below.origin[1] if self._is_retracting(below) else None,
            values=self._values,
            changed=None if windowed else self._event_time,
        )
        name, delay = str(self._stage), self._delay(below)
        self._stage += 1
        time = self._end_time(next(key for key in grouping if has_watermark(key))) if windowed else None
        added = [] if time is None else [self.alias(time, END)]
        self._choose_form(name, aggregates)
        name += VALUES if aggregates.keeps_values else ""
        end = [END] if windowed and aggregates.session is None else []
        # A row can have the time of the end of a session, and extend it.
        delay_of_groups = delay.milliseconds if aggregates.session is not None else delay.of_window
        # Groups are merged when their window closes. The order of floating point numbers matters, however.
        is_added = bool(end) and not aggregates.order_matters and self._files.can_add(name)
        chosen = self._watermarks.not_reached_before(END, delay_of_groups) if end else "true"
        if is_added:
            chosen += f" AND {self._watermarks.reached(END, delay_of_groups)}"
        rows, frames = self._all_rows(name, below, [*aggregates.row_columns(), *added],
                                      [*aggregates.state_names, *end], condition=chosen)  # fmt: skip
        by_batch = not windowed and len(self._watermarks.after) > 1
        query = aggregates.merge(rows, [BATCH, POSITION], END if windowed else None, by_batch=by_batch)
        if windowed:
            reached = self._watermarks.first_batch_reaching(END, delay_of_groups)
            query = f"SELECT *, CAST({reached} AS INT) AS {BATCH} FROM ({query})"
        groups = run_sql(query, **frames)
        key_names = [f"k{index}" for index in range(len(grouping))]
        if is_top and windowed and aggregates.is_plain:
            return self._all_groups(name, aggregates, groups, [*end, *key_names], added=is_added)
        groups = self._cache(groups)
        # A group without rows is stored, unless it is one of several for its key.
        kept = f"{BATCH} = {NEVER}" if windowed else "n <> 0" if aggregates.has_values else "true"
        kept = IS_LAST if by_batch else kept
        stored = [*aggregates.state_names, *end]
        self._store(name, groups, stored, kept, [*end, *key_names], added=is_added)
        final = aggregates.finish(groups, f"{BATCH} <> {NEVER}" if windowed else f"{BATCH} > 0", [BATCH])
        rows_column = self.alias(final.rows, ROWS)
        if windowed:
            positive = self.filter(self.expressions.GreaterThan(final.rows, self.long_literal(0)), final.plan)
            origin = self._computed_origin(final.columns_by_name[BATCH])
            result = self._with_origin(final.columns, origin, positive)
            self._set_delay(result, delay)
            return result
        self._running = [grouping_column_id(key, columns) for key in grouping]
        self._grouping = [key.sql() for key in grouping]
        return self._with_origin(final.columns, [rows_column, final.columns_by_name[BATCH]], final.plan)

    def _all_groups(
        self, name: str, aggregates: GroupAggregates, groups: DataFrame, keys: Sequence[str], *, added: bool
    ) -> TrackedPlan:
        """Return the groups that are emitted and the open ones, which are read in the same query."""
        final = aggregates.finish(groups, "true", [BATCH])
        by_name = final.columns_by_name
        is_open = self.expressions.EqualTo(by_name[BATCH], self.literal(NEVER))
        has_rows = self.expressions.GreaterThan(final.rows, self.long_literal(0))
        names = [*aggregates.state_names, END]
        state = [self.alias(by_name[name], f"odf_state_{name}") for name in names]
        columns = {f"odf_state_{name}": name for name in names}
        self.open_groups = OpenGroups(name, columns, keys, added)
        origin = [*self._computed_origin(by_name[BATCH]), *state]
        rows = self.filter(self.expressions.Or(is_open, has_rows), final.plan)
        return self._with_origin(final.columns, origin, rows)

    def _choose_form(self, name: str, aggregates: GroupAggregates) -> None:
        """Choose the form of the state: the stored form.

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

    def _keeps_all_rows(self, name: str, below: TrackedPlan) -> bool:
        """Return whether the state of an operator has all rows, which retractions require.

        Otherwise it has only what additions require.

        Raises:
            StateUnusable: rows are retracted, but the stored state does not have all rows.
        """
        if self._files.has(f"{name}{VALUES}"):
            return True
        if not self._values or not self._is_retractable(below):
            return False
        if not self._files.has(name):
            return True
        if self._is_retracting(below):
            error = StateUnusable("the state does not have all rows, so none can be retracted")
            error.lacks_values = True
            raise error
        return False

    def _all_rows(
        self,
        name: str,
        below: TrackedPlan,
        columns: Sequence[Any],
        stored: Sequence[str],
        late: str = f"{END} <= {WATERMARK}",
        condition: str = "true",
    ) -> tuple[str, dict[str, DataFrame]]:
        """Return the stored rows of an operator, and the new ones that are not late.

        Args:
            name: name of the state.
            below: the new rows.
            columns: columns of the new rows.
            stored: names of the columns that are stored; the others are null in stored rows.
            late: SQL condition of the rows that are late, if they are rows of inputs.
            condition: SQL condition of the stored rows to return.

        Returns:
            SQL query of the columns, batch and position, and the frames for :func:`run_sql`.
        """
        position, _, batch, watermark = below.origin
        new = self.to_frame(self.project([*columns, batch, position, watermark], below.plan))
        names = [column.name() for column in columns]
        selected = ", ".join([*names, BATCH, POSITION])
        query, frames = f"SELECT {selected} FROM odf_new", {"new": new}
        if self._may_have_late_rows and END in names and column_id(position) in self._input_origins:
            late = f"coalesce({late}, false)"
            self.late.append((new, f"SELECT {POSITION} FROM odf_new WHERE {late}"))
            query += f" WHERE NOT {late}"
        if self._files.has(name):
            schema = new.schema
            frames["state"] = self._files.read(name, StructType([schema[name] for name in stored]))
            values = [name if name in stored else null_value(new, name) for name in names]
            query += f" UNION ALL SELECT {', '.join(values)}, 0, NULL FROM odf_state WHERE {condition}"
        return f"SELECT /*+ COALESCE(1) */ * FROM ({query})" if self._single_task else query, frames

    def _store(
        self,
        name: str,
        frame: DataFrame,
        columns: Sequence[str],
        condition: str,
        keys: Sequence[str],
        *,
        added: bool = False,
    ) -> None:
        """Store rows of a frame as a part of the state, or add them to it."""
        query = f"SELECT {', '.join(columns)} FROM odf_rows WHERE {condition}"
        self.states.append(StoredState(name, run_sql(query, rows=frame), keys, added))

    def _cache(self, frame: DataFrame) -> DataFrame:
        self.cached.append(frame.persist())
        return self.cached[-1]

    def _restored(
        self, frame: DataFrame, names: Sequence[str], columns: Sequence[Any], *added: str
    ) -> TrackedPlan:
        """Return the rows of a frame, with the columns of the original plan and further ones by name."""
        plan = analyzed_plan(frame)
        by_name = {column.name(): column for column in to_list(plan.output())}
        restored = map(self.replace_column, map(by_name.__getitem__, names), columns)
        origin = self._computed_origin(by_name[BATCH], by_name.get(OPERATION))
        return self._with_origin([*restored, *map(by_name.__getitem__, added)], origin, plan)

    def _emitted(self, tracked: TrackedPlan) -> TrackedPlan:
        """Return the rows that the new batches emit."""
        batch = tracked.origin[2]
        is_new = self.expressions.And(
            self.expressions.GreaterThan(batch, self.literal(0)),
            self.expressions.LessThan(batch, self.literal(NEVER)),
        )
        return tracked._replace(plan=self.filter(is_new, tracked.plan))

    def _computed_origin(self, batch: Any, operation: Any = None, place: Any = None) -> list[Any]:
        """Return the origin columns of computed rows, which are additions without a position by default."""
        if operation is None:
            operation = self.literal(int(Op.APPEND))
        position = self.expressions.Literal(None, self.types.LongType) if place is None else place
        watermark = self.expressions.Literal(None, self.types.TimestampType)
        return self._origin_columns(position, operation, batch, watermark)

    def _mark_changes(self, tracked: TrackedPlan, *, retracting: bool) -> None:
        """Record that rows may be retracted, now or later."""
        self._retractable.add(column_id(tracked.origin[0]))
        if retracting:
            self._retracting.add(column_id(tracked.origin[0]))

    def _is_retractable(self, tracked: TrackedPlan) -> bool:
        return column_id(tracked.origin[0]) in self._retractable

    def _is_retracting(self, tracked: TrackedPlan) -> bool:
        return column_id(tracked.origin[0]) in self._retracting

    def _delay(self, tracked: TrackedPlan) -> _Delay:
        return self._delays.get(column_id(tracked.origin[2]), _Delay(0, on_time=False))

    def _set_delay(self, tracked: TrackedPlan, delay: _Delay) -> None:
        self._delays[column_id(tracked.origin[2])] = delay


class _Delay(NamedTuple):
    """How far rows may lag behind the watermark of the inputs.

    Attributes:
        milliseconds: the largest delay.
        on_time: whether the watermark of joins need not be past the largest delay. In a query with joins, a
            watermark is reached by the times before it; the delay already includes the time itself.
    """

    milliseconds: int
    on_time: bool

    @property
    def of_window(self) -> int:
        """The delay of windows over the rows, in milliseconds. No row has the time of the window's end."""
        return self.milliseconds - 2 * self.on_time


class JoinSide(NamedTuple):
    """One side of a join.

    Attributes:
        plan: its rows.
        batch: column with the batch of a row.
        closing: column with the batch after which no partner can follow.
        until: column with the batch that retracts a row, or None if no row is retracted.
    """

    plan: Any
    batch: Any
    closing: Any
    until: Any = None


IS_ADDITION: Final = "odf_addition"
"""0 for a row that is retracted, 1 for a row that is added."""


def contains_node(plan: Any, name: str) -> bool:
    """Return whether a plan has a node with this name."""
    return node_name(plan) == name or any(contains_node(child, name) for child in to_list(plan.children()))


def referenced_columns(plan: Any) -> set[int]:
    """Return the ids of all columns that a plan reads or returns."""
    ids = output_ids(plan)
    pending = [plan]
    while pending:
        node = pending.pop()
        children = to_list(node.children())
        ids |= referenced_ids(node) if node_name(node) != "View" else set()
        if node_name(node) in ("Union", "Distinct"):
            ids = ids.union(*map(output_ids, children))
        pending += children
    return ids
