"""The job that looks whether what proves the answer of a query is right."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from odf_engine.coordinator.protocol import CheckProof
from odf_engine.errors import BadData, InvalidIdentity, NotFound
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.coordinator.operations import Context
    from odf_engine.metadata.sql_calls import TableCall
    from odf_engine.spark.session import SparkRuntime
    from odf_engine.transform.sandbox import Sandbox
    from odf_engine.workspace.answers import AnswerProof, Outcome, Table
    from odf_engine.workspace.workspace import Workspace

MISSING: Final = ("dataset-missing", "block-missing")
"""Kinds of findings that leave open whether the answer is right."""


def check(request: CheckProof, context: Context, reporter: Reporter) -> dict[str, Any]:
    """Checks a proof; the result is described with the request.

    Raises:
        BadData: it is no proof.
        InvalidQuery: its query is none.
        NotTrusted: this machine has no sandbox for its query.
        OdfError: the query cannot be asked here.
        Cancelled: in the middle; Spark's jobs are stopped.
    """
    from odf_engine.metadata.sql_quoted import Quoted
    from odf_engine.workspace.answers import AnswerProof

    began = time.monotonic()
    workspace = context.workspace
    proof = AnswerProof.from_bytes(request.proof.encode())
    reporter.line(proof.query.strip())
    calls = Quoted(proof.query, [each.table for each in proof.tables]).calls
    findings = [*_of_signature(proof), *_of_what_was_read(proof, calls)]
    for table in proof.tables:
        findings += _of_table(workspace, table)
    missing = any(each["kind"] in MISSING for each in findings)
    if not findings:
        findings += _asked_again(proof, workspace, context, reporter)
    for each in findings:
        reporter.line(each["message"])
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


def _of_signature(proof: AnswerProof) -> list[dict[str, str]]:
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
    if entry.dataset.holds(block):
        number = entry.dataset.block(block).block.sequence_number
        if number == table.sequence_number:
            return []
        message = f"block {block.short} of {entry.alias} has number {number}, not {table.sequence_number}"
        return [_found("block", message)]
    state = entry.dataset.state()
    place = f"block {table.sequence_number} ({block.short}) of {entry.alias}"
    if state.sequence_number < table.sequence_number:
        message = f"{place} is not here: the copy here ends at block {state.sequence_number}"
        return [_found("block-missing", message, f"bring it up to date: odf pull {entry.alias}")]
    message = f"{place} is not part of its history here, which has another block there"
    return [_found("block-missing", message, f"what is published now: odf pull {entry.alias}")]


def _asked_again(
    proof: AnswerProof, workspace: Workspace, context: Context, reporter: Reporter
) -> list[dict[str, str]]:
    from odf_engine.coordinator.querying import this_engine
    from odf_engine.coordinator.tables import Seen, Tables

    runtime = context.host.spark(reporter)

    from odf_engine.transform.answering import memory_given_back  # after Spark has started, see warm_up

    seen = Seen(tables={each.table.casefold(): each for each in proof.tables})
    tables = Tables(workspace, reporter, seen)
    files = [tables.files(each.table) for each in proof.tables]
    with memory_given_back(), closing(_sandbox(workspace, runtime)) as engine:
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
    from odf_engine.transform.sandbox import Sandbox
    from odf_engine.transform.spark_engine import SparkEngine

    odf, spark = workspace.odf, SparkEngine(runtime)
    return Sandbox(
        workspace.config, odf / "cache", odf / "sandbox.log", "the proof", without=spark, dataset=False
    )


def _of_what_was_read(proof: AnswerProof, calls: Mapping[str, TableCall]) -> list[dict[str, str]]:
    """Whether tables were seen as the query says."""
    from odf_engine.metadata.sql_calls import moment
    from odf_engine.metadata.timestamp import Timestamp

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
        time = None if as_at is None else moment(as_at)
        if time is not None and Timestamp.parse(table.system_time) > time:
            message = f"{table.table} was read at a block of {table.system_time}, which is later"
            findings.append(_found("table", message))
    return findings


def _differences(said: Outcome, made: Outcome) -> list[dict[str, str]]:
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
