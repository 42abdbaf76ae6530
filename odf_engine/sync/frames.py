"""Texts over a WebSocket, from either end: long ones in several frames, and nothing is awaited for ever.

Older peers take frames of at most 16 MiB and messages of at most 64 MiB; pings would break their reading,
so none are sent.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web

from odf_engine.errors import BadData, SourceUnavailable, Unsupported

MOST_PACKED_SHARE: Final = 3.65
"""So many bytes of a message are needed for a byte of its payload, at most on the average of gzip."""

_SHORT_BYTES: Final = 1 << 16
_FRAME_BYTES: Final = 1 << 18
_SLOWEST: Final = 64 << 10  # bytes a second, of long messages
_FULL_BUFFER: Final = 1 << 18
_REASON_BYTES: Final = 123

Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


class PeerGone(SourceUnavailable):
    """The other end closed the connection; ``reason`` is what it said."""

    def __init__(self, message: str, *, reason: str = "", **rest: str | None) -> None:
        super().__init__(message, **rest)
        self.reason = reason


class Channel:
    """An open WebSocket.

    Attributes:
        where: what the other end is called in errors.
        most_bytes: longer messages are neither sent nor read.
    """

    def __init__(
        self, socket: Socket, transport: asyncio.Transport, where: str, *, patience: float, most_bytes: int
    ) -> None:
        """``patience`` is for how many seconds the other end may be silent, or take nothing."""
        self.where = where
        self.most_bytes = most_bytes
        self._socket = socket
        self._transport = transport
        self._patience = patience
        self._masked = isinstance(socket, aiohttp.ClientWebSocketResponse)

    async def send(self, text: bytes) -> None:
        """Sends a message.

        Raises:
            Unsupported: it is longer than :attr:`most_bytes`.
            PeerGone, SourceUnavailable: the other end is gone, or takes nothing.
        """
        if len(text) > _SHORT_BYTES:
            await self.send_pieces(len(text), lambda start, count: text[start : start + count])
            return
        await self._within(len(text), self._socket.send_str(text.decode()))

    async def send_pieces(self, size: int, read: Callable[[int, int], bytes]) -> None:
        """Sends a message of ``size`` bytes, of which ``read`` gives so many from so many on.

        Raises:
            Unsupported, PeerGone, SourceUnavailable: as :meth:`send`.
        """
        if size > self.most_bytes:
            raise Unsupported(
                f"a message of {size:,} bytes would be longer than {self.most_bytes:,}", where=self.where
            )
        await self._within(size, self._send_in_frames(size, read))

    async def _within(self, size: int, sending: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._patience + size / _SLOWEST):
                await sending
        except TimeoutError:
            raise SourceUnavailable("the other end takes nothing any more", where=self.where) from None
        except (ConnectionError, aiohttp.ClientError, RuntimeError):
            raise self._gone() from None

    async def receive(self, expected: int = 0, patience: float | None = None) -> str:
        """The next message; ``expected`` is about how many bytes it may have.

        Raises:
            PeerGone: the other end closed the connection.
            SourceUnavailable: nothing came in time.
            BadData: something else came than a text that is not too long.
        """
        wait = (patience or self._patience) + min(expected, self.most_bytes) / _SLOWEST
        try:
            async with asyncio.timeout(wait):
                message = await self._socket.receive()
        except TimeoutError:
            raise Silence(f"nothing came for {wait:g} seconds", where=self.where) from None
        except (ConnectionError, aiohttp.ClientError, RuntimeError):
            raise self._gone() from None
        match message.type:
            case WSMsgType.TEXT:
                return message.data
            case WSMsgType.CLOSE:
                raise self._gone(message.extra or "")
            case WSMsgType.CLOSING | WSMsgType.CLOSED:
                raise self._gone()
            case WSMsgType.ERROR if self._socket.close_code == WSCloseCode.MESSAGE_TOO_BIG:
                raise TooLong(
                    f"a message came that is longer than {self.most_bytes:,} bytes", where=self.where
                )
        raise BadData("something came that is no text", where=self.where)

    async def close(self, code: int = WSCloseCode.OK, reason: str | bytes = "") -> None:
        """Closes the connection, and says why; waits for the other end for a moment only."""
        raw = reason.encode() if isinstance(reason, str) else reason
        short = raw[:_REASON_BYTES].decode(errors="ignore").encode()
        try:
            async with asyncio.timeout(min(self._patience, 5.0)):
                await self._socket.close(code=code, message=short)
        except (TimeoutError, ConnectionError, aiohttp.ClientError, RuntimeError):
            self.abort()

    def abort(self) -> None:
        """Breaks the connection."""
        self._transport.abort()

    async def _send_in_frames(self, size: int, read: Callable[[int, int], bytes]) -> None:
        # aiohttp sends any message as one frame.
        kind = WSMsgType.TEXT
        for start in range(0, size, _FRAME_BYTES):
            piece = read(start, _FRAME_BYTES)
            first = kind | (0x80 if start + _FRAME_BYTES >= size else 0)
            if self._transport.is_closing():
                raise ConnectionResetError
            header = _header(first, 0x80 if self._masked else 0, len(piece))
            if self._masked:
                key = secrets.token_bytes(4)
                header, piece = header + key, _masked(piece, key)
            self._transport.write(header)
            self._transport.write(piece)
            kind = WSMsgType.CONTINUATION
            pause = 0.001
            while self._transport.get_write_buffer_size() > _FULL_BUFFER:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.05)  # a slow one costs little

    def _gone(self, reason: str = "") -> PeerGone:
        return PeerGone("the other end closed the connection", reason=reason, where=self.where)


class Silence(SourceUnavailable):
    """Nothing came in time."""


class TooLong(BadData):
    """A message is longer than any may be."""


def _header(first: int, mask: int, size: int) -> bytes:
    """The beginning of a frame, as short as it has to be."""
    if size < 0x7E:
        return struct.pack("!BB", first, mask | size)
    if size < 1 << 16:
        return struct.pack("!BBH", first, mask | 0x7E, size)
    return struct.pack("!BBQ", first, mask | 0x7F, size)


def _masked(data: bytes, key: bytes) -> bytes:
    size = len(data)
    pattern = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")
