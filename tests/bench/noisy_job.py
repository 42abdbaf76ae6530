"""A worker whose jobs only log, to measure the cost of log lines on a screen.

:func:`start` starts this file as the worker of a workspace, and submits a job. A workstation of the workspace
connects to the worker.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.pull import Pull
from odf_engine.worker.client import Client
from odf_engine.worker.process import Worker, daemonize
from odf_engine.worker.protocol import Request

_WORDS = "of a talkative program, which reports its next step in full, and the result of the step before it"


async def start(folder: Path, seconds: int, lines_per_second: int) -> None:
    """Start the worker and a job."""
    client = await Client.connect(folder, command=[sys.executable, __file__, str(folder)])
    await client.submit(Pull(dataset=f"talk:{seconds}x{lines_per_second}"), "talkative")
    await client.close()


def talk(request: Request, context: JobContext, reporter: Reporter) -> dict[str, object]:
    """Log lines as the name of the target requests: ``SECONDSxLINES_PER_SECOND``."""
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


def _start_spark() -> object:
    raise OdfError("this worker has no Spark", hint="its jobs only log")


def main(folder: Path) -> None:
    daemonize(folder / ".odf" / "worker.log", foreground=False)
    code = Worker(folder, start_spark=_start_spark, executor=talk).run()  # type: ignore[arg-type]
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
