"""Selection of the merge strategy, and the append strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import pc, python_values
from odf_engine.data.parquet.parquet_reader import (
    open_parquet,
    parquet_errors,
    read_bounded,
    read_parquet_schema,
)
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.errors import InvalidSchema
from odf_engine.ingest.merge.base import (
    NEW,
    POSITION,
    MergeInputs,
    default_event_time,
    event_time_filler,
    sort_time_sql,
)
from odf_engine.ingest.merge.merge_changelog import merge_changelog
from odf_engine.ingest.merge.merge_ledger import merge_ledger
from odf_engine.ingest.merge.merge_plan import MergePlan, MergeRows, PreparedMerge
from odf_engine.ingest.merge.merge_snapshot import merge_snapshot
from odf_engine.ingest.merge.merge_upsert import merge_upsert
from odf_engine.metadata.model import Append, ChangelogStream, Ledger, MergeStrategy, UpsertStream
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark import sql_types
from odf_engine.spark.row_order import (
    FrameFactory,
    OrderedFrame,
    SortOrder,
    Step,
    sort_by_all_columns,
    sorted_batches,
)

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame


_MAX_COMPARED: Final = 1_000_000
"""Number of rows up to which an append is compared with earlier rows."""


def merge(strategy: MergeStrategy, inputs: MergeInputs) -> PreparedMerge:
    """Prepare the merge: choose by the strategy, and by whether the new rows have operations.

    Nothing runs yet. See :func:`run_merge` for the plans of its attempts.

    Raises:
        InvalidSchema: a key column is missing, or cannot be a key; or a changelog stream has no operations.
        InvalidQuery: the rows have operations, and their order is not deterministic.
    """
    if isinstance(strategy, UpsertStream):
        if inputs.changelog is None:
            inputs = _with_defined_order(inputs)
        return merge_upsert(strategy, inputs)
    if inputs.changelog is not None or isinstance(strategy, ChangelogStream):
        return merge_changelog(strategy, inputs)
    if isinstance(strategy, Append):
        return merge_append(inputs)
    if isinstance(strategy, Ledger):
        return merge_ledger(strategy, [_with_defined_order(inputs)])
    return merge_snapshot(strategy, inputs)


def merge_files(
    strategy: Append | Ledger, files: Sequence[MergeInputs], rows_by_file: list[int]
) -> PreparedMerge:
    """Prepare one merge of several files with equal columns, which have no operations.

    It yields the rows that a merge of each file would yield after the commit of the one before, in this
    order. Where this would not be so, the merge fails: a key occurs in two files, or a ledger has a row with
    other values.

    Args:
        strategy: the merge strategy.
        files: the inputs of the files, oldest first.
        rows_by_file: receives the number of appended rows of each file.
    """
    if isinstance(strategy, Ledger):
        return merge_ledger(strategy, [_with_defined_order(file) for file in files])
    merges = [merge_append(file) for file in files]

    def rows(plan: MergePlan) -> MergeRows:
        rows_by_file.clear()
        for file, merge_of_file in zip(files, merges, strict=True):
            count = 0
            for batch in merge_of_file.rows(plan):
                count += batch.num_rows
                yield _with_event_time(file, batch)
            rows_by_file.append(count)
        return None

    return PreparedMerge(rows)


def _with_event_time(file: MergeInputs, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the event time of their file if they have no such column."""
    name = file.vocab.event_time_column
    if match_columns(batch.schema.names, [name]) != [None]:
        return batch
    time = default_event_time(file)
    return batch.append_column(name, pa.repeat(time, batch.num_rows))


def _with_defined_order(inputs: MergeInputs) -> MergeInputs:
    """Return the inputs with rows in an order that does not depend on how Spark partitions the work."""
    if not inputs.unordered:
        return inputs
    return replace(inputs, new=_in_total_order(inputs, _event_time_in(inputs)))


def merge_append(inputs: MergeInputs) -> PreparedMerge:
    """Prepare the append strategy: all rows, in the order of event time."""
    name = _event_time_in(inputs)
    start, order = (_start_unordered if inputs.unordered else _start_ordered)(inputs, name)

    def rows(plan: MergePlan) -> MergeRows:
        yield from sorted_batches(start, order, inputs.reporter, sort=plan.sort)
        return None

    return PreparedMerge(rows, frame=OrderedFrame(start, order))


def repeats_stored_rows(
    new: Sequence[Path],
    dataset: Dataset,
    system: Collection[str],
    event_time: tuple[str, Timestamp],
    reporter: Reporter,
) -> bool:
    """Return whether the rows of new slices occur in stored ones.

    The first rows of the slices are compared with the newest stored rows. For most slices one column is read,
    because the first row is new.

    Args:
        new: the slices, oldest first; each has rows.
        dataset: the dataset with the stored rows.
        system: names of columns that differ in each slice.
        event_time: name of the event time column, and its value in rows without one, which is not compared.
        reporter: its cancellation ends the comparison.
    """
    try:
        names = [name for name in read_parquet_schema(new[0]).names if name not in system]
        batch = next(read_bounded(new[0], names, stop=1))
        first: dict[str, pa.Scalar] = {name: batch.column(name)[0] for name in names}
        time, default = event_time
        if time in first and _milliseconds(first[time]) == default.ms:
            names.remove(time)
        compared = _newest_slices(dataset, sum(map(_count_rows, new)), names, reporter)
        if not any(_has_row(path, {name: first[name] for name in names}, reporter) for path in compared):
            return False
        missing = {row for path in new for row in _row_hashes(path, names, reporter)}
        for path in compared:
            missing.difference_update(_row_hashes(path, names, reporter))
            if not missing:
                return True
    except (OSError, InvalidSchema, *parquet_errors()):
        pass  # A stored slice is damaged, which is an error of verification, not of this pull.
    return False


def repeats_rows_by_file(
    new: Sequence[Path],
    rows_by_file: Sequence[int],
    dataset: Dataset,
    ignored: Collection[str],
    reporter: Reporter,
) -> bool:
    """Return whether all rows of a file may repeat earlier rows: stored ones, or rows of an earlier file.

    A file whose first row is stored counts.

    Args:
        new: the slices with the rows of the files, oldest first.
        rows_by_file: the number of rows of each file.
        dataset: the dataset with the stored rows.
        ignored: names of columns that are not compared.
        reporter: its cancellation ends the comparison.
    """
    names = [name for name in read_parquet_schema(new[0]).names if name not in ignored]
    stored = _newest_slices(dataset, 0, names, reporter)
    rows = pa.concat_tables(pa.Table.from_batches(read_bounded(path, names)) for path in new)
    hashes = iter([key for path in new for key in _row_hashes(path, names, reporter)])
    earlier: set[int] = set()
    first = 0
    for count in rows_by_file:
        keys = set(islice(hashes, count))
        row = {name: rows.column(name)[first] for name in names if keys}
        if keys and (keys <= earlier or any(_has_row(path, row, reporter) for path in stored)):
            return True
        earlier |= keys
        first += count
    return False


def _newest_slices(dataset: Dataset, rows: int, names: Collection[str], reporter: Reporter) -> list[Path]:
    """Return the newest slices that have some columns, newest first, while all rows are few enough.

    Args:
        dataset: the dataset.
        rows: the number of other rows.
        names: the columns.
        reporter: see :meth:`Dataset.slice_paths`.
    """
    slices: list[SliceSummary] = []
    for row in reversed(dataset.slices()):
        rows += row.end - row.start + 1
        if rows > _MAX_COMPARED:
            break
        slices.append(row)
    paths = dataset.slice_paths(slices, reporter)
    return list(takewhile(lambda path: set(names) <= set(read_parquet_schema(path).names), paths))


def _count_rows(path: Path) -> int:
    with open_parquet(path) as file:
        return file.metadata.num_rows


def _milliseconds(time: pa.Scalar) -> int | None:
    """Return a timestamp in milliseconds, or None for null and for other types."""
    if not pa.types.is_timestamp(time.type):
        return None
    return pc.cast(time, pa.timestamp("ms", "UTC"), safe=False).value


def _has_row(path: Path, row: Mapping[str, pa.Scalar], reporter: Reporter) -> bool:
    """Return whether a slice has a row, without a comparison of nested values."""
    mask: pa.ChunkedArray | None = None
    for name, value in row.items():
        reporter.raise_if_cancelled()
        values = pa.chunked_array([batch.column(0) for batch in read_bounded(path, [name])])
        if pa.types.is_nested(values.type):
            continue
        same = pc.equal(values, value) if value.is_valid else values.is_null()
        mask = same if mask is None else pc.and_(mask, same)
        if not pc.any(mask).as_py():
            return False
    return mask is not None


def _row_hashes(path: Path, names: list[str], reporter: Reporter) -> Iterator[int]:
    for batch in read_bounded(path, names):
        reporter.raise_if_cancelled()
        columns = [
            map(repr, python_values(column)) if pa.types.is_nested(column.type) else python_values(column)
            for column in batch.columns
        ]
        yield from map(hash, zip(*columns, strict=True))


def _start_ordered(inputs: MergeInputs, name: str | None) -> tuple[FrameFactory, SortOrder]:
    """Return rows that keep the order of the source where their event times are equal.

    There is no further query around the rows, which makes a small pull twice as fast.
    """
    fill = event_time_filler(inputs, name)

    def start(sort: bool) -> tuple[DataFrame, Step]:
        if not sort or name is None:
            return inputs.new, fill
        placed = f"SELECT *, monotonically_increasing_id() AS {POSITION} FROM {NEW}"
        columns, order = sql_types.columns(inputs.new.columns), f"{sort_time_sql(inputs, name)}, {POSITION}"
        query = f"SELECT {columns} FROM placed ORDER BY {order}"
        return inputs.select({"placed": placed}, query), fill

    return start, SortOrder(() if name is None else (name,), passes=True)


def _start_unordered(inputs: MergeInputs, name: str | None) -> tuple[FrameFactory, SortOrder]:
    """Return rows that are sorted by event time and then by all other columns.

    Rows that fit in memory are sorted by Arrow, since Spark takes several times as long. Arrow does not
    compare nested values.
    """
    kinds = {field.name: field.dataType.typeName() for field in inputs.new.schema}
    is_flat = not {"array", "struct"} & set(kinds.values())
    keys = [column for column, kind in kinds.items() if kind != "void"] if is_flat else []
    by_spark, fill = _in_total_order(inputs, name), event_time_filler(inputs, name)

    def start(sort: bool) -> tuple[DataFrame, Step]:
        return by_spark if sort or not keys else inputs.new, fill

    return start, SortOrder(tuple(sorted(keys, key=lambda column: column != name)))


def _in_total_order(inputs: MergeInputs, name: str | None) -> DataFrame:
    """Return the new rows sorted by event time and then by all other columns."""
    return sort_by_all_columns(inputs.new, *([] if name is None else [sort_time_sql(inputs, name)]))


def _event_time_in(inputs: MergeInputs) -> str | None:
    """Return the name of the event time column in the new rows, or None if they have none."""
    (place,) = match_columns(inputs.new.columns, [inputs.vocab.event_time_column])
    if place is None or inputs.new.schema[place].dataType.typeName() == "void":
        return None
    return inputs.new.columns[place]
