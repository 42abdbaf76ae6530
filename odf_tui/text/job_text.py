"""Texts of jobs: progress, rates, outcomes, failures, transfers, verification reports, trials of flows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
from rich.cells import cell_len

from odf_engine.api import JOB_KINDS as JOB_KINDS
from odf_engine.api import (
    Check,
    CheckResult,
    Failure,
    Job,
    JobRequest,
    JobState,
    JobWarning,
    Progress,
    Rate,
    Run,
    Sample,
    Timestamp,
    Verify,
    decode_result,
)
from odf_engine.api.text import (
    count_of,
    format_bytes,
    format_count,
    format_time_seconds,
    format_zoned_time,
    printable,
)
from odf_engine.errors import BadData
from odf_tui.text.format import (
    Span,
    error_with_hint,
    format_count_short,
    format_duration,
    shorten_name,
    with_spaced_thousands,
)
from odf_tui.text.verification_text import (
    finding_lines,
    replay_summaries,
    unchecked_lines,
    verification_summary,
    version_lines,
)

if TYPE_CHECKING:
    from odf_engine.api import FlowTrial

MAX_SAMPLES: Final = 240
_RECENT_SAMPLES: Final = 5
_STEADY_SAMPLES: Final = 8
_MAX_RATE_CHANGE: Final = 0.4
"""Greatest relative difference between the recent and the earlier rate of a steady job."""
_EARLY_PHASES: Final = ("prepare", "read", "merge")
"""Phases that have a total, but whose end is not that of the job."""
_MOST_PERCENT: Final = 99  # a running job is never complete
_BARS: Final = "▁▂▃▄▅▆▇█"
_FULL, _EMPTY = "█", "▁"


class JobRates:
    """The newest samples of the worker: rates and memory, one sample a second while jobs run."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, samples: Iterable[Sample]) -> None:
        """Append samples. Those that are not newer than the last one are ignored."""
        for sample in samples:
            if not self.samples or sample.at > self.samples[-1].at:
                self.samples.append(sample)

    def rates(self, job: str) -> list[Rate]:
        """Return the rates of a job, oldest first."""
        return [rate for sample in self.samples if (rate := sample.rates.get(job)) is not None]

    def recent(self, job: str) -> Rate:
        """Return the mean rate per second of a job over the newest samples."""
        return mean_rate(self.rates(job)[-_RECENT_SAMPLES:])

    def seconds_left(self, job: Job) -> float | None:
        """Estimate the seconds until a running job has processed its known total.

        Returns None if the total is not known, if other phases of unknown duration follow, or if the rate is
        not steady.
        """
        rates = self.rates(job.id)[-_STEADY_SAMPLES:]
        unit = progress_unit(job.progress)
        if unit is None or len(rates) < _STEADY_SAMPLES or job.progress.phase in _EARLY_PHASES:
            return None
        done, total = getattr(job.progress, unit) or 0, getattr(job.progress, f"total_{unit}")
        if done >= total:
            return None
        earlier, recent = (
            getattr(mean_rate(part), unit)
            for part in (rates[: -_RECENT_SAMPLES + 1], rates[-_RECENT_SAMPLES:])
        )
        if recent <= 0 or abs(earlier - recent) > _MAX_RATE_CHANGE * recent:
            return None
        return (total - done) / recent


def mean_rate(rates: Sequence[Rate]) -> Rate:
    """Return the mean of some rates; zero for none."""
    if not rates:
        return Rate()
    return Rate(*(sum(getattr(rate, unit) for rate in rates) / len(rates) for unit in Rate.__struct_fields__))


def progress_unit(progress: Progress) -> str | None:
    """Return the first of ``rows``, ``bytes`` and ``files`` with a known total, or None if absent."""
    for unit in ("rows", "bytes", "files"):
        if getattr(progress, unit) is not None and getattr(progress, f"total_{unit}"):
            return unit
    return None


def fraction_done(progress: Progress) -> float | None:
    """Return the completed fraction of a job, from 0 to 1, or None if its total is not known."""
    unit = progress_unit(progress)
    if unit is None:
        return None
    return min(max(getattr(progress, unit) / getattr(progress, f"total_{unit}"), 0.0), 1.0)


def percent_done(progress: Progress) -> int | None:
    """Return the progress of a phase in percent, from 0 to 99, or None if its total is not known."""
    fraction = fraction_done(progress)
    return None if fraction is None else min(int(fraction * 100), _MOST_PERCENT)


def draw_bar(part: float, width: int) -> str:
    """Return a progress bar of ``width`` cells for a fraction from 0 to 1."""
    full = min(int(part * width), width)
    return _FULL * full + _EMPTY * (width - full)


def sparkline(values: Sequence[float], width: int, maximum: float = 0) -> str:
    """Return the newest values as a sparkline of at most ``width`` cells, one for each value.

    Args:
        values: the values, oldest first.
        width: number of cells.
        maximum: the value that fills a cell; 0: the greatest value that is shown.
    """
    shown = values[-width:] if width > 0 else []
    maximum = maximum or max(shown, default=0)
    if maximum <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[min(int(max(value, 0) / maximum * 7.999), 7)] for value in shown)


def format_rate(rate: Rate, unit: str | None = None) -> str:
    """Return a rate, such as ``48.2k rows/s``, or "" if it is close to zero.

    It is a rate of bytes if ``unit`` is ``bytes``, or if no rows were processed.
    """
    if rate.rows >= 1 and unit != "bytes":
        return f"{format_count_short(round(rate.rows))} rows/s"
    if rate.bytes >= 1000:
        return f"{format_bytes(round(rate.bytes))}/s"
    return ""


def format_time_left(seconds: float | None) -> str:
    """Return an estimate of remaining seconds, such as ``~2 min left``, or "" for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"~{max(round(seconds), 1)} s left"
    if seconds < 5400:
        return f"~{round(seconds / 60)} min left"
    return f"~{round(seconds / 3600)} h left"


class Throughput(msgspec.Struct, frozen=True):
    """The rates of a job, or of all jobs, and the memory of the worker.

    Attributes:
        rates: rows or bytes per second, one value per sample.
        rate: the newest rate as text.
        heap: memory in bytes, one value per sample: Spark's heap, or the worker's without Spark.
        heap_max: greatest size of the heap in bytes, or 0 without Spark.
        memory: the newest memory as text.
        suffix: a longer description, shown after ``memory`` where there is room.
    """

    rates: tuple[float, ...]
    rate: str
    heap: tuple[float, ...]
    heap_max: int
    memory: str
    suffix: str


def throughput(rates: JobRates, job: Job | None) -> Throughput | None:
    """Return the throughput of a job, or of all jobs for None, or None without samples."""
    samples = rates.samples
    if not samples:
        return None
    known = rates.rates(job.id) if job is not None else [_total_rate(sample) for sample in samples]
    unit = progress_unit(job.progress) if job is not None else None
    by_rows = unit != "bytes" and any(rate.rows for rate in known)
    last = samples[-1]
    return Throughput(
        tuple(rate.rows if by_rows else rate.bytes for rate in known),
        format_rate(mean_rate(known[-_RECENT_SAMPLES:]), "rows" if by_rows else "bytes"),
        tuple(float(sample.heap if last.heap_max else sample.memory) for sample in samples),
        last.heap_max,
        f"{format_bytes(last.heap)} of {format_bytes(last.heap_max)}"
        if last.heap_max
        else format_bytes(last.memory),
        f" in Spark, {format_bytes(last.memory)} in all" if last.heap_max else " without Spark",
    )


def _total_rate(sample: Sample) -> Rate:
    """Return the sum of the rates of all jobs of a sample."""
    rates = sample.rates.values()
    return Rate(*(sum(getattr(rate, unit) for rate in rates) for unit in Rate.__struct_fields__))


R = TypeVar("R")


def known_result(result: str | None, request: type[JobRequest[R]]) -> R | None:
    """Return a job's result, or None if it cannot be decoded, such as another version's.

    A job that is done without a result has the default result of its kind, where there is one.
    """
    try:
        return decode_result(result or "{}", request)
    except BadData:
        return None


def has_findings(job: Job) -> bool:
    """Return whether this is a verification that found problems."""
    return job.kind == "verify" and _verdict(job.result or "").valid is False


def findings_verdict(job: Job) -> str:
    """Return what the findings of a verification show, such as ``invalid``."""
    return _verdict(job.result or "").text


def verified_head(job: Job) -> str | None:
    """Return the head of a dataset that a job verified completely, without findings; else None."""
    verdict = _verdict(job.result or "") if job.kind == "verify" else _Verdict()
    return verdict.head if verdict.valid is True else None


class _Verdict(NamedTuple):
    """The fields ``valid`` and ``head`` of a report, and what its findings show."""

    valid: bool | None = None
    head: str | None = None
    text: str = ""


@lru_cache(maxsize=4096)
def _verdict(result: str) -> _Verdict:
    """Return the verdict of a report. Cached: reports can be long, and each event reads them."""
    report = known_result(result, Verify)
    return _Verdict() if report is None else _Verdict(report.valid, report.head, report.verdict)


_TRANSFER_PHASES: Final = ("fetch", "send")
_CONFLICT_EXIT_CODE: Final = 4  # see odf_engine.errors.Conflict


def may_have_diverged(job: Job) -> bool:
    """Return whether a pull or push failed because the histories conflict."""
    failed = job.state is JobState.failed and job.error is not None
    return failed and job.kind in ("pull", "push") and job.error.exit_code == _CONFLICT_EXIT_CODE  # type: ignore[union-attr]


def transfer_rates(jobs: Iterable[Job], rates: JobRates) -> dict[str, str]:
    """Return the transfer rates of running pulls and pushes as text, by dataset."""
    transfers = [
        job
        for job in jobs
        if job.progress.phase in _TRANSFER_PHASES and progress_unit(job.progress) == "bytes"
    ]
    return {job.dataset: words for job in transfers if (words := format_rate(rates.recent(job.id), "bytes"))}


_MAX_LINE: Final = 4000
_MAX_EXCERPT: Final = 400
_BAR_WIDTH: Final = 8

# Phases that count something else as files: the texts before and after the number.
_FILE_UNITS: Final = {
    "verify": ("", " blocks"),
    "compare": ("", " blocks"),
    "lineage": ("", " blocks"),
    "replay": ("transaction ", ""),
    "search": ("", " datasets"),
    **dict.fromkeys(("prepare", "read", "merge", "sort", "write"), ("file ", "")),
}


def job_seconds(job: Job, now: Timestamp) -> float | None:
    """Return the seconds that a job took, or has been running, or None before its start."""
    if job.started is None:
        return None
    end = Timestamp.parse(job.ended) if job.ended else now
    return max((end.ns - Timestamp.parse(job.started).ns) / 1e9, 0.0)


def jobs_of_run(run: Run, jobs: Mapping[str, Job]) -> list[Job]:
    """Return the jobs of a run of a flow that have ended; the log of jobs may lack old ones."""
    return [job for job_id in run.jobs if (job := jobs.get(job_id)) is not None and job.state.final]


def outcomes_of_run(jobs: Iterable[Job], warnings: Iterable[JobWarning]) -> Iterator[str]:
    """Yield the changes and the warnings of the jobs of a run, such as ``cases: +90 -5 rows``."""
    for job in jobs:
        if job.state is JobState.done and job.kind in ("pull", "ingest"):
            yield f"{job.target}: {job_outcome(job)[0]}"
    for warning in warnings:
        yield f"warning: {warning.text}"


def warnings_text(warnings: Sequence[JobWarning]) -> str:
    """Return the number of warnings and the first one, such as ``2 warnings: 1 duplicate row dropped``."""
    return f"{count_of(len(warnings), 'warning')}: {printable(warnings[0].text)}"


def job_outcome(job: Job) -> tuple[str, str]:
    """Return the outcome of a job, or its current progress, and the style of the text."""
    text, style = _outcome_without_warnings(job)
    if job.committed_rows:
        return f"{text}; {count_of(job.committed_rows, 'row')} committed", style
    if job.state is JobState.done and job.warnings:
        return f"{text}; {count_of(len(job.warnings), 'warning')}", "warn" if style != "bad" else style
    return text, style


def _outcome_without_warnings(job: Job) -> tuple[str, str]:
    if job.state is JobState.running:
        return job_amounts(job) or "running", "busy"
    if job.state is JobState.queued:
        return "queued", "muted"
    if job.state is JobState.failed or (job.state is JobState.interrupted and job.error):
        return job.error.message.splitlines()[0] if job.error and job.error.message else "failed", "bad"
    if job.state is not JobState.done:
        return job.state.value, "warn"
    return _summary(job.kind, job.result or "{}")


@lru_cache(maxsize=512)
def _summary(kind: str, result: str) -> tuple[str, str]:
    """Return the summary of a result, and its style.

    Cached: results can be long, and each paint reads them.
    """
    request = JOB_KINDS.get(kind)
    decoded = None if request is None else known_result(result, request)
    if request is None or decoded is None:  # of another version
        return "done", "muted"
    text, style = request.summarize(decoded)
    return with_spaced_thousands(text), style


def job_activity(job: Job, now: Timestamp) -> str:
    """Return phase, amounts and duration of a running job."""
    seconds = job_seconds(job, now)
    took = format_duration(seconds) if seconds is not None and seconds >= 1 else ""
    return " · ".join(part for part in (job_amounts(job) or "running", took) if part)


def job_amounts(job: Job) -> str:
    """Return phase and amounts of a running job, such as ``read · 1 200 000 rows · 93 MB of 938 MB``."""
    progress = job.progress
    parts = [progress.phase, _file_amount(progress, _FILE_UNITS, format_count)]
    if progress.rows is not None:
        parts.append(format_count(progress.rows) + _of(progress.total_rows, format_count) + " rows")
    if progress.bytes is not None:
        parts.append(format_bytes(progress.bytes) + _of(progress.total_bytes, format_bytes))
    return " · ".join(part for part in parts if part)


def progress_line(progress: Progress) -> str:
    """Return phase and amounts of a running job, such as ``read: 1 200 000 rows, 93.1 MB of 938.0 MB``.

    This is the form of the command line: numbers of files have no separators.
    """
    parts: list[str] = []
    if progress.rows is not None:
        parts.append(count_of(progress.rows, "row"))
    if progress.bytes is not None:
        parts.append(format_bytes(progress.bytes) + _of(progress.total_bytes, format_bytes))
    if files := _file_amount(progress, _FILE_UNITS, str):
        parts.append(files)
    return ": ".join(part for part in (progress.phase, ", ".join(parts)) if part)


def _file_amount(
    progress: Progress, counted: Mapping[str, tuple[str, str]], text: Callable[[int], str]
) -> str:
    """Return how many files, or other things that a phase counts, are done, or "" if it counts none.

    A phase that reports the name of the file has the form ``file 12 of 60 · week-12.csv``.
    """
    if progress.files is None:
        return ""
    if progress.file:
        name = printable(PurePath(progress.file).name)
        return f"file {text(progress.files)}{_of(progress.total_files, text)} · {name}"
    before, after = counted.get(progress.phase, ("", " files"))
    return before + text(progress.files) + _of(progress.total_files, text) + after


def _of(total: int | None, text: Callable[[int], str]) -> str:
    return f" of {text(total)}" if total else ""


def failure_spans(job: Job) -> list[list[Span]]:
    """Return lines that describe the error of a job: message, location, excerpt, hint."""
    if job.error is None:
        return []
    lines: list[list[Span]] = []
    texts = printable_lines(job.error.message)
    for index, text in enumerate(texts):
        lines.append([("failed   " if not index else "         ", "bad"), (text, "bad")])
    if job.error.where:
        lines.append([("where    ", "muted"), (printable(job.error.where), "")])
    for text in job.error.excerpt:
        lines.append([("         ", "muted"), (printable(text[:_MAX_EXCERPT]), "strong")])
    if job.error.hint:
        lines.append([("hint     ", "muted"), (printable(job.error.hint), "good")])
    return lines


def failure_lines(job: Job) -> Iterator[str]:
    """Yield lines that describe why a job failed or was stopped, with its target and a hint at its log."""
    error = job.error
    if error is None:
        committed = f"; {count_of(job.committed_rows, 'row')} committed" if job.committed_rows else ""
        yield f"{job.target}: {job.state.value}{committed}"
        return
    location = f"{error.where}: " if error.where and error.where != job.target else ""
    message = f"{location}{error.message}"
    # A message may begin with the name of the target.
    target = "" if message.startswith(f"{job.target} ") else f"{job.target}: "
    yield f"error: {target}{message}"
    yield from _failure_details(error)
    yield f"  log: odf logs {job.id}"


def query_failure_lines(job: Job) -> Iterator[str]:
    """Yield lines that describe why a query failed. The query is its own target, and has no log."""
    error = job.error
    if error is None:
        yield job.state.value
        return
    yield f"error: {f'{error.where}: ' if error.where else ''}{error.message}"
    yield from _failure_details(error)


def _failure_details(error: Failure) -> Iterator[str]:
    for line in error.excerpt:
        yield f"  {line}"
    if error.hint:
        yield f"  hint: {error.hint}"


def check_spans(job: Job) -> list[list[Span]]:
    """Return the results of a job that has evaluated checks as lines."""
    result = known_result(job.result, Check) if job.kind == "check" and job.state is JobState.done else None
    return [] if result is None else check_result_spans(result)


def check_result_spans(result: CheckResult) -> list[list[Span]]:
    """Return the results of checks on stored rows as lines."""
    lines: list[list[Span]] = []
    styles = {"passed": "good", "warning": "warn", "failed": "bad"}
    for outcome in result.results:
        rows = f" ({count_of(outcome.examined, 'row')} examined)"
        lines.append(
            [
                (f"{outcome.outcome:<9}", styles[outcome.outcome]),
                (printable(f"{outcome.check}: {outcome.rule}"), ""),
                (f": {printable(outcome.message)}" if outcome.message else "", styles[outcome.outcome]),
                (rows, "muted"),
            ]
        )
        for row in outcome.sample:
            values = ", ".join(f"{name}={value}" for name, value in row.items())
            lines.append([(f"{'':11}{printable(values)}", "muted")])
    return lines


def latest_check_spans(jobs: Iterable[Job], dataset: str) -> list[list[Span]]:
    """Return the results of the newest check of all rows of a dataset as lines, or [] if none has run.

    Trials of checks that are not stored are left out.

    Args:
        jobs: the jobs, newest first.
        dataset: id of the dataset.
    """
    checks = (job for job in jobs if job.kind == "check" and job.dataset == dataset and job.ended)
    for job in checks:
        result = known_result(job.result, Check)
        if result is not None and result.is_trial is True:
            continue
        if lines := check_spans(job):
            text, style = job_outcome(job)
            where = f"@{job.branch}" if job.branch else ""
            head = [(f" {format_time_seconds(job.ended)}  all rows{where}  ", "muted"), (text, style)]
            return [head, *([("   ", ""), *line] for line in lines)]
    return []


def verification_spans(job: Job) -> list[list[Span]]:
    """Return lines that describe a verification, its findings, and the origins of the dataset."""
    if job.kind != "verify" or job.state is not JobState.done:
        return []
    report = known_result(job.result, Verify)
    if report is None:
        return []
    lines: list[list[Span]] = []
    for at, text in enumerate(verification_summary(report)):
        lines.append([("         " if at else "checked  ", "muted"), (printable(text), "")])
    lines += [[("finding  ", "bad"), (printable(text), "bad")] for text in finding_lines(report)]
    remarks = (*unchecked_lines(report), *version_lines(report))
    lines += [[("         ", ""), (printable(text), "warn")] for text in remarks]
    for at, (name, texts) in enumerate(replay_summaries([report])):
        lines.append([("         " if at else "lineage  ", "muted"), (printable(name), "name")])
        lines += [[(" " * 11, ""), (printable(text), "")] for text in texts]
    return lines


def printable_lines(text: str) -> list[str]:
    """Return the lines of an untrusted text without control characters; at least one line."""
    return [printable(line[:_MAX_LINE]) for line in text.splitlines()] or [""]


def progress_text(job: Job, rates: JobRates, width: int) -> str:
    """Return the progress of a running job: phase, fraction, amounts, rate and time left.

    Args:
        job: the job.
        rates: the rates of all jobs.
        width: greatest width in cells. The least important parts are omitted if they do not fit.
    """
    part, done = fraction_done(job.progress), percent_done(job.progress)
    phase = job.progress.phase or "running"
    rate = format_rate(rates.recent(job.id), progress_unit(job.progress))
    left = format_time_left(rates.seconds_left(job))
    percent = f"{done}%" if done is not None else ""
    bar = f"{draw_bar(part, _BAR_WIDTH)} {percent}" if part is not None else ""
    amount = job_amounts(job).removeprefix(phase).removeprefix(" · ")
    for parts in (
        (phase, bar, amount, rate, left),
        (phase, bar, rate, left),
        (phase, percent, rate, left),
        (phase, percent or amount, left or rate),
        (phase, percent or amount.partition(" · ")[0]),
        (phase, percent),
    ):
        words = " · ".join(piece for piece in parts if piece)
        if cell_len(words) <= width:
            return words
    return percent or phase


def queue_text(job: Job, ahead: Sequence[Job], inputs: Mapping[str, Sequence[str]], width: int = 1000) -> str:
    """Return the position of a job in the queue, and the first job that it waits for.

    Args:
        job: the job.
        ahead: the active jobs that were submitted before it.
        inputs: ids of the inputs of datasets, by id.
        width: greatest width in cells.
    """
    position = sum(other.state is JobState.queued for other in ahead) + 1
    datasets = {job.dataset, *(inputs.get(job.dataset, ()) if job.kind == "pull" else ())}
    blockers = [other for other in ahead if other.dataset in datasets]
    line = "next in queue" if position == 1 else f"{ordinal(position)} in queue"
    if not blockers:
        return line
    more = f" and {len(blockers) - 1} more" if len(blockers) > 1 else ""
    words = f"{line}, after {blockers[0].kind} {blockers[0].target}{more}"
    if cell_len(words) <= width:
        return words
    line = line.removesuffix(" in queue")
    return f"{line}, after {shorten_name(blockers[0].target, max(width - cell_len(line) - 8, 5))}"


def ordinal(number: int) -> str:
    """Return an ordinal number, such as ``3rd``."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number % 10, 'th')}"


def trial_lines(trial: FlowTrial) -> Iterator[Span]:
    """Yield what would run, with the problems of tasks, and the next times. Texts may be untrusted."""
    for number, task in enumerate(trial.tasks, 1):
        if task.problem is not None:
            yield f"{number}. ✗ {task.kind}: {error_with_hint(task.problem)}", "bad"
        elif not task.commands:
            yield f"{number}. {task.kind}: nothing to do for these targets", "warn"
        for at, command in enumerate(task.commands):
            yield f"{f'{number}.' if not at else '  '} {command}", ""
    for warning in trial.warnings:
        yield warning, "warn"
    times = ", ".join(format_zoned_time(Timestamp.from_seconds(time)) for time in trial.times)
    yield f"next runs: {times or 'on request, or by other triggers'}", "muted"
