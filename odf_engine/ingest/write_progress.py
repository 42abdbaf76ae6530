"""Progress of the rows of a source: what Spark reads, and what the slice writer writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from odf_engine.base.progress import Reporter


class WriteProgress:
    """Reports what Spark reads and what the slice writer writes, in phases with amounts of their own.

    - ``merge`` and ``write`` have the bytes of the file while it is read for the first time.
    - ``sort`` has bytes without a total: Spark reads the file again, and the number of passes is unknown.
      It begins when the file is read and no row is written, or when a merge starts again to sort the rows.
    - ``write`` has the written rows.

    Thread-safe: Spark's progress comes from another thread.

    Args:
        reporter: receives the phases and amounts.
        size: the size of the file in bytes.
        total_known: whether Spark reads only the file. If it reads slices too, its bytes have no total.
    """

    def __init__(self, reporter: Reporter, size: int, *, total_known: bool) -> None:
        self._reporter = reporter
        self._size = size
        self._total = size if total_known else None
        self._phase = ""
        self._sorted_from: int | None = None  # bytes that were read before sorting began
        self._lock = threading.Lock()
        self.reads = _AmountForwarder(reporter, "bytes", self._bytes_read)
        self.writes = _AmountForwarder(reporter, "rows", self._rows_written)

    def start(self) -> None:
        """Report that a merge starts, or starts again to sort the rows."""
        with self._lock:
            if not self._phase:
                self._phase = "merge"  # which is reported already
            else:
                self._sort(0)

    def _sort(self, read: int) -> None:
        self._phase, self._sorted_from = "sort", read
        self._reporter.phase("sort")

    def _bytes_read(self, read: int) -> None:
        with self._lock:
            if self._sorted_from is None and read < self._size:
                self._reporter.set_amounts(bytes=read, total_bytes=self._total)
            elif self._phase == "merge":
                self._sort(self._size)
            if self._phase == "sort" and self._sorted_from is not None:
                self._reporter.set_amounts(bytes=max(read - self._sorted_from, 0))

    def _rows_written(self, rows: int) -> None:
        with self._lock:
            if self._phase != "write":
                self._phase = "write"
                self._reporter.phase("write")
            self._reporter.set_amounts(rows=rows)


class _AmountForwarder(Reporter):
    """Passes one amount to a function, and everything else but phases to another reporter."""

    def __init__(self, target: Reporter, amount: str, report: Callable[[int], None]) -> None:
        super().__init__()
        self._target = target
        self._amount = amount
        self._report = report

    def set_amounts(self, **amounts: Any) -> None:
        if (amount := amounts.get(self._amount)) is not None:
            self._report(amount)

    def log(self, text: str, level: str = "info") -> None:
        self._target.log(text, level)

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        self._target.warn(text, kind, count)

    @property
    def cancelled(self) -> bool:
        return self._target.cancelled

    def raise_if_cancelled(self) -> None:
        self._target.raise_if_cancelled()

    @contextmanager
    def on_cancel(self, hook: Callable[[], None]) -> Iterator[None]:
        with self._target.on_cancel(hook):
            yield
