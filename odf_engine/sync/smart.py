"""Datasets at servers that speak the smart transfer protocol: many blocks in one message, objects by URLs.

The head, single blocks and whatever the smart protocol does not give are read by the simple protocol from
the same address.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from odf_engine.chain.chain import Dataset
from odf_engine.errors import BadData, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.progress import Reporter
from odf_engine.sync import messages as m
from odf_engine.sync.archive import MOST_UNPACKED_BYTES, read_archive
from odf_engine.sync.compare import Relation
from odf_engine.sync.frames import PeerGone, TooLong
from odf_engine.sync.http import HttpRemote
from odf_engine.sync.places import Access
from odf_engine.sync.push import Pushed
from odf_engine.sync.remote import ObjectFile, ObjectKind
from odf_engine.sync.smart_objects import Strategies
from odf_engine.sync.smart_socket import LoopThread, NotSmart, SmartSession

_KEPT_SECONDS: Final = 30.0


class SmartRemote:
    """A dataset at a server; ``url`` starts with ``odf+``.

    Attributes:
        most_bytes: of a message, either way.
    """

    def __init__(self, url: str, access: Access) -> None:
        self.url = url
        self.most_bytes = access.config.sync.most_message_bytes
        self._access = access
        self._base = url.removeprefix("odf+")
        self._plain = HttpRemote(self._base, access)
        self._loop = LoopThread()
        self._session: SmartSession | None = None
        self._lock = threading.Lock()
        self._strategies: Strategies | None = None
        self._interval: tuple[Multihash | None, Multihash] | None = None

    # --- What the simple protocol does ---

    def head(self) -> Multihash | None:
        """The newest block; None when there is no dataset yet."""
        return self._plain.head()

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """A small object as a whole."""
        return self._plain.read(kind, object_hash, at_most)

    # --- Pull ---

    def batch(self, after: Multihash | None, head: Multihash) -> Iterator[tuple[Multihash, bytes]] | None:
        """All blocks after ``after`` up to ``head``; None where they have to be read one by one.

        Raises:
            BadData: the server sends something else; while iterating, too.
            SourceUnavailable: it is silent, or denies access.
        """
        self._interval = self._strategies = None
        reporter = self._access.reporter
        try:
            batch = self._loop.run(self._begin(after, head), reporter)
        except (NotSmart, PeerGone, TooLong, _NoBatch) as error:
            reporter.line(f"blocks are read one by one: {error.message}", "debug")
            return None
        return self._blocks(batch, after, head)

    def prepare(self, files: Sequence[ObjectFile]) -> None:
        """Asks from where the files can be read."""
        with self._lock:
            session, self._session = self._session, None
        if self._interval is None:
            return
        reporter = self._access.reporter
        strategies = Strategies(
            files, self._base, self._plain.web, lambda part: self._loop.run(self._ask(part), reporter)
        )
        if session is not None and (first := strategies.first()):
            try:
                strategies.learn(0, self._loop.run(self._ask_last(session, first), reporter))
            except PeerGone:
                reporter.line("the server ended the session early", "debug")  # it is asked again
        elif session is not None:
            self._loop.run(session.close(m.PULLED), reporter)
        self._strategies = strategies

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes]:
        """A slice or checkpoint from byte ``start`` on, from where the server says that it is."""
        found = None if self._strategies is None else self._strategies.chunks(file, start)
        return self._plain.chunks(file, start) if found is None else found

    # --- Push ---

    def push(
        self, dataset: Dataset, relation: Relation, reporter: Reporter, *, force: bool, parallel: int
    ) -> Pushed:
        """Sends what ``relation`` says the other side does not have, and has its head moved.

        Raises:
            Conflict: the dataset there is another one, or its head moved meanwhile.
            Unsupported: the new blocks do not fit into one message.
            OdfError: the server refused; its head is what it was.
        """
        from odf_engine.sync.smart_put import Uploads
        from odf_engine.sync.smart_upload import SmartPush

        uploads = Uploads(dataset, self._plain.web, self._base, reporter, parallel)
        work = SmartPush(self, dataset, self._base, self._access, reporter, uploads)
        return work.run(self._loop, relation, force=force)

    def close(self) -> None:
        """Lets go of all connections."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            self._loop.run(session.abort(), Reporter())
        self._loop.close()
        self._plain.close()

    # --- Inside ---

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
        """Keeps a session for the question after objects, but not for long."""
        with self._lock:
            self._session = session
        asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._let_go, session)

    def _let_go(self, session: SmartSession) -> None:
        with self._lock:
            if self._session is not session:
                return
            self._session = None
        self._loop.soon(session.close(m.PULLED))

    async def _request(
        self, session: SmartSession, after: Multihash | None, head: Multihash
    ) -> m.ObjectsBatch:
        channel = session.channel
        await channel.send(m.text_of(m.PullRequest(after, head)))
        text = await channel.receive()
        try:
            plan = m.read_answer(text, m.PullAccepted, self.url).transfer_plan
        except BadData:
            raise
        except OdfError as error:  # what the server says; whether it matters is seen without its help
            raise _NoBatch(error.message) from None
        if plan.num_blocks == 0 or plan.bytes_in_raw_blocks > MOST_UNPACKED_BYTES:
            raise _NoBatch("the server has none of them, or too many for one message")
        await channel.send(m.text_of(m.Empty()))
        text = await channel.receive(expected=4 * plan.bytes_in_raw_blocks)
        batch = m.read_message(text, m.PullBlocks, self.url).blocks
        if batch.num_blocks != plan.num_blocks:
            problem = f"the server announced {plan.num_blocks:,} blocks and sends {batch.num_blocks:,}"
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
            raise BadData(f"the last block of the archive is {last}, not {head}", where=self.url)
        self._interval = before, head  # asking for objects again does not need more than the last block

    async def _ask(self, files: Sequence[ObjectFile]) -> Sequence[m.PullStrategy]:
        """Asks in a session of its own; what objects were asked for before is over by now."""
        assert self._interval is not None
        session = await SmartSession.open(f"{self._base}pull", self._access, self.most_bytes)
        try:
            await self._request(session, *self._interval)
        except BaseException:
            await session.abort()
            raise
        return await self._ask_last(session, files)

    async def _ask_last(self, session: SmartSession, files: Sequence[ObjectFile]) -> Sequence[m.PullStrategy]:
        """Asks, and ends the session."""
        found: Sequence[m.PullStrategy] = ()
        try:
            if files:
                await session.channel.send(m.text_of(m.PullObjects([m.ObjectReference.of(f) for f in files])))
                text = await session.channel.receive(expected=2048 * len(files))
                found = m.read_answer(text, m.PullStrategies, self.url).object_transfer_strategies
        except BaseException:
            await session.abort()
            raise
        await session.close(m.PULLED)
        return found


class _NoBatch(OdfError):
    """There is no batch, for a reason that reading blocks one by one may do without."""
