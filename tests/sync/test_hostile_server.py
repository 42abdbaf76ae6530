"""Pulling from servers that mean ill: each time a clear error, nothing changed, little memory and time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import msgspec
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, NotFound, OdfError, SourceUnavailable
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import SetInfo
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.pull import ChainPull, clone_dataset, pull_dataset
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders
from tests.sync.hostile_server import Behaviour, Exchange, HostileServer, hostile

PAGE = b"\n<!DOCTYPE html>\n<html><title>Welcome</title><p>Please log in.</html>"
SIZE = 300_000


class Source(NamedTuple):
    """A dataset of somebody else, and the server that has it; ``seed`` is its first block."""

    entry: DatasetEntry
    server: HostileServer
    url: str
    head: Multihash
    seed: Multihash
    slice: Multihash


@pytest.fixture
def patience(here: Workspace) -> RemoteAccess:
    """Access of somebody who tries once."""
    return waiting(here, 20)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    entry = builders.make_root(Workspace.init(tmp_path_factory.mktemp("hosted")))
    seed = entry.dataset.head()
    assert seed is not None
    [data] = builders.add_files(entry, 1, SIZE)
    head = builders.describe(entry, "the last block")
    with hostile(entry.dataset.folder.parent) as server:
        yield Source(entry, server, f"{server.url}{entry.dataset.folder.name}/", head, seed, data)


@pytest.fixture
def source(hosted: Source) -> Iterator[Source]:
    hosted.server.sent = 0
    hosted.server.asked.clear()
    yield hosted
    hosted.server.says.clear()


def waiting(here: Workspace, seconds: float) -> RemoteAccess:
    fetch = msgspec.structs.replace(here.config.fetch, read_timeout_seconds=seconds, retries=0)
    config = msgspec.structs.replace(here.config, fetch=fetch)
    return RemoteAccess(config, Credentials(here.odf), Reporter())


def pull(here: Workspace, url: str, access: RemoteAccess) -> tuple[DatasetEntry, ChainPull]:
    remote = open_remote(url, access)
    try:
        return clone_dataset(here, DatasetAlias(None, "pulled"), remote, access.reporter, parallel=2)
    finally:
        remote.close()


def body(data: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Behaviour:
    return lambda exchange: exchange.answer(status, data, *headers, length=length)


def raw(data: bytes) -> Behaviour:
    return lambda exchange: exchange.send(data)


def endless(head: bytes, data: bytes) -> Behaviour:
    def behave(exchange: Exchange) -> None:
        exchange.send(head)
        exchange.forever(data)

    return behave


def half(exchange: Exchange) -> None:
    data = exchange.file()
    exchange.answer("200 OK", data[: len(data) // 2], length=len(data))


def torn(exchange: Exchange) -> None:
    half(exchange)
    exchange.reset()


def chopped(exchange: Exchange) -> None:
    data = exchange.file()[:-10]
    exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    exchange.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))


def longer(exchange: Exchange) -> None:
    exchange.answer("200 OK", exchange.file() + b"!")


def trickle(exchange: Exchange) -> None:
    length = len(exchange.file()) + 100_000 * ("data" not in exchange.asked.path)
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
    exchange.slowly(b"x" * 1000)


def crawl(exchange: Exchange) -> None:
    exchange.slowly(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 100)


def wait(exchange: Exchange) -> None:
    exchange.server.over.wait()


def circle(exchange: Exchange) -> None:
    turn = "1" if exchange.asked.path.endswith("?2") else "2"
    exchange.answer("302 Found", b"x" * 10, f"Location: {exchange.asked.path.partition('?')[0]}?{turn}")


def away(exchange: Exchange) -> None:
    exchange.answer("302 Found", b"", f"Location: {exchange.asked.path}x")


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GZIP = "Content-Encoding: gzip"
OTHER_HASH = b"f9680c001" + b"20" + b"ab" * 32  # of rows, not of a block

ANYWHERE: dict[str, tuple[Behaviour, type[OdfError], str]] = {
    "nothing at all": (lambda exchange: None, SourceUnavailable, "without a response"),
    "reset before an answer": (Exchange.reset, SourceUnavailable, "connection failed|without a response"),
    "silence": (wait, SourceUnavailable, "no response: timeout"),
    "headers byte by byte": (crawl, SourceUnavailable, "too slow"),
    "body byte by byte": (trickle, SourceUnavailable, "too slow"),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), SourceUnavailable, "not HTTP"),
    "HTML": (body(PAGE, "Content-Type: text/html"), BadData, "HTML page"),
    "HTML of no type": (body(PAGE), BadData, "HTML page"),
    "packed": (body(b"\x1f\x8b", GZIP), BadData, "Content-Encoding gzip"),
    "one long header": (raw(OK + b"X: " + b"y" * (1 << 20)), SourceUnavailable, "header line"),
    "many headers": (raw(OK + b"X: y\r\n" * 5000 + b"\r\n"), SourceUnavailable, "100 headers"),
    "continue, continue": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), BadData, "too many headers"),
    "redirect loop": (circle, SourceUnavailable, "redirect loop"),
    "redirects for ever": (away, SourceUnavailable, "more than 10 redirects"),
    "a redirect to nowhere": (body(b"", status="302 Found"), SourceUnavailable, "without a redirect target"),
    "a redirect to a file": (
        body(b"", "Location: file:///etc/passwd", status="301 Moved"),
        SourceUnavailable,
        "redirect to file:",
    ),
    "a redirect to no port": (
        body(b"", "Location: http://localhost:port/", status="301 Moved"),
        SourceUnavailable,
        "invalid characters",
    ),
    "a redirect with a line break": (
        body(b"", "Location: /a%0d%0aX: y", status="301 Moved"),
        NotFound,
        "is missing",
    ),
    "no login": (body(b"", status="401 No"), SourceUnavailable, "authentication required"),
    "forbidden": (body(b"", status="403 No"), SourceUnavailable, "access denied"),
    "too many requests": (
        body(b"", "Retry-After: 4000", status="429 No"),
        SourceUnavailable,
        "too many requests",
    ),
    "an error": (body(b"x" * 5000, status="500 \x1b[31mRed"), SourceUnavailable, "returned 500"),
    "a strange status": (body(b"", status="799 What"), SourceUnavailable, "returned 799"),
    "endless chunk header": (
        endless(CHUNKED, b"0" * 4096),
        OdfError,
        "connection error|closed|too many headers",
    ),
    "a chunk of no size": (raw(CHUNKED + b"zz\r\nabc\r\n"), SourceUnavailable, "closed before the end"),
    "endless trailers": (
        endless(CHUNKED + b"0\r\n", b"X: y\r\n" * 999),
        BadData,
        "too many headers|hash|head",
    ),
}

SLOW = ("silence", "headers byte by byte", "body byte by byte")

HEADS: dict[str, tuple[Behaviour, type[OdfError], str]] = {
    "no hash": (body(b"master"), BadData, "not a hash: 'master'"),
    "empty": (body(b" \n"), BadData, "cannot be read: empty"),
    "colours": (body(b"\x1b[31m\xff\x00"), BadData, "not a hash"),
    "hash of rows": (body(OTHER_HASH), BadData, "not the hash of a block"),
    "long": (body(b"f1620" + b"ab" * 10_000), BadData, "more than 128 bytes"),
    "endless": (endless(CHUNKED, b"1000\r\n" + b"f" * 4096 + b"\r\n"), BadData, "more than 128 bytes"),
    "endless, unmeasured": (endless(OK + b"\r\n", b"f" * 4096), BadData, "more than 128 bytes"),
    "a block that is not there": (body(b"f1620" + b"ab" * 32), NotFound, "not found"),
    "no dataset": (body(b"", status="404 No"), NotFound, "no dataset"),
    "length below zero": (raw(OK + b"Content-Length: -1\r\n\r\n" + b"f" * 999), BadData, "more than"),
    "a lie of a length": (body(b"f1620" + b"ab" * 32, length=1 << 60), BadData, "more than 128 bytes"),
}

BLOCKS: dict[str, tuple[Behaviour, type[OdfError], str]] = {
    "other bytes": (body(b"\x0c\0\0\0" * 100), BadData, "do not match the hash"),
    "empty": (body(b""), BadData, "do not match the hash"),
    "half": (half, SourceUnavailable, "closed"),
    "chopped": (chopped, BadData, "do not match the hash"),
    "longer": (longer, BadData, "do not match the hash"),
    "endless": (endless(OK + b"\r\n", b"\0" * 65536), BadData, "more than 1,048,576 bytes"),
    "missing": (body(b"", status="404 No"), NotFound, "not found"),
    "crumbs": (endless(CHUNKED, b"1\r\nx\r\n" * 9999), BadData, "too many headers"),
    "padded crumbs": (
        endless(CHUNKED, (b"1;" + b"p" * 200 + b"\r\nx\r\n") * 999), BadData, "too many headers"
    ),
}  # fmt: skip

SLICES: dict[str, tuple[Behaviour, type[OdfError], str]] = {
    "other bytes": (body(b"\0" * SIZE), BadData, "do not match the hash"),
    "half": (half, SourceUnavailable, "closed 150,000 bytes before the end"),
    "torn": (torn, SourceUnavailable, "connection|ended"),
    "chopped": (chopped, SourceUnavailable, "closed after 299,990 of 300,000"),
    "shorter": (body(b"\0" * 100), BadData, "has 100 bytes, expected 300,000"),
    "longer": (longer, BadData, "has 300,001 bytes, expected 300,000"),
    "endless": (endless(OK + b"\r\n", b"\0" * 65536), BadData, "more than the expected 300,000 bytes"),
    "a lie of a length": (body(b"", length=1 << 60), BadData, "expected 300,000"),
    "missing": (body(b"", status="404 No"), NotFound, "is missing"),
}


def everything() -> Iterator[tuple[str, str, Behaviour, type[OdfError], str]]:
    for path, cases in (("head", HEADS), ("block", BLOCKS), ("slice", SLICES), ("slice", ANYWHERE)):
        for name, (behave, error, text) in cases.items():
            yield path, name, behave, error, text


@pytest.mark.parametrize(
    ("path", "name", "behave", "error", "text"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in everything()],
)
@pytest.mark.complete(after=8)
def test_wrong_response_fails_the_pull_and_changes_nothing(
    here: Workspace, source: Source, patience: RemoteAccess,
    path: str, name: str, behave: Behaviour, error: type[OdfError], text: str,
) -> None:  # fmt: skip
    """A dataset does not appear until it is whole, and nothing of a bad answer stays in the way."""
    folder = source.entry.dataset.folder.name
    at = {"head": "refs/head", "block": f"blocks/{source.head}", "slice": f"data/{source.slice}"}[path]
    source.server.says[f"{folder}/{at}"] = behave
    with pytest.raises(error, match=text) as caught:
        pull(here, source.url, waiting(here, 0.5) if name in SLOW else patience)
    assert source.server.sent < (2000 if name in SLOW else 32 << 20)
    assert str(caught.value).isprintable()
    assert [*here.datasets()] == []
    source.server.says.clear()
    entry, pulled = pull(here, source.url, patience)
    assert entry.dataset.head() == pulled.new_head == source.head


@pytest.mark.parametrize("name", ["other bytes", "half", "missing"])
@pytest.mark.parametrize("path", ["block", "slice"])
def test_failed_pull_keeps_the_existing_dataset(
    here: Workspace, there: Workspace, patience: RemoteAccess, path: str, name: str
) -> None:
    """It stays what it is, byte by byte, also when something is wrong only at the end."""
    theirs = builders.make_root(there)
    ours = builders.copy_into(here, theirs)
    [data] = builders.add_files(theirs, 1, SIZE)
    head = builders.describe(theirs, "more")
    before, old = builders.objects(ours.dataset.folder), ours.dataset.head()
    folder = theirs.dataset.folder
    with hostile(folder.parent) as server:
        at = f"blocks/{head}" if path == "block" else f"data/{data}"
        behave, error, text = (BLOCKS if path == "block" else SLICES)[name]
        server.says[f"{folder.name}/{at}"] = behave
        url = f"{server.url}{folder.name}/"
        with closing(open_remote(url, patience)) as remote, pytest.raises(error, match=text):
            pull_dataset(ours, remote, patience.reporter, force=False, parallel=2)
        assert ours.dataset.head() == old
        assert builders.objects(ours.dataset.folder) == before
        server.says.clear()
        with closing(open_remote(url, patience)) as remote:
            pull_dataset(ours, remote, patience.reporter, force=False, parallel=2)
        assert ours.dataset.head() == head


def test_wrong_sequence_numbers_fail_the_pull(
    here: Workspace, there: Workspace, patience: RemoteAccess
) -> None:
    """Numbers that do not count down, and a chain that says to be longer than all that there is."""
    for number, text in ((1, "has sequence number"), (1 << 40, "has sequence number")):
        theirs = builders.make_root(there, f"chain.{number}")
        builders.describe(theirs, "the last good one")
        builders.forge(theirs.dataset, SetInfo("a bad one"), sequence_number=number)
        folder = theirs.dataset.folder
        with hostile(folder.parent) as server:
            with pytest.raises(BadData, match=text):
                pull(here, f"{server.url}{folder.name}/", patience)
            assert len(server.asked) < 10
        assert [*here.datasets()] == []


@pytest.mark.parametrize("name", [name for name in ANYWHERE if "byte by byte" not in name])
def test_wrong_head_or_block_response_is_reported(
    here: Workspace, source: Source, patience: RemoteAccess, name: str
) -> None:
    """The same where a head, or a block, belongs."""
    patience = waiting(here, 0.3) if name in SLOW else patience
    behave, error, text = ANYWHERE[name]
    text += "|not found|cannot be read"  # a page that is not there is a block that is not there
    for at in (f"blocks/{source.head}", "refs/head"):
        source.server.says[f"{source.entry.dataset.folder.name}/{at}"] = behave
        with closing(open_remote(source.url, patience)) as remote:
            if at == "refs/head" and error is NotFound:
                assert remote.head() is None
                continue
            with pytest.raises(error, match=text) as caught:
                remote.head() if at == "refs/head" else remote.read("blocks", source.head, 1 << 20)
            assert str(caught.value).isprintable()
