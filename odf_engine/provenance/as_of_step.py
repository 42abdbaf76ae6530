"""Row provenance of as-of joins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.data.slices import read_batches
from odf_engine.provenance.model import OffsetRange, normalize_ranges
from odf_engine.provenance.stateful_step import StatefulTrace, Timeline
from odf_engine.provenance.stateless_step import SoughtRows, StepResult
from odf_engine.spark.arrow_batches import cancellable
from odf_engine.spark.sql_types import arrow_schema
from odf_engine.spark.streaming.as_of_join import JOINED_VOCABULARY, joined_schema
from odf_engine.spark.streaming.micro_batch import MicroBatchQuery
from odf_engine.spark.streaming.row_lineage import (
    BATCH,
    ORIGINS_COLUMN,
    WATERMARK_COLUMN,
    AsOfTables,
    Lineage,
    Source,
)
from odf_engine.spark.streaming.stateful_query import StreamingPlan
from odf_engine.spark.text_files import spark_path
from odf_engine.transform.engines.as_of_transaction import prepare_as_of_query
from odf_engine.transform.engines.contract import QueryInput

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame

_HIDDEN: Final = (ORIGINS_COLUMN, BATCH, WATERMARK_COLUMN)


class AsOfTrace(StatefulTrace):
    """One transaction of a query with as-of joins."""

    _as_of = True

    def trace(self) -> StepResult:
        """See :meth:`odf_engine.provenance.stateful_step.StatefulTrace.trace`."""
        self._sought = with_partners(self._sought)
        self._joined: dict[str, DataFrame] | None = None
        traced = super().trace()
        names = ", ".join(f"'{join.table.name}'" for join in self._prepared.as_of.joins)
        traced.how.insert(0, f"joined FOR SYSTEM_TIME AS OF their event time: rows with a version of {names}")
        return traced

    def _query(self) -> StreamingPlan:
        self._streams = MicroBatchQuery(self._session, self._folder / "state", self._folder)
        self._query_inputs = [
            QueryInput(each.query_alias, pq.read_schema(each.schema_file), each.vocab)
            for each in self._request.query_inputs
        ]
        self._prepared = prepare_as_of_query(
            self._session,
            self._streams,
            self._request.transform,
            self._query_inputs,
            self._request.vocab.event_time_column,
            set(),
        )
        return self._prepared.query

    def _signed(self, own: Sequence[str]) -> bool:
        says = match_columns(list(own), [self._request.vocab.operation_type_column])[0] is not None
        return self._prepared.by_row and not says

    def _frame(self, time: Timeline) -> DataFrame:
        as_of = self._prepared.as_of
        if self._prepared.by_row:
            return as_of.query_after_joins({})
        return as_of.query_after_joins(
            {
                join.view: self._streams.view(at, arrow_schema(joined_schema(join)), JOINED_VOCABULARY)
                for at, join in enumerate(as_of.joins, len(self._query_inputs))
            }
        )

    def _lineage(self, time: Timeline, kind: type[Lineage] = Lineage) -> Lineage:
        as_of = self._prepared.as_of
        self._joined = self._joined or self._tables(time)
        changing = {*time.changing, *(join.view for join in as_of.joins)}
        return kind(
            self._session,
            as_of.inputs,
            self._request.vocab.event_time_column,
            changing,
            {**time.tables(self._session), **self._joined},
            time.after(),
            as_of.system,
        )

    def _tables(self, time: Timeline) -> dict[str, DataFrame]:
        """The rows that come out of each join."""
        as_of, inputs = self._prepared.as_of, self._query_inputs
        pairs = [
            self._prepared.by_row and (at > 0 or bool(time.changing & as_of.reads(join)))
            for at, join in enumerate(as_of.joins)
        ]
        tables = AsOfTables(as_of, time.after(exact=False), time.before(), pairs)
        views, places = time.frames(self._session), time.tables(self._session)
        sources = {
            each.alias: Source(
                at,
                places[each.alias].selectExpr(
                    f"`{each.vocab.offset_column}` AS offset", ORIGINS_COLUMN, BATCH
                ),
            )
            for at, each in enumerate(inputs)
        }
        found: dict[str, DataFrame] = {}
        for at, join in enumerate(as_of.joins):
            name = join.table.name
            made = tables.joined(
                at,
                views,
                list(sources.values()),
                (views[name], sources[name]),
                changes=name in time.changing,
                lates=name in time.late,
            )
            made = self._kept(made, f"joined-{at}")
            found[join.view] = made
            views[join.view] = made.drop(*_HIDDEN)
            frame = made.selectExpr(f"{JOINED_VOCABULARY.offset_column} AS offset", ORIGINS_COLUMN, BATCH)
            sources[join.view] = Source(len(inputs) + at, frame)
        return found

    def _kept(self, frame: DataFrame, name: str) -> DataFrame:
        """The same rows, computed."""
        path = spark_path(self._folder / name)
        with cancellable(self._session, self._reporter):
            frame.write.parquet(path)
        return self._session.read.schema(frame.schema).parquet(path)


def with_partners(sought: SoughtRows) -> SoughtRows:
    """The same rows, and of corrections both: a row is corrected by what both of them were made of."""
    found: list[OffsetRange] = []
    for place, code in _corrections(sought):
        if any(first <= place <= last for first, last in sought.runs):
            found.append((place, place + 1) if code == Op.CORRECT_FROM else (place - 1, place))
    return (
        sought
        if not found
        else SoughtRows(sought.path, normalize_ranges([*sought.runs, *found]), sought.vocab)
    )


def _corrections(sought: SoughtRows) -> Iterator[tuple[int, int]]:
    """The offsets of the corrections among the rows of the slice, and their operations."""
    offset, operation = sought.vocab.offset_column, sought.vocab.operation_type_column
    kinds = pa.array([int(Op.CORRECT_FROM), int(Op.CORRECT_TO)])
    for batch in read_batches(sought.path, [offset, operation]):
        codes = pc.cast(batch.column(operation), pa.int64())
        rows = batch.filter(pc.is_in(codes, kinds))
        yield from zip(rows.column(offset).to_pylist(), rows.column(operation).to_pylist(), strict=True)
