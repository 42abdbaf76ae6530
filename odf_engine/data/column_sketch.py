"""A one-pass sketch of a column: counts, extremes, heavy hitters, distinct count, histogram."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

from odf_engine.base.arrow import pa, pc, types
from odf_engine.data.arrow_compute import decode_array, hash_values, is_list_like
from odf_engine.data.histogram import Histogram

MAX_EXACT_VALUES: Final = 8192
"""Maximum number of distinct values that are counted exactly."""
_MAX_BYTES: Final = 2 << 20
_MAX_HASHES: Final = 4096
_ALL_HASHES: Final = 2.0**64


class ColumnSketch:
    """Statistics of one column.

    Attributes:
        data_type: the type of its values.
        rows, nulls: number of rows and of nulls.
        not_numbers: number of NaN values; no other statistic counts them.
        ends: minimum and maximum, or None if there are no values, or they have no order.
        total: sum of numbers.
        shortest, longest: characters of texts, bytes of binary values, items of lists.
        lost: 0 while the counts of values are exact; otherwise how much a count may be too low.
        histogram: of numbers and times.
    """

    def __init__(self, data_type: pa.DataType) -> None:
        self.data_type = data_type = pa.float32() if types.is_float16(data_type) else data_type
        self.rows = self.nulls = self.not_numbers = self.lost = 0
        self.ends: pa.Array | None = None
        self.total: Any = 0
        self.shortest: int | None = None
        self.longest: int | None = None
        self.histogram = Histogram()
        self._counts = pa.table({"value": pa.array([], data_type), "count": pa.array([], pa.int64())})
        self._hashes = pa.array([], pa.uint64())

    @property
    def is_number(self) -> bool:
        """Whether its values have a mean."""
        return (
            types.is_integer(self.data_type)
            or types.is_floating(self.data_type)
            or types.is_decimal(self.data_type)
        )

    @property
    def has_order(self) -> bool:
        """Whether its values have a minimum and a maximum, and can be counted."""
        data_type = self.data_type
        bare = types.is_duration(data_type) or types.is_interval(data_type) or types.is_null(data_type)
        return not (bare or is_list_like(data_type) or types.is_nested(data_type))

    @property
    def values(self) -> int:
        """Number of values that are neither null nor NaN."""
        return self.rows - self.nulls - self.not_numbers

    def add(self, array: pa.Array) -> None:
        """Add values of the column."""
        array = decode_array(array)
        self.rows += len(array)
        self.nulls += array.null_count
        array = array.drop_null()
        if types.is_floating(self.data_type):
            numbers = array.cast(self.data_type).filter(pc.invert(pc.is_nan(array)))
            self.not_numbers += len(array) - len(numbers)
            array = pc.add(numbers, pa.scalar(0, self.data_type))  # -0.0 equals 0.0
        if not len(array):
            return
        self._update_totals(array)
        if self.has_order:
            self._update_ends(array)
            self._update_counts(array)
            self._update_histogram(array)

    def mean(self) -> float | None:
        """Return the mean of numbers."""
        return float(self.total / self.values) if self.is_number and self.values else None

    def distinct(self) -> tuple[int, bool] | None:
        """Return the number of distinct values and whether it is exact, or None if they are not counted."""
        if not self.has_order:
            return None
        if not self.lost:
            return self._counts.num_rows, True
        kept = len(self._hashes)
        if kept < _MAX_HASHES:
            return kept, False
        return min(round((kept - 1) / (self._hashes[-1].as_py() / _ALL_HASHES)), self.values), False

    def heavy_hitters(self, max_values: int) -> tuple[pa.Array, list[int]]:
        """Return the most frequent values and a lower bound of their counts, most frequent first.

        Args:
            max_values: the maximum number of values.
        """
        order = [("count", "descending"), ("value", "ascending")]
        counts = self._counts
        if self.lost:  # the others may have occurred only once
            counts = counts.filter(pc.greater(counts["count"], self.lost))
        top = counts.take(pc.sort_indices(counts, sort_keys=order)[:max_values]).combine_chunks()
        return _array(top["value"]), top["count"].to_pylist()

    def _update_totals(self, array: pa.Array) -> None:
        if self.is_number:
            self.total += _sum(array)
        lengths = _lengths(array)
        if lengths is not None:
            min_length, max_length = (scalar.as_py() for scalar in pc.min_max(lengths).values())
            self.shortest = min_length if self.shortest is None else min(self.shortest, min_length)
            self.longest = max_length if self.longest is None else max(self.longest, max_length)

    def _update_ends(self, array: pa.Array) -> None:
        if types.is_fixed_size_binary(self.data_type):
            array = array.cast(pa.binary())
        ends = pa.array(list(pc.min_max(array).values()))
        if self.ends is not None:
            ends = pa.array(list(pc.min_max(pa.concat_arrays([self.ends, ends])).values()))
        self.ends = ends

    def _update_counts(self, array: pa.Array) -> None:
        value_counts = pc.value_counts(array)
        values, counts = value_counts.field(0), value_counts.field(1)
        if self.lost:
            self._add_hashes(values)
        table = pa.table({"value": values, "count": counts})
        if self._counts.num_rows:
            table = pa.concat_tables([self._counts, table]).group_by("value").aggregate([("count", "sum")])
            table = pa.table({"value": table["value"], "count": table["count_sum"]})
        if table.num_rows > MAX_EXACT_VALUES or table.nbytes > _MAX_BYTES:
            if not self.lost:
                self._add_hashes(_array(table["value"]))
            table = self._evict_rare(table)
        self._counts = table

    def _evict_rare(self, table: pa.Table) -> pa.Table:
        """Subtract the count of the first value that exceeds the limit from all counts (Misra-Gries).

        Values whose count reaches zero are removed.
        """
        room = min(MAX_EXACT_VALUES, _MAX_BYTES * table.num_rows // max(table.nbytes, 1) // 2)
        counts = pc.sort_indices(table["count"], sort_keys=[("", "descending")])
        first = table["count"][counts[room].as_py()].as_py()
        self.lost += first
        table = table.set_column(1, "count", pc.subtract(table["count"], first))
        return table.filter(pc.greater(table["count"], 0)).combine_chunks()

    def _add_hashes(self, values: pa.Array) -> None:
        new = hash_values(values)
        if len(self._hashes) == _MAX_HASHES:
            new = new.filter(pc.less(new, self._hashes[-1]))
        if len(new):
            both = pa.concat_arrays([self._hashes, new]).unique()
            self._hashes = both.take(pc.sort_indices(both)[:_MAX_HASHES])

    def _update_histogram(self, array: pa.Array) -> None:
        data_type = self.data_type
        if types.is_boolean(data_type) or not (self.is_number or types.is_temporal(data_type)):
            return
        if types.is_temporal(data_type):
            array = array.view(pa.int64() if data_type.bit_width == 64 else pa.int32())
        integral = types.is_temporal(data_type) or types.is_integer(data_type)
        self.histogram.add(pc.cast(array, pa.float64(), safe=False), integral)

    def dump(self) -> bytes:
        """Serialize the sketch; see :meth:`load`."""
        exact = repr(self.total) if isinstance(self.total, float) else str(self.total)
        kept = _Serialized(
            self.rows, self.nulls, self.not_numbers, self.lost, exact, self.shortest, self.longest,
            self.histogram, _bytes(self._counts), _bytes(pa.table({"hash": self._hashes})),
            b"" if self.ends is None else _bytes(pa.table({"value": self.ends})),
        )  # fmt: skip
        return msgspec.msgpack.encode(kept)

    @classmethod
    def load(cls, data_type: pa.DataType, data: bytes) -> ColumnSketch:
        """Deserialize the output of :meth:`dump` for a column of this type.

        Raises:
            ValueError: other data.
        """
        try:
            return cls._load(data_type, data)
        except (msgspec.MsgspecError, LookupError, OSError, ArithmeticError, pa.ArrowException) as error:
            raise ValueError("not the sketch of a column") from error

    @classmethod
    def _load(cls, data_type: pa.DataType, data: bytes) -> ColumnSketch:
        kept, sketch = msgspec.msgpack.decode(data, type=_Serialized), cls(data_type)
        sketch.rows, sketch.nulls = kept.rows, kept.nulls
        sketch.not_numbers, sketch.lost = kept.not_numbers, kept.lost
        number = float if types.is_floating(data_type) else Decimal if types.is_decimal(data_type) else int
        sketch.total = number(kept.total)
        sketch.shortest, sketch.longest, sketch.histogram = kept.shortest, kept.longest, kept.histogram
        sketch._counts = _table(kept.counts)
        if sketch._counts["value"].type != sketch.data_type:
            raise ValueError("the sketch is of another type")
        sketch._hashes = _array(_table(kept.hashes)["hash"])
        if kept.ends:
            sketch.ends = _array(_table(kept.ends)["value"])
        return sketch


class _Serialized(msgspec.Struct, array_like=True):
    rows: int
    nulls: int
    not_numbers: int
    lost: int
    total: str
    shortest: int | None
    longest: int | None
    histogram: Histogram
    counts: bytes
    hashes: bytes
    ends: bytes


def _sum(array: pa.Array) -> Any:
    data_type = array.type
    if types.is_decimal(data_type):  # the sum may have more digits than the type
        wide = pa.decimal256(76, data_type.scale)
        return pc.sum(array.cast(wide)).as_py()
    if types.is_integer(data_type) and data_type.bit_width == 64:  # Arrow's sum would wrap around
        low = pc.sum(pc.bit_wise_and(array, pa.scalar(0xFFFFFFFF, data_type))).as_py()
        high = pc.sum(pc.shift_right(array, pa.scalar(32, data_type))).as_py()
        return (high << 32) + low
    return pc.sum(array.cast(pa.float64()) if types.is_floating(data_type) else array).as_py()


def _lengths(array: pa.Array) -> pa.Array | None:
    data_type = array.type
    if types.is_string(data_type) or types.is_large_string(data_type):
        return pc.utf8_length(array)
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return pc.binary_length(array)
    return pc.list_value_length(array) if is_list_like(data_type) else None


def _array(column: pa.ChunkedArray) -> pa.Array:
    chunk = column.combine_chunks()
    return chunk if isinstance(chunk, pa.Array) else pa.concat_arrays(chunk.chunks)


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _table(data: bytes) -> pa.Table:
    table = pa.ipc.open_stream(data).read_all()
    table.validate(full=True)  # Arrow's kernels crash on offsets that are out of bounds
    return table
