"""Rows by the groups that they belong to: those under a grouping whose keys are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from odf_engine.spark.catalyst import Catalyst, analysed, items
from odf_engine.spark.errors import translated
from odf_engine.spark.lineage import BATCH, KEY, PLACES
from odf_engine.spark.lineage_match import broadcast, few_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CUT: Final = "odf_cut"
"""The last batch whose rows count."""


def places_of(rows: DataFrame, keys: DataFrame, sessions: Sequence[bool]) -> DataFrame:
    """The places of the rows of some groups: ``at`` and ``offset``, in any order, perhaps more than once.

    Args:
        rows: ``odf_key_0``, …, ``odf_places``, ``odf_batch``.
        keys: the same keys; rows of batches after its ``odf_cut`` are left out, where it has such a column.
        sessions: of each key, whether it is a session, to which the sessions of single rows belong.
    """
    with translated():
        few = few_rows(keys)
        found = _by_join(rows, keys, sessions) if few is None else _by_literals(rows, keys, sessions, few)
        exploded = found.selectExpr(f"explode({PLACES}) AS place")
        return exploded.selectExpr("place.at AS at", "place.offset AS offset")


def _by_literals(rows: DataFrame, keys: DataFrame, sessions: Sequence[bool], few: Sequence[Any]) -> DataFrame:
    make = Catalyst(rows.sparkSession)
    plan, kind = analysed(rows), analysed(keys).schema()
    named = {column.name(): column for column in items(plan.output())}
    expressions = make.expressions
    any_of = make.literal(False)
    for row in few:
        whole = expressions.Literal(row, kind)
        all_of = make.literal(True)
        for at, name in enumerate(keys.columns):
            value = expressions.GetStructField(whole, at, make.none())
            if name == CUT:
                like = expressions.LessThanOrEqual(named[BATCH], value)
            elif sessions[at]:
                like = _within(make, named[name], value)
            else:
                like = expressions.EqualNullSafe(named[name], value)
            all_of = expressions.And(all_of, like)
        any_of = expressions.Or(any_of, all_of)
    return make.frame(make.filter(any_of, plan))


def _within(make: Catalyst, column: Any, session: Any) -> Any:
    def part(of: Any, at: int) -> Any:
        return make.expressions.GetStructField(of, at, make.none())

    after = make.expressions.GreaterThanOrEqual(part(column, 0), part(session, 0))
    before = make.expressions.LessThanOrEqual(part(column, 1), part(session, 1))
    return make.expressions.And(after, before)


def _by_join(rows: DataFrame, keys: DataFrame, sessions: Sequence[bool]) -> DataFrame:
    conditions: list[str] = []
    for at, name in enumerate(keys.columns):
        if name == CUT:
            conditions.append(f"a.{BATCH} <= b.{CUT}")
        elif sessions[at]:
            conditions.append(f"a.{name}.start >= b.{name}.start AND a.{name}.end <= b.{name}.end")
        else:
            conditions.append(f"a.{name} <=> b.{name}")
    rows.createOrReplaceTempView("odf_under")
    keys.createOrReplaceTempView("odf_keys")
    hint = broadcast(keys)
    return rows.sparkSession.sql(
        f"SELECT {hint} a.{PLACES} FROM odf_under a LEFT SEMI JOIN odf_keys b "
        f"ON {' AND '.join(conditions) or 'true'}"
    )


def keys_in(names: Sequence[str]) -> list[str]:
    """Of the names of columns those of keys."""
    return [name for name in names if name.startswith(KEY)]
