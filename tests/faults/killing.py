"""Programs for the jail: a command is killed at each of its steps, and the workspace checked after each kill.

``python -m tests.faults.killing NAME`` runs the program NAME in the current folder. It exits with 0 if all
checks hold.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.sync.builders import make_derivative, make_root

_KILLED: Final = 77
_CALLS: Final = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"}
)


class _Steps:
    """Counts steps, and ends the process without any cleanup before step ``last``."""

    def __init__(self, last: int) -> None:
        self._left = last

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            os._exit(_KILLED)


def _count_file_calls(folder: Path, steps: _Steps) -> None:
    """Counts the calls that read or change names and files in ``folder``, and every sync.

    Files are not synced: the process dies, not the machine.
    """
    inside = f"{folder}/"

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CALLS and isinstance(arguments[0], str | Path) and str(arguments[0]).startswith(inside):
            steps.take()

    fdopen = os.fdopen

    def opened(*arguments: Any, **more: Any) -> Any:
        steps.take()  # the file exists and is empty
        return fdopen(*arguments, **more)

    os.fsync = lambda _: steps.take()
    os.fdopen = opened
    sys.addaudithook(hear)


def _count_statements(steps: _Steps) -> None:
    """Counts the SQL statements that change something."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith(("DELETE", "INSERT", "UPDATE", "COMMIT")):
                steps.take()
            return super().execute(sql, *values)

    connect = sqlite3.connect
    sqlite3.connect = lambda *given, **more: connect(*given, factory=Connection, **more)  # pyright: ignore


def _dies(work: Callable[[], object], prepare: Callable[[_Steps], None], last: int) -> bool:
    """Whether ``work`` dies in a process of its own that is killed before step ``last``."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare(_Steps(last))
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, _KILLED), f"killed at step {last}: the command failed with {code}"
    return code == _KILLED


def _each_kill(
    made: Path, work: Callable[[Path], object], prepare: Callable[[Path, _Steps], None]
) -> Iterator[tuple[int, Path]]:
    """Copies of a workspace in which ``work`` was killed, each one step later, until it was not."""
    for last in count():
        folder = made.with_name(f"killed-{last}")
        shutil.copytree(made, folder)
        died = _dies(lambda at=folder: work(at), lambda steps, at=folder: prepare(at, steps), last)
        yield last, folder
        shutil.rmtree(folder)
        if not died:
            return


def _odf(folder: Path, *arguments: str, code: int | None = 0, **more: Any) -> Ran:
    ran = call_odf(*arguments, cwd=folder, **more)
    assert code is None or ran.code == code, f"odf {' '.join(arguments)}: {ran.err}"
    return ran


def delete() -> None:
    """``odf delete``, killed between the statements that remove the chain from the index."""
    workspace = Workspace.init(Path("made").resolve())
    make_derivative(workspace, make_root(workspace, slices=2))
    workspace.index.close()

    def work(folder: Path) -> None:
        _odf(folder, "delete", "derived", "--yes")

    kills = 0
    for kills, folder in _each_kill(workspace.folder, work, lambda _, steps: _count_statements(steps)):  # noqa: B007
        names = [each["name"] for each in _odf(folder, "list", "--json").json]
        assert names in (["derived", "numbers"], ["numbers"]), names
        for name in names:
            assert (
                len(_odf(folder, "log", name, "--json").json)
                == _odf(folder, "show", name, "--json").json["blocks"]
            )
        _odf(folder, "fsck")
    assert kills >= 5, f"only {kills} statements were counted"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
