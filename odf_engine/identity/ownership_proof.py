"""Ownership proofs: ed25519 signatures over a head with the private key of a dataset."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from odf_engine.base.files import remove_temporary, sync_change
from odf_engine.errors import BadData, InvalidIdentity, NotFound, disk_hint
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash, multibase_decode, multibase_encode

if TYPE_CHECKING:
    from Crypto.PublicKey.ECC import EccKey

PROOFS_FOLDER: Final = "proofs"
"""The folder of proofs, next to ``blocks/``."""
MAX_PROOF_BYTES: Final = 4096
"""Limit of the size of a proof. Proofs written by this program have about 400 bytes."""
_KIND: Final = "DatasetProof"
_VERSION: Final = 1
_STAGING: Final = ".pending-"
_MAX_ACTOR: Final = 200
_ACTOR_PREFIX: Final = b"odf actor\n"


class OwnershipProof(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A signature of ``head`` with the key of ``dataset_id``. :func:`verify_proof` verifies it.

    Attributes:
        signature: 64 bytes, over ``bytes(head)``.
        actor: the person or program that signed, at most 200 printable characters, or "" if not named.
        actor_signature: 64 bytes, over the head and the actor, or no bytes without an actor.
    """

    dataset_id: DatasetId
    head: Multihash
    signature: bytes
    actor: str = ""
    actor_signature: bytes = b""

    def __bytes__(self) -> bytes:
        """Return the stored and transferred form: JSON in UTF-8."""
        return msgspec.json.format(msgspec.json.encode(self.document), indent=2) + b"\n"

    @property
    def document(self) -> dict[str, object]:
        """The JSON document."""
        document: dict[str, object] = {
            "kind": _KIND,
            "version": _VERSION,
            "datasetId": str(self.dataset_id),
            "head": str(self.head),
            "signature": multibase_encode(self.signature),
        }
        if self.actor:
            document["actor"] = self.actor
            document["actorSignature"] = multibase_encode(self.actor_signature)
        return document

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the output of ``bytes(proof)``. The signature is not verified.

        Raises:
            BadData: not a proof; the message states the reason.
        """
        if len(data) > MAX_PROOF_BYTES:
            raise BadData(f"invalid proof: {len(data):,} bytes, more than {MAX_PROOF_BYTES:,}")
        try:
            document = msgspec.json.decode(data, type=_Document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadData(f"invalid proof: {error}") from None
        if document.kind != _KIND or document.version != _VERSION:
            raise BadData(
                f"unsupported proof: kind '{document.kind[:40]}', version {document.version}",
                hint=f"supported: {_KIND}, version {_VERSION}",
            )
        try:
            proof = cls(
                DatasetId.parse(document.dataset_id),
                Multihash.parse(document.head),
                multibase_decode(document.signature),
                document.actor,
                multibase_decode(document.actor_signature) if document.actor else b"",
            )
        except InvalidIdentity as error:
            raise BadData(f"invalid proof: {error.message}") from None
        if len(proof.signature) != 64:
            raise BadData(f"invalid proof: the signature has {len(proof.signature)} bytes instead of 64")
        if not is_actor(proof.actor):
            raise BadData(f"invalid proof: the actor is not {_MAX_ACTOR} printable characters or fewer")
        return proof


class _Document(msgspec.Struct, rename="camel"):
    kind: str
    version: int
    dataset_id: str
    head: str
    signature: str
    actor: str = ""
    actor_signature: str = ""


def is_actor(text: str) -> bool:
    """Return whether a text is a valid name of an actor. "" is valid: the actor is not named."""
    return len(text) <= _MAX_ACTOR and text.isprintable()


def create_proof(private_key_pem: str, head: Multihash, actor: str = "") -> OwnershipProof:
    """Create the proof for ``head`` with a private key.

    Args:
        private_key_pem: the key as :meth:`KeyStore.private_key_pem` returns it.
        head: the head.
        actor: who signs, see :func:`is_actor`.

    Raises:
        BadData: the text is not an ed25519 private key, or the actor is invalid.
    """
    if not is_actor(actor):
        raise BadData(
            f"the actor is not {_MAX_ACTOR} printable characters or fewer",
            hint="set another name: odf config set signing.actor NAME",
        )
    key = load_private_key(private_key_pem)
    by = sign(key, _actor_statement(head, actor)) if actor else b""
    return OwnershipProof(dataset_id_of_key(key), head, sign(key, bytes(head)), actor, by)


def _actor_statement(head: Multihash, actor: str) -> bytes:
    return _ACTOR_PREFIX + bytes(head) + actor.encode()


def is_statement(data: bytes) -> bool:
    """Return whether a proof signs such data: the hash of a block, or the name of the actor."""
    try:
        Multihash.from_bytes(data)
    except InvalidIdentity:
        return data.startswith(_ACTOR_PREFIX)
    return True


def verify_proof(proof: OwnershipProof, dataset_id: DatasetId, head: Multihash) -> None:
    """Verify that ``proof`` is signed with the key of ``dataset_id`` and is for ``head``.

    Raises:
        BadData: it is not; the message states the reason.
    """
    if proof.head != head:
        raise BadData(f"the proof is for block {proof.head.abbreviated}, not for {head.abbreviated}")
    if proof.dataset_id != dataset_id:
        raise BadData(f"the proof is signed with the key of another dataset, {proof.dataset_id}")
    if not verify_signature(dataset_id, bytes(head), proof.signature):
        raise BadData(f"invalid signature: not signed with the key of {dataset_id}")
    statement = _actor_statement(head, proof.actor)
    if proof.actor and not verify_signature(dataset_id, statement, proof.actor_signature):
        raise BadData(f"invalid signature: the actor is not signed with the key of {dataset_id}")


def store_proof(folder: Path, proof: OwnershipProof) -> Path:
    """Store a verified proof next to a dataset's chain, durably and atomically; replace an existing one.

    Args:
        folder: the dataset's folder, which must exist.
        proof: a valid proof of this dataset, see :func:`verify_proof`.

    Returns:
        The path of the proof.

    Raises:
        OSError: the proof cannot be written, and an existing one is unchanged.
        NotSynced: the proof was stored, but a power failure may undo it.
    """
    proofs = folder / PROOFS_FOLDER
    proofs.mkdir(exist_ok=True)
    target, staged = proofs / str(proof.head), proofs / f"{_STAGING}{secrets.token_hex(8)}"
    try:
        with staged.open("xb") as file:
            file.write(bytes(proof))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(target)
    finally:
        remove_temporary(staged)
    for path in (proofs, folder):
        sync_change(path, "the proof was stored")
    return target


def read_proof(folder: Path, head: Multihash) -> OwnershipProof | None:
    """Return the stored proof for ``head``, or None if absent. It is not verified.

    Raises:
        BadData: the file is not a proof, or cannot be read.
    """
    path = folder / PROOFS_FOLDER / str(head)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PROOF_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = f"the proof cannot be read: {error.strerror}"
        raise BadData(problem, where=str(path), hint=disk_hint(error)) from None
    try:
        return OwnershipProof.from_bytes(data)
    except BadData as error:
        raise BadData(error.message, hint=error.hint, where=str(path)) from None


def list_proof_files(folder: Path) -> Iterator[str]:
    """Yield the sorted names of the files in a dataset's ``proofs/``, without temporary files.

    Raises:
        BadData: the folder cannot be read.
    """
    proofs = folder / PROOFS_FOLDER
    try:
        names = os.listdir(proofs)  # noqa: PTH208 (only names are needed)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        problem = f"the proofs cannot be read: {error.strerror or error}"
        raise BadData(problem, where=str(proofs), hint=disk_hint(error)) from None
    yield from sorted(name for name in names if not name.startswith("."))


def load_private_key(pem: str | bytes, passphrase: str | None = None) -> EccKey:
    """Load an ed25519 private key from PKCS#8 PEM.

    Raises:
        BadData: not such a key, or encrypted with another passphrase.
    """
    from Crypto.PublicKey import ECC  # Deferred: takes 50 ms, and few commands need it.

    try:
        key = ECC.import_key(pem, passphrase=passphrase)
    except (ValueError, IndexError, TypeError, UnicodeError):
        raise BadData(
            "invalid private key: not in PEM format, or encrypted with another passphrase",
            hint="use the output of `odf keys export`; use --passphrase-file for its passphrase",
        ) from None
    if not key.has_private() or key.curve.lower() != "ed25519":
        actual = "public key" if not key.has_private() else f"key of type {key.curve}"
        raise BadData(
            f"not an ed25519 private key: {actual}", hint="use the ed25519 private key of the dataset"
        )
    return key


def dataset_id_of_key(key: EccKey) -> DatasetId:
    """Return the dataset id of an ed25519 key."""
    return DatasetId(key.public_key().export_key(format="raw"))


def sign(key: EccKey, data: bytes) -> bytes:
    """Return the ed25519 signature of ``data``, 64 bytes."""
    from Crypto.Signature import eddsa

    return eddsa.new(key, "rfc8032").sign(data)


def verify_signature(dataset_id: DatasetId, data: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` is a signature of ``data`` with the key of ``dataset_id``."""
    from Crypto.Signature import eddsa

    try:
        key = eddsa.import_public_key(dataset_id.public_key)
        if (key.pointQ * 8).is_point_at_infinity():
            return False  # a point of small order: signatures can be forged
        eddsa.new(key, "rfc8032").verify(data, signature)
    except ValueError:
        return False
    return True


def create_and_store_proof(
    folder: Path, dataset_id: DatasetId, private_key_pem: str, head: Multihash, actor: str = ""
) -> OwnershipProof:
    """Create the proof for ``head`` and store it.

    Raises:
        NotFound: the key does not belong to the dataset.
        BadData: the text is not an ed25519 private key, or the actor is invalid.
        OSError: the proof cannot be written.
    """
    proof = create_proof(private_key_pem, head, actor)
    if proof.dataset_id != dataset_id:
        raise NotFound(f"private key of {dataset_id} not found: its file contains another key")
    store_proof(folder, proof)
    return proof
