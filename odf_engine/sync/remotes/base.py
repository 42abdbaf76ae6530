"""Protocols of remote datasets and repositories; parallel, verified object uploads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from odf_engine.errors import BadData, Cancelled, NotFound, UsageError
from odf_engine.identity.multiformats import HASH_NAMES, SHA2_256, SHA3_256, Multihash
from odf_engine.progress import Reporter

ObjectKind = Literal["blocks", "data", "checkpoints", "proofs"]
"""The folders of the repository layout. ``proofs`` is an extension for ownership proofs."""
MAX_BLOCK_BYTES: Final = 1 << 20
"""A larger block is refused: whole blocks are held in memory."""
MAX_PROOF_BYTES: Final = 1 << 12
MAX_HEAD_BYTES: Final = 128


class ObjectFile(NamedTuple):
    """A slice or a checkpoint, as a block speaks of it."""

    kind: Literal["data", "checkpoints"]
    hash: Multihash
    size: int


class RemoteDataset(Protocol):
    """A dataset somewhere else that can be read.

    Methods raise:
        NotFound: there is no such object, or no dataset.
        SourceUnavailable: the connection failed, access is denied; retries are over by then.
        BadData: an answer that cannot be one of a repository: an HTML page, a head that is no hash, more
            bytes than were asked for.
        Cancelled: somebody asked to stop.
    """

    @property
    def url(self) -> str:
        """Where it is, as people wrote it, without credentials, with a slash at its end."""
        ...

    def head(self) -> Multihash | None:
        """The newest block; None when there is no dataset yet."""
        ...

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """A small object as a whole; BadData when it has more than ``at_most`` bytes."""
        ...

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes]:
        """A large object piece by piece from byte ``start`` on.

        A generator: closing it lets go of the connection. It may end early where the connection broke, and
        never ends late: it stops once more than ``file.size`` bytes came.
        """
        ...

    def prepare(self, files: Sequence[ObjectFile]) -> None:
        """Told once what :meth:`chunks` is going to be asked for; a protocol may need to know."""
        ...

    def block_batch(
        self, after: Multihash | None, head: Multihash
    ) -> Iterator[tuple[Multihash, bytes]] | None:
        """All blocks after ``after`` (None: from the first) up to ``head``, oldest first, where the protocol
        sends them in one go; None where it does not, or where ``after`` is not part of that chain."""
        ...

    def close(self) -> None:
        """Lets go of all connections."""
        ...


@runtime_checkable
class WritableRemote(RemoteDataset, Protocol):
    """A dataset somewhere else whose files can be written one by one: a folder, an S3 bucket."""

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Whether the object is there, of this size."""
        ...

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Stores a small object durably; whoever calls has asked whether it is there."""
        ...

    def upload(self, file: ObjectFile, source: Path, told: Callable[[int], None]) -> None:
        """Stores a large object durably; ``told`` hears how many bytes have gone so far."""
        ...

    def set_ref(self, name: str, block: Multihash) -> None:
        """Lets the reference ``name`` stand for a block, so that it is not lost; one that is there stays."""
        ...

    def set_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Moves the head; Conflict when it is not ``expected`` (None: there is none yet) any more."""
        ...


class Repository(Protocol):
    """A place with many datasets."""

    @property
    def url(self) -> str:
        """Where it is, without credentials, with a slash at its end."""
        ...

    def datasets(self) -> Iterator[RepositoryEntry]:
        """What it has, in the order of names; Unsupported where it cannot be listed."""
        ...

    def close(self) -> None:
        """Lets go of all connections."""
        ...


class RepositoryEntry(NamedTuple):
    """A dataset of a repository, as far as the repository tells; what it does not is None or empty."""

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
_LAYOUT: Final = ("refs", "blocks", "data", "checkpoints", "proofs", "info")
_HASHERS: Final = {SHA2_256: hashlib.sha256, SHA3_256: hashlib.sha3_256}
_MEND: Final = "it was not sent; odf verify shows what else is wrong, a copy of the dataset may have it right"


def read_verified_chunks(file: ObjectFile, source: Path) -> Iterator[bytes]:
    """The bytes of an object that is here, at most :data:`PIECE` at a time.

    Whoever takes them publishes nothing before the iterator has ended: at its end it is known whether the
    bytes were right.

    Raises:
        NotFound: the file is not there, or cannot be read.
        BadData: it has other bytes than its hash and size say.
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
        raise NotFound(f"{_name(file)} is not here", where=str(source), hint=_MEND) from None
    except OSError as error:
        problem = f"{_name(file)} cannot be read: {error.strerror}"
        raise NotFound(problem, where=str(source), hint=_MEND) from error
    if left:
        raise BadData(
            f"{_name(file)} is damaged here: it does not have {file.size:,} bytes",
            where=str(source),
            hint=_MEND,
        )
    if hasher.digest() != file.hash.digest:
        problem = f"{_name(file)} is damaged here: its bytes are not those that its hash was made of"
        raise BadData(problem, where=str(source), hint=_MEND)


def require_empty_target(names: Iterable[str], url: str) -> None:
    """Sees that a place where a new dataset is to be has nothing else in it.

    Args:
        names: of files and folders there.

    Raises:
        UsageError: it has; perhaps it is a whole repository.
    """
    others = sorted(name for name in names if name not in _LAYOUT and not name.startswith("."))
    if others:
        problem = f"there is something else already, such as '{others[0]}'"
        raise UsageError(problem, where=url, hint=f"give the dataset a place of its own: {url}NAME/")


def _hasher(expected: Multihash) -> Any:
    if expected.code not in _HASHERS:
        raise BadData(f"an object is named by {HASH_NAMES[expected.code]}, which no bytes can be checked by")
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
    """Calls ``work`` for each, begun in their order, so many at a time; the first failure ends it.

    Args:
        items: what is to be sent.
        work: sends one of them.
        parallel: how many at a time.
        reporter: knows whether all of it was cancelled.
        check: is called before each; raises Cancelled when the rest is not wanted.
        stop: makes ``check`` raise, and breaks off what is on its way.

    Raises:
        OdfError: the first failure that says why; Cancelled when there is none.
    """
    waiting, lock = iter(items), threading.Lock()

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
        futures = [pool.submit(run) for _ in range(parallel)]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            stop()
    errors = [error for future in futures if (error := future.exception()) is not None]
    reporter.raise_if_cancelled()
    if errors:
        # Those that were only told to stop say nothing of the reason.
        raise next((error for error in errors if not isinstance(error, Cancelled)), errors[0])
