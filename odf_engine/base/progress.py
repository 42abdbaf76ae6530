"""Progress reporting and cooperative cancellation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from odf_engine.errors import Cancelled


class JobWarning(msgspec.Struct, frozen=True, omit_defaults=True):
    """A warning of a job, and of the blocks that it committed.

    Attributes:
        kind: kind of the warning, such as ``late-rows``; ``other`` if it has no kind of its own.
        text: the message.
        count: number of rows or other things that it is about, or None if there is no number.
        dataset: name of the dataset of the job.
    """

    kind: str
    text: str
    count: int | None = None
    dataset: str = ""


class Reporter:
    """Receives phases, amounts and log lines of an operation, and carries its cancellation.

    This base class discards what it receives.
    """

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._hooks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def phase(self, name: str) -> None:
        """Start a new phase: ``fetch``, ``read``, ``merge``, ``write``, ``commit``, …"""

    @property
    def current_phase(self) -> str:
        """The name of the phase, or "" if the reporter discards it."""
        return ""

    @contextmanager
    def nested_phase(self, name: str) -> Iterator[None]:
        """Report a phase inside another one, and return to the outer phase afterwards."""
        outer = self.current_phase
        self.phase(name)
        yield
        if outer:
            self.phase(outer)

    def set_amounts(
        self,
        *,
        rows: int | None = None,
        bytes: int | None = None,
        files: int | None = None,
        total_bytes: int | None = None,
        total_rows: int | None = None,
        total_files: int | None = None,
        file: str | None = None,
    ) -> None:
        """Set the absolute amounts of this phase so far; None leaves an amount unchanged.

        ``file`` is the name of the newest file that ``files`` counts.
        """

    def log(self, text: str, level: str = "info") -> None:
        """Add a line to the job log; levels are ``debug``, ``info``, ``warning``, ``error``."""

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        """Add a warning to the job and its log. For the arguments see :class:`JobWarning`."""
        self.log(text, "warning")

    def raise_if_warned(self) -> None:
        """Raise if the job must not commit with the warnings since its last commit. Call it before a commit.

        Raises:
            JobWarned: there are warnings, and the job has ``on_warning: fail``.
        """

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        """Report a committed block, which is now the head of the dataset."""

    @property
    def cancelled(self) -> bool:
        """Whether cancellation was requested."""
        return self._cancelled.is_set()

    def raise_if_cancelled(self) -> None:
        """Raise if cancellation was requested. Long operations call this often.

        Raises:
            Cancelled: cancellation was requested.
        """
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Request cancellation. Thread-safe and idempotent."""
        with self._lock:
            self._cancelled.set()
            # Innermost first: an outer operation may wait for the end of an inner one.
            hooks = list(reversed(self._hooks))
        for hook in hooks:
            hook()

    @contextmanager
    def on_cancel(self, hook: Callable[[], None]) -> Iterator[None]:
        """Call ``hook`` on cancellation within the block, or immediately if it was already requested."""
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


class ForwardingReporter(Reporter):
    """Forwards everything to another reporter. Subclasses change a part of it.

    Args:
        target: the other reporter.
    """

    def __init__(self, target: Reporter) -> None:
        super().__init__()
        self._target = target

    def phase(self, name: str) -> None:
        self._target.phase(name)

    @property
    def current_phase(self) -> str:
        return self._target.current_phase

    def set_amounts(self, **amounts: Any) -> None:
        self._target.set_amounts(**amounts)

    def log(self, text: str, level: str = "info") -> None:
        self._target.log(text, level)

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        self._target.warn(text, kind, count)

    def raise_if_warned(self) -> None:
        self._target.raise_if_warned()

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        self._target.committed(dataset, block, event, rows)

    @property
    def cancelled(self) -> bool:
        return self._target.cancelled

    def raise_if_cancelled(self) -> None:
        self._target.raise_if_cancelled()

    def cancel(self) -> None:
        self._target.cancel()

    @contextmanager
    def on_cancel(self, hook: Callable[[], None]) -> Iterator[None]:
        with self._target.on_cancel(hook):
            yield


def count_of(number: int, noun: str) -> str:
    """Return a number of things for a message, such as ``1 row`` or ``1,200 rows``.

    Args:
        noun: the noun in the singular; its plural is formed with ``s``.
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_of(number: int) -> str:
    """Return a number of bytes in decimal units for a message, such as ``1.2 MB``."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
