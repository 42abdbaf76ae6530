"""Dataset names, aliases, references and name patterns. Specification: "Aliases and References"."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self
from unicodedata import normalize

from odf_engine.errors import InvalidIdentity
from odf_engine.identity.did import DID_PREFIX, DatasetId

_SUBDOMAIN: Final = r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_HOSTNAME: Final = re.compile(rf"{_SUBDOMAIN}(?:\.{_SUBDOMAIN})*", re.ASCII)
_PATTERN_PART: Final = r"[A-Za-z0-9%]+(?:-[A-Za-z0-9%]+)*"
_NAME_PATTERN: Final = re.compile(rf"{_PATTERN_PART}(?:\.{_PATTERN_PART})*", re.ASCII)
_URL: Final = re.compile(r"[A-Za-z0-9]+(?:\+[A-Za-z0-9]+)*://[^\n]+", re.ASCII)

_NAME_HINT: Final = "names consist of letters and digits, separated by a single `-` or `.`"


def is_valid_name(text: str) -> bool:
    """Return whether ``text`` is a valid name of a dataset, an account or a repository."""
    return _HOSTNAME.fullmatch(text) is not None


def _fold(name: str | None) -> str | None:
    return None if name is None else name.lower()


@dataclass(frozen=True, eq=False)
class _CaseInsensitive:
    """Base class with equality and hash that ignore the case of names."""

    def _key(self) -> tuple[object, ...]:
        return tuple(_fold(value) if isinstance(value, str) else value for value in vars(self).values())

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, eq=False)
class DatasetAlias(_CaseInsensitive):
    """A dataset's name within a workspace: ``name`` or ``account/name``."""

    account: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``[account/]name``.

        Raises:
            InvalidIdentity: a part is not a valid name, or there are more than two.
        """
        parts = _split_names(text, "dataset alias", at_least=1, at_most=2)
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])

    def __str__(self) -> str:
        return self.name if self.account is None else f"{self.account}/{self.name}"


@dataclass(frozen=True, eq=False)
class DatasetAliasRemote(_CaseInsensitive):
    """A dataset's name within a repository: ``repo/name`` or ``repo/account/name``."""

    repo: str
    account: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``repo/[account/]name``.

        Raises:
            InvalidIdentity: a part is not a valid name, or there are not two or three.
        """
        parts = _split_names(text, "remote dataset alias", at_least=2, at_most=3)
        return cls(parts[0], parts[1] if len(parts) == 3 else None, parts[-1])

    @property
    def alias(self) -> DatasetAlias:
        """The alias without the repository."""
        return DatasetAlias(self.account, self.name)

    def __str__(self) -> str:
        return f"{self.repo}/{self.alias}"


@dataclass(frozen=True, eq=False)
class DatasetAliasAmbiguous(_CaseInsensitive):
    """``first/name``, where ``first`` is an account or a repository. Only the workspace can resolve it."""

    first: str
    name: str

    def __str__(self) -> str:
        return f"{self.first}/{self.name}"


@dataclass(frozen=True, eq=False)
class DatasetIdRemote(_CaseInsensitive):
    """A dataset's id within a repository: ``repo/did:odf:…``."""

    repo: str
    dataset_id: DatasetId

    def __str__(self) -> str:
        return f"{self.repo}/{self.dataset_id}"


@dataclass(frozen=True)
class DatasetUrl:
    """The URL of a dataset's repository layout, such as ``https://example.com/cities/``."""

    url: str

    def __str__(self) -> str:
        return self.url


DatasetRef = DatasetId | DatasetAlias
DatasetRefRemote = DatasetId | DatasetIdRemote | DatasetAliasRemote | DatasetUrl
DatasetRefAny = DatasetRef | DatasetRefRemote | DatasetAliasAmbiguous


def parse_ref(text: str) -> DatasetRef:
    """Parse a reference to a dataset of this workspace: an id or an alias.

    Raises:
        InvalidIdentity: it is neither.
    """
    if _has_id_prefix(text):
        return DatasetId.parse(text)
    return DatasetAlias.parse(text)


def parse_ref_remote(text: str) -> DatasetRefRemote:
    """Parse a reference to a remote dataset: ``[repo/]id``, ``repo/[account/]name`` or a URL.

    Raises:
        InvalidIdentity: it is something else.
    """
    ref = _parse_id_or_url(text)
    return DatasetAliasRemote.parse(text) if ref is None else ref


def parse_ref_any(text: str, is_repo: Callable[[str], bool] | None = None) -> DatasetRefAny:
    """Parse a reference to a local or remote dataset.

    ``x/y`` may be an account and a name, or a repository and a name. ``is_repo`` decides by ``x``. Without
    it, the result is a :class:`DatasetAliasAmbiguous`.

    Raises:
        InvalidIdentity: not a valid reference.
    """
    ref = _parse_id_or_url(text)
    if ref is not None:
        return ref
    parts = _split_names(text, "dataset reference", at_least=1, at_most=3)
    if len(parts) == 1:
        return DatasetAlias(None, text)
    if len(parts) == 3:
        return DatasetAliasRemote(*parts)
    if is_repo is None:
        return DatasetAliasAmbiguous(*parts)
    return DatasetAliasRemote(parts[0], None, parts[1]) if is_repo(parts[0]) else DatasetAlias(*parts)


@dataclass(frozen=True)
class DatasetPattern:
    """A pattern that selects datasets of a workspace: an id, an alias, or ``[account/]name%pattern``.

    Attributes:
        ref: the one selected dataset, if there is no ``%``.
        account: the account that the pattern is limited to; None: any.
        name: the pattern that names must match in full.
    """

    ref: DatasetRef | None
    account: str | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``did:odf:…``, ``[account/]name`` or ``[account/]na%me``.

        Raises:
            InvalidIdentity: it is something else.
        """
        account, slash, name = text.rpartition("/")
        if "%" not in text:
            return cls(parse_ref(text))
        if (slash and not is_valid_name(account)) or not _NAME_PATTERN.fullmatch(name):
            raise InvalidIdentity(
                f"invalid dataset pattern '{text}'", hint=f"{_NAME_HINT}; % matches any characters"
            )
        return cls(None, account if slash else None, name)

    def matches(self, alias: DatasetAlias, dataset_id: DatasetId) -> bool:
        """Return whether the pattern selects the dataset with this alias and id."""
        if isinstance(self.ref, DatasetId):
            return self.ref == dataset_id
        if self.ref is not None:
            return self.ref == alias
        if self.account is not None and _fold(self.account) != _fold(alias.account):
            return False
        return matches_pattern(self.name, alias.name)

    def __str__(self) -> str:
        if self.ref is not None:
            return str(self.ref)
        return self.name if self.account is None else f"{self.account}/{self.name}"


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether ``name`` matches ``pattern`` in full, without case; ``%`` is any sequence of characters.

    The time is linear in both, for any number of ``%``.
    """
    first, *rest = pattern.lower().split("%")
    name = name.lower()
    if not rest:
        return name == first
    *middle, last = rest
    if not name.startswith(first) or not name.endswith(last) or len(first) + len(last) > len(name):
        return False
    start, end = len(first), len(name) - len(last)
    for part in middle:
        index = name.find(part, start, end)
        if index < 0:
            return False
        start = index + len(part)
    return True


def _has_id_prefix(text: str) -> bool:
    return text[: len(DID_PREFIX)].lower() == DID_PREFIX


def _parse_id_or_url(text: str) -> DatasetId | DatasetIdRemote | DatasetUrl | None:
    # A text with the prefix of an id is an id or invalid, never an alias.
    if _has_id_prefix(text):
        return DatasetId.parse(text)
    repo, slash, rest = text.partition("/")
    if slash and is_valid_name(repo) and _has_id_prefix(rest):
        return DatasetIdRemote(repo, DatasetId.parse(rest))
    return DatasetUrl(text) if _URL.fullmatch(text) else None


def _split_names(text: str, expected: str, *, at_least: int, at_most: int) -> list[str]:
    parts = text.split("/")
    if not at_least <= len(parts) <= at_most or not all(map(is_valid_name, parts)):
        close = "/".join(map(_closest_name, parts))
        raise InvalidIdentity(
            f"invalid {expected} '{text}'",
            hint=_NAME_HINT
            + (f", for example {close}" if len(parts) <= at_most and all(close.split("/")) else ""),
        )
    return parts


def _closest_name(text: str) -> str:
    """Return a valid name that is similar to ``text``, or ""."""
    letters = normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9.]+", "-", letters)
    return re.sub(r"-*\.[-.]*", ".", name).strip("-.")
