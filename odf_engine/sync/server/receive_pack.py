"""Server side of a smart push."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from aiohttp import web

from odf_engine.base.atomic_files import make_folder, translate_commit_errors
from odf_engine.base.files import fsync_folder
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.linked_objects import read_links
from odf_engine.chain.quarantine import Quarantine
from odf_engine.errors import (
    AlreadyExists,
    BadData,
    ChainRuleViolated,
    Conflict,
    NotFound,
    NotSynced,
    OdfError,
    SourceUnavailable,
)
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import Seed
from odf_engine.mirror.catalog import ORIGIN_FILE
from odf_engine.sync.chain_download import referenced_objects, slice_with_links
from odf_engine.sync.history import RemoteBlock, verify_block
from odf_engine.sync.remotes.base import ObjectFile, read_verified_chunks
from odf_engine.sync.server.service import PUSH_ORIGIN, Forbidden, PushSession, PushTarget
from odf_engine.sync.server.upload_pack import (
    CLIENT,
    SessionRefused,
    find_object,
    internal_error,
    run_session,
    until_closed,
)
from odf_engine.sync.smart import messages as m
from odf_engine.sync.smart.messages import read_archive
from odf_engine.sync.smart.websocket import MessageChannel, ReceiveTimeout
from odf_engine.workspace.dataset_folders import incoming_folder
from odf_engine.workspace.definitions.definition import record_origin

_OLD_HEAD_PREFIX: Final = "before-push-"


class ReceivePack:
    """One push into the workspace; not thread-safe.

    Attributes:
        files: objects that the new blocks refer to.
    """

    def __init__(self, session: PushSession) -> None:
        self.files: dict[ObjectFile, None] = {}
        self._session = session
        self._target = session.target
        self._entry = session.target.entry
        self._open = ExitStack()
        self._dataset: Dataset | None = None if self._entry is None else self._entry.dataset
        self._old_head: Multihash | None = None
        self._quarantine: Quarantine | None = None
        self._folder: Path | None = None
        self._common: Multihash | None = None
        self._common_objects: set[ObjectFile] = set()
        self._requested: set[ObjectFile] = set()
        self._linked_slices: dict[Multihash, list[str]] = {}
        self._links: set[Multihash] = set()
        self._linked: dict[ObjectFile, None] = {}
        self._is_forking = False
        self._discards_blocks = False

    def check_head(self, request: m.PushRequest) -> None:
        """Check that the client has the current head.

        Raises:
            SessionRefused: it has not, and does not force the push.
        """
        self._old_head = None if self._dataset is None else self._dataset.head()
        if request.current_head != self._old_head and not request.force_update_if_diverged:
            # The names are swapped, as in the reference implementation.
            raise SessionRefused(
                "InvalidHead", actual_head=request.current_head, expected_head=self._old_head
            )

    def store_blocks(self, batch: m.ObjectsBatch, force: bool) -> None:
        """Store the blocks; they are not visible before :meth:`commit`.

        Raises:
            SessionRefused: it is another dataset, or the client may not push this one.
            BadData, ChainRuleViolated, Conflict: the blocks cannot follow the current chain.
        """
        limits = self._target.serving.limits
        if not 0 < batch.num_blocks <= limits.most_push_blocks:
            raise BadData(f"a push must have 1 to {limits.most_push_blocks:,} blocks")
        last: Multihash | None = None
        for block_hash, data in read_archive(m.archive_of(batch, CLIENT), batch.num_blocks, CLIENT):
            self._session.add_bytes(len(data))
            block = verify_block(block_hash, data, CLIENT)
            if self._quarantine is None:
                self._open_push(block, force)
            elif block.block.prev_block_hash != last:
                raise BadData(f"block {block_hash} does not follow the previous block")
            last = block_hash
            if self._is_forking:
                if self._target_dataset.contains_block(block_hash):
                    self._common = block_hash
                    self._common_objects.update(referenced_objects(block))
                    continue
                self._fork()
            self._open_quarantine.store(block_hash, data)
            self._open_quarantine.append(block.stored)
            self.files.update(dict.fromkeys(referenced_objects(block)))
            self._linked_slices.update(slice_with_links(block, self._open_quarantine))
        if self._is_forking:
            self._fork()  # all blocks are stored already: newer ones are discarded

    def find_missing(self, request: m.PushObjects) -> list[ObjectFile | None]:
        """Return the objects that must be uploaded, or None for those that are stored.

        Raises:
            BadData: an object that no block refers to.
            Forbidden: more than one push may upload.
        """
        missing: list[ObjectFile | None] = []
        for reference in request.object_files:
            file = reference.file
            if file not in self.files and file not in self._common_objects:
                if not self._is_linked(file):
                    raise BadData(f"no block refers to {file.kind}/{file.hash} with {file.size:,} bytes")
                self._linked[file] = None
            self._requested.add(file)
            missing.append(None if self._is_stored(file) else file)
        self._session.folder = self._open_quarantine.folder
        self._session.announce(file for file in missing if file is not None)
        return missing

    def commit(self) -> None:
        """Move the head after all objects have arrived.

        Raises:
            NotFound: an object is missing.
            Conflict: another process has committed, or uses the name.
            NotSynced: the head has moved, or the dataset was added, but a power failure may revert it.
        """
        quarantine, dataset = self._open_quarantine, self._target_dataset
        for file in self.files:
            # Requested objects were checked before, and uploads are verified: only their presence matters
            # now.
            is_present = self._has_arrived(file) or find_object(dataset, file) is not None
            if not (is_present if file in self._requested else self._is_stored(file)):
                raise NotFound(f"{file.kind}/{file.hash} with {file.size:,} bytes is missing")
        for file in self._linked:
            if not self._has_arrived(file) and find_object(dataset, file) is None:
                raise NotFound(f"linked object {file.hash} with {file.size:,} bytes is missing")
        with translate_commit_errors(dataset.folder):
            self._move_objects(dataset)
        old_head = self._old_head
        old_head_ref = (
            f"{_OLD_HEAD_PREFIX}{old_head.abbreviated}"
            if old_head is not None and self._discards_blocks
            else None
        )
        try:
            quarantine.commit(old_head, backup_ref=old_head_ref, before_move=self._record_origin)
        except NotSynced as error:
            if self._entry is None:  # the dataset is not visible yet
                raise error.as_failure() from error
            raise
        if self._entry is None:
            assert self._folder is not None
            workspace = self._target.serving.workspace
            try:
                workspace.import_dataset(self._folder, self._target.alias, self._origin)
            except AlreadyExists as error:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise SessionRefused(
                    "NameCollision", as_answer=False, dataset_alias=str(self._target.alias)
                ) from error

    def discard(self) -> None:
        """Remove the received blocks, which cannot be resumed."""
        if self._quarantine is not None:
            self._quarantine.discard()

    def close(self) -> None:
        """Release locks; complete objects are stored for another attempt."""
        self._open.close()

    def _open_push(self, first: RemoteBlock, force: bool) -> None:
        """Open the quarantine with the first received block."""
        seed = first.block.event
        if self._entry is not None and self._old_head is not None:
            if isinstance(seed, Seed) and first.hash != self._entry.dataset.block(0).hash:
                raise SessionRefused("SeedBlockOverwriteRestricted")
            self._check_seed(self._entry.id)
        elif isinstance(seed, Seed):
            self._check_seed(seed.dataset_id)
            if self._entry is None:
                workspace = self._target.serving.workspace
                source = f"push of {seed.dataset_id}"
                self._folder = self._open.enter_context(incoming_folder(workspace.odf, source))
                self._dataset = Dataset(self._folder, workspace.index)
        else:
            raise BadData("dataset not found, and the first block is not a Seed")
        dataset, before = self._target_dataset, self._old_head
        self._is_forking = force and before is not None
        if self._is_forking and not isinstance(seed, Seed):
            raise BadData("a forced push must have all blocks of the chain")
        if not self._is_forking and first.block.prev_block_hash != before:
            problem = "the first block does not follow the current head"
            raise Conflict(problem, hint="pull first, then push again")
        self._quarantine = self._open.enter_context(Quarantine(dataset))
        if self._folder is not None and dataset.head() is not None:
            # An earlier push failed only at the name; its blocks are sent again.
            (self._folder / "refs" / "head").unlink()
        if not self._is_forking:
            self._quarantine.set_parent(before)

    def _fork(self) -> None:
        """Set the parent of the new blocks: the last common block."""
        self._is_forking = False
        self._discards_blocks = self._common != self._old_head
        self._open_quarantine.set_parent(self._common)

    def _check_seed(self, dataset_id: DatasetId) -> None:
        try:
            self._target.check_seed(dataset_id)
        except Conflict as error:
            if self._entry is None:
                raise SessionRefused("RefCollision", dataset_id=str(dataset_id)) from error
            raise SessionRefused("SeedBlockOverwriteRestricted") from error

    def _is_linked(self, file: ObjectFile) -> bool:
        """Return whether a slice that has arrived links to an object."""
        if file.kind == "data" and file.hash not in self._links and self._linked_slices:
            for slice_hash, columns in list(self._linked_slices.items()):
                path = self._open_quarantine.folder / "data" / str(slice_hash)
                path = path if path.is_file() else self._target_dataset.slice_path(slice_hash)
                if path.is_file():
                    self._links.update(read_links(path, columns).counts)
                    del self._linked_slices[slice_hash]
        return file.kind == "data" and file.hash in self._links

    def _is_stored(self, file: ObjectFile) -> bool:
        """Return whether an object is stored with the right bytes; objects of interrupted transfers are
        verified.
        """
        if find_object(self._target_dataset, file) is not None:
            return True
        path = self._arriving_path(file)
        if not path.is_file():
            return False
        try:
            for _ in read_verified_chunks(file, path):
                pass
            return True
        except OdfError:
            path.unlink(missing_ok=True)
            return False

    def _has_arrived(self, file: ObjectFile) -> bool:
        try:
            return self._arriving_path(file).stat().st_size == file.size
        except FileNotFoundError:
            return False

    def _move_objects(self, dataset: Dataset) -> None:
        """Move received objects to their final place. They are synced, and unused before the head moves."""
        files = [*self.files, *self._linked]
        kinds = {file.kind for file in files}
        for kind in kinds:
            make_folder(dataset.folder / kind)
        for file in files:
            if find_object(dataset, file) is None:
                os.replace(self._arriving_path(file), dataset.folder / file.kind / str(file.hash))  # noqa: PTH105
        for kind in kinds:
            fsync_folder(dataset.folder / kind)

    def _arriving_path(self, file: ObjectFile) -> Path:
        return self._open_quarantine.folder / file.kind / str(file.hash)

    @property
    def _open_quarantine(self) -> Quarantine:
        assert self._quarantine is not None, "blocks are received first"
        return self._quarantine

    @property
    def _target_dataset(self) -> Dataset:
        assert self._dataset is not None, "blocks are received first"
        return self._dataset

    @property
    def _origin(self) -> str:
        return f"{PUSH_ORIGIN} '{self._target.token.name}'"

    def _record_origin(self) -> None:
        entry = self._entry
        if entry is not None and not (entry.dataset.folder / ORIGIN_FILE).exists():
            record_origin(entry, self._origin)


ResultT = TypeVar("ResultT")
PROGRESS_SECONDS: Final = 10.0
"""Interval in seconds at which a client reports the progress of its uploads."""


async def serve_push(request: web.BaseRequest, target: PushTarget) -> web.StreamResponse:
    """Serve the session of a push.

    Args:
        request: the HTTP request to upgrade.
        target: target of the push, already authorized.

    Raises:
        Conflict: another push of the dataset is in progress.
        SourceUnavailable: too many pushes are in progress.
    """
    with target.serving.push_session(target) as session:
        return await run_session(
            request, target.serving, lambda channel, newer: _PushSession(session, channel, newer).run()
        )


class _PushSession:
    """The session of a push."""

    def __init__(self, session: PushSession, channel: MessageChannel, newer: bool) -> None:
        self._session = session
        self._target = session.target
        self._serving = session.target.serving
        self._channel = channel
        self._newer = newer
        self._pack = ReceivePack(session)

    async def run(self) -> None:
        """Run the protocol; nothing is visible unless it completes."""
        pack = self._pack
        try:
            await self._run_protocol()
        except (BadData, ChainRuleViolated, Conflict, Forbidden, SessionRefused):
            await asyncio.shield(self._serving.run(pack.discard))
            raise
        finally:
            self._session.folder = None  # no further uploads
            await asyncio.shield(self._serving.run(pack.close))

    async def _run_protocol(self) -> None:
        channel, pack = self._channel, self._pack
        request = m.read_message(await channel.receive(), m.PushRequest, CLIENT)
        await self._run_step("InitialRequest", True, pack.check_head, request)
        force = request.force_update_if_diverged
        await channel.send(m.answer_text(m.Empty()))
        text = await channel.receive(expected=4 * request.transfer_plan.bytes_in_raw_blocks)
        async with self._serving.heavy:
            batch = m.read_message(text, m.PushBlocks, CLIENT).new_blocks
            del text
            await self._run_step("MetadataRequest", self._newer, pack.store_blocks, batch, force)
        await channel.send(m.answer_text(m.Empty(), self._newer))
        more = True
        while more:
            more = await self._exchange_objects()
        m.read_message(await channel.receive(), m.Empty, CLIENT)
        await asyncio.shield(self._run_step("CompleteRequest", False, pack.commit))
        await channel.send(m.encode_message(m.Empty()))
        await until_closed(channel)

    async def _exchange_objects(self) -> bool:
        """Send upload locations and wait for the uploads; return whether the client requests more."""
        request = m.read_message(await self._channel.receive(), m.PushObjects, CLIENT)
        missing = await self._run_step("ObjectsRequest", self._newer, self._pack.find_missing, request)
        strategies = [
            self._strategy(object_file, file)
            for object_file, file in zip(request.object_files, missing, strict=True)
        ]
        await self._channel.send(m.answer_text(m.PushStrategies(strategies), self._newer))
        await self._wait_for_uploads()
        return request.is_truncated

    def _strategy(self, reference: m.ObjectReference, file: ObjectFile | None) -> m.PushStrategy:
        if file is None:
            return m.PushStrategy(reference, "SkipUpload")
        headers = [m.HeaderRow("authorization", self._target.authorization)]
        if self._newer:
            headers.append(m.HeaderRow(m.VERSION_HEADER, m.VERSION))
        url = m.TransferUrl(f"{self._target.url}{file.kind}/{file.hash}", headers)
        return m.PushStrategy(reference, "HttpUpload", url)

    async def _wait_for_uploads(self) -> None:
        """Wait until the client reports completion, as long as there is progress."""
        loop = asyncio.get_running_loop()
        idle = self._serving.limits.idle_seconds
        last_progress, arrived = loop.time(), self._session.arrived
        while True:
            if self._session.uploading or self._session.arrived != arrived:
                last_progress, arrived = loop.time(), self._session.arrived
            try:
                text = await self._channel.receive(patience=min(PROGRESS_SECONDS, idle))
            except ReceiveTimeout:
                if loop.time() - last_progress > idle:
                    raise SourceUnavailable("timeout: no uploads") from None
                await self._channel.send(m.encode_message(m.Empty()))
                continue
            if m.read_message(text, m.PushProgress, CLIENT).details == "Complete":
                return

    async def _run_step(
        self, step: str, as_answer: bool, work: Callable[..., ResultT], *args: object
    ) -> ResultT:
        """Run a step in a thread; translate its errors to this step."""
        try:
            return await self._serving.run(work, *args)
        except SessionRefused as error:
            error.as_answer = error.as_answer and as_answer
            raise
        except OdfError as error:
            raise internal_error(error, ("Push", step), newer=self._newer, as_answer=as_answer) from None
