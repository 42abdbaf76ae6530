"""Messages of the gRPC engine protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from odf_engine.errors import BadData, InvalidQuery, NotFound, OdfError, Unsupported
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, decode_hook, encode_hook
from odf_engine.query.query_proof import ResultSummary


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A JSON document; bytes are base64, and members that are not known are passed over."""


class RequestExtension(Wire, frozen=True):
    """What a request says besides its FlatBuffer: the dataset's schema, as an Arrow schema table."""

    declared: bytes | None = None


class Line(Wire, frozen=True):
    """A line for the job's log."""

    text: str
    level: Literal["debug", "info", "warning", "error"] = "info"


class ProgressMessage(Wire, frozen=True, tag="told"):
    """Progress: the phase, its amounts so far, and the lines since the message before."""

    phase: str | None = None
    amounts: dict[str, int] = {}
    lines: list[Line] = []


class ErrorMessage(Wire, frozen=True, tag="failed"):
    """An error as people read it; ``kind`` is that of :mod:`odf_engine.errors`, where it is one of those."""

    message: str
    kind: str = "OdfError"
    where: str | None = None
    hint: str | None = None
    excerpt: list[str] = []


class InputSchema(Wire, frozen=True):
    """An input of a query: its alias, the schema of its slices as an Arrow schema table, its column names."""

    alias: str
    schema: bytes
    vocab: DatasetVocabulary


class ValidateQuery(Wire, frozen=True):
    """Whether a query can be run over such inputs; ``declared`` is the schema that the dataset has."""

    transform: Sql
    inputs: list[InputSchema]
    vocab: DatasetVocabulary
    declared: bytes | None = None


class Valid(Wire, frozen=True, tag="valid"):
    """It can: the schema of the result, and the fingerprint of the state that it keeps, if any."""

    schema: bytes
    state: str | None = None


class MigrateQuery(Wire, frozen=True):
    """Ends the state of an old query (``finish``) or makes that of a new one (``rebuild``).

    ``request`` is a TransformRequest as FlatBuffer, ``declared`` the dataset's schema.
    """

    how: Literal["finish", "rebuild"]
    request: bytes
    declared: bytes | None = None


class Migrated(Wire, frozen=True, tag="migrated"):
    """It is done; files are where the request said. No interval: there are no rows."""

    new_offset_interval: OffsetInterval | None = None


class DeriveProvenance(Wire, frozen=True):
    """Which rows of the inputs made the rows of a transaction at these offsets.

    ``request`` is that of the transaction, a TransformRequest as FlatBuffer; nothing is written.
    """

    request: bytes
    rows: list[OffsetInterval]


class DerivedFrom(Wire, frozen=True):
    """Rows of an input, by what the query calls it, in ascending order."""

    alias: str
    rows: list[OffsetInterval]


class Derivation(Wire, frozen=True, tag="derivation"):
    """Those are the rows; where they are not ``exact``, all that could be, and the reason."""

    feeds: list[DerivedFrom]
    exact: bool = True
    reason: str | None = None


class QueryTable(Wire, frozen=True):
    """A table of a query: its name, Parquet files, schema as an Arrow schema table, and column names."""

    name: str
    paths: list[str]
    schema: bytes
    vocab: DatasetVocabulary


class ComputeOutcome(Wire, frozen=True):
    """What a proof would state of the result of a query that can read these tables."""

    query: str
    tables: list[QueryTable]


class ComputedOutcome(Wire, frozen=True, tag="outcome"):
    """The outcome, the names of the tables that the query reads, and the version of Spark."""

    outcome: ResultSummary
    read: list[str]
    spark: str


class UnimplementedMessage(Wire, frozen=True, tag="notYet"):
    """A version of the engine that cannot answer."""

    message: str


Answer = (
    ProgressMessage | ErrorMessage | Valid | Migrated | Derivation | ComputedOutcome | UnimplementedMessage
)
"""A streamed response: any number of :class:`ProgressMessage`, then one of the others."""


def encode(document: Wire) -> bytes:
    """A document as JSON."""
    return msgspec.json.encode(document, enc_hook=encode_hook)


def decode(data: bytes, kind: Any) -> Any:
    """Reads a document.

    Raises:
        ValueError: it is not of this kind.
    """
    return msgspec.json.decode(data, type=kind, dec_hook=decode_hook)


_KINDS: Final = {each.__name__: each for each in (BadData, InvalidQuery, NotFound, Unsupported)}


def failed(error: OdfError) -> ErrorMessage:
    """An error to be sent."""
    kinds = [name for name, each in _KINDS.items() if isinstance(error, each)]
    kind = kinds[0] if kinds else "OdfError"
    return ErrorMessage(error.message, kind, error.where, error.hint, list(error.excerpt))


def to_exception(answer: ErrorMessage) -> OdfError:
    """An error that was sent; a terminal obeys nothing in it."""
    kind = _KINDS.get(answer.kind, OdfError)
    error = kind(
        strip_control_characters(answer.message),
        hint=strip_control_characters(answer.hint or "") or None,
        where=strip_control_characters(answer.where or "") or None,
    )
    error.excerpt = tuple(map(strip_control_characters, answer.excerpt))
    return error


def strip_control_characters(text: str) -> str:
    """Text from elsewhere, without characters that a terminal would obey."""
    return "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


SERVICE: Final = "engine.Engine"
RAW_QUERY: Final = "ExecuteRawQuery"
TRANSFORM: Final = "ExecuteTransform"
OWN_SERVICE: Final = "odf.engine.v1.Engine"
VALIDATE: Final = "ValidateQuery"
MIGRATE: Final = "MigrateQuery"
PROVENANCE: Final = "DeriveProvenance"
OUTCOME: Final = "ComputeOutcome"
MAX_MESSAGE: Final = 256 << 20
"""A request names every slice of an increment, so it may well be larger than gRPC's usual 4 MB."""
CONTENT: Final = 1
FURTHER: Final = 2
"""Numbers of the fields of a message."""
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}


def wrap(data: bytes, further: bytes = b"") -> bytes:
    """A message of these fields; an empty one is left out, as protobuf leaves out defaults."""
    return _field(CONTENT, data) + _field(FURTHER, further)


def unwrap(message: bytes, field: int = CONTENT) -> bytes:
    """The bytes that a field of a message holds; none when it is not there. Other fields are passed over.

    Raises:
        ValueError: this is no protobuf message.
    """
    found = b""
    for tag, data in _fields(message):
        found = data if tag == field << 3 | _LENGTH_DELIMITED else found
    return found


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _varint(len(data)) + data if data else b""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and bytes; none for numbers."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        begin, kind = at, tag & 7
        if kind == _LENGTH_DELIMITED:
            length, begin = _read_varint(message, at)
            at = begin + length
        elif kind == 0:
            _, at = _read_varint(message, at)
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise ValueError(f"a field of the unknown wire type {kind}")
        if at > len(message):
            raise ValueError("a field is longer than its message")
        yield tag, message[begin:at] if kind == _LENGTH_DELIMITED else b""


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number has no end")
