"""Base of the engines that pass each request to another engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.engines.contract import (
    ComputedResult,
    Engine,
    Operation,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, TransformRequest

ResultT = TypeVar("ResultT")


class ForwardingEngine(ABC):
    """An engine that passes each request to another engine.

    For the methods see :class:`odf_engine.engines.contract.Engine`.
    """

    @abstractmethod
    def _forward(self, query: Sql | None, reporter: Reporter, call: Callable[[Engine], ResultT]) -> ResultT:
        """Return the result of a call of the other engine.

        Args:
            query: the query of the request, or None for the query of a proof.
            reporter: receives the log lines of a start; checked for cancellation.
            call: calls the engine.
        """

    def run(
        self, operation: Operation, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        return self._forward(
            request.transform, reporter, lambda engine: engine.run(operation, request, declared, reporter)
        )

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        return self._forward(
            transform, Reporter(), lambda engine: engine.validate(transform, inputs, vocab, declared)
        )

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        return self._forward(
            request.transform, reporter, lambda engine: engine.provenance(request, rows, reporter)
        )

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> ComputedResult:
        return self._forward(None, reporter, lambda engine: engine.compute_outcome(sql, tables, reporter))
