"""Rows are found by offset and time without reading those that cannot be it, and past what is broken."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.chain.dataset import Dataset
from odf_engine.data.parquet.slice_file import SliceFile
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DatasetKind
from odf_engine.rows.row_window import (
    RowWindowReader,
    UnreadableRange,
    row_at_time,
    row_of_offset,
    to_column_value,
)
from odf_engine.workspace.workspace import Workspace

HOUR = 3_600_000


@pytest.fixture
def dataset(workspace: Workspace, append: Any) -> Dataset:
    """Three slices of ten hours each; the second one goes back in time."""
    made = workspace.create_dataset(DatasetAlias.parse("rows"), DatasetKind.Root).dataset
    for start, hours in ((0, range(10)), (10, range(9, -1, -1)), (20, range(20, 30))):
        times = pa.array([hour * HOUR for hour in hours], pa.timestamp("ms", "UTC"))
        append(made, pa.table({"event_time": times, "n": pa.array(range(start, start + 10))}))
    return made


def at(hour: int, minute: int = 0) -> datetime:
    return datetime.fromtimestamp(hour * 3600 + minute * 60, UTC)


def test_rows_are_found_by_time(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    preview = RowWindowReader(dataset)

    def row(moment: datetime) -> int | None:
        return row_at_time(preview, moment, "event_time", lambda: False)

    assert [row(at(0)), row(at(3)), row(at(3, 1)), row(at(9))] == [0, 3, 4, 9]
    assert row(at(29)) == 29 and row(at(29, 1)) is None
    read: list[int] = []
    whole = SliceFile.read

    def watched(self: SliceFile, group: int, columns: list[str], rows: range) -> pa.Table:
        read.append(group)
        return whole(self, group, columns, rows)

    monkeypatch.setattr(SliceFile, "read", watched)
    assert row_at_time(RowWindowReader(dataset), at(12), "event_time", lambda: False) == 20
    assert len(read) == 1
    assert row_at_time(preview, at(3), "event_time", lambda: True) is None


def test_time_within_a_day_is_rounded_up_to_the_next_date() -> None:
    assert to_column_value(datetime(2024, 3, 1, tzinfo=UTC), pa.date32()).as_py() == date(2024, 3, 1)
    assert to_column_value(datetime(2024, 3, 1, 0, 1, tzinfo=UTC), pa.date32()).as_py() == date(2024, 3, 2)


def test_rows_are_found_by_offset(dataset: Dataset) -> None:
    preview = RowWindowReader(dataset)
    assert [row_of_offset(preview, n, "offset") for n in (0, 9, 10, 29, 30)] == [0, 9, 10, 29, None]
    path = dataset.slice_path(dataset.slices()[1])
    pq.write_table(pq.read_table(path).take([9, 8, 7, 6, 5, 4, 3, 2, 1, 0]), path)
    assert row_of_offset(RowWindowReader(dataset), 12, "offset") == 17


def test_unreadable_slice_is_a_gap_in_the_window(dataset: Dataset) -> None:
    dataset.slice_path(dataset.slices()[1]).unlink()
    preview = RowWindowReader(dataset)
    table, gaps = preview.window_with_gaps(8, 14, ["n", "offset"])
    assert table.column_names == ["n", "offset"]
    assert table["n"].to_pylist() == [8, 9, *[None] * 10, 20, 21]
    assert [(gap.start, gap.stop) for gap in gaps] == [(10, 20)] and "missing" in gaps[0].problem
    assert preview.window_with_gaps(12, 3, ["n"])[1] == [UnreadableRange(12, 15, gaps[0].problem)]
    assert row_at_time(preview, at(9, 1), "event_time", lambda: False) == 20
    assert [(group.start, group.stop) for group in preview.groups("n")] == [(0, 10), (20, 30)]


def test_only_requested_columns_are_decoded(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    whole = SliceFile.read

    def watched(self: SliceFile, group: int, columns: list[str], rows: range) -> pa.Table:
        read.append(columns)
        return whole(self, group, columns, rows)

    monkeypatch.setattr(SliceFile, "read", watched)
    preview = RowWindowReader(dataset)
    preview.window(0, 3, ["n"])
    preview.window(0, 3, ["op", "n"])
    assert read == [["n"], ["op"]]


def test_window_without_columns_has_no_rows(dataset: Dataset) -> None:
    assert RowWindowReader(dataset).window_with_gaps(0, 30, [])[0].num_rows == 0
