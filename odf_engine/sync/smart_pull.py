"""The server's side of a smart pull: blocks in one archive, then from where objects can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from aiohttp import WSCloseCode, web

from odf_engine.chain.chain import Dataset
from odf_engine.chain.index import ChainIndex, Position
from odf_engine.errors import NotFound, OdfError, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.objects import LocalObjects, find_name
from odf_engine.sync import messages as m
from odf_engine.sync.archive import write_archive
from odf_engine.sync.frames import MOST_PACKED_SHARE, Channel
from odf_engine.sync.remote import ObjectFile
from odf_engine.sync.serving import Served
from odf_engine.sync.smart_session import CLIENT, Refusal, converse, internal

_SLOWEST: Final = 64 << 10  # bytes a second, of objects
_MOST_OBJECTS: Final = 50_000
_ASKED_LEAST, _ASKED_EACH = 1 << 16, 256
_MOST_RAW: Final = 40
"""Blocks of so many times the size of a message are not even packed."""


class _Interval(NamedTuple):
    """The blocks that a client asks for: those after ``after`` (None: from the first) up to ``stop``."""

    after: Multihash | None
    stop: Multihash
    plan: m.TransferPlan


async def pull(request: web.BaseRequest, dataset: Served) -> web.StreamResponse:
    """Holds the session of a pull.

    Args:
        request: what wants to become the session.
        dataset: what is pulled.
    """
    ending = asyncio.create_task(dataset.serving.stopping.wait())
    try:
        most = await dataset.serving.run(_most_asked, dataset.entry.dataset)
        return await converse(
            request,
            dataset.serving,
            lambda channel, newer: _Pull(dataset, channel, newer).run(ending),
            most_bytes=most,
        )
    finally:
        ending.cancel()


class _Pull:
    """One session."""

    def __init__(self, served: Served, channel: Channel, newer: bool) -> None:
        self._dataset = served.entry.dataset
        self._serving = served.serving
        self._url = served.url
        self._channel = channel
        self._newer = newer

    async def run(self, stopping: asyncio.Task[bool]) -> None:
        """The conversation; a server that stops ends it."""
        talk = asyncio.create_task(self._talk())
        try:
            await asyncio.wait({talk, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if talk.done():
                await talk
        finally:
            if not talk.done():
                talk.cancel()
                await asyncio.gather(talk, return_exceptions=True)
                await self._channel.close(WSCloseCode.GOING_AWAY, "the server stops")

    async def _talk(self) -> None:
        channel, serving = self._channel, self._serving
        request = m.read_message(await channel.receive(), m.PullRequest, CLIENT)
        try:
            interval = await serving.run(self._interval, request)
        except Refusal:
            raise
        except OdfError as error:
            raise internal(error, ("Pull", "InitialRequest"), newer=self._newer) from None
        await channel.send(m.answer_text(m.PullAccepted(interval.plan)))
        m.read_message(await channel.receive(), m.Empty, CLIENT)
        try:
            # Who asks for the same blocks is sent the same message.
            key = self._dataset.folder, interval.after, interval.stop
            message = await serving.messages.get(key, partial(self._blocks, interval))
        except OdfError as error:
            phase = ("Pull", "MetadataRequest")
            raise internal(error, phase, newer=self._newer, as_answer=False) from None
        await channel.send_pieces(message.size, message.read)
        patience = serving.limits.idle_seconds
        while True:
            asked = m.read_message(await channel.receive(patience=patience), m.PullObjects, CLIENT)
            try:
                answer, size = await serving.run(self._strategies, asked)
            except OdfError as error:
                phase = ("Pull", "ObjectsRequest")
                raise internal(error, phase, newer=self._newer, as_answer=False) from None
            await channel.send(answer)
            # Older clients keep the session until they have fetched everything.
            patience = serving.limits.idle_seconds + size / _SLOWEST

    # --- In threads ---

    def _interval(self, request: m.PullRequest) -> _Interval:
        dataset, after = self._dataset, request.begin_after
        head = dataset.head()
        if head is None:
            raise NotFound("the dataset is empty")
        stop = request.stop_at or head
        found = dataset.indexed(lambda index, at: (_found(index, at, after, stop),))[0]
        if found is None:
            raise Refusal("InvalidInterval", head=stop, tail=after or stop)
        if found.plan.bytes_in_raw_blocks > _MOST_RAW * self._serving.limits.most_message_bytes:
            raise Unsupported("there are too many blocks for one message; read them one by one")
        return found

    def _blocks(self, interval: _Interval) -> bytes:
        def ask(index: ChainIndex, at: Position) -> list[Multihash]:
            between = _between(index, at, interval.after, interval.stop)
            if between is None:
                raise NotFound("the dataset was replaced meanwhile")
            rows = index.rows(f"SELECT hash FROM blocks WHERE {_WITHIN} ORDER BY sequence", *between)
            return [Multihash.from_bytes(row[0]) for row in rows]

        hashes = self._dataset.indexed(ask)
        most = int((self._serving.limits.most_message_bytes - 1024) / MOST_PACKED_SHARE)
        archive = write_archive(_read(self._dataset, hashes), most)
        return m.text_of(m.PullBlocks(m.batch_of(len(hashes), archive)))

    def _strategies(self, asked: m.PullObjects) -> tuple[bytes, int]:
        if len(asked.object_files) > _MOST_OBJECTS:
            raise Unsupported(f"at most {_MOST_OBJECTS:,} objects can be asked for at once")
        told = [self._strategy(reference) for reference in asked.object_files]
        size = sum(reference.size for reference in asked.object_files)
        return m.text_of(m.PullStrategies(told)), size

    def _strategy(self, reference: m.ObjectReference) -> m.PullStrategy:
        file = reference.file
        if (name := find(self._dataset, file)) is None:
            raise NotFound(f"{file.kind}/{file.hash} of this size is not here")
        return m.PullStrategy(reference, "HttpDownload", m.TransferUrl(f"{self._url}{file.kind}/{name}", []))


def _most_asked(dataset: Dataset) -> int:
    """How long a message of a client can be that asks for all objects of a dataset."""
    try:
        slices = dataset.state().slices
    except OdfError:
        slices = 0  # the client is told of it in the session
    return _ASKED_LEAST + _ASKED_EACH * min(2 * slices, _MOST_OBJECTS)


def find(dataset: Dataset, file: ObjectFile) -> str | None:
    """The name under which a dataset has an object of this size."""
    objects = LocalObjects(dataset.folder / file.kind)
    name = find_name(objects, file.hash)
    try:
        return name if name is not None and objects.size(name) == file.size else None
    except NotFound:
        return None  # it is gone since


_WITHIN: Final = "chain = ? AND sequence > ? AND sequence <= ?"


def _found(index: ChainIndex, at: Position, after: Multihash | None, stop: Multihash) -> _Interval | None:
    """The blocks after ``after`` up to ``stop``; None where one of them is no part of the chain so."""
    between = _between(index, at, after, stop)
    if between is None:
        return None
    ((blocks, raw),) = index.rows(
        f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM blocks WHERE {_WITHIN}", *between
    )
    ((slices, size, records),) = index.rows(
        "SELECT COUNT(*), COALESCE(SUM(size), 0), COALESCE(SUM(last - first + 1), 0) FROM slices"
        f" WHERE {_WITHIN}",
        *between,
    )
    # Checkpoints are not counted: the plan is for progress bars.
    return _Interval(after, stop, m.TransferPlan(blocks, slices, max(0, records), raw, max(0, size)))


def _between(
    index: ChainIndex, at: Position, after: Multihash | None, stop: Multihash
) -> tuple[int, int, int] | None:
    """The chain, and the numbers between which the blocks are: the first of them exclusive."""
    last = _number(index, at, stop)
    first = -1 if after is None else _number(index, at, after)
    if last is None or first is None or first > last:
        return None
    return at.chain, first, last


def _number(index: ChainIndex, at: Position, block: Multihash) -> int | None:
    found = index.position(block)
    if found is None or found.chain != at.chain or found.sequence > at.sequence:
        return None
    return found.sequence


def _read(dataset: Dataset, hashes: list[Multihash]) -> Iterator[tuple[Multihash, bytes]]:
    for block_hash in hashes:
        yield block_hash, dataset.block_bytes(block_hash)
