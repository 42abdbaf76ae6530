"""Evaluation of the rule about retractions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_engine.base.progress import Reporter, count_of
from odf_engine.checks.definition import Retractions
from odf_engine.checks.row_rules import MAX_SAMPLE, RuleFinding, sample_rows
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.operation_counts import count_batch, count_operations
from odf_engine.data.parquet.parquet_reader import open_parquet
from odf_engine.data.parquet.slices import read_batches
from odf_engine.metadata.model import DatasetVocabulary

_MAX_COLUMNS: Final = 5


def find_retractions(
    rule: Retractions,
    new: Sequence[Path],
    history: Sequence[Path],
    keys: Sequence[str],
    vocab: DatasetVocabulary,
    reporter: Reporter,
) -> RuleFinding | None:
    """Return the retractions (-R) if there are more of them than the rule allows; else None.

    Args:
        rule: the limits.
        new: the slices of the commit.
        history: the slices before it.
        keys: the columns that the sample shows. By default, the first columns of the data.
        vocab: names of the system columns.
        reporter: cancels the search.
    """
    count, sample = 0, list[dict[str, str | None]]()
    for path in new:
        for batch in read_batches(path, [vocab.operation_type_column]):
            reporter.raise_if_cancelled()
            count += count_batch(batch.column(0)).retracted
    if not count:
        return None
    problem = f"more than {rule.max}" if rule.max is not None and count > rule.max else None
    if problem is None and rule.max_ratio is not None:
        before = count_operations(history, vocab.operation_type_column).net
        if count > rule.max_ratio * before:
            problem = f"more than {rule.max_ratio} times the {count_of(before, 'row')} of the latest state"
    if problem is None:
        return None
    for path in new:
        if len(sample) < MAX_SAMPLE:
            sample += _sample_retracted(path, MAX_SAMPLE - len(sample), keys, vocab)
    return RuleFinding(count, f"{count_of(count, 'row')} retracted: {problem}", sample)


def _sample_retracted(
    path: Path, limit: int, keys: Sequence[str], vocab: DatasetVocabulary
) -> list[dict[str, str | None]]:
    """Return the first retracted rows of a slice as text, at most ``limit``."""
    offset, operations = vocab.offset_column, vocab.operation_type_column
    names = _sample_columns(path, keys, vocab)
    samples: list[dict[str, str | None]] = []
    for batch in read_batches(path, [offset, operations, *names]):
        column = batch.column(operations)
        retracted = batch.filter(pc.equal(column, pa.scalar(Op.RETRACT, column.type)))
        samples += sample_rows(retracted.slice(0, limit - len(samples)), offset, names)
        if len(samples) >= limit:
            break
    return samples


def _sample_columns(path: Path, keys: Sequence[str], vocab: DatasetVocabulary) -> list[str]:
    system = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column}
    with open_parquet(path) as file:
        names = [name for name in file.schema_arrow.names if name not in system]
    return [name for name in keys if name in names] or names[:_MAX_COLUMNS]
