"""Growth over 10,000 small ingests into one dataset through one worker, with a derivative.

The derivative dataset is pulled after every 10 ingests. The last 500 ingests are compared with the first 500.
The index grows with the number of blocks and has no goal; the times of jobs may vary by a tenth.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from odf_engine.jobs.ingest import Ingest
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import Figure, Metric, Size, children, processor_seconds, read_status
from tests.bench.worker import pull, read_worker_status, run_job, stopping_worker

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
ROWS = 10
FILES = {
    "job log": "jobs.sqlite*", "logs": "*.log*", "index": "index.sqlite*", "caches": "cache/**/*",
    "temporary files": "**/scratch/**/*",
}  # fmt: skip
_FIRST = "the first ingests"
METRICS = {
    "worker": Metric("memory of the worker", _FIRST, "<= 1.05x", "MB"),
    "java": Metric("memory of Java", _FIRST, "", "MB"),
    "descriptors": Metric("open descriptors", _FIRST, "<= 1x", ""),
    "threads": Metric("threads of the worker", _FIRST, "<= 1x", ""),
    "processor": Metric("processor time of an ingest", _FIRST),
    "ingest": Metric("time of an ingest", _FIRST, "<= 1.1x"),
    "transform": Metric("time of a transform", _FIRST, "<= 1.1x"),
    **{name: Metric(f"size of the {name}", _FIRST, "", "KiB") for name in FILES},
}


def run(size: Size, folder: Path) -> list[Figure]:
    ingests, pulls, report = size.pick(10_000, 8), size.pick(10, 4), size.pick(500, 4)
    workspace = Workspace.init(folder / "workspace")
    readings, sums = workspace.add(read_manifests(MANIFESTS, "soak"))
    file = folder / "rows.ndjson"
    samples: list[dict[str, float]] = []
    with stopping_worker(workspace):
        used, times = 0.0, dict[str, list[float]](ingest=[], transform=[])
        for number in range(1, ingests + 1):
            file.write_text("".join(make_row(number, row) for row in range(ROWS)))
            times["ingest"].append(run_job(workspace, readings, Ingest(str(readings.id), [str(file)])))
            if number % pulls == 0:
                times["transform"].append(pull(workspace, sums))
            if number % report == 0:
                sample = measure_worker(workspace)
                total = sample["processor"]
                sample["processor"], used = (total - used) / report, total
                sample |= {name: statistics.median(seconds) for name, seconds in times.items()}
                samples.append(sample)
                times = {name: [] for name in times}
    return [metric.figure(samples[-1][name], samples[0][name]) for name, metric in METRICS.items()]


def make_row(number: int, row: int) -> str:
    minute = (number * ROWS + row) % 1440
    day, month = 1 + number * ROWS // 1440 % 28, 1 + number * ROWS // 40320 % 12
    time = f"2024-{month:02}-{day:02}T{minute // 60:02}:{minute % 60:02}:00Z"
    return json.dumps({"event_time": time, "city": f"c{row % 3}", "x": number + row / 7}) + "\n"


def measure_worker(workspace: Workspace) -> dict[str, float]:
    """Return the resources of the worker and Java, and the sizes of files."""
    status = read_worker_status(workspace)
    memory = [read_status("VmRSS", pid) * 1024 / 1e6 for pid in (status.pid, *children(status.pid))]
    sizes = {
        name: sum(path.stat().st_size for path in workspace.odf.glob(pattern) if path.is_file()) / 1024
        for name, pattern in FILES.items()
    }
    return {
        "worker": memory[0],
        "java": sum(memory[1:]),
        "descriptors": status.descriptors,
        "threads": read_status("Threads", status.pid),
        "processor": processor_seconds(status.pid),
        **sizes,
    }
