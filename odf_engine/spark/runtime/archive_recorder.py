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
from odf_engine.spark.runtime.jvm import Java, find_java
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.spark.runtime.training import training_job


def record_archive(java: Java) -> Path | None:
    """Record the archive for a Java runtime, unless it exists or another process records it.

    Returns:
        Path of the archive, or None if another process records it.

    Raises:
        SparkFailed: Spark did not start, or wrote no archive.
    """
    target = class_data_archive.archive_path(java)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive_lock(target.with_suffix(".lock")) as locked:
        if not locked:
            return None
        if (existing := class_data_archive.find_archive(java)) is not None:
            return existing
        with tempfile.TemporaryDirectory(prefix="recording-", dir=target.parent) as scratch:
            archive = Path(scratch) / target.name
            class_data_archive.create_base_archive(java, archive)
            _run_spark(java, archive)
            class_data_archive.publish_archive(java, archive)
    return target


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[bool]:
    file: IO[str]
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _run_spark(java: Java, archive: Path) -> None:
    options = SparkOptions(master="local[2]", driver_memory="512m", java=str(java.home))
    runtime = SparkRuntime(
        options,
        archive.parent / "spark.log",
        archive.parent,
        java_flags=class_data_archive.record_flags(java, archive),
    )
    runtime.start()
    try:
        training_job(runtime.session(), archive.parent)
        runtime.wait_until_exited()
    finally:
        runtime.stop()


def main() -> None:
    """Run the process that :class:`ArchiveTrainer` starts."""
    os.nice(19)
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record_archive(find_java(sys.argv[1]))


if __name__ == "__main__":
    main()
