"""The status line, which also shows notices, and the line of key hints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from textual import events
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from odf_engine.api import Job, JobState, Timestamp, WorkerStatus
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, format_bytes, format_count, format_zoned_time, printable
from odf_tui.actions.model import LAST, Hint
from odf_tui.state.model import WARNED, Health
from odf_tui.text.format import Span, ellipsize_middle, format_duration
from odf_tui.text.job_text import job_amounts, job_seconds, percent_done
from odf_tui.widgets.line_view import LineScroll


@dataclass
class Notice(Message):
    """A message for the user, shown in the status line for some seconds or until the next one."""

    text: str
    style: str = "good"


NOTICE_SECONDS: Final = 8.0
OTHER_VERSION: Final = "other version"
"""The state of a running worker whose protocol version differs."""
DELETED: Final = "deleted"
"""The state without a worker because the workspace was deleted."""
_MESSAGES_HINT: Final = "! shows"
_MIN_ERROR: Final = 24
_ALWAYS: Final = len(LAST)
_MIN_NAME: Final = 8
_WIDE_NAME_ROOM: Final = 24
_SPARK_WIDTH: Final = 100
_WORKER_WIDTH: Final = 130
_MASTER: Final = re.compile(r" on (\S+?),")  # the format of odf_engine.spark


class StatusLine(LineScroll):
    """Workspace and selected dataset at the left, jobs and worker at the right; or a notice for some seconds.

    Parts differ by weight only: coloured text is not readable on the background of the bar. A notice has the
    background of the panes. It does not cover the key hints, which it may refer to.

    An error stays until it is read. Later notices are shown at its right.

    Attributes:
        notice: the text and the style of the notice, or None if absent.
        error: the newest unread error, or None if absent.
    """

    class ErrorRead(Message):
        """The user has clicked on an error."""

    ground = "bar"

    def __init__(self, folder: Path) -> None:
        super().__init__(id="status")
        self._folder = folder
        self._row: DatasetRow | None = None
        self._health: Health | None = None
        self._datasets: int | None = None
        self._jobs: Sequence[Job] = ()
        self._warnings = 0
        self._worker: tuple[str, str, str] = ("◦ starting the worker…", "", "")
        self.notice: Span | None = None
        self.error: Span | None = None
        self._errors = 0
        self._timer: Timer | None = None

    def show_notice(self, text: str, style: str, errors: int = 0) -> None:
        """Show a notice; ``style`` is good, warn or bad. ``errors`` is the number of unread errors."""
        self.notice, self.ground = (printable(text), style), "base"
        self._errors = errors
        if style == "bad":
            self.error = self.notice
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(NOTICE_SECONDS, self.clear_notice)
        self.refresh()

    def clear_notice(self) -> None:
        """Remove the notice."""
        if self.notice is not None:
            self.notice, self.ground = None, "bar" if self.error is None else "base"
            self.refresh()

    def clear_error(self) -> None:
        """Remove the error, and the notice."""
        if self.error is not None:
            self.error, self.ground = None, "bar"
            self.refresh()
        self.clear_notice()

    def on_click(self) -> None:
        """Remove the notice and the error."""
        self.clear_notice()
        self.post_message(self.ErrorRead())

    def show(
        self,
        row: DatasetRow | None,
        health: Health | None,
        datasets: int | None,
        jobs: Sequence[Job],
        warnings: int = 0,
    ) -> None:
        """Show the selected dataset, the open jobs, and the numbers of datasets and unseen warnings.

        The number of datasets is None until they were read.
        """
        self._row, self._health, self._datasets, self._jobs = row, health, datasets, jobs
        self._warnings = warnings
        self.refresh()

    def show_worker(self, state: str, status: WorkerStatus | None) -> None:
        """Show the state of the worker and of Spark."""
        self._worker = (*format_worker(state, status), format_worker_id(state, status))
        self.refresh()

    def count(self) -> int:
        """Return 1."""
        return 1

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line: the notice, and the right part if there is room."""
        state = self.state_spans()
        if self.notice is None and self.error is None:
            return state
        blanks = next(at for at, (text, _) in enumerate(state) if at and not text.strip())
        right = state[blanks + 1 :]
        notices = self._notice_spans(self.size.width - 3 - sum(cell_len(text) for text, _ in right))
        room = self.size.width - 1 - sum(cell_len(text) for text, _ in [*notices, *right])
        return [(" ", ""), *notices, *([(" " * room, ""), *right] if room > 1 else [])]

    def _notice_spans(self, room: int) -> list[Span]:
        """Return the notice. An older unread error precedes it, shortened to fit into ``room`` cells."""
        if self.error is None or self.error == self.notice:
            return [] if self.notice is None else [self.notice]
        hint = f"{_MESSAGES_HINT} {self._errors} errors" if self._errors > 1 else _MESSAGES_HINT
        shown: list[Span] = [(f" ({hint})", "muted")]
        notice: list[Span] = [] if self.notice is None else [(" · ", "muted"), self.notice]
        room -= sum(cell_len(text) for text, _ in notice)
        if notice and room < _MIN_ERROR + cell_len(shown[0][0]):
            shown = []  # the notice matters more than the hint
        room -= sum(cell_len(text) for text, _ in shown)
        text, style = self.error
        return [(ellipsize_middle(text, max(room, _MIN_ERROR)), style), *shown, *notice]

    def state_spans(self) -> list[Span]:
        """Return the line without a notice."""
        width = self.size.width
        worker, style, number = self._worker
        if not style and width < _SPARK_WIDTH:
            worker = worker.partition(" on ")[0]
        right: list[Span] = []
        if self._warnings:
            right.append((f"{WARNED} {count_of(self._warnings, 'warning')}   ", "strong"))
        if self._jobs:
            selected = self._row.id if self._row is not None else ""
            right.append((f"{format_running_jobs(self._jobs, width // 2, selected)}   ", "strong"))
        right.append((worker, "strong" if style else ""))
        if number and width >= _WORKER_WIDTH:
            right.append((f" · {number}", ""))
        right.append((" ", ""))
        room = width - sum(cell_len(text) for text, _ in right) - 1
        left: list[Span] = [
            (f" {ellipsize_middle(printable(self._folder.name or str(self._folder)), 24)} ", "strong")
        ]
        room -= cell_len(left[0][0])
        for text in self._facts(room - 3):
            if cell_len(text) + 3 > room:
                continue
            left.append((("· " if len(left) == 1 else " · ") + text, ""))
            room -= cell_len(left[-1][0])
        return [*left, (" " * max(room + 1, 1), ""), *right]

    def _facts(self, room: int) -> list[str]:
        """Return facts, the most important first. Only the first is shortened to fit ``room`` cells."""
        facts: list[str] = []
        row = self._row
        if row is not None and self._health is not None:
            state = f" {self._health.glyph} {self._health.word}"
            name = printable(row.name)
            facts.append(ellipsize_middle(name, max(min(28, room - cell_len(state)), _MIN_NAME)) + state)
            facts.append(count_of(row.records, "row"))
            facts.append(format_bytes(row.size))
            if row.watermark:
                facts.append(f"watermark {format_zoned_time(row.watermark)}")
        if self._datasets is not None:
            facts.append(count_of(self._datasets, "dataset"))
        return [*facts, printable(_short_path(self._folder))]


def _short_path(folder: Path) -> str:
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # outside the home folder, or there is none
        return str(folder)


def format_running_jobs(jobs: Sequence[Job], width: int, selected: str = "") -> str:
    """Return the running jobs in words: one job with its progress, or the slowest of several.

    Args:
        jobs: running and queued jobs.
        width: the greatest number of cells.
        selected: id of the dataset that the line names already.
    """
    running = [job for job in jobs if job.state is JobState.running]
    waiting = len(jobs) - len(running)
    queued = f", {format_count(waiting)} queued" if waiting else ""
    if not running:
        return ellipsize_middle(f"◦ {format_count(waiting)} queued", width)
    now = Timestamp.now()
    slowest = max(running, key=lambda job: job_seconds(job, now) or 0.0)
    if len(running) == 1:
        return _format_job(slowest, now, queued, width, named=slowest.dataset != selected)
    known = f"▸ {format_count(len(running))} running{queued}"
    elapsed = _format_elapsed(slowest, now)
    room = width - cell_len(known) - cell_len(elapsed) - 12
    if room < 8:
        return ellipsize_middle(known, width)
    return f"{known}, slowest {ellipsize_middle(printable(slowest.target), room)}{elapsed}"


def _format_job(job: Job, now: Timestamp, queued: str, width: int, *, named: bool) -> str:
    amount = job_amounts(job).split(" · ") if job_amounts(job) else ["running"]
    percent, elapsed = percent_done(job.progress), _format_elapsed(job, now)
    done = "" if percent is None else f" {percent}%"
    fixed = cell_len(f"▸ {job.kind} {done}{elapsed}{queued}")
    name = ""
    if named:
        room = width - fixed
        room = room - cell_len(amount[0]) - 3 if room > _WIDE_NAME_ROOM else room
        name = " " + ellipsize_middle(printable(job.target), max(min(room, 28), 5))
    room = width - fixed - cell_len(name) + 1
    parts = ""
    for part in amount:
        if cell_len(parts) + cell_len(part) + 3 <= room:
            parts += f" · {part}"
    return f"▸ {job.kind}{name}{done}{parts}{elapsed}{queued}"


def _format_elapsed(job: Job, now: Timestamp) -> str:
    seconds = job_seconds(job, now)
    return f" · {format_duration(seconds)}" if seconds is not None and seconds >= 1 else ""


def format_worker(state: str, status: WorkerStatus | None) -> tuple[str, str]:
    """Return the state of the worker and Spark in words, and its style."""
    if state == DELETED:
        return "✗ workspace deleted", "bad"
    if state == "gone":
        return "✗ no worker, R restarts it", "bad"
    if state == "stalled":
        return "✗ worker does not respond", "bad"
    if state == "starting":
        return "◦ starting the worker…", ""
    if state == OTHER_VERSION:
        return "! worker of another version, R stops it", "warn"
    if status is None:
        return "◦ starting the worker…", ""
    if status.spark == "starting":
        return "◦ starting Spark…", ""
    if status.spark == "ready":
        master = _MASTER.search(status.spark_detail)
        return "● ready" + (f" on {ellipsize_middle(printable(master[1]), 30)}" if master else ""), ""
    if status.spark == "failed":
        return f"✗ Spark failed: {ellipsize_middle(printable(status.spark_detail), 30)}", "bad"
    return "● worker ready", ""


def format_worker_id(state: str, status: WorkerStatus | None) -> str:
    """Return process id and version of the worker, or "" if it is not running."""
    return (
        f"worker {status.pid}, {printable(status.version)}" if status is not None and state != "gone" else ""
    )


class FilterLine(Input):
    """The line below the panes where a filter is typed. It replaces the line of hints."""

    def __init__(self) -> None:
        super().__init__(id="filter", compact=True)
        self.cursor_blink = False
        self.display = False


class KeyHints(LineScroll):
    """Keys for the focused pane. A click on a hint runs its action."""

    class Chosen(Message):
        """A hint was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self) -> None:
        super().__init__(id="hints")
        self._hints: Sequence[Hint] = ()

    def show(self, hints: Sequence[Hint]) -> None:
        """Show hints, the most important first. The last two are always shown."""
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    def count(self) -> int:
        """Return 1."""
        return 1

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line."""
        spans: list[Span] = [(" ", "")]
        for hint in self._visible_hints():
            spans += [(hint.key, "key"), (f" {hint.word}  ", "muted")]
        return spans

    def _visible_hints(self) -> list[Hint]:
        """Return the hints that fit."""
        hints, last = self._hints[:-_ALWAYS], self._hints[-_ALWAYS:]
        room = self.size.width - 1 - sum(map(_cells, last))
        visible: list[Hint] = []
        for hint in hints:
            if _cells(hint) <= room:
                visible.append(hint)
                room -= _cells(hint)
        return [*visible, *last]

    def on_click(self, event: events.Click) -> None:
        """Run the action of the hint under the mouse."""
        x = event.x - 1
        for hint in self._visible_hints():
            if 0 <= x < _cells(hint) - 2:
                self.post_message(self.Chosen(hint.action))
            x -= _cells(hint)


def _cells(hint: Hint) -> int:
    return cell_len(hint.key) + cell_len(hint.word) + 3
