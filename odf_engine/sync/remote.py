"""What the datasets of others look like from here, whatever carries them.

A remote dataset has the repository layout (specification: Dataset Layout): objects by their hash, and the
reference ``head``. What is asked of it blocks, may be asked from several threads, and is not believed:
hashes, sizes and rules are checked where bytes come in (:mod:`odf_engine.sync.compare`,
:mod:`odf_engine.sync.intake`), never here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

from odf_engine.identity.multiformats import Multihash

ObjectKind = Literal["blocks", "data", "checkpoints", "proofs"]
"""The folders of the repository layout; ``proofs`` is ours, see :mod:`odf_engine.identity.proof`."""

MOST_BLOCK_BYTES: Final = 1 << 20
"""A larger block is refused: whole blocks are held in memory."""
MOST_PROOF_BYTES: Final = 1 << 12
MOST_HEAD_BYTES: Final = 128


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

    def batch(self, after: Multihash | None, head: Multihash) -> Iterator[tuple[Multihash, bytes]] | None:
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

    def keep(self, name: str, block: Multihash) -> None:
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

    def datasets(self) -> Iterator[Listed]:
        """What it has, in the order of names; Unsupported where it cannot be listed."""
        ...

    def close(self) -> None:
        """Lets go of all connections."""
        ...


class Listed(NamedTuple):
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
