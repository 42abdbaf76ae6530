"""As-of joins of a derivative dataset against the plain plan in bare Spark.

    python tests/bench/bench_as_of.py [--rows N] [--versions N] [--keys N] [--slices N] [--heap SIZE]
        [--runs N] [--random]

One transaction joins the rows with the versions of the keys that are valid at their event time (1,000,000
rows, 100,000 versions and 50 keys by default). The plain plan runs in the same Java over the same files: a
union of both sides, a window with the last version by key and time, and a filter, written as Parquet. Rows
arrive about in the order of their time, or with ``--random`` in any order. The minimum of the runs counts.
The processor time of Java and Python follows, which other programs on the machine disturb less, and that of
the phases of the best run; a phase does not include the others within it.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.transform.engines import as_of_transaction, stateful_transaction
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.bench_transform import row
from tests.bench.common import measured, processor_seconds, table
from tests.transform.deriving import DATA, Deriving

QUERY = """
SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades AS t
JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.city = r.city
"""
PLAIN = """
SELECT time, city, x, version.x AS rate FROM (
    SELECT time, city, x, side, last(found, true) OVER (PARTITION BY city ORDER BY time) AS version FROM (
        SELECT event_time AS time, city, 0 AS side, NULL AS x, struct(x, event_time) AS found FROM rates
        UNION ALL SELECT event_time, city, 1, x, NULL FROM trades
    )
) WHERE side = 1 AND version IS NOT NULL
"""
START, PERIOD, JITTER = 1_700_000_000_000, 10_000_000_000, 60_000
SEED = 3


class Phases:
    """Processor time of some functions, each without the time of the others that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = processor_seconds()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time of the block."""
        self._count()
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        now = processor_seconds()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def wrap(self, owner: Any, function: str, name: str) -> Any:
        """Patches a function so that its time counts, and that of the iterators which it returns."""
        original: Callable[..., Any] = getattr(owner, function)

        def counted(*args: Any, **named: Any) -> Any:
            with self.phase(name):
                result = original(*args, **named)
            if type(result) is tuple:
                return (*result[:-1], self._iterate(result[-1], name))
            return self._iterate(result, name) if isinstance(result, Iterator) else result

        return mock.patch.object(owner, function, counted)

    def _iterate(self, items: Iterator[Any], name: str) -> Iterator[Any]:
        try:
            while True:
                with self.phase(name):
                    item = next(items, None)
                if item is None:
                    return
                yield item
        finally:
            items.close()  # type: ignore[attr-defined]


PHASES: list[tuple[Any, str, str]] = [
    (as_of_transaction, "arrow_batches", "read and join"),
    (as_of_transaction, "map_batches", "rest of the query"),
    (as_of_transaction, "external_sort", "order"),
    (as_of_transaction.AsOfTransaction, "_run_join", "plan"),
    (as_of_transaction.AsOfTransaction, "_write_joined_rows", "joined rows"),
    (as_of_transaction.AsOfTransaction, "_write_state", "state"),
    (as_of_transaction.AsOfTransaction, "_write_slice", "write"),
    (stateful_transaction, "write_checkpoint", "state"),
]


def add_rows(deriving: Deriving, entry: DatasetEntry, count: int, options: argparse.Namespace) -> None:
    """Commits rows in slices."""
    random = np.random.default_rng(SEED + count)
    each = count // options.slices
    for number in range(options.slices):
        times = random.integers(number * PERIOD, (number + 1) * PERIOD, each) // options.slices
        if not options.random:
            times = np.sort(times) + random.integers(0, JITTER, each)
        columns = [
            pa.array(START + times, pa.int64()).cast(DATA.field(0).type),
            pa.array([f"city {key}" for key in range(options.keys)]).take(
                pa.array(random.integers(0, options.keys, each))
            ),
            pa.array(random.integers(0, 1000, each), pa.int64()),
        ]
        last = number == options.slices - 1
        watermark = START + (PERIOD + JITTER if last else number * PERIOD // options.slices)
        deriving.batch(entry, pa.record_batch(columns, schema=DATA), watermark)


def measure(root: Path, options: argparse.Namespace) -> None:
    spark = SparkOptions(driver_memory=options.heap)
    runtime = SparkRuntime(spark, root / "spark.log", root / "cache")
    runtime.start()
    try:
        deriving = Deriving(Workspace.init(root / "ws"), runtime)
        inputs = {name: deriving.root(name) for name in ("trades", "rates")}
        add_rows(deriving, inputs["trades"], options.rows, options)
        add_rows(deriving, inputs["rates"], options.versions, options)
        paths: dict[str, list[str]] = {}
        for name, entry in inputs.items():
            folder = root / name
            folder.mkdir()
            for number, each in enumerate(entry.dataset.slices()):
                shutil.copyfile(entry.dataset.slice_path(each), folder / f"{number}.parquet")
            paths[name] = [str(each) for each in folder.iterdir()]

        def plain() -> None:
            session = runtime.session()
            for name in inputs:
                session.read.parquet(*paths[name]).createOrReplaceTempView(name)
            session.sql(PLAIN).write.mode("overwrite").parquet(str(root / "plain"))

        ours: list[tuple[tuple[float, float], dict[str, float]]] = []
        theirs: list[tuple[float, float]] = []
        for number in range(options.runs):
            entry = deriving.derivative(QUERY, *inputs, name=f"output{number}", rates="city")
            phases = Phases()
            with contextlib.ExitStack() as stack:
                for owner, function, name in PHASES:
                    stack.enter_context(phases.wrap(owner, function, name))
                with phases.phase("other"):
                    times = measured(lambda entry=entry: deriving.run(entry))
            ours.append((times, phases.seconds))
            theirs.append(measured(plain))
        what = f"{options.rows:,} rows, {options.versions:,} versions, {options.keys} keys"
        cells = [
            row(name, min(each[0][at] for each in ours), min(each[at] for each in theirs), 1.5)
            for at, name in enumerate((what, "processor time"))
        ]
        table("As-of joins", cells)
        parts = min(ours, key=lambda each: each[0][1])[1]
        print()
        for name, part in parts.items():
            print(f"{name:17} {part:7.3f} s")
    finally:
        runtime.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--versions", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--slices", type=int, default=1)
    parser.add_argument("--heap", default="1500m")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--random", action="store_true")
    root = Path(tempfile.mkdtemp(prefix="odf-bench-"))
    try:
        measure(root, parser.parse_args())
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
