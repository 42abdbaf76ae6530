"""Evaluation of rules about keys: unique within a dataset, reference to another dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from odf_engine.base.progress import Reporter, count_of
from odf_engine.checks.row_rules import MAX_SAMPLE, RuleFinding, sample_rows
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.parquet.parquet_reader import max_in_footer, open_parquet
from odf_engine.data.parquet.slices import read_batches
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.rows.database import Database, comparable, open_database


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
    new: KeyedRows, history: Sequence[Path], folder: Path, reporter: Reporter, *, within_slice: bool
) -> RuleFinding | None:
    """Find new rows whose key occurs in another row.

    Args:
        new: the new rows.
        history: the other slices of the dataset.
        folder: for temporary files.
        reporter: cancels the search.
        within_slice: compare the new rows only among themselves.
    """
    if _is_increasing(new, () if within_slice else history, reporter):
        return None
    with open_database(folder, reporter) as database:
        search = _KeySearch(database, new, reporter)
        repeated = f"with a repeated value of {', '.join(new.columns)}"
        if within_slice or (not history and not _has_retractions(new)):
            return search.find("rows > 1", repeated)
        search.count_live(KeyedRows([*history, *new.paths], new.columns, new.vocab))
        return search.find("live > 1", repeated)


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


def find_missing_keys(
    new: KeyedRows, other: KeyedRows, name: str, folder: Path, reporter: Reporter
) -> RuleFinding | None:
    """Find new rows whose key is not in another dataset.

    Args:
        new: the new rows.
        other: the rows of the other dataset; its columns correspond to the columns of ``new``.
        name: name of the other dataset in messages.
        folder: for temporary files.
        reporter: cancels the search.
    """
    with open_database(folder, reporter) as database:
        search = _KeySearch(database, new, reporter)
        search.count_live(other)
        problem = f"with a value of {', '.join(new.columns)} that is not in {name}"
        return search.find("live IS NULL OR live <= 0", problem)


def _has_retractions(rows: KeyedRows) -> bool:
    operations = rows.vocab.operation_type_column
    return any(
        pc.max(batch.column(0)).as_py() not in (None, Op.APPEND)
        for path in rows.paths
        for batch in read_batches(path, [operations])
    )


class _KeySearch:
    """Groups the keys of new rows, without nulls, and finds those that violate a rule.

    Args:
        database: for this search.
        new: the new rows.
        reporter: cancels the search.
    """

    def __init__(self, database: Database, new: KeyedRows, reporter: Reporter) -> None:
        self._database, self._new, self._reporter = database, new, reporter
        self._names = [f"k{at}" for at in range(len(new.columns))]
        self._types: list[pa.DataType] = []
        keys = ", ".join(self._names)
        database.execute(
            f"""CREATE TABLE keys AS
            SELECT {keys}, count(*) AS rows, min("offset") AS first FROM new GROUP BY {keys}""",
            new=self._new_rows(),
        )
        database.execute("CREATE VIEW judged AS SELECT *, NULL::BIGINT AS live FROM keys")

    def count_live(self, rows: KeyedRows) -> None:
        """Count for each key the rows that are not retracted; ``rows`` has corresponding columns."""
        keys = ", ".join(self._names)
        self._database.execute(
            f"""CREATE TABLE counts AS
            SELECT {keys}, sum(weight)::BIGINT AS live FROM stored SEMI JOIN keys USING ({keys})
            GROUP BY {keys}""",
            stored=self._weighted_rows(rows),
        )
        self._database.execute(
            f"CREATE OR REPLACE VIEW judged AS SELECT * FROM keys LEFT JOIN counts USING ({keys})"
        )

    def find(self, violation: str, problem: str) -> RuleFinding | None:
        """Return the new rows whose key fulfils a condition, or None if there are none.

        Args:
            violation: a condition over ``rows``, the number of new rows of the key, and ``live``.
            problem: follows the number of rows in the message.
        """
        sql = f"""
            SELECT (sum(rows) OVER ())::BIGINT AS failing, first FROM judged
            WHERE {violation} ORDER BY first LIMIT {MAX_SAMPLE}"""
        batches = [batch for batch in self._database.query(sql) if batch.num_rows]
        if not batches:
            return None
        failing = batches[0].column("failing")[0].as_py()
        offsets = [first for batch in batches for first in batch.column("first").to_pylist()]
        return RuleFinding(failing, f"{count_of(failing, 'row')} {problem}", self._sample(offsets))

    def _sample(self, offsets: Sequence[int]) -> list[dict[str, str | None]]:
        columns, offset = list(self._new.columns), self._new.vocab.offset_column
        sample: list[dict[str, str | None]] = []
        for path in self._new.paths:
            for batch in read_batches(path, [*columns, offset]):
                self._reporter.raise_if_cancelled()
                wanted = pc.is_in(batch.column(offset), pa.array(offsets, batch.column(offset).type))
                sample += sample_rows(batch.filter(wanted), offset, columns)
                if len(sample) == len(offsets):
                    return sample
        return sample

    def _new_rows(self) -> Iterator[pa.Table]:
        columns, vocab = self._new.columns, self._new.vocab
        offset, operations = vocab.offset_column, vocab.operation_type_column
        for path in self._new.paths:
            for batch in read_batches(path, [*columns, offset, operations]):
                self._reporter.raise_if_cancelled()
                self._types = [batch.column(name).type for name in columns]
                batch = select_examined(batch, operations)
                if any(batch.column(name).null_count for name in columns):
                    valid = (pc.is_valid(batch.column(name)) for name in columns)
                    batch = batch.filter(reduce(pc.and_, valid))
                keys = zip(self._names, (comparable(batch.column(name)) for name in columns), strict=True)
                yield pa.table({**dict(keys), "offset": batch.column(offset).cast(pa.int64())})

    def _weighted_rows(self, rows: KeyedRows) -> Iterator[pa.Table]:
        """Yield keys in the types of the new rows, with 1 for added rows and -1 for retracted ones."""
        operations = rows.vocab.operation_type_column
        empty = [comparable(pa.nulls(0, data_type)) for data_type in self._types]
        yield pa.table([*empty, pa.array([], pa.int64())], [*self._names, "weight"])
        for path in rows.paths:
            with open_parquet(path) as file:
                known = file.schema_arrow.names
            if not set(rows.columns) <= set(known):
                continue
            for batch in read_batches(path, [*rows.columns, operations]):
                self._reporter.raise_if_cancelled()
                column = batch.column(operations)
                adds = pc.is_in(column, pa.array([Op.APPEND, Op.CORRECT_TO], column.type))
                keys = [
                    comparable(batch.column(name).cast(data_type))
                    for name, data_type in zip(rows.columns, self._types, strict=True)
                ]
                weights = pc.if_else(adds, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
                yield pa.table([*keys, weights], [*self._names, "weight"])
