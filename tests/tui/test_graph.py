"""Pane 1: the graph and the list, what they tell of each dataset, filters, and the first minutes.

Text captures are ``tests/golden/graph-*.txt``; ``ODF_UPDATE_GOLDEN=1`` writes them anew.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from odf_engine.coordinator.protocol import JobProgress, JobState, Progress
from odf_tui.panes.datasets.dataset_filter import matches, parse_filter, toggle_term, visible_graph
from odf_tui.panes.datasets.dataset_graph import DatasetGraph, DatasetTable, GraphModel
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.state.model import DatasetRow, Health
from tests.tui.conftest import Driven, driven
from tests.tui.fake import HAVEN, FakeSource, dataset
from tests.tui.test_editing import manifests, opened, workspace  # noqa: F401 (a fixture)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = [(80, 24), (160, 50)]


def compare(drive: Driven, name: str) -> None:
    """Compares the panes, without the two lines below them, with their golden text."""
    size = drive.app.size
    path = GOLDEN / f"graph-{size.width}x{size.height}-{name}.txt"
    text = "\n".join(drive.text().splitlines()[:-2]) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def busy(source: FakeSource) -> None:
    """Every state that a dataset can be in."""
    rows = {
        "harbour.tides": {"standing": "not trusted"},
        "air-by-day": {"last_pulled": "2024-03-11T08:15:00Z", "behind": True},
        "smoke-and-breath": {"last_pulled": "2024-03-11T08:15:00Z", "diverged": ("visits-by-day",)},
    }
    source.rows_ = [
        dataset(
            row.name,
            *(each.removeprefix("did:odf:") for each in row.inputs),
            records=row.records,
            **rows.get(row.name, {}),
        )
        for row in HAVEN
    ] + [dataset("harbour.charts", problem="block f1620: the field event is missing"), dataset("harbour.log")]
    head = source._row("did:odf:port-haven.stations").head
    done = source.job(
        JobState.done, "port-haven.stations", "verify", result=json.dumps({"valid": True, "head": head})
    )
    source.changed(done)
    source.changed(
        source.job(
            JobState.running,
            "port-haven.clinic-visits",
            progress=Progress("read", bytes=420_000, total_bytes=1_000_000),
            started=None,  # how long it has been running is another number every second
        )
    )
    source.changed(source.job(JobState.queued, "visits-by-day"))


@pytest.mark.app
@pytest.mark.parametrize("size", SIZES, ids=["80x24", "160x50"])
async def test_every_state_in_the_graph_and_in_the_list(source: FakeSource, size: tuple[int, int]) -> None:
    busy(source)
    async with driven(source, size) as drive:
        await drive.press("z")
        # The state towards remotes is read after the datasets.
        await drive.until(lambda: "smoke-and-breath ÷" in " ".join(drive.text().split()))
        text = " ".join(drive.text().split())  # they may stand below each other
        assert "port-haven.air-readings ✓ " in text
        assert "port-haven.stations ✓✓ " in text
        assert re.search("port-haven.clinic-visits (▸ )?42% ", text)
        assert "port-haven.clinics ✗" in text
        assert "visits-by-day ◦" in text
        assert "air-by-day ~" in text
        assert "harbour.tides ⊘✓" in text
        assert "harbour.charts !" in text
        assert "harbour.log ·" in text
        compare(drive, "states")
        await drive.press("L", "o", "o", "o")
        lines = [line for line in drive.text().splitlines() if "root" in line or "derivative" in line]
        assert "rows ↑" in drive.text()
        assert "harbour.charts" in lines[0]
        assert "port-haven.clinic-visits" in lines[-1]
        assert "▸ 42%" in lines[-1]
        compare(drive, "list")


@pytest.mark.app
async def test_the_graph_with_what_runs(source: FakeSource) -> None:
    for size in SIZES:
        async with driven(source, size) as drive:
            await drive.press("z", "l")
            compare(drive, "lineage")
            await drive.press("f")
            assert "state failed" in drive.text()
            await drive.press("G", "enter")
            assert drive.datasets_pane.filter == "state:failed"
            compare(drive, "filtered")


@pytest.mark.app
async def test_progress_is_told_where_there_is_room_and_nothing_moves(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        before = drive.text().splitlines()
        job = source.job(JobState.running, "port-haven.air-readings")
        source.link.tell(source.changed(job))
        await drive.until(lambda: "port-haven.air-readings ▸ " in drive.text())
        source.link.tell(JobProgress(job.id, Progress("read", rows=900, total_rows=1000)))
        await drive.until(lambda: "port-haven.air-readings 90%" in drive.text())
        after = drive.text().splitlines()
        assert after[2:7] == before[2:7]
        assert after[1].index("┓") == before[1].index("┓")
        source.link.tell(JobProgress(job.id, Progress("read", rows=1200, total_rows=1000)))
        await drive.until(lambda: "port-haven.air-readings 99%" in drive.text())  # it still runs
        alone = source.job(JobState.running, "harbour.tides", progress=Progress("read", rows=1_234_567))
        source.link.tell(source.changed(alone))
        await drive.until(lambda: "harbour.tides ▸ 1.2M rows" in drive.text())


@pytest.mark.app
async def test_lineage_stands_out_without_colours(source: FakeSource) -> None:
    async with driven(source, (120, 36)) as drive:
        await drive.press("l")  # air-by-day
        rows = drive.text().splitlines()
        assert "air-readings ✓ ━━┓" in rows[1]
        assert "┻━◆ air-by-day" in rows[2]
        assert "clinic-visits ✓ ───◆ visits-by-day" in rows[3]  # of another line, so light
        palette = drive.app.palette
        spans = dict(drive.graph.spans(0))
        assert spans["port-haven.air-readings"] == "lineage"
        assert palette["lineage"].bold
        await drive.press("j")
        assert "━" in drive.text().splitlines()[3]
        assert "━" not in drive.text().splitlines()[1]


def test_rows_and_watermarks_stand_beside_the_names_where_there_is_room() -> None:
    rows = {row.id: row for row in HAVEN}
    drawing = DatasetGraph(
        GraphModel(rows, dataset_healths(HAVEN, _no_jobs()), {}, visible_graph(HAVEN, "")[1])
    )
    drawing.load()
    narrow = drawing.size.width
    assert not drawing.fit(narrow)
    assert drawing.fit(narrow + 3 * 13)
    line = "".join(text for text, _ in drawing.spans(0, None, ""))
    assert line.startswith("◇ port-haven.air-readings  ✓        7 200 ─╮")
    assert drawing.fit(400)
    texts = ["".join(text for text, _ in drawing.spans(at, None, "")) for at in range(drawing.size.height)]
    assert "✓        7 200  2024-03-10 ─╮" in texts[0]
    ends = {text.index("2024-03-10") for text in texts if text.startswith("◇ port") and "2024-03-10" in text}
    assert len(ends) == 1  # they stand below each other
    assert all(len(text.rstrip()) <= drawing.size.width for text in texts)
    assert drawing.fit(narrow)
    assert drawing.size.width == narrow


def _no_jobs():

    return JobBook()


@pytest.mark.app
async def test_the_list_has_the_same_selection_and_sorts(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        pane = drive.datasets_pane
        await drive.press("l", "L")
        assert pane.mode == "list"
        assert "by name" in drive.text()
        assert pane.view.row is not None
        assert pane.view.row.name == "air-by-day"
        lines = drive.text().splitlines()
        assert any(line.startswith("│< ◇ port-haven.stations") for line in lines)
        assert any(line.startswith("│> ◆ smoke-and-breath") for line in lines)
        await drive.press("g")
        assert pane.view.row.name == "air-by-day"
        await drive.press("j", "j")
        assert pane.view.row.name == "port-haven.air-readings"
        await drive.press("O")
        assert pane.sort == ("name", True)
        assert drive.text().index("visits-by-day") < drive.text().index("air-by-day  ")
        pane.sort = ("watermark", False)
        await drive.press("G")
        assert pane.view.row.name == "visits-by-day"  # what has none comes last
        pane.sort = ("watermark", True)
        await drive.press("G")
        assert pane.view.row.name == "visits-by-day"
        pane.sort = ("no such column", False)
        assert pane.sort == ("watermark", True)
        await drive.press("L")
        assert pane.mode == "graph"
        assert pane.view.row.name == "visits-by-day"


def test_the_list_is_filtered_and_keeps_names_of_inputs_that_are_not_shown() -> None:
    rows = [row for row in HAVEN if row.derivative]
    board = GraphModel({row.id: row for row in rows}, {}, {}, [], {row.id: row.name for row in HAVEN})
    table = DatasetTable(board)
    table.load()
    assert "port-haven.air-readings, port-haven.stations" in table.spans(0, None, "")[-1][0]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("HAVEN", 4),
        ("kind:root", 5),
        ("kind:der", 3),
        ("!kind:derivative", 5),
        ("kind:root !haven", 1),
        ("state:failed", 1),
        ("state:failed,new", 3),
        ("state:not-t", 1),
        ("state:", 8),
        ("!", 8),
        ("kind:root state:curr air", 1),
        ("nothing:like", 0),
    ],
)
def test_filters_by_name_kind_and_state(text: str, left: int) -> None:
    rows = [*HAVEN[:-1], dataset("harbour.tides", records=96, standing="not trusted")]
    states = dataset_healths(rows, _no_jobs())
    states["did:odf:port-haven.clinics"] = Health.failed
    assert len(visible_graph(rows, text, states)[0]) == left


def test_kinds_and_states_come_into_the_filter_and_go_out_of_it() -> None:
    assert toggle_term("air", "state", "new") == "air state:new"
    assert toggle_term("air state:new", "state", "failed") == "air state:new,failed"
    assert toggle_term("state:new,failed air", "state", "new") == "state:failed air"
    assert toggle_term("state:new", "state", "new") == ""
    push = dataset("x", push_sources=("default",), polls=False)
    assert matches(parse_filter("kind:push"), push, Health.new)


@pytest.mark.app
async def test_a_filter_by_state_follows_the_states(source: FakeSource) -> None:
    async with driven(source, (120, 36)) as drive:
        await drive.press("slash", "=state:running", "enter")
        text = drive.text()
        assert "No dataset matches state:running" in text
        assert "esc shows all of them again" in text
        source.link.tell(source.changed(source.job(JobState.running, "harbour.tides")))
        await drive.until(lambda: "◇ harbour.tides ▸" in drive.text())
        await drive.press("escape")
        assert "air-by-day" in drive.text()


@pytest.mark.app
async def test_the_card_tells_of_progress_and_of_the_last_verification(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        assert "verified   2024-03-11 09:00, not all that it has now" in drive.text()
        job = source.job(JobState.running, "port-haven.air-readings", "verify")
        source.link.tell(source.changed(job))
        await drive.until(lambda: "now  verify" in drive.text())
        source.link.tell(JobProgress(job.id, Progress("verify", files=3, total_files=12)))
        await drive.until(lambda: "3 of 12 blocks" in drive.datasets_pane.card._doing)
        row = drive.graph.row
        assert row is not None
        result = json.dumps({"valid": True, "head": row.head})
        ended = source.job(JobState.done, row.name, "verify", id=job.id, result=result)
        source.link.tell(source.changed(ended))
        await drive.until(lambda: "2024-03-11 09:00, all of it" in drive.text())
        assert "✓✓ verified" in drive.text()


# --- Many ---


def test_a_thousand_datasets_are_drawn_and_filtered_quickly() -> None:
    rows = []
    for town in range(100):
        name = f"town{town:03d}"
        rows += [dataset(f"{name}.{each}", records=town) for each in "abcd"]
        rows += [
            dataset(f"{name}.ab", f"{name}.a", f"{name}.b"),
            dataset(f"{name}.cd", f"{name}.c", f"{name}.d"),
        ]
        rows += [dataset(f"{name}.all", f"{name}.ab", f"{name}.cd")]
        rows += [dataset(f"{name}.{each}", f"{name}.all") for each in ("daily", "weekly", "yearly")]
    states = dataset_healths(rows, _no_jobs())
    times = []
    for _ in range(3):
        start = time.process_time()
        drawing = _drawing_of(rows, states)
        times.append(time.process_time() - start)
    drawing = _drawing_of(rows, states)
    assert len(drawing.board.rows) == 1000
    assert min(times) < 0.12  # a third of that on a quiet machine
    moves = []
    for _ in range(3):
        start = time.process_time()
        _walk(drawing, 50)
        moves.append(time.process_time() - start)
    assert min(moves) < 0.1  # a tenth of that


def _walk(drawing: DatasetGraph, steps: int) -> None:
    node = drawing.first()
    for _ in range(steps):
        assert node is not None
        node = drawing.target(node, "down", 10)
        drawing.light(node)


def _drawing_of(rows: list[DatasetRow], states: dict[str, Health]) -> DatasetGraph:
    shown, edges = visible_graph(rows, "", states)
    drawing = DatasetGraph(GraphModel({row.id: row for row in shown}, states, {}, edges))
    drawing.load()
    drawing.light(drawing.first())
    for at in range(40):
        drawing.spans(at, None, "")
    return drawing
