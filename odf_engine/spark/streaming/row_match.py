"""Matches recomputed rows with the stored rows of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as st

from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import PlanBuilder, analyzed_plan, items
from odf_engine.spark.sql_types import identifier
from odf_engine.spark.streaming.row_lineage import BATCH, KEY, ORIGINS_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OFFSET: Final = "odf_offset"
SIGN: Final = "odf_sign"
FOUND: Final = "odf_found"
"""How many rows like it were made; null where none was."""
THERE: Final = "odf_there"
"""How many rows like it the slice has."""
_WANTED: Final = "odf_wanted"
_RANK: Final = "odf_rank"
_MAX_LITERALS: Final = 12
_MAX_BROADCAST: Final = 100_000


@dataclass(frozen=True)
class TargetRows:
    """Rows of a slice that are looked for.

    Attributes:
        rows: the rows of the slice.
        runs: their offsets.
        vocab: the column names of the slice.
        signed: whether a row and its retraction are told apart; else the query says itself what its
            rows are.
        close: whether numbers with a fraction are the same when they nearly are: their last bits may
            depend on the order of addition.
        ranked: whether rows that are the same come in the order of their identity; else each may be any
            of those that are made.
    """

    rows: DataFrame
    runs: Sequence[tuple[int, int]]
    vocab: DatasetVocabulary
    signed: bool
    close: bool = False
    ranked: bool = True


def match_rows(
    made: DataFrame, names: Sequence[str], operation: str | None, identity: Sequence[str], wanted: TargetRows
) -> DataFrame:
    """The wanted rows, each with the identity of the row that it is.

    Args:
        made: what the query makes.
        names: the query's own columns in it.
        operation: the column with the operation of a row, where it tells rows apart.
        identity: columns of ``made`` that say where a row came from; rows of the slice that are the
            same are taken in their order.
        wanted: what is looked for.

    Returns:
        ``odf_offset``, ``odf_op`` (of the row in the slice), ``odf_there``, ``odf_found``, and the
        identity. Where the slice has another number of rows like one than are made, or rows that are the
        same come in any order, every row that is made goes with each.
    """
    session = made.sparkSession
    with translate_errors():
        pairs = _pairs(made, names, wanted)
        ours = _compared(made, [(name, kind) for name, _, kind in pairs], wanted, operation, identity)
        vocab = wanted.vocab
        asked = in_ranges(identifier(vocab.offset_column), wanted.runs)
        theirs = _compared(
            wanted.rows.selectExpr("*", f"{asked} AS {_WANTED}"),
            [(name, kind) for _, name, kind in pairs],
            wanted,
            vocab.operation_type_column,
            [f"{identifier(vocab.offset_column)} AS {OFFSET}",
             f"{identifier(vocab.operation_type_column)} AS odf_op", _WANTED],
        )  # fmt: skip
        columns = [*(f"c{at}" for at in range(len(pairs))), SIGN]
        ours, theirs = prefilter(session, ours, theirs, columns)
        ranks = f"(a.{_RANK} = b.{_RANK} OR a.{THERE} <> b.{FOUND})" if wanted.ranked else "true"
        return _joined(session, ours, theirs, columns, [_bare(each) for each in identity], ranks)


def _bare(text: str) -> str:
    return text.rpartition(" AS ")[2]


def _pairs(made: DataFrame, names: Sequence[str], wanted: TargetRows) -> list[tuple[str, str, st.DataType]]:
    """The columns that are compared: their name in the result and in the slice, and their type there."""
    kinds = {field.name: field.dataType for field in wanted.rows.schema}
    places = match_columns(list(kinds), list(names))
    found: list[tuple[str, str, st.DataType]] = []
    for name, place in zip(names, places, strict=True):
        if place is not None:
            there = list(kinds)[place]
            if _comparable(kinds[there]) and _comparable(made.schema[name].dataType):
                found.append((name, there, kinds[there]))
    return found


def _comparable(kind: st.DataType) -> bool:
    """Whether rows can be told apart by it; times within others are kept in another unit."""
    if isinstance(kind, st.ArrayType):
        return _inner(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_inner(field.dataType) for field in kind)
    return not isinstance(kind, st.MapType | st.VariantType | st.NullType)


def _inner(kind: st.DataType) -> bool:
    return _comparable(kind) and not isinstance(kind, st.TimestampType | st.TimestampNTZType)


def _compared(
    frame: DataFrame,
    columns: Sequence[tuple[str, st.DataType]],
    wanted: TargetRows,
    operation: str | None,
    more: Sequence[str],
) -> DataFrame:
    """The compared columns as ``c0``, …, in the types of the slice, with their sign, and more."""
    exprs: list[str] = []
    for at, (name, kind) in enumerate(columns):
        exprs.append(f"{as_stored(identifier(name), kind, close=wanted.close)} AS c{at}")
    sign = "1"
    if wanted.signed and operation is not None:
        gone = f"{Op.RETRACT:d}, {Op.CORRECT_FROM:d}"
        sign = f"IF({identifier(operation)} IN ({gone}), -1, 1)"
    return frame.selectExpr(*exprs, f"{sign} AS {SIGN}", *more)


def as_stored(text: str, kind: st.DataType, *, close: bool = False) -> str:
    """A value as SQL, in the form in which a slice keeps it."""
    if isinstance(kind, st.TimestampType):
        return f"unix_millis({text})"  # as slices keep it
    if close and isinstance(kind, st.DoubleType | st.FloatType):
        # Eleven digits: what sums in another order agree in, mostly; else no row is found, and that is said.
        return f"IF(isnan({text}), 'NaN', format_string('%.10e', CAST({text} AS DOUBLE)))"
    if isinstance(kind, st.StructType | st.ArrayType):
        return text
    return f"CAST({text} AS {kind.simpleString()})"


def prefilter(
    session: SparkSession, ours: DataFrame, theirs: DataFrame, columns: Sequence[str]
) -> tuple[DataFrame, DataFrame]:
    """Both sides without rows that are like none of those that are wanted (``odf_wanted`` of the latter)."""
    asked = theirs.where(_WANTED).select(*columns)
    few = few_rows(asked)
    if few is not None:
        make = PlanBuilder(session)
        kind = analyzed_plan(asked).schema()
        return (
            _like(make, ours, few, kind, len(columns)),
            _like(make, theirs, few, kind, len(columns)),
        )
    hint = broadcast(asked)
    asked.distinct().createOrReplaceTempView("odf_asked")
    same = " AND ".join(f"a.{name} <=> b.{name}" for name in columns)
    found: list[DataFrame] = []
    for name, frame in (("odf_ours", ours), ("odf_theirs", theirs)):
        frame.createOrReplaceTempView(name)
        found.append(session.sql(f"SELECT {hint} a.* FROM {name} a LEFT SEMI JOIN odf_asked b ON {same}"))
    return found[0], found[1]


def few_rows(frame: DataFrame) -> list[Any] | None:
    """The rows as Java has them inside of Spark, where they are few enough for constants in a plan."""
    java: Any = frame._jdf
    rows = list(java.queryExecution().executedPlan().executeTake(_MAX_LITERALS + 1))
    return rows if len(rows) <= _MAX_LITERALS else None


def broadcast(frame: DataFrame) -> str:
    """A hint for joins with a frame, under the name ``b``, that is not too large for that."""
    few = frame.limit(_MAX_BROADCAST + 1).count() <= _MAX_BROADCAST
    return "/*+ BROADCAST(b) */" if few else ""


def _like(
    make: PlanBuilder,
    frame: DataFrame,
    rows: Sequence[Any],
    kind: Any,
    width: int,
) -> DataFrame:
    """The rows of a frame whose first columns are those of some rows."""
    plan = analyzed_plan(frame)
    output = items(plan.output())[:width]
    any_of = make.literal(False)
    # Of each column by itself as well: what rows are grouped by is so looked for before they are.
    of_column = [make.literal(False) for _ in output]
    for row in rows:
        whole = make.expressions.Literal(row, kind)
        all_of = make.literal(True)
        for at, column in enumerate(output):
            value = make.expressions.GetStructField(whole, at, make.none())
            same = make.expressions.EqualNullSafe(column, value)
            all_of = make.expressions.And(all_of, same)
            of_column[at] = make.expressions.Or(of_column[at], same)
        any_of = make.expressions.Or(any_of, all_of)
    if len(rows) > 1:
        for each in of_column:
            any_of = make.expressions.And(any_of, each)
    return make.frame(make.filter(any_of, plan))


def _joined(
    session: SparkSession,
    ours: DataFrame,
    theirs: DataFrame,
    columns: Sequence[str],
    identity: Sequence[str],
    ranks: str,
) -> DataFrame:
    by = ", ".join(columns)
    ours.createOrReplaceTempView("odf_made")
    theirs.createOrReplaceTempView("odf_slice")
    same = " AND ".join(f"a.{name} <=> b.{name}" for name in columns)
    order = ", ".join(identity)
    return session.sql(
        f"""
        SELECT a.{OFFSET}, a.odf_op, a.{THERE}, b.{FOUND}, {", ".join(f"b.{name}" for name in identity)}
        FROM (
            SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {OFFSET}) AS {_RANK},
                count(*) OVER (PARTITION BY {by}) AS {THERE}
            FROM odf_slice
        ) AS a LEFT JOIN (
            SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS {_RANK},
                count(*) OVER (PARTITION BY {by}) AS {FOUND}
            FROM odf_made
        ) AS b ON {same} AND {ranks}
        WHERE a.{_WANTED}
        """
    )


def in_ranges(column: str, runs: Sequence[tuple[int, int]]) -> str:
    """Whether a number lies in one of some runs, looked for by halves."""
    if len(runs) == 1:
        first, last = runs[0]
        return f"({column} BETWEEN {first} AND {last})"
    middle = len(runs) // 2
    left, right = in_ranges(column, runs[:middle]), in_ranges(column, runs[middle:])
    return f"IF({column} < {runs[middle][0]}, {left}, {right})"


LAST_BATCH: Final = "odf_cut"
"""The last batch whose rows count."""


def origins_by_key(rows: DataFrame, keys: DataFrame, sessions: Sequence[bool]) -> DataFrame:
    """The places of the rows of some groups: ``at`` and ``offset``, in any order, perhaps more than once.

    Args:
        rows: ``odf_key_0``, …, ``odf_places``, ``odf_batch``.
        keys: the same keys; rows of batches after its ``odf_cut`` are left out, where it has such a column.
        sessions: of each key, whether it is a session, to which the sessions of single rows belong.
    """
    with translate_errors():
        few = few_rows(keys)
        found = _by_join(rows, keys, sessions) if few is None else _by_literals(rows, keys, sessions, few)
        exploded = found.selectExpr(f"explode({ORIGINS_COLUMN}) AS place")
        return exploded.selectExpr("place.at AS at", "place.offset AS offset")


def _by_literals(rows: DataFrame, keys: DataFrame, sessions: Sequence[bool], few: Sequence[Any]) -> DataFrame:
    make = PlanBuilder(rows.sparkSession)
    plan, kind = analyzed_plan(rows), analyzed_plan(keys).schema()
    named = {column.name(): column for column in items(plan.output())}
    expressions = make.expressions
    any_of = make.literal(False)
    for row in few:
        whole = expressions.Literal(row, kind)
        all_of = make.literal(True)
        for at, name in enumerate(keys.columns):
            value = expressions.GetStructField(whole, at, make.none())
            if name == LAST_BATCH:
                like = expressions.LessThanOrEqual(named[BATCH], value)
            elif sessions[at]:
                like = _within(make, named[name], value)
            else:
                like = expressions.EqualNullSafe(named[name], value)
            all_of = expressions.And(all_of, like)
        any_of = expressions.Or(any_of, all_of)
    return make.frame(make.filter(any_of, plan))


def _within(make: PlanBuilder, column: Any, session: Any) -> Any:
    def part(of: Any, at: int) -> Any:
        return make.expressions.GetStructField(of, at, make.none())

    after = make.expressions.GreaterThanOrEqual(part(column, 0), part(session, 0))
    before = make.expressions.LessThanOrEqual(part(column, 1), part(session, 1))
    return make.expressions.And(after, before)


def _by_join(rows: DataFrame, keys: DataFrame, sessions: Sequence[bool]) -> DataFrame:
    conditions: list[str] = []
    for at, name in enumerate(keys.columns):
        if name == LAST_BATCH:
            conditions.append(f"a.{BATCH} <= b.{LAST_BATCH}")
        elif sessions[at]:
            conditions.append(f"a.{name}.start >= b.{name}.start AND a.{name}.end <= b.{name}.end")
        else:
            conditions.append(f"a.{name} <=> b.{name}")
    rows.createOrReplaceTempView("odf_under")
    keys.createOrReplaceTempView("odf_keys")
    hint = broadcast(keys)
    return rows.sparkSession.sql(
        f"SELECT {hint} a.{ORIGINS_COLUMN} FROM odf_under a LEFT SEMI JOIN odf_keys b "
        f"ON {' AND '.join(conditions) or 'true'}"
    )


def keys_in(names: Sequence[str]) -> list[str]:
    """Of the names of columns those of keys."""
    return [name for name in names if name.startswith(KEY)]
