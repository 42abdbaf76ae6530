"""Pane 4: the jobs, newest first, and the log of the selected one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from textual.app import ComposeResult

from odf_engine.coordinator.protocol import Committed, Job, JobState, LogLine
from odf_engine.metadata.timestamp import Timestamp
from odf_tui import verdict
from odf_tui.humane import clip, count, elapsed, plain, shorten, size
from odf_tui.state import LOG_LINES, JobBook, found_invalid, job_glyph
from odf_tui.widgets.lines import LineView, Paragraphs, Span, right
from odf_tui.widgets.pane import Pane

_LEVELS: Final = {"debug": "muted", "info": "", "warning": "warn", "error": "bad"}
_MAX_LINE: Final = 4000
_MAX_EXCERPT: Final = 400
_SHOWN: Final = 300
_KINDS: Final = {"validate": "check"}  # there are six cells for it
# What is counted as files, where it is none: what stands before and after the number.
_COUNTED: Final = {"verify": ("", " blocks"), "replay": ("transaction ", "")}


def seconds_of(job: Job, now: Timestamp) -> float | None:
    """How long a job took, or has been running."""
    if job.started is None:
        return None
    end = Timestamp.parse(job.ended) if job.ended else now
    return max((end.ns - Timestamp.parse(job.started).ns) / 1e9, 0.0)


def outcome(job: Job) -> tuple[str, str]:
    """What a job does or did in a few words, and the name of their style."""
    if job.state is JobState.running:
        return amounts(job) or "running", "busy"
    if job.state is JobState.queued:
        return "waits for its turn", "muted"
    if job.state is JobState.failed or (job.state is JobState.interrupted and job.error):
        return job.error.message.splitlines()[0] if job.error and job.error.message else "failed", "bad"
    if job.state is not JobState.done:
        return job.state.value, "warn"
    result = result_of(job)
    if job.kind == "validate":
        return str(result.get("message") or "the query is right"), "good" if result.get("checked") else "warn"
    if job.kind == "verify":
        findings = len(result.get("findings") or ())
        if found_invalid(job):
            return f"{findings} findings" if findings != 1 else "1 finding", "bad"
        again = result.get("transforms") or 0
        said = f", {count(again)} transaction{'' if again == 1 else 's'} run again" if again else ""
        missed = f", {count(len(result['unchecked']))} not" if result.get("unchecked") else ""
        return f"valid{said}{missed}", "good"
    if job.kind == "update":
        state = result.get("state")
        return f"{result.get('status') or 'done'}" + (f", state {state}" if state else ""), "good"
    if result.get("status") == "updated":
        blocks = result.get("blocks")
        rows = f"+{count(result.get('records') or 0)} rows"
        return (f"{rows} in {blocks} blocks" if (blocks or 0) > 1 else rows), "good"
    return str(result.get("status") or "done").replace("-", " "), "muted"


def doing(job: Job, now: Timestamp) -> str:
    """What a running job does, and for how long."""
    seconds = seconds_of(job, now)
    took = elapsed(seconds) if seconds is not None and seconds >= 1 else ""
    return " · ".join(part for part in (amounts(job) or "running", took) if part)


def amounts(job: Job) -> str:
    """Phase and amounts of a running job, such as ``read · 1 200 000 rows · 93 MB of 938 MB``."""
    progress = job.progress
    parts = [progress.phase]
    if progress.files is not None:
        before, after = _COUNTED.get(progress.phase, ("", " files"))
        parts.append(before + count(progress.files) + _of(progress.total_files, count) + after)
    if progress.rows is not None:
        parts.append(count(progress.rows) + _of(progress.total_rows, count) + " rows")
    if progress.bytes is not None:
        parts.append(size(progress.bytes) + _of(progress.total_bytes, size))
    return " · ".join(part for part in parts if part)


def _of(total: int | None, text: Callable[[int], str]) -> str:
    return f" of {text(total)}" if total else ""


def log_spans(event: LogLine | Committed) -> list[Span]:
    """A line of a job's log."""
    if isinstance(event, Committed):
        rows = f" +{count(event.rows)} rows" if event.rows else ""
        return [
            ("         ", ""),
            ("◆ ", "good"),
            (f"{event.event}{rows} ", "good"),
            (event.block[-8:], "muted"),
        ]
    text = plain(event.text[:_MAX_LINE].rstrip("\n"))
    return [(f"{event.time[11:19]} ", "muted"), (text, _LEVELS.get(event.level, ""))]


def failure_spans(job: Job) -> list[list[Span]]:
    """What went wrong, where, and what to do."""
    if job.error is None:
        return []
    lines: list[list[Span]] = []
    texts = plain_lines(job.error.message)
    for index, text in enumerate(texts):
        lines.append([("failed   " if not index else "         ", "bad"), (text, "bad")])
    if job.error.where:
        lines.append([("where    ", "muted"), (plain(job.error.where), "")])
    for text in job.error.excerpt:
        lines.append([("         ", "muted"), (plain(text[:_MAX_EXCERPT]), "strong")])
    if job.error.hint:
        lines.append([("try      ", "muted"), (plain(job.error.hint), "good")])
    return lines


def verdict_spans(job: Job) -> list[list[Span]]:
    """What a verification looked at, and who made what from what."""
    if job.kind != "verify" or job.state is not JobState.done:
        return []
    try:
        return _report_spans(result_of(job))
    except (KeyError, TypeError, AttributeError):  # another version of this program verified
        return []


def _report_spans(report: verdict.Report) -> list[list[Span]]:
    lines: list[list[Span]] = []
    for at, text in enumerate(verdict.checked(report)):
        lines.append([("         " if at else "checked  ", "muted"), (plain(text), "")])
    lines += [[("wrong    ", "bad"), (plain(text), "bad")] for text in verdict.finding_lines(report)]
    lines += [[("         ", ""), (plain(text), "warn")] for text in verdict.unchecked_lines(report)]
    for at, (name, texts) in enumerate(verdict.origins([report])):
        lines.append([("         " if at else "origin   ", "muted"), (plain(name), "name")])
        lines += [[(" " * 11, ""), (plain(text), "")] for text in texts]
    return lines


def result_of(job: Job) -> dict[str, Any]:
    """The result of a job; empty when there is none, or none that can be read."""
    try:
        result = json.loads(job.result or "{}")
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}


def plain_lines(text: str) -> list[str]:
    """The lines of a foreign text, each safe to show."""
    return [plain(line[:_MAX_LINE]) for line in text.splitlines()] or [""]


class JobsView(LineView):
    """The list of jobs."""

    def __init__(self, book: JobBook) -> None:
        super().__init__(id="job-list")
        self.book = book
        self.text = ""
        self._jobs: list[Job] = []
        self._selected: str | None = None

    def load(self) -> None:
        """Shows the book as it is now; the cursor stays on its job, or on the newest."""
        stays = self._selected if self.cursor else None
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
        words, how = outcome(job)
        width = self.room.width
        if width < 56 and job.state is JobState.running:
            words = doing(job, Timestamp.now())
        end = right(elapsed(took) if took is not None else "", 9) + " " if width >= 56 else ""
        if width >= 64:
            end += (job.started or job.created)[11:16] + " "
        name = max(min(width * 2 // 5, 36), 12)
        room = max(width - 11 - name - len(end), 0)
        return [
            (f" {glyph} ", style),
            (clip(_KINDS.get(job.kind, job.kind), 6) + " ", "muted"),
            (clip(shorten(plain(job.target), name), name) + " ", ""),
            (clip(plain(words), room), how),
            (end, "muted"),
        ]

    def empty(self) -> Sequence[Sequence[Span]]:
        """What makes a job."""
        if self.text:
            return [[(f" no job matches {self.text}", "muted")]]
        return [
            [(" No jobs yet.", "muted")],
            [(" p", "key"), (" pulls the selected dataset,", "muted")],
            [(" v", "key"), (" verifies it.", "muted")],
        ]


class LogView(Paragraphs):
    """The newest lines of a job's log; it follows them unless it was scrolled up."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self._bottom = 0  # where its end was, before the window became another one

    def set(self, lines: Sequence[Sequence[Span]]) -> None:
        """Shows these lines, from their end."""
        follows = self.scroll_offset.y >= self._bottom
        super().set(lines)
        self._bottom = self.max_scroll_y
        if follows:
            self.scroll_to(y=self._bottom, animate=False)


class JobsPane(Pane):
    """Jobs above, log below."""

    number = 4
    label = "Jobs"

    def __init__(self, id: str, book: JobBook) -> None:
        super().__init__(id)
        self._book = book

    def compose(self) -> ComposeResult:
        """List and log."""
        yield JobsView(self._book)
        yield LogView()

    @property
    def view(self) -> JobsView:
        """The list."""
        return self.query_one(JobsView)

    def set_filter(self, text: str) -> None:
        """Shows the jobs whose dataset, kind or state match."""
        super().set_filter(text)
        self.view.text = text
        self.view.load()

    def log_lines(self, newest: int = LOG_LINES) -> list[list[Span]]:
        """The newest lines of the selected job's log, and what went wrong."""
        job = self.view.job
        if job is None:
            return []
        lines = [log_spans(event) for event in self._book.logs.get(job.id, [])[-newest:]]
        return lines + failure_spans(job) + verdict_spans(job)

    def show_log(self) -> None:
        """Shows the end of the selected job's log; all of it is a dialog away."""
        self.query_one(LogView).set(self.log_lines(_SHOWN))

    def copied(self) -> tuple[str, str] | None:
        """The log of the selected job."""
        if self.view.job is None:
            return None
        lines = ["".join(text for text, _ in spans) for spans in self.log_lines()]
        return "log", "\n".join(lines)
