"""From the command to the first complete paint, 100 datasets, against an empty four-pane Textual app.

Run: ``python tests/bench/bench_first_paint.py [RUNS]``. Both start on a pseudo-terminal of 120 by 36
cells, in turns; a run ends when everything that belongs on the screen has been written to it: for the
workstation the last of the 100 datasets, the status line and the hints. The worker runs already, as it
does whenever somebody works. Wall time depends on what else the machine does: look at the CPU time too.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from terminals import ODF, ROOT, Terminal

from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace

DATASETS = 100
GOAL = 1.5

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


def make_workspace(folder: Path) -> Workspace:
    """A workspace of 100 datasets, a third of them derivative."""
    documents = []
    for number in range(DATASETS):
        one, other = f"set.{number - 1:03d}", f"set.{number - 2:03d}"
        head = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: set.{number:03d}\n"
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
    finally:
        cpu = terminal.end()
    return seconds, cpu


def main() -> None:
    """Measures in turns, and prints a table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        workspace = make_workspace(folder / "workspace").folder
        (folder / "empty.py").write_text(EMPTY)
        odf = [*ODF, "-w", str(workspace)]
        environment = {"cwd": ROOT, "stdout": subprocess.DEVNULL}
        subprocess.run([*odf, "worker", "start"], check=True, **environment)  # type: ignore[call-overload]
        try:
            terminal = Terminal(ODF, workspace)
            terminal.wait("● ready", seconds=120)  # Spark is there, and everything is cached
            terminal.end()
            empty, ours = [], []
            for _ in range(runs):
                empty.append(run((sys.executable, "empty.py"), folder, "4 Pane"))
                ours.append(run(ODF, workspace, "set.000", "set.012", "4 Jobs", "100 datasets", "keys"))
        finally:
            subprocess.run([*odf, "worker", "stop"], check=False, **environment)  # type: ignore[call-overload]
    print(f"first complete paint, {DATASETS} datasets, median of {runs} (least)")
    print(f"{'':28}{'wall':>16}{'CPU':>16}")
    table = []
    for name, found in (("empty four-pane app", empty), ("odf", ours)):
        walls, cpus = [wall for wall, _ in found], [cpu for _, cpu in found]
        table.append((statistics.median(walls), statistics.median(cpus)))
        print(f"{name:28}{_times(walls)}{_times(cpus)}")
    wall, cpu = table[1][0] / table[0][0], table[1][1] / table[0][1]
    print(f"{'ratio (goal ≤ ' + str(GOAL) + ')':28}{wall:>9.2f}×{'':6}{cpu:>9.2f}×")


def _times(values: list[float]) -> str:
    return f"{statistics.median(values) * 1000:>6.0f} ({min(values) * 1000:.0f}) ms"


if __name__ == "__main__":
    main()
