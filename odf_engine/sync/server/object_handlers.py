"""HTTP handlers that send and receive objects and heads."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from odf_engine.base.atomic_files import translate_commit_errors
from odf_engine.base.files import open_no_follow, remove_temporary, write_all
from odf_engine.chain.compaction_record import COMPACTIONS_FOLDER, MAX_RECORD_BYTES
from odf_engine.chain.dataset import Dataset
from odf_engine.checks.reports import MAX_REPORT_BYTES
from odf_engine.errors import BadData, Conflict, MalformedBlock, NotFound, OdfError
from odf_engine.identity.multiformats import SHA2_256, SHA3_256, Multihash
from odf_engine.identity.ownership_proof import MAX_PROOF_BYTES, OwnershipProof, store_proof, verify_proof
from odf_engine.storage.object_store import LocalObjectStore, candidate_names
from odf_engine.storage.refs import COMPACTION_REF, HEAD, is_branch_name, tag_name
from odf_engine.sync.check_reports import receive_report
from odf_engine.sync.compaction_records import receive_record
from odf_engine.sync.server.service import (
    COMMON_HEADERS,
    DatasetService,
    Forbidden,
    PushSession,
    PushTarget,
    ServedDataset,
    parse_hash,
)
from odf_engine.workspace.dataset_summary import DatasetEntry

_MAX_IN_MEMORY: Final = 1 << 16
_CHUNK_BYTES: Final = 1 << 18  # must be sent within the idle timeout of a client
_RANGE: Final = re.compile(r"bytes=\s*(\d{0,19})-(\d{0,19})\s*", re.ASCII)
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_JSON: Final = "application/json; charset=utf-8"
_TYPES: Final = {"proofs": _JSON, "checks": _JSON}
_MAX_SMALL: Final = {"proofs": MAX_PROOF_BYTES, "checks": MAX_REPORT_BYTES}


@dataclass(frozen=True)
class _OpenedObject:
    """An opened object: its size, and its bytes if it is small, else its file."""

    size: int
    data: bytes | None
    file: FileIO | None


async def send_head(served: ServedDataset, name: str, request: web.BaseRequest) -> web.StreamResponse:
    """Send ``refs/head``, a branch, or ``refs/compaction``, which leads copies to the record of a compaction.

    Raises:
        NotFound: another reference, or the dataset is empty.
    """
    dataset = served.entry.dataset
    known = {HEAD: dataset.head, COMPACTION_REF: dataset.newest_compaction}
    if name not in known and not (is_branch_name(name) or tag_name(name)):
        raise NotFound("reference not found")
    try:
        head = await served.serving.run(known.get(name) or partial(_read_branch, dataset, name))
    except MalformedBlock:
        raise OdfError("the head of the dataset is damaged") from None
    if head is None:
        raise NotFound("the dataset is empty" if name == HEAD else "reference not found")
    headers = {"ETag": f'"{head}"', "Cache-Control": "no-cache"}
    if _matches_etag(request.headers.get("If-None-Match"), headers["ETag"]):
        return web.Response(status=304, headers=headers)
    return web.Response(text=str(head), headers=headers)


def _read_branch(dataset: Dataset, name: str) -> Multihash | None:
    dataset.refresh_branches()
    tag = tag_name(name)
    known = dataset.tag_names() if tag else dataset.branch_names()
    return dataset.branch(tag or name).head() if (tag or name) in known else None


async def send_object(
    served: ServedDataset, kind: str, name: str, request: web.BaseRequest
) -> web.StreamResponse:
    """Send an object, or the requested range of it.

    Raises:
        InvalidIdentity: the name is not a hash.
        NotFound: the object does not exist.
    """
    object_hash = parse_hash(name)
    objects = served.entry.dataset.objects(kind)
    opened = await served.serving.run(_open_object, objects, object_hash, name)
    if opened is None:
        raise NotFound(f"object not found in {kind}")
    try:
        tag = f'"{object_hash}"'
        headers = {
            "ETag": tag,
            "Cache-Control": _IMMUTABLE,
            "Accept-Ranges": "bytes",
            **COMMON_HEADERS,
            "Content-Type": _TYPES.get(kind, "application/octet-stream"),
        }
        if _matches_etag(request.headers.get("If-None-Match"), tag):
            return web.Response(status=304, headers=headers)
        first, end = _requested_range(request, opened.size, tag)
        if first >= end and (first or opened.size):
            headers["Content-Range"] = f"bytes */{opened.size}"
            return web.Response(status=416, headers=headers)
        status = 200
        if end - first < opened.size:
            headers["Content-Range"], status = f"bytes {first}-{end - 1}/{opened.size}", 206
        if opened.data is not None:
            return web.Response(status=status, body=opened.data[first:end], headers=headers)
        assert opened.file is not None
        return await _send_file(
            request, opened.file, first, end, status, headers, served.serving.limits.idle_seconds
        )
    finally:
        if opened.file is not None:
            opened.file.close()


def _open_object(objects: LocalObjectStore, object_hash: Multihash, written: str) -> _OpenedObject | None:
    for name in candidate_names(object_hash, written):
        if not objects.exists(name):
            continue
        try:
            # A pipe or device with this name must not block the thread.
            descriptor = open_no_follow(objects.path(name), os.O_RDONLY)
        except OSError:
            continue
        file, size = FileIO(descriptor, "rb"), os.fstat(descriptor).st_size
        if size > _MAX_IN_MEMORY:
            return _OpenedObject(size, None, file)
        with file:
            data = file.readall()
        return _OpenedObject(len(data), data, None)
    return None


def _requested_range(request: web.BaseRequest, size: int, tag: str) -> tuple[int, int]:
    """Return the first requested byte, and the one after the last; equal if the range is unsatisfiable.

    Anything but a single byte range is ignored, as in RFC 9110, and so is a range of another version.
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


def _matches_etag(header: str | None, tag: str) -> bool:
    tags = [part.strip().removeprefix("W/") for part in (header or "").split(",")]
    return tag in tags or tags == ["*"]


async def _send_file(
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
                raise ConnectionResetError("the client has disconnected")
            async with asyncio.timeout(idle):
                sent = await loop.sendfile(transport, file, first, min(_CHUNK_BYTES, end - first))
            if not sent:  # the file was truncated: the announced length cannot be sent
                raise ConnectionResetError("the file ended early")
            first += sent
    except BaseException:
        if transport is not None:
            transport.abort()
        raise
    await response.write_eof()
    return response


_BUFFER: Final = 1 << 20
_HASHERS: Final = {SHA2_256: hashlib.sha256, SHA3_256: hashlib.sha3_256}


class LengthRequired(OdfError):
    """A request body without Content-Length (411)."""


async def receive_object(
    serving: DatasetService, dataset: str, kind: str, name: str, request: web.BaseRequest
) -> None:
    """Receive an object by ``PUT`` and store it after verification.

    Raises:
        Unauthorized, Forbidden: the client may not push to this dataset, or has not announced the object.
        InvalidIdentity: the name is not a hash.
        Conflict: it is already being uploaded.
        BadData: the bytes do not match the hash or the announced size; nothing is stored.
    """
    target = await serving.run(serving.authorize_push, dataset, request)
    object_hash = parse_hash(name)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadData("Content-Encoding is not supported")
    length = request.content_length
    if length is None:
        raise LengthRequired("Content-Length is required")
    if kind == COMPACTIONS_FOLDER:
        await _receive_record(target, object_hash, length, request)
        return
    if kind in _MAX_SMALL:
        await _receive_small(target, kind, object_hash, length, request)
        return
    session = serving.find_push(target.alias, target.token)
    if session is None or session.folder is None or (kind, object_hash) not in session.announced:
        raise Forbidden("no push in progress has announced this object")
    if length != (size := session.announced[kind, object_hash]):
        raise BadData(f"the object was announced with {size:,} bytes, not {length:,}")
    if object_hash.code not in _HASHERS:
        raise BadData("unsupported hash algorithm")
    if (kind, object_hash) in session.uploading:
        raise Conflict("the object is already being uploaded")
    session.uploading.add((kind, object_hash))
    try:
        await _receive_upload(session, session.folder, kind, object_hash, size, request)
    finally:
        session.uploading.discard((kind, object_hash))


async def _receive_upload(
    session: PushSession, folder: Path, kind: str, object_hash: Multihash, size: int, request: web.BaseRequest
) -> None:
    serving = session.target.serving
    staged = await serving.run(_StagedObject, LocalObjectStore(folder / kind), object_hash)
    try:
        await _send_continue(request)
        async for data in _read_body(request, size, serving.limits.idle_seconds):
            await serving.run(staged.write, data)
        await serving.run(staged.commit)
    finally:
        await asyncio.shield(serving.run(staged.close))
    session.arrived += 1


class _StagedObject:
    """An incomplete object. Methods raise `OdfError` if the file cannot be written."""

    def __init__(self, objects: LocalObjectStore, object_hash: Multihash) -> None:
        self._objects = objects
        self._wanted = object_hash
        self._hasher: Any = _HASHERS[object_hash.code]()
        self._size = 0
        with translate_commit_errors(objects.folder):
            self._path = objects.staging_path()
            self._file = self._path.open("xb", buffering=0)

    def write(self, data: bytes) -> None:
        with translate_commit_errors(self._objects.folder):
            write_all(self._file.fileno(), data)
        self._hasher.update(data)
        self._size += len(data)

    def commit(self) -> None:
        """Move the file to its final name.

        Raises:
            BadData: the bytes do not match the hash.
        """
        if self._hasher.digest() != self._wanted.digest:
            raise BadData("the bytes do not match the hash")
        with translate_commit_errors(self._objects.folder):
            # Every write was complete: a file of this size has the hashed bytes.
            if os.fstat(self._file.fileno()).st_size != self._size:
                raise OSError(errno.EIO, "not all bytes were stored", str(self._path))
            os.fsync(self._file.fileno())
            self._objects.put_file(str(self._wanted), self._path)

    def close(self) -> None:
        self._file.close()
        remove_temporary(self._path)


async def _receive_small(
    target: PushTarget, kind: str, object_hash: Multihash, length: int, request: web.BaseRequest
) -> None:
    """Receive a proof or the results of checks, and store it after verification."""
    entry = _check_upload(target, kind, length, _MAX_SMALL[kind])
    await _send_continue(request)
    serving = target.serving
    data = b"".join([chunk async for chunk in _read_body(request, length, serving.limits.idle_seconds)])
    store = {"proofs": _store_proof, "checks": _store_report}[kind]
    await serving.run(store, entry, object_hash, data)


def _check_upload(target: PushTarget, kind: str, length: int, max_bytes: int) -> DatasetEntry:
    """Return the dataset that receives a file.

    Raises:
        BadData: the file is too large.
        NotFound: the dataset does not exist.
    """
    if length > (limit := min(max_bytes, target.serving.limits.most_push_bytes)):
        raise BadData(f"a file in {kind} has at most {limit:,} bytes")
    if target.entry is None:
        raise NotFound("dataset not found")
    return target.entry


def _store_proof(entry: DatasetEntry, head: Multihash, data: bytes) -> None:
    proof = OwnershipProof.from_bytes(data)
    if not entry.dataset.contains_block(head):
        raise NotFound("block not found")
    verify_proof(proof, entry.id, head)
    with translate_commit_errors(entry.dataset.folder):
        store_proof(entry.dataset.folder, proof)


def _store_report(entry: DatasetEntry, slice_hash: Multihash, data: bytes) -> None:
    receive_report(entry.dataset, slice_hash, data)


async def _receive_record(
    target: PushTarget, new_head: Multihash, length: int, request: web.BaseRequest
) -> None:
    """Receive a compaction record in a file, and store it after verification."""
    serving = target.serving
    entry = _check_upload(target, COMPACTIONS_FOLDER, length, MAX_RECORD_BYTES)
    with serving.record_upload():
        staged = await serving.run(_StagedRecord, entry.dataset)
        try:
            await _send_continue(request)
            async for data in _read_body(request, length, serving.limits.idle_seconds):
                await serving.run(staged.write, data)
            async with serving.heavy:
                await serving.run(staged.commit, new_head)
        finally:
            await asyncio.shield(serving.run(staged.close))


class _StagedRecord:
    """An incomplete compaction record. Methods raise `OdfError` if the file cannot be written."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        with translate_commit_errors(dataset.folder):
            self._path = dataset.compactions.staging_path()
            self._file = self._path.open("xb", buffering=0)

    def write(self, data: bytes) -> None:
        with translate_commit_errors(self._dataset.folder):
            write_all(self._file.fileno(), data)

    def commit(self, new_head: Multihash) -> None:
        """Verify the record, and move it to its name."""
        with translate_commit_errors(self._dataset.folder):
            receive_record(self._dataset, new_head, self._path)

    def close(self) -> None:
        self._file.close()
        remove_temporary(self._path)


async def _send_continue(request: web.BaseRequest) -> None:
    """Send ``100 Continue`` to a client that waits for it."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= (1, 1):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the response is sent yet


async def _read_body(request: web.BaseRequest, size: int, idle: float) -> AsyncIterator[bytes]:
    """Yield the body in chunks of about a megabyte.

    Raises:
        BadData: it is shorter or longer than announced.
    """
    buffer, has_more, remaining = bytearray(), True, size
    while has_more:
        async with asyncio.timeout(idle):
            data = await request.content.readany()
        has_more = bool(data)
        buffer += data
        remaining -= len(data)
        if remaining < 0:
            raise BadData("more bytes than were announced")
        if len(buffer) >= _BUFFER or not has_more:
            yield bytes(buffer)
            buffer.clear()
    if remaining:
        raise BadData("fewer bytes than were announced")
