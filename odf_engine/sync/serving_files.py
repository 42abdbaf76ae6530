"""Objects and heads of datasets as HTTP answers: ranges, ETags, and bytes that never pass through here."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from aiohttp import web

from odf_engine.errors import MalformedBlock, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.storage.objects import spellings
from odf_engine.sync.serving import COMMON, Served, parse_hash

_SMALL: Final = 1 << 16
_PIECE: Final = 1 << 18  # has to go within the time that a client may be idle
_RANGE: Final = re.compile(r"bytes=\s*(\d{0,19})-(\d{0,19})\s*", re.ASCII)
_FOREVER: Final = "public, max-age=31536000, immutable"
_TYPES: Final = {"proofs": "application/json; charset=utf-8"}


@dataclass(frozen=True)
class _Opened:
    """An object: its size, and all of its bytes when it is small, else its file."""

    size: int
    data: bytes | None
    file: FileIO | None


async def send_head(served: Served, name: str, request: web.BaseRequest) -> web.StreamResponse:
    """``refs/head``; there is no other reference. NotFound when there is none."""
    if name != "head":
        raise NotFound("there is no such reference")
    try:
        head = await served.serving.run(served.entry.dataset.head)
    except MalformedBlock:
        raise OdfError("the head of the dataset is damaged") from None
    if head is None:
        raise NotFound("the dataset is empty")
    headers = {"ETag": f'"{head}"', "Cache-Control": "no-cache"}
    if _matches(request.headers.get("If-None-Match"), headers["ETag"]):
        return web.Response(status=304, headers=headers)
    return web.Response(text=str(head), headers=headers)


async def send_object(served: Served, kind: str, name: str, request: web.BaseRequest) -> web.StreamResponse:
    """An object, or the range of it that is asked for.

    Raises:
        InvalidIdentity: the name is no hash.
        NotFound: there is no such object.
    """
    wanted = parse_hash(name)
    opened = await served.serving.run(_open, served.entry.dataset.folder / kind, wanted, name)
    if opened is None:
        raise NotFound(f"there is no such object in {kind}")
    try:
        tag = f'"{wanted}"'
        headers = {
            "ETag": tag,
            "Cache-Control": _FOREVER,
            "Accept-Ranges": "bytes",
            **COMMON,
            "Content-Type": _TYPES.get(kind, "application/octet-stream"),
        }
        if _matches(request.headers.get("If-None-Match"), tag):
            return web.Response(status=304, headers=headers)
        first, end = _asked(request, opened.size, tag)
        if first >= end and (first or opened.size):
            headers["Content-Range"] = f"bytes */{opened.size}"
            return web.Response(status=416, headers=headers)
        status = 200
        if end - first < opened.size:
            headers["Content-Range"], status = f"bytes {first}-{end - 1}/{opened.size}", 206
        if opened.data is not None:
            return web.Response(status=status, body=opened.data[first:end], headers=headers)
        assert opened.file is not None
        return await _send(
            request, opened.file, first, end, status, headers, served.serving.limits.idle_seconds
        )
    finally:
        if opened.file is not None:
            opened.file.close()


def _open(folder: Path, wanted: Multihash, written: str) -> _Opened | None:
    for name in spellings(wanted, written):
        try:
            # A pipe or device of this name must not keep the thread.
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            continue
        file = FileIO(descriptor, "rb")
        if found.st_size > _SMALL:
            return _Opened(found.st_size, None, file)
        with file:
            data = file.readall()
        return _Opened(len(data), data, None)
    return None


def _asked(request: web.BaseRequest, size: int, tag: str) -> tuple[int, int]:
    """The first byte, and the one after the last; equal or beyond when nothing of it is there.

    What is no single range of bytes is passed over, as RFC 9110 has it, and so is a range of another version.
    """
    match = _RANGE.fullmatch(request.headers.get("Range", ""))
    if match is None or match[0].rstrip().endswith("=-") or request.headers.get("If-Range", tag) != tag:
        return 0, size
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)) if int(last) else size, size
    if last and int(last) < int(first):
        return 0, size
    return min(int(first), size), min(int(last) + 1, size) if last else size


def _matches(header: str | None, tag: str) -> bool:
    tags = [each.strip().removeprefix("W/") for each in (header or "").split(",")]
    return tag in tags or tags == ["*"]


async def _send(
    request: web.BaseRequest,
    file: FileIO,
    first: int,
    end: int,
    status: int,
    headers: dict[str, str],
    idle: float,
) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = end - first
    await response.prepare(request)
    if request.method == "HEAD":
        await response.write_eof()
        return response
    loop = asyncio.get_running_loop()
    transport = request.transport
    try:
        while first < end:
            if transport is None or transport.is_closing():
                raise ConnectionResetError("the client has gone")
            async with asyncio.timeout(idle):
                sent = await loop.sendfile(transport, file, first, min(_PIECE, end - first))
            if not sent:  # somebody cut the file: what was promised cannot be kept
                raise ConnectionResetError("the file ended early")
            first += sent
    except BaseException:
        if transport is not None:
            transport.abort()
        raise
    await response.write_eof()
    return response
