"""Where one row of a windowed aggregate comes from, against running its transaction again.

    python tests/bench/bench_provenance.py [ROWS]

The input is one slice of so many rows (10 million by default), grouped by day and region in one
transaction; a row of the result is made of some 6,600 rows, which are all named. Both are done in the
same Java, warm.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.provenance.model import row_count
from odf_engine.provenance.step import TransactionTrace, producing_transactions, trace_back
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.transform.engines.spark_engine import SparkEngine
from odf_engine.transform.run import execute_transaction, make_request, transform
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import append_rows, make_empty, table, timed, verdict

QUERY = (
    "SELECT window.start AS event_time, region, count(*) AS n, sum(visits) AS visits, "
    "max(temperature) AS hottest FROM input GROUP BY window(event_time, '1 day'), region"
)
DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: made
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: input, alias: input}}]
      transform: {{kind: Sql, engine: spark, query: "{query}"}}
"""
GOAL, RUNS = 1.5, 3


def replay(workspace: Workspace, entry: DatasetEntry, engine: SparkEngine, root: Path) -> None:
    """Runs the transaction of a dataset again."""
    ((history, _),) = producing_transactions(entry, [(0, 0)])
    folder = Path(tempfile.mkdtemp(dir=root))
    transaction = history.transaction(workspace)
    request = make_request(transaction, folder, folder / "data", history.block.block.system_time)
    result = execute_transaction(engine, transaction, request, Reporter())
    assert result.written is not None and history.event.new_data is not None
    assert result.written.logical_hash == history.event.new_data.logical_hash
    shutil.rmtree(folder)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    root = Path(tempfile.mkdtemp(prefix="odf-bench-"))
    runtime = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    runtime.start()
    try:
        workspace = Workspace.init(root / "ws")
        append_rows(make_empty(workspace, "input"), rows)
        (made,) = workspace.add(read_manifests(DERIVATIVE.format(query=QUERY), "made"))
        engine = SparkEngine(runtime)
        transform(workspace, made, engine, Reporter())
        found: list[TransactionTrace] = []

        def trace() -> None:
            found[:] = trace_back(workspace, made, [(700, 700)], runtime, Reporter())

        trace()
        replaying = [timed(lambda: replay(workspace, made, engine, root)) for _ in range(RUNS)]
        tracing = [timed(trace) for _ in range(RUNS)]
        ((answer,), ours, theirs) = found, min(tracing), min(replaying)
        assert answer.exact, answer.reason
        print(f"{row_count(answer.feeds[0][2]):,} rows in {len(answer.feeds[0][2]):,} runs")
        line = (f"one row of windows over {rows:,} rows", f"{ours:.3f} s", f"{theirs:.3f} s",
                verdict(ours / theirs, GOAL))  # fmt: skip
        table("Provenance, and replaying the transaction", [line])
    finally:
        runtime.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
