"""Protocols of remote datasets and repositories; parallel, verified uploads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled, NotFound, UsageError
from odf_engine.identity.multiformats import (
    HASH_NAMES,
    MULTIBASE_PREFIXES,
    SHA2_256,
    SHA3_256,
    Multihash,
    multibase_encode,
)

ObjectKind = Literal["blocks", "data", "checkpoints", "proofs", "compactions", "checks"]
"""The folders of the repository layout. ``proofs`` is an extension for ownership proofs, ``compactions`` for
compaction records, which are named after a block, ``checks`` for results of checks, named after a slice."""
MAX_BLOCK_BYTES: Final = 1 << 20
"""Maximum size of a block, which is held in memory."""
MAX_PROOF_BYTES: Final = 1 << 12
MAX_HEAD_BYTES: Final = 128


class ObjectFile(NamedTuple):
    """A slice or a checkpoint that a block refers to, or a linked object, which is of kind ``data`` too."""

    kind: Literal["data", "checkpoints"]
    hash: Multihash
    size: int


class RemoteDataset(Protocol):
    """A remote dataset that can be read.

    Methods raise:
        NotFound: the object or the dataset does not exist.
        SourceUnavailable: the connection failed, or access is denied, after the retries.
        BadData: an invalid response: an HTML page, a head that is not a hash, more bytes than requested.
        Cancelled: the job was cancelled.
    """

    @property
    def url(self) -> str:
        """The URL as the user wrote it, without credentials, with a slash at its end."""
        ...

    def head(self) -> Multihash | None:
        """Return the newest block, or None if there is no dataset yet."""
        ...

    def reference(self, name: str) -> Multihash | None:
        """Return the block of a reference, or None if it does not exist or is not transferred."""
        ...

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return a small object; BadData if it has more than ``at_most`` bytes."""
        ...

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes] | Iterator[memoryview]:
        """Yield a large object in chunks, from byte ``start``. A chunk is valid until the next one.

        Closing the generator releases the connection. It may end early if the connection broke. It stops
        after one byte more than ``file.size``.
        """
        ...

    def size(self, kind: ObjectKind, object_hash: Multihash) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        ...

    def prepare(self, files: Sequence[ObjectFile], *, more: bool = False) -> None:
        """Announce files that :meth:`chunks` will be called for; some protocols need it.

        Args:
            files: the files.
            more: whether another call follows.
        """
        ...

    def block_batch(
        self, after: Multihash | None, head: Multihash
    ) -> Iterator[tuple[Multihash, bytes]] | None:
        """Yield all blocks after ``after`` (None: from the first) up to ``head``, oldest first.

        Return None if the protocol sends blocks one by one, or if ``after`` is not part of the chain.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class ObjectNames:
    """The names of the objects of a remote dataset: their hashes, in one of the multibase encodings.

    Most names are in base16. Older repositories use base58btc, and other programs may use any encoding.
    """

    def __init__(self) -> None:
        self._prefix = "f"

    def learn(self, text: str) -> None:
        """Use the encoding of a name or reference of the dataset for the first of :meth:`candidates`."""
        if text[:1] in MULTIBASE_PREFIXES:
            self._prefix = text[:1]

    def candidates(self, object_hash: Multihash, *, rare: bool = False) -> Iterator[str]:
        """Yield the possible names of an object, the most likely first.

        Args:
            object_hash: the hash.
            rare: yield names in all encodings, not only in base16, base58btc and the encoding of the dataset.
        """
        for prefix in dict.fromkeys(self._prefix + MULTIBASE_PREFIXES[: None if rare else 2]):
            yield multibase_encode(bytes(object_hash), prefix)


class BlockwiseRemote:
    """Defaults for protocols that read blocks one by one."""

    def prepare(self, files: Sequence[ObjectFile], *, more: bool = False) -> None:
        """Do nothing."""

    def block_batch(
        self, after: Multihash | None, head: Multihash
    ) -> Iterator[tuple[Multihash, bytes]] | None:
        """Return None."""
        return None


@runtime_checkable
class WritableRemote(RemoteDataset, Protocol):
    """A remote dataset whose files can be written one by one: a folder, a bucket."""

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Return whether the object exists, with this size."""
        ...

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Store a small object durably. The caller has checked that it does not exist."""
        ...

    def upload(self, file: ObjectFile, source: Path, on_progress: Callable[[int], None]) -> None:
        """Store a large object durably; ``on_progress`` receives the number of bytes sent so far."""
        ...

    def set_ref(self, name: str, block: Multihash) -> None:
        """Set the reference ``name`` to a block, which keeps the block; an existing one is not changed."""
        ...

    def replace_ref(self, name: str, block: Multihash) -> None:
        """Set the reference ``name`` to a block; an existing one is changed."""
        ...

    def set_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Move the head; Conflict if it is no longer ``expected`` (None: there is no head yet)."""
        ...


class Repository(Protocol):
    """A remote with many datasets."""

    @property
    def url(self) -> str:
        """The URL, without credentials, with a slash at its end."""
        ...

    def datasets(self) -> Iterator[RepositoryEntry]:
        """Yield the datasets, sorted by name; Unsupported if they cannot be listed."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class RepositoryEntry(NamedTuple):
    """A dataset of a repository. What the repository does not report is None or empty."""

    name: str
    url: str
    id: str | None = None
    kind: str | None = None
    head: str | None = None
    blocks: int | None = None
    records: int | None = None
    size: int | None = None
    description: str = ""
    keywords: tuple[str, ...] = ()


_T = TypeVar("_T")
PIECE: Final = 1 << 20
_LAYOUT: Final = ("refs", "blocks", "data", "checkpoints", "proofs", "compactions", "checks", "info")
_HASHERS: Final = {SHA2_256: hashlib.sha256, SHA3_256: hashlib.sha3_256}
_WAIT_SECONDS: Final = 0.2
_MEND: Final = "it was not sent; run odf verify to find all errors, and restore it from a copy of the dataset"


def read_verified_chunks(file: ObjectFile, source: Path) -> Iterator[bytes]:
    """Yield the bytes of a local object, at most :data:`PIECE` at a time.

    They are verified at the end: publish nothing before the iterator has ended.

    Raises:
        NotFound: the file does not exist, or cannot be read.
        BadData: its bytes do not match hash and size.
    """
    hasher, left = _hasher(file.hash), file.size
    try:
        with source.open("rb", buffering=0) as read:
            while piece := read.read(PIECE):
                left -= len(piece)
                if left < 0:
                    break
                hasher.update(piece)
                yield piece
    except FileNotFoundError:
        raise NotFound(f"{_name(file)} is missing", where=str(source), hint=_MEND) from None
    except OSError as error:
        problem = f"{_name(file)} cannot be read: {error.strerror}"
        raise NotFound(problem, where=str(source), hint=_MEND) from error
    if left:
        raise BadData(
            f"local {_name(file)} is damaged: it does not have {file.size:,} bytes",
            where=str(source),
            hint=_MEND,
        )
    if hasher.digest() != file.hash.digest:
        problem = f"local {_name(file)} is damaged: its bytes do not match its hash"
        raise BadData(problem, where=str(source), hint=_MEND)


def require_empty_target(names: Iterable[str], url: str) -> None:
    """Check that the target of a new dataset has no other files.

    Args:
        names: files and folders of the target.

    Raises:
        UsageError: it has other files; perhaps it is a repository.
    """
    others = sorted(name for name in names if name not in _LAYOUT and not name.startswith("."))
    if others:
        problem = f"the target has other files, such as '{others[0]}'"
        raise UsageError(problem, where=url, hint=f"use a separate location for the dataset: {url}NAME/")


def _hasher(expected: Multihash) -> Any:
    if expected.code not in _HASHERS:
        raise BadData(f"an object has an unsupported hash algorithm: {HASH_NAMES[expected.code]}")
    return _HASHERS[expected.code]()


def _name(file: ObjectFile) -> str:
    return f"{file.kind}/{file.hash}"


def upload_parallel(
    items: Iterable[_T],
    work: Callable[[_T], None],
    *,
    parallel: int,
    reporter: Reporter,
    check: Callable[[], None],
    stop: Callable[[], None],
) -> None:
    """Call ``work`` for each item, in order, several at a time; the first failure ends all.

    Args:
        work: sends an item.
        parallel: number of threads.
        reporter: reports the cancellation.
        check: is called before each item; raises Cancelled after ``stop``.
        stop: makes ``check`` raise, and ends running uploads.

    Raises:
        OdfError: the first failure that has a reason, otherwise Cancelled.
    """
    lock = threading.Lock()
    waiting: Iterator[_T] = iter(items)

    def run() -> None:
        while True:
            check()
            with lock:
                try:
                    item = next(waiting)
                except StopIteration:
                    return
            work(item)

    with ThreadPoolExecutor(parallel, "send") as pool:
        try:
            futures = [pool.submit(run) for _ in range(parallel)]
            while True:  # a signal just before a wait is handled after it
                done, running = wait(futures, _WAIT_SECONDS, FIRST_EXCEPTION)
                if not running or any(future.exception() for future in done):
                    break
        except KeyboardInterrupt:
            waiting = iter(())  # the pool waits for its threads
            stop()
            raise
        if any(future.exception() for future in done):
            stop()
    errors = [error for future in futures if (error := future.exception()) is not None]
    reporter.raise_if_cancelled()
    if errors:
        # Cancelled follows from the failure of another item.
        raise next((error for error in errors if not isinstance(error, Cancelled)), errors[0])
