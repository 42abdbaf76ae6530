"""Finds retractions of rows that a dataset does not have.

A -R or -C repeats the data fields of the row that it retracts: all columns except offset, operation and
system time (specification: Representation of Retractions and Corrections).
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from odf_engine.base.arrow import pa, pc, types
from odf_engine.data.arrow_compute import decode_array, hash_values, python_values
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.slices import read_batches
from odf_engine.metadata.model import DatasetVocabulary

_ADDING: Final = (int(Op.APPEND), int(Op.CORRECT_TO))
_RETRACTING: Final = (int(Op.RETRACT), int(Op.CORRECT_FROM))
# Hashes are compared within a process only. The salt keeps authors from constructing equal hashes.
_SALT: Final = secrets.token_bytes(16)
_MASK: Final = (1 << 64) - 1


class _Change(NamedTuple):
    """A row: its number in the slice, whether it adds or retracts, and the hash of its data fields."""

    row: int
    adds: bool
    fields: int


def find_unmatched(
    slices: Sequence[Path],
    vocabulary: DatasetVocabulary,
    retracting: Sequence[int],
    check: Callable[[], None],
) -> Iterator[tuple[int, int]]:
    """Find retractions without a row to retract, in one pass over a dataset.

    Memory grows with the number of retractions.

    Args:
        slices: all slices of the dataset, oldest first.
        vocabulary: names of the system columns.
        retracting: indexes of the slices to check, ascending.
        check: called for each batch; may raise to cancel.

    Yields:
        Index of a slice, and number of its first such row.

    Raises:
        NotFound, BadData, InvalidSchema: a slice is missing, damaged, or lacks a system column.
    """
    wanted: set[int] = set()
    for at in retracting:
        wanted.update(_retracted_fields(slices[at], vocabulary, check))
    if not wanted:
        return
    live: Counter[int] = Counter()
    for at, path in enumerate(slices[: retracting[-1] + 1]):
        fault: int | None = None
        for change in _matching(path, vocabulary, wanted, check):
            if change.adds:
                live[change.fields] += 1
            elif live[change.fields]:
                live[change.fields] -= 1
            elif fault is None:
                fault = change.row
        if fault is not None and at in retracting:
            yield at, fault


def find_unmatched_row(
    new: Path, history: Sequence[Path], vocabulary: DatasetVocabulary, check: Callable[[], None]
) -> int | None:
    """Find the first retraction in a new slice without a row to retract.

    Reads the newest slices first, and only until all retracted rows are found.

    Args:
        new: the slice; it has retractions.
        history: all slices of the dataset before it, oldest first.
        vocabulary, check: as for :func:`find_unmatched`.

    Returns:
        The number of the row, or None if absent.

    Raises:
        NotFound, BadData, InvalidSchema: as for :func:`find_unmatched`.
    """
    live: Counter[int] = Counter()
    rows: dict[int, list[int]] = {}  # retractions of rows that are not in the new slice
    for change in _matching(new, vocabulary, _retracted_fields(new, vocabulary, check), check):
        if change.adds:
            live[change.fields] += 1
        elif live[change.fields]:
            live[change.fields] -= 1
        else:
            rows.setdefault(change.fields, []).append(change.row)
    missing = {fields: len(unmatched) for fields, unmatched in rows.items()}
    times = _event_times(new, vocabulary, check)
    for path in reversed(history):
        if not missing:
            return None
        if not _has_event_time(path, vocabulary, times, check):
            continue
        for change in reversed(list(_matching(path, vocabulary, missing.keys(), check))):
            if change.fields in missing:
                missing[change.fields] += -1 if change.adds else 1
                if not missing[change.fields]:
                    del missing[change.fields]
    return min(
        (rows[fields][max(-count, -len(rows[fields]))] for fields, count in missing.items()), default=None
    )


def has_retractions(path: Path, vocabulary: DatasetVocabulary, check: Callable[[], None]) -> bool:
    """Return whether a slice has retractions or corrections.

    Raises:
        NotFound, BadData, InvalidSchema: as for :func:`find_unmatched`.
    """
    for batch in read_batches(path, [vocabulary.operation_type_column]):
        check()
        if pc.any(_is_one_of(batch.column(0), _RETRACTING)).as_py():
            return True
    return False


def hash_data_fields(batch: pa.RecordBatch, vocabulary: DatasetVocabulary) -> pa.Array:
    """Return a hash of the data fields of each row. A missing column equals one with nulls."""
    system = (vocabulary.offset_column, vocabulary.operation_type_column, vocabulary.system_time_column)
    total = pa.repeat(pa.scalar(0, pa.uint64()), batch.num_rows)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in system:
            continue
        salt = pa.scalar(hash((_SALT, name)) & _MASK, pa.uint64())
        hashes = hash_values(pc.bit_wise_xor(_value_hashes(column), salt))
        if column.null_count:
            hashes = pc.if_else(column.is_valid(), hashes, pa.scalar(0, pa.uint64()))
        total = pc.add(total, hashes)
    return total


def _value_hashes(column: pa.Array) -> pa.Array:
    """Return a hash of each value; equal values have equal hashes."""
    column = decode_array(column)
    if types.is_primitive(column.type):
        return hash_values(column)
    if types.is_nested(column.type):
        return _hashes_of([repr(value) for value in python_values(column)])
    known = column.dictionary_encode(null_encoding="encode")  # texts often repeat
    return _hashes_of(known.dictionary.to_pylist()).take(known.indices)


def _hashes_of(values: Sequence[object]) -> pa.Array:
    return pa.array([hash((_SALT, value)) & _MASK for value in values], pa.uint64())


def _is_one_of(operations: pa.Array, codes: Sequence[int]) -> pa.Array:
    return pc.is_in(operations, pa.array(codes, operations.type))


def _retracted_fields(path: Path, vocabulary: DatasetVocabulary, check: Callable[[], None]) -> set[int]:
    """Return the hashes of the rows that a slice retracts."""
    hashes: set[int] = set()
    for batch in read_batches(path):
        check()
        rows = batch.filter(_is_one_of(batch.column(vocabulary.operation_type_column), _RETRACTING))
        if rows.num_rows:
            hashes.update(hash_data_fields(rows, vocabulary).to_pylist())
    return hashes


def _matching(
    path: Path, vocabulary: DatasetVocabulary, wanted: Collection[int], check: Callable[[], None]
) -> Iterator[_Change]:
    """Yield the changes of a slice whose data fields have one of these hashes."""
    is_wanted = wanted.__contains__
    start = 0
    for batch in read_batches(path):
        check()
        fields = hash_data_fields(batch, vocabulary)
        operations = batch.column(vocabulary.operation_type_column)
        adds = _is_one_of(operations, _ADDING)
        known = pc.or_(adds, _is_one_of(operations, _RETRACTING))
        if batch.num_rows < len(wanted):  # is_in builds a table of all values for each call
            matches = pa.array(map(is_wanted, fields.to_pylist()), pa.bool_())
        else:
            matches = pc.is_in(fields, pa.array(list(wanted), pa.uint64()))
        at = pc.indices_nonzero(pc.and_(known, matches))
        for row, add, value in zip(
            at.to_pylist(), adds.take(at).to_pylist(), fields.take(at).to_pylist(), strict=True
        ):
            yield _Change(start + row, add, value)
        start += batch.num_rows


def _event_times(path: Path, vocabulary: DatasetVocabulary, check: Callable[[], None]) -> pa.Array:
    """Return the event times of the rows that a slice retracts."""
    times: list[pa.Array] = []
    for batch in read_batches(path, [vocabulary.operation_type_column, vocabulary.event_time_column]):
        check()
        times.append(pc.unique(batch.column(1).filter(_is_one_of(batch.column(0), _RETRACTING))))
    return pc.unique(pa.concat_arrays(times))


def _has_event_time(
    path: Path, vocabulary: DatasetVocabulary, times: pa.Array, check: Callable[[], None]
) -> bool:
    """Return whether a row of a slice has one of these event times."""
    for batch in read_batches(path, [vocabulary.event_time_column]):
        check()
        if pc.any(pc.is_in(batch.column(0), times.cast(batch.column(0).type))).as_py():
            return True
    return False
