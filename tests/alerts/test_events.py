"""Which events alerts receive: jobs, runs of flows, heads; positions, limits of the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from odf_engine.automation.alerts import store as alert_store
from odf_engine.automation.alerts.definition import Alert
from odf_engine.automation.alerts.event_collector import EventCollector, job_event
from odf_engine.automation.alerts.events import Event, select_kind
from odf_engine.automation.alerts.store import AlertStore, NewDelivery
from odf_engine.automation.flows.store import FlowState, FlowStore
from odf_engine.base.config import Config
from odf_engine.base.progress import JobWarning
from odf_engine.checks.reports import RuleResult
from odf_engine.derive.verify.model import IntegrityFinding
from odf_engine.jobs.check import CheckResult
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import VerifyResult
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import Failure, Job, JobState
from odf_engine.workspace.documents.document import read_document
from odf_engine.workspace.workspace import Workspace
from tests.alerts.conftest import ROOT

NOW = "2026-03-01T10:00:00Z"


def alert(events: str, target: str = "'%'", name: str = "a") -> Alert:
    sink = "{kind: Webhook, url: 'https://h.example/'}"
    text = f"headers: {{name: {name}}}\nspec: {{events: [{events}], target: {target}, sink: {sink}}}\n"
    return read_document(text.encode(), name, Alert)


class Home:
    """A workspace with one dataset, and its collector, which can start again as after a crash."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace.init(folder)
        self.add_dataset("my.rows")
        self.store = AlertStore(self.workspace.odf)
        self.alerts = [alert("DatasetUpdated")]
        EventCollector(self.workspace.odf, self.store).begin(self.alerts, self.workspace, replace=True)
        self.restart()

    def restart(self) -> None:
        self.collector = EventCollector(self.workspace.odf, self.store)

    def add_dataset(self, name: str) -> None:
        from odf_engine.metadata.yaml import read_manifests

        self.workspace.add(list(read_manifests(ROOT.replace("my.rows", name).encode(), "rows")))

    def collect(self, *, keep: bool = True) -> list[Event]:
        """The new events; without ``keep``, the process ends before they are queued."""
        batch = self.collector.collect(self.alerts, lambda: self.workspace, scan=True)
        if keep:
            self.store.enqueue((), time.time(), batch.positions, batch.heads)
        else:
            self.restart()
        return batch.events


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = Home(tmp_path / "ws")
    yield home
    home.collector.close()
    home.store.close()


def test_heads_moved_by_other_processes_become_events(home: Home) -> None:
    assert home.collect() == []  # datasets from before the alert
    home.add_dataset("my.new")
    (event,) = home.collect(keep=False)
    (again,) = home.collect()
    assert (
        (event.subject, event.message) == ("my.new", "my.new was created") == (again.subject, again.message)
    )
    assert event.data["old_head"] is None and event.data["new_head"] == again.data["new_head"]
    entry = home.workspace.resolve("my.new")
    home.workspace.delete(entry)
    assert home.collect() == [] and str(entry.id) not in home.store.heads()
    # While no alert selects them, heads that move are not events, also not later.
    home.alerts = [alert("JobFailed")]
    home.collect()
    home.add_dataset("my.quiet")
    home.alerts = [alert("DatasetUpdated")]
    assert home.collect() == [] == home.collect()


def test_branch_job_matches_the_pattern_of_its_dataset(home: Home) -> None:
    """Their target has the branch, which no name of a dataset can contain."""
    dataset = str(home.workspace.resolve("my.rows").id)
    job = Job("1", "pull", "my.rows@staging", dataset, JobState.failed, NOW, branch="staging")
    event = job_event(job)
    assert event is not None and (event.subject, event.data["branch"]) == ("my.rows", "staging")
    assert event.message == "pull my.rows@staging failed"
    assert select_kind(alert("JobFailed", "my.%"), event, Config()) == "JobFailed"


def test_failed_rules_of_a_trial_are_no_failed_check() -> None:
    result = RuleResult("c", "1", "NotNull(id)", "NotNull", "block", 3, 1, "1 row with null", [])
    for is_trial, kinds in ((False, ["CheckFailed", "JobSucceeded"]), (True, ["JobSucceeded"])):
        text = msgspec.json.encode(CheckResult("my.rows", [result], is_trial=is_trial)).decode()
        event = job_event(Job("1", "check", "my.rows", "did:odf:1", JobState.done, NOW, result=text))
        assert event is not None and event.kinds == kinds


def test_failed_and_successful_flow_runs_become_events(home: Home) -> None:
    home.alerts = [alert("FlowFailed")]
    home.collect()
    with_flows = FlowStore(home.workspace.odf)
    state = FlowState("nightly", 1e9)
    first = with_flows.begin(state, "Schedule", 1e9, 1e9)
    assert home.collect() == []
    second = with_flows.begin(FlowState("other", 1e9), "Schedule", 1e9, 1e9)
    with_flows.end(second, "done", "", 2e9, FlowState("other", 1e9))
    assert [(each.kinds, each.subject) for each in home.collect()] == [(["FlowSucceeded"], "other")]
    home.restart()
    with_flows.end(first, "failed", "no network", 2e9, state, pause="paused after a failed run")
    (event,) = home.collect(keep=False)  # an older run ends after a newer one
    assert event == home.collect()[0]
    assert event.kinds == ["FlowPaused", "FlowFailed"]
    assert event.message == "flow nightly paused after a failed run: no network"
    third = with_flows.begin(state, "Schedule", 3e9, 3e9)
    with_flows.skip(state, "Schedule", 3e9, 3e9, "still running")
    with_flows.end(third, "interrupted", "the worker stopped", 3e9, state)
    assert home.collect() == []
    with_flows.close()


def test_job_events_continue_after_restart_and_job_log_replacement(home: Home) -> None:
    home.alerts = [alert("JobFailed")]
    path = home.workspace.odf / "jobs.sqlite"
    journal = JobLog(path)
    failed = Failure("no network")

    def fail_job() -> None:
        job = journal.create(Pull("did:odf:x"), "my.rows")
        journal.transition(job.id, JobState.running)
        journal.transition(job.id, JobState.failed, error=failed)

    fail_job()
    kinds = [["JobStarted"], ["JobFailed"]]
    assert [each.kinds for each in home.collect(keep=False)] == kinds
    found = home.collect()
    assert [each.kinds for each in found] == kinds and found[1].message == "pull my.rows failed: no network"
    assert home.collect() == []
    for _ in range(3):
        fail_job()
    assert len(home.collect()) == 6
    journal.close()
    for each in path.parent.glob("jobs.sqlite*"):
        each.unlink()  # as for a damaged one
    journal = JobLog(path)
    fail_job()
    assert [each.kinds for each in home.collect()] == kinds
    journal.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda job: msgspec.structs.replace(job, state=JobState.queued), None),
        (lambda job: msgspec.structs.replace(job, kind="sql"), None),
        (lambda job: msgspec.structs.replace(job, state=JobState.interrupted), ["JobFailed"]),
        (lambda job: msgspec.structs.replace(job, state=JobState.cancelled), ["JobCancelled"]),
        (
            lambda job: msgspec.structs.replace(job, error=Failure("x", kind="CheckFailed")),
            ["CheckFailed", "JobFailed"],
        ),
        (
            lambda job: msgspec.structs.replace(
                job,
                kind="verify",
                state=JobState.done,
                result=msgspec.json.encode(
                    VerifyResult(
                        "my.rows", valid=False, findings=[IntegrityFinding("hash", "f00", "wrong hash")]
                    )
                ).decode(),
            ),
            ["VerifyFailed", "JobSucceeded"],
        ),
        (
            lambda job: msgspec.structs.replace(
                job, state=JobState.done, result="{}", warnings=[JobWarning("late-rows", "late\nrows", 2)]
            ),
            ["JobWarned", "JobSucceeded"],
        ),
    ],
)
def test_job_state_and_error_determine_the_event_kinds(
    change: Callable[[Job], Job], expected: list[str] | None
) -> None:
    job = Job("7", "pull", "my.rows", "", JobState.failed, NOW, NOW, NOW, error=Failure("a\nb"))
    event = job_event(change(job))
    assert (None if event is None else list(event.kinds)) == expected
    if event is not None:
        assert "\n" not in event.message
        assert event == job_event(change(job))  # with the same id


def test_an_event_is_sent_once_as_its_most_specific_kind() -> None:
    event = Event("1", ["CheckFailed", "JobFailed"], NOW, "my.rows", "text")
    for selected, target, kind in (
        ("JobFailed, CheckFailed", "'%'", "CheckFailed"),
        ("JobFailed", "my.rows", "JobFailed"),
        ("JobFailed", "[other, 'my.%']", "JobFailed"),
        ("JobFailed", "other", None),
        ("FlowFailed", "'%'", None),
    ):
        assert select_kind(alert(selected, target), event, Config()) == kind


def test_deliveries_of_a_wrong_clock_are_due_when_it_is_corrected(tmp_path: Path) -> None:
    store = AlertStore(tmp_path)
    store.enqueue([NewDelivery(each, "a", "JobFailed", "x", "", "text", b"{}") for each in "123"], 2e9)
    for each, due in zip(store.due("a", 2e9, 10)[1:], (2e9 + 60, 1e9 + 60), strict=True):
        store.fail(each, "no network", 2e9, due)
    assert [each.id for each in store.due("a", 2e9, 10)] == ["1", "3"]
    assert store.next_due(1e9) == {"a": 1e9}
    assert [each.id for each in store.due("a", 1e9, 10)] == ["1", "2", "3"]
    store.close()


def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_store, "MAX_QUEUED", 3)
    monkeypatch.setattr(alert_store, "MAX_DEAD", 2)
    store = AlertStore(tmp_path)
    new = [NewDelivery(str(each), "a", "JobFailed", "x", "", "text", b"{}") for each in range(7)]
    store.enqueue(new, 1.0)
    store.enqueue(new[:2], 2.0)  # known ids
    assert store.counts() == {("a", "queued"): 3, ("a", "dead"): 2}
    assert [each.id for each in store.due("a", 5.0, 10)] == ["0", "1", "2"]
    assert {each.error for each in store.list_newest("a", "dead")} == {"the queue is full"}
    assert [each.id for each in store.list_newest("a", "dead")] == ["6", "5"]
    store.close()
