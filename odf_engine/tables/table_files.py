"""Data files of tables: the slices of a dataset, with statistics of columns from the Parquet footers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from odf_engine.base.arrow import pa, pq, types
from odf_engine.base.progress import Reporter
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.schema_evolution import read_declaration
from odf_engine.data.parquet.parquet_reader import RangedFile
from odf_engine.data.parquet.slice_file import FileLabel, SliceFile
from odf_engine.errors import NotFound, Unsupported
from odf_engine.metadata.model import SetDataSchema
from odf_engine.mirror.ranged_object import MIN_RANGED_BYTES

OnProgress = Callable[[int, int], None]
"""Receives the number of versions that are complete, and the number of all."""
MAX_TEXT: Final = 32
"""Longer texts are truncated in statistics."""
_LAST_CHARACTER: Final = "\U0010ffff"
_MAX_INT64: Final = 2**63 - 1
_FETCHED: Final = 100
"""Number of items whose slices are fetched together: the progress is shown after each batch."""
_Item = TypeVar("_Item")


class ColumnBounds(NamedTuple):
    """Statistics of a column in a file.

    Attributes:
        min, max: the smallest and the largest value, or None if the footer does not declare both.
        nulls: the number of nulls, or None if the footer does not declare it.
    """

    min: Any
    max: Any
    nulls: int | None


class TableFile(NamedTuple):
    """A slice as a data file of a table.

    Attributes:
        path: the path relative to the folder of the dataset.
        size: the size in bytes.
        rows: the number of rows.
        bounds: statistics of the columns that are not nested, by name.
    """

    path: str
    size: int
    rows: int
    bounds: Mapping[str, ColumnBounds]


def describe_slice_file(dataset: Dataset, row: SliceSummary) -> TableFile:
    """Return a slice as a data file. Only its footer is read.

    Raises:
        NotFound: the slice is missing.
        BadData: the slice is damaged.
        Unsupported: a value of an unsigned column is larger than a signed number can be.
    """
    return describe_file(dataset.slice_parts(row), slice_name(dataset, row), _label(row), row.size)


def with_fetched_slices(
    dataset: Dataset, items: Sequence[_Item], slice_of: Callable[[_Item], SliceSummary | None]
) -> Iterator[_Item]:
    """Yield items, such as blocks. Their missing slices are fetched in parallel, a batch before its items.

    Slices that are large enough to be read in parts are not fetched.

    Raises:
        BadData: a slice in the store is damaged.
        SourceUnavailable: the store cannot be read.
    """
    for start in range(0, len(items), _FETCHED):
        batch = items[start : start + _FETCHED]
        if dataset.origin is not None:
            rows = filter(None, map(slice_of, batch))
            sizes = {str(row.physical_hash): row.size for row in rows if row.size < MIN_RANGED_BYTES}
            dataset.origin.fetch_all("data", sizes, Reporter())
        yield from batch


def slice_name(dataset: Dataset, row: SliceSummary) -> str:
    """Return the path of a slice relative to the folder of the dataset."""
    if dataset.origin is not None:  # slice_path() would fetch the slice
        return f"data/{row.physical_hash}"
    return dataset.slice_path(row).relative_to(dataset.folder).as_posix()


def describe_file(path: Path | RangedFile, name: str, label: FileLabel, size: int = 0) -> TableFile:
    """Return a Parquet file as a data file. Only its footer is read.

    Args:
        path: the file.
        name: its path relative to the folder of the table.
        label: how errors refer to it.
        size: its size in bytes, if it is read in parts.

    Raises:
        OdfError: as in :func:`describe_slice_file`.
    """
    with SliceFile(path, label) as file:
        bounds = dict(_column_bounds(file.metadata, file.schema))
        rows = file.rows
    for column, limits in bounds.items():
        if isinstance(limits.max, int) and limits.max > _MAX_INT64:
            raise Unsupported(
                f"column '{column}' has the value {limits.max}, but tables have only signed 64-bit numbers",
                where=label.where,
                hint="cast it to DECIMAL(20, 0) in a derivative dataset",
            )
    size = path.stat().st_size if isinstance(path, Path) else size
    return TableFile(name, size, rows, bounds)


def truncate_upper(text: str) -> str | None:
    """Return a text of limited length that is not less than ``text``, or None if there is no simple one."""
    if len(text) <= MAX_TEXT:
        return text
    return None if text[MAX_TEXT] == _LAST_CHARACTER else text[:MAX_TEXT] + _LAST_CHARACTER


def first_schema(dataset: Dataset) -> pa.Schema:
    """Return the first declared columns of a dataset, or its first slice's.

    Raises:
        NotFound: it has no columns yet.
        BadData: a slice is damaged.
    """
    declared = dataset.list_blocks(dataset.state().blocks, kinds=("SetDataSchema",))
    for row in reversed(declared):
        event = dataset.block(row.hash).block.event
        if isinstance(event, SetDataSchema) and (schema := read_declaration(event)) is not None:
            return schema
    for row in dataset.slices():
        with SliceFile(dataset.slice_parts(row), _label(row)) as file:
            return file.schema
    raise NotFound("the dataset has no columns yet", hint="pull it, or ingest rows into it, first")


def _label(row: SliceSummary) -> FileLabel:
    hint = "restore it from a copy of the dataset, or run odf fsck to find all errors"
    return FileLabel(f"block {row.sequence_number}, slice {row.physical_hash}", hint)


def _column_bounds(metadata: pq.FileMetaData, schema: pa.Schema) -> Iterator[tuple[str, ColumnBounds]]:
    """Yield the statistics of the columns that are not nested."""
    leaf = 0
    for field in schema:
        leaves = _count_leaves(field.type)
        if leaves == 1 and not types.is_nested(field.type):
            yield field.name, _bounds_of(metadata, leaf)
        leaf += leaves


def _count_leaves(data_type: pa.DataType) -> int:
    """Return the number of columns that Parquet has for a type."""
    if not types.is_nested(data_type):
        return 1
    return sum(_count_leaves(data_type.field(index).type) for index in range(data_type.num_fields))


def _bounds_of(metadata: pq.FileMetaData, leaf: int) -> ColumnBounds:
    minima: list[Any] = []
    maxima: list[Any] = []
    nulls: int | None = 0
    is_complete = True
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(leaf)
        statistics = column.statistics
        if statistics is None:
            return ColumnBounds(None, None, None)
        nulls = nulls + statistics.null_count if nulls is not None and statistics.has_null_count else None
        if statistics.has_null_count and statistics.null_count == column.num_values:
            continue  # no value
        if not statistics.has_min_max:
            is_complete = False
            continue
        try:
            minima.append(statistics.min)
            maxima.append(statistics.max)
        except (ValueError, OverflowError, pa.ArrowException):  # not representable in Python
            is_complete = False
    if not is_complete or not minima:
        return ColumnBounds(None, None, nulls)
    return ColumnBounds(min(minima), max(maxima), nulls)
