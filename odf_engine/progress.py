"""Progress reporting and cooperative cancellation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from odf_engine.errors import Cancelled


class Reporter:
    """Reports phases, amounts and log lines, and carries the wish to cancel. Silent by itself."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._hooks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def phase(self, name: str) -> None:
        """A new phase begins: ``fetch``, ``read``, ``merge``, ``write``, ``commit``, …"""

    def set_amounts(
        self,
        *,
        rows: int | None = None,
        bytes: int | None = None,
        files: int | None = None,
        total_bytes: int | None = None,
        total_rows: int | None = None,
        total_files: int | None = None,
    ) -> None:
        """Absolute amounts so far in this phase; what is None is unchanged."""

    def log(self, text: str, level: str = "info") -> None:
        """A line for the job's log; levels are ``debug``, ``info``, ``warning``, ``error``."""

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        """A block was committed to a dataset and is its head now."""

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked to stop."""
        return self._cancelled.is_set()

    def raise_if_cancelled(self) -> None:
        """Call it often.

        Raises:
            Cancelled: somebody asked to stop.
        """
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Asks the work to stop; safe from any thread, any number of times."""
        with self._lock:
            self._cancelled.set()
            # What is innermost first: whatever is around it may wait for its end.
            hooks = list(reversed(self._hooks))
        for hook in hooks:
            hook()

    @contextmanager
    def on_cancel(self, hook: Callable[[], None]) -> Iterator[None]:
        """Calls ``hook`` when cancelled within the block, or at once if it already was."""
        with self._lock:
            self._hooks.append(hook)
            late = self._cancelled.is_set()
        if late:
            hook()
        try:
            yield
        finally:
            with self._lock:
                self._hooks.remove(hook)
