"""Compaction records: the blocks that a compaction replaced, and the blocks that replace them.

A record is the file ``compactions/<hash of the new head>`` in the folder of the dataset. It contains the
bytes of all replaced blocks, so that the old chain can be read after its files were removed. Everything in it
can be verified without trust: the old blocks are linked by their hashes, the new blocks follow from them by
:mod:`odf_engine.chain.compaction`, and the logical hash in each old block equals the hash of these offsets in
the new slices (:mod:`odf_engine.chain.compaction_check`).

If the workspace has the private key of the dataset, the record is signed with it. This proves that the owner
has compacted the dataset; the verification above does not require it.

Format: one line of JSON, the :class:`RecordHeader`, whose last field ``signature`` is the multibase ed25519
signature of the line without it, or is absent; then a zlib stream with the replaced blocks, oldest
first, each preceded by its size as a 32-bit little-endian number.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from odf_engine.base.files import ensure_folder, fsync_file, fsync_folder, remove_temporary
from odf_engine.errors import BadData, InvalidIdentity, NotFound, Unsupported
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import SHA3_256, Multihash, multibase_decode, multibase_encode
from odf_engine.identity.ownership_proof import load_private_key, sign, verify_signature
from odf_engine.metadata.model import decode_hook, encode_hook
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.object_store import LocalObjectStore

COMPACTIONS_FOLDER: Final = "compactions"
MAX_RECORD_BYTES: Final = 128 << 20
_MIN_BLOCK_BYTES: Final = 64  # smaller ones are no blocks; limits their number
_MAX_BLOCK_BYTES: Final = 1 << 20
_MAX_TOTAL_BYTES: Final = 256 << 20
_MAX_HEADER_BYTES: Final = 32 << 20
_VERSION: Final = 1
_SIGNATURE: Final = b',"signature":'
_CHUNK: Final = 1 << 16
_PAGE_BYTES: Final = 256 << 10
_DIGEST_BYTES: Final = 32


class Replacement(msgspec.Struct, frozen=True, array_like=True):
    """A new block, and the sequence number of the last old block that it replaces."""

    block: Multihash
    last: int


class RecordHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of a record.

    Attributes:
        version: the version of the format.
        dataset_id: the dataset.
        created: time of the compaction.
        old_head, new_head: the heads before and after it.
        fork: the last block that both chains have.
        fork_number: its sequence number.
        blocks: the new blocks after the fork, oldest first.
        previous: the new head of the preceding compaction. Older copies require its record.
        signature: signature of the other fields; unset if the record is not signed.
    """

    version: int = _VERSION
    dataset_id: DatasetId
    created: Timestamp
    old_head: Multihash
    new_head: Multihash
    fork: Multihash
    fork_number: int
    blocks: list[Replacement]
    previous: Multihash | None = None
    signature: str | msgspec.UnsetType = msgspec.UNSET


class CompactionRecord:
    """A record, whose blocks remain compressed in memory.

    Raises:
        BadData: the bytes are not a record, or do not contain the old chain from its head to the fork.
    """

    def __init__(self, data: bytes | BinaryIO, where: str) -> None:
        self._where = where
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        line, newline, _ = source.readline(_MAX_HEADER_BYTES).partition(b"\n")
        if not newline and len(line) == _MAX_HEADER_BYTES:
            raise BadData("the compaction record is too large", where=where)
        try:
            self.header = msgspec.json.decode(line, type=RecordHeader, dec_hook=decode_hook)
        except (msgspec.MsgspecError, InvalidIdentity, ValueError) as error:
            raise self._damaged(str(error)) from error
        if not newline or self.header.version != _VERSION:
            raise BadData(
                f"compaction record of version {self.header.version} cannot be read",
                where=where,
                hint="use a newer version of odf",
            )
        self._statement = line
        self._blocks = _PackedBlocks(source, self.header.fork, where)
        self._lasts = [block.last for block in self.header.blocks]
        self._check()

    def _check(self) -> None:
        """Check that the numbers of the header fit the blocks; the links of the blocks are checked later."""
        header, count = self.header, self._blocks.count
        last = header.fork_number + count
        if not count or self.number_of(header.old_head) != last:
            raise self._damaged("it does not end with the old head")
        ascending = all(low < high for low, high in zip(self._lasts, self._lasts[1:], strict=False))
        if not self._lasts or self._lasts[-1] != last or self._lasts[0] <= header.fork_number:
            raise self._damaged("the new blocks do not replace all old blocks")
        if not ascending or header.blocks[-1].block != header.new_head:
            raise self._damaged("the new blocks do not end with the new head")

    def check_signature(self) -> bool:
        """Return whether the record is signed with the key of the dataset.

        Raises:
            BadData: the signature is invalid.
        """
        signed = self.header.signature
        if isinstance(signed, msgspec.UnsetType):
            return False
        statement, _, rest = self._statement.rpartition(_SIGNATURE)
        try:
            signature = multibase_decode(signed)
        except InvalidIdentity as error:
            raise self._damaged(f"invalid signature: {error}") from None
        # Fields after the signature would not be signed.
        is_last = rest == msgspec.json.encode(signed) + b"}"
        statement += b"}"
        if (
            not is_last
            or len(signature) != 64
            or not verify_signature(self.header.dataset_id, statement, signature)
        ):
            raise self._damaged("it is not signed with the key of the dataset")
        return True

    @property
    def size(self) -> int:
        """The number of bytes of the replaced blocks in memory."""
        return self._blocks.size

    def number_of(self, block: Multihash) -> int | None:
        """Return the sequence number of a replaced block, or None if the record does not have it."""
        position = self._blocks.find(block)
        return None if position is None else self.header.fork_number + 1 + position

    def block_bytes(self, block: Multihash) -> bytes | None:
        """Return the bytes of a replaced block, whose hash was computed, or None if the record lacks it."""
        position = self._blocks.find(block)
        return None if position is None else self._blocks.read(position)

    def find_replacement(self, number: int) -> Replacement:
        """Return the new block that replaces old block ``number``, which is after the fork."""
        return self.header.blocks[bisect_left(self._lasts, number)]

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the replaced blocks, oldest first."""
        return map(self._blocks.read, range(self._blocks.count))

    def _damaged(self, reason: str) -> BadData:
        return BadData(f"the compaction record is damaged: {reason}", where=self._where)


class _PackedBlocks:
    """The blocks of a record, compressed in pages, with an index of their hashes.

    Each block must contain the hash of the previous one. A hash cannot be compressed, so the size of the
    record limits the number of blocks, and with it the memory for the index.

    Args:
        source: the zlib stream of a record.
        fork: the block before the first one.
        where: location of the record, for errors.

    Attributes:
        count: number of blocks.
        size: number of bytes in memory.
    """

    def __init__(self, source: BinaryIO, fork: Multihash, where: str) -> None:
        self._where = where
        self._pages: list[bytes] = []
        self._page_starts, self._starts = array("Q"), array("Q", [0])
        self._digests = bytearray()
        self._newest: tuple[int, bytes] = (-1, b"")
        page = bytearray()
        previous = fork.digest
        for block in self._split(self._inflate(source)):
            if previous not in block:
                raise self._damaged("a block does not follow the previous one")
            previous = hashlib.sha3_256(block).digest()
            self._digests += previous
            page += block
            self._starts.append(self._starts[-1] + len(block))
            if len(page) >= _PAGE_BYTES:
                self._add_page(page)
        self._add_page(page)
        self.count = len(self._starts) - 1
        keys = [self._key(self._digest(position)) for position in range(self.count)]
        self._order = array("Q", sorted(range(self.count), key=keys.__getitem__))
        self._keys = array("Q", (keys[position] for position in self._order))
        self.size = sum(map(len, self._pages)) + len(self._digests) + 24 * self.count

    def _inflate(self, source: BinaryIO) -> Iterator[bytes]:
        inflater, total = zlib.decompressobj(), 0
        try:
            while not inflater.eof and (chunk := inflater.unconsumed_tail or source.read(_CHUNK)):
                part = inflater.decompress(chunk, _PAGE_BYTES)
                total += len(part)
                if total > _MAX_TOTAL_BYTES:
                    raise BadData("the compaction record is too large", where=self._where)
                yield part
        except zlib.error as error:
            raise self._damaged(str(error)) from error
        if not inflater.eof:
            raise self._damaged("it is incomplete")

    def _split(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        buffer = bytearray()
        for part in parts:
            buffer += part
            at = 0
            while len(buffer) - at >= 4:
                end = at + 4 + (size := int.from_bytes(buffer[at : at + 4], "little"))
                if not _MIN_BLOCK_BYTES <= size <= _MAX_BLOCK_BYTES:
                    raise self._damaged("a block has an invalid size")
                if end > len(buffer):
                    break
                yield bytes(buffer[at + 4 : end])
                at = end
            del buffer[:at]
        if buffer:
            raise self._damaged("a block is incomplete")

    def _add_page(self, page: bytearray) -> None:
        self._page_starts.append(self._starts[-1] - len(page))
        self._pages.append(zlib.compress(page, 1))
        page.clear()

    def find(self, block: Multihash) -> int | None:
        """Return the position of a block, or None if it is not among them."""
        key = self._key(block.digest)
        for at in range(bisect_left(self._keys, key), self.count):
            if self._keys[at] != key:
                break
            position = self._order[at]
            if block == Multihash(SHA3_256, self._digest(position)):
                return position
        return None

    def read(self, position: int) -> bytes:
        """Return a block by its position."""
        start, end = self._starts[position], self._starts[position + 1]
        number = bisect_right(self._page_starts, start) - 1
        page = self._newest
        if page[0] != number:
            page = self._newest = number, zlib.decompress(self._pages[number])
        first = self._page_starts[number]
        return page[1][start - first : end - first]

    def _digest(self, position: int) -> bytes:
        return bytes(self._digests[position * _DIGEST_BYTES : (position + 1) * _DIGEST_BYTES])

    @staticmethod
    def _key(digest: bytes) -> int:
        return int.from_bytes(digest[:8], "big")

    def _damaged(self, reason: str) -> BadData:
        return BadData(f"the compaction record is damaged: {reason}", where=self._where)


def pack_record(
    header: RecordHeader, blocks: Iterable[bytes], private_key_pem: str | bytes | None = None
) -> bytes:
    """Return the bytes of a record.

    Args:
        header: its first line, without a signature.
        blocks: the replaced blocks, oldest first.
        private_key_pem: private key of the dataset, which signs the record; None: it is not signed.

    Raises:
        Unsupported: the record would be too large to be read.
    """
    packer = zlib.compressobj()
    statement = msgspec.json.encode(header, enc_hook=encode_hook)
    if private_key_pem is not None:
        signature = multibase_encode(sign(load_private_key(private_key_pem), statement))
        statement = statement[:-1] + _SIGNATURE + msgspec.json.encode(signature) + b"}"
    parts, total = [statement, b"\n"], 0
    for block in blocks:
        parts.append(packer.compress(struct.pack("<I", len(block)) + block))
        total += 4 + len(block)
    parts.append(packer.flush())
    record = b"".join(parts)
    if len(record) > MAX_RECORD_BYTES or total > _MAX_TOTAL_BYTES or len(statement) >= _MAX_HEADER_BYTES:
        raise Unsupported("the compaction would replace too many blocks: its record would be too large")
    return record


class RecordStore:
    """The records of one dataset. Reads each file once."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the folder of the dataset."""
        self.folder = folder / COMPACTIONS_FOLDER
        self._store = LocalObjectStore(self.folder)
        self._records: dict[str, CompactionRecord] = {}

    def names(self) -> list[str]:
        """Return the names of all records, sorted."""
        return sorted(self._store.names())

    def read(self, name: str) -> CompactionRecord:
        """Return a record by the name of its file.

        Raises:
            NotFound: there is no such record.
            BadData: it is damaged, or belongs to another name.
        """
        record = self._records.get(name)
        if record is None:
            path = str(self.folder / name)
            try:
                with self._store.open(name) as file:
                    record = CompactionRecord(file, path)
            except OSError as error:
                reason = f"the compaction record cannot be read: {error.strerror}"
                raise BadData(reason, where=path) from error
            if str(record.header.new_head) != name:
                raise BadData(
                    "the compaction record does not match its file name", where=str(self.folder / name)
                )
            self._records[name] = record
        return record

    def all(self) -> Iterator[CompactionRecord]:
        """Yield all records that can be read. A damaged one is reported by ``odf verify``."""
        for name in self.names():
            try:
                yield self.read(name)
            except (BadData, NotFound):
                continue

    def find(self, block: Multihash) -> CompactionRecord | None:
        """Return the record that has replaced this block, or None."""
        return next((record for record in self.all() if record.number_of(block) is not None), None)

    def store(self, new_head: Multihash, data: bytes) -> None:
        """Store a record durably and atomically; replace an existing one.

        Raises:
            OSError: it cannot be written.
        """
        staged = self.staging_path()
        try:
            with staged.open("xb") as file:
                file.write(data)
            self.store_file(new_head, staged)
        finally:
            remove_temporary(staged)

    def staging_path(self) -> Path:
        """Return the path of a new file for :meth:`store_file`. Its folder is created."""
        ensure_folder(self.folder)
        return self._store.staging_path()

    def store_file(self, new_head: Multihash, staged: Path) -> None:
        """Move a complete file durably to the name of its record; replace an existing one.

        Raises:
            OSError: it cannot be moved.
        """
        fsync_file(staged)
        staged.replace(self.folder / str(new_head))
        fsync_folder(self.folder)
        fsync_folder(self.folder.parent)
        self._records.pop(str(new_head), None)

    def remove(self, new_head: Multihash) -> None:
        """Remove the record of a compaction that was not committed."""
        (self.folder / str(new_head)).unlink(missing_ok=True)
        self._records.pop(str(new_head), None)
