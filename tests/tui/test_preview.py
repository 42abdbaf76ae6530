"""Tests of previews: the rows that the next pull would commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.errors import BadData
from odf_engine.jobs.preview import Preview, PreviewResult
from odf_engine.rows.query_results import ResultRows
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.features.preview import PreviewController, PreviewScreen
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.widgets.row_table import load_window
from tests.tui.context import Fakes
from tests.tui.scripted_worker import Scenario
from tests.tui.widget_app import shown

NAME = "port-haven.air-readings"


class Rows(ResultRows):
    """The rows of a file."""

    system_columns = ("offset", "op", "system_time", "event_time")


@pytest.fixture
def result(source: Scenario) -> PreviewResult:
    """A preview of two rows."""
    path = source.folder / "preview.parquet"
    pq.write_table(pa.table({"offset": [7, 8], "op": [2, 3], "station": ["ph-01", "ph-02"]}), path)
    source.file_rows = lambda dataset, file: Rows(Path(file))  # type: ignore[method-assign, return-value]
    return PreviewResult(NAME, "readings.csv", 2, 0, 0, 1, path.name)


async def test_preview_shows_rows_and_pulls_on_request(source: Scenario, result: PreviewResult) -> None:
    fakes = Fakes(source, NAME, answers=["pull"], results={Preview: result})
    PreviewController(fakes.context).show_preview()
    await fakes.host.stories()
    assert [type(dialog) for dialog in fakes.host.dialogs] == [PreviewScreen]
    assert isinstance(fakes.jobs.requests[0], Preview)
    assert fakes.host.performed == ["pull"]


@pytest.mark.parametrize(
    ("outcome", "notice"),
    [
        (PreviewResult(NAME), f"{NAME}: no new rows"),
        (BadData("not a number", where="readings.csv:3"), "readings.csv:3"),
        (LeftRunning(), "is being read"),
    ],
)
async def test_preview_without_rows_is_a_notice(source: Scenario, outcome: object, notice: str) -> None:
    fakes = Fakes(source, NAME, results={Preview: outcome})
    PreviewController(fakes.context).show_preview()
    await fakes.host.stories()
    assert notice in fakes.host.last_notice
    assert not fakes.host.dialogs


async def test_preview_screen_returns_the_next_step(source: Scenario, result: PreviewResult) -> None:
    opened = load_window(source.file_rows("", str(source.folder / result.path)))
    async with shown(PreviewScreen("the title", opened)) as (app, pilot):
        await pilot.press("l", "j")
        assert "ph-02" in app.text()
        await pilot.press("p")
        await pilot.pause()
        assert app.result == "pull"


def test_only_a_dataset_with_a_polling_source_has_a_preview(source: Scenario) -> None:
    guard = DEFAULT_KEYMAP.by_id["preview"].guard
    rows = [row for row in source.datasets() if not row.missing]
    assert (
        guard(Situation(dataset=next(row for row in rows if row.polls and not row.has_pull_remote))) is None
    )
    derivative = next(row for row in rows if row.derivative)
    assert guard(Situation(dataset=derivative)) == f"{derivative.name} has no source that a pull reads"
