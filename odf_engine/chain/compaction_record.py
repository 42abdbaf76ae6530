"""Compaction records: the blocks that a compaction replaced, and the blocks that replace them.

A record is the file ``compactions/<hash of the new head>`` in the folder of the dataset. It contains the
bytes of all replaced blocks, so that the old chain can be read after its files were removed. Everything in it
can be verified without trust: the old blocks are linked by their hashes, the new blocks follow from them by
:mod:`odf_engine.chain.compaction`, and the logical hash in each old block is that of the same offsets in the
new slices (:mod:`odf_engine.chain.compaction_check`).

If the workspace has the private key of the dataset, the record is signed with it. This proves that the owner
has compacted the dataset; the verification above does not require it.

Format: one line of JSON, the :class:`RecordHeader`, whose last field ``signature`` is the multibase ed25519
signature of the line without it, or is absent; then a zlib stream with the replaced blocks, oldest
first, each preceded by its size as a 32-bit little-endian number.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.errors import BadData, InvalidIdentity, NotFound
from odf_engine.files import ensure_folder, fsync_folder, remove_temporary
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash, multibase_decode, multibase_encode
from odf_engine.metadata.model import decode_hook, encode_hook
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.object_store import LocalObjectStore

COMPACTIONS_FOLDER: Final = "compactions"
MAX_RECORD_BYTES: Final = 128 << 20
_MIN_BLOCK_BYTES: Final = 64  # smaller ones are no blocks; limits their number
_MAX_BLOCK_BYTES: Final = 1 << 20
_MAX_TOTAL_BYTES: Final = 256 << 20
_VERSION: Final = 1
_SIGNATURE: Final = b',"signature":'
_CHUNK: Final = 1 << 16


class Replacement(msgspec.Struct, frozen=True, array_like=True):
    """A new block, and the sequence number of the last old block that it replaces."""

    block: Multihash
    last: int


class RecordHeader(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of a record.

    Attributes:
        version: of the format.
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
    """A record in memory.

    Raises:
        BadData: the bytes are not a record, or do not contain the old chain from its head to the fork.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        line, newline, packed = data.partition(b"\n")
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
        self._statement, self._blocks, self._starts = line, *_unpack(packed, where)
        self._numbers: dict[bytes, int] = {}
        for position in range(len(self._starts) - 1):
            digest = bytes(Multihash.sha3_256(self._block_at(position)))
            self._numbers[digest] = self.header.fork_number + 1 + position
        self._lasts = [each.last for each in self.header.blocks]
        self._check()

    def _check(self) -> None:
        """Check that the numbers of the header fit the blocks; the links of the blocks are checked later."""
        header, count = self.header, len(self._starts) - 1
        last = header.fork_number + count
        if not count or len(self._numbers) != count or self._numbers.get(bytes(header.old_head)) != last:
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
        # Deferred: the cryptographic library is slow to import, and most readers only map blocks.
        from odf_engine.identity.ownership_proof import verify_signature

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
        return len(self._blocks)

    def number_of(self, block: Multihash) -> int | None:
        """Return the sequence number of a replaced block; None if the record does not have it."""
        return self._numbers.get(bytes(block))

    def block_bytes(self, block: Multihash) -> bytes | None:
        """Return the bytes of a replaced block, whose hash was computed; None if the record lacks it."""
        number = self.number_of(block)
        return None if number is None else self._block_at(number - self.header.fork_number - 1)

    def find_replacement(self, number: int) -> Replacement:
        """Return the new block that replaces old block ``number``, which is after the fork."""
        return self.header.blocks[bisect_left(self._lasts, number)]

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the replaced blocks, oldest first."""
        return map(self._block_at, range(len(self._starts) - 1))

    def _block_at(self, position: int) -> bytes:
        return self._blocks[self._starts[position] + 4 : self._starts[position + 1]]

    def _damaged(self, reason: str) -> BadData:
        return BadData(f"the compaction record is damaged: {reason}", where=self._where)


def _unpack(packed: bytes, where: str) -> tuple[bytes, list[int]]:
    """Return the blocks with their sizes, and the start of each; the last start is the end."""
    inflater, blocks = zlib.decompressobj(), bytearray()
    try:
        for start in range(0, len(packed), _CHUNK):
            blocks += inflater.decompress(packed[start : start + _CHUNK])
            if len(blocks) > _MAX_TOTAL_BYTES:
                raise BadData("the compaction record is too large", where=where)
    except zlib.error as error:
        raise BadData(f"the compaction record is damaged: {error}", where=where) from error
    starts, at = [0], 0
    while at < len(blocks):
        size = int.from_bytes(blocks[at : at + 4], "little")
        at += 4 + size
        if at > len(blocks) or not _MIN_BLOCK_BYTES <= size <= _MAX_BLOCK_BYTES:
            raise BadData(
                "the compaction record is damaged: a block is incomplete or has an invalid size", where=where
            )
        starts.append(at)
    if not inflater.eof:
        raise BadData("the compaction record is damaged: it is incomplete", where=where)
    return bytes(blocks), starts


def pack_record(
    header: RecordHeader, blocks: Iterable[bytes], private_key_pem: str | bytes | None = None
) -> bytes:
    """Return the bytes of a record.

    Args:
        header: its first line, without a signature.
        blocks: the replaced blocks, oldest first.
        private_key_pem: private key of the dataset, which signs the record; None: it is not signed.
    """
    packer = zlib.compressobj()
    statement = msgspec.json.encode(header, enc_hook=encode_hook)
    if private_key_pem is not None:
        from odf_engine.identity.ownership_proof import load_private_key, sign

        signature = multibase_encode(sign(load_private_key(private_key_pem), statement))
        statement = statement[:-1] + _SIGNATURE + msgspec.json.encode(signature) + b"}"
    parts = [statement, b"\n"]
    for block in blocks:
        parts.append(packer.compress(struct.pack("<I", len(block)) + block))
    parts.append(packer.flush())
    return b"".join(parts)


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
        found = self._records.get(name)
        if found is None:
            found = CompactionRecord(self._store.read(name), str(self.folder / name))
            if str(found.header.new_head) != name:
                raise BadData(
                    "the compaction record does not match its file name", where=str(self.folder / name)
                )
            self._records[name] = found
        return found

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
        ensure_folder(self.folder)
        staged = self._store.staging_path()
        try:
            with staged.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            staged.replace(self.folder / str(new_head))
        finally:
            remove_temporary(staged)
        fsync_folder(self.folder)
        fsync_folder(self.folder.parent)
        self._records.pop(str(new_head), None)

    def remove(self, new_head: Multihash) -> None:
        """Remove the record of a compaction that was not committed."""
        (self.folder / str(new_head)).unlink(missing_ok=True)
        self._records.pop(str(new_head), None)
