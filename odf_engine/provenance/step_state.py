"""Transactions of queries that keep state: windows, joins, groupings, deduplication.

The rows that the state was made of are put through the query once more, all transactions together.
What comes out is compared with what the transaction gave: only what is found again counts as exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.kernels import pc
from odf_engine.progress import Reporter
from odf_engine.provenance.step_folding import Folding
from odf_engine.provenance.step_groups import (
    Group,
    Groups,
    changing_batches,
    compared_groups,
    cut_of,
    group_of_row,
    groups_of,
)
from odf_engine.provenance.step_rows import LOST, Sought, Traced, note
from odf_engine.provenance.step_time import Cutting, Part, Timeline
from odf_engine.spark.frames import arrow_batches, cancellable
from odf_engine.spark.lineage import BATCH, KEY, PLACES, Lineage
from odf_engine.spark.lineage_keys import CUT, keys_in, places_of
from odf_engine.spark.lineage_match import FOUND, OFFSET, THERE, matched
from odf_engine.spark.lineage_prefix import PREFIX, Prefixes
from odf_engine.spark.origins import OPERATION
from odf_engine.spark.query import run_query
from odf_engine.spark.slices import plain_schema
from odf_engine.spark.stateful import Stateful, stateful
from odf_engine.spark.streams import Streams
from odf_engine.spark.text import spark_path
from odf_engine.spark.types import arrow_schema

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_FINISHED: Final = "its transaction ended the state of a query, and gave what was still to come"


class Stated:
    """One transaction of a query with state.

    Args:
        session: as :func:`odf_engine.provenance.step_rows.session_at` makes it.
        past: what lies before it, as one; None when its state begins with it.
        own: the transaction.
        sought: the rows.
        folder: for temporary files; its path is plain (:func:`odf_engine.spark.streams.is_plain`).
        reporter: hears of amounts, and is asked whether to stop.
    """

    def __init__(
        self,
        session: SparkSession,
        past: Part | None,
        own: Part,
        sought: Sought,
        folder: Path,
        reporter: Reporter,
    ) -> None:
        self._session = session
        self._past, self._own = past, own
        self._sought = sought
        self._folder = folder
        self._reporter = reporter
        self._request = own.request

    def trace(self) -> Traced:
        """Where the rows come from.

        Raises:
            NeedsState: the query cannot be followed.
            OdfError: it cannot be run any more.
        """
        query = self._query()
        cutting = Cutting(query.by_commit, query.mode == "update", as_of=self._as_of)
        time = Timeline(self._past, self._own, cutting, exact=query.exact)
        lineage = self._lineage(time)
        made = lineage.made(self._frame(time))
        if query.mode == "update":
            traced = self._of_groups(lineage, time)
        else:
            traced = self._of_rows(lineage, made, query, time)
        traced.how += lineage.how
        if self._own.transaction.kind == "finish":
            traced.how.append(_FINISHED)
        return traced

    def _lineage(self, time: Timeline, kind: type[Lineage] = Lineage) -> Lineage:
        return kind(
            self._session,
            {each.query_alias: each.vocab for each in self._request.query_inputs},
            self._request.vocab.event_time_column,
            time.changing,
            time.tables(self._session),
            time.after(),
        )

    def _frame(self, time: Timeline) -> DataFrame:
        """The query over streams without rows: its plan is what is followed."""
        return self._streamed

    def _query(self) -> Stateful:
        """What the query is like."""
        streams = Streams(self._session, self._folder / "state", self._folder)
        views: dict[str, DataFrame] = {}
        for at, each in enumerate(self._request.query_inputs):
            schema = plain_schema(pq.read_schema(each.schema_file), each.vocab)
            views[each.query_alias] = streams.view(at, schema, each.vocab)
        self._streamed = run_query(self._session, views, self._request.transform.queries or [])
        inputs = {each.query_alias: each.vocab for each in self._request.query_inputs}
        time = self._request.vocab.event_time_column
        return stateful(self._session, self._streamed, inputs, time, set())

    _as_of = False
    _ranked = True

    def _signed(self, own: Sequence[str]) -> bool:
        """Whether a row and its retraction are told apart by their operation."""
        return False

    # --- Rows that are final ------------------------------------------------------------------

    def _of_rows(self, lineage: Lineage, made: DataFrame, query: Stateful, time: Timeline) -> Traced:
        made = made.where(f"{BATCH} IS NULL OR {BATCH} BETWEEN {time.first} AND {time.last}")
        own = query.own(arrow_schema(query.frame.schema).names)
        keys = keys_in(made.columns)
        identity = [BATCH, *(keys if lineage.under is not None else [PLACES])]
        traced = self._new()
        for close in (False, True):
            wanted = self._sought.wanted(
                self._session, signed=self._signed(own), close=close, ranked=self._ranked
            )
            found = matched(made, own, OPERATION, identity, wanted)
            traced = self._new()
            if lineage.under is None:
                self._take(found, traced)
            else:
                self._take_groups(found, keys, lineage, traced)
            if not traced.lost:
                break
        return traced

    def _take(self, found: DataFrame, traced: Traced) -> None:
        """Takes the places that rows carry."""
        rows = found.selectExpr(OFFSET, THERE, FOUND, f"explode_outer({PLACES}) AS place")
        rows = rows.selectExpr(OFFSET, THERE, FOUND, "place.at AS at", "place.offset AS offset")
        alike = False
        for batch in self._batches(rows):
            traced.lost = traced.lost or batch.column(FOUND).null_count > 0
            alike = alike or pc.any(pc.not_equal(batch.column(THERE), batch.column(FOUND))).as_py() is True
            self._fold(batch, traced)
        if traced.lost:
            traced.reason = LOST
        elif alike:
            traced.reason = _ALIKE

    def _take_groups(self, found: DataFrame, keys: Sequence[str], lineage: Lineage, traced: Traced) -> None:
        """Takes the places of the rows of the groups that were found."""
        path = self._folder / f"groups-{len(list(self._folder.iterdir()))}"
        with cancellable(self._session, self._reporter):
            found.write.parquet(spark_path(path))
        groups = self._session.read.schema(found.schema).parquet(spark_path(path))
        for batch in self._batches(groups.select(OFFSET, THERE, FOUND)):
            note(batch, traced)
        if traced.lost:
            return
        assert lineage.under is not None
        of_groups = groups.select(*keys).distinct() if keys else groups.selectExpr("1 AS one").limit(1)
        self._take_places(lineage, of_groups, traced)

    def _take_places(self, lineage: Lineage, groups: DataFrame, traced: Traced) -> None:
        assert lineage.under is not None
        sessions = lineage.under.sessions
        for batch in self._batches(places_of(lineage.rows_under(), groups, sessions)):
            self._fold(batch, traced)

    # --- Groups without a window --------------------------------------------------------------

    def _of_groups(self, lineage: Lineage, time: Timeline) -> Traced:
        traced = self._new()
        rows = self._sought.wanted(self._session, signed=False, ranked=True).rows
        groups = groups_of(lineage, self._sought, rows, time.first, time.last, self._batches)
        rebuilt = self._own.transaction.kind == "rebuild"
        asked = {group: found for group, found in groups.entries.items() if any(found.wanted)}
        if not all(found.batches or rebuilt for found in asked.values()):
            traced.lost, traced.reason = True, LOST
            return traced
        if rebuilt and any(found.retracts for found in asked.values()):
            traced.lost, traced.reason = True, _INSTEAD
            return traced
        cuts = {
            group: time.last if rebuilt else cut_of(found, found.batches) for group, found in asked.items()
        }
        if None in cuts.values():
            cuts |= self._computed(groups, [group for group, cut in cuts.items() if cut is None], time)
        if None in cuts.values():
            traced.reason = _SOMETIME
        self._take_places(lineage, self._cut(groups, cuts, time.last), traced)
        return traced

    def _computed(self, groups: Groups, which: Sequence[Group], time: Timeline) -> dict[Group, int | None]:
        """The cuts of groups whose rows did not always change their result."""
        batches = sorted({batch for group in which for batch in groups.entries[group].batches})
        if len(batches) > _MOST_PREFIXES:
            return {}
        numbers = ", ".join(map(str, [time.first - 1, *batches]))
        keys = keys_in(groups.keys.columns)
        prefixes = groups.keys.select(*keys).distinct() if keys else self._session.sql("SELECT 1 AS one")
        lineage = self._lineage(time, Prefixes)
        assert isinstance(lineage, Prefixes)
        lineage.wanted = prefixes.selectExpr(*keys, f"explode(array({numbers})) AS {PREFIX}")
        made = lineage.made(self._frame(time))
        rows = self._sought.wanted(self._session, signed=False, ranked=True).rows
        compared = compared_groups(lineage.group_columns or [], rows)
        columns = [f"g{at}" for at in range(len(compared))]
        values: dict[Group, list[tuple[int, dict[str, Any]]]] = {group: [] for group in which}
        for batch in self._batches(made.selectExpr("*", *compared)):
            for row in batch.to_pylist():
                group = group_of_row(row, columns)
                if group in values:
                    own = {name: value for name, value in row.items() if name not in columns}
                    values[group].append((row[PREFIX], own))
        return {
            group: cut_of(groups.entries[group], changing_batches(sorted(rows, key=_prefix), time.first))
            for group, rows in values.items()
        }

    def _cut(self, groups: Groups, cuts: Mapping[Group, int | None], last: int) -> DataFrame:
        """The keys of groups with their cuts: ``last`` where there is none."""
        names = [name for name in groups.keys.columns if not name.startswith(KEY)]
        if not names:
            return groups.keys.sparkSession.sql(f"SELECT {cuts.get((), last) or last} AS {CUT}")
        kinds = arrow_schema(groups.keys.select(*names).schema)
        columns = [
            pa.array([_value(group[at], kind) for group in cuts], kind) for at, kind in enumerate(kinds.types)
        ]
        values = [last if cut is None else cut for cut in cuts.values()]
        table = pa.table([*columns, pa.array(values, pa.int32())], names=[*names, CUT])
        self._session.createDataFrame(table).createOrReplaceTempView("odf_cuts")
        groups.keys.createOrReplaceTempView("odf_groups")
        same = " AND ".join(f"a.{name} <=> b.{name}" for name in names)
        keys = ", ".join(f"a.{name}" for name in keys_in(groups.keys.columns))
        return self._session.sql(
            f"SELECT DISTINCT {keys}, b.{CUT} FROM odf_groups a JOIN odf_cuts b ON {same}"
        )

    # --- What comes from Spark ----------------------------------------------------------------

    def _new(self) -> Traced:
        return Traced([Folding() for _ in self._request.query_inputs])

    def _batches(self, frame: DataFrame) -> Iterator[pa.RecordBatch]:
        for batch in arrow_batches(frame, self._reporter)[1]:
            self._reporter.check()
            yield batch

    def _fold(self, batch: pa.RecordBatch, traced: Traced) -> None:
        inputs, offsets = batch.column("at"), batch.column("offset")
        for at, folding in enumerate(traced.feeds):
            folding.add(offsets.filter(pc.equal(inputs, at)).drop_null())


def _prefix(value: tuple[int, dict[str, Any]]) -> int:
    return value[0]


def _value(value: Any, kind: pa.DataType) -> Any:
    return math.nan if value == "NaN" and pa.types.is_floating(kind) else value


_MOST_PREFIXES: Final = 200
_INSTEAD: Final = (
    "the row is one of the query before, which a new query took back when its state was made anew"
)
_SOMETIME: Final = (
    "its group changed often in this transaction, and it cannot be said by which rows the group was this row"
)
_ALIKE: Final = "several rows are the same in all columns, and it cannot be said which of them came out here"
