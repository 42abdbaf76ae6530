"""Resources of the workstation at rest, with 10 million rows and with a chain of 100,000 blocks; its jumps.

It runs under tmux in 120 by 36 cells. The memory is the resident memory after jumps to both ends. At rest, no
key is pressed for 30 seconds while the worker and Spark run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odf_engine.workspace.workspace import Workspace
from tests.bench.common import append_blocks, append_rows, make_empty
from tests.bench.measure import Figure, Metric, Size, require
from tests.bench.terminals import ODF, Terminal
from tests.bench.worker import stopping_worker

SLICES = 20
METRICS = {
    "empty": Metric("memory, empty workspace", "", "<= 70 MB", "MB"),
    "rate": Metric("at rest: to the terminal", "", "<= 0 B/s", "B/s"),
    "cpu": Metric("at rest: processor", "", "<= 0.3 %", "%"),
    "rows": Metric("jump to the last of many rows", "", "<= 100 ms", "ms"),
    "rows: memory": Metric("memory, many rows", "", "<= 140 MB", "MB"),
    "blocks": Metric("jump to the first of many blocks", "", "<= 100 ms", "ms"),
    "blocks: memory": Metric("memory, many blocks", "", "<= 90 MB", "MB"),
}


def run(size: Size, folder: Path) -> list[Figure]:
    require("tmux")
    rows, blocks = size.pick(10_000_000, 20_000), size.pick(100_000, 1000)
    jumps, rest = size.pick(9, 1), size.pick(30, 2)
    empty, wide, long = (Workspace.init(folder / name) for name in ("empty", "rows", "blocks"))
    entry = make_empty(wide, "many-rows")
    for _ in range(SLICES):
        append_rows(entry, rows // SLICES)
    append_blocks(make_empty(long, "many-blocks"), blocks)
    figures: list[Figure] = []
    with stopping_worker(empty, wide, long):
        with open_workstation(empty, size, "No datasets yet", "ready") as terminal:
            figures.append(METRICS["empty"].figure(terminal.megabytes()))
            figures += measure_rest(terminal, rest)
        with open_workstation(wide, size, f"row 1 of {as_pattern(rows)}", "ready") as terminal:
            terminal.send("3")
            seconds = measure_jumps(terminal, jumps, ("G", f"row {as_pattern(rows)} "), ("g", "row 1 "))
            figures.append(METRICS["rows"].figure(seconds * 1000))
            figures.append(METRICS["rows: memory"].figure(terminal.megabytes()))
        with open_workstation(long, size, str(blocks - 1), "ready") as terminal:
            terminal.send("2")
            seconds = measure_jumps(terminal, jumps, ("G", "Seed"), ("g", str(blocks - 1)))
            figures.append(METRICS["blocks"].figure(seconds * 1000))
            figures.append(METRICS["blocks: memory"].figure(terminal.megabytes()))
    return figures


@contextmanager
def open_workstation(workspace: Workspace, size: Size, *marks: str) -> Iterator[Terminal]:
    """Open a workstation, and wait for marks."""
    terminal = Terminal(ODF, workspace.folder)
    try:
        terminal.wait(*marks, seconds=120)
        terminal.rest(size.pick(10, 2))  # the status of Spark may still change
        yield terminal
    finally:
        terminal.end()


def measure_rest(terminal: Terminal, seconds: float) -> list[Figure]:
    """Measure the bytes to the terminal and the processor time while no key is pressed."""
    written, cpu, began = terminal.written, terminal.cpu(), time.perf_counter()
    terminal.rest(seconds)
    elapsed = time.perf_counter() - began
    return [
        METRICS["rate"].figure((terminal.written - written) / elapsed),
        METRICS["cpu"].figure((terminal.cpu() - cpu) / elapsed * 100),
    ]


def measure_jumps(terminal: Terminal, count: int, there: tuple[str, str], back: tuple[str, str]) -> float:
    """Return the median seconds of jumps to one end; both ends are a key and a mark that is painted then."""
    times: list[float] = []
    terminal.send(there[0])
    terminal.wait(there[1])
    for _ in range(count):
        for key, mark in (back, there):
            terminal.rest(0.4)
            terminal.output = b""
            start = time.perf_counter()
            terminal.send(key)
            terminal.wait(mark)
            times.append(time.perf_counter() - start)
    return statistics.median(times[1::2])


def as_pattern(number: int) -> str:
    """Return a regular expression for a number as the screen shows it."""
    return f"{number:,}".replace(",", ".")
