"""Work that must be done in order within a strand, while strands run beside each other."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self


class Strands:
    """A few threads for many strands. Leaving the ``with`` block ends the threads.

    Args:
        threads: how many; by default one a core.
        depth: how many pieces of work may wait in one strand before :meth:`Strand.put` blocks, so
            that memory stays bounded.
    """

    def __init__(self, threads: int | None = None, depth: int = 2) -> None:
        self._pool = ThreadPoolExecutor(max(1, threads or os.cpu_count() or 1), "strand")
        self._depth = depth
        self._strands: list[Strand] = []

    def strand(self) -> Strand:
        """A new strand."""
        strand = Strand(self._pool, self._depth)
        self._strands.append(strand)
        return strand

    def wait(self) -> None:
        """Returns when all strands are empty.

        Raises:
            BaseException: what some work raised.
        """
        for strand in self._strands:
            strand.wait()

    def close(self) -> None:
        """Drops what has not begun and ends the threads."""
        for strand in self._strands:
            strand.drop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Strand:
    """Work done one piece after the other, in the order it was put."""

    def __init__(self, pool: ThreadPoolExecutor, depth: int) -> None:
        self._pool = pool
        self._depth = depth
        self._queue: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._dropped = False

    def put(self, work: Callable[[], None]) -> None:
        """Adds work; waits while too much is queued.

        Raises:
            BaseException: what earlier work of this strand raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) < self._depth or self._error)
            self._raise()
            self._queue.append(work)
            if len(self._queue) == 1:
                self._pool.submit(self._step)

    def _step(self) -> None:
        # One piece at a time, then to the back of the pool's queue: strands advance together.
        try:
            self._queue[0]()
        except BaseException as error:
            self._advance(error)
        else:
            self._advance(None)

    def _advance(self, error: BaseException | None) -> None:
        with self._changed:
            self._queue.popleft()
            if error is not None or self._dropped:
                self._error = self._error or error
                self._queue.clear()
            if self._queue:
                self._pool.submit(self._step)
            self._changed.notify_all()

    def wait(self) -> None:
        """Returns when all work is done.

        Raises:
            BaseException: what some work raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queue)
            self._raise()

    def drop(self) -> None:
        """Forgets the work that has not begun."""
        with self._changed:
            self._dropped = True

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
