"""Peers that speak the smart protocol as the reference does, in both of its eras; nothing here is ours.

What is required, bare or wrapped, and which quirks there are, is as in the protocol of each. Parts of a
conversation can be replaced, to be hostile.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from odf_engine.metadata.flatbuffers import decode_block

HEADER = "x-odf-smtp-version"
OLD, NEW = "0.166", "HEAD"
KINDS = {"DataSlice": "data", "Checkpoint": "checkpoints"}


def archive(blocks: list[tuple[str, bytes]]) -> list[int]:
    """Blocks as the payload of a message."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in blocks:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0
            tar.addfile(info, io.BytesIO(data))
    return list(gzip.compress(out.getvalue(), mtime=0))


def unarchive(payload: list[int]) -> list[tuple[str, bytes]]:
    """The blocks of a payload."""
    with tarfile.open(fileobj=io.BytesIO(bytes(payload))) as tar:
        return [(item.name, tar.extractfile(item).read()) for item in tar]  # type: ignore[union-attr]


def batch(blocks: list[tuple[str, bytes]]) -> dict[str, Any]:
    """Blocks as a message has them."""
    return {
        "num_blocks": len(blocks),
        "media_type": "application/tar+gzip",
        "encoding": "raw",
        "payload": archive(blocks),
    }


class Store:
    """A dataset in memory."""

    def __init__(self) -> None:
        self.head: str | None = None
        self.files: dict[str, bytes] = {}

    def load(self, folder: Path) -> Store:
        """What a dataset's folder has."""
        for kind in ("blocks", "data", "checkpoints"):
            for path in (folder / kind).glob("f*"):
                self.files[f"{kind}/{path.name}"] = path.read_bytes()
        self.head = (folder / "refs" / "head").read_text()
        return self

    def chain(self, after: str | None = None, stop: str | None = None) -> list[tuple[str, bytes]] | None:
        """Blocks after one up to another, oldest first, or None when there is no such way."""
        at, found = stop or self.head, []
        while at is not None and at != after:
            data = self.files.get(f"blocks/{at}")
            if data is None:
                return None
            found.append((at, data))
            previous = decode_block(data).block.prev_block_hash
            at = None if previous is None else str(previous)
        return found[::-1] if at == after else None

    def references(self, blocks: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """The objects that blocks speak of."""
        found = []
        for _, data in blocks:
            event = decode_block(data).block.event
            for kind, name in (("DataSlice", "new_data"), ("Checkpoint", "new_checkpoint")):
                if (said := getattr(event, name, None)) is not None:
                    reference = {"physical_hash": str(said.physical_hash), "size": said.size}
                    found.append({"object_type": kind, **reference})
        return found


def plan(store: Store, blocks: list[tuple[str, bytes]]) -> dict[str, int]:
    """A transfer plan."""
    references = store.references(blocks)
    return {
        "num_blocks": len(blocks),
        "num_objects": len(references),
        "num_records": 0,
        "bytes_in_raw_blocks": sum(len(data) for _, data in blocks),
        "bytes_in_raw_objects": sum(reference["size"] for reference in references),
    }


class KamuServer:
    """A node of one era that has one dataset; ``url`` is the dataset's, ``requests`` what came.

    ``said`` replaces what the server says: called with the name of the step and the message, it returns
    another message, a text, bytes (a binary frame), or None to say nothing; it may be a coroutine function.
    """

    def __init__(self, era: str, name: str = "numbers") -> None:
        self.era, self.name = era, name
        self.store = Store()
        self.token = "secret"
        self.requests: list[str] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.logins: list[str | None] = []
        self.redirect: str | None = None
        self.wrong: list[str] = []
        self.received: list[Any] = []
        self.said: Callable[[str, Any], Any] = lambda step, message: message
        self.denied: Callable[[str], int | None] = lambda path: None
        self.location: Callable[[str], str] | None = None
        self.ask_every: float | None = None
        self.lazy = False
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> KamuServer:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert self.wrong == []

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"odf+{self.origin}/{self.name}/"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        self.logins.append(request.headers.get("Authorization"))
        if self.redirect is not None and request.path.endswith(("/pull", "/push")):
            raise web.HTTPTemporaryRedirect(self.redirect + request.path)
        if (status := self.denied(request.path_qs)) is not None:
            return web.Response(status=status)
        path = request.path.removeprefix(f"/{self.name}/")
        if path in ("pull", "push"):
            return await self._smart(request, path)
        if path == "refs/head":
            return web.Response(text=self.store.head) if self.store.head else web.Response(status=404)
        if request.method == "PUT":
            return await self._put(request, path)
        data = self.store.files.get(path.removeprefix("/bucket/"))
        return web.Response(status=404) if data is None else web.Response(body=data)

    async def _put(self, request: web.Request, path: str) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if request.content_length is None:
            return web.Response(status=411)
        data = await request.read()
        if "f1620" + hashlib.sha3_256(data).hexdigest() != path.partition("/")[2]:
            return web.Response(status=500)
        self.store.files[path] = data
        return web.Response()

    async def _smart(self, request: web.Request, what: str) -> web.StreamResponse:
        if self.era == NEW and request.headers.get(HEADER) != "1":
            return web.json_response({"message": "Incompatible client version"}, status=400)
        if what == "push" and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if what == "pull" and self.store.head is None:
            return web.Response(status=404)
        socket = web.WebSocketResponse(autoping=False, max_msg_size=64 << 20, compress=False)
        await socket.prepare(request)
        self.sockets.append(socket)
        try:
            await (self._pull(socket) if what == "pull" else self._push(socket))
        except _Over:
            pass
        except (AssertionError, KeyError, TypeError, ValueError) as error:  # where the reference panics
            self.wrong.append(f"{type(error).__name__}: {error}")
        await socket.close()
        return socket

    async def _hear(self, socket: web.WebSocketResponse) -> Any:
        message = await socket.receive(timeout=60)
        if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING, WSMsgType.ERROR):
            raise _Over
        assert message.type == WSMsgType.TEXT, "any other frame is a read error"
        self.received.append(json.loads(message.data))
        return self.received[-1]

    async def _say(self, socket: web.WebSocketResponse, step: str, message: Any) -> None:
        message = self.said(step, message)
        if asyncio.iscoroutine(message):
            message = await message
        if isinstance(message, bytes):
            await socket.send_bytes(message)
        elif isinstance(message, tuple):
            await socket.close(code=message[0], message=message[1])
            raise _Over
        elif message is not None:
            await socket.send_str(message if isinstance(message, str) else json.dumps(message))

    def _result(self, message: Any) -> Any:
        return {"Ok": message} if self.era == NEW else message

    async def _pull(self, socket: web.WebSocketResponse) -> None:
        request = await self._hear(socket)
        after, stop = request["begin_after"], request["stop_at"]
        if self.era == NEW:
            assert isinstance(request["force_update_if_diverged"], bool)
        blocks = self.store.chain(after, stop)
        if blocks is None:
            wrong = {"head": stop or self.store.head, "tail": after}
            await self._say(socket, "plan", {"Err": {"InvalidInterval": wrong}})
            return
        await self._say(socket, "plan", {"Ok": {"transfer_plan": plan(self.store, blocks)}})
        assert await self._hear(socket) == {}
        await self._say(socket, "blocks", {"blocks": batch(blocks)})
        while True:
            asked = await self._hear(socket)
            told = [self._download(each) for each in asked["object_files"]]
            await self._say(socket, "objects", {"object_transfer_strategies": told})

    def _download(self, reference: dict[str, Any]) -> dict[str, Any]:
        path = f"{KINDS[reference['object_type']]}/{reference['physical_hash']}"
        url = f"{self.origin}/{self.name}/{path}" if self.location is None else self.location(path)
        where = {"url": url, "headers": [], "expires_at": None}
        return {"object_file": reference, "pull_strategy": "HttpDownload", "download_from": where}

    async def _push(self, socket: web.WebSocketResponse) -> None:
        request = await self._hear(socket)
        announced = request["transfer_plan"]
        assert set(announced) == set(plan(Store(), []))
        if self.era == NEW:
            assert isinstance(request["force_update_if_diverged"], bool)
            assert request["visibility_for_created_dataset"] in ("Private", "Public")
        if request["current_head"] != self.store.head:
            wrong = {"actual_head": request["current_head"], "expected_head": self.store.head}
            await self._say(socket, "accepted", {"Err": {"InvalidHead": wrong}})
        else:
            await self._say(socket, "accepted", {"Ok": {}})
        sent = (await self._hear(socket))["new_blocks"]
        assert (sent["media_type"], sent["encoding"]) == ("application/tar+gzip", "raw")
        blocks = unarchive(sent["payload"])
        assert announced["num_blocks"] == sent["num_blocks"] == len(blocks)
        await self._say(socket, "metadata", self._result({}))
        more = True
        while more:
            asked = await self._hear(socket)
            more = asked["is_truncated"]
            told = [self._upload(each) for each in asked["object_files"]]
            await self._say(socket, "objects", self._result({"object_transfer_strategies": told}))
            await self._progress(socket)
        assert await self._hear(socket) == {}
        if not self.lazy:
            for name, data in blocks:
                self.store.files[f"blocks/{name}"] = data
            first = decode_block(blocks[0][1]).block.prev_block_hash
            forced = self.era == NEW and request["force_update_if_diverged"]
            assert forced or (str(first) if first else None) == self.store.head
            self.store.head = blocks[-1][0]
        await self._say(socket, "confirmed", {})
        await self._hear(socket)

    async def _progress(self, socket: web.WebSocketResponse) -> None:
        while True:
            if self.ask_every is not None:
                await asyncio.sleep(self.ask_every)
                await self._say(socket, "progress", {})
            heard = await self._hear(socket)
            if heard["details"] == "Complete":
                return
            assert isinstance(heard["details"]["Running"]["uploaded_objects_count"], int)

    def _upload(self, reference: dict[str, Any]) -> dict[str, Any]:
        path = f"{KINDS[reference['object_type']]}/{reference['physical_hash']}"
        if path in self.store.files:
            return {"object_file": reference, "push_strategy": "SkipUpload", "upload_to": None}
        # The older era forgets the word Bearer.
        token = f"Bearer {self.token}" if self.era == NEW else self.token
        headers = [{"name": "authorization", "value": token}]
        if self.era == NEW:
            headers.append({"name": HEADER, "value": "1"})
        url = f"{self.origin}/{self.name}/{path}" if self.location is None else self.location(path)
        where = {"url": url, "headers": headers, "expires_at": None}
        return {"object_file": reference, "push_strategy": "HttpUpload", "upload_to": where}


class _Over(Exception):
    """The conversation is over."""


class Talk:
    """A client's session, word for word."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, http: aiohttp.ClientSession) -> None:
        self.socket, self.http = socket, http

    async def say(self, message: Any) -> None:
        """Sends JSON, or a text as it is."""
        await self.socket.send_str(message if isinstance(message, str) else json.dumps(message))

    async def hear(self) -> Any:
        """The next message; the code and the reason where the session is closed."""
        message = await self.socket.receive(timeout=60)
        if message.type == WSMsgType.TEXT:
            return json.loads(message.data)
        if message.type == WSMsgType.CLOSE:
            return message.data, message.extra
        return self.socket.close_code, None


@asynccontextmanager
async def talk(url: str, era: str, token: str | None = None, **headers: str) -> AsyncIterator[Talk]:
    """A session at ``…/pull`` or ``…/push``, as a client of an era opens it."""
    if era == NEW:
        headers = {HEADER: "1", **headers}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(url, headers=headers, autoping=False, max_msg_size=64 << 20) as socket,
    ):
        yield Talk(socket, http)
