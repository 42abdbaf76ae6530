"""Counts the rows of slices by operation."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from odf_engine.base.arrow import pa, pc
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.parquet_reader import max_in_footer, open_parquet, parquet_errors
from odf_engine.data.parquet.slices import read_batches


class OperationCounts(NamedTuple):
    """Numbers of rows by operation.

    Attributes:
        added: number of +A rows.
        retracted: number of -R rows.
        corrected: number of corrections. A correction is a -C row and a +C row.
    """

    added: int = 0
    retracted: int = 0
    corrected: int = 0

    @property
    def net(self) -> int:
        """The change of the number of rows in the latest state."""
        return self.added - self.retracted


def count_batch(operations: pa.Array) -> OperationCounts:
    """Return the counts of a column of operations."""
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(operations).to_pylist()}
    return OperationCounts(counts.get(Op.APPEND, 0), counts.get(Op.RETRACT, 0), counts.get(Op.CORRECT_TO, 0))


def count_operations(paths: Iterable[Path], column: str) -> OperationCounts:
    """Return the counts of slices. Of a slice without retractions and corrections, only the footer is read.

    Args:
        paths: the slices.
        column: name of the column with the operations.

    Raises:
        NotFound: a slice is missing.
        BadData: a slice is damaged.
    """
    total = OperationCounts()
    for path in paths:
        for slice_counts in _counts_of_slice(path, column):
            total = OperationCounts(*map(sum, zip(total, slice_counts, strict=True)))
    return total


def _counts_of_slice(path: Path, column: str) -> Iterable[OperationCounts]:
    # The second read raises an error with the name of the file.
    with suppress(*parquet_errors()), open_parquet(path) as file:
        if max_in_footer(file.metadata, file.schema_arrow, column) == Op.APPEND:
            return [OperationCounts(file.metadata.num_rows)]
    return (count_batch(batch.column(0)) for batch in read_batches(path, [column]))
