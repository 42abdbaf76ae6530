"""Remotes of a dataset: badges, texts and filter terms for how far ahead or behind they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from odf_engine.api import RemoteRelation, Timestamp
from odf_engine.api.model import Remote
from odf_engine.api.text import count_of, format_count, format_zoned_time
from odf_tui.text.format import ellipsize_middle, format_count_short, format_duration

FROM: Final = "⇣"
TO: Final = "⇡"
DIVERGED: Final = "÷"

_LABEL_WIDTH: Final = 40


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


def pull_remotes(remotes: Iterable[Remote]) -> list[Remote]:
    """Return the remotes that the dataset is pulled from."""
    return [remote for remote in remotes if remote.pull]


def push_remotes(remotes: Iterable[Remote]) -> list[Remote]:
    """Return the remotes that the dataset is pushed to."""
    return [remote for remote in remotes if remote.push]


def diverged_remotes(remotes: Iterable[Remote]) -> list[Remote]:
    """Return the remotes that have diverged from the dataset."""
    return [remote for remote in remotes if remote.relation == "diverged"]


def blocks_to_pull(remotes: Iterable[Remote]) -> int:
    """Return the greatest number of blocks that a remote is ahead."""
    return max((remote.theirs for remote in remotes if remote.relation in ("behind", "diverged")), default=0)


def blocks_to_push(remotes: Iterable[Remote]) -> int:
    """Return the greatest number of blocks that a push remote is behind."""
    known = ("ahead", "diverged", "new")
    return max((remote.ours for remote in push_remotes(remotes) if remote.relation in known), default=0)


def remote_badge(remotes: Sequence[Remote]) -> str:
    """Return a badge of a few cells.

    ``⇣3`` means three blocks to pull, ``⇡2`` two to push, ``⇡=`` none, ``⇡?`` not compared since the last
    change, and ``÷`` diverged.
    """
    theirs, ours = blocks_to_pull(remotes), blocks_to_push(remotes)
    text = DIVERGED if diverged_remotes(remotes) else ""
    if theirs or pull_remotes(remotes):
        text += FROM + _blocks_text(theirs, pull_remotes(remotes))
    if push_remotes(remotes):
        text += TO + _blocks_text(ours, push_remotes(remotes))
    return text


def _blocks_text(blocks: int, remotes: Sequence[Remote]) -> str:
    if blocks:
        return format_count_short(blocks)
    return "=" if all(remote.relation for remote in remotes) else "?"


def remote_badge_style(remotes: Sequence[Remote]) -> str:
    """Return the style of the badge."""
    if diverged_remotes(remotes):
        return "bad"
    return "warn" if blocks_to_pull(remotes) or blocks_to_push(remotes) else "muted"


def relation_text(remote: Remote) -> str:
    """Return the relation of a dataset to a remote, such as ``3 behind``."""
    match remote.relation:
        case "equal":
            return "up to date"
        case "ahead":
            return f"{format_count(remote.ours)} ahead"
        case "behind":
            return f"{format_count(remote.theirs)} behind"
        case "diverged":
            return f"diverged: {format_count(remote.ours)} ahead, {format_count(remote.theirs)} behind"
        case "new":
            return "remote is empty"
        case _:
            return "changed locally" if remote.at else "not compared yet"


def relation_text_for_people(remote: Remote) -> str:
    """Describe the relation of a dataset to a remote, such as ``3 blocks behind``.

    This is the form of the command line; :func:`relation_text` is the screen's.
    """
    match remote.relation:
        case "ahead":
            return f"{plain_block_count(remote.ours)} ahead"
        case "behind":
            return f"{plain_block_count(remote.theirs)} behind"
        case "diverged":
            return f"diverged: {plain_block_count(remote.ours)} ahead, {remote.theirs} behind"
        case "":
            return "changed locally since the last comparison" if remote.at else "not compared yet"
        case _:
            return relation_text(remote)


def plain_block_count(number: int) -> str:
    """Return a number of blocks without separators, as the command line prints it."""
    return count_of(number, "block", separators=False)


def remote_summary(remote: Remote, now: Timestamp) -> str:
    """Describe a remote, such as ``from lab/cities: 3 blocks behind, compared 5 min ago``."""
    seen = ""
    with suppress(ValueError):  # never compared, or a damaged time
        seconds = (now.ns - Timestamp.parse(remote.at).ns) / 1e9
        seen = ", compared just now" if seconds < 1 else f", compared {format_duration(seconds)} ago"
    return f"{direction(remote)} {remote.label}: {relation_text_for_people(remote)}{seen}"


def remote_text(remote: Remote) -> str:
    """Return label, relation and time of the comparison."""
    compared = f"compared {format_zoned_time(remote.at)}" if remote.at else "m checks"
    return f"{ellipsize_middle(remote.label, _LABEL_WIDTH)} · {relation_text(remote)} · {compared}"


def direction(remote: Remote) -> str:
    """Return ``from`` for a pull remote, ``to`` for a push remote, or both."""
    return {(True, False): "from", (False, True): "to"}.get((remote.pull, remote.push), "from, to")


def remote_filter_terms(remotes: Sequence[Remote]) -> tuple[str, ...]:
    """Return the terms of the filter ``remote:`` that match a dataset.

    They are ``from``, ``to``, ``behind``, ``ahead``, ``diverged`` and the labels of its remotes, or
    ``none``.
    """
    if not remotes:
        return ("none",)
    terms: list[str] = [
        term for term, select in (("from", pull_remotes), ("to", push_remotes)) if select(remotes)
    ]
    if blocks_to_pull(remotes):
        terms.append("behind")
    if blocks_to_push(remotes):
        terms.append("ahead")
    if diverged_remotes(remotes):
        terms.append("diverged")
    return (*terms, *(remote.label.lower() for remote in remotes))
