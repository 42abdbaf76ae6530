"""What both ways of the smart protocol have in common at a server: the door, and how errors are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from aiohttp import WSCloseCode, web

from odf_engine.errors import OdfError
from odf_engine.sync.frames import Channel, PeerGone
from odf_engine.sync.messages import VERSION, VERSION_HEADER, error_text
from odf_engine.sync.serving import Serving

CLIENT: Final = "the client"
_CLOSE_SECONDS: Final = 5.0
_JSON: Final = "application/json"


class Refusal(OdfError):
    """What is told to the client: ``{"Err": {kind: details}}``, and then the session ends.

    Attributes:
        as_answer: whether it is the answer to what the client waits for; else only the close frame says it.
        text: the JSON.
    """

    def __init__(self, kind: str, *, as_answer: bool = True, **details: object) -> None:
        super().__init__(kind)
        self.as_answer = as_answer
        self.text = error_text(kind, **details)


def internal(error: OdfError, phase: tuple[str, str], *, newer: bool, as_answer: bool = True) -> Refusal:
    """An error as a client is told of it: its message alone, because the rest speaks of files here.

    Args:
        error: what went wrong.
        phase: ``Pull`` or ``Push``, and the name of the step.
        newer: the client's era.
        as_answer: as in :class:`Refusal`.
    """
    where: dict[str, object] = {"phase": {phase[0]: phase[1]}} if newer else {}
    return Refusal("Internal", as_answer=as_answer, **where, error_message=error.message)


async def converse(
    request: web.BaseRequest,
    serving: Serving,
    flow: Callable[[Channel, bool], Awaitable[None]],
    *,
    most_bytes: int | None = None,
) -> web.StreamResponse:
    """Opens the session and holds the conversation.

    Args:
        request: what wants to become a session.
        serving: limits.
        flow: what is said; gets the channel, and whether the client is of the newer era.
        most_bytes: of a message of the client, where that is less than what any may have.
    """
    version = request.headers.get(VERSION_HEADER)
    if version not in (None, VERSION):
        return web.Response(status=400, text='{"message":"Incompatible client version"}', content_type=_JSON)
    most = serving.limits.most_message_bytes
    socket = web.WebSocketResponse(
        max_msg_size=min(most_bytes or most, most), compress=False, timeout=_CLOSE_SECONDS
    )
    if not socket.can_prepare(request).ok:
        headers = {"Upgrade": "websocket"}
        return web.Response(status=426, text="this is for the smart transfer protocol\n", headers=headers)
    await socket.prepare(request)
    transport = request.transport
    if transport is None:
        return socket
    assert isinstance(transport, asyncio.Transport)
    channel = Channel(socket, transport, CLIENT, patience=serving.limits.idle_seconds, most_bytes=most)
    await _hold(channel, flow(channel, version is not None))
    return socket


async def _hold(channel: Channel, flow: Awaitable[None]) -> None:
    """Holds the conversation, and closes the session however that ends."""
    try:
        await flow
        await channel.close()
    except PeerGone:
        pass
    except Refusal as refusal:
        await _refuse(channel, refusal)
    except OdfError as error:
        await channel.close(WSCloseCode.INTERNAL_ERROR, error_text("Internal", error_message=error.message))
    except BaseException:
        channel.abort()
        raise


async def until_closed(channel: Channel) -> None:
    """Gives the client a moment to close the session."""
    with suppress(OdfError):
        await channel.receive(patience=_CLOSE_SECONDS)


async def _refuse(channel: Channel, refusal: Refusal) -> None:
    with suppress(OdfError):
        if refusal.as_answer:
            await channel.send(refusal.text)
    await channel.close(WSCloseCode.INTERNAL_ERROR, refusal.text)
