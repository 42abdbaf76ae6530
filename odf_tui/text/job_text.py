"""Texts of jobs: progress, rates, outcomes, failures, transfers, verification reports."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Final, TypeVar

import msgspec
from rich.cells import cell_len

from odf_engine.coordinator.protocol import (
    Diff,
    Job,
    JobRequest,
    JobState,
    Progress,
    Rate,
    Sample,
    Search,
    Verify,
    decode_result,
    request_type,
)
from odf_engine.coordinator.results import (
    CheckProofResult,
    CompareResult,
    ExportResult,
    Origin,
    OriginSource,
    ProjectionResult,
    PullResult,
    PushResult,
    QueryResult,
    RemoteProblem,
    RemoteRelation,
    SearchResult,
    StatisticsResult,
    UpdateResult,
    ValidateResult,
    VerifyResult,
)
from odf_engine.errors import BadData
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.provenance.model import TraceResult
from odf_tui.text import format
from odf_tui.text.format import (
    Span,
    ellipsize_middle,
    format_bytes,
    format_count,
    format_count_short,
    format_duration,
    printable,
)
from odf_tui.text.remotes import Remote, relation_text, short_url

MAX_SAMPLES: Final = 240
_RECENT_SAMPLES: Final = 5
_STEADY_SAMPLES: Final = 8
_MAX_RATE_CHANGE: Final = 0.4
"""Greatest relative difference between the recent and the earlier rate of a steady job."""
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

        Returns None if the total is not known, or if the rate is not steady.
        """
        rates = self.rates(job.id)[-_STEADY_SAMPLES:]
        unit = progress_unit(job.progress)
        if unit is None or len(rates) < _STEADY_SAMPLES:
            return None
        earlier, recent = (
            getattr(mean_rate(part), unit)
            for part in (rates[: -_RECENT_SAMPLES + 1], rates[-_RECENT_SAMPLES:])
        )
        if recent <= 0 or abs(earlier - recent) > _MAX_RATE_CHANGE * recent:
            return None
        done, total = getattr(job.progress, unit) or 0, getattr(job.progress, f"total_{unit}")
        return max(total - done, 0) / recent


def mean_rate(rates: Sequence[Rate]) -> Rate:
    """Return the mean of some rates; zero for none."""
    if not rates:
        return Rate()
    return Rate(*(sum(getattr(rate, unit) for rate in rates) / len(rates) for unit in Rate.__struct_fields__))


def progress_unit(progress: Progress) -> str | None:
    """Return the first of ``rows``, ``bytes`` and ``files`` with a known total; None if there is none."""
    for unit in ("rows", "bytes", "files"):
        if getattr(progress, unit) is not None and getattr(progress, f"total_{unit}"):
            return unit
    return None


def fraction_done(progress: Progress) -> float | None:
    """Return the completed fraction of a job, from 0 to 1; None if its total is not known."""
    unit = progress_unit(progress)
    if unit is None:
        return None
    return min(max(getattr(progress, unit) / getattr(progress, f"total_{unit}"), 0.0), 1.0)


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
    """Return a rate, such as ``48.2k rows/s``; empty if it is close to zero.

    It is a rate of bytes if ``unit`` is ``bytes``, or if no rows were processed.
    """
    if rate.rows >= 1 and unit != "bytes":
        return f"{format_count_short(round(rate.rows))} rows/s"
    if rate.bytes >= 1000:
        return f"{format_bytes(round(rate.bytes))}/s"
    return ""


def format_time_left(seconds: float | None) -> str:
    """Return an estimate of remaining seconds, such as ``~2 min left``; empty for None."""
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
        heap: memory in bytes, one value per sample: Spark's heap, or that of the worker without Spark.
        heap_max: greatest size of the heap in bytes; 0 without Spark.
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
    """Return the throughput of a job, or of all jobs for None; None without samples."""
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
    """Return a job's result; None if it cannot be decoded, such as that of another version.

    A job that is done without a result has the default result of its kind, where there is one.
    """
    try:
        return decode_result(result or "{}", request)
    except BadData:
        return None


def has_findings(job: Job) -> bool:
    """Return whether this is a verification that found problems."""
    return job.kind == "verify" and _verdict(job.result or "")[0] is False


def verified_head(job: Job) -> str | None:
    """Return the head of a dataset that a job verified completely, without findings; else None."""
    valid, head = _verdict(job.result or "") if job.kind == "verify" else (None, None)
    return head if valid is True else None


@lru_cache(maxsize=4096)
def _verdict(result: str) -> tuple[bool | None, str | None]:
    """Return ``valid`` and ``head`` of a report. Cached: reports can be long, and each event reads them."""
    report = known_result(result, Verify)
    return (None, None) if report is None else (report.valid, report.head)


_TRANSFER_PHASES: Final = ("fetch", "send")
_CONFLICT_EXIT_CODE: Final = 4  # see odf_engine.errors.Conflict


def push_outcome(result: PushResult) -> tuple[str, str]:
    """Describe the result of a push; return the text and its style."""
    remote = _remote_name(result)
    if result.status != "updated":
        return f"{remote} is up to date", "muted"
    return f"pushed {count_blocks(result.blocks)}, {format_bytes(result.bytes)} to {remote}", "good"


def remote_pull_outcome(result: PullResult) -> tuple[str, str]:
    """Describe the result of a pull from a remote; return the text and its style."""
    remote = _remote_name(result)
    if result.status == "updated":
        return f"+{format_count(result.records)} rows in {count_blocks(result.blocks)} from {remote}", "good"
    ahead = f", {count_blocks(result.ahead)} ahead of {remote}" if result.ahead else ""
    return f"up to date{ahead}", "muted"


def _remote_name(result: PullResult | PushResult | RemoteRelation | RemoteProblem) -> str:
    return short_url(result.label or result.url or "")


def count_blocks(number: int) -> str:
    """Return a number of blocks, such as ``1 block`` or ``3 blocks``."""
    return count_of(number, "block")


def remote_from_comparison(seen: RemoteRelation, label: str, known: Remote | None = None) -> Remote:
    """Return the remote that a comparison describes; ``known`` is its earlier state."""
    return Remote(
        url=seen.url,
        label=label,
        pull=known is not None and known.pull,
        push=known is not None and known.push,
        relation=seen.relation,
        ours=seen.ours,
        theirs=seen.theirs,
        common=seen.common or "",
        their_head=seen.their_head or "",
        at=seen.at,
    )


def compare_outcome(result: CompareResult) -> tuple[str, str]:
    """Describe the result of a comparison; return the text and its style."""
    found = [
        f"{relation_text(remote_from_comparison(each, ''))} · {_remote_name(each)}" for each in result.seen
    ]
    found += [f"{_remote_name(each)}: {each.message}" for each in result.problems]
    if not found:
        return "there is nothing to look at", "muted"
    return ", ".join(found), "warn" if result.problems else "good"


@lru_cache(maxsize=64)
def search_outcome(text: str) -> tuple[str, str]:
    """Describe the result of a search; return the text and its style.

    Cached: results can be long, and each paint reads them.
    """
    result = known_result(text, Search) or SearchResult()
    number = len(result.datasets)
    words = f"{format_count(number)} {'dataset' if number == 1 else 'datasets'}"
    if not result.problems:
        return words, "good"
    return f"{words}; not asked: {', '.join(each.repository for each in result.problems)}", "warn"


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


def finding_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line for each finding."""
    for finding in report.findings:
        block = f"block {finding.block}: " if finding.block else ""
        yield f"{finding.kind}: {block}{finding.message}"


def unchecked_lines(report: VerifyResult) -> Iterator[str]:
    """Yield a line for each reason why something was not checked."""
    reasons = Counter((each.kind, each.message) for each in report.unchecked)
    for (kind, message), count in reasons.items():
        what = "proof" if kind.startswith("proof-") else "transaction"
        yield f"not checked: {kind}: {message} ({count_of(count, what)})"


def verification_summary(report: VerifyResult) -> Iterator[str]:
    """Yield lines that describe what was verified."""
    if report.blocks is None:
        return
    yield count_of(report.blocks, "block")
    known = f", the rows of {format.format_count(report.rows_known)} as before" if report.rows_known else ""
    yield count_of(report.slices, "slice") + known
    for use in report.engines:
        engine = f"{use.engine} {use.version or ''}".rstrip()
        by = f", made by {use.made_by}" if use.made_by and use.version and use.made_by != use.version else ""
        amounts = f"{count_of(use.transactions, 'transaction')} with {count_of(use.records, 'record')}"
        yield f"{amounts} run again by {engine}{by}"
    if report.proven is not None:
        yield f"proven by its owner {signed_range_text(report.proven, report.newer)}"


def signed_range_text(block: int, newer: int) -> str:
    """Describe the newest block with a valid ownership proof, and the number of blocks after it."""
    if not newer:
        return f"up to block {format.format_count(block)}, the newest"
    verb = "is" if newer == 1 else "are"
    return f"up to block {format.format_count(block)}, {count_of(newer, 'block')} {verb} newer"


def origin_lines(reports: Sequence[VerifyResult]) -> Iterator[str]:
    """Yield the lines of a table of the datasets upstream of derivative datasets, each dataset once."""
    table = list(replay_summaries(reports))
    if table:
        yield "made from:"
    width = max((len(name) for name, _ in table), default=0)
    for name, lines in table:
        for index, line in enumerate(lines):
            yield f"  {name if not index else '':{width}}  {line}"


def replay_summaries(reports: Sequence[VerifyResult]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each upstream dataset once, with lines that describe its origin."""
    newest: dict[str, Origin] = {}
    for report in reversed(reports):  # downstream datasets first
        if len(report.origins) > 1:
            for origin in report.origins:
                old = newest.get(origin.id)
                if old is None or old.records <= origin.records:
                    newest[origin.id] = origin
    # A dataset that is missing in the workspace has only the alias by which a query reads it.
    aliases = {each.id: each.alias for origin in newest.values() for each in origin.inputs}
    for origin in newest.values():
        yield origin.name or aliases.get(origin.id) or origin.id, list(_describe_origin(origin))


def _describe_origin(origin: Origin) -> Iterator[str]:
    if origin.problem:
        yield f"{origin.problem}: {origin.id}" if origin.name is None else origin.problem
        return
    records = f"{count_of(origin.records, 'record')}{_between(origin)}"
    if origin.kind == "Root":
        yield f"{records}, from"
        for source in origin.sources:
            loads = (
                f"{count_of(source.loads, 'load')}, {count_of(source.records, 'record')}{_between(source)}"
            )
            yield f"  {source.kind} {source.place}: {loads}, since block {source.block[-8:]}"
        return
    engine = f"{origin.engine} {origin.version or ''}".rstrip()
    yield f"{records}, in {count_of(origin.transactions, 'transaction')} of {engine}, from"
    for each in origin.inputs:
        name = each.name or each.alias or each.id
        offset = "none of its records" if each.offset is None else f"to offset {each.offset}"
        yield f"  {name}: {offset}, block {(each.block or '')[-8:]}"


def _between(times: Origin | OriginSource) -> str:
    first, last = format.format_time(times.first), format.format_time(times.last)
    if not first:
        return ""
    return f" of {first}" if first == last else f" of {first} to {last}"


def count_of(number: int, what: str) -> str:
    """Return a number of things, such as ``1 block`` or ``3 blocks``."""
    return f"{format.format_count(number)} {what}{'' if number == 1 else 's'}"


_MAX_LINE: Final = 4000
_MAX_EXCERPT: Final = 400
_BAR_WIDTH: Final = 8

# Phases that count something else as files: the texts before and after the number.
_FILE_UNITS: Final = {"verify": ("", " blocks"), "compare": ("", " blocks"), "replay": ("transaction ", "")}


def job_seconds(job: Job, now: Timestamp) -> float | None:
    """Return the seconds that a job took, or has been running; None before its start."""
    if job.started is None:
        return None
    end = Timestamp.parse(job.ended) if job.ended else now
    return max((end.ns - Timestamp.parse(job.started).ns) / 1e9, 0.0)


def job_outcome(job: Job) -> tuple[str, str]:
    """Return the outcome of a job, or its current progress, and the style of the text."""
    if job.state is JobState.running:
        return job_amounts(job) or "running", "busy"
    if job.state is JobState.queued:
        return "waits for its turn", "muted"
    if job.state is JobState.failed or (job.state is JobState.interrupted and job.error):
        return job.error.message.splitlines()[0] if job.error and job.error.message else "failed", "bad"
    if job.state is not JobState.done:
        return job.state.value, "warn"
    if job.kind == "search":
        return search_outcome(job.result or "")
    return _result_outcome(job)


def _result_outcome(job: Job) -> tuple[str, str]:
    """Describe the result of a job that is done; return the text and its style."""
    request = request_type(job.kind)
    if request is Diff and (diff := known_result(job.result, Diff)) is not None:
        # No case below: the class is imported by the first result of a comparison, not by every start.
        counts = (("added", diff.added), ("removed", diff.removed), ("changed", diff.changed))
        return ", ".join(f"{format_count(number)} {change}" for change, number in counts), "good"
    match None if request is None else known_result(job.result, request):
        case PullResult() as result:
            return _pull_outcome(result)
        case PushResult() as result:
            return push_outcome(result)
        case CompareResult() as result:
            return compare_outcome(result)
        case VerifyResult() as result:
            return _verify_outcome(result)
        case ValidateResult() as result:
            return result.message or "the query is right", "good" if result.checked else "warn"
        case UpdateResult() as result:
            return (result.status or "done") + (f", state {result.state}" if result.state else ""), "good"
        case QueryResult() as result:
            return _count_rows(result.rows) + (", there are more" if result.truncated else ""), "good"
        case ProjectionResult() as result:
            return f"{_count_rows(result.rows)} of {format_count(result.of)}", "good"
        case CheckProofResult(checked=False):
            return "not all that it names is here", "good"
        case CheckProofResult() as result:
            return "the answer is right" if result.valid else "the answer is not right", "good"
        case TraceResult() as result:
            return "" if result.problem else f"{_count_rows(result.rows)} traced", "good"
        case ExportResult() as result:
            return (
                f"{_count_rows(result.rows)}, {format_bytes(result.size)} in {PurePath(result.path).name}",
                "good",
            )
        case StatisticsResult() as result:
            return f"{_count_rows(result.rows)} looked at", "good"
        case _:  # a result of another version
            return "done", "muted"


def _count_rows(number: int) -> str:
    return count_of(number, "row")


def _pull_outcome(result: PullResult) -> tuple[str, str]:
    if result.url:
        return remote_pull_outcome(result)
    if result.status != "updated":
        return (result.status or "done").replace("-", " "), "muted"
    rows = f"+{format_count(result.records)} rows"
    return (f"{rows} in {result.blocks} blocks" if result.blocks > 1 else rows), "good"


def _verify_outcome(result: VerifyResult) -> tuple[str, str]:
    if result.valid is False:
        findings = len(result.findings)
        return f"{findings} findings" if findings != 1 else "1 finding", "bad"
    transactions = result.transforms
    replayed = (
        f", {format_count(transactions)} transaction{'' if transactions == 1 else 's'} run again"
        if transactions
        else ""
    )
    unchecked = [each for each in result.unchecked if "proof-" not in each.kind]
    skipped = f", {format_count(len(unchecked))} not" if unchecked else ""
    return f"valid{replayed}{skipped}", "good"


def job_activity(job: Job, now: Timestamp) -> str:
    """Return phase, amounts and duration of a running job."""
    seconds = job_seconds(job, now)
    took = format_duration(seconds) if seconds is not None and seconds >= 1 else ""
    return " · ".join(part for part in (job_amounts(job) or "running", took) if part)


def job_amounts(job: Job) -> str:
    """Return phase and amounts of a running job, such as ``read · 1 200 000 rows · 93 MB of 938 MB``."""
    progress = job.progress
    parts = [progress.phase]
    if progress.files is not None:
        before, after = _FILE_UNITS.get(progress.phase, ("", " files"))
        parts.append(before + format_count(progress.files) + _of(progress.total_files, format_count) + after)
    if progress.rows is not None:
        parts.append(format_count(progress.rows) + _of(progress.total_rows, format_count) + " rows")
    if progress.bytes is not None:
        parts.append(format_bytes(progress.bytes) + _of(progress.total_bytes, format_bytes))
    return " · ".join(part for part in parts if part)


def _of(total: int | None, text: Callable[[int], str]) -> str:
    return f" of {text(total)}" if total else ""


def failure_spans(job: Job) -> list[list[Span]]:
    """Return lines that describe the error of a job: message, place, excerpt, hint."""
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
        lines.append([("try      ", "muted"), (printable(job.error.hint), "good")])
    return lines


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
    lines += [[("wrong    ", "bad"), (printable(text), "bad")] for text in finding_lines(report)]
    lines += [[("         ", ""), (printable(text), "warn")] for text in unchecked_lines(report)]
    for at, (name, texts) in enumerate(replay_summaries([report])):
        lines.append([("         " if at else "origin   ", "muted"), (printable(name), "name")])
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
        width: greatest width in cells. The least important parts are left out if they do not fit.
    """
    part = fraction_done(job.progress)
    phase = job.progress.phase or "running"
    rate = format_rate(rates.recent(job.id), progress_unit(job.progress))
    left = format_time_left(rates.seconds_left(job))
    percent = f"{part * 100:.0f}%" if part is not None else ""
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
        words = " · ".join(each for each in parts if each)
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
    position = sum(each.state is JobState.queued for each in ahead) + 1
    datasets = {job.dataset, *(inputs.get(job.dataset, ()) if job.kind == "pull" else ())}
    blockers = [each for each in ahead if each.dataset in datasets]
    line = "next in line" if position == 1 else f"{ordinal(position)} in line"
    if not blockers:
        return line
    more = f" and {len(blockers) - 1} more" if len(blockers) > 1 else ""
    words = f"{line}, after {blockers[0].kind} {blockers[0].target}{more}"
    if cell_len(words) <= width:
        return words
    line = line.removesuffix(" in line")
    return f"{line}, after {ellipsize_middle(blockers[0].target, max(width - cell_len(line) - 8, 5))}"


def ordinal(number: int) -> str:
    """Return an ordinal number, such as ``3rd``."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number % 10, 'th')}"
