"""Increments over a large state, against the read of the state.

    python tests/bench/bench_state.py [KEYS]

So many keys (1 million by default) are open in one window. The time of an increment of 1,000 rows is
compared with that of bare Spark reading all columns of the Parquet files of the state.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import pyarrow as pa

from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.bench_transform import Bench, row
from tests.bench.common import append_rows, table, timed

QUERY = (
    "SELECT window.start AS event_time, id, sum(visits) AS visits, count(*) AS n "
    "FROM input GROUP BY window(event_time, '40000 days'), id"
)
RUNS = 5


def main() -> None:
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    root = Path(tempfile.mkdtemp(prefix="odf-bench-"))
    runtime = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    runtime.start()
    try:
        bench = Bench(root, runtime)
        source, made = bench.source("large"), bench.derivative("large.made", "large", QUERY)
        append_rows(source, keys)
        print(f"first transaction: {timed(lambda: bench.run(made)):.1f} s")
        ours: list[float] = []
        for _ in range(RUNS):
            append_rows(source, 1000)
            ours.append(timed(lambda: bench.run(made)))
        checkpoint = made.dataset.state().last_checkpoint
        assert checkpoint is not None
        path = made.dataset.checkpoint_path(checkpoint.physical_hash)
        with (
            pa.input_stream(str(path), compression="zstd") as packed,
            tarfile.open(fileobj=packed, mode="r|") as tar,  # type: ignore[call-overload]
        ):
            tar.extractall(root / "state", filter="data")
        files = [str(each) for each in (root / "state").rglob("*.parquet")]
        size = sum(Path(each).stat().st_size for each in files)
        print(f"checkpoint: {path.stat().st_size:,} bytes; state: {size:,} bytes in {len(files)} files")

        def read() -> None:
            runtime.session().read.parquet(*files).write.format("noop").mode("overwrite").save()

        read()
        theirs = min(timed(read) for _ in range(RUNS))
        table("State", [row(f"1,000 rows over {keys:,} open keys", min(ours), theirs, 2.0)])
    finally:
        runtime.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
