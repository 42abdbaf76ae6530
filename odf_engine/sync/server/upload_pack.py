"""Server side of a smart pull; session handling."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from aiohttp import WSCloseCode, web

from odf_engine.chain.block_index import BlockIndex, BlockPosition
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import NotFound, OdfError, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.object_store import find_object_name
from odf_engine.sync.remotes.base import ObjectFile
from odf_engine.sync.server.service import DatasetService, ServedDataset
from odf_engine.sync.smart import messages as m
from odf_engine.sync.smart.messages import VERSION, VERSION_HEADER, error_text, write_archive
from odf_engine.sync.smart.websocket import MAX_PACKED_SHARE, ConnectionClosed, MessageChannel

CLIENT: Final = "the client"
_CLOSE_SECONDS: Final = 5.0
_JSON: Final = "application/json"


class SessionRefused(OdfError):
    """An error that ends the session, sent to the client as ``{"Err": {kind: details}}``.

    Attributes:
        as_answer: whether it is the response to the client's last message; otherwise only the close frame
            contains it.
        text: the JSON text.
    """

    def __init__(self, kind: str, *, as_answer: bool = True, **details: object) -> None:
        super().__init__(kind)
        self.as_answer = as_answer
        self.text = error_text(kind, **details)


def internal_error(
    error: OdfError, phase: tuple[str, str], *, newer: bool, as_answer: bool = True
) -> SessionRefused:
    """Return the error for a client: only its message, since the rest contains local paths.

    Args:
        error: the error.
        phase: ``Pull`` or ``Push``, and the name of the step.
        newer: whether the client uses the newer protocol version.
        as_answer: as in :class:`SessionRefused`.
    """
    phases: dict[str, object] = {"phase": {phase[0]: phase[1]}} if newer else {}
    return SessionRefused("Internal", as_answer=as_answer, **phases, error_message=error.message)


async def run_session(
    request: web.BaseRequest,
    serving: DatasetService,
    protocol: Callable[[MessageChannel, bool], Awaitable[None]],
    *,
    max_bytes: int | None = None,
) -> web.StreamResponse:
    """Upgrade a request to a WebSocket and run a protocol.

    Args:
        request: the HTTP request.
        serving: provides the limits.
        protocol: the protocol; receives the channel, and whether the client uses the newer protocol version.
        max_bytes: maximum size of a client message, if below the general limit.
    """
    version = request.headers.get(VERSION_HEADER)
    if version not in (None, VERSION):
        return web.Response(status=400, text='{"message":"Incompatible client version"}', content_type=_JSON)
    max_message_bytes = serving.limits.most_message_bytes
    socket = web.WebSocketResponse(
        max_msg_size=min(max_bytes or max_message_bytes, max_message_bytes),
        compress=False,
        timeout=_CLOSE_SECONDS,
    )
    try:
        is_handshake = socket.can_prepare(request).ok
    except ValueError:  # a header of the handshake is not ASCII
        is_handshake = False
    if not is_handshake:
        headers = {"Upgrade": "websocket"}
        return web.Response(status=426, text="use the smart transfer protocol\n", headers=headers)
    await socket.prepare(request)
    transport = request.transport
    if transport is None:
        return socket
    assert isinstance(transport, asyncio.Transport)
    channel = MessageChannel(
        socket, transport, CLIENT, patience=serving.limits.idle_seconds, most_bytes=max_message_bytes
    )
    await _run_and_close(channel, protocol(channel, version is not None))
    return socket


async def _run_and_close(channel: MessageChannel, protocol: Awaitable[None]) -> None:
    """Run the protocol, and close the session in any case."""
    try:
        await protocol
        await channel.close()
    except ConnectionClosed:
        pass
    except SessionRefused as refusal:
        await _send_refusal(channel, refusal)
    except OdfError as error:
        await channel.close(WSCloseCode.INTERNAL_ERROR, error_text("Internal", error_message=error.message))
    except BaseException:
        channel.abort()
        raise


async def until_closed(channel: MessageChannel) -> None:
    """Wait briefly for the client to close the session."""
    with suppress(OdfError):
        await channel.receive(patience=_CLOSE_SECONDS)


async def _send_refusal(channel: MessageChannel, refusal: SessionRefused) -> None:
    with suppress(OdfError):
        if refusal.as_answer:
            await channel.send(refusal.text)
    await channel.close(WSCloseCode.INTERNAL_ERROR, refusal.text)


_MIN_BYTES_PER_SECOND: Final = 64 << 10  # bytes per second, of objects
_MAX_OBJECTS: Final = 50_000
_ASKED_MIN, _ASKED_EACH = 1 << 16, 256
_MAX_RAW_RATIO: Final = 40
"""Blocks larger than this many times the message limit are not even compressed."""


class _Interval(NamedTuple):
    """The requested blocks: those after ``after`` (None: from the first) up to ``stop``."""

    after: Multihash | None
    stop: Multihash
    plan: m.TransferPlan


async def serve_pull(request: web.BaseRequest, dataset: ServedDataset) -> web.StreamResponse:
    """Serve the session of a pull.

    Args:
        request: the HTTP request to upgrade.
        dataset: the dataset.
    """
    ending = asyncio.create_task(dataset.serving.stopping.wait())
    try:
        max_bytes = await dataset.serving.run(_max_request_bytes, dataset.entry.dataset)
        return await run_session(
            request,
            dataset.serving,
            lambda channel, newer: _PullSession(dataset, channel, newer).run(ending),
            max_bytes=max_bytes,
        )
    finally:
        ending.cancel()


class _PullSession:
    """The session of a pull."""

    def __init__(self, served: ServedDataset, channel: MessageChannel, newer: bool) -> None:
        self._dataset = served.entry.dataset
        self._serving = served.serving
        self._url = served.url
        self._channel = channel
        self._newer = newer

    async def run(self, stopping: asyncio.Task[bool]) -> None:
        """Run the protocol until it ends or the server stops."""
        protocol = asyncio.create_task(self._run_protocol())
        try:
            await asyncio.wait({protocol, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if protocol.done():
                await protocol
        finally:
            if not protocol.done():
                protocol.cancel()
                await asyncio.gather(protocol, return_exceptions=True)
                await self._channel.close(WSCloseCode.GOING_AWAY, "the server is stopping")

    async def _run_protocol(self) -> None:
        channel, serving = self._channel, self._serving
        request = m.read_message(await channel.receive(), m.PullRequest, CLIENT)
        try:
            interval = await serving.run(self._interval, request)
        except SessionRefused:
            raise
        except OdfError as error:
            raise internal_error(error, ("Pull", "InitialRequest"), newer=self._newer) from None
        await channel.send(m.answer_text(m.PullAccepted(interval.plan)))
        m.read_message(await channel.receive(), m.Empty, CLIENT)
        try:
            # Requests for the same blocks share one message.
            key = self._dataset.folder, interval.after, interval.stop
            message = await serving.messages.get(key, partial(self._pack_blocks, interval))
        except OdfError as error:
            phase = ("Pull", "MetadataRequest")
            raise internal_error(error, phase, newer=self._newer, as_answer=False) from None
        await channel.send_pieces(message.size, message.read)
        patience = serving.limits.idle_seconds
        while True:
            object_request = m.read_message(await channel.receive(patience=patience), m.PullObjects, CLIENT)
            try:
                response, size = await serving.run(self._strategies, object_request)
            except OdfError as error:
                phase = ("Pull", "ObjectsRequest")
                raise internal_error(error, phase, newer=self._newer, as_answer=False) from None
            await channel.send(response)
            # Older clients keep the session open until they have downloaded everything.
            patience = serving.limits.idle_seconds + size / _MIN_BYTES_PER_SECOND

    def _interval(self, request: m.PullRequest) -> _Interval:
        dataset, after = self._dataset, request.begin_after
        head = dataset.head()
        if head is None:
            raise NotFound("the dataset is empty")
        stop = request.stop_at or head
        interval = dataset.query_index(
            lambda index, position: (_find_interval(index, position, after, stop),)
        )[0]
        if interval is None:
            raise SessionRefused("InvalidInterval", head=stop, tail=after or stop)
        if interval.plan.bytes_in_raw_blocks > _MAX_RAW_RATIO * self._serving.limits.most_message_bytes:
            raise Unsupported("too many blocks for one message; read them one by one")
        return interval

    def _pack_blocks(self, interval: _Interval) -> bytes:
        def read_hashes(index: BlockIndex, position: BlockPosition) -> list[Multihash]:
            between = _sequence_range(index, position, interval.after, interval.stop)
            if between is None:
                raise NotFound("the dataset was replaced")
            rows = index.query_rows(f"SELECT hash FROM blocks WHERE {_WITHIN} ORDER BY sequence", *between)
            return [Multihash.from_bytes(row[0]) for row in rows]

        hashes = self._dataset.query_index(read_hashes)
        max_bytes = int((self._serving.limits.most_message_bytes - 1024) / MAX_PACKED_SHARE)
        archive = write_archive(_read_blocks(self._dataset, hashes), max_bytes)
        return m.encode_message(m.PullBlocks(m.batch_of(len(hashes), archive)))

    def _strategies(self, request: m.PullObjects) -> tuple[bytes, int]:
        if len(request.object_files) > _MAX_OBJECTS:
            raise Unsupported(f"at most {_MAX_OBJECTS:,} objects per request")
        strategies = [self._strategy(reference) for reference in request.object_files]
        size = sum(reference.size for reference in request.object_files)
        return m.encode_message(m.PullStrategies(strategies)), size

    def _strategy(self, reference: m.ObjectReference) -> m.PullStrategy:
        file = reference.file
        if (name := find_object(self._dataset, file)) is None:
            raise NotFound(f"{file.kind}/{file.hash} of this size not found")
        return m.PullStrategy(reference, "HttpDownload", m.TransferUrl(f"{self._url}{file.kind}/{name}", []))


def _max_request_bytes(dataset: Dataset) -> int:
    """Return the maximum size of a message that requests all objects of a dataset."""
    try:
        slices = dataset.state().slices
    except OdfError:
        slices = 0  # the client gets this error in the session
    return _ASKED_MIN + _ASKED_EACH * min(2 * slices, _MAX_OBJECTS)


def find_object(dataset: Dataset, file: ObjectFile) -> str | None:
    """Return the name of the dataset's object with this size, or None."""
    objects = dataset.objects(file.kind)
    name = find_object_name(objects, file.hash)
    try:
        return name if name is not None and objects.size(name) == file.size else None
    except NotFound:
        return None  # removed by another process


_WITHIN: Final = "chain = ? AND sequence > ? AND sequence <= ?"


def _find_interval(
    index: BlockIndex, position: BlockPosition, after: Multihash | None, stop: Multihash
) -> _Interval | None:
    """Return the blocks after ``after`` up to ``stop``, or None if one of them is not in the chain in this
    order.
    """
    between = _sequence_range(index, position, after, stop)
    if between is None:
        return None
    ((blocks, raw),) = index.query_rows(
        f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM blocks WHERE {_WITHIN}", *between
    )
    ((slices, size, records),) = index.query_rows(
        "SELECT COUNT(*), COALESCE(SUM(size), 0), COALESCE(SUM(last - first + 1), 0) FROM slices"
        f" WHERE {_WITHIN}",
        *between,
    )
    # Checkpoints are not counted: the plan serves progress bars only.
    return _Interval(after, stop, m.TransferPlan(blocks, slices, max(0, records), raw, max(0, size)))


def _sequence_range(
    index: BlockIndex, position: BlockPosition, after: Multihash | None, stop: Multihash
) -> tuple[int, int, int] | None:
    """Return the chain and the sequence numbers of the interval; the first is exclusive."""
    last = _sequence_number(index, position, stop)
    first = -1 if after is None else _sequence_number(index, position, after)
    if last is None or first is None or first > last:
        return None
    return position.chain, first, last


def _sequence_number(index: BlockIndex, position: BlockPosition, block: Multihash) -> int | None:
    block_position = index.position(block)
    if (
        block_position is None
        or block_position.chain != position.chain
        or block_position.sequence > position.sequence
    ):
        return None
    return block_position.sequence


def _read_blocks(dataset: Dataset, hashes: list[Multihash]) -> Iterator[tuple[Multihash, bytes]]:
    for block_hash in hashes:
        yield block_hash, dataset.block_bytes(block_hash)
