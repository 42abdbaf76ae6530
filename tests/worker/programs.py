"""A worker whose jobs are small programs, for tests: ``python programs.py WORKSPACE [settings]``.

The text of a request's ``dataset`` says what the job does, see :func:`run`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from odf_engine.base.config import WorkerConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, OdfError
from odf_engine.jobs.base import JobContext
from odf_engine.spark.runtime import session
from odf_engine.spark.runtime.session import Memory
from odf_engine.worker import process as worker_module
from odf_engine.worker.process import Worker, daemonize
from odf_engine.worker.protocol import Request


class FakeSpark:
    """Lives until somebody touches the file ``spark-dies`` in the workspace.

    A task runs while there is a file ``spark-is-busy``. ``spark-tasks-read`` has a byte for each time that
    the number of tasks was read.
    """

    def __init__(self, folder: Path) -> None:
        self._end = folder / "spark-dies"
        self._end.unlink(missing_ok=True)
        self.trained = False
        self._busy = folder / "spark-is-busy"
        self._reads = folder / "spark-tasks-read"

    @property
    def tasks_running(self) -> int:
        with self._reads.open("a") as file:
            file.write("x")
        return int(self._busy.exists())

    @property
    def detail(self) -> str:
        return "a pretended Spark"

    @property
    def memory(self) -> Memory:
        return Memory(300_000_000, 1_000_000_000, 700_000_000)

    @property
    def is_alive(self) -> bool:
        return not self._end.exists()

    def train_archive_in_background(self, busy: object) -> None:
        self.trained = True

    def stop(self) -> None:
        self._busy.unlink(missing_ok=True)


def run(request: Request, context: JobContext, reporter: Reporter) -> dict[str, object]:
    """Does ``verb:number``, for the dataset ``verb:number`` or ``verb:number/name``."""
    verb, _, rest = request.dataset.partition("/")[0].partition(":")
    count = int(rest or 0)
    reporter.phase(verb)
    match verb:
        case "count":  # counts to a number, one line each
            for number in range(1, count + 1):
                reporter.raise_if_cancelled()
                reporter.set_amounts(rows=number, total_rows=count)
                reporter.log(f"row {number}")
                time.sleep(0.002)
        case "noise":  # so many seconds of 1,000 lines each
            began = time.monotonic()
            for number in range(count * 1000):
                reporter.raise_if_cancelled()
                reporter.set_amounts(rows=number + 1, total_rows=count * 1000)
                reporter.log(f"line {number + 1} of a talkative program, which says what it does next")
                time.sleep(max(began + number / 1000 - time.monotonic(), 0))
        case "flood":  # the same without a pause
            for number in range(1, count + 1):
                reporter.log(f"row {number} " + "x" * 1000)
        case "commit":
            for number in range(count):
                reporter.committed(request.dataset, f"block{number}", "AddData", 10)
        case "wait":  # until cancelled
            reporter.set_amounts(rows=1)
            while not reporter.cancelled:
                time.sleep(0.01)
            reporter.raise_if_cancelled()
        case "stubborn":  # hears of a cancellation, and goes on
            with reporter.on_cancel(lambda: reporter.log("not now")):
                time.sleep(count)
        case "bad":
            error = BadData("'x' is not a number", where="file.csv:3", hint="correct it")
            error.excerpt = ("3 | 1,x",)
            raise error
        case "bug":
            raise ZeroDivisionError("in a job")
        case "variables":  # whether they came, and what a careless job does with them
            reporter.log(f"{sorted(context.environment)} {context}")
            return {"lengths": {name: len(value) for name, value in context.environment.items()}}
        case "spark":
            reporter.phase("replay")
            context.host.spark(reporter)
            reporter.log(f"goes on with {reporter.current_phase}")
        case "full":
            raise OSError(28, "No space left on device", "/data/slice")
        case "broken":
            raise OSError(5, "Input/output error", "/data/slice")
    return {"name": request.dataset, "count": count}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--idle", type=float, default=60)
    parser.add_argument("--spark-idle", type=float, default=60)
    parser.add_argument("--patience", type=float, default=30)
    parser.add_argument("--version")
    parser.add_argument("--spark", choices=["good", "slow", "none", "once"], default="good")
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--spark-later", action="store_true")
    given = parser.parse_args()
    if given.die:
        raise SystemExit("this worker has a defect")
    if given.version:
        worker_module.program_version = lambda: given.version
    attempts: list[int] = []

    def start_spark(begin: object) -> FakeSpark:
        attempts.append(1)
        if given.spark == "slow":
            while not (given.workspace / "spark-may-start").exists():
                time.sleep(0.01)
        if given.spark == "none" or (given.spark == "once" and len(attempts) == 1):
            raise OdfError("there is no Java", hint="install one")
        return FakeSpark(given.workspace)

    session.CANCEL_GRACE_SECONDS, session._POLL_SECONDS = 0.1, 0.01
    daemonize(given.workspace / ".odf" / "worker.log", foreground=False)
    return Worker(
        given.workspace,
        start_spark=start_spark,
        executor=run,
        spark_later=given.spark_later,
        config=WorkerConfig(idle_minutes=given.idle / 60, spark_idle_minutes=given.spark_idle / 60),
        send_patience=given.patience,
        stop_patience=2,
    ).run()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
