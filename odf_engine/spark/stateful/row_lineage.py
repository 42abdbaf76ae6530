"""Stateful queries over rows that carry their origins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.data.changelog import INPUT_BITS, OPERATION, POSITION, RETRACTS, ROWS, Op
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import (
    StatefulQueryError,
    TrackedPlan,
    analyzed_plan,
    column_id,
    is_session,
    node_name,
    run_sql,
    to_list,
)
from odf_engine.spark.row_order import strip_order_by
from odf_engine.spark.stateful.as_of_join import (
    DUE,
    IS_ACTIVE,
    TIME,
    AsOfQuery,
    add_due_time,
    is_version_column,
    lookup_versions,
    to_versions,
)
from odf_engine.spark.stateful.group_aggregates import FinishedGroups, GroupAggregates
from odf_engine.spark.stateful.incremental import contains_node, first_batch_reaching, search_steps
from odf_engine.spark.stateful.stateful_query import (
    WATERMARK,
    TablePlanner,
    grouping_column_id,
    is_first_arrival,
    replace_window,
)
from odf_engine.spark.stateful.stream_checks import has_watermark, is_stream_join
from odf_engine.spark.stateful.window_functions import BATCH, NEVER, RankedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_FIRST_ROW: Final = "the first row is the result; later ones up to this transaction are alternatives"


def describe_grouping(grouping: Sequence[Any]) -> str:
    """Describe a grouping."""
    if not grouping:
        return "grouped: all rows"
    sessions = " within one session" if any(map(is_session, grouping)) else ""
    return f"grouped by {_join_sql(grouping)}{sessions}"


def describe_join(join: Any) -> str:
    """Describe a join."""
    condition = f" ON {join.condition().get().sql()}" if join.condition().isDefined() else ""
    return f"joined: {join.joinType().sql()} JOIN{condition}"


def _join_sql(columns: Sequence[Any]) -> str:
    return ", ".join(column.sql() for column in columns)


ORIGINS_COLUMN: Final = "odf_places"
"""Origins of a row: an array of structs with the index of an input (``at``) and an offset."""
KEY_PREFIX: Final = "odf_key_"
"""Prefix of the columns that identify groups."""
_CORRECTION_BITS: Final = 40
"""Bits of the offset in the position of a row that a late version corrects."""
_STATELESS_NODES: Final = ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint")


class GroupingInput(NamedTuple):
    """The input rows of the last grouping of a query.

    Attributes:
        plan: ``odf_key_0``, …, ``odf_places`` and ``odf_batch`` of the rows.
        sessions: for each key, whether it is the session of a single row.
    """

    plan: Any
    sessions: Sequence[bool]


class StreamLineage(TablePlanner):
    """Rewrites the analyzed plan of a streaming query to read tables instead of streams.

    Args:
        session: the session of the query.
        inputs, event_time, changing, system: as for :class:`TablePlanner`.
        tables: rows of each input: its columns in order, then others, among them ``odf_places``,
            ``odf_batch`` and ``odf_mark``.
        watermarks: watermark after each batch in milliseconds, and batch number, in ascending order.

    Attributes:
        grouping_input: input rows of the last grouping, or None if rows carry their origins.
        operations: descriptions of the operations, from the inputs to the result.
    """

    _ORIGIN = (POSITION, OPERATION, ORIGINS_COLUMN, BATCH, WATERMARK)

    def __init__(
        self,
        session: SparkSession,
        inputs: Mapping[str, DatasetVocabulary],
        event_time: str,
        changing: Collection[str],
        tables: Mapping[str, DataFrame],
        watermarks: Sequence[tuple[int, int]],
        system: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(session, inputs, event_time, changing, tables, system)
        self._watermarks = watermarks
        self._is_last_step = True
        self.grouping_input: GroupingInput | None = None
        self.operations: list[str] = []

    def recomputed_rows(self, frame: DataFrame) -> DataFrame:
        """Return the recomputed result: columns of the query, ``odf_operation``, ``odf_batch``, and origins
        or keys.

        For a grouping without a window: the latest row of each group, with ``odf_rows``.

        Raises:
            StatefulQueryError: a plan node is not supported.
        """
        with translate_errors():
            tracked = self.track(strip_order_by(self, self.inlined_plan(frame))[0])
            hidden = tracked.passed | {column_id(column) for column in tracked.origin}
            shown = [column for column in to_list(tracked.plan.output()) if column_id(column) not in hidden]
            self._names_of = {column_id(column): column.name() for column in shown}
            origin_columns = (
                tracked.origin if self._running is not None else tracked.origin[1:4] + tracked.origin[5:]
            )
            return self.to_frame(self.project([*shown, *origin_columns], tracked.plan))

    @property
    def group_columns(self) -> list[str] | None:
        """Result columns of a grouping without a window, one per grouping expression."""
        return None if self._running is None else [self._names_of[place] for place in self._running]

    def grouping_rows(self) -> DataFrame:
        """Return the rows of :attr:`grouping_input`: ``odf_key_0``, …, ``odf_places`` and ``odf_batch``."""
        assert self.grouping_input is not None
        with translate_errors():
            return self.to_frame(self.grouping_input.plan)

    def track(self, plan: Any) -> TrackedPlan:
        if node_name(plan) not in (*_STATELESS_NODES, "Aggregate"):
            self._is_last_step = False
        return super().track(plan)

    def track_join(self, plan: Any, condition: Any = None) -> TrackedPlan:
        self._is_last_step = False
        if not is_stream_join(plan):
            return super().track_join(plan)
        sides = [self.track(plan.left()), self.track(plan.right())]
        self._record_operations([plan.condition().get()] if plan.condition().isDefined() else [])
        self._require_additions(plan, "a join")
        rows = [
            self._drop_late(side_plan, to_list(side.output()))
            for side_plan, side in zip(sides, (plan.left(), plan.right()), strict=True)
        ]
        self.operations.append(describe_join(plan))
        rewritten = self.with_children(plan, rows)
        columns_by_id = {column_id(column): column for column in to_list(rewritten.output())}
        left_origin, right_origin = (
            [columns_by_id[column_id(column)] for column in side_plan.origin] for side_plan in sides
        )
        empty = self.expressions.CreateArray(self.seq([]), False)
        origins = self.expressions.Concat(
            self.seq([
                self.expressions.Coalesce(self.seq([column, self.cast(empty, column.dataType())]))
                for column in (left_origin[2], right_origin[2])
            ])
        )  # fmt: skip
        batches = (left_origin[3], right_origin[3])
        batch: Any = self.expressions.Greatest(self.seq(batches))
        for own in batches:
            # An unmatched row of an outer join is emitted when the watermark passes it.
            batch = self.expressions.If(self.expressions.IsNull(own), self._typed_null(own), batch)
        origin = self._computed_origin(origins, batch, sides[0].origin)
        columns = [*to_list(plan.left().output()), *to_list(plan.right().output())]
        columns = [columns_by_id[column_id(column)] for column in columns]
        return self._with_origin(columns, origin, rewritten, sides[0].passed | sides[1].passed)

    def _track_distinct(self, plan: Any) -> TrackedPlan:
        self._is_last_step = False
        below = self.track(plan.child())
        self._require_additions(plan, "DISTINCT")
        columns = [column for column in to_list(plan.output()) if column_id(column) not in below.passed]
        rows = self._drop_late(below, columns)
        self.operations.append(f"deduplicated by {_join_sql(columns)} (DISTINCT): {_FIRST_ROW}")
        return self._group_with_origin(columns, columns, rows, below)

    def _require_additions(self, plan: Any, operation: str) -> None:
        """Check that no input of an operation has retractions.

        Raises:
            StatefulQueryError: one has.
        """
        if self._unaggregated_inputs(plan) & set(self._changing):
            raise StatefulQueryError(f"{operation} over rows with retractions or corrections")

    def _track_running_totals(self, window: Any) -> TrackedPlan:
        raise StatefulQueryError("a running total")

    def _track_ranked_rows(self, plan: Any, ranked: RankedRows) -> TrackedPlan:
        self._is_last_step = False
        window = ranked.window
        below = self.track(window.child())
        if not is_first_arrival(ranked, below):
            raise StatefulQueryError(f"{ranked.function}() in another order than that of arrival")
        self._require_additions(plan, f"{ranked.function}()")
        keys = to_list(window.partitionSpec())
        columns = to_list(window.child().output())
        aggregate = self.expressions.aggregate
        fields = [
            grouped for index, column in enumerate(columns) for grouped in (self.literal(f"c{index}"), column)
        ]
        order = self.expressions.CreateNamedStruct(
            self.seq([self.literal("b"), below.origin[3], self.literal("p"), below.origin[0]])
        )
        self.operations.append(f"deduplicated by {_join_sql(keys)}: {_FIRST_ROW}")
        first = self.alias(
            aggregate.MinBy(self.expressions.CreateNamedStruct(self.seq(fields)), order)
            .toAggregateExpression(False, self.none()),
            "odf_first",
        )  # fmt: skip
        grouped = self._group_with_origin(keys, [first], self._drop_late(below, keys), below)
        restored = [
            self.replace_column(self.expressions.GetStructField(first.toAttribute(), index, self.none()), old)
            for index, old in enumerate(columns)
        ]
        rewritten = replace_window(
            self, plan.child(), restored, [self.literal(1)], grouped.plan, grouped.origin
        )
        return TrackedPlan(rewritten, grouped.origin, below.passed)

    def _track_aggregate(self, plan: Any) -> TrackedPlan:
        is_last_step, self._is_last_step = self._is_last_step, False
        below = self.track(plan.child())
        grouping, columns = to_list(plan.groupingExpressions()), to_list(plan.aggregateExpressions())
        self._record_operations([*grouping, *columns])
        has_input_rows = column_id(below.origin[0]) in self._input_origins
        windowed = any(has_watermark(key) for key in grouping)
        signed = has_input_rows and not self._unaggregated_inputs(plan.child()) & self._read_operations
        changed = None if windowed else self._event_time
        aggregates = GroupAggregates(
            self, grouping, columns, signed=signed, operation=below.origin[1] if signed else None,
            values=True, changed=changed,
        )  # fmt: skip
        if signed and aggregates.unmergeable is not None:
            signed = False
            aggregates = GroupAggregates(
                self, grouping, columns, signed=False, operation=None, values=False, changed=changed
            )
        self.operations.append(describe_grouping(grouping))
        rows = self._drop_late(below, grouping)
        keys = [self.alias(key, f"{KEY_PREFIX}{index}") for index, key in enumerate(grouping)]
        if is_last_step:
            key_rows = self.project([*keys, *below.origin[2:4]], rows)
            self.grouping_input = GroupingInput(key_rows, list(map(is_session, grouping)))
        if not windowed:
            if not is_last_step:
                raise StatefulQueryError("a grouping without a window that is not its last step")
            self._running = [grouping_column_id(key, columns) for key in grouping]
            return self._running_groups(aggregates, plan, rows, below.origin[3])
        origins = self.alias(self._collect_origins(below.origin[2]), ORIGINS_COLUMN)
        groups = aggregates.aggregate_rows(plan, rows, keys if is_last_step else [*keys, origins])
        aggregated = groups.plan
        if signed:
            is_row = self.expressions.GreaterThan(groups.rows, self.long_literal(0))
            aggregated = self.filter(is_row, aggregated)
        key_attributes = [key.toAttribute() for key in keys]
        batch = (
            self._emitting_batch(grouping, key_attributes)
            if has_input_rows
            else self._typed_null(below.origin[3])
        )
        origins_or_null = self._typed_null(origins.toAttribute()) if is_last_step else origins.toAttribute()
        origin = self._computed_origin(origins_or_null, batch, below.origin)
        return self._with_origin(
            groups.columns, [*origin, *(key_attributes if is_last_step else ())], aggregated
        )

    def _running_groups(self, aggregates: GroupAggregates, plan: Any, rows: Any, batch: Any) -> TrackedPlan:
        """Return groups without a window, in the state after all batches."""
        return self._groups_with(aggregates.aggregate_rows(plan, rows, []), [])

    def _groups_with(self, groups: FinishedGroups, added: Sequence[Any]) -> TrackedPlan:
        """Return groups with the number of their rows and further columns."""
        none = self.long_literal(0)
        count = self.alias(self.expressions.Coalesce(self.seq([groups.rows, none])), ROWS)
        return self._with_origin(groups.columns, [count, *added], groups.plan)

    def _emitting_batch(self, grouping: Sequence[Any], keys: Sequence[Any]) -> Any:
        """Return the batch whose watermark closes a group, and which emits it."""
        time = next(key for key, expression in zip(keys, grouping, strict=True) if has_watermark(expression))
        end, steps = self._end_time(time), [(mark, self.literal(number)) for mark, number in self._watermarks]

        def is_reached(milliseconds: int) -> Any:
            mark = self.expressions.MillisToTimestamp(self.long_literal(milliseconds))
            return self.expressions.LessThanOrEqual(end, mark)

        return search_steps(steps, self.literal(NEVER), is_reached, self.expressions.If)

    def _group_with_origin(
        self, keys: Sequence[Any], columns: Sequence[Any], rows: Any, below: TrackedPlan
    ) -> TrackedPlan:
        """Return one row per key, with the origins of all rows of the key."""
        aggregate = self.expressions.aggregate
        unknown = self.expressions.If(
            self.expressions.IsNull(below.origin[3]), self.literal(1), self.literal(0)
        )
        first_batch = aggregate.Min(below.origin[3]).toAggregateExpression(False, self.none())
        any_unknown = aggregate.Max(unknown).toAggregateExpression(False, self.none())
        batch = self.expressions.If(
            self.expressions.EqualTo(any_unknown, self.literal(1)),
            self._typed_null(below.origin[3]),
            first_batch,
        )
        added = [self.alias(self._collect_origins(below.origin[2]), ORIGINS_COLUMN), self.alias(batch, BATCH)]
        aggregated = self.catalyst.plans.logical.Aggregate(
            self.seq(keys), self.seq([*columns, *added]), rows, self.none()
        )
        origins, batch = (column.toAttribute() for column in added)
        origin = self._computed_origin(origins, batch, below.origin)
        return self._with_origin([column.toAttribute() for column in columns], origin, aggregated)

    def _collect_origins(self, origins: Any) -> Any:
        """Collect the origins of the rows of a group, in any order."""
        collected = self.expressions.aggregate.CollectList(origins)
        return self.expressions.Flatten(collected.toAggregateExpression(False, self.none()))

    def _drop_late(self, tracked: TrackedPlan, keys: Sequence[Any]) -> Any:
        """Return the rows that are not late for their group."""
        time = next((key for key in keys if has_watermark(key)), None)
        if time is None:
            return tracked.plan
        late = self.expressions.LessThanOrEqual(self._end_time(time), tracked.origin[4])
        is_late = self.expressions.Coalesce(self.seq([late, self.literal(False)]))
        return self.filter(self.expressions.Not(is_late), tracked.plan)

    def _computed_origin(self, origins: Any, batch: Any, like: Sequence[Any]) -> list[Any]:
        """Return the origin columns of computed rows."""
        none, operation = self._typed_null(like[0]), self.literal(int(Op.APPEND))
        return self._origin_columns(none, operation, origins, batch, self._typed_null(like[4]))

    def _typed_null(self, like: Any) -> Any:
        """Return a typed null."""
        return self.expressions.Literal(None, like.dataType())


_VERSION_COLUMNS: Final = ("v_place", "v_time", "v_batch")


class JoinRows(NamedTuple):
    """Left rows of a join, by the index of their input.

    Attributes:
        input_index: index of the input; the joined rows of another join have an index after those of the
            inputs.
        frame: ``offset``, ``odf_places`` and ``odf_batch`` of each row.
    """

    input_index: int
    frame: DataFrame


class AsOfTables(NamedTuple):
    """Computes the joined rows of as-of joins.

    Attributes:
        as_of: the query, split at its joins.
        watermarks: watermark after each batch in milliseconds, and batch number, in ascending order.
        before: SQL expression of the watermark before each batch, in milliseconds.
        pairs: for each join, whether its rows may include correction pairs that stay together.
    """

    as_of: AsOfQuery
    watermarks: Sequence[tuple[int, int]]
    before: str
    pairs: Sequence[bool]

    def join_rows(
        self,
        number: int,
        views: dict[str, DataFrame],
        sources: Sequence[JoinRows],
        versions: tuple[DataFrame, JoinRows],
        *,
        changes: bool,
        may_be_late: bool,
    ) -> DataFrame:
        """Return the joined rows of a join: its columns, then ``odf_places``, ``odf_batch`` and ``odf_mark``.

        Args:
            number: index of the join.
            views: the inputs and the joined rows of the earlier joins.
            sources: origins of its left rows.
            versions: rows of its keyed input, and their origins.
            changes: whether versions may be retracted or corrected.
            may_be_late: whether versions may be late: read after the watermark had reached their time.

        Raises:
            StatefulQueryError: one left row can produce several rows.
        """
        join = self.as_of.joins[number]
        if any(contains_node(join.left, name) for name in ("Generate", "Join", "Expand")):
            raise StatefulQueryError("a generator before a join FOR SYSTEM_TIME AS OF")
        keys = join.key_names
        rows = add_due_time(self.as_of.left_rows(number, views), pairs=self.pairs[number])
        known_versions = to_versions(self.as_of.version_rows(number, versions[0]), keys, changes=changes)
        with translate_errors():
            rows = self._add_origins(rows, sources)
            known_versions = run_sql(
                f"SELECT a.*, a.{POSITION} AS v_place, a.{TIME} AS v_time, b.{BATCH} AS v_batch "
                f"FROM odf_a a JOIN odf_b b ON a.{POSITION} = b.offset",
                a=known_versions, b=versions[1].frame,
            )  # fmt: skip
            late = f"v_batch > {first_batch_reaching('v_time', self.watermarks)}"
            joined = lookup_versions(
                rows, known_versions.where(f"NOT ({late})") if may_be_late else known_versions, keys
            )
            if may_be_late:
                joined = self._apply_late_versions(joined, known_versions.where(late), keys)
                joined = self._add_corrections(joined, known_versions, keys)
        joined = self.as_of.select_versions(number, joined)
        with translate_errors():
            if not join.outer:
                joined = joined.where(IS_ACTIVE)
            return self._output(number, joined, versions[1].input_index)

    def _add_origins(self, rows: DataFrame, sources: Sequence[JoinRows]) -> DataFrame:
        """Add the origins of the rows, and the batch that emits each of them."""
        parts = [
            source.frame.selectExpr(
                f"offset | shiftleft(CAST({source.input_index} AS BIGINT), {INPUT_BITS}) AS b_place",
                ORIGINS_COLUMN,
                BATCH,
            )
            for source in sources
        ]
        origins = reduce(lambda one, other: one.unionAll(other), parts)
        due = first_batch_reaching(DUE, self.watermarks)
        return run_sql(
            f"SELECT a.*, b.{ORIGINS_COLUMN}, greatest(b.{BATCH}, {due}) AS {BATCH} "
            f"FROM odf_a a JOIN odf_b b ON a.{POSITION} = b.b_place",
            a=rows, b=origins,
        )  # fmt: skip

    def _apply_late_versions(self, rows: DataFrame, late: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Replace the version of rows by a late version that was available when the row was emitted."""
        version_columns = list(filter(is_version_column, late.columns))
        replaced = [*version_columns, *_VERSION_COLUMNS, IS_ACTIVE]
        key_condition = " AND ".join(f"a.{key} = b.{key}" for key in keys)
        picked = ", ".join(f"late.{name} AS late_{name}" for name in replaced)
        ranked = run_sql(
            f"""
            SELECT * EXCEPT (late, rank), {picked} FROM (
                SELECT a.*, struct(b.*) AS late, row_number() OVER (
                    PARTITION BY a.{POSITION} ORDER BY b.v_time DESC NULLS LAST, b.v_place DESC NULLS LAST
                ) AS rank
                FROM odf_a a LEFT JOIN odf_b b
                ON {key_condition} AND b.v_time <= a.{TIME} AND b.v_batch <= a.{BATCH}
            ) WHERE rank = 1
            """,
            a=rows, b=late,
        )  # fmt: skip
        is_later = (
            "late_v_place IS NOT NULL AND (v_place IS NULL OR late_v_time > v_time "
            "OR (late_v_time = v_time AND late_v_place > v_place))"
        )
        others = [name for name in rows.columns if name not in replaced]
        columns = {name: f"IF({is_later}, late_{name}, {name}) AS {name}" for name in replaced}
        return ranked.selectExpr(*(columns.get(name, name) for name in [*others, *replaced]))

    def _add_corrections(self, rows: DataFrame, versions: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Add a -C and a +C for each emitted row in each batch that read a later version for its time."""
        values = list(filter(is_version_column, versions.columns))
        replaced = [*values, *_VERSION_COLUMNS, IS_ACTIVE]
        others = [name for name in rows.columns if name not in (*replaced, BATCH, OPERATION, POSITION)]
        same_key = " AND ".join(f"a.{key} = b.{key}" for key in keys)
        same_row = f"OVER (PARTITION BY a.{POSITION} ORDER BY b.v_batch)"

        def place(batch: str, is_to: int) -> str:
            # The joined rows of an input need different positions.
            return f"{POSITION} | shiftleft(CAST({batch} * 2 + {1 + is_to} AS BIGINT), {_CORRECTION_BITS})"

        return run_sql(
            f"""
            WITH later AS (
                SELECT a.*, struct(b.*) AS late,
                    max(struct(b.v_time, b.v_place)) {same_row} AS best
                FROM odf_a a JOIN odf_b b ON {same_key} AND b.v_time <= a.{TIME}
                WHERE a.{OPERATION} NOT {RETRACTS}
            ), rows AS (
                SELECT {", ".join([*others, *replaced, BATCH, OPERATION, POSITION])}, false AS is_late
                FROM odf_a
                UNION ALL
                SELECT {", ".join([*others, *(f"late.{name}" for name in replaced)])}, late.v_batch,
                    {Op.CORRECT_TO:d}, {POSITION}, true
                FROM later WHERE late.v_batch > {BATCH} AND best = struct(late.v_time, late.v_place)
            ), chained AS (
                SELECT *, lead({BATCH}) OVER (
                    PARTITION BY {POSITION}, {OPERATION} {RETRACTS} ORDER BY {BATCH}) AS next_batch
                FROM rows
            )
            SELECT {", ".join([*others, *replaced, BATCH, OPERATION])},
                IF(is_late, {place(BATCH, 1)}, {POSITION}) AS {POSITION} FROM chained
            UNION ALL
            SELECT {", ".join([*others, *replaced])}, next_batch, {Op.CORRECT_FROM:d},
                {place("next_batch", 0)} FROM chained WHERE next_batch IS NOT NULL
            """,
            a=rows, b=versions,
        )  # fmt: skip

    def _output(self, number: int, rows: DataFrame, input_index: int) -> DataFrame:
        columns = [f"{name} AS c{index}" for index, name in enumerate(self.as_of.joins[number].names)]
        mask = (1 << INPUT_BITS) - 1
        version = f"array(struct({input_index} AS at, v_place AS offset))"
        return rows.selectExpr(
            *columns,
            TIME,
            f"{POSITION} & {mask} AS odf_offset",
            f"{OPERATION} AS odf_op",
            f"IF(v_place IS NULL, {ORIGINS_COLUMN}, concat({ORIGINS_COLUMN}, {version})) AS {ORIGINS_COLUMN}",
            BATCH,
            f"timestamp_millis(CAST({self.before} AS BIGINT)) AS {WATERMARK}",
        )


LAST_BATCH_COLUMN: Final = "odf_prefix"
"""The last batch whose rows count."""


class PrefixLineage(StreamLineage):
    """Tracks a query whose last step groups without a window; the result has ``odf_prefix`` too.

    Attributes:
        targets: ``odf_key_0``, … of the requested groups, with the last batch to include as ``odf_prefix``.
    """

    targets: DataFrame

    def _running_groups(self, aggregates: GroupAggregates, plan: Any, rows: Any, batch: Any) -> TrackedPlan:
        targets = analyzed_plan(self.targets)
        *keys, last = to_list(targets.output())
        condition: Any = self.expressions.LessThanOrEqual(batch, last)
        for expression, key in zip(to_list(plan.groupingExpressions()), keys, strict=True):
            condition = self.expressions.And(condition, self.expressions.EqualNullSafe(expression, key))
        logical, plans = self.catalyst.plans.logical, self.catalyst.plans
        joined = logical.Join(
            rows,
            targets,
            self.companion("Inner", plans),
            self.java.scala.Option.apply(condition),
            self.companion("JoinHint", logical).NONE(),
        )
        return self._groups_with(aggregates.aggregate_rows(plan, joined, [last], [last]), [last])
