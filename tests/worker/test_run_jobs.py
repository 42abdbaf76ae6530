"""Commands that wait for jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from odf_engine.errors import OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.worker.client import run_jobs
from odf_engine.worker.protocol import JobChanged, JobState, WorkerStatus

SCRIPT = """
import sys
from pathlib import Path
from odf_engine.worker.client import run_jobs
from odf_engine.worker.protocol import JobChanged, JobState, LogLine
from odf_engine.jobs.pull import Pull
from odf_engine.errors import Cancelled

def show(event):
    if isinstance(event, JobChanged):
        print(event.job.id, event.job.state.value, flush=True)
    if isinstance(event, LogLine):
        print(event.text, flush=True)

folder, datasets, command = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
try:
    run_jobs(Path(folder), [(Pull(name), name) for name in datasets], on_event=show, command=command)
except Cancelled as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


def start(home, datasets: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(home.folder), datasets, *home.command()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    found = []
    while not found or found[-1] != text:
        line = process.stdout.readline()
        assert line, found
        found.append(line.strip())
    return found


def test_jobs_come_back_in_order(home):
    events = []
    requests = [(Pull("count:40"), "a"), (Verify("bad"), "b"), (Pull("commit:2"), "c")]
    jobs = run_jobs(home.odf, requests, on_event=events.append, command=home.command())
    assert [(job.target, job.kind, job.state) for job in jobs] == [
        ("a", "pull", JobState.done),
        ("b", "verify", JobState.failed),
        ("c", "pull", JobState.done),
    ]
    assert json.loads(jobs[2].result)["count"] == 2
    assert isinstance(events[0], WorkerStatus)
    again = run_jobs(home.folder, [(Pull("count:1"), "a")], events.append, command=home.command())
    assert [job.id for job in again] == ["4"]
    assert run_jobs(home.folder, [], command=home.command()) == []


def test_events_are_limited_to_own_jobs(home):
    run_jobs(home.folder, [(Pull("count:1"), "a")], command=home.command())
    other = start(home, "wait")
    read_until(other, "2 running")
    events = []
    run_jobs(home.folder, [(Pull("count:50"), "b")], events.append, command=home.command())
    others = [event for event in events if not isinstance(event, JobChanged | WorkerStatus)]
    assert {event.job for event in others} == {"3"}
    assert {event.job.id for event in events if isinstance(event, JobChanged)} == {"3"}
    other.send_signal(signal.SIGINT)
    other.communicate(timeout=60)


def test_the_first_interrupt_cancels_and_waits(home):
    process = start(home, "wait,wait/b,wait/c")
    read_until(process, "2 running")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    ends = [line for line in output.split("\n") if line.endswith("cancelled")]
    assert sorted(ends) == ["1 cancelled", "2 cancelled", "3 cancelled"]
    assert home.files.worker_alive()


def test_second_interrupt_exits_and_leaves_the_job_running(home):
    process = start(home, "stubborn:90")
    read_until(process, "1 running")
    process.send_signal(signal.SIGINT)
    read_until(process, "not now")  # it still follows the job, which goes on
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "in the background" in output
    assert home.files.worker_alive() and home.journal.job("1").state is JobState.running


def test_job_is_interrupted_when_the_worker_dies(home):
    process = start(home, "wait")
    read_until(process, "1 running")
    home.kill()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and output.split() == ["1", "interrupted"]


def test_failing_worker_start_is_reported(home):
    with pytest.raises(OdfError, match="exited right after its start"):
        run_jobs(home.folder, [(Pull("count:1"), "a")], command=home.command("--die"))
    assert [file.name for file in home.odf.iterdir()] == ["worker.log"]
