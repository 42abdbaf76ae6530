"""Inputs of a merge, and the steps that strategies share: normalized rows, primary keys, stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.base.config import OnConflict
from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import pc, python_rows
from odf_engine.data.changelog import Op
from odf_engine.data.ddl import timestamp_type, uuid_type
from odf_engine.data.parquet.slices import read_rows_at
from odf_engine.data.schema_enforcement import cast_lossless, match_columns
from odf_engine.errors import BadData, InvalidSchema, NotFound
from odf_engine.ingest.merge.key_file import KEY, OFFSET, TIME, KeySorter, NullKey
from odf_engine.ingest.merge.key_index import KeyIndex, KeyIndexLocation, RowHasher, remove_key_files
from odf_engine.ingest.merge.merge_plan import MergeRows, PendingKeys
from odf_engine.ingest.read.text_file import shorten
from odf_engine.metadata.model import DatasetVocabulary, SqlQueryStep
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark import sql_types
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.readers import slices_frame
from odf_engine.spark.user_query import run_query

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


NEW: Final = "odf_new"
"""View of the new rows in queries of a merge."""
POSITION: Final = "odf_position"
"""Column with the position of a new row in its source."""


@dataclass(frozen=True)
class MergeInputs:
    """The inputs of a merge.

    Attributes:
        session: Spark session of the new rows.
        new: result of the preprocess step.
        schema: complete schema of the slice.
        vocab: names of the system columns.
        dataset: the dataset to extend.
        first_offset: offset of the first row of the slice.
        event_time: event time of rows that have none.
        scratch: folder for temporary files; the caller removes it.
        reporter: receives progress, and cancels the merge.
        changelog: column of ``new`` with operations, or None if every row is an append.
        on_conflict: what a ledger does with a row that has a known key and other values.
        unordered: the preprocess query joins or groups rows, so that their order is not deterministic.
    """

    session: SparkSession
    new: DataFrame
    schema: pa.Schema
    vocab: DatasetVocabulary
    dataset: Dataset
    first_offset: int
    event_time: Timestamp
    scratch: Path
    reporter: Reporter
    changelog: str | None = None
    on_conflict: OnConflict = "warn"
    unordered: bool = False

    @property
    def names(self) -> list[str]:
        """The event time and data columns, in the order of the slice."""
        system = (self.vocab.offset_column, self.vocab.operation_type_column, self.vocab.system_time_column)
        return [name for name in self.schema.names if name not in system]

    def select(
        self, parts: Mapping[str, str], query: str, frames: Mapping[str, DataFrame] | None = None
    ) -> DataFrame:
        """Return the result of a query; nothing runs yet.

        Args:
            parts: common table expressions by name.
            query: SQL over ``parts``, ``frames`` and ``odf_new``.
            frames: further views by name.
        """
        expressions = ", ".join(f"{name} AS ({part})" for name, part in parts.items())
        step = SqlQueryStep(query=f"WITH {expressions} {query}" if parts else query)
        return run_query(self.session, {NEW: self.new, **(frames or {})}, [step])

    def rows(
        self, parts: Mapping[str, str], query: str, frames: Mapping[str, DataFrame] | None = None
    ) -> list[dict[str, Any]]:
        """Run a query with a small result and return its rows. The arguments are as for :meth:`select`."""
        schema, batches = arrow_batches(self.select(parts, query, frames), self.reporter, progress=False)
        return python_rows(pa.Table.from_batches(batches, schema))

    def read(self, path: Path, schema: pa.Schema) -> DataFrame:
        """Return the rows of a temporary file. It can have all types of a slice."""
        return slices_frame(self.session, [path], schema, self.vocab)

    def history(self, slices: Sequence[SliceSummary]) -> DataFrame:
        """Return the rows of slices without the system time. A column that a slice lacks is null.

        Raises:
            NotFound: a slice is missing.
        """
        paths = self.dataset.slice_paths(slices, self.reporter)
        columns = [field for field in self.schema if field.name != self.vocab.system_time_column]
        return slices_frame(self.session, paths, pa.schema(columns), self.vocab, ordered=False)


def normalized_rows_sql(inputs: MergeInputs, more: Mapping[str, str] | None = None) -> str:
    """Return a query for the new rows in the names and precision of the slice, with their position.

    ``more`` adds columns: SQL expressions by name.
    """
    parts = [f"{value} AS {name}" for name, value in (more or {}).items()]
    for name, place in zip(inputs.names, match_columns(inputs.new.columns, inputs.names), strict=True):
        kind = inputs.schema.field(name).type
        if place is None or inputs.new.schema[place].dataType.typeName() == "void":
            parts.append(f"{sql_types.typed_null(kind, name)} AS {sql_types.column(name)}")
        else:
            value = sql_types.truncate_timestamps(sql_types.column(inputs.new.columns[place]), kind)
            parts.append(f"{value} AS {sql_types.column(name)}")
    return f"SELECT {', '.join(parts)}, monotonically_increasing_id() AS {POSITION} FROM {NEW}"


def sort_time_sql(inputs: MergeInputs, name: str) -> str:
    """Return the sort key for the event time in column ``name``; a null sorts as the source's event time."""
    if pa.types.is_date(inputs.schema.field(inputs.vocab.event_time_column).type):
        return f"coalesce({sql_types.column(name)}, CAST(timestamp_millis({inputs.event_time.ms}L) AS DATE))"
    return f"coalesce(unix_millis(CAST({sql_types.column(name)} AS TIMESTAMP)), {inputs.event_time.ms}L)"


def event_time_filler(inputs: MergeInputs, name: str | None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a step that converts the event time in column ``name`` to its value in the slice.

    It truncates to milliseconds and replaces nulls by the source's event time, since rows are sorted by
    the result.
    """
    target = inputs.schema.field(inputs.vocab.event_time_column).with_nullable(True)

    def fill(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(name) if name is not None else -1
        if at < 0:
            return batch
        times = cast_lossless(batch.column(at), target, 0)
        if times.null_count:
            times = pc.fill_null(times, default_event_time(inputs))
        return batch.set_column(at, name, times)

    return fill


def default_event_time(inputs: MergeInputs) -> pa.Scalar:
    """Return the event time of rows that have none."""
    kind = inputs.schema.field(inputs.vocab.event_time_column).type
    return pa.scalar(inputs.event_time.ms, pa.timestamp("ms", "UTC")).cast(kind, safe=False)


EXAMPLES: Final = 5
"""Number of rows that a message shows."""


def key_columns(primary_key: Sequence[str], inputs: MergeInputs) -> list[str]:
    """Return the names of the key columns as spelled in the slice.

    Raises:
        InvalidSchema: a key column is missing or nested, or the key is empty.
    """
    keys: list[str] = []
    for name, place in zip(primary_key, match_columns(inputs.names, list(primary_key)), strict=True):
        if place is None:
            raise InvalidSchema(
                f"primary key column '{name}' not found",
                where="merge.primaryKey",
                hint=f"columns: {', '.join(inputs.names)}",
            )
        if pa.types.is_nested(inputs.schema.field(inputs.names[place]).type):
            raise InvalidSchema(f"column '{name}' cannot be a key: nested type", where="merge.primaryKey")
        keys.append(inputs.names[place])
    if not keys:
        raise InvalidSchema("the primary key is empty", where="merge.primaryKey")
    return keys


def check_primary_keys(keys: list[str], inputs: MergeInputs) -> str:
    """Return a query for the new rows without exact copies.

    Raises:
        BadData: a key is null, or occurs in rows that differ.
    """
    parts = {"n": normalized_rows_sql(inputs)}
    listed, names = sql_types.columns(keys), sql_types.columns(inputs.names)
    rows = inputs.rows(parts, f"SELECT {names} FROM n WHERE {sql_types.any_null(keys)} LIMIT {EXAMPLES}")
    if rows:
        _refuse("is null", keys, rows)
    different = {
        "kinds": f"SELECT DISTINCT {names} FROM n",
        "double": f"SELECT {listed} FROM kinds GROUP BY {listed} HAVING count(*) > 1 LIMIT {EXAMPLES}",
    }
    rows = inputs.rows(
        parts | different,
        f"SELECT {sql_types.columns(inputs.names, 'k')} FROM kinds k LEFT SEMI JOIN double d "
        f"ON {sql_types.null_safe_equal(keys, 'k', 'd')} "
        f"ORDER BY {sql_types.columns(keys, 'k')} LIMIT {EXAMPLES}",
    )
    if rows:
        _refuse("is not unique", keys, rows)
    counts = {"counts": f"SELECT count(*) AS times FROM n GROUP BY {listed}"}
    copies = inputs.rows(parts | counts, "SELECT sum(times - 1) AS copies FROM counts")[0]["copies"]
    inputs.reporter.warn(f"{count_of(copies, 'duplicate row')} dropped", "duplicate-rows", copies)
    number = f"row_number() OVER (PARTITION BY {listed} ORDER BY {POSITION}) AS odf_copy"
    numbered = f"SELECT *, {number} FROM ({normalized_rows_sql(inputs)})"
    return f"SELECT {names}, {POSITION} FROM ({numbered}) WHERE odf_copy = 1"


def _refuse(problem: str, keys: list[str], rows: list[dict[str, Any]]) -> None:
    examples = " | ".join(
        shorten(", ".join(f"{name}={value}" for name, value in row.items())) for row in rows
    )
    raise BadData(
        f"the primary key {', '.join(keys)} {problem}: {examples}",
        hint="use a primary key that identifies each row, or filter the rows in the preprocess query",
    )


_HISTORY: Final = "odf_history"
_NUMBER: Final = pa.int64()


class KeyedMerge:
    """A merge by primary key.

    Args:
        inputs: the inputs of the merge.
        keys: the primary key, as spelled in the slice.
        compared: columns that are compared, without key and event time, or None for all.
        live: the index may drop retracted keys, since the strategy treats them as new.
    """

    def __init__(
        self, inputs: MergeInputs, keys: Sequence[str], *, compared: Sequence[str] | None, live: bool
    ) -> None:
        self.inputs = inputs
        self.keys = list(keys)
        event_time = inputs.vocab.event_time_column
        values = tuple(name for name in inputs.names if name not in keys and name != event_time)
        self.hashes = RowHasher(
            inputs.schema,
            tuple(keys),
            values,
            None if compared is None or set(compared) == set(values) else tuple(compared),
            uuid_texts(inputs),
        )
        self._location = KeyIndexLocation(
            dataset=inputs.dataset,
            scratch=inputs.scratch,
            hashes=self.hashes,
            history=self._history,
            live=live,
            name=self.hashes.name(live),
            form=self.hashes.form(live, inputs.session.version),
            reporter=inputs.reporter,
        )

    def open_index(self) -> KeyIndex:
        """Return the key index, updated to the head of the dataset."""
        return KeyIndex(self._location)

    def remove_index(self) -> None:
        """Remove the files of the key index."""
        remove_key_files(self._location)

    def frame(self, *, check_keys: bool, order: str | None = None) -> DataFrame:
        """Return the new rows with their hashes.

        Args:
            check_keys: validate the keys first, drop exact copies, and add the column ``POSITION``.
            order: SQL expressions to sort by.

        Raises:
            BadData: ``check_keys`` is set, and a key is null or occurs in rows that differ.
        """
        new = check_primary_keys(self.keys, self.inputs) if check_keys else normalized_rows_sql(self.inputs)
        names = [*self.inputs.names, POSITION] if check_keys else self.inputs.names
        query = f"SELECT {sql_types.columns(names)}, {self.hashes.hash_new_rows()} FROM n"
        return self.inputs.select({"n": new}, f"{query} ORDER BY {order}" if order else query)

    def key_sorter(self, *, unique: bool = True) -> KeySorter:
        """Return a sorter for the keys of the slice; ``unique`` rejects a key that occurs twice."""
        return KeySorter(self.hashes.columns, self.inputs.scratch, unique=unique)

    def add_retracted(self, sorter: KeySorter, keys: pa.Array, seconds: pa.Array, offsets: pa.Array) -> None:
        """Add retracted keys to the keys of the slice.

        Args:
            sorter: the sorter of the slice.
            keys, seconds: the two hashes of each key.
            offsets: the offsets of the rows that are retracted.
        """
        zeros = pa.repeat(pa.scalar(0, _NUMBER), len(offsets))
        others = [zeros] * (len(self.hashes.columns) - 3)
        sorter.add([keys, seconds, pc.bit_wise_not(offsets), *others])

    def split_keys(
        self, rows: Iterator[pa.RecordBatch], index: KeyIndex, sorter: KeySorter, *, retracted: bool = False
    ) -> MergeRows:
        """Yield the rows without their hashes, and return their keys as a key file.

        Args:
            rows: the rows in the order of writing.
            index: the keys before the merge.
            sorter: receives the hashes.
            retracted: rows that retract others have hashes too; otherwise they are skipped.

        Raises:
            RepeatedKey: a key occurs twice, and the sorter requires unique keys.
        """
        inputs, offset = self.inputs, self.inputs.first_offset
        op, event_time = inputs.vocab.operation_type_column, inputs.vocab.event_time_column
        for batch in rows:
            ones = pa.repeat(pa.scalar(1, _NUMBER), batch.num_rows)
            offsets = pc.cumulative_sum(ones, start=offset - 1)
            offset += batch.num_rows
            columns = {name: batch.column(name) for name in self.hashes.names}
            columns |= {OFFSET: offsets, TIME: times_as_numbers(batch.column(event_time))}
            if op in batch.schema.names:
                added = pc.is_in(
                    batch.column(op), pa.array([Op.APPEND, Op.CORRECT_TO], batch.column(op).type)
                )
                if retracted:
                    columns[OFFSET] = pc.if_else(added, offsets, pc.bit_wise_not(offsets))
                else:
                    columns = {name: column.filter(added) for name, column in columns.items()}
            sorter.add([columns[name] for name in self.hashes.columns])
            yield batch.drop_columns(self.hashes.names)
        file = self._location.new_file()
        sorter.finish(file, form=self._location.form)
        return PendingKeys(index, file)

    def _history(self, slices: Sequence[SliceSummary]) -> Iterator[pa.RecordBatch]:
        """Return the rows of the key file for slices."""
        inputs, vocab = self.inputs, self.inputs.vocab
        columns = self.hashes.hash_slice_rows(
            vocab.offset_column, vocab.operation_type_column, vocab.event_time_column
        )
        frame = inputs.select({}, f"SELECT {columns} FROM {_HISTORY}", {_HISTORY: inputs.history(slices)})
        return arrow_batches(frame, inputs.reporter, progress=False)[1]


def uuid_texts(inputs: MergeInputs) -> frozenset[str]:
    """Return the UUID columns of the slice that are text in the new rows."""
    kinds = {name.casefold(): inputs.new.schema[name].dataType.typeName() for name in inputs.new.columns}
    uuids = [name for name in inputs.names if inputs.schema.field(name).type == uuid_type()]
    return frozenset(name for name in uuids if kinds.get(name.casefold()) == "string")


def times_as_numbers(times: pa.Array) -> pa.Array:
    """Return event times as 64-bit integers: days since 1970 for dates, else milliseconds."""
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.int32()).cast(_NUMBER)
    return cast_lossless(times, pa.field("", timestamp_type()), 0).cast(_NUMBER)


def check_null_keys(batch: pa.RecordBatch) -> None:
    """Check the key hashes of new rows.

    Raises:
        NullKey: the primary key of a row is null.
    """
    if batch.column(KEY).null_count:
        raise NullKey


def stored_rows_at(inputs: MergeInputs, offsets: pa.Array) -> Iterator[pa.RecordBatch]:
    """Read the event time and data columns of the rows at these offsets.

    Args:
        offsets: 64-bit integers, ascending.

    Returns:
        The rows in that order and in the schema of the new slice. A column that an older slice lacks is
        null.

    Raises:
        NotFound: a slice is missing.
        BadData: a slice is damaged.
    """
    if not len(offsets):
        return
    for row in inputs.dataset.slices(offsets[0].as_py(), offsets[-1].as_py()):
        start, stop = pc.search_sorted(offsets, pa.array([row.start, row.end + 1], pa.int64())).to_pylist()
        if start == stop:
            continue
        path = inputs.dataset.slice_path(row)
        if not path.exists():
            raise NotFound("slice is missing", where=str(path), hint="run odf verify to find all errors")
        places = pc.subtract(offsets[start:stop], row.start)
        for batch in read_rows_at(path, places, inputs.names):
            inputs.reporter.raise_if_cancelled()
            yield _to_slice_schema(batch, inputs)


def example_rows(inputs: MergeInputs, offsets: Sequence[int]) -> list[dict[str, object]]:
    """Return the rows at these offsets, in the order of the offsets. All of them are held in memory."""
    ascending = sorted(offsets)
    rows = [
        row for batch in stored_rows_at(inputs, pa.array(ascending, pa.int64())) for row in python_rows(batch)
    ]
    row_of_offset = dict(zip(ascending, rows, strict=True))
    return [row_of_offset[offset] for offset in offsets]


def _to_slice_schema(batch: pa.RecordBatch, inputs: MergeInputs) -> pa.RecordBatch:
    """Return stored rows in the schema of the new slice."""
    fields = [inputs.schema.field(name).with_nullable(True) for name in inputs.names]
    columns = [
        cast_lossless(batch.column(field.name), field, 0)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
