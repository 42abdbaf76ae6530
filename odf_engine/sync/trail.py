"""The blocks that were met on the way from a head back, so that they can be gone over oldest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from odf_engine.chain.adopting import Adoption
from odf_engine.errors import NotFound
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.sync.compare import SOURCE_HINT, Walked, checked
from odf_engine.sync.remote import ObjectKind, RemoteDataset

_DIGEST: Final = 32
_MOST_KEPT: Final = 4096
_MOST_KEPT_BYTES: Final = 32 << 20


class Trail:
    """Hashes of all blocks, 32 bytes each, and the blocks met last as they are; the others are read again."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._kept: deque[Walked] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._digests) // _DIGEST

    def add(self, walked: Walked) -> None:
        """Takes the block before those that are there."""
        self._digests += walked.hash.digest
        self._kept.append(walked)
        self._bytes += len(walked.data)
        while len(self._kept) > _MOST_KEPT or self._bytes > _MOST_KEPT_BYTES:
            self._bytes -= len(self._kept.popleft().data)

    def oldest_first(self, adoption: Adoption, where: str) -> Iterator[Walked]:
        """The blocks, each once; there are none left then.

        Raises:
            NotFound: somebody removed what had arrived.
        """
        while self._digests:
            digest = bytes(self._digests[-_DIGEST:])
            del self._digests[-_DIGEST:]
            yield self._kept.pop() if self._kept else _again(adoption, Multihash(SHA3_256, digest), where)


def _again(adoption: Adoption, block_hash: Multihash, where: str) -> Walked:
    data = adoption.stored(block_hash)
    if data is None:
        raise NotFound(f"block {block_hash} had arrived, and is gone again", where=str(adoption.arriving))
    return checked(block_hash, data, where)


class StoredFirst:
    """The blocks of a remote: from here, if an earlier try has brought them; new ones are kept."""

    def __init__(self, remote: RemoteDataset, adoption: Adoption) -> None:
        self.url = remote.url
        self._remote, self._adoption = remote, adoption

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """The bytes of a block."""
        data = self._adoption.stored(object_hash)
        if data is not None and Multihash.sha3_256(data) == object_hash:
            return data
        try:
            data = self._remote.read(kind, object_hash, at_most)
        except NotFound as error:
            problem = f"block {object_hash} is missing: {error.message}"
            raise NotFound(problem, where=self.url, hint=SOURCE_HINT) from error
        if Multihash.sha3_256(data) == object_hash:
            self._adoption.store(object_hash, data)
        return data
