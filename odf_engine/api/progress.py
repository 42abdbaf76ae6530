"""Progress of jobs: a bar on a terminal, or below a notebook cell."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import uuid
from html import escape
from typing import Any, Final, Protocol, TextIO

from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.base.terminal_text import escape_controls
from odf_engine.worker.job_warnings import WarningList
from odf_engine.worker.protocol import Progress

_BAR_CELLS: Final = 24
_PULSE_CELLS: Final = 4
_PULSE_SECONDS: Final = 0.2
_NARROW: Final = 80


class JobStatus:
    """Status of a job. One thread updates it, another thread displays it.

    Attributes:
        title: kind of the job and its target.
        progress: its newest progress.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.progress = Progress()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the job was requested."""
        return time.monotonic() - self._began

    @property
    def fraction(self) -> float | None:
        """The completed part of the phase, from 0 to 1, or None if its size is unknown."""
        now = self.progress
        for done, total in (
            (now.bytes, now.total_bytes),
            (now.rows, now.total_rows),
            (now.files, now.total_files),
        ):
            if done is not None and total:
                return min(done / total, 1.0)
        return None

    @property
    def text(self) -> str:
        """The title, the phase and the number of rows as one line without control characters."""
        parts = [self.progress.phase or "starting"]
        if self.progress.rows is not None:
            parts.append(f"{self.progress.rows:,} row{'' if self.progress.rows == 1 else 's'}")
        return escape_controls(f"{self.title}: {', '.join(parts)}").replace("\n", " ")


class StatusReporter(Reporter):
    """Stores the progress of a job in this process in a :class:`JobStatus`, and collects its warnings.

    Attributes:
        warnings: the warnings so far.
    """

    def __init__(self, status: JobStatus, target: str = "") -> None:
        super().__init__()
        self._status = status
        self.warnings = WarningList(target)
        self._changes = threading.Lock()  # a phase and its amounts can come from several threads

    def phase(self, name: str) -> None:
        with self._changes:
            self._status.progress = Progress(phase=name)

    @property
    def current_phase(self) -> str:
        return self._status.progress.phase

    def set_amounts(self, **amounts: int | str | None) -> None:
        known = {name: value for name, value in amounts.items() if value is not None}
        with self._changes:
            self._status.progress = replace(self._status.progress, **known)

    def log(self, text: str, level: str = "info") -> None:
        if level == "warning":
            self.warnings.add("other", text)

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        self.warnings.add(kind, text, count)

    def committed(self, dataset: str, block: str, event: str, rows: int) -> None:
        self.warnings.committed(dataset, block)


class ProgressDisplay(Protocol):
    """Displays the status of one job at a time. All methods are called by the thread that runs the cell."""

    def update(self, status: JobStatus) -> None:
        """Draw the status."""
        ...

    def close(self, status: JobStatus, outcome: str) -> None:
        """Remove the bar. ``outcome`` is ``done``, ``failed`` or ``cancelled``."""
        ...


class NoDisplay:
    """Displays nothing."""

    def update(self, status: JobStatus) -> None:
        """See :class:`ProgressDisplay`."""

    def close(self, status: JobStatus, outcome: str) -> None:
        """See :class:`ProgressDisplay`."""


class TerminalDisplay:
    """One line of a terminal with a bar, removed at the end of the job.

    Args:
        out: the terminal.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = False

    def update(self, status: JobStatus) -> None:
        """See :class:`ProgressDisplay`."""
        width = shutil.get_terminal_size((_NARROW, 24)).columns - 1
        try:
            line = f"{bar(status.fraction, status.seconds)} {status.text}"
            line.encode(self._out.encoding or "utf-8")
        except UnicodeEncodeError:
            line = f"{bar(status.fraction, status.seconds, '#-')} {status.text}"
            line = line.encode(self._out.encoding, "replace").decode(self._out.encoding)
        self._out.write(f"\r\x1b[2K{line[:width]}")
        self._out.flush()
        self._drawn = True

    def close(self, status: JobStatus, outcome: str) -> None:
        """See :class:`ProgressDisplay`."""
        if self._drawn:
            self._out.write("\r\x1b[2K")
            self._out.flush()
            self._drawn = False


class NotebookDisplay:
    """A bar below a notebook cell, replaced by one line at the end of the job."""

    def __init__(self) -> None:
        self._id: str | None = None

    def update(self, status: JobStatus) -> None:
        """See :class:`ProgressDisplay`."""
        fraction = status.fraction
        value = "" if fraction is None else f' value="{fraction:.3f}"'
        self._show(f"<progress{value}></progress> {escape(status.text)}", status.text)

    def close(self, status: JobStatus, outcome: str) -> None:
        """See :class:`ProgressDisplay`."""
        if self._id is not None:
            line = escape_controls(f"{status.title}: {outcome} in {status.seconds:.1f} s")
            self._show(escape(line), line)
            self._id = None

    def _show(self, html: str, text: str) -> None:
        from IPython.display import (  # pyright: ignore[reportMissingImports]  # optional; loaded in a kernel
            display,
            update_display,
        )

        data = {"text/html": html, "text/plain": text}
        if self._id is None:
            self._id = uuid.uuid4().hex
            display(data, raw=True, display_id=self._id)
        else:
            update_display(data, raw=True, display_id=self._id)


def create_display(progress: bool | None) -> ProgressDisplay:
    """Return the display for this process.

    Args:
        progress: False: none. None: in a notebook, or if standard error is a terminal. True: always.
    """
    if progress is False:
        return NoDisplay()
    if is_notebook():
        return NotebookDisplay()
    return TerminalDisplay(sys.stderr) if progress or sys.stderr.isatty() else NoDisplay()


def is_notebook() -> bool:
    """Return whether IPython runs in a kernel, so that rich output can be displayed."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def bar(fraction: float | None, seconds: float, cells: str = "━─") -> str:
    """Return a bar as text.

    Args:
        fraction: the filled part; None: unknown, then a short mark moves with the time.
        seconds: elapsed time.
        cells: the characters of the filled and of the empty part.
    """
    if fraction is not None:
        filled = round(fraction * _BAR_CELLS)
        return cells[0] * filled + cells[1] * (_BAR_CELLS - filled) + f" {fraction:4.0%}"
    positions = _BAR_CELLS - _PULSE_CELLS + 1
    start = int(seconds / _PULSE_SECONDS) % positions
    rest = _BAR_CELLS - start - _PULSE_CELLS
    return cells[1] * start + cells[0] * _PULSE_CELLS + cells[1] * rest + "     "
