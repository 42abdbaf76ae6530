"""Where rows of a root dataset came from: which source, when, in which version of it, and how.

The chain says it all: an AddData block names the slice, the time, and the state of the source; what the
source was is said by the newest settings before the block. A dataset is polled or pushed to, never both;
of several push sources, a block does not say which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from odf_engine.chain.chain import Dataset, SliceRow
from odf_engine.chain.rows import StoredBlock
from odf_engine.metadata import model
from odf_engine.progress import Reporter
from odf_engine.provenance import words
from odf_engine.provenance.earlier import Changes
from odf_engine.workspace.traced import Made, Run, Source

_SETTINGS: Final = ("SetPollingSource", "DisablePollingSource", "AddPushSource", "DisablePushSource")
_PAGE: Final = 1000


class Origin(NamedTuple):
    """What the chain of a root dataset says of some of its rows; see :class:`..traced.Step`."""

    made: list[Made]
    sources: list[Source]
    how: list[str]
    earlier: list[Run]


def origin_of(dataset: Dataset, runs: Sequence[Run], reporter: Reporter) -> Origin:
    """Where rows came from.

    Args:
        dataset: a root dataset.
        runs: which of its rows, in order; all of them are there.
        reporter: is asked whether to stop.

    Raises:
        OdfError: a block or a slice is missing or damaged.
        Cancelled: in the middle.
    """
    known = _Sources(dataset)
    made: list[Made] = []
    sources: list[Source] = []
    keys: dict[tuple[str, ...], None] = {}
    for row, part in by_slice(dataset, runs):
        reporter.check()
        stored = dataset.block(row.sequence_number)
        candidates = known.then(row.sequence_number)
        sources.append(_source(stored, candidates, part))
        made.append(Made(str(stored.hash), row.sequence_number, str(row.system_time), part))
        keys.setdefault(_key(candidates))
    changes = Changes(dataset, runs, reporter)
    earlier = changes.earlier(next(iter(keys)) if len(keys) == 1 else ())
    return Origin(made, sources, words.operations(changes.counts), earlier)


def by_slice(dataset: Dataset, runs: Sequence[Run]) -> Iterator[tuple[SliceRow, list[Run]]]:
    """Each slice that holds some of the rows, oldest first, and which of them."""
    if not runs:
        return
    at = 0
    for row in dataset.slices(runs[0][0], runs[-1][1]):
        part: list[Run] = []
        while at < len(runs) and runs[at][0] <= row.end:
            first, last = runs[at]
            part += [(max(first, row.start), min(last, row.end))] if last >= row.start else []
            if last > row.end:
                break
            at += 1
        if part:
            yield row, part


class _Sources:
    """The sources that a root dataset has had."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._settings: list[tuple[int, Any]] = []  # newest first
        before: int | None = None
        while rows := dataset.page(_PAGE, before=before, kinds=_SETTINGS):
            self._settings += [(row.sequence_number, dataset.block(row.hash).block.event) for row in rows]
            before = rows[-1].sequence_number

    def then(self, number: int) -> list[words.Source]:
        """Those that were active at a block."""
        polling: model.SetPollingSource | None = None
        polled = False
        pushed: dict[str, model.AddPushSource | None] = {}
        for at, event in self._settings:
            if at >= number:
                continue
            match event:
                case model.SetPollingSource() | model.DisablePollingSource():
                    if not polled and isinstance(event, model.SetPollingSource):
                        polling = event
                    polled = True
                case model.AddPushSource():
                    pushed.setdefault(event.source_name, event)
                case _:
                    pushed.setdefault(event.source_name, None)
        if polling is not None:
            return [polling]
        return [each for each in reversed(pushed.values()) if each is not None]


def _source(stored: StoredBlock, candidates: Sequence[words.Source], runs: list[Run]) -> Source:
    event: Any = stored.block.event
    found = candidates[0] if len(candidates) == 1 else None
    polling = found if isinstance(found, model.SetPollingSource) else None
    state = event.new_source_state if polling is not None else None
    kind = "polling" if polling is not None else "push" if candidates else "unknown"
    steps = [_either(candidates)] if found is None else words.steps_of(found)
    return Source(
        block=str(stored.hash),
        kind=kind,
        name=found.source_name if isinstance(found, model.AddPushSource) else "",
        place="" if polling is None else words.place_of(polling.fetch, state),
        ingested=str(stored.block.system_time),
        state="" if polling is None else words.state_of(polling.fetch, state),
        steps=steps,
        runs=runs,
    )


def _either(candidates: Sequence[words.Source]) -> str:
    """It is not known which source it was."""
    if not candidates:
        return "the chain names no source: whoever made these rows added them to it"
    return f"{' or '.join(words.steps_of(each)[0] for each in candidates)}: the chain does not say which"


def _key(sources: Sequence[words.Source]) -> tuple[str, ...]:
    """The primary key by which sources merge, where it is the same."""
    found = {tuple(getattr(each.merge, "primary_key", ())) for each in sources}
    return found.pop() if len(found) == 1 else ()
