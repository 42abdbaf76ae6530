"""What is said of jobs that exchange datasets with other places."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from odf_engine.coordinator.protocol import Job, JobState
from odf_tui.humane import count, size
from odf_tui.pace import Pace, rate_words, unit_of
from odf_tui.remotes import Remote, short_place, standing_words

_MOVES: Final = ("fetch", "send")
_CONFLICT: Final = 4  # the exit code of what cannot be done because there is something else


def shares(job: Job, result: Mapping[str, Any]) -> bool:
    """Whether a finished job exchanged something with another place; a pull may also be of a source."""
    return job.kind in ("push", "compare") or (job.kind == "pull" and bool(result.get("url")))


def shared_outcome(job: Job, result: Mapping[str, Any]) -> tuple[str, str]:
    """What a job that is done did, in a few words, and the name of their style."""
    place = _place(result)
    if job.kind == "compare":
        return _compared(result)
    updated = result.get("status") == "updated"
    blocks = _blocks(result.get("blocks") or 0)
    if job.kind == "push":
        sent = f"pushed {blocks}, {size(result.get('bytes') or 0)} to {place}"
        return (sent, "good") if updated else (f"{place} is up to date", "muted")
    if updated:
        rows = count(result.get("records") or 0)
        return f"+{rows} rows in {blocks} from {place}", "good"
    ahead = result.get("ahead") or 0
    return f"up to date{f', {_blocks(ahead)} ahead of {place}' if ahead else ''}", "muted"


def _place(result: Mapping[str, Any]) -> str:
    return short_place(str(result.get("label") or result.get("url") or ""))


def _blocks(number: int) -> str:
    return f"{count(number)} {'block' if number == 1 else 'blocks'}"


def seen_remote(seen: Mapping[str, Any], label: str, known: Remote | None = None) -> Remote:
    """What a comparison found, as the screen knows remotes.

    Args:
        seen: a ``Seen`` as JSON has it.
    """
    return Remote(
        url=str(seen.get("url") or ""),
        label=label,
        pull=known is not None and known.pull,
        push=known is not None and known.push,
        relation=seen.get("relation") or "",
        ours=int(seen.get("ours") or 0),
        theirs=int(seen.get("theirs") or 0),
        common=str(seen.get("common") or ""),
        their_head=str(seen.get("their_head") or ""),
        at=str(seen.get("at") or ""),
    )


def _compared(result: Mapping[str, Any]) -> tuple[str, str]:
    problems = result.get("problems") or ()
    found = [f"{standing_words(seen_remote(each, ''))} · {_place(each)}" for each in result.get("seen") or ()]
    found += [f"{_place(each)}: {each.get('message')}" for each in problems]
    if not found:
        return "there is nothing to look at", "muted"
    return ", ".join(found), "warn" if problems else "good"


@lru_cache(maxsize=64)
def searched(text: str) -> tuple[str, str]:
    """What a search found, in a few words, and their style; it may be long, and every paint asks for it."""
    try:
        result = json.loads(text or "{}")
    except ValueError:
        result = {}
    if not isinstance(result, dict):
        result = {}
    number, problems = len(result.get("datasets") or ()), result.get("problems") or ()
    words = f"{count(number)} {'dataset' if number == 1 else 'datasets'}"
    if not problems:
        return words, "good"
    return f"{words}; not asked: {', '.join(str(each.get('repository')) for each in problems)}", "warn"


def may_have_diverged(job: Job) -> bool:
    """Whether a job failed because there is something else at the other place, or here."""
    failed = job.state is JobState.failed and job.error is not None
    return failed and job.kind in ("pull", "push") and job.error.exit_code == _CONFLICT  # type: ignore[union-attr]


def speeds(jobs: Iterable[Job], pace: Pace) -> dict[str, str]:
    """How fast bytes come or go, in words, by the datasets of the jobs that move some."""
    moving = [job for job in jobs if job.progress.phase in _MOVES and unit_of(job.progress) == "bytes"]
    return {job.dataset: words for job in moving if (words := rate_words(pace.recent(job.id), "bytes"))}
