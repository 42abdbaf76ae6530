"""Repositories, the addresses of datasets in them, and the status of datasets relative to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from odf_engine.errors import AlreadyExists, BadData, InvalidIdentity, NotFound, UsageError, disk_hint
from odf_engine.files import remove_file, translate_os_errors
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.names import DatasetAliasRemote, DatasetRefRemote, DatasetUrl, is_valid_name
from odf_engine.net.urls import dataset_name_from_url, normalize_url, redact_url
from odf_engine.storage.atomic_files import file_lock, make_folder, read_small_file, replace_text_file

Kind = Literal["pull", "push"]
"""Whether a dataset is pulled from an address, or pushed to it."""
KINDS: Final[tuple[Kind, ...]] = ("pull", "push")


class Repo(msgspec.Struct, frozen=True):
    """A repository with its name; ``url`` ends with a slash."""

    name: str
    url: str


class RemoteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last known status of a dataset relative to a remote.

    Attributes:
        url: the remote.
        relation: as in ``odf_engine.sync.history.Relation``.
        ours, theirs: number of blocks that only this side or only the remote has.
        common: hash of the newest common block.
        our_head, their_head: hashes of the compared heads.
        at: time of the comparison, RFC 3339.
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
    """The addresses of one dataset, and its status relative to them.

    Attributes:
        pull: addresses that it is pulled from. A dataset with one is not polled or transformed here.
        push: addresses that it is pushed to.
        seen: the last known status, one for each URL.
    """

    pull: list[str] = []
    push: list[str] = []
    seen: list[RemoteStatus] = []

    def find_status(self, url: str) -> RemoteStatus | None:
        """Return the last known status relative to this URL, or None."""
        return next((each for each in self.seen if each.url == url), None)


class ResolvedUrl(NamedTuple):
    """The URL of a remote dataset, and its name there."""

    url: str
    name: str


class Remotes:
    """Repositories and remote addresses of a workspace's datasets; ``odf`` is its ``.odf`` folder."""

    def __init__(self, odf: Path) -> None:
        self._odf = odf
        self._file = odf / "repositories.json"
        self._folder = odf / "remotes"
        self._lock = odf / "remotes.lock"

    # --- Repositories ---

    def repositories(self) -> list[Repo]:
        """Return all repositories, sorted by name.

        Raises:
            BadData: the file is damaged.
        """
        try:
            repositories = msgspec.json.decode(read_small_file(self._file), type=list[Repo])
        except FileNotFoundError:
            return []
        except OSError as error:
            problem = f"the repositories cannot be read: {error.strerror or error}"
            raise BadData(problem, where=str(self._file), hint=disk_hint(error)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            hint = "repair or remove the file; repositories can be added again"
            raise BadData(
                f"the repositories cannot be read: {error}", where=str(self._file), hint=hint
            ) from None
        return sorted(repositories, key=lambda repo: repo.name.lower())

    def repository(self, name: str) -> Repo:
        """Return the repository with this name; raise NotFound if there is none."""
        for repo in self.repositories():
            if repo.name.lower() == name.lower():
                return repo
        names = ", ".join(repo.name for repo in self.repositories())
        hint = f"use one of: {names}" if names else "add it first: odf repo add NAME URL"
        raise NotFound(f"repository '{name}' not found", hint=hint)

    def is_repository(self, name: str) -> bool:
        """Return whether there is a repository with this name."""
        return any(repo.name.lower() == name.lower() for repo in self.repositories())

    def add(self, name: str, url: str) -> Repo:
        """Add a repository.

        Raises:
            UsageError: an invalid name, or an unsupported URL.
            AlreadyExists: there is a repository with this name.
        """
        if not is_valid_name(name):
            raise UsageError(f"invalid repository name '{name}'", hint="use letters, digits, dots and dashes")
        repo = Repo(name, normalize_url(url))
        with file_lock(self._lock):
            if self.is_repository(name):
                raise AlreadyExists(
                    f"repository '{name}' already exists", hint=f"remove it first: odf repo remove {name}"
                )
            self._write([*self.repositories(), repo])
        return repo

    def remove(self, name: str) -> Repo:
        """Remove and return a repository. Datasets keep their addresses. Raise NotFound if there is none."""
        with file_lock(self._lock):
            removed = self.repository(name)
            self._write([repo for repo in self.repositories() if repo != removed])
        return removed

    def _write(self, repos: list[Repo]) -> None:
        replace_text_file(self._file, msgspec.json.encode(repos).decode())

    # --- Datasets ---

    def get(self, dataset: DatasetId) -> DatasetRemotes:
        """Return the remotes of a dataset; empty if there are none or the file is damaged.

        Raises:
            BadData: the file cannot be read.
        """
        try:
            return msgspec.json.decode(read_small_file(self._path(dataset)), type=DatasetRemotes)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return DatasetRemotes()
        except OSError as error:  # it may be readable later, so it must not be overwritten
            problem = f"the remotes of the dataset cannot be read: {error.strerror}"
            raise BadData(problem, where=str(self._path(dataset)), hint=disk_hint(error)) from None

    def record_status(self, dataset: DatasetId, status: RemoteStatus, kind: Kind | None = None) -> None:
        """Store the status of a dataset relative to a remote; with ``kind``, add the address as well."""
        with file_lock(self._lock):
            remotes = self.get(dataset)
            if kind is not None:
                remotes = _with_address(remotes, status.url, kind)
            rest = [each for each in remotes.seen if each.url != status.url]
            self.set(dataset, msgspec.structs.replace(remotes, seen=[*rest, status]))

    def attach(self, dataset: DatasetId, url: str, kind: Kind) -> None:
        """Add an address of a dataset."""
        with file_lock(self._lock):
            self.set(dataset, _with_address(self.get(dataset), url, kind))

    def detach(self, dataset: DatasetId, url: str, kinds: tuple[Kind, ...] = KINDS) -> list[Kind]:
        """Remove an address of a dataset; return the kinds that it had."""
        with file_lock(self._lock):
            remotes = self.get(dataset)
            removed: list[Kind] = [kind for kind in kinds if url in getattr(remotes, kind)]
            for kind in removed:
                rest = [each for each in getattr(remotes, kind) if each != url]
                remotes = msgspec.structs.replace(remotes, **{kind: rest})
            if url not in (*remotes.pull, *remotes.push):
                rest = [each for each in remotes.seen if each.url != url]
                remotes = msgspec.structs.replace(remotes, seen=rest)
            if removed:
                self.set(dataset, remotes)
        return removed

    def forget(self, dataset: DatasetId) -> None:
        """Remove all remotes of a dataset."""
        with file_lock(self._lock):
            remove_file(self._path(dataset))

    def find_by_url(self, url: str) -> DatasetId | None:
        """Return the dataset that is pulled from an address, otherwise one that is pushed to it, or None."""
        known = [(dataset, self.get(dataset)) for dataset in self._known()]
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
        """Replace the remotes of a dataset.

        :meth:`attach` and other methods change a part of them under the lock.
        """
        with translate_os_errors(self._folder):
            make_folder(self._folder, 0o700)
        replace_text_file(self._path(dataset), msgspec.json.encode(remotes).decode())

    def _path(self, dataset: DatasetId) -> Path:
        return self._folder / f"{dataset.multibase}.json"

    # --- Names ---

    def locate(self, ref: DatasetRefRemote) -> ResolvedUrl:
        """Return the address of a remote reference.

        Raises:
            NotFound: there is no such repository.
            UsageError: an id, which cannot be located, or an unsupported URL.
        """
        if isinstance(ref, DatasetUrl):
            url = normalize_url(ref.url)
            return ResolvedUrl(url, dataset_name_from_url(url))
        if isinstance(ref, DatasetAliasRemote):
            repo = self.repository(ref.repo)
            return ResolvedUrl(f"{repo.url}{quote(str(ref.alias))}/", ref.name)
        raise UsageError(f"{ref}: a remote dataset has no id", hint="use REPO/NAME or its URL")

    def display_name(self, url: str) -> str:
        """Return ``repo/name`` for a URL in a repository, otherwise the URL without credentials."""
        return find_display_name(self.repositories(), url)


def find_display_name(repositories: Sequence[Repo], url: str) -> str:
    """Return the name of a URL as :meth:`Remotes.display_name`, for callers with many URLs."""
    for repo in sorted(repositories, key=lambda repo: -len(repo.url)):
        if url.startswith(repo.url) and (rest := unquote(url[len(repo.url) :].strip("/"))):
            return f"{repo.name}/{rest}"
    return redact_url(url)


def _with_address(known: DatasetRemotes, url: str, kind: Kind) -> DatasetRemotes:
    urls: list[str] = getattr(known, kind)
    return known if url in urls else msgspec.structs.replace(known, **{kind: [*urls, url]})
