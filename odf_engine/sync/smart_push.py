"""The server's side of a smart push: blocks, then where their objects go, then the head moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from aiohttp import web

from odf_engine.errors import BadData, ChainRuleViolated, Conflict, OdfError, SourceUnavailable
from odf_engine.sync import messages as m
from odf_engine.sync.frames import Channel, Silence
from odf_engine.sync.remote import ObjectFile
from odf_engine.sync.serving import Forbidden, PushSession, Target
from odf_engine.sync.smart_receive import Receiving
from odf_engine.sync.smart_session import CLIENT, Refusal, converse, internal, until_closed

T = TypeVar("T")
ASK_SECONDS: Final = 10.0
"""How often a client is asked how far its uploads are."""


async def push(request: web.BaseRequest, target: Target) -> web.StreamResponse:
    """Holds the session of a push.

    Args:
        request: what wants to become the session.
        target: what is pushed to, by somebody who may do so.

    Raises:
        Conflict: another push of the dataset is on.
        SourceUnavailable: too many pushes are on.
    """
    with target.serving.pushing(target) as session:
        return await converse(
            request, target.serving, lambda channel, newer: _Push(session, channel, newer).run()
        )


class _Push:
    """One session."""

    def __init__(self, session: PushSession, channel: Channel, newer: bool) -> None:
        self._session = session
        self._target = session.target
        self._serving = session.target.serving
        self._channel = channel
        self._newer = newer
        self._receiving = Receiving(session)

    async def run(self) -> None:
        """The conversation; nothing of what came is seen unless it comes to its end."""
        receiving = self._receiving
        try:
            await self._talk()
        except (BadData, ChainRuleViolated, Conflict, Forbidden, Refusal):
            await asyncio.shield(self._serving.run(receiving.discard))
            raise
        finally:
            self._session.folder = None  # no uploads any more
            await asyncio.shield(self._serving.run(receiving.close))

    async def _talk(self) -> None:
        channel, receiving = self._channel, self._receiving
        request = m.read_message(await channel.receive(), m.PushRequest, CLIENT)
        await self._do("InitialRequest", True, receiving.check_head, request)
        force = request.force_update_if_diverged
        await channel.send(m.answer_text(m.Empty()))
        text = await channel.receive(expected=4 * request.transfer_plan.bytes_in_raw_blocks)
        async with self._serving.heavy:
            batch = m.read_message(text, m.PushBlocks, CLIENT).new_blocks
            del text
            await self._do("MetadataRequest", self._newer, receiving.blocks, batch, force)
        await channel.send(m.answer_text(m.Empty(), self._newer))
        more = True
        while more:
            more = await self._round()
        m.read_message(await channel.receive(), m.Empty, CLIENT)
        await asyncio.shield(self._do("CompleteRequest", False, receiving.commit))
        await channel.send(m.text_of(m.Empty()))
        await until_closed(channel)

    async def _round(self) -> bool:
        """Says where objects go, and waits until they came; whether the client asks about more."""
        asked = m.read_message(await self._channel.receive(), m.PushObjects, CLIENT)
        missing = await self._do("ObjectsRequest", self._newer, self._receiving.missing, asked)
        told = [self._strategy(each, file) for each, file in zip(asked.object_files, missing, strict=True)]
        await self._channel.send(m.answer_text(m.PushStrategies(told), self._newer))
        await self._uploaded()
        return asked.is_truncated

    def _strategy(self, reference: m.ObjectReference, file: ObjectFile | None) -> m.PushStrategy:
        if file is None:
            return m.PushStrategy(reference, "SkipUpload")
        headers = [m.HeaderRow("authorization", self._target.authorization)]
        if self._newer:
            headers.append(m.HeaderRow(m.VERSION_HEADER, m.VERSION))
        url = m.TransferUrl(f"{self._target.url}{file.kind}/{file.hash}", headers)
        return m.PushStrategy(reference, "HttpUpload", url)

    async def _uploaded(self) -> None:
        """Waits until the client says that it is done, for as long as something moves."""
        loop = asyncio.get_running_loop()
        idle = self._serving.limits.idle_seconds
        moved, arrived = loop.time(), self._session.arrived
        while True:
            if self._session.uploading or self._session.arrived != arrived:
                moved, arrived = loop.time(), self._session.arrived
            try:
                text = await self._channel.receive(patience=min(ASK_SECONDS, idle))
            except Silence:
                if loop.time() - moved > idle:
                    raise SourceUnavailable("nothing has been uploaded for too long") from None
                await self._channel.send(m.text_of(m.Empty()))
                continue
            if m.read_message(text, m.PushProgress, CLIENT).details == "Complete":
                return

    async def _do(self, step: str, as_answer: bool, work: Callable[..., T], *args: object) -> T:
        """Does a step beside the event loop; what goes wrong is told as of this step."""
        try:
            return await self._serving.run(work, *args)
        except Refusal as error:
            error.as_answer = error.as_answer and as_answer
            raise
        except OdfError as error:
            raise internal(error, ("Push", step), newer=self._newer, as_answer=as_answer) from None
