"""Jobs that ask a query over datasets by their names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odf_engine.coordinator.protocol import Query
from odf_engine.coordinator.rendezvous import engine_version
from odf_engine.errors import UsageError
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.coordinator.operations import Context
    from odf_engine.coordinator.tables import Seen, Tables
    from odf_engine.spark.frames import SparkSession
    from odf_engine.transform.answering import Answer
    from odf_engine.workspace.answers import Engine
    from odf_engine.workspace.workspace import Workspace


def query(request: Query, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Asks a query; the result is described with the request.

    Raises:
        UsageError: the request makes no sense: an empty query, what should be a time is none.
        InvalidQuery: with the place in the query.
        NotFound: a dataset, a block or a key is not here.
        OdfError: a value that an expression cannot take, a slice that is missing, Spark that fails.
        Cancelled: in the middle; Spark's jobs are stopped.
    """
    from odf_engine.coordinator.tables import Tables, seen
    from odf_engine.transform.answering import answering, memory_given_back

    began = time.monotonic()
    _check(request)
    workspace = context.workspace
    how = seen(workspace, request.as_at, request.as_of, request.pins)
    key = None if request.sign is None else _key(workspace, request.sign)
    reporter.line(request.sql.strip())
    session = context.host.spark(reporter).session()
    tables = Tables(workspace, reporter, how)
    with (
        memory_given_back(),
        answering(request.sql, tables.names, tables.files, session, reporter, proven=request.proof) as answer,
    ):
        tables.check_all_used()
        kept = _keep(request, workspace, answer, reporter)
        proof = _proof(request, how, key, answer, tables, session, reporter) if request.proof else None
    if kept["truncated"]:
        reporter.line(f"there are more: only the first {kept['rows']} rows are kept")
    seconds = round(time.monotonic() - began, 3)
    reporter.line(f"rows of the result: {kept['rows']}, in {seconds:.1f} s")
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


def _keep(request: Query, workspace: Workspace, answer: Answer, reporter: Reporter) -> dict[str, Any]:
    """Puts the rows where they are to be."""
    from odf_engine.workspace import results

    batches = _noticing(answer.batches, reporter)
    if request.output is None:
        limit = request.limit or results.ALL
        with results.writing(workspace.odf) as (part, path):
            rows, more = results.write(part, answer.schema, batches, limit)
        place = str(path.relative_to(workspace.folder))
        return {"path": place, "output": None, "rows": rows, "truncated": more}
    rows, more = _write(request, Path(request.output), answer.schema, batches, reporter)
    return {"path": "", "output": request.output, "rows": rows, "truncated": more}


def _write(
    request: Query, path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], reporter: Reporter
) -> tuple[int, bool]:
    from odf_engine.workspace import exporting, results
    from odf_engine.workspace.kept import begun

    limit = request.limit or results.ALL
    exporting.check_path(path, replace=True)
    if request.format == "parquet":
        with begun(path, 0o666) as temporary:
            return results.write(temporary, schema, batches, limit)
    some = results.Some(batches, limit)
    return exporting.write_stream(path, request.format, schema, some, reporter), some.more


def _noticing(batches: Iterator[pa.RecordBatch], reporter: Reporter) -> Iterator[pa.RecordBatch]:
    """The batches; between them it is looked whether to stop."""
    for batch in batches:
        reporter.check()
        yield batch


# --- What proves them --------------------------------------------------------------------------------


def _proof(
    request: Query,
    how: Seen,
    key: str | None,
    answer: Answer,
    tables: Tables,
    session: SparkSession,
    reporter: Reporter,
) -> dict[str, Any]:
    from odf_engine.workspace.answers import AnswerProof

    proof = AnswerProof(
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
    from odf_engine.workspace.answers import Engine

    return Engine("odf", engine_version(), spark)
