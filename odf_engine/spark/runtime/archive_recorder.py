"""Process that records a class-data archive (``python -m odf_engine.spark.runtime.archive_recorder
HOME``).
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from odf_engine.spark.runtime import class_data_archive
from odf_engine.spark.runtime.class_data_archive import training_job
from odf_engine.spark.runtime.jvm import Java, find_java


def record(java: Java) -> Path | None:
    """Record the archive for a Java runtime, unless it exists or another process records it.

    Returns:
        Path of the archive, or None if another process records it.

    Raises:
        SparkFailed: Spark did not start, or wrote no archive.
    """
    target = class_data_archive.path_for(java)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_suffix(".lock")) as alone:
        if not alone:
            return None
        if (there := class_data_archive.find(java)) is not None:
            return there
        with tempfile.TemporaryDirectory(prefix="recording-", dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            class_data_archive.make_base(java, made)
            _run_spark(java, made)
            class_data_archive.publish(java, made)
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
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.spark.runtime.spark_conf import SparkOptions

    options = SparkOptions(master="local[2]", driver_memory="512m", java=str(java.home))
    runtime = SparkRuntime(
        options,
        made.parent / "spark.log",
        made.parent,
        java_flags=class_data_archive.flags_to_record(java, made),
    )
    runtime.start()
    try:
        training_job(runtime.session(), made.parent)
        runtime.let_end()
    finally:
        runtime.stop()


def main() -> None:
    """Run the process that :class:`ArchiveTrainer` starts."""
    os.nice(19)
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record(find_java(sys.argv[1]))


if __name__ == "__main__":
    main()
