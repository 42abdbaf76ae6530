"""Files of a workspace's worker: socket, lock, log; change notification."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odf_engine.base.files import open_file, open_no_follow, write_all
from odf_engine.errors import NotFound, OdfError
from odf_engine.worker.protocol import NotifyChanged, encode_line
from odf_engine.workspace.discovery import check_odf_folder, user_name


class WorkerEndpoint:
    """The files of a workspace's worker.

    Attributes:
        odf: the workspace's ``.odf`` folder, absolute, without symbolic links.
        journal: the job log.
        log: the log of the worker.
    """

    def __init__(self, workspace: Path) -> None:
        """Locate the files of a worker.

        Args:
            workspace: the workspace's folder, or the ``.odf`` in it.
        """
        folder = workspace if workspace.name == ".odf" else workspace / ".odf"
        self.odf = folder.resolve()
        self.journal = self.odf / "jobs.sqlite"
        self.log = self.odf / "worker.log"
        self._pid = self.odf / "worker.pid"
        self._socket = self.odf / "worker.sock"
        self._pointer = self.odf / "worker.address"
        self._locked: os.stat_result | None = None

    @property
    def workspace(self) -> Path:
        """The workspace's folder."""
        return self.odf.parent

    def check(self) -> None:
        """Check that the folder is a workspace and safe to use.

        Raises:
            NotFound: the folder is not a workspace.
            OdfError: it belongs to another user, or contains symbolic links.
        """
        if not self.odf.is_dir():
            raise NotFound(f"'{self.workspace}' is not a workspace", hint="run odf init there to create one")
        check_odf_folder(self.odf)

    def worker_alive(self) -> bool:
        """Return whether a worker runs; takes no lock that would keep a worker from starting."""
        try:
            file = open_no_follow(self._pid, os.O_RDONLY)
        except PermissionError:  # another user's worker: its state is unknown
            return True
        except OSError:  # missing, or not a file that a worker has locked
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def worker_pid(self) -> int | None:
        """Return the process id of the running worker, or None if none runs or it is not written yet."""
        if not self.worker_alive():
            return None
        text = self._pid.read_text(encoding="ascii", errors="replace").strip()
        return int(text) if text.isascii() and text.isdigit() else None

    def address(self) -> str:
        """Return the path of the worker's socket."""
        try:
            return self._pointer.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return str(self._socket)

    def check_owner(self) -> None:
        """Check that the worker belongs to this user, since requests carry secrets.

        Raises:
            OdfError: its socket or lock belongs to another user.
        """
        for path in (Path(self.address()), self._pid):
            with contextlib.suppress(FileNotFoundError):
                if (owner := path.stat().st_uid) != os.getuid():
                    raise OdfError(
                        f"the worker of this workspace belongs to another user ({user_name(owner)})",
                        where=str(path),
                        hint="use your own workspace, or run as that user",
                    )

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of the worker's log, for an error message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 4096))
                text = file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the workspace's worker lock; yields False if another worker holds it."""
        file = open_no_follow(self._pid, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            acquired = _lock(file)
            if acquired:
                os.ftruncate(file, 0)
                write_all(file, f"{os.getpid()}\n".encode())
                self._locked = os.fstat(file)
            yield acquired
        finally:
            os.close(file)  # releases the lock; the file stays, so that no process locks a removed one

    def workspace_exists(self) -> bool:
        """Return whether the locked file still exists.

        While the worker runs, the workspace can be deleted, and another one created in its place.
        """
        try:
            return self._locked is None or os.path.samestat(self._locked, self._pid.lstat())
        except OSError:
            return False

    @contextmanager
    def listen(self) -> Iterator[socket.socket]:
        """Yield a listening socket that only this user can open; the caller holds the lock."""
        server, path = self._bind()
        try:
            yield server
        finally:
            if self.workspace_exists():  # the files of another worker stay
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                self._pointer.unlink(missing_ok=True)
            server.close()

    def _bind(self) -> tuple[socket.socket, Path]:
        self._pointer.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # too long a path, or a file system without sockets
            return _bind(self._socket), self._socket
        name = hashlib.sha256(os.fsencode(self.odf)).hexdigest()[:20]
        path = _runtime_folder() / f"{name}.sock"
        server = _bind(path)
        temporary = self._pointer.with_suffix(".new")
        with open_file(temporary, "wb") as file:
            file.write(os.fsencode(path))
        temporary.replace(self._pointer)
        return server, path


def _lock(file: int) -> bool:
    """Take the worker's lock; return False if another worker holds it."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        # The lock is held by a worker, or for microseconds by a client that checks for one. A shared lock
        # is only possible together with the latter, which holds a shared lock itself.
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(random.uniform(0.001, 0.01))


def _bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        server.bind(str(path))
        server.listen(64)
        server.setblocking(False)
    except BaseException:
        server.close()
        raise
    finally:
        os.umask(mask)
    return server


def _runtime_folder() -> Path:
    """Return a folder with a short path that other users cannot write to."""
    configured = os.environ.get("XDG_RUNTIME_DIR")
    if configured and len(os.fsencode(configured)) < 60 and os.access(configured, os.W_OK):
        folder = Path(configured) / "odf"
    else:
        base = Path(tempfile.gettempdir())
        folder = (base if len(os.fsencode(base)) < 60 else Path("/tmp")) / f"odf-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        folder = Path(tempfile.mkdtemp(prefix="odf-", dir="/tmp"))
    return folder


_PATIENCE: Final = 0.2


def notify_datasets_changed(workspace: Path) -> None:
    """Notify all clients of a running worker that datasets have changed.

    Takes a few milliseconds and never fails: clients that miss it see the change when they read next.
    """
    files = WorkerEndpoint(workspace)
    with contextlib.suppress(OSError, OdfError):
        if not files.worker_alive():
            return
        files.check_owner()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(files.address())
            connection.sendall(encode_line(NotifyChanged()))
