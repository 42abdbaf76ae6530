"""What is said of columns after one look at their values."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.data import column_sketch as sketch_module
from odf_engine.data.arrow_compute import hash_values
from odf_engine.data.column_sketch import ColumnSketch
from odf_engine.data.histogram import MAX_BINS, Histogram

NUMBERS = st.lists(st.one_of(st.none(), st.floats(allow_infinity=False), st.sampled_from([0.0, 1.5, -3.0])))


def sketched(*arrays: pa.Array) -> ColumnSketch:
    sketch = ColumnSketch(arrays[0].type)
    for array in arrays:
        sketch.add(array)
    return sketch


@given(NUMBERS, st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_few_values_are_counted_exactly_however_they_come(values: list[float | None], cut: int) -> None:
    column = pa.array(values, pa.float64())
    found = ColumnSketch.load(pa.float64(), sketched(column[:cut]).dump())  # kept in between
    found.add(column[cut:])
    there = [value for value in values if value is not None and not math.isnan(value)]
    assert found.nulls == values.count(None)
    assert found.not_numbers == len(values) - found.nulls - len(there)
    assert found.distinct() == (len(set(there)), True)
    if not there:
        assert found.ends is None and found.mean() is None
        return
    assert found.ends.to_pylist() == [min(there), max(there)]
    assert found.mean() == pytest.approx(sum(there) / len(there), nan_ok=True, rel=1e-6, abs=1e290)
    frequent = dict(zip(*[list(each) for each in _pairs(found)], strict=True))
    assert frequent == {value: Counter(there)[value] for value in frequent}
    assert sum(found.histogram.counts()) == len(there)
    assert len(found.histogram.counts()) <= MAX_BINS


def _pairs(found: ColumnSketch) -> tuple[list[float], list[int]]:
    values, counts = found.heavy_hitters(5)
    assert counts == sorted(counts, reverse=True)
    return values.to_pylist(), counts


def test_many_values_are_estimated_and_the_frequent_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_module, "MAX_EXACT_VALUES", 200)
    texts = [f"visit {number}" if number % 4 else "walk-in" for number in range(40_000)]
    parts = [pa.array(texts[at : at + 3000]) for at in range(0, 40_000, 3000)]
    found = sketched(*parts)
    distinct, exact = found.distinct() or (0, True)
    assert not exact
    assert distinct == pytest.approx(30_001, rel=0.06)
    values, counts = found.heavy_hitters(3)
    assert values.to_pylist() == ["walk-in"]
    assert 10_000 - found.lost <= counts[0] <= 10_000
    assert (found.shortest, found.longest) == (7, 11)
    again = ColumnSketch.load(pa.string(), found.dump())
    assert again.distinct() == found.distinct() and again.heavy_hitters(3)[1] == counts


def test_long_texts_are_estimated_in_bounded_size() -> None:
    found = sketched(
        *(pa.array([f"{number}{'x' * 100_000}" for number in range(at, at + 30)]) for at in (0, 30))
    )
    assert found.distinct() == (60, False)
    assert len(found.dump()) < 1_500_000


@pytest.mark.parametrize(
    ("kind", "values", "mean"),
    [
        (pa.int64(), [2**62, 2**62, 2**62], 2.0**62),
        (pa.uint64(), [2**64 - 1, 2**64 - 3], 2.0**64),
        (pa.int64(), [-(2**63), 5, None], -(2.0**62)),
        (pa.decimal128(38, 2), [Decimal("9" * 36 + ".00")] * 3, 1e36),
    ],
)
def test_sums_do_not_overflow(kind: pa.DataType, values: list[object], mean: float) -> None:
    assert sketched(pa.array(values, kind)).mean() == pytest.approx(mean)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int32()), [1, 2]),
        (pa.struct([("a", pa.int32())]), {"a": 1}),
        (pa.null(), None),
        (pa.duration("us"), timedelta(seconds=1)),
        (pa.month_day_nano_interval(), (1, 2, 3)),
    ],
    ids=str,
)
def test_type_without_order_has_no_min_and_max(kind: pa.DataType, value: object) -> None:
    found = sketched(pa.array([value, None], kind))
    assert found.distinct() is None and found.ends is None
    assert found.nulls == (2 if value is None else 1)
    assert found.longest == (2 if pa.types.is_list(kind) else None)


def test_timestamps_have_min_max_and_histogram() -> None:
    first = datetime(2024, 3, 1, tzinfo=UTC)
    times = pa.array([first + timedelta(hours=hour) for hour in range(240)], pa.timestamp("ms", "UTC"))
    found = sketched(times)
    assert found.ends.to_pylist() == [first, first + timedelta(hours=239)]
    assert found.mean() is None
    assert sum(found.histogram.counts()) == 240
    far = pa.array([2**62], pa.int64()).view(pa.timestamp("us", "UTC"))  # no year that Python knows
    assert len(sketched(far).ends) == 2


def test_histogram_does_not_depend_on_batches() -> None:
    values = [(-1) ** number * 1.07**number for number in range(300)]
    whole, parts = Histogram(), Histogram()
    whole.add(pa.array(values), integral=False)
    for at in range(0, 300, 7):
        parts.add(pa.array(values[at : at + 7]), integral=False)
    assert whole == parts
    assert sum(whole.counts()) == 300


@pytest.mark.parametrize("values", [[0.0], [-1.7e308, 1.7e308], [5e-324, 1.0], [1e300] * 3, [7.0, 7.5]])
def test_histogram_counts_extreme_values(values: list[float]) -> None:
    found = Histogram()
    found.add(pa.array([*values, float("inf"), None], pa.float64()), integral=False)
    assert sum(found.counts()) == len(values)
    assert len(found.counts()) <= MAX_BINS


def test_hashes_are_alike_for_equal_values_only() -> None:
    texts = pa.array([f"s-{number:06d}" for number in range(5000)])
    assert len(hash_values(texts).unique()) == 5000
    assert hash_values(texts.dictionary_encode()) == hash_values(texts)
    assert len(hash_values(pa.array([0.0, -0.0, None, None])).unique()) == 2
    # They are written down: another version has to give the same.
    assert hash_values(pa.array([1])).to_pylist() == [hash_values(pa.array([1], pa.int8()))[0].as_py()]
    assert hash_values(pa.array([1], pa.uint64())).to_pylist() == [10451216379200822465]
