"""Adds the origin of each row to the plan of a stateless query. Runs in the DataFusion process."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal
from datafusion.expr import SortExpr

from odf_engine.data.changelog import INPUT_BITS, OPERATION, POSITION
from odf_engine.query_process.query_request import QueryTable

_INPUT: Final = "odf_input"
_OFFSET: Final = "odf_offset"
_SCAN: Final = "odf_scan"
_HIDDEN: Final = (_INPUT, _OFFSET, OPERATION, _SCAN)
_SUBQUERY: Final = re.compile(r"^\s*Subquery:", re.MULTILINE)
_ROW_WISE: Final = ("Projection", "Filter", "SubqueryAlias", "TableScan", "EmptyRelation", "Values", "Limit")
_DESCRIPTIONS: Final = {
    "Aggregate": "an aggregation",
    "Distinct": "DISTINCT or UNION without ALL",
    "WindowExpr": "a window function",
    "Join": "a join",
    "Limit": "a LIMIT",
    "Sort": "an ORDER BY inside the query",
    "TableScan": "a table function",
    "Unnest": "unnest",
    "EmptyRelation": "rows that come from no input",
    "Values": "rows that come from no input",
    "RecursiveQuery": "WITH RECURSIVE",
}

MakeScan = Callable[[QueryTable], DataFrame]
"""Returns the rows of a table, sorted by offset."""


class NotRowByRow(Exception):
    """The query is not row-by-row; the message names the operation."""


class _Tracked(NamedTuple):
    """A frame with the hidden columns, and for each other column whether it is passed through."""

    frame: DataFrame
    names: list[str]
    passed: list[bool]


class TrackedFrame(NamedTuple):
    """A result with ``odf_position`` and ``odf_operation``, and whether the query itself sorts it."""

    frame: DataFrame
    ordered: bool


def track_rows(plan: Any, tables: Sequence[QueryTable], scan: MakeScan) -> TrackedFrame:
    """Return the result of a query with the origin of its rows, in order.

    Without an ORDER BY, rows are in the order of the inputs, then of the offsets, then of the branches of a
    UNION. An ORDER BY is made total by the same, and before the branches by all columns, nulls first.

    Args:
        plan: logical plan of the query over empty tables.
        tables: the inputs, in the order of declaration.
        scan: returns the rows of an input.

    Raises:
        StatefulQueryError: the query is not row-by-row.
    """
    if _SUBQUERY.search(plan.display_indent()):
        raise NotRowByRow("a subquery in an expression")
    tracked, order = _Tracker(tables, scan).track_top(plan)
    shown = [name for name, passed in zip(tracked.names, tracked.passed, strict=True) if not passed]
    ties: list[Expr] = [col(_INPUT), col(_OFFSET)]
    if order:
        types = tracked.frame.schema()
        ties += [column(name) for name in shown if not pa.types.is_nested(types.field(name).type)]
    keys = [each.sort(ascending=True, nulls_first=True) for each in (*ties, col(_SCAN))]
    # The inputs are sorted by offset, so that this merges them.
    frame = tracked.frame.sort(*order, *keys)
    position = (col(_OFFSET) + col(_INPUT) * literal(1 << INPUT_BITS)).alias(POSITION)
    return TrackedFrame(frame.select(*map(column, shown), position, col(OPERATION)), bool(order))


def is_row_wise(plan: Any) -> bool:
    """Return whether each row of a query over one table comes from one of its rows, in the same order."""
    children = plan.inputs()
    return _kind(plan) in _ROW_WISE and len(children) <= 1 and all(map(is_row_wise, children))


def column(name: str) -> Expr:
    """Return a column by its exact name."""
    return col(quoted(name))


def quoted(name: str) -> str:
    """Return a name in double quotes: the library parses names as SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


class _Tracker:
    def __init__(self, tables: Sequence[QueryTable], scan: MakeScan) -> None:
        self._tables = {table.name: (index, table) for index, table in enumerate(tables)}
        self._scan = scan
        self._scans = 0

    def track_top(self, plan: Any) -> tuple[_Tracked, list[SortExpr]]:
        """Return the tracked plan, and the terms of an ORDER BY at its top."""
        kind, children = _kind(plan), plan.inputs()
        if kind == "Sort":
            return self.track(children[0]), [_sort_term(expr) for expr in plan.to_variant().sort_exprs()]
        if kind == "Projection" and _kind(children[0]) == "Sort":
            # The query sorts by columns that it does not select: they stay until the rows are sorted.
            below, order = self.track_top(children[0])
            keys = [f"odf_order_{index}" for index in range(len(order))]
            terms = [each.expr().alias(key) for each, key in zip(order, keys, strict=True)]
            projected = self._project(plan, below, terms)
            sorts = [
                column(key).sort(ascending=each.ascending(), nulls_first=each.nulls_first())
                for each, key in zip(order, keys, strict=True)
            ]
            return projected, sorts
        return self.track(plan), []

    def track(self, plan: Any) -> _Tracked:
        """Track a plan whose rows come from one input row each."""
        kind, variant = _kind(plan), plan.to_variant()
        if kind == "TableScan" and variant.table_name() in self._tables:
            return self._track_scan(*self._tables[variant.table_name()])
        if kind == "Projection":
            return self._project(plan, self.track(plan.inputs()[0]))
        if kind == "Filter":
            below = self.track(plan.inputs()[0])
            return below._replace(frame=below.frame.filter(Expr(variant.predicate())))
        if kind == "SubqueryAlias":
            below = self.track(plan.inputs()[0])
            return below._replace(frame=below.frame.alias(quoted(variant.alias())))
        if kind == "Union":
            return self._union([self.track(each) for each in plan.inputs()])
        raise NotRowByRow(_DESCRIPTIONS.get(kind, kind))

    def _track_scan(self, index: int, table: QueryTable) -> _Tracked:
        rows = self._scan(table)
        names = rows.schema().names
        hidden = [
            literal(index).alias(_INPUT),
            column(table.offset).alias(_OFFSET),
            column(table.operation).alias(OPERATION),
            literal(self._scans).alias(_SCAN),
        ]
        self._scans += 1
        frame = rows.select(*map(column, names), *hidden).alias(quoted(table.name))
        return _Tracked(frame, names, [name in table.passed for name in names])

    def _project(self, plan: Any, below: _Tracked, extra: Sequence[Expr] = ()) -> _Tracked:
        passed = dict(zip(below.names, below.passed, strict=True))
        columns = list(map(Expr, plan.to_variant().projections()))
        frame = below.frame.select(*columns, *extra, *map(col, _HIDDEN))
        names = frame.schema().names[: len(columns)]
        is_passed = [
            # A renamed or computed column belongs to the query.
            each.variant_name() == "Column" and passed.get(each.to_variant().name(), False)
            for each in columns
        ]
        return _Tracked(frame, names, is_passed)

    def _union(self, branches: Sequence[_Tracked]) -> _Tracked:
        first, *others = branches
        frame = first.frame
        for other in others:
            frame = frame.union(other.frame)
        passed = [all(each) for each in zip(*(branch.passed for branch in branches), strict=True)]
        return _Tracked(frame, first.names, passed)


def _kind(plan: Any) -> str:
    return type(plan.to_variant()).__name__


def _sort_term(raw: Any) -> SortExpr:
    return Expr(raw.expr()).sort(ascending=raw.ascending(), nulls_first=raw.nulls_first())
