"""Which version of a key is valid at the time of a row, for the rows and versions of a batch.

Rows have their columns ``l0``, …, versions ``r0``, …, and both the columns of the key ``k0``, …, by which
they belong together, their event time, and their place in the order of their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, Window
from pyspark.sql import functions as sf

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
_ROW: Final = "odf_row"
_VERSION: Final = "odf_version"
_SIDE: Final = "odf_side"


def with_due(rows: DataFrame, *, pairs: bool) -> DataFrame:
    """New rows with the time when each is due: its own, or with ``pairs`` the later one of a correction,
    so that -C and +C come out together."""
    with translated():
        if not pairs:
            return rows.withColumn(DUE, sf.col(TIME))
        ends = [
            rows.where(sf.col(OPERATION) == int(kind))
            .select((sf.col(PLACE) + step).alias("odf_other"), sf.col(TIME).alias("odf_other_time"))
            .groupBy("odf_other")
            .agg(sf.max("odf_other_time").alias("odf_other_time"))
            for kind, step in ((Op.CORRECT_TO, -1), (Op.CORRECT_FROM, 1))
        ]
        kinds = (Op.CORRECT_FROM, Op.CORRECT_TO)
        others = [
            end.withColumn("odf_kind", sf.lit(int(kind))) for end, kind in zip(ends, kinds, strict=True)
        ]
        both = others[0].unionAll(others[1])
        same = (rows[PLACE] == both["odf_other"]) & (rows[OPERATION] == both["odf_kind"])
        due = sf.greatest(sf.col(TIME), sf.coalesce(sf.col("odf_other_time"), sf.col(TIME)))
        return rows.join(both, same, "left").select(*(rows[name] for name in rows.columns), due.alias(DUE))


def as_versions(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows of a keyed input as versions: a retraction ends its key, a correction of it replaces it."""
    with translated():
        in_order = Window.partitionBy(*keys).orderBy(PLACE)
        replaced = (
            (sf.col(OPERATION) == int(Op.CORRECT_FROM))
            & (sf.lead(OPERATION).over(in_order) == int(Op.CORRECT_TO))
            & (sf.lead(PLACE).over(in_order) == sf.col(PLACE) + 1)
        )
        known = rows.where(" AND ".join(f"{key} IS NOT NULL" for key in keys))
        known = known.withColumn("odf_replaced", sf.coalesce(replaced, sf.lit(False)))
        lives = sf.col(OPERATION).isin(int(Op.APPEND), int(Op.CORRECT_TO))
        made = known.where("NOT odf_replaced").withColumns({ALIVE: lives, OLDEST: sf.lit(False)})
        return made.drop("odf_replaced", OPERATION)


def looked_up(rows: DataFrame, versions: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows with the version of their key that is valid at their time, and whether there is one.

    That is the newest by event time, then by place, at or before the time of the row. Where it is no
    longer known, it is the oldest that is.
    """
    with translated():
        theirs = [name for name in versions.columns if name not in (*keys, PLACE)]
        version = sf.struct(*theirs).alias(_VERSION)
        row = sf.struct(*(name for name in rows.columns if name not in keys)).alias(_ROW)
        no_version = sf.lit(None).cast(versions.select(version).schema[_VERSION].dataType).alias(_VERSION)
        no_row = sf.lit(None).cast(rows.select(row).schema[_ROW].dataType).alias(_ROW)
        kept = [*keys, TIME, sf.lit(0).alias(_SIDE), PLACE, version, no_row]
        always = [*keys, sf.lit(None).cast("timestamp").alias(TIME), *kept[len(keys) + 1 :]]
        asked = [*keys, TIME, sf.lit(1).alias(_SIDE), PLACE, no_version, row]
        all_rows = (
            versions.select(*kept)
            .unionAll(versions.where(OLDEST).select(*always))
            .unionAll(rows.select(*asked))
        )
        until_now = (
            Window.partitionBy(*keys)
            .orderBy(sf.col(TIME).asc_nulls_first(), _SIDE, PLACE)
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        found = all_rows.withColumn(_VERSION, sf.last(_VERSION, ignorenulls=True).over(until_now))
        time = sf.col(f"{_VERSION}.{TIME}") > sf.col(f"{_ROW}.{TIME}")
        return found.where(f"{_SIDE} = 1").select(
            f"{_ROW}.*",
            *keys,
            *(f"{_VERSION}.{name}" for name in theirs if name not in (TIME, ALIVE, OLDEST)),
            sf.coalesce(f"{_VERSION}.{ALIVE}", sf.lit(False)).alias(ALIVE),
            sf.coalesce(time, sf.lit(False)).alias(UNKNOWN),
        )


def chosen(rows: DataFrame, until: datetime | None, *, outer: bool) -> DataFrame:
    """Rows that come out have a version, or nulls in an outer join; those that are not due stay."""
    with translated():
        theirs = [name for name in rows.columns if name.startswith("r")]
        alive = sf.col(ALIVE)
        nulls = {name: sf.when(alive, sf.col(name)) for name in theirs}
        made = rows.withColumns({**nulls, UNKNOWN: alive & sf.col(UNKNOWN)}).drop(ALIVE)
        return made if outer else rows.withColumns(nulls).where(alive | _waits(until)).drop(ALIVE)


def still_needed(versions: DataFrame, keys: Sequence[str], until: datetime | None) -> DataFrame:
    """The versions that rows may still ask for: the newest of each key at a time, and all later ones."""
    if until is None:
        return versions
    with translated():
        past = sf.col(TIME) <= sf.lit(until)
        newest = Window.partitionBy(*keys, past).orderBy(sf.col(TIME).desc(), sf.col(PLACE).desc())
        whole = newest.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        number, count = sf.row_number().over(newest), sf.count(sf.lit(1)).over(whole)
        cut = sf.max(OLDEST).over(whole)
        found = versions.withColumns({"odf_number": number, "odf_count": count, "odf_cut": cut})
        kept = found.where(~past | (sf.col("odf_number") == 1))
        oldest = past & ((sf.col("odf_count") > 1) | sf.col("odf_cut"))
        return kept.withColumn(OLDEST, oldest).select(*versions.columns)


def _waits(until: datetime | None) -> Column:
    return sf.lit(True) if until is None else sf.col(DUE) > sf.lit(until)
