"""Client of the smart transfer protocol: pull, push, transfer URLs."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import BadData, Cancelled, Conflict, NotFound, OdfError, SourceUnavailable, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.ownership_proof import read_proof
from odf_engine.net.credentials import RemoteAccess
from odf_engine.net.download import AttemptFailed
from odf_engine.net.http_client import HttpClient, RequestBody
from odf_engine.net.urls import origin_of
from odf_engine.sync.check_reports import send_reports
from odf_engine.sync.compaction_records import send_records
from odf_engine.sync.history import Relation
from odf_engine.sync.push import ChainPush, linked_files
from odf_engine.sync.remotes.base import (
    MAX_PROOF_BYTES,
    ObjectFile,
    ObjectKind,
    read_verified_chunks,
    upload_parallel,
)
from odf_engine.sync.remotes.http_remote import HttpRemote, download
from odf_engine.sync.smart import messages as m
from odf_engine.sync.smart.messages import (
    MAX_UNPACKED_BYTES,
    TransferUrl,
    read_archive,
    sanitize,
    write_archive,
)
from odf_engine.sync.smart.websocket import (
    MAX_PACKED_SHARE,
    ConnectionClosed,
    EventLoopThread,
    MessageChannel,
    MessageTooLong,
    ReceiveTimeout,
    SmartProtocolUnsupported,
    SmartSession,
)

_MAX_LENGTH: Final = 8192
_MAX_HEADERS: Final = 64
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_RESERVED: Final = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "te", "upgrade", "expect", "trailer")
)
"""Headers of the connection, which a server cannot set for its clients."""


class TransferTarget(NamedTuple):
    """The URL of an object to read or write.

    Attributes:
        url, headers: as the server sent them.
        own: whether the URL has the origin of the server.
    """

    url: str
    headers: dict[str, str]
    own: bool


def parse_transfer_url(received: TransferUrl, base: str) -> TransferTarget:
    """Return a checked URL of a server at ``base``.

    Raises:
        BadData: it must not be followed.
    """
    url = _checked(received.url, base)
    return TransferTarget(url, _headers(received, base), origin_of(url) == origin_of(base))


def _checked(url: str, base: str) -> str:
    if len(url) > _MAX_LENGTH or not url.isascii() or not url.isprintable() or " " in url:
        raise _refused("malformed URL", url, base)
    try:
        parts, ours = urlsplit(url), urlsplit(base)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise _refused("malformed URL", url, base) from None
    if parts.scheme not in ("http", "https") or not host:
        raise _refused("not an http: or https: URL", url, base)
    if "@" in parts.netloc:
        raise _refused("it contains credentials", url, base)
    if ours.scheme == "https" and parts.scheme == "http":
        # Older servers behind a TLS proxy send http: URLs.
        if host != ours.hostname or port not in (None, 80, ours.port):
            raise _refused("it leads from https to http", url, base)
        parts = parts._replace(scheme="https", netloc=ours.netloc)
    return urlunsplit(parts._replace(fragment=""))


def _headers(received: TransferUrl, base: str) -> dict[str, str]:
    if len(received.headers) > _MAX_HEADERS:
        raise _refused("too many headers", received.url, base)
    headers: dict[str, str] = {}
    for row in received.headers:
        if not _NAME.fullmatch(row.name) or not _VALUE.fullmatch(row.value) or len(row.value) > _MAX_LENGTH:
            raise _refused("malformed header", received.url, base)
        if row.name.lower() not in _RESERVED:
            headers[row.name] = row.value
    return headers


def _refused(why: str, url: str, base: str) -> BadData:
    # The query may be a signature.
    shown = sanitize(url.partition("?")[0].rpartition("@")[2])
    return BadData(f"the server sent an invalid transfer URL '{shown}': {why}", where=base)


ROUND: Final = 4000
"""Maximum number of objects in a request: with signed URLs, the answer has some megabytes."""
UrlRequest = Callable[[Sequence[ObjectFile]], Sequence[m.PullStrategy]]


class DownloadLocations:
    """The URLs of the objects of one pull; safe from several threads."""

    def __init__(self, base: str, web: HttpClient, request_urls: UrlRequest) -> None:
        """``request_urls`` requests URLs from the server at ``base``."""
        self._base, self._web, self._request_urls = base, web, request_urls
        self._rounds: list[Sequence[ObjectFile]] = []
        self._round_of: dict[ObjectFile, int] = {}
        self._asked: set[int] = set()
        self._known: dict[ObjectFile, m.TransferUrl] = {}
        self._lock = threading.Lock()

    def add(self, files: Sequence[ObjectFile]) -> int:
        """Add files; return the number of the first request for them."""
        with self._lock:
            first = len(self._rounds)
            for start in range(0, len(files), ROUND):
                self._round_of.update(dict.fromkeys(files[start : start + ROUND], len(self._rounds)))
                self._rounds.append(files[start : start + ROUND])
            return first

    def add_answer(self, number: int, received: Sequence[m.PullStrategy]) -> None:
        """Store the answer to a request; ignore files that were not requested."""
        self._asked.add(number)
        for strategy in received:
            if strategy.object_file.file in self._round_of:
                self._known[strategy.object_file.file] = strategy.download_from

    def chunks(self, file: ObjectFile, start: int) -> Iterator[memoryview] | None:
        """Yield an object from byte ``start``; return None if the server sent no URL for it.

        Raises:
            BadData: the URL must not be followed.
            OdfError: errors of the connection.
        """
        received = self._url_of(file)
        return None if received is None else self._read(file, start, received)

    def _url_of(self, file: ObjectFile, instead_of: m.TransferUrl | None = None) -> m.TransferUrl | None:
        """Return the URL of an object. Request it if it is unknown, or if it is still ``instead_of``."""
        number = self._round_of.get(file)
        if number is None:
            return None
        with self._lock:
            known = self._known.get(file)
            if number not in self._asked or (instead_of is not None and known == instead_of):
                self.add_answer(number, self._request_urls(self._rounds[number]))
            return self._known.get(file)

    def _read(self, file: ObjectFile, start: int, received: m.TransferUrl) -> Iterator[memoryview]:
        begun = False
        try:
            for piece in self._download(file, start, parse_transfer_url(received, self._base)):
                begun = True
                yield piece
            return
        except (SourceUnavailable, NotFound):
            fresh = None if begun else self._url_of(file, instead_of=received)
            if fresh is None or fresh == received:
                raise
        yield from self._download(file, start, parse_transfer_url(fresh, self._base))

    def _download(self, file: ObjectFile, start: int, transfer: TransferTarget) -> Iterator[memoryview]:
        return download(self._web, transfer.url, file.size, start, transfer.headers)


_SESSION_SECONDS: Final = 30.0


class SmartRemote:
    """A dataset of a server; ``url`` starts with ``odf+``.

    Attributes:
        most_bytes: maximum size of a message, sent or received.
    """

    def __init__(self, url: str, access: RemoteAccess) -> None:
        self.url = url
        self.most_bytes = access.config.sync.most_message_bytes
        self._access = access
        self._base = url.removeprefix("odf+")
        self._plain = HttpRemote(self._base, access)
        self._loop = EventLoopThread()
        self._session: SmartSession | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._locations: DownloadLocations | None = None
        self._interval: tuple[Multihash | None, Multihash] | None = None

    def head(self) -> Multihash | None:
        """Return the newest block, or None if there is no dataset yet."""
        return self._plain.head()

    def reference(self, name: str) -> Multihash | None:
        """Return the block of a reference, or None if it does not exist."""
        return self._plain.reference(name)

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return a small object."""
        return self._plain.read(kind, object_hash, at_most)

    def size(self, kind: ObjectKind, object_hash: Multihash) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        return self._plain.size(kind, object_hash)

    def block_batch(
        self, after: Multihash | None, head: Multihash
    ) -> Iterator[tuple[Multihash, bytes]] | None:
        """Yield all blocks after ``after`` up to ``head``; return None if they must be read one by one.

        Raises:
            BadData: the server sends something else; also during the iteration.
            SourceUnavailable: the server does not respond, or denies access.
        """
        self._interval = self._locations = None
        reporter = self._access.reporter
        try:
            batch = self._loop.run(self._begin(after, head), reporter)
        except (SmartProtocolUnsupported, ConnectionClosed, MessageTooLong, _NoBatch) as error:
            reporter.log(f"reading blocks one by one: {error.message}", "debug")
            return None
        return self._blocks(batch, after, head)

    def prepare(self, files: Sequence[ObjectFile], *, more: bool = False) -> None:
        """Request the URLs of the files."""
        with self._lock:
            session, self._session = self._session, None
        if session is None and self._interval is None:
            return
        reporter = self._access.reporter
        if self._locations is None:
            self._locations = DownloadLocations(
                self._base,
                self._plain.web,
                lambda part: self._loop.run(self._request_urls(part), reporter),
            )
        number = self._locations.add(files)
        if session is None:
            return
        try:
            received = self._loop.run(self._ask(session, files[:ROUND], more=more), reporter)
        except ConnectionClosed:
            # The next request opens another session.
            reporter.log("the server ended the session early", "debug")
        else:
            self._locations.add_answer(number, received)

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[memoryview]:
        """Yield a slice or checkpoint from byte ``start``, from the URL of the server."""
        chunks = None if self._locations is None else self._locations.chunks(file, start)
        return self._plain.chunks(file, start) if chunks is None else chunks

    def push(
        self, dataset: Dataset, relation: Relation, reporter: Reporter, *, force: bool, parallel: int
    ) -> ChainPush:
        """Send what ``relation`` reports as missing, and move the remote head.

        Raises:
            Conflict: the remote dataset is another one, or its head moved in the meantime.
            Unsupported: the new blocks do not fit into one message.
            OdfError: the server refused; its head is unchanged.
        """

        uploads = ObjectUploads(dataset, self._plain, self._base, reporter, parallel)
        work = SmartPush(self, dataset, self._base, self._access, reporter, uploads)
        return work.run(self._loop, relation, force=force)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            self._loop.run(session.abort(), Reporter())
        self._loop.close()
        self._plain.close()

    async def _begin(self, after: Multihash | None, head: Multihash) -> m.ObjectsBatch:
        session = await SmartSession.open(f"{self._base}pull", self._access, self.most_bytes)
        try:
            batch = await self._request(session, after, head)
        except BaseException:
            await session.abort()
            raise
        self._keep(session)
        return batch

    def _keep(self, session: SmartSession) -> None:
        """Keep a session open for the next request of URLs, for :data:`_SESSION_SECONDS`."""
        with self._lock:
            self._session = session
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_SESSION_SECONDS, self._close_kept, session)

    def _close_kept(self, session: SmartSession) -> None:
        with self._lock:
            if self._session is not session:
                return
            self._session = None
        self._loop.soon(session.close(m.PULLED))

    async def _request(
        self, session: SmartSession, after: Multihash | None, head: Multihash
    ) -> m.ObjectsBatch:
        channel = session.channel
        await channel.send(m.encode_message(m.PullRequest(after, head)))
        text = await channel.receive()
        try:
            plan = m.read_answer(text, m.PullAccepted, self.url).transfer_plan
        except BadData:
            raise
        except OdfError as error:  # reading blocks one by one shows whether it matters
            raise _NoBatch(error.message) from None
        if plan.num_blocks == 0 or plan.bytes_in_raw_blocks > MAX_UNPACKED_BYTES:
            raise _NoBatch("no blocks, or too many for one message")
        await channel.send(m.encode_message(m.Empty()))
        text = await channel.receive(expected=4 * plan.bytes_in_raw_blocks)
        batch = m.read_message(text, m.PullBlocks, self.url).blocks
        if batch.num_blocks != plan.num_blocks:
            problem = f"the server announced {plan.num_blocks:,} blocks, but sent {batch.num_blocks:,}"
            raise BadData(problem, where=self.url)
        return batch

    def _blocks(
        self, batch: m.ObjectsBatch, after: Multihash | None, head: Multihash
    ) -> Iterator[tuple[Multihash, bytes]]:
        before, last = after, after
        for block_hash, data in read_archive(m.archive_of(batch, self.url), batch.num_blocks, self.url):
            before, last = last, block_hash
            yield block_hash, data
        if last != head:
            raise BadData(f"the last block of the archive is {last}, expected {head}", where=self.url)
        self._interval = before, head  # a later request of URLs needs the last block only

    async def _request_urls(self, files: Sequence[ObjectFile]) -> Sequence[m.PullStrategy]:
        """Request URLs in a new session: the earlier one has ended."""
        if self._interval is None:  # blocks are still being received
            return ()
        session = await SmartSession.open(f"{self._base}pull", self._access, self.most_bytes)
        try:
            await self._request(session, *self._interval)
        except BaseException:
            await session.abort()
            raise
        return await self._ask(session, files)

    async def _ask(
        self, session: SmartSession, files: Sequence[ObjectFile], *, more: bool = False
    ) -> Sequence[m.PullStrategy]:
        """Request URLs, and end the session unless ``more`` requests follow."""
        strategies: Sequence[m.PullStrategy] = ()
        try:
            if files:
                await session.channel.send(
                    m.encode_message(m.PullObjects([m.ObjectReference.of(f) for f in files]))
                )
                text = await session.channel.receive(expected=2048 * len(files))
                strategies = m.read_answer(text, m.PullStrategies, self.url).object_transfer_strategies
        except BaseException:
            await session.abort()
            raise
        if more:
            self._keep(session)
        else:
            await session.close(m.PULLED)
        return strategies


class _NoBatch(OdfError):
    """The server sends no batch; blocks are read one by one instead."""


class ObjectUploads:
    """The uploads of one push.

    Attributes:
        done: number of objects that the server has.
        sent, sent_bytes: number of objects that were sent, and their bytes.
    """

    def __init__(
        self, dataset: Dataset, plain: HttpRemote, base: str, reporter: Reporter, parallel: int
    ) -> None:
        self.done = self.sent = self.sent_bytes = 0
        self._dataset, self._plain, self._web, self._base = dataset, plain, plain.web, base
        self._reporter, self._parallel = reporter, parallel
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._done_bytes = 0

    def begin(self, files: Sequence[ObjectFile]) -> None:
        """Report the amounts."""
        total = sum(file.size for file in files)
        self._reporter.set_amounts(bytes=0, total_bytes=total, files=0, total_files=len(files))

    def stop(self) -> None:
        """End running uploads; from any thread."""
        self._stopped.set()
        self._web.abort()

    def send(self, strategies: Sequence[m.PushStrategy]) -> None:
        """Upload the objects that are missing; the first failure ends all.

        Raises:
            SourceUnavailable: an upload failed.
            BadData: a URL must not be followed, or a local object is damaged.
        """
        upload_parallel(
            strategies,
            self._upload_one,
            parallel=self._parallel,
            reporter=self._reporter,
            check=self._check,
            stop=self.stop,
        )

    def send_proof(self, head: Multihash, proof: bytes) -> None:
        """Send the ownership proof of a head, if the server accepts proofs."""
        try:
            self.write("proofs", head, proof)
        except OdfError as error:
            self._reporter.log(f"ownership proof rejected by the server: {error.message}", "debug")

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Send a small file that is not part of the chain, after the push.

        Raises:
            OdfError: the server rejects it.
        """
        url = f"{self._base}{kind}/{object_hash}"
        try:
            self._web.request(
                "PUT", url, headers={"Content-Type": "application/json"}, body=RequestBody(data)
            ).close()
        except AttemptFailed as failure:
            raise failure.error from None

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Return whether the server has a file, with this size."""
        stored_size = self._plain.size(kind, object_hash)
        return stored_size is not None and size in (None, stored_size)

    def _upload_one(self, strategy: m.PushStrategy) -> None:
        file = strategy.object_file.file
        if strategy.push_strategy == "HttpUpload":
            if strategy.upload_to is None:
                raise BadData(f"the server sent no upload URL for {_name(file)}", where=self._base)
            self._upload(file, parse_transfer_url(strategy.upload_to, self._base))
            with self._lock:
                self.sent += 1
                self.sent_bytes += file.size
        else:
            self._report_sent(file.size)
        with self._lock:
            self.done += 1
        self._reporter.set_amounts(files=self.done)

    def _upload(self, file: ObjectFile, transfer: TransferTarget) -> None:
        path = self._path(file)
        for _ in read_verified_chunks(file, path):  # before anything is sent
            self._check()
        before = 0

        def on_sent(sent: int) -> None:
            nonlocal before
            self._report_sent(sent - before)
            before = sent

        def once(headers: dict[str, str]) -> None:
            typed = {"Content-Type": "application/octet-stream", **headers}
            self._web.request("PUT", transfer.url, headers=typed, body=RequestBody(path, on_sent)).close()

        def attempt() -> None:
            self._check()
            try:
                once(transfer.headers)
            except AttemptFailed as failure:
                with_bearer = _headers_with_bearer(transfer)
                if failure.again or with_bearer is None:
                    raise
                once(with_bearer)

        try:
            self._web.with_retries(attempt)
        except Cancelled:
            raise
        except (OdfError, OSError) as error:
            self._check()
            why = error.message if isinstance(error, OdfError) else f"{error.strerror}"
            hint = "push again; the remote head is unchanged"
            raise SourceUnavailable(
                f"upload of {_name(file)} failed: {why}", where=getattr(error, "where", None), hint=hint
            ) from error

    def _path(self, file: ObjectFile) -> Path:
        return self._dataset.object_path(file.kind, file.hash)

    def _check(self) -> None:
        self._reporter.raise_if_cancelled()
        if self._stopped.is_set():
            raise Cancelled

    def _report_sent(self, more: int) -> None:
        self._check()
        with self._lock:
            self._done_bytes += more
        self._reporter.set_amounts(bytes=self._done_bytes)


def _headers_with_bearer(transfer: TransferTarget) -> dict[str, str] | None:
    """Return headers with ``Bearer`` added to the token of a URL of the server: older servers omit it."""
    names = [name for name in transfer.headers if name.lower() == "authorization"]
    if not transfer.own or not names or " " in transfer.headers[names[0]]:
        return None
    return {**transfer.headers, names[0]: f"Bearer {transfer.headers[names[0]]}"}


def _name(file: ObjectFile) -> str:
    return f"{file.kind}/{file.hash}"


_ROUND: Final = 10_000
_AROUND_PAYLOAD: Final = 1024
_MAX_CONFIRMATIONS: Final = 100
_VERIFIED_PER_SECOND: Final = 10 << 20  # bytes per second that a server verifies before it moves the head
_REPORT_TIMEOUT: Final = 7 * 86_400.0


class _Outgoing(NamedTuple):
    """Blocks, oldest first, the objects that they refer to, and the objects that their slices link to."""

    head: Multihash
    blocks: list[Multihash]
    files: list[ObjectFile]
    linked: list[ObjectFile]
    plan: m.TransferPlan


class SmartPush:
    """One push.

    Attributes:
        quiet_seconds: timeout for further messages after the last one.
        quiet_times: number of such timeouts before the push fails without the new head.
    """

    quiet_seconds = 2.0
    quiet_times = 5

    def __init__(
        self,
        remote: SmartRemote,
        dataset: Dataset,
        base: str,
        access: RemoteAccess,
        reporter: Reporter,
        uploads: ObjectUploads,
    ) -> None:
        self._remote = remote
        self._dataset = dataset
        self._base = base
        self._access = access
        self._reporter = reporter
        self._uploads = uploads

    def run(self, loop: EventLoopThread, relation: Relation, *, force: bool) -> ChainPush:
        """Push what ``relation`` reports as missing; see :meth:`SmartRemote.push`."""
        theirs = self._remote.head()
        other = relation.kind in ("behind", "diverged")
        if other and not force:
            raise Conflict("the remote dataset has blocks that the local one lacks", where=self._remote.url)
        common = None if other else relation.common
        if not other and common != theirs:
            raise Conflict("the remote head has moved", where=self._remote.url, hint="push again")
        new = self._collect(common)
        if new.head == theirs:
            self._send_proof(new.head)  # which may be newer than the head
            return self._pushed(theirs, new, "up-to-date")
        archive = self._archive(new.blocks)
        try:
            loop.run(self._exchange(new, archive, theirs, common), self._reporter)
        except ConnectionClosed as error:
            raise m.problem_of_close(error.reason, self._remote.url) or error from None
        except SmartProtocolUnsupported as error:
            hint = error.hint or "push to a server that allows it, such as: odf serve --allow-push"
            problem = f"the server does not accept pushes: {error.message}"
            raise Unsupported(problem, where=self._remote.url, hint=hint) from None
        return self._pushed(theirs, new, "updated")

    def _pushed(self, theirs: Multihash | None, new: _Outgoing, status: str) -> ChainPush:
        updated = status == "updated"
        return ChainPush(
            status="updated" if updated else "up-to-date",
            old_head=theirs,
            new_head=new.head,
            blocks=len(new.blocks) if updated else 0,
            objects=self._uploads.sent,
            bytes=self._uploads.sent_bytes + (new.plan.bytes_in_raw_blocks if updated else 0),
            relation=Relation("equal", 0, 0, new.head),
        )

    def _collect(self, common: Multihash | None) -> _Outgoing:
        """Return the blocks since ``common``; each is read and verified, newest first."""
        head = at = self._dataset.head()
        if head is None:
            raise NotFound("the dataset is empty: there is nothing to push", where=str(self._dataset.folder))
        blocks: list[Multihash] = []
        files: dict[ObjectFile, None] = {}
        records = raw = 0
        while at is not None and at != common:
            self._reporter.raise_if_cancelled()
            stored = self._dataset.block(at)
            event = stored.block.event
            if (checkpoint := getattr(event, "new_checkpoint", None)) is not None:
                files[ObjectFile("checkpoints", checkpoint.physical_hash, checkpoint.size)] = None
            if (data := getattr(event, "new_data", None)) is not None:
                files[ObjectFile("data", data.physical_hash, data.size)] = None
                records += data.offset_interval.end - data.offset_interval.start + 1
            raw += stored.size
            blocks.append(at)
            at = stored.block.prev_block_hash
        if at != common:
            place = str(self._dataset.folder)
            raise Conflict("the dataset was reset during the push", where=place, hint="push again")
        linked = linked_files(self._dataset, common, self._reporter)
        total = sum(file.size for file in (*files, *linked))
        plan = m.TransferPlan(len(blocks), len(files) + len(linked), records, raw, total)
        return _Outgoing(head, blocks[::-1], list(files)[::-1], linked, plan)

    def _archive(self, blocks: Sequence[Multihash]) -> bytes:
        def read() -> Iterator[tuple[Multihash, bytes]]:
            for block in blocks:
                self._reporter.raise_if_cancelled()
                data = self._dataset.block_bytes(block)
                if Multihash.sha3_256(data) != block:
                    raise BadData(f"local block {block} is damaged", where=str(self._dataset.folder))
                yield block, data

        max_bytes = int((self._remote.most_bytes - _AROUND_PAYLOAD) / MAX_PACKED_SHARE)
        return write_archive(read(), max_bytes)

    async def _exchange(
        self, new: _Outgoing, archive: bytes, theirs: Multihash | None, common: Multihash | None
    ) -> None:
        force = theirs is not None and common is None
        url = f"{self._base}push"
        async with await SmartSession.open(url, self._access, self._remote.most_bytes) as session:
            channel = session.channel
            await channel.send(m.encode_message(m.PushRequest(new.plan, theirs, force)))
            m.read_answer(await channel.receive(), m.Empty, self._base)
            blocks = m.PushBlocks(m.batch_of(len(new.blocks), archive))
            await channel.send(m.encode_message(blocks))
            text = await channel.receive(expected=4 * new.plan.bytes_in_raw_blocks)
            m.read_answer(text, m.Empty, self._base)
            self._reporter.phase("send")
            self._uploads.begin([*new.files, *new.linked])
            # The server can read the links of the slices only after it has received them.
            rounds = [
                files[start : start + _ROUND]
                for files in (new.files, new.linked)
                for start in range(0, len(files), _ROUND)
            ] or [[]]
            for number, part in enumerate(rounds, 1):
                await self._send_round(channel, part, more=number < len(rounds))
            self._reporter.phase("commit")
            await channel.send(m.encode_message(m.Empty()))
            await self._confirm(channel, new)
            await channel.close(reason=m.PUSHED)
        await asyncio.to_thread(self._send_proof, new.head)
        await asyncio.to_thread(self._send_other_files, common)

    async def _send_round(self, channel: MessageChannel, part: Sequence[ObjectFile], *, more: bool) -> None:
        asked = m.PushObjects([m.ObjectReference.of(file) for file in part], more)
        await channel.send(m.encode_message(asked))
        text = await channel.receive(expected=2048 * len(part))
        received = m.read_answer(text, m.PushStrategies, self._base).object_transfer_strategies
        strategies = {strategy.object_file.file: strategy for strategy in received}
        missing = [file for file in part if file not in strategies]
        if missing:
            file = missing[0]
            raise BadData(f"the response of the server lacks {file.kind}/{file.hash}", where=self._base)
        reports = asyncio.create_task(self._report(channel))
        received = [strategies[file] for file in part]
        uploads = asyncio.create_task(asyncio.to_thread(self._uploads.send, received))
        try:
            await asyncio.wait({reports, uploads}, return_when=asyncio.FIRST_COMPLETED)
            if reports.done() and not uploads.done():
                await reports  # ends only with an error
            await uploads
        finally:
            if not uploads.done():
                self._uploads.stop()
            reports.cancel()
            await asyncio.gather(reports, uploads, return_exceptions=True)
        await channel.send(m.encode_message(m.PushProgress("Complete")))

    async def _report(self, channel: MessageChannel) -> None:
        """Report the progress of the uploads whenever the server requests it."""
        while True:
            m.read_answer(await channel.receive(patience=_REPORT_TIMEOUT), m.Empty, self._base)
            running = m.RunningDetails(m.Running(self._uploads.done))
            await channel.send(m.encode_message(m.PushProgress(running)))

    async def _confirm(self, channel: MessageChannel, new: _Outgoing) -> None:
        """Wait until the remote head is the new one.

        ``{}`` may also be a request for the progress, so the head is read.
        """
        fetch, raw = self._access.config.fetch, new.plan.bytes_in_raw_objects
        waited = fetch.read_timeout_seconds + raw / _VERIFIED_PER_SECOND
        quiet = confirmations = 0
        while True:
            try:
                m.read_answer(await channel.receive(patience=waited), m.Empty, self._base)
                confirmations += 1
            except ConnectionClosed as error:
                problem = m.problem_of_close(error.reason, self._base)
                if problem is not None and error.reason.startswith("{"):
                    raise problem from None
                quiet = self.quiet_times
            except ReceiveTimeout:
                quiet += 1
            waited = self.quiet_seconds
            if await asyncio.to_thread(self._remote.head) == new.head:
                return
            if quiet >= self.quiet_times or confirmations > _MAX_CONFIRMATIONS:
                problem = "the server accepted the push, but its head is not the new one"
                raise SourceUnavailable(problem, where=self._remote.url, hint="push again")

    def _send_proof(self, head: Multihash) -> None:
        """Send the ownership proof of the head, if it is stored locally and missing on the server."""
        try:
            proof = read_proof(self._dataset.folder, head)
            if proof is None:
                return
            with suppress(NotFound):
                if self._remote.read("proofs", head, MAX_PROOF_BYTES) == bytes(proof):
                    return
            self._uploads.send_proof(head, bytes(proof))
        except Cancelled:
            return  # the push is done
        except OdfError as error:
            self._reporter.log(f"ownership proof of the head not sent: {error.message}", "warning")

    def _send_other_files(self, common: Multihash | None) -> None:
        """Send compaction records and results of checks, if the server accepts them."""
        try:
            send_records(self._dataset, self._uploads, self._reporter)
            send_reports(self._dataset, self._uploads, common, self._reporter)
        except Cancelled:
            return  # the push is done
        except OdfError as error:
            text = f"the server does not accept records of compactions or checks: {error.message}"
            self._reporter.log(text, "debug")
