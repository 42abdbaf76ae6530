"""Ad-hoc query jobs and query proof checks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from odf_engine.config import parse_size
from odf_engine.coordinator.endpoint import engine_version
from odf_engine.coordinator.protocol import CheckProof, Query
from odf_engine.coordinator.results import (
    CheckProofResult,
    PinnedBlock,
    ProofFinding,
    QueryResult,
    ResultColumn,
)
from odf_engine.errors import BadData, InvalidIdentity, NotFound, OdfError, UsageError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter, count_of
from odf_engine.storage.scratch import job_scratch_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.coordinator.job_queue import JobContext
    from odf_engine.query.execution import QueryAnswer, Tables, TimeTravelDefaults
    from odf_engine.query.query_proof import Engine, QueryProof, ResultSummary, Table
    from odf_engine.spark import SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.sql.table_functions import TableFunctionCall
    from odf_engine.transform.engines.sandbox import Sandbox
    from odf_engine.workspace.workspace import Workspace


MISSING: Final = ("dataset-missing", "block-missing")
"""Kinds of findings for which the proof cannot be checked."""


def check_proof(request: CheckProof, context: JobContext, reporter: Reporter) -> CheckProofResult:
    """Check a query proof.

    Raises:
        BadData: the document is not a query proof.
        InvalidQuery: its query is invalid.
        NotTrusted: there is no sandbox for its query.
        OdfError: the query fails.
        Cancelled: the job was cancelled; its Spark jobs are stopped.
    """
    # Deferred in all handlers: PySpark and Arrow are slow to import, and jobs of other kinds need neither.
    from odf_engine.query.query_proof import QueryProof
    from odf_engine.sql.table_functions import RewrittenQuery

    began = time.monotonic()
    workspace = context.workspace
    proof = QueryProof.from_bytes(request.proof.encode())
    reporter.log(proof.query.strip())
    calls = RewrittenQuery(proof.query, [each.table for each in proof.tables]).calls
    findings = [*_check_signature(proof), *_check_versions(proof, calls)]
    for table in proof.tables:
        findings += check_table(workspace, table)
    missing = any(each.kind in MISSING for each in findings)
    if not findings:
        findings += _run_again(proof, workspace, context, reporter)
    for each in findings:
        reporter.log(each.message)
    return CheckProofResult(
        valid=not findings,
        checked=not missing,
        findings=findings,
        query=proof.query,
        rows=proof.result.rows,
        hash=proof.result.hash,
        signed_by=None if proof.signature is None else proof.signature.key,
        seconds=round(time.monotonic() - began, 3),
    )


def _check_signature(proof: QueryProof) -> list[ProofFinding]:
    try:
        proof.check_signature()
    except BadData as error:
        return [ProofFinding("signature", error.message)]
    return []


def check_table(workspace: Workspace, table: Table) -> list[ProofFinding]:
    """Check that the block that a table was read at is in the workspace."""
    from odf_engine.identity.multiformats import Multihash

    block = Multihash.parse(table.block)
    try:
        entry = workspace.resolve(table.id)
    except (NotFound, InvalidIdentity):
        number = table.sequence_number
        message = f"{table.name} is not in this workspace ({table.id}, read at block {number})"
        hint = f"import it: odf pull --from URL --as {table.name} (find it: odf search)"
        return [ProofFinding("dataset-missing", message, hint)]
    chain = entry.dataset.at(block)
    with suppress(OdfError):  # the block, or one before it, is missing
        number = chain.block(block).block.sequence_number
        chain.state()
        if number == table.sequence_number:
            return []
        message = (
            f"block {block.abbreviated} of {entry.alias} has sequence number {number}, not "
            f"{table.sequence_number}"
        )
        return [ProofFinding("block", message)]
    state = entry.dataset.state()
    position = f"block {table.sequence_number} ({block.abbreviated}) of {entry.alias}"
    if state.sequence_number < table.sequence_number:
        message = f"{position} is missing: the local copy ends at block {state.sequence_number}"
        return [ProofFinding("block-missing", message, f"update the local copy: odf pull {entry.alias}")]
    message = f"{position} is missing: the local copy has another block with this number"
    return [ProofFinding("block-missing", message, f"pull the published history: odf pull {entry.alias}")]


def _run_again(
    proof: QueryProof, workspace: Workspace, context: JobContext, reporter: Reporter
) -> list[ProofFinding]:
    """Run the query of a proof over the same blocks, and compare the rows."""
    from odf_engine.query.execution import Tables, TimeTravelDefaults

    runtime = context.host.spark(reporter)

    from odf_engine.query.execution import release_arrow_memory  # after Spark has started, see warm_up

    defaults = TimeTravelDefaults(tables={each.table.casefold(): each for each in proof.tables})
    tables = Tables(workspace, reporter, defaults)
    files = [tables.files(each.table) for each in proof.tables]
    with release_arrow_memory(), closing(_sandbox(workspace, runtime)) as engine:
        computed = engine.compute_outcome(proof.query, files, reporter)
    read = {each.casefold() for each in computed.read}
    findings = [
        ProofFinding("table", f"the query does not read {each.table}")
        for each in proof.tables
        if each.table.casefold() not in read
    ]
    difference = _compare_results(proof.result, computed.outcome)
    if difference is None:
        return findings
    ours = this_engine(computed.spark)
    names = " ".join(sorted({each.name for each in proof.tables}))
    hint = f"check the local data: odf verify {names}" if names else ""
    if ours != proof.engine:
        theirs = f"{proof.engine.name} {proof.engine.version} with Spark {proof.engine.spark}"
        hint = f"use the versions of the proof: {theirs}; this is {ours.version} with Spark {ours.spark}"
    return [*findings, replace(difference, hint=hint)]


def _sandbox(workspace: Workspace, runtime: SparkRuntime) -> Sandbox:
    """Return the engine for the query of a proof.

    A valid signature does not make its author trusted. A signature of the user's own key does not mean that
    the user has read the query, since ``odf keys sign`` signs any file.
    """
    from odf_engine.transform.engines.sandbox import Sandbox
    from odf_engine.transform.engines.spark_engine import SparkEngine

    odf, spark = workspace.odf, SparkEngine(runtime)
    return Sandbox(
        workspace.config, odf / "cache", odf / "sandbox.log", "the proof", fallback=spark, dataset=False
    )


def _check_versions(proof: QueryProof, calls: Mapping[str, TableFunctionCall]) -> list[ProofFinding]:
    """Check that tables were read in the versions and states that the query specifies."""
    from odf_engine.sql.table_functions import parse_sql_timestamp

    findings: list[ProofFinding] = []
    for table in proof.tables:
        call = calls.get(table.table)
        default = "changelog" if proof.as_of is None else "as of"
        state = (call.state if call is not None else None) or default
        as_of = (call.as_of if call is not None else None) or (proof.as_of if state == "as of" else None)
        if (table.state, table.as_of) != (state, as_of):
            used = f"as of {table.as_of}" if table.as_of else table.state
            message = f"{table.table}: the state in the proof is '{used}', in the query '{state}'"
            findings.append(ProofFinding("table", message))
        as_at = (call.as_at if call is not None else None) or proof.as_at
        time = None if as_at is None else parse_sql_timestamp(as_at)
        if time is not None and Timestamp.parse(table.system_time) > time:
            message = f"{table.table} was read at a block of {table.system_time}, after the time in the query"
            findings.append(ProofFinding("table", message))
    return findings


def _compare_results(proven: ResultSummary, actual: ResultSummary) -> ProofFinding | None:
    if proven == actual:
        return None
    if proven.columns != actual.columns:
        texts = [", ".join(f"{each.name} {each.type}" for each in one.columns) for one in (proven, actual)]
        return ProofFinding("columns", f"columns differ: {texts[1]}; in the proof: {texts[0]}")
    if proven.rows != actual.rows:
        return ProofFinding("rows", f"number of rows differs: {actual.rows}; in the proof: {proven.rows}")
    if proven.order != actual.order:
        message = f"row order differs: {actual.order}; in the proof: {proven.order}"
        return ProofFinding("order", message)
    message = f"rows differ: hash {actual.hash}; in the proof: {proven.hash}"
    return ProofFinding("hash", message)


class _StoredRows(NamedTuple):
    """Location of the stored rows of a result, see :class:`odf_engine.coordinator.results.QueryResult`."""

    path: str
    output: str | None
    rows: int
    truncated: bool


def query(request: Query, context: JobContext, reporter: Reporter) -> QueryResult:
    """Run a query.

    Raises:
        UsageError: the request is invalid, such as an empty query or a malformed time.
        InvalidQuery: the query is invalid; the error has the position in it.
        NotFound: a dataset, a block or a key does not exist.
        OdfError: an expression fails on a value, a slice is missing, or Spark fails.
        Cancelled: the job was cancelled; its Spark jobs are stopped.
    """
    from odf_engine.query.execution import Tables, parse_time_travel, release_arrow_memory

    began = time.monotonic()
    _check(request)
    workspace = context.workspace
    defaults = parse_time_travel(workspace, request.as_at, request.as_of, request.pins)
    key = None if request.sign is None else _key(workspace, request.sign)
    reporter.log(request.sql.strip())
    tables = Tables(workspace, reporter, defaults)
    session = None if request.engine == "datafusion" else context.host.spark(reporter).session()
    with release_arrow_memory(), _execute(request, workspace, tables, session, reporter) as answer:
        tables.check_all_used()
        stored = _store_rows(request, workspace, answer, reporter)
        proof = None
        if request.proof and session is not None:
            proof = _create_proof(request, defaults, key, answer, tables, session, reporter)
    if stored.truncated:
        reporter.log(f"result truncated: only the first rows are stored ({stored.rows})")
    seconds = round(time.monotonic() - began, 3)
    reporter.log(f"query result: {count_of(stored.rows, 'row')} in {seconds:.1f} s")
    return QueryResult(
        sql=request.sql,
        pins=msgspec.convert(tables.pins, list[PinnedBlock], from_attributes=True),
        columns=msgspec.convert(answer.columns, list[ResultColumn], from_attributes=True),
        proof=proof,
        seconds=seconds,
        **stored._asdict(),
    )


@contextmanager
def _execute(
    request: Query, workspace: Workspace, tables: Tables, session: SparkSession | None, reporter: Reporter
) -> Iterator[QueryAnswer]:
    """Run the query with Spark, or with DataFusion without a session."""
    from odf_engine.query.execution import execute_query, execute_with_datafusion

    if session is not None:
        with execute_query(
            request.sql, tables.names, tables.files, session, reporter, proven=request.proof
        ) as answer:
            yield answer
        return
    memory = parse_size(workspace.config.datafusion.memory)
    with (
        job_scratch_folder(workspace.odf / "cache", "query") as folder,
        execute_with_datafusion(request.sql, tables.names, tables.files, folder, memory, reporter) as answer,
    ):
        yield answer


def _check(request: Query) -> None:
    if not request.sql.strip():
        raise UsageError("the query is empty", hint="write a query, such as SELECT 1")
    if request.limit is not None and request.limit < 1:
        raise UsageError("invalid limit: must be at least 1")
    if request.proof and request.engine != "spark":
        raise UsageError(f"the engine {request.engine} cannot create a proof", hint="use the engine spark")
    if request.sign is not None and not request.proof:
        raise UsageError("only a query proof can be signed")


def _key(workspace: Workspace, name: str) -> str:
    """Return the private key of a dataset as PEM."""
    from odf_engine.identity.did import DatasetId

    try:
        dataset = DatasetId.parse(name)
    except InvalidIdentity:
        dataset = workspace.resolve(name).id
    return workspace.keys.private_key_pem(dataset)


# --- Rows --------------------------------------------------------------------------------------------


def _store_rows(request: Query, workspace: Workspace, answer: QueryAnswer, reporter: Reporter) -> _StoredRows:
    """Write the rows to the requested file, or to the cache."""
    from odf_engine.views import query_results

    batches = _cancellable(answer.batches, reporter)
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
    from odf_engine.storage.atomic_files import atomic_file
    from odf_engine.views import export, query_results

    limit = request.limit or query_results.NO_LIMIT
    export.check_path(path, replace=True)
    if request.format == "parquet":
        with atomic_file(path, 0o666) as temporary:
            return query_results.write(temporary, schema, batches, limit)
    limited = query_results.LimitedBatches(batches, limit)
    return export.write_stream(path, request.format, schema, limited, reporter), limited.more


def _cancellable(batches: Iterator[pa.RecordBatch], reporter: Reporter) -> Iterator[pa.RecordBatch]:
    """Yield the batches; raises ``Cancelled`` between them once the job is cancelled."""
    for batch in batches:
        reporter.raise_if_cancelled()
        yield batch


# --- Query proofs ------------------------------------------------------------------------------------


def _create_proof(
    request: Query,
    defaults: TimeTravelDefaults,
    key: str | None,
    answer: QueryAnswer,
    tables: Tables,
    session: SparkSession,
    reporter: Reporter,
) -> dict[str, Any]:
    from odf_engine.query.query_proof import QueryProof

    proof = QueryProof(
        query=request.sql,
        tables=tables.read,
        result=answer.summarize(reporter),
        engine=this_engine(session.version),
        as_at=None if defaults.blocks else defaults.as_at,  # not valid for all tables: each names its block
        as_of=None if defaults.as_of is None else str(defaults.as_of),
    )
    return (proof if key is None else proof.with_signature(key)).document


def this_engine(spark: str) -> Engine:
    """Describe this program as the engine of a proof, with a version of Spark."""
    from odf_engine.query.query_proof import Engine

    return Engine("odf", engine_version(), spark)
