"""Status, watch and doctor: what needs attention, and whether jobs can run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.model import DatasetKind, SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import Failure, JobState
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.sync.builders import add_slices, make_derivative, make_root


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path)


def run(workspace: Workspace, *arguments: str, **environment: str) -> Ran:
    return call_odf(*arguments, cwd=workspace.folder, **environment)


def fail_pull(workspace: Workspace, entry: DatasetEntry, message: str) -> None:
    log = JobLog(workspace.odf / "jobs.sqlite")
    job = log.create(Pull(str(entry.id)), str(entry.alias))
    log.transition(job.id, JobState.running)
    log.transition(job.id, JobState.failed, error=Failure(message))
    log.close()


def test_status_shows_manifests_that_differ(workspace: Workspace) -> None:
    make_root(workspace, "my", slices=1)
    assert "everything is up to date" in run(workspace, "status").out
    (workspace.folder / "my.yaml").write_text(
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: my\n  kind: Root\n  metadata:\n"
        "    - {kind: SetInfo, description: second, keywords: []}\n"
    )
    ran = run(workspace, "status")
    assert re.split(" {2,}", ran.out.splitlines()[3])[:3] == ["drifted", "my", "1 difference to its manifest"]


def test_status_lists_what_needs_attention_with_the_next_step(workspace: Workspace) -> None:
    assert run(workspace, "status").out.splitlines()[1] == "0 datasets"
    make_root(workspace, slices=1)
    ran = run(workspace, "status")
    assert (ran.code, "everything is up to date" in ran.out) == (0, True)
    assert "worker: not running" in ran.out

    broken = make_root(workspace, "broken", slices=1)
    fail_pull(workspace, broken, "cases.csv:3: 'many' is not a BIGINT\nmore")
    source = make_root(workspace, "source", slices=1)
    make_derivative(workspace, source)
    add_slices(source, 2)
    workspace.create_dataset(DatasetAlias.parse("empty"), DatasetKind.Root, [SetInfo("x")])
    ran = run(workspace, "status")
    assert ran.code == 0
    assert [re.split(" {2,}", line) for line in ran.out.splitlines()[3:-1]] == [
        ["failed", "broken", "last pull failed: cases.csv:3: 'many' is not a BIGINT", "odf logs 1"],
        ["stale", "derived", "its inputs have new data", "odf pull derived"],
        ["new", "empty", "no data yet", "odf show empty"],
    ]

    document = run(workspace, "status", "--json").json
    assert document["counts"] == {"current": 2, "failed": 1, "stale": 1, "new": 1}
    assert document["worker"] == {"running": False, "pid": None}
    assert document["jobs"] == []
    by_name = {each["name"]: each for each in document["datasets"]}
    assert by_name["derived"]["hint"] == "odf pull derived"
    assert by_name["numbers"] == {
        "id": by_name["numbers"]["id"], "name": "numbers", "status": "current", "reason": None, "hint": None,
        "remotes": [], "waiting": None,
    }  # fmt: skip


def test_watch_prints_changes_and_ends_without_jobs(workspace: Workspace) -> None:
    entry = make_root(workspace, slices=1)
    fail_pull(workspace, entry, "no network")
    ran = run(workspace, "watch", "--until-idle", "--interval", "0.2")
    assert ran.code == 0
    assert ran.out.endswith("1 dataset: 1 failed\n")
    assert run(workspace, "watch", "--interval", "0").code == 2


def test_watch_reports_each_change(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = make_root(workspace, slices=1)
    steps = [
        lambda: fail_pull(workspace, entry, "no network"),
        lambda: workspace.delete(workspace.resolve("numbers")),
    ]

    def sleep(seconds: float) -> None:
        if not steps:
            raise KeyboardInterrupt  # as by ^C
        steps.pop(0)()

    # Not `time.sleep` itself, which servers in threads of this process call too.
    monkeypatch.setattr("odf_tui.cli.watch.time", SimpleNamespace(sleep=sleep))
    ran = run(workspace, "watch")
    assert ran.code == 0
    texts = [line.partition("  ")[2] for line in ran.out.splitlines()]
    assert texts == [
        "1 dataset: 1 current",
        "job 1: pull numbers, failed: no network",
        "numbers: failed",
        "numbers: deleted",
    ]
    steps[:] = [lambda: shutil.rmtree(workspace.odf)]
    assert "the workspace was deleted" in run(workspace, "watch").err


def test_doctor_names_each_problem_with_a_remedy(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = run(workspace, "doctor", "--json").json
    assert document["ok"], document
    assert [each["name"] for each in document["checks"]] == [
        "packages", "Java", "DataFusion", "workspace", "disk", "permissions", "clock", "rows", "worker",
        "Spark", "memory",
    ]  # fmt: skip
    assert all(each["message"] for each in document["checks"])

    make_root(workspace, slices=1)
    with monkeypatch.context() as patched:
        start = Timestamp.parse("2001-01-01T00:00:00Z")
        patched.setattr("odf_engine.api.operations.health.Timestamp.now", lambda: start)
        assert "correct the clock" in failure(run(workspace, "doctor"), "clock")
    run(workspace, "config", "set", "spark.driverMemory", "900g")
    assert "spark.driverMemory" in failure(run(workspace, "doctor"), "memory")
    assert "JAVA_HOME" in failure(run(workspace, "doctor", ODF_JAVA="/nowhere"), "Java")
    (workspace.odf / "config.yaml").write_text("spark: {speed: 11}")
    assert "speed" in failure(run(workspace, "doctor"), "workspace")


def test_doctor_warns_of_keys_that_others_can_read(workspace: Workspace) -> None:
    make_root(workspace, slices=1)
    (key,) = workspace.keys.folder.glob("*.pem")
    key.chmod(0o644)
    ran = run(workspace, "doctor")
    assert ran.code == 0
    assert "! permissions" in ran.out
    assert "chmod -R go=" in ran.out
    quiet = run(workspace, "doctor", "-q")
    assert quiet.out.splitlines()[0].startswith("! permissions")


def test_doctor_outside_of_a_workspace(tmp_path: Path) -> None:
    assert call_odf("doctor", cwd=tmp_path).code == 0
    assert call_odf("doctor", "-w", "nowhere", cwd=tmp_path).code == 1
    assert call_odf("doctor", cwd=tmp_path, ODF_WORKSPACE="/nowhere").code == 1


def failure(ran: Ran, check: str) -> str:
    """The failed check and its hint."""
    assert ran.code == 1
    lines = ran.out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(f"✗ {check}"))
    assert "hint: " in lines[at + 1]
    return " ".join(lines[at : at + 2])
