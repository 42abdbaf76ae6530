"""Access tokens for pushing to this workspace, and for querying it."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from odf_engine.base.atomic_files import replace_text_file, write_error
from odf_engine.base.files import open_no_follow
from odf_engine.errors import AlreadyExists, BadData, NotFound, OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias, DatasetPattern, is_valid_name

_PREFIX: Final = "odf_"
_MAX_CHARACTERS: Final = 128
_USE_PRECISION: Final = timedelta(minutes=1)
ALL_DATASETS: Final = "%"


class AccessToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored token, without its text.

    Attributes:
        name: name of the token.
        hash: SHA-256 of its text, in base16.
        datasets: patterns of the datasets that it permits to push and to query.
        created, expires, last_used: in UTC; ``last_used`` is accurate to a minute.
    """

    name: str
    hash: str
    datasets: tuple[str, ...]
    created: datetime
    expires: datetime | None = None
    last_used: datetime | None = None

    @property
    def has_expired(self) -> bool:
        """Whether the token has expired."""
        return self.expires is not None and self.expires <= _now()

    def permits(self, alias: DatasetAlias, dataset_id: DatasetId | None) -> bool:
        """Return whether the token permits pushing and querying a dataset; without an id, by name."""
        for text in self.datasets:
            pattern = DatasetPattern.parse(text)
            if isinstance(pattern.ref, DatasetId):
                if pattern.ref == dataset_id:
                    return True
            elif _matches_name(pattern, alias):
                return True
        return False

    @property
    def has_id_patterns(self) -> bool:
        """Whether a pattern is an id, so that a name alone is not sufficient."""
        return any(isinstance(DatasetPattern.parse(text).ref, DatasetId) for text in self.datasets)

    def __repr__(self) -> str:
        return f"Token({self.name})"


def _matches_name(pattern: DatasetPattern, alias: DatasetAlias) -> bool:
    return pattern.matches(alias, _NO_DATASET)


_NO_DATASET: Final = DatasetId(bytes(32))


class Tokens:
    """The tokens of a workspace; ``odf`` is its ``.odf`` folder. Process-safe."""

    def __init__(self, odf: Path) -> None:
        self._path = odf / "keys" / "push-tokens.json"
        self._read_at: tuple[int, int, int] | None = None
        self._read: list[AccessToken] = []

    def list_tokens(self) -> list[AccessToken]:
        """Return all tokens, including expired ones, sorted by name.

        Raises:
            BadData: the file is damaged.
        """
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if version != self._read_at:
                self._read = msgspec.json.decode(self._path.read_bytes(), type=list[AccessToken])
                self._read_at = version
        except FileNotFoundError:
            self._read, self._read_at = [], None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            hint = "remove the file and create new tokens: odf keys token new NAME"
            raise BadData("the tokens cannot be read", where=str(self._path), hint=hint) from None
        return sorted(self._read, key=lambda token: token.name.lower())

    def create(
        self, name: str, datasets: Sequence[str] = (ALL_DATASETS,), days: float | None = None
    ) -> tuple[AccessToken, str]:
        """Create a token; return it with its text, which is not stored.

        Args:
            name: name of the token.
            datasets: patterns of the datasets that it permits to push and to query.
            days: lifetime in days; None: until it is revoked.

        Raises:
            UsageError: an invalid name or lifetime.
            InvalidIdentity: an invalid pattern.
            AlreadyExists: there is a token with this name.
        """
        if not is_valid_name(name):
            raise UsageError(f"invalid token name '{name}'", hint="use letters, digits, dots and dashes")
        for text in datasets:
            DatasetPattern.parse(text)
        text = _PREFIX + secrets.token_urlsafe(32)
        now = _now()
        try:
            expires = None if days is None else now + timedelta(days=days)
        except (OverflowError, ValueError):
            raise UsageError(f"invalid lifetime: {days:g} days") from None
        if expires is not None and expires <= now:
            raise UsageError("the lifetime of a token must be positive", hint="use --days 30, for example")
        token = AccessToken(
            name=name, hash=_hash(text), datasets=tuple(datasets), created=now, expires=expires
        )
        with self._edit() as tokens:
            if any(other.name.lower() == name.lower() for other in tokens):
                raise AlreadyExists(
                    f"token '{name}' already exists",
                    hint=f"choose another name, or run: odf keys token revoke {name}",
                )
            tokens.append(token)
        return token, text

    def revoke(self, name: str) -> AccessToken:
        """Remove a token and return it. Raise NotFound if it does not exist."""
        with self._edit() as tokens:
            for token in tokens:
                if token.name.lower() == name.lower():
                    tokens.remove(token)
                    return token
        names = ", ".join(token.name for token in self.list_tokens())
        raise NotFound(
            f"token '{name}' not found", hint=f"use one of: {names}" if names else "odf keys token new NAME"
        )

    def find(self, text: str) -> AccessToken | None:
        """Return the token with this text, or None if it is unknown, revoked or expired."""
        if len(text) > _MAX_CHARACTERS:
            return None
        text_hash, match = _hash(text), None
        for token in self.list_tokens():  # always compare all, so that the time does not reveal a match
            if hmac.compare_digest(text_hash, token.hash):
                match = token
        return None if match is None or match.has_expired else match

    def record_use(self, token: AccessToken) -> None:
        """Record the use of a token; never raises."""
        now = _now()
        if token.last_used is not None and now - token.last_used < _USE_PRECISION:
            return
        with suppress(OdfError), self._edit() as tokens:
            for at, other in enumerate(tokens):
                if other.hash == token.hash:
                    tokens[at] = msgspec.structs.replace(other, last_used=now)

    @contextmanager
    def _edit(self) -> Iterator[list[AccessToken]]:
        """Yield the tokens for a change under a lock, and store them afterwards."""
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = open_no_follow(folder / ".push-tokens.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise write_error(self._path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            tokens = self.list_tokens()
            before = list(tokens)
            yield tokens
            if tokens != before:
                replace_text_file(self._path, msgspec.json.encode(tokens).decode())
        finally:
            os.close(descriptor)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _now() -> datetime:
    return datetime.now(UTC)
