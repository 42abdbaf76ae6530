"""Messages of the gRPC engine protocol."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.engines.contract import (
    ComputedResult,
    InputRows,
    QueryInput,
    RowProvenance,
    ValidatedQuery,
)
from odf_engine.errors import (
    BadData,
    EarlierRowsRequired,
    InvalidQuery,
    NotFound,
    OdfError,
    StateUnusable,
    Unsupported,
)
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, decode_hook, encode_hook
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.protobuf import encode_bytes, read_fields


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A JSON document; unknown members are ignored. Bytes, and Arrow schemas in FlatBuffers, are base64."""


class RequestExtension(Wire, frozen=True):
    """Extension of a request's FlatBuffer: the schema of the dataset."""

    declared: pa.Schema | None = None


class ResponseExtension(Wire, frozen=True):
    """Extension of a response's FlatBuffer.

    Attributes:
        version: version of the engine.
        late: late rows that it dropped.
        pending: number of rows that wait for the watermark of the inputs, or None if it is unknown.
    """

    version: str | None = None
    late: list[InputRows] = []
    pending: int | None = 0


class Line(Wire, frozen=True):
    """A line for the job log. A warning can have a ``kind`` and a ``count``, see :class:`JobWarning`."""

    text: str
    level: Literal["debug", "info", "warning", "error"] = "info"
    kind: str = ""
    count: int | None = None


class ProgressMessage(Wire, frozen=True, tag="told"):
    """Progress: the phase, its amounts so far, and the log lines since the previous message."""

    phase: str | None = None
    amounts: dict[str, int] = {}
    lines: list[Line] = []


class ErrorMessage(Wire, frozen=True, tag="failed"):
    """An error; ``kind`` is the class name if it is one of the transferable classes of
    :mod:`odf_engine.errors`. ``lacks_values`` is as in :class:`odf_engine.errors.StateUnusable`.
    """

    message: str
    kind: str = "OdfError"
    where: str | None = None
    hint: str | None = None
    excerpt: list[str] = []
    lacks_values: bool = False


class ValidateQuery(Wire, frozen=True):
    """Request to validate a query over these inputs; ``declared`` is the schema of the dataset."""

    transform: Sql
    inputs: list[QueryInput]
    vocab: DatasetVocabulary
    declared: pa.Schema | None = None


class MigrateQuery(Wire, frozen=True):
    """Request to flush the state of an old query (``finish``), to compute a new query's (``rebuild``), or
    to run a query as one batch (``recompute``).

    ``request`` is a TransformRequest as FlatBuffer; ``declared`` is the schema of the dataset.
    """

    how: Literal["finish", "rebuild", "recompute"]
    request: bytes
    declared: pa.Schema | None = None


class Migrated(Wire, frozen=True, tag="migrated"):
    """The migration has succeeded; the files are at the requested paths. No interval means no rows.

    ``new_watermark`` and ``version`` are as in :class:`TransactionResult`.
    """

    new_offset_interval: OffsetInterval | None = None
    new_watermark: Timestamp | None = None
    version: str | None = None


class DeriveProvenance(Wire, frozen=True):
    """Request for the input rows of the rows of a transaction at these offsets.

    ``request`` is the request of the transaction, a TransformRequest as FlatBuffer; nothing is written.
    """

    request: bytes
    rows: list[OffsetInterval]


class ComputeOutcome(Wire, frozen=True):
    """Request for the outcome of a query that can read these tables, as stated in a proof."""

    query: str
    tables: list[TableFiles]


class UnimplementedMessage(Wire, frozen=True, tag="notYet"):
    """The engine version does not implement the request."""

    message: str


Answer = (
    ProgressMessage
    | ErrorMessage
    | ValidatedQuery
    | Migrated
    | RowProvenance
    | ComputedResult
    | UnimplementedMessage
)
"""A streamed response: any number of :class:`ProgressMessage`, then one other message."""


def encode(document: msgspec.Struct) -> bytes:
    """Encode a document as JSON."""
    return msgspec.json.encode(document, enc_hook=_encode_hook)


def decode(data: bytes, document_type: Any) -> Any:
    """Decode a document.

    Raises:
        ValueError: it is not of this type.
    """
    return msgspec.json.decode(data, type=document_type, dec_hook=_decode_hook)


def _encode_hook(value: object) -> bytes | str:
    if isinstance(value, pa.Schema):
        return encode_schema(value)
    return str(value) if isinstance(value, Path) else encode_hook(value)


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is pa.Schema:
        return decode_schema(b64decode(value, validate=True))
    return Path(value) if kind is Path else decode_hook(kind, value)


_KINDS: Final = {
    kind.__name__: kind
    for kind in (BadData, InvalidQuery, NotFound, StateUnusable, EarlierRowsRequired, Unsupported)
}


def to_error_message(error: OdfError) -> ErrorMessage:
    """Return the message of an error."""
    kinds = [name for name, kind in _KINDS.items() if isinstance(error, kind)]
    kind = kinds[0] if kinds else "OdfError"
    lacks_values = isinstance(error, StateUnusable) and error.lacks_values
    return ErrorMessage(error.message, kind, error.where, error.hint, list(error.excerpt), lacks_values)


def to_exception(answer: ErrorMessage) -> OdfError:
    """Return the error of a message, without control characters."""
    kind = _KINDS.get(answer.kind, OdfError)
    error = kind(
        strip_control_characters(answer.message),
        hint=strip_control_characters(answer.hint or "") or None,
        where=strip_control_characters(answer.where or "") or None,
    )
    error.excerpt = tuple(map(strip_control_characters, answer.excerpt))
    if isinstance(error, StateUnusable):
        error.lacks_values = answer.lacks_values
    return error


def strip_control_characters(text: str) -> str:
    """Replace control characters in text of third parties, which a terminal would interpret."""
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
MAX_MESSAGE_BYTES: Final = 256 << 20
"""Maximum size of a message in bytes. A request lists every slice of an increment, which can exceed gRPC's
default of 4 MB.
"""
CONTENT: Final = 1
EXTENSION: Final = 2
"""Field numbers of a message."""


def encode_fields(data: bytes, extension: bytes = b"") -> bytes:
    """Return a message with these fields; empty fields are omitted, as defaults are in protobuf."""
    return encode_bytes(CONTENT, data) + encode_bytes(EXTENSION, extension)


def decode_field(message: bytes, field: int = CONTENT) -> bytes:
    """Return the bytes of a field of a message, or b"" if it is missing. Other fields are ignored.

    Raises:
        ValueError: not a protobuf message.
    """
    value = b""
    for number, data in read_fields(message):
        value = data if number == field and isinstance(data, bytes) else value
    return value
