"""Traces a transaction of a query whose rows can change at any time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.changelog import OPERATION, Op
from odf_engine.derive.provenance.stateless_step import RowsToTrace, StepResult, record_ambiguity
from odf_engine.engines.stateful.changes_transaction import computed_tables
from odf_engine.engines.stateful.recomputation import latest_state
from odf_engine.metadata.model import DatasetVocabulary, TransformRequest
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.readers import slices_frame
from odf_engine.spark.sql_types import identifier
from odf_engine.spark.stateful.result_origins import ResultOrigins
from odf_engine.spark.stateful.row_lineage import ORIGINS_COLUMN
from odf_engine.spark.stateful.row_match import MATCH_COUNT, SLICE_COUNT, match_rows
from odf_engine.spark.user_query import run_query

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession

_CANDIDATES: Final = "all rows with the keys of a subquery are listed"


def trace_changes(
    session: SparkSession, request: TransformRequest, selection: RowsToTrace, reporter: Reporter
) -> StepResult:
    """Trace rows of a transaction: additions to the inputs after it, retractions to those before it.

    Args:
        session: created by :func:`odf_engine.derive.provenance.stateless_step.transaction_session`.
        request: the transaction, with the earlier rows of the inputs.
        selection: the rows.
        reporter: receives amounts; checked for cancellation.

    Raises:
        StatefulQueryError: the rows cannot be traced; the message names the operation.
        OdfError: the query cannot run any more.
    """
    after = _Result(session, request, earlier=False)
    before = _Result(session, request, earlier=True)
    rows = after.rows(Op.APPEND).unionAll(before.rows(Op.RETRACT))
    names = [name for name in rows.columns if name not in (OPERATION, ORIGINS_COLUMN)]
    targets = selection.target_rows(session, signed=True, ranked=False)
    matches = match_rows(rows, names, [ORIGINS_COLUMN], targets)
    places = matches.selectExpr(SLICE_COUNT, MATCH_COUNT, f"explode_outer({ORIGINS_COLUMN}) AS place")
    traced = StepResult.empty(request)
    traced.operations = after.origins.operations
    for batch in arrow_batches(places.selectExpr(SLICE_COUNT, MATCH_COUNT, "place.*"), reporter)[1]:
        record_ambiguity(batch, traced, ranked=False)
        traced.add_rows(batch)
    if traced.reason is None and not after.origins.is_exact:
        traced.reason = _CANDIDATES
    return traced


class _Result:
    """The result of a query before or after a transaction, with the origins of its rows."""

    def __init__(self, session: SparkSession, request: TransformRequest, *, earlier: bool) -> None:
        self._session = session
        self._request = request
        tables: dict[str, DataFrame] = {}
        for index, query_input in enumerate(request.query_inputs):
            paths = [*(query_input.earlier_paths or ()), *(() if earlier else query_input.data_paths)]
            schema = pq.read_schema(query_input.schema_file)
            rows = slices_frame(session, list(map(Path, paths)), schema, query_input.vocab, ordered=False)
            tables[query_input.query_alias] = _rows_with_origins(rows, query_input.vocab, index)
        self.origins = ResultOrigins(session, tables)
        self._views = {name: table.drop(ORIGINS_COLUMN) for name, table in tables.items()}

    def rows(self, operation: Op) -> DataFrame:
        """Return the rows with this operation, and their origins."""
        transform = self._request.transform
        tables = computed_tables(transform, self._request.vocab)
        frame = run_query(self._session, self._views, transform.queries or [], tables)
        rows = self.origins.rows(frame)
        return rows.selectExpr("*", f"{operation:d} AS {OPERATION}")


def _rows_with_origins(changes: DataFrame, vocab: DatasetVocabulary, index: int) -> DataFrame:
    """Return the rows of an input that are not retracted, without system columns, and their origins."""
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    names = [identifier(name) for name in changes.columns if name not in system]
    origins = f"array(struct({index} AS at, {identifier(vocab.offset_column)} AS offset)) AS {ORIGINS_COLUMN}"
    return latest_state(changes, vocab).selectExpr(*names, origins)
