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

from odf_engine.identity.did import generate_key
from odf_engine.identity.ownership_proof import dataset_id_of_key, load_private_key
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.sync.builders import make_derivative, make_root

MANIFEST: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetInfo
      description: made for a test
"""
_DERIVATIVE: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: c
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: a, alias: a}, {datasetRef: b, alias: b}]
      transform: {kind: Sql, engine: spark, query: "SELECT * FROM a UNION ALL SELECT * FROM b"}
"""
KILLED: Final = 77
CALLS: Final = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"}
)


class Steps:
    """Counts steps, and ends the process without any cleanup before step ``last``."""

    def __init__(self, last: int) -> None:
        self._left = last

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            os._exit(KILLED)


def count_file_calls(folder: Path, steps: Steps) -> None:
    """Counts the calls that read or change names and files in ``folder``, and every sync."""
    inside = f"{folder}/"

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CALLS and isinstance(arguments[0], str | Path) and str(arguments[0]).startswith(inside):
            steps.take()

    fdopen = os.fdopen

    def opened(*arguments: Any, **more: Any) -> Any:
        steps.take()  # the file exists and is empty
        return fdopen(*arguments, **more)

    os.fsync = lambda _: steps.take()
    os.fdopen = opened
    sys.addaudithook(hear)


def _count_statements(steps: Steps) -> None:
    """Counts the SQL statements that change something."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith(("DELETE", "INSERT", "UPDATE", "COMMIT")):
                steps.take()
            return super().execute(sql, *values)

    connect = sqlite3.connect
    sqlite3.connect = lambda *given, **more: connect(*given, factory=Connection, **more)  # pyright: ignore


def _dies(work: Callable[[], object], prepare: Callable[[Steps], None], last: int) -> bool:
    """Whether ``work`` dies in a process of its own that is killed before step ``last``."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare(Steps(last))
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, KILLED), f"killed at step {last}: the command failed with {code}"
    return code == KILLED


def _each_kill(
    made: Path, work: Callable[[Path], object], prepare: Callable[[Path, Steps], None]
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


def add() -> None:
    """``odf add a b c``, killed at each of its calls: it adds all or nothing, and can be run again."""
    folder = Path("made").resolve()
    Workspace.init(folder)
    names = ["a", "b", "c"]
    for name in names:
        (folder / f"{name}.yaml").write_text(MANIFEST.format(name=name))
    (folder / "c.yaml").write_text(_DERIVATIVE)

    def work(at: Path) -> None:
        _odf(at, "add", "c.yaml", "b.yaml", "a.yaml")

    states: set[int] = set()
    kills = 0
    for kills, at in _each_kill(folder, work, count_file_calls):
        datasets = at / ".odf" / "datasets"
        if (datasets / ".publishing").exists():
            published = len(list(datasets.glob("[!.]*")))
            if published == 1 and published not in states:
                _check_recovery(at)
            states.add(published)
        found = _names(at)
        assert found in ([], names), f"killed at call {kills}: {found}"
        if not found:
            work(at)
            assert _names(at) == names
        _check_keys(at)
        if kills % 10 == 0:
            _check_clean(at)
    assert kills > 100 and states == {0, 1, 2, 3}, f"{kills} calls, published before a kill: {states}"


def _check_recovery(killed: Path) -> None:
    """The command that takes back what a killed one has published, killed at each of its own calls."""
    held = killed.with_name("recovering")
    shutil.copytree(killed, held)
    for last, folder in _each_kill(held, _names, count_file_calls):
        found = _names(folder)
        assert found in ([], ["a", "b", "c"]), f"recovery killed at call {last}: {found}"
    shutil.rmtree(held)


def _names(folder: Path) -> list[str]:
    return [str(entry.alias) for entry in Workspace.find(explicit=folder).datasets()]


def _check_keys(folder: Path) -> None:
    """Every dataset has its key, and no other key is here."""
    workspace = Workspace.find(explicit=folder)
    assert set(workspace.keys.ids()) == {entry.id for entry in workspace.datasets()}


def _check_clean(folder: Path) -> None:
    """``odf fsck`` finds nothing that it cannot repair."""
    ran = _odf(folder, "fsck", "--repair", "--now", "--json")
    assert {each["kind"] for each in ran.json["remarks"]} <= {"key-alone"}


def delete_files() -> None:
    """``odf delete``, killed at each of its calls: the dataset is there or not, and its key always."""
    workspace = Workspace.init(Path("made").resolve())
    entry = make_root(workspace, slices=1)
    workspace.index.close()
    for _, at in _each_kill(
        workspace.folder, lambda at: _odf(at, "delete", "numbers", "--yes"), count_file_calls
    ):
        _check_clean(at)
        assert list(Workspace.find(explicit=at).keys.ids()) == [entry.id]


def keys() -> None:
    """``odf keys import``, killed at each of its calls."""
    folder = Path("made").resolve()
    workspace = Workspace.init(folder)
    dataset_id, pem = generate_key()
    (folder / "key.pem").write_text(pem)

    def work(at: Path) -> None:
        _odf(at, "keys", "import", "key.pem")

    kills = 0
    for kills, at in _each_kill(workspace.folder, work, count_file_calls):  # noqa: B007
        _odf(at, "fsck", "--repair", "--now")
        assert not list((at / ".odf" / "keys").glob(".*"))
        work(at)
        assert (
            dataset_id_of_key(load_private_key(Workspace(at).keys.private_key_pem(dataset_id))) == dataset_id
        )
        _odf(at, "fsck")
    assert kills >= 6, f"only {kills} calls"


if __name__ == "__main__":
    os.fsync = lambda _: None  # processes die here, and not the machine
    globals()[sys.argv[1]]()
