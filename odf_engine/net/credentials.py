"""Logins for each origin, stored in a file that only its owner can read."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from odf_engine.base.atomic_files import file_lock, replace_text_file
from odf_engine.base.config import Config
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, UsageError
from odf_engine.net.urls import origin_of


class Login(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bearer token, or user and password.

    For S3: access key, secret, and session token, if any. For Azure: storage account and its key or shared
    access signature. For Google: a token, or the key of a service account as JSON.
    """

    user: str = ""
    secret: str = ""
    token: str = ""

    @property
    def header(self) -> str:
        """The value of the ``Authorization`` header."""
        if self.token and not self.user:
            return f"Bearer {self.token}"
        return "Basic " + b64encode(f"{self.user}:{self.secret}".encode()).decode()

    def __repr__(self) -> str:
        return "Login(…)"


_SECRET: Final = "alert:"
"""Start of the keys of secrets of alerts, which are stored with the logins."""
_VALUE: Final = "value:"
"""Start of the keys of values of sources, see :meth:`Credentials.value`."""


class Credentials:
    """The logins of a workspace, the secrets of its alerts, and the values of its sources."""

    def __init__(self, odf: Path) -> None:
        self._path = odf / "keys" / "logins.json"

    def of(self, url: str) -> Login | None:
        """Return the login for the origin of a URL, or None if absent."""
        return self._read().get(origin_of(url))

    def origins(self) -> list[str]:
        """Return the origins that have a login, sorted."""
        return sorted(name for name in self._read() if not name.startswith((_SECRET, _VALUE)))

    def value(self, reference: str) -> str | None:
        """Return a value of a set for a reference such as ``SecretSet:keys#token``, or None if absent."""
        stored = self._read().get(_VALUE + reference)
        return None if stored is None else stored.secret

    def set_values(self, prefix: str, values: Mapping[str, str]) -> None:
        """Store the values of a set, such as ``SecretSet:keys#``, in place of all earlier ones."""
        with self._held():
            prefix = _VALUE + prefix
            known = {key: item for key, item in self._read().items() if not key.startswith(prefix)}
            self._write(known | {prefix + name: Login(secret=value) for name, value in values.items()})

    def alert_secret(self, alert: str) -> str | None:
        """Return the secret that signs the requests of an alert, or None if absent."""
        credentials = self._read().get(_SECRET + alert)
        return None if credentials is None else credentials.secret

    def set_alert_secret(self, alert: str, secret: str | None) -> None:
        """Store the secret that signs the requests of an alert; None deletes it."""
        with self._held():
            known = self._read()
            if known.pop(_SECRET + alert, None) is None and secret is None:
                return
            self._write(known if secret is None else {**known, _SECRET + alert: Login(secret=secret)})

    def set(self, url: str, login: Login) -> str:
        """Store a login; return its origin.

        Raises:
            UsageError: it has characters that no header can have, such as a line break.
        """
        if not all(text.isprintable() for text in (login.user, login.secret, login.token)):
            raise UsageError("invalid login: it contains control characters")
        if ":" in login.user:
            raise UsageError("invalid user name: it contains a colon")
        origin = origin_of(url)
        with self._held():
            self._write({**self._read(), origin: login})
        return origin

    def forget(self, url: str) -> bool:
        """Delete the login of an origin; return whether there was one."""
        with self._held():
            known = self._read()
            was = known.pop(origin_of(url), None)
            if was is not None:
                self._write(known)
        return was is not None

    def _held(self) -> AbstractContextManager[None]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return file_lock(self._path.with_name("logins.lock"))

    def _read(self) -> dict[str, Login]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Login])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # The messages of these errors may quote the content of the file.
            hint = "remove the file and run odf repo login URL"
            raise BadData("the stored logins cannot be read", where=str(self._path), hint=hint) from None

    def _write(self, logins: dict[str, Login]) -> None:
        replace_text_file(self._path, msgspec.json.encode(logins).decode())


class RemoteAccess(NamedTuple):
    """Parameters for access to remotes. The cancellation of ``reporter`` ends it."""

    config: Config
    credentials: Credentials
    reporter: Reporter
