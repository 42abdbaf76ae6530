"""Pushing by the smart protocol: blocks in one message, objects to where the server says, then the head."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from odf_engine.chain.chain import Dataset
from odf_engine.errors import (
    BadData,
    Cancelled,
    Conflict,
    NotFound,
    OdfError,
    SourceUnavailable,
    Unsupported,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.proof import read_proof
from odf_engine.progress import Reporter
from odf_engine.sync import messages as m
from odf_engine.sync.archive import write_archive
from odf_engine.sync.compare import Relation
from odf_engine.sync.frames import MOST_PACKED_SHARE, Channel, PeerGone, Silence
from odf_engine.sync.places import Access
from odf_engine.sync.push import Pushed
from odf_engine.sync.remote import MOST_PROOF_BYTES, ObjectFile
from odf_engine.sync.smart_put import Uploads
from odf_engine.sync.smart_socket import LoopThread, NotSmart, SmartSession

if TYPE_CHECKING:
    from odf_engine.sync.smart import SmartRemote

_ROUND: Final = 10_000
_AROUND_PAYLOAD: Final = 1024
_MOST_SAID: Final = 100
_CHECKED_A_SECOND: Final = 10 << 20  # bytes of objects that a server looks at before it moves the head
_NO_HURRY: Final = 7 * 86_400.0


class _Outgoing(NamedTuple):
    """Blocks, oldest first, and the objects that they speak of."""

    head: Multihash
    blocks: list[Multihash]
    files: list[ObjectFile]
    plan: m.TransferPlan


class SmartPush:
    """One push.

    Attributes:
        quiet_seconds: so long nothing comes from a server that has said all.
        quiet_times: so often that is awaited, before its head has to be the new one.
    """

    quiet_seconds = 2.0
    quiet_times = 5

    def __init__(
        self,
        remote: SmartRemote,
        dataset: Dataset,
        base: str,
        access: Access,
        reporter: Reporter,
        uploads: Uploads,
    ) -> None:
        self._remote = remote
        self._dataset = dataset
        self._base = base
        self._access = access
        self._reporter = reporter
        self._uploads = uploads

    def run(self, loop: LoopThread, relation: Relation, *, force: bool) -> Pushed:
        """Pushes what ``relation`` says is missing there; see :meth:`SmartRemote.push`."""
        theirs = self._remote.head()
        other = relation.kind in ("behind", "diverged")
        if other and not force:
            raise Conflict("the dataset there has blocks that are not here", where=self._remote.url)
        common = None if other else relation.common
        if not other and common != theirs:
            raise Conflict("the dataset there moved meanwhile", where=self._remote.url, hint="push again")
        new = self._collect(common)
        if new.head == theirs:
            self._send_proof(new.head)  # which may be newer than the head
            return self._pushed(theirs, new, "up-to-date")
        archive = self._archive(new.blocks)
        try:
            loop.run(self._exchange(new, archive, theirs, force=other), self._reporter)
        except PeerGone as error:
            raise m.problem_of_close(error.reason, self._remote.url) or error from None
        except NotSmart as error:
            hint = error.hint or "push needs a server that takes it, such as: odf serve --allow-push"
            problem = f"the server takes no pushes: {error.message}"
            raise Unsupported(problem, where=self._remote.url, hint=hint) from None
        return self._pushed(theirs, new, "updated")

    def _pushed(self, theirs: Multihash | None, new: _Outgoing, status: str) -> Pushed:
        updated = status == "updated"
        return Pushed(
            status="updated" if updated else "up-to-date",
            old_head=theirs,
            new_head=new.head,
            blocks=len(new.blocks) if updated else 0,
            objects=self._uploads.sent,
            bytes=self._uploads.sent_bytes + (new.plan.bytes_in_raw_blocks if updated else 0),
            relation=Relation("equal", 0, 0, new.head),
        )

    # --- What goes ---

    def _collect(self, common: Multihash | None) -> _Outgoing:
        """What has come since ``common``; every block is read and checked, newest first."""
        head = at = self._dataset.head()
        if head is None:
            raise NotFound("the dataset is empty: there is nothing to push", where=str(self._dataset.folder))
        blocks: list[Multihash] = []
        files: dict[ObjectFile, None] = {}
        records = raw = 0
        while at is not None and at != common:
            self._reporter.check()
            stored = self._dataset.block(at)
            event = stored.block.event
            if (checkpoint := getattr(event, "new_checkpoint", None)) is not None:
                files[ObjectFile("checkpoints", checkpoint.physical_hash, checkpoint.size)] = None
            if (data := getattr(event, "new_data", None)) is not None:
                files[ObjectFile("data", data.physical_hash, data.size)] = None
                records += data.offset_interval.end - data.offset_interval.start + 1
            raw += stored.size
            blocks.append(at)
            at = stored.block.prev_block_hash
        if at != common:
            where = str(self._dataset.folder)
            raise Conflict("the dataset was set back meanwhile", where=where, hint="push again")
        total = sum(file.size for file in files)
        plan = m.TransferPlan(len(blocks), len(files), records, raw, total)
        return _Outgoing(head, blocks[::-1], list(files)[::-1], plan)

    def _archive(self, blocks: Sequence[Multihash]) -> bytes:
        def read() -> Iterator[tuple[Multihash, bytes]]:
            for block in blocks:
                self._reporter.check()
                data = self._dataset.block_bytes(block)
                if Multihash.sha3_256(data) != block:
                    raise BadData(f"block {block} is damaged here", where=str(self._dataset.folder))
                yield block, data

        most = int((self._remote.most_bytes - _AROUND_PAYLOAD) / MOST_PACKED_SHARE)
        return write_archive(read(), most)

    # --- The conversation ---

    async def _exchange(
        self, new: _Outgoing, archive: bytes, theirs: Multihash | None, *, force: bool
    ) -> None:
        url = f"{self._base}push"
        async with await SmartSession.open(url, self._access, self._remote.most_bytes) as session:
            channel = session.channel
            await channel.send(m.text_of(m.PushRequest(new.plan, theirs, force)))
            m.read_answer(await channel.receive(), m.Empty, self._base)
            blocks = m.PushBlocks(m.batch_of(len(new.blocks), archive))
            await channel.send(m.text_of(blocks))
            text = await channel.receive(expected=4 * new.plan.bytes_in_raw_blocks)
            m.read_answer(text, m.Empty, self._base)
            self._reporter.phase("send")
            self._uploads.begin(new.files)
            for start in range(0, max(1, len(new.files)), _ROUND):
                await self._send_round(channel, new.files, start)
            self._reporter.phase("commit")
            await channel.send(m.text_of(m.Empty()))
            await self._confirm(channel, new)
            await channel.close(reason=m.PUSHED)
        await asyncio.to_thread(self._send_proof, new.head)

    async def _send_round(self, channel: Channel, files: Sequence[ObjectFile], start: int) -> None:
        part = files[start : start + _ROUND]
        more = start + _ROUND < len(files)
        asked = m.PushObjects([m.ObjectReference.of(file) for file in part], more)
        await channel.send(m.text_of(asked))
        text = await channel.receive(expected=2048 * len(part))
        told = m.read_answer(text, m.PushStrategies, self._base).object_transfer_strategies
        strategies = {each.object_file.file: each for each in told}
        missing = [file for file in part if file not in strategies]
        if missing:
            file = missing[0]
            raise BadData(
                f"the server does not say what to do with {file.kind}/{file.hash}", where=self._base
            )
        reports = asyncio.create_task(self._report(channel))
        told = [strategies[file] for file in part]
        uploads = asyncio.create_task(asyncio.to_thread(self._uploads.send, told))
        try:
            await asyncio.wait({reports, uploads}, return_when=asyncio.FIRST_COMPLETED)
            if reports.done() and not uploads.done():
                await reports  # it ends by an error only
            await uploads
        finally:
            if not uploads.done():
                self._uploads.stop()
            reports.cancel()
            await asyncio.gather(reports, uploads, return_exceptions=True)
        await channel.send(m.text_of(m.PushProgress("Complete")))

    async def _report(self, channel: Channel) -> None:
        """Says how far the uploads are, whenever the server asks."""
        while True:
            m.read_answer(await channel.receive(patience=_NO_HURRY), m.Empty, self._base)
            running = m.RunningDetails(m.Running(self._uploads.done))
            await channel.send(m.text_of(m.PushProgress(running)))

    async def _confirm(self, channel: Channel, new: _Outgoing) -> None:
        """Waits until the head there is the new one.

        That the server says ``{}`` may also mean that it asks for the progress once more: its head tells.
        """
        fetch, raw = self._access.config.fetch, new.plan.bytes_in_raw_objects
        waited = fetch.read_timeout_seconds + raw / _CHECKED_A_SECOND
        quiet = said = 0
        while True:
            try:
                m.read_answer(await channel.receive(patience=waited), m.Empty, self._base)
                said += 1
            except PeerGone as error:
                problem = m.problem_of_close(error.reason, self._base)
                if problem is not None and error.reason.startswith("{"):
                    raise problem from None
                quiet = self.quiet_times
            except Silence:
                quiet += 1
            waited = self.quiet_seconds
            if await asyncio.to_thread(self._remote.head) == new.head:
                return
            if quiet >= self.quiet_times or said > _MOST_SAID:
                problem = "the server took everything, and yet its head is not the new one"
                raise SourceUnavailable(problem, where=self._remote.url, hint="push again")

    def _send_proof(self, head: Multihash) -> None:
        """Sends the proof of the head, if there is one here and none there; without it nothing is lost."""
        try:
            proof = read_proof(self._dataset.folder, head)
            if proof is None:
                return
            with suppress(NotFound):
                if self._remote.read("proofs", head, MOST_PROOF_BYTES) == bytes(proof):
                    return
            self._uploads.send_proof(head, bytes(proof))
        except Cancelled:
            return  # the push is done
        except OdfError as error:
            self._reporter.line(f"the proof of the head was not sent: {error.message}", "warning")
