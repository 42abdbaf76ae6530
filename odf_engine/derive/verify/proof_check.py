"""Checks query proofs: the blocks that a query read, its signature, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from odf_engine.base.processes import program_version
from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.finding_kinds import ProofFinding
from odf_engine.engines.sandbox import Sandbox
from odf_engine.errors import BadData, InvalidIdentity, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.execution import Tables, TimeTravelDefaults
from odf_engine.rows.query_proof import ProofEngine, ProofTable, QueryProof, ResultSummary
from odf_engine.sql.table_functions import RewrittenQuery, TableFunctionCall, parse_sql_timestamp
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime

MISSING: Final = ("dataset-missing", "block-missing")
"""Kinds of findings for which the proof cannot be checked."""


def check_query_proof(
    proof: QueryProof,
    workspace: Workspace,
    start_spark: Callable[[Reporter], SparkRuntime],
    reporter: Reporter,
) -> list[ProofFinding]:
    """Check a query proof: run its query again over the same blocks, in the sandbox.

    Args:
        proof: the proof.
        workspace: has the datasets.
        start_spark: returns Spark, which is started if it does not run.
        reporter: receives phases; checked for cancellation.

    Returns:
        The reasons why the proof is invalid or cannot be checked (:data:`MISSING`).

    Raises:
        InvalidQuery: its query is invalid.
        NotTrusted: there is no sandbox for its query.
        OdfError: the query fails.
    """
    calls = RewrittenQuery(proof.query, [table.table for table in proof.tables]).calls
    findings = [*_check_signature(proof), *_check_versions(proof, calls)]
    for table in proof.tables:
        findings += check_table(workspace, table)
    return findings or _run_again(proof, workspace, start_spark(reporter), reporter)


def _check_signature(proof: QueryProof) -> list[ProofFinding]:
    try:
        proof.check_signature()
    except BadData as error:
        return [ProofFinding("signature", error.message)]
    return []


def check_table(workspace: Workspace, table: ProofTable) -> list[ProofFinding]:
    """Check that the block that a table was read at is in the workspace."""

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
    proof: QueryProof, workspace: Workspace, runtime: SparkRuntime, reporter: Reporter
) -> list[ProofFinding]:
    """Run the query of a proof over the same blocks, and compare the rows."""
    defaults = TimeTravelDefaults(tables={table.table.casefold(): table for table in proof.tables})
    tables = Tables(workspace, reporter, defaults)
    files = [tables.files(table.table) for table in proof.tables]
    with closing(_sandbox(workspace, runtime)) as engine:
        computed = engine.compute_outcome(proof.query, files, reporter)
    read = {name.casefold() for name in computed.read}
    findings = [
        ProofFinding("table", f"the query does not read {table.table}")
        for table in proof.tables
        if table.table.casefold() not in read
    ]
    difference = _compare_results(proof.result, computed.outcome)
    if difference is None:
        return findings
    ours = this_engine(computed.spark)
    names = " ".join(sorted({table.name for table in proof.tables}))
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
    # After Spark has started: two threads must not import PySpark at the same time.
    from odf_engine.engines.spark_engine import SparkEngine

    odf, spark = workspace.odf, SparkEngine(runtime)
    return Sandbox(
        workspace.config, odf / "cache", odf / "sandbox.log", "the proof", fallback=spark, dataset=False
    )


def _check_versions(proof: QueryProof, calls: Mapping[str, TableFunctionCall]) -> list[ProofFinding]:
    """Check that tables were read in the versions and states that the query specifies."""
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
        texts = [
            ", ".join(f"{column.name} {column.type}" for column in one.columns) for one in (proven, actual)
        ]
        return ProofFinding("columns", f"columns differ: {texts[1]}; in the proof: {texts[0]}")
    if proven.rows != actual.rows:
        return ProofFinding("rows", f"number of rows differs: {actual.rows}; in the proof: {proven.rows}")
    if proven.order != actual.order:
        message = f"row order differs: {actual.order}; in the proof: {proven.order}"
        return ProofFinding("order", message)
    message = f"rows differ: hash {actual.hash}; in the proof: {proven.hash}"
    return ProofFinding("hash", message)


def this_engine(spark: str) -> ProofEngine:
    """Describe this program as the engine of a proof, with a version of Spark."""
    return ProofEngine("odf", program_version(), spark)
