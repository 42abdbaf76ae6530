"""What pane 3 reads: rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from odf_engine.metadata import model
from odf_tui.engine.base import Entries
from odf_tui.source import RowWindow
from odf_tui.windows import Gap, SliceMark

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.views.row_window import RowWindowReader


class RowReads(Entries):
    """Reads rows."""

    def rows(self, dataset: str) -> RowWindow | None:
        """The rows of a dataset; None when there are none, and then Arrow is not loaded."""
        chain = self.entry(dataset).dataset
        state = chain.state()
        if not state.records:
            return None
        import pyarrow as pa

        from odf_engine.views.row_window import RowWindowReader

        # Arrow's own allocators keep several times of what is in use.
        pa.set_memory_pool(pa.system_memory_pool())
        return _Rows(RowWindowReader(chain), state.vocabulary)


class _Rows:
    """A preview, and which of its columns are the system's."""

    def __init__(self, preview: RowWindowReader, vocabulary: model.DatasetVocabulary) -> None:
        self._preview = preview
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )
        starts = chain([0], preview.ends)
        self.slices = [
            SliceMark(start, row.sequence_number, row.physical_hash.abbreviated)
            for start, row in zip(starts, preview.slices, strict=False)
        ]

    @property
    def columns(self) -> pa.Schema:
        return self._preview.columns

    @property
    def row_count(self) -> int:
        return self._preview.row_count

    def window(self, start: int, count: int) -> pa.Table:
        return self._preview.window(start, count)

    def part(self, start: int, count: int, columns: Sequence[int]) -> tuple[pa.Table, Sequence[Gap]]:
        names = self._preview.columns.names
        return self._preview.window_with_gaps(start, count, [names[column] for column in columns])

    def row_of_offset(self, offset: int) -> int | None:
        from odf_engine.views.row_window import row_of_offset

        return row_of_offset(self._preview, offset, self.system_columns[0])

    def row_at_time(self, moment: datetime, stop: Callable[[], bool]) -> int | None:
        from odf_engine.views.row_window import row_at_time

        return row_at_time(self._preview, moment, self.system_columns[3], stop)
