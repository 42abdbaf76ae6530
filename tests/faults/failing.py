"""Programs for the jail: certain files have an error of the disk, and what is reported is checked.

``python -m tests.faults.failing NAME`` runs the program NAME in the current folder. It exits with 0 if all
checks hold.
"""

from __future__ import annotations

import builtins
import errno
import os
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.manifests import ROOT_WITH_INFO
from tests.sync.builders import make_root


class _Reads:
    """Opens files; those of ``path`` fail with EIO.

    Attributes:
        failing: the numbers of the reads that fail, from 0 on; None: all of them.
        seen: how many reads of the file there were.
    """

    def __init__(self, path: Path, failing: Collection[int] | None) -> None:
        self._path, self._open = str(path), builtins.open
        self.failing, self.seen = failing, 0

    def __call__(self, file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        if str(file) == self._path and "r" in mode:
            self.seen += 1
            if self.failing is None or self.seen - 1 in self.failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        return self._open(file, mode, *arguments, **more)


@contextmanager
def _reads(path: Path, failing: Collection[int] | None) -> Iterator[_Reads]:
    reads = _Reads(path, failing)
    with mock.patch("builtins.open", reads):
        yield reads


def _odf(*arguments: str, text: str | None = None) -> Ran:
    return call_odf(*arguments, cwd=Path.cwd(), input=text)


def run_command(folder: Path, *arguments: str) -> Ran:
    """Run a command that succeeds."""
    ran = call_odf(*arguments, cwd=folder)
    assert ran.code == 0, f"odf {' '.join(arguments)}: {ran.err}"
    return ran


def _names() -> list[str]:
    return [str(entry.alias) for entry in Workspace(Path.cwd()).datasets()]


def alias() -> None:
    """``info/alias`` of one of two datasets cannot be read: once, or always."""
    workspace = Workspace.init(Path.cwd())
    for name in ("boats", "cars"):
        make_root(workspace, name)
    boats = workspace.resolve("boats")
    path = boats.dataset.folder / "info" / "alias"
    updates = [
        ("add", "-", "--update"),
        ("add", "-", "--update", "--dry-run"),
        ("add", "-"),
    ]
    for command in updates:
        number = 0
        for number in count():
            text = f"{number} {len(command)}"
            with _reads(path, {number}) as reads:
                ran = _odf(*command, text=ROOT_WITH_INFO.format(name="boats", text=text))
            assert _names() == ["boats", "cars"], f"{command}, read {number}: {_names()}"
            if reads.seen <= number:
                break
            assert ran.code == 1 and "info/alias" in ran.err, f"{command}, read {number}: {ran.err}"
            assert "Input/output error" in ran.err and "hint:" in ran.err, ran.err
        assert number > 0, f"{command} does not read the name"

    with _reads(path, None):
        for command in (["add", "-"], ["rename", "cars", "boats"], ["rename", "cars", "lorries"]):
            ran = _odf(*command, text=ROOT_WITH_INFO.format(name="planes", text="x"))
            assert ran.code == 1 and "info/alias" in ran.err, f"{command}: {ran.err}"
        ran = _odf("log", "boats")
        assert ran.code == 1 and "info/alias" in ran.err, ran.err
        # All else works: the other dataset, and this one by its id.
        for name in ("cars", str(boats.id)):
            for command in ("log", "show", "schema", "path"):
                assert (ran := _odf(command, name)).code == 0, f"{command} {name}: {ran.err}"
        listed = {each["name"]: each["status"] for each in _odf("list", "--json").json}
        assert listed == {"cars": "new", boats.id.multibase: "failed"}, listed
        missing = _odf("log", str(boats.id)[:-1] + ("0" if str(boats.id)[-1] != "0" else "1"))
        assert missing.code == 1 and "not found" in missing.err, missing.err
        # A new name for the dataset itself replaces the file.
        assert (ran := _odf("rename", str(boats.id), "ships")).code == 0, ran.err
    assert sorted(_names()) == ["cars", "ships"]


def partial_update() -> None:
    """The second of three datasets cannot be updated: the error names those that are changed and are not."""
    folder = Path("made").resolve()
    workspace = Workspace.init(folder)
    for text in ("made", "changed"):
        for name in "abc":
            (folder / f"{name}.yaml").write_text(ROOT_WITH_INFO.format(name=name, text=text))
        if text == "made":
            run_command(folder, "add", "a.yaml", "b.yaml", "c.yaml")
    refs = workspace.resolve("b").dataset.folder / "refs"
    with mock.patch("pathlib.Path.replace", _refuse(refs)):
        ran = call_odf("add", "--update", "a.yaml", "b.yaml", "c.yaml", cwd=folder)
    assert ran.code == 1
    assert "(changed before the error: a; not changed: b, c; run the same command again to change" in ran.err
    assert "hint: nothing was committed; check the disk" not in ran.err
    again = run_command(folder, "add", "--update", "a.yaml", "b.yaml", "c.yaml")
    assert "a: unchanged" in again.err and "updated b: 1 event" in again.err, again.err


def _refuse(folder: Path) -> Callable[[Path, Any], Path]:
    replace = Path.replace

    def refuse(path: Path, target: Any) -> Path:
        if path.parent == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return replace(path, target)

    return refuse


def foreign_index() -> None:
    """The index has blocks without their chain: it is a cache, and every command works without it."""
    workspace = Workspace.init(Path("made").resolve())
    make_root(workspace, slices=1)
    workspace.index.close()
    index = sqlite3.connect(workspace.odf / "index.sqlite")
    index.execute("UPDATE blocks SET chain = 99")
    index.commit()
    index.close()
    for command in ("verify", "log", "show"):
        run_command(workspace.folder, command, "numbers")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
