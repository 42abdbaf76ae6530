"""As-of joins over all batches at once: which version each row met, and where both come from.

A version that had come in when the watermark reached its time was known to every row of later times. Of
such versions a row has the newest by time and place; where others came in too late, those that were
there when the row came out count as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odf_engine.spark.as_of import AsOfQuery, joined_schema
from odf_engine.spark.catalyst import items, name_of
from odf_engine.spark.errors import translated
from odf_engine.spark.lineage import BATCH, MARK, NEVER, PLACES
from odf_engine.spark.origins import INPUT_BITS, OPERATION, POSITION, NeedsState
from odf_engine.spark.versions import ALIVE, DUE, TIME, as_versions, chosen, looked_up, with_due

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERSION: Final = ("v_place", "v_time", "v_batch")


class Source(NamedTuple):
    """Rows that a join takes in, by the number of their input.

    Attributes:
        at: the number; of the rows of another join one after those of the inputs.
        frame: ``offset``, ``odf_places`` and ``odf_batch`` of each row.
    """

    at: int
    frame: DataFrame


class AsOfTables:
    """Makes the rows that come out of joins.

    Args:
        as_of: the query, cut at its joins.
        marks: the watermark after each batch in milliseconds, and its number, in ascending order.
        before: the watermark before each batch, in milliseconds, by its number.
        pairs: of each join, whether there may be corrections among its rows that stay together.
    """

    def __init__(
        self, as_of: AsOfQuery, marks: Sequence[tuple[int, int]], before: str, pairs: Sequence[bool]
    ) -> None:
        self._as_of = as_of
        self._marks = marks
        self._before = before
        self._pairs = pairs

    def joined(
        self,
        number: int,
        views: dict[str, DataFrame],
        sources: Sequence[Source],
        versions: tuple[DataFrame, Source],
        *,
        changes: bool,
        lates: bool,
    ) -> DataFrame:
        """The rows of a join: its columns, then ``odf_places``, ``odf_batch`` and ``odf_mark``.

        Args:
            number: of the join.
            views: the inputs and the rows of the joins before it.
            sources: where its rows come from.
            versions: the rows of its keyed input, and the same by their places.
            changes: whether versions may be retracted or corrected.
            lates: whether versions may have come in after the watermark had reached their time.

        Raises:
            NeedsState: its rows cannot be told apart.
        """
        join = self._as_of.joins[number]
        if _makes_more(join.left):
            raise NeedsState("a generator before a join FOR SYSTEM_TIME AS OF")
        keys = [f"k{at}" for at in range(len(join.keys))]
        rows = with_due(self._as_of.rows(number, views), pairs=self._pairs[number])
        known = as_versions(self._as_of.versions(number, versions[0]), keys, changes=changes)
        with translated():
            rows = self._placed(rows, sources)
            known = _run(
                f"SELECT a.*, a.{POSITION} AS v_place, a.{TIME} AS v_time, b.{BATCH} AS v_batch "
                f"FROM odf_a a JOIN odf_b b ON a.{POSITION} = b.offset",
                a=known, b=versions[1].frame,
            )  # fmt: skip
            late = f"v_batch > {reached('v_time', self._marks)}"
            found = looked_up(rows, known.where(f"NOT ({late})") if lates else known, keys)
            if lates:
                found = self._with_late(found, known.where(late), keys)
        found = chosen(self._as_of.meets(number, found))
        with translated():
            if not join.outer:
                found = found.where(ALIVE)
            return self._output(number, found, versions[1].at)

    def _placed(self, rows: DataFrame, sources: Sequence[Source]) -> DataFrame:
        """The rows with their places, and the batch in which each comes out."""
        parts = [
            each.frame.selectExpr(
                f"offset | shiftleft(CAST({each.at} AS BIGINT), {INPUT_BITS}) AS b_place",
                PLACES,
                BATCH,
            )
            for each in sources
        ]
        every = parts[0]
        for part in parts[1:]:
            every = every.unionAll(part)
        due = reached(DUE, self._marks)
        return _run(
            f"SELECT a.*, b.{PLACES}, greatest(b.{BATCH}, {due}) AS {BATCH} "
            f"FROM odf_a a JOIN odf_b b ON a.{POSITION} = b.b_place",
            a=rows, b=every,
        )  # fmt: skip

    def _with_late(self, found: DataFrame, late: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Rows that have a version which came in too late, where it was there when they came out."""
        theirs = [name for name in late.columns if name[0] == "r" and name[1:].isdigit()]
        both = [*theirs, *_VERSION, ALIVE]
        same = " AND ".join(f"a.{key} = b.{key}" for key in keys)
        picked = ", ".join(f"late.{name} AS late_{name}" for name in both)
        ranked = _run(
            f"""
            SELECT * EXCEPT (late, rank), {picked} FROM (
                SELECT a.*, struct(b.*) AS late, row_number() OVER (
                    PARTITION BY a.{POSITION} ORDER BY b.v_time DESC NULLS LAST, b.v_place DESC NULLS LAST
                ) AS rank
                FROM odf_a a LEFT JOIN odf_b b
                ON {same} AND b.v_time <= a.{TIME} AND b.v_batch <= a.{BATCH}
            ) WHERE rank = 1
            """,
            a=found, b=late,
        )  # fmt: skip
        better = (
            "late_v_place IS NOT NULL AND (v_place IS NULL OR late_v_time > v_time "
            "OR (late_v_time = v_time AND late_v_place > v_place))"
        )
        others = [name for name in found.columns if name not in both]
        columns = {name: f"IF({better}, late_{name}, {name}) AS {name}" for name in both}
        return ranked.selectExpr(*(columns.get(name, name) for name in [*others, *both]))

    def _output(self, number: int, found: DataFrame, at: int) -> DataFrame:
        schema = joined_schema(self._as_of.joins[number])
        width = len(schema) - 3
        mine = [name for name in found.columns if name[0] == "l" and name[1:].isdigit()]
        theirs = [name for name in found.columns if name[0] == "r" and name[1:].isdigit()]
        columns = [f"{name} AS c{place}" for place, name in enumerate([*mine, *theirs][:width])]
        mask = (1 << INPUT_BITS) - 1
        version = f"array(struct({at} AS at, v_place AS offset))"
        return found.selectExpr(
            *columns,
            TIME,
            f"{POSITION} & {mask} AS odf_offset",
            f"{OPERATION} AS odf_op",
            f"IF(v_place IS NULL, {PLACES}, concat({PLACES}, {version})) AS {PLACES}",
            BATCH,
            f"timestamp_millis(CAST({self._before} AS BIGINT)) AS {MARK}",
        )


def reached(column: str, marks: Sequence[tuple[int, int]]) -> str:
    """The first batch whose watermark reaches a time, looked for by halves."""
    if not marks:
        return str(NEVER)
    if len(marks) == 1:
        moment, number = marks[0]
        return f"IF({column} <= timestamp_millis({moment}), {number}, {NEVER})"
    middle = (len(marks) - 1) // 2
    left, right = reached(column, marks[: middle + 1]), reached(column, marks[middle + 1 :])
    return f"IF({column} <= timestamp_millis({marks[middle][0]}), {left}, {right})"


def _makes_more(plan: Any) -> bool:
    """Whether one row may become several."""
    if name_of(plan) in ("Generate", "Join", "Expand"):
        return True
    return any(_makes_more(child) for child in items(plan.children()))


def _run(query: str, **frames: DataFrame) -> DataFrame:
    for name, frame in frames.items():
        frame.createOrReplaceTempView(f"odf_{name}")
    return next(iter(frames.values())).sparkSession.sql(query)
