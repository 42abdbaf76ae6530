"""The engine contract: requests, results, and the Engine protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.metadata.model import (
    Checkpoint,
    DatasetVocabulary,
    OffsetInterval,
    Sql,
    TransformRequest,
    TransformRequestInput,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.query_proof import ResultSummary

if TYPE_CHECKING:
    from odf_engine.data.parquet.slices import TableFiles


class LateRows(NamedTuple):
    """Rows of an input that a transaction dropped, because they are late.

    Attributes:
        alias: name of the input in the query.
        offsets: their offsets as int64, ascending; at least one.
    """

    alias: str
    offsets: pa.ChunkedArray


@dataclass(frozen=True)
class TransactionResult:
    """The result of a transaction.

    Attributes:
        written: slice with the new rows, or None without new rows.
        schema: schema of that slice.
        checkpoint: state after the transaction, at the path in the request. None if the query is stateless,
            or its state has not changed.
        retracts_emitted: the rows that the slice retracts are those that the engine emitted before, so that
            they need not be searched in the dataset.
        watermark: watermark of the rows as the engine reports it, or None if it reports none.
        late: rows that were dropped, or [] if the engine does not report them.
        version: version of the engine as it reports it, or None if it reports none.
        pending: number of rows that wait for the watermark of the inputs, or None if it is unknown.
    """

    written: WrittenSlice | None
    schema: pa.Schema
    checkpoint: Checkpoint | None = None
    retracts_emitted: bool = False
    watermark: Timestamp | None = None
    late: Sequence[LateRows] = ()
    version: str | None = None
    pending: int | None = 0


@dataclass(frozen=True)
class QueryInput:
    """An input of a query, without rows.

    Attributes:
        alias: its name in the query.
        schema: schema of its slices, with system columns.
        vocab: its column names.
    """

    alias: str
    schema: pa.Schema
    vocab: DatasetVocabulary

    @classmethod
    def from_request(cls, input: TransformRequestInput) -> Self:
        """Return an input of a transaction."""
        return cls(input.query_alias, pq.read_schema(input.schema_file), input.vocab)


class ValidatedQuery(msgspec.Struct, frozen=True, tag="valid", omit_defaults=True):
    """A query that can run.

    Attributes:
        schema: schema of the slices of its result.
        state: fingerprint of its state: a query with the same fingerprint can continue from the same
            checkpoint. None for a stateless query.
        rereads: whether transactions read the earlier rows of the inputs again, and correct earlier results.
    """

    schema: pa.Schema
    state: str | None = None
    rereads: bool = False


class InputRows(msgspec.Struct, frozen=True):
    """Rows of an input by its alias in the query, in ascending order."""

    alias: str
    rows: list[OffsetInterval]


class RowProvenance(msgspec.Struct, frozen=True, tag="derivation", omit_defaults=True):
    """The input rows behind rows of a transaction.

    Attributes:
        feeds: the rows of each input.
        exact: whether exactly these rows contributed; otherwise they are all candidates.
        reason: why they are not exact.
    """

    feeds: list[InputRows]
    exact: bool = True
    reason: str | None = None


class ComputedResult(msgspec.Struct, frozen=True, tag="outcome"):
    """The outcome of a query over tables.

    Attributes:
        outcome: columns, number, hash and order of the rows.
        read: names of the tables that the query reads.
        spark: version of Spark.
    """

    outcome: ResultSummary
    read: list[str]
    spark: str


Operation = Literal["execute", "finish", "rebuild", "recompute"]
"""What an engine does with a query.

- ``execute`` runs a transaction (specification: Execute Query).
- ``finish`` flushes the state of a query that is replaced (specification: Migrate Query). The request has the
  state and no new input data. The result has the remaining rows, such as those of open windows. No state
  remains.
- ``rebuild`` computes the state of a query as if it had run from the start (specification: Migrate Query).
  The request has all input data so far, and the state of the old query. The rows of past transactions are
  dropped. For a grouping without a window the result has the changes that turn the rows of the old query into
  the rows of the new one.
- ``recompute`` runs the query as one batch over the latest state of its inputs, independently of
  transactions. The request has all input data so far. All rows have the operation +A. The watermark is the
  event time up to which they are complete, or None if all of them are.
"""


class Engine(Protocol):
    """Runs queries of derivative datasets; calls from several threads are allowed."""

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """Check that a query can run, without any data (specification: Validate Query).

        Args:
            transform: the query.
            inputs: its inputs, in the order of declaration.
            vocab: column names of the derivative dataset.
            declared: required schema of the result, or None if it may be any.

        Raises:
            InvalidQuery: the query is invalid, or its result violates the output contract.
            Unsupported: the engine does not support the query, or cannot validate it.
        """
        ...

    def run(
        self, operation: Operation, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """Run one transaction of a query.

        Args:
            operation: see :data:`Operation`.
            request: the query, its inputs, and the output paths.
            declared: required schema of the result: the schema of the dataset, or None before the first rows.
            reporter: receives amounts; checked for cancellation.

        Raises:
            InvalidQuery: the query is invalid, or its result violates the output contract.
            BadData: a value cannot be computed or stored.
            Unsupported: the engine does not support the query or the operation.
            Cancelled: no output files remain.
        """
        ...

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """Find the input rows behind rows of a transaction (specification: Derive
        Provenance).

        Args:
            request: request of the transaction; nothing is written.
            rows: offsets of result rows.
            reporter: as for :meth:`run`.

        Raises:
            OdfError: as for :meth:`run`; Unsupported if the query does not allow it.
        """
        ...

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> ComputedResult:
        """Run a query over tables and hash its rows; no file is written.

        Args:
            sql: the query of a proof.
            tables: all tables that it can read.
            reporter: as for :meth:`run`.

        Raises:
            OdfError: as for :meth:`run`; Unsupported if the engine cannot do it.
        """
        ...
