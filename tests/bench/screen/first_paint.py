"""Time from the command to the first complete paint, compared with an empty Textual app of four panes.

Workspaces of 100 and 1,000 datasets are opened as the last session left them, and after a change that no
session could save ("cut off"). All run under tmux in 120 by 36 cells, in turns. The workstation is complete
when the first datasets, their number in the status line and the hints are written. The worker runs already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace
from tests.bench.measure import Cost, Figure, Metric, Size, middle, require
from tests.bench.terminals import ODF, QUIET, Terminal
from tests.bench.worker import stopping_worker

METRICS = {
    "100": Metric("first paint, 100 datasets", "empty app", "<= 1.3x"),
    "100 cut off": Metric("first paint, 100 datasets, cut off", "empty app", "<= 1.5x"),
    "1000": Metric("first paint, 1,000 datasets", "empty app", "<= 1.6x"),
    "1000 cut off": Metric("first paint, 1,000 datasets, cut off", "empty app", "<= 1.5x"),
}
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


def run(size: Size, folder: Path) -> list[Figure]:
    require("tmux")
    (folder / "empty.py").write_text(EMPTY)
    counts = (100, 1000) if size is Size.FULL else (100,)
    workspaces = {count: make_workspace(folder / str(count), count) for count in counts}
    costs: dict[str, list[Cost]] = {"empty": [], **{name: [] for name in METRICS}}
    with stopping_worker(*workspaces.values()):
        for workspace in workspaces.values():
            subprocess.run([*ODF, "-w", str(workspace.folder), "worker", "start"], check=True, **QUIET)
            open_workstation(workspace, "ready", 5)  # Spark runs, and the caches are filled
        for _ in range(size.pick(15, 1)):
            costs["empty"].append(paint((sys.executable, "empty.py"), folder, "4 Pane"))
            for count, workspace in workspaces.items():
                marks = ("set.0000", "4 Jobs", f"{count:,} datasets".replace(",", ".?"), "keys")
                costs[f"{count}"].append(paint(ODF, workspace.folder, *marks))
                os.utime(workspace.odf / "jobs.sqlite")
                costs[f"{count} cut off"].append(paint(ODF, workspace.folder, *marks))
                open_workstation(workspace, "set.0000", 4)  # saves the state of the session
    empty = middle(costs["empty"])
    return [metric.figure(middle(costs[name]), empty) for name, metric in METRICS.items() if costs[name]]


def make_workspace(folder: Path, datasets: int) -> Workspace:
    """Create a workspace of datasets, a third of them derivative."""
    documents = []
    for number in range(datasets):
        head = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: set.{number:04d}\n"
        if number % 3 == 2:
            documents.append(
                f"{head}  kind: Derivative\n  metadata:\n    - kind: SetTransform\n"
                f"      inputs: [{{datasetRef: set.{number - 1:04}}}, {{datasetRef: set.{number - 2:04}}}]\n"
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


def paint(command: tuple[str, ...], folder: Path, *marks: str) -> Cost:
    """Return the time and the processor time until all marks are painted."""
    terminal = Terminal(command, folder)
    try:
        return Cost(terminal.wait(*marks), terminal.cpu())
    finally:
        terminal.end()


def open_workstation(workspace: Workspace, mark: str, seconds: float) -> None:
    """Open the workstation for some seconds after a mark is painted."""
    terminal = Terminal(ODF, workspace.folder)
    terminal.wait(mark, seconds=120)
    terminal.rest(seconds)
    terminal.end()
