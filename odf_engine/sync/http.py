"""Datasets on any web server: the simple transfer protocol, which is files by their hashes (RFC-007)."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, TypeVar

from odf_engine.errors import BadData, InvalidIdentity, NotFound, SourceUnavailable
from odf_engine.identity.multiformats import SHA3_256, Multihash
from odf_engine.ingest.retries import Failed, Retries
from odf_engine.storage.objects import spellings
from odf_engine.storage.refs import HEAD
from odf_engine.sync.places import Access
from odf_engine.sync.remote import MOST_HEAD_BYTES, ObjectFile, ObjectKind
from odf_engine.sync.response import Response, printable, shown
from odf_engine.sync.web import Web

_RANGE: Final = re.compile(r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)", re.ASCII)
_Result = TypeVar("_Result")


class HttpRemote:
    """A dataset that a web server has as files; it can be read.

    Args:
        url: how people call it.
        access: settings, logins, and who wants to stop.
        at: where it is in truth, when that is another URL.
    """

    no_head: tuple[int, ...] = ()
    """Statuses besides 404 by which the server says that there is no reference."""

    def __init__(self, url: str, access: Access, at: str | None = None) -> None:
        self.url = url
        self.web = Web(at or url, access)
        self._base = self.web.url
        self._base58 = False

    def head(self) -> Multihash | None:
        """The newest block; None when there is no dataset yet."""
        url = f"{self._base}refs/{HEAD}"
        try:
            data = self.web.fetch(url, MOST_HEAD_BYTES, self.no_head)
        except NotFound:
            return None
        return parse_head(data, url)

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """A small object as a whole."""
        return self._named(kind, object_hash, lambda url: self.web.fetch(url, at_most))

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes]:
        """A large object piece by piece from byte ``start`` on; goes on by itself where it broke off."""
        if start >= file.size:
            return
        # Which name it has is known with the first piece.
        first, rest = self._named(file.kind, file.hash, lambda url: _begun(self.web, url, file.size, start))
        with closing(rest):
            yield first
            yield from rest

    def prepare(self, files: Sequence[ObjectFile]) -> None:
        """Nothing has to be known before."""

    def batch(self, after: Multihash | None, head: Multihash) -> Iterator[tuple[Multihash, bytes]] | None:
        """Blocks are read one by one."""
        return None

    def close(self) -> None:
        """Lets go of all connections."""
        self.web.close()

    def _named(self, kind: ObjectKind, object_hash: Multihash, get: Callable[[str], _Result]) -> _Result:
        """Asks by the name of today, and by that of older repositories."""
        canonical = str(object_hash)
        names: Iterable[str] = spellings(object_hash)  # one after the other: base58 takes its time
        if kind == "proofs":  # which there were none of then
            names = [canonical]
        for name in reversed(list(names)) if self._base58 else names:
            try:
                result = get(f"{self._base}{kind}/{name}")
            except NotFound:
                continue
            if kind != "proofs":
                self._base58 = name != canonical
            return result
        raise NotFound(f"{kind}/{object_hash} is not there", where=self.url)


def parse_head(data: bytes, url: str) -> Multihash:
    """The hash in a reference.

    Raises:
        BadData: it is none, or not that of a block.
    """
    text = data.decode("ascii", "replace").strip()
    problem = None
    try:
        head = Multihash.parse(text)
        if head.code == SHA3_256:
            return head
        problem = f"it is the hash of something else than a block: {head}"
    except InvalidIdentity:
        problem = f"it is no hash: '{printable(text, 40)}'" if text else "it is empty"
    hint = "is this the address of a dataset? if it is, tell its owner"
    raise BadData(f"the head cannot be read: {problem}", where=shown(url), hint=hint)


def download(
    web: Web, url: str, size: int, start: int = 0, headers: Mapping[str, str] | None = None
) -> Generator[bytes, None, None]:
    """A file of ``size`` bytes, piece by piece from byte ``start`` on.

    Where the connection breaks it goes on with the rest, as often as retries are set. It never ends late:
    one byte more than ``size`` is the most that comes.

    Raises:
        NotFound, SourceUnavailable, Cancelled: those of :meth:`Web.once`, after the retries.
        BadData: the file there has another size, or it is a web page.
    """
    retries = Retries(web.config, web.reporter)
    at, ranges = start, True
    while at < size:
        before = at
        try:
            with web.once("GET", url, headers={**(headers or {}), **_asked(at if ranges else 0)}) as response:
                skip = _skipped(response, at, size)
                if skip is None:
                    if not ranges:
                        problem = "the server sends another part than it was asked for"
                        raise Failed(BadData(problem, where=shown(url)), again=False)
                    ranges = False
                    continue
                for piece in _rest(response, skip, size - at):
                    at += len(piece)
                    yield piece
            if at < size:
                problem = f"the connection ended after {at:,} of {size:,} bytes"
                raise Failed(SourceUnavailable(problem, where=shown(url)), again=True)
        except Failed as failure:
            retries.wait(failure, at - before)


def _begun(web: Web, url: str, size: int, start: int) -> tuple[bytes, Generator[bytes, None, None]]:
    pieces = download(web, url, size, start)
    return next(pieces), pieces


def _asked(start: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-"} if start else {}


def _skipped(response: Response, start: int, size: int) -> int | None:
    """How many bytes of an answer are before those that were asked for; None when it is another part."""
    total = response.length
    skip: int | None = start
    if response.status == 206:
        part = _RANGE.match(response.headers.get("Content-Range") or "")
        if part is None or int(part[1]) != start:
            return None
        total = int(part[2]) if part[2] != "*" else None
        skip = 0
    if total is not None and total != size:
        response.check_file(response.beginning())
        problem = f"the server has {total:,} bytes where there should be {size:,}"
        raise Failed(BadData(problem, where=shown(response.url), hint="its file is damaged"), again=False)
    return skip


def _rest(response: Response, skip: int, wanted: int) -> Iterator[bytes]:
    """The bytes after the first ``skip``, and one more than ``wanted`` at most."""
    first = True
    with closing(response.pieces(skip + wanted + 1)) as pieces:
        for piece in pieces:
            if first:
                response.check_file(piece)
                first = False
            if skip >= len(piece):
                skip -= len(piece)
                continue
            yield piece[skip:] if skip else piece
            skip = 0
