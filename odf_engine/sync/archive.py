"""Archives of blocks: gzip of a GNU tar, oldest block first, each file named by its block's hash.

What comes from elsewhere is read as a stream and never unpacked to a disk: regular files only, named by
hashes, as many as were announced, none larger than a block may be, and no more than bounds in all.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from odf_engine.errors import BadData, InvalidIdentity, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.sync.messages import said
from odf_engine.sync.remote import MOST_BLOCK_BYTES

MOST_UNPACKED_BYTES: Final = 1 << 30
"""Larger archives are refused."""
MOST_RATIO: Final = 250
"""How many times its packed size an archive may unpack to, from :data:`_RATIO_FROM` bytes on."""

_RATIO_FROM: Final = 16 << 20
_TAR: Final = tarfile.BLOCKSIZE
_PIECE: Final = 1 << 16
_GZIP: Final = 31


def write_archive(blocks: Iterable[tuple[Multihash, bytes]], most_bytes: int) -> bytes:
    """The archive of blocks, given oldest first; the same bytes for the same blocks.

    Raises:
        Unsupported: it would have more than ``most_bytes``.
    """
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    packed = bytearray()
    for block_hash, data in blocks:
        header = tarfile.TarInfo(str(block_hash))
        header.size, header.mode, header.mtime = len(data), 0, 0
        packed += packer.compress(header.tobuf(tarfile.GNU_FORMAT))
        packed += packer.compress(data + bytes(-len(data) % _TAR))
        _check_packed(len(packed), most_bytes)
    packed += packer.compress(bytes(2 * _TAR)) + packer.flush()
    _check_packed(len(packed), most_bytes)
    return bytes(packed)


def _check_packed(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise Unsupported(
            f"the new blocks do not fit into one message: their archive has more than {most_bytes:,} bytes",
            hint="use a folder, S3 or the simple protocol, which take blocks one by one",
        )


def read_archive(archive: bytes, blocks: int, where: str) -> Iterator[tuple[Multihash, bytes]]:
    """The blocks of an archive, in its order, with names as they are; their bytes are not hashed here.

    Args:
        archive: its bytes.
        blocks: how many it has to have.
        where: from where it came.

    Raises:
        BadData: it is no such archive, or it is out of bounds; what came before was right so far.
    """
    source = _Unpacked(archive, where)
    seen: set[Multihash] = set()
    while (header := source.header()) is not None:
        if len(seen) == blocks:
            raise BadData(f"the archive has more than the {blocks:,} blocks announced", where=where)
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BadData(f"'{said(header.name)}' in the archive is no plain file", where=where)
        try:
            block_hash = Multihash.parse(header.name)
        except InvalidIdentity:
            raise BadData(f"'{said(header.name)}' in the archive is no hash", where=where) from None
        if block_hash in seen:
            raise BadData(f"block {block_hash} is in the archive twice", where=where)
        if not 0 <= header.size <= MOST_BLOCK_BYTES:
            raise BadData(f"block {block_hash} has more than {MOST_BLOCK_BYTES:,} bytes", where=where)
        seen.add(block_hash)
        data = source.read(header.size)
        source.read(-header.size % _TAR)
        yield block_hash, data
    if len(seen) != blocks:
        raise BadData(f"the archive has {len(seen):,} blocks, and {blocks:,} were announced", where=where)


class _Unpacked:
    """The tar within an archive, unpacked as far as it is read."""

    def __init__(self, archive: bytes, where: str) -> None:
        self._archive = archive
        self._where = where
        self._unpacker = zlib.decompressobj(_GZIP)
        self._fed = 0
        self._ready = bytearray()
        self._total = 0

    def header(self) -> tarfile.TarInfo | None:
        """The next header; None at the end."""
        raw = self.read(_TAR)
        if raw == bytes(_TAR):
            return None
        try:
            return tarfile.TarInfo.frombuf(raw, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError, OverflowError):
            raise self._broken("it is no tar") from None

    def read(self, size: int) -> bytes:
        """So many bytes, no less."""
        while len(self._ready) < size:
            self._more()
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data

    def _more(self) -> None:
        rest = self._unpacker.unconsumed_tail
        if not rest:
            rest = self._archive[self._fed : self._fed + _PIECE]
            self._fed += len(rest)
        if self._unpacker.eof or not rest:
            raise self._broken("it ends early")
        try:
            piece = self._unpacker.decompress(rest, _PIECE)
        except zlib.error:
            raise self._broken("it is no gzip") from None
        self._ready += piece
        self._total += len(piece)
        if self._total > MOST_UNPACKED_BYTES:
            raise self._broken(f"it unpacks to more than {MOST_UNPACKED_BYTES:,} bytes")
        if self._total > max(_RATIO_FROM, MOST_RATIO * len(self._archive)):
            raise self._broken(f"it unpacks to more than {MOST_RATIO} times its size")

    def _broken(self, why: str) -> BadData:
        return BadData(f"the archive of blocks cannot be read: {why}", where=self._where)
