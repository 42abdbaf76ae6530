"""Query proofs: documents that let anyone repeat a query and compare its result hash."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

import msgspec

from odf_engine.errors import BadData, InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash, multibase_decode, multibase_encode
from odf_engine.identity.ownership_proof import dataset_id_of_key, load_private_key, sign, verify_signature
from odf_engine.sql.table_functions import TableState

KIND: Final = "QueryProof"
_VERSION: Final = 1
MAX_PROOF_BYTES: Final = 4 << 20


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    pass


class ProofTable(_Document, frozen=True):
    """A dataset that a query read, at a block and in a state."""

    table: str
    name: str
    id: str
    block: str
    sequence_number: int
    system_time: str
    state: TableState
    as_of: str | None
    key: list[str]


class ProofColumn(_Document, frozen=True):
    """A column of a result; its type as DDL."""

    name: str
    type: str


class ResultSummary(_Document, frozen=True):
    """A result.

    Attributes:
        columns: names and types.
        rows: number of rows.
        hash: their logical hash, a multihash as text.
        order: ``query`` if ORDER BY determines the order of the hashed rows, else ``all columns``.
    """

    columns: list[ProofColumn]
    rows: int
    hash: str
    order: Literal["query", "all columns"]


class ProofEngine(_Document, frozen=True):
    """The program that computed a result."""

    name: str
    version: str
    spark: str


class Signature(_Document, frozen=True):
    """A signature of a proof; ``key`` is a dataset id."""

    key: str
    signature: str


class QueryProof(_Document, frozen=True, kw_only=True):
    """A query, the versions of the datasets that it read, and the hash of its result."""

    kind: str = KIND
    version: int = _VERSION
    query: str
    as_at: str | None = None
    as_of: str | None = None
    tables: list[ProofTable]
    result: ResultSummary
    engine: ProofEngine
    signature: Signature | None = None

    def __bytes__(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @property
    def document(self) -> dict[str, Any]:
        """The proof as builtin types, as in JSON."""
        return msgspec.to_builtins(self)

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that a signature covers."""
        document = self.document
        del document["signature"]
        return msgspec.json.encode(document, order="sorted")

    def with_signature(self, private_key_pem: str) -> Self:
        """Return the proof with a signature.

        Raises:
            BadData: the text is not an ed25519 private key.
        """
        key = load_private_key(private_key_pem)
        signature = Signature(str(dataset_id_of_key(key)), multibase_encode(sign(key, self.signed_bytes)))
        return msgspec.structs.replace(self, signature=signature)

    def check_signature(self) -> None:
        """Verify the signature, if there is one.

        Raises:
            BadData: it is invalid.
        """
        if self.signature is None:
            return
        try:
            key = DatasetId.parse(self.signature.key)
            given = multibase_decode(self.signature.signature)
        except InvalidIdentity as error:
            raise BadData(f"the signature cannot be read: {error.message}") from None
        if len(given) != 64 or not verify_signature(key, self.signed_bytes, given):
            raise BadData(f"the signature does not match the key {key} and this document")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a proof and check its form.

        Raises:
            BadData: it is malformed.
        """
        if len(data) > MAX_PROOF_BYTES:
            raise BadData(f"a query proof has at most {MAX_PROOF_BYTES:,} bytes, this one has {len(data):,}")
        try:
            proof = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadData(f"not a query proof: {error}") from None
        if (proof.kind, proof.version) != (KIND, _VERSION):
            problem = f"kind '{proof.kind[:40]}', version {proof.version}"
            hint = f"expected kind '{KIND}', version {_VERSION}"
            raise BadData(f"unsupported query proof: {problem}", hint=hint)
        try:
            for table in proof.tables:
                Multihash.parse(table.block)
                DatasetId.parse(table.id)
            Multihash.parse(proof.result.hash)
        except InvalidIdentity as error:
            raise BadData(f"the proof cannot be read: {error.message}") from None
        return proof
