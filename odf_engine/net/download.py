"""Retries with back-off, and downloads that can be resumed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time as unix_time
from typing import Any, BinaryIO, Final, TypeVar

from odf_engine.base.config import FetchConfig
from odf_engine.base.files import ensure_folder, open_file, open_no_follow
from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, OdfError, SourceUnavailable
from odf_engine.metadata.timestamp import Timestamp

_PAUSE: Final = 0.5
_PROGRESS_BYTES: Final = 1 << 20
"""An attempt that receives as many bytes resets the count of failures."""


class AttemptFailed(Exception):
    """An attempt failed. If ``again``, another one may succeed after ``pause`` seconds."""

    def __init__(self, error: OdfError, *, again: bool, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.again, self.pause = error, again, pause


class RetryPolicy:
    """Counts the failures of one transfer."""

    def __init__(self, config: FetchConfig, reporter: Reporter) -> None:
        self._config, self._reporter = config, reporter
        self._failures = 0

    def wait(self, failure: AttemptFailed, got: int = 0) -> None:
        """Wait until it is time for another attempt.

        Args:
            failure: the failure of the last attempt.
            got: number of bytes that the attempt received.

        Raises:
            OdfError: the failure, if there should be no other attempt.
            Cancelled: immediately.
        """
        self._failures = 1 if got >= _PROGRESS_BYTES else self._failures + 1
        error, pause, longest = failure.error, failure.pause, self._config.longest_pause_seconds
        if not failure.again or self._failures > self._config.retries:
            raise error from None
        if pause is not None and pause > longest:
            raise SourceUnavailable(
                f"{error.message}; retry after {pause:,.0f} s",
                where=error.where,
                hint="try again later, or increase fetch.longestPauseSeconds",
            )
        if pause is None:
            pause = min(longest, _PAUSE * 2 ** (self._failures - 1) * random.uniform(1, 1.25))
        self._reporter.log(f"{error}; retrying in {pause:.1f} s", "warning")
        cancelled = threading.Event()
        with self._reporter.on_cancel(cancelled.set):
            cancelled.wait(pause)
        self._reporter.raise_if_cancelled()


def connection_failure(
    reason: object, where: str, hint: str = "check the URL and the network, then try again"
) -> AttemptFailed:
    """Return the failure for an error of a connection, with a message, and whether it is temporary."""
    again = True
    if isinstance(reason, ssl.SSLCertVerificationError):
        text, again = f"invalid certificate: {reason.verify_message}", False
    elif isinstance(reason, socket.gaierror):
        text, again = "cannot resolve host name", reason.errno == socket.EAI_AGAIN
    elif isinstance(reason, TimeoutError):
        text = "no response: timeout"
    elif isinstance(reason, OSError):
        text = f"connection failed: {reason.strerror or reason}"
    else:
        text = f"connection error: {reason}"
    return AttemptFailed(SourceUnavailable(text, where=where, hint=hint), again=again)


def parse_retry_after(text: str | None) -> float | None:
    """Return the seconds in a ``Retry-After`` header, or None if it is missing or invalid."""
    if not text:
        return None
    if (number := text.strip()).isascii() and number.isdigit():
        return float(number)
    then = parse_http_date(text)
    return max(0.0, then.ns / 1e9 - unix_time()) if then else None


def parse_http_date(text: str | None) -> Timestamp | None:
    """Return the time in a header such as ``Last-Modified``, or None if it is missing or invalid."""
    if not text:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return Timestamp.from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


class TimeLimitReached(TimeoutError):
    """Work in a thread has used up its time."""


_SYNC: Final = 16 << 20  # bytes between two calls of fsync
_KEPT_SECONDS: Final = 7 * 24 * 3600
_KEPT: Final = 20
_Result = TypeVar("_Result")


class PartialDownload:
    """The first bytes of a file, with facts that identify its version.

    ``facts`` are what the protocol needs to resume; ``size`` is the number of bytes. A partial download is
    locked by one process. Another process gets an empty one.
    """

    def __init__(self, folder: Path, key: str) -> None:
        """Open the partial download for a key, which identifies the file."""
        ensure_folder(folder)
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
            # After a power failure, bytes that were not synced may be wrong.
            size = min(int(known["size"]), self._path.stat().st_size)
            self.facts, self.size, self._synced = known["facts"], size, size
        self._file.truncate(self.size)
        self._file.seek(self.size)

    def restart(self, **facts: Any) -> None:
        """Delete the bytes. Without ``facts``, the new bytes cannot be resumed."""
        with self._lock:
            self._file.seek(0)
            self._file.truncate()
            self._facts_path.unlink(missing_ok=True)
            self.facts, self.size, self._synced = facts, 0, 0

    def write(self, data: bytes) -> None:
        """Append bytes. A disk error has the name of the file."""
        with self._lock:
            if self._file.closed:
                raise Cancelled
            with self._named():
                self._file.write(data)
                self.size += len(data)
                if self.facts and self.size - self._synced >= _SYNC:
                    self._save()

    def finish(self, target: Path) -> None:
        """Move the complete file to ``target``."""
        with self._lock, self._named():
            self._file.flush()
            self._path.replace(target)
            self._facts_path.unlink(missing_ok=True)
            self._file.close()

    def close(self, *, keep: bool = True) -> None:
        """Release the lock. Unless the file is finished, keep its bytes if they can be resumed."""
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
        """Add the name of the file to disk errors, which distinguishes them from network errors."""
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


def run_with_retries(
    once: Callable[[], _Result],
    *,
    partial: PartialDownload,
    abort: Callable[[], None],
    config: FetchConfig,
    reporter: Reporter,
) -> _Result:
    """Call ``once`` in a thread until it succeeds, with pauses between failures.

    The bytes of an unfinished download are stored for the next pull, unless the disk failed.

    Args:
        once: raises :class:`AttemptFailed`.
        abort: makes a running ``once`` end soon.

    Raises:
        Cancelled: within a moment, even while a connection hangs.
        SourceUnavailable: the attempts take longer than ``fetch.maxMinutes``.
        OdfError: the last failure.
    """
    retries = RetryPolicy(config, reporter)
    end = time.monotonic() + config.max_minutes * 60
    try:
        while True:
            before = partial.size
            try:
                return run_cancellable(once, abort, reporter, seconds=max(end - time.monotonic(), 0))
            except TimeLimitReached:
                raise SourceUnavailable(
                    f"the download takes longer than {config.max_minutes:g} minutes (fetch.maxMinutes)",
                    hint="pull again to resume it, or increase fetch.maxMinutes",
                ) from None
            except AttemptFailed as failure:
                retries.wait(failure, partial.size - before)
    except OSError:
        partial.close(keep=False)  # the disk is full or broken
        raise
    finally:
        partial.close()


def run_cancellable(
    work: Callable[[], _Result],
    abort: Callable[[], None],
    reporter: Reporter,
    *,
    seconds: float | None = None,
) -> _Result:
    """Run ``work`` in a thread, so that a cancellation takes effect even while a connection hangs.

    Raises:
        TimeLimitReached: it takes longer than ``seconds``; the thread is abandoned.
    """
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
        in_time = done.wait(seconds)
    if reporter.cancelled:
        abort()
        ended.wait(0.3)
        raise Cancelled
    if not in_time:
        abort()
        raise TimeLimitReached
    if failure:
        raise failure[0]
    return outcome[0]


class StoppableReporter(Reporter):
    """A reporter that is cancelled by another reporter or by :meth:`end`; forwards log lines."""

    def __init__(self, outer: Reporter) -> None:
        super().__init__()
        self._outer = outer
        self._link = ExitStack()
        self._link.enter_context(outer.on_cancel(self.cancel))

    def log(self, text: str, level: str = "info") -> None:
        """Write to the log of the other reporter."""
        self._outer.log(text, level)

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        """Add a warning to the job of the other reporter."""
        self._outer.warn(text, kind, count)

    def end(self) -> None:
        """Cancel, and release the other reporter."""
        self._link.close()
        self.cancel()


def is_disk_error(error: BaseException) -> bool:
    """Return whether an error is one of a :class:`PartialDownload`, not of the network."""
    return isinstance(error, OSError) and error.filename is not None


def _claim(path: Path) -> BinaryIO | None:
    """Open and lock a file; return None if another process has locked it."""
    while True:
        file = os.fdopen(open_no_follow(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have moved it between the two calls.
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        file.close()


def _drop_old(folder: Path) -> None:
    """Delete old downloads, and all but the newest :data:`_KEPT`."""
    with suppress(OSError):  # another process may delete them too
        parts = sorted(folder.glob("*.part"), key=lambda path: path.stat().st_mtime, reverse=True)
        for number, path in enumerate(parts):
            if number >= _KEPT or time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                file = _claim(path)
                if file is not None:
                    path.unlink(missing_ok=True)
                    path.with_suffix(".json").unlink(missing_ok=True)
                    file.close()
