"""Flows that a worker runs: tasks, triggers, acceptance, the command line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from odf_engine.automation.flows import command_guard
from odf_engine.automation.flows.clock import SteadyClock
from odf_engine.automation.flows.definition import Flow
from odf_engine.automation.flows.runner import FlowRunner
from odf_engine.automation.flows.store import Run
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.ingest.conftest import reply, web_server
from tests.sync.builders import add_slices, make_derivative, make_root
from tests.waiting import is_running, wait_until

ROOT = """\
kind: DatasetSnapshot
version: 1
content:
  name: my.rows
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: ["id INT"]}
      merge: {kind: Append}
"""
PUSH = """\
headers: {{name: {name}}}
spec:
  target: my.%
  triggers: [{trigger}]
  tasks:
    - {{kind: Push, to: copy}}
    - {{kind: Command, run: {command}}}
  stopAfterFailures: 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace with an empty root and a folder as repository."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "ws"
    folder.mkdir()
    (tmp_path / "copy").mkdir()
    (folder / "rows.yaml").write_text(ROOT)
    for arguments in (["init"], ["add", "rows.yaml"], ["repo", "add", "copy", str(tmp_path / "copy")]):
        assert call_odf(*arguments, cwd=folder).code == 0
    yield folder
    call_odf("worker", "stop", cwd=folder)


def write_flow(folder: Path, name: str, trigger: str, *program: str) -> Path:
    file = folder / f"{name}.yaml"
    command = json.dumps([sys.executable, "-c", *program])
    file.write_text(PUSH.format(name=name, trigger=trigger, command=command))
    return file


def flow(folder: Path, *arguments: str) -> Ran:
    return call_odf("flow", *arguments, cwd=folder)


def add_clock(folder: Path) -> None:
    """Add a flow that runs once a second."""
    text = "headers: {name: clock}\nspec:\n  target: my.rows\n  triggers: [{kind: Interval, every: 1s}]\n"
    (folder / "clock.yaml").write_text(text + "  tasks: [{kind: Command, run: ['true']}]\n")
    assert flow(folder, "add", "clock.yaml").code == 0


def wait_for_clock(folder: Path) -> None:
    """Wait for two more runs of the flow `clock`. A second has passed between the two, so every other flow
    with this interval was due too.
    """
    count = len(states(folder, "clock"))
    wait_until(lambda: states(folder, "clock")[count + 1 : count + 2] == [("Interval", "done")])


def states(folder: Path, name: str) -> list[tuple[str, str]]:
    """The trigger and state of the runs of a flow, oldest first."""
    found = flow(folder, "history", name, "--json").json
    return [(run["trigger"], run["state"]) for run in reversed(found)]


def test_an_interval_pushes_and_runs_a_program(folder: Path) -> None:
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).open('a').write('x'); print('wrote', 'it')"
    write_flow(folder, "copy", "{kind: Interval, every: 1s}", program, "{name}.txt")
    assert flow(folder, "add", "copy.yaml").code == 0
    wait_until(lambda: (folder / "my.rows.txt").exists() and len((folder / "my.rows.txt").read_text()) > 1)
    assert (folder.parent / "copy" / "my.rows" / "refs" / "head").exists()
    assert flow(folder, "pause", "copy").code == 0
    (row,) = flow(folder, "list", "--json").json
    assert (row["state"], row["reason"], row["next_run"]) == ("paused", "paused by the user", None)
    count = len(states(folder, "copy"))
    add_clock(folder)
    wait_for_clock(folder)
    assert len(states(folder, "copy")) == count
    ran = flow(folder, "run", "copy")  # a paused flow runs on request
    assert (ran.code, "done" in ran.err) == (0, True), ran.err
    assert states(folder, "copy")[-1] == ("request", "done")
    (newest, *_) = flow(folder, "history", "copy", "--json").json
    title, output = newest["output"].splitlines()
    assert title.startswith(f"$ {sys.executable} -c ") and output == "wrote it"
    assert "wrote it" not in flow(folder, "history", "copy").out
    assert "\nwrote it\n" in flow(folder, "history", "copy", "-n", "1", "--logs").out
    (job,) = [each for each in call_odf("jobs", "--json", cwd=folder).json if each["id"] in newest["jobs"]]
    assert (job["kind"], job["target"]) == ("push", "my.rows")
    assert not (folder / ".odf" / "spark.log").exists()  # no task needs Spark


@pytest.mark.complete
def test_a_flow_compacts_root_datasets(folder: Path) -> None:
    workspace = Workspace(folder)
    root = make_root(workspace, "my.numbers", slices=3)
    derived = make_derivative(workspace, root, "my.derived")
    text = "headers: {name: small}\nspec: {target: 'my.%', tasks: [{kind: Compact}]}\n"
    (folder / "small.yaml").write_text(text)
    assert flow(folder, "add", "small.yaml").code == 0
    ran = flow(folder, "run", "small")
    assert ran.code == 0, ran.err
    assert len(root.dataset.slices()) == 1 and len(derived.dataset.slices()) == 1
    (run,) = flow(folder, "history", "small", "--json").json
    jobs = [each for each in call_odf("jobs", "--json", cwd=folder).json if each["id"] in run["jobs"]]
    assert {(job["kind"], job["target"]) for job in jobs} == {
        ("compact", "my.numbers"),
        ("compact", "my.rows"),
    }


@pytest.mark.complete
def test_a_flow_exports_each_dataset_to_its_own_file(folder: Path) -> None:
    make_root(Workspace(folder), "my.numbers", slices=2)
    make_root(Workspace(folder), "my.towns", slices=1)
    spec = "{{target: ['my.numbers', 'my.towns'], tasks: [{{kind: Export, path: {path}}}]}}"
    text = f"headers: {{{{name: export}}}}\nspec: {spec}\n"
    (folder / "export.yaml").write_text(text.format(path="'out/{name}.csv'"))
    assert flow(folder, "add", "export.yaml").code == 0
    ran = flow(folder, "run", "export")
    assert ran.code == 0, ran.err
    for name, rows in (("my.numbers", 6), ("my.towns", 3)):
        header, *lines = (folder / "out" / f"{name}.csv").read_text().splitlines()
        assert "city" in header and len(lines) == rows
    (folder / "export.yaml").write_text(text.format(path="all.csv"))
    assert flow(folder, "add", "export.yaml", "--replace").code == 0
    ran = flow(folder, "run", "export")
    assert ran.code == 1 and "several datasets require {name} in the path" in ran.err


def test_a_flow_pulls_into_a_branch_and_promotes_it(folder: Path) -> None:
    """The remote has a newer block. A failed check leaves the head as it is."""
    remote = Workspace.init(folder.parent / "remote")
    root = make_root(remote, "numbers", slices=1)
    url = root.dataset.folder.as_uri()
    assert call_odf("pull", url, "--as", "my.numbers", cwd=folder).code == 0
    add_slices(root)
    check = "headers: {name: cities}\nspec: {target: my.numbers, rules: [{kind: Unique, columns: [city]}]}\n"
    (folder / "cities.yaml").write_text(check)
    assert call_odf("check", "add", "cities.yaml", cwd=folder).code == 0
    tasks = ", ".join(f"{{kind: {kind}, branch: next}}" for kind in ("Pull", "Check", "Promote"))
    (folder / "audited.yaml").write_text(
        f"headers: {{name: audited}}\nspec: {{target: my.numbers, tasks: [{tasks}], stopAfterFailures: 0}}\n"
    )
    assert flow(folder, "add", "audited.yaml").code == 0
    ran = flow(folder, "run", "audited")
    assert ran.code == 1 and "check my.numbers" in ran.err, ran.err

    def branches() -> list[tuple[str, int]]:
        return [(each["branch"], each["ahead"]) for each in call_odf("branch", "--json", cwd=folder).json]

    assert branches() == [("next", 1)]
    assert call_odf("check", "remove", "cities", cwd=folder).code == 0
    assert flow(folder, "run", "audited").code == 0
    assert branches() == [("next", 0)]
    entry = Workspace(folder).resolve("my.numbers")
    assert entry.dataset.head() == root.dataset.head()
    for name in ("before-x", ""):
        file = folder / "audited.yaml"
        file.write_text(file.read_text().replace("Promote, branch: next", f"Promote, branch: '{name}'"))
        refused = flow(folder, "add", "audited.yaml")
        assert refused.code != 0 and "not a valid name of a branch" in refused.err
        file.write_text(file.read_text().replace(f"'{name}'", "next"))


def test_an_invalid_dataset_fails_a_flow(folder: Path) -> None:
    root = make_root(Workspace(folder), "my.numbers", slices=1)
    (data_slice,) = (root.dataset.folder / "data").iterdir()
    data_slice.unlink()
    text = "headers: {name: audit}\nspec: {target: my.%, tasks: [{kind: Verify, integrity: true}]}\n"
    (folder / "audit.yaml").write_text(text)
    assert flow(folder, "add", "audit.yaml").code == 0
    ran = flow(folder, "run", "audit")
    (run,) = flow(folder, "history", "audit", "--json").json
    assert ran.code == 1
    assert run["reason"] == f"verify my.numbers: invalid (job {run['jobs'][0]})"
    assert len(run["jobs"]) == 2, "all jobs run, also after a failure"


@pytest.mark.complete
def test_new_blocks_of_a_remote_start_a_run(folder: Path) -> None:
    remote = Workspace.init(folder.parent / "remote")
    root = make_root(remote, "numbers", slices=1)
    assert call_odf("pull", root.dataset.folder.as_uri(), "--as", "my.numbers", cwd=folder).code == 0
    for name, target in (("follow", "my.numbers"), ("alone", "my.rows")):
        trigger = "{kind: Remote, every: 1s}"
        spec = f"{{target: {target}, triggers: [{trigger}], tasks: [{{kind: Pull}}]}}"
        (folder / f"{name}.yaml").write_text(f"headers: {{name: {name}}}\nspec: {spec}\n")
        assert flow(folder, "add", f"{name}.yaml").code == 0
    wait_until(lambda: ("Remote", "skipped") in states(folder, "follow"))
    add_slices(root)
    wait_until(lambda: ("Remote", "done") in states(folder, "follow"))
    assert Workspace(folder).resolve("my.numbers").dataset.head() == root.dataset.head()
    assert flow(folder, "history", "alone", "--json").json[0]["reason"] == "no target has a remote"
    (root.dataset.folder / "refs" / "head").write_text("damaged")
    wait_until(lambda: states(folder, "follow")[-1] == ("Remote", "failed"))
    reason = flow(folder, "history", "follow", "--json").json[0]["reason"]
    assert reason.startswith("compare my.numbers: file:"), reason


REFERENCES = {
    "Dataset:my.rows": "my.rows",
    "{type: Dataset, name: my.rows}": "my.rows",
    "[{type: 'https://opendatafabric.org/schemas/dataset/v1alpha1/Dataset', name: my.%}]": "my.%",
}
"""References to resources (RFC-018), and the targets that they mean."""


def test_labels_select_targets(folder: Path) -> None:
    (folder / "other.yaml").write_text(ROOT.replace("my.rows", "other.rows"))
    assert call_odf("add", "other.yaml", cwd=folder).code == 0
    for key, value in {"%": "env=test,team=data", "other.%": "env=prod"}.items():
        assert call_odf("config", "set", f"labels.{key}", value, cwd=folder).code == 0
    file = write_flow(folder, "labelled", "", "open('ran', 'a').write('x')", "{name}")
    text = file.read_text().replace("target: my.%", "target: [{labels: {env: prod, team: data}}]")
    file.write_text(text)
    assert flow(folder, "add", "labelled.yaml").code == 0
    assert flow(folder, "run", "labelled").code == 0
    assert sorted(path.name for path in (folder.parent / "copy").iterdir()) == ["index.json", "other.rows"]
    assert (folder / "ran").read_text() == "x"
    listed = {each["name"]: each["labels"] for each in call_odf("list", "--json", cwd=folder).json}
    assert listed == {
        "my.rows": {"env": "test", "team": "data"},
        "other.rows": {"env": "prod", "team": "data"},
    }
    assert "env=prod, team=data" in call_odf("list", cwd=folder).out
    assert flow(folder, "list", "--json").json[0]["targets"] == ["label env=prod, team=data"]
    file.write_text(text.replace("prod", "none"))
    assert flow(folder, "add", "labelled.yaml", "--replace").code == 0
    assert "no dataset matches: label env=none, team=data" in flow(folder, "run", "labelled").err
    for reference, shown in REFERENCES.items():
        file.write_text(text.replace("[{labels: {env: prod, team: data}}]", reference))
        assert flow(folder, "add", "labelled.yaml", "--replace").code == 0, reference
        assert flow(folder, "list", "--json").json[0]["targets"] == [shown]
    file.write_text(text.replace("labels: {env: prod, team: data}", "type: Source, name: my.a"))
    refused = flow(folder, "add", "labelled.yaml", "--replace")
    assert refused.code == 1 and "the target is a Source: targets are datasets" in refused.err
    file.write_text(text.replace("labels: {env: prod, team: data}", "labels: {}"))
    refused = flow(folder, "add", "labelled.yaml", "--replace")
    assert refused.code == 1 and "labelled.yaml:3:" in refused.err and "labels is empty" in refused.err


def test_failures_pause_a_flow(folder: Path) -> None:
    write_flow(folder, "bad", "{kind: Interval, every: 1s}", "print('no luck'); raise SystemExit(3)")
    assert flow(folder, "add", "bad.yaml").code == 0
    wait_until(lambda: flow(folder, "list", "--json").json[0]["state"] == "paused")
    (row,) = flow(folder, "list", "--json").json
    assert row["reason"] == "paused after 2 failed runs in a row"
    assert row["last_reason"].endswith("ended with exit code 3: no luck")
    assert states(folder, "bad") == [("Interval", "failed")] * 2
    ran = flow(folder, "run", "bad")
    assert (ran.code, "no luck" in ran.err, "Traceback" in ran.err) == (1, True, False)


@pytest.mark.complete
def test_a_changed_file_must_be_accepted(folder: Path) -> None:
    mark = folder / "mark"
    write_flow(folder, "a", "{kind: Interval, every: 1h}", f"open({str(mark)!r}, 'w')")
    stored = folder / ".odf" / "flows"
    stored.mkdir()
    (folder / "a.yaml").rename(stored / "a.yaml")  # as from an archive by another author
    add_clock(folder)
    wait_for_clock(folder)
    assert flow(folder, "list", "--json").json[0]["state"] == "new" and not mark.exists()
    assert "odf flow resume" in flow(folder, "run", "a").err
    assert flow(folder, "resume", "a").code == 0
    wait_until(mark.exists)
    (stored / "a.yaml").write_text((stored / "a.yaml").read_text().replace("1h", "1s"))
    mark.unlink()
    wait_for_clock(folder)
    assert flow(folder, "list", "--json").json[0]["state"] == "changed" and not mark.exists()
    assert flow(folder, "remove", "a").code == 0
    assert [row["name"] for row in flow(folder, "list", "--json").json] == ["clock"]


def test_oversized_file_is_invalid_and_timeout_ends_child_programs(folder: Path) -> None:
    stored = folder / ".odf" / "flows"
    stored.mkdir()
    with (stored / "big.yaml").open("wb") as file:
        file.truncate(1 << 32)
    command = ["sh", "-c", "sleep 600 & echo $! > child"]
    task = f"{{kind: Command, timeout: 2s, run: {json.dumps(command)}}}"
    text = f"headers: {{name: leaves}}\nspec: {{target: my.rows, tasks: [{task}]}}\n"
    (folder / "leaves.yaml").write_text(text)
    assert flow(folder, "add", "leaves.yaml").code == 0
    ran = flow(folder, "run", "leaves")
    assert (ran.code, "was terminated after 2 s" in ran.err) == (1, True), ran.err
    assert {row["name"]: row["state"] for row in flow(folder, "list", "--json").json}["big"] == "invalid"
    child = int((folder / "child").read_text())
    wait_until(lambda: not is_running(child))


@pytest.mark.complete
def test_a_killed_worker_repeats_the_interrupted_run(folder: Path) -> None:
    program = "import os, time; n = os.path.exists('n'); open('n', 'w'); time.sleep(0 if n else 60)"
    write_flow(folder, "slow", "{kind: Schedule, cron: '@yearly'}", program)
    assert flow(folder, "add", "slow.yaml").code == 0
    assert flow(folder, "run", "slow", "--detach").code == 0
    wait_until((folder / "n").exists)
    worker = call_odf("worker", "status", "--json", cwd=folder).json["status"]["pid"]
    os.kill(worker, 9)
    assert call_odf("worker", "start", cwd=folder).code == 0
    wait_until(lambda: ("retry", "done") in states(folder, "slow"))
    assert ("request", "interrupted") in states(folder, "slow")


async def test_intervals_continue_when_the_clock_is_set_back(tmp_path: Path) -> None:
    odf = Workspace.init(tmp_path).odf
    text = "headers: {name: a}\nspec: {target: b, triggers: [{kind: Interval, every: 10s}], tasks: [%s]}"
    flows = Documents(odf, Flow)
    flows.accept(flows.write((text % "{kind: Pull}").encode(), "a.yaml"))
    runner = FlowRunner(odf, lambda *arguments: pytest.fail("no job runs"))
    elapsed, starts = 0.0, list[float]()
    runner._clock = SteadyClock(lambda: 2e9 + elapsed - (1e9 if elapsed > 20 else 0), lambda: elapsed)
    runner._start = lambda flow, run: starts.append(elapsed) or runs.append(run)  # type: ignore[method-assign]
    while elapsed < 100:
        runs: list[Run] = []
        await runner._step()
        assert runner._scheduler is not None
        for run in runs:
            runner._scheduler.end_run(run, None, runner._clock.now())
        elapsed += 2
    await runner.stop()
    assert starts == [float(second) for second in range(0, 100, 10)]


@pytest.mark.complete
def test_a_flow_fetches_a_source_that_cannot_report_changes(folder: Path) -> None:
    """A run that is repeated, after a failure or the end of the worker, does not append the rows again."""
    with web_server() as web:
        web.answer = lambda request: reply(request, 200, b'{"id": 1}\n')
        source = f"    - kind: SetPollingSource\n      fetch: {{kind: Url, url: '{web.url}'}}\n"
        manifest = ROOT.replace("my.rows", "polled").replace(
            "    - kind: AddPushSource\n      sourceName: default\n", source
        )
        assert call_odf("add", "-", cwd=folder, input=manifest).code == 0
        program = (
            "import os, sys, time; n = os.path.exists('n') + os.path.exists('m');"
            "open('m' if n else 'n', 'w'); n or time.sleep(60); sys.exit(n == 1)"
        )
        command = json.dumps([sys.executable, "-c", program])
        (folder / "poll.yaml").write_text(
            "headers: {name: poll}\nspec:\n  target: polled\n  retry: {maxAttempts: 3, minDelay: 1s}\n"
            "  triggers: [{kind: Schedule, cron: '@yearly'}]\n"
            f"  tasks: [{{kind: Pull, fetchUncacheable: true}}, {{kind: Command, run: {command}}}]\n"
        )
        assert flow(folder, "add", "poll.yaml").code == 0
        assert flow(folder, "run", "poll", "--detach").code == 0
        wait_until((folder / "n").exists)
        worker = call_odf("worker", "status", "--json", cwd=folder).json["status"]["pid"]
        os.kill(worker, 9)
        assert call_odf("worker", "start", cwd=folder).code == 0
        wait_until(lambda: len(states(folder, "poll")) == 3 and states(folder, "poll")[-1][1] == "done")
        assert [state for _, state in states(folder, "poll")] == ["interrupted", "failed", "done"]
        assert len(web.requests) == 1
        assert flow(folder, "run", "poll").code == 0
    assert Workspace(folder).resolve("polled").dataset.state().records == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("kind: Interval, every: 1s", "kind: Schedule, cron: 61 * * * *"),
            ":4:37: '61 * * * *' is not a cron",
        ),
        (("every: 1s", "every: soon"), ":4:38: 'soon' is not a duration"),
        (("every: 1s", "every: 999999999w"), ":4:38: the duration is longer than 100 years"),
        (("every: 1s", "each: 1s"), ":4:31: object contains unknown field `each`"),
        (("kind: Push", "kind: Publish"), "invalid value 'Publish'"),
        (
            ("kind: Push, to: copy", "kind: Verify, integrity: true, recompute: true"),
            "integrity and recompute exclude each other",
        ),
        (("Interval, every: 1s", "Schedule, cron: '@daily', timezone: Mars"), "unknown time zone 'Mars'"),
        (("name: bad", "name: ../bad"), "invalid flow name"),
        (("stopAfterFailures: 2", "stopAfterFailures: [2]"), ":8:22: expected `int`, got `array`"),
    ],
)
def test_invalid_flow_definition_is_rejected(folder: Path, change: tuple[str, str], message: str) -> None:
    file = write_flow(folder, "bad", "{kind: Interval, every: 1s}", "pass")
    file.write_text(file.read_text().replace(*change))
    ran = flow(folder, "add", "bad.yaml")
    assert ran.code == 1 and message in ran.err, ran.err
    assert not (folder / ".odf" / "flows").exists()


def test_worker_service_is_installed_and_uninstalled(folder: Path) -> None:
    ran = call_odf("worker", "install", cwd=folder)
    assert ran.code == 0 and "systemctl --user enable --now odf-worker-ws-" in ran.out
    (unit,) = (folder.parent / "config" / "systemd" / "user").iterdir()
    assert f'"odf_engine.worker.process" "{folder}" "--foreground" --spark-later' in unit.read_text()
    assert call_odf("worker", "uninstall", cwd=folder).code == 0
    assert call_odf("worker", "uninstall", cwd=folder).code == 1 and not unit.exists()


def test_a_program_ends_with_its_worker(folder: Path) -> None:
    """A program that ignores SIGTERM, and the one that it started, end after the worker was killed."""
    program = (
        "import os, signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen(['sleep', '600']);"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid} \\n'); time.sleep(600)"
    )
    write_flow(folder, "long", "{kind: Interval, every: 1s}", program)
    assert flow(folder, "add", "long.yaml").code == 0
    pids = folder / "pids"
    wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    running = [int(each) for each in pids.read_text().split()]
    worker = call_odf("worker", "status", "--json", cwd=folder).json["status"]["pid"]
    flow(folder, "pause", "long")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, running)))


def test_a_program_can_write_after_its_worker_was_killed(folder: Path) -> None:
    """Its handler of SIGTERM writes to its output, as a shell does, which would end it by SIGPIPE."""
    ending = "trap 'echo ending; echo ending >&2; touch handled; exit 0' TERM"
    script = f"{ending}; touch begun; while :; do sleep 0.1; done"
    write_flow(folder, "long", "{kind: Interval, every: 1s}", "unused")
    file = folder / "long.yaml"
    text = file.read_text().partition("    - {kind: Command")[0]
    file.write_text(f"{text}    - {{kind: Command, run: {json.dumps(['sh', '-c', script])}}}\n")
    assert flow(folder, "add", "long.yaml").code == 0
    wait_until((folder / "begun").exists)
    worker = call_odf("worker", "status", "--json", cwd=folder).json["status"]["pid"]
    flow(folder, "pause", "long")
    os.kill(worker, signal.SIGKILL)
    wait_until((folder / "handled").exists)


def test_the_guard_ends_programs_that_outlive_their_parent() -> None:
    """The shell ends at SIGTERM, and the program that it has started ignores it."""
    script = """(trap "" TERM; echo started; sleep 300) & trap "exit 0" TERM; wait"""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", command_guard.__file__, "0.1", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as guard:
        try:
            assert guard.stdout is not None and guard.stdin is not None
            assert guard.stdout.readline() == b"started\n"
            guard.stdin.close()
            assert select.select([guard.stdout], [], [], 60)[0], "a program still has the pipe"
            assert guard.stdout.read() == b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)
