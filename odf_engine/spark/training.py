"""Records a class-data archive: starts a Spark of its own, does a typical job, lets it end.

Runs as ``python -m odf_engine.spark.training JAVA_HOME`` at the lowest priority; :class:`Training`
is what starts that from a process that has other things to do.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.progress import Reporter
from odf_engine.spark import archive
from odf_engine.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CALM_SECONDS: Final = 5.0
_STEP_SECONDS: Final = 0.5
_ROWS: Final = 2000
_QUERIES: Final = (
    "SELECT id, CAST(at AS TIMESTAMP) AS at, upper(name) AS name, price * 2 AS p FROM input WHERE id > 9",
    "SELECT day, count(*) AS n, sum(price) AS price FROM input GROUP BY day ORDER BY day",
    "SELECT l.id, r.name FROM input l JOIN input r ON l.id = r.id",
)


class Training(threading.Thread):
    """Warms Spark up, then waits for a calm moment and has the archive recorded by another process.

    Args:
        java: which Java the archive is for.
        busy: whether somebody waits for work to be done; asked twice a second.
        warm_up: does a small job.
    """

    def __init__(self, java: Java, busy: Callable[[], bool], warm_up: Callable[[], None]) -> None:
        super().__init__(name="class-data-archive", daemon=True)
        self._java = java
        self._busy = busy
        self._warm_up = warm_up
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """The thread itself."""
        if not self._busy():
            self._warm_up()
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


def typical_job(session: SparkSession, scratch: Path) -> None:
    """What people do: read text and Parquet, query it, take the rows out as Arrow batches."""
    import pyarrow.parquet as pq

    from odf_engine.metadata.model import Csv, NdJson, SqlQueryStep
    from odf_engine.spark.query import run_query
    from odf_engine.spark.readers import read_csv, read_json, read_parquet

    made = _rows(_ROWS)
    schema = _schema()
    lines, objects, parquet = (scratch / f"rows.{suffix}" for suffix in ("csv", "json", "parquet"))
    lines.write_text(_as_csv(made))
    objects.write_text("".join(json.dumps(row) + "\n" for row in made))
    pq.write_table(pa.Table.from_pylist(made), parquet)
    frames = [
        read_csv(session, lines, Csv(), schema, scratch=scratch),
        read_json(session, objects, NdJson(), schema, scratch=scratch),
        read_parquet(session, parquet, None, scratch=scratch),
    ]
    for frame in frames:
        _take(frame)
        for query in _QUERIES:
            _take(run_query(session, {"input": frame}, [SqlQueryStep(query=query)]))


def smallest_job(session: SparkSession, scratch: Path) -> None:
    """A few rows of CSV through a query: enough for Java to have seen what the next job needs."""
    from odf_engine.metadata.model import Csv, SqlQueryStep
    from odf_engine.spark.query import run_query
    from odf_engine.spark.readers import read_csv

    lines = scratch / "rows.csv"
    lines.write_text(_as_csv(_rows(50)))
    frame = read_csv(session, lines, Csv(), _schema(), scratch=scratch)
    _take(run_query(session, {"input": frame}, [SqlQueryStep(query=_QUERIES[0])]))


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "at": f"2024-01-{i % 28 + 1:02}T10:00:00Z",
            "day": "2024-01-31",
            "price": i / 4,
            "name": "a b",
        }
        for i in range(count)
    ]


def _schema() -> pa.Schema:
    moment, price = pa.timestamp("ms", "UTC"), pa.decimal128(12, 2)
    kinds = {"id": pa.int64(), "at": moment, "day": pa.date32(), "price": price, "name": pa.string()}
    return pa.schema(list(kinds.items()))


def _as_csv(rows: list[dict[str, Any]]) -> str:
    return "".join(",".join(map(str, row.values())) + "\n" for row in rows)


def _take(frame: DataFrame) -> None:
    from odf_engine.spark.frames import arrow_batches

    for _ in arrow_batches(frame, Reporter())[1]:
        pass


def main() -> None:
    """Runs within the process that :class:`Training` starts."""
    os.nice(19)
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record(find_java(sys.argv[1]))


if __name__ == "__main__":
    main()
