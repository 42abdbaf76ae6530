"""Results of jobs: their types, the JSON in the job log, and what older versions wrote there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from odf_engine.checks.reports import RuleResult
from odf_engine.derive.provenance.model import TracedInput, TraceResult, TraceStep
from odf_engine.derive.verify.finding_kinds import ProofFinding
from odf_engine.derive.verify.model import (
    EngineReport,
    IntegrityFinding,
    OriginInput,
    OriginReport,
    SourceReport,
)
from odf_engine.errors import BadData
from odf_engine.jobs import JOB_KINDS
from odf_engine.jobs.base import JobRequest
from odf_engine.jobs.check import Check, CheckResult
from odf_engine.jobs.compact import Compact, CompactResult
from odf_engine.jobs.definition import (
    AppendedEvent,
    InferSource,
    InferSourceResult,
    Update,
    UpdateResult,
    Validate,
    ValidateResult,
)
from odf_engine.jobs.diff import Diff
from odf_engine.jobs.export import Export, ExportResult
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.preview import Preview, PreviewResult
from odf_engine.jobs.pull import Pull, PullResult
from odf_engine.jobs.push import Push, PushResult
from odf_engine.jobs.query import CheckProof, CheckProofResult, Query, QueryResult, ResultColumn
from odf_engine.jobs.remotes import (
    Compare,
    CompareResult,
    FoundDataset,
    RemoteProblem,
    RemoteRelation,
    RepositoryProblem,
    Search,
    SearchResult,
)
from odf_engine.jobs.trace import Trace
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.jobs.views import (
    BuildProjection,
    ComputeStatistics,
    ProjectionResult,
    StatisticsResult,
)
from odf_engine.rows import PinnedVersion
from odf_engine.rows.diff import ColumnChange, DiffColumn, Difference
from odf_engine.worker.job_log import JobLog, JobLogReader
from odf_engine.worker.protocol import Job, JobState, Request

AT = "2024-03-11T09:00:02Z"
ORIGINS = [
    OriginReport(
        "d", "days", "Derivative", "f16", 36, "spark", "4.1", ["SELECT 1"], 2, AT, AT,
        [OriginInput("a", "air", "a", "f16", 6)],
    ),
    OriginReport(
        "a", "air", "Root", records=7, sources=[SourceReport("Url", "air.csv", "f16", AT, 1, 7, AT, AT)]
    ),
]  # fmt: skip
VERSIONS = [PinnedVersion("did:odf:x", "ports", "f16", number, AT, 6, True) for number in (7, 8)]
RESULTS: list[tuple[Request, msgspec.Struct, str]] = [
    (
        Pull("x"),
        PullResult("ports", "updated", None, "f16", 2, 7),
        "name status old_head new_head blocks records error",
    ),
    (
        Pull("x", url="file:///y"),
        PullResult("ports", "updated", "f15", "f16", 2, 7, None, "file:///y", "lab/ports", 900, 1),
        "name status old_head new_head blocks records error url label bytes ahead",
    ),
    (
        Preview("x"),
        PreviewResult("ports", "ports.csv", 3, 1, 0, 1, ".odf/cache/queries/a.parquet"),
        "name origin rows added retracted corrected path",
    ),
    (
        Ingest("x", []),
        PullResult("ports", "up-to-date", "f16", "f16"),
        "name status old_head new_head blocks records error",
    ),
    (
        Push("x", "file:///y"),
        PushResult("ports", "file:///y", "lab/ports", "updated", None, "f16", 2, 3, 900),
        "name url label status old_head new_head blocks objects bytes",
    ),
    (
        Compare("x"),
        CompareResult(
            "ports",
            [RemoteRelation("file:///y", "ahead", 2, 0, "f14", "f16", "f14", AT, "lab/ports")],
            [RemoteProblem("s3://z/", "z", "no answer")],
        ),
        "name seen problems",
    ),
    (
        Search("port"),
        SearchResult(
            [FoundDataset("lab", "ports", "file:///y", "did:odf:x", "Root", "f16", 2, 7, 9, "a", ("b",))],
            [RepositoryProblem("lake", "no answer")],
        ),
        "datasets problems",
    ),
    (
        Verify("x"),
        VerifyResult(
            "days", "f16", False, 5, 1, 2, [IntegrityFinding("head-hash", "f16", "wrong")],
            [IntegrityFinding("input-missing", "f15", "no dew")],
            [EngineReport("spark", "4.0", "4.1", 2, 36)],
            1, 1, 4, "anna", 2, False, ORIGINS,
        ),
        "name head valid blocks slices transforms findings unchecked engines rows_known proofs proven actor"
        " newer intact origins",
    ),
    (
        Validate("kind: x"),
        ValidateResult("days", True, "a remark", ["n BIGINT"], ["n"], "kept", 7, "a warning"),
        "name checked message schema new state reads warning changes",
    ),
    (
        Update("x", "kind: x"),
        UpdateResult("days", "updated", "f15", "f16", 2, 7, "kept", [AppendedEvent("SetInfo", ["+ a: b"])]),
        "name status old_head new_head blocks records state changes message definition",
    ),
    (
        InferSource("x"),
        InferSourceResult("days", ["separator: ',' is now ';'"], ["n"], "kind: x"),
        "name differences new definition",
    ),
    (
        Query("SELECT 1"),
        QueryResult(
            "SELECT 1", [PinnedVersion("did:odf:x", "ports", "f16", 7, AT, 6, True)],
            [ResultColumn("n", "BIGINT")], {"kind": "QueryProof", "content": {"rows": 1}}, 0.25, "", "/x.csv",
            1, True,
        ),
        "sql pins columns proof seconds path output rows truncated",
    ),
    (
        CheckProof("{}"),
        CheckProofResult(False, True, [ProofFinding("hash", "wrong", "a")], "SELECT 1", 1, "f16", "x", 0.5),
        "valid checked findings query rows hash signed_by seconds",
    ),
    (
        Trace("x", [(1, 2)]),
        TraceResult("x", "days", "derivative", [(1, 2)], 2, how=["filter"]),
        "dataset name kind runs rows how",
    ),
    (
        Trace("x", [(1, 2)], check=True),
        TraceResult(
            "x", "days", "derivative", [(1, 2)], 2, exact=False, reason="no key",
            feeds=[
                TracedInput("a", "y", "air", [(0, 4)], 5, step=TraceStep("y", "air", "root", [(0, 4)], 5))
            ],
            checked=[],
        ),
        "dataset name kind runs rows exact reason feeds checked",
    ),
    (
        Diff("x"),
        Difference(
            old=VERSIONS[0], new=VERSIONS[1], key=["n"], added=1, removed=2, changed=3, unchanged=4, rows=6,
            file="/x.parquet", columns=[DiffColumn("n", True, "int64", "int64", "n", "n")],
            by_column={"m": 3}, schema=[ColumnChange("m", None, "INT")], settings=[], records=(7, 8),
            watermarks=(None, AT), blocks=1, offsets=("old_offset", "new_offset"),
        ),
        "old new key added removed changed unchanged rows file columns by_column schema settings records"
        " watermarks blocks offsets",
    ),
    (ComputeStatistics("x"), StatisticsResult("ports", 7), "name rows"),
    (
        BuildProjection("x"),
        ProjectionResult("ports", ["n"], 3, 7, "/x", PinnedVersion("x", "ports", "f16", 7, AT, None, True)),
        "name key rows of file pin",
    ),
    (
        Check("x"),
        CheckResult("ports", [RuleResult("good", "1f", "NotNull(n)", "NotNull", "warn", 7)]),
        "name results",
    ),
    (
        Compact("x"),
        CompactResult("ports", "compacted", "f1", "f2", 9, 5, 4, 1, 900, 500, "compacted-1"),
        "name status old_head new_head old_blocks new_blocks old_slices new_slices merged_bytes"
        " written_bytes reference",
    ),
    (Export("x", "/x.csv"), ExportResult("ports", 7, 900, "/x.csv"), "name rows size path"),
]  # fmt: skip


def write_job(journal: JobLog, request: Request, result: object) -> str:
    """Enter a finished job; the result is a struct or text. Return the job's id."""
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    job = journal.create(request, "ports")
    journal.transition(job.id, JobState.running)
    journal.transition(job.id, JobState.done, result=text)
    return job.id


@pytest.mark.parametrize("request_kind", JOB_KINDS.values(), ids=lambda kind: kind.__name__)
def test_every_request_declares_the_type_of_its_result(request_kind: type[JobRequest[Any]]) -> None:
    assert issubclass(request_kind.result_type(), msgspec.Struct)
    assert any(isinstance(request, request_kind) for request, _, _ in RESULTS)


@pytest.mark.parametrize(("request_", "result"), [(request, result) for request, result, _ in RESULTS])
def test_every_kind_of_job_summarizes_its_result(request_: JobRequest[Any], result: object) -> None:
    summary = request_.summarize(result)
    assert summary.text and summary.style in ("good", "warn", "bad", "muted")
    assert request_.command(lambda _: "name") is None or request_.command(lambda _: "name")


def test_a_result_is_read_as_it_was_stored(tmp_path: Path) -> None:
    journal = JobLog(tmp_path / "jobs.sqlite")
    ids = [write_job(journal, request, result) for request, result, _ in RESULTS]
    for job_id, (request, result, keys) in zip(ids, RESULTS, strict=True):
        job = JobLogReader(tmp_path / "jobs.sqlite").job(job_id)
        assert type(result) is type(request).result_type()
        assert job.result_of(type(request)) == result
        assert list(json.loads(job.result or "")) == keys.split()


def test_nested_values_keep_their_keys() -> None:
    def keys(value: object) -> list[str]:
        return list(msgspec.to_builtins(value))

    assert keys(AppendedEvent()) == ["title", "lines"]
    assert keys(IntegrityFinding("", "", "")) == ["kind", "block", "message"]
    assert keys(ProofFinding()) == ["kind", "message", "hint"]
    assert keys(EngineReport("spark", None, None, 1, 1)) == [
        "engine", "made_by", "version", "transactions", "records",
    ]  # fmt: skip
    relation = "url relation ours theirs common our_head their_head at label"
    assert keys(RemoteRelation()) == relation.split()
    assert keys(RemoteProblem()) == ["url", "label", "message"]
    found = "repository name url id kind head blocks records size description keywords"
    assert keys(FoundDataset()) == found.split()
    origin = "id name kind block records engine version query transactions first last inputs sources problem"
    assert keys(ORIGINS[0]) == origin.split()
    assert keys(ORIGINS[0].inputs[0]) == ["id", "name", "alias", "block", "offset"]
    source = "kind place block since loads records first last"
    assert keys(ORIGINS[1].sources[0]) == source.split()


def test_results_of_older_versions_are_read(tmp_path: Path) -> None:
    journal = JobLog(tmp_path / "jobs.sqlite")

    def stored(request: Request, result: dict[str, object]) -> Job:
        return journal.job(write_job(journal, request, json.dumps(result)))

    pulled = stored(Pull("x"), {"name": "ports", "status": "updated", "records": 7, "was": 1}).result_of(Pull)
    assert pulled == PullResult("ports", "updated", records=7)
    assert pulled is not None and not pulled.url and not pulled.bytes
    finding = {"kind": "slice-size", "block": "f16", "message": "too short"}
    report = stored(Verify("x"), {"valid": False, "findings": [finding]}).result_of(Verify)
    assert report == VerifyResult(valid=False, findings=[IntegrityFinding("slice-size", "f16", "too short")])
    assert report is not None and report.blocks is None and report.origins == []
    read = {"id": "a", "name": None, "alias": "", "block": "f16", "offset": 6}
    origin = {"id": "d", "name": "days", "kind": "Derivative", "records": 3, "inputs": [read]}
    report = stored(Verify("x"), {"valid": True, "head": "f16", "origins": [origin]}).result_of(Verify)
    assert report is not None and report.head == "f16"
    assert report.origins[0].inputs == [OriginInput("a", None, "", "f16", 6)]
    seen = {"url": "file:///y", "relation": "behind", "theirs": 3}
    compared = stored(Compare("x"), {"seen": [seen]}).result_of(Compare)
    assert compared == CompareResult(seen=[RemoteRelation("file:///y", "behind", theirs=3)])
    answered = stored(Query("SELECT 1"), {"sql": "SELECT 1", "path": ".odf/x", "rows": 2}).result_of(Query)
    assert answered == QueryResult("SELECT 1", path=".odf/x", rows=2)
    projected = stored(BuildProjection("x"), {"key": ["n"], "file": "/x"}).result_of(BuildProjection)
    assert projected == ProjectionResult(key=["n"], file="/x")
    traced = stored(
        Trace("x", []), {"dataset": "x", "name": "ports", "kind": "root", "runs": [[1, 2]], "rows": 2}
    )
    assert traced.result_of(Trace) == TraceResult("x", "ports", "root", [(1, 2)], 2)


@pytest.mark.parametrize("text", ["no JSON", "[]", "null", '{"rows": "many"}', "[" * 100_000])
def test_a_result_that_cannot_be_decoded_is_an_error(text: str) -> None:
    job = Job("1", "export", "ports", "x", JobState.done, AT, result=text)
    with pytest.raises(BadData, match="the result of the export job cannot be read"):
        job.result_of(Export)


def test_result_of_a_job_without_result_is_none() -> None:
    assert Job("1", "export", "ports", "x", JobState.failed, AT).result_of(Export) is None
