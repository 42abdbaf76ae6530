"""What is said of jobs that exchange datasets with other places."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from odf_engine.coordinator.protocol import Job, JobState, Search
from odf_engine.coordinator.results import (
    CompareResult,
    PullResult,
    PushResult,
    RemoteProblem,
    RemoteRelation,
    SearchResult,
)
from odf_tui.humane import count, size
from odf_tui.pace import Pace, rate_words, unit_of
from odf_tui.remotes import Remote, short_place, standing_words
from odf_tui.state import known_result

_MOVES: Final = ("fetch", "send")
_CONFLICT: Final = 4  # the exit code of what cannot be done because there is something else


def push_outcome(result: PushResult) -> tuple[str, str]:
    """Describe the result of a push; return the text and its style."""
    remote = _remote_name(result)
    if result.status != "updated":
        return f"{remote} is up to date", "muted"
    return f"pushed {_blocks(result.blocks)}, {size(result.bytes)} to {remote}", "good"


def remote_pull_outcome(result: PullResult) -> tuple[str, str]:
    """Describe the result of a pull from a remote; return the text and its style."""
    remote = _remote_name(result)
    if result.status == "updated":
        return f"+{count(result.records)} rows in {_blocks(result.blocks)} from {remote}", "good"
    ahead = f", {_blocks(result.ahead)} ahead of {remote}" if result.ahead else ""
    return f"up to date{ahead}", "muted"


def _remote_name(result: PullResult | PushResult | RemoteRelation | RemoteProblem) -> str:
    return short_place(result.label or result.url or "")


def _blocks(number: int) -> str:
    return f"{count(number)} {'block' if number == 1 else 'blocks'}"


def seen_remote(seen: RemoteRelation, label: str, known: Remote | None = None) -> Remote:
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
    found = [f"{standing_words(seen_remote(each, ''))} · {_remote_name(each)}" for each in result.seen]
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
    words = f"{count(number)} {'dataset' if number == 1 else 'datasets'}"
    if not result.problems:
        return words, "good"
    return f"{words}; not asked: {', '.join(each.repository for each in result.problems)}", "warn"


def may_have_diverged(job: Job) -> bool:
    """Whether a job failed because there is something else at the other place, or here."""
    failed = job.state is JobState.failed and job.error is not None
    return failed and job.kind in ("pull", "push") and job.error.exit_code == _CONFLICT  # type: ignore[union-attr]


def speeds(jobs: Iterable[Job], pace: Pace) -> dict[str, str]:
    """How fast bytes come or go, in words, by the datasets of the jobs that move some."""
    moving = [job for job in jobs if job.progress.phase in _MOVES and unit_of(job.progress) == "bytes"]
    return {job.dataset: words for job in moving if (words := rate_words(pace.recent(job.id), "bytes"))}
