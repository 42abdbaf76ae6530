"""Messages and block archives of the smart transfer protocol."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from odf_engine.errors import (
    AlreadyExists,
    BadData,
    Conflict,
    InvalidIdentity,
    OdfError,
    SourceUnavailable,
    Unsupported,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.sync.remotes.base import MAX_BLOCK_BYTES, ObjectFile

VERSION_HEADER: Final = "x-odf-smtp-version"
VERSION: Final = "1"
MEDIA_TYPE: Final = "application/tar+gzip"
ENCODING: Final = "raw"
PULLED: Final = "Client pull flow succeeded"
PUSHED: Final = "Client push flow succeeded"
U64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # bounds of msgspec are signed
_MESSAGE_CHUNK: Final = 1 << 18
_SAID: Final = 300
_SERVER_HINT: Final = "try again later; if it fails again, report it to the operator of the server"
T = TypeVar("T")


class Message(msgspec.Struct, frozen=True):
    """A message, or a part of one."""


class Empty(Message, frozen=True):
    """``{}``: accepted, continue, progress request, or done, depending on the step."""


class TransferPlan(Message, frozen=True):
    """Amounts of a transfer; sizes in bytes."""

    num_blocks: U64
    num_objects: U64
    num_records: U64
    bytes_in_raw_blocks: U64
    bytes_in_raw_objects: U64


class ObjectsBatch(Message, frozen=True):
    """Blocks in an archive. ``payload`` is a JSON array of bytes (see :func:`from_number_array`)."""

    num_blocks: U64
    media_type: str
    encoding: str
    payload: msgspec.Raw


class ObjectReference(Message, frozen=True):
    """A slice or a checkpoint, and its size in bytes."""

    object_type: Literal["DataSlice", "Checkpoint"]
    physical_hash: Multihash
    size: U64

    @classmethod
    def of(cls, file: ObjectFile) -> ObjectReference:
        """Return the reference to a file."""
        return cls("DataSlice" if file.kind == "data" else "Checkpoint", file.hash, file.size)

    @property
    def file(self) -> ObjectFile:
        """The file of the reference."""
        kind: Literal["data", "checkpoints"] = "data" if self.object_type == "DataSlice" else "checkpoints"
        return ObjectFile(kind, self.physical_hash, self.size)


class HeaderRow(Message, frozen=True):
    """A header to send with a request."""

    name: str
    value: str


class TransferUrl(Message, frozen=True):
    """The URL to read an object from, or to write it to; ``expires_at`` is in RFC 3339."""

    url: str
    headers: list[HeaderRow]
    expires_at: str | None = None


class PullRequest(Message, frozen=True):
    """Requests the blocks after ``begin_after`` (none: from the first) up to ``stop_at`` (none: the head)."""

    begin_after: Multihash | None = None
    stop_at: Multihash | None = None
    force_update_if_diverged: bool = False


class PullAccepted(Message, frozen=True):
    """The amounts of a pull."""

    transfer_plan: TransferPlan


class PullBlocks(Message, frozen=True):
    """The blocks of a pull."""

    blocks: ObjectsBatch


class PullObjects(Message, frozen=True):
    """Requests the URLs of objects to read."""

    object_files: list[ObjectReference]


class PullStrategy(Message, frozen=True):
    """The URL to read an object from."""

    object_file: ObjectReference
    pull_strategy: Literal["HttpDownload"]
    download_from: TransferUrl


class PullStrategies(Message, frozen=True):
    """The URLs to read objects from."""

    object_transfer_strategies: list[PullStrategy]


class PushRequest(Message, frozen=True):
    """Announces blocks that follow ``current_head`` (none: there is no dataset yet)."""

    transfer_plan: TransferPlan
    current_head: Multihash | None = None
    force_update_if_diverged: bool = False
    visibility_for_created_dataset: str = "Private"


class PushBlocks(Message, frozen=True):
    """The blocks of a push."""

    new_blocks: ObjectsBatch


class PushObjects(Message, frozen=True):
    """Requests the URLs to write objects to; ``is_truncated``: more requests follow."""

    object_files: list[ObjectReference]
    is_truncated: bool = False


class PushStrategy(Message, frozen=True):
    """The URL to write an object to, or that the object exists."""

    object_file: ObjectReference
    push_strategy: Literal["HttpUpload", "SkipUpload"]
    upload_to: TransferUrl | None = None


class PushStrategies(Message, frozen=True):
    """The URLs to write objects to."""

    object_transfer_strategies: list[PushStrategy]


class Running(Message, frozen=True):
    """The number of objects written so far."""

    uploaded_objects_count: U64


class RunningDetails(Message, frozen=True):
    """The wrapper of :class:`Running`."""

    Running: Running


class PushProgress(Message, frozen=True):
    """The progress of the uploads."""

    details: RunningDetails | Literal["Complete"]


def encode_message(message: Message) -> bytes:
    """Return a message as JSON."""
    return msgspec.json.encode(message, enc_hook=str)


def answer_text(message: Message, wrapped: bool = True) -> bytes:
    """Return an answer as JSON, wrapped as the version of the peer requires."""
    text = encode_message(message)
    return b'{"Ok":' + text + b"}" if wrapped else text


def error_text(kind: str, **details: object) -> bytes:
    """Return an error as JSON: ``{"Err": {kind: details}}``."""
    return msgspec.json.encode({"Err": {kind: details}}, enc_hook=str)


def read_message(text: str | bytes, kind: type[T], where: str) -> T:
    """Parse a message of the peer.

    Raises:
        BadData: it is of another type.
    """
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_decode_hook)
    except (msgspec.MsgspecError, InvalidIdentity, UnicodeError, RecursionError) as error:
        problem = f"not a valid {kind.__name__} of the smart protocol: {sanitize(str(error))}"
        raise BadData(problem, where=where) from None


def read_answer(text: str | bytes, kind: type[T], where: str) -> T:
    """Parse an answer of a server, wrapped or bare.

    Raises:
        BadData: it is of another type.
        OdfError: it is an error; see :func:`parse_peer_error`.
    """
    parts = read_message(text, dict[str, msgspec.Raw], where)
    if "Err" in parts:
        raise parse_peer_error(parts["Err"], where)
    return read_message(parts.get("Ok", text), kind, where)


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is Multihash and isinstance(value, str):
        return Multihash.parse(value)
    raise msgspec.ValidationError(f"Expected {kind.__name__}")


def to_number_array(data: bytes) -> msgspec.Raw:
    """Return bytes as a JSON array of numbers, about 3.6 bytes each."""
    pieces = (
        msgspec.json.encode(list(data[start : start + _MESSAGE_CHUNK]))[1:-1]
        for start in range(0, len(data), _MESSAGE_CHUNK)
    )
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")


def from_number_array(payload: msgspec.Raw, where: str) -> bytes:
    """Return the bytes of a JSON array of numbers.

    Parses it in pieces, so that a large array does not take 8 times its size in memory.

    Raises:
        BadData: it is not an array, or a number is not a byte.
    """
    text = memoryview(payload)
    if len(text) < 2 or text[0] != 0x5B:
        raise BadData("the payload of the blocks is not an array of bytes", where=where)
    numbers, start, end = bytearray(), 1, len(text) - 1
    while start < end:
        stop = min(start + _MESSAGE_CHUNK, end)
        while stop < end and text[stop] != 0x2C:  # up to the next comma
            stop += 1
        try:
            numbers += bytes(msgspec.json.decode(b"[%b]" % bytes(text[start:stop]), type=list[int]))
        except (msgspec.MsgspecError, ValueError, OverflowError):
            raise BadData("the payload of the blocks is not an array of bytes", where=where) from None
        start = stop + 1
    return bytes(numbers)


def archive_of(batch: ObjectsBatch, where: str) -> bytes:
    """Return the archive of a batch.

    Raises:
        BadData: its media type or encoding is unknown.
    """
    if (batch.media_type, batch.encoding) != (MEDIA_TYPE, ENCODING):
        kind = sanitize(f"{batch.media_type}, {batch.encoding}")
        raise BadData(f"unsupported block archive {kind}: expected {MEDIA_TYPE}, {ENCODING}", where=where)
    return from_number_array(batch.payload, where)


def batch_of(blocks: int, archive: bytes) -> ObjectsBatch:
    """Return an archive as a batch."""
    return ObjectsBatch(blocks, MEDIA_TYPE, ENCODING, to_number_array(archive))


def parse_peer_error(raw: bytes | msgspec.Raw | str, where: str) -> OdfError:
    """Return the error that a peer reports, from the value of ``Err``."""
    try:
        said_so = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        said_so = None
    if isinstance(said_so, str):
        kind, details = said_so, {}
    elif isinstance(said_so, dict) and len(said_so) == 1:
        kind, details = next(iter(said_so.items()))
        details = details if isinstance(details, dict) else {}
    else:
        return SourceUnavailable(
            f"rejected by the server: {sanitize(_plain(raw))}", where=where, hint=_SERVER_HINT
        )
    match kind:
        case "InvalidHead":
            hint = "pull, then push again"
            actual = sanitize(str(details.get("expected_head")))  # kamu swaps the two
            return Conflict(f"the remote head has moved: {actual}", where=where, hint=hint)
        case "InvalidInterval":
            problem = "the remote history does not have the local head"
            return Conflict(problem, where=where, hint="use --force to replace the local history")
        case "SeedBlockOverwriteRestricted":
            hint = "push it under another name"
            return Conflict(
                "the remote dataset is a different one: the first blocks differ", where=where, hint=hint
            )
        case "RefCollision":
            owner = sanitize(str(details.get("dataset_id", "")))
            return Conflict(f"the remote already has the dataset, under another name: {owner}", where=where)
        case "NameCollision":
            name = sanitize(str(details.get("dataset_alias", "")))
            hint = "push it under another name"
            return AlreadyExists(f"the name is in use on the remote: {name}", where=where, hint=hint)
    text = details.get("error_message")
    reason = sanitize(text) if isinstance(text, str) and text else sanitize(_plain(raw))
    return SourceUnavailable(f"rejected by the server: {reason}", where=where, hint=_SERVER_HINT)


def problem_of_close(reason: str, where: str) -> OdfError | None:
    """Return the error in the reason of a close frame, which may be truncated, or None if absent."""
    if not reason:
        return None
    try:
        parts = msgspec.json.decode(reason, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        problem = f"the server closed the session: {sanitize(reason)}"
        return SourceUnavailable(problem, where=where, hint=_SERVER_HINT)
    return parse_peer_error(parts.get("Err", msgspec.Raw(reason.encode())), where)


def sanitize(text: str) -> str:
    """Return a text of a peer without control characters, in one line, shortened."""
    clean = "".join(char if char.isprintable() else " " for char in text[: _SAID + 1])
    return clean if len(clean) <= _SAID else clean[: _SAID - 1] + "…"


def _plain(raw: bytes | msgspec.Raw | str) -> str:
    return raw if isinstance(raw, str) else bytes(raw)[: 4 * _SAID].decode("utf-8", "replace")


MAX_UNPACKED_BYTES: Final = 1 << 30
"""Maximum size of an unpacked archive."""
MAX_RATIO: Final = 250
"""Maximum ratio of unpacked to packed size, from :data:`_RATIO_FROM` bytes on."""
_RATIO_FROM: Final = 16 << 20
_TAR: Final = tarfile.BLOCKSIZE
_PIECE: Final = 1 << 16
_GZIP: Final = 31


def write_archive(blocks: Iterable[tuple[Multihash, bytes]], most_bytes: int) -> bytes:
    """Return the archive of blocks, given oldest first; the same bytes for the same blocks.

    Raises:
        Unsupported: it has more than ``most_bytes``.
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
            hint="use a folder, a bucket or the simple protocol, which transfer blocks one by one",
        )


def read_archive(archive: bytes, blocks: int, where: str) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the blocks of an archive, with their names. Their bytes are not hashed here.

    Args:
        archive: its bytes.
        blocks: the expected number.
        where: for errors.

    Raises:
        BadData: it is invalid or too large. The blocks yielded before are valid.
    """
    source = _Unpacked(archive, where)
    seen: set[Multihash] = set()
    while (header := source.header()) is not None:
        if len(seen) == blocks:
            raise BadData(f"the archive has more than the announced {blocks:,} blocks", where=where)
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BadData(f"'{sanitize(header.name)}' in the archive is not a plain file", where=where)
        try:
            block_hash = Multihash.parse(header.name)
        except InvalidIdentity:
            raise BadData(f"'{sanitize(header.name)}' in the archive is not a hash", where=where) from None
        if block_hash in seen:
            raise BadData(f"block {block_hash} is in the archive twice", where=where)
        if not 0 <= header.size <= MAX_BLOCK_BYTES:
            raise BadData(f"block {block_hash} has more than {MAX_BLOCK_BYTES:,} bytes", where=where)
        seen.add(block_hash)
        data = source.read(header.size)
        source.read(-header.size % _TAR)
        yield block_hash, data
    if len(seen) != blocks:
        raise BadData(f"the archive has {len(seen):,} blocks, {blocks:,} were announced", where=where)


class _Unpacked:
    """The tar of an archive, decompressed as far as it is read."""

    def __init__(self, archive: bytes, where: str) -> None:
        self._archive = archive
        self._where = where
        self._unpacker = zlib.decompressobj(_GZIP)
        self._fed = 0
        self._ready = bytearray()
        self._total = 0

    def header(self) -> tarfile.TarInfo | None:
        """Return the next header, or None at the end."""
        raw = self.read(_TAR)
        if raw == bytes(_TAR):
            return None
        try:
            return tarfile.TarInfo.frombuf(raw, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError, OverflowError):
            raise self._broken("not a tar archive") from None

    def read(self, size: int) -> bytes:
        """Return exactly ``count`` bytes."""
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
            raise self._broken("it is truncated")
        try:
            piece = self._unpacker.decompress(rest, _PIECE)
        except zlib.error:
            raise self._broken("not gzip") from None
        self._ready += piece
        self._total += len(piece)
        if self._total > MAX_UNPACKED_BYTES:
            raise self._broken(f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        if self._total > max(_RATIO_FROM, MAX_RATIO * len(self._archive)):
            raise self._broken(f"it unpacks to more than {MAX_RATIO} times its size")

    def _broken(self, why: str) -> BadData:
        return BadData(f"the archive of blocks cannot be read: {why}", where=self._where)
