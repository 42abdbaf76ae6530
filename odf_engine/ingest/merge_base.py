"""What all merge strategies share: the new rows, the history, and how a merge runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.data.conform import conform, find_columns
from odf_engine.data.kernels import pc
from odf_engine.ingest import sql
from odf_engine.ingest.ordering import Order, in_order
from odf_engine.metadata.model import DatasetVocabulary, SqlQueryStep
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.frames import arrow_batches
from odf_engine.spark.query import run_query

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

NEW: Final = "odf_new"
HISTORY: Final = "odf_history"
POSITION: Final = "odf_position"


class DoubtfulKeys(Exception):
    """A primary key was null or there twice: ask again, with ``check``."""


@dataclass(frozen=True)
class Inputs:
    """What a merge needs.

    Attributes:
        new: rows as they came out of preprocessing.
        schema: of the slice.
        history: what the dataset holds, given key columns and whether only keys count that were not
            taken back; with offset and operation; None when there is nothing.
        event_time: for rows that have none.
        small: the new rows are few enough to be sent to every executor.
        changelog: what the new rows call their column of operations, when they bring retractions and
            corrections themselves.
        strict: a known key of a ledger with other values is an error.
        unordered: a query joined or grouped the new rows, so that they come in no order of their own.
    """

    session: SparkSession
    new: DataFrame
    schema: pa.Schema
    vocab: DatasetVocabulary
    history: Callable[[Sequence[str], bool], DataFrame | None]
    event_time: Timestamp
    small: bool
    reporter: Reporter
    changelog: str | None = None
    strict: bool = False
    unordered: bool = False

    @property
    def names(self) -> list[str]:
        """Event time and data columns, in the order of the slice."""
        system = (self.vocab.offset_column, self.vocab.operation_type_column, self.vocab.system_time_column)
        return [name for name in self.schema.names if name not in system]

    def select(self, parts: dict[str, str], query: str, history: DataFrame | None = None) -> DataFrame:
        """The result of a query over named parts, ``odf_new`` and ``odf_history``."""
        frames = {NEW: self.new} | ({HISTORY: history} if history is not None else {})
        named = ", ".join(f"{name} AS ({part})" for name, part in parts.items())
        return run_query(self.session, frames, [SqlQueryStep(query=f"WITH {named} {query}")])

    def rows(self, parts: dict[str, str], query: str) -> list[dict[str, Any]]:
        """All rows of a small result."""
        schema, batches = arrow_batches(self.select(parts, query), self.reporter, progress=False)
        return pa.Table.from_batches(batches, schema).to_pylist()


@dataclass(frozen=True)
class Merged:
    """A merge that is ready to run.

    Attributes:
        make: the frame, given what the new rows are, and whether Spark shall sort it.
        order: how rows are sorted.
        step: what is done with each batch before that.
        plain: the new rows as they are, as a query.
        checked: the same when keys are doubtful: says what is wrong, or takes copies out.
        finish: is called after the last batch.
    """

    make: Callable[[str, bool], DataFrame]
    order: Order
    step: Callable[[pa.RecordBatch], pa.RecordBatch]
    plain: str
    checked: Callable[[], str] | None = None
    finish: Callable[[], None] = lambda: None

    def batches(
        self, reporter: Reporter, *, sort: bool = False, check: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Runs it: the rows to write, in order, with their operations.

        Raises:
            OutOfOrder: ask again, with ``sort``.
            DoubtfulKeys: ask again, with ``check``.
            BadData: null or different rows of one key; the message shows them.
        """
        new = self.checked() if check and self.checked is not None else self.plain
        yield from in_order(partial(self.make, new), self.order, self.step, reporter, sort=sort)
        self.finish()


def normal(inputs: Inputs) -> str:
    """The new rows in the names and precision of the slice, with their position."""
    parts: list[str] = []
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
            moment = pa.scalar(inputs.event_time.ms, pa.timestamp("ms", "UTC")).cast(times.type, safe=False)
            times = pc.fill_null(times, moment)
        return batch.set_column(at, name, times)

    return fill
