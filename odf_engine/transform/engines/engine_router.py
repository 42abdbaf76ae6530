"""Selects the engine for a query: Spark, a configured service, or the sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, TransformRequest
from odf_engine.progress import Reporter
from odf_engine.query.execution import TableFiles
from odf_engine.settings import Config
from odf_engine.transform.engines.contract import (
    ComputedResult,
    Engine,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.transform.engines.grpc_client import GrpcEngine
from odf_engine.transform.engines.sandbox import Sandbox
from odf_engine.transform.engines.spark_engine import SparkEngine
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.query_check import check_engine
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime

SPARK: Final = "spark"
"""The engine that is always available; the configuration can replace it."""


class EngineMissing(InvalidQuery):
    """The query requires an engine that is not available."""


class EngineRouter:
    """All engines of a workspace behind the engine contract; each query runs on the engine it names.

    Args:
        config: names and addresses of external engines (``engines``).
        spark: runs queries for ``spark``.
    """

    def __init__(self, config: Config, spark: Engine) -> None:
        self._addresses = {name.lower(): address for name, address in config.engines.items()}
        self._engines: dict[str, Engine] = {} if SPARK in self._addresses else {SPARK: spark}

    def get_engine(self, name: str) -> Engine:
        """Return the engine with this name, ignoring case.

        Raises:
            EngineMissing: there is none.
            InvalidManifest: its configured address is invalid.
        """
        key = name.lower()
        if key not in self._engines:
            check_engine(name, self._addresses, EngineMissing)
            self._engines[key] = GrpcEngine(self._addresses[key])
        return self._engines[key]

    def execute(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        return self.get_engine(request.transform.engine).execute(request, declared, reporter)

    def finish(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        return self.get_engine(request.transform.engine).finish(request, declared, reporter)

    def rebuild(
        self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        return self.get_engine(request.transform.engine).rebuild(request, declared, reporter)

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        return self.get_engine(transform.engine).validate(transform, inputs, vocab, declared)

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        return self.get_engine(request.transform.engine).provenance(request, rows, reporter)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> ComputedResult:
        """See :class:`odf_engine.transform.engines.contract.Engine`."""
        return self.get_engine(SPARK).compute_outcome(sql, tables, reporter)


@contextmanager
def engines_for(workspace: Workspace, entry: DatasetEntry, runtime: SparkRuntime) -> Iterator[EngineRouter]:
    """Return the engines for the queries of a dataset, for the duration of one job.

    Spark runs queries of untrusted datasets in a sandbox. External engines are responsible for their own
    isolation.

    Args:
        workspace: its configuration lists the engines.
        entry: a derivative dataset.
        runtime: the Spark of this process.
    """
    config, spark = workspace.config, SparkEngine(runtime)
    if Trust(workspace).is_trusted(entry):
        yield EngineRouter(config, spark)
        return
    odf = workspace.odf
    sandbox = Sandbox(config, odf / "cache", odf / "sandbox.log", str(entry.alias), fallback=spark)
    with closing(sandbox):
        yield EngineRouter(config, sandbox)
