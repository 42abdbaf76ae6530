"""Rows on their way into a slice: what came in, made to fit, with the system columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyarrow import types

from odf_engine.data.changelog import Op
from odf_engine.data.conform import conform, find_columns
from odf_engine.data.kernels import pc
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter

_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_DAY_NS: Final = 86_400 * 1_000_000_000


def check_event_time(name: str, kind: pa.DataType) -> None:
    """Event times are timestamps or dates.

    Raises:
        InvalidSchema: this one is not.
    """
    if not (types.is_timestamp(kind) or types.is_date(kind)):
        raise InvalidSchema(
            f"the event time column '{name}' is {kind}, not a TIMESTAMP or DATE",
            hint="cast it in the preprocess query, or name another column in SetVocab.eventTimeColumn",
        )


def check_clash(name: str, system_columns: Sequence[str]) -> None:
    """Data columns are named differently from system columns.

    Raises:
        InvalidSchema: this one is not.
    """
    if name.casefold() in [column.casefold() for column in system_columns]:
        raise InvalidSchema(
            f"column '{name}' clashes with the system column of that name",
            hint="give it another name in the preprocess query, or change the vocabulary (SetVocab)",
        )


class SliceRows:
    """Gives rows their place in the slice: from what came in to complete rows, and what is known of them."""

    def __init__(
        self,
        schema: pa.Schema,
        vocab: DatasetVocabulary,
        first_offset: int,
        system_time: Timestamp,
        fallback: Timestamp,
    ) -> None:
        names = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        for name in (*names, vocab.event_time_column):
            if schema.get_field_index(name) < 0:
                raise InvalidSchema(f"the schema of the slice has no column '{name}', or has it twice")
        self.schema = pa.schema(list(schema))
        self._offset, self._op, self._system_time = names
        self._event_time = vocab.event_time_column
        self._first_offset = first_offset
        self._event_type = schema.field(self._event_time).type
        self._body = pa.schema(
            [field for field in schema if field.name not in (self._offset, self._system_time)]
        )
        check_event_time(self._event_time, self._event_type)
        self._system_value = _moment(system_time, schema.field(self._system_time).type)
        self._fallback = _moment(fallback, self._event_type)
        self._seen: pa.Schema | None = None
        self._places: list[int | None] = []
        self.count = 0
        self._least: int | None = None
        self._greatest: int | None = None

    def conformed(self, batches: Iterable[pa.RecordBatch], reporter: Reporter) -> Iterator[pa.RecordBatch]:
        """The rows with all columns but offset and system time, in the types of the schema."""
        row = 0
        for batch in batches:
            reporter.check()
            if self._seen is None or not batch.schema.equals(self._seen):
                self._seen, self._places = batch.schema, self._lookup(batch.schema)
            columns = [
                self._column(batch, place, field, row)
                for place, field in zip(self._places, self._body, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._body)
            row += batch.num_rows

    def _lookup(self, schema: pa.Schema) -> list[int | None]:
        places = find_columns(schema.names, self._body.names)
        for field, place in zip(self._body, places, strict=True):
            if place is None and field.name not in (self._op, self._event_time):
                raise InvalidSchema(
                    f"column '{field.name}' of the dataset's schema is missing in the data",
                    hint=f"the data has: {', '.join(schema.names)}",
                )
        for index, name in enumerate(schema.names):
            if index not in places:
                check_clash(name, (self._offset, self._system_time))
                raise InvalidSchema(
                    f"column '{name}' is not in the dataset's schema",
                    hint=f"the schema has: {', '.join(self._body.names)}",
                )
        return places

    def _column(self, batch: pa.RecordBatch, place: int | None, field: pa.Field, row: int) -> pa.Array:
        if field.name == self._op:
            return self._operations(batch, place, field, row)
        if field.name != self._event_time:
            assert place is not None
            return conform(batch.column(place), field, row)
        if place is None:
            return pa.repeat(self._fallback, batch.num_rows)
        times = conform(batch.column(place), field.with_nullable(True), row)
        return pc.fill_null(times, self._fallback) if times.null_count else times

    def _operations(self, batch: pa.RecordBatch, place: int | None, field: pa.Field, row: int) -> pa.Array:
        append = pa.scalar(Op.APPEND, field.type)
        if place is None:
            return pa.repeat(append, batch.num_rows)
        values = pc.fill_null(conform(batch.column(place), field.with_nullable(True), row), append)
        wrong = pc.index(pc.is_in(values, pa.array(list(Op), field.type)), False).as_py()
        if wrong >= 0:
            raise BadData(
                f"column '{field.name}': {values[wrong]} is not an operation (0 to {max(Op)})",
                where=f"row {row + wrong + 1}",
            )
        return values

    def complete(self, group: pa.RecordBatch) -> pa.RecordBatch:
        """The next rows of the slice, with their offsets and system time."""
        self._notice(group.column(self._event_time))
        rows = group.num_rows
        before = self._first_offset + self.count - 1
        ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
        made = {
            self._offset: lambda kind: pc.cumulative_sum(ones, start=before).cast(kind),
            self._system_time: lambda _: pa.repeat(self._system_value, rows),
        }
        columns = [
            made[field.name](field.type) if field.name in made else group.column(field.name)
            for field in self.schema
        ]
        self.count += rows
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _notice(self, times: pa.Array) -> None:
        extremes = pc.min_max(times.cast(pa.int32() if types.is_date32(times.type) else pa.int64()))
        least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
        self._least = least if self._least is None else min(self._least, least)
        self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)

    @property
    def event_times(self) -> tuple[Timestamp | None, Timestamp | None]:
        """The least and the greatest event time so far."""
        return _timestamp(self._least, self._event_type), _timestamp(self._greatest, self._event_type)


def _unit_ns(kind: pa.DataType) -> int:
    if types.is_date32(kind):
        return _DAY_NS
    return _NS["ms" if types.is_date64(kind) else kind.unit]


def _moment(moment: Timestamp, kind: pa.DataType) -> pa.Scalar:
    """A moment as a value of a timestamp or date column, rounded down."""
    width = pa.int32() if types.is_date32(kind) else pa.int64()
    days = moment.ns // _DAY_NS * _DAY_NS if types.is_date(kind) else moment.ns
    return pa.array([days // _unit_ns(kind)], width).cast(kind)[0]


def _timestamp(value: int | None, kind: pa.DataType) -> Timestamp | None:
    if value is None:
        return None
    try:
        return Timestamp(value * _unit_ns(kind))
    except ValueError as error:
        raise BadData(f"an event time is out of range: {error}") from error
