"""What proves the answer of a query: who has the same data can ask again, and see that it is the same.

The proof is a JSON document: the query, the block of each dataset that it read, and the hash of its result::

    {"kind": "QueryProof", "version": 1, "query": "SELECT …", "asAt": null, "asOf": null,
     "tables": [{"table": "port-haven.stations", "name": "port-haven.stations", "id": "did:odf:f…",
                 "block": "f1620…", "sequenceNumber": 7, "systemTime": "…",
                 "state": "changelog", "asOf": null, "key": []}],
     "result": {"columns": [{"name": "n", "type": "BIGINT"}], "rows": 4, "hash": "f9680…",
                "order": "all columns"},
     "engine": {"name": "odf", "version": "0.1.0", "spark": "4.0.1"},
     "signature": {"key": "did:odf:f…", "signature": "f…"}}

``table`` is what the query calls it. ``hash`` is the logical hash of the rows (specification: Data Hashing).
With the order ``query`` these are in the order that the query's ORDER BY gives, ties broken by the other
columns; with ``all columns`` they were put in the order of all columns, the first one first, nulls first,
so that the hash is one of the rows alone. The signature is ed25519, over the document without it as JSON in
UTF-8, with the keys of objects in alphabetical order and no spaces.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Self

import msgspec

from odf_engine.errors import BadData, InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash, multibase_decode, multibase_encode
from odf_engine.identity.proof import private_key, public_id, sign, verify
from odf_engine.metadata.sql_calls import State

KIND: Final = "QueryProof"
_VERSION: Final = 1
MOST_BYTES: Final = 4 << 20


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Table(_Document, frozen=True):
    """What a query read: a dataset at a block, in a state."""

    table: str
    name: str
    id: str
    block: str
    sequence_number: int
    system_time: str
    state: State
    as_of: str | None
    key: list[str]


class Column(_Document, frozen=True):
    """A column of a result; its type as DDL has it."""

    name: str
    type: str


class Outcome(_Document, frozen=True):
    """A result: ``hash`` is a multihash as text; what ``order`` means, the module says."""

    columns: list[Column]
    rows: int
    hash: str
    order: Literal["query", "all columns"]


class Engine(_Document, frozen=True):
    """What computed it."""

    name: str
    version: str
    spark: str


class Signature(_Document, frozen=True):
    """Who stands behind it."""

    key: str
    signature: str


class AnswerProof(_Document, frozen=True, kw_only=True):
    """The document; the module describes it."""

    kind: str = KIND
    version: int = _VERSION
    query: str
    as_at: str | None = None
    as_of: str | None = None
    tables: list[Table]
    result: Outcome
    engine: Engine
    signature: Signature | None = None

    def __bytes__(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @property
    def document(self) -> dict[str, Any]:
        """What JSON holds."""
        return msgspec.to_builtins(self)

    @property
    def signed(self) -> bytes:
        """The bytes that a signature is over."""
        document = self.document
        del document["signature"]
        return msgspec.json.encode(document, order="sorted")

    def signed_with(self, private_key_pem: str) -> Self:
        """The same with a signature.

        Raises:
            BadData: the text is no ed25519 private key.
        """
        key = private_key(private_key_pem)
        made = Signature(str(public_id(key)), multibase_encode(sign(key, self.signed)))
        return msgspec.structs.replace(self, signature=made)

    def check_signature(self) -> None:
        """Sees that the signature, if there is one, is right.

        Raises:
            BadData: it is not.
        """
        if self.signature is None:
            return
        try:
            key = DatasetId.parse(self.signature.key)
            given = multibase_decode(self.signature.signature)
        except InvalidIdentity as error:
            raise BadData(f"the signature cannot be read: {error.message}") from None
        if len(given) != 64 or not verify(key, self.signed, given):
            raise BadData(f"the signature is not one of the key {key} over this document")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads a document; nothing is checked but its form.

        Raises:
            BadData: it is something else; the message says what.
        """
        if len(data) > MOST_BYTES:
            raise BadData(f"the proof of an answer has at most {MOST_BYTES:,} bytes, this one {len(data):,}")
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadData(f"this is not the proof of an answer: {error}") from None
        if (found.kind, found.version) != (KIND, _VERSION):
            said = f"it says kind '{found.kind[:40]}', version {found.version}"
            hint = f"known is {KIND}, version {_VERSION}"
            raise BadData(f"this is not the proof of an answer: {said}", hint=hint)
        try:
            for table in found.tables:
                Multihash.parse(table.block)
                DatasetId.parse(table.id)
            Multihash.parse(found.result.hash)
        except InvalidIdentity as error:
            raise BadData(f"the proof cannot be read: {error.message}") from None
        return found
