"""A trace of a size that can be sent and kept: few ever read more, and every screen gets it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from odf_engine.workspace.traced import Feed, Run, Step

MOST_RUNS: Final = 20_000
MOST_SOURCES: Final = 1_000


def shortened(step: Step) -> Step:
    """The same; where rows are too many and too scattered, those nearest to each other are taken as one run.

    Such an answer is not exact any more, and says so; how many rows there are stays as it was.
    """
    feeds = [_feed(each) for each in step.feeds]
    changes: dict[str, object] = {"feeds": feeds, "runs": merged(step.runs), "earlier": merged(step.earlier)}
    if any(len(new.runs) < len(old.runs) for new, old in zip(feeds, step.feeds, strict=True)):
        scattered = "rows are too scattered to be named one by one: others lie between them"
        changes["exact"] = False
        changes["reason"] = "; ".join(filter(None, [step.reason, scattered]))
    if (more := len(step.sources) - MOST_SOURCES) > 0:
        changes["sources"] = step.sources[-MOST_SOURCES:]
        changes["how"] = [*step.how, f"{more:,} older blocks with some of the rows are left out here"]
    made = step.made[-MOST_SOURCES:]
    changes["made"] = [replace(each, runs=merged(each.runs)) for each in made]
    return replace(step, **changes)


def _feed(feed: Feed) -> Feed:
    return replace(feed, runs=merged(feed.runs), step=None if feed.step is None else shortened(feed.step))


def merged(runs: Sequence[Run], most: int = MOST_RUNS) -> list[Run]:
    """Runs in order, at most so many: the smallest gaps between them are closed."""
    if len(runs) <= most:
        return list(runs)
    gaps = sorted(after[0] - before[1] for before, after in pairwise(runs))
    closed = gaps[len(runs) - most - 1]
    found = [runs[0]]
    for first, last in runs[1:]:
        if first - found[-1][1] <= closed:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found
