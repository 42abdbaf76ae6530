"""Stages whose results can change: Top-N, running totals; joins and deduplication with retractions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.data.changelog import Op
from odf_engine.spark.plan_rewrite import OPERATION, TrackedPlan, column_id, null_value, run_sql, to_list
from odf_engine.spark.stateful.incremental import END, VALUES, WATERMARK, IncrementalPlanner, JoinSide
from odf_engine.spark.stateful.stateful_query import is_first_arrival, replace_window, running_aggregates
from odf_engine.spark.stateful.stream_checks import has_watermark
from odf_engine.spark.stateful.window_functions import (
    BATCH,
    FROM,
    NEVER,
    NUMBER,
    PLACE,
    UNTIL,
    RankedRows,
    add_operation,
    add_sign,
    comparable,
    lifetime_changes,
    lifetimes,
    rows_by_version,
    running_frames,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from odf_engine.spark.stateful.group_aggregates import GroupAggregates


RANK: Final = "odf_rank"
"""The number of a row within its key, which defines the order of the changes of a batch."""
_TOTALS: Final = "-totals"
"""Ending of the name of a state that has the running totals of keys."""
_IS_ROW: Final = "odf_is_row"


class _KeyedRows(NamedTuple):
    """The stored and new rows of an operator over keys.

    Attributes:
        name: name of the state.
        all_rows: whether the state has all rows.
        lives: the rows with their lifetimes.
        columns: names of the columns of the rows below the operator.
        stored: names of the columns that are stored.
        order: sort terms that define a total order of the rows of a key.
    """

    name: str
    all_rows: bool
    lives: DataFrame
    columns: Sequence[str]
    stored: Sequence[str]
    order: Sequence[str]


class ChangelogPlanner(IncrementalPlanner):
    """Adds the stages whose results can change to the incremental plans."""

    def _track_distinct(self, plan: Any) -> TrackedPlan:
        below = self.track(plan.child())
        columns = [column for column in to_list(plan.output()) if column_id(column) not in below.passed]
        if not self._keeps_all_rows(str(self._stage), below):
            return self._first_of_keys(below, columns, columns)
        rows = self._rank_rows(below, columns, [], columns, "row_number", (1, 1))
        return rows._replace(plan=self.project([*columns, *rows.origin], rows.plan))

    def _track_ranked_rows(self, plan: Any, ranked: RankedRows) -> TrackedPlan:
        window = ranked.window
        below = self.track(window.child())
        keys, orders = to_list(window.partitionSpec()), to_list(window.orderSpec())
        columns = [
            column for column in to_list(window.child().output()) if column_id(column) in self._referenced
        ]
        if is_first_arrival(ranked, below) and not self._keeps_all_rows(str(self._stage), below):
            ranked_rows = self._first_of_keys(below, keys, columns)
            number: Any = self.literal(1)
        else:
            limits = (ranked.first, ranked.last)
            ranked_rows = self._rank_rows(below, keys, orders, columns, ranked.function, limits)
            number = next(column for column in to_list(ranked_rows.plan.output()) if column.name() == NUMBER)
            if not is_first_arrival(ranked, below):
                rank = self.alias(number, RANK)
                plan_with_rank = self.project([*to_list(ranked_rows.plan.output()), rank], ranked_rows.plan)
                ranked_rows = ranked_rows._replace(
                    plan=plan_with_rank, origin=[*ranked_rows.origin, rank.toAttribute()]
                )
        rewritten = replace_window(
            self, plan.child(), columns, [number], ranked_rows.plan, ranked_rows.origin
        )
        return TrackedPlan(self.filter(plan.condition(), rewritten), ranked_rows.origin, below.passed)

    def _rank_rows(
        self,
        below: TrackedPlan,
        keys: Sequence[Any],
        orders: Sequence[Any],
        columns: Sequence[Any],
        function: str,
        limits: tuple[int, int],
    ) -> TrackedPlan:
        """Return the changes of the rows of each key whose number is within limits, with their number.

        The state has all rows of open keys, or without retractions those up to the limit.
        """
        key_names = [f"k{index}" for index in range(len(keys))]
        time = next((key for key in keys if has_watermark(key)), None)
        key_columns = [*map(self.alias, keys, key_names)]
        if time is not None:
            key_columns.append(self.alias(self._end_time(time), END))
        rows = self._keyed_rows(below, key_columns, orders, columns, f"{END} <= {WATERMARK}")
        partition = f"PARTITION BY {', '.join([*key_names, FROM])}"
        order = rows.order if function == "row_number" else rows.order[: len(orders)]
        number = f"{function}() OVER ({partition} ORDER BY {', '.join(order) or 1}) AS {NUMBER}"
        numbered = f"SELECT *, {number} FROM ({rows_by_version(key_names)})"
        first = self._cache(
            run_sql(f"SELECT * FROM ({numbered}) WHERE {NUMBER} <= {limits[1]}", lives=rows.lives)
        )
        kept = f"{UNTIL} = {NEVER}"
        if time is not None:
            delay = self._delay(below).milliseconds
            kept += f" AND {self._watermarks.first_batch_reaching(END, delay)} = {NEVER}"
        order_of_state = [*([END] if time is not None else []), *key_names]
        self._store(rows.name, rows.lives if rows.all_rows else first, rows.stored, kept, order_of_state)
        names = [*rows.columns, NUMBER]
        within = f"SELECT * FROM odf_first WHERE {NUMBER} >= {limits[0]}"
        changes = add_operation(lifetime_changes(within, names, first.schema))
        result = self._restored(run_sql(changes, first=first), rows.columns, columns, NUMBER)
        self._mark_changes(result, retracting=True)
        self._set_delay(result, self._delay(below))
        return result

    def _track_running_totals(self, window: Any) -> TrackedPlan:
        below = self.track(window.child())
        ranges = running_frames(window, has_watermark)
        aggregates = running_aggregates(self, window)
        orders = to_list(window.orderSpec())
        columns = [
            column for column in to_list(window.child().output()) if column_id(column) in self._referenced
        ]
        delay, time = self._delay(below), self._end_time(orders[0].child())
        key_columns = [*aggregates.row_columns(), self.alias(time, END)]
        # A retraction applies to rows of any time; it is not late.
        late = f"{END} <= {WATERMARK} AND {OPERATION} = {Op.APPEND:d}"
        rows = self._keyed_rows(below, key_columns, orders, columns, late)
        reached = self._watermarks.first_batch_reaching(END, delay.milliseconds)
        lives = run_sql(
            f"SELECT * EXCEPT ({FROM}), CAST(greatest({FROM}, {reached}) AS INT) AS {FROM} FROM odf_lives",
            lives=rows.lives,
        )
        total = self._changed_totals if rows.all_rows else self._new_totals
        frame = total(rows._replace(lives=lives), aggregates, ranges, len(orders))
        final = aggregates.finish(frame, f"{BATCH} > 0", [])
        by_name = final.columns_by_name
        restored = map(self.replace_column, map(by_name.__getitem__, rows.columns), columns)
        origin = self._computed_origin(by_name[BATCH], by_name[OPERATION], by_name[PLACE])
        result = self._with_origin([*restored, *final.columns], origin, final.plan, below.passed)
        if self._is_retractable(below):
            self._mark_changes(result, retracting=rows.all_rows)
        self._set_delay(result, delay)
        return result

    def _new_totals(
        self, rows: _KeyedRows, aggregates: GroupAggregates, ranges: Sequence[bool], terms: int
    ) -> DataFrame:
        """Return the rows that the watermark has reached, with the totals up to them, and store the last
        totals of each key.
        """
        self._store(rows.name, rows.lives, rows.stored, f"{FROM} = {NEVER}", [END])
        names, totals = aggregates.state_names, f"{rows.name}{_TOTALS}"
        others = [name for name in rows.stored if name not in names]
        query = (
            f"SELECT {', '.join([*names, *others])}, {FROM} AS {BATCH}, 1 AS {_IS_ROW} "
            f"FROM odf_lives WHERE {FROM} < {NEVER}"
        )
        frames = {"lives": rows.lives}
        if self._files.has(totals):
            schema = rows.lives.select(*names).schema
            frames["totals"] = self._files.read(totals, schema)
            nulls = ", ".join(null_value(rows.lives, other) for other in others)
            query += f" UNION ALL SELECT {', '.join(names)}, {nulls}, 0, 0 FROM odf_totals"
        peers = [_IS_ROW, *(f"o{index}" for index in range(terms))]
        query = aggregates.accumulate(query, aggregates.key_names, [_IS_ROW, *rows.order], peers, ranges)
        frame = self._cache(run_sql(query, **frames))
        self._store(totals, frame, names, "odf_is_last", aggregates.key_names)
        return run_sql(
            f"SELECT *, {Op.APPEND:d} AS {OPERATION} FROM odf_rows WHERE {_IS_ROW} = 1", rows=frame
        )

    def _changed_totals(
        self, rows: _KeyedRows, aggregates: GroupAggregates, ranges: Sequence[bool], terms: int
    ) -> DataFrame:
        """Return the changes of the rows that the watermark has reached, and of their totals."""
        self._store(rows.name, rows.lives, rows.stored, f"{UNTIL} = {NEVER}", [*aggregates.key_names, END])
        versions = rows_by_version(aggregates.key_names)
        peers = [f"o{index}" for index in range(terms)]
        query = aggregates.accumulate(versions, [*aggregates.key_names, FROM], rows.order, peers, ranges)
        names = [*aggregates.state_names, *rows.columns, PLACE]
        schema = run_sql(versions, lives=rows.lives).schema
        return run_sql(add_operation(lifetime_changes(query, names, schema)), lives=self._cache(rows.lives))

    def _join_sides(self, plan: Any, left: JoinSide, right: JoinSide, passed: frozenset[int]) -> TrackedPlan:
        if left.until is None:
            return super()._join_sides(plan, left, right, passed)
        columns = [
            column
            for column in (*to_list(plan.left().output()), *to_list(plan.right().output()))
            if column_id(column) in self._referenced
        ]
        kind, plans = plan.joinType().sql(), self.catalyst.plans
        pairs = self._join(plan, left.plan, right.plan, self.companion("Inner", plans))
        batches, ends = self.seq([left.batch, right.batch]), self.seq([left.until, right.until])
        parts = [
            self._lifetimes_of(
                columns, pairs, self.expressions.Greatest(batches), self.expressions.Least(ends)
            )
        ]
        for own, other, kinds in ((left, right, ("LEFT", "FULL")), (right, left, ("RIGHT", "FULL"))):
            if kind.startswith(kinds):
                # A row without a partner is emitted when no partner can follow, or be retracted.
                partners = self.filter(self.expressions.EqualTo(other.until, self.literal(NEVER)), other.plan)
                alone = self._join(plan, own.plan, partners, self.companion("LeftAnti", plans))
                batch = self.expressions.Greatest(self.seq([own.batch, own.closing]))
                parts.append(self._lifetimes_of(columns, alone, batch, own.until))
        names = [f"c{index}" for index in range(len(columns))]
        frames = {f"part{index}": part for index, part in enumerate(parts)}
        rows = " UNION ALL ".join(f"SELECT * FROM odf_{name}" for name in frames)
        changes = lifetime_changes(rows, names, parts[0].schema)
        result = self._restored(run_sql(add_operation(changes), **frames), names, columns)
        return result._replace(passed=passed)

    def _join(self, plan: Any, left: Any, right: Any, kind: Any) -> Any:
        """Return a join of other rows with the condition of a join."""
        return self.catalyst.plans.logical.Join(left, right, kind, plan.condition(), plan.hint())

    def _lifetimes_of(self, columns: Sequence[Any], plan: Any, first: Any, until: Any) -> DataFrame:
        """Return the rows of a plan with their lifetimes; missing columns are null."""
        present = {column_id(column): column for column in to_list(plan.output())}
        named = [
            self.alias(
                present.get(column_id(column), self.expressions.Literal(None, column.dataType())), f"c{index}"
            )
            for index, column in enumerate(columns)
        ]
        return self.to_frame(self.project([*named, self.alias(first, FROM), self.alias(until, UNTIL)], plan))

    def _keyed_rows(
        self,
        below: TrackedPlan,
        key_columns: Sequence[Any],
        orders: Sequence[Any],
        columns: Sequence[Any],
        late: str,
    ) -> _KeyedRows:
        """Return the stored and new rows of the next operator, with their lifetimes.

        Args:
            below: the new rows.
            key_columns: columns of keys and values, with the end of a time bound.
            orders: sort terms.
            columns: columns of the rows.
            late: SQL condition of the rows that are late.
        """
        name = str(self._stage)
        all_rows = self._keeps_all_rows(name, below)
        self._stage += 1
        name += VALUES if all_rows else ""
        order_names = [f"o{index}" for index in range(len(orders))]
        names = [f"c{index}" for index in range(len(columns))]
        added = [
            *key_columns,
            *(self.alias(term.child(), order) for term, order in zip(orders, order_names, strict=True)),
            *map(self.alias, columns, names),
            self.alias(below.origin[0], PLACE),
        ]
        stored = [column.name() for column in added]
        operation = self.alias(below.origin[1], OPERATION)
        query, frames = self._all_rows(name, below, [*added, operation], stored, late)
        schema = run_sql(query, **frames).schema
        if all_rows:
            values = [name for name, column in zip(names, columns, strict=True)
                      if column_id(column) not in below.passed]  # fmt: skip
            query = lifetimes(add_sign(query), stored, values, schema)
        else:
            query = f"SELECT {', '.join(stored)}, {BATCH} AS {FROM}, {NEVER} AS {UNTIL} FROM ({query})"
        lives = self._cache(run_sql(query, **frames))
        terms = [
            f"{name} {order.direction().sql()} {order.nullOrdering().sql()}"
            for name, order in zip(order_names, orders, strict=True)
        ]
        order = [*terms, PLACE, *comparable(names, schema)]
        return _KeyedRows(name, all_rows, lives, names, stored, order)
