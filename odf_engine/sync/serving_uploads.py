"""Objects that clients bring: announced by a push that is on, counted and hashed while they come."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from odf_engine.chain.staged import told_of_the_disk
from odf_engine.errors import BadData, Conflict, NotFound, OdfError
from odf_engine.files import write_all
from odf_engine.identity.multiformats import SHA2_256, SHA3_256, Multihash
from odf_engine.identity.proof import MOST_BYTES, Proof, check, store_proof
from odf_engine.storage.objects import LocalObjects
from odf_engine.sync.serving import Forbidden, PushSession, Serving, Target, parse_hash
from odf_engine.workspace.workspace import DatasetEntry

_BUFFER: Final = 1 << 20
_HASHERS: Final = {SHA2_256: hashlib.sha256, SHA3_256: hashlib.sha3_256}


class LengthRequired(OdfError):
    """A body whose length is not said before it (411)."""


async def take(serving: Serving, dataset: str, kind: str, name: str, request: web.BaseRequest) -> None:
    """Stores what a client brings by ``PUT``, if it is what it should be.

    Raises:
        Unauthorized, Forbidden: the client may not push to this dataset, or did not announce the object.
        InvalidIdentity: the name is no hash.
        Conflict: it is on its way already.
        BadData: other bytes than those of its hash, or another number of them; nothing of it is kept.
    """
    target = await serving.run(serving.target, dataset, request)
    wanted = parse_hash(name)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadData("objects are sent as they are, without Content-Encoding")
    length = request.content_length
    if length is None:
        raise LengthRequired("Content-Length is needed")
    if kind == "proofs":
        await _take_proof(target, wanted, length, request)
        return
    session = serving.push_of(target.alias, target.token)
    if session is None or session.folder is None or (kind, wanted) not in session.announced:
        raise Forbidden("no push that is on has announced this object")
    if length != (size := session.announced[kind, wanted]):
        raise BadData(f"the object was announced with {size:,} bytes, not {length:,}")
    if wanted.code not in _HASHERS:
        raise BadData("an object cannot have a hash of this kind")
    if (kind, wanted) in session.uploading:
        raise Conflict("the object is on its way already")
    session.uploading.add((kind, wanted))
    try:
        await _take_object(session, session.folder, kind, wanted, size, request)
    finally:
        session.uploading.discard((kind, wanted))


async def _take_object(
    session: PushSession, folder: Path, kind: str, wanted: Multihash, size: int, request: web.BaseRequest
) -> None:
    serving = session.target.serving
    staged = await serving.run(_Staged, LocalObjects(folder / kind), wanted)
    try:
        await _go_on(request)
        async for data in _body(request, size, serving.limits.idle_seconds):
            await serving.run(staged.write, data)
        await serving.run(staged.keep)
    finally:
        await asyncio.shield(serving.run(staged.close))
    session.arrived += 1


class _Staged:
    """An object in the making. Methods raise OdfError when the disk does not take it."""

    def __init__(self, objects: LocalObjects, wanted: Multihash) -> None:
        self._objects = objects
        self._wanted = wanted
        self._hasher: Any = _HASHERS[wanted.code]()
        self._size = 0
        with told_of_the_disk(objects.folder):
            self._path = objects.staging_path()
            self._file = self._path.open("xb", buffering=0)

    def write(self, data: bytes) -> None:
        with told_of_the_disk(self._objects.folder):
            write_all(self._file.fileno(), data)
        self._hasher.update(data)
        self._size += len(data)

    def keep(self) -> None:
        """Moves the file to its name.

        Raises:
            BadData: it has other bytes than its hash says.
        """
        if self._hasher.digest() != self._wanted.digest:
            raise BadData("the bytes are not those of the hash")
        with told_of_the_disk(self._objects.folder):
            # Every write was complete: a file of this size has the bytes that were hashed.
            if os.fstat(self._file.fileno()).st_size != self._size:
                raise OSError(errno.EIO, "not all bytes were stored", str(self._path))
            os.fsync(self._file.fileno())
            self._objects.put_file(str(self._wanted), self._path)

    def close(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


async def _take_proof(target: Target, head: Multihash, length: int, request: web.BaseRequest) -> None:
    if length > MOST_BYTES:
        raise BadData(f"a proof has at most {MOST_BYTES:,} bytes")
    if target.entry is None:
        raise NotFound("there is no such dataset")
    await _go_on(request)
    serving = target.serving
    data = b"".join([each async for each in _body(request, length, serving.limits.idle_seconds)])
    await serving.run(_keep_proof, target.entry, head, data)


def _keep_proof(entry: DatasetEntry, head: Multihash, data: bytes) -> None:
    proof = Proof.from_bytes(data)
    if not entry.dataset.holds(head):
        raise NotFound("the dataset has no such block")
    check(proof, entry.id, head)
    with told_of_the_disk(entry.dataset.folder):
        store_proof(entry.dataset.folder, proof)


async def _go_on(request: web.BaseRequest) -> None:
    """Tells a client that waits for it to send the body."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer, nothing is sent yet


async def _body(request: web.BaseRequest, size: int, idle: float) -> AsyncIterator[bytes]:
    """The body in pieces of about a megabyte; BadData when it ends early."""
    pieces, waiting, left = bytearray(), True, size
    while waiting:
        async with asyncio.timeout(idle):
            data = await request.content.readany()
        waiting = bool(data)
        pieces += data
        left -= len(data)
        if left < 0:
            raise BadData("more bytes than were announced")
        if len(pieces) >= _BUFFER or not waiting:
            yield bytes(pieces)
            pieces.clear()
    if left:
        raise BadData("fewer bytes than were announced")
