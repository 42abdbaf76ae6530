"""Records a class-data archive: starts a Spark of its own, does a typical job, lets it end.

Runs as ``python -m odf_engine.spark.training JAVA_HOME`` at the lowest priority; :class:`Training`
is what starts that from a process that has other things to do.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from odf_engine.spark import archive
from odf_engine.spark.java import Java, find_java

_CALM_SECONDS: Final = 5.0
_STEP_SECONDS: Final = 0.5
_ROWS: Final = 2000


class Training(threading.Thread):
    """Waits for a calm moment, then has the archive recorded by another process.

    Args:
        java: which Java the archive is for.
        busy: whether somebody waits for work to be done; asked twice a second.
    """

    def __init__(self, java: Java, busy: Callable[[], bool]) -> None:
        super().__init__(name="class-data-archive", daemon=True)
        self._java = java
        self._busy = busy
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """The thread itself."""
        if not archive.enabled() or archive.find(self._java) is not None or not self._calm():
            return
        with self._lock:
            if self._over.is_set():
                return
            self._process = subprocess.Popen(
                [sys.executable, "-m", "odf_engine.spark.training", str(self._java.home)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._process.wait()

    def stop(self) -> None:
        """Gives up; whatever was running ends at once and leaves nothing."""
        self._over.set()
        with self._lock:
            process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
        if self.is_alive():
            self.join()

    def _calm(self) -> bool:
        calm = 0.0
        while calm < _CALM_SECONDS:
            if self._over.wait(_STEP_SECONDS):
                return False
            calm = 0.0 if self._busy() else calm + _STEP_SECONDS
        return True


def record(java: Java) -> Path | None:
    """Records the archive for this Java, unless it is there or another process is about it.

    Returns:
        Where it is now, or None when somebody else records it.

    Raises:
        SparkFailed: Spark did not start or wrote no archive.
    """
    target = archive.path_for(java)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_suffix(".lock")) as alone:
        if not alone:
            return None
        if (there := archive.find(java)) is not None:
            return there
        with tempfile.TemporaryDirectory(prefix="recording-", dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            archive.make_base(java, made)
            _run_spark(java, made)
            archive.publish(java, made)
    return target


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    file: IO[str]
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _run_spark(java: Java, made: Path) -> None:
    from odf_engine.spark.session import SparkRuntime
    from odf_engine.spark.settings import SparkOptions

    options = SparkOptions(master="local[2]", driver_memory="512m", java=str(java.home))
    runtime = SparkRuntime(
        options, made.parent / "spark.log", made.parent, java_flags=archive.flags_to_record(java, made)
    )
    runtime.start()
    try:
        typical_job(runtime.session(), made.parent)
        runtime.let_end()
    finally:
        runtime.stop()


def typical_job(session: Any, scratch: Path) -> None:
    """What people do first: read text, query it, take the rows out as Arrow batches."""
    raise NotImplementedError


def main() -> None:
    """Runs within the process that :class:`Training` starts."""
    os.nice(19)
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record(find_java(sys.argv[1]))


if __name__ == "__main__":
    main()
