"""Programs for the jail: each call of a command to the file system fails once, and the workspace is checked.

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
from odf_engine.coordinator.handlers.dispatch import run_request
from odf_engine.coordinator.job_queue import JobContext, failure_of
from odf_engine.coordinator.protocol import Job, JobState, Pull, Push, Request, Verify
from odf_engine.coordinator.results import VerifyResult
from odf_engine.identity.names import DatasetAlias
from odf_engine.progress import Reporter
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.verify.integrity import verify
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Ran, call_odf
from tests.faults.killing import CALLS, MANIFEST
from tests.sync.builders import add_slices, make_root

_READS: Final = frozenset({"os.listdir", "os.scandir"})


class _Faults:
    """Counts the calls to files in ``folder``; call ``failing`` has an error."""

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
            self.name = f"{name} {text.removeprefix(self._inside)}"
            raise OSError(self._errno, os.strerror(self._errno), text)

    def inject(self) -> None:
        """Make calls fail from here on, in this process."""
        for module, name in ((os, "fsync"), (fcntl, "flock"), (os, "stat"), (os, "lstat")):
            self._patch(module, name)
        sys.addaudithook(
            lambda event, arguments: self.call(event, arguments[0]) if event in CALLS | _READS else None
        )

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
    inject: Callable[[_Faults], None] = lambda faults: faults.inject(),
) -> list[str]:
    """Run a command in copies of a workspace, in each of which another call fails; return the problems."""
    problems: list[str] = []
    for at in calls:
        folder = made.with_name(f"fault-{at}")
        shutil.copytree(made, folder, symlinks=True)
        report = made.with_name(f"report-{at}")
        pid = os.fork()
        if pid == 0:
            faults = _Faults(folder, at, errno.ENOSPC if at % 2 else errno.EIO)
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


def _ok(folder: Path, *arguments: str) -> Ran:
    ran = call_odf(*arguments, cwd=folder)
    assert ran.code == 0, f"odf {' '.join(arguments)}: {ran.err}"
    return ran


def _check(folder: Path, before: set[str], after: set[str]) -> None:
    """The workspace has one of two lists of datasets, their keys, no other keys, and nothing to repair."""
    names = {each["name"] for each in _ok(folder, "list", "--json").json}
    assert names in (before, after), names
    remarks = _ok(folder, "fsck", "--repair", "--now", "--json").json["remarks"]
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
        (folder / f"{name}.yaml").write_text(MANIFEST.format(name=name))
    _ok(folder, "add", "c.yaml", "d.yaml")
    for name in "cd":
        (folder / f"{name}.yaml").write_text(MANIFEST.format(name=name).replace("made", "changed"))
    _ok(folder, "repo", "add", "usb", f"file://{folder}/usb")
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
        result = run_request(request, context, Reporter())
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
        for kind, inject in (("files", _Faults.inject), ("index", _Faults.inject_index)):
            few = range(64, 69) if name == "pull" else (5, 30)
            calls = few if form == "short" else count()
            problems += each_fault(folder, f"{name}, {kind}", partial(_job, make=make), check, calls, inject)
    print("\n".join(problems))
    assert not problems, f"{len(problems)} problems"


def partial_update() -> None:
    """The second of three datasets cannot be updated: the error names those that are changed and are not."""
    folder = Path("made").resolve()
    workspace = Workspace.init(folder)
    for text in ("made", "changed"):
        for name in "abc":
            (folder / f"{name}.yaml").write_text(MANIFEST.format(name=name).replace("made", text))
        if text == "made":
            _ok(folder, "add", "a.yaml", "b.yaml", "c.yaml")
    refs = workspace.resolve("b").dataset.folder / "refs"
    with mock.patch("pathlib.Path.replace", _refuse(refs)):
        ran = call_odf("add", "--update", "a.yaml", "b.yaml", "c.yaml", cwd=folder)
    assert ran.code == 1
    assert "(changed before the error: a; not changed: b, c; run the same command again to change" in ran.err
    assert "hint: nothing was committed; check the disk" not in ran.err
    again = _ok(folder, "add", "--update", "a.yaml", "b.yaml", "c.yaml")
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
        _ok(workspace.folder, command, "numbers")


def publication() -> None:
    """All folders of a new dataset are synced before it gets its name; a removed name is synced as well."""
    calls: list[tuple[str, str]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        calls.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        real(descriptor)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.remove", "os.mkdir"):
            calls.append((event, os.fspath(arguments[0])))

    there, here = (Workspace.init(Path(name).resolve()) for name in ("there", "here"))
    entry = make_root(there, slices=1)
    (here.folder / "a.yaml").write_text(MANIFEST.format(name="a"))
    os.fsync = fsync
    sys.addaudithook(hear)
    _ok(here.folder, "add", "a.yaml")
    clone_dataset(
        here,
        DatasetAlias(None, "pulled"),
        FolderRemote(f"file://{entry.dataset.folder}/"),
        Reporter(),
        parallel=1,
    )
    published = [
        (at, path)
        for at, (event, path) in enumerate(calls)
        if event == "os.rename" and Path(path).parent.name in ("datasets", "incoming")
    ]
    assert len(published) == 2, published
    for at, path in published:
        synced = {each for event, each in calls[:at] if event == "fsync"}
        made = [each for event, each in calls[:at] if event == "os.mkdir"]
        folders = {path, *(each for each in made if f"{path}/" in each)}
        assert f"{path}/blocks" in folders
        existing = {each for each in folders if "/info/" not in each}
        assert existing <= synced, f"not synced before the rename: {existing - synced}"
        # Nothing is added to a folder after its last sync.
        for folder in existing:
            last = max(at for at, call in enumerate(calls[:at]) if call == ("fsync", folder))
            assert not [
                each for _, each in calls[last:at] if str(Path(each).parent) == folder and _ != "fsync"
            ]
    calls.clear()
    _ok(here.folder, "delete", "a", "--yes")
    hidden = next(at for at, (event, _) in enumerate(calls) if event == "os.rename")
    assert ("fsync", str(here.odf / "datasets")) in calls[hidden:]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
