"""Query: run SQL over datasets, and check the proofs of query results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from odf_engine.base.atomic_files import atomic_file
from odf_engine.base.config import parse_size
from odf_engine.base.progress import Reporter, count_of
from odf_engine.derive.verify.finding_kinds import ProofFinding
from odf_engine.errors import InvalidIdentity, InvalidQuery, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.jobs.base import JobContext, JobRequest, JobSummary, release_arrow_memory
from odf_engine.on_demand import (
    chain_state,
    file_table,
    proof_check,
    query_execution,
    query_proof,
    query_results,
    result_file,
    row_export,
    scratch,
)
from odf_engine.rows import PinnedVersion
from odf_engine.sql.query_text import double_quoted_texts

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.data.parquet.slices import TableFiles
    from odf_engine.rows.execution import QueryAnswer, Tables, TimeTravelDefaults
    from odf_engine.spark import SparkSession
    from odf_engine.workspace.workspace import Workspace

SQL_ENGINES: Final = ("spark", "duckdb")
"""The engines of queries."""


class ResultColumn(msgspec.Struct, frozen=True):
    """A column of a query result; its type as DDL."""

    name: str = ""
    type: str = ""


class QueryResult(msgspec.Struct, frozen=True):
    """Result of a query.

    Attributes:
        sql: the query.
        pins: the blocks that it was answered from.
        columns: the columns of its rows.
        proof: the query proof, see :mod:`odf_engine.rows.query_proof`, or None if none was requested.
        seconds: duration of the job.
        path: the Parquet file of the rows, relative to the workspace's folder; evicted when newer results
            need the space. Empty with ``output``.
        output: the file that the rows were written to, if one was requested.
        rows: number of rows.
        truncated: whether the query has more rows than the limit.
    """

    sql: str = ""
    pins: list[PinnedVersion] = []
    columns: list[ResultColumn] = []
    proof: dict[str, Any] | None = None
    seconds: float = 0.0
    path: str = ""
    output: str | None = None
    rows: int = 0
    truncated: bool = False


class Query(JobRequest[QueryResult], frozen=True, tag="sql"):
    """Run a query over datasets by name; nothing is changed.

    Attributes:
        sql: the query.
        limit: maximum number of rows of the result, or None for all of them.
        dataset: empty.
        as_at, as_of: default version and state of the datasets of the query.
        pins: blocks of single datasets, by name or id.
        output: absolute path to write the rows to; by default a Parquet file in the workspace's cache.
        format: format of that file.
        proof: create a query proof.
        sign: the dataset whose key signs the proof.
        engine: runs the query: ``spark`` or ``duckdb``; only Spark can create proofs.
        files: absolute paths and URLs of files by their names in the query; only DuckDB reads them.
        max_bytes: maximum size of the rows in memory, or None for no limit.
        readable: the ids of the only datasets that the query can read, or None for all.
    """

    read_only = True
    has_screen = True
    is_silent = True

    sql: str
    limit: int | None = 1_000_000
    dataset: str = ""
    as_at: str | None = None
    as_of: str | None = None
    pins: dict[str, str] = {}
    output: str | None = None
    format: Literal["csv", "json", "ndjson", "parquet"] = "parquet"
    proof: bool = False
    sign: str | None = None
    engine: str = "spark"
    files: dict[str, str] = {}
    max_bytes: int | None = None
    readable: list[str] | None = None

    @property
    def needs_spark(self) -> bool:
        return self.engine == "spark"

    def run(self, context: JobContext, reporter: Reporter) -> QueryResult:
        began = time.monotonic()
        _check(self)
        workspace = context.workspace
        defaults = query_execution.parse_time_travel(workspace, self.as_at, self.as_of, self.pins)
        key = None if self.sign is None else _key(workspace, self.sign)
        reporter.log(self.sql.strip())
        tables = query_execution.Tables(workspace, reporter, defaults, self.readable)
        session = context.host.spark(reporter).session() if self.needs_spark else None
        try:
            with release_arrow_memory(), _execute(self, workspace, tables, session, reporter) as answer:
                tables.check_all_used()
                stored = _store_rows(self, workspace, answer, reporter)
                proof = None
                if self.proof and session is not None:
                    proof = _create_proof(self, defaults, key, answer, tables, session, reporter)
        finally:
            if session is not None:
                _warn_of_quoted_columns(self.sql, workspace, tables, reporter)
        if stored.truncated:
            reporter.log(f"result truncated: only the first rows are stored ({stored.rows})")
        seconds = round(time.monotonic() - began, 3)
        reporter.log(f"query result: {count_of(stored.rows, 'row')} in {seconds:.1f} s")
        return QueryResult(
            sql=self.sql,
            pins=tables.pins,
            columns=msgspec.convert(answer.columns, list[ResultColumn], from_attributes=True),
            proof=proof,
            seconds=seconds,
            **stored._asdict(),
        )

    @classmethod
    def summarize(cls, result: QueryResult) -> JobSummary:
        return JobSummary(count_of(result.rows, "row") + (", truncated" if result.truncated else ""))

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        engine = [] if self.engine == "spark" else ["--engine", self.engine]
        return ["sql", self.sql, *engine]


def _warn_of_quoted_columns(sql: str, workspace: Workspace, tables: Tables, reporter: Reporter) -> None:
    """Warn of names of columns in double quotes, which Spark reads as strings."""
    quoted = double_quoted_texts(sql)
    columns: set[str] = set()
    for pin in tables.pins if quoted else ():
        state = workspace.resolve(pin.dataset).dataset.state()
        names = chain_state.parse_column_names(state.schema, state.odf_schema) or ()
        columns |= {name.casefold() for name in names}
    for name in quoted:
        if name.casefold() in columns:
            reporter.warn(f'"{name}" is a string in Spark SQL; `{name}` is the column', "quotes")


class _StoredRows(NamedTuple):
    """Location of the stored rows of a result, see :class:`QueryResult`."""

    path: str
    output: str | None
    rows: int
    truncated: bool


@contextmanager
def _execute(
    request: Query, workspace: Workspace, tables: Tables, session: SparkSession | None, reporter: Reporter
) -> Iterator[QueryAnswer]:
    """Run the query with Spark, or with DuckDB without a session."""
    if session is not None:
        with query_execution.execute_query(
            request.sql, tables.names, tables.files, session, reporter, proven=request.proof
        ) as answer:
            yield answer
        return
    memory = parse_size(workspace.config.sql.memory)
    with scratch.job_scratch_folder(workspace.odf / "cache", "query") as folder, ExitStack() as stack:

        def open_file(name: str) -> TableFiles:
            return stack.enter_context(_open_file(name, request.files[name], folder, reporter))

        answer = stack.enter_context(
            query_execution.execute_with_duckdb(
                request.sql, tables.names, tables.files, open_file, folder, memory, reporter
            )
        )
        yield answer


@contextmanager
def _open_file(name: str, location: str, folder: Path, reporter: Reporter) -> Iterator[TableFiles]:
    """Read a file with the types that a new dataset would have, as a table of this name."""
    with file_table.open_file_table([location], None, folder) as table:
        rows = table.read(reporter)
        for note in rows.notes:
            reporter.warn(f"{name}: {note}", "file")
        yield rows.as_table(name)


def _check(request: Query) -> None:
    if not request.sql.strip():
        raise UsageError("the query is empty", hint="write a query, such as SELECT 1")
    if request.limit is not None and request.limit < 1:
        raise UsageError("invalid limit: must be at least 1")
    if request.engine not in SQL_ENGINES:
        raise UsageError(f"unknown engine '{request.engine}' for queries", hint="use spark or duckdb")
    if request.proof and not request.needs_spark:
        raise UsageError(f"the engine {request.engine} cannot create a proof", hint="use the engine spark")
    if request.sign is not None and not request.proof:
        raise UsageError("only a query proof can be signed")


def _key(workspace: Workspace, name: str) -> str:
    """Return the private key of a dataset as PEM."""
    try:
        dataset = DatasetId.parse(name)
    except InvalidIdentity:
        dataset = workspace.resolve(name).id
    return workspace.keys.private_key_pem(dataset)


def _store_rows(request: Query, workspace: Workspace, answer: QueryAnswer, reporter: Reporter) -> _StoredRows:
    """Write the rows to the requested file, or to the cache."""
    batches = _limited(answer.batches, request.max_bytes, reporter)
    if request.output is None:
        limit = request.limit or query_results.NO_LIMIT
        with query_results.new_result(workspace.odf) as (part, path):
            rows, truncated = query_results.write(part, answer.schema, batches, limit)
        return _StoredRows(str(path.relative_to(workspace.folder)), None, rows, truncated)
    rows, truncated = _write_output(request, Path(request.output), answer.schema, batches, reporter)
    return _StoredRows("", request.output, rows, truncated)


def _write_output(
    request: Query, path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], reporter: Reporter
) -> tuple[int, bool]:
    limit = request.limit or query_results.NO_LIMIT
    row_export.check_path(path, replace=True)
    if request.format == "parquet":
        with atomic_file(path, 0o666) as temporary:
            return query_results.write(temporary, schema, batches, limit)
    limited = query_results.LimitedBatches(batches, limit)
    return row_export.write_stream(path, request.format, schema, limited, reporter), limited.more


def _limited(
    batches: Iterator[pa.RecordBatch], max_bytes: int | None, reporter: Reporter
) -> Iterator[pa.RecordBatch]:
    """Yield the batches.

    Raises:
        InvalidQuery: they have more bytes than the limit.
        Cancelled: the job was cancelled.
    """
    size = 0
    for batch in batches:
        reporter.raise_if_cancelled()
        size += batch.nbytes
        if max_bytes is not None and size > max_bytes:
            problem = f"the result has more than {max_bytes:,} bytes, the limit for this query"
            raise InvalidQuery(problem, hint="add a LIMIT or a WHERE clause, or select fewer columns")
        yield batch


def _create_proof(
    request: Query,
    defaults: TimeTravelDefaults,
    key: str | None,
    answer: QueryAnswer,
    tables: Tables,
    session: SparkSession,
    reporter: Reporter,
) -> dict[str, Any]:
    proof = query_proof.QueryProof(
        query=request.sql,
        tables=tables.read,
        result=answer.summarize(reporter),
        engine=proof_check.this_engine(session.version),
        as_at=None if defaults.blocks else defaults.as_at,  # not valid for all tables: each names its block
        as_of=None if defaults.as_of is None else str(defaults.as_of),
    )
    return (proof if key is None else proof.with_signature(key)).document


class CheckProofResult(msgspec.Struct, frozen=True):
    """Result of the check of a query proof: the document of ``odf verify --proof --json``.

    Attributes:
        valid: whether the same query over the same blocks returned the same rows, and the signature is valid.
        checked: False when the query was not run because blocks are missing.
        findings: the reasons why the proof is not valid.
        query: the query.
        rows, hash: number and hash of the rows according to the proof.
        signed_by: id of the dataset whose key signed the proof, if it is signed.
        seconds: duration of the job.
    """

    valid: bool = False
    checked: bool = True
    findings: list[ProofFinding] = []
    query: str = ""
    rows: int = 0
    hash: str = ""
    signed_by: str | None = None
    seconds: float = 0.0


class CheckProof(JobRequest[CheckProofResult], frozen=True, tag="check-proof"):
    """Check a query proof and run its query again.

    Attributes:
        proof: the text of the proof.
        dataset: is empty.
        file: absolute path of a file to compare with the rows of the proof, or "".
    """

    read_only = True
    has_screen = True
    is_silent = True

    proof: str
    dataset: str = ""
    file: str = ""

    def run(self, context: JobContext, reporter: Reporter) -> CheckProofResult:
        began = time.monotonic()
        proof = query_proof.QueryProof.from_bytes(self.proof.encode())
        reporter.log(proof.query.strip())
        with release_arrow_memory():
            findings = proof_check.check_query_proof(proof, context.workspace, context.host.spark, reporter)
            if self.file and (
                finding := result_file.check_result_file(Path(self.file), proof.result, reporter)
            ):
                findings.append(finding)
        for finding in findings:
            reporter.log(finding.message)
        return CheckProofResult(
            valid=not findings,
            checked=not any(finding.kind in proof_check.MISSING for finding in findings),
            findings=findings,
            query=proof.query,
            rows=proof.result.rows,
            hash=proof.result.hash,
            signed_by=None if proof.signature is None else proof.signature.key,
            seconds=round(time.monotonic() - began, 3),
        )

    @classmethod
    def summarize(cls, result: CheckProofResult) -> JobSummary:
        if not result.checked:
            return JobSummary("a dataset or block is missing")
        return JobSummary("proof valid" if result.valid else "proof invalid")
