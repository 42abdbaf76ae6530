"""From a key press to its paint: while nothing runs, while a pull has both cores, while a job logs a lot.

Run: ``python tests/bench/bench_keypress.py [PRESSES]``. The workstation runs under tmux in 120 by 36 cells,
with the rows of one dataset in front; keys move the cursor by a row, a page or to an end, and their paint is
there when the number of the row has been written to the terminal. Meanwhile a CSV of 3 million rows is
pulled into other datasets, so that Spark and the slice writer have both cores; then a job runs that logs
1,000 lines a second, in sight. What goes to the terminal is counted too.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common import COLUMNS, MANIFEST, make_csv
from terminals import ODF, QUIET, Terminal

from odf_engine.coordinator.client import read_journal
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace

ROWS = 3_000_000
STORMY = [f"stormy-{number}" for number in range(6)]
GOALS = (20, 40, 150)  # milliseconds: median, p90, longest
MOST = 80  # kB/s to the terminal while a job logs 1,000 lines a second
KEYS = ("j", "j", "j", "j", "k", "NPage", "PPage", "G", "g")
_ROW = re.compile(rb"row ([0-9][0-9 ]*?) ?(?:of|\x1b)")


def make_workspace(folder: Path) -> Workspace:
    """A small dataset to look at, and some to pull meanwhile."""
    workspace = Workspace.init(folder)
    schema = ", ".join(f'"{column}"' for column in COLUMNS)
    make_csv(folder / "calm.csv", 20_000)
    make_csv(folder / "stormy.csv", ROWS)
    for name in ("calm", *STORMY):
        text = MANIFEST.format(name=name, file=f"{name.partition('-')[0]}.csv", schema=schema)
        workspace.add(read_manifests(text, name))
    return workspace


class Measured:
    """Seconds from key presses to their paints, and the bytes a second that went to the terminal.

    Keys are pressed at odd moments, as long as ``busy`` says so.
    """

    def __init__(self, terminal: Terminal, presses: int, busy: Callable[[], bool]) -> None:
        self.times: list[float] = []
        began, written = time.perf_counter(), terminal.written
        row = 0
        while len(self.times) < presses and busy():
            terminal.rest(random.uniform(0.05, 0.25))
            terminal.output = b""
            start = time.perf_counter()
            terminal.send(random.choice(KEYS))
            while time.perf_counter() - start < 0.5:
                terminal.read(0.2)
                found = [int(text.replace(b" ", b"")) for text in _ROW.findall(terminal.output)]
                if found and found[-1] != row:
                    row = found[-1]
                    self.times.append(time.perf_counter() - start)
                    break  # else the cursor was at the end already
        self.rate = (terminal.written - written) / (time.perf_counter() - began)


@contextmanager
def opened(workspace: Workspace) -> Iterator[Terminal]:
    """A workstation with the rows in front."""
    terminal = Terminal(ODF, workspace.folder)
    try:
        terminal.wait("row 1 of 20.?000", seconds=60)
        terminal.rest(10)
        terminal.send("3")
        yield terminal
    finally:
        terminal.end()


def main() -> None:
    """Measures, and prints a table."""
    presses = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    random.seed(7)
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as temporary:
        workspace = make_workspace(Path(temporary) / "workspace")
        odf = [*ODF, "-w", str(workspace.folder)]
        journal = read_journal(workspace.folder)

        def pull() -> Callable[[], bool]:
            process = subprocess.Popen([*odf, "pull", *STORMY], **QUIET)
            while not any(job.target in STORMY and job.started for job in journal.open_jobs()):
                terminal.read(0.05)
            return lambda: process.poll() is None

        try:
            subprocess.run([*odf, "pull", "calm"], check=True, **QUIET)
            with opened(workspace) as terminal:
                measured["nothing runs"] = Measured(terminal, presses, lambda: True)
                measured["a pull has both cores"] = Measured(terminal, presses, pull())
            subprocess.run([*odf, "worker", "stop"], check=False, **QUIET)
            noisy = [
                sys.executable,
                str(Path(__file__).with_name("noisy_job.py")),
                str(workspace.folder),
                "600",
            ]
            subprocess.run(noisy, check=True, **QUIET)
            with opened(workspace) as terminal:
                measured["1,000 log lines a second"] = Measured(terminal, presses, lambda: True)
        finally:
            subprocess.run([*odf, "worker", "stop"], check=False, **QUIET)
    print(f"{'key press to paint':28}{'presses':>9}{'median':>9}{'p90':>9}{'longest':>9}{'to terminal':>14}")
    for name, found in measured.items():
        times = found.times
        cells = (statistics.median(times), statistics.quantiles(times, n=10)[-1], max(times))
        line = f"{name:28}{len(times):>9}" + "".join(f"{cell * 1000:>6.0f} ms" for cell in cells)
        print(f"{line}{found.rate / 1000:>9.1f} kB/s")
    print(f"{'goal':28}{'':9}" + "".join(f"{f'≤ {goal}':>6} ms" for goal in GOALS) + f"{f'≤ {MOST}':>9} kB/s")


if __name__ == "__main__":
    main()
