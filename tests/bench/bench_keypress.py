"""From a key press to its paint, while nothing runs and while a pull keeps both cores busy.

Run: ``python tests/bench/bench_keypress.py [PRESSES]``. The workstation runs on a pseudo-terminal of 120
by 36 cells, with the rows of one dataset in front; each press moves the cursor one row down, and its
paint is there when the number of that row has been written to the terminal. Meanwhile a CSV of 3 million
rows is pulled into another dataset, so that Spark and the slice writer have both cores.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import COLUMNS, MANIFEST, make_csv
from terminals import ODF, ROOT, Terminal

from odf_engine.coordinator.client import read_journal
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace

ROWS = 3_000_000
GOAL = 0.050


def make_workspace(folder: Path) -> Workspace:
    """Two datasets: a small one to look at, and one that is being pulled."""
    workspace = Workspace.init(folder)
    schema = ", ".join(f'"{column}"' for column in COLUMNS)
    for name, rows in (("calm", 20_000), ("stormy", ROWS)):
        make_csv(folder / f"{name}.csv", rows)
        text = MANIFEST.format(name=name, file=f"{name}.csv", schema=schema)
        workspace.add(read_manifests(text, name))
    return workspace


def press(terminal: Terminal, presses: int, busy: Callable[[], bool]) -> list[float]:
    """Seconds from each key press to its paint, as long as ``busy`` says so."""
    times: list[float] = []
    random.seed(7)
    while len(times) < presses and busy():
        end = time.perf_counter() + random.uniform(0.05, 0.25)
        while (left := end - time.perf_counter()) > 0:
            terminal.read(left)
        terminal.output = b""
        press.row += 1  # type: ignore[attr-defined]
        start = time.perf_counter()
        terminal.send("j")
        terminal.wait(f"row {press.row} of")  # type: ignore[attr-defined]
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """Measures, and prints a table."""
    presses = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory() as temporary:
        workspace = make_workspace(Path(temporary) / "workspace")
        odf = [*ODF, "-w", str(workspace.folder)]
        quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            subprocess.run([*odf, "pull", "calm"], check=True, **quiet)  # type: ignore[call-overload]
            terminal = Terminal(ODF, workspace.folder)
            terminal.wait("row 1 of 20 000", "● ready", seconds=60)
            terminal.send("3")
            press.row = 1  # type: ignore[attr-defined]
            idle = press(terminal, presses, lambda: True)
            pull = subprocess.Popen([*odf, "pull", "stormy"], **quiet)  # type: ignore[call-overload]
            journal = read_journal(workspace.folder)
            while not any(job.target == "stormy" and job.started for job in journal.open_jobs()):
                terminal.read(0.05)
            busy = press(terminal, presses, lambda: pull.poll() is None)
            pull.terminate()
            pull.wait()
            terminal.end()
        finally:
            subprocess.run([*odf, "worker", "stop"], check=False, **quiet)  # type: ignore[call-overload]
    print(f"{'key press to paint':28}{'presses':>9}{'median':>9}{'p90':>9}{'longest':>9}")
    for name, found in (("nothing runs", idle), ("a pull has both cores", busy)):
        p90 = statistics.quantiles(found, n=10)[-1]
        cells = (statistics.median(found), p90, max(found))
        print(f"{name:28}{len(found):>9}" + "".join(f"{cell * 1000:>6.0f} ms" for cell in cells))
    print(f"goal: p90 ≤ {GOAL * 1000:.0f} ms while a pull has both cores")


if __name__ == "__main__":
    main()
