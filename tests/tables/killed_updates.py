"""Updates of tables in processes that are killed, and in several processes (run as a program).

``killed_updates.py kill FOLDER TABLE`` updates the table in new workspaces, which are folders with the
numbers 1, 2, … in FOLDER. The update in the folder N is killed before the N-th file is renamed or removed.
In the last folder, whose number is printed, the update has ended. ``killed_updates.py race FOLDER COUNT``
commits COUNT slices to the dataset of a workspace in each of two processes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from odf_engine.base.progress import Reporter
from odf_engine.errors import ChainRuleViolated, Conflict
from odf_engine.rows.latest_state import write_latest_table
from odf_engine.tables import TABLE_FORMATS
from odf_engine.tables.dataset_tables import table_path, write_table
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_slices
from tests.tables.conftest import make_keyed


def kill_before(change: int, folder: Path) -> None:
    """Kill this process before the change of this number of a file below the folder."""
    changes = count(1)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: str | Path, *arguments: Any, **options: Any) -> Any:
            if folder in Path(path).parents and next(changes) == change:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(path, *arguments, **options)

        return call

    os.replace, os.unlink = counted(os.replace), counted(os.unlink)


def update(folder: Path, table: str, change: int) -> None:
    """Write a table of 6 rows, and update it to 9 rows in a process that is killed."""
    workspace = Workspace.init(folder)
    entry = make_keyed(workspace, "people")
    add_slices(entry, 2)
    (table_format,) = [name for name in TABLE_FORMATS if table.startswith(name)]
    latest = table.endswith("latest")

    def write() -> None:
        if latest:
            write_latest_table(workspace.odf, entry.dataset, table_format, Reporter())
        else:
            write_table(entry.dataset, table_format, lambda done, total: None)

    write()
    metadata = "_delta_log" if table == "delta" else ""
    path = Path(table_path(entry.dataset, table_format, latest=latest)) / metadata
    if latest:
        add_slices(entry)
        kill_before(change, path)
        write()
    else:
        kill_before(change, path)
        add_slices(entry)


def kill(folder: Path, table: str) -> None:
    for change in count(1):
        child = os.fork()
        if child == 0:
            update(folder / str(change), table, change)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            print(change)
            sys.exit(code)


def race(folder: Path, commits: int) -> None:
    children = [os.fork()]
    if children[0]:
        children.append(os.fork())
    if children[-1]:
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
    entry = Workspace.find(explicit=folder).resolve("numbers")
    done = 0
    while done < commits:
        try:
            add_slices(entry, city=str(os.getpid()))
            done += 1
        except (Conflict, ChainRuleViolated):  # the other process has committed since the state was read
            continue
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        kill(Path(sys.argv[2]), sys.argv[3])
    else:
        race(Path(sys.argv[2]), int(sys.argv[3]))
