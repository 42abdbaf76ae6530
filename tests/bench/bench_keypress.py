"""From a key press to its paint: while nothing runs, while a pull has both cores, while a job logs a lot.

Run: ``python tests/bench/bench_keypress.py [PRESSES]``. The workstation runs under tmux in 120 by 36 cells,
with the rows of one dataset in front; keys move the cursor by a row, a page or to an end, and their paint is
there when the number of the row has been written to the terminal. Meanwhile a CSV of 3 million rows is
pulled into another dataset, so that Spark and the slice writer have both cores; then a source is pulled
whose command writes 1,000 lines a second, with its log in sight. What goes to the terminal is counted too.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import COLUMNS, MANIFEST, make_csv
from terminals import ODF, QUIET, Terminal

from odf_engine.coordinator.client import read_journal
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace

ROWS = 3_000_000
GOALS = (20, 40, 150)  # milliseconds: median, p90, longest
MOST = 80  # kB/s to the terminal while a job logs 1,000 lines a second
KEYS = ("j", "j", "j", "j", "k", "NPage", "PPage", "G", "g")
_ROW = re.compile(rb"row ([0-9 ]+) of")

LOUD = """\
kind: DatasetSnapshot
version: 1
content:
  name: loud
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: "file:calm.csv"}
      prepare:
        - kind: Pipe
          command: ["python3", "loud.py"]
      read: {kind: Csv, header: true, inferSchema: true}
      merge: {kind: Append}
"""
LOUD_PY = """\
import sys, time
began = time.monotonic()
for number in range(60_000):
    print(f"line {number}: something that a program says while it works, about this long", file=sys.stderr)
    sys.stderr.flush()
    time.sleep(max(began + number / 1000 - time.monotonic(), 0))
sys.stdout.write(sys.stdin.read())
"""


def make_workspace(folder: Path) -> Workspace:
    """A small dataset to look at, one that is being pulled, and one whose source says a lot."""
    workspace = Workspace.init(folder)
    schema = ", ".join(f'"{column}"' for column in COLUMNS)
    for name, rows in (("calm", 20_000), ("stormy", ROWS)):
        make_csv(folder / f"{name}.csv", rows)
        text = MANIFEST.format(name=name, file=f"{name}.csv", schema=schema)
        workspace.add(read_manifests(text, name))
    (folder / "loud.py").write_text(LOUD_PY)
    workspace.add(read_manifests(LOUD, "loud"))
    return workspace


class Measured:
    """Seconds from key presses to their paints, and the bytes a second that went to the terminal."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.rate = 0.0

    def take(self, terminal: Terminal, presses: int, busy: Callable[[], bool]) -> None:
        """Presses keys at odd moments, as long as ``busy`` says so."""
        began, written = time.perf_counter(), terminal.written
        row = 0
        while len(self.times) < presses and busy():
            terminal.rest(random.uniform(0.05, 0.25))
            terminal.output = b""
            start = time.perf_counter()
            terminal.send(random.choice(KEYS))
            while time.perf_counter() - start < 3:
                terminal.read(0.2)
                found = [int(text.replace(b" ", b"")) for text in _ROW.findall(terminal.output)]
                if found and found[-1] != row:
                    row = found[-1]
                    self.times.append(time.perf_counter() - start)
                    break  # else the cursor was at the end already
        self.rate = (terminal.written - written) / (time.perf_counter() - began)


def main() -> None:
    """Measures, and prints a table."""
    presses = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    random.seed(7)
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as temporary:
        workspace = make_workspace(Path(temporary) / "workspace")
        odf = [*ODF, "-w", str(workspace.folder)]
        journal = read_journal(workspace.folder)

        def pull_of(name: str) -> Callable[[], bool]:
            terminal.rest(1)
            pull = subprocess.Popen([*odf, "pull", name], **QUIET)
            while not any(job.target == name and job.started for job in journal.open_jobs()):
                terminal.read(0.05)
            return lambda: pull.poll() is None

        try:
            subprocess.run([*odf, "pull", "calm"], check=True, **QUIET)
            terminal = Terminal(ODF, workspace.folder)
            terminal.wait("row 1 of 20.?000", "ready", seconds=60)
            terminal.send("3")
            for name, busy in (
                ("nothing runs", lambda: lambda: True),
                ("a pull has both cores", lambda: pull_of("stormy")),
                ("1,000 log lines a second", lambda: pull_of("loud")),
            ):
                measured[name] = Measured()
                measured[name].take(terminal, presses, busy())
                if name != "nothing runs":
                    subprocess.run([*odf, "cancel", journal.open_jobs()[0].id], check=False, **QUIET)
            terminal.end()
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
