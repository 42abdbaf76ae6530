"""Program for the jail: files of a workspace are links to files outside of it, which nobody may change.

``python -m tests.faults.linking`` runs it in the current folder. It exits with 0 if all checks hold. With
``short`` each name leads to one kind of file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from unittest import mock

from odf_engine.api.readers import query_history
from odf_engine.base.files import open_file
from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.net.download import PartialDownload
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.worker import process as worker
from odf_engine.worker.client import WorkerLauncher
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.workspace import discovery
from odf_engine.workspace.workspace import Workspace
from odf_tui.start import _open_workspace
from odf_tui.state import saved_session
from odf_tui.theming import terminal
from tests.cli.conftest import Ran, call_odf
from tests.sync.builders import make_derivative, make_root

_URL: Final = "https://example.com/x.csv"
_MANIFEST: Final = """\
kind: DatasetSnapshot
version: 1
content: {name: more, kind: Root, metadata: [{kind: SetInfo, description: made for a test}]}
"""
_LATER: Final = (  # files that other commands make
    "worker.log", "worker.new", "worker.pid", "spark.log", "sandbox.log", "remotes.lock", "keys/logins.lock",
    "keys/.push-tokens.lock", "jobs.sqlite-journal", "index.sqlite-journal", "cache/sql-history.part",
    "cache/clipboard.txt", f"cache/screen.msgpack.{os.getpid()}", "datasets/.publishing",
    f"cache/downloads/{hashlib.sha256(_URL.encode()).hexdigest()[:32]}.part",
    f"cache/downloads/{hashlib.sha256(_URL.encode()).hexdigest()[:32]}.new",
)  # fmt: skip


class Victims:
    """Files and a folder outside of the workspace.

    Attributes:
        kinds: a text, a database, a name without a file, and a folder.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        self.kinds = [home / "text", home / "database", home / "absent", home / "folder"]
        self.kinds[0].write_text("precious\n" * 1000)
        with closing(sqlite3.connect(self.kinds[1])) as database:
            database.execute("CREATE TABLE precious(a)")
        self.kinds[3].mkdir()
        for name in ("a", "lock", ".new-a"):
            (self.kinds[3] / name).write_text("precious")
        self._state = self._now()

    def _now(self) -> dict[str, tuple[int, int, bytes]]:
        found: dict[str, tuple[int, int, bytes]] = {}
        for path in sorted(self.home.rglob("*")):
            about = path.stat()
            data = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (about.st_mtime_ns, about.st_mode, data)
        return found

    def check(self, what: str) -> None:
        now = self._now()
        changed = [path for path in {*now, *self._state} if now.get(path) != self._state.get(path)]
        assert not changed, f"{what} is a link, and {changed} changed"


def _odf(folder: Path, *arguments: str, text: str | None = None) -> Ran:
    return call_odf(*arguments, cwd=folder, input=text)


def _work(folder: Path, there: Path) -> None:
    """What writes into a workspace, each for itself; most of it may fail."""
    for command in (
        ["list"], ["jobs"], ["add", "-"], ["rename", "numbers", "renamed"],
        ["config", "set", "blockVersion", "2"], ["repo", "add", "lab", "file:///nowhere"],
        ["keys", "token", "new", "laptop"], ["keys", "prove", "derived"], ["delete", "derived", "--yes"],
        ["fsck", "--repair", "--now"],
    ):  # fmt: skip
        with suppress(Exception):  # what a command says of a damaged file does not matter here
            _odf(folder, *command, text=_MANIFEST)
    workspace = Workspace(folder)
    odf = workspace.odf
    with suppress(OdfError, OSError):
        remote = open_remote(there.as_uri(), RemoteAccess(workspace.config, Credentials(odf), Reporter()))
        clone_dataset(workspace, DatasetAlias.parse("pulled"), remote, Reporter(), parallel=1)
    with suppress(OSError):
        query_history.add_to_history(odf, "SELECT 1")
    with suppress(OSError):
        download = PartialDownload(odf / "cache" / "downloads", _URL)
        download.restart(etag="1")
        download.write(b"data")
        download.close()
    with suppress(OdfError, OSError):
        saved_session.save_snapshot(folder, _open_workspace(folder))
    terminal._write_to_file("copied", odf / "cache", "")
    for name in ("spark.log", "sandbox.log"):
        with suppress(OSError), open_file(odf / name, "ab") as log:
            log.write(b"said")
    with suppress(OdfError, OSError):
        WorkerLauncher(WorkerEndpoint(folder), 1, [sys.executable, "-c", "print('said')"])._spawn().wait()
    with (
        suppress(OSError),
        mock.patch("odf_engine.worker.endpoint._bind", _long_path),
        WorkerEndpoint(folder).locked(),
        WorkerEndpoint(folder).listen(),
    ):
        pass


def _long_path(path: Path) -> object:
    """Sockets do not fit into the workspace's path, so that a file says where they are."""
    if path.name == "worker.sock":
        raise OSError("too long")
    return mock.MagicMock()


def _work_of_worker(folder: Path) -> None:
    """A worker that ends when it is idle, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(2)  # its settings may be lost with their file
        with suppress(BaseException), mock.patch("os.nice"):
            worker.main(["--spark-later", str(folder)])
        os._exit(0)
    os.waitpid(pid, 0)


def _names(folder: Path, there: Path) -> Iterator[str]:
    """Every file that there is, and those that other commands make."""
    odf = folder / ".odf"
    for path in sorted(odf.rglob("*")):
        yield str(path.relative_to(odf))
    yield from _LATER
    arriving = Path("incoming") / hashlib.sha256(there.as_uri().encode()).hexdigest()[:32]
    yield f"{arriving}.lock"
    yield f"{arriving}/info/lock"
    yield f"{arriving}/info/arriving.lock"
    for kind in ("blocks", "data"):
        for path in sorted((there / kind).iterdir()):
            yield f"{arriving}/info/arriving/{kind}/{path.name}"


def main(form: str = "long") -> None:
    home = Path.cwd()
    other = make_root(Workspace.init(home / "other"), "there", slices=1)
    made = Workspace.init(home / "made")
    make_derivative(made, make_root(made, slices=2))
    (made.odf / "cache").mkdir()
    made.config_path.write_text("worker: {idleMinutes: 0.00001}\n")
    made.index.close()
    _work_of_worker(made.folder)
    there = other.dataset.folder
    victims = Victims(home / "victims")
    links = list(dict.fromkeys(_names(made.folder, there)))
    assert {"lock", "jobs.sqlite", "index.sqlite", "worker.log", "worker.pid", "config.yaml"} <= set(links)

    # The workspace is not opened: what could be predicted in it is checked first.
    for at, name in enumerate(links):
        folder = _linked(made.folder, name, victims.kinds[at % 3])
        ran = _odf(folder, "list")
        if name.count("/") < 2 and not name.startswith("cache/downloads"):
            assert ran.code == 1 and name in ran.err and "symbolic link" in ran.err, f"{name}: {ran.err}"
            assert (ran := _odf(folder, "worker", "start")).code == 1 and "symbolic link" in ran.err, ran.err
            assert worker.main([str(folder)]) == 1
        victims.check(name)

    # And even without that check nothing outside is changed.
    with mock.patch.object(discovery, "_check_link", lambda path: None):
        for at, name in enumerate(links):
            if (made.odf / name).is_dir() or re.fullmatch(r"datasets/\w+/(blocks|data)/.*", name):
                continue  # the latter are only read
            is_deep = "/" in name
            text, database, absent, _ = victims.kinds
            kinds = (
                [victims.kinds[at % 3]] if is_deep else [database] if ".sqlite" in name else [text, absent]
            )
            for victim in kinds if form == "long" else [kinds[at % len(kinds)]]:
                folder = _linked(made.folder, name, victim)
                _work(folder, there)
                if not is_deep:
                    _work_of_worker(folder)
                victims.check(f"{name} -> {victim.name}")


def _linked(made: Path, name: str, victim: Path) -> Path:
    """A copy of a workspace in which a file is a link."""
    folder = made.with_name("linked")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    path = folder / ".odf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
        victim = victim.with_name("folder")
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    return folder


if __name__ == "__main__":
    main(*sys.argv[1:])
