"""A pull of a ledger with a long history, against the broadcast two-step anti-join in bare Spark.

    python tests/bench/bench_ledger.py [HISTORY] [NEW] [FOLDER]

The history has 100 million rows by default, of 8 columns, in slices of 10 million; the source is a
Parquet file of 100,000 rows, half of which are known. The slices are made directly, and the first pull
makes the keys that are kept beside the dataset; the others are measured, from fetch to commit. The
baseline looks for the new keys in the key column of all slices, the new keys sent to every task
(semi-join), and takes those found out of the new rows (anti-join); it writes nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainUpdate
from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.slices import slice_schema, write_slice
from odf_engine.ingest.polling_source import pull
from odf_engine.metadata.model import AddData, DataSlice, SetDataSchema
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.progress import Reporter
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import Peaks, make_rows, table, timed, verdict

RUNS = 3
SLICE = 10_000_000
STEP = 500_000
MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: ledger
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:{file}"}}
      read: {{kind: Parquet}}
      merge: {{kind: Ledger, primaryKey: [id]}}
"""


def main() -> None:
    history = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000
    new = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    root = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp(prefix="odf-bench-"))
    root.mkdir(parents=True, exist_ok=True)
    source = root / "new.parquet"
    shutil.rmtree(root / "ws", ignore_errors=True)
    workspace = Workspace.init(root / "ws")
    (entry,) = workspace.add(read_manifests(MANIFEST.format(file=source), "bench"))
    made = timed(lambda: make_history(entry.dataset, history))
    spark = SparkRuntime(SparkOptions(), root / "spark.log", root / "cache")
    spark.start()
    pulls: list[float] = []

    def pulled() -> ChainUpdate:
        return pull(workspace, entry, spark, Reporter(), fetch_uncacheable=True)

    try:
        make_new(source, history, new, 0)
        peaks = Peaks([os.getpid(), spark.pid or 0])
        with peaks.watch():
            first = timed(lambda: pulled())
            for run in range(1, RUNS + 1):
                make_new(source, history, new, run)
                pulls.append(timed(lambda: check(pulled().records, new // 2)))
        slices = [entry.dataset.slice_path(row) for row in entry.dataset.slices()]
        bare = [timed(lambda: bare_anti_join(spark, slices, source)) for _ in range(RUNS)]
    finally:
        spark.stop()
    memory = " + ".join(f"{mib:.0f} MiB" for mib in peaks.mib.values())
    table(
        f"Ledger of {history:,} rows, {new:,} new ones, half of them known, {os.cpu_count()} cores;"
        f" best of {RUNS}",
        [
            ("pull, from fetch to commit, vs bare two-step anti-join", f"{min(pulls):.2f} s",
             f"{min(bare):.2f} s", verdict(min(pulls) / min(bare), 0.3)),
            ("memory of worker + Java, peak", memory, "", ""),
        ],
    )  # fmt: skip
    print(f"history made in {made:.0f} s; the first pull, which makes the keys: {first:.1f} s")
    print("pulls:", [round(each, 2) for each in pulls], "bare:", [round(each, 2) for each in bare])


def check(records: int, expected: int) -> None:
    if records != expected:
        raise SystemExit(f"{records:,} rows instead of {expected:,}")


def make_history(dataset: Dataset, rows: int) -> None:
    """Slices of rows with numbers from 0 on."""
    vocab = dataset.state().vocabulary
    schema = slice_schema(make_rows(0, 1).schema, vocab)
    for first in range(0, rows, SLICE):
        state = dataset.state()
        staged = dataset.staging_path("data")
        time = max(Timestamp.now(), state.system_time)
        written = write_slice(
            (
                batch
                for at in range(first, min(rows, first + SLICE), STEP)
                for batch in make_rows(at, min(STEP, rows - at)).to_batches()
            ),
            schema=schema,
            vocab=vocab,
            path=staged,
            first_offset=first,
            system_time=time,
            fallback_event_time=time,
            reporter=Reporter(),
        )
        assert written is not None
        data = DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=written.offset_interval,
            size=written.size,
        )
        events = [] if first else [SetDataSchema(schema=encode_schema(schema))]
        added = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=written.max_event_time)
        dataset.commit([*events, added], system_time=time, expected_head=state.head, data=staged)


def make_new(path: Path, history: int, count: int, run: int) -> None:
    """Rows that are known, from all over the history, then as many that are not."""
    half = count // 2
    step = history // half
    tables = [make_rows(run, half, step), make_rows(history + run * half, half)]
    pq.write_table(pa.concat_tables(tables), path)


def bare_anti_join(spark: SparkRuntime, slices: list[Path], new: Path) -> None:
    """The new rows whose keys are in none of the slices."""
    session = spark.session()
    new_rows = session.read.parquet(str(new))
    new_rows.createOrReplaceTempView("new")
    session.read.schema("id bigint").parquet(*map(str, slices)).createOrReplaceTempView("ledger")
    session.sql(
        "SELECT /*+ BROADCAST(k) */ l.id FROM ledger l LEFT SEMI JOIN (SELECT id FROM new) k ON l.id = k.id"
    ).createOrReplaceTempView("known")
    query = "SELECT /*+ BROADCAST(d) */ n.* FROM new n LEFT ANTI JOIN known d ON n.id = d.id"
    session.sql(query).write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
