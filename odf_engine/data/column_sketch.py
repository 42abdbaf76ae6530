"""A one-pass sketch of a column: counts, extremes, heavy hitters, distinct count, histogram."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import types

from odf_engine.data.arrow_compute import decode_array, hash_values, is_list_like, pc
from odf_engine.data.histogram import Histogram

MAX_EXACT_VALUES: Final = 8192
"""Up to so many different values are counted exactly."""
_MAX_BYTES: Final = 2 << 20
_MAX_HASHES: Final = 4096
_ALL_HASHES: Final = 2.0**64


class ColumnSketch:
    """One column.

    Attributes:
        kind: the type of its values.
        rows, nulls: how many there are.
        not_numbers: floating point values that are no numbers; nothing else counts them.
        ends: the least and the greatest value; None when there are none, or they have no order.
        total: of numbers.
        shortest, longest: characters of texts, bytes of binary values, items of lists.
        lost: 0 as long as the counts of values are exact.
        histogram: of numbers and times.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind = pa.float32() if types.is_float16(kind) else kind
        self.rows = self.nulls = self.not_numbers = self.lost = 0
        self.ends: pa.Array | None = None
        self.total: Any = 0
        self.shortest: int | None = None
        self.longest: int | None = None
        self.histogram = Histogram()
        self._counts = pa.table({"value": pa.array([], kind), "count": pa.array([], pa.int64())})
        self._hashes = pa.array([], pa.uint64())

    @property
    def is_number(self) -> bool:
        """Whether its values have a mean."""
        return types.is_integer(self.kind) or types.is_floating(self.kind) or types.is_decimal(self.kind)

    @property
    def has_order(self) -> bool:
        """Whether its values have a least and a greatest, and can be counted."""
        kind = self.kind
        bare = types.is_duration(kind) or types.is_interval(kind) or types.is_null(kind)
        return not (bare or is_list_like(kind) or types.is_nested(kind))

    @property
    def values(self) -> int:
        """How many values there are: neither null nor what is no number."""
        return self.rows - self.nulls - self.not_numbers

    def add(self, array: pa.Array) -> None:
        """Takes in values of the column."""
        array = decode_array(array)
        self.rows += len(array)
        self.nulls += array.null_count
        array = array.drop_null()
        if types.is_floating(self.kind):
            numbers = array.cast(self.kind).filter(pc.invert(pc.is_nan(array)))
            self.not_numbers += len(array) - len(numbers)
            array = pc.add(numbers, pa.scalar(0, self.kind))  # minus zero is zero
        if not len(array):
            return
        self._measure(array)
        if self.has_order:
            self._extend(array)
            self._count(array)
            self._draw(array)

    # --- What is known ---

    def mean(self) -> float | None:
        """The mean of numbers."""
        return float(self.total / self.values) if self.is_number and self.values else None

    def distinct(self) -> tuple[int, bool] | None:
        """How many different values there are, and whether that is exact; None when nobody counted."""
        if not self.has_order:
            return None
        if not self.lost:
            return self._counts.num_rows, True
        kept = len(self._hashes)
        if kept < _MAX_HASHES:
            return kept, False
        return min(round((kept - 1) / (self._hashes[-1].as_py() / _ALL_HASHES)), self.values), False

    def heavy_hitters(self, most: int) -> tuple[pa.Array, list[int]]:
        """The most frequent values and how often they are there, at least; those first that are often."""
        order = [("count", "descending"), ("value", "ascending")]
        counts = self._counts
        if self.lost:  # what could as well be there once says nothing
            counts = counts.filter(pc.greater(counts["count"], self.lost))
        found = counts.take(pc.sort_indices(counts, sort_keys=order)[:most]).combine_chunks()
        return _array(found["value"]), found["count"].to_pylist()

    # --- Taking in ---

    def _measure(self, array: pa.Array) -> None:
        if self.is_number:
            self.total += _sum(array)
        lengths = _lengths(array)
        if lengths is not None:
            least, greatest = (each.as_py() for each in pc.min_max(lengths).values())
            self.shortest = least if self.shortest is None else min(self.shortest, least)
            self.longest = greatest if self.longest is None else max(self.longest, greatest)

    def _extend(self, array: pa.Array) -> None:
        if types.is_fixed_size_binary(self.kind):
            array = array.cast(pa.binary())
        ends = pa.array(list(pc.min_max(array).values()))
        if self.ends is not None:
            ends = pa.array(list(pc.min_max(pa.concat_arrays([self.ends, ends])).values()))
        self.ends = ends

    def _count(self, array: pa.Array) -> None:
        found = pc.value_counts(array)
        values, counts = found.field(0), found.field(1)
        if self.lost:
            self._remember(values)
        table = pa.table({"value": values, "count": counts})
        if self._counts.num_rows:
            table = pa.concat_tables([self._counts, table]).group_by("value").aggregate([("count", "sum")])
            table = pa.table({"value": table["value"], "count": table["count_sum"]})
        if table.num_rows > MAX_EXACT_VALUES or table.nbytes > _MAX_BYTES:
            if not self.lost:
                self._remember(_array(table["value"]))
            table = self._forget_rare(table)
        self._counts = table

    def _forget_rare(self, table: pa.Table) -> pa.Table:
        """Takes from all counts what the first that has no room has, so that it and rarer ones go away."""
        room = min(MAX_EXACT_VALUES, _MAX_BYTES * table.num_rows // max(table.nbytes, 1) // 2)
        counts = pc.sort_indices(table["count"], sort_keys=[("", "descending")])
        first = table["count"][counts[room].as_py()].as_py()
        self.lost += first
        table = table.set_column(1, "count", pc.subtract(table["count"], first))
        return table.filter(pc.greater(table["count"], 0)).combine_chunks()

    def _remember(self, values: pa.Array) -> None:
        new = hash_values(values)
        if len(self._hashes) == _MAX_HASHES:
            new = new.filter(pc.less(new, self._hashes[-1]))
        if len(new):
            both = pa.concat_arrays([self._hashes, new]).unique()
            self._hashes = both.take(pc.sort_indices(both)[:_MAX_HASHES])

    def _draw(self, array: pa.Array) -> None:
        kind = self.kind
        if types.is_boolean(kind) or not (self.is_number or types.is_temporal(kind)):
            return
        if types.is_temporal(kind):
            array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
        whole = types.is_temporal(kind) or types.is_integer(kind)
        self.histogram.add(pc.cast(array, pa.float64(), safe=False), whole)

    # --- Keeping ---

    def dump(self) -> bytes:
        """All of it as bytes; see :meth:`load`."""
        exact = repr(self.total) if isinstance(self.total, float) else str(self.total)
        kept = _Kept(
            self.rows, self.nulls, self.not_numbers, self.lost, exact, self.shortest, self.longest,
            self.histogram, _bytes(self._counts), _bytes(pa.table({"hash": self._hashes})),
            b"" if self.ends is None else _bytes(pa.table({"value": self.ends})),
        )  # fmt: skip
        return msgspec.msgpack.encode(kept)

    @classmethod
    def load(cls, kind: pa.DataType, data: bytes) -> ColumnSketch:
        """What :meth:`dump` gave for a column of this type.

        Raises:
            ValueError, pa.ArrowException: it is something else.
        """
        kept, found = msgspec.msgpack.decode(data, type=_Kept), cls(kind)
        found.rows, found.nulls = kept.rows, kept.nulls
        found.not_numbers, found.lost = kept.not_numbers, kept.lost
        number = float if types.is_floating(kind) else Decimal if types.is_decimal(kind) else int
        found.total = number(kept.total)
        found.shortest, found.longest, found.histogram = kept.shortest, kept.longest, kept.histogram
        found._counts = _table(kept.counts)
        if found._counts["value"].type != found.kind:
            raise ValueError("it is about another type")
        found._hashes = _array(_table(kept.hashes)["hash"])
        if kept.ends:
            found.ends = _array(_table(kept.ends)["value"])
        return found


class _Kept(msgspec.Struct, array_like=True):
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
    kind = array.type
    if types.is_decimal(kind):  # the sum may have more digits than the type
        wide = pa.decimal256(76, kind.scale)
        return pc.sum(array.cast(wide)).as_py()
    if types.is_integer(kind) and kind.bit_width == 64:  # Arrow's sum would wrap around
        low = pc.sum(pc.bit_wise_and(array, pa.scalar(0xFFFFFFFF, kind))).as_py()
        high = pc.sum(pc.shift_right(array, pa.scalar(32, kind))).as_py()
        return (high << 32) + low
    return pc.sum(array.cast(pa.float64()) if types.is_floating(kind) else array).as_py()


def _lengths(array: pa.Array) -> pa.Array | None:
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        return pc.utf8_length(array)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pc.binary_length(array)
    return pc.list_value_length(array) if is_list_like(kind) else None


def _array(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _table(data: bytes) -> pa.Table:
    table = pa.ipc.open_stream(data).read_all()
    table.validate(full=True)  # Arrow's kernels crash on offsets that are out of bounds
    return table
