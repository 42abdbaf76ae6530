"""What statistics, the current state by key and exports read, and the rows that they hand on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from odf_engine.errors import NotFound
from odf_engine.metadata import model
from odf_tui.engine.base import Entries
from odf_tui.source import RowWindow

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.chain.state import ChainState
    from odf_engine.views.query_results import ResultRows
    from odf_engine.workspace.column_lineage import ColumnGraph
    from odf_tui.looks import Known
    from odf_tui.windows import Gap

_SPOOL_ROWS: Final = 1 << 14
_SPOOLS: Final = 8
_SPOOL_BYTES: Final = 500_000_000
_COMMENT: Final = re.compile(
    r"""^\s*(?:`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|(\w+))\s.*\bCOMMENT\s+(?:'((?:[^']|'')*)'|"((?:[^"]|"")*)")""",
    re.IGNORECASE | re.DOTALL,
)


class LookReads(Entries):
    """Reads for looking closer."""

    def described(self, dataset: str, file: str | None) -> Known:
        """What is known of the columns of a dataset, or of a Parquet file, without looking at rows."""
        from odf_engine.views.scan import Scan
        from odf_engine.views.statistics import load_statistics, statistics_from_footers
        from odf_tui.looks import Known
        from odf_tui.widgets.cells import type_name

        state = self.entry(dataset).dataset.state() if dataset else None
        if file is None:
            rows = Scan.of_dataset(self.entry(dataset).dataset)
        else:
            rows = Scan.of_file(Path(file), state.vocabulary if state else model.DEFAULT_VOCABULARY)
        types = {field.name: type_name(field.type) for field in rows.schema}
        found = load_statistics(self.workspace.odf, rows.fingerprint)
        whole = found is not None
        required = _required(state) if state is not None and file is None else ()
        told = comments(state) if state is not None else {}
        return Known(found or statistics_from_footers(rows), whole, types, required, told)

    def primary_key(self, dataset: str) -> list[str]:
        """The columns that tell rows apart; empty when nothing says so."""
        from odf_engine.views.projection import dataset_key

        return dataset_key(self.entry(dataset).dataset)

    def file_rows(self, dataset: str, file: str) -> RowWindow:
        """The rows of a Parquet file that was made of a dataset's.

        Raises:
            NotFound: it is not kept any more.
        """
        from odf_engine.views.query_results import ResultRows

        try:
            rows = ResultRows(Path(file))
        except NotFound:
            raise NotFound("these rows are not kept any more", hint="K makes them again") from None
        return _FileRows(rows, file, self.entry(dataset).dataset.state().vocabulary)

    def spool(self, window: RowWindow) -> str:
        """Writes the rows of a window to a file in the cache, from where the worker can take them."""
        import pyarrow.parquet as pq

        from odf_engine.storage.atomic_files import atomic_file, evict_oldest

        folder = self.workspace.odf / "cache" / "exports"
        path = folder / f"{uuid4().hex}.parquet"
        with (
            atomic_file(path) as temporary,
            pq.ParquetWriter(temporary, window.columns) as writer,
        ):
            for start in range(0, window.row_count, _SPOOL_ROWS):
                writer.write_table(window.window(start, _SPOOL_ROWS))
        evict_oldest(folder, _SPOOLS, _SPOOL_BYTES)
        return str(path)

    def unspool(self, file: str) -> None:
        """Removes what :meth:`spool` wrote."""
        path = Path(file)
        if path.parent == self.workspace.odf / "cache" / "exports":
            with suppress(OSError):
                path.unlink()

    def column_graph(self, dataset: str) -> ColumnGraph:
        """The columns of a dataset, of all that it is made of, and of all that is made of it."""
        from odf_engine.workspace.column_lineage import build_column_graph

        return build_column_graph(self.workspace, [self.entry(dataset).id])


def _required(state: ChainState) -> tuple[str, ...]:
    from odf_engine.data.arrow_schema import decode_schema

    if state.schema is None:
        return ()
    return tuple(field.name for field in decode_schema(state.schema) if not field.nullable)


def comments(state: ChainState) -> dict[str, str]:
    """What the schema says of its columns: comments of the sources' DDL, descriptions of the newer schema."""
    found: dict[str, str] = {}
    for source in (state.polling_source, *state.push_sources.values()):
        for entry in getattr(getattr(source, "read", None), "schema", None) or ():
            if match := _COMMENT.match(entry):
                quoted, double, bare, single, other = match.groups()
                name = quoted or double or bare
                found[name] = (single or other or "").replace("''", "'").strip()
    for field in state.odf_schema.fields if state.odf_schema is not None else ():
        entries: dict[str, Any] = {} if field.extra is None else field.extra.entries
        described = next((each for key, each in entries.items() if key.endswith("description")), None)
        if isinstance(described, str) and described.strip():
            found[field.name] = described.strip()
    return {name: text for name, text in found.items() if text}


class _FileRows:
    """The rows of a file, and which of their columns are the system's.

    Attributes:
        file: the absolute path.
    """

    def __init__(self, rows: ResultRows, file: str, vocabulary: model.DatasetVocabulary) -> None:
        self.file = file
        self._rows = rows
        self.columns: pa.Schema = rows.columns
        self.row_count = rows.row_count
        self.window = rows.window
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )

    def part(self, start: int, count: int, columns: Sequence[int]) -> tuple[pa.Table, Sequence[Gap]]:
        """Some columns of some rows."""
        return self._rows.window(start, count, [self.columns.names[column] for column in columns]), ()
