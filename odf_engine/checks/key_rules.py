"""Evaluation of rules about keys: unique within a dataset, reference to another dataset.

The keys of the new rows are grouped in memory, at most ``_MAX_BYTES`` at a time. More keys are divided into
partitions by a hash, with one pass over the slices for each. Rows of other slices are streamed and joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.acero as acero
from pyarrow import types

from odf_engine.base.progress import Reporter, count_of
from odf_engine.checks.row_rules import MAX_SAMPLE, RuleFinding, sample_rows
from odf_engine.data.arrow_compute import hash_values, pc
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.parquet_reader import max_in_footer, open_parquet
from odf_engine.data.parquet.slices import read_batches
from odf_engine.metadata.model import DatasetVocabulary

_MAX_BYTES: Final = 128 << 20
_COUNT: Final = "odf_count"
_FIRST: Final = "odf_first"
_WEIGHT: Final = "odf_weight"


class KeyedRows(NamedTuple):
    """Slices with columns that are a key.

    Attributes:
        paths: the slices, oldest first.
        columns: the key. A slice that lacks one of them has no keys.
        vocab: names of the system columns.
    """

    paths: Sequence[Path]
    columns: Sequence[str]
    vocab: DatasetVocabulary


def select_examined(batch: pa.RecordBatch, operations: str) -> pa.RecordBatch:
    """Return the rows that are not retractions: neither -R nor -C."""
    column = batch.column(operations)
    extremes = pc.min_max(column)
    if extremes["max"].as_py() in (None, Op.APPEND):
        return batch
    return batch.filter(pc.is_in(column, pa.array([Op.APPEND, Op.CORRECT_TO], column.type)))


def find_repeated_keys(
    new: KeyedRows, history: Sequence[Path], *, within_slice: bool, reporter: Reporter
) -> RuleFinding | None:
    """Find new rows whose key occurs in another row.

    Args:
        new: the new rows.
        history: the other slices of the dataset.
        within_slice: compare the new rows only among themselves.
        reporter: cancels the search.
    """
    if _is_increasing(new, () if within_slice else history, reporter):
        return None
    result = _KeyResult(new, f"with a repeated value of {', '.join(new.columns)}")
    stored = KeyedRows([*history, *new.paths], new.columns, new.vocab)
    simple = within_slice or (not history and not _has_retractions(new))
    for keys in _grouped_keys(new, reporter):
        if simple:
            result.add(keys.filter(pc.greater(keys[_COUNT], 1)))
        else:
            live = _live_counts(keys, stored, new.columns, reporter)
            repeated = live.filter(pc.greater(live[_WEIGHT], 1)).select(list(new.columns))
            result.add(keys.join(repeated, list(new.columns), join_type="left semi"))
    return result.finish()


def _is_increasing(new: KeyedRows, history: Sequence[Path], reporter: Reporter) -> bool:
    """Return whether the key is one number or time that is greater in each row than in all rows before it.

    Such keys are frequent, and this is much faster than grouping. Reads end at the first other row. Of the
    other slices, only the statistics in their footers are read.
    """
    if len(new.columns) != 1:
        return False
    (name,), operations = new.columns, new.vocab.operation_type_column
    last: Any = None
    for path in history:
        with open_parquet(path) as file:
            highest = max_in_footer(file.metadata, file.schema_arrow, name)
        if highest is None:
            return False
        last = highest if last is None else max(last, highest)
    for path in new.paths:
        for batch in read_batches(path, [name, operations]):
            reporter.raise_if_cancelled()
            keys = batch.column(name)
            has_retractions = pc.max(batch.column(operations)).as_py() not in (None, Op.APPEND)
            if has_retractions or not _is_ordered(keys.type):
                return False
            keys = keys.drop_null()
            if not len(keys):
                continue
            # As numbers: Python has no times in nanoseconds.
            keys = keys.view(pa.int64() if keys.type.bit_width == 64 else pa.int32())
            if last is not None and keys[0].as_py() <= last:
                return False
            if len(keys) > 1 and not pc.all(pc.greater(keys.slice(1), keys.slice(0, len(keys) - 1))).as_py():
                return False
            last = keys[-1].as_py()
    return True


def _is_ordered(data_type: pa.DataType) -> bool:
    """Return whether values are stored as signed integers with the same order."""
    is_number = types.is_signed_integer(data_type) and data_type.bit_width >= 32
    return is_number or types.is_timestamp(data_type) or types.is_date(data_type)


def find_missing_keys(new: KeyedRows, other: KeyedRows, name: str, reporter: Reporter) -> RuleFinding | None:
    """Find new rows whose key is not in another dataset.

    Args:
        new: the new rows.
        other: the rows of the other dataset; its columns correspond to the columns of ``new``.
        name: name of the other dataset in messages.
        reporter: cancels the search.
    """
    result = _KeyResult(new, f"with a value of {', '.join(new.columns)} that is not in {name}")
    for keys in _grouped_keys(new, reporter):
        live = _live_counts(keys, other, new.columns, reporter)
        known = live.filter(pc.greater(live[_WEIGHT], 0)).select(list(new.columns))
        result.add(keys.join(known, list(new.columns), join_type="left anti"))
    return result.finish()


class _KeyResult:
    """Collects keys that violate a rule."""

    def __init__(self, new: KeyedRows, problem: str) -> None:
        self._new, self._problem = new, problem
        self._failing = 0
        self._first: pa.Table | None = None

    def add(self, keys: pa.Table) -> None:
        """Add keys with the number of their rows and the offset of the first."""
        if not keys.num_rows:
            return
        self._failing += pc.sum(keys[_COUNT]).as_py()
        first = keys.select([_FIRST, *self._new.columns])
        if self._first is not None:
            first = pa.concat_tables([self._first, first])
        self._first = first.sort_by(_FIRST).slice(0, MAX_SAMPLE).combine_chunks()

    def finish(self) -> RuleFinding | None:
        """Return what was found, or None if nothing was added."""
        if self._first is None:
            return None
        columns = list(self._new.columns)
        (batch,) = self._first.rename_columns(["offset", *columns]).to_batches()
        message = f"{count_of(self._failing, 'row')} {self._problem}"
        return RuleFinding(self._failing, message, sample_rows(batch, "offset", columns))


def _has_retractions(rows: KeyedRows) -> bool:
    operations = rows.vocab.operation_type_column
    return any(
        pc.max(batch.column(0)).as_py() not in (None, Op.APPEND)
        for path in rows.paths
        for batch in read_batches(path, [operations])
    )


def _grouped_keys(rows: KeyedRows, reporter: Reporter) -> Iterator[pa.Table]:
    """Yield the distinct keys without nulls, each with its number of rows and the offset of the first."""
    size = sum(_column_bytes(path, rows.columns) for path in rows.paths)
    partitions = size // _MAX_BYTES + 1
    keys = list(rows.columns)
    offset, operations = rows.vocab.offset_column, rows.vocab.operation_type_column

    def batches(partition: int) -> Iterator[pa.RecordBatch]:
        for path in rows.paths:
            for batch in read_batches(path, [*keys, offset, operations]):
                reporter.raise_if_cancelled()
                batch = select_examined(batch, operations).select([*keys, offset])
                if any(batch.column(name).null_count for name in keys):
                    batch = batch.filter(reduce(pc.and_, (pc.is_valid(batch.column(name)) for name in keys)))
                if partitions > 1:
                    hashed = reduce(pc.bit_wise_xor, (hash_values(batch.column(name)) for name in keys))
                    # Arrow has no remainder for unsigned integers.
                    quotient = pc.divide(hashed, pa.scalar(partitions, pa.uint64()))
                    number = pc.subtract(hashed, pc.multiply(quotient, pa.scalar(partitions, pa.uint64())))
                    batch = batch.filter(pc.equal(number, pa.scalar(partition, pa.uint64())))
                yield batch

    aggregates = [(offset, "hash_count", None, _COUNT), (offset, "hash_min", None, _FIRST)]
    for partition in range(partitions):
        yield _aggregate(batches(partition), keys, aggregates)


def _column_bytes(path: Path, columns: Sequence[str]) -> int:
    """Return the uncompressed size of columns of a file in bytes."""
    with open_parquet(path) as file:
        metadata = file.metadata
        return sum(
            metadata.row_group(group).column(index).total_uncompressed_size
            for group in range(metadata.num_row_groups)
            for index in range(metadata.num_columns)
            if metadata.row_group(group).column(index).path_in_schema.split(".")[0] in columns
        )


def _live_counts(keys: pa.Table, rows: KeyedRows, names: Sequence[str], reporter: Reporter) -> pa.Table:
    """Return the number of rows that are not retracted, for each key that occurs in rows.

    Args:
        keys: the keys, in columns ``names``.
        rows: the rows, with columns that correspond to ``names``.
        names: names of the columns of the result.
        reporter: cancels the search.
    """
    wanted = keys.select(list(names))
    schema = wanted.schema.append(pa.field(_WEIGHT, pa.int64()))
    operations = rows.vocab.operation_type_column

    def batches() -> Iterator[pa.RecordBatch]:
        for path in rows.paths:
            with open_parquet(path) as file:
                known = file.schema_arrow.names
            if not set(rows.columns) <= set(known):
                continue
            for batch in read_batches(path, [*rows.columns, operations]):
                reporter.raise_if_cancelled()
                column = batch.column(operations)
                adds = pc.is_in(column, pa.array([Op.APPEND, Op.CORRECT_TO], column.type))
                weights = pc.if_else(adds, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
                columns = [
                    batch.column(own).cast(wanted.schema.field(name).type)
                    for own, name in zip(rows.columns, names, strict=True)
                ]
                yield pa.RecordBatch.from_arrays([*columns, weights], schema=schema)

    right = acero.Declaration("table_source", acero.TableSourceNodeOptions(wanted))
    join = acero.Declaration(
        "hashjoin",
        acero.HashJoinNodeOptions("left semi", list(names), list(names)),
        inputs=[_source(schema, batches()), right],
    )
    return _to_table(join, list(names), [(_WEIGHT, "hash_sum", None, _WEIGHT)])


def _aggregate(batches: Iterator[pa.RecordBatch], keys: list[str], aggregates: list[Any]) -> pa.Table:
    first = next(batches)
    stream = _chain(first, batches)
    return _to_table(_source(first.schema, stream), keys, aggregates)


def _chain(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _source(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> acero.Declaration:
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    return acero.Declaration("record_batch_reader_source", acero.RecordBatchReaderSourceNodeOptions(reader))


def _to_table(source: acero.Declaration, keys: list[str], aggregates: list[Any]) -> pa.Table:
    options = acero.AggregateNodeOptions(aggregates, keys)
    return acero.Declaration.from_sequence([source, acero.Declaration("aggregate", options)]).to_table()
