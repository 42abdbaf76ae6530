"""Clusters: whether one answers, and whether its executors see the files that they read and write.

Everything that a job touches lies under one path here and on every machine of the cluster: the slices of
the workspace, and `.odf/cache`, where fetched files, the state of streams and intermediate rows are.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from odf_engine.spark.launch import SparkFailed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

WAIT_SECONDS: Final = 120.0
"""How long a cluster may take until it gives an executor."""

_PORT: Final = 7077
_CONNECT_SECONDS: Final = 10.0
_FILES: Final = 16
_ROUNDS: Final = 5
_LOST_ON: Final = re.compile(r"\(TID \d+\) \((\S+) executor")
_SHARE: Final = (
    "the workspace has to lie on a path that all machines of the cluster share, under the same name, "
    "and that the executors' user may write"
)


def check_master(master: str) -> None:
    """Lets pass a standalone cluster that can be reached, and every other kind.

    Spark itself would try for a minute, and then say something else.

    Raises:
        SparkFailed: no master answers.
    """
    if not master.startswith("spark://"):
        return
    reason = ""
    for part in master.removeprefix("spark://").split(","):
        try:
            address = urlsplit(f"//{part}")
            to = (address.hostname or "localhost", address.port or _PORT)
            socket.create_connection(to, _CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            reason = str(getattr(error, "strerror", None) or error)
        else:
            return
    raise SparkFailed(
        f"the cluster {master} does not answer: {reason}",
        hint="start it, or say where Spark runs: odf config set spark.master 'local[*]'",
    )


def was_ended(context: SparkContext) -> bool:
    """Whether the cluster has put an end to the application, of which nothing more is to be had."""
    from py4j.protocol import Py4JError

    java: Any = context._jsc
    try:
        return bool(java.sc().isStopped())
    except (Py4JError, OSError):
        return True


def check_executors(session: SparkSession, folder: Path, shown: Path) -> None:
    """Has every executor read files of ours and write files for us.

    Args:
        session: any.
        folder: an empty folder on the path that has to be shared.
        shown: how errors name that path.

    Raises:
        SparkFailed: the cluster gives no executors, or one does not see the path.
    """
    given, made = folder / "given", folder / "made"
    session.conf.set("spark.sql.files.openCostInBytes", "16m")  # each file is a task of its own
    checked: set[str] = set()
    try:
        for _ in range(_ROUNDS):
            # Executors that came meanwhile have their turn in the next round.
            waiting = [each for each in _executors(session) if str(each.id()) not in checked]
            if checked and not waiting:
                return
            token = uuid.uuid4().hex
            count = max(_FILES, 2 * sum(int(each.totalCores()) for each in _executors(session)))
            given.mkdir()
            for number in range(count):
                (given / str(number)).write_text(token)
            _copy(session, given, made, shown)
            found = "".join(path.read_text() for path in made.glob("part-*")).split()
            if found != [token] * count:
                raise SparkFailed(f"what executors write to {shown} is not there", hint=_SHARE)
            checked |= {str(each.id()) for each in _executors(session) if int(each.completedTasks()) > 0}
            shutil.rmtree(given)
            shutil.rmtree(made)
    except OSError as error:
        raise SparkFailed(f"what executors write to {shown} is not ours: {error}", hint=_SHARE) from error


def _copy(session: SparkSession, given: Path, made: Path, shown: Path) -> None:
    """Has executors copy a folder.

    Raises:
        SparkFailed: one cannot, although others could; or none came.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from odf_engine.spark.text import spark_path

    with _in_time(session) as late:
        try:
            frame = session.read.schema("value STRING").text(spark_path(given))
            frame.write.text(str(made))
        except (PySparkException, Py4JError) as error:
            if late.is_set():
                raise SparkFailed(
                    f"the cluster gave no executor within {WAIT_SECONDS:.0f} seconds",
                    hint="it may be busy, or no worker has what `spark.executor.memory` and "
                    "`spark.executor.cores` (in `spark.conf`) ask for",
                ) from error
            where = _LOST_ON.search(str(_message(error)))
            raise _unseen(where[1] if where else "", shown) from error
    failed = next((str(each.hostPort()) for each in _executors(session) if int(each.failedTasks()) > 0), None)
    if failed is not None:
        raise _unseen(failed, shown)


def _unseen(host: str, shown: Path) -> SparkFailed:
    which = f"the executor on {host}" if host else "an executor"
    return SparkFailed(f"{which} cannot read and write in {shown}", hint=_SHARE)


def _message(error: BaseException) -> str:
    from odf_engine.spark.causes import causes_of

    return " ".join(each.message for each in causes_of(error))


@contextmanager
def _in_time(session: SparkSession) -> Iterator[threading.Event]:
    """Cancels the jobs of this thread when they take too long; the event says whether they did."""
    context = session.sparkContext
    group, late = f"odf-{uuid.uuid4().hex}", threading.Event()

    def cancel() -> None:
        late.set()
        context.cancelJobGroup(group)

    timer = threading.Timer(WAIT_SECONDS, cancel)
    timer.daemon = True
    context.setJobGroup(group, "odf")
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)  # pyright: ignore[reportArgumentType]


def _executors(session: SparkSession) -> list[Any]:
    """What Spark knows of the executors that run."""
    java: Any = session.sparkContext._jsc
    found = java.sc().statusStore().executorList(True)
    every = [found.apply(at) for at in range(found.size())]
    return [each for each in every if str(each.id()) != "driver"]
