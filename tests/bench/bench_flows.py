"""Time of a scheduler's tick, and its memory, with 10,000 scheduled flows (limits: 5 ms, 20 MB).

Ticks are measured in CPU time, without the time of other processes.

python tests/bench/bench_flows.py [FLOWS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from odf_engine.flows.definition import read_flow
from odf_engine.flows.scheduler import FlowScheduler
from odf_engine.flows.store import FlowStore

FLOW = """
headers: {{name: flow-{number}}}
spec:
  target: data
  triggers: [{{kind: Schedule, cron: "{minute} {hour} * * *"}}]
  tasks: [{{kind: Pull}}]
"""
TICKS = 1000


NOW = 1_800_000_000.0


def load(count: int, folder: Path) -> tuple[FlowStore, FlowScheduler]:
    flows = [
        read_flow(FLOW.format(number=number, minute=number % 60, hour=number // 60 % 24).encode(), "bench")
        for number in range(count)
    ]
    store = FlowStore(folder)
    scheduler = FlowScheduler(store, lambda flow, run: None)
    scheduler.recover(flows, NOW)
    return store, scheduler


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, scheduler = load(count, Path(folder))
        seconds = []
        for tick in range(TICKS):  # within a minute: no flow is due
            began = time.process_time()
            scheduler.tick(NOW + tick * 0.001)
            seconds.append(time.process_time() - began)
        store.close()
    with tempfile.TemporaryDirectory() as folder:
        # Separately, because tracing makes later ticks slower.
        tracemalloc.start()
        store, scheduler = load(count, Path(folder))
        memory = tracemalloc.get_traced_memory()[0] / 1e6
        tracemalloc.stop()
        store.close()
    slow = [tick for tick, took in enumerate(seconds) if took > 0.005]
    median, longest = statistics.median(seconds) * 1000, max(seconds) * 1000
    print(f"{count:,} flows: tick median {median:.3f} ms, maximum {longest:.3f} ms (limit 5 ms)")
    print(f"ticks above the limit: {slow}; memory {memory:.1f} MB (limit 20 MB)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
