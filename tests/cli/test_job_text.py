"""Lines of the command line for jobs, results, remotes and reports, from results without a worker."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from odf_engine.api.model import Relation, Remote
from odf_engine.api.text import count_of, format_time, format_time_seconds
from odf_engine.derive.verify.model import IntegrityFinding
from odf_engine.jobs.definition import UpdateResult, ValidateResult
from odf_engine.jobs.pull import PullResult
from odf_engine.jobs.push import PushResult
from odf_engine.jobs.query import CheckProofResult
from odf_engine.jobs.verify import VerifyResult
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.worker.job_log import INTERRUPTED
from odf_engine.worker.protocol import Failure, Job, JobState, LogLine, Progress
from odf_engine.workspace.fsck import FsckFinding, FsckReport
from odf_tui.cli import jobs, push
from odf_tui.cli.shared import definition_update, pulls
from odf_tui.text import job_text, verification_text
from odf_tui.text.job_log_text import log_failure_lines, log_line_text
from odf_tui.text.remotes import remote_summary

FAILED = Job(
    id="7", kind="pull", target="cases", dataset="did:odf:1", state=JobState.failed,
    created="2024-01-01T00:00:00Z", ended="2024-01-01T10:11:12.5Z",
    error=Failure(message="'many' is no number", where="cases.csv:3", excerpt=["1,many"], hint="correct it"),
)  # fmt: skip


def test_counts_agree_in_number_and_times_are_formatted() -> None:
    assert [count_of(number, "row") for number in (0, 1, 1200)] == ["0 rows", "1 row", "1 200 rows"]
    assert count_of(1200, "block", separators=False) == "1200 blocks"
    moment = Timestamp.parse("2024-03-01T14:02:31.5Z")
    assert (format_time(moment), format_time_seconds(moment)) == ("2024-03-01 14:02", "2024-03-01 14:02:31")
    assert (format_time(None), format_time_seconds(None)) == ("", "")


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress("read", rows=1200, bytes=10, total_bytes=9_000_000), "read: 1 200 rows, 10 B of 9.0 MB"),
        (Progress("verify", files=1200, total_files=1300), "verify: 1200 of 1300 blocks"),
        (Progress("replay", files=2), "replay: transaction 2"),
        (Progress("search", files=3), "search: 3 datasets"),
        (Progress("fetch", files=1, total_files=2), "fetch: 1 of 2 files"),
        (Progress("read", files=2, total_files=60, file="in/w-02.csv"), "read: file 2 of 60 · w-02.csv"),
        (Progress(), ""),
    ],
)  # fmt: skip
def test_progress_line_shows_phase_and_amounts(progress: Progress, line: str) -> None:
    assert job_text.progress_line(progress) == line


@pytest.mark.parametrize(
    ("state", "error", "outcome"),
    [
        (JobState.cancelled, None, ("cancelled; 2 130 rows committed", "warn")),
        (JobState.interrupted, INTERRUPTED, (f"{INTERRUPTED.message}; 2 130 rows committed", "bad")),
        (JobState.failed, FAILED.error, ("'many' is no number; 2 130 rows committed", "bad")),
    ],
)
def test_outcome_of_stopped_job_states_the_committed_rows(
    state: JobState, error: Failure | None, outcome: tuple[str, str]
) -> None:
    job = replace(FAILED, state=state, error=error, progress=Progress("read", rows=10), committed_rows=2130)
    assert job_text.job_outcome(job) == outcome
    assert jobs._jobs_table([job], "UTC").rows[0][4] == "2 130"
    assert jobs.job_json(job)["committed_rows"] == 2130
    if error is None:
        assert list(job_text.failure_lines(job)) == ["cases: cancelled; 2 130 rows committed"]


def test_failure_lines_show_location_excerpt_and_hint() -> None:
    assert list(job_text.failure_lines(FAILED)) == [
        "error: cases: cases.csv:3: 'many' is no number", "  1,many", "  hint: correct it",
        "  log: odf logs 7",
    ]  # fmt: skip
    assert next(job_text.query_failure_lines(FAILED)) == "error: cases.csv:3: 'many' is no number"
    assert list(log_failure_lines(FAILED)) == [
        "10:11:12 failed  cases.csv:3: 'many' is no number", "         line    1,many",
        "         hint    correct it",
    ]  # fmt: skip
    line = LogLine(1, "7", "2024-01-01T10:11:12.5Z", "info", "reads")
    assert log_line_text(line) == "10:11:12 info    reads"


def test_result_lines_summarise_pull_push_and_update() -> None:
    pulled = PullResult(name="cases", status="updated", records=1200, blocks=1, bytes=1200)
    assert pulls.pull_line(pulled, "") == "cases: 1200 rows, 1.2 kB"
    assert pulls.pull_line(pulled, "lab/cases", is_new=True).startswith("cases: new, 1200 rows in 1 ")
    repeated = PullResult(name="cases", status="updated", records=2, blocks=1, repeated=2)
    assert pulls.pull_line(repeated, "") == "cases: 2 rows, 2 rows repeated"
    unchanged = PullResult(name="cases", status="up-to-date", ahead=2)
    assert pulls.pull_line(unchanged, "lab") == "cases: up to date (2 blocks ahead of lab)"
    ingested = PullResult(name="cases", status="updated", records=2, blocks=1, already_ingested=1)
    assert pulls.pull_line(ingested, "") == "cases: 2 rows, 1 file already ingested"
    ingested = PullResult(name="cases", status="up-to-date", already_ingested=2)
    assert pulls.pull_line(ingested, "") == "cases: already ingested"
    pushed = PushResult(status="updated", blocks=2, bytes=10)
    assert push.push_line("cases", pushed, "lab") == "cases: new at the remote, 2 blocks, 10 B to lab"
    assert push.push_line("cases", PushResult(status="up-to-date"), "lab") == "cases: lab is up to date"
    updated = UpdateResult(name="cases", status="updated", blocks=1, records=3, state="flushed")
    assert definition_update.update_line(updated).startswith("updated cases: 1 block, 3 rows; ")
    valid = ValidateResult("cases", checked=True, schema=["day DATE"], new=["day"])
    assert list(definition_update.validation_lines(valid)) == [
        "cases: query valid", "  day DATE", "  new columns: day"
    ]  # fmt: skip
    (line,) = definition_update.validation_lines(ValidateResult("cases", checked=True, state="lost", reads=7))
    assert line == "cases: query valid; its rows have to be replaced: use --rebuild"


@pytest.mark.parametrize(
    ("relation", "text"),
    [
        ("equal", "up to date"),
        ("ahead", "1 block ahead"),
        ("behind", "1200 blocks behind"),
        ("diverged", "diverged: 1 block ahead, 1200 behind"),
        ("new", "remote is empty"),
        ("", "changed locally since the last comparison"),
    ],
)
def test_remote_summary_states_the_relation(relation: Relation, text: str) -> None:
    remote = Remote(
        url="u", label="lab", push=True, relation=relation, ours=1, theirs=1200, at="2024-01-01T00:00:00Z"
    )
    now = Timestamp.parse("2024-01-01T00:05:00Z")
    assert remote_summary(remote, now) == f"to lab: {text}, compared 5 m 00 s ago"


def test_report_lines_escape_text_and_state_the_verdict() -> None:
    """Text of datasets cannot steer the terminal."""
    report = VerifyResult(
        "cases", valid=False, blocks=2, slices=1,
        findings=[IntegrityFinding("hash-mismatch", "3", "is\x1b wrong")],
        unchecked=[IntegrityFinding("no-engine", "", "why"), IntegrityFinding("no-engine", "", "why")],
    )  # fmt: skip
    assert list(verification_text.report_lines(report)) == [
        "cases: INVALID (2 blocks, 1 slice): 1 finding", "  hash-mismatch: block 3: is␛ wrong",
        "  not checked: no-engine: why (2 transactions)",
    ]  # fmt: skip
    report = VerifyResult(
        "cases", valid=False, blocks=2, findings=[IntegrityFinding("slice-op", "3", "wrong")], intact=True
    )
    verdict = "cases: intact, but its changelog is INVALID (2 blocks, 0 slices): 1 finding"
    assert next(verification_text.report_lines(report)) == verdict
    for kind, limit in (("no-engine", " as far as it could be checked"), ("proof-elsewhere", "")):
        report = VerifyResult("cases", valid=True, blocks=1, unchecked=[IntegrityFinding(kind, "", "why")])
        assert next(verification_text.report_lines(report)).startswith(f"cases: valid{limit} (1 block")
    report = VerifyResult("cases", valid=True, blocks=1, written_by=["spark 4.0+odf1"], branch="next")
    *_, line = verification_text.report_lines(report)
    assert "(spark 4.0+odf1): odf verify --recompute cases --branch next compares" in line
    proof = CheckProofResult(valid=True, query="SELECT\n 1", rows=1, signed_by="did:odf:1")
    assert verification_text.proof_verdict(proof, {"did:odf:1": "cases"}).endswith(
        ", signed with the key of cases"
    )
    fsck = FsckReport(repair=True)
    fsck.findings = [
        FsckFinding(kind="orphan", where="blocks", message="m\x1b", count=2, size=10, left="busy")
    ]
    assert list(verification_text.workspace_check_lines(fsck)) == [
        "not repaired  orphan  blocks, 2 files, 10 B: m␛ (busy)"
    ]
