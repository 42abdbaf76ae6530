"""Long messages of a server, made once and sent to many: in files without names, not in memory.

However slowly a client takes a message, what it holds is a descriptor; and those who ask for the same blocks
are sent the same file.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from pathlib import Path
from typing import Final

from odf_engine.files import write_all
from odf_engine.workspace.small_files import not_writable

_MOST_KEPT: Final = 32
_MOST_BYTES: Final = 256 << 20


class Prepared:
    """A message in a file, which is gone with the last who uses it.

    Attributes:
        size: in bytes.
    """

    def __init__(self, text: bytes, folder: Path) -> None:
        try:
            folder.mkdir(exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (it is kept)
            write_all(self._file.fileno(), text)
        except OSError as error:
            raise not_writable(folder / "message", error) from error
        self.size = len(text)

    def read(self, start: int, count: int) -> bytes:
        """So many bytes from byte ``start`` on; fewer at the end."""
        return os.pread(self._file.fileno(), count, start)


class PreparedMessages:
    """The newest of them, by what they say; of the event loop's thread alone.

    Args:
        folder: where the files are.
        run: does work beside the event loop.
        heavy: is held while a message is in memory.
    """

    def __init__(
        self,
        folder: Path,
        run: Callable[..., Awaitable[Prepared]],
        heavy: asyncio.Semaphore,
    ) -> None:
        self._folder = folder
        self._run = run
        self._heavy = heavy
        self._kept: OrderedDict[Hashable, Prepared] = OrderedDict()
        self._making: dict[Hashable, asyncio.Task[Prepared]] = {}

    async def get(self, key: Hashable, make: Callable[[], bytes]) -> Prepared:
        """The message of this key, made by ``make`` (beside the event loop) where it is not kept."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(key, make))
            task.add_done_callback(lambda _: self._making.pop(key))
        return await asyncio.shield(task)  # others may wait for it too

    async def _make(self, key: Hashable, make: Callable[[], bytes]) -> Prepared:
        async with self._heavy:
            made = await self._run(lambda: Prepared(make(), self._folder))
        self._kept[key] = made
        while len(self._kept) > _MOST_KEPT or (
            len(self._kept) > 1 and sum(each.size for each in self._kept.values()) > _MOST_BYTES
        ):
            self._kept.popitem(last=False)
        return made
