"""Remote datasets over the simple transfer protocol (HTTP), IPFS gateways, server listings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Final, TypeVar
from urllib.parse import urlsplit

from odf_engine.errors import BadData, InvalidIdentity, NotFound, SourceUnavailable, Unsupported
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.net.credentials import RemoteAccess
from odf_engine.net.download import AttemptFailed, RetryPolicy
from odf_engine.net.http_client import HttpClient, Response, printable_url, sanitize_text
from odf_engine.storage.refs import HEAD
from odf_engine.sync.remotes.base import (
    MAX_HEAD_BYTES,
    BlockwiseRemote,
    ObjectFile,
    ObjectKind,
    ObjectNames,
    RepositoryEntry,
)
from odf_engine.sync.remotes.repository_index import INDEX, MAX_LIST_BYTES, parse_list

_Result = TypeVar("_Result")


_EXTENSIONS: Final = ("proofs", "compactions", "checks")
"""Kinds of objects that older repositories do not have."""


class HttpRemote(BlockwiseRemote):
    """A dataset of a web server, which can be read.

    Args:
        url: as the user wrote it.
        access: settings, logins, and the reporter of the cancellation.
        at: URL of the server, if it differs.
        reference: the head, or the branch that is read instead.
    """

    no_head: tuple[int, ...] = ()
    """Statuses besides 404 that mean that a reference does not exist."""

    def __init__(self, url: str, access: RemoteAccess, at: str | None = None, reference: str = HEAD) -> None:
        self.url = url
        self._head_name = reference
        self.web = HttpClient.for_remote(at or url, access)
        self._base = self.web.url
        self._names = ObjectNames()

    def head(self) -> Multihash | None:
        """Return the newest block, or None if there is no dataset yet."""
        return self.reference(self._head_name)

    def reference(self, name: str) -> Multihash | None:
        """Return the block of a reference, or None if it does not exist."""
        url = f"{self._base}refs/{name}"
        try:
            data = self.web.get_bytes(url, MAX_HEAD_BYTES, self.no_head)
        except NotFound:
            return None
        head = parse_head(data, url)
        self._names.learn(data.decode().lstrip())
        return head

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return a small object."""
        return self._try_names(kind, object_hash, lambda url: self.web.get_bytes(url, at_most))

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[memoryview]:
        """Yield a large object in chunks, from byte ``start``; resume if the connection breaks."""
        if start >= file.size:
            return
        # The first chunk confirms the name of the object.
        first, rest = self._try_names(
            file.kind, file.hash, lambda url: _open_download(self.web, url, file.size, start)
        )
        with closing(rest):
            yield first
            yield from rest

    def size(self, kind: ObjectKind, object_hash: Multihash) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist.

        Raises:
            BadData: the server does not send it.
        """
        try:
            return self._try_names(
                kind, object_hash, lambda url: self.web.with_retries(lambda: self._size(url))
            )
        except NotFound:
            return None

    def close(self) -> None:
        """Close all connections."""
        self.web.close()

    def _size(self, url: str) -> int:
        with self.web.request("HEAD", url, missing=self.no_head) as response:
            length = response.headers.get("Content-Length", "")
            if not length.isdecimal():
                problem = BadData("the server does not send the size of an object", where=printable_url(url))
                raise AttemptFailed(problem, again=False)
            return int(length)

    def _try_names(self, kind: ObjectKind, object_hash: Multihash, get: Callable[[str], _Result]) -> _Result:
        """Call ``get`` with the possible names of an object, until one exists."""
        # Only this program writes the extensions.
        is_extension = kind in _EXTENSIONS
        names = [str(object_hash)] if is_extension else self._names.candidates(object_hash, rare=True)
        for name in names:
            try:
                result = get(f"{self._base}{kind}/{name}")
            except NotFound:
                continue
            if not is_extension:
                self._names.learn(name)
            return result
        raise NotFound(f"{kind}/{object_hash} not found", where=self.url)


def parse_head(data: bytes, url: str) -> Multihash:
    """Return the hash in a reference.

    Raises:
        BadData: it is no hash, or not a block's.
    """
    text = data.decode("ascii", "replace").strip()
    problem = None
    try:
        head = Multihash.parse(text)
        if head.code == SHA3_256:
            return head
        problem = f"not the hash of a block: {head}"
    except InvalidIdentity:
        problem = f"not a hash: '{sanitize_text(text, 40)}'" if text else "empty"
    hint = "check that this is the URL of a dataset; if it is, report the error to its publisher"
    raise BadData(f"the head cannot be read: {problem}", where=printable_url(url), hint=hint)


def download(
    web: HttpClient, url: str, size: int, start: int = 0, headers: Mapping[str, str] | None = None
) -> Generator[memoryview, None, None]:
    """Yield a file of ``size`` bytes in chunks, from byte ``start``; a chunk is valid until the next one.

    If the connection breaks, the download is resumed, within the retries. At most one byte more than ``size``
    is yielded.

    Raises:
        NotFound, SourceUnavailable, Cancelled: as :meth:`HttpClient.request`, after the retries.
        BadData: the file has another size, or it is an HTML page.
    """
    retries = RetryPolicy(web.config, web.reporter)
    at, ranges = start, True
    while at < size:
        before = at
        try:
            part = {"Range": f"bytes={at}-"} if at and ranges else {}
            with web.request("GET", url, headers=headers, conditions=part) as response:
                skip = _bytes_to_skip(response, at, size)
                if skip is None:
                    if not ranges:
                        problem = "the server sent a different range than requested"
                        raise AttemptFailed(BadData(problem, where=printable_url(url)), again=False)
                    ranges = False
                    continue
                for piece in _body_rest(response, skip, size - at):
                    at += len(piece)
                    yield piece
            if at < size:
                problem = f"connection error: closed after {at:,} of {size:,} bytes"
                raise AttemptFailed(SourceUnavailable(problem, where=printable_url(url)), again=True)
        except AttemptFailed as failure:
            retries.wait(failure, at - before)


def _open_download(
    web: HttpClient, url: str, size: int, start: int
) -> tuple[memoryview, Generator[memoryview, None, None]]:
    pieces = download(web, url, size, start)
    return next(pieces), pieces


def _bytes_to_skip(response: Response, start: int, size: int) -> int | None:
    """Return the number of bytes to skip at the start of a response, or None if it is another part."""
    total = response.length
    skip: int | None = start
    if response.status == 206:
        part = response.content_range
        if part is None or part[0] != start:
            return None
        total, skip = part[1], 0
    if total is not None and total != size:
        response.check_file(response.peek())
        problem = f"the file has {total:,} bytes, expected {size:,}"
        raise AttemptFailed(
            BadData(
                problem,
                where=printable_url(response.url),
                hint="report the error to its publisher: the file is damaged",
            ),
            again=False,
        )
    return skip


def _body_rest(response: Response, skip: int, max_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes after the first ``skip``, at most one more than ``max_bytes``."""
    first = True
    with closing(response.iter_views(skip + max_bytes + 1)) as pieces:
        for piece in pieces:
            if first:
                response.check_file(piece)
                first = False
            if skip >= len(piece):
                skip -= len(piece)
                continue
            yield piece[skip:] if skip else piece
            skip = 0


class IpfsRemote(HttpRemote):
    """A dataset behind an IPFS gateway, which responds 500 for a file that does not exist."""

    no_head = (500,)


def ipfs_remote(url: str, access: RemoteAccess) -> IpfsRemote:
    """Return the remote of an ``ipfs://CID/PATH/`` or ``ipns://NAME/PATH/`` URL."""
    parts = urlsplit(url)
    gateway = access.config.sync.ipfs_gateway.rstrip("/")
    return IpfsRemote(url, access, at=f"{gateway}/{parts.scheme}/{parts.netloc}{parts.path}")


_NO_LIST: Final = (400, 403, 404, 405, 406, 501)


class ServerRepository:
    """The datasets of a server: of its own list, or of the index of a folder that it serves.

    If ``url`` starts with ``odf+``, the URLs of the datasets do as well.
    """

    def __init__(self, url: str, access: RemoteAccess) -> None:
        self.url = url
        self._web = HttpClient.for_remote(url, access)

    def datasets(self) -> Iterator[RepositoryEntry]:
        """Yield the datasets that the server lists, sorted by name.

        Raises:
            Unsupported: the server has no list.
            BadData: the list is invalid.
            SourceUnavailable, Cancelled: errors of the connection.
        """
        for url in (self._web.url, f"{self._web.url}{INDEX}"):
            data = self._web.with_retries(lambda url=url: self._fetch_list(url))
            if data is not None:
                yield from parse_list(data, self.url)
                return
        hint = f"use the full URL of a dataset: odf pull {self.url}NAME/"
        raise Unsupported("the server does not list its datasets", where=printable_url(self.url), hint=hint)

    def close(self) -> None:
        """Close all connections."""
        self._web.close()

    def _fetch_list(self, url: str) -> bytes | None:
        headers = {"Accept": "application/json"}
        try:
            with self._web.request("GET", url, headers=headers, missing=_NO_LIST) as response:
                if response.content_type == "application/json":
                    return response.read_all(MAX_LIST_BYTES)
                # Some servers do not know the type of the file, others return a page for a missing file.
                if not url.endswith(INDEX) or response.content_type == "text/html":
                    return None
                data = response.read_all(MAX_LIST_BYTES)
                return data if data.startswith(b"{") else None
        except AttemptFailed as failure:
            if isinstance(failure.error, NotFound):
                return None
            raise
