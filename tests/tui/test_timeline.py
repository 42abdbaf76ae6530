"""Tests of timelines: reads of real datasets, axes of the slider, typed times, and prefixes of rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.api.model import FileTimeRange
from odf_engine.api.readers.row_window import RowPrefix
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import NotFound, UsageError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import parse_user_time
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.time_travel.timeline import BlockAxis, EventTimeAxis, PointInTime, probe_order
from odf_tui.widgets.row_table import load_window
from tests.call_count import max_calls
from tests.tui.data_screen import GeneratedTimeline
from tests.tui.test_data import append, dataset, harbour, stored, typed

__all__ = ["dataset", "harbour"]


def test_timeline_lists_blocks_rows_and_time_ranges(tmp_path: Path) -> None:
    source = OpenWorkspace(Workspace.init(tmp_path / "w"))
    entry = source._workspace.create_dataset(DatasetAlias.parse("rows"), DatasetKind.Root)
    with pytest.raises(NotFound):
        source.timeline(str(entry.id))
    append(entry.dataset, typed(0, 30))
    append(entry.dataset, typed(30, 10).append_column("more", pa.array([1.5] * 10)))
    line = source.timeline(str(entry.id))
    assert (list(line.blocks), list(line.rows), line.head, line.timed) == ([2, 4], [30, 40], 4, True)
    assert list(line.schemas) == [1]
    hour, day = 3_600_000, 1_709_251_200_000
    assert line.probe([1, 0]) == [
        FileTimeRange(1, False, ((10, day + 30 * hour, day + 39 * hour),)),
        FileTimeRange(0, False, ((30, day, day + 29 * hour),)),
    ]
    entry.dataset.slice_path(entry.dataset.slices()[0]).unlink()
    assert [probe.stop for probe in source.timeline(str(entry.id)).probe([0, 1])] == [1]


def test_a_hundred_thousand_blocks_are_drawn_quickly() -> None:
    line = GeneratedTimeline(1_000_000, 10)
    with max_calls(300_000):
        axis = BlockAxis(line)
        for _ in range(20):
            axis.move("back", 76)
            axis.bars(76)
            axis.marks(76)
    assert axis.position == 99_979
    axis.move("cell_back", 76)
    assert axis.position == 99_979 - 1315
    axis.move("page_back", 76)
    assert axis.position == 99_979 - 1315 - 10_000
    assert len(axis.bars(76)) == 76 and set(axis.bars(76)) == {6}


def test_files_are_probed_evenly_and_once() -> None:
    for stops in (0, 1, 2, 3, 7, 64, 100):
        assert sorted(probe_order(stops)) == list(range(stops))
    order = list(probe_order(100))
    assert order[:2] == [99, 0]
    assert max(b - a for a, b in zip(sorted(order[:18]), sorted(order[:18])[1:], strict=False)) <= 8


def test_steps_of_event_time_follow_the_data() -> None:
    day = 86_400_000
    axis = EventTimeAxis()
    axis.add_probes([FileTimeRange(0, False, ((10, 0, 5 * day),))])
    assert (axis.unit, axis.position) == (day, 5 * day)
    axis.move("back", 70)
    axis.add_probes([FileTimeRange(1, True, ((10, 2 * day, 10 * day),), (3 * day,))])
    assert (axis.position, axis.greatest) == (4 * day, 10 * day)
    assert axis.marks(11) == {3: "c"}
    axis.add_probes([FileTimeRange(2, False, ((1, 7 * day + 60_000, 7 * day + 60_000),))])
    assert axis.unit == 3_600_000
    axis.move("last", 70)
    assert "newest" in axis.describe_position()
    for move in ("first", "on", "cell_on", "page_on", "page_back", "cell_back", "back"):
        axis.move(move, 70)  # type: ignore[arg-type]
        assert axis.least <= axis.position <= axis.greatest


@pytest.mark.parametrize("text", ["", "soon", "2024", "2024-13-01", "2024-03-01 25:99", "10:22"])
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_user_time(text)


def test_typed_times_are_parsed() -> None:
    for text in (
        "2024-03-01",
        "2024-03",
        "2024-3-1 00:00",
        "2024-02-29 24:00:00Z",
        "2024-03-01T01:00:00+01:00",
    ):
        assert str(parse_user_time(text)) == "2024-03-01T00:00:00Z"
    assert str(parse_user_time("2024-03-01 10:22:05.25")) == "2024-03-01T10:22:05.250Z"


def test_row_prefix_hides_later_rows(dataset: Dataset) -> None:
    window = stored(dataset)
    first = RowPrefix(RowPrefix(window, 80), 60)
    assert (first.base, first.row_count, len(first.slices)) == (window, 60, 3)
    assert first.window(55, 99)["offset"].to_pylist() == [55, 56, 57, 58, 59]
    assert first.part(58, 10, [0])[0].num_rows == 2
    assert (first.row_of_offset(59), first.row_of_offset(60)) == (59, None)
    moment = datetime(2024, 3, 3, tzinfo=UTC)
    assert (first.row_at_time(moment, lambda: False), window.row_at_time(moment, lambda: False)) == (48, 48)
    assert RowPrefix(window, 10).row_at_time(moment, lambda: False) is None
    assert load_window(RowPrefix(window, 0)).window.row_count == 0


def test_labels_distinguish_as_at_and_as_of() -> None:
    point = PointInTime("at", 1_772_360_520_000, 17, 900, 120)
    assert point.label == "as at 2026-03-01 10:22 · block 17 of 120" and point.is_prefix
    event = PointInTime("of", 1_772_360_520_250, precision=2, key=("a",))
    assert (event.label, event.is_prefix) == ("as of 2026-03-01 10:22:00.250", False)
    assert event.as_of == "2026-03-01T10:22:00.250Z"
    line = GeneratedTimeline(5000)
    axis = BlockAxis(line)
    assert axis.contains(axis.point_in_time(None)) and not axis.contains(point) and axis.contains(event)
    line.times = [1_772_360_520_000 + 400 * stop for stop in range(5)]  # less than a second apart
    assert BlockAxis(line).point_in_time(None).label == "as at 2026-03-01 10:22:01.600 · block 7 of 7"
