"""What engine and coordinator say to each other in JSON, see :mod:`odf_engine.transform.grpc_wire`.

Beside the FlatBuffers of ``engine.Engine``: :class:`Further` in a request; :class:`Told` in a progress
message, and :class:`Failed` in an error.

The service ``odf.engine.v1.Engine`` answers with any number of :class:`Told`, and last

- to ``ValidateQuery``, :class:`ValidateQuery`: :class:`Valid` or :class:`Failed`;
- to ``MigrateQuery``, :class:`MigrateQuery`: :class:`Migrated` or :class:`Failed`;
- to ``DeriveProvenance``, :class:`DeriveProvenance`: :class:`Derivation` or :class:`Failed`; older ones
  answer :class:`NotYet`;
- to ``ComputeOutcome``, :class:`ComputeOutcome`: :class:`ComputedOutcome` or :class:`Failed`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from odf_engine.errors import BadData, InvalidQuery, NotFound, OdfError, Unsupported
from odf_engine.metadata.model import DatasetVocabulary, OffsetInterval, Sql, decode_hook, encode_hook
from odf_engine.workspace.answers import Outcome


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A JSON document; bytes are base64, and members that are not known are passed over."""


class Further(Wire, frozen=True):
    """What a request says besides its FlatBuffer: the dataset's schema, as an Arrow schema table."""

    declared: bytes | None = None


class Line(Wire, frozen=True):
    """A line for the job's log."""

    text: str
    level: Literal["debug", "info", "warning", "error"] = "info"


class Told(Wire, frozen=True, tag="told"):
    """Progress: the phase, its amounts so far, and the lines since the message before."""

    phase: str | None = None
    amounts: dict[str, int] = {}
    lines: list[Line] = []


class Failed(Wire, frozen=True, tag="failed"):
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

    outcome: Outcome
    read: list[str]
    spark: str


class NotYet(Wire, frozen=True, tag="notYet"):
    """A version of the engine that cannot answer."""

    message: str


Answer = Told | Failed | Valid | Migrated | Derivation | ComputedOutcome | NotYet
"""What the methods of our own service stream: any number of :class:`Told`, then one of the others."""


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


def failed(error: OdfError) -> Failed:
    """An error to be sent."""
    kinds = [name for name, each in _KINDS.items() if isinstance(error, each)]
    kind = kinds[0] if kinds else "OdfError"
    return Failed(error.message, kind, error.where, error.hint, list(error.excerpt))


def raised(answer: Failed) -> OdfError:
    """An error that was sent; a terminal obeys nothing in it."""
    kind = _KINDS.get(answer.kind, OdfError)
    error = kind(
        plain(answer.message), hint=plain(answer.hint or "") or None, where=plain(answer.where or "") or None
    )
    error.excerpt = tuple(map(plain, answer.excerpt))
    return error


def plain(text: str) -> str:
    """Text from elsewhere, without characters that a terminal would obey."""
    return "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
