"""Programs for the jail: each call of a command to the file system fails once, and the workspace is checked.

``python -m tests.faults.io_errors NAME`` runs the program NAME in the current folder. It exits with 0 if all
checks hold.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest import mock

import odf_tui.main
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.faults.failing import MANIFEST, run_command
from tests.sync.builders import make_root

_CHANGES: Final = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
)
_READS: Final = frozenset({"os.listdir", "os.scandir"})
KILLED: Final = 77
"""The exit code of a process that was killed."""


class Faults:
    """Counts the calls to files in ``folder``; call ``failing`` has an error, or kills the process.

    Args:
        folder: the folder.
        failing: the number of the call, from 0 on.
        number: of the error; 0: the process ends before the call, without any cleanup.
    """

    def __init__(self, folder: Path, failing: int, number: int) -> None:
        self._inside = f"{folder}/"
        self._left = failing
        self._errno = number
        self.name = ""  # of the call that failed

    def call(self, name: str, path: object) -> None:
        text = os.fspath(path) if isinstance(path, str | Path) else ""
        if isinstance(path, int):
            text = str(Path(f"/proc/self/fd/{path}").readlink())
        if not text.startswith(self._inside) or text.endswith((".sqlite", "-wal", "-shm")):
            return  # the index is a cache
        self._left -= 1
        if self._left == -1:
            if not self._errno:
                os._exit(KILLED)
            self.name = f"{name} {text.removeprefix(self._inside)}"
            raise OSError(self._errno, os.strerror(self._errno), text)

    def inject(self) -> None:
        """Count calls from here on, in this process."""
        # A process that is killed at a call that only reads leaves nothing new.
        reading = ((fcntl, "flock"), (os, "stat"), (os, "lstat")) if self._errno else ()
        for module, name in ((os, "fsync"), *reading):
            self._patch(module, name)
        events = _CHANGES | _READS if self._errno else _CHANGES
        sys.addaudithook(lambda event, arguments: self.call(event, arguments[0]) if event in events else None)

    def _patch(self, module: Any, name: str) -> None:
        real = getattr(module, name)

        def patched(path: Any, *arguments: Any, **more: Any) -> Any:
            self.call(name, path)
            return real(path, *arguments, **more)

        setattr(module, name, patched)


def _problem(ran: Ran) -> str:
    """What is wrong with the report of a command that failed; empty if nothing is."""
    if ran.code in (0, 3):  # 3: findings
        return ""
    if "error: " not in ran.err and "failed" not in ran.err:
        return "no error is reported"
    if "hint: " not in ran.err:
        return "no remedy is reported"
    return ""


def _untyped(error: OSError) -> None:
    """Report an error that the engine has not translated."""
    sys.stderr.write("untyped: " + "".join(traceback.format_exception(error)))


def each_fault(
    made: Path, arguments: Sequence[str], check: Callable[[Path], object], calls: Iterable[int]
) -> list[str]:
    """Run a command in copies of a workspace, in each of which another call fails; return the problems."""
    problems: list[str] = []
    for at in calls:
        folder = made.with_name(f"fault-{at}")
        shutil.copytree(made, folder, symlinks=True)
        report = made.with_name(f"report-{at}")
        pid = os.fork()
        if pid == 0:
            faults = Faults(folder, at, errno.ENOSPC if at % 2 else errno.EIO)
            try:
                faults.inject()
                with mock.patch.object(odf_tui.main, "_print_os_error", _untyped):
                    ran = call_odf(*arguments, cwd=folder)
                report.write_text(f"{ran.code}\0{ran.out}\0{ran.err}\0{faults.name}")
            except BaseException:
                report.write_text(f"-1\0\0{traceback.format_exc()}\0{faults.name}")
            os._exit(0)
        os.waitpid(pid, 0)
        code, out, err, name = report.read_text().split("\0")
        ran = Ran(int(code), out, err)
        problem = _problem(ran)
        if not problem:
            try:
                check(folder)
            except Exception:
                problem = traceback.format_exc()
        if problem:
            problems.append(f"odf {' '.join(arguments)}, call {at} ({name}): {problem}\n{ran.code} {ran.err}")
        shutil.rmtree(folder)
        report.unlink()
        if not name:
            break
    return problems


def _check(folder: Path, before: set[str], after: set[str]) -> None:
    """The workspace has one of two lists of datasets, their keys, no other keys, and nothing to repair."""
    names = {each["name"] for each in run_command(folder, "list", "--json").json}
    assert names in (before, after), names
    remarks = run_command(folder, "fsck", "--repair", "--now", "--json").json["remarks"]
    assert {each["kind"] for each in remarks} <= {"key-alone"}
    workspace = Workspace(folder)
    keys, entries = set(workspace.keys.ids()), workspace.datasets()
    missing = [str(entry.alias) for entry in entries if entry.id not in keys]
    assert not missing, f"no key: {missing}"
    assert len(keys) in (len(entries), 3), f"{len(keys)} keys for {len(entries)} datasets"
    for entry in entries:
        assert all(entry.dataset.blocks())


def commands(form: str = "long") -> None:
    """Commands about definitions, names, keys, settings, proofs, trust and repositories.

    ``short``: for each command only one of its calls fails.
    """
    folder = Path("made").resolve()
    workspace = Workspace.init(folder)
    make_root(workspace, slices=1)
    for name in "abcd":
        (folder / f"{name}.yaml").write_text(MANIFEST.format(name=name, text="made"))
    run_command(folder, "add", "c.yaml", "d.yaml")
    for name in "cd":
        (folder / f"{name}.yaml").write_text(MANIFEST.format(name=name, text="changed"))
    run_command(folder, "repo", "add", "usb", f"file://{folder}/usb")
    workspace.index.close()
    here = {"numbers", "c", "d"}
    problems: list[str] = []
    for number, (arguments, after) in enumerate(
        (
            ("add a.yaml", here | {"a"}),
            ("add a.yaml b.yaml", here | {"a", "b"}),
            ("add --update c.yaml d.yaml", here),
            ("rename c e", {"numbers", "d", "e"}),
            ("delete c --yes", here - {"c"}),
            ("keys list", here),
            ("keys export c", here),
            ("keys prove c", here),
            ("config set ui.theme night", here),
            ("repo add other file:///usb/", here),
            ("trust c", here),
            ("untrust c", here),
            ("list", here),
            ("show c", here),
            ("log numbers", here),
            ("fsck", here),
        )
    ):
        calls = [12 + 3 * number] if form == "short" else count()
        problems += each_fault(folder, arguments.split(), partial(_check, before=here, after=after), calls)
    print("\n".join(problems))
    assert not problems, f"{len(problems)} problems"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
