"""Downloads that go on where they broke off: what all protocols have in common.

A :class:`Partial` is the file that grows. It lies in the cache of the workspace, so that it survives
a pull that failed, was cancelled or killed, and the next pull of the same source goes on with it if
the source is still the same version. A download that is complete leaves the cache at once: nothing
that was fetched as a whole is ever used twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from odf_engine.errors import Cancelled
from odf_engine.files import open_file, open_no_follow
from odf_engine.ingest.retries import Failed, Retries
from odf_engine.progress import Reporter
from odf_engine.workspace.config import FetchConfig

_SYNC: Final = 16 << 20  # bytes after which a partial download is made safe against a power failure
_KEPT_SECONDS: Final = 7 * 24 * 3600
_KEPT: Final = 20
_Result = TypeVar("_Result")


class Partial:
    """The first bytes of something, and facts that tell which version of it they are.

    ``facts`` are what the protocol needs to know to go on; ``size`` is how many bytes there are.
    Only one process at a time has a partial download; another one gets an empty one of its own.
    """

    def __init__(self, folder: Path, key: str) -> None:
        """Opens what there is for a key: everything that says which bytes are meant."""
        folder.mkdir(parents=True, exist_ok=True)
        _drop_old(folder)
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self._path = folder / f"{name}.part"
        self._lock = threading.Lock()
        file = _claim(self._path)
        self._shared = file is not None
        if file is None:
            self._path = folder / f"{name}-{os.getpid()}-{threading.get_ident()}.part"
            file = _claim(self._path)
            assert file is not None
        self._file: BinaryIO = file
        self._facts_path = self._path.with_suffix(".json")
        self.facts: dict[str, Any] = {}
        self.size = self._synced = 0
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
            known = json.loads(self._facts_path.read_text())
            # Beyond what is known to be on the disk there may be anything after a power failure.
            size = min(int(known["size"]), self._path.stat().st_size)
            self.facts, self.size, self._synced = known["facts"], size, size
        self._file.truncate(self.size)
        self._file.seek(self.size)

    def begin(self, **facts: Any) -> None:
        """Starts anew; nothing as ``facts`` means that these bytes cannot be gone on with."""
        with self._lock:
            self._file.seek(0)
            self._file.truncate()
            self._facts_path.unlink(missing_ok=True)
            self.facts, self.size, self._synced = facts, 0, 0

    def write(self, data: bytes) -> None:
        """Appends bytes. An error of the disk carries the file's name."""
        with self._lock:
            if self._file.closed:
                raise Cancelled
            with self._named():
                self._file.write(data)
                self.size += len(data)
                if self.facts and self.size - self._synced >= _SYNC:
                    self._save()

    def finish(self, target: Path) -> None:
        """All bytes are here: moves them to ``target``, out of the cache."""
        with self._lock, self._named():
            self._file.flush()
            self._path.replace(target)
            self._facts_path.unlink(missing_ok=True)
            self._file.close()

    def close(self, *, keep: bool = True) -> None:
        """Ends this download unless it is finished; keeps its bytes if they can be gone on with."""
        with self._lock:
            if self._file.closed:
                return
            try:
                keep = keep and self._shared and bool(self.facts) and self.size > 0
                if keep:
                    self._save()
            except OSError:
                keep = False
            if not keep:
                self._facts_path.unlink(missing_ok=True)
                self._path.unlink(missing_ok=True)
            with suppress(OSError):
                self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of the disk get the file's name, by which they differ from those of the network."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise

    def _save(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        temporary = self._facts_path.with_suffix(".new")
        with open_file(temporary, "wb") as file:
            file.write(json.dumps({"size": self.size, "facts": self.facts}).encode())
        temporary.replace(self._facts_path)
        self._synced = self.size


def attempts(
    once: Callable[[], _Result],
    *,
    partial: Partial,
    abort: Callable[[], None],
    config: FetchConfig,
    reporter: Reporter,
) -> _Result:
    """Calls ``once`` until it succeeds, in a thread of its own, and with pauses between failures.

    What was downloaded is kept for the next pull whatever ends this one, unless the disk failed.

    Args:
        once: raises :class:`Failed`.
        abort: makes a running ``once`` end soon.

    Raises:
        Cancelled: within a moment, even while a connection hangs.
        OdfError: of the last failure.
    """
    retries = Retries(config, reporter)
    try:
        while True:
            before = partial.size
            try:
                return cancellable(once, abort, reporter)
            except Failed as failure:
                retries.wait(failure, partial.size - before)
    except OSError:
        partial.close(keep=False)  # the disk is full or broken, and these bytes only make it worse
        raise
    finally:
        partial.close()


def cancellable(work: Callable[[], _Result], abort: Callable[[], None], reporter: Reporter) -> _Result:
    """Runs ``work`` in a thread, so that a cancel is heeded at once even while a connection hangs."""
    outcome: list[_Result] = []
    failure: list[BaseException] = []
    done, ended = threading.Event(), threading.Event()

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)
        finally:
            ended.set()
            done.set()

    with reporter.on_cancel(done.set):
        threading.Thread(target=body, name="download", daemon=True).start()
        done.wait()
    if reporter.cancelled:
        abort()
        ended.wait(0.3)
        raise Cancelled
    if failure:
        raise failure[0]
    return outcome[0]


def is_of_disk(error: BaseException) -> bool:
    """Whether an error is one of a :class:`Partial`, and not of the network."""
    return isinstance(error, OSError) and error.filename is not None


def _claim(path: Path) -> BinaryIO | None:
    """Opens a file for this process alone; None when another one has it."""
    while True:
        file = os.fdopen(open_no_follow(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have moved it away between the two calls.
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        file.close()


def _drop_old(folder: Path) -> None:
    """Old downloads go, and of many all but the newest."""
    with suppress(OSError):  # another process tidies up too
        parts = sorted(folder.glob("*.part"), key=lambda path: path.stat().st_mtime, reverse=True)
        for number, path in enumerate(parts):
            if number >= _KEPT or time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                file = _claim(path)
                if file is not None:
                    path.unlink(missing_ok=True)
                    path.with_suffix(".json").unlink(missing_ok=True)
                    file.close()
