"""Downloads by signed URLs, which need neither credentials nor the client of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Final
from uuid import uuid4

from odf_engine.base.files import remove_temporary
from odf_engine.base.progress import Reporter
from odf_engine.identity.multiformats import Multihash, new_hasher
from odf_engine.storage.object_store import STAGING_PREFIX

VALIDITY: Final = timedelta(hours=6)
"""Lifetime of the URLs."""
_TIMEOUT_SECONDS: Final = 60.0
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class SignedDownload:
    """A download of an object that an executor of a cluster can run.

    Attributes:
        url: the signed URL.
        path: the target, in an existing folder. Its name is the hash of the object.
        size: the size of the object in bytes.
    """

    url: str
    path: Path
    size: int

    def run(self) -> bool:
        """Download the object; return whether it is complete and its bytes match its hash.

        Errors do not raise: the caller downloads the object by itself.
        """
        import urllib.request  # deferred: only executors need it

        expected = Multihash.parse(self.path.name)
        hasher = new_hasher(expected.code)
        part = self.path.with_name(f"{STAGING_PREFIX}{uuid4().hex[:16]}")
        try:
            with urllib.request.urlopen(self.url, timeout=_TIMEOUT_SECONDS) as body, part.open("xb") as file:
                while piece := body.read(_PIECE_BYTES):
                    hasher.update(piece)
                    file.write(piece)
            if hasher.digest() != expected.digest:
                return False
            part.replace(self.path)
        except (OSError, HTTPException):
            return False
        finally:
            remove_temporary(part)
        return True


RunDownloads = Callable[[Sequence[SignedDownload], Reporter], None]
"""Runs downloads on other machines, which share the folder. Some of them may fail."""
