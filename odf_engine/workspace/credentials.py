"""What opens other places: one entry an origin, beside the private keys, readable by its owner alone.

Nothing of it is ever printed, logged, or sent to another origin than that it was given for.
"""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import msgspec

from odf_engine.errors import BadData
from odf_engine.workspace.remotes import origin_of
from odf_engine.workspace.small_files import write_text


class Login(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bearer token, or user and password; for S3 the access key and its secret (and a session's token)."""

    user: str = ""
    secret: str = ""
    token: str = ""

    @property
    def header(self) -> str:
        """What goes into ``Authorization``."""
        if self.token and not self.user:
            return f"Bearer {self.token}"
        return "Basic " + b64encode(f"{self.user}:{self.secret}".encode()).decode()

    def __repr__(self) -> str:
        return "Login(…)"


class Credentials:
    """The logins of a workspace; ``odf`` is its ``.odf`` folder."""

    def __init__(self, odf: Path) -> None:
        self._path = odf / "keys" / "logins.json"

    def of(self, url: str) -> Login | None:
        """What is kept for the origin of a URL."""
        return self._read().get(origin_of(url))

    def origins(self) -> list[str]:
        """For which origins there is something."""
        return sorted(self._read())

    def set(self, url: str, login: Login) -> str:
        """Keeps a login; returns the origin that it is for."""
        origin = origin_of(url)
        self._write({**self._read(), origin: login})
        return origin

    def forget(self, url: str) -> bool:
        """Forgets the login of an origin; whether there was one."""
        known = self._read()
        was = known.pop(origin_of(url), None)
        if was is not None:
            self._write(known)
        return was is not None

    def _read(self) -> dict[str, Login]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Login])
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, UnicodeDecodeError):  # whose own words might quote what it holds
            hint = "remove the file, and log in again: odf repo login URL"
            raise BadData("the logins cannot be read", where=str(self._path), hint=hint) from None

    def _write(self, logins: dict[str, Login]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(self._path, msgspec.json.encode(logins).decode())
