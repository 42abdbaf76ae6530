"""Reads rows, column statistics, query results and the timeline of a dataset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from odf_engine.api.model import FileTimeRange
from odf_engine.api.readers import query_history
from odf_engine.api.readers.dataset_reader import WorkspaceEntries
from odf_engine.api.readers.row_window import RowWindow, SliceMark, UnreadableRange
from odf_engine.api.text import type_name
from odf_engine.base.atomic_files import atomic_file, evict_oldest
from odf_engine.base.progress import Reporter
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.linked_objects import export_object
from odf_engine.chain.schema_evolution import column_descriptions, read_declaration
from odf_engine.chain.state import parse_column_names
from odf_engine.checks.reports import read_summaries
from odf_engine.data.arrow_compute import pc
from odf_engine.data.ddl import type_ddl
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.jobs.query import Query
from odf_engine.metadata import model
from odf_engine.metadata.model import DEFAULT_VOCABULARY, DatasetVocabulary
from odf_engine.metadata.object_links import find_link_columns
from odf_engine.on_demand import column_lineage, projection, row_scan, row_window
from odf_engine.rows.query_results import ResultRows
from odf_engine.rows.statistics import Statistics, load_statistics, statistics_from_footers
from odf_engine.worker.job_log import read_journal
from odf_engine.worker.protocol import Job

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.chain.state import ChainState
    from odf_engine.data.parquet.slice_file import SliceFile
    from odf_engine.rows.row_window import RowWindowReader
    from odf_engine.workspace.definitions.column_lineage import ColumnGraph


_SPOOL_ROWS: Final = 1 << 14
_SPOOLS: Final = 8
_SPOOL_BYTES: Final = 500_000_000


class TableDescription(msgspec.Struct, frozen=True):
    """Statistics and types of the columns of a table.

    Attributes:
        statistics: the statistics of all columns.
        whole: whether they were computed from all rows. Otherwise they are from file footers.
        types: short names of the types, by column.
        required: columns that the schema declares as NOT NULL.
        comments: comments of the schema, by column.
    """

    statistics: Statistics
    whole: bool
    types: Mapping[str, str] = {}
    required: Sequence[str] = ()
    comments: Mapping[str, str] = {}


class StatisticsReader(WorkspaceEntries):
    """Reads statistics, keys, and files of derived rows; writes temporary files."""

    def column_statistics(self, dataset: str, file: str | None) -> TableDescription:
        """Return the stored statistics of a dataset or a file; else the file footers'."""
        state = self.entry(dataset).dataset.state() if dataset else None
        if file is None:
            rows = row_scan.Scan.of_dataset(self.entry(dataset).dataset)
        else:
            rows = row_scan.Scan.of_file(Path(file), state.vocabulary if state else model.DEFAULT_VOCABULARY)
        types = {field.name: type_name(field.type) for field in rows.schema}
        statistics = load_statistics(self._workspace.odf, rows.fingerprint)
        whole = statistics is not None
        required = _required(state) if state is not None and file is None else ()
        comments = column_descriptions(state) if state is not None else {}
        return TableDescription(statistics or statistics_from_footers(rows), whole, types, required, comments)

    def primary_key(self, dataset: str) -> list[str]:
        """Return the primary key of a dataset, or an empty list if it has none."""
        return projection.dataset_key(self.entry(dataset).dataset)

    def link_columns(self, dataset: str) -> list[str]:
        """Return the columns with links to objects, or an empty list if the chain cannot be read."""
        try:
            return find_link_columns(self.entry(dataset).dataset.state().odf_schema)
        except OdfError:
            return []

    def export_object(self, dataset: str, link: str, target: Path) -> None:
        """Copy a linked object to a file, which is replaced.

        Raises:
            InvalidIdentity: the link is not a hash.
            OdfError: the object is missing or damaged, or the file cannot be written.
        """
        export_object(self.entry(dataset).dataset, Multihash.parse(link), target, Reporter())

    def file_rows(self, dataset: str, file: str) -> RowWindow:
        """Return the rows of a Parquet file that was derived from a dataset.

        Raises:
            NotFound: the file was evicted.
        """
        try:
            rows = ResultRows(Path(file))
        except NotFound:
            raise NotFound(
                "the rows were evicted from the cache", hint="press K to compute them again"
            ) from None
        return ResultWindow(rows, file, self.entry(dataset).dataset.state().vocabulary)

    def write_temporary_rows(self, window: RowWindow) -> str:
        """Write the rows of a window to a file in the cache, for the worker, and return its path."""
        import pyarrow.parquet as pq

        folder = self._workspace.odf / "cache" / "exports"
        path = folder / f"{uuid4().hex}.parquet"
        with (
            atomic_file(path) as temporary,
            pq.ParquetWriter(temporary, window.columns) as writer,
        ):
            for start in range(0, window.row_count, _SPOOL_ROWS):
                writer.write_table(window.window(start, _SPOOL_ROWS))
        evict_oldest(folder, _SPOOLS, _SPOOL_BYTES)
        return str(path)

    def remove_temporary_rows(self, file: str) -> None:
        """Remove a file that :meth:`write_temporary_rows` wrote. Ignores other paths."""
        path = Path(file)
        if path.parent == self._workspace.odf / "cache" / "exports":
            with suppress(OSError):
                path.unlink()

    def column_graph(self, *datasets: str) -> ColumnGraph:
        """Return the graph of the columns of datasets, and of their upstream and downstream datasets.

        Args:
            datasets: their ids; by default all datasets.
        """
        return column_lineage.build_column_graph(
            self._workspace, [self.entry(dataset).id for dataset in datasets] or None
        )


def _required(state: ChainState) -> tuple[str, ...]:
    return tuple(field.name for field in read_declaration(state) or () if not field.nullable)


class ResultWindow:
    """The rows of a file, with the names of the system columns.

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

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Return some columns of rows."""
        return self._rows.window(start, count, [self.columns.names[column] for column in columns]), ()


_CHECKED: Final = 200
"""Number of newest slices whose results of checks are read with the rows."""


class RowReader(WorkspaceEntries):
    """Reads the rows of datasets."""

    def rows(self, dataset: str) -> RowWindow | None:
        """Return the rows of a dataset, or None without loading Arrow if there are none."""
        entry = self.entry(dataset)
        chain = entry.dataset
        state = chain.state()
        if not state.records:
            return None
        import pyarrow as pa

        # Arrow's own allocators retain several times the memory in use.
        pa.set_memory_pool(pa.system_memory_pool())
        reader = row_window.RowWindowReader(chain)
        return _Rows(
            reader, state.vocabulary, read_summaries(chain.folder, entry.id, reader.slices[-_CHECKED:])
        )


class _Rows:
    """The stored rows of a dataset, with the names of their system columns."""

    def __init__(
        self,
        preview: RowWindowReader,
        vocabulary: model.DatasetVocabulary,
        checks: Mapping[int, str],
    ) -> None:
        self._preview = preview
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )
        starts = chain([0], preview.ends)
        self.slices = [
            SliceMark(
                start,
                row.sequence_number,
                row.physical_hash.abbreviated,
                checks.get(row.sequence_number, ""),
            )
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

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        names = self._preview.columns.names
        return self._preview.window_with_gaps(start, count, [names[column] for column in columns])

    def row_of_offset(self, offset: int) -> int | None:
        return row_window.row_of_offset(self._preview, offset, self.system_columns[0])

    def row_at_time(self, moment: datetime, stop: Callable[[], bool]) -> int | None:
        return row_window.row_at_time(self._preview, moment, self.system_columns[3], stop)


class SqlReader(WorkspaceEntries):
    """Reads schemas, query results and the query history."""

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """Return names and DDL types of the columns of a dataset; empty before its first data."""

        schema = read_declaration(self.entry(dataset).dataset.state())
        return [(field.name, type_ddl(field.type)) for field in schema or ()]

    def result(self, path: str) -> RowWindow:
        """Return the rows of a query result, by its path within the workspace."""
        return _Result(ResultRows(self.folder / path), str(self.folder / path))

    def query_of_job(self, job: Job) -> str:
        """Return the query of a job.

        Raises:
            NotFound: the journal no longer contains it.
        """
        request = read_journal(self.folder).request(job.id)
        if not isinstance(request, Query):
            raise NotFound("the request of this job is no longer in the journal")
        return request.sql

    def query_history(self) -> list[str]:
        """Return the queries that were run, the newest last."""
        return query_history.load_history(self._workspace.odf)

    def add_to_query_history(self, sql: str) -> None:
        """Add a query to the history."""
        query_history.add_to_history(self._workspace.odf, sql)


class _Result:
    """The rows of a query result, with the default names of system columns."""

    def __init__(self, rows: ResultRows, file: str) -> None:
        self.file = file  # for exports and statistics
        self.columns = rows.columns
        self.row_count = rows.row_count
        self.window = rows.window
        vocabulary = DEFAULT_VOCABULARY
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )


_MAX_SCHEMAS: Final = 2000
_MAX_FILE_ROWS: Final = 20_000
_MAX_READ_ROWS: Final = 500_000
_MOMENTS: Final = 64
_DAY: Final = 86_400_000
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class TimelineReader(WorkspaceEntries):
    """Reads timelines."""

    def timeline(self, dataset: str) -> RowTimeline:
        """Return the timeline of a dataset.

        Raises:
            NotFound: the dataset has no rows.
        """
        return RowTimeline(self.entry(dataset).dataset)


class RowTimeline:
    """The blocks of a dataset that added rows, oldest first. Each is a stop.

    It does not change when new blocks are committed. The sequences have one value per stop.

    Attributes:
        blocks: numbers of the blocks.
        rows: number of rows of the changelog up to and including each block.
        times: system times of the blocks, in milliseconds since 1970.
        head: number of the newest block of the chain.
        schemas: indexes of the first stop after each change of the schema.
        timed: whether the rows have event times.
    """

    def __init__(self, dataset: Dataset) -> None:
        state = dataset.state()
        self._dataset, self._vocabulary = dataset, state.vocabulary
        self._slices = dataset.slices()
        self._rows_read = 0
        if not self._slices:
            raise NotFound("the dataset has no rows", hint="press p to pull data")
        self.blocks: Sequence[int] = [row.sequence_number for row in self._slices]
        self.rows: Sequence[int] = list(accumulate(row.end - row.start + 1 for row in self._slices))
        self.times: Sequence[int] = [row.system_time.ms for row in self._slices]
        self.head = state.sequence_number
        changed = dataset.list_blocks(_MAX_SCHEMAS, kinds=("SetDataSchema",))
        stops = {bisect_right(self.blocks, row.sequence_number) for row in changed}
        self.schemas: Sequence[int] = sorted(stop for stop in stops if 0 < stop < len(self.blocks))
        names = parse_column_names(state.schema, state.odf_schema)
        self.timed = names is None or state.vocabulary.event_time_column in names

    def probe(self, stops: Sequence[int]) -> list[FileTimeRange]:
        """Read the ranges of event time of the files at some stops. Skips unreadable files."""
        file_time_ranges: list[FileTimeRange] = []
        for stop in stops:
            try:
                file_time_ranges.append(self._probe(stop, self._slices[stop]))
            except OdfError:  # the table of rows shows the error
                continue
        return file_time_ranges

    def _probe(self, stop: int, row: SliceSummary) -> FileTimeRange:
        file = row_scan.open_slice(self._dataset, row)
        try:
            changes = _changes(file, self._vocabulary)
            moments = self._moments(file) if changes else ()
            return FileTimeRange(stop, changes, tuple(_groups(file, self._vocabulary)), moments)
        finally:
            file.close()

    def _moments(self, file: SliceFile) -> tuple[int, ...]:
        """Return the event times of retractions and corrections, or none if too many rows had to be read."""

        names = self._vocabulary
        self._rows_read += file.rows
        if file.rows > _MAX_FILE_ROWS or self._rows_read > _MAX_READ_ROWS:
            return ()
        columns = [names.operation_type_column, names.event_time_column]
        if not set(columns) <= set(file.schema.names):
            return ()
        times: set[int] = set()
        scale = _scale(file.schema.field(names.event_time_column).type)
        for group in range(len(file.group_ends)):
            table = file.read(group, columns, range(file.group_rows(group)))
            rows = table.filter(pc.greater(table.column(columns[0]), 0)).column(columns[1])
            values = pc.unique(rows).drop_null()
            whole = values.cast("int32" if values.type.bit_width == 32 else "int64").to_pylist()
            times.update(value * scale[0] // scale[1] for value in whole)
        every = max(len(times) // _MOMENTS, 1)
        return tuple(sorted(times)[::every])


def _changes(file: SliceFile, names: DatasetVocabulary) -> bool:
    """Return whether a file contains operations other than append, which is 0."""
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
        min_time, max_time = file.bounds(group, field)
        if min_time is not None and max_time is not None:
            times, by = scale
            yield file.group_rows(group), min_time * times // by, -(-max_time * times // by)


def _scale(kind: pa.DataType) -> tuple[int, int]:
    """Return numerator and denominator that convert a stored time to milliseconds."""
    unit: Any = getattr(kind, "unit", None)
    return (_DAY, 1) if unit is None or unit == "day" else (1000, _PER_SECOND[unit])
