"""Programs for the jail: each call of a command or job to a file fails once, and the workspace is checked.

``python -m tests.faults.io_errors NAME`` runs the program NAME in the current folder. It exits with 0 if all
checks hold.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest import mock

import odf_tui.main
from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.base import JobContext
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.push import Push
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.worker.job_queue import failure_of
from odf_engine.worker.protocol import Job, JobState, Request
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.faults.failing import run_command
from tests.manifests import ROOT_WITH_INFO
from tests.sync.builders import add_slices, make_root

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

    def inject_index(self) -> None:
        """Make statements of the index fail from here on, in this process."""
        faults, connect = self, sqlite3.connect

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                faults._left -= 1
                if faults._left == -1:
                    faults.name = sql
                    full = faults._errno == errno.ENOSPC
                    raise sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
                return super().execute(sql, *values)

        sqlite3.connect = lambda *given, **more: connect(*given, factory=Connection, **more)  # pyright: ignore

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


def _command(folder: Path, *arguments: str) -> Ran:
    with mock.patch.object(odf_tui.main, "_print_os_error", _untyped):
        return call_odf(*arguments, cwd=folder)


def each_fault(
    made: Path,
    name: str,
    run: Callable[[Path], Ran],
    check: Callable[[Path], object],
    calls: Iterable[int],
    inject: Callable[[Faults], None] = Faults.inject,
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
                inject(faults)
                ran = run(folder)
                report.write_text(f"{ran.code}\0{ran.out}\0{ran.err}\0{faults.name}")
            except BaseException:
                report.write_text(f"-1\0\0{traceback.format_exc()}\0{faults.name}")
            os._exit(0)
        os.waitpid(pid, 0)
        code, out, err, call = report.read_text().split("\0")
        ran = Ran(int(code), out, err)
        problem = _problem(ran)
        if not problem:
            try:
                check(folder)
            except Exception:
                problem = traceback.format_exc()
        if problem:
            problems.append(f"{name}, call {at} ({call}): {problem}\n{ran.code} {ran.err}")
        shutil.rmtree(folder)
        report.unlink()
        if not call:
            break
    return problems


def _check(folder: Path, before: set[str], after: set[str]) -> None:
    """The workspace has one of two lists of datasets, their keys, no other keys, and nothing to repair."""
    names = {each["name"] for each in run_command(folder, "list", "--json").json}
    assert names in (before, after), names
    remarks = run_command(folder, "fsck", "--repair", "--now", "--json").json["remarks"]
    assert {remark["kind"] for remark in remarks} <= {"key-alone"}
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
        (folder / f"{name}.yaml").write_text(ROOT_WITH_INFO.format(name=name, text="made"))
    run_command(folder, "add", "c.yaml", "d.yaml")
    for name in "cd":
        (folder / f"{name}.yaml").write_text(ROOT_WITH_INFO.format(name=name, text="changed"))
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
        check = partial(_check, before=here, after=after)
        problems += each_fault(
            folder, f"odf {arguments}", lambda at, text=arguments: _command(at, *text.split()), check, calls
        )
    print("\n".join(problems))
    assert not problems, f"{len(problems)} problems"


class _Host:
    """Runs jobs in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def spark(self, reporter: Reporter) -> Any:
        """No job here runs a query."""


def _job(folder: Path, make: Callable[[Path], Request]) -> Ran:
    """Run a job as the worker does; its result, or its error as the command line prints it."""
    request = make(folder)
    job = Job(id="1", kind="job", target="", dataset="", state=JobState.running, created="")
    context = JobContext(_Host(folder))
    try:
        result = request.run(context, Reporter())
    except Exception as error:
        failure = failure_of(error, job)
        hint = f"hint: {failure.hint}" if failure.hint else ""
        unexpected = "unexpected: " if "unexpectedly" in failure.message else "error: "
        return Ran(1, "", f"{unexpected}{failure.message}, {failure.where}\n{hint}")
    if isinstance(result, VerifyResult) and result.valid:
        assert result.slices == 2, "not all slices were verified"
    return Ran(0, "", "")


def jobs(form: str = "long") -> None:
    """Jobs that read and write rows, blocks and checkpoints: verify, pull, push and a commit.

    ``short``: for each job only some of its calls fail.
    """
    folder = Path("made").resolve()
    workspace = Workspace.init(folder)
    there = Workspace.init(Path("there").resolve())
    entry, other = make_root(workspace, slices=2), make_root(there, "other", slices=1)
    url = f"file://{other.dataset.folder}/"
    clone_dataset(workspace, DatasetAlias(None, "behind"), FolderRemote(url), Reporter(), parallel=1)
    add_slices(other)
    workspace.index.close()
    problems: list[str] = []
    heads = {name: workspace.resolve(name).dataset.head() for name in ("numbers", "behind")}

    def check(at: Path) -> None:
        """Each dataset has its old or its new head, and all its files."""
        for name, head in heads.items():
            dataset = Workspace(at).resolve(name).dataset
            assert head in [stored.hash for stored in dataset.blocks()]
            assert verify(dataset, Reporter()).valid

    requests: list[tuple[str, Callable[[Path], Request]]] = [
        ("verify", lambda at: Verify(str(entry.id), integrity=True)),
        ("pull", lambda at: Pull(str(other.id), url=url)),
        ("push", lambda at: Push(str(entry.id), f"file://{at}/usb/")),
        ("set watermark", lambda at: Pull(str(entry.id), set_watermark="2024-06-01T00:00:00Z")),
    ]
    for name, make in requests:
        for kind, inject in (("files", Faults.inject), ("index", Faults.inject_index)):
            few = range(64, 69) if name == "pull" else (5, 30)
            calls = few if form == "short" else count()
            problems += each_fault(folder, f"{name}, {kind}", partial(_job, make=make), check, calls, inject)
    print("\n".join(problems))
    assert not problems, f"{len(problems)} problems"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
