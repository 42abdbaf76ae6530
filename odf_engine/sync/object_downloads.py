"""Parallel downloads of the objects of a dataset: received, hashed, synced and moved to their place."""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from odf_engine.base.atomic_files import fsync_files, make_folder, start_writeback
from odf_engine.base.files import fsync_folder, open_no_follow, write_all
from odf_engine.base.progress import Reporter
from odf_engine.data.sha3_lanes import Kernel, find_kernel
from odf_engine.errors import BadData, NotFound, OdfError
from odf_engine.identity.multiformats import SHA2_256, SHA3_256
from odf_engine.storage.object_store import LocalObjectStore, find_object_name
from odf_engine.sync.history import HASH_MISMATCH, SOURCE_HINT
from odf_engine.sync.remotes.base import ObjectFile, RemoteDataset

_HASHERS: Final[dict[int, Any]] = {SHA3_256: hashlib.sha3_256, SHA2_256: hashlib.sha256}
_CHUNK_BYTES: Final = 1 << 20
_QUEUE_SIZE: Final = 8192  # objects that are queued: about 2 MB
_WRITEBACK_BYTES: Final = 1 << 20
_LATE_BYTES: Final = 64 << 20
"""Size of files that are hashed after they were received, while they are in the page cache."""
_SYNC_BYTES: Final = 1 << 30  # more frequent syncs would slow down the transfers
_SYNC_FILES: Final = 4096
_ATTEMPTS: Final = 8
_REPORT_SECONDS: Final = 0.1


class ObjectDownloads:
    """Downloads of a dataset's missing objects; a context manager.

    Attributes:
        bytes: number of downloaded bytes.
        files: number of complete objects.
    """

    def __init__(
        self, folder: Path, arriving: Path, remote: RemoteDataset, reporter: Reporter, parallel: int
    ) -> None:
        """``folder`` has the dataset, ``arriving`` incomplete downloads; both are on one file system."""
        self.bytes = 0
        self.files = 0
        self._arriving, self._remote, self._reporter = arriving, remote, reporter
        self._objects = {kind: LocalObjectStore(folder / kind) for kind in ("data", "checkpoints")}
        self._queue: queue.Queue[ObjectFile | None] = queue.Queue(_QUEUE_SIZE)
        self._threads = [
            threading.Thread(target=self._run_worker, name=f"intake-{number}", daemon=True)
            for number in range(parallel)
        ]
        self._sync_executor = ThreadPoolExecutor(
            1, "intake-settler"
        )  # syncs files while others are downloaded
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._requested: set[tuple[str, bytes]] = set()  # requested, and not in their final place yet
        self._complete: list[ObjectFile] = []
        self._complete_bytes = 0
        self._hashed, self._total_bytes, self._total_files = 0, 0, 0
        self._last_report = 0.0

    def __enter__(self) -> Self:
        """Do nothing; :meth:`start` starts the transfers."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all transfers; incomplete ones are stored for the next attempt.

        Raises the first error; later ones only result from closing the remote.
        """
        if error is not None:
            self._set_error(error)
        self._join()
        if error is not None and self._error is not None and self._error is not error:
            raise self._error from None

    def start(self, max_threads: int | None = None) -> None:
        """Start the transfers, with all threads or at most ``max_threads``."""
        for thread in self._threads[:max_threads]:
            if thread.ident is None:
                thread.start()

    def is_missing(self, file: ObjectFile) -> bool:
        """Return whether the dataset lacks this object, or has one of another size under its name."""
        objects = self._objects[file.kind]
        name = find_object_name(objects, file.hash)
        return name is None or objects.size(name) != file.size

    def request(self, file: ObjectFile) -> None:
        """Queue an object unless it is stored or queued already; blocks while the queue is full.

        Raises:
            OdfError: the download of another object has failed.
            Cancelled: the job was cancelled.
        """
        if file.hash.code not in _HASHERS:
            problem = f"{file.kind}/{file.hash} has an unsupported hash algorithm"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        with self._lock:
            if _key(file) in self._requested:
                return
        if not self.is_missing(file):
            return
        with self._lock:
            self._requested.add(_key(file))
            self._total_bytes += file.size
            self._total_files += 1
        while True:
            self._raise_if_stopped()
            with suppress(queue.Full):
                self._queue.put(file, timeout=0.1)
                return

    def finish(self) -> None:
        """Wait until all objects are complete, in their final place, and synced.

        Raises:
            OdfError: an object cannot be downloaded, or does not match its hash.
            Cancelled: the job was cancelled.
        """
        self.start()
        self._join()
        self._sync_and_move(self._take_complete(0, 0))
        self._raise_if_stopped()
        self._report_progress(0, force=True)

    def _run_worker(self) -> None:
        while (file := self._queue.get()) is not None:
            if self._error is not None:
                continue
            try:
                self._download(file)
                if files := self._take_complete(_SYNC_FILES, _SYNC_BYTES):
                    self._sync_executor.submit(self._sync_and_move, files)
            except OSError as error:
                self._set_error(_storage_error(error))
            except BaseException as error:
                self._set_error(error)

    def _join(self) -> None:
        for thread in self._threads:
            if thread.is_alive():
                self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._sync_executor.shutdown()

    def _set_error(self, error: BaseException) -> None:
        with self._lock:
            is_active = self._error is None and bool(self._requested)
            self._error = self._error or error
        if is_active:  # they may block for long
            with suppress(Exception):
                self._remote.close()

    def _raise_if_stopped(self) -> None:
        self._reporter.raise_if_cancelled()
        if self._error is not None:
            raise self._error

    def _download(self, file: ObjectFile) -> None:
        path = str(self._arriving / file.kind / str(file.hash))
        descriptor = open_no_follow(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            received = os.fstat(descriptor).st_size
            if received > file.size:
                received = _truncate(descriptor)
            kernel = find_kernel(file.size) if file.hash.code == SHA3_256 else None
            if kernel is None or file.size > _LATE_BYTES:
                receive = self._receive_and_hash
            else:
                receive = partial(self._hash_received, kernel)
            if not receive(file, descriptor, received) and not (
                received and receive(file, descriptor, _truncate(descriptor))
            ):
                os.unlink(path)  # noqa: PTH108
                raise BadData(f"{_name(file)}: {HASH_MISMATCH}", where=self._remote.url, hint=SOURCE_HINT)
        finally:
            os.close(descriptor)
        with self._lock:
            self.files += 1
            self._complete.append(file)
            self._complete_bytes += file.size

    def _hash_received(self, kernel: Kernel, file: ObjectFile, descriptor: int, received: int) -> bool:
        """Receive the bytes after the first ``received``; return whether the hash of the file matches.

        The files of several threads are hashed in nearly the time of one, while they are in the page cache.
        """
        self._receive(file, descriptor, received, None)
        os.lseek(descriptor, 0, os.SEEK_SET)
        parts = iter(lambda: os.read(descriptor, _CHUNK_BYTES), b"")
        return kernel.group.digest(parts) == file.hash.digest

    def _receive_and_hash(self, file: ObjectFile, descriptor: int, received: int) -> bool:
        """Receive the bytes after the first ``received``; return whether the hash of all bytes matches."""
        hasher = _HASHERS[file.hash.code]()
        for offset in range(0, received, _CHUNK_BYTES):
            self._raise_if_stopped()
            hasher.update(os.pread(descriptor, min(_CHUNK_BYTES, received - offset), offset))
        self._receive(file, descriptor, received, hasher)
        # The hash covers the received bytes, not the file. Every write was complete, so a file of the right
        # size contains them.
        return hasher.digest() == file.hash.digest

    def _receive(self, file: ObjectFile, descriptor: int, received: int, hasher: Any) -> None:
        """Receive the bytes after the first ``received``, and hash them if there is a hasher.

        Raises:
            BadData: the file has another size.
        """
        self._report_progress(received, fetched=False)
        for _ in range(_ATTEMPTS):
            previous = received
            if received < file.size:
                received = self._stream(file, descriptor, hasher, received)
            if received >= file.size or received == previous:
                break
        if received > file.size:
            _truncate(descriptor)
            problem = f"{_name(file)} has more than the expected {file.size:,} bytes"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        if received < file.size:
            problem = f"{_name(file)} ends after {received:,} of the expected {file.size:,} bytes"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        if os.fstat(descriptor).st_size != file.size:
            raise OSError(errno.EIO, "not all bytes were stored", f"{file.kind}/{file.hash}")

    def _stream(self, file: ObjectFile, descriptor: int, hasher: Any, received: int) -> int:
        chunks: Any = self._remote.chunks(file, received)
        os.lseek(descriptor, received, os.SEEK_SET)
        unwritten = 0
        try:
            for chunk in chunks:
                self._raise_if_stopped()
                received += len(chunk)
                if received > file.size:
                    break
                if hasher is not None:
                    hasher.update(chunk)
                write_all(descriptor, chunk)
                unwritten += len(chunk)
                if unwritten >= _WRITEBACK_BYTES:
                    start_writeback(descriptor)
                    unwritten = 0
                self._report_progress(len(chunk))
        except NotFound as error:
            problem = f"{_name(file)} is missing: {error.message}"
            raise NotFound(problem, where=self._remote.url, hint=SOURCE_HINT) from error
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        return received

    def _take_complete(self, most_files: int, most_bytes: int) -> list[ObjectFile]:
        """Return all complete objects that are not in their final place, if they exceed these limits."""
        with self._lock:
            if len(self._complete) <= most_files and self._complete_bytes <= most_bytes:
                return []
            files, self._complete, self._complete_bytes = self._complete, [], 0
            return files

    def _sync_and_move(self, files: Sequence[ObjectFile]) -> None:
        """Sync complete objects and move them to their final place."""
        if not files or self._error is not None:
            return
        try:
            paths = [str(self._arriving / file.kind / str(file.hash)) for file in files]
            fsync_files(paths)
            folders = {self._objects[file.kind].folder for file in files}
            for folder in folders:
                make_folder(folder)
            for file, path in zip(files, paths, strict=True):
                os.rename(path, self._objects[file.kind].folder / str(file.hash))  # noqa: PTH104
            for folder in folders:
                fsync_folder(folder)
        except OSError as error:
            self._set_error(_storage_error(error))
        with self._lock:
            self._requested.difference_update(map(_key, files))

    def _report_progress(self, size: int, fetched: bool = True, force: bool = False) -> None:
        with self._lock:
            self._hashed += size
            self.bytes += size if fetched else 0
            time_now = time.monotonic()
            if force or time_now - self._last_report > _REPORT_SECONDS:
                self._last_report = time_now
                self._reporter.set_amounts(
                    bytes=self._hashed,
                    total_bytes=self._total_bytes,
                    files=self.files,
                    total_files=self._total_files,
                )


def _truncate(descriptor: int) -> int:
    os.ftruncate(descriptor, 0)
    return 0


def _key(file: ObjectFile) -> tuple[str, bytes]:
    return file.kind, file.hash.digest


def _name(file: ObjectFile) -> str:
    return f"{file.kind}/{file.hash}"


def _storage_error(error: OSError) -> OdfError:
    return OdfError(
        f"the data cannot be stored: {error.strerror or error}",
        where=str(error.filename or ""),
        hint="nothing was changed; free disk space or check the permissions, then try again",
    )
