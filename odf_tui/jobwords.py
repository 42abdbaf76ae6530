"""What is said of a job: what it does or did, what went wrong, what a verification found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from rich.cells import cell_len

from odf_engine.coordinator.protocol import Job, JobState, Verify, request_type
from odf_engine.coordinator.results import (
    CheckProofResult,
    CompareResult,
    ExportResult,
    ProjectionResult,
    PullResult,
    PushResult,
    QueryResult,
    StatisticsResult,
    UpdateResult,
    ValidateResult,
    VerifyResult,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.provenance.model import TraceResult
from odf_engine.views.diff import Difference
from odf_tui import verdict
from odf_tui.humane import count, elapsed, plain, shorten, size
from odf_tui.pace import Pace, bar, left_words, part_done, rate_words, unit_of
from odf_tui.sharewords import compare_outcome, push_outcome, remote_pull_outcome, search_outcome
from odf_tui.state import known_result
from odf_tui.widgets.lines import Span

_MAX_LINE: Final = 4000
_MAX_EXCERPT: Final = 400
_BAR: Final = 8
# What is counted as files, where it is none: what stands before and after the number.
_COUNTED: Final = {"verify": ("", " blocks"), "compare": ("", " blocks"), "replay": ("transaction ", "")}


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
    if job.kind == "search":
        return search_outcome(job.result or "")
    return _result_outcome(job)


def _result_outcome(job: Job) -> tuple[str, str]:
    """Describe the result of a job that is done; return the text and its style."""
    request = request_type(job.kind)
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
            return _rows(result.rows) + (", there are more" if result.truncated else ""), "good"
        case ProjectionResult() as result:
            return f"{_rows(result.rows)} of {count(result.of)}", "good"
        case CheckProofResult(checked=False):
            return "not all that it names is here", "good"
        case CheckProofResult() as result:
            return "the answer is right" if result.valid else "the answer is not right", "good"
        case Difference() as result:
            counts = (("added", result.added), ("removed", result.removed), ("changed", result.changed))
            return ", ".join(f"{count(number)} {change}" for change, number in counts), "good"
        case TraceResult() as result:
            return "" if result.problem else f"{_rows(result.rows)} traced", "good"
        case ExportResult() as result:
            return f"{_rows(result.rows)}, {size(result.size)} in {PurePath(result.path).name}", "good"
        case StatisticsResult() as result:
            return f"{_rows(result.rows)} looked at", "good"
        case _:  # of another version
            return "done", "muted"


def _rows(number: int) -> str:
    return f"{count(number)} {'row' if number == 1 else 'rows'}"


def _pull_outcome(result: PullResult) -> tuple[str, str]:
    if result.url:
        return remote_pull_outcome(result)
    if result.status != "updated":
        return (result.status or "done").replace("-", " "), "muted"
    rows = f"+{count(result.records)} rows"
    return (f"{rows} in {result.blocks} blocks" if result.blocks > 1 else rows), "good"


def _verify_outcome(result: VerifyResult) -> tuple[str, str]:
    if result.valid is False:
        findings = len(result.findings)
        return f"{findings} findings" if findings != 1 else "1 finding", "bad"
    again = result.transforms
    replayed = f", {count(again)} transaction{'' if again == 1 else 's'} run again" if again else ""
    unchecked = [each for each in result.unchecked if "proof-" not in each.kind]
    missed = f", {count(len(unchecked))} not" if unchecked else ""
    return f"valid{replayed}{missed}", "good"


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
    """Describe what a verification checked and found, and the origins of the dataset."""
    if job.kind != "verify" or job.state is not JobState.done:
        return []
    report = known_result(job.result, Verify)
    if report is None:
        return []
    lines: list[list[Span]] = []
    for at, text in enumerate(verdict.checked(report)):
        lines.append([("         " if at else "checked  ", "muted"), (plain(text), "")])
    lines += [[("wrong    ", "bad"), (plain(text), "bad")] for text in verdict.finding_lines(report)]
    lines += [[("         ", ""), (plain(text), "warn")] for text in verdict.unchecked_lines(report)]
    for at, (name, texts) in enumerate(verdict.origins([report])):
        lines.append([("         " if at else "origin   ", "muted"), (plain(name), "name")])
        lines += [[(" " * 11, ""), (plain(text), "")] for text in texts]
    return lines


def plain_lines(text: str) -> list[str]:
    """The lines of a foreign text, each safe to show."""
    return [plain(line[:_MAX_LINE]) for line in text.splitlines()] or [""]


def progress_words(job: Job, pace: Pace, room: int) -> str:
    """What a running job does in at most ``room`` cells: phase, how much of it, how fast, how long still.

    What has no room is left out, the least important first.
    """
    part = part_done(job.progress)
    phase = job.progress.phase or "running"
    rate = rate_words(pace.recent(job.id), unit_of(job.progress))
    left = left_words(pace.left(job))
    percent = f"{part * 100:.0f}%" if part is not None else ""
    drawn = f"{bar(part, _BAR)} {percent}" if part is not None else ""
    amount = amounts(job).removeprefix(phase).removeprefix(" · ")
    for parts in (
        (phase, drawn, amount, rate, left),
        (phase, drawn, rate, left),
        (phase, percent, rate, left),
        (phase, percent or amount, left or rate),
        (phase, percent or amount.partition(" · ")[0]),
        (phase, percent),
    ):
        words = " · ".join(each for each in parts if each)
        if cell_len(words) <= room:
            return words
    return percent or phase


def waiting_words(
    job: Job, ahead: Sequence[Job], inputs: Mapping[str, Sequence[str]], room: int = 1000
) -> str:
    """Where a job stands in the queue, and what it waits for.

    Args:
        ahead: the open jobs that were made before it.
        inputs: what datasets are made from, by id.
        room: cells for it.
    """
    place = sum(each.state is JobState.queued for each in ahead) + 1
    wanted = {job.dataset, *(inputs.get(job.dataset, ()) if job.kind == "pull" else ())}
    blockers = [each for each in ahead if each.dataset in wanted]
    line = "next in line" if place == 1 else f"{ordinal(place)} in line"
    if not blockers:
        return line
    more = f" and {len(blockers) - 1} more" if len(blockers) > 1 else ""
    words = f"{line}, after {blockers[0].kind} {blockers[0].target}{more}"
    if cell_len(words) <= room:
        return words
    line = line.removesuffix(" in line")
    return f"{line}, after {shorten(blockers[0].target, max(room - cell_len(line) - 8, 5))}"


def ordinal(number: int) -> str:
    """A number as a place, such as ``3rd``."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number % 10, 'th')}"
