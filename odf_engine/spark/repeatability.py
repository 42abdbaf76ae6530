"""Check that a query returns the same rows each time it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import PlanBuilder, analyzed_plan, function_name, node_position, to_list
from odf_engine.sql.query_text import attach_query_excerpt
from odf_engine.sql.repeatability import SPECIAL_TIMES, find_special_time

_NONREPEATABLE: Final = {
    "CurrentTimestamp": "current_timestamp", "Now": "now", "LocalTimestamp": "localtimestamp",
    "CurrentDate": "current_date", "CurrentTime": "current_time",
    "Rand": "rand", "Randn": "randn", "RandStr": "randstr", "Uniform": "uniform", "Uuid": "uuid",
    "Shuffle": "shuffle", "MonotonicallyIncreasingID": "monotonically_increasing_id",
    "SparkPartitionID": "spark_partition_id", "InputFileName": "input_file_name",
    "InputFileBlockStart": "input_file_block_start", "InputFileBlockLength": "input_file_block_length",
    "CurrentUser": "current_user", "CurrentDatabase": "current_database", "CurrentCatalog": "current_catalog",
    "CurrentPath": "current_path", "SparkVersion": "version",
    # These sketches discard values at random.
    "KllSketchAggBigint": "kll_sketch_agg_bigint", "KllSketchAggFloat": "kll_sketch_agg_float",
    "KllSketchAggDouble": "kll_sketch_agg_double", "KllMergeAggBigint": "kll_merge_agg_bigint",
    "KllMergeAggFloat": "kll_merge_agg_float", "KllMergeAggDouble": "kll_merge_agg_double",
    "KllSketchMergeBigint": "kll_sketch_merge_bigint", "KllSketchMergeFloat": "kll_sketch_merge_float",
    "KllSketchMergeDouble": "kll_sketch_merge_double",
}  # fmt: skip
"""Expressions with another value in each run, session or build of Spark."""
_COLLECTING: Final = ("CollectSet", "CollectList", "CollectUnion")
_ORDER_DEPENDENT: Final = frozenset({
    *_COLLECTING, "First", "Last", "AnyValue", "ListAgg", "Mode", "HistogramNumeric",
})  # fmt: skip
_ORDER_IGNORING: Final = frozenset(
    {"Size", "ArraySize", "SortArray", "ArraySort", "ArrayContains", "ArrayMin", "ArrayMax"}
)
_EXPRESSION_CLASSES: Final = re.compile(
    r'"class":"org\.apache\.spark\.sql\.catalyst\.expressions\.(?:\w+\.)*(\w+)"'
)


def check_repeatable(frame: DataFrame, steps: Sequence[SqlQueryStep], *, windows: bool = False) -> None:
    """Check that a query returns the same rows each time it runs.

    Args:
        frame: the result of the query.
        steps: the text of the query.
        windows: whether windows with an ORDER BY have their rows in a total order.

    Raises:
        InvalidQuery: it does not; the message names the function or the time.
    """
    with translate_errors():
        expression = _find_nonrepeatable(PlanBuilder(frame.sparkSession), analyzed_plan(frame), windows)
    # Spark replaces the words of literals when it parses them.
    if expression is None and (literal := find_special_time(steps)) is not None:
        expression = literal.text, f"line {literal.line}, column {literal.column}"
    if expression is None:
        return
    text, position = expression
    with attach_query_excerpt(steps):
        raise InvalidQuery(
            f"{text} is not deterministic, so the result cannot be verified",
            where=f"query, {position}" if position and len(steps) == 1 else "query",
            hint="use system_time() for the time of the transaction, and columns of the inputs otherwise",
        )


def _find_nonrepeatable(make: PlanBuilder, plan: Any, windows: bool) -> tuple[str, str | None] | None:
    """Return the first part of a plan that is not repeatable, with its position if known."""
    names = _EXPRESSION_CLASSES.findall(plan.toJSON())
    for name in names:
        if name in _NONREPEATABLE:
            return f"{_NONREPEATABLE[name]}()", None
    for part in (plan, *to_list(plan.subqueriesAll())):
        if (cast := _special_time(make, part)) is not None:
            return f"the time '{_constant(cast.child()).strip()}'", node_position(cast)
        if "AesEncrypt" in names and (encryption := _random_encryption(part)) is not None:
            return "aes_encrypt() without an initialization vector", node_position(encryption)
    if _ORDER_DEPENDENT.intersection(names):
        for name in _order_dependent(plan, windows):
            return f"{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower()}()", None  # CollectList: collect_list
    return None if plan.deterministic() else ("an expression", None)


def _special_time(make: PlanBuilder, plan: Any) -> Any:
    """Return a cast of a word such as ``'now'`` to a time, also an implicit one, or None if absent."""
    optimizer = make.catalyst.optimizer
    # Spark's optimizer replaces the words. Its rule tells, by few calls, whether there are any.
    plan = make.companion("ReplaceExpressions", optimizer).apply(plan)
    if make.companion("SpecialDatetimeValues", optimizer).apply(plan).fastEquals(plan):
        return None
    for expression in _expressions(plan):
        is_cast = function_name(expression) == "Cast" and expression.child().foldable()
        if is_cast and expression.dataType().typeName().startswith(("date", "timestamp")):
            value = _constant(expression.child())
            if isinstance(value, str) and value.strip().lower() in SPECIAL_TIMES:
                return expression
    return None


def _random_encryption(plan: Any) -> Any:
    """Return an encryption with an initialization vector by Spark, or None if absent."""
    for expression in _expressions(plan):
        if function_name(expression) != "AesEncrypt":
            continue
        mode, vector = expression.mode(), expression.iv()
        is_ecb = mode.foldable() and str(_constant(mode)).upper() == "ECB"
        if not is_ecb and vector.foldable() and not _constant(vector):
            return expression
    return None


def _constant(expression: Any) -> Any:
    value = expression.eval(None)
    return value if value is None or isinstance(value, bytes) else value.toString()


def _expressions(plan: Any) -> Iterator[Any]:
    """Yield the expressions of a plan, but not of its subqueries."""
    waiting = to_list(plan.expressions())
    while waiting:
        node = waiting.pop()
        yield node
        waiting += to_list(node.children())
    for child in to_list(plan.children()):
        yield from _expressions(child)


def _order_dependent(plan: Any, windows: bool) -> Iterator[str]:
    """Yield the names of aggregates in a plan that depend on the row order."""
    for expression in to_list(plan.expressions()):
        yield from _order_dependent_in(expression, (), windows)
    for child in to_list(plan.children()):
        yield from _order_dependent(child, windows)


def _order_dependent_in(expression: Any, parents: tuple[str, ...], windows: bool) -> Iterator[str]:
    """Yield the names of order-dependent aggregates in an expression.

    A collected set or list is harmless if the functions around it ignore the order of elements.
    """
    name = function_name(expression)
    if windows and name == "WindowExpression" and not expression.windowSpec().orderSpec().isEmpty():
        return
    ignored = name in _COLLECTING and bool(_ORDER_IGNORING.intersection(parents))
    ordered = name == "ListAgg" and not expression.orderExpressions().isEmpty()
    if name in _ORDER_DEPENDENT and not ignored and not ordered:
        yield name
    for child in to_list(expression.children()):
        yield from _order_dependent_in(child, (*parents[-1:], name), windows)
