"""A worker runs any number of jobs: none leaves a file, a socket or a thread behind."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from odf_engine.base import processes
from odf_engine.jobs.base import run_request
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.job_queue import JobQueue
from odf_engine.worker.protocol import JobState, Request
from tests.derive.deriving import Deriving
from tests.derive.test_reset_on_divergence import Home
from tests.waiting import wait_until

TOLERANCE = 2
"""A thread that has just ended closes its connection to Java a moment later."""
COMMITS = 6


def java_sockets(runtime: SparkRuntime) -> int:
    found = 0
    for descriptor in Path(f"/proc/{runtime.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found += descriptor.readlink().name.startswith("socket:")
    return found


@pytest.mark.complete
def test_no_job_leaves_descriptors_or_threads(deriving: Deriving, runtime: SparkRuntime) -> None:
    root = deriving.root()
    grouping = deriving.derivative(
        "SELECT city, count(*) AS n, max(event_time) AS event_time FROM input GROUP BY city"
    )
    odf = deriving.workspace.odf
    host = Home(deriving.workspace.folder, runtime)
    journal = JobLog(odf / "jobs.sqlite")
    queue = JobQueue(journal, host, run_request, 1, lambda: None)

    def run(request: Request) -> None:
        job = queue.submit(request, "output", {})
        queue.dispatch_ready()
        wait_until(lambda: journal.job(job.id).state.final, 300)
        ended = journal.job(job.id)
        assert ended.state is JobState.done, ended.error

    def counts() -> tuple[int, int, int]:
        return processes.count_open_descriptors(), threading.active_count(), java_sockets(runtime)

    pull, verify = Pull(str(grouping.id)), Verify(str(grouping.id))
    try:
        for day in (1, 2):
            deriving.rows(root, (day, "a", day))
            run(pull)
        run(verify)
        before = counts()
        for day in range(COMMITS):  # one pull, a batch for each commit
            deriving.rows(root, (day + 3, "b", day))
        run(pull)
        run(verify)
        after = counts()
    finally:
        journal.close()
    assert deriving.result(grouping, "city", "n")[-1] == ("b", COMMITS)
    assert all(now <= then + TOLERANCE for then, now in zip(before, after, strict=True)), (before, after)
