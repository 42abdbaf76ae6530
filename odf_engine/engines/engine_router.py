"""Selects the engine for a query: Spark, DataFusion, a configured service, or the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from odf_engine.base.config import Config
from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import DATAFUSION, SPARK
from odf_engine.engines.container_engine import CONTAINER, ContainerEngine
from odf_engine.engines.contract import Engine
from odf_engine.engines.datafusion_engine import DataFusionEngine
from odf_engine.engines.forwarding_engine import ForwardingEngine, ResultT
from odf_engine.engines.grpc_client import GrpcEngine
from odf_engine.engines.sandbox import Sandbox
from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import Sql
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.query_check import check_engine, is_external
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime

StartSpark = Callable[[], "SparkRuntime"]
"""Returns the Spark session of this process, which is started if necessary."""
BuildEngine = Callable[[], Engine]


class EngineMissing(InvalidQuery):
    """The query requires an engine that is not available."""


class EngineRouter(ForwardingEngine):
    """All engines of a workspace behind the engine contract; each query runs on the engine it names.

    Args:
        config: names and addresses of external engines (``engines``), which replace built-in ones.
        built_in: return the built-in engines, by name; called when they are first used.
        odf: the ``.odf`` folder of the workspace; without it, engines in containers are not available.
        is_unpinned: containers run the configured images, whatever version a query requires.
    """

    def __init__(
        self,
        config: Config,
        built_in: Mapping[str, BuildEngine],
        odf: Path | None = None,
        *,
        is_unpinned: bool = False,
    ) -> None:
        self._config, self._odf, self._is_unpinned = config, odf, is_unpinned
        self._containers: list[ContainerEngine] = []
        self._addresses = {name.lower(): address for name, address in config.engines.items()}
        self._built_in = built_in
        self._engines: dict[str, Engine] = {}
        self._lock = Lock()

    def get_engine(self, name: str) -> Engine:
        """Return the engine with this name, ignoring case.

        Raises:
            EngineMissing: it is not installed.
            InvalidManifest: its configured address is invalid.
        """
        key = name.lower()
        with self._lock:  # several threads replay transactions
            if key not in self._engines:
                check_engine(name, self._addresses, EngineMissing)
                self._engines[key] = self._make_engine(key)
            return self._engines[key]

    def find_external(self, name: str) -> GrpcEngine | ContainerEngine | None:
        """Return the external engine for a preprocess query, or None if a built-in engine runs it.

        Raises:
            EngineMissing: there is no engine with this name.
            InvalidManifest: its configured address is invalid.
        """
        check_engine(name, self._addresses, EngineMissing, where="preprocess")
        if not is_external(name, self._addresses):
            return None
        engine = self.get_engine(name)
        assert isinstance(engine, GrpcEngine | ContainerEngine)
        return engine

    def _make_engine(self, key: str) -> Engine:
        address = self._addresses.get(key)
        if address is None:
            return self._built_in[key]()
        if not address.startswith(CONTAINER) or self._odf is None:
            return GrpcEngine(address)
        engine = ContainerEngine(key, address, self._config.fetch, self._odf, is_unpinned=self._is_unpinned)
        self._containers.append(engine)
        return engine

    def close(self) -> None:
        """Stop the containers that were started."""
        for container in self._containers:
            container.close()

    def _forward(self, query: Sql | None, reporter: Reporter, call: Callable[[Engine], ResultT]) -> ResultT:
        return call(self.get_engine(SPARK if query is None else query.engine))


def built_in_engines(workspace: Workspace, start: StartSpark) -> dict[str, BuildEngine]:
    """Return the built-in engines for trusted queries, by name."""

    def spark() -> Engine:
        runtime = start()
        from odf_engine.engines.spark_engine import SparkEngine  # imports PySpark: after the start

        return SparkEngine(runtime)

    config, cache = workspace.config, workspace.odf / "cache"
    return {SPARK: spark, DATAFUSION: lambda: DataFusionEngine(config, cache, None)}


@contextmanager
def engines_for(
    workspace: Workspace, entry: DatasetEntry, start: StartSpark, *, is_unpinned: bool = False
) -> Iterator[EngineRouter]:
    """Return the engines for the queries of a dataset, for the duration of one job.

    Built-in engines run queries of untrusted datasets in a sandbox. External engines are responsible for
    their own isolation.

    Args:
        workspace: its configuration lists the engines.
        entry: the dataset.
        start: returns the Spark of this process; called when a query needs it.
        is_unpinned: as for :class:`EngineRouter`.
    """
    config, engines = workspace.config, built_in_engines(workspace, start)
    if Trust(workspace).is_trusted(entry):
        with closing(EngineRouter(config, engines, workspace.odf, is_unpinned=is_unpinned)) as router:
            yield router
        return
    odf, name = workspace.odf, str(entry.alias)
    with ExitStack() as stack:

        def sandbox() -> Engine:
            fallback = engines[SPARK]()
            sandbox = Sandbox(config, odf / "cache", odf / "sandbox.log", name, fallback=fallback)
            return stack.enter_context(closing(sandbox))

        isolated = {SPARK: sandbox, DATAFUSION: lambda: DataFusionEngine(config, odf / "cache", name)}
        router = EngineRouter(config, isolated, odf, is_unpinned=is_unpinned)
        yield stack.enter_context(closing(router))
