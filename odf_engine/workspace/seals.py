"""Seals: they show that the user wrote a record in a workspace, and not the author of an archive.

A workspace may be unpacked from somebody else's archive. So the key of the seals is in the configuration of
the user.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from odf_engine.base.atomic_files import read_small_file, replace_text_file
from odf_engine.base.files import remove_temporary
from odf_engine.base.settings import user_folder
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId, KeyStore

_KEY_FILE: Final = "seal.key"
_KEY_BYTES: Final = 32


def seal(*parts: str) -> str:
    """Return the user's seal of some texts. The key is created when it is missing.

    Raises:
        OdfError: the key cannot be read or written.
    """
    path = user_folder() / _KEY_FILE
    try:
        return _seal_with(_read_key(path) or _create_key(path), parts)
    except OSError as error:
        raise OdfError(
            f"the key that marks your datasets cannot be written: {error.strerror or error}",
            where=str(path),
            hint="check the permissions, or set XDG_CONFIG_HOME to a folder that you can write",
        ) from error


def is_sealed(text: str, *parts: str) -> bool:
    """Return whether ``text`` is the user's seal of some texts."""
    try:
        key = _read_key(user_folder() / _KEY_FILE)
    except OSError:
        return False
    return key is not None and hmac.compare_digest(_seal_with(key, parts).encode(), text.encode())


def mark_own(keys: KeyStore, dataset_id: DatasetId) -> None:
    """Record that the user created a dataset.

    Raises:
        OdfError: the record cannot be written.
    """
    replace_text_file(keys.own_path(dataset_id), seal("own", str(dataset_id)) + "\n")


def is_marked_own(keys: KeyStore, dataset_id: DatasetId) -> bool:
    """Return whether this user created a dataset, as :func:`mark_own` has recorded."""
    try:
        text = read_small_file(keys.own_path(dataset_id)).decode("ascii", "replace")
    except OSError:
        return False
    return is_sealed(text.strip(), "own", str(dataset_id))


def _seal_with(key: bytes, parts: tuple[str, ...]) -> str:
    return hmac.digest(key, "\0".join(parts).encode(), hashlib.sha256).hex()


def _read_key(path: Path) -> bytes | None:
    try:
        key = bytes.fromhex(read_small_file(path).decode("ascii", "replace"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise OSError(0, "the file is damaged; delete it", str(path)) from None
    if len(key) != _KEY_BYTES:
        raise OSError(0, "the file is damaged; delete it", str(path))
    return key


def _create_key(path: Path) -> bytes:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}-{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process has created it
            os.link(part, path)
    finally:
        remove_temporary(part)
    key = _read_key(path)
    assert key is not None
    return key
