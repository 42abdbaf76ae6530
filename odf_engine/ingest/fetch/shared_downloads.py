"""Downloads that the pulls of a process share: the tables of an archive need only one.

A shared file is used only if the server confirms with 304 that it is current. It is removed half an hour
after its last use, or by the next job after the process has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Final

from odf_engine.base.files import ensure_folder
from odf_engine.base.progress import Reporter

_KEPT_SECONDS: Final = 1800.0
_POLL_SECONDS: Final = 0.1


@dataclass
class SharedFile:
    """A file on a server. While it is open, no other pull of the process requests it.

    Attributes:
        path: the file, if it was downloaded.
        version: the headers that identify its version: ``etag`` and ``modified``.
        used: when it was used last, in seconds of the monotonic clock.
    """

    path: Path
    version: dict[str, str] = field(default_factory=dict)
    used: float = field(default_factory=monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def copy_to(self, target: Path) -> bool:
        """Link the file to another path; return whether there is a file."""
        try:
            os.link(self.path, target)
        except OSError:
            self.version = {}
            return False
        return True

    def replace(self, source: Path, version: dict[str, str]) -> None:
        """Share a new version. Without a version, or on a file system without links, nothing is shared."""
        self.version = {}
        self.path.unlink(missing_ok=True)
        if version:
            with suppress(OSError):
                ensure_folder(self.path.parent)
                os.link(source, self.path)
                self.version = version


class SharedDownloads:
    """The shared files of a process."""

    def __init__(self) -> None:
        self._files: dict[Path, SharedFile] = {}
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    @contextmanager
    def open(self, cache: Path, key: str, reporter: Reporter) -> Iterator[SharedFile]:
        """Wait until no other pull requests a file, and yield it.

        Args:
            cache: the folder of caches of the workspace.
            key: identifies the request.
            reporter: its cancellation ends the waiting.

        Raises:
            Cancelled: the reporter was cancelled.
        """
        path = cache / f"download-{os.getpid()}-shared" / sha256(key.encode()).hexdigest()[:32]
        with self._lock:
            file = self._files.setdefault(path, SharedFile(path))
            file.used = monotonic()
        while not file.lock.acquire(timeout=_POLL_SECONDS):
            reporter.raise_if_cancelled()
        try:
            yield file
        finally:
            file.used = monotonic()
            file.lock.release()
            with self._lock:
                self._schedule()

    def _schedule(self) -> None:
        if self._files and self._timer is None:
            self._timer = threading.Timer(_KEPT_SECONDS, self._remove_unused)
            self._timer.daemon = True
            self._timer.start()

    def _remove_unused(self) -> None:
        with self._lock:
            self._timer = None
            for path, file in list(self._files.items()):
                if monotonic() - file.used >= _KEPT_SECONDS and file.lock.acquire(blocking=False):
                    del self._files[path]
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                        path.parent.rmdir()  # fails if it has other files
            self._schedule()


SHARED_DOWNLOADS: Final = SharedDownloads()
