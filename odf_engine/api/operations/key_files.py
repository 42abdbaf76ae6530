"""Private keys of datasets: export to PEM files, import from them, deletion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from odf_engine.base.files import translate_os_errors
from odf_engine.errors import AlreadyExists, BadData, OdfError
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.did import DatasetId
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

MAX_PEM: Final = 1 << 16
_PROTECTION: Final = "scryptAndAES256-CBC"
_ITERATIONS: Final = 1 << 14  # 16 MB of memory: half of the limit of openssl


class PrivateKey(NamedTuple):
    """A private key in the workspace.

    Attributes:
        name: the name of its dataset, or "" if the dataset is not in the workspace.
        own: whether the sources of the dataset run without trust because of the key.
    """

    id: DatasetId
    name: str
    own: bool


def list_private_keys(workspace: Workspace) -> list[PrivateKey]:
    """Return the private keys in the workspace, its datasets' first, by name."""
    entries = {entry.id: entry for entry in workspace.datasets()}
    trust = Trust(workspace)
    private_keys: list[PrivateKey] = []
    for key_id in workspace.keys.ids():
        entry = entries.get(key_id)
        is_own = entry is not None and trust.is_own(entry)
        private_keys.append(PrivateKey(key_id, "" if entry is None else str(entry.alias), is_own))
    return sorted(private_keys, key=lambda key: (not key.name, key.name.lower(), str(key.id)))


def export_private_key(workspace: Workspace, dataset: DatasetId, label: str, passphrase: str | None) -> str:
    """Return the private key of a dataset as PKCS#8 PEM, encrypted if there is a passphrase.

    Raises:
        NotFound: the key is not in the workspace.
        BadData: the stored file contains another key.
    """
    pem = workspace.keys.private_key_pem(dataset)
    key = proofs.load_private_key(pem)
    if proofs.dataset_id_of_key(key) != dataset:
        raise BadData(f"the key file of {label} contains another key", hint="run odf fsck")
    if passphrase is not None:
        parameters: Any = {"iteration_count": _ITERATIONS, "block_size": 8, "parallelization": 1}
        pem = key.export_key(
            format="PEM", passphrase=passphrase, protection=_PROTECTION, prot_params=parameters
        )
    return pem.rstrip("\n") + "\n"


def write_secret_file(path: Path, text: str) -> None:
    """Write a new file that only its owner can read.

    Raises:
        AlreadyExists: the file exists.
        OSError: the file cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyExists(f"{path} already exists", hint="use another name") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def parse_private_key(data: bytes | str, passphrase: str | None) -> tuple[DatasetId, str]:
    """Return the id of the dataset and the decrypted key of a PEM file.

    Raises:
        BadData: it is no ed25519 private key, or encrypted with another passphrase.
    """
    key = proofs.load_private_key(data, passphrase)
    return proofs.dataset_id_of_key(key), key.export_key(format="PEM")


def store_private_key(workspace: Workspace, dataset: DatasetId, pem: str) -> Literal["known", "imported"]:
    """Store a private key in the workspace. A damaged file of the same key is replaced."""
    try:
        workspace.keys.store(dataset, pem)
    except FileExistsError:
        if _is_key_of(workspace, dataset):
            return "known"
        workspace.keys.delete(dataset)  # a damaged file
        workspace.keys.store(dataset, pem)
    return "imported"


def _is_key_of(workspace: Workspace, dataset: DatasetId) -> bool:
    try:
        return (
            proofs.dataset_id_of_key(proofs.load_private_key(workspace.keys.private_key_pem(dataset)))
            == dataset
        )
    except BadData:  # damaged; an unreadable file may be intact, and is not replaced
        return False


def export_to_file(
    workspace: Workspace, dataset: DatasetId, label: str, path: Path, passphrase: str | None
) -> None:
    """Export the private key of a dataset to a new file, readable by its owner only.

    Raises:
        AlreadyExists: the file exists.
        OdfError: the key cannot be read, or the file cannot be written.
    """
    text = export_private_key(workspace, dataset, label, passphrase)
    with translate_os_errors(path):
        write_secret_file(path, text)


def import_from_file(
    workspace: Workspace, path: Path, passphrase: str | None
) -> tuple[DatasetId, Literal["known", "imported"]]:
    """Import a private key from a PEM file.

    Returns:
        The id of its dataset, and whether the key was new.

    Raises:
        OdfError: the file cannot be read, or contains no such key.
    """
    with translate_os_errors(path), path.open("rb") as file:
        data = file.read(MAX_PEM + 1)
    if len(data) > MAX_PEM:
        raise BadData("too large for a private key", where=str(path))
    try:
        dataset, pem = parse_private_key(data, passphrase)
    except OdfError as error:
        hint = "enter the passphrase of the file" if b"ENCRYPTED" in data else error.hint
        raise BadData(error.message, hint=hint, where=str(path)) from None
    return dataset, store_private_key(workspace, dataset, pem)
