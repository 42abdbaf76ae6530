"""Ten rules over 2 million new rows, compared with the pull that wrote the rows without rules."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.checks.definition import CheckDefinition
from odf_engine.checks.gate import DatasetChecks
from odf_engine.ingest.polling_source import pull
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace
from tests.bench.common import make_dataset
from tests.bench.measure import Figure, Metric, Size, cost, max_memory, run_in_process
from tests.bench.spark import start_spark

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
METRICS = {
    "rules": Metric("ten rules", "pull without rules", "<= 0.25x"),
    "memory": Metric("ten rules: additional memory", unit="MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    rows, workspace = size.pick(2_000_000, 20_000), Workspace.init(folder / "ws")
    columns = {
        "id": pa.array(range(rows), pa.int64()),
        "name": pa.array([f"name {number % 10_000}" for number in range(rows)]),
        "value": pa.array([float(number % 1000) for number in range(rows)]),
        "kind": pa.array(["abc"[number % 3] for number in range(rows)]),
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    entry = make_dataset(workspace, "data", folder / "rows.parquet", "kind: Parquet")
    with start_spark(folder) as spark:
        spark.session().range(1000).count()  # the pull should not pay for the first query
        pulled = cost(lambda: pull(workspace, entry, spark, Reporter()))
    Documents(workspace.odf, CheckDefinition).write(CHECK, "bench")
    checked = cost(lambda: check(workspace.folder))
    memory = run_in_process(check, workspace.folder)
    return [METRICS["rules"].figure(checked, pulled), METRICS["memory"].figure(memory)]


def check(folder: Path) -> float:
    """Check all rows. Returns the additional memory of the process."""
    before, workspace = max_memory(), Workspace(folder)
    results = DatasetChecks(workspace, workspace.resolve("data"), None).check_stored(Reporter())
    assert not any(result.failing for result in results), results
    return max_memory() - before
