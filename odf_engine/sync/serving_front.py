"""``odf serve``: the datasets of a workspace over HTTP, by the simple and the smart transfer protocol.

Only heads, objects and what a chain says of itself are ever read for a client: paths are made of a
dataset, one of five folders and a hash, never of what a client wrote.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from aiohttp import web

from odf_engine.errors import (
    AlreadyExists,
    BadData,
    Conflict,
    InvalidIdentity,
    NotFound,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.sync.serving import COMMON, Forbidden, Served, Serving, Unauthorized
from odf_engine.sync.serving_files import send_head, send_object
from odf_engine.sync.serving_page import POLICY, Listing, as_json, as_page
from odf_engine.sync.serving_uploads import LengthRequired, take
from odf_engine.workspace.workspace import DatasetEntry

_KINDS: Final = frozenset({"refs", "blocks", "data", "checkpoints", "proofs"})
_SMART: Final = frozenset({"pull", "push"})
_UPLOADS: Final = frozenset({"data", "checkpoints", "proofs"})
_LONGEST_PATH: Final = 1024
_FRESH_SECONDS: Final = 1.0
_STATUS: Final = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (AlreadyExists, 409),
    (Conflict, 409),
    (LengthRequired, 411),
    (SourceUnavailable, 503),
    (InvalidIdentity, 400),
    (UsageError, 400),
    (BadData, 400),
)
SILENT: Final = logging.Logger("silent")
SILENT.disabled = True


class _Way(NamedTuple):
    """What a path means: a dataset (empty: all of them), and what of it; the rest is empty for its page."""

    dataset: str
    kind: str
    name: str


class Front:
    """Answers requests; ``told`` hears a line for each of them, and ``failed`` of what should not happen."""

    def __init__(
        self,
        serving: Serving,
        told: Callable[[str], None] | None = None,
        failed: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.serving = serving
        self._told = told
        self._failed = failed
        self._listing = Listing(serving)
        self._listing_lock = asyncio.Lock()
        self._found: dict[str, tuple[float, DatasetEntry]] = {}
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler of every request."""
        began = time.monotonic()
        self._busy += 1
        self._idle.clear()
        status, length = 0, 0
        try:
            async with asyncio.timeout(self.serving.limits.session_minutes * 60):
                response = await self._answer(request)
                await self._send(request, response)
            status, length = response.status, response.content_length or 0
            return response
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client took too long") from None
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
            if self._told is not None:
                # Without the query, which may be secret.
                path = quote(request.rel_url.raw_path[:200], safe="/:%", errors="replace")
                took = f"{(time.monotonic() - began) * 1000:.0f} ms"
                outcome = str(status) if status else "broken off"
                self._told(f"{request.remote} {request.method} {path} {outcome} {length} bytes {took}")

    async def settled(self, seconds: float) -> bool:
        """Waits until nothing is being answered, at most so long; whether it came to that."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        if isinstance(response, web.WebSocketResponse):
            return
        if not response.prepared:
            response.headers.update(COMMON)
        async with asyncio.timeout(self.serving.limits.idle_seconds):
            await response.prepare(request)
            await response.write_eof()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._route(request)
        except OdfError as error:
            return _refusal(error)
        except (ConnectionError, TimeoutError, asyncio.CancelledError, web.HTTPException):
            raise
        except web.RequestPayloadError:  # its body ended before its end
            raise ConnectionResetError("the client has gone") from None
        except Exception as error:
            self._failed(f"error: {type(error).__name__}: {error}\n{traceback.format_exc()}")
            return _refusal(OdfError("the server failed"))

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.version < (1, 0):
            raise UsageError("not HTTP as it is spoken today")
        way = _way(request.rel_url.raw_path)
        if request.method == "PUT" and way.kind in _UPLOADS:
            await take(self.serving, way.dataset, way.kind, way.name, request)
            return web.Response(text="")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="not allowed\n", headers={"Allow": "GET, HEAD"})
        if way.kind in _SMART:
            return await self._smart(way, request)
        if not way.dataset:
            return await self._list(request, None)
        if not way.kind:
            return await self._list(request, await self._find(way.dataset))
        served = Served(self.serving, await self._find(way.dataset), "")
        if way.kind == "refs":
            return await send_head(served, way.name, request)
        return await send_object(served, way.kind, way.name, request)

    async def _smart(self, way: _Way, request: web.BaseRequest) -> web.StreamResponse:
        if way.kind == "push":
            from odf_engine.sync.smart_push import push

            target = await self.serving.run(self.serving.target, way.dataset, request)
            return await push(request, target)
        from odf_engine.sync.smart_pull import pull

        url = f"{self.serving.base_url(request)}{way.dataset}/"
        served = Served(self.serving, await self._find(way.dataset), url)
        with self.serving.pulling(self.serving.address_of(request)):
            return await pull(request, served)

    async def _find(self, text: str) -> DatasetEntry:
        """The dataset of this name; names are looked up again once a second at most."""
        known = self._found.get(text)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        entry = await self.serving.run(self.serving.find, text)
        if len(self._found) > 1000:
            self._found.clear()
        self._found[text] = (time.monotonic() + _FRESH_SECONDS, entry)
        return entry

    async def _list(self, request: web.BaseRequest, only: DatasetEntry | None) -> web.StreamResponse:
        base = self.serving.base_url(request)
        async with self._listing_lock:
            rows = await self.serving.run(self._listing.rows)
        if only is not None:
            rows = [row for row in rows if row.id == str(only.id)]
            if not rows:
                raise NotFound("there is no such dataset")
        headers = {"Cache-Control": "no-cache", "Vary": "Accept"}
        if _wants_json(request.headers.get("Accept", "")):
            body = await self.serving.run(as_json, rows)
            return web.Response(body=body, content_type="application/json", headers=headers)
        headers |= {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
        page = await self.serving.run(as_page, rows, base, only is not None)
        return web.Response(text=page, content_type="text/html", headers=headers)


def _way(raw: str) -> _Way:
    """What a path means.

    Raises:
        UsageError: it cannot be a path of this server.
        NotFound: it means nothing here.
    """
    if len(raw) > _LONGEST_PATH or not raw.startswith("/"):
        raise UsageError("not a path of this server")
    try:
        parts = [unquote_to_bytes(part).decode("utf-8") for part in raw[1:].split("/")]
    except UnicodeError:  # one of the two parsers of aiohttp gives bytes as surrogates
        raise UsageError("the path is not UTF-8") from None
    if any(part in (".", "..") or "/" in part or not part.isprintable() for part in parts):
        raise UsageError("not a path of this server")
    kind, name = "", ""
    if parts[-1] in _SMART and len(parts) > 1:
        kind = parts.pop()
    elif len(parts) > 2 and parts[-2] in _KINDS and parts[-1]:
        name, kind = parts.pop(), parts.pop()
    elif not parts[-1]:
        parts.pop()
    if len(parts) > 2 or (kind and not parts):
        raise NotFound("there is nothing here")
    return _Way("/".join(parts), kind, name)


def _wants_json(accept: str) -> bool:
    """Whether a client asks for JSON rather than for a page; a client that takes anything gets the page."""
    return "application/json" in accept.lower() and "text/html" not in accept.lower()


def _refusal(error: OdfError) -> web.Response:
    """An error as an answer: its message alone, because the rest speaks of files here."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    response = web.Response(status=status, text=f"{error.message}\n")
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        response.headers["Retry-After"] = "5"
    return response
