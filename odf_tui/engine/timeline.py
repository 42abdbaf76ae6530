"""What the slider of pane 3 reads: which blocks brought rows, and what their files say of themselves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import NotFound, OdfError
from odf_engine.metadata.model import DatasetVocabulary
from odf_tui.engine.base import Entries
from odf_tui.timeline import Probe, Timeline

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.data.slice_file import SliceFile

_MOST_SCHEMAS: Final = 2000
_LOOKED_ROWS: Final = 20_000
_MOST_LOOKED: Final = 500_000
_MOMENTS: Final = 64
_DAY: Final = 86_400_000
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class TimelineReads(Entries):
    """Reads histories."""

    def timeline(self, dataset: str) -> Timeline:
        """The blocks of a dataset that brought rows.

        Raises:
            NotFound: there are none.
        """
        return _Timeline(self.entry(dataset).dataset)


class _Timeline:
    """See :class:`odf_tui.timeline.Timeline`."""

    def __init__(self, dataset: Dataset) -> None:
        state = dataset.state()
        self._dataset, self._vocabulary = dataset, state.vocabulary
        self._slices = dataset.slices()
        self._looked = 0
        if not self._slices:
            raise NotFound("there are no rows yet", hint="p brings some in")
        self.blocks: Sequence[int] = [row.sequence_number for row in self._slices]
        self.rows: Sequence[int] = list(accumulate(row.end - row.start + 1 for row in self._slices))
        self.times: Sequence[int] = [row.system_time.ms for row in self._slices]
        self.head = state.sequence_number
        changed = dataset.list_blocks(_MOST_SCHEMAS, kinds=("SetDataSchema",))
        stops = {bisect_right(self.blocks, row.sequence_number) for row in changed}
        self.schemas: Sequence[int] = sorted(stop for stop in stops if 0 < stop < len(self.blocks))
        self.timed = _has_column(state.schema, state.vocabulary.event_time_column)

    def probe(self, stops: Sequence[int]) -> list[Probe]:
        """Reads what the files of some stops say of themselves."""
        found: list[Probe] = []
        for stop in stops:
            try:
                found.append(self._probe(stop, self._slices[stop]))
            except OdfError:  # the rows say why, where they are shown
                continue
        return found

    def _probe(self, stop: int, row: SliceSummary) -> Probe:
        from odf_engine.views.scan import open_slice

        file = open_slice(self._dataset, row)
        try:
            changes = _changes(file, self._vocabulary)
            moments = self._moments(file) if changes else ()
            return Probe(stop, changes, tuple(_groups(file, self._vocabulary)), moments)
        finally:
            file.close()

    def _moments(self, file: SliceFile) -> tuple[int, ...]:
        """Event times of retractions and corrections, while few rows have to be looked at for them."""
        from odf_engine.data.arrow_compute import pc

        names = self._vocabulary
        self._looked += file.rows
        if file.rows > _LOOKED_ROWS or self._looked > _MOST_LOOKED:
            return ()
        wanted = [names.operation_type_column, names.event_time_column]
        if not set(wanted) <= set(file.schema.names):
            return ()
        found: set[int] = set()
        scale = _scale(file.schema.field(names.event_time_column).type)
        for group in range(len(file.group_ends)):
            table = file.read(group, wanted, range(file.group_rows(group)))
            rows = table.filter(pc.greater(table.column(wanted[0]), 0)).column(wanted[1])
            values = pc.unique(rows).drop_null()
            whole = values.cast("int32" if values.type.bit_width == 32 else "int64").to_pylist()
            found.update(value * scale[0] // scale[1] for value in whole)
        every = max(len(found) // _MOMENTS, 1)
        return tuple(sorted(found)[::every])


def _has_column(schema: bytes | None, name: str) -> bool:
    from odf_engine.data.arrow_schema import decode_schema

    return schema is None or name in decode_schema(schema).names


def _changes(file: SliceFile, names: DatasetVocabulary) -> bool:
    """Whether there are other operations than appending, which is 0."""
    column = names.operation_type_column
    if column not in file.schema.names:
        return False
    field = file.schema.field(column)
    return any((file.bounds(group, field).greatest or 0) > 0 for group in range(len(file.group_ends)))


def _groups(file: SliceFile, names: DatasetVocabulary) -> Iterator[tuple[int, int, int]]:
    column = names.event_time_column
    if column not in file.schema.names:
        return
    field = file.schema.field(column)
    scale = _scale(field.type)
    for group in range(len(file.group_ends)):
        least, greatest = file.bounds(group, field)
        if least is not None and greatest is not None:
            times, by = scale
            yield file.group_rows(group), least * times // by, -(-greatest * times // by)


def _scale(kind: pa.DataType) -> tuple[int, int]:
    """What makes milliseconds of a stored time: times the first, divided by the second."""
    unit: Any = getattr(kind, "unit", None)
    return (_DAY, 1) if unit is None or unit == "day" else (1000, _PER_SECOND[unit])
