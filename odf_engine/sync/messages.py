"""The messages of the smart transfer protocol, as kamu speaks it: JSON texts whose place gives their meaning.

There are two eras. From version 0.198 on a client names the version in a header; to such a client all
answers are wrapped into ``{"Ok": …}`` or ``{"Err": …}``. To an older one some answers of a push are bare.
What is read may be either; fields that are not known are passed over.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from odf_engine.errors import AlreadyExists, BadData, Conflict, InvalidIdentity, OdfError, SourceUnavailable
from odf_engine.identity.multiformats import Multihash
from odf_engine.sync.remote import ObjectFile

VERSION_HEADER: Final = "x-odf-smtp-version"
VERSION: Final = "1"
MEDIA_TYPE: Final = "application/tar+gzip"
ENCODING: Final = "raw"
PULLED: Final = "Client pull flow succeeded"
PUSHED: Final = "Client push flow succeeded"

U64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # msgspec's bounds are signed; nobody has half as much
_PIECE: Final = 1 << 18
_SAID: Final = 300

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True):
    """A message, or a part of one."""


class Empty(Message, frozen=True):
    """``{}``: go on, accepted, how far are you, done; its place says which."""


# --- Parts -----------------------------------------------------------------------------------


class TransferPlan(Message, frozen=True):
    """How much is going to be sent; sizes in bytes."""

    num_blocks: U64
    num_objects: U64
    num_records: U64
    bytes_in_raw_blocks: U64
    bytes_in_raw_objects: U64


class ObjectsBatch(Message, frozen=True):
    """Blocks in an archive; ``payload`` is its bytes as a JSON array of numbers (see :func:`unpacked`)."""

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
        """The reference to a file."""
        return cls("DataSlice" if file.kind == "data" else "Checkpoint", file.hash, file.size)

    @property
    def file(self) -> ObjectFile:
        """What it refers to."""
        kind: Literal["data", "checkpoints"] = "data" if self.object_type == "DataSlice" else "checkpoints"
        return ObjectFile(kind, self.physical_hash, self.size)


class HeaderRow(Message, frozen=True):
    """A header that goes with a request as it is."""

    name: str
    value: str


class TransferUrl(Message, frozen=True):
    """Where an object is to be read from, or written to; ``expires_at`` is in RFC 3339."""

    url: str
    headers: list[HeaderRow]
    expires_at: str | None = None


# --- Pull ------------------------------------------------------------------------------------


class PullRequest(Message, frozen=True):
    """Asks for the blocks after ``begin_after`` (none: from the first) up to ``stop_at`` (none: the head)."""

    begin_after: Multihash | None = None
    stop_at: Multihash | None = None
    force_update_if_diverged: bool = False


class PullAccepted(Message, frozen=True):
    """How much there is to pull."""

    transfer_plan: TransferPlan


class PullBlocks(Message, frozen=True):
    """The blocks of a pull."""

    blocks: ObjectsBatch


class PullObjects(Message, frozen=True):
    """Asks from where objects can be read."""

    object_files: list[ObjectReference]


class PullStrategy(Message, frozen=True):
    """From where an object can be read."""

    object_file: ObjectReference
    pull_strategy: Literal["HttpDownload"]
    download_from: TransferUrl


class PullStrategies(Message, frozen=True):
    """From where objects can be read."""

    object_transfer_strategies: list[PullStrategy]


# --- Push ------------------------------------------------------------------------------------


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
    """Asks where objects are to be written to; ``is_truncated``: more are asked for afterwards."""

    object_files: list[ObjectReference]
    is_truncated: bool = False


class PushStrategy(Message, frozen=True):
    """Where an object is to be written to, or that it is there."""

    object_file: ObjectReference
    push_strategy: Literal["HttpUpload", "SkipUpload"]
    upload_to: TransferUrl | None = None


class PushStrategies(Message, frozen=True):
    """Where objects are to be written to."""

    object_transfer_strategies: list[PushStrategy]


class Running(Message, frozen=True):
    """How many objects are written so far."""

    uploaded_objects_count: U64


class RunningDetails(Message, frozen=True):
    """The wrapping of :class:`Running`."""

    Running: Running


class PushProgress(Message, frozen=True):
    """How far the uploads are."""

    details: RunningDetails | Literal["Complete"]


# --- Texts -----------------------------------------------------------------------------------


def text_of(message: Message) -> bytes:
    """The message as JSON."""
    return msgspec.json.encode(message, enc_hook=str)


def answer_text(message: Message, wrapped: bool = True) -> bytes:
    """An answer as JSON, wrapped as the peer's era wants it."""
    text = text_of(message)
    return b'{"Ok":' + text + b"}" if wrapped else text


def error_text(kind: str, **details: object) -> bytes:
    """An error as JSON: ``{"Err": {kind: details}}``."""
    return msgspec.json.encode({"Err": {kind: details}}, enc_hook=str)


def read_message(text: str | bytes, kind: type[T], where: str) -> T:
    """A message of the peer.

    Raises:
        BadData: it is of another shape.
    """
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_decode_hook)
    except (msgspec.MsgspecError, InvalidIdentity, UnicodeError, RecursionError) as error:
        problem = f"what came is no {kind.__name__} of the smart protocol: {said(str(error))}"
        raise BadData(problem, where=where) from None


def read_answer(text: str | bytes, kind: type[T], where: str) -> T:
    """An answer of a server, wrapped or bare.

    Raises:
        BadData: it is of another shape.
        OdfError: it is an error, see :func:`problem`.
    """
    parts = read_message(text, dict[str, msgspec.Raw], where)
    if "Err" in parts:
        raise problem(parts["Err"], where)
    return read_message(parts.get("Ok", text), kind, where)


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is Multihash and isinstance(value, str):
        return Multihash.parse(value)
    raise msgspec.ValidationError(f"Expected {kind.__name__}")


# --- Payloads --------------------------------------------------------------------------------


def packed(data: bytes) -> msgspec.Raw:
    """Bytes as a JSON array of numbers, about 3.6 bytes each."""
    pieces = (
        msgspec.json.encode(list(data[start : start + _PIECE]))[1:-1] for start in range(0, len(data), _PIECE)
    )
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")


def unpacked(payload: msgspec.Raw, where: str) -> bytes:
    """The bytes of a JSON array of numbers; in pieces, so that a large one does not take 8 times its size.

    Raises:
        BadData: it is something else, or a number is no byte.
    """
    text = memoryview(payload)
    if len(text) < 2 or text[0] != 0x5B:
        raise BadData("the payload of the blocks is no array of bytes", where=where)
    found, start, end = bytearray(), 1, len(text) - 1
    while start < end:
        stop = min(start + _PIECE, end)
        while stop < end and text[stop] != 0x2C:  # up to the next comma
            stop += 1
        try:
            found += bytes(msgspec.json.decode(b"[%b]" % bytes(text[start:stop]), type=list[int]))
        except (msgspec.MsgspecError, ValueError, OverflowError):
            raise BadData("the payload of the blocks is no array of bytes", where=where) from None
        start = stop + 1
    return bytes(found)


def archive_of(batch: ObjectsBatch, where: str) -> bytes:
    """The archive of a batch.

    Raises:
        BadData: it is packed in a way that is not known.
    """
    if (batch.media_type, batch.encoding) != (MEDIA_TYPE, ENCODING):
        kind = said(f"{batch.media_type}, {batch.encoding}")
        raise BadData(f"the blocks come as {kind}; only {MEDIA_TYPE}, {ENCODING} is known", where=where)
    return unpacked(batch.payload, where)


def batch_of(blocks: int, archive: bytes) -> ObjectsBatch:
    """An archive as a batch."""
    return ObjectsBatch(blocks, MEDIA_TYPE, ENCODING, packed(archive))


# --- Errors ----------------------------------------------------------------------------------


def problem(raw: bytes | msgspec.Raw | str, where: str) -> OdfError:
    """The error that a peer tells of, by what stands after ``Err``."""
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
        return SourceUnavailable(f"the server refused: {said(_plain(raw))}", where=where)
    match kind:
        case "InvalidHead":
            hint = "somebody else pushed meanwhile; pull, then push again"
            actual = said(str(details.get("expected_head")))  # kamu has the two the wrong way round
            return Conflict(f"the head there is another one by now: {actual}", where=where, hint=hint)
        case "InvalidInterval":
            problem = "the history there does not have the block that the one here ends with"
            return Conflict(problem, where=where, hint="take the history there: --force")
        case "SeedBlockOverwriteRestricted":
            hint = "give it another name there"
            return Conflict("the dataset there is another one: it begins otherwise", where=where, hint=hint)
        case "RefCollision":
            owner = said(str(details.get("dataset_id", "")))
            return Conflict(f"the dataset is there already, under another name: {owner}", where=where)
        case "NameCollision":
            name = said(str(details.get("dataset_alias", "")))
            hint = "choose another name there"
            return AlreadyExists(f"the name is taken there: {name}", where=where, hint=hint)
    text = details.get("error_message")
    told = said(text) if isinstance(text, str) and text else said(_plain(raw))
    return SourceUnavailable(f"the server refused: {told}", where=where)


def problem_of_close(reason: str, where: str) -> OdfError | None:
    """The error that stands in the reason of a close frame (which may be cut off), if there is one."""
    if not reason:
        return None
    try:
        parts = msgspec.json.decode(reason, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError):
        return SourceUnavailable(f"the server broke off: {said(reason)}", where=where)
    return problem(parts.get("Err", msgspec.Raw(reason.encode())), where)


def said(text: str) -> str:
    """Words of a stranger that are safe to show: one line, no control characters, not endless."""
    clean = "".join(char if char.isprintable() else " " for char in text[: _SAID + 1])
    return clean if len(clean) <= _SAID else clean[: _SAID - 1] + "…"


def _plain(raw: bytes | msgspec.Raw | str) -> str:
    return raw if isinstance(raw, str) else bytes(raw)[: 4 * _SAID].decode("utf-8", "replace")
