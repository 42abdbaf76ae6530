"""The engine contract: requests, results, and the Engine protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from odf_engine.data.slices import WrittenSlice
from odf_engine.metadata.model import Checkpoint, DatasetVocabulary, OffsetInterval, Sql, TransformRequest
from odf_engine.progress import Reporter
from odf_engine.query.query_proof import ResultSummary

if TYPE_CHECKING:
    from odf_engine.query.execution import TableFiles


@dataclass(frozen=True)
class TransactionResult:
    """What a transaction gave.

    Attributes:
        written: the slice with the new rows; None when there are none.
        schema: of that slice.
        checkpoint: the state after it, at the path that the request says; None when the query keeps
            none, or what it keeps has not changed.
    """

    written: WrittenSlice | None
    schema: pa.Schema
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True)
class QueryInput:
    """An input as a query sees it, without any rows.

    Attributes:
        alias: what the query calls it.
        schema: of its slices, system columns included.
        vocab: its column names.
    """

    alias: str
    schema: pa.Schema
    vocab: DatasetVocabulary


@dataclass(frozen=True)
class ValidatedQuery:
    """A query that can be run.

    Attributes:
        schema: of the slices that it makes.
        state: what the state that it keeps depends on, as a fingerprint: a query of the same one may
            go on from the same checkpoint. None when it keeps no state.
    """

    schema: pa.Schema
    state: str | None


@dataclass(frozen=True)
class RowProvenance:
    """Rows of inputs that made rows of a transaction.

    Attributes:
        feeds: by what the query calls each input, their offsets in ascending order.
        exact: whether these rows and no others made them; else they are all that could have.
        reason: why they are not exact.
    """

    feeds: list[tuple[str, list[OffsetInterval]]]
    exact: bool
    reason: str | None


@dataclass(frozen=True)
class Computed:
    """The outcome of a query over tables.

    Attributes:
        outcome: columns, number, hash and order of the rows.
        read: the names of the tables that the query reads.
        spark: the version of Spark that computed it.
    """

    outcome: ResultSummary
    read: list[str]
    spark: str


class Engine(Protocol):
    """Runs queries of derivative datasets; several threads may ask at a time."""

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """Looks whether a query can be run, without any data (specification: Validate Query).

        Args:
            transform: the query.
            inputs: what it reads, in the order of declaration.
            vocab: the column names of the dataset that is made.
            declared: the schema which the result has to have; None where it may be any.

        Raises:
            InvalidQuery: the query is wrong, or its result breaks the output contract.
            Unsupported: the query needs what this engine cannot do, or the engine cannot look.
        """
        ...

    def finish(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """Ends the state of a query that another one takes the place of (specification: Migrate Query).

        The result has the rows that were still to come, such as those of windows that are open. There
        is no state afterwards.

        Args:
            request: the old query with the state to end; its inputs bring nothing.
            declared: as for :meth:`execute`.
            reporter: as for :meth:`execute`.

        Raises:
            OdfError: as for :meth:`execute`; Unsupported when the engine cannot do it.
        """
        ...

    def rebuild(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """Makes the state that a query would have, had it been there from the start (Migrate Query).

        Rows that the query would have given until then are dropped. A grouping without a window gives
        what turns the rows of the old query, whose state the request names, into its own.

        Args:
            request: the new query, with everything that its inputs have up to now, and the state of
                the old query.
            declared: as for :meth:`execute`.
            reporter: as for :meth:`execute`.

        Raises:
            OdfError: as for :meth:`execute`; Unsupported when the engine cannot do it.
        """
        ...

    def execute(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """Runs one transaction.

        Args:
            request: the query, its inputs and where to write.
            declared: the schema of the dataset, which the result has to have; None before the first.
            reporter: hears of amounts, and is asked whether to stop.

        Raises:
            InvalidQuery: the query is wrong, or its result breaks the output contract.
            BadData: a value that cannot be computed or stored.
            Unsupported: the query needs what this engine cannot do.
            Cancelled: nothing is left.
        """
        ...

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """Finds the rows of inputs that made rows of a transaction (specification: Derive Provenance).

        Args:
            request: that of the transaction; nothing is written.
            rows: offsets of rows that the transaction made.
            reporter: as for :meth:`execute`.

        Raises:
            OdfError: as for :meth:`execute`; Unsupported when this cannot be told of the query.
        """
        ...

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> Computed:
        """Runs a query over tables, and hashes its rows; no file is written.

        Args:
            sql: the query, as a proof has it.
            tables: all that it can read.
            reporter: as for :meth:`execute`.

        Raises:
            OdfError: as for :meth:`execute`; Unsupported when the engine cannot do it.
        """
        ...
