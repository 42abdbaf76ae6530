"""Statistics of the columns of a dataset."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.atomic_files import evict_oldest
from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import BadData, Cancelled, NotFound
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.scan import Scan
from odf_engine.rows.statistics import compute_statistics, load_statistics, statistics_from_footers
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
    found = compute_statistics(workspace.odf, rows, Heard(), "air")
    assert found.rows == 120
    columns = {column.name: column for column in found.columns}
    assert list(columns) == ["offset", "op", "system_time", "event_time", "station", "pm25", "no2"]
    pm25, station, no2 = columns["pm25"], columns["station"], columns["no2"]
    assert (pm25.nulls, pm25.distinct, pm25.exact) == (24, 96, True)
    assert (pm25.least, pm25.greatest, pm25.mean) == ("0.25", "29.75", 15.0)
    assert (station.least, station.greatest, station.shortest, station.longest) == ("Hill", "Quay", 4, 8)
    assert [(each.value, each.count) for each in station.frequent] == [
        ("Hill", 40), ("Old Town", 40), ("Quay", 40),
    ]  # fmt: skip
    assert (no2.nulls, no2.greatest) == (100, "19")
    assert columns["event_time"].least == "2024-03-01T00:00:00Z"
    assert columns["event_time"].greatest == "2024-03-05T23:00:00Z"
    assert load_statistics(workspace.odf, rows.fingerprint) == found


def test_statistics_read_only_new_rows(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 100))
    compute_statistics(workspace.odf, Scan.of_dataset(air), Heard(), "air")
    append(air, readings(100, 50))
    rows = Scan.of_dataset(air)
    heard = Heard()
    air.slice_path(air.slices()[0]).unlink()  # which is not read again
    grown = compute_statistics(workspace.odf, rows, heard, "air")
    assert heard.rows == [150]
    table = pa.concat_tables([readings(0, 100), readings(100, 50)])
    path = workspace.odf / "all.parquet"
    pq.write_table(table, path)
    anew = compute_statistics(workspace.odf, Scan.of_file(path), Heard())
    assert [column for column in grown.columns if column.name in table.column_names] == anew.columns


def test_replaced_dataset_is_counted_from_the_start(
    workspace: Workspace, air: Dataset, append: Append
) -> None:
    append(air, readings(0, 100))
    rows = Scan.of_dataset(air)
    compute_statistics(workspace.odf, rows, Heard(), "air")
    other = workspace.add(read_manifests(MANIFEST.replace("air", "sea"), "sea.yaml"))[0].dataset
    append(other, readings(7, 30))
    found = compute_statistics(workspace.odf, Scan.of_dataset(other), Heard(), "air")
    assert (found.rows, found.columns[0].distinct) == (30, 30)


def test_damaged_cache_is_recomputed(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 100))
    rows = Scan.of_dataset(air)
    found = compute_statistics(workspace.odf, rows, Heard(), "air")
    for path in (workspace.odf / "cache" / "statistics").iterdir():
        path.write_bytes(b"{}" + path.read_bytes()[:20])
    assert load_statistics(workspace.odf, rows.fingerprint) is None
    assert compute_statistics(workspace.odf, rows, Heard(), "air") == found


def test_cancelled_statistics_leave_no_cache(
    workspace: Workspace, air: Dataset, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(air, readings(0, 50))
    append(air, readings(50, 50))
    rows = Scan.of_dataset(air)
    with pytest.raises(Cancelled):
        compute_statistics(workspace.odf, rows, Heard(stop=50), "air")
    assert not (workspace.odf / "cache" / "statistics").exists()


def test_missing_or_damaged_slice_is_reported(workspace: Workspace, air: Dataset, append: Append) -> None:
    append(air, readings(0, 50))
    path = air.slice_path(air.slices()[0])
    data = path.read_bytes()
    path.write_bytes(data[:200])
    with pytest.raises(BadData, match="cannot be read"):
        compute_statistics(workspace.odf, Scan.of_dataset(air), Heard(), "air")
    path.unlink()
    with pytest.raises(NotFound, match=r"slice .* \(block"):
        compute_statistics(workspace.odf, Scan.of_dataset(air), Heard(), "air")


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
    found = compute_statistics(workspace.odf, Scan.of_dataset(air), Heard(), "air")
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
