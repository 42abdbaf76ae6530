"""Time from a key press to its paint: at rest, during a pull with Spark, and while a job logs a lot.

The workstation runs under tmux in 120 by 36 cells and shows the rows of a dataset. Keys move the cursor by a
row, a page or to an end; the paint is complete when the new row number is written. The pull reads six CSV
files of 3 million rows. The job logs 1,000 visible lines a second, and the bytes to the terminal are counted.
"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from odf_engine.worker.job_log import read_journal
from odf_engine.workspace.workspace import Workspace
from tests.bench import noisy_job
from tests.bench.common import make_csv, make_dataset
from tests.bench.measure import Figure, Metric, Size, require
from tests.bench.terminals import ODF, QUIET, Terminal
from tests.bench.worker import stopping_worker

PULLED = [f"pulled-{number}" for number in range(6)]
KEYS = ("j", "j", "j", "j", "k", "NPage", "PPage", "G", "g")
SITUATIONS = ("at rest", "during a pull", "1,000 log lines a second")
LIMITS = {"median": 20, "p90": 40, "maximum": 150}
METRICS = {
    **{
        f"{situation}: {name}": Metric(f"key press, {situation}: {name}", "", f"<= {limit} ms", "ms")
        for situation in SITUATIONS
        for name, limit in LIMITS.items()
    },
    "rate": Metric("to the terminal, 1,000 log lines a second", "", "<= 80 kB/s", "kB/s"),
}
_ROW = re.compile(rb"row ([0-9][0-9 ]*?) ?(?:of|\x1b)")


def run(size: Size, folder: Path) -> list[Figure]:
    require("tmux")
    random.seed(7)
    presses, quiet = size.pick(100, 10), size.pick(10, 1)
    workspace = make_workspace(folder, size.pick(3_000_000, 100_000))
    odf = [*ODF, "-w", str(workspace.folder)]
    samples: dict[str, list[float]] = {}
    with stopping_worker(workspace):
        subprocess.run([*odf, "pull", "calm"], check=True, **QUIET)
        with open_rows(workspace, quiet) as terminal:
            samples["at rest"], _ = press_keys(terminal, presses, lambda: True)
            pull = subprocess.Popen([*odf, "pull", *PULLED], **QUIET)
            journal = read_journal(workspace.folder)
            while not any(job.target in PULLED and job.started for job in journal.open_jobs()):
                assert pull.poll() is None, "the pull has ended"
                terminal.read(0.05)
            samples["during a pull"], _ = press_keys(terminal, presses, lambda: pull.poll() is None)
    with stopping_worker(workspace):
        asyncio.run(noisy_job.start(workspace.folder, 600, 1000))
        with open_rows(workspace, quiet) as terminal:
            samples["1,000 log lines a second"], rate = press_keys(terminal, presses, lambda: True)
    figures: list[Figure] = []
    for situation, times in samples.items():
        values = (statistics.median(times), statistics.quantiles(times, n=10)[-1], max(times))
        for name, value in zip(LIMITS, values, strict=True):
            figures.append(METRICS[f"{situation}: {name}"].figure(value * 1000))
    return [*figures, METRICS["rate"].figure(rate / 1000)]


def make_workspace(folder: Path, rows: int) -> Workspace:
    """Create a workspace with a small dataset, and datasets to pull."""
    workspace = Workspace.init(folder / "workspace")
    make_csv(folder / "calm.csv", 20_000)
    make_csv(folder / "pulled.csv", rows)
    make_dataset(workspace, "calm", folder / "calm.csv")
    for name in PULLED:
        make_dataset(workspace, name, folder / "pulled.csv")
    return workspace


def press_keys(terminal: Terminal, presses: int, busy: Callable[[], bool]) -> tuple[list[float], float]:
    """Press keys at random moments while ``busy``.

    Returns:
        The seconds from key presses to their paints, and the bytes per second to the terminal.
    """
    times: list[float] = []
    began, written = time.perf_counter(), terminal.written
    row = 0
    while len(times) < presses and busy():
        terminal.rest(random.uniform(0.05, 0.25))
        terminal.output = b""
        start = time.perf_counter()
        terminal.send(random.choice(KEYS))
        while time.perf_counter() - start < 0.5:
            terminal.read(0.2)
            rows = [int(text.replace(b" ", b"")) for text in _ROW.findall(terminal.output)]
            if rows and rows[-1] != row:
                row = rows[-1]
                times.append(time.perf_counter() - start)
                break  # otherwise the cursor was at the end already
    return times, (terminal.written - written) / (time.perf_counter() - began)


@contextmanager
def open_rows(workspace: Workspace, quiet: float) -> Iterator[Terminal]:
    """Open a workstation that shows rows."""
    terminal = Terminal(ODF, workspace.folder)
    try:
        terminal.wait("row 1 of 20.?000", seconds=60)
        terminal.rest(quiet)
        terminal.send("3")
        yield terminal
    finally:
        terminal.end()
