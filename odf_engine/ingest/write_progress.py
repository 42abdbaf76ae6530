"""Progress of the rows of a source: what Spark reads, and what the slice writer writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from odf_engine.base.progress import ForwardingReporter, Reporter


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


class _AmountForwarder(ForwardingReporter):
    """Passes one amount to a function, and everything else but phases to another reporter."""

    def __init__(self, target: Reporter, amount: str, report: Callable[[int], None]) -> None:
        super().__init__(target)
        self._amount = amount
        self._report = report

    def phase(self, name: str) -> None:
        pass

    def set_amounts(self, **amounts: Any) -> None:
        if (amount := amounts.get(self._amount)) is not None:
            self._report(amount)


class FileProgress(ForwardingReporter):
    """Reports in all phases which of the files of a source is being ingested, such as 12 of 60."""

    def __init__(self, target: Reporter) -> None:
        super().__init__(target)
        self._files: dict[str, Any] = {}

    def phase(self, name: str) -> None:
        super().phase(name)
        if self._files:
            super().set_amounts(**self._files)

    def set_amounts(self, **amounts: Any) -> None:
        names = ("files", "total_files", "file")
        self._files |= {name: value for name, value in amounts.items() if name in names and value is not None}
        super().set_amounts(**amounts)
