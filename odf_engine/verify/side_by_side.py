"""Checks that run beside each other, a thread a core, and tell what they find in their order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from odf_engine.verify.content import Problem

_THREADS: Final = os.cpu_count() or 1
_AHEAD: Final = 4 * _THREADS  # so that no thread waits for the one with the oldest check

Check = Callable[[], Iterable[Problem]]


class SideBySide:
    """Checks of blocks, which run within a ``with`` block; its end waits for them.

    After an exception they should end by themselves: they heed a cancellation.

    Args:
        found: is told each problem with its block, by the thread that calls, in the order of the calls.
    """

    def __init__(self, found: Callable[[str, Problem], None]) -> None:
        self._found = found
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[str, Future[list[Problem]]]] = deque()

    def begin(self, block: str, check: Check) -> None:
        """Runs a check; waits first where too many are under way."""
        assert self._threads is not None  # within `with`
        self._waiting.append((block, self._threads.submit(lambda: list(check()))))
        self._tell(at_most=_AHEAD)

    def tell(self, block: str, problem: Problem) -> None:
        """Something that was found already."""
        known: Future[list[Problem]] = Future()
        known.set_result([problem])
        self._waiting.append((block, known))
        self._tell(at_most=_AHEAD)

    def _tell(self, at_most: int) -> None:
        """Tells what is known up to the first check that is under way; waits for what is too many."""
        while self._waiting and (len(self._waiting) > at_most or self._waiting[0][1].done()):
            block, future = self._waiting.popleft()
            for problem in future.result():
                self._found(block, problem)

    def __enter__(self) -> Self:
        self._threads = ThreadPoolExecutor(_THREADS, "verify")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._threads is not None
        try:
            if error is None:
                self._tell(at_most=0)
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
