"""The jobs pane: list of jobs, log of the selected job, gauges for throughput and memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from rich.cells import cell_len, chop_cells
from textual.app import ComposeResult
from textual.geometry import Size
from textual.scroll_view import ScrollView

from odf_engine.api import Committed, Job, JobState, Timestamp, WorkerStatus
from odf_engine.api.readers.job_log import Entry, format_log_line, merge_log_entries
from odf_engine.api.text import count_of, format_clock, printable, zone_label
from odf_tui.state.app_state import WORKER_ENDED, WORKSPACE_DELETED, WorkerConnectionState
from odf_tui.state.job_book import JobBook, is_commit, job_glyph
from odf_tui.state.model import WARNED
from odf_tui.text.format import (
    AGE_WIDTH,
    Span,
    fit_width,
    format_age,
    format_duration,
    right,
    shorten_name,
    wrapped,
)
from odf_tui.text.job_log_text import log_display_text
from odf_tui.text.job_text import (
    JobRates,
    Throughput,
    check_spans,
    failure_spans,
    job_outcome,
    job_seconds,
    may_have_diverged,
    progress_text,
    queue_text,
    sparkline,
    throughput,
    verification_spans,
)
from odf_tui.widgets.line_view import LineScroll, LineView, WrappedLines
from odf_tui.widgets.pane_frame import Pane

_READABLE: str = "Browsing the workspace still works."


def worker_problem_lines(
    worker: WorkerConnectionState | None, status: WorkerStatus | None
) -> list[list[Span]]:
    """Return the lines that describe a problem of the worker; none if there is no problem.

    Args:
        worker: the newest state of the connection.
        status: the newest status of the worker.
    """
    if worker is not None and worker.state == "stalled":
        return [*_problem_lines(worker.detail), [("  ", ""), (printable(worker.hint), "")]]
    if worker is not None and worker.state == "gone":
        return _lost_worker_lines(worker)
    if status is not None and status.spark == "failed":
        lines = _problem_lines(f"Spark failed: {status.spark_detail}")
        if status.spark_hint:
            lines.append([("  ", ""), (printable(status.spark_hint), "")])
        lines.append([("  ", ""), (f"The next job that needs Spark restarts it. {_READABLE}", "muted")])
        return lines
    return []


def _lost_worker_lines(worker: WorkerConnectionState) -> list[list[Span]]:
    lines = _problem_lines(worker.detail or "no connection to the worker")
    if worker.busy:
        jobs = count_of(worker.busy, "job")
        lines.append(
            [("  Press ", ""), ("R", "key"), (f" to stop it and its {jobs}, and start a new worker", "")]
        )
    else:
        if worker.hint:
            lines.append([("  ", ""), (printable(worker.hint), "")])
        lines.append(_restart_line(worker))
    if worker.detail != WORKSPACE_DELETED:
        lines.append([("  ", ""), (_READABLE, "muted")])
    return lines


def _restart_line(worker: WorkerConnectionState) -> list[Span]:
    if worker.detail == WORKSPACE_DELETED:
        return [("  Restore it and press ", ""), ("R", "key"), (", or quit with ", ""), ("q", "key")]
    if worker.detail != WORKER_ENDED:
        return [("  Press ", ""), ("R", "key"), (" to try again", "")]
    return [
        ("  Press ", ""),
        ("R", "key"),
        (" to restart the worker, ", ""),
        (".", "key"),
        (" to retry an interrupted job", ""),
    ]


def _problem_lines(text: str) -> list[list[Span]]:
    first, *more = text.splitlines() or [""]
    return [
        [("✗ ", "bad"), (printable(first), "bad")],
        *([("  ", ""), (printable(line), "muted")] for line in more),
    ]


_MAX_BARS: Final = 120
_WIDE: Final = 90


class Gauges(LineScroll):
    """Shows throughput and memory of a job as sparklines."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.measured: Throughput | None = None

    def set(self, measured: Throughput | None) -> None:
        """Show other values; None shows nothing."""
        if measured != self.measured:
            self.measured = measured
            self.reset()

    def count(self) -> int:
        """Return the number of lines: two with values."""
        return 0 if self.measured is None else 2

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a gauge."""
        return [] if self.measured is None else gauge_lines(self.measured, self.room.width)[index]


def gauge_lines(measured: Throughput, width: int) -> list[list[Span]]:
    """Return one line for throughput and one for memory, in ``width`` cells."""
    rate = measured.rate or "idle"
    memory = measured.memory + (measured.suffix if width >= _WIDE else "")
    room = max(min(width - 11 - max(cell_len(rate), cell_len(memory)), _MAX_BARS), 0)
    seconds = max(len(measured.rates), len(measured.heap))
    bars = min(room, seconds)

    def line(name: str, values: Sequence[float], highest: float, words: str) -> list[Span]:
        drawn = sparkline(values, bars, highest).rjust(bars)
        return [(f" {name:<8}", "muted"), (drawn, "name"), (f"  {words}", "")]

    return [
        line("speed", measured.rates, 0, rate),
        line("memory", measured.heap, measured.heap_max, memory),
    ]


_INDENT: Final = 11  # time and marker
_MIN_WIDTH: Final = 8
_SIDEWAYS: Final = 8
_SPARE: Final = 1000
_SIGNS: Final = {"debug": ("· ", "muted"), "warning": ("! ", "warn"), "error": ("✗ ", "bad")}
_STYLES: Final = {"debug": "muted", "warning": "warn", "error": "bad"}


class LogLines(LineScroll):
    """Shows lines of a log, and the outcome of the job below. Scrolls to new lines unless it is scrolled up.

    Attributes:
        wrap: whether long lines are wrapped; otherwise they are truncated, and left and right scroll.
        search_text: the text to highlight.
        found: journal number of the current match, or 0 without one.
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Entry] = ()
        self.end: Sequence[Sequence[Span]] = ()
        self.wrap = True
        self.search_text = ""
        self.found = 0
        self._left = 0
        self._width = _MIN_WIDTH  # of texts, at the last measurement
        self._starts: list[int] = []
        self._heights: dict[int, int] = {}
        self._end: list[list[Span]] = []
        self._follows = True

    @property
    def follows(self) -> bool:
        """Whether the end stays visible when lines are added."""
        return self._follows

    def set(self, lines: Sequence[Entry], end: Sequence[Sequence[Span]] = ()) -> None:
        """Replace the lines. The visible lines stay in place unless the end is followed."""
        (seq, part), end_before, rows = self._top_row(), self.end, self.count()
        self.lines, self.end = lines, end
        self._measure()
        if self._follows or not seq:
            self.reset()
            if self._follows:
                self._to_end()
            return
        top = self._row(bisect_left(lines, seq, key=_seq)) + part
        bottom = self.scroll_offset.y + self.room.height
        if top == self.scroll_offset.y and bottom <= rows - len(self._end) and list(end) == list(end_before):
            self.grow()  # only lines below the window were added
        else:
            self.reset()
            self.scroll_to(y=top, animate=False)

    def grow(self) -> None:
        """Extend the scroll area by lines below the window, without a repaint of the lines."""
        size = Size(0, self.count())
        self.set_reactive(ScrollView.virtual_size, size)  # type: ignore[arg-type]
        self._scroll_update(size)

    def _top_row(self) -> tuple[int, int]:
        """Return the journal number of the first visible line, and its number of rows above the window."""
        line = self.line_at(self.scroll_offset.y)
        if not 0 <= line < len(self.lines):
            return 0, 0
        return self.lines[line].seq, self.scroll_offset.y - self._row(line)

    def _measure(self) -> None:
        width = max(self.room.width, _INDENT + _MIN_WIDTH)
        self._end = [part for line in self.end for part in wrapped(line, width)]
        if width - _INDENT != self._width or len(self._heights) > 2 * len(self.lines) + _SPARE:
            self._heights = {}
        self._width = width - _INDENT
        self._starts = list(accumulate(map(self._height, self.lines), initial=0)) if self.wrap else [0]

    def _height(self, line: Entry) -> int:
        """Return the number of rows of a line. Heights are cached by journal number."""
        height = self._heights.get(line.seq)
        if height is None:
            height = self._heights[line.seq] = _row_count(log_display_text(line), self._width)
        return height

    def _row(self, line: int) -> int:
        """Return the first row of a line."""
        return self._starts[min(line, len(self._starts) - 1)] if self.wrap else line

    def line_at(self, row: int) -> int:
        """Return the index of the line at a row."""
        return bisect_right(self._starts, row) - 1 if self.wrap else row

    @property
    def _rows(self) -> int:
        return self._starts[-1] if self.wrap and self._starts else len(self.lines)

    def _to_end(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)

    def follow(self) -> None:
        """Go to the end, and follow it."""
        self._follows = True
        self._to_end()

    def toggle_wrap(self) -> None:
        """Wrap or truncate long lines."""
        self.wrap, self._left = not self.wrap, 0
        self.set(self.lines, self.end)

    def go(self, line: int) -> None:
        """Scroll to a line, with some lines above it."""
        self._follows = False
        self.scroll_to(y=max(self._row(line) - self.room.height // 3, 0), animate=False)
        self.refresh()

    def move(self, move: str) -> None:
        """Scroll. At the end, follow it again."""
        if move in ("left", "right"):
            if not self.wrap:
                self._left = max(self._left + (_SIDEWAYS if move == "right" else -_SIDEWAYS), 0)
                self.refresh()
            return
        super().move(move)
        self._follows = move == "last" or self.scroll_offset.y >= self.max_scroll_y

    def on_mouse_scroll_up(self) -> None:
        """Stop following the end."""
        self._follows = False

    def on_mouse_scroll_down(self) -> None:
        """Follow the end if it is reached."""
        self.call_after_refresh(self._follow_at_end)

    def _follow_at_end(self) -> None:
        self._follows = self._follows or self.scroll_offset.y >= self.max_scroll_y

    def on_resize(self) -> None:
        """Wrap the lines again."""
        self.set(self.lines, self.end)

    def watch_show_vertical_scrollbar(self) -> None:
        """Wrap the lines again: the scroll bar takes its width from them."""
        if self.is_mounted:
            self.call_after_refresh(self.set, self.lines, self.end)

    def on_mount(self) -> None:
        """Show the lines."""
        self.set(self.lines, self.end)

    def count(self) -> int:
        """Return the number of rows."""
        return self._rows + len(self._end)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a row."""
        rows = self._rows
        if index >= rows:
            return self._end[index - rows]
        at = self.line_at(index)
        entry = self.lines[at]
        text, style = printable(log_display_text(entry)), entry_style(entry)
        if self.wrap:
            part = index - self._row(at)
            piece = _wrap_text(text, self._width)[part]
        else:
            part, piece = 0, text[self._left :]
        head = line_head(entry) if part == 0 else [(" " * _INDENT, "")]
        return [*head, *highlight_matches(piece, style, self.search_text, entry.seq == self.found)]


def line_head(entry: Entry) -> list[Span]:
    """Return the time and the marker of a line."""
    if isinstance(entry, Committed):
        return [(" " * 9, ""), ("◆ ", "good")]
    time = (f"{format_clock(entry.time)} ", "muted")
    return [time, ("◆ ", "good") if is_commit(entry) else _SIGNS.get(entry.level, ("  ", ""))]


def entry_style(entry: Entry) -> str:
    """Return the style of the text of a line."""
    return "good" if is_commit(entry) else _STYLES.get(getattr(entry, "level", ""), "")


def highlight_matches(text: str, style: str, search_text: str, is_current: bool) -> list[Span]:
    """Return the spans of a text with highlighted matches; ``is_current``: the line is the current match."""
    if not search_text:
        return [(text, style)]
    spans: list[Span] = []
    low, at = text.lower(), 0
    while (start := low.find(search_text.lower(), at)) >= 0 and search_text:
        end = start + len(search_text)
        spans += [(text[at:start], style), (text[start:end], "cursor" if is_current else "lineage")]
        at = end
    return [*spans, (text[at:], style)]


def _seq(entry: Entry) -> int:
    return entry.seq


def _row_count(text: str, room: int) -> int:
    if text.isascii() and len(text) <= room:
        return 1
    return len(_wrap_text(printable(text), room))


def _wrap_text(text: str, room: int) -> list[str]:
    """Wrap a text to ``room`` cells, at blanks where possible."""
    if cell_len(text) <= room:
        return [text]
    if not text.isascii():
        return chop_cells(text, room)
    pieces: list[str] = []
    start = 0
    while len(text) - start > room:
        cut = text.rfind(" ", start + room // 2, start + room + 1) + 1 or start + room
        pieces.append(text[start:cut].rstrip(" ") or " ")
        start = cut
    return [*pieces, text[start:]]


_MAX_LOG_LINES: Final = 120
_KINDS: Final = {
    "validate": "check",
    "infer-source": "check",
    "describe": "count",
    "project": "state",
    "compare": "look",
    "check-proof": "proof",
}  # the column has six cells
_OUTCOME_WIDTH: Final = 24  # cells for the result of a job, which names leave
_MIN_NAME: Final = 14
_MAX_NAME: Final = 36
_MIN_GAUGES_HEIGHT: Final = 18
"""Minimum height of the pane with gauges."""


class JobsView(LineView):
    """Lists the jobs, newest first.

    Attributes:
        inputs: returns the ids of the inputs of each dataset. A queued job waits for the jobs of its inputs.
    """

    class Moved(LineView.Moved):
        """The cursor is on another job."""

    def __init__(self, book: JobBook, rates: JobRates) -> None:
        super().__init__(id="job-list")
        self.book = book
        self.rates = rates
        self.text = ""
        self.inputs: Callable[[], Mapping[str, Sequence[str]]] = dict
        self._jobs: list[Job] = []
        self._names: set[str] = set()
        self._name_widths: dict[int, int] = {}
        self._selected: str | None = None

    def load(self) -> None:
        """Show the jobs of the book. While the pane has the focus, the cursor stays on its job."""
        kept_id = self._selected if self.cursor and self.active else None
        text = self.text.lower()
        self._jobs = [
            job
            for job in self.book.newest_first()
            if text in f"{job.target} {job.kind} {job.state.value}".lower()
        ]
        self._names, self._name_widths = {printable(job.target) for job in self._jobs}, {}
        ids = [job.id for job in self._jobs]
        self.cursor = ids.index(kept_id) if kept_id in ids else 0
        self._selected = ids[self.cursor] if ids else None
        self.reset()
        self.scroll_to_cursor()
        self.post_message(self.Moved(self))

    def update(self, jobs: set[str]) -> None:
        """Repaint the lines of jobs, by id."""
        for index, job in enumerate(self._jobs):
            if job.id in jobs:
                self._jobs[index] = self.book.jobs[job.id]
                self.refresh_line(index)

    def go(self, index: int) -> None:
        """Move the cursor to an index."""
        super().go(index)
        self._selected = self.job.id if self.job else None

    def select(self, job: str) -> None:
        """Move the cursor to a job by its id, if it is listed."""
        ids = [job_id.id for job_id in self._jobs]
        if job in ids:
            self.go(ids.index(job))

    @property
    def job(self) -> Job | None:
        """The selected job."""
        return self._jobs[self.cursor] if self.cursor < len(self._jobs) else None

    def count(self) -> int:
        """Return the number of jobs that match the filter."""
        return len(self._jobs)

    def spans(self, index: int) -> Sequence[Span]:
        """Return the spans of a job."""
        job = self._jobs[index]
        glyph, style = job_glyph(job)
        duration = job_seconds(job, Timestamp.now())
        width = self.room.width
        runs = job.state is JobState.running
        end = (
            right(format_duration(duration) if duration is not None else "", 9) + " "
            if width >= 56 or runs
            else ""
        )
        if width >= _WIDE:
            end += right(format_age(job.started or job.created), AGE_WIDTH) + " "
        name = self._name_width(width // 4 if runs else width - 11 - len(end) - _OUTCOME_WIDTH)
        room = max(width - 11 - name - len(end), 0)
        words, how = self._state_text(job, room)
        return [
            (WARNED if job.warnings else " ", "warn"),
            (f"{glyph} ", style),
            (fit_width(_KINDS.get(job.kind, job.kind), 6) + " ", "muted"),
            (fit_width(shorten_name(printable(job.target), name), name) + " ", ""),
            (fit_width(printable(words), room), how),
            (end, "muted"),
        ]

    def _name_width(self, room: int) -> int:
        """Return the width of the names, some of them shortened, in the room for them."""
        if room not in self._name_widths:
            limit = max(min(room, _MAX_NAME), _MIN_NAME)
            widths = (cell_len(shorten_name(name, limit)) for name in self._names)
            self._name_widths[room] = max(widths, default=0)
        return self._name_widths[room]

    def _state_text(self, job: Job, room: int) -> tuple[str, str]:
        if job.state is JobState.running:
            return progress_text(job, self.rates, room), "busy"
        if job.state is JobState.queued:
            ahead = [other for other in self.book.active_jobs() if int(other.id) < int(job.id)]
            return queue_text(job, ahead, self.inputs(), room), "muted"
        return job_outcome(job)

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the hints shown without jobs."""
        if self.text:
            return [[(f" no job matches {self.text}", "muted")]]
        return [
            [(" No jobs yet.", "muted")],
            [(" p", "key"), (" pull the selected dataset", "muted")],
            [(" v", "key"), (" verify it", "muted")],
        ]


class JobsPane(Pane):
    """The list of jobs above the log of the selected job. Gauges are between them if there is room.

    Attributes:
        rates: the rates of jobs.
        details: whether debug lines are shown.
    """

    number = 4
    label = "Jobs"

    def __init__(self, id: str, book: JobBook, rates: JobRates) -> None:
        super().__init__(id)
        self._book = book
        self.rates = rates
        self.details = False

    def compose(self) -> ComposeResult:
        """Yield the problem of the worker, the list, the gauges and the log."""
        self.set_context(f"times in {zone_label()}")
        trouble = WrappedLines(id="trouble")
        gauges = Gauges(id="gauges")
        trouble.display = gauges.display = False
        yield trouble
        yield JobsView(self._book, self.rates)
        yield gauges
        yield LogLines("log")

    @property
    def view(self) -> JobsView:
        """The list of jobs."""
        return self.query_one(JobsView)

    @property
    def log_view(self) -> LogLines:
        """The log of the selected job."""
        return self.query_one(LogLines)

    def set_filter(self, text: str) -> None:
        """Show the jobs whose dataset, kind or state contains a text."""
        super().set_filter(text)
        self.view.text = text
        self.view.load()

    def show_worker_problem(self, lines: Sequence[Sequence[Span]]) -> None:
        """Show a problem of the worker above the list; no lines hide it."""
        view = self.query_one("#trouble", WrappedLines)
        if list(lines) != list(view.source_lines):
            view.display = bool(lines)
            view.set(lines)

    def entries(self, newest: int) -> list[Entry]:
        """Return the newest lines of the selected job's log. Debug lines need ``details``."""
        job = self.view.job
        lines = merge_log_entries(self._book.logs.get(job.id, [])[-2 * newest :]) if job is not None else []
        return [line for line in lines if self.details or getattr(line, "level", "") != "debug"][-newest:]

    def _hidden_count(self) -> int:
        """Return the number of hidden debug lines of the selected job's log."""
        job = self.view.job
        lines = self._book.logs.get(job.id, []) if job is not None and not self.details else []
        return sum(getattr(line, "level", "") == "debug" for line in lines)

    def show_log(self) -> None:
        """Show the end of the selected job's log. The log screen has all of it."""
        job = self.view.job
        end = end_lines(job, self._hidden_count()) if job is not None else ()
        # The list uses the room of a log that stays empty.
        is_empty = not end and (job is None or (job.state.final and self._book.logs.get(job.id) == []))
        if self.log_view.display == is_empty:
            self.log_view.display = not is_empty
        self.log_view.set(self.entries(_MAX_LOG_LINES), end)
        self.show_gauges()

    def show_gauges(self) -> None:
        """Show throughput and memory if there is room and there are values."""
        gauges, job = self.query_one(Gauges), self.view.job
        measured = (
            throughput(self.rates, job)
            if job is not None and self.size.height >= _MIN_GAUGES_HEIGHT
            else None
        )
        visible = measured is not None and bool(measured.rates)
        if gauges.display != visible:
            gauges.display = visible
        gauges.set(measured if visible else None)

    def selection(self) -> tuple[str, str] | None:
        """Return the log of the selected job for the clipboard."""
        job = self.view.job
        if job is None:
            return None
        lines = [format_log_line(line) for line in merge_log_entries(self._book.logs.get(job.id, []))]
        lines += ["".join(text for text, _ in spans) for spans in end_lines(job)]
        return "log", "\n".join(lines)


def end_lines(job: Job, hidden: int = 0) -> list[list[Span]]:
    """Return the outcome of a job as lines below its log: its error, findings, or results of checks.

    Args:
        job: the job.
        hidden: number of hidden debug lines.
    """
    failed = failure_spans(job)
    if failed:
        more = [("i", "key"), (f" shows {count_of(hidden, 'debug line')}, ", "muted")] if hidden else []
        both = [("V", "key"), (" compares histories, ", "muted")] if may_have_diverged(job) else []
        failed.append([(f"{'':9}", ""), *more, *both, (".", "key"), (" retries", "muted")])
    return failed + verification_spans(job) + check_spans(job)
