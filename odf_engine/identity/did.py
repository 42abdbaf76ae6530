"""Dataset ids (``did:odf``) and the store of their private keys. Specification: "Unique Identifiers"."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from odf_engine.base.files import fsync_folder, remove_file, remove_temporary, translate_os_errors
from odf_engine.errors import BadData, InvalidIdentity, NotFound, OdfError, disk_hint
from odf_engine.identity.multiformats import (
    ED25519_PUB,
    multibase_decode,
    multibase_encode,
    varint_decode,
    varint_encode,
)

DID_PREFIX: Final = "did:odf:"
_STAGING: Final = ".new-"  # odf fsck finds files of killed processes by this prefix


class DatasetId:
    """The identity of a dataset: an ed25519 public key.

    Equality compares keys, not the encoding of the text.

    Attributes:
        public_key: 32 bytes.
    """

    __slots__ = ("public_key",)

    public_key: bytes

    def __init__(self, public_key: bytes) -> None:
        if len(public_key) != 32:
            raise InvalidIdentity(f"invalid ed25519 public key: {len(public_key)} bytes instead of 32")
        object.__setattr__(self, "public_key", public_key)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("DatasetId is immutable")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the binary form: varint ``ed25519-pub`` and the key, 34 bytes.

        Raises:
            InvalidIdentity: another type of key, or a wrong length.
        """
        codec, at = varint_decode(data)
        if codec == 1:
            raise InvalidIdentity(
                "unsupported dataset id: it was created before Open Data Fabric 0.34",
                hint="use a dataset created with version 0.34 or later",
            )
        if codec != ED25519_PUB:
            raise InvalidIdentity(f"unknown key type 0x{codec:x} in the dataset id")
        return cls(bytes(data[at:]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``did:odf:<multibase>``. The older base58btc encoding is accepted.

        Raises:
            InvalidIdentity: the prefix is missing, or the rest is malformed.
        """
        if text[: len(DID_PREFIX)].lower() != DID_PREFIX:
            raise InvalidIdentity(f"invalid dataset id '{text}': it does not start with {DID_PREFIX}")
        return cls.from_bytes(multibase_decode(text[len(DID_PREFIX) :]))

    def __bytes__(self) -> bytes:
        return varint_encode(ED25519_PUB) + self.public_key

    def __str__(self) -> str:
        return DID_PREFIX + self.multibase

    @property
    def multibase(self) -> str:
        """The text after ``did:odf:``, which is also the name of the dataset's folder."""
        return multibase_encode(bytes(self))

    def __repr__(self) -> str:
        return f"DatasetId({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatasetId) and self.public_key == other.public_key

    def __hash__(self) -> int:
        return hash(self.public_key)

    def __reduce__(self) -> tuple[object, ...]:
        return (DatasetId, (self.public_key,))


def generate_key() -> tuple[DatasetId, str]:
    """Generate an ed25519 key pair; return the id and the private key as PKCS#8 PEM. Nothing is stored."""
    from Crypto.PublicKey import ECC  # Deferred: takes 50 ms, and only new datasets need it.

    key = ECC.generate(curve="ed25519")
    return DatasetId(key.public_key().export_key(format="raw")), key.export_key(format="PEM")


class KeyStore:
    """The private keys of a workspace, one file for each dataset, readable only by their owner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def generate(self) -> DatasetId:
        """Generate an ed25519 key pair, store its private key, and return the id."""
        dataset_id, pem = generate_key()
        self.store(dataset_id, pem)
        return dataset_id

    def store(self, dataset_id: DatasetId, pem: str) -> None:
        """Store a private key durably and atomically.

        Args:
            dataset_id: the dataset that the key belongs to.
            pem: the key as PKCS#8 PEM, not encrypted.

        Raises:
            FileExistsError: the key is already stored.
            OdfError: the key cannot be written; nothing is stored.
        """
        path = self._path(dataset_id)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        with translate_os_errors(path):
            self._write(path, pem)

    def _write(self, path: Path, pem: str) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fsync_folder(self.folder.parent)
        staged = self.folder / f"{_STAGING}{secrets.token_hex(8)}"
        try:
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(pem.rstrip("\n") + "\n")
                file.flush()
                os.fsync(file.fileno())
            staged.rename(path)
        finally:
            remove_temporary(staged)
        try:
            fsync_folder(self.folder)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def ids(self) -> Iterator[DatasetId]:
        """Yield the ids of the datasets whose private keys are stored, sorted.

        Raises:
            OdfError: the folder cannot be read.
        """
        try:
            names = sorted(os.listdir(self.folder))  # noqa: PTH208 (only names are needed)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OdfError(
                f"the private keys cannot be read: {error.strerror or error}",
                where=str(self.folder),
                hint=disk_hint(error),
            ) from error
        for name in names:
            stem, dot, extension = name.rpartition(".")
            if dot and extension == "pem":
                try:
                    yield DatasetId.parse(DID_PREFIX + stem)
                except InvalidIdentity:
                    continue

    def has_key(self, dataset_id: DatasetId) -> bool:
        """Return whether the private key is stored."""
        with translate_os_errors(self._path(dataset_id)):
            return self._path(dataset_id).is_file()

    def private_key_pem(self, dataset_id: DatasetId) -> str:
        """Return the private key as PKCS#8 PEM. Never log or print it.

        Raises:
            NotFound: the key is not stored.
            BadData: the file is not text.
            OdfError: the file cannot be read.
        """
        try:
            return self._path(dataset_id).read_text()
        except FileNotFoundError:
            raise NotFound(f"private key of {dataset_id} is not in this workspace") from None
        except UnicodeDecodeError:
            raise BadData("the private key is damaged", where=str(self._path(dataset_id))) from None
        except OSError as error:
            raise OdfError(
                f"the private key cannot be read: {error.strerror or error}",
                where=str(self._path(dataset_id)),
                hint=disk_hint(error),
            ) from error

    def delete(self, dataset_id: DatasetId) -> None:
        """Remove the private key durably, if it is stored, and the record that the dataset is an own one."""
        remove_file(self.own_path(dataset_id))
        remove_file(self._path(dataset_id))

    def own_path(self, dataset_id: DatasetId) -> Path:
        """Return the file that records that the user created a dataset, which may not exist."""
        return self.folder / f"{dataset_id.multibase}.own"

    def _path(self, dataset_id: DatasetId) -> Path:
        return self.folder / f"{dataset_id.multibase}.pem"
