"""Statistics of the columns of a dataset."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.atomic_files import evict_oldest
from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import to_text
from odf_engine.errors import BadData, Cancelled, NotFound
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import (
    MAX_BINS,
    ColumnStatistics,
    compute_statistics,
    load_statistics,
    statistics_from_footers,
)
from odf_engine.workspace.workspace import Workspace
from tests.workspace.conftest import Append

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: air
  kind: Root
  metadata: []
"""
NIGHT = datetime(2024, 3, 1, tzinfo=UTC)


@pytest.fixture
def air(workspace: Workspace) -> Dataset:
    return workspace.add(read_manifests(MANIFEST, "air.yaml"))[0].dataset


def readings(first: int, count: int, **more: list[object]) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "event_time": pa.array([NIGHT + timedelta(hours=n) for n in numbers], pa.timestamp("ms", "UTC")),
            "station": [("Quay", "Old Town", "Hill")[n % 3] for n in numbers],
            "pm25": [None if n % 5 == 0 else n / 4 for n in numbers],
            **more,
        }
    )


def counted(table: pa.Table) -> list[ColumnStatistics]:
    """The statistics of a table, read from a file in small batches."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(table, path, row_group_size=7)
        return compute_statistics(Path(folder), Scan.of_file(path), Reporter()).columns


class Heard(Reporter):
    """Remembers amounts; stops when so many rows were counted."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.stop = stop

    def set_amounts(self, **amounts: int | None) -> None:
        self.rows.append(amounts["rows"] or 0)
        if self.stop is not None and self.rows[-1] >= self.stop:
            self.cancel()


def test_statistics_describe_every_column(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 100))
    append(air, readings(100, 20, no2=list(range(20))))  # a column that came later
    rows = Scan.of_dataset(air)
    assert load_statistics(workspace.odf, rows.fingerprint) is None
    found = compute_statistics(workspace.odf, rows, Heard())
    assert found.rows == 120
    columns = {column.name: column for column in found.columns}
    assert list(columns) == ["offset", "op", "system_time", "event_time", "station", "pm25", "no2"]
    pm25, station, no2 = columns["pm25"], columns["station"], columns["no2"]
    assert (pm25.nulls, pm25.distinct) == (24, 96)
    assert (pm25.least, pm25.greatest, pm25.mean) == ("0.25", "29.75", 15.0)
    assert (station.least, station.greatest, station.shortest, station.longest) == ("Hill", "Quay", 4, 8)
    assert [(each.value, each.count) for each in station.frequent] == [
        ("Hill", 40), ("Old Town", 40), ("Quay", 40),
    ]  # fmt: skip
    assert (no2.nulls, no2.greatest) == (100, "19")
    assert columns["event_time"].least == "2024-03-01T00:00:00Z"
    assert columns["event_time"].greatest == "2024-03-05T23:00:00Z"
    assert load_statistics(workspace.odf, rows.fingerprint) == found


def test_statistics_do_not_depend_on_slices(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 100))
    before = compute_statistics(workspace.odf, Scan.of_dataset(air), Heard())
    append(air, readings(100, 50))
    heard = Heard()
    grown = compute_statistics(workspace.odf, Scan.of_dataset(air), heard)
    assert (before.rows, heard.rows) == (100, [0, 100, 150])
    table = pa.concat_tables([readings(0, 100), readings(100, 50)])
    assert [column for column in grown.columns if column.name in table.column_names] == counted(table)


def test_cached_statistics_read_no_rows(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 100))
    rows, heard = Scan.of_dataset(air), Heard()
    statistics = compute_statistics(workspace.odf, rows, Heard())
    air.slice_path(air.slices()[0]).unlink()
    assert compute_statistics(workspace.odf, rows, heard) == statistics
    assert heard.rows == []


def test_damaged_cache_is_recomputed(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 100))
    rows = Scan.of_dataset(air)
    found = compute_statistics(workspace.odf, rows, Heard())
    for path in (workspace.odf / "cache" / "statistics").iterdir():
        path.write_bytes(b"{}" + path.read_bytes()[:20])
    assert load_statistics(workspace.odf, rows.fingerprint) is None
    assert compute_statistics(workspace.odf, rows, Heard()) == found


def test_cancelled_statistics_leave_no_cache(
    workspace: Workspace, air: Dataset, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(air, readings(0, 50))
    append(air, readings(50, 50))
    rows = Scan.of_dataset(air)
    with pytest.raises(Cancelled):
        compute_statistics(workspace.odf, rows, Heard(stop=50))
    assert not (workspace.odf / "cache" / "statistics").exists()


_TEXTS = st.text("aáß\0é中😀 ", max_size=3)
_QUARTERS = st.integers(-100, 10_000).map(lambda number: number / 4)
_FLOATS = _QUARTERS | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf])
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): _TEXTS,
    pa.dictionary(pa.int32(), pa.string()): _TEXTS,
    pa.binary(): st.binary(max_size=3),
    pa.binary(2): st.sampled_from([b"\0\0", b"\0\1", b"\xff\0"]),
    pa.float64(): _FLOATS,
    pa.float32(): _FLOATS,
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40),
    pa.uint64(): st.sampled_from([0, 1, 2**64 - 1]),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 2): st.sampled_from([Decimal("0.00"), Decimal("-1.10"), Decimal(10) ** 35]),
    pa.decimal256(70, 1): st.sampled_from([Decimal(10) ** 60 + n for n in range(3)] + [Decimal("-0.5")]),
    pa.date32(): st.dates(date(1950, 1, 1), date(2100, 1, 1)),
    pa.timestamp("ns", "UTC"): st.integers(-(2**62), 2**62),
    pa.time64("ns"): st.integers(0, 1000),
}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_statistics_equal_a_simple_model(data: st.DataObject) -> None:
    data_type = data.draw(st.sampled_from(list(_VALUES)))
    pool = data.draw(st.lists(_VALUES[data_type], min_size=1, max_size=8))
    values = data.draw(st.lists(st.none() | st.sampled_from(pool) | _VALUES[data_type], max_size=30))
    (column,) = counted(pa.table({"a": pa.array(values, data_type)}))
    known: list[Any] = [
        value + 0 if isinstance(value, float) else value for value in values if value is not None
    ]
    known = [value for value in known if value == value]  # not NaN
    assert column.nulls == values.count(None)
    assert column.not_numbers == len(values) - values.count(None) - len(known)
    counts = Counter(known)
    order = sorted(counts)
    assert column.distinct == len(order)
    assert [column.least, column.greatest] == texts(order[:1] + order[-1:] or [None, None], data_type)
    top = sorted(order, key=lambda value: -counts[value])[:20]
    assert [value.value for value in column.frequent] == texts(top, data_type)
    assert [value.count for value in column.frequent] == [counts[value] for value in top]
    has_length = (
        pa.types.is_string(data_type) or pa.types.is_dictionary(data_type) or data_type == pa.binary()
    )
    lengths: list[int] = [len(value) for value in order] if has_length else []
    assert (column.shortest, column.longest) == (min(lengths, default=None), max(lengths, default=None))
    numbers = _numbers(known, data_type)
    if numbers is None or pa.types.is_temporal(data_type):
        assert column.mean is None
    elif numbers and len(numbers) == len(known):
        mean = float(sum(numbers) / len(numbers))
        largest = float(max(map(abs, numbers)))
        assert column.mean == pytest.approx(mean, rel=1e-9, abs=1e-12 * largest)
    is_whole = pa.types.is_integer(data_type) or pa.types.is_temporal(data_type)
    narrowest = Fraction(1) if is_whole else Fraction(1, 2**60)
    assert column.bins == _bins([Fraction(float(number)) for number in numbers or []], narrowest)


def texts(values: Sequence[object], data_type: pa.DataType) -> list[str | None]:
    return to_text(pa.array(values, data_type)).to_pylist()


def _numbers(values: Sequence[Any], data_type: pa.DataType) -> list[Fraction] | None:
    """The finite numbers; of times, their numbers in the column. None for other types."""
    if pa.types.is_date32(data_type):
        return [Fraction((value - date(1970, 1, 1)).days) for value in values]
    types = pa.types
    if not (
        types.is_temporal(data_type)
        or any(test(data_type) for test in (types.is_integer, types.is_floating, types.is_decimal))
    ):
        return None
    return [Fraction(value) for value in values if not isinstance(value, float) or math.isfinite(value)]


def _bins(numbers: list[Fraction], width: Fraction) -> list[int]:
    """Counts in the narrowest bins whose width is a power of two, and at least a width."""
    while numbers and max(numbers) // width - min(numbers) // width >= MAX_BINS:
        width *= 2
    counts = Counter(number // width for number in numbers)
    return [counts[bin_] for bin_ in range(min(counts), max(counts) + 1)] if counts else []


def test_many_distinct_values_are_counted_exactly(tmp_path: Path) -> None:
    names = [f"visit {number}" if number % 4 else "walk-in" for number in range(200_000)]
    path, heard = tmp_path / "rows.parquet", Heard()
    pq.write_table(pa.table({"a": names, "b": [f"{'x' * 300}{name}" for name in names]}), path)
    short, long = compute_statistics(tmp_path, Scan.of_file(path), heard).columns
    assert (short.distinct, short.shortest, short.longest) == (150_001, 7, 12)
    first, second = short.frequent[:2]
    assert (first.value, first.count, second.value, second.count) == ("walk-in", 50_000, "visit 1", 1)
    assert (long.distinct, long.shortest, long.greatest) == (150_001, 307, "x" * 200)
    assert heard.rows == sorted(heard.rows) and heard.rows[-1] == 200_000  # the columns are read in turn


@pytest.mark.parametrize(
    ("data_type", "values", "mean"),
    [
        (pa.int64(), [2**62, 2**62, 2**62], 2.0**62),
        (pa.int64(), [2**63 - 1, -(2**63)], -0.5),
        (pa.uint64(), [2**64 - 1, 2**64 - 3], 2.0**64),
        (pa.int64(), [-(2**63), 5, None], -(2.0**62)),
        (pa.decimal128(38, 2), [Decimal("9" * 36 + ".00")] * 3, 1e36),
    ],
)
def test_sums_do_not_overflow(data_type: pa.DataType, values: list[object], mean: float) -> None:
    (column,) = counted(pa.table({"a": pa.array(values, data_type)}))
    assert column.mean == pytest.approx(mean)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.list_(pa.int32()), [1, 2]),
        (pa.struct([("a", pa.int32())]), {"a": 1}),
        (pa.null(), None),
        (pa.duration("us"), timedelta(seconds=1)),
    ],
    ids=str,
)
def test_type_without_order_has_no_min_and_max(data_type: pa.DataType, value: object) -> None:
    (column,) = counted(pa.table({"a": pa.array([value, None], data_type)}))
    assert (column.distinct, column.least, column.frequent, column.bins) == (None, None, [], [])
    assert column.nulls == (2 if value is None else 1)
    assert column.longest == (2 if pa.types.is_list(data_type) else None)


def test_times_of_unusual_years_are_counted() -> None:
    far = pa.array([2**62, 0], pa.int64()).view(pa.timestamp("us", "UTC"))  # no year that Python knows
    (column,) = counted(pa.table({"a": far}))
    assert column.least == "1970-01-01T00:00:00Z" and str(2**62) in (column.greatest or "")
    assert sum(column.bins) == 2


@pytest.mark.parametrize("values", [[0.0], [-1.7e308, 1.7e308], [5e-324, 1.0], [1e300] * 3, [7.0, 7.5]])
def test_histogram_counts_extreme_values(values: list[float]) -> None:
    (column,) = counted(pa.table({"a": pa.array([*values, math.inf, None], pa.float64())}))
    assert sum(column.bins) == len(values)
    assert len(column.bins) <= MAX_BINS


def test_missing_or_damaged_slice_is_reported(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 50))
    path = air.slice_path(air.slices()[0])
    data = path.read_bytes()
    path.write_bytes(data[:200])
    with pytest.raises(BadData, match="cannot be read"):
        compute_statistics(workspace.odf, Scan.of_dataset(air), Heard())
    path.unlink()
    with pytest.raises(NotFound, match=r"slice .* \(block"):
        compute_statistics(workspace.odf, Scan.of_dataset(air), Heard())


def test_statistics_from_footers_omit_inexact_bounds(air: Dataset, append: Append) -> None:
    append(air, readings(0, 100))
    append(air, readings(100, 20, no2=list(range(20))))
    told = {column.name: column for column in statistics_from_footers(Scan.of_dataset(air)).columns}
    assert (told["offset"].least, told["offset"].greatest) == ("0", "119")
    assert told["event_time"].greatest == "2024-03-05T23:00:00Z"
    assert (told["no2"].nulls, told["no2"].least, told["no2"].greatest) == (100, "0", "19")
    # Such ends may not be exact, or there may be others.
    assert (told["station"].nulls, told["station"].least) == (0, None)
    assert (told["pm25"].nulls, told["pm25"].least) == (24, None)
    assert told["pm25"].distinct is None
    air.slice_path(air.slices()[0]).unlink()
    columns = statistics_from_footers(Scan.of_dataset(air)).columns
    assert [(column.name, column.nulls) for column in columns][-1] == ("no2", None)


def test_dataset_without_rows_has_no_column_statistics(workspace: Workspace, air: Dataset) -> None:
    found = compute_statistics(workspace.odf, Scan.of_dataset(air), Heard())
    assert (found.rows, found.columns) == (0, [])


def test_oldest_cache_files_are_evicted(tmp_path: Path) -> None:
    import os

    for number in range(6):
        path = tmp_path / str(number)
        path.write_bytes(b"x" * 10)
        os.utime(path, (number, number))
    evict_oldest(tmp_path, 4, 1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3", "4", "5"]
    evict_oldest(tmp_path, 4, 25)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]
    evict_oldest(tmp_path, 4, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["5"]


def test_old_temporary_cache_files_are_removed(tmp_path: Path) -> None:
    import os

    (tmp_path / ".keys-old").mkdir()
    (tmp_path / ".keys-old" / "1").write_bytes(b"x")
    for name in (".new-old", ".new-fresh"):
        (tmp_path / name).write_bytes(b"x")
    for name in (".keys-old", ".new-old"):
        os.utime(tmp_path / name, (0, 0))
    evict_oldest(tmp_path, 4, 1000)
    assert [path.name for path in tmp_path.iterdir()] == [".new-fresh"]
