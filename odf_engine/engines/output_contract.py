"""Output contract of a query result, and the changelog of grouped results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import describe_row, pc, sort_indexes
from odf_engine.data.changelog import (
    OPERATION,
    POSITION,
    ROWS,
    Op,
    has_corrections,
    repair_correction_pairs,
    split_corrections,
)
from odf_engine.data.ddl import type_ddl
from odf_engine.data.parquet.slice_rows import SliceProperties, SliceRowBuilder
from odf_engine.data.parquet.slice_tasks import DependentRows, SliceTask, WriteSlices, write_task_slices
from odf_engine.data.parquet.slices import WrittenSlice, slice_schema
from odf_engine.data.schema_enforcement import (
    equal_except_precision,
    finest_timestamp_unit,
    match_columns,
    with_timestamp_unit,
)
from odf_engine.errors import BadData, InvalidQuery, Unsupported
from odf_engine.metadata.model import DatasetVocabulary, TransformRequest

_ROW_INDEX = "odf_place"


class EmittedRows:
    """The latest row of each group in the dataset.

    Args:
        schema: schema of the rows.
        keys: columns that identify groups, or () if all rows are one group.
        event_time: first sort column.

    Raises:
        Unsupported: a key column has a nested type.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], event_time: str) -> None:
        for name in keys:
            if types.is_nested(schema.field(name).type):
                raise Unsupported(
                    f"the query groups by '{name}', a {type_ddl(schema.field(name).type)}, without a window",
                    where="query",
                    hint="group by its fields as separate columns",
                )
        self._keys = list(keys)
        self._names = schema.names
        flat = [field.name for field in schema if not types.is_nested(field.type)]
        self._order = sorted(flat, key=lambda name: name != event_time)
        self._rows = schema.empty_table()

    def load(self, path: Path) -> None:
        """Load the rows of a file, if it exists.

        Raises:
            BadData: the file is damaged, or has other columns.
        """
        before = read_emitted_rows(path)
        if before is None:
            return
        try:
            self._rows = before.cast(self._rows.schema)
        except (pa.ArrowException, ValueError) as error:
            raise BadData(f"the checkpoint is damaged: {error}", where=path.name) from error

    def save(self, path: Path) -> None:
        """Write the rows to a file."""
        with ipc.new_file(str(path), self._rows.schema) as file:
            file.write_table(self._rows.combine_chunks())

    def update(self, new: pa.Table, in_result: Sequence[bool]) -> tuple[pa.Table, list[int]]:
        """Return the changes of new rows.

        Args:
            new: at most one row per group.
            in_result: for each, whether the group is still part of the result.

        Returns:
            Rows in order, -C and +C of a group adjacent, and the operation of each row.
        """
        old, count = self._rows, self._rows.num_rows
        rows = pa.concat_tables([old, new.select(self._names).cast(old.schema)])
        before, after, unchanged = self._match_groups(rows, count)
        same = _compare_rows(rows, before, after)
        changed: list[tuple[int, int | None]] = []  # the row that represents a group, and its previous row
        kept = list(unchanged)
        for old_row, new_row, equal in zip(before, after, same, strict=True):
            is_in_result = in_result[new_row - count]
            if is_in_result:
                kept.append(old_row if equal and old_row is not None else new_row)
            if is_in_result and not equal:
                changed.append((new_row, old_row))
            elif not is_in_result and old_row is not None:
                changed.append((old_row, old_row))
        order = self._sort_indexes(rows.take(pa.array([row for row, _ in changed], pa.int64())))
        indexes: list[int] = []
        operations: list[int] = []
        for row, old_row in (changed[position] for position in order):
            if old_row is None:
                pair = [(row, Op.APPEND)]
            elif old_row == row:
                pair = [(row, Op.RETRACT)]
            else:
                pair = [(old_row, Op.CORRECT_FROM), (row, Op.CORRECT_TO)]
            indexes += [index for index, _ in pair]
            operations += [int(operation) for _, operation in pair]
        remaining = rows.take(pa.array(sorted(kept), pa.int64()))
        self._rows = remaining.take(pa.array(self._sort_indexes(remaining), pa.int64()))
        return rows.take(pa.array(indexes, pa.int64())), operations

    def replacement_changes(self, before: pa.Table | None) -> tuple[pa.Table, list[int]]:
        """Return the changes that turn the rows of another query into the rows of these groups.

        Args:
            before: latest rows of the other query's groups; missing columns are null. None if it had no
                groups.

        Returns:
            As for :meth:`changes`.

        Raises:
            BadData: its columns have other types.
        """
        rows, old = self._rows, self._align_columns(before)
        all_rows = pa.concat_tables([old, rows])
        if not self._has_unique_keys(old):
            order = [self._sort_indexes(old), [old.num_rows + index for index in self._sort_indexes(rows)]]
            operations = [int(Op.RETRACT)] * old.num_rows + [int(Op.APPEND)] * rows.num_rows
            return all_rows.take(pa.array([*order[0], *order[1]], pa.int64())), operations
        removed = self._match_groups(all_rows, old.num_rows)[2]
        new_rows = pa.concat_tables([rows, old.take(pa.array(removed, pa.int64()))])
        self._rows = old
        return self.update(new_rows, [True] * rows.num_rows + [False] * len(removed))

    def _align_columns(self, before: pa.Table | None) -> pa.Table:
        schema = self._rows.schema
        if before is None:
            return schema.empty_table()
        nulls = {field.name: pa.nulls(before.num_rows, field.type) for field in schema}
        columns = {**nulls, **dict(zip(before.column_names, before.columns, strict=True))}
        try:
            return pa.table({name: columns[name] for name in schema.names}).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise BadData(f"the rows of the old query do not match the new one: {error}") from error

    def _has_unique_keys(self, rows: pa.Table) -> bool:
        """Return whether the rows have at most one row per group."""
        if not self._keys:
            return rows.num_rows <= 1
        return rows.group_by(self._keys).aggregate([]).num_rows == rows.num_rows

    def _match_groups(self, rows: pa.Table, count: int) -> tuple[list[int | None], list[int], list[int]]:
        """Return the old and new row index of each group with a new row, and the indexes of the other old
        rows.
        """
        indexes = pa.array(range(rows.num_rows), pa.int64())
        columns: dict[str, Any] = {f"k{index}": rows.column(name) for index, name in enumerate(self._keys)}
        columns = columns or {"k0": pa.nulls(rows.num_rows, pa.int8())}
        names = list(columns)
        grouped = pa.table({**columns, _ROW_INDEX: indexes}).group_by(names, use_threads=False)
        groups = grouped.aggregate([(_ROW_INDEX, "min"), (_ROW_INDEX, "max")])
        first, last = groups.column(f"{_ROW_INDEX}_min"), groups.column(f"{_ROW_INDEX}_max")
        changed = pc.greater_equal(last, count)
        before = [index if index < count else None for index in first.filter(changed).to_pylist()]
        unchanged = first.filter(pc.invert(changed)).to_pylist()
        return before, last.filter(changed).to_pylist(), unchanged

    def _sort_indexes(self, rows: pa.Table) -> list[int]:
        return sort_indexes(rows, self._order).to_pylist()


def read_emitted_rows(path: Path) -> pa.Table | None:
    """Read the rows of a file written by :meth:`EmittedRows.save`, or None if it does not exist.

    Raises:
        BadData: it is damaged.
    """
    if not path.exists():
        return None
    try:
        with ipc.open_file(str(path)) as file:
            table = file.read_all()
        table.validate(full=True)  # Arrow's kernels crash on offsets that are out of bounds
        return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadData(f"the checkpoint is damaged: {error}", where=path.name) from error


def _compare_rows(rows: pa.Table, before: Sequence[int | None], after: Sequence[int]) -> list[bool]:
    """Return for each pair of row indexes whether the rows are equal."""
    old = rows.take(pa.array(before, pa.int64()))
    new = rows.take(pa.array(after, pa.int64()))
    same = [index is not None for index in before]
    for left, right in zip(old.columns, new.columns, strict=True):
        if types.is_nested(left.type):
            equal = [one == other for one, other in zip(left.to_pylist(), right.to_pylist(), strict=True)]
        else:
            equal = _compare_values(left, right).to_pylist()
        same = [is_same and is_equal for is_same, is_equal in zip(same, equal, strict=True)]
    return same


def _compare_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    equal = pc.fill_null(pc.equal(left, right), False)
    equal = pc.or_(equal, pc.and_(left.is_null(), right.is_null()))
    if types.is_floating(left.type):
        nans = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(equal, pc.fill_null(nans, False))
    return equal


def input_schemas(request: TransformRequest) -> list[pa.Schema]:
    """Return the schemas of the inputs of a transaction."""
    return [pq.read_schema(input.schema_file) for input in request.query_inputs]


class OutputContract:
    """The required columns of a result.

    Args:
        query_schema: columns of the query.
        vocab: column names of the dataset.
        declared: schema of the dataset, or None before it has one.
        inputs: schemas of the inputs. The timestamps of a new dataset are as precise as theirs.

    Attributes:
        schema: schema of the slice.
        event_time: event time column as spelled in the query.
        operation: operation column as spelled in the query, or None if it has none.

    Raises:
        InvalidQuery: no event time, a reserved column name, or columns that differ from the dataset.
    """

    def __init__(
        self,
        query_schema: pa.Schema,
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
        inputs: Iterable[pa.Schema],
    ) -> None:
        self._own = query_schema
        self._vocab = vocab
        self.operation = _find_column(query_schema, vocab.operation_type_column)
        _check_columns(query_schema, vocab)
        self.event_time = str(_find_column(query_schema, vocab.event_time_column))
        unit = finest_timestamp_unit(data_type for schema in inputs for data_type in schema.types)
        data = pa.schema(
            [
                # In Spark, all timestamps have microseconds.
                field.with_nullable(True).with_type(with_timestamp_unit(field.type, unit))
                for field in query_schema
                if field.name != self.operation
            ]
        )
        if declared is not None:
            _require_same_columns(data, declared, vocab)
        self.schema = declared if declared is not None else slice_schema(data, vocab)

    def require_event_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check that all rows have an event time, except groups that have no rows any more.

        Raises:
            BadData: shows the first row without one.
        """
        missing = batch.column(self.event_time).is_null()
        if ROWS in batch.schema.names:
            missing = pc.and_(missing, pc.greater(batch.column(ROWS), 0))
        if pc.any(missing).as_py():
            row = batch.slice(pc.index(missing, True).as_py(), 1).select(self._own.names[:8])
            raise BadData(
                f"the event time '{self.event_time}' of a result row is null: {describe_row(row)}",
                where="query",
                hint=f"filter out such rows, or set a time: coalesce({self.event_time}, …)",
            )
        return batch

    def select_columns(self, batch: pa.RecordBatch, operations: pa.Array) -> pa.RecordBatch:
        """Return the columns of the query, with these operations unless the query has its own."""
        batch = batch.select(self._own.names)
        if self.operation is not None:
            return batch
        return batch.append_column(self._vocab.operation_type_column, operations)

    def stateless_rows(self, batches: Iterable[pa.RecordBatch], *, ordered: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a stateless query with their operations.

        Args:
            batches: rows with the columns ``odf_position`` and ``odf_operation``, by position unless ordered.
            ordered: the query has an ORDER BY, so that corrections become retractions and additions.
        """
        if ordered:
            rows: Iterable[pa.RecordBatch] = (split_corrections(batch, OPERATION) for batch in batches)
        else:
            rows = repair_correction_pairs(batches, POSITION, OPERATION)
        return (self.select_columns(batch, batch.column(OPERATION)) for batch in rows)


@dataclass(frozen=True)
class StatelessRows:
    """Prepares rows of a stateless query, whose sort key is the position unless the query has an ORDER BY.

    Attributes:
        contract: the required columns.
        properties: the properties of the slice.
        ordered: the query has an ORDER BY.
    """

    contract: OutputContract
    properties: SliceProperties
    ordered: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.Array | None]]:
        """Yield the rows, and their positions.

        Raises:
            DependentRows: a row is a part of a correction, whose other part can be in another partition.
        """
        builder = SliceRowBuilder(self.properties)
        for batch in batches:
            if not self.ordered and has_corrections(batch.column(OPERATION)):
                raise DependentRows("the rows have corrections")
            checked = self.contract.require_event_time(batch)
            rows = self.contract.stateless_rows([checked], ordered=self.ordered)
            keys = None if self.ordered else batch.column(POSITION)
            yield from ((part, keys) for part in builder.enforce_schema(rows, Reporter()))


def slice_task(schema: pa.Schema, request: TransformRequest) -> SliceTask:
    """Return the task to write the slice of a transaction with the given schema."""
    properties = SliceProperties(
        schema=schema,
        vocab=request.vocab,
        first_offset=request.next_offset,
        system_time=request.system_time,
        fallback_event_time=request.system_time,
    )
    return SliceTask(properties, None, Path(request.new_checkpoint_path).parent, pa.__version__)


def write_result(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    request: TransformRequest,
    reporter: Reporter,
    write: WriteSlices = write_task_slices,
) -> WrittenSlice | None:
    """Write the slice of a transaction, or None without rows.

    Args:
        batches: rows in order, with their operations.
        schema: schema of the slice.
        request: the transaction.
        reporter: receives amounts; checked for cancellation.
        write: writes the rows.
    """
    slices = write(batches, slice_task(schema, request), lambda: Path(request.new_data_path), reporter)
    return slices[0] if slices else None


def _find_column(schema: pa.Schema, name: str) -> str | None:
    """Return the name of a column as spelled in the schema, ignoring case."""
    (index,) = match_columns(schema.names, [name])
    return None if index is None else schema.names[index]


def _check_columns(query_schema: pa.Schema, vocab: DatasetVocabulary) -> None:
    for name in (vocab.offset_column, vocab.system_time_column):
        if (column := _find_column(query_schema, name)) is not None:
            raise InvalidQuery(
                f"the query returns a column '{column}', which the engine computes itself",
                where="query",
                hint="remove it, or rename it with AS",
            )
    time = _find_column(query_schema, vocab.event_time_column)
    if time is None:
        raise InvalidQuery(
            f"the query returns no event time: column '{vocab.event_time_column}' is missing",
            where="query",
            hint=f"select one of its columns AS {vocab.event_time_column}: {', '.join(query_schema.names)}",
        )
    data_type = query_schema.field(time).type
    if not (types.is_timestamp(data_type) or types.is_date(data_type)):
        raise InvalidQuery(
            f"the event time '{time}' is {type_ddl(data_type)}, not TIMESTAMP or DATE",
            where="query",
            hint=f"cast it in the query: CAST({time} AS TIMESTAMP) AS {time}",
        )
    operation = _find_column(query_schema, vocab.operation_type_column)
    if operation is not None and not types.is_integer(query_schema.field(operation).type):
        raise InvalidQuery(
            f"the operation '{operation}' is {type_ddl(query_schema.field(operation).type)}, not INT",
            where="query",
            hint=f"use one of: {', '.join(f'{operation:d} ({operation.code})' for operation in Op)}",
        )


def add_new_columns(declared: pa.Schema, result: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """Return the schema of a dataset extended by the new columns of a query.

    Args:
        declared: schema of the dataset.
        result: schema of the query's slices.
        vocab: column names of the dataset.

    Raises:
        InvalidQuery: the query lacks columns, or has them in other types.
    """
    problems, new = _differences(result, declared, vocab)
    if problems:
        raise InvalidQuery(
            "the query's columns differ from those of the dataset: " + "; ".join(problems),
            where="query",
            hint="restore them with CAST(… AS …) AS name, or create a new dataset",
        )
    return pa.schema(
        [*declared, *(result.field(name).with_nullable(True) for name in new)], declared.metadata
    )


def _require_same_columns(data: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary) -> None:
    problems, new = _differences(data, declared, vocab)
    if not problems and not new:
        return
    hint = "list the columns in the query instead of SELECT *"
    if not problems:
        hint += ", or add the new columns: odf add --update MANIFEST --accept-columns"
    raise InvalidQuery(
        "the query's columns differ from those of the dataset: "
        + "; ".join([*problems, *(f"column '{name}' is new" for name in new)]),
        where="query",
        hint=hint,
    )


def _differences(
    data: pa.Schema, declared: pa.Schema, vocab: DatasetVocabulary
) -> tuple[list[str], list[str]]:
    """Return descriptions of missing and incompatible columns, and the names of new columns."""
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    expected = pa.schema([field for field in declared if field.name not in system])
    actual = pa.schema([field for field in data if field.name not in system])
    problems: list[str] = []
    indexes = match_columns(actual.names, expected.names)
    for field, index in zip(expected, indexes, strict=True):
        if index is None:
            problems.append(f"column '{field.name}' is missing")
        elif not equal_except_precision(actual.field(index).type, field.type):
            data_type = type_ddl(actual.field(index).type)
            problems.append(f"column '{field.name}' was {type_ddl(field.type)}, is {data_type}")
    return problems, [name for at, name in enumerate(actual.names) if at not in indexes]
