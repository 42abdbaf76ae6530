"""Dataset names, aliases, references and name patterns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from odf_engine.errors import InvalidIdentity
from odf_engine.identity.did import DID_PREFIX, DatasetId

_SUBDOMAIN: Final = r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_HOSTNAME: Final = re.compile(rf"{_SUBDOMAIN}(?:\.{_SUBDOMAIN})*", re.ASCII)
_PATTERN_PART: Final = r"[A-Za-z0-9%]+(?:-[A-Za-z0-9%]+)*"
_NAME_PATTERN: Final = re.compile(rf"{_PATTERN_PART}(?:\.{_PATTERN_PART})*", re.ASCII)
_URL: Final = re.compile(r"[A-Za-z0-9]+(?:\+[A-Za-z0-9]+)*://[^\n]+", re.ASCII)

_NAME_HINT: Final = "names are letters and digits, with single dots and dashes between them"


def is_valid_name(text: str) -> bool:
    """Whether ``text`` can be the name of a dataset, an account or a repository."""
    return _HOSTNAME.fullmatch(text) is not None


def _fold(name: str | None) -> str | None:
    return None if name is None else name.lower()


@dataclass(frozen=True, eq=False)
class _CaseInsensitive:
    """Equality and hash that do not see the case of names."""

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
        """Reads ``[account/]name``.

        Raises:
            InvalidIdentity: a part is no name, or there are more than two.
        """
        parts = _names(text, "a dataset alias", at_least=1, at_most=2)
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
        """Reads ``repo/[account/]name``.

        Raises:
            InvalidIdentity: a part is no name, or there are not two or three.
        """
        parts = _names(text, "a remote dataset alias", at_least=2, at_most=3)
        return cls(parts[0], parts[1] if len(parts) == 3 else None, parts[-1])

    @property
    def alias(self) -> DatasetAlias:
        """The alias without its repository."""
        return DatasetAlias(self.account, self.name)

    def __str__(self) -> str:
        return f"{self.repo}/{self.alias}"


@dataclass(frozen=True, eq=False)
class DatasetAliasAmbiguous(_CaseInsensitive):
    """``first/name``: whether ``first`` is an account or a repository, only the workspace knows."""

    first: str
    name: str

    def __str__(self) -> str:
        return f"{self.first}/{self.name}"


@dataclass(frozen=True, eq=False)
class DatasetIdRemote(_CaseInsensitive):
    """A dataset's identity within a repository: ``repo/did:odf:…``."""

    repo: str
    dataset_id: DatasetId

    def __str__(self) -> str:
        return f"{self.repo}/{self.dataset_id}"


@dataclass(frozen=True)
class DatasetUrl:
    """Where a dataset's repository layout is found, such as ``https://example.com/cities/``."""

    url: str

    def __str__(self) -> str:
        return self.url


DatasetRef = DatasetId | DatasetAlias
DatasetRefRemote = DatasetId | DatasetIdRemote | DatasetAliasRemote | DatasetUrl
DatasetRefAny = DatasetRef | DatasetRefRemote | DatasetAliasAmbiguous


def parse_ref(text: str) -> DatasetRef:
    """Reads what names a dataset of this workspace: an id or an alias.

    Raises:
        InvalidIdentity: neither of them.
    """
    if _looks_like_id(text):
        return DatasetId.parse(text)
    return DatasetAlias.parse(text)


def parse_ref_remote(text: str) -> DatasetRefRemote:
    """Reads what names a dataset elsewhere: ``[repo/]id``, ``repo/[account/]name`` or a URL.

    Raises:
        InvalidIdentity: none of them.
    """
    found = _id_or_url(text)
    return DatasetAliasRemote.parse(text) if found is None else found


def parse_ref_any(text: str, is_repo: Callable[[str], bool] | None = None) -> DatasetRefAny:
    """Reads what names a dataset here or elsewhere.

    ``x/y`` may be account and name, or repository and name: ``is_repo`` decides by ``x``; without it
    the answer is a :class:`DatasetAliasAmbiguous`.

    Raises:
        InvalidIdentity: no reference at all.
    """
    found = _id_or_url(text)
    if found is not None:
        return found
    parts = _names(text, "a dataset reference", at_least=1, at_most=3)
    if len(parts) == 1:
        return DatasetAlias(None, text)
    if len(parts) == 3:
        return DatasetAliasRemote(*parts)
    if is_repo is None:
        return DatasetAliasAmbiguous(*parts)
    return DatasetAliasRemote(parts[0], None, parts[1]) if is_repo(parts[0]) else DatasetAlias(*parts)


def parse_push_target(text: str) -> DatasetUrl | DatasetAliasRemote | str:
    """Reads where a dataset is pushed to: a URL, ``repo/[account/]name``, or a repository's name.

    Raises:
        InvalidIdentity: none of them.
    """
    if _URL.fullmatch(text):
        return DatasetUrl(text)
    return text if is_valid_name(text) else DatasetAliasRemote.parse(text)


@dataclass(frozen=True)
class DatasetPattern:
    """What chooses datasets of a workspace: an id, an alias, or ``[account/]name%pattern``.

    Attributes:
        ref: the one dataset that is meant, when there is no ``%``.
        account: the account that a pattern is limited to; None: any.
        name: the pattern that names match in full.
    """

    ref: DatasetRef | None
    account: str | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``did:odf:…``, ``[account/]name`` or ``[account/]na%me``.

        Raises:
            InvalidIdentity: none of them.
        """
        account, slash, name = text.rpartition("/")
        if "%" not in text:
            return cls(parse_ref(text))
        if (slash and not is_valid_name(account)) or not _NAME_PATTERN.fullmatch(name):
            raise InvalidIdentity(
                f"'{text}' is not a dataset pattern", hint=f"{_NAME_HINT}; % stands for any characters"
            )
        return cls(None, account if slash else None, name)

    @property
    def is_exact(self) -> bool:
        """Whether one dataset is meant, so that its absence is an error."""
        return self.ref is not None

    def matches(self, alias: DatasetAlias, dataset_id: DatasetId) -> bool:
        """Whether the dataset with this alias and id is chosen."""
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
    """Whether ``name`` as a whole matches ``pattern``, where ``%`` is any run of characters.

    Linear in both, however many ``%`` there are.
    """
    first, *rest = pattern.lower().split("%")
    name = name.lower()
    if not rest:
        return name == first
    *middle, last = rest
    if not name.startswith(first) or not name.endswith(last) or len(first) + len(last) > len(name):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _looks_like_id(text: str) -> bool:
    return text[: len(DID_PREFIX)].lower() == DID_PREFIX


def _id_or_url(text: str) -> DatasetId | DatasetIdRemote | DatasetUrl | None:
    # What starts like an id is one or is wrong: it is never tried as something else.
    if _looks_like_id(text):
        return DatasetId.parse(text)
    repo, slash, rest = text.partition("/")
    if slash and is_valid_name(repo) and _looks_like_id(rest):
        return DatasetIdRemote(repo, DatasetId.parse(rest))
    return DatasetUrl(text) if _URL.fullmatch(text) else None


def _names(text: str, what: str, *, at_least: int, at_most: int) -> list[str]:
    parts = text.split("/")
    if not at_least <= len(parts) <= at_most or not all(map(is_valid_name, parts)):
        raise InvalidIdentity(f"'{text}' is not {what}", hint=_NAME_HINT)
    return parts
