"""Column statistics: exact, cached for each version of a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from odf_engine.base.arrow import pa, pc, pq, types
from odf_engine.base.atomic_files import evict_oldest, read_small_file, replace_file
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import decode_array, decoded_type, is_list_like, to_text
from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.errors import OdfError
from odf_engine.rows.database import Database, comparable, open_database

if TYPE_CHECKING:
    from odf_engine.rows.scan import Scan


VERSION: Final = 2
MAX_BINS: Final = 24
_MIN_EXPONENT: Final = -1000
_MEMORY: Final = 192 << 20
"""Limit of the database, in bytes: the process then needs less than 600 MB."""
_ROWS_OF_PASS: Final = 100_000
"""Columns are read one after the other if files have more rows. It takes less than opening them all again."""
_MAX_FREQUENT: Final = 20
_MAX_TEXT: Final = 200
_MAX_STORED: Final = 264
_MAX_FILES: Final = 64
_FILES: Final = 200
_BYTES: Final = 200_000_000


class FrequentValue(msgspec.Struct, frozen=True):
    """A value as text, and its count."""

    value: str
    count: int


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a column. Values are texts as in CSV; None is unknown.

    Attributes:
        nulls: number of nulls; ``not_numbers``: number of NaN values.
        distinct: number of distinct values.
        shortest, longest: characters of texts, bytes of binary values, items of lists.
        frequent: most frequent first.
        bins: counts in intervals of equal width of the range of numbers and times.
    """

    name: str
    type: str
    nulls: int | None = None
    not_numbers: int = 0
    distinct: int | None = None
    least: str | None = None
    greatest: str | None = None
    mean: float | None = None
    shortest: int | None = None
    longest: int | None = None
    frequent: list[FrequentValue] = []
    bins: list[int] = []


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of all columns."""

    rows: int
    columns: list[ColumnStatistics]
    version: int = VERSION


def statistics_path(odf: Path, fingerprint: str) -> Path:
    """Return the path of the cached statistics of rows with a fingerprint."""
    return odf / "cache" / "statistics" / f"{fingerprint}.json"


def load_statistics(odf: Path, fingerprint: str) -> Statistics | None:
    """Return the cached statistics of rows, or None."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        statistics = msgspec.json.decode(read_small_file(statistics_path(odf, fingerprint)), type=Statistics)
        return statistics if statistics.version == VERSION else None
    return None


def compute_statistics(odf: Path, rows: Scan, reporter: Reporter) -> Statistics:
    """Return the cached statistics of rows, or count all rows.

    Args:
        odf: the workspace's ``.odf`` folder, which contains the cache.
        rows: the rows.
        reporter: receives rows, and can cancel.

    Raises:
        NotFound, BadData: rows cannot be read.
        OdfError: the temporary files need more space than the disk has.
        Cancelled: the reporter was cancelled.
    """
    if (known := load_statistics(odf, rows.fingerprint)) is not None:
        return known
    reporter.phase("count")
    names, columns = rows.schema.names, list[ColumnStatistics]()
    passes = rows.row_count // (_ROWS_OF_PASS * max(len(rows.files), 1))
    width = max(-(-len(names) // max(passes, 1)), 1)
    with open_database(odf / "cache", reporter, _MEMORY) as database:
        for first in range(0, len(names), width):
            scan = rows.select(names[first : first + width])
            values = ", ".join(_stored_values(at, field.type) for at, field in enumerate(scan.schema))
            parts = _parts(scan, reporter, first / len(names), len(scan.schema) / len(names))
            database.execute(f"CREATE OR REPLACE TABLE data AS SELECT {values} FROM parts", parts=parts)
            columns += [_Column(database, at, field).statistics() for at, field in enumerate(scan.schema)]
    statistics = Statistics(rows.row_count, columns)
    path = statistics_path(odf, rows.fingerprint)
    replace_file(path, msgspec.json.encode(statistics))
    evict_oldest(path.parent, _FILES, _BYTES)
    return statistics


def _parts(rows: Scan, reporter: Reporter, start: float, share: float) -> Iterator[pa.Table]:
    """Yield the values that are counted, as columns ``c0``, ``c1``, …. The first table is empty.

    Args:
        rows: the rows, with the columns of a pass.
        reporter: receives rows, as many as all passes have read on average.
        start, share: the fractions of the columns before the pass and in the pass.
    """
    names = [f"c{at}" for at in range(len(rows.schema))]
    done, total = 0, rows.row_count
    for batch in chain([pa.RecordBatch.from_pylist([], rows.schema)], rows.batches(reporter)):
        yield pa.table([_counted_values(column) for column in batch.columns], names)
        done += batch.num_rows
        reporter.set_amounts(rows=round(start * total + share * done), total_rows=total)
        reporter.raise_if_cancelled()


def _counted_values(column: pa.Array) -> pa.Array:
    """Return values that DuckDB orders as this program does: numbers, texts or bytes.

    Lists become their lengths. Of other values without an order only the nulls are counted.
    """
    column = decode_array(column)
    data_type = column.type
    if types.is_floating(data_type):
        wide = pa.float32() if types.is_float16(data_type) else data_type
        return pc.add(column.cast(wide), pa.scalar(0, wide))  # -0.0 equals 0.0
    if types.is_decimal256(data_type):
        return column.view(pa.decimal256(76, 0)).cast(pa.string())
    if is_list_like(data_type):
        return pc.list_value_length(column)
    if not _has_order(data_type):
        return pc.if_else(column.is_valid(), True, pa.scalar(None, pa.bool_()))
    return column if _is_text(data_type) else comparable(column)


def _stored_values(at: int, data_type: pa.DataType) -> str:
    """Return the columns that are stored for a column: its values ``c0`` and perhaps lengths ``n0``.

    The hash of a long value is stored instead of the end, which is not shown.
    """
    name, data_type = f"c{at}", decoded_type(data_type)
    if types.is_decimal256(data_type):
        return f"{name}::BIGNUM AS {name}"
    if _is_text(data_type):
        short = f"left({name}, {_MAX_TEXT}) || sha256({name})"
        length = f"length({name})"
    elif types.is_binary(data_type) or types.is_large_binary(data_type):
        short = f"unhex(left(hex({name}), {_MAX_TEXT}) || sha256({name}))"
        length = f"octet_length({name})"
    else:
        return f"{name}, {name} AS n{at}" if is_list_like(data_type) else name
    return f"CASE WHEN {length} > {_MAX_STORED} THEN {short} ELSE {name} END AS {name}, {length} AS n{at}"


def _has_order(data_type: pa.DataType) -> bool:
    """Whether values have a minimum and a maximum, and can be counted."""
    bare = types.is_duration(data_type) or types.is_interval(data_type) or types.is_null(data_type)
    return not (bare or types.is_nested(data_type))


def _has_length(data_type: pa.DataType) -> bool:
    is_bytes = types.is_binary(data_type) or types.is_large_binary(data_type)
    return is_bytes or _is_text(data_type) or is_list_like(data_type)


def _is_text(data_type: pa.DataType) -> bool:
    return types.is_string(data_type) or types.is_large_string(data_type)


class _Column:
    """A column of the table ``data``, whose values are counted in the table ``counts``."""

    def __init__(self, database: Database, position: int, field: pa.Field) -> None:
        self._database = database
        self._field = field
        self._type = data_type = decoded_type(field.type)
        self._value, self._length = f"c{position}", f"n{position}"
        self._is_integer = types.is_integer(data_type)
        is_number = self._is_integer or types.is_floating(data_type) or types.is_decimal(data_type)
        self._is_number = is_number
        self._has_bins = is_number or types.is_temporal(data_type)

    def statistics(self) -> ColumnStatistics:
        """Count the values, and return their statistics."""
        value, lengths = self._value, ""
        if _has_length(self._type):
            length = self._length
            lengths = f", min({length})::BIGINT AS shortest, max({length})::BIGINT AS longest"
        not_number = f"coalesce(isnan({value}), false)" if types.is_floating(self._type) else "false"
        (facts,) = self._rows(f"""
            SELECT count(*) - count({value}) AS nulls, count(*) FILTER ({not_number}) AS not_numbers
                {lengths} FROM data""")
        statistics = ColumnStatistics(name=self._field.name, type=str(self._field.type), **facts)
        if not _has_order(self._type):
            return statistics
        self._database.execute(f"""
            CREATE OR REPLACE TABLE counts AS SELECT {value} AS value, count(*) AS rows FROM data
            WHERE {value} IS NOT NULL AND NOT {not_number} GROUP BY ALL""")
        return self._with_values(statistics)

    def _with_values(self, statistics: ColumnStatistics) -> ColumnStatistics:
        """Add what is known of values that have an order."""
        least, greatest = self._values("unnest([min(value), max(value)])", "count(*)")
        distinct = least.count
        top = f"ORDER BY counts.rows DESC, counts.value LIMIT {_MAX_FREQUENT}"
        return replace(
            statistics,
            distinct=distinct,
            least=least.value if distinct else None,
            greatest=greatest.value if distinct else None,
            mean=self._mean() if self._is_number else None,
            frequent=self._values("value", "rows", top),
            bins=self._bins() if self._has_bins else [],
        )

    @property
    def _number(self) -> str:
        """The value as a 64-bit floating point number."""
        scale = self._type.scale if types.is_decimal256(self._type) else 0
        return f"value::DOUBLE / 1e{scale}" if scale else "value::DOUBLE"

    def _mean(self) -> float | None:
        if not self._is_integer:
            (row,) = self._rows(f"SELECT sum({self._number} * rows) / sum(rows) AS mean FROM counts")
            return row["mean"]
        # The sum of integers is exact. It has no type in Arrow.
        sql = "SELECT sum(value::HUGEINT * rows)::VARCHAR AS total, sum(rows)::BIGINT AS rows FROM counts"
        (row,) = self._rows(sql)
        return int(row["total"]) / row["rows"] if row["rows"] else None

    def _bins(self) -> list[int]:
        """Return the histogram of finite numbers and times."""
        numbers = f"(SELECT {self._number} AS number, rows FROM counts WHERE isfinite({self._number}))"
        (ends,) = self._rows(f"SELECT min(number) AS low, max(number) AS high FROM {numbers}")
        if ends["low"] is None:
            return []
        is_float = types.is_floating(self._type) or types.is_decimal(self._type)
        exponent = _smallest_exponent(ends["low"], ends["high"], _MIN_EXPONENT if is_float else 0)
        counts = self._rows(f"""
            SELECT floor(number * {math.ldexp(1.0, -exponent)!r}::DOUBLE)::BIGINT AS bin,
                sum(rows)::BIGINT AS rows
            FROM {numbers} GROUP BY bin ORDER BY bin""")
        known = {row["bin"]: row["rows"] for row in counts}
        return [known.get(at, 0) for at in range(min(known), max(known) + 1)]

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        return [row for batch in self._database.query(sql) for row in batch.to_pylist()]

    def _values(self, value: str, count: str, order: str = "") -> list[FrequentValue]:
        """Return values of the table ``counts`` as texts, shortened."""
        is_wide = types.is_decimal256(self._type)
        cast = "::VARCHAR" if is_wide else ""
        values: list[FrequentValue] = []
        for batch in self._database.query(f"SELECT {value}{cast} AS value, {count} FROM counts {order}"):
            column, counts = batch.columns
            if is_wide:
                column = column.cast(pa.decimal256(76, 0)).view(self._type)
            elif types.is_temporal(self._type):
                column = column.cast(self._type)
            texts = [(text or "")[:_MAX_TEXT] for text in to_text(column).to_pylist()]
            values += map(FrequentValue, texts, counts.to_pylist())
        return values


def _smallest_exponent(low: float, high: float, narrowest: int) -> int:
    """Return the smallest exponent that divides the range into at most :data:`MAX_BINS` bins.

    The bins are as wide as two to the power of the exponent, and begin at multiples of their width.
    """
    half = high / 2 - low / 2
    largest = max(abs(low), abs(high))
    # The numbers of bins must fit in 64-bit integers.
    floor = max(narrowest, math.frexp(largest)[1] - 52 if largest else 0)
    exponent = floor if half <= 0 else max(floor, math.frexp(half / MAX_BINS)[1])
    while math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= MAX_BINS:
        exponent += 1
    return max(exponent, _MIN_EXPONENT)


def statistics_from_footers(rows: Scan) -> Statistics:
    """Return the statistics in the footers of files, without decoding rows.

    These are nulls, and bounds of numbers and times, if all files declare them.
    """
    footers: list[pq.FileMetaData] = []
    try:
        for part in rows.files[:_MAX_FILES]:
            with part.open() as file:
                footers.append(file.metadata)
    except OdfError:  # readers of the rows raise it; the columns are known anyway
        footers.clear()
    whole = len(footers) == len(rows.files)
    columns: list[ColumnStatistics] = []
    for field in rows.schema:
        try:
            columns.append(_footer_statistics(field, footers if whole else None))
        except (*parquet_errors(), ValueError, OverflowError):  # texts that are not UTF-8, dates out of range
            columns.append(_footer_statistics(field, None))
    return Statistics(rows.row_count, columns)


def _footer_statistics(field: pa.Field, footers: Sequence[pq.FileMetaData] | None) -> ColumnStatistics:
    unknown = ColumnStatistics(name=field.name, type=str(field.type))
    if footers is None:
        return unknown
    nulls = 0
    ends: list[Any] = []
    for metadata in footers:
        names = metadata.schema.to_arrow_schema().names
        groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        if field.name not in names:
            nulls += metadata.num_rows
            continue
        for group in groups:
            entry = next((chunk for chunk in _chunks(group) if chunk.path_in_schema == field.name), None)
            about = entry.statistics if entry is not None else None
            if about is None or not about.has_null_count:
                return unknown
            nulls += about.null_count
            if about.has_min_max:
                ends += [about.min, about.max]
            elif about.null_count < group.num_rows:
                ends = [None]
    unknown = replace(unknown, nulls=nulls)
    # Bounds of texts may be truncated, and those of floating point numbers ignore NaN.
    exact = types.is_integer(field.type) or types.is_temporal(field.type) or types.is_decimal(field.type)
    if not exact or not ends or None in ends:
        return unknown
    low, high = to_text(pa.array([min(ends), max(ends)], field.type)).to_pylist()
    return replace(unknown, least=low, greatest=high)


def _chunks(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    return (group.column(at) for at in range(group.num_columns))
