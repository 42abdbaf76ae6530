"""The jobs pane: list of jobs, log of the selected one, throughput gauges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from rich.cells import cell_len, chop_cells
from textual.app import ComposeResult
from textual.geometry import Size
from textual.scroll_view import ScrollView

from odf_engine.coordinator.protocol import Committed, Job, JobState, WorkerStatus
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.state.app_state import WORKER_ENDED, WorkerConnectionState
from odf_tui.state.job_book import (
    Entry,
    JobBook,
    format_log_line,
    is_commit,
    job_glyph,
    log_display_text,
    merge_log_entries,
)
from odf_tui.text.format import (
    Span,
    ellipsize_middle,
    fit_width,
    format_count,
    format_duration,
    printable,
    right,
    wrapped,
)
from odf_tui.text.job_text import (
    JobRates,
    Throughput,
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

_READS: str = "What is in the workspace can be read meanwhile."


def worker_problem_lines(
    worker: WorkerConnectionState | None, status: WorkerStatus | None
) -> list[list[Span]]:
    """What to say; nothing when all is well.

    Args:
        worker: the newest news of the connection.
        status: what the worker last said of itself.
    """
    if worker is not None and worker.state == "gone":
        return _gone(worker)
    if status is not None and status.spark == "failed":
        lines = _wrong(f"Spark does not run: {status.spark_detail}")
        if status.spark_hint:
            lines.append([("  ", ""), (printable(status.spark_hint), "")])
        lines.append([("  ", ""), (f"The next job that needs it starts it again. {_READS}", "muted")])
        return lines
    return []


def _gone(worker: WorkerConnectionState) -> list[list[Span]]:
    lines = _wrong(worker.detail or "the worker is gone")
    if worker.busy:
        jobs = f"{format_count(worker.busy)} job{'' if worker.busy == 1 else 's'}"
        lines.append([("  ", ""), ("R", "key"), (f" stops it, with its {jobs}, and starts ours.", "")])
    else:
        if worker.hint:
            lines.append([("  ", ""), (printable(worker.hint), "")])
        lines.append(_again(worker))
    lines.append([("  ", ""), (_READS, "muted")])
    return lines


def _again(worker: WorkerConnectionState) -> list[Span]:
    if worker.detail != WORKER_ENDED:
        return [("  ", ""), ("R", "key"), (" tries again.", "")]
    return [
        ("  ", ""),
        ("R", "key"),
        (" starts it again, ", ""),
        (".", "key"),
        (" a job that ended with it.", ""),
    ]


def _wrong(text: str) -> list[list[Span]]:
    first, *more = text.splitlines() or [""]
    return [
        [("✗ ", "bad"), (printable(first), "bad")],
        *([("  ", ""), (printable(line), "muted")] for line in more),
    ]


_MOST: Final = 120
_WIDE: Final = 90


class Gauges(LineScroll):
    """Speed and memory."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.pressure: Throughput | None = None

    def set(self, pressure: Throughput | None) -> None:
        """Shows other values."""
        if pressure != self.pressure:
            self.pressure = pressure
            self.reset()

    def count(self) -> int:
        """Two."""
        return 0 if self.pressure is None else 2

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        return [] if self.pressure is None else gauge_lines(self.pressure, self.room.width)[index]


def gauge_lines(pressure: Throughput, width: int) -> list[list[Span]]:
    """Speed, and memory, in lines of a width."""
    rate = pressure.rate or "nothing moves"
    memory = pressure.memory + (pressure.whole if width >= _WIDE else "")
    room = max(min(width - 11 - max(cell_len(rate), cell_len(memory)), _MOST), 0)
    seconds = max(len(pressure.rates), len(pressure.heap))
    bars = min(room, seconds)

    def line(name: str, values: Sequence[float], most: float, words: str) -> list[Span]:
        drawn = sparkline(values, bars, most).rjust(bars)
        return [(f" {name:<8}", "muted"), (drawn, "name"), (f"  {words}", "")]

    return [
        line("speed", pressure.rates, 0, rate),
        line("memory", pressure.heap, pressure.heap_max, memory),
    ]


_INDENT: Final = 11  # time and sign
_LEAST: Final = 8
_SIDEWAYS: Final = 8
_SPARE: Final = 1000
_SIGNS: Final = {"debug": ("· ", "muted"), "warning": ("! ", "warn"), "error": ("✗ ", "bad")}
_STYLES: Final = {"debug": "muted", "warning": "warn", "error": "bad"}


class LogLines(LineScroll):
    """A part of a log, and below it what the job's end says. It follows its end unless it was scrolled up.

    Attributes:
        wrap: whether long lines go on in the next one; else they are cut, and left and right move.
        needle: what is searched for.
        found: the journal number of the line that the search is at, 0 for none.
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Entry] = ()
        self.end: Sequence[Sequence[Span]] = ()
        self.wrap = True
        self.needle = ""
        self.found = 0
        self._left = 0
        self._width = _LEAST  # for what lines say, when they were measured
        self._starts: list[int] = []
        self._heights: dict[int, int] = {}
        self._end: list[list[Span]] = []
        self._follows = True

    @property
    def follows(self) -> bool:
        """Whether the end stays in sight as lines come."""
        return self._follows

    def set(self, lines: Sequence[Entry], end: Sequence[Sequence[Span]] = ()) -> None:
        """Shows these lines. What one reads stays where it is, unless the end is followed."""
        (seq, part), end_before, rows = self._seen(), self.end, self.count()
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
            self.grow()  # more lines below what is in sight
        else:
            self.reset()
            self.scroll_to(y=top, animate=False)

    def grow(self) -> None:
        """There are more lines; nothing but the scroll bar looks different."""
        size = Size(0, self.count())
        self.set_reactive(ScrollView.virtual_size, size)  # type: ignore[arg-type]
        self._scroll_update(size)

    def _seen(self) -> tuple[int, int]:
        """The first line in sight, and how many of its rows are above."""
        line = self.line_at(self.scroll_offset.y)
        if not 0 <= line < len(self.lines):
            return 0, 0
        return self.lines[line].seq, self.scroll_offset.y - self._row(line)

    def _measure(self) -> None:
        width = max(self.room.width, _INDENT + _LEAST)
        self._end = [part for line in self.end for part in wrapped(line, width)]
        if width - _INDENT != self._width or len(self._heights) > 2 * len(self.lines) + _SPARE:
            self._heights = {}
        self._width = width - _INDENT
        self._starts = list(accumulate(map(self._height, self.lines), initial=0)) if self.wrap else [0]

    def _height(self, line: Entry) -> int:
        """The rows of a line; known ones are not measured again, since lines come by the thousand."""
        height = self._heights.get(line.seq)
        if height is None:
            height = self._heights[line.seq] = _rows_of(log_display_text(line), self._width)
        return height

    def _row(self, line: int) -> int:
        """The first row of a line."""
        return self._starts[min(line, len(self._starts) - 1)] if self.wrap else line

    def line_at(self, row: int) -> int:
        """The line that a row belongs to."""
        return bisect_right(self._starts, row) - 1 if self.wrap else row

    @property
    def _rows(self) -> int:
        return self._starts[-1] if self.wrap and self._starts else len(self.lines)

    def _to_end(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)

    def follow(self) -> None:
        """Goes to the end, and stays there."""
        self._follows = True
        self._to_end()

    def turn_wrap(self) -> None:
        """Wraps, or cuts."""
        self.wrap, self._left = not self.wrap, 0
        self.set(self.lines, self.end)

    def go(self, line: int) -> None:
        """Shows a line, with some of those before it."""
        self._follows = False
        self.scroll_to(y=max(self._row(line) - self.room.height // 3, 0), animate=False)
        self.refresh()

    def move(self, move: str) -> None:
        """Scrolls; at the end it follows again."""
        if move in ("left", "right"):
            if not self.wrap:
                self._left = max(self._left + (_SIDEWAYS if move == "right" else -_SIDEWAYS), 0)
                self.refresh()
            return
        super().move(move)
        self._follows = move == "last" or self.scroll_offset.y >= self.max_scroll_y

    def on_mouse_scroll_up(self) -> None:
        """The mouse scrolls away from the end."""
        self._follows = False

    def on_mouse_scroll_down(self) -> None:
        """The mouse may have come to the end."""
        self.call_after_refresh(self._look)

    def _look(self) -> None:
        self._follows = self._follows or self.scroll_offset.y >= self.max_scroll_y

    def on_resize(self) -> None:
        """Breaks the lines anew."""
        self.set(self.lines, self.end)

    def on_mount(self) -> None:
        """Shows what there is."""
        self.set(self.lines, self.end)

    def count(self) -> int:
        """Rows."""
        return self._rows + len(self._end)

    def spans(self, index: int) -> Sequence[Span]:
        """A row."""
        rows = self._rows
        if index >= rows:
            return self._end[index - rows]
        at = self.line_at(index)
        entry = self.lines[at]
        text, style = printable(log_display_text(entry)), style_of(entry)
        if self.wrap:
            part = index - self._row(at)
            piece = _pieces(text, self._width)[part]
        else:
            part, piece = 0, text[self._left :]
        head = head_of(entry) if part == 0 else [(" " * _INDENT, "")]
        return [*head, *marked(piece, style, self.needle, entry.seq == self.found)]


def head_of(entry: Entry) -> list[Span]:
    """Time and sign of a line."""
    if isinstance(entry, Committed):
        return [(" " * 9, ""), ("◆ ", "good")]
    time = (f"{entry.time[11:19]} ", "muted")
    return [time, ("◆ ", "good") if is_commit(entry) else _SIGNS.get(entry.level, ("  ", ""))]


def style_of(entry: Entry) -> str:
    """The style of what a line says."""
    return "good" if is_commit(entry) else _STYLES.get(getattr(entry, "level", ""), "")


def marked(text: str, style: str, needle: str, here: bool) -> list[Span]:
    """A text with what is searched for marked; ``here``: the search is at this line."""
    if not needle:
        return [(text, style)]
    spans: list[Span] = []
    low, at = text.lower(), 0
    while (start := low.find(needle.lower(), at)) >= 0 and needle:
        end = start + len(needle)
        spans += [(text[at:start], style), (text[start:end], "cursor" if here else "lineage")]
        at = end
    return [*spans, (text[at:], style)]


def _seq(entry: Entry) -> int:
    return entry.seq


def _rows_of(text: str, room: int) -> int:
    if text.isascii() and len(text) <= room:
        return 1
    return len(_pieces(printable(text), room))


def _pieces(text: str, room: int) -> list[str]:
    """A text in pieces of at most ``room`` cells, broken between words where these are not too long."""
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


_SHOWN: Final = 120
_KINDS: Final = {
    "validate": "check",
    "describe": "count",
    "project": "state",
    "compare": "look",
    "check-proof": "proof",
}  # there are six cells for it
_GAUGED: Final = 18
"""Rows from which on the pane has some for speed and memory."""


class JobsView(LineView):
    """The list of jobs.

    Attributes:
        inputs: what a dataset is made from, by id: jobs of these are waited for.
    """

    class Moved(LineView.Moved):
        """Another job is under the cursor."""

    def __init__(self, book: JobBook, pace: JobRates) -> None:
        super().__init__(id="job-list")
        self.book = book
        self.pace = pace
        self.text = ""
        self.inputs: Callable[[], Mapping[str, Sequence[str]]] = dict
        self._jobs: list[Job] = []
        self._selected: str | None = None

    def load(self) -> None:
        """Shows the book as it is now. The cursor goes to the newest job, or stays while keys go here."""
        stays = self._selected if self.cursor and self.active else None
        text = self.text.lower()
        self._jobs = [
            job
            for job in self.book.newest_first()
            if text in f"{job.target} {job.kind} {job.state.value}".lower()
        ]
        ids = [job.id for job in self._jobs]
        self.cursor = ids.index(stays) if stays in ids else 0
        self._selected = ids[self.cursor] if ids else None
        self.reset()
        self.scroll_to_cursor()
        self.post_message(self.Moved(self))

    def update(self, jobs: set[str]) -> None:
        """Repaints the lines of these jobs."""
        for index, job in enumerate(self._jobs):
            if job.id in jobs:
                self._jobs[index] = self.book.jobs[job.id]
                self.refresh_line(index)

    def go(self, index: int) -> None:
        """Puts the cursor on a job."""
        super().go(index)
        self._selected = self.job.id if self.job else None

    def select(self, job: str) -> None:
        """Puts the cursor on a job, if it is shown."""
        ids = [each.id for each in self._jobs]
        if job in ids:
            self.go(ids.index(job))

    @property
    def job(self) -> Job | None:
        """The selected job."""
        return self._jobs[self.cursor] if self.cursor < len(self._jobs) else None

    def count(self) -> int:
        """The jobs that match the filter."""
        return len(self._jobs)

    def spans(self, index: int) -> Sequence[Span]:
        """A job."""
        job = self._jobs[index]
        glyph, style = job_glyph(job)
        took = job_seconds(job, Timestamp.now())
        width = self.room.width
        runs = job.state is JobState.running
        end = right(format_duration(took) if took is not None else "", 9) + " " if width >= 56 or runs else ""
        if width >= 64:
            end += (job.started or job.created)[11:16] + " "
        name = max(min(width * (1 if runs else 2) // (4 if runs else 5), 36), 12)
        room = max(width - 11 - name - len(end), 0)
        words, how = self._words(job, room)
        return [
            (f" {glyph} ", style),
            (fit_width(_KINDS.get(job.kind, job.kind), 6) + " ", "muted"),
            (fit_width(ellipsize_middle(printable(job.target), name), name) + " ", ""),
            (fit_width(printable(words), room), how),
            (end, "muted"),
        ]

    def _words(self, job: Job, room: int) -> tuple[str, str]:
        if job.state is JobState.running:
            return progress_text(job, self.pace, room), "busy"
        if job.state is JobState.queued:
            ahead = [each for each in self.book.active_jobs() if int(each.id) < int(job.id)]
            return queue_text(job, ahead, self.inputs(), room), "muted"
        return job_outcome(job)

    def empty(self) -> Sequence[Sequence[Span]]:
        """What makes a job."""
        if self.text:
            return [[(f" no job matches {self.text}", "muted")]]
        return [
            [(" No jobs yet.", "muted")],
            [(" p", "key"), (" pulls the selected dataset,", "muted")],
            [(" v", "key"), (" verifies it.", "muted")],
        ]


class JobsPane(Pane):
    """Jobs above, log below; between them speed and memory, where there is room.

    Attributes:
        pace: how fast jobs are.
        details: whether lines for finding mistakes are shown: what is logged for debugging.
    """

    number = 4
    label = "Jobs"

    def __init__(self, id: str, book: JobBook, rates: JobRates) -> None:
        super().__init__(id)
        self._book = book
        self.pace = rates
        self.details = False

    def compose(self) -> ComposeResult:
        """Trouble, list, speed and memory, log."""
        trouble = WrappedLines(id="trouble")
        gauges = Gauges(id="gauges")
        trouble.display = gauges.display = False
        yield trouble
        yield JobsView(self._book, self.pace)
        yield gauges
        yield LogLines("log")

    @property
    def view(self) -> JobsView:
        """The list."""
        return self.query_one(JobsView)

    @property
    def log_view(self) -> LogLines:
        """The log."""
        return self.query_one(LogLines)

    def set_filter(self, text: str) -> None:
        """Shows the jobs whose dataset, kind or state match."""
        super().set_filter(text)
        self.view.text = text
        self.view.load()

    def tell_trouble(self, lines: Sequence[Sequence[Span]]) -> None:
        """Says above the list what is wrong with the worker, and what to do; nothing: all is well."""
        view = self.query_one("#trouble", WrappedLines)
        if list(lines) != list(view.source_lines):
            view.display = bool(lines)
            view.set(lines)

    def entries(self, newest: int) -> list[Entry]:
        """The newest lines of the selected job's log that are to be shown."""
        job = self.view.job
        lines = merge_log_entries(self._book.logs.get(job.id, [])[-2 * newest :]) if job is not None else []
        return [line for line in lines if self.details or getattr(line, "level", "") != "debug"][-newest:]

    def _hidden(self) -> int:
        """How many lines of the selected job's log are not shown."""
        job = self.view.job
        lines = self._book.logs.get(job.id, []) if job is not None and not self.details else []
        return sum(getattr(line, "level", "") == "debug" for line in lines)

    def show_log(self) -> None:
        """Shows the end of the selected job's log; all of it is a screen away."""
        job = self.view.job
        self.log_view.set(self.entries(_SHOWN), end_of(job, self._hidden()) if job is not None else ())
        self.show_gauges()

    def show_gauges(self) -> None:
        """Shows speed and memory, if there is room, and something to show."""
        gauges, job = self.query_one(Gauges), self.view.job
        found = throughput(self.pace, job) if job is not None and self.size.height >= _GAUGED else None
        wanted = found is not None and bool(found.rates)
        if gauges.display != wanted:
            gauges.display = wanted
        gauges.set(found if wanted else None)

    def selection(self) -> tuple[str, str] | None:
        """The log of the selected job."""
        job = self.view.job
        if job is None:
            return None
        lines = [format_log_line(line) for line in merge_log_entries(self._book.logs.get(job.id, []))]
        lines += ["".join(text for text, _ in spans) for spans in end_of(job)]
        return "log", "\n".join(lines)


def end_of(job: Job, hidden: int = 0) -> list[list[Span]]:
    """What a job's end says below its log: what went wrong, or what was found.

    ``hidden`` lines for finding mistakes can be shown too.
    """
    failed = failure_spans(job)
    if failed:
        more = [("i", "key"), (f" shows {format_count(hidden)} more lines, ", "muted")] if hidden else []
        both = [("V", "key"), (" shows both histories, ", "muted")] if may_have_diverged(job) else []
        failed.append([(f"{'':9}", ""), *more, *both, (".", "key"), (" tries again", "muted")])
    return failed + verification_spans(job)
