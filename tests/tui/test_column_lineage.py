"""Column lineage: three lists of columns, their connections, and following them through the graph.

``ODF_UPDATE_GOLDEN=1`` writes ``tests/golden/columns-*.txt``; check the difference before you commit it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from odf_engine.errors import BadData
from odf_engine.workspace.definitions.column_lineage import ColumnGraph
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.column_lineage import ColumnLineageController, ColumnMap, ColumnScreen
from odf_tui.panes.data.view import DataPane
from odf_tui.theming.ascii_fallback import CharacterFallback
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.data_screen import GeneratedRows, show_window
from tests.tui.haven import AIR, DAYS, ROOT, create, did
from tests.tui.scripted_worker import Scenario
from tests.tui.widget_drive import WidgetDrive, driven_widget

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
READINGS = ["station", "pm25", "no2", "sensor", "re\x1b[31mmark"]
DERIVATIVE = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{inputs}]
      transform: {{kind: Sql, engine: spark, query: "{query}"}}
"""
QUERIES = {
    "air-by-day": (
        {"readings": "port-haven.air-readings", "stations": "port-haven.stations"},
        "SELECT window.start AS event_time, s.name AS station, avg(pm25) AS pm25, max(pm25) AS pm25_peak, "
        "count(*) AS readings, 2 * no2 AS doubled "
        "FROM readings JOIN stations AS s USING (station) WHERE sensor <> 'x' "
        "GROUP BY window(readings.event_time, '1 day'), s.name, no2",
    ),
    "visits-by-day": (
        {"visits": "port-haven.clinic-visits", "hospitals": "hospitals"},
        "SELECT date(v.event_time) AS event_time, v.clinic, count(*) AS visits, sum(beds) AS beds "
        "FROM visits AS v JOIN hospitals AS h ON h.clinic = v.clinic GROUP BY date(v.event_time), v.clinic",
    ),
    "smoke-and-breath": (
        {"air": "air-by-day", "visits": "visits-by-day"},
        "SELECT a.event_time, a.pm25, v.visits, a.station FROM air AS a JOIN visits AS v USING (event_time)",
    ),
    "harbour.tides": ({"readings": "port-haven.stations"}, "SELECT nothing FROM readings"),
}


@pytest.fixture
def source(tmp_path: Path) -> Scenario:
    """Port Haven with other columns, and one input that is missing."""
    workspace = Workspace.init(tmp_path / "haven")
    for name, columns in (
        ("port-haven.air-readings", READINGS),
        ("port-haven.stations", ["station", "name", "latitude", "longitude"]),
        ("port-haven.clinic-visits", ["visit_id", "clinic", "age", "complaint"]),
        ("port-haven.clinics", None),
        ("hospitals", None),
    ):
        schema = None if columns is None else pa.schema([(column, pa.string()) for column in columns])
        create(workspace, ROOT.format(name=name), schema)
    for name, (sources, query) in QUERIES.items():
        inputs = ", ".join(f"{{datasetRef: {each}, alias: {alias}}}" for alias, each in sources.items())
        schema = pa.schema([("level", pa.float64())]) if name == "harbour.tides" else None
        create(workspace, DERIVATIVE.format(name=name, inputs=inputs, query=query), schema)
    shutil.rmtree(workspace.resolve("hospitals").dataset.folder)
    return Scenario(workspace)


def compare(drive: Driven, name: str) -> None:
    """Compare the screen with its golden text."""
    path, text = GOLDEN / f"columns-{name}.txt", drive.text()
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def squeezed(drive: Driven) -> str:
    """Return the screen without borders and with single blanks."""
    return "\n".join(" ".join(line.strip("│ ").split()) for line in drive.text().splitlines()) + "\n"


@pytest.mark.app
async def test_keys_follow_columns_through_the_graph_and_back(source: Scenario) -> None:
    show_window(source, GeneratedRows(9))
    async with driven(source, (120, 36)) as drive:
        drive.bench.navigator.select_dataset(did("smoke-and-breath"))
        await drive.press("number_sign")
        assert "Column lineage of smoke-and-breath" in drive.text()
        await drive.press("h")  # to an input of pm25
        assert "\nair-by-day: pm25\n" in squeezed(drive)
        assert "used in pm25 – copy" in squeezed(drive)
        await drive.press("j")  # skips columns that are not connected
        assert "port-haven.air-readings: pm25\n" in squeezed(drive)
        assert "aggregate, 2 datasets away" in squeezed(drive)
        await drive.press("enter")
        assert "Column lineage of port-haven.air-readings" in drive.text()
        assert "downstream air-by-day: pm25 – aggregate" in squeezed(drive)
        await drive.press("l", "enter")
        assert "Column lineage of air-by-day" in drive.text()
        await drive.press("escape")
        assert "Column lineage of port-haven.air-readings" in drive.text()
        await drive.press("escape")
        assert "Column lineage of smoke-and-breath" in drive.text()
        assert "upstream air-by-day: pm25" in squeezed(drive)
        await drive.press("h", "o")  # selects the dataset in the workbench
        assert drive.app.screen is drive.bench
        assert drive.graph.selected == DAYS
        await drive.press("3", "l", "l", "l", "l", "l", "number_sign")  # from the column under the cursor
        assert "upstream port-haven.air-readings: pm25 – aggregate" in squeezed(drive)
        await drive.press("q")
        assert drive.app.screen is drive.bench


class Columns:
    """A column screen by itself.

    Attributes:
        copied: what was copied, and the text.
    """

    def __init__(self, source: Scenario, name: str, column: str | None = None) -> None:
        self.copied: list[tuple[str, str]] = []

        async def read(dataset: str) -> ColumnGraph:
            return source.column_graph(dataset)

        self.screen = ColumnScreen(
            did(name), name, column, read, lambda what, text: self.copied.append((what, text))
        )


@asynccontextmanager
async def columns_of(
    source: Scenario, name: str, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[WidgetDrive]:
    """Open the columns of a dataset."""
    async with driven_widget(Columns(source, name).screen, source, size) as drive:
        yield drive


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_lineage_screen_matches_golden_texts(source: Scenario, size: tuple[int, int]) -> None:
    async with columns_of(source, "air-by-day", size) as drive:
        await drive.press("down")
        compare(drive, f"{size[0]}x{size[1]}-middle")  # the lines that connect a column with both sides
        await drive.press("G")
        compare(drive, f"{size[0]}x{size[1]}-rows")  # the columns that decide about rows: joins, filters


async def test_ascii_mode_draws_lineage_in_ascii_only(source: Scenario) -> None:
    async with columns_of(source, "air-by-day") as drive:
        drive.app._filters.append(CharacterFallback("ascii"))
        await drive.press("j", "j", "h")
        drive.app.refresh(layout=True)
        await drive.settle()
        assert drive.text().isascii()
        compare(drive, "80x24-ascii")  # lines and markers have ASCII replacements


async def test_a_notice_says_why_a_column_cannot_be_followed(source: Scenario) -> None:
    async with columns_of(source, "port-haven.stations") as drive:
        await drive.press("enter", "enter")
        assert "a source has no upstream" in drive.text()
    async with columns_of(source, "visits-by-day") as drive:
        await drive.press("j", "j", "h", "enter")
        assert "? hospitals" in drive.text()
        assert "this dataset is missing: pull it to see its lineage" in squeezed(drive)


async def test_control_characters_are_escaped_and_query_problems_shown(source: Scenario) -> None:
    async with columns_of(source, "port-haven.air-readings") as drive:
        assert "\x1b" not in drive.text()
        assert "␛[31mmark" in drive.text()
    async with columns_of(source, "harbour.tides") as drive:
        assert "column 'nothing' not found" in squeezed(drive)
    async with columns_of(source, "port-haven.clinics") as drive:
        assert "no columns yet: the dataset has no data" in drive.text()
        await drive.press("j", "h", "enter", "o", "y", "escape")
        assert drive.app.screen is drive.bench


async def test_unreadable_chain_is_shown_as_an_error(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(dataset: str) -> ColumnGraph:
        raise BadData("block 3 is damaged", hint="odf verify says more")

    monkeypatch.setattr(source, "column_graph", broken)
    async with columns_of(source, "air-by-day") as drive:
        assert "block 3 is damaged" in drive.text()
        await drive.press("j", "enter", "escape")
        assert drive.app.screen is drive.bench


async def test_lineage_screen_survives_resizes(source: Scenario) -> None:
    async with columns_of(source, "air-by-day") as drive:
        for size in ((10, 3), (200, 60)):
            await drive.resize(*size)
            await drive.press("j", "h", "j")
        assert "Column lineage of air-by-day" in drive.text()


async def test_the_description_of_a_column_is_copied(source: Scenario) -> None:
    columns = Columns(source, "air-by-day", "pm25")
    async with driven_widget(columns.screen, source) as drive:
        await drive.press("y")
    ((what, text),) = columns.copied
    assert what == "columns"
    assert text.splitlines()[0] == "upstream   port-haven.air-readings: pm25 – aggregate"


@pytest.mark.parametrize(
    ("pane", "shows", "column", "first"),
    [
        ("data", True, 5, "pm25"),
        ("datasets", True, 5, None),
        ("data", False, 5, None),
        ("data", True, 99, None),
    ],
)
def test_the_screen_begins_at_the_column_under_the_cursor(
    source: Scenario, pane: str, shows: bool, column: int, first: str | None
) -> None:
    fakes = Fakes(source, "air-by-day", answers=[None])
    view = SimpleNamespace(column=column)
    fakes.host.widgets[DataPane] = SimpleNamespace(
        window=GeneratedRows(9), view=view, is_showing=lambda dataset: shows and dataset == DAYS
    )
    fakes.state.pane = pane
    ColumnLineageController(fakes.context).show_column_lineage()
    (screen,) = fakes.host.dialogs
    assert screen._first == (DAYS, first)


def test_the_chosen_dataset_is_selected(source: Scenario) -> None:
    fakes = Fakes(source, "air-by-day", answers=[did("smoke-and-breath")])
    fakes.host.widgets[DataPane] = SimpleNamespace(window=None)
    ColumnLineageController(fakes.context).show_column_lineage()
    assert fakes.state.selected == did("smoke-and-breath")


def test_the_map_begins_at_the_first_column_of_the_data(source: Scenario) -> None:
    columns = ColumnMap(source.column_graph(), AIR)
    assert columns.ref is not None and columns.ref.column == "station"
    assert not columns.change_side(2)
    assert columns.change_side(1) and columns.side == "right"
    assert not columns.change_side(1)


def test_steps_and_transformations_add_up_along_a_path(source: Scenario) -> None:
    found = source.column_graph()
    ref = next(link.source for link in found.edges if link.source == (AIR, "pm25"))
    reach = {each.dataset: (how.how, how.steps) for each, how in found.downstream(ref).items()}
    assert reach[did("smoke-and-breath")] == ("aggregation", 2)
