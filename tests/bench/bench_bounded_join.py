"""Joins in a bound of time against bare Spark.

    python tests/bench/bench_bounded_join.py [ROWS]

Two inputs get so many rows (100,000 by default) in each of ten increments; each is a transaction of a
derivative that joins rows of the same device within 100 seconds. They are compared with one bare Spark batch
over all files that writes Parquet. The batch compares all rows of the same device, 50 million pairs. It runs
once. The processor time of Java and Python follows, which other programs on the machine disturb less.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.bench_transform import Bench, link, row
from tests.bench.bench_windows import PARTS, SCHEMA
from tests.bench.common import append_rows, measured, table

QUERY = (
    "SELECT l.event_time, l.id, l.visits, r.temperature FROM l JOIN r ON l.device = r.device "
    "AND r.event_time BETWEEN l.event_time - INTERVAL 100 SECONDS AND l.event_time + INTERVAL 100 SECONDS"
)
DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: joined
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: l, alias: l}}, {{datasetRef: r, alias: r}}]
      transform: {{kind: Sql, engine: spark, query: "{query}"}}
"""


def measure(bench: Bench, rows: int) -> list[tuple[str, str, str, str]]:
    inputs = {name: bench.source(name) for name in ("l", "r")}
    (made,) = bench.workspace.add(read_manifests(DERIVATIVE.format(query=QUERY), "joined"))
    for name, source in inputs.items():
        (bench.root / name).mkdir()
        # Java has learned what it does before it is measured.
        append_rows(source, 1000)
    bench.run(made)
    costs: list[tuple[float, float]] = []
    for number in range(PARTS):
        for name, source in inputs.items():
            append_rows(source, rows)
            link(source, bench.root / name / f"{number}.parquet")
        costs.append(measured(lambda: bench.run(made)))

    def bare() -> None:
        session = bench.runtime.session()
        for name in inputs:
            session.read.schema(SCHEMA).parquet(str(bench.root / name)).createOrReplaceTempView(name)
        session.sql(QUERY).write.mode("overwrite").parquet(str(bench.root / "bare"))

    batch = measured(bare)
    what = f"{PARTS} increments of {rows:,} rows, and one batch"
    return [
        row(name, sum(each[at] for each in costs), batch[at], 3.0)
        for at, name in enumerate((what, "  processor time"))
    ]


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    root = Path(tempfile.mkdtemp(prefix="odf-bench-"))
    runtime = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    runtime.start()
    try:
        table("Joins in a bound of time", measure(Bench(root, runtime), rows))
    finally:
        runtime.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
