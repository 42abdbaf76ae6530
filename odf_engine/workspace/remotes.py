"""Repositories, the addresses of datasets in them, and how datasets stood to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from odf_engine.errors import AlreadyExists, BadData, InvalidIdentity, NotFound, UsageError
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.names import DatasetAliasRemote, DatasetRefRemote, DatasetUrl, is_valid_name
from odf_engine.net.urls import dataset_name_from_url, normalize_url, redact_url
from odf_engine.storage.atomic_files import file_lock, read_small, replace_text_file

"""What addresses are is :mod:`odf_engine.net.urls`; who knows remotes needs both."""

Kind = Literal["pull", "push"]
"""Whether a dataset comes from an address, or goes there."""
KINDS: Final[tuple[Kind, ...]] = ("pull", "push")


class Repo(msgspec.Struct, frozen=True):
    """A repository by its name; ``url`` ends with a slash."""

    name: str
    url: str


class RemoteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a dataset stood to a remote when that was last looked at.

    Attributes:
        url: the remote.
        relation: as ``odf_engine.sync.history.Relation`` says it.
        ours, theirs: how many blocks only the one side has.
        common: the newest block of both, as text.
        our_head, their_head: the heads that were compared, as text.
        at: when, RFC 3339.
    """

    url: str
    relation: Literal["equal", "ahead", "behind", "diverged", "new"]
    ours: int
    theirs: int
    common: str | None
    our_head: str | None
    their_head: str | None
    at: str


class DatasetRemotes(msgspec.Struct, frozen=True):
    """The addresses of one dataset, and how it stood to them.

    Attributes:
        pull: where it comes from; it is not polled or transformed here while there is one.
        push: where it goes to.
        seen: what was found when remotes were looked at, one for each URL.
    """

    pull: list[str] = []
    push: list[str] = []
    seen: list[RemoteStatus] = []

    def seen_at(self, url: str) -> RemoteStatus | None:
        """What was found last at this URL."""
        return next((each for each in self.seen if each.url == url), None)


class ResolvedUrl(NamedTuple):
    """Where something is: its URL, and the name that it has there."""

    url: str
    name: str


class Remotes:
    """Repositories and addresses of a workspace's datasets; ``odf`` is its ``.odf`` folder."""

    def __init__(self, odf: Path) -> None:
        self._odf = odf
        self._file = odf / "repositories.json"
        self._folder = odf / "remotes"
        self._lock = odf / "remotes.lock"

    # --- Repositories ---

    def repositories(self) -> list[Repo]:
        """All of them, by name.

        Raises:
            BadData: the file was changed by hand, and is damaged.
        """
        try:
            found = msgspec.json.decode(read_small(self._file), type=list[Repo])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            hint = "repair or remove the file; repositories can be added again"
            raise BadData(
                f"the repositories cannot be read: {error}", where=str(self._file), hint=hint
            ) from None
        return sorted(found, key=lambda repo: repo.name.lower())

    def repository(self, name: str) -> Repo:
        """The one of this name; NotFound when there is none."""
        for repo in self.repositories():
            if repo.name.lower() == name.lower():
                return repo
        names = ", ".join(repo.name for repo in self.repositories())
        hint = f"there are: {names}" if names else "add it first: odf repo add NAME URL"
        raise NotFound(f"there is no repository '{name}'", hint=hint)

    def is_repository(self, name: str) -> bool:
        """Whether there is one of this name."""
        return any(repo.name.lower() == name.lower() for repo in self.repositories())

    def add(self, name: str, url: str) -> Repo:
        """Remembers a repository.

        Raises:
            UsageError: the name is none, or the URL is none that is known.
            AlreadyExists: there is one of this name.
        """
        if not is_valid_name(name):
            raise UsageError(
                f"'{name}' cannot be the name of a repository", hint="letters, digits, dots, dashes"
            )
        repo = Repo(name, normalize_url(url))
        with file_lock(self._lock):
            if self.is_repository(name):
                raise AlreadyExists(f"there is a repository '{name}' already", hint=f"odf repo remove {name}")
            self._write([*self.repositories(), repo])
        return repo

    def remove(self, name: str) -> Repo:
        """Forgets a repository; datasets keep their addresses. NotFound when there is none."""
        with file_lock(self._lock):
            gone = self.repository(name)
            self._write([repo for repo in self.repositories() if repo != gone])
        return gone

    def _write(self, repos: list[Repo]) -> None:
        replace_text_file(self._file, msgspec.json.encode(repos).decode())

    # --- Datasets ---

    def of(self, dataset: DatasetId) -> DatasetRemotes:
        """What is known of a dataset's remotes; what is damaged counts as not known.

        Raises:
            BadData: the file cannot be read.
        """
        try:
            return msgspec.json.decode(read_small(self._path(dataset)), type=DatasetRemotes)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return DatasetRemotes()
        except OSError as error:  # it may be readable later: what is known must not be lost
            problem = f"what is known of its remotes cannot be read: {error.strerror}"
            raise BadData(problem, where=str(self._path(dataset))) from None

    def record_status(self, dataset: DatasetId, seen: RemoteStatus, kind: Kind | None = None) -> None:
        """Remembers how a dataset stands to a remote; with ``kind`` also that it comes from or goes there."""
        with file_lock(self._lock):
            known = self.of(dataset)
            if kind is not None:
                known = _with_address(known, seen.url, kind)
            rest = [each for each in known.seen if each.url != seen.url]
            self.set(dataset, msgspec.structs.replace(known, seen=[*rest, seen]))

    def attach(self, dataset: DatasetId, url: str, kind: Kind) -> None:
        """Remembers that a dataset comes from an address, or goes there."""
        with file_lock(self._lock):
            self.set(dataset, _with_address(self.of(dataset), url, kind))

    def detach(self, dataset: DatasetId, url: str, kinds: tuple[Kind, ...] = KINDS) -> list[Kind]:
        """Forgets an address of a dataset; as what it was known."""
        with file_lock(self._lock):
            known = self.of(dataset)
            was: list[Kind] = [kind for kind in kinds if url in getattr(known, kind)]
            for kind in was:
                rest = [each for each in getattr(known, kind) if each != url]
                known = msgspec.structs.replace(known, **{kind: rest})
            if url not in (*known.pull, *known.push):
                rest = [each for each in known.seen if each.url != url]
                known = msgspec.structs.replace(known, seen=rest)
            if was:
                self.set(dataset, known)
        return was

    def forget(self, dataset: DatasetId) -> None:
        """Forgets all of a dataset."""
        with file_lock(self._lock):
            self._path(dataset).unlink(missing_ok=True)

    def find_by_url(self, url: str) -> DatasetId | None:
        """The dataset that comes from an address, else one that goes there."""
        known = [(dataset, self.of(dataset)) for dataset in self._known()]
        for kind in KINDS:
            for dataset, remotes in known:
                if url in getattr(remotes, kind):
                    return dataset
        return None

    def _known(self) -> Iterator[DatasetId]:
        for path in sorted(self._folder.glob("[!.]*.json")):
            try:
                yield DatasetId.parse(DID_PREFIX + path.stem)
            except InvalidIdentity:
                continue

    def set(self, dataset: DatasetId, remotes: DatasetRemotes) -> None:
        """Remembers it instead of what was known; :meth:`attach` and others change a part of it safely."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        replace_text_file(self._path(dataset), msgspec.json.encode(remotes).decode())

    def _path(self, dataset: DatasetId) -> Path:
        return self._folder / f"{dataset.multibase}.json"

    # --- Names ---

    def locate(self, ref: DatasetRefRemote) -> ResolvedUrl:
        """The address that a person means.

        Raises:
            NotFound: there is no such repository.
            UsageError: by id alone nothing can be found; a URL that is not known.
        """
        if isinstance(ref, DatasetUrl):
            url = normalize_url(ref.url)
            return ResolvedUrl(url, dataset_name_from_url(url))
        if isinstance(ref, DatasetAliasRemote):
            repo = self.repository(ref.repo)
            return ResolvedUrl(f"{repo.url}{quote(str(ref.alias))}/", ref.name)
        raise UsageError(f"{ref}: elsewhere a dataset is found by name", hint="REPO/NAME, or its URL")

    def display_name(self, url: str) -> str:
        """How a URL is called: ``repo/name`` where a repository has it, else the URL without a login."""
        return label_among(self.repositories(), url)


def label_among(repositories: Sequence[Repo], url: str) -> str:
    """How a URL is called, see :meth:`Remotes.label`: for who has many of them."""
    for repo in sorted(repositories, key=lambda repo: -len(repo.url)):
        if url.startswith(repo.url) and (rest := unquote(url[len(repo.url) :].strip("/"))):
            return f"{repo.name}/{rest}"
    return redact_url(url)


def _with_address(known: DatasetRemotes, url: str, kind: Kind) -> DatasetRemotes:
    urls: list[str] = getattr(known, kind)
    return known if url in urls else msgspec.structs.replace(known, **{kind: [*urls, url]})
