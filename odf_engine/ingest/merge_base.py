"""What all merge strategies share: the new rows, and how a merge runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.chain.chain import Dataset, SliceRow
from odf_engine.data.conform import conform, find_columns
from odf_engine.data.kernels import pc
from odf_engine.errors import BadData, NotFound
from odf_engine.ingest import sql
from odf_engine.ingest.key_file import DamagedKeys
from odf_engine.ingest.ordering import OutOfOrder
from odf_engine.metadata.model import DatasetVocabulary, SqlQueryStep
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.frames import arrow_batches
from odf_engine.spark.query import run_query
from odf_engine.spark.readers import spark_path
from odf_engine.spark.types import spark_schema

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

NEW: Final = "odf_new"
POSITION: Final = "odf_position"


class TryAgain(Exception):
    """Nothing is wrong with the data: ask the merge for its rows once more."""


class DoubtfulKeys(Exception):
    """A primary key was null or there twice: what is wrong has to be looked for."""


@dataclass(frozen=True)
class Inputs:
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

    def history(self, slices: Sequence[SliceRow]) -> DataFrame:
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
class How:
    """What was learnt from attempts: let Spark sort the rows; look for what is wrong with their keys."""

    sort: bool = False
    check: bool = False
    damaged: bool = False


class Merged:
    """A merge that is ready to run.

    Args:
        run: the rows to write, in order, with their operations.
        reporter: hears what was learnt.
        keep: remembers the keys, given the last offset and the hash of the slice that was committed.
        forget: drops what was remembered, when it is damaged.
    """

    def __init__(
        self,
        run: Callable[[How], Iterator[pa.RecordBatch]],
        reporter: Reporter,
        *,
        keep: Callable[[int, str], None] = lambda end, physical_hash: None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._reporter = reporter
        self._keep = keep
        self._forget = forget
        self._how = How()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Runs it.

        Raises:
            TryAgain: what came so far does not count.
            BadData: null or different rows of one key, and the like; the message shows them.
        """
        try:
            yield from self._run(self._how)
        except OutOfOrder:
            self._reporter.line("the rows are not in the order of their event time: they are sorted")
            self._how.sort = True
        except DoubtfulKeys:
            if self._how.check:
                raise BadData(
                    "the rows are other ones each time they are computed",
                    hint="take what is random out of the preprocess query",
                ) from None
            self._how.check = True
        except DamagedKeys:
            if self._how.damaged:
                raise
            self._reporter.line("the keys that were remembered are damaged: they are made anew", "warning")
            self._how.damaged = True
            self._forget()
        else:
            return
        raise TryAgain

    def committed(self, end: int, physical_hash: str) -> None:
        """The rows are a slice now, up to offset ``end``: their keys are remembered for the next merge.

        It may fail, and nothing is lost then.
        """
        try:
            self._keep(end, physical_hash)
        except (DamagedKeys, OSError) as error:
            self._forget()
            self._reporter.line(f"the keys could not be remembered: {error}", "debug")


def normal(inputs: Inputs, more: Mapping[str, str] | None = None) -> str:
    """The new rows in the names and precision of the slice, with their position; ``more`` are further
    columns by name."""
    parts = [f"{value} AS {name}" for name, value in (more or {}).items()]
    for name, place in zip(inputs.names, find_columns(inputs.new.columns, inputs.names), strict=True):
        kind = inputs.schema.field(name).type
        if place is None or inputs.new.schema[place].dataType.typeName() == "void":
            parts.append(f"{sql.null(kind, name)} AS {sql.column(name)}")
        else:
            value = sql.in_milliseconds(sql.column(inputs.new.columns[place]), kind)
            parts.append(f"{value} AS {sql.column(name)}")
    return f"SELECT {', '.join(parts)}, monotonically_increasing_id() AS {POSITION} FROM {NEW}"


def time_of(inputs: Inputs, name: str) -> str:
    """The event time, which the rows call ``name``, to sort by; the source's where a row has none."""
    if pa.types.is_date(inputs.schema.field(inputs.vocab.event_time_column).type):
        return f"coalesce({sql.column(name)}, CAST(timestamp_millis({inputs.event_time.ms}L) AS DATE))"
    return f"coalesce(unix_millis(CAST({sql.column(name)} AS TIMESTAMP)), {inputs.event_time.ms}L)"


def filler(inputs: Inputs, name: str | None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Makes the event time, which the rows call ``name``, what it will be in the slice.

    It is cut to milliseconds first, and the source's where a row has none: rows are sorted by that.
    """
    target = inputs.schema.field(inputs.vocab.event_time_column).with_nullable(True)

    def fill(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(name) if name is not None else -1
        if at < 0:
            return batch
        times = conform(batch.column(at), target, 0)
        if times.null_count:
            times = pc.fill_null(times, fallback(inputs))
        return batch.set_column(at, name, times)

    return fill


def fallback(inputs: Inputs) -> pa.Scalar:
    """The event time of rows that have none."""
    kind = inputs.schema.field(inputs.vocab.event_time_column).type
    return pa.scalar(inputs.event_time.ms, pa.timestamp("ms", "UTC")).cast(kind, safe=False)
