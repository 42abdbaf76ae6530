"""Many small ingests into one dataset with a derivative, through one worker: what grows, and by how much.

    python tests/bench/soak.py [INGESTS] [PULLS] [REPORT] [FOLDER]

The derivative is pulled after every PULLS ingests (10 by default). A row is printed after every REPORT
ingests (500 by default). The growth is that from the first report to the last one. "CPU ms" is the processor
time of worker and Java per ingest, with its share of the transforms; a busy machine changes it less than the
seconds. Goals over 10,000 ingests: the memory of the worker grows by at most 5 %, the time of a job and the
number of open descriptors and threads stay the same, the job log and the logs have a limit. The index and the
chain grow with the number of blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from odf_engine.coordinator.client import Client, run_jobs
from odf_engine.coordinator.protocol import Ingest, JobState, Pull, Request
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench.common import children

MANIFESTS = """\
kind: DatasetSnapshot
version: 1
content:
  name: readings
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: [event_time TIMESTAMP, city STRING, x DOUBLE]}
      merge: {kind: Append}
---
kind: DatasetSnapshot
version: 1
content:
  name: sums
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: readings, alias: readings}]
      transform:
        kind: Sql
        engine: spark
        query: SELECT window.start AS event_time, city, sum(x) AS x FROM readings
          GROUP BY window(event_time, '1 hour'), city
"""
COLUMNS = (
    "ingests", "worker MiB", "Java MiB", "descriptors", "threads", "CPU ms", "ingest s", "transform s",
    "job log KiB", "logs KiB", "index KiB", "caches KiB", "scratch KiB",
)  # fmt: skip
ROWS = 10


def main() -> None:
    numbers = [int(each) for each in sys.argv[1:4]]
    ingests, pulls, report = [*numbers, *(10_000, 10, 500)[len(numbers) :]]
    root = Path(sys.argv[4]) if len(sys.argv) > 4 else Path(tempfile.mkdtemp(prefix="odf-soak-"))
    workspace = Workspace.init(root / "workspace")
    readings, sums = workspace.add(read_manifests(MANIFESTS, "soak"))
    file = root / "rows.ndjson"
    table: list[list[float]] = []
    used = 0.0
    print("  ".join(COLUMNS), flush=True)
    try:
        ingested: list[float] = []
        transformed: list[float] = []
        for number in range(1, ingests + 1):
            file.write_text("".join(_row(number, at) for at in range(ROWS)))
            ingested.append(run(workspace, readings, Ingest(str(readings.id), [str(file)])))
            if number % pulls == 0:
                transformed.append(run(workspace, sums, Pull(str(sums.id))))
            if number % report == 0:
                *measured, cpu = asyncio.run(measure_worker(workspace))
                each_cpu, used = 1000 * (cpu - used) / report, cpu
                seconds = [statistics.median(each) if each else 0.0 for each in (ingested, transformed)]
                table.append([number, *measured, each_cpu, *seconds, *sizes(workspace)])
                print_row(table[-1])
                ingested, transformed = [], []
    finally:
        with contextlib.suppress(Exception):
            asyncio.run(stop(workspace))
        if table:
            print("growth from the first report to the last one:")
            print_row(
                [last / first if first else 0.0 for first, last in zip(table[0], table[-1], strict=True)]
            )


def _row(number: int, at: int) -> str:
    minute = (number * ROWS + at) % 1440
    day = number * ROWS // 1440 % 28
    moment = (
        f"2024-{1 + number * ROWS // 40320 % 12:02d}-{1 + day:02d}T{minute // 60:02d}:{minute % 60:02d}:00Z"
    )
    return json.dumps({"event_time": moment, "city": f"c{at % 3}", "x": number + at / 7}) + "\n"


def run(workspace: Workspace, entry: DatasetEntry, request: Request) -> float:
    """Run a job; its seconds."""
    began = time.perf_counter()
    (job,) = run_jobs(workspace.folder, [(request, str(entry.alias))])
    if job.state is not JobState.done:
        raise SystemExit(f"{entry.alias}: {job.state.value}: {job.error}")
    return time.perf_counter() - began


async def measure_worker(workspace: Workspace) -> tuple[float, float, int, int, float]:
    """Resident memory of the worker and of Java in MiB; open descriptors, threads; CPU seconds of both."""
    client = await Client.connect(workspace.folder, start=False)
    try:
        status = await client.ping()
    finally:
        await client.close()
    java = children(status.pid)
    return (
        _status(status.pid, "VmRSS") / 1024,
        sum(_status(pid, "VmRSS") for pid in java) / 1024,
        status.descriptors,
        _status(status.pid, "Threads"),
        sum(map(_cpu_seconds, (status.pid, *java))),
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def sizes(workspace: Workspace) -> tuple[float, ...]:
    """KiB of the job log, the logs, the index, the caches and the temporary files."""
    odf = workspace.odf
    groups = ("jobs.sqlite*", "*.log*", "index.sqlite*", "cache/**/*", "**/scratch/**/*")
    return tuple(
        sum(each.stat().st_size for each in odf.glob(pattern) if each.is_file()) / 1024 for pattern in groups
    )


async def stop(workspace: Workspace) -> None:
    """Stop the worker."""
    client = await Client.connect(workspace.folder, start=False)
    await client.stop()


def print_row(values: Sequence[float]) -> None:
    """Print a row of the table."""
    cells = (f"{value:,.0f}" if value >= 20 else f"{value:.2f}" for value in values)
    print("  ".join(cell.rjust(len(head)) for cell, head in zip(cells, COLUMNS, strict=True)), flush=True)


if __name__ == "__main__":
    main()
