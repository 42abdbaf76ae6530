"""How a dataset is, in as many cells as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from odf_engine.coordinator.protocol import Job, Progress
from odf_tui.humane import short_count
from odf_tui.pace import part_done
from odf_tui.state import Health

_MOST: Final = 99  # what still runs is not complete


def percent(progress: Progress) -> int | None:
    """How far a job is, from 0 to 99; None where the whole is not known."""
    part = part_done(progress)
    return None if part is None else min(int(part * 100), _MOST)


def marks(health: Health, job: Job | None, rate: str = "") -> tuple[str, ...]:
    """What can be said, the longest first; the last one is short enough for every place.

    Args:
        job: the one that runs for the dataset.
        rate: how fast that is, in words; empty where that says little.
    """
    if health is not Health.running or job is None:
        return (health.glyph,)
    glyph = health.glyph
    done = percent(job.progress)
    if done is not None:
        short = (f"{glyph} {done}%", f"{done}%", glyph)
        return (f"{glyph} {done}% · {rate}", f"{done}% {rate}", *short) if rate else short
    if job.progress.rows:
        rows = short_count(job.progress.rows)
        return (f"{glyph} {rows} rows", f"{glyph} {rows}", glyph)
    return (glyph,)


def fitting(found: Sequence[str], room: int) -> str:
    """The longest that fits into some cells."""
    return next((mark for mark in found if len(mark) <= room), found[-1][: max(room, 1)])
