"""Aggregates as mergeable values: per row, per group in the state, and as results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.data.changelog import Op
from odf_engine.spark.plan_rewrite import (
    PlanBuilder,
    analyzed_plan,
    column_id,
    function_name,
    is_session,
    node_name,
    run_sql,
    to_list,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SESSION: Final = "odf_session_window"
IS_LAST: Final = "odf_is_last"
_SAME: Final = {
    "Min": "min", "Max": "max", "BoolAnd": "bool_and", "BoolOr": "bool_or",
    "BitAndAgg": "bit_and", "BitOrAgg": "bit_or", "BitXorAgg": "bit_xor",
}  # fmt: skip
"""Aggregates whose result over results is the result over all rows."""
_FUNCTIONS: Final = {"sum": "Sum", **{merge: name for name, merge in _SAME.items()}}
"""Class of each function that merges partial values."""
_IGNORES_REPETITION: Final = frozenset({*_SAME, "CollectSet"}) - {"BitXorAgg"}
_PLAIN: Final = ("Alias", "AttributeReference", "GetStructField", "Literal")
_FLOATING: Final = ("double", "float")


@dataclass
class _Aggregate:
    """An aggregate of the query.

    Attributes:
        expression: the aggregate expression.
        partials: indexes of its partial values, or () if it is computed from single values.
    """

    expression: Any
    partials: list[int]


class FinishedGroups(NamedTuple):
    """The results of groups.

    Attributes:
        plan: the groups.
        columns: the columns of the aggregation.
        rows: column with the number of rows of the group.
        columns_by_name: all columns of the plan.
    """

    plan: Any
    columns: list[Any]
    rows: Any
    columns_by_name: dict[str, Any]


class GroupAggregates:
    """The aggregates of one aggregation.

    The values of a row or of a group are the columns ``k0``, … (keys), ``v0``, … (single values, for the
    aggregates that cannot be merged), ``p0``, … (partial values) and ``n`` (number of rows, minus the
    retracted ones). With single values a group has one row for each combination of them.

    Args:
        make: builds expressions.
        grouping: the grouping expressions.
        columns: the columns of the aggregation.
        signed: whether rows can be retracted.
        operation: column with the operation of a row, or None if no row of this query is a retraction.
        values: whether ``min`` and the like are computed from single values, which retractions require.
        changed: name of the result's event time column. A maximum of the event time under this name includes
            retracted rows: it is the time of the last change.

    Attributes:
        session: index of the key that is a session window, or None if absent.
        keeps_values: whether aggregates such as ``min`` are computed from single values.
        can_keep_values: whether there are such aggregates.
        order_matters: whether results depend on the order of the rows: sums of floating point numbers.
    """

    def __init__(
        self,
        make: PlanBuilder,
        grouping: Sequence[Any],
        columns: Sequence[Any],
        *,
        signed: bool,
        operation: Any,
        values: bool,
        changed: str | None,
    ) -> None:
        self._make = make
        self._grouping = list(grouping)
        self._columns = list(columns)
        self._retractable = signed
        self._operation = operation
        self._changed = changed
        sessions = [index for index, key in enumerate(grouping) if is_session(key)]
        self.session = sessions[0] if sessions else None
        functions = [
            (aggregate, self._is_change(column))
            for column in columns
            for aggregate in find_aggregates(column)
        ]
        self.can_keep_values = signed and any(
            function_name(function.aggregateFunction()) in _SAME and not is_change
            for function, is_change in functions
        )
        self._found = functions
        self.keeps_values = values and self.can_keep_values
        self._split()

    def keep_values(self) -> None:
        """Compute aggregates such as ``min`` from single values."""
        self.keeps_values = True
        self._split()

    def _split(self) -> None:
        self._partials: list[tuple[Any, str, Any]] = []
        self._aggregates: list[_Aggregate] = []
        values: dict[int, Any] = {}
        for expression, is_change in self._found:
            partials = self._partials_of(expression, is_change)
            self._aggregates.append(
                _Aggregate(expression, [len(self._partials) + i for i in range(len(partials))])
            )
            self._partials += partials
            if not partials:
                for column in to_list(expression.references().toSeq()):
                    values.setdefault(column_id(column), column)
        self._values = list(values.values())
        self.order_matters = any(merge == "sum" and kind.typeName() in _FLOATING
                                  for _, merge, kind in self._partials)  # fmt: skip

    @property
    def has_values(self) -> bool:
        """Whether results are computed from single values, or from rows if there are only constants."""
        return self.unmergeable is not None

    @property
    def unmergeable(self) -> Any:
        """The first aggregate that has no partial values, or None if absent."""
        return next((aggregate.expression for aggregate in self._aggregates if not aggregate.partials), None)

    @property
    def is_plain(self) -> bool:
        """Whether the results of incomplete groups can be computed as well, without any error."""
        if self.has_values or self.session is not None:
            return False
        return all(_is_plain(column) for column in self._columns)

    @property
    def state_names(self) -> list[str]:
        """The names of all columns of a group."""
        return [*self.key_names, *self._value_names, *self._partial_names, "n"]

    @property
    def key_names(self) -> list[str]:
        """The names of the columns of the keys."""
        return [f"k{index}" for index in range(len(self._grouping))]

    @property
    def _value_names(self) -> list[str]:
        return [f"v{index}" for index in range(len(self._values))]

    @property
    def _partial_names(self) -> list[str]:
        return [f"p{index}" for index in range(len(self._partials))]

    def row_columns(self) -> list[Any]:
        """Return the columns of a single row as a group."""
        make = self._make
        return [
            *(make.plain_alias(key, name)
              for key, name in zip(self._grouping, self.key_names, strict=True)),
            *(make.alias(column, name) for column, name in zip(self._values, self._value_names, strict=True)),
            *(make.alias(partial, name)
              for (partial, _, _), name in zip(self._partials, self._partial_names, strict=True)),
            make.alias(self._sign(), "n"),
        ]  # fmt: skip

    def _is_retraction(self) -> Any:
        make, expressions = self._make, self._make.expressions
        retracted = expressions.EqualTo(self._operation, make.literal(int(Op.RETRACT)))
        corrected = expressions.EqualTo(self._operation, make.literal(int(Op.CORRECT_FROM)))
        return expressions.Or(retracted, corrected)

    def _sign(self) -> Any:
        one = self._make.long_literal(1)
        if self._operation is None:
            return one
        return self._make.expressions.If(self._is_retraction(), self._make.long_literal(-1), one)

    def _is_change(self, column: Any) -> bool:
        """Return whether a column is the maximum event time of a group, named as the result's event time."""
        if self._changed is None or column.name() != self._changed or node_name(column) != "Alias":
            return False
        inner = column.child()
        if node_name(inner) != "AggregateExpression" or function_name(inner.aggregateFunction()) != "Max":
            return False
        argument = to_list(inner.aggregateFunction().children())[0]
        return node_name(argument) == "AttributeReference" and argument.name() == self._changed

    def _partials_of(self, expression: Any, is_change: bool) -> list[tuple[Any, str, Any]]:
        """Return value per row, merge function and type of each partial value."""
        make, function, condition = self._make, expression.aggregateFunction(), expression.filter()
        name, arguments = function_name(function), to_list(function.children())
        if expression.isDistinct():
            return []
        long = make.types.LongType
        if name == "Count":
            values = [argument for argument in arguments if argument.nullable()]
            return [(self._count(values, condition), "sum", long)]
        if name == "CountIf":
            chosen = make.expressions.If(arguments[0], self._sign(), make.long_literal(0))
            return [(self._filtered(chosen, make.long_literal(0), condition), "sum", long)]
        if name == "Sum" and function.prettyName() == "sum":
            kind = function.dataType()
            total = self._signed(make.cast(arguments[0], kind), kind, condition)
            if not self._retractable:
                return [(total, "sum", kind)]
            # Without a value, after retractions as well, the sum is null.
            return [(total, "sum", kind), (self._count([arguments[0]], condition), "sum", long)]
        if (
            name == "Average"
            and function.prettyName() == "avg"
            and "interval" not in function.dataType().typeName()
        ):
            value = arguments[0]
            if not function.dataType().typeName().startswith("decimal"):
                value = make.cast(value, make.types.DoubleType)
            kind = make.expressions.aggregate.Sum(value).dataType()
            total = self._signed(make.cast(value, kind), kind, condition)
            return [(total, "sum", kind), (self._count([value], condition), "sum", long)]
        if name in _SAME and (is_change or not self.keeps_values):
            kind = function.dataType()
            # Of 0.0 and -0.0, which are equal, the first one would be the result.
            value = make.positive_zero(arguments[0])
            none = make.expressions.Literal(None, kind)
            return [(self._filtered(value, none, condition), _SAME[name], kind)]
        return []

    def _count(self, values: Sequence[Any], condition: Any) -> Any:
        make, expressions = self._make, self._make.expressions
        one = self._sign()
        for value in values:
            one = expressions.If(expressions.IsNull(value), make.long_literal(0), one)
        return self._filtered(one, make.long_literal(0), condition)

    def _signed(self, value: Any, kind: Any, condition: Any) -> Any:
        expressions = self._make.expressions
        if self._operation is not None:
            value = expressions.If(self._is_retraction(), expressions.UnaryMinus(value, True), value)
        return self._filtered(value, expressions.Literal(None, kind), condition)

    def _filtered(self, value: Any, otherwise: Any, condition: Any) -> Any:
        """Return a value, or another one for rows that do not meet the FILTER of an aggregate."""
        if not condition.isDefined():
            return value
        return self._make.expressions.If(condition.get(), value, otherwise)

    def accumulate(
        self,
        rows: str,
        keys: Sequence[str],
        order: Sequence[str],
        peers: Sequence[str],
        ranges: Sequence[bool],
    ) -> str:
        """Return the SQL query that replaces the partial values of rows by values over all rows up to them.

        Args:
            rows: SQL query of the rows, which have the columns of groups.
            keys: columns that identify the rows of a total.
            order: total order of the rows.
            peers: columns that are equal in rows with the same total, for the functions of ``ranges``.
            ranges: for each aggregate, whether such rows have the same total.

        Returns:
            A query of the columns of the rows, and ``odf_is_last``: whether no row of the keys follows.
        """
        partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
        ordered = f"{partition}ORDER BY {', '.join(order)}"
        until = f"OVER ({ordered} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        names = ", ".join(self._partial_names)
        is_last = f"lead(true) OVER ({ordered}) IS NULL AS odf_is_last"
        query = f"SELECT * EXCEPT ({names}), {', '.join(self._merged(until))}, {is_last} FROM ({rows})"
        equal = [
            f"p{index}" for aggregate, is_range in zip(self._aggregates, ranges, strict=True) if is_range
            for index in aggregate.partials
        ]  # fmt: skip
        if not equal:
            return query
        same = f"OVER (PARTITION BY {', '.join([*keys, *peers])} ORDER BY {', '.join(order)} "
        end = f"{same} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        last = ", ".join(f"last({name}) {end} AS {name}" for name in equal)
        return f"SELECT * EXCEPT ({', '.join(equal)}), {last} FROM ({query})"

    def merge(self, rows: str, order: Sequence[str], end: str | None, *, by_batch: bool = False) -> str:
        """Return the SQL query that merges rows and stored groups to groups.

        Args:
            rows: SQL query of the rows, which have the columns of groups, ``order`` and ``end``.
            order: columns that define the order of the rows; the first one is their batch.
            end: column with the end of a window, which depends on the keys, or None without a window.
            by_batch: return each group after each batch with rows of it. Requires keys, and no single values.

        Returns:
            A query of the columns of groups and ``end``; without a window, also of the largest batch of the
            rows. With ``by_batch`` also ``odf_is_last``: whether it is the last batch of its group. With
            sessions, a group has the rows of one time, ``odf_session_window`` is the merged session, and
            ``end`` its end.
        """
        if by_batch:
            return self._merge_by_batch(rows, order)
        if self.order_matters:
            # A sum of floating point numbers depends on their order: one task adds them. Computed rows have
            # no position.
            terms = ", ".join([*order, *self._partial_names])
            rows = f"SELECT * FROM (SELECT /*+ COALESCE(1) */ * FROM ({rows})) SORT BY {terms}"
        keys = [*self.key_names, *self._value_names]
        if end is not None and self.session is None:
            keys.append(end)
        batch = [f"max({order[0]}) AS {order[0]}"] if end is None else []
        groups = self._merge_by(keys, rows, *batch)
        if self.session is not None:
            return f"SELECT *, {SESSION}.end AS {end} FROM ({self._with_sessions(groups)})"
        if end is None and self.has_values:
            partition = f"PARTITION BY {', '.join(self.key_names)}" if self.key_names else ""
            largest = f"max({order[0]}) OVER ({partition}) AS {order[0]}"
            return f"SELECT * EXCEPT ({order[0]}), {largest} FROM ({groups})"
        return groups

    def merge_rows(self, rows: str, *more: str) -> str:
        """Return the SQL query that merges rows or groups to one group for each key.

        Args:
            rows: SQL query of rows with the columns of groups.
            more: further columns.
        """
        return self._merge_by(self.key_names, rows, *more)

    def _merge_by(self, keys: Sequence[str], rows: str, *more: str) -> str:
        columns = ", ".join([*keys, *self._merged(), "sum(n) AS n", *more])
        return f"SELECT {columns} FROM ({rows})" + (f" GROUP BY {', '.join(keys)}" if keys else "")

    def _merge_by_batch(self, rows: str, order: Sequence[str]) -> str:
        keys, batch = ", ".join(self.key_names), order[0]
        if self.order_matters:
            terms = ", ".join([*order, *self._partial_names])
        else:
            terms = batch
            rows = self._merge_by([*self.key_names, batch], rows)
        window = f"PARTITION BY {keys} ORDER BY {terms}"
        totals = self._merged(f"OVER ({window} ROWS UNBOUNDED PRECEDING)")
        count = f"sum(n) OVER ({window} ROWS UNBOUNDED PRECEDING) AS n"
        following = f"lead({batch}) OVER ({window}) AS odf_next"
        return (
            f"SELECT * EXCEPT (odf_next), odf_next IS NULL AS {IS_LAST} FROM "
            f"(SELECT {', '.join([keys, *totals, count, batch, following])} FROM ({rows})) "
            f"WHERE odf_next IS NULL OR odf_next <> {batch}"
        )

    def _merged(self, over: str = "") -> list[str]:
        return [
            f"CAST({merge}({name}) {over} AS {kind.sql()}) AS {name}"
            for (_, merge, kind), name in zip(self._partials, self._partial_names, strict=True)
        ]

    def _with_sessions(self, groups: str) -> str:
        """Return the groups with the union of the sessions that overlap or touch a group's session."""
        session = f"k{self.session}"
        others = [name for name in self.key_names if name != session] or ["1"]
        partition = f"PARTITION BY {', '.join(others)}"
        order = f"ORDER BY {session}.start, {session}.end"
        before = (
            f"max({session}.end) OVER ({partition} {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        is_first = f"IF(coalesce({session}.start <= {before}, false), 0, 1) AS odf_first"
        number = f"sum(odf_first) OVER ({partition} {order} ROWS UNBOUNDED PRECEDING) AS odf_session"
        own = f"OVER ({partition}, odf_session)"
        merged = f"named_struct('start', min({session}.start) {own}, 'end', max({session}.end) {own})"
        started = f"SELECT *, {is_first} FROM ({groups}) WHERE n > 0"
        return f"SELECT *, {merged} AS {SESSION} FROM (SELECT *, {number} FROM ({started}))"

    def finish(self, groups: DataFrame, chosen: str, keep: Sequence[str]) -> FinishedGroups:
        """Return the results of groups.

        Args:
            groups: of :meth:`merge`.
            chosen: SQL condition of the groups whose results are computed.
            keep: further columns that depend on the keys.
        """
        if self.has_values or self.session is not None:
            plan, by_name, results = self._aggregate_values(groups, chosen, keep)
        else:
            plan = analyzed_plan(run_sql(f"SELECT * FROM odf_groups WHERE {chosen}", groups=groups))
            by_name = {column.name(): column for column in to_list(plan.output())}
            results = {}
        return self._finished(plan, by_name, results)

    def aggregate_rows(
        self, plan: Any, rows: Any, added: Sequence[Any], keys: Sequence[Any] = ()
    ) -> FinishedGroups:
        """Return the results of groups from all their rows, without a state.

        Args:
            plan: the original aggregation.
            rows: its rows.
            added: further columns of the groups.
            keys: further grouping expressions, which are among ``added``.
        """
        make = self._make
        partials = [
            make.alias(make.cast(self._merge_values(merge, value), kind), name)
            for (value, merge, kind), name in zip(self._partials, self._partial_names, strict=True)
        ]
        results = {
            index: make.alias(aggregate.expression, f"a{index}")
            for index, aggregate in enumerate(self._aggregates)
            if not aggregate.partials
        }
        columns = [
            *map(make.alias, self._grouping, self.key_names),
            *partials,
            make.alias(self._merge_values("sum", self._sign()), "n"),
            *results.values(),
            *added,
        ]
        grouping = make.seq([*self._grouping, *keys])
        groups = make.catalyst.plans.logical.Aggregate(grouping, make.seq(columns), rows, plan.hint())
        by_name = {column.name(): column for column in to_list(groups.output())}
        return self._finished(groups, by_name, {index: by_name[f"a{index}"] for index in results})

    def _merge_values(self, merge: str, value: Any) -> Any:
        """Return the aggregate that merges partial values."""
        function = getattr(self._make.expressions.aggregate, _FUNCTIONS[merge])(value)
        return function.toAggregateExpression(False, self._make.none())

    def _finished(self, plan: Any, by_name: dict[str, Any], results: dict[int, Any]) -> FinishedGroups:
        """Return the columns of the aggregation over groups.

        Args:
            plan: the groups.
            by_name: their columns.
            results: the results that are not computed from partial values, by the index of the aggregate.
        """
        make = self._make
        finals = [
            results[index] if index in results else self._final(aggregate, by_name)
            for index, aggregate in enumerate(self._aggregates)
        ]
        keys = [by_name[name] for name in self.key_names]
        columns: list[Any] = []
        position = 0
        for column in self._columns:
            count = len(find_aggregates(column))
            own = iter(finals[position : position + count])
            position += count
            replaced = self._replace(column, keys, own)
            columns.append(
                replaced if node_name(column) == "Alias" else make.replace_column(replaced, column)
            )
        return FinishedGroups(plan, columns, by_name["n"], by_name)

    def _replace(self, expression: Any, keys: Sequence[Any], finals: Any) -> Any:
        if node_name(expression) == "AggregateExpression":
            return next(finals)
        for grouping, key in zip(self._grouping, keys, strict=True):
            if grouping.semanticEquals(expression):
                return key
        return self._make.map_children(expression, lambda child: self._replace(child, keys, finals))

    def _final(self, aggregate: _Aggregate, by_name: dict[str, Any]) -> Any:
        make, expressions = self._make, self._make.expressions
        function = aggregate.expression.aggregateFunction()
        partials = [by_name[f"p{index}"] for index in aggregate.partials]
        if function_name(function) in ("Count", "CountIf"):
            return expressions.Coalesce(make.seq([partials[0], make.long_literal(0)]))
        if len(partials) == 1:
            return partials[0]
        total, count = partials
        kind = function.dataType()
        if function_name(function) == "Sum":
            result = total
        elif kind.typeName().startswith("decimal"):
            divisor = make.cast(count, make.java.org.apache.spark.sql.types.DecimalType(20, 0))
            result = expressions.DecimalDivideWithOverflowCheck(total, divisor, kind, None, False)
        else:
            result = expressions.Divide(total, make.cast(count, make.types.DoubleType))
        none = expressions.Literal(None, kind)
        return expressions.If(expressions.EqualTo(count, make.long_literal(0)), none, result)

    def _aggregate_values(
        self, groups: DataFrame, chosen: str, keep: Sequence[str]
    ) -> tuple[Any, dict[str, Any], dict[int, Any]]:
        """Aggregate the single values of groups; return the plan, its columns, and the results by index."""
        make, expressions = self._make, self._make.expressions
        keys = [
            f"{SESSION} AS {name}" if index == self.session else name
            for index, name in enumerate(self.key_names)
        ]
        columns = [*keys, *self._value_names, *keep]
        numbers = [*self._partial_names, "n"]
        if any(not aggregate.partials and not aggregate.expression.isDistinct()
               and function_name(aggregate.expression.aggregateFunction()) not in _IGNORES_REPETITION
               for aggregate in self._aggregates):  # fmt: skip
            numbers = [f"IF(odf_copy = 1, {name}, NULL) AS {name}" for name in numbers]
            source = "odf_groups LATERAL VIEW explode(sequence(1L, greatest(n, 1L))) AS odf_copy"
        else:
            source = "odf_groups"
        rows = f"SELECT {', '.join([*columns, *numbers])}, n > 0 AS odf_row FROM {source} WHERE {chosen}"
        if self.order_matters:
            order = ", ".join([*self.key_names, *self._value_names])
            rows = f"SELECT * FROM (SELECT /*+ COALESCE(1) */ * FROM ({rows})) SORT BY {order}"
        keys = [*self.key_names, *keep]
        frame = run_sql(self._merge_by(keys, rows), groups=groups)
        plan = analyzed_plan(frame)
        below = {column.name(): column for column in to_list(plan.child().output())}
        mapping = {
            column_id(column): below[name]
            for column, name in zip(self._values, self._value_names, strict=True)
        }
        results: dict[int, Any] = {}
        for index, aggregate in enumerate(self._aggregates):
            if aggregate.partials:
                continue
            condition = below["odf_row"]
            if aggregate.expression.filter().isDefined():
                condition = expressions.And(
                    _with_columns(make, aggregate.expression.filter().get(), mapping), condition
                )
            function = _with_columns(make, aggregate.expression.aggregateFunction(), mapping)
            some = make.java.scala.Some(condition)
            results[index] = make.alias(
                function.toAggregateExpression(aggregate.expression.isDistinct(), some), f"a{index}"
            )
        plan = make.aggregate(plan, [*to_list(plan.aggregateExpressions()), *results.values()], plan.child())
        by_name = {column.name(): column for column in to_list(plan.output())}
        return plan, by_name, {index: by_name[f"a{index}"] for index in results}


def _is_plain(expression: Any) -> bool:
    name = node_name(expression)
    if name == "AggregateExpression":
        return True
    return name in _PLAIN and all(_is_plain(child) for child in to_list(expression.children()))


def find_aggregates(expression: Any) -> list[Any]:
    """Return the aggregates in an expression, from left to right."""
    if node_name(expression) == "AggregateExpression":
        return [expression]
    return [aggregate for child in to_list(expression.children()) for aggregate in find_aggregates(child)]


def _with_columns(make: PlanBuilder, expression: Any, mapping: dict[int, Any]) -> Any:
    """Return an expression over other columns."""
    if node_name(expression) == "AttributeReference":
        return mapping.get(column_id(expression), expression)
    return make.map_children(expression, lambda child: _with_columns(make, child, mapping))
