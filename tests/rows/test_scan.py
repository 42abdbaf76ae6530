"""Scans: columns, row ranges, value ranges, single rows, damage, cancellation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.parquet.parquet_reader import read_bounded
from odf_engine.errors import BadData, Cancelled, InvalidSchema, NotFound
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DEFAULT_VOCABULARY, DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.scan import Scan
from odf_engine.workspace.workspace import Workspace

HOUR = 3_600_000


@pytest.fixture
def dataset(workspace: Workspace, append: Any) -> Dataset:
    """Three slices of ten rows, one an hour; the last slice has a column more."""
    made = workspace.create_dataset(DatasetAlias.parse("rows"), DatasetKind.Root).dataset
    for start in (0, 10, 20):
        hours = range(start, start + 10)
        times = pa.array([hour * HOUR for hour in hours], pa.timestamp("ms", "UTC"))
        columns = {"event_time": times, "n": pa.array(hours, pa.int64())}
        append(made, pa.table(columns | ({"more": pa.array([str(n) for n in hours])} if start == 20 else {})))
    return made


def numbers(scan: Scan) -> list[int]:
    return scan.select(["n"]).to_arrow()["n"].to_pylist()


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files that are decoded from now on."""
    found: list[str] = []

    def watched(path: Path, *arguments: Any, **options: Any) -> Any:
        found.append(path.name)
        return read_bounded(path, *arguments, **options)

    monkeypatch.setattr("odf_engine.data.parquet.slice_file.read_bounded", watched)
    return found


def test_all_rows_have_the_newest_schema(dataset: Dataset) -> None:
    scan = Scan.of_dataset(dataset)
    table = scan.to_arrow()
    assert table.schema == scan.schema and scan.row_count == scan.end_offset == table.num_rows == 30
    assert table["n"].to_pylist() == table["offset"].to_pylist() == list(range(30))
    assert table["more"].to_pylist() == [None] * 20 + [str(n) for n in range(20, 30)]
    assert [batch.num_rows for batch in scan.batches(max_rows=4)] == [4, 4, 2] * 3
    assert scan.to_reader().read_all() == table
    assert scan.select(["more", "n", "more"]).to_arrow().column_names == ["more", "n"]
    with pytest.raises(KeyError):
        scan.select(["none"])


def test_row_ranges_are_read_in_their_order(dataset: Dataset) -> None:
    scan = Scan.of_dataset(dataset)
    for start in range(0, 31, 3):
        for stop in range(start, 31, 4):
            assert numbers(scan.rows([(start, stop)])) == list(range(start, stop))
    assert numbers(scan.rows([(1, 2), (4, 6), (9, 11), (28, 40)])) == [1, 4, 5, 9, 10, 28, 29]
    assert numbers(scan.rows([(25, 27), (3, 5), (1, 2)])) == [25, 26, 3, 4, 1]
    assert numbers(scan.rows([])) == [] and scan.rows([(5, 7), (9, 30)]).row_count == 23
    parts = scan.rows([(5, 7), (8, 12), (29, 30)]).by_file()
    assert [numbers(part) for part in reversed(parts)] == [[29], [10, 11], [5, 6, 8, 9]]
    assert [numbers(part)[0] for part in scan.by_file()] == [0, 10, 20]


def test_a_row_group_is_decoded_once_for_all_of_its_rows(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dataset.slice_path(dataset.slices()[1])
    pq.write_table(pq.read_table(path), path, row_group_size=4)
    scan, found = Scan.of_dataset(dataset), opened(monkeypatch)
    assert numbers(scan.rows([(10, 11), (12, 13), (14, 15), (16, 18), (19, 20)])) == [10, 12, 14, 16, 17, 19]
    assert found == [path.name] * 3


def test_value_ranges_skip_what_they_exclude(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    scan, found = Scan.of_dataset(dataset), opened(monkeypatch)

    def hour(count: float) -> Timestamp:
        return Timestamp.from_ms(int(count * HOUR))

    assert numbers(scan.where(event_time=(hour(8.5), hour(11)))) == [9, 10]
    assert numbers(scan.where(event_time=(hour(28), None))) == [28, 29]
    assert numbers(scan.where(event_time=(None, hour(1))).where(offsets=(1, None))) == []
    assert numbers(scan.where(offsets=(8, 12)).rows([(0, 9), (11, 30)])) == [8, 11]
    assert len(found) == 2 + 1 + 1 + 2  # of twelve
    assert scan.where(offsets=(5, 6)).select(["more"]).to_arrow().to_pydict() == {"more": [None]}
    moment = scan.to_arrow()["system_time"][10].as_py()
    ms = Timestamp.from_ms(round(moment.timestamp() * 1000))
    after = Timestamp.from_ms(ms.ms + 1)
    same = [row.start for row in dataset.slices() if row.system_time == ms]
    assert numbers(scan.where(system_time=(ms, after)))[::10] == same


def test_a_time_range_needs_a_column_of_times() -> None:
    schema = pa.schema([("offset", pa.uint64()), ("event_time", pa.string())])
    scan = Scan(schema, DEFAULT_VOCABULARY, [], "x")
    with pytest.raises(InvalidSchema, match="invalid type of the event time"):
        scan.where(event_time=(Timestamp.from_ms(0), None))
    with pytest.raises(InvalidSchema, match="column 'system_time' not found"):
        scan.where(system_time=(None, None))
    with pytest.raises(InvalidSchema, match="column 'offset' not found"):
        Scan(pa.schema([]), DEFAULT_VOCABULARY, [], "x").where(offsets=(0, 1))


def test_dates_begin_a_range_at_the_next_day(tmp_path: Path) -> None:
    days = pa.array([0, 1, None, 2, 3], pa.date32())
    pq.write_table(pa.table({"event_time": days, "n": range(5)}), tmp_path / "days.parquet")
    scan = Scan.of_file(tmp_path / "days.parquet")
    assert numbers(scan.where(event_time=(Timestamp.from_ms(HOUR), None))) == [1, 3, 4]
    assert numbers(scan.where(event_time=(None, Timestamp.from_ms(24 * HOUR)))) == [0]
    assert numbers(scan.where(event_time=(None, Timestamp.from_ms(25 * HOUR)))) == [0, 1]


def test_damage_has_typed_errors(dataset: Dataset) -> None:
    first, second, third = (dataset.slice_path(row) for row in dataset.slices())
    first.unlink()
    second.write_bytes(b"not Parquet")
    pq.write_table(pq.read_table(third).slice(0, 9), third)
    scan = Scan.of_dataset(dataset)
    for start, kind, text in ((0, NotFound, "not found"), (10, BadData, "cannot be read")):
        with pytest.raises(kind, match=text) as error:
            scan.rows([(start, start + 1)]).to_arrow()
        assert f"block {dataset.slices()[start // 10].sequence_number}" in (error.value.where or "")
    with pytest.raises(BadData, match="file has 9 rows, but its block declares 10"):
        scan.rows([(20, 21)]).to_arrow()


def test_a_scan_can_be_cancelled(dataset: Dataset) -> None:
    class Stopped(Reporter):
        left = 2

        def raise_if_cancelled(self) -> None:
            self.left -= 1
            if not self.left:
                raise Cancelled

    scan = Scan.of_dataset(dataset)
    with pytest.raises(Cancelled):
        scan.to_arrow(Stopped())
