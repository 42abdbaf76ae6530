"""Which version of a key is valid at the time of a row, for the rows and versions of a batch.

Rows have their columns ``l0``, …, versions ``r0``, …, and both the columns of the key ``k0``, …, by which
they belong together, their event time, and their place in the order of their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from odf_engine.data.changelog import Op
from odf_engine.spark.errors import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIME: Final = "odf_time"
DUE: Final = "odf_due"
"""The time up to which the watermark has to come before a row comes out."""
PLACE: Final = "odf_position"
OPERATION: Final = "odf_operation"
ALIVE: Final = "odf_alive"
OLDEST: Final = "odf_oldest"
"""Whether versions before this one are no longer known."""
UNKNOWN: Final = "odf_unknown"
"""Whether a row's version is no longer known: it has the oldest that is."""
_ROWS: Final = "odf_rows_of_batch"
_VERSIONS: Final = "odf_versions_of_batch"


def with_due(rows: DataFrame, *, pairs: bool) -> DataFrame:
    """New rows with the time when each is due: its own, or with ``pairs`` the later one of a correction,
    so that -C and +C come out together."""
    if not pairs:
        with translated():
            return rows.selectExpr("*", f"{TIME} AS {DUE}")
    return _run(
        f"""
        SELECT {_ROWS}.*, greatest({_ROWS}.{TIME}, coalesce(other.time, {_ROWS}.{TIME})) AS {DUE}
        FROM {_ROWS} LEFT JOIN (
            SELECT {PLACE} + {Op.CORRECT_TO:d} + {Op.CORRECT_FROM:d} - 2 * {OPERATION} AS place,
                {Op.CORRECT_TO:d} + {Op.CORRECT_FROM:d} - {OPERATION} AS operation, max({TIME}) AS time
            FROM {_ROWS} WHERE {OPERATION} IN ({Op.CORRECT_FROM:d}, {Op.CORRECT_TO:d}) GROUP BY ALL
        ) AS other ON {PLACE} = other.place AND {OPERATION} = other.operation
        """,
        rows=rows,
    )


def as_versions(rows: DataFrame, keys: Sequence[str], *, changes: bool) -> DataFrame:
    """Rows of a keyed input as versions: a retraction ends its key, a correction of it replaces it.

    Args:
        rows: new ones.
        keys: the columns of the key.
        changes: whether there may be retractions or corrections among them.
    """
    known = " AND ".join(f"{key} IS NOT NULL" for key in keys)
    plain = (
        f"SELECT * EXCEPT ({OPERATION}), true AS {ALIVE}, false AS {OLDEST} FROM {_VERSIONS} WHERE {known}"
    )
    if not changes:
        return _run(plain, versions=rows)
    following = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY {PLACE})"
    return _run(
        f"""
        SELECT * EXCEPT ({OPERATION}, odf_next, odf_next_place),
            {OPERATION} IN ({Op.APPEND:d}, {Op.CORRECT_TO:d}) AS {ALIVE}, false AS {OLDEST}
        FROM (
            SELECT *, lead({OPERATION}) {following} AS odf_next, lead({PLACE}) {following} AS odf_next_place
            FROM {_VERSIONS} WHERE {known}
        ) WHERE {OPERATION} <> {Op.CORRECT_FROM:d}
            OR NOT coalesce(odf_next = {Op.CORRECT_TO:d} AND odf_next_place = {PLACE} + 1, false)
        """,
        versions=rows,
    )


def looked_up(rows: DataFrame, versions: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows with the version of their key that is valid at their time, and whether there is one.

    That is the newest by event time, then by place, at or before the time of the row. Where it is no
    longer known, it is the oldest that is.
    """
    by = ", ".join(keys)
    theirs = [name for name in versions.columns if name not in (*keys, PLACE)]
    version = f"struct({', '.join(theirs)})"
    row = f"struct({', '.join(name for name in rows.columns if name not in keys)})"
    columns = ", ".join(f"version.{name}" for name in theirs if name not in (TIME, ALIVE, OLDEST))
    return _run(
        f"""
        SELECT row.*, {by}, {columns}, coalesce(version.{ALIVE}, false) AS {ALIVE},
            coalesce(version.{TIME} > row.{TIME}, false) AS {UNKNOWN}
        FROM (
            SELECT {by}, side, row, last(version, true) OVER (
                PARTITION BY {by} ORDER BY {TIME} ASC NULLS FIRST, side, {PLACE}
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS version
            FROM (
                SELECT {by}, {TIME}, 0 AS side, {PLACE}, {version} AS version, NULL AS row FROM {_VERSIONS}
                UNION ALL
                SELECT {by}, NULL, 0, {PLACE}, {version}, NULL FROM {_VERSIONS} WHERE {OLDEST}
                UNION ALL
                SELECT {by}, {TIME}, 1, {PLACE}, NULL, {row} FROM {_ROWS}
            )
        ) WHERE side = 1
        """,
        rows=rows,
        versions=versions,
    )


def chosen(rows: DataFrame) -> DataFrame:
    """Rows with the columns of their version, which are null where there is none."""
    ours = [name for name in rows.columns if name[0] != "r" and name != UNKNOWN]
    theirs = [f"IF({ALIVE}, {name}, NULL) AS {name}" for name in rows.columns if name[0] == "r"]
    with translated():
        return rows.selectExpr(*ours, *theirs, f"{ALIVE} AND {UNKNOWN} AS {UNKNOWN}")


def _run(query: str, *, rows: DataFrame | None = None, versions: DataFrame | None = None) -> DataFrame:
    frames: dict[str, Any] = {_ROWS: rows, _VERSIONS: versions}
    given = {name: frame for name, frame in frames.items() if frame is not None}
    with translated():
        for name, frame in given.items():
            frame.createOrReplaceTempView(name)
        return next(iter(given.values())).sparkSession.sql(query)
