"""Where rows of a root dataset came from: which source, when, in which version of it, and how.

The chain says it all: an AddData block names the slice, the time, and the state of the source; what the
source was is said by the newest settings before the block. Where a dataset is both polled and pushed to,
a block whose state of the source is another one than before was polled.
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
        found, candidates = known.of(stored)
        sources.append(_source(stored, found, candidates, part))
        made.append(Made(str(stored.hash), row.sequence_number, str(row.system_time), part))
        keys.setdefault(_key(candidates if found is None else [found]))
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

    def of(self, stored: StoredBlock) -> tuple[words.Source | None, list[words.Source]]:
        """The source by which a block's rows came, where the chain tells; and all that there were then."""
        event: Any = stored.block.event
        polling, pushed = self._then(stored.block.sequence_number)
        every: list[words.Source] = [*([] if polling is None else [polling]), *pushed]
        if len(every) <= 1:
            return (every[0] if every else None), every
        if polling is None:
            return None, every
        state = event.new_source_state
        if state is not None and state != self._state_before(stored.block.sequence_number):
            return polling, every
        # Every file of a pattern leaves another state, so none of them brought these rows.
        if isinstance(polling.fetch, model.FilesGlob):
            return (pushed[0] if len(pushed) == 1 else None), [*pushed]
        return None, every

    def _then(self, number: int) -> tuple[model.SetPollingSource | None, list[model.AddPushSource]]:
        """The sources that were active at a block."""
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
        return polling, [each for each in reversed(pushed.values()) if each is not None]

    def _state_before(self, number: int) -> model.SourceState | None:
        rows = self._dataset.page(1, before=number, kinds=("AddData",))
        event = self._dataset.block(rows[0].hash).block.event if rows else None
        return event.new_source_state if isinstance(event, model.AddData) else None


def _source(
    stored: StoredBlock, found: words.Source | None, candidates: Sequence[words.Source], runs: list[Run]
) -> Source:
    event: Any = stored.block.event
    polling = found if isinstance(found, model.SetPollingSource) else None
    state = event.new_source_state if polling is not None else None
    if found is None:
        kinds = {type(each) for each in candidates}
        kind = "push" if kinds == {model.AddPushSource} else "unknown"
        steps = [_either(candidates)]
    else:
        kind = "push" if polling is None else "polling"
        steps = words.steps_of(found)
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
    """Of some sources it is not known which one it was."""
    if not candidates:
        return "the chain names no source: whoever made these rows added them to it"
    ways = [words.steps_of(each)[0] for each in candidates]
    return f"{' or '.join(ways)}: the chain does not say which"


def _key(sources: Sequence[words.Source]) -> tuple[str, ...]:
    """The primary key by which sources merge, where it is the same."""
    found = {tuple(getattr(each.merge, "primary_key", ())) for each in sources}
    return found.pop() if len(found) == 1 else ()
