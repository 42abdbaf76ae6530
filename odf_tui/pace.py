"""How fast jobs are: rates over the last seconds, what is left of them, and lines of small bars."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from odf_engine.coordinator.protocol import Job, Progress, Rate, Sample
from odf_tui.humane import short_count, size

KEPT: Final = 240
_RECENT: Final = 5
_STEADY: Final = 8
_FAR: Final = 0.4
"""How far the rate of late may be from that before it, as a part of it, and still be called steady."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_FULL, _REST = "█", "▁"


class Pace:
    """What the worker tells of its speed: the newest samples, one a second while jobs run."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)

    def add(self, samples: Iterable[Sample]) -> None:
        """Takes in samples; those that are known already, or older, are left out."""
        for sample in samples:
            if not self.samples or sample.at > self.samples[-1].at:
                self.samples.append(sample)

    def rates(self, job: str) -> list[Rate]:
        """The rates of a job, the oldest first."""
        return [rate for sample in self.samples if (rate := sample.rates.get(job)) is not None]

    def recent(self, job: str) -> Rate:
        """What a job did in a second of late."""
        return mean(self.rates(job)[-_RECENT:])

    def left(self, job: Job) -> float | None:
        """Seconds until a running job has done what it knows of; None where that cannot be told.

        It takes an amount in all, and a rate that has been about the same for a while.
        """
        rates = self.rates(job.id)[-_STEADY:]
        unit = unit_of(job.progress)
        if unit is None or len(rates) < _STEADY:
            return None
        before, late = (getattr(mean(part), unit) for part in (rates[: -_RECENT + 1], rates[-_RECENT:]))
        if late <= 0 or abs(before - late) > _FAR * late:
            return None
        done, total = getattr(job.progress, unit) or 0, getattr(job.progress, f"total_{unit}")
        return max(total - done, 0) / late


def mean(rates: Sequence[Rate]) -> Rate:
    """The mean of some rates."""
    if not rates:
        return Rate()
    return Rate(*(sum(getattr(rate, unit) for rate in rates) / len(rates) for unit in Rate.__struct_fields__))


def unit_of(progress: Progress) -> str | None:
    """What a job counts and knows the end of: ``rows``, ``bytes`` or ``files``."""
    for unit in ("rows", "bytes", "files"):
        if getattr(progress, unit) is not None and getattr(progress, f"total_{unit}"):
            return unit
    return None


def part_done(progress: Progress) -> float | None:
    """How much of a job is done, from 0 to 1; None when it does not know."""
    unit = unit_of(progress)
    if unit is None:
        return None
    return min(max(getattr(progress, unit) / getattr(progress, f"total_{unit}"), 0.0), 1.0)


def bar(part: float, width: int) -> str:
    """A part of 1 as a bar of ``width`` cells."""
    full = min(int(part * width), width)
    return _FULL * full + _REST * (width - full)


def sparkline(values: Sequence[float], width: int, most: float = 0) -> str:
    """The newest values as bars of one cell each; ``most`` is what fills a cell, else the largest."""
    shown = values[-width:] if width > 0 else []
    top = most or max(shown, default=0)
    if top <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[min(int(max(value, 0) / top * 7.999), 7)] for value in shown)


def rate_words(rate: Rate, unit: str | None = None) -> str:
    """A rate, such as ``48.2k rows/s``; of bytes where that is the ``unit``, or where there are no rows."""
    if rate.rows >= 1 and unit != "bytes":
        return f"{short_count(round(rate.rows))} rows/s"
    if rate.bytes >= 1000:
        return f"{size(round(rate.bytes))}/s"
    return ""


def left_words(seconds: float | None) -> str:
    """What is left, such as ``~2 min left``; empty when it is not known."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"~{max(round(seconds), 1)} s left"
    if seconds < 5400:
        return f"~{round(seconds / 60)} min left"
    return f"~{round(seconds / 3600)} h left"


class Pressure(msgspec.Struct, frozen=True):
    """What is drawn of a job and of Spark: values by the second, and their newest in words."""

    rates: tuple[float, ...]
    rate: str
    heap: tuple[float, ...]
    heap_max: int
    memory: str
    whole: str


def pressure(pace: Pace, job: Job | None) -> Pressure | None:
    """The speed of a job, or of all jobs when it is None, and the memory; None when nothing is known."""
    samples = pace.samples
    if not samples:
        return None
    known = pace.rates(job.id) if job is not None else [total_of(sample) for sample in samples]
    unit = unit_of(job.progress) if job is not None else None
    by_rows = unit != "bytes" and any(rate.rows for rate in known)
    last = samples[-1]
    return Pressure(
        tuple(rate.rows if by_rows else rate.bytes for rate in known),
        rate_words(mean(known[-_RECENT:]), "rows" if by_rows else "bytes"),
        tuple(float(sample.heap if last.heap_max else sample.memory) for sample in samples),
        last.heap_max,
        f"{size(last.heap)} of {size(last.heap_max)}" if last.heap_max else size(last.memory),
        f" in Spark, {size(last.memory)} in all" if last.heap_max else " without Spark",
    )


def total_of(sample: Sample) -> Rate:
    """All jobs of a sample together."""
    rates = sample.rates.values()
    return Rate(*(sum(getattr(rate, unit) for rate in rates) for unit in Rate.__struct_fields__))
