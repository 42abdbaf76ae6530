"""NaN is greater than every number in filters, although the statistics of slices do not count it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.readers import slices_frame
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving
from tests.derive.test_datafusion import Fused

_SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("ms", "UTC")),
        ("x", pa.int64()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.struct([("d", pa.float64())])),
    ]
)
_NUMBERS = (math.nan, -0.0, 0.5, None)
"""By x."""


def _append(deriving: Deriving, entry: DatasetEntry, numbers: tuple[float | None, ...] = _NUMBERS) -> None:
    columns = {
        "event_time": pa.array([1704067200000] * len(numbers), pa.timestamp("ms", "UTC")),
        "x": pa.array(range(len(numbers)), pa.int64()),
        "d": pa.array(numbers, pa.float64()),
        "f": pa.array(numbers, pa.float32()),
        "s": pa.array([{"d": number} for number in numbers], pa.struct([("d", pa.float64())])),
        "op": pa.array([0] * len(numbers), pa.int32()),
    }
    deriving.batch(entry, pa.record_batch(columns), 1704067200000)


@pytest.fixture(params=["spark", "datafusion"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Deriving]:
    if request.param == "spark":
        return lambda: request.getfixturevalue("deriving")
    pytest.importorskip("datafusion")
    return lambda: Fused(Workspace.init(tmp_path / "fused"))


_FILTERS = {
    "d > 1": [0], "f > 1": [0], "s.d > 1": [0], "NOT d < 1": [0], "d = CAST('NaN' AS DOUBLE)": [0],
    "f < 0.25": [1], "d >= 0": [0, 1, 2], "d <= 0": [1], "d = 0": [1],
}  # fmt: skip


def test_filters_keep_nan_and_negative_zero(engine: Callable[[], Deriving]) -> None:
    deriving, filters = engine(), _FILTERS
    if isinstance(deriving, Fused):  # DataFusion orders -0.0 before 0.0
        filters = {
            name.replace("s.d", "s['d']"): rows for name, rows in filters.items() if "0" not in name[:6]
        }
    root = deriving.root("a", _SCHEMA)
    branches = [
        f"SELECT event_time, x, {number} AS filter FROM a WHERE {condition}"
        for number, condition in enumerate(filters)
    ]
    entry = deriving.derivative(" UNION ALL ".join(branches), "a")
    _append(deriving, root)
    deriving.run(entry)
    rows = deriving.result(entry, "filter", "x")
    for number, (condition, expected) in enumerate(filters.items()):
        assert sorted(x for at, x in rows if at == number) == expected, condition


@pytest.mark.parametrize(
    "query",
    [
        "SELECT max(event_time) AS event_time, d, count(*) AS x FROM a GROUP BY d HAVING d > 1",
        "SELECT max(event_time) AS event_time, d, count(*) AS x FROM a\n"
        "WHERE x IN (SELECT x FROM a) GROUP BY d HAVING d > 1",
    ],
)
@pytest.mark.complete
def test_filters_of_stored_groups_keep_nan(deriving: Deriving, query: str) -> None:
    root, entry = deriving.root("a", _SCHEMA), deriving.derivative(query, "a")
    for _ in range(2):
        _append(deriving, root)
        deriving.run(entry)
    assert deriving.result(entry, "x")[-1] == (2,)


def test_source_files_keep_nan(runtime: SparkRuntime, tmp_path: Path) -> None:
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"d": [math.nan, 0.5]}), path)
    assert parquet_frame(runtime.session(), [path]).where("d > 1").count() == 1
    schema = pa.schema([("d", pa.float64()), ("offset", pa.int64()), ("op", pa.int32())])
    frame = slices_frame(runtime.session(), [path], schema, DEFAULT_VOCABULARY)
    assert frame.where("d > 1").count() == 1
