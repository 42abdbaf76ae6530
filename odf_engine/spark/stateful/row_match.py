"""Matches recomputed rows with the stored rows of a slice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as st

from odf_engine.data.changelog import OPERATION, RETRACTS
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import PlanBuilder, analyzed_plan, run_sql, to_list
from odf_engine.spark.sql_types import identifier, sql_type
from odf_engine.spark.stateful.row_lineage import KEY_PREFIX, ORIGINS_COLUMN
from odf_engine.spark.stateful.window_functions import BATCH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OFFSET: Final = "odf_offset"
SIGN: Final = "odf_sign"
MATCH_COUNT: Final = "odf_found"
"""Number of equal recomputed rows; null if there is none."""
SLICE_COUNT: Final = "odf_there"
"""Number of equal rows in the slice."""
_IS_TARGET: Final = "odf_wanted"
_RANK: Final = "odf_rank"
_MAX_LITERALS: Final = 12
_MAX_BROADCAST: Final = 100_000


@dataclass(frozen=True)
class TargetRows:
    """Rows of a slice to match.

    Attributes:
        rows: the rows of the slice.
        stored: the types of its columns.
        ranges: offset ranges of the rows to match.
        vocab: column names of the slice.
        signed: whether a row and its retraction are distinguished; otherwise the query itself computes the
            operation.
        approximate: whether floating-point numbers match approximately: their last bits may depend on the
            order of additions.
        ranked: whether equal rows match in the order of their identity; otherwise each matches all equal
            recomputed rows.
    """

    rows: DataFrame
    stored: pa.Schema
    ranges: Sequence[tuple[int, int]]
    vocab: DatasetVocabulary
    signed: bool
    approximate: bool = False
    ranked: bool = True


def match_rows(
    recomputed: DataFrame, names: Sequence[str], identity: Sequence[str], targets: TargetRows
) -> DataFrame:
    """Return the target rows, each with the identity of the matching recomputed row.

    Args:
        recomputed: the recomputed rows, with ``odf_operation``.
        names: columns of the query in them.
        identity: columns of ``recomputed`` with the origin of a row. Equal rows of the slice match in their
            order.
        targets: the target rows.

    Returns:
        ``odf_offset``, ``odf_op`` (of the row in the slice), ``odf_there``, ``odf_found``, and the identity.
            If
        the numbers of equal rows differ, or equal rows are unordered, each row matches every equal recomputed
        row.
    """
    session = recomputed.sparkSession
    with translate_errors():
        pairs = _column_pairs(recomputed, names, targets)
        recomputed_columns = _comparison_columns(recomputed, pairs, targets, OPERATION, identity)
        vocab = targets.vocab
        is_target = in_ranges(identifier(vocab.offset_column), targets.ranges)
        slice_columns = _comparison_columns(
            targets.rows.selectExpr("*", f"{is_target} AS {_IS_TARGET}"),
            [(name, name, kind) for _, name, kind in pairs],
            targets,
            vocab.operation_type_column,
            [f"{identifier(vocab.offset_column)} AS {OFFSET}",
             f"{identifier(vocab.operation_type_column)} AS odf_op", _IS_TARGET],
        )  # fmt: skip
        columns = [*(f"c{index}" for index in range(len(pairs))), SIGN]
        recomputed_columns, slice_columns = prefilter(recomputed_columns, slice_columns, columns)
        ranks = f"(a.{_RANK} = b.{_RANK} OR a.{SLICE_COUNT} <> b.{MATCH_COUNT})" if targets.ranked else "true"
        return _join_matches(session, recomputed_columns, slice_columns, columns, identity, ranks)


def _column_pairs(
    recomputed: DataFrame, names: Sequence[str], targets: TargetRows
) -> list[tuple[str, str, st.DataType]]:
    """Return the compared columns: name in the result, name in the slice, and type in the slice."""
    types = {field.name: field.dataType for field in targets.rows.schema}
    positions = match_columns(list(types), list(names))
    casts: list[tuple[str, str, st.DataType]] = []
    for name, position in zip(names, positions, strict=True):
        if position is not None:
            slice_name = list(types)[position]
            if _is_comparable(types[slice_name]) and _is_comparable(recomputed.schema[name].dataType):
                casts.append((name, slice_name, types[slice_name]))
    return casts


def _is_comparable(data_type: st.DataType) -> bool:
    """Return whether a type is comparable. Nested timestamps are stored in another unit."""
    if isinstance(data_type, st.ArrayType):
        return _is_comparable_nested(data_type.elementType)
    if isinstance(data_type, st.StructType):
        return all(_is_comparable_nested(field.dataType) for field in data_type)
    return not isinstance(data_type, st.MapType | st.VariantType | st.NullType)


def _is_comparable_nested(data_type: st.DataType) -> bool:
    return _is_comparable(data_type) and not isinstance(data_type, st.TimestampType | st.TimestampNTZType)


def _comparison_columns(
    frame: DataFrame,
    columns: Sequence[tuple[str, str, st.DataType]],
    targets: TargetRows,
    operation: str,
    added: Sequence[str],
) -> DataFrame:
    """Return the compared columns as ``c0``, … in the types of the slice, with their sign and further
    columns.

    ``columns`` are names in the frame, names in the slice, and types in the slice.
    """
    exprs: list[str] = []
    for index, (name, slice_name, data_type) in enumerate(columns):
        stored = targets.stored.field(slice_name).type
        value = stored_form(identifier(name), data_type, stored, approximate=targets.approximate)
        exprs.append(f"{value} AS c{index}")
    sign = "1"
    if targets.signed:
        sign = f"IF({identifier(operation)} {RETRACTS}, -1, 1)"
    return frame.selectExpr(*exprs, f"{sign} AS {SIGN}", *added)


def stored_form(text: str, data_type: st.DataType, stored: pa.DataType, *, approximate: bool = False) -> str:
    """Return an SQL expression of a value as a slice stores it.

    Args:
        text: expression of the value.
        data_type: type of the column of the slice in Spark.
        stored: its type in the slice, with the precision of timestamps.
        approximate: as in :class:`TargetRows`.
    """
    if isinstance(data_type, st.TimestampType):
        is_finer = pa.types.is_timestamp(stored) and stored.unit in ("us", "ns")
        return f"unix_micros({text})" if is_finer else f"unix_millis({text})"
    if approximate and isinstance(data_type, st.DoubleType | st.FloatType):
        # Eleven digits: sums in another order mostly agree in them. A mismatch is reported as unmatched.
        return f"IF(isnan({text}), 'NaN', format_string('%.10e', CAST({text} AS DOUBLE)))"
    if isinstance(data_type, st.StructType | st.ArrayType):
        return text
    return f"CAST({text} AS {sql_type(data_type)})"


def prefilter(
    recomputed: DataFrame, slice_rows: DataFrame, columns: Sequence[str]
) -> tuple[DataFrame, DataFrame]:
    """Remove rows from both sides that equal none of the target rows (``odf_wanted`` of ``slice_rows``)."""
    targets = slice_rows.where(_IS_TARGET).select(*columns)
    recomputed, slice_rows = _matching_rows([recomputed, slice_rows], targets)
    return recomputed, slice_rows


def _matching_rows(
    frames: Sequence[DataFrame], keys: DataFrame, sessions: Collection[str] = ()
) -> list[DataFrame]:
    """Return the rows of frames that match any row of ``keys`` in all of its columns.

    Few keys become constants in the plan.

    Args:
        frames: the frames; they have the columns of ``keys``, except :data:`LAST_BATCH`.
        keys: if it has :data:`LAST_BATCH`, rows of later batches do not match.
        sessions: columns that match within a session instead of equal values.
    """
    if (rows := take_few_rows(keys)) is not None:
        return [_filter_by_literals(frame, keys, rows, sessions) for frame in frames]
    conditions = ["true"]
    for name in keys.columns:
        if name == LAST_BATCH:
            conditions.append(f"a.{BATCH} <= b.{LAST_BATCH}")
        elif name in sessions:
            conditions.append(f"a.{name}.start >= b.{name}.start AND a.{name}.end <= b.{name}.end")
        else:
            conditions.append(f"a.{name} <=> b.{name}")
    is_small = keys.limit(_MAX_BROADCAST + 1).count() <= _MAX_BROADCAST
    hint = "/*+ BROADCAST(b) */" if is_small else ""
    query = f"SELECT {hint} a.* FROM odf_rows a LEFT SEMI JOIN odf_keys b ON {' AND '.join(conditions)}"
    distinct = keys.distinct()
    return [run_sql(query, rows=frame, keys=distinct) for frame in frames]


def take_few_rows(frame: DataFrame) -> list[Any] | None:
    """Return the rows as Java objects if they are few enough for constants in a plan; else None."""
    java: Any = frame._jdf
    rows = list(java.queryExecution().executedPlan().executeTake(_MAX_LITERALS + 1))
    return rows if len(rows) <= _MAX_LITERALS else None


def _filter_by_literals(
    frame: DataFrame, keys: DataFrame, rows: Sequence[Any], sessions: Collection[str]
) -> DataFrame:
    """Return the rows of a frame that match any of ``rows``, the rows of ``keys`` as Java objects."""
    builder, plan = PlanBuilder(frame.sparkSession), analyzed_plan(frame)
    by_name = {column.name(): column for column in to_list(plan.output())}
    row_type = analyzed_plan(keys).schema()
    any_of = builder.literal(False)
    # Also compares each column alone, so that Spark can push the condition on grouping columns below the
    # aggregation.
    of_column = [builder.literal(False) for _ in keys.columns]
    for row in rows:
        struct = builder.expressions.Literal(row, row_type)
        all_of = builder.literal(True)
        for index, name in enumerate(keys.columns):
            value = builder.expressions.GetStructField(struct, index, builder.none())
            if name == LAST_BATCH:
                matches = builder.expressions.LessThanOrEqual(by_name[BATCH], value)
            elif name in sessions:
                matches = _is_within_session(builder, by_name[name], value)
            else:
                matches = builder.expressions.EqualNullSafe(by_name[name], value)
            all_of = builder.expressions.And(all_of, matches)
            of_column[index] = builder.expressions.Or(of_column[index], matches)
        any_of = builder.expressions.Or(any_of, all_of)
    if len(rows) > 1:
        for any_value in of_column:
            any_of = builder.expressions.And(any_of, any_value)
    return builder.to_frame(builder.filter(any_of, plan))


def _join_matches(
    session: SparkSession,
    recomputed: DataFrame,
    slice_rows: DataFrame,
    columns: Sequence[str],
    identity: Sequence[str],
    rank_condition: str,
) -> DataFrame:
    by = ", ".join(columns)
    recomputed.createOrReplaceTempView("odf_made")
    slice_rows.createOrReplaceTempView("odf_slice")
    condition = " AND ".join(f"a.{name} <=> b.{name}" for name in columns)
    order = ", ".join(identity)
    return session.sql(
        f"""
        SELECT a.{OFFSET}, a.odf_op, a.{SLICE_COUNT}, b.{MATCH_COUNT},
            {", ".join(f"b.{name}" for name in identity)}
        FROM (
            SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {OFFSET}) AS {_RANK},
                count(*) OVER (PARTITION BY {by}) AS {SLICE_COUNT}
            FROM odf_slice
        ) AS a LEFT JOIN (
            SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS {_RANK},
                count(*) OVER (PARTITION BY {by}) AS {MATCH_COUNT}
            FROM odf_made
        ) AS b ON {condition} AND {rank_condition}
        WHERE a.{_IS_TARGET}
        """
    )


def in_ranges(column: str, ranges: Sequence[tuple[int, int]]) -> str:
    """Return an SQL condition that a number is in one of the ranges, as binary search."""
    if len(ranges) == 1:
        first, last = ranges[0]
        return f"({column} BETWEEN {first} AND {last})"
    middle = len(ranges) // 2
    left, right = in_ranges(column, ranges[:middle]), in_ranges(column, ranges[middle:])
    return f"IF({column} < {ranges[middle][0]}, {left}, {right})"


LAST_BATCH: Final = "odf_cut"
"""The last batch whose rows count."""


def origins_by_key(rows: DataFrame, keys: DataFrame, sessions: Sequence[bool]) -> DataFrame:
    """Return the origins of the rows of some groups: ``at`` and ``offset``, unordered, with duplicates.

    Args:
        rows: ``odf_key_0``, …, ``odf_places``, ``odf_batch``.
        keys: the same keys. If it has a column ``odf_cut``, rows of later batches are excluded.
        sessions: for each key, whether it is a session that contains the sessions of single rows.
    """
    names = {name for name, is_session in zip(keys.columns, sessions, strict=False) if is_session}
    with translate_errors():
        (matches,) = _matching_rows([rows], keys, names)
        exploded = matches.selectExpr(f"explode({ORIGINS_COLUMN}) AS place")
        return exploded.selectExpr("place.at AS at", "place.offset AS offset")


def _is_within_session(builder: PlanBuilder, column: Any, session: Any) -> Any:
    def part(of: Any, index: int) -> Any:
        return builder.expressions.GetStructField(of, index, builder.none())

    after = builder.expressions.GreaterThanOrEqual(part(column, 0), part(session, 0))
    before = builder.expressions.LessThanOrEqual(part(column, 1), part(session, 1))
    return builder.expressions.And(after, before)


def key_columns(names: Sequence[str]) -> list[str]:
    """Return the names of key columns."""
    return [name for name in names if name.startswith(KEY_PREFIX)]
