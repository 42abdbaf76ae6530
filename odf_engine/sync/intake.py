"""Slices and checkpoints coming in: several at a time, checked by hash and size, and gone on with later.

An object in the making is a file of its name in ``info/arriving/`` of the dataset. One that was cut off is
hashed again from its beginning and asked for from its end. Whole ones are made durable together, and only
then get to their place among the dataset's objects.
"""

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
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from odf_engine.errors import BadData, NotFound, OdfError
from odf_engine.files import open_no_follow, sync_folder, write_all
from odf_engine.identity.multiformats import SHA2_256, SHA3_256
from odf_engine.progress import Reporter
from odf_engine.storage.durability import sync_files
from odf_engine.storage.objects import LocalObjects, find_name, make_folder
from odf_engine.sync.compare import SOURCE_HINT, TAMPERED
from odf_engine.sync.remote import ObjectFile, RemoteDataset

_HASHERS: Final[dict[int, Any]] = {SHA3_256: hashlib.sha3_256, SHA2_256: hashlib.sha256}
_CHUNK: Final = 1 << 20
_WAITING: Final = 8192  # objects that are known and not begun: about 2 MB
_SETTLE_BYTES: Final = 1 << 30  # to wait for the disk more often slows down what arrives meanwhile
_SETTLE_FILES: Final = 4096
_ATTEMPTS: Final = 8
_TELL_SECONDS: Final = 0.1


class Intake:
    """What is still missing of a dataset's objects, on its way here; a context manager.

    Attributes:
        bytes: how much has come from elsewhere.
        files: how many have become whole.
    """

    def __init__(
        self, folder: Path, arriving: Path, remote: RemoteDataset, reporter: Reporter, parallel: int
    ) -> None:
        """``folder`` is the dataset's, ``arriving`` that of what is in the making; on one file system."""
        self.bytes = 0
        self.files = 0
        self._arriving, self._remote, self._reporter = arriving, remote, reporter
        self._objects = {kind: LocalObjects(folder / kind) for kind in ("data", "checkpoints")}
        self._queue: queue.Queue[ObjectFile | None] = queue.Queue(_WAITING)
        self._threads = [
            threading.Thread(target=self._work, name=f"intake-{number}", daemon=True)
            for number in range(parallel)
        ]
        self._settler = ThreadPoolExecutor(1, "intake-settler")  # waits for the disk while more arrives
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._coming: set[tuple[str, bytes]] = set()  # wanted, and not in their places yet
        self._whole: list[ObjectFile] = []
        self._whole_bytes = 0
        self._hashed, self._total_bytes, self._total_files = 0, 0, 0
        self._told = 0.0

    def __enter__(self) -> Self:
        """Nothing travels yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all transfers; those that are not whole stay for the next time.

        What went wrong first is raised: whatever else did is only that the remote was closed then.
        """
        if error is not None:
            self._fail(error)
        self._join()
        if error is not None and self._error is not None and self._error is not error:
            raise self._error from None

    def start(self, most: int | None = None) -> None:
        """Lets objects travel from now on, several at the same time, or ``most``."""
        for thread in self._threads[:most]:
            if thread.ident is None:
                thread.start()

    def is_missing(self, file: ObjectFile) -> bool:
        """Whether the dataset lacks this object, or has one of another size under its name."""
        objects = self._objects[file.kind]
        name = find_name(objects, file.hash)
        return name is None or objects.size(name) != file.size

    def want(self, file: ObjectFile) -> None:
        """Fetches the object, unless it is here or on its way; waits while too many others do.

        Raises:
            OdfError: another object cannot be had.
            Cancelled: somebody asked to stop.
        """
        if file.hash.code not in _HASHERS:
            problem = f"{file.kind}/{file.hash} is named by a hash that is none of a file's bytes"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        with self._lock:
            if _key(file) in self._coming:
                return
        if not self.is_missing(file):
            return
        with self._lock:
            self._coming.add(_key(file))
            self._total_bytes += file.size
            self._total_files += 1
        while True:
            self._check()
            with suppress(queue.Full):
                self._queue.put(file, timeout=0.1)
                return

    def finish(self) -> None:
        """Waits until all objects are whole, in their places and durable.

        Raises:
            OdfError: one cannot be had, or is not what its hash says.
            Cancelled: somebody asked to stop.
        """
        self.start()
        self._join()
        self._settle(self._taken(0, 0))
        self._check()
        self._tell(0, now=True)

    # --- Threads ---

    def _work(self) -> None:
        while (file := self._queue.get()) is not None:
            if self._error is not None:
                continue
            try:
                self._fetch(file)
                if files := self._taken(_SETTLE_FILES, _SETTLE_BYTES):
                    self._settler.submit(self._settle, files)
            except OSError as error:
                self._fail(_not_stored(error))
            except BaseException as error:
                self._fail(error)

    def _join(self) -> None:
        for thread in self._threads:
            if thread.is_alive():
                self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._settler.shutdown()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            waiting = self._error is None and bool(self._coming)
            self._error = self._error or error
        if waiting:  # perhaps for long
            with suppress(Exception):
                self._remote.close()

    def _check(self) -> None:
        self._reporter.check()
        if self._error is not None:
            raise self._error

    # --- One object ---

    def _fetch(self, file: ObjectFile) -> None:
        path = str(self._arriving / file.kind / str(file.hash))
        descriptor = open_no_follow(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            had = os.fstat(descriptor).st_size
            if had > file.size:
                had = _emptied(descriptor)
            if not self._receive(file, descriptor, had) and not (
                had and self._receive(file, descriptor, _emptied(descriptor))
            ):
                os.unlink(path)  # noqa: PTH108
                raise BadData(f"{_name(file)}: {TAMPERED}", where=self._remote.url, hint=SOURCE_HINT)
        finally:
            os.close(descriptor)
        with self._lock:
            self.files += 1
            self._whole.append(file)
            self._whole_bytes += file.size

    def _receive(self, file: ObjectFile, descriptor: int, had: int) -> bool:
        """Receives what is missing behind the first bytes; whether all of it has the right hash."""
        hasher = _HASHERS[file.hash.code]()
        for at in range(0, had, _CHUNK):
            self._check()
            hasher.update(os.pread(descriptor, min(_CHUNK, had - at), at))
        self._tell(had, fetched=False)
        for _ in range(_ATTEMPTS):
            before = had
            if had < file.size:
                had = self._stream(file, descriptor, hasher, had)
            if had >= file.size or had == before:
                break
        if had > file.size:
            _emptied(descriptor)
            problem = f"{_name(file)} has more than the {file.size:,} bytes that its block says"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        if had < file.size:
            problem = f"{_name(file)} ends after {had:,} of the {file.size:,} bytes that its block says"
            raise BadData(problem, where=self._remote.url, hint=SOURCE_HINT)
        # The hash is that of the bytes received, not of the file. Every write was complete, so that a file of
        # the right size has these bytes: reading a large slice again would double the time of a pull.
        if os.fstat(descriptor).st_size != file.size:
            raise OSError(errno.EIO, "not all bytes were stored", f"{file.kind}/{file.hash}")
        return hasher.digest() == file.hash.digest

    def _stream(self, file: ObjectFile, descriptor: int, hasher: Any, had: int) -> int:
        chunks: Any = self._remote.chunks(file, had)
        os.lseek(descriptor, had, os.SEEK_SET)
        try:
            for chunk in chunks:
                self._check()
                had += len(chunk)
                if had > file.size:
                    break
                hasher.update(chunk)
                write_all(descriptor, chunk)
                self._tell(len(chunk))
        except NotFound as error:
            problem = f"{_name(file)} is missing: {error.message}"
            raise NotFound(problem, where=self._remote.url, hint=SOURCE_HINT) from error
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        return had

    # --- All of them ---

    def _taken(self, most_files: int, most_bytes: int) -> list[ObjectFile]:
        """All objects that are whole and not in their places, if they are more than that."""
        with self._lock:
            if len(self._whole) <= most_files and self._whole_bytes <= most_bytes:
                return []
            files, self._whole, self._whole_bytes = self._whole, [], 0
            return files

    def _settle(self, files: Sequence[ObjectFile]) -> None:
        """Moves whole objects to their places, durable before they have a name there."""
        if not files or self._error is not None:
            return
        try:
            paths = [str(self._arriving / file.kind / str(file.hash)) for file in files]
            sync_files(paths)
            folders = {self._objects[file.kind].folder for file in files}
            for folder in folders:
                make_folder(folder)
            for file, path in zip(files, paths, strict=True):
                os.rename(path, self._objects[file.kind].folder / str(file.hash))  # noqa: PTH104
            for folder in folders:
                sync_folder(folder)
        except OSError as error:
            self._fail(_not_stored(error))
        with self._lock:
            self._coming.difference_update(map(_key, files))

    def _tell(self, size: int, fetched: bool = True, now: bool = False) -> None:
        with self._lock:
            self._hashed += size
            self.bytes += size if fetched else 0
            moment = time.monotonic()
            if now or moment - self._told > _TELL_SECONDS:
                self._told = moment
                self._reporter.amount(
                    bytes=self._hashed,
                    total_bytes=self._total_bytes,
                    files=self.files,
                    total_files=self._total_files,
                )


def _emptied(descriptor: int) -> int:
    os.ftruncate(descriptor, 0)
    return 0


def _key(file: ObjectFile) -> tuple[str, bytes]:
    return file.kind, file.hash.digest


def _name(file: ObjectFile) -> str:
    return f"{file.kind}/{file.hash}"


def _not_stored(error: OSError) -> OdfError:
    return OdfError(
        f"the data cannot be stored: {error.strerror or error}",
        where=str(error.filename or ""),
        hint="nothing was changed; free some space or check the permissions, then try again",
    )
