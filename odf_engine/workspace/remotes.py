"""Where datasets come from and go to: the repositories of a workspace, and each dataset's addresses in them.

Repositories are in ``.odf/repositories.json``. What is known of a dataset's remotes is in
``.odf/remotes/<id>.json``, never in the dataset's folder, which may be foreign.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from odf_engine.errors import AlreadyExists, BadData, NotFound, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.refs import DatasetAliasRemote, DatasetRefRemote, DatasetUrl, is_name
from odf_engine.workspace.small_files import write_text

SCHEMES = ("file", "http", "https", "odf+http", "odf+https", "s3", "s3+http", "s3+https", "ipfs", "ipns")


class Repo(msgspec.Struct, frozen=True):
    """A repository by its name; ``url`` ends with a slash."""

    name: str
    url: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """How a dataset stood to a remote when that was last looked at.

    Attributes:
        url: the remote.
        relation: as ``odf_engine.sync.compare.Relation`` says it.
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
    seen: list[Seen] = []

    def seen_at(self, url: str) -> Seen | None:
        """What was found last at this URL."""
        return next((each for each in self.seen if each.url == url), None)


class Located(NamedTuple):
    """Where something is: its URL, and the name that it has there."""

    url: str
    name: str


class Remotes:
    """Repositories and addresses of a workspace's datasets; ``odf`` is its ``.odf`` folder."""

    def __init__(self, odf: Path) -> None:
        self._odf = odf
        self._file = odf / "repositories.json"
        self._folder = odf / "remotes"

    # --- Repositories ---

    def repositories(self) -> list[Repo]:
        """All of them, by name.

        Raises:
            BadData: the file was changed by hand, and is damaged.
        """
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=list[Repo])
        except FileNotFoundError:
            return []
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
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
        if not is_name(name):
            raise UsageError(
                f"'{name}' cannot be the name of a repository", hint="letters, digits, dots, dashes"
            )
        if self.is_repository(name):
            raise AlreadyExists(f"there is a repository '{name}' already", hint=f"odf repo remove {name}")
        repo = Repo(name, checked_url(url))
        self._write([*self.repositories(), repo])
        return repo

    def remove(self, name: str) -> Repo:
        """Forgets a repository; datasets keep their addresses. NotFound when there is none."""
        gone = self.repository(name)
        self._write([repo for repo in self.repositories() if repo != gone])
        return gone

    def _write(self, repos: list[Repo]) -> None:
        write_text(self._file, msgspec.json.encode(repos).decode())

    # --- Datasets ---

    def of(self, dataset: DatasetId) -> DatasetRemotes:
        """What is known of a dataset's remotes; what is damaged counts as not known."""
        try:
            return msgspec.json.decode(self._path(dataset).read_bytes(), type=DatasetRemotes)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return DatasetRemotes()

    def set(self, dataset: DatasetId, remotes: DatasetRemotes) -> None:
        """Remembers it instead of what was known."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_text(self._path(dataset), msgspec.json.encode(remotes).decode())

    def note(self, dataset: DatasetId, seen: Seen, kind: Literal["pull", "push"] | None = None) -> None:
        """Remembers how a dataset stands to a remote; with ``kind`` also that it comes from or goes there."""
        known = self.of(dataset)
        if kind is not None and seen.url not in (urls := getattr(known, kind)):
            known = msgspec.structs.replace(known, **{kind: [*urls, seen.url]})
        rest = [each for each in known.seen if each.url != seen.url]
        self.set(dataset, msgspec.structs.replace(known, seen=[*rest, seen]))

    def forget(self, dataset: DatasetId) -> None:
        """Forgets all of a dataset."""
        self._path(dataset).unlink(missing_ok=True)

    def _path(self, dataset: DatasetId) -> Path:
        return self._folder / f"{dataset.multibase}.json"

    # --- Names ---

    def locate(self, ref: DatasetRefRemote) -> Located:
        """The address that a person means.

        Raises:
            NotFound: there is no such repository.
            UsageError: by id alone nothing can be found; a URL that is not known.
        """
        if isinstance(ref, DatasetUrl):
            url = checked_url(ref.url)
            return Located(url, name_in(url))
        if isinstance(ref, DatasetAliasRemote):
            repo = self.repository(ref.repo)
            return Located(f"{repo.url}{quote(str(ref.alias))}/", ref.name)
        raise UsageError(f"{ref}: elsewhere a dataset is found by name", hint="REPO/NAME, or its URL")

    def label(self, url: str) -> str:
        """How a URL is called: ``repo/name`` where a repository has it, else the URL without a login."""
        for repo in self.repositories():
            if url.startswith(repo.url) and (rest := url[len(repo.url) :].strip("/")):
                return f"{repo.name}/{rest}"
        return url


def checked_url(text: str) -> str:
    """A URL with a slash at its end, without ``.`` and without a login, which never belongs there.

    Raises:
        UsageError: a scheme that is not known, no host, a login in the URL.
    """
    parts = urlsplit(text.strip())
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}:" for each in SCHEMES)
        raise UsageError(
            f"'{without_login(text)}' is no address that is known", hint=f"it begins with one of {known}"
        )
    if "@" in parts.netloc:
        hint = "leave them out, and say: odf repo login URL"
        raise UsageError("user and password do not belong into an address", hint=hint)
    if scheme == "file":
        path = parts.netloc + parts.path if parts.netloc not in ("", "localhost") else parts.path
        return f"file://{path.rstrip('/')}/" if path.startswith("/") else f"file://{Path(path).absolute()}/"
    if not parts.netloc:
        raise UsageError(f"'{text}' has no host")
    if parts.query or parts.fragment:
        raise UsageError(
            f"'{text}' has a part behind ? or #", hint="a dataset is a folder, and its address a path"
        )
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + "/", "", ""))


def without_login(url: str) -> str:
    """A URL as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def origin_of(url: str) -> str:
    """What credentials belong to: scheme, host and port, in one spelling; of S3 also the bucket."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower().removeprefix("odf+")
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    default = {"http": 80, "https": 443, "s3+http": 80, "s3+https": 443}.get(scheme)
    port = "" if parts.port in (None, default) else f":{parts.port}"
    bucket = f"/{parts.path.lstrip('/').partition('/')[0]}" if scheme in ("s3+http", "s3+https") else ""
    return f"{scheme}://{host}{port}{bucket}"


def name_in(url: str) -> str:
    """A name for the dataset of a URL: its last part that can be one, else its host."""
    parts = urlsplit(url)
    for part in reversed(parts.path.split("/")):
        if is_name(part):
            return part
    host = parts.hostname or ""
    if is_name(host):
        return host
    raise UsageError(f"{url} says no name for the dataset", hint="give it one: --as NAME")
