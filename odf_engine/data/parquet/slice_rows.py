"""Rows of slices: their common properties, system columns, operations and event times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from odf_engine.base.arrow import pa, pc, types
from odf_engine.base.progress import Reporter
from odf_engine.data.changelog import Op
from odf_engine.data.ddl import timestamp_type, type_ddl
from odf_engine.data.schema_enforcement import cast_lossless, match_columns
from odf_engine.errors import BadData, InvalidSchema
from odf_engine.metadata.model import DatasetVocabulary
from odf_engine.metadata.timestamp import Timestamp

_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_DAY_NS: Final = 86_400 * 1_000_000_000


def check_event_time(name: str, data_type: pa.DataType) -> None:
    """Check that the type of an event time is a timestamp or date.

    Raises:
        InvalidSchema: it is another type.
    """
    if not (types.is_timestamp(data_type) or types.is_date(data_type)):
        raise InvalidSchema(
            f"the event time column '{name}' is a {data_type}, not a TIMESTAMP or DATE",
            hint="cast it in the preprocess query, or set another column in SetVocab.eventTimeColumn",
        )


def check_clash(name: str, system_columns: Sequence[str]) -> None:
    """Check that a data column does not have the name of a system column.

    Raises:
        InvalidSchema: it has.
    """
    if name.casefold() in [column.casefold() for column in system_columns]:
        raise InvalidSchema(
            f"column '{name}' has the name of a system column",
            hint="rename it in the preprocess query, or rename the system column in SetVocab",
        )


def check_system_columns(schema: pa.Schema, vocab: DatasetVocabulary) -> None:
    """Check that a schema has all system columns in types that can be written.

    Raises:
        InvalidSchema: one is missing, nullable or has another type.
    """
    accepted = {
        vocab.offset_column: (pa.int64(), pa.uint64()),
        vocab.operation_type_column: (pa.int32(), pa.uint8()),
        vocab.system_time_column: (timestamp_type(),),
    }
    for name in (*accepted, vocab.event_time_column):
        if len(schema.get_all_field_indices(name)) != 1:
            raise InvalidSchema(
                f"system column '{name}' is missing or repeated in the schema",
                hint="list all system columns once; or none, and they are added",
            )
    for name, kinds in accepted.items():
        field = schema.field(name)
        if field.nullable or field.type not in kinds:
            names = " or ".join(type_ddl(kind) for kind in kinds)
            actual = type_ddl(field.type) + ("" if field.nullable else " NOT NULL")
            raise InvalidSchema(f"system column '{name}' is {actual}, expected {names} NOT NULL")
    check_event_time(vocab.event_time_column, schema.field(vocab.event_time_column).type)


@dataclass(frozen=True)
class SliceProperties:
    """What the rows of new slices have in common.

    Attributes:
        schema: the complete schema of the slices.
        vocab: names of the system columns in it.
        first_offset: offset of the first row.
        system_time: of all rows.
        fallback_event_time: for rows without an event time.
        counted_until: rows with a later event time do not count for the watermark; None: all count.
    """

    schema: pa.Schema
    vocab: DatasetVocabulary
    first_offset: int
    system_time: Timestamp
    fallback_event_time: Timestamp
    counted_until: Timestamp | None = None


class SliceRowBuilder:
    """Completes incoming rows to rows of slices.

    Attributes:
        next_offset: offset of the next row.

    Raises:
        InvalidSchema: a system column is missing, ambiguous, or the event time has another type.
    """

    def __init__(self, properties: SliceProperties) -> None:
        schema, vocab = properties.schema, properties.vocab
        names = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        for name in (*names, vocab.event_time_column):
            if schema.get_field_index(name) < 0:
                raise InvalidSchema(f"column '{name}' is missing or repeated in the schema of the slice")
        self.schema = pa.schema(list(schema))
        self._offset, self._op, self._system_time = names
        self._event_time = vocab.event_time_column
        self.next_offset = properties.first_offset
        self._event_type = schema.field(self._event_time).type
        self._body = pa.schema(
            [field for field in schema if field.name not in (self._offset, self._system_time)]
        )
        check_event_time(self._event_time, self._event_type)
        self._system_value = _moment(properties.system_time, schema.field(self._system_time).type)
        self._fallback = _moment(properties.fallback_event_time, self._event_type)
        self._seen: pa.Schema | None = None
        self._places: list[int | None] = []

    def enforce_schema(
        self, batches: Iterable[pa.RecordBatch], reporter: Reporter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the types of the schema, without offset and system time."""
        row = 0
        for batch in batches:
            reporter.raise_if_cancelled()
            if self._seen is None or not batch.schema.equals(self._seen):
                self._seen, self._places = batch.schema, self._lookup(batch.schema)
            columns = [
                self._column(batch, place, field, row)
                for place, field in zip(self._places, self._body, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._body)
            row += batch.num_rows

    def _lookup(self, schema: pa.Schema) -> list[int | None]:
        places = match_columns(schema.names, self._body.names)
        for field, place in zip(self._body, places, strict=True):
            if place is None and field.name not in (self._op, self._event_time):
                raise InvalidSchema(
                    f"missing column '{field.name}' in the data",
                    hint=f"columns of the data: {', '.join(schema.names)}",
                )
        for index, name in enumerate(schema.names):
            if index not in places:
                check_clash(name, (self._offset, self._system_time))
                raise InvalidSchema(
                    f"unknown column '{name}': not in the schema of the dataset",
                    hint=f"columns of the schema: {', '.join(self._body.names)}",
                )
        return places

    def _column(self, batch: pa.RecordBatch, place: int | None, field: pa.Field, row: int) -> pa.Array:
        if field.name == self._op:
            return self._operations(batch, place, field, row)
        if field.name != self._event_time:
            assert place is not None
            return cast_lossless(batch.column(place), field, row)
        if place is None:
            return pa.repeat(self._fallback, batch.num_rows)
        times = cast_lossless(batch.column(place), field.with_nullable(True), row)
        return pc.fill_null(times, self._fallback) if times.null_count else times

    def _operations(self, batch: pa.RecordBatch, place: int | None, field: pa.Field, row: int) -> pa.Array:
        append = pa.scalar(Op.APPEND, field.type)
        if place is None:
            return pa.repeat(append, batch.num_rows)
        values = pc.fill_null(cast_lossless(batch.column(place), field.with_nullable(True), row), append)
        wrong = pc.index(pc.is_in(values, pa.array(list(Op), field.type)), False).as_py()
        if wrong >= 0:
            raise BadData(
                f"column '{field.name}': invalid operation {values[wrong]} (valid: 0 to {max(Op)})",
                where=f"row {row + wrong + 1}",
            )
        return values

    def add_system_columns(self, group: pa.RecordBatch) -> pa.RecordBatch:
        """Return the next rows of the slices, with their offsets and system time."""
        rows, before = group.num_rows, self.next_offset - 1
        ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
        builders = {
            self._offset: lambda kind: pc.cumulative_sum(ones, start=before).cast(kind),
            self._system_time: lambda _: pa.repeat(self._system_value, rows),
        }
        columns = [
            builders[field.name](field.type) if field.name in builders else group.column(field.name)
            for field in self.schema
        ]
        self.next_offset += rows
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def ends_correction(self, group: pa.RecordBatch) -> bool:
        """Return whether the last row is not the first half of a correction, which has two rows."""
        return group.column(self._op)[-1].as_py() != Op.CORRECT_FROM


class EventTimes:
    """The event times of a slice.

    Attributes:
        rows_ahead: number of rows that do not count for the watermark.

    Args:
        data_type: type of the event time.
        counted_until: rows with a later event time do not count for the watermark; None: all count.
    """

    def __init__(self, data_type: pa.DataType, counted_until: Timestamp | None) -> None:
        self._type = data_type
        self._counted_until = None if counted_until is None else counted_until.ns // _unit_ns(data_type)
        self._min: int | None = None
        self._max: int | None = None
        self._max_counted: int | None = None
        self.rows_ahead = 0

    def update(self, times: pa.Array) -> None:
        """Add rows; none of them is null."""
        values = times.cast(pa.int32() if types.is_date32(times.type) else pa.int64())
        extremes = pc.min_max(values)
        low, high = extremes["min"].as_py(), extremes["max"].as_py()
        self._min = low if self._min is None else min(self._min, low)
        self._max = high if self._max is None else max(self._max, high)
        if self._counted_until is not None and high > self._counted_until:
            counted = values.filter(pc.less_equal(values, pa.scalar(self._counted_until, pa.int64())))
            self.rows_ahead += len(values) - len(counted)
            high = pc.max(counted).as_py()
        if high is not None and (self._max_counted is None or high > self._max_counted):
            self._max_counted = high

    def add(self, other: EventTimes) -> None:
        """Add the rows of other event times."""
        self._min = _extreme(min, self._min, other._min)
        self._max = _extreme(max, self._max, other._max)
        self._max_counted = _extreme(max, self._max_counted, other._max_counted)
        self.rows_ahead += other.rows_ahead

    @property
    def min(self) -> Timestamp | None:
        """The minimum so far."""
        return _timestamp(self._min, self._type)

    @property
    def max(self) -> Timestamp | None:
        """The maximum so far."""
        return _timestamp(self._max, self._type)

    @property
    def max_counted(self) -> Timestamp | None:
        """The maximum so far of the rows that count for the watermark, or None without such rows."""
        return _timestamp(self._max_counted, self._type)


def _extreme(choose: Callable[[int, int], int], first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else choose(first, second)


def _unit_ns(data_type: pa.DataType) -> int:
    if types.is_date32(data_type):
        return _DAY_NS
    return _NS["ms" if types.is_date64(data_type) else data_type.unit]


def _moment(moment: Timestamp, data_type: pa.DataType) -> pa.Scalar:
    """Return a time as a value of a timestamp or date column, rounded down."""
    width = pa.int32() if types.is_date32(data_type) else pa.int64()
    days = moment.ns // _DAY_NS * _DAY_NS if types.is_date(data_type) else moment.ns
    return pa.array([days // _unit_ns(data_type)], width).cast(data_type)[0]


def _timestamp(value: int | None, data_type: pa.DataType) -> Timestamp | None:
    if value is None:
        return None
    try:
        return Timestamp(value * _unit_ns(data_type))
    except ValueError as error:
        raise BadData(f"event time out of range: {error}") from error
