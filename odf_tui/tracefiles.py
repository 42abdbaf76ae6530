"""A trace as others can have it: as text, as JSON, as a graph for Graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from odf_engine.provenance.model import InputRows, OffsetRange, TraceStep, row_count
from odf_tui.tracenodes import Asked, FeedGroup
from odf_tui.tracetree import TraceTree
from odf_tui.widgets.lines import Span

_MOST_LINES: Final = 5000


def answer_of(tree: TraceTree) -> TraceStep | None:
    """All that is known, as one trace; None: nothing is."""
    asked = tree.top.touched.get(0)
    return None if asked is None or asked.step is None else _whole(asked, asked.step)


def _whole(asked: Asked, step: TraceStep) -> TraceStep:
    """A step with what is known of the rows that fed it."""
    groups = [node for node in asked.under if isinstance(node, FeedGroup)]
    return replace(step, feeds=[feed for group in groups for feed in _parts(group)])


def _parts(group: FeedGroup) -> list[InputRows]:
    """A feed; in several, where some of its rows were traced by themselves."""
    feed, whole = group.feed, group.whole
    if whole is not None and whole.step is not None:
        return [replace(feed, step=_whole(whole, whole.step))]
    known = [(each, each.step) for _, each in sorted(group.touched.items()) if each.step is not None]
    if not known:
        return [replace(feed, step=None)]
    found = [replace(feed, runs=each.runs, rows=1, step=_whole(each, step)) for each, step in known]
    rest = _without(feed.runs, [each.runs[0][0] for each, _ in known])
    return [*found, replace(feed, runs=rest, rows=row_count(rest), step=None)] if rest else found


def _without(runs: Sequence[OffsetRange], offsets: Sequence[int]) -> list[OffsetRange]:
    """Runs without some offsets, which are in order."""
    found: list[OffsetRange] = []
    for first, last in runs:
        start = first
        for offset in offsets:
            if start <= offset <= last:
                found += [(start, offset - 1)] if offset > start else []
                start = offset + 1
        found += [(start, last)] if start <= last else []
    return found


def json_of(step: TraceStep) -> str:
    """A trace as JSON, as ``odf provenance --json`` has it."""
    return msgspec.json.format(msgspec.json.encode(step), indent=2).decode() + "\n"


def text_of(lines: Iterable[Sequence[Span]]) -> str:
    """The lines of a tree as text, as many as people read."""
    found: list[str] = []
    for spans in lines:
        if len(found) == _MOST_LINES:
            found.append("…")
            break
        found.append("".join(text for text, _ in spans).rstrip())
    return "\n".join(found) + "\n"


def dot_of(step: TraceStep) -> str:
    """A trace as a graph for Graphviz, as ``odf provenance --dot`` has it; in a thread."""
    from odf_tui.cli.provenance_dot import graph

    return graph(step)
