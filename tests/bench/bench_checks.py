"""Cost of ten rules over new rows, relative to the pull that wrote them.

    python tests/bench/bench_checks.py [ROWS]      (default: 2,000,000; limit: 0.25)

Prints the seconds of the pull without rules, of the rules alone, their ratio, and the memory of the rules.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.checks.definition import check_files
from odf_engine.checks.gate import DatasetChecks
from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.workspace import Workspace

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: data
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: rows.parquet}
      read: {kind: Parquet}
      merge: {kind: Append}
"""
CHECK = b"""
headers: {name: bench}
spec:
  target: data
  rules:
    - {kind: NotNull, columns: [id, name, value]}
    - {kind: Unique, columns: [id]}
    - {kind: Range, column: value, min: 0, max: 1000}
    - {kind: Range, column: id, min: 0}
    - {kind: Pattern, column: name, pattern: "^name [0-9]+$"}
    - {kind: Set, column: kind, values: [a, b, c]}
    - {kind: NotNull, columns: [kind]}
    - {kind: RowCount, min: 1}
    - {kind: Freshness, maxAge: 1d}
    - {kind: Range, column: name, min: name}
"""


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        workspace = Workspace.init(Path(name) / "ws")
        columns = {
            "id": pa.array(range(rows), pa.int64()),
            "name": pa.array([f"name {number % 10_000}" for number in range(rows)]),
            "value": pa.array([float(number % 1000) for number in range(rows)]),
            "kind": pa.array(["abc"[number % 3] for number in range(rows)]),
        }
        pq.write_table(pa.table(columns), workspace.folder / "rows.parquet")
        (entry,) = workspace.add(read_manifests(MANIFEST, "bench"))
        spark = SparkRuntime(SparkOptions(), Path(name) / "spark.log", Path(name) / "cache")
        spark.start()
        try:
            spark.session().range(1000).count()  # the pull must not pay for the first query
            began = time.monotonic()
            pull(workspace, entry, spark, Reporter())
            pulled = time.monotonic() - began
        finally:
            spark.stop()
        check_files(workspace.odf).write(CHECK, "bench")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        results = DatasetChecks(workspace, entry, None).check_stored(Reporter())
        checked = time.monotonic() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        assert not any(each.failing for each in results), results
        print(f"{rows:,} rows, {len(results)} rules: pull {pulled:.1f} s, rules {checked:.1f} s")
        print(f"ratio {checked / pulled:.2f} (limit 0.25), peak memory +{grown} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
