"""Long messages: made once for many, kept in files, and not too many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from odf_engine.errors import BadData
from odf_engine.sync.server import service
from odf_engine.sync.server.service import MessageCache, MessageFile
from tests.open_files import count_open_files


@pytest.fixture
def messages(tmp_path: Path) -> MessageCache:
    """An empty store."""
    return MessageCache(tmp_path / "cache", asyncio.to_thread, asyncio.Semaphore(2))


async def test_message_is_created_once_for_concurrent_requests(
    messages: MessageCache, tmp_path: Path
) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return bytes(range(256)) * 1000

    found = await asyncio.gather(*(messages.get("a", make) for _ in range(8)))
    assert len(set(map(id, found))) == len(made) == 1
    assert (found[0].size, found[0].read(255_998, 10)) == (256_000, b"\xfe\xff")
    assert found[0].read(256, 3) == b"\0\1\2"
    assert list((tmp_path / "cache").iterdir()) == []


async def test_failed_message_is_created_again_but_cancelled_one_continues(messages: MessageCache) -> None:
    def fail() -> bytes:
        raise BadData("damaged")

    for _ in range(2):
        with pytest.raises(BadData):
            await messages.get("a", fail)
    given_up = asyncio.create_task(messages.get("a", lambda: b"first"))
    await asyncio.sleep(0)
    given_up.cancel()
    assert (await messages.get("a", lambda: b"second")).read(0, 9) == b"first"  # another's work goes on


async def test_old_messages_are_evicted_unless_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(create: Callable[[], MessageFile]) -> MessageFile:
        return create()  # a thread of a pool keeps its last result for a moment

    monkeypatch.setattr(service, "_MAX_CACHE_BYTES", 1000)
    messages = MessageCache(tmp_path / "cache", run, asyncio.Semaphore(2))
    first = await messages.get(0, lambda: b"x" * 400)
    for key in range(1, 20):
        await messages.get(key, lambda: b"y" * 400)
    assert first.read(0, 3) == b"xxx"  # a slow client still has it
    assert 1 <= count_open_files(tmp_path) <= 3
    assert (await messages.get(19, lambda: b"z")).size == 400
    assert (await messages.get(0, lambda: b"new")).size == 3
    assert (await messages.get("large", lambda: b"l" * 5000)).size == 5000  # alone, it is kept
    assert (await messages.get("large", lambda: b"z")).size == 5000
