"""From the command to the first complete paint, 100 and 1,000 datasets, against an empty app of four panes.

Each workspace is opened twice: as the last session left it, and after a change that no session could save
("cut off": the connection was lost while a job ran).

Run: ``python tests/bench/bench_first_paint.py [RUNS]``. All start under tmux in 120 by 36 cells, in turns; a
run ends when everything that belongs on the screen has been written to it: for the workstation the first
datasets, the number of all of them in the status line, and the hints. The worker runs already, as it does
whenever somebody works. Wall time depends on what else the machine does: look at the CPU time too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from terminals import ODF, QUIET, Terminal

from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace

GOALS = {100: 1.3, 1000: 1.6}
CUT_OFF_GOAL = 1.5

EMPTY = """
from textual.app import App
from textual.containers import Container
from textual.widgets import DataTable, RichLog, Static, Tree

class Empty(App):
    CSS = '''
    #panes { layout: grid; grid-size: 2 2; }
    #panes > * { border: round grey; height: 1fr; }
    '''
    def compose(self):
        with Container(id="panes"):
            yield Tree("1")
            yield DataTable()
            yield RichLog()
            yield Static()
    def on_mount(self):
        for number, pane in enumerate(self.query("#panes > *"), 1):
            pane.border_title = f"{number} Pane"

Empty().run()
"""


def make_workspace(folder: Path, datasets: int) -> Workspace:
    """A workspace of datasets, a third of them derivative."""
    documents = []
    for number in range(datasets):
        one, other = f"set.{number - 1:04d}", f"set.{number - 2:04d}"
        head = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: set.{number:04d}\n"
        if number % 3 == 2:
            documents.append(
                f"{head}  kind: Derivative\n  metadata:\n    - kind: SetTransform\n"
                f"      inputs: [{{datasetRef: {one}}}, {{datasetRef: {other}}}]\n"
                "      transform: {kind: Sql, engine: spark, query: SELECT 1}\n"
            )
        else:
            documents.append(
                f"{head}  kind: Root\n  metadata:\n    - kind: SetPollingSource\n"
                f"      fetch: {{kind: Url, url: 'file:{number}.csv'}}\n"
                "      read: {kind: Csv, schema: [a INT]}\n      merge: {kind: Append}\n"
            )
    workspace = Workspace.init(folder)
    workspace.add(read_manifests("---\n".join(documents), "made"))
    return workspace


def run(command: tuple[str, ...], folder: Path, *marks: str) -> tuple[float, float]:
    """Seconds to the first complete paint, and CPU seconds until then."""
    terminal = Terminal(command, folder)
    try:
        seconds = terminal.wait(*marks)
        return seconds, terminal.cpu()
    finally:
        terminal.end()


def main() -> None:
    """Measures in turns, and prints a table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    cases = [(0, False), *((datasets, cut_off) for datasets in GOALS for cut_off in (False, True))]
    found: dict[tuple[int, bool], list[tuple[float, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "empty.py").write_text(EMPTY)
        workspaces = {each: make_workspace(folder / str(each), each).folder for each in GOALS}
        try:
            for workspace in workspaces.values():
                subprocess.run([*ODF, "-w", str(workspace), "worker", "start"], check=True, **QUIET)
                terminal = Terminal(ODF, workspace)
                terminal.wait("ready", seconds=120)  # Spark is there, and everything is cached
                terminal.rest(5)
                terminal.end()
            for _ in range(runs):
                for datasets, cut_off in cases:
                    if not datasets:
                        sample = run((sys.executable, "empty.py"), folder, "4 Pane")
                    else:
                        workspace = workspaces[datasets]
                        if cut_off:
                            os.utime(workspace / ".odf" / "jobs.sqlite")
                        number = f"{datasets:,} datasets".replace(",", ".?")
                        sample = run(ODF, workspace, "set.0000", "4 Jobs", number, "keys")
                        if cut_off:
                            save_snapshot(workspace)
                    found[datasets, cut_off].append(sample)
        finally:
            for workspace in workspaces.values():
                subprocess.run([*ODF, "-w", str(workspace), "worker", "stop"], check=False, **QUIET)
    print(f"first complete paint, median of {runs} (least)")
    print(f"{'':30}{'wall':>16}{'CPU':>16}{'ratio of wall':>16}{'of CPU':>10}  goal")
    for (datasets, cut_off), samples in found.items():
        walls, cpus = [wall for wall, _ in samples], [cpu for _, cpu in samples]
        name = (
            f"odf, {datasets} datasets{', cut off' if cut_off else ''}" if datasets else "empty four-pane app"
        )
        line = f"{name:30}{_times(walls)}{_times(cpus)}"
        if datasets:
            bare = [statistics.median(column) for column in zip(*found[0, False], strict=True)]
            wall, cpu = statistics.median(walls) / bare[0], statistics.median(cpus) / bare[1]
            line += f"{wall:>15.2f}×{cpu:>9.2f}×  ≤ {CUT_OFF_GOAL if cut_off else GOALS[datasets]}×"
        print(line)


def save_snapshot(workspace: Path) -> None:
    """Open the workspace until its snapshot is saved."""
    terminal = Terminal(ODF, workspace)
    terminal.wait("set.0000")
    terminal.rest(4)
    terminal.end()


def _times(values: list[float]) -> str:
    times = f"{statistics.median(values) * 1000:.0f} ({min(values) * 1000:.0f}) ms"
    return f"{times:>16}"


if __name__ == "__main__":
    main()
