"""What merge strategies share: normalized new rows, primary keys, attempts, stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import Op
from odf_engine.data.ddl import TIMESTAMP, UUID
from odf_engine.data.schema_enforcement import cast_lossless, match_columns
from odf_engine.data.slices import read_rows_at
from odf_engine.errors import BadData, InvalidSchema, NotFound
from odf_engine.ingest.merge.key_file import KEY, OFFSET, TIME, CorruptKeyFile, KeySorter, RepeatedKey
from odf_engine.ingest.merge.key_index import KeyIndex, KeyIndexLocation, RowHasher, forget
from odf_engine.ingest.read.error_location import shorten
from odf_engine.metadata.model import DatasetVocabulary, SqlQueryStep
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark import sql_types
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.row_order import UnsortedResult
from odf_engine.spark.sql_types import spark_schema
from odf_engine.spark.text_files import spark_path
from odf_engine.spark.user_query import run_query

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


NEW: Final = "odf_new"
POSITION: Final = "odf_position"


class RetryMerge(Exception):
    """Nothing is wrong with the data: ask the merge for its rows once more."""


class SuspectKeys(Exception):
    """A primary key was null or there twice: what is wrong has to be looked for."""


@dataclass(frozen=True)
class MergeInputs:
    """What a merge needs.

    Attributes:
        new: rows as they came out of preprocessing.
        schema: of the slice.
        dataset: to which the rows will be added.
        first_offset: of the first row that will be added.
        event_time: for rows that have none.
        scratch: folder for temporary files, which whoever calls removes.
        changelog: what the new rows call their column of operations, when they bring retractions and
            corrections themselves.
        strict: a known key of a ledger with other values is an error.
        unordered: a query joined or grouped the new rows, so that they come in no order of their own.
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
    strict: bool = False
    unordered: bool = False

    @property
    def names(self) -> list[str]:
        """Event time and data columns, in the order of the slice."""
        system = (self.vocab.offset_column, self.vocab.operation_type_column, self.vocab.system_time_column)
        return [name for name in self.schema.names if name not in system]

    def select(
        self, parts: Mapping[str, str], query: str, frames: Mapping[str, DataFrame] | None = None
    ) -> DataFrame:
        """The result of a query over named parts, frames by name, and ``odf_new``."""
        named = ", ".join(f"{name} AS ({part})" for name, part in parts.items())
        step = SqlQueryStep(query=f"WITH {named} {query}" if parts else query)
        return run_query(self.session, {NEW: self.new, **(frames or {})}, [step])

    def rows(
        self, parts: Mapping[str, str], query: str, frames: Mapping[str, DataFrame] | None = None
    ) -> list[dict[str, Any]]:
        """All rows of a small result."""
        schema, batches = arrow_batches(self.select(parts, query, frames), self.reporter, progress=False)
        return pa.Table.from_batches(batches, schema).to_pylist()

    def read(self, paths: Sequence[Path], schema: pa.Schema) -> DataFrame:
        """A frame of Parquet files."""
        return self.session.read.schema(spark_schema(schema)).parquet(*map(spark_path, paths))

    def history(self, slices: Sequence[SliceSummary]) -> DataFrame:
        """All rows of some slices, without the system time; columns that a slice lacks are null.

        Raises:
            NotFound: a slice is missing.
        """
        paths = [self.dataset.slice_path(row) for row in slices]
        for path in paths:
            if not path.exists():
                raise NotFound("a data slice is missing", where=str(path), hint="see: odf verify")
        # Spark has no unsigned integers, and reads these columns best as what they are in the file.
        plain = {self.vocab.offset_column: pa.int64(), self.vocab.operation_type_column: pa.int32()}
        fields = [
            field.with_type(plain.get(field.name, field.type))
            for field in self.schema
            if field.name != self.vocab.system_time_column
        ]
        return self.read(paths, pa.schema(fields))


@dataclass
class MergeAttempt:
    """What was learnt from attempts: let Spark sort the rows; look for what is wrong with their keys."""

    sort: bool = False
    check: bool = False
    damaged: bool = False


class PreparedMerge:
    """A merge that is ready to run.

    Args:
        run: the rows to write, in order, with their operations.
        reporter: hears what was learnt.
        keep: remembers the keys, given the last offset and the hash of the slice that was committed.
        forget: drops what was remembered, when it is damaged.
    """

    def __init__(
        self,
        run: Callable[[MergeAttempt], Iterator[pa.RecordBatch]],
        reporter: Reporter,
        *,
        keep: Callable[[int, str], None] = lambda end, physical_hash: None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._reporter = reporter
        self._keep = keep
        self._forget = forget
        self._how = MergeAttempt()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Runs it.

        Raises:
            TryAgain: what came so far does not count.
            BadData: null or different rows of one key, and the like; the message shows them.
        """
        try:
            yield from self._run(self._how)
        except UnsortedResult:
            self._reporter.log("the rows are not in the order of their event time: they are sorted")
            self._how.sort = True
        except SuspectKeys:
            if self._how.check:
                raise BadData(
                    "the rows are other ones each time they are computed",
                    hint="take what is random out of the preprocess query",
                ) from None
            self._how.check = True
        except CorruptKeyFile:
            if self._how.damaged:
                raise
            self._reporter.log("the keys that were remembered are damaged: they are made anew", "warning")
            self._how.damaged = True
            self._forget()
        else:
            return
        raise RetryMerge

    def committed(self, end: int, physical_hash: str) -> None:
        """The rows are a slice now, up to offset ``end``: their keys are remembered for the next merge.

        It may fail, and nothing is lost then.
        """
        try:
            self._keep(end, physical_hash)
        except (CorruptKeyFile, OSError) as error:
            self._forget()
            self._reporter.log(f"the keys could not be remembered: {error}", "debug")


def normalized_rows_sql(inputs: MergeInputs, more: Mapping[str, str] | None = None) -> str:
    """The new rows in the names and precision of the slice, with their position; ``more`` are further
    columns by name."""
    parts = [f"{value} AS {name}" for name, value in (more or {}).items()]
    for name, place in zip(inputs.names, match_columns(inputs.new.columns, inputs.names), strict=True):
        kind = inputs.schema.field(name).type
        if place is None or inputs.new.schema[place].dataType.typeName() == "void":
            parts.append(f"{sql_types.typed_null(kind, name)} AS {sql_types.column(name)}")
        else:
            value = sql_types.truncate_to_milliseconds(sql_types.column(inputs.new.columns[place]), kind)
            parts.append(f"{value} AS {sql_types.column(name)}")
    return f"SELECT {', '.join(parts)}, monotonically_increasing_id() AS {POSITION} FROM {NEW}"


def sort_time_sql(inputs: MergeInputs, name: str) -> str:
    """The event time, which the rows call ``name``, to sort by; the source's where a row has none."""
    if pa.types.is_date(inputs.schema.field(inputs.vocab.event_time_column).type):
        return f"coalesce({sql_types.column(name)}, CAST(timestamp_millis({inputs.event_time.ms}L) AS DATE))"
    return f"coalesce(unix_millis(CAST({sql_types.column(name)} AS TIMESTAMP)), {inputs.event_time.ms}L)"


def event_time_filler(inputs: MergeInputs, name: str | None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Makes the event time, which the rows call ``name``, what it will be in the slice.

    It is cut to milliseconds first, and the source's where a row has none: rows are sorted by that.
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
    """The event time of rows that have none."""
    kind = inputs.schema.field(inputs.vocab.event_time_column).type
    return pa.scalar(inputs.event_time.ms, pa.timestamp("ms", "UTC")).cast(kind, safe=False)


EXAMPLES: Final = 5


def key_columns(primary_key: Sequence[str], inputs: MergeInputs) -> list[str]:
    """The names of the key columns as the slice has them."""
    keys: list[str] = []
    for name, place in zip(primary_key, match_columns(inputs.names, list(primary_key)), strict=True):
        if place is None:
            raise InvalidSchema(
                f"the primary key column '{name}' is not there",
                where="merge.primaryKey",
                hint=f"the columns are {', '.join(inputs.names)}",
            )
        if pa.types.is_nested(inputs.schema.field(inputs.names[place]).type):
            raise InvalidSchema(f"column '{name}' is nested: it cannot be a key", where="merge.primaryKey")
        keys.append(inputs.names[place])
    if not keys:
        raise InvalidSchema("the primary key has no columns", where="merge.primaryKey")
    return keys


def check_keys(keys: list[str], inputs: MergeInputs) -> str:
    """A query for the new rows with each key once.

    Raises:
        BadData: a key that is null, or that rows have which are not alike.
    """
    parts = {"n": normalized_rows_sql(inputs)}
    listed, names = sql_types.columns(keys), sql_types.columns(inputs.names)
    rows = inputs.rows(parts, f"SELECT {names} FROM n WHERE {sql_types.any_null(keys)} LIMIT {EXAMPLES}")
    if rows:
        _refuse("has no value in rows", keys, rows)
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
        _refuse("stands in several different rows", keys, rows)
    counts = {"counts": f"SELECT count(*) AS times FROM n GROUP BY {listed}"}
    copies = inputs.rows(parts | counts, "SELECT sum(times - 1) AS copies FROM counts")[0]["copies"]
    inputs.reporter.log(f"{copies:,} rows were exact copies of others and count once", "warning")
    number = f"row_number() OVER (PARTITION BY {listed} ORDER BY {POSITION}) AS odf_copy"
    numbered = f"SELECT *, {number} FROM ({normalized_rows_sql(inputs)})"
    return f"SELECT {names}, {POSITION} FROM ({numbered}) WHERE odf_copy = 1"


def _refuse(problem: str, keys: list[str], rows: list[dict[str, Any]]) -> None:
    examples = " | ".join(
        shorten(", ".join(f"{name}={value}" for name, value in row.items())) for row in rows
    )
    raise BadData(
        f"the primary key {', '.join(keys)} {problem}: {examples}",
        hint="choose a primary key that tells rows apart, or filter the rows in the preprocess query",
    )


_HISTORY: Final = "odf_history"
_NUMBER: Final = pa.int64()


class KeyedMerge:
    """A merge by primary key.

    Args:
        compared: columns whose change makes a row another one, without key and event time; None for all.
        live: keys that were taken away are as good as never seen.
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
        self._place = KeyIndexLocation(
            dataset=inputs.dataset,
            scratch=inputs.scratch,
            hashes=self.hashes,
            history=self._history,
            live=live,
            name=self.hashes.name(live),
            form=self.hashes.form(live, inputs.session.version),
            reporter=inputs.reporter,
        )
        self._index: KeyIndex | None = None
        self._made: Path | None = None

    def open(self) -> KeyIndex:
        """The keys of the dataset."""
        self._index = KeyIndex(self._place)
        return self._index

    def frame(self, how: MergeAttempt, order: str | None = None) -> DataFrame:
        """The new rows with their hashes, and with ``POSITION`` when keys are checked.

        Args:
            how: whether keys are to be checked.
            order: expressions to sort by.

        Raises:
            BadData: keys were to be checked, and are null or stand in different rows.
        """
        new = check_keys(self.keys, self.inputs) if how.check else normalized_rows_sql(self.inputs)
        names = [*self.inputs.names, POSITION] if how.check else self.inputs.names
        query = f"SELECT {sql_types.columns(names)}, {self.hashes.hash_new_rows()} FROM n"
        return self.inputs.select({"n": new}, f"{query} ORDER BY {order}" if order else query)

    def spool(self, *, unique: bool = True) -> KeySorter:
        """A place for the keys of the rows that are written."""
        return KeySorter(self.hashes.columns, self.inputs.scratch, unique=unique)

    def written(
        self, batches: Iterator[pa.RecordBatch], spool: KeySorter, *, taken: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Rows in the order in which they are written, without their hashes: these go into the spool.

        With ``taken`` rows that take others back have hashes too, else they are left out.

        Raises:
            DoubtfulKeys: a key came twice.
        """
        inputs, offset = self.inputs, self.inputs.first_offset
        op, event_time = inputs.vocab.operation_type_column, inputs.vocab.event_time_column
        for batch in batches:
            ones = pa.repeat(pa.scalar(1, _NUMBER), batch.num_rows)
            offsets = pc.cumulative_sum(ones, start=offset - 1)
            offset += batch.num_rows
            columns = {name: batch.column(name) for name in self.hashes.names}
            columns |= {OFFSET: offsets, TIME: times_as_numbers(batch.column(event_time))}
            if op in batch.schema.names:
                kinds = pa.array([Op.APPEND, Op.CORRECT_TO], batch.column(op).type)
                stays = pc.is_in(batch.column(op), kinds)
                if taken:
                    columns[OFFSET] = pc.if_else(stays, offsets, pc.bit_wise_not(offsets))
                else:
                    columns = {name: column.filter(stays) for name, column in columns.items()}
            spool.add([columns[name] for name in self.hashes.columns])
            yield batch.drop_columns(self.hashes.names)
        self._made = self._place.new_file()
        with recheck_keys():
            spool.finish(self._made, form=self._place.form)

    def commit_keys(self, end: int, physical_hash: str) -> None:
        """Remembers the keys of the slice that was written."""
        if self._index is not None and self._made is not None:
            self._index.add(self._made, end, physical_hash)

    def forget(self) -> None:
        """Drops what is remembered of the dataset."""
        self._index = None
        forget(self._place)

    def _history(self, slices: Sequence[SliceSummary]) -> Iterator[pa.RecordBatch]:
        inputs, vocab = self.inputs, self.inputs.vocab
        columns = self.hashes.hash_slice_rows(
            vocab.offset_column, vocab.operation_type_column, vocab.event_time_column
        )
        frame = inputs.select({}, f"SELECT {columns} FROM {_HISTORY}", {_HISTORY: inputs.history(slices)})
        return arrow_batches(frame, inputs.reporter, progress=False)[1]


def uuid_texts(inputs: MergeInputs) -> frozenset[str]:
    """Columns of UUIDs that come in as text."""
    kinds = {name.casefold(): inputs.new.schema[name].dataType.typeName() for name in inputs.new.columns}
    uuids = [name for name in inputs.names if inputs.schema.field(name).type == UUID]
    return frozenset(name for name in uuids if kinds.get(name.casefold()) == "string")


@contextmanager
def recheck_keys() -> Iterator[None]:
    """A key that came twice is looked at again."""
    try:
        yield
    except RepeatedKey:
        raise SuspectKeys from None


def times_as_numbers(times: pa.Array) -> pa.Array:
    """Event times as numbers: days, or milliseconds."""
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.int32()).cast(_NUMBER)
    return cast_lossless(times, pa.field("", TIMESTAMP), 0).cast(_NUMBER)


def check_null_keys(batch: pa.RecordBatch) -> None:
    """Raises:
    DoubtfulKeys: the key of a row is null.
    """
    if batch.column(KEY).null_count:
        raise SuspectKeys


def stored_rows_at(inputs: MergeInputs, offsets: pa.Array) -> Iterator[pa.RecordBatch]:
    """Event time and data columns of the rows at these offsets.

    Args:
        offsets: 64-bit integers, ascending.

    Returns:
        The rows in that order, as the slice's schema has them; a column that an older slice lacks is
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
            raise NotFound("a data slice is missing", where=str(path), hint="see: odf verify")
        places = pc.subtract(offsets[start:stop], row.start)
        for batch in read_rows_at(path, places, inputs.names):
            inputs.reporter.raise_if_cancelled()
            yield _fitted(batch, inputs)


def examples(inputs: MergeInputs, offsets: Sequence[int]) -> list[dict[str, object]]:
    """A few rows, in the order of the offsets that are given."""
    ascending = sorted(offsets)
    rows = [
        row for batch in stored_rows_at(inputs, pa.array(ascending, pa.int64())) for row in batch.to_pylist()
    ]
    found = dict(zip(ascending, rows, strict=True))
    return [found[offset] for offset in offsets]


def _fitted(batch: pa.RecordBatch, inputs: MergeInputs) -> pa.RecordBatch:
    fields = [inputs.schema.field(name).with_nullable(True) for name in inputs.names]
    columns = [
        cast_lossless(batch.column(field.name), field, 0)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
