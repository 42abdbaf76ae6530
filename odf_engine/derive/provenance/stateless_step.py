"""Row provenance of stateless transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import INPUT_BITS, OPERATION, POSITION, Op
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.derive.provenance.model import OffsetRange
from odf_engine.derive.provenance.offset_set import OffsetSet
from odf_engine.engines.spark_engine import define_system_time
from odf_engine.engines.stateful.query_plan import input_views
from odf_engine.metadata.model import DatasetVocabulary, TransformRequest
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.plan_rewrite import track_origins
from odf_engine.spark.readers import slices_frame
from odf_engine.spark.stateful.row_match import MATCH_COUNT, SLICE_COUNT, TargetRows, match_rows
from odf_engine.spark.user_query import run_query

if TYPE_CHECKING:
    from odf_engine.spark import SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime

LOST: Final = (
    "the query, run again, did not return some of these rows: they were late, or made by another version of "
    "the engine"
)
AMBIGUOUS_ROWS: Final = "several rows are equal in all columns, so their input rows are ambiguous"
SCATTERED: Final = "the rows are too many and too scattered to list one by one"


@dataclass
class StepResult:
    """The input rows of result rows of a transaction.

    Attributes:
        feeds: rows of each input, in the order of the query's inputs.
        operations: descriptions of the operations.
        reason: why the rows are a superset, or None if they are exact.
        lost: whether some result rows were not matched, so ``feeds`` is incomplete.
    """

    feeds: list[OffsetSet]
    operations: list[str] = field(default_factory=list[str])
    reason: str | None = None
    lost: bool = False

    @classmethod
    def empty(cls, request: TransformRequest) -> Self:
        """Return a result without rows of the inputs."""
        return cls([OffsetSet() for _ in request.query_inputs])

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Add input rows by the columns ``at``, the index of an input, and ``offset``; null is skipped."""
        inputs, offsets = batch.column("at"), batch.column("offset")
        for index, offset_set in enumerate(self.feeds):
            offset_set.add(offsets.filter(pc.equal(inputs, index)).drop_null())


@dataclass(frozen=True)
class RowsToTrace:
    """Rows of a slice to trace.

    Attributes:
        path: path of the slice.
        runs: their offset ranges.
        vocab: column names of the slice.
    """

    path: Path
    runs: Sequence[OffsetRange]
    vocab: DatasetVocabulary

    def target_rows(
        self, session: SparkSession, *, signed: bool, approximate: bool = False, ranked: bool
    ) -> TargetRows:
        """Return the rows in the form for matching."""
        schema = pq.read_schema(self.path)
        rows = slices_frame(session, [self.path], schema, self.vocab)
        return TargetRows(
            rows, schema, self.runs, self.vocab, signed=signed, approximate=approximate, ranked=ranked
        )


def transaction_session(spark: SparkRuntime, request: TransformRequest) -> SparkSession:
    """Return a new session whose ``system_time()`` is the system time of the transaction."""
    session = spark.session()
    define_system_time(session, request.system_time.to_datetime().isoformat())
    return session


def trace_rows(
    session: SparkSession, request: TransformRequest, selection: RowsToTrace, reporter: Reporter
) -> StepResult:
    """Trace rows of a stateless transaction.

    Args:
        session: created by :func:`transaction_session`.
        request: request of the transaction.
        selection: the rows.
        reporter: receives amounts; checked for cancellation.

    Raises:
        StatefulQueryError: the query is not row-by-row.
        OdfError: the query cannot run any more.
    """
    inputs = request.query_inputs
    frame = run_query(session, input_views(session, request), request.transform.queries or [])
    tracked = track_origins(session, frame, {input.query_alias: input.vocab for input in inputs})
    traced = StepResult.empty(request)
    columns = [name for name in tracked.frame.columns if name not in (POSITION, OPERATION)]
    has_operation = match_columns(columns, [selection.vocab.operation_type_column])[0] is not None
    targets = selection.target_rows(session, signed=not has_operation, ranked=not tracked.ordered)
    matches = match_rows(tracked.frame, columns, [POSITION], targets)
    for batch in arrow_batches(matches, reporter)[1]:
        reporter.raise_if_cancelled()
        record_ambiguity(batch, traced, ranked=not tracked.ordered)
        _add_origins(batch.filter(batch.column(POSITION).is_valid()), traced)
    which = "of one of the inputs" if len(inputs) > 1 else "of the input"
    order = ", then all are sorted" if tracked.ordered else ""
    traced.operations.append(f"row by row: each row is derived from one row {which}{order}")
    return traced


def record_ambiguity(batch: pa.RecordBatch, traced: StepResult, *, ranked: bool = True) -> None:
    """Record why the result is not exact; ``ranked`` as for :class:`TargetRows`."""
    match_counts, slice_counts = batch.column(MATCH_COUNT), batch.column(SLICE_COUNT)
    if match_counts.null_count:
        traced.lost, traced.reason = True, LOST
    ambiguous = pc.not_equal(match_counts, slice_counts) if ranked else pc.greater(match_counts, 1)
    if traced.reason is None and pc.any(ambiguous).as_py():
        traced.reason = AMBIGUOUS_ROWS


def _add_origins(batch: pa.RecordBatch, traced: StepResult) -> None:
    positions, operations = batch.column(POSITION), batch.column("odf_op")
    # Both rows of a correction pair contribute to the corrected row.
    partner_step = pc.case_when(
        pc.make_struct(pc.equal(operations, int(Op.CORRECT_FROM)), pc.equal(operations, int(Op.CORRECT_TO))),
        1,
        -1,
        0,
    )
    positions = pa.concat_arrays([positions, pc.add(positions, pc.cast(partner_step, pa.int64()))])
    inputs = pc.shift_right(positions, INPUT_BITS)
    offsets = pc.bit_wise_and(positions, (1 << INPUT_BITS) - 1)
    traced.add_rows(pa.record_batch({"at": inputs, "offset": offsets}))
