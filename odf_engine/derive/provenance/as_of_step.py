"""Row provenance of as-of joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.slices import read_batches
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.derive.provenance.model import OffsetRange
from odf_engine.derive.provenance.offset_set import normalize_ranges
from odf_engine.derive.provenance.stateful_step import StatefulTrace, Timeline
from odf_engine.derive.provenance.stateless_step import RowsToTrace, StepResult
from odf_engine.engines.stateful.as_of_transaction import prepare_as_of_query
from odf_engine.spark.stateful.as_of_join import JOINED_VOCABULARY
from odf_engine.spark.stateful.row_lineage import ORIGINS_COLUMN, AsOfTables, JoinRows, StreamLineage
from odf_engine.spark.stateful.stateful_query import WATERMARK, StreamingPlan
from odf_engine.spark.stateful.window_functions import BATCH

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame

_HIDDEN: Final = (ORIGINS_COLUMN, BATCH, WATERMARK)


class AsOfTrace(StatefulTrace):
    """Traces a transaction of a query with as-of joins."""

    _as_of = True

    def trace(self) -> StepResult:
        """See :meth:`odf_engine.derive.provenance.stateful_step.StatefulTrace.trace`."""
        self._selection = add_correction_pairs(self._selection)
        self._joined: dict[str, DataFrame] | None = None
        traced = super().trace()
        names = ", ".join(f"'{join.table.name}'" for join in self._prepared.as_of.joins)
        traced.operations.insert(0, f"as-of join: each row with the version of {names} at its event time")
        return traced

    def _plan_query(self) -> StreamingPlan:
        transform, time = self._request.transform, self._request.vocab.event_time_column
        self._prepared = prepare_as_of_query(self._session, transform, self._inputs, time)
        return self._prepared.query

    def _is_signed(self, columns: Sequence[str]) -> bool:
        has_operation = (
            match_columns(list(columns), [self._request.vocab.operation_type_column])[0] is not None
        )
        return self._prepared.by_row and not has_operation

    def _empty_query(self) -> DataFrame:
        as_of = self._prepared.as_of
        joined = {} if self._prepared.by_row else as_of.joined_streams(len(self._inputs))
        return as_of.query_after_joins(joined)

    def _build_lineage(
        self, time: Timeline, lineage_class: type[StreamLineage] = StreamLineage
    ) -> StreamLineage:
        as_of = self._prepared.as_of
        self._joined = self._joined or self._compute_joins(time)
        changing = time.changing | {
            join.view
            for join in as_of.joins
            if time.changing & as_of.inputs_before_join(join) or join.table.name in time.late
        }
        return lineage_class(
            self._session,
            as_of.inputs,
            self._request.vocab.event_time_column,
            changing,
            {**time.tables(self._session), **self._joined},
            time.watermarks_after(),
            as_of.system,
        )

    def _compute_joins(self, time: Timeline) -> dict[str, DataFrame]:
        """Compute the joined rows of each join."""
        as_of, inputs = self._prepared.as_of, self._inputs
        pairs = [
            self._prepared.by_row and (index > 0 or bool(time.changing & as_of.inputs_before_join(join)))
            for index, join in enumerate(as_of.joins)
        ]
        tables = AsOfTables(as_of, time.watermarks_after(exact=False), time.watermark_before(), pairs)
        origins = time.tables(self._session)
        views = {name: frame.drop(*_HIDDEN) for name, frame in origins.items()}
        sources = {
            input.alias: JoinRows(
                index,
                origins[input.alias].selectExpr(
                    f"`{input.vocab.offset_column}` AS offset", ORIGINS_COLUMN, BATCH
                ),
            )
            for index, input in enumerate(inputs)
        }
        joined: dict[str, DataFrame] = {}
        for index, join in enumerate(as_of.joins):
            name = join.table.name
            rows = tables.join_rows(
                index,
                views,
                list(sources.values()),
                (views[name], sources[name]),
                changes=name in time.changing,
                may_be_late=name in time.late,
            )
            rows = self._materialize(rows)
            joined[join.view] = rows
            views[join.view] = rows.drop(*_HIDDEN)
            frame = rows.selectExpr(f"{JOINED_VOCABULARY.offset_column} AS offset", ORIGINS_COLUMN, BATCH)
            sources[join.view] = JoinRows(len(inputs) + index, frame)
        return joined


def add_correction_pairs(selection: RowsToTrace) -> RowsToTrace:
    """Add the other row of each correction pair: the input rows of both contribute to a correction."""
    offset_column, operation_column = selection.vocab.offset_column, selection.vocab.operation_type_column
    corrections = pa.array([int(Op.CORRECT_FROM), int(Op.CORRECT_TO)])
    pairs: list[OffsetRange] = []
    for batch in read_batches(selection.path, [offset_column, operation_column]):
        codes = pc.cast(batch.column(operation_column), pa.int64())
        rows = batch.filter(pc.is_in(codes, corrections))
        offsets, codes = (rows.column(name).to_pylist() for name in (offset_column, operation_column))
        for offset, code in zip(offsets, codes, strict=True):
            if any(first <= offset <= last for first, last in selection.runs):
                pairs.append((offset, offset + 1) if code == Op.CORRECT_FROM else (offset - 1, offset))
    return replace(selection, runs=normalize_ranges([*selection.runs, *pairs])) if pairs else selection
