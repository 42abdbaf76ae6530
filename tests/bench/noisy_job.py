"""A job that logs 1,000 lines a second, for measuring what that costs a screen.

Run: ``python tests/bench/noisy_job.py WORKSPACE [SECONDS] [LINES_A_SECOND]``. It starts a worker for the
workspace whose jobs do nothing but log, hands it one, and returns; a workstation that is opened there, before
or after, is connected to that worker. ``odf -w WORKSPACE worker stop`` ends it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from odf_engine.coordinator.client import Client
from odf_engine.coordinator.job_queue import JobContext
from odf_engine.coordinator.protocol import Pull, Request
from odf_engine.coordinator.worker import Worker, daemonize
from odf_engine.errors import OdfError
from odf_engine.progress import Reporter
from odf_engine.workspace.workspace import Workspace

_WORDS = "of a talkative program, which says in full what it does next, and how it did what was before"


def talk(request: Request, context: JobContext, reporter: Reporter) -> dict[str, object]:
    """Logs as many lines as the name of the target says: ``seconds x lines``."""
    seconds, rate = map(int, request.dataset.rpartition(":")[2].split("x"))
    began = time.monotonic()
    reporter.phase("talk")
    for number in range(1, seconds * rate + 1):
        reporter.raise_if_cancelled()
        reporter.set_amounts(rows=number, total_rows=seconds * rate)
        reporter.log(f"line {number} {_WORDS}", "warning" if number % 500 == 0 else "info")
        if (early := began + number / rate - time.monotonic()) > 0.01:
            time.sleep(early)
    return {"status": "up-to-date", "blocks": 0, "records": 0}


def _no_spark() -> object:
    raise OdfError("this worker has no Spark", hint="its jobs do nothing but talk")


def serve(folder: Path) -> int:
    """The worker."""
    daemonize(folder / ".odf" / "worker.log", foreground=False)
    return Worker(folder, start_spark=_no_spark, executor=talk).run()  # type: ignore[arg-type]


async def start(folder: Path, seconds: int, rate: int) -> str:
    """Hands the job over; returns its id."""
    command = [sys.executable, __file__, "--serve", str(folder)]
    client = await Client.connect(folder, command=command)
    job = await client.submit(Pull(dataset=f"talk:{seconds}x{rate}"), "talkative")
    await client.close()
    return job


def main() -> None:
    """Serves, or starts a job."""
    if sys.argv[1] == "--serve":
        code = serve(Path(sys.argv[2]))
        sys.stderr.flush()
        os._exit(code)
    folder = Workspace.find(explicit=Path(sys.argv[1])).folder
    seconds, rate = (int(each) for each in (*sys.argv[2:4], *("60", "1000")[len(sys.argv) - 2 :]))
    print(asyncio.run(start(folder, seconds, rate)))


if __name__ == "__main__":
    main()
