"""Pane 4: the jobs, newest first, and the log of the selected one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from textual.app import ComposeResult

from odf_engine.coordinator.protocol import Job, JobState
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.humane import clip, count, elapsed, plain, shorten
from odf_tui.jobwords import failure_spans, outcome, progress_words, seconds_of, verdict_spans, waiting_words
from odf_tui.logs import Entry, file_line, merged
from odf_tui.pace import Pace, pressure
from odf_tui.sharewords import may_have_diverged
from odf_tui.state import JobBook, job_glyph
from odf_tui.widgets.gauges import Gauges
from odf_tui.widgets.lines import LineView, Paragraphs, Span, right
from odf_tui.widgets.log import LogLines
from odf_tui.widgets.pane import Pane

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

    def __init__(self, book: JobBook, pace: Pace) -> None:
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
        self.keep_in_view()
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
        took = seconds_of(job, Timestamp.now())
        width = self.room.width
        runs = job.state is JobState.running
        end = right(elapsed(took) if took is not None else "", 9) + " " if width >= 56 or runs else ""
        if width >= 64:
            end += (job.started or job.created)[11:16] + " "
        name = max(min(width * (1 if runs else 2) // (4 if runs else 5), 36), 12)
        room = max(width - 11 - name - len(end), 0)
        words, how = self._words(job, room)
        return [
            (f" {glyph} ", style),
            (clip(_KINDS.get(job.kind, job.kind), 6) + " ", "muted"),
            (clip(shorten(plain(job.target), name), name) + " ", ""),
            (clip(plain(words), room), how),
            (end, "muted"),
        ]

    def _words(self, job: Job, room: int) -> tuple[str, str]:
        if job.state is JobState.running:
            return progress_words(job, self.pace, room), "busy"
        if job.state is JobState.queued:
            ahead = [each for each in self.book.open() if int(each.id) < int(job.id)]
            return waiting_words(job, ahead, self.inputs(), room), "muted"
        return outcome(job)

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

    def __init__(self, id: str, book: JobBook) -> None:
        super().__init__(id)
        self._book = book
        self.pace = Pace()
        self.details = False

    def compose(self) -> ComposeResult:
        """Trouble, list, speed and memory, log."""
        trouble = Paragraphs(id="trouble")
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
        view = self.query_one("#trouble", Paragraphs)
        if list(lines) != list(view.given):
            view.display = bool(lines)
            view.set(lines)

    def entries(self, newest: int) -> list[Entry]:
        """The newest lines of the selected job's log that are to be shown."""
        job = self.view.job
        lines = merged(self._book.logs.get(job.id, [])[-2 * newest :]) if job is not None else []
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
        found = pressure(self.pace, job) if job is not None and self.size.height >= _GAUGED else None
        wanted = found is not None and bool(found.rates)
        if gauges.display != wanted:
            gauges.display = wanted
        gauges.set(found if wanted else None)

    def copied(self) -> tuple[str, str] | None:
        """The log of the selected job."""
        job = self.view.job
        if job is None:
            return None
        lines = [file_line(line) for line in merged(self._book.logs.get(job.id, []))]
        lines += ["".join(text for text, _ in spans) for spans in end_of(job)]
        return "log", "\n".join(lines)


def end_of(job: Job, hidden: int = 0) -> list[list[Span]]:
    """What a job's end says below its log: what went wrong, or what was found.

    ``hidden`` lines for finding mistakes can be shown too.
    """
    failed = failure_spans(job)
    if failed:
        more = [("i", "key"), (f" shows {count(hidden)} more lines, ", "muted")] if hidden else []
        both = [("V", "key"), (" shows both histories, ", "muted")] if may_have_diverged(job) else []
        failed.append([(f"{'':9}", ""), *more, *both, (".", "key"), (" tries again", "muted")])
    return failed + verdict_spans(job)
