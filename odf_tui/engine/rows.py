"""What pane 3 reads: rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odf_engine.metadata import model
from odf_tui.engine.base import Entries
from odf_tui.source import RowWindow

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.workspace.preview import Preview


class RowReads(Entries):
    """Reads rows."""

    def rows(self, dataset: str) -> RowWindow:
        """The rows of a dataset."""
        from odf_engine.workspace.preview import Preview

        chain = self.entry(dataset).dataset
        vocabulary = chain.state().vocabulary
        return _Rows(Preview(chain), vocabulary)


class _Rows:
    """A preview, and which of its columns are the system's."""

    def __init__(self, preview: Preview, vocabulary: model.DatasetVocabulary) -> None:
        self._preview = preview
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )

    @property
    def columns(self) -> pa.Schema:
        return self._preview.columns

    @property
    def row_count(self) -> int:
        return self._preview.row_count

    def window(self, start: int, count: int) -> pa.Table:
        return self._preview.window(start, count)
