"""Ticks of the scheduler with 10,000 scheduled flows, none of which is due: processor time and memory."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from pathlib import Path

from odf_engine.automation.flows.definition import Flow
from odf_engine.automation.flows.scheduler import FlowScheduler
from odf_engine.automation.flows.store import FlowStore
from odf_engine.workspace.documents.document import read_document
from tests.bench.measure import Figure, Metric, Size

FLOW = """
headers: {{name: flow-{number}}}
spec:
  target: data
  triggers: [{{kind: Schedule, cron: "{minute} {hour} * * *"}}]
  tasks: [{{kind: Pull}}]
"""
TICKS = 1000
NOW = 1_800_000_000.0
METRICS = {
    "median": Metric("tick, median", "", "<= 5 ms", "ms"),
    "max": Metric("tick, maximum", "", "<= 5 ms", "ms"),
    "memory": Metric("memory of the flows", "", "<= 20 MB", "MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    flows = size.pick(10_000, 500)
    store, scheduler = load(flows, folder / "ticks")
    seconds: list[float] = []
    for tick in range(TICKS):  # within a minute
        began = time.process_time()
        scheduler.tick(NOW + tick * 0.001)
        seconds.append(time.process_time() - began)
    store.close()
    tracemalloc.start()  # after the ticks, which tracing makes slower
    store, scheduler = load(flows, folder / "memory")
    memory = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    store.close()
    return [
        METRICS["median"].figure(statistics.median(seconds) * 1000),
        METRICS["max"].figure(max(seconds) * 1000),
        METRICS["memory"].figure(memory),
    ]


def load(count: int, folder: Path) -> tuple[FlowStore, FlowScheduler]:
    folder.mkdir()
    texts = [
        FLOW.format(number=number, minute=number % 60, hour=number // 60 % 24) for number in range(count)
    ]
    store = FlowStore(folder)
    scheduler = FlowScheduler(store, lambda flow, run: None)
    scheduler.recover([read_document(text.encode(), "bench", Flow) for text in texts], NOW)
    return store, scheduler
