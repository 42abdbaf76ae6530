"""The DataFusion engine: transactions of stateless queries."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.config import Config, parse_size
from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import DATAFUSION, engine_version
from odf_engine.data.changelog import OPERATION, POSITION
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.engines.contract import (
    ComputedResult,
    Operation,
    QueryInput,
    RowProvenance,
    TransactionResult,
    ValidatedQuery,
)
from odf_engine.engines.output_contract import OutputContract, input_schemas, write_result
from odf_engine.engines.row_provenance import provenance_of_positions
from odf_engine.errors import InvalidQuery, Unsupported
from odf_engine.isolation.namespaces import MountSandbox
from odf_engine.isolation.sandbox_process import (
    LimitWatch,
    find_program,
    kernel_limits,
    python_paths,
    sandbox_environment,
)
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, TransformRequest
from odf_engine.query_process.client import Isolation, QueryOptions, QueryRows, run_query
from odf_engine.storage.scratch import job_scratch_folder

_FOLDER: Final = Path("/query")  # path of the query's folder in the sandbox
_ANY_TIME: Final = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class DataFusionEngine:
    """Runs row-by-row queries of the dialect ``datafusion``, each in a separate process.

    Attributes:
        config: the settings of the workspace.
        cache: folder for temporary files, on the file system of the datasets.
        untrusted: name of the dataset whose queries run in a sandbox; None to run them without one.
    """

    config: Config
    cache: Path
    untrusted: str | None

    def run(
        self, operation: Operation, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter
    ) -> TransactionResult:
        """See :class:`odf_engine.engines.contract.Engine`."""
        if operation == "recompute":
            raise Unsupported("the engine datafusion cannot recompute a result; its queries have no state")
        if operation != "execute":
            raise InvalidQuery("the query is stateless", where="query")
        with self._run(request.transform, _tables(request), request.system_time, reporter) as rows:
            contract = _contract(rows, request.vocab, declared, input_schemas(request))
            checked = map(contract.require_event_time, rows.batches)
            stateless = contract.stateless_rows(checked, ordered=rows.properties.ordered)
            written = write_result(stateless, contract.schema, request, reporter)
        return TransactionResult(written, contract.schema, version=engine_version(DATAFUSION))

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> ValidatedQuery:
        """See :class:`odf_engine.engines.contract.Engine`."""
        tables = [TableFiles(input.alias, [], input.schema, input.vocab) for input in inputs]
        with self._run(transform, tables, _ANY_TIME, Reporter()) as rows:
            contract = _contract(rows, vocab, declared, [input.schema for input in inputs])
        return ValidatedQuery(contract.schema, None)

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> RowProvenance:
        """See :class:`odf_engine.engines.contract.Engine`."""
        with self._run(request.transform, _tables(request), request.system_time, reporter) as query_rows:
            return provenance_of_positions(query_rows.batches, request, rows, reporter)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> ComputedResult:
        """See :class:`odf_engine.engines.contract.Engine`."""
        raise Unsupported("the engine datafusion cannot check query proofs", hint="use the engine spark")

    @contextmanager
    def _run(
        self, transform: Sql, tables: Sequence[TableFiles], system_time: object, reporter: Reporter
    ) -> Iterator[QueryRows]:
        if transform.temporal_tables:
            raise Unsupported(
                "the engine datafusion has no temporal tables",
                where="temporalTables",
                hint="remove temporalTables, or write the query for the engine spark",
            )
        memory = parse_size(self.config.datafusion.memory)
        with job_scratch_folder(self.cache, "transform") as folder:
            isolation = self._isolation(reporter)
            if isolation is not None:
                memory = min(memory, parse_size(self.config.sandbox.memory))
            with run_query(
                transform.queries or [],
                tables,
                folder,
                memory,
                reporter,
                QueryOptions(tracked=True, system_time=str(system_time), isolation=isolation),
            ) as rows:
                yield rows

    def _isolation(self, reporter: Reporter) -> Isolation | None:
        """Return the sandbox for the queries of an untrusted dataset, or None if they run without one.

        Raises:
            NotTrusted: no sandbox is available, and running without one is not allowed.
        """
        if self.untrusted is None:
            return None
        config, name = self.config.sandbox, self.untrusted
        paths = {path: path for path in python_paths()}
        # The file system of the probe has no folder of a query, which is the only difference.
        probe = MountSandbox(paths, {}, kernel_limits(config))
        program = find_program(config, probe, name, reporter, dataset=True)
        if program is None:
            return None

        def wrap(command: list[str], folder: Path) -> list[str]:
            sandbox = MountSandbox(
                read=paths | {_FOLDER / "in": folder / "in"},
                write={_FOLDER / "scratch": folder / "scratch"},
                limits=kernel_limits(config),
            )
            return sandbox.wrap_command(program, command)

        language = {"LANG": os.environ.get("LANG", "C.UTF-8")}
        environment = sandbox_environment(_FOLDER / "scratch") | language
        return Isolation(wrap, _FOLDER, environment, self._watch)

    def _watch(self, process: subprocess.Popen[bytes], folder: Path) -> Callable[[], None]:
        """Watch the limits of a process, including its duration; see :class:`Isolation`."""
        messages = folder / "errors"
        watch = LimitWatch(process, [folder / "scratch"], (messages, 0), self.config.sandbox, timed=True)
        watch.start()

        def raise_exceeded() -> None:
            watch.join()
            if watch.exceeded is not None:
                raise watch.exceeded

        return raise_exceeded


def _tables(request: TransformRequest) -> list[TableFiles]:
    return [
        TableFiles(
            input.query_alias,
            list(map(Path, input.data_paths)),
            pq.read_schema(input.schema_file),
            input.vocab,
        )
        for input in request.query_inputs
    ]


def _contract(
    rows: QueryRows, vocab: DatasetVocabulary, declared: pa.Schema | None, inputs: Sequence[pa.Schema]
) -> OutputContract:
    fields = [field for field in rows.schema if field.name not in (POSITION, OPERATION)]
    return OutputContract(pa.schema(fields), vocab, declared, inputs)
