"""Runs queries and checks query proofs, see :mod:`odf_engine.jobs.query`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from odf_engine.base.arrow import pa
from odf_engine.base.atomic_files import atomic_file
from odf_engine.base.config import parse_size
from odf_engine.base.progress import Reporter, count_of
from odf_engine.errors import InvalidIdentity, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.jobs.base import JobContext, release_arrow_memory
from odf_engine.jobs.query import CheckProof, CheckProofResult, Query, QueryResult, ResultColumn
from odf_engine.jobs.views import PinnedBlock
from odf_engine.query.execution import (
    QueryAnswer,
    Tables,
    TimeTravelDefaults,
    execute_query,
    execute_with_datafusion,
    parse_time_travel,
)
from odf_engine.query.query_proof import QueryProof
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.verify.proof_check import MISSING, check_query_proof, this_engine
from odf_engine.views import export, query_results
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark import SparkSession


def run_sql(request: Query, context: JobContext, reporter: Reporter) -> QueryResult:
    """Run a query, see :class:`odf_engine.jobs.query.Query`."""
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
    """Run the query with Spark, or with DataFusion without a session."""
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
    try:
        dataset = DatasetId.parse(name)
    except InvalidIdentity:
        dataset = workspace.resolve(name).id
    return workspace.keys.private_key_pem(dataset)


def _store_rows(request: Query, workspace: Workspace, answer: QueryAnswer, reporter: Reporter) -> _StoredRows:
    """Write the rows to the requested file, or to the cache."""
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


def _create_proof(
    request: Query,
    defaults: TimeTravelDefaults,
    key: str | None,
    answer: QueryAnswer,
    tables: Tables,
    session: SparkSession,
    reporter: Reporter,
) -> dict[str, Any]:
    proof = QueryProof(
        query=request.sql,
        tables=tables.read,
        result=answer.summarize(reporter),
        engine=this_engine(session.version),
        as_at=None if defaults.blocks else defaults.as_at,  # not valid for all tables: each names its block
        as_of=None if defaults.as_of is None else str(defaults.as_of),
    )
    return (proof if key is None else proof.with_signature(key)).document


def run_check_proof(request: CheckProof, context: JobContext, reporter: Reporter) -> CheckProofResult:
    """Check a query proof, see :class:`odf_engine.jobs.query.CheckProof`."""
    began = time.monotonic()
    proof = QueryProof.from_bytes(request.proof.encode())
    reporter.log(proof.query.strip())
    with release_arrow_memory():
        findings = check_query_proof(proof, context.workspace, context.host.spark, reporter)
    for finding in findings:
        reporter.log(finding.message)
    return CheckProofResult(
        valid=not findings,
        checked=not any(finding.kind in MISSING for finding in findings),
        findings=findings,
        query=proof.query,
        rows=proof.result.rows,
        hash=proof.result.hash,
        signed_by=None if proof.signature is None else proof.signature.key,
        seconds=round(time.monotonic() - began, 3),
    )
