"""Ad-hoc query jobs and query proof checks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odf_engine.coordinator.endpoint import engine_version
from odf_engine.coordinator.protocol import CheckProof, Query
from odf_engine.errors import BadData, InvalidIdentity, NotFound, UsageError
from odf_engine.progress import Reporter

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
"""Kinds of findings that leave open whether the answer is right."""


def check(request: CheckProof, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Checks a proof; the result is described with the request.

    Raises:
        BadData: it is no proof.
        InvalidQuery: its query is none.
        NotTrusted: this machine has no sandbox for its query.
        OdfError: the query cannot be asked here.
        Cancelled: in the middle; Spark's jobs are stopped.
    """
    from odf_engine.query.query_proof import QueryProof
    from odf_engine.sql.table_functions import RewrittenQuery

    began = time.monotonic()
    workspace = context.workspace
    proof = QueryProof.from_bytes(request.proof.encode())
    reporter.log(proof.query.strip())
    calls = RewrittenQuery(proof.query, [each.table for each in proof.tables]).calls
    findings = [*_of_signature(proof), *_of_what_was_read(proof, calls)]
    for table in proof.tables:
        findings += _of_table(workspace, table)
    missing = any(each["kind"] in MISSING for each in findings)
    if not findings:
        findings += _asked_again(proof, workspace, context, reporter)
    for each in findings:
        reporter.log(each["message"])
    return {
        "valid": not findings,
        "checked": not missing,
        "findings": findings,
        "query": proof.query,
        "rows": proof.result.rows,
        "hash": proof.result.hash,
        "signed_by": None if proof.signature is None else proof.signature.key,
        "seconds": round(time.monotonic() - began, 3),
    }


def _found(kind: str, message: str, hint: str = "") -> dict[str, str]:
    return {"kind": kind, "message": message, "hint": hint}


def _of_signature(proof: QueryProof) -> list[dict[str, str]]:
    try:
        proof.check_signature()
    except BadData as error:
        return [_found("signature", error.message)]
    return []


def _of_table(workspace: Workspace, table: Table) -> list[dict[str, str]]:
    """Whether what was read is here."""
    from odf_engine.identity.multiformats import Multihash

    block = Multihash.parse(table.block)
    try:
        entry = workspace.resolve(table.id)
    except (NotFound, InvalidIdentity):
        message = f"{table.name} is not here ({table.id}, read at block {table.sequence_number})"
        hint = f"get it: odf pull --from URL --as {table.name}; odf search finds what repositories have"
        return [_found("dataset-missing", message, hint)]
    if entry.dataset.contains_block(block):
        number = entry.dataset.block(block).block.sequence_number
        if number == table.sequence_number:
            return []
        message = (
            f"block {block.abbreviated} of {entry.alias} has number {number}, not {table.sequence_number}"
        )
        return [_found("block", message)]
    state = entry.dataset.state()
    place = f"block {table.sequence_number} ({block.abbreviated}) of {entry.alias}"
    if state.sequence_number < table.sequence_number:
        message = f"{place} is not here: the copy here ends at block {state.sequence_number}"
        return [_found("block-missing", message, f"bring it up to date: odf pull {entry.alias}")]
    message = f"{place} is not part of its history here, which has another block there"
    return [_found("block-missing", message, f"what is published now: odf pull {entry.alias}")]


def _asked_again(
    proof: QueryProof, workspace: Workspace, context: JobContext, reporter: Reporter
) -> list[dict[str, str]]:
    from odf_engine.query.execution import Tables, TimeTravelDefaults

    runtime = context.host.spark(reporter)

    from odf_engine.query.execution import release_arrow_memory  # after Spark has started, see warm_up

    seen = TimeTravelDefaults(tables={each.table.casefold(): each for each in proof.tables})
    tables = Tables(workspace, reporter, seen)
    files = [tables.files(each.table) for each in proof.tables]
    with release_arrow_memory(), closing(_sandbox(workspace, runtime)) as engine:
        made = engine.compute_outcome(proof.query, files, reporter)
    findings: list[dict[str, str]] = []
    read = {each.casefold() for each in made.read}
    for each in proof.tables:
        if each.table.casefold() not in read:
            findings.append(_found("table", f"the query does not read {each.table}"))
    differences = _differences(proof.result, made.outcome)
    ours = this_engine(made.spark)
    if differences and ours != proof.engine:
        theirs = f"{proof.engine.name} {proof.engine.version} with Spark {proof.engine.spark}"
        hint = f"it was computed by {theirs}, here by {ours.version} with Spark {ours.spark}"
        differences[-1]["hint"] = hint
    elif differences:
        names = " ".join(sorted({each.name for each in proof.tables}))
        differences[-1]["hint"] = f"whether the data here is whole: odf verify {names}" if names else ""
    return findings + differences


def _sandbox(workspace: Workspace, runtime: SparkRuntime) -> Sandbox:
    """The engine for the query of a proof.

    A valid signature does not make its author trusted. A signature of the user's own key does not mean that
    the user has read the query, since ``odf keys sign`` signs any file.
    """
    from odf_engine.transform.engines.sandbox import Sandbox
    from odf_engine.transform.engines.spark_engine import SparkEngine

    odf, spark = workspace.odf, SparkEngine(runtime)
    return Sandbox(
        workspace.config, odf / "cache", odf / "sandbox.log", "the proof", fallback=spark, dataset=False
    )


def _of_what_was_read(proof: QueryProof, calls: Mapping[str, TableFunctionCall]) -> list[dict[str, str]]:
    """Whether tables were seen as the query says."""
    from odf_engine.metadata.timestamp import Timestamp
    from odf_engine.sql.table_functions import parse_sql_timestamp

    findings: list[dict[str, str]] = []
    for table in proof.tables:
        call = calls.get(table.table)
        wanted = "changelog" if proof.as_of is None else "as of"
        state = (call.state if call is not None else None) or wanted
        as_of = (call.as_of if call is not None else None) or (proof.as_of if state == "as of" else None)
        if (table.state, table.as_of) != (state, as_of):
            said = f"as of {table.as_of}" if table.as_of else table.state
            findings.append(_found("table", f"{table.table} was read {said}, and the query says {state}"))
        as_at = (call.as_at if call is not None else None) or proof.as_at
        time = None if as_at is None else parse_sql_timestamp(as_at)
        if time is not None and Timestamp.parse(table.system_time) > time:
            message = f"{table.table} was read at a block of {table.system_time}, which is later"
            findings.append(_found("table", message))
    return findings


def _differences(said: ResultSummary, made: ResultSummary) -> list[dict[str, str]]:
    if said == made:
        return []
    if said.columns != made.columns:
        texts = [", ".join(f"{each.name} {each.type}" for each in one.columns) for one in (said, made)]
        return [_found("columns", f"the columns are {texts[1]}; the proof says {texts[0]}")]
    if said.rows != made.rows:
        return [_found("rows", f"there are {made.rows} rows; the proof says {said.rows}")]
    if said.order != made.order:
        return [_found("order", f"the rows are in the order of {made.order}; the proof says {said.order}")]
    return [_found("hash", f"the rows are others: their hash is {made.hash}, the proof says {said.hash}")]


def query(request: Query, context: JobContext, reporter: Reporter) -> dict[str, Any]:
    """Asks a query; the result is described with the request.

    Raises:
        UsageError: the request makes no sense: an empty query, what should be a time is none.
        InvalidQuery: with the place in the query.
        NotFound: a dataset, a block or a key is not here.
        OdfError: a value that an expression cannot take, a slice that is missing, Spark that fails.
        Cancelled: in the middle; Spark's jobs are stopped.
    """
    from odf_engine.query.execution import Tables, execute_query, parse_time_travel, release_arrow_memory

    began = time.monotonic()
    _check(request)
    workspace = context.workspace
    how = parse_time_travel(workspace, request.as_at, request.as_of, request.pins)
    key = None if request.sign is None else _key(workspace, request.sign)
    reporter.log(request.sql.strip())
    session = context.host.spark(reporter).session()
    tables = Tables(workspace, reporter, how)
    with (
        release_arrow_memory(),
        execute_query(
            request.sql, tables.names, tables.files, session, reporter, proven=request.proof
        ) as answer,
    ):
        tables.check_all_used()
        kept = _keep(request, workspace, answer, reporter)
        proof = _proof(request, how, key, answer, tables, session, reporter) if request.proof else None
    if kept["truncated"]:
        reporter.log(f"there are more: only the first {kept['rows']} rows are kept")
    seconds = round(time.monotonic() - began, 3)
    reporter.log(f"rows of the result: {kept['rows']}, in {seconds:.1f} s")
    from msgspec import to_builtins

    return {
        "sql": request.sql,
        "pins": to_builtins(tables.pins),
        "columns": to_builtins(answer.columns),
        "proof": proof,
        "seconds": seconds,
        **kept,
    }


def _check(request: Query) -> None:
    if not request.sql.strip():
        raise UsageError("the query is empty", hint="try: SELECT 1")
    if request.limit is not None and request.limit < 1:
        raise UsageError("at least one row has to be kept")
    if request.sign is not None and not request.proof:
        raise UsageError("only a proof can be signed")


def _key(workspace: Workspace, name: str) -> str:
    """The private key of a dataset, as PEM."""
    from odf_engine.errors import InvalidIdentity
    from odf_engine.identity.did import DatasetId

    try:
        dataset = DatasetId.parse(name)
    except InvalidIdentity:
        dataset = workspace.resolve(name).id
    return workspace.keys.private_key_pem(dataset)


# --- Where rows go -----------------------------------------------------------------------------------


def _keep(request: Query, workspace: Workspace, answer: QueryAnswer, reporter: Reporter) -> dict[str, Any]:
    """Puts the rows where they are to be."""
    from odf_engine.views import query_results

    batches = _noticing(answer.batches, reporter)
    if request.output is None:
        limit = request.limit or query_results.NO_LIMIT
        with query_results.new_result(workspace.odf) as (part, path):
            rows, more = query_results.write(part, answer.schema, batches, limit)
        place = str(path.relative_to(workspace.folder))
        return {"path": place, "output": None, "rows": rows, "truncated": more}
    rows, more = _write(request, Path(request.output), answer.schema, batches, reporter)
    return {"path": "", "output": request.output, "rows": rows, "truncated": more}


def _write(
    request: Query, path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], reporter: Reporter
) -> tuple[int, bool]:
    from odf_engine.storage.atomic_files import atomic_file
    from odf_engine.views import export, query_results

    limit = request.limit or query_results.NO_LIMIT
    export.check_path(path, replace=True)
    if request.format == "parquet":
        with atomic_file(path, 0o666) as temporary:
            return query_results.write(temporary, schema, batches, limit)
    some = query_results.LimitedBatches(batches, limit)
    return export.write_stream(path, request.format, schema, some, reporter), some.more


def _noticing(batches: Iterator[pa.RecordBatch], reporter: Reporter) -> Iterator[pa.RecordBatch]:
    """The batches; between them it is looked whether to stop."""
    for batch in batches:
        reporter.raise_if_cancelled()
        yield batch


# --- What proves them --------------------------------------------------------------------------------


def _proof(
    request: Query,
    how: TimeTravelDefaults,
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
        result=answer.outcome(reporter),
        engine=this_engine(session.version),
        as_at=None if how.blocks else how.as_at,  # the tables say it: some are seen at other blocks
        as_of=None if how.as_of is None else str(how.as_of),
    )
    return (proof if key is None else proof.signed_with(key)).document


def this_engine(spark: str) -> Engine:
    """The engine of this program, with a version of Spark."""
    from odf_engine.query.query_proof import Engine

    return Engine("odf", engine_version(), spark)
