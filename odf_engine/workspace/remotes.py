"""Repositories, the addresses of datasets in them, and the status of datasets relative to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from odf_engine.base.atomic_files import file_lock, make_folder, read_small_file, replace_text_file
from odf_engine.base.files import remove_file, translate_os_errors
from odf_engine.errors import (
    AlreadyExists,
    BadData,
    InvalidIdentity,
    NotFound,
    OdfError,
    UsageError,
    disk_hint,
)
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.names import (
    DatasetAlias,
    DatasetAliasRemote,
    DatasetIdRemote,
    DatasetRefRemote,
    DatasetUrl,
    is_valid_name,
    parse_ref_any,
)
from odf_engine.metadata.model import DatasetSnapshot, SetTransform, TransformInput
from odf_engine.net.urls import dataset_name_from_url, normalize_url, redact_url

Kind = Literal["pull", "push"]
"""Whether a dataset is pulled from an address, or pushed to it."""
REMOTE_KINDS: Final[tuple[Kind, ...]] = ("pull", "push")
PATHS: Final = ("/", "./", "../", "~/", "file:")
"""Prefixes of texts that are folders, not names."""


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
        return next((status for status in self.seen if status.url == url), None)


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
        """Return the repository with this name; raise NotFound if it does not exist."""
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
        """Remove and return a repository, or raise NotFound. Datasets keep their addresses."""
        with file_lock(self._lock):
            removed = self.repository(name)
            self._write([repo for repo in self.repositories() if repo != removed])
        return removed

    def _write(self, repos: list[Repo]) -> None:
        replace_text_file(self._file, msgspec.json.encode(repos).decode())

    def get(self, dataset: DatasetId) -> DatasetRemotes:
        """Return the remotes of a dataset, without any if the file is missing or damaged.

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
            rest = [seen for seen in remotes.seen if seen.url != status.url]
            self.set(dataset, msgspec.structs.replace(remotes, seen=[*rest, status]))

    def attach(self, dataset: DatasetId, url: str, kind: Kind) -> None:
        """Add an address of a dataset."""
        with file_lock(self._lock):
            self.set(dataset, _with_address(self.get(dataset), url, kind))

    def detach(self, dataset: DatasetId, url: str, kinds: tuple[Kind, ...] = REMOTE_KINDS) -> list[Kind]:
        """Remove an address of a dataset; return the kinds that it had."""
        with file_lock(self._lock):
            remotes = self.get(dataset)
            removed: list[Kind] = [kind for kind in kinds if url in getattr(remotes, kind)]
            for kind in removed:
                rest = [item for item in getattr(remotes, kind) if item != url]
                remotes = msgspec.structs.replace(remotes, **{kind: rest})
            if url not in (*remotes.pull, *remotes.push):
                rest = [seen for seen in remotes.seen if seen.url != url]
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
        for kind in REMOTE_KINDS:
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


def resolve_location(remotes: Remotes, text: str) -> ResolvedUrl | None:
    """Return the location that a text refers to: an address, a folder or ``repo/name``; else None."""
    if "://" in text or text.startswith(PATHS) or text in (".", ".."):
        return remotes.locate(DatasetUrl(normalize_url(text)))
    if "%" in text:
        return None
    ref = parse_ref_any(text, remotes.is_repository)
    if isinstance(ref, DatasetAliasRemote | DatasetIdRemote):
        return remotes.locate(ref)
    return None


def resolve_address(remotes: Remotes, text: str, alias: DatasetAlias, several: bool = False) -> str:
    """Return the address of a dataset at a remote: the name of a repository, ``repo/name``, or an address.

    Raises:
        UsageError: it is no address, or it leads to one dataset and ``several`` are pushed or pulled.
    """
    if is_valid_name(text):
        return f"{remotes.repository(text).url}{alias}/"
    try:
        place = resolve_location(remotes, text)
    except InvalidIdentity:
        place = None
    if place is None:
        hint = "use a repository, REPO/NAME or a URL; odf repo list shows the repositories"
        raise UsageError(f"{text}: not a remote", hint=hint)
    if (repo := next((repo for repo in remotes.repositories() if repo.url == place.url), None)) is not None:
        return f"{repo.url}{alias}/"
    if several:
        hint = f"name it as a repository, and use its name: odf repo add NAME {text}"
        raise UsageError(f"{redact_url(place.url)} is the location of a single dataset", hint=hint)
    return place.url


def find_display_name(repositories: Sequence[Repo], url: str) -> str:
    """Return the name of a URL as :meth:`Remotes.display_name`, for callers with many URLs."""
    repo = find_repository(repositories, url)
    return redact_url(url) if repo is None else f"{repo.name}/{unquote(url[len(repo.url) :].strip('/'))}"


def find_repository(repositories: Sequence[Repo], url: str) -> Repo | None:
    """Return the repository that contains the dataset at a URL, or None if there is none."""
    for repo in sorted(repositories, key=lambda repo: -len(repo.url)):
        if url.startswith(repo.url) and url[len(repo.url) :].strip("/"):
            return repo
    return None


class RemoteInputs(NotFound):
    """Inputs of definitions are in remotes and were not pulled.

    Attributes:
        inputs: their locations, each once.
    """

    def __init__(self, message: str, inputs: Sequence[ResolvedUrl] = (), **details: str | None) -> None:
        super().__init__(message, **details)
        self.inputs = list(inputs)


def localize_inputs(
    snapshots: Sequence[DatasetSnapshot], existing: Mapping[DatasetAlias, DatasetId], remotes: Remotes
) -> list[DatasetSnapshot]:
    """Return definitions whose remote inputs (``repo/name`` or a URL) are replaced by ids of local datasets.

    A dataset of the workspace, or of another definition, takes precedence over a repository with the name of
    its account.

    Args:
        snapshots: the definitions.
        existing: the datasets of the workspace.
        remotes: the remotes of the workspace.

    Raises:
        RemoteInputs: some were not pulled; the message lists all of them.
        UsageError: a URL is invalid.
    """
    local = {*map(str.lower, map(str, existing)), *(other.name.lower() for other in snapshots)}
    ids, missing = set(existing.values()), dict[str, tuple[ResolvedUrl, str]]()

    def localize(item: TransformInput, dataset: str) -> TransformInput:
        text = item.dataset_ref
        if text.lower() in local or ("/" not in text):
            return item
        try:
            ref = parse_ref_any(text, remotes.is_repository)
        except InvalidIdentity:
            return item  # the check of the definition reports it
        if not isinstance(ref, DatasetAliasRemote | DatasetUrl):
            return item
        try:
            location = remotes.locate(ref)
        except OdfError as error:
            error.where = f"dataset {dataset}, input '{text}'"
            raise
        pulled = remotes.find_by_url(location.url)
        if pulled in ids:
            return replace(item, dataset_ref=str(pulled), alias=item.alias or text)
        missing.setdefault(location.url, (location, f"'{text}' (input of {dataset})"))
        return item

    localized = [
        replace(
            snapshot,
            metadata=[
                replace(event, inputs=[localize(query_input, snapshot.name) for query_input in event.inputs])
                if isinstance(event, SetTransform)
                else event
                for event in snapshot.metadata
            ],
        )
        for snapshot in snapshots
    ]
    if missing:
        names = " ".join(remotes.display_name(url) for url in missing)
        raise RemoteInputs(
            "inputs are in remotes and not in this workspace: "
            + ", ".join(text for _, text in missing.values()),
            [location for location, _ in missing.values()],
            hint=f"pull them: odf add --pull-inputs, or: odf pull {names}",
        )
    return localized


def _with_address(known: DatasetRemotes, url: str, kind: Kind) -> DatasetRemotes:
    urls: list[str] = getattr(known, kind)
    return known if url in urls else msgspec.structs.replace(known, **{kind: [*urls, url]})
