"""Pane 1: the graph, the list, the card and the filters.

Text captures are ``tests/golden/graph-*.txt``; ``ODF_UPDATE_GOLDEN=1`` overwrites them:
``lineage`` shows the upstream and downstream datasets of the selected one in heavy lines, ``filtered`` the
datasets in one state beside the card, ``states`` every state of a dataset, ``list`` the sorted list.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from odf_engine.api.model import DatasetDetail, DatasetRow
from odf_engine.errors import OdfError
from odf_engine.worker.protocol import Job, JobProgress, JobState, Progress
from odf_tui.panes.datasets.controller import DatasetsController
from odf_tui.panes.datasets.dataset_filter import filter_graph, matches_filter, parse_filter, toggle_term
from odf_tui.panes.datasets.dataset_graph import DatasetTable, GraphDrawing, GraphModel
from odf_tui.panes.datasets.view import DatasetCard, DatasetsPane, find_card_jobs
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.state.model import Health
from odf_tui.widgets.line_view import MARK
from odf_tui.widgets.status_bar import StatusLine
from tests.call_count import max_calls
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.haven import HAVEN, dataset, did
from tests.tui.scripted_worker import Scenario
from tests.tui.test_golden_screens import resize
from tests.tui.widget_app import shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SIZES = [(80, 24), (160, 50)]


def compare(drive: Driven, name: str) -> None:
    """Compare the panes, without the two lines below them, with their golden text."""
    size = drive.app.size
    path = GOLDEN / f"graph-{size.width}x{size.height}-{name}.txt"
    text = "\n".join(drive.text().splitlines()[:-2]) + "\n"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def source(source: Scenario) -> Scenario:
    """Port Haven, with derivative datasets that were not run yet."""
    source.rows_ = HAVEN
    return source


def busy(source: Scenario) -> None:
    """Put the datasets of a source in every state that a dataset can have."""
    rows = {
        "harbour.tides": {"standing": "not trusted"},
        "air-by-day": {"last_pulled": "2024-03-11T08:15:00Z", "behind": True},
        "smoke-and-breath": {"last_pulled": "2024-03-11T08:15:00Z", "diverged": ("visits-by-day",)},
    }
    source.rows_ = [replace(row, **rows.get(row.name, {})) for row in HAVEN] + [
        dataset("harbour.charts", problem="block f1620: the field event is missing"),
        dataset("harbour.log"),
    ]
    head = next(row.head for row in HAVEN if row.name == "port-haven.stations")
    done = source.job(
        JobState.done, "port-haven.stations", "verify", result=json.dumps({"valid": True, "head": head})
    )
    source.changed(done)
    source.changed(
        source.job(
            JobState.running,
            "port-haven.clinic-visits",
            progress=Progress("read", bytes=420_000, total_bytes=1_000_000),
            started=None,  # the duration changes every second
        )
    )
    source.changed(source.job(JobState.queued, "visits-by-day"))


@pytest.mark.app
async def test_datasets_pane_matches_golden_texts(source: Scenario) -> None:
    async with driven(source, SIZES[0]) as drive:
        await drive.press("z", "l")
        for size in SIZES:
            await resize(drive, size)
            compare(drive, "lineage")
        assert drive.app.palette["lineage"].bold
        await drive.press("f")
        assert "state failed" in drive.text()
        await drive.press("G", "enter")
        assert drive.datasets_pane.filter == "state:failed"
        for size in reversed(SIZES):
            await resize(drive, size)
            compare(drive, "filtered")
        await drive.press("escape")
        assert "air-by-day" in drive.text()

        busy(source)
        await drive.press("r")
        await drive.press("g")
        # Remotes are read after the datasets.
        await drive.until(lambda: "smoke-and-breath ÷" in " ".join(drive.text().split()))
        for size in SIZES:
            await resize(drive, size)
            compare(drive, "states")
        await drive.press("L", "o", "o", "o")
        for size in reversed(SIZES):
            await resize(drive, size)
            compare(drive, "list")
        await drive.press("L")

        await drive.press("slash", "=state:running harbour", "enter")
        assert "No dataset matches state:running harbour" in " ".join(drive.text().split())
        assert "10 datasets hidden. esc shows all" in drive.text()
        job = source.job(JobState.running, "harbour.tides")
        source.link.tell(source.changed(job))
        await drive.until(lambda: "◇ harbour.tides ⊘▸" in drive.text())
        await drive.press("escape")
        source.link.tell(JobProgress(job.id, Progress("read", rows=1_234_567)))
        await drive.until(lambda: "harbour.tides ⊘▸ 1.2M rows" in drive.text())


def _load_graph(source: Scenario) -> GraphDrawing:
    shown, edges = filter_graph(source.rows_, "")
    book = JobBook()
    book.load(*source.jobs())
    healths = dataset_healths(shown, book)
    drawing = GraphDrawing(GraphModel({row.id: row for row in shown}, healths, {}, edges))
    drawing.load()
    return drawing


def _lines(drawing: GraphDrawing | DatasetTable) -> list[str]:
    rows = range(drawing.size.height)
    return ["".join(text for text, _ in drawing.spans(at, None, "")).rstrip() for at in rows]


def test_progress_is_drawn_where_there_is_room_and_no_label_moves(source: Scenario) -> None:
    drawing = _load_graph(source)
    before = _lines(drawing)

    def run(name: str, progress: Progress) -> list[str]:
        job = source.job(JobState.running, name, progress=progress)
        drawing.model.healths = {**drawing.model.healths, job.dataset: Health.running}
        drawing.model.jobs = {**drawing.model.jobs, job.dataset: job}
        return _lines(drawing)

    assert "port-haven.air-readings ▸ " in run("port-haven.air-readings", Progress())[0]
    after = run("port-haven.air-readings", Progress("read", rows=900, total_rows=1000))
    assert "port-haven.air-readings 90%" in after[0]
    assert after[1:] == before[1:]
    assert after[0].index("╮") == before[0].index("╮")
    over = run("port-haven.air-readings", Progress("read", rows=1200, total_rows=1000))
    assert "port-haven.air-readings 99%" in over[0]  # the job is still running
    alone = run("harbour.tides", Progress("read", rows=1_234_567))
    assert alone[-1] == "◇ harbour.tides ▸ 1.2M rows"


def test_lineage_stands_out_without_colours(source: Scenario) -> None:
    drawing = _load_graph(source)
    drawing.highlight(did("air-by-day"))
    lines = _lines(drawing)
    assert "air-readings ✓ ━━┓" in lines[0]
    assert "┻━◆ air-by-day" in lines[1]
    assert "clinic-visits ✓ ───◆ visits-by-day" in lines[2]  # not in the lineage: light
    spans = dict(drawing.spans(0, None, ""))
    assert spans["port-haven.air-readings"] == "lineage"
    assert drawing.highlight(did("visits-by-day")) >= {0, 1, 2}
    lines = _lines(drawing)
    assert "━" in lines[2]
    assert "━" not in lines[0]


def test_rows_and_watermarks_are_drawn_where_there_is_room() -> None:
    rows = {row.id: row for row in HAVEN}
    drawing = GraphDrawing(
        GraphModel(rows, dataset_healths(HAVEN, _no_jobs()), {}, filter_graph(HAVEN, "")[1])
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
    assert len(ends) == 1  # watermarks are aligned
    assert all(len(text.rstrip()) <= drawing.size.width for text in texts)
    assert drawing.fit(narrow)
    assert drawing.size.width == narrow


def _no_jobs():

    return JobBook()


@asynccontextmanager
async def _shown_pane(source: Scenario) -> AsyncIterator[tuple[DatasetsController, Fakes, Pilot[None]]]:
    """Show pane 1 with its controller."""
    pane = DatasetsPane("datasets")
    async with shown(pane, (160, 20)) as (app, pilot):
        fakes = Fakes(source, widgets={DatasetsPane: pane, StatusLine: StatusLine(source.folder)})
        controller = DatasetsController(fakes.context)
        app.routes = controller.routes()
        fakes.state.datasets_outdated.send(None)
        fakes.state.load_jobs(*source.jobs())
        await pilot.pause()
        yield controller, fakes, pilot


async def test_a_renamed_dataset_is_shown_with_its_new_name(source: Scenario) -> None:
    async with _shown_pane(source) as (controller, fakes, _):
        fakes.host.timers[-1].callback()
        names: list[str] = []
        fakes.state.shown_changed.connect(lambda row: names.append("" if row is None else row.name))
        row = controller.graph.row
        assert row is not None
        source.rows_ = [replace(each, name="tides") if each.id == row.id else each for each in source.rows_]
        fakes.state.datasets_outdated.send(None)
        assert controller.waiting
        fakes.host.timers[-1].callback()
        assert names[-1] == "tides"
        fakes.state.datasets_outdated.send(None)
        assert not controller.waiting  # nothing has changed


async def test_the_list_has_the_selection_of_the_graph_and_sorts(source: Scenario) -> None:
    async with _shown_pane(source) as (controller, fakes, pilot):
        pane, state = controller.pane, fakes.state
        pane.view.move("right")
        controller.toggle_list()
        assert pane.mode == "list"
        assert pane.border_title == "1 Datasets · by name"
        assert pane.view.row is not None
        assert pane.view.row.name == "air-by-day"
        lines = ["".join(text for text, _ in pane.view.spans(at)) for at in range(pane.view.count())]
        assert any(line.startswith("< ◇ port-haven.stations") for line in lines)
        assert any(line.startswith("> ◆ smoke-and-breath") for line in lines)
        pane.move("first")
        assert pane.view.row.name == "air-by-day"
        pane.move("down")
        pane.move("down")
        assert pane.view.row.name == "port-haven.air-readings"
        controller.reverse_sort()
        assert pane.sort == ("name", True)
        assert pane.border_title == "1 Datasets · by name, reversed"
        lines = ["".join(text for text, _ in pane.view.spans(at)) for at in range(pane.view.count())]
        assert [line[4:13] for line in lines[:1] + lines[-1:]] == ["visits-by", "air-by-da"]
        controller.sort()
        assert pane.sort == ("kind", False)
        for reverse in (False, True):  # a dataset without a watermark is last in both orders
            pane.sort = ("watermark", reverse)
            pane.move("last")
            assert pane.view.row.name == "visits-by-day"
        pane.sort = ("no such column", False)
        assert pane.sort == ("watermark", True)
        controller.toggle_list()
        assert pane.mode == "graph"
        assert pane.view.row.name == "visits-by-day"
        await pilot.pause()
        assert state.selected == did("visits-by-day")


async def test_a_filter_by_state_follows_the_states(source: Scenario) -> None:
    async with _shown_pane(source) as (controller, fakes, _):
        pane = controller.pane
        pane.set_filter("state:running")
        assert pane.shown == []
        text = "\n".join("".join(text for text, _ in line) for line in pane.view.empty())
        assert "No dataset matches state:running" in text
        assert "8 datasets hidden. esc shows all" in text
        job = source.job(JobState.running, "harbour.tides")
        fakes.state.apply_events([source.changed(job)])
        assert [row.name for row in pane.shown] == ["harbour.tides"]
        fakes.state.apply_events([JobProgress(job.id, Progress("read", rows=1_234_567))])
        controller._show_status()
        assert "".join(text for text, _ in pane.view.spans(0)).startswith("▌◇ harbour.tides ▸ 1.2M ")
        controller.navigator.select_dataset(did("air-by-day"))
        assert pane.filter == ""
        assert pane.view.row is not None
        assert pane.view.row.name == "air-by-day"


async def test_kinds_and_states_are_chosen_from_a_list(source: Scenario) -> None:
    async with _shown_pane(source) as (controller, fakes, _):
        fakes.host.answers.extend(["state:failed", "state:failed", None])
        controller.choose_filter()
        assert controller.pane.filter == "state:failed"
        (choice,) = (each for each in fakes.host.dialogs[-1]._choices if each.id == "state:failed")
        assert (choice.title, choice.remark) == ("  state failed", "1")
        controller.choose_filter()
        assert controller.pane.filter == ""
        controller.choose_filter()
        assert controller.pane.filter == ""


async def test_datasets_that_cannot_be_read_are_a_problem_and_a_notice(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.rows_ = []
    async with _shown_pane(source) as (controller, fakes, _):

        def fail() -> list[DatasetRow]:
            raise OdfError("the datasets cannot be read")

        monkeypatch.setattr(source, "datasets", fail)
        controller._read()
        assert fakes.host.notices[-1] == ("the datasets cannot be read", "bad")
        text = "".join(text for line in controller.graph.empty() for text, _ in line)
        assert "the datasets cannot be read" in text
        assert "No datasets yet" not in text
        monkeypatch.undo()
        source.rows_ = list(HAVEN)
        controller._read()
        assert controller.graph.count()
        assert controller.graph.problem == ""


def test_the_list_shows_the_names_of_hidden_inputs() -> None:
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
        ("state:unt", 1),
        ("state:", 8),
        ("!", 8),
        ("kind:root state:curr air", 1),
        ("nothing:like", 0),
    ],
)
def test_filter_matches_name_kind_and_state(text: str, left: int) -> None:
    rows = [*HAVEN[:-1], dataset("harbour.tides", records=96, standing="not trusted")]
    states = dataset_healths(rows, _no_jobs())
    states[did("port-haven.clinics")] = Health.failed
    assert len(filter_graph(rows, text, states)[0]) == left


def test_terms_are_added_to_a_filter_and_removed() -> None:
    assert toggle_term("air", "state", "new") == "air state:new"
    assert toggle_term("air state:new", "state", "failed") == "air state:new,failed"
    assert toggle_term("state:new,failed air", "state", "new") == "state:failed air"
    assert toggle_term("state:new", "state", "new") == ""
    push = dataset("x", push_sources=("default",), polls=False)
    assert matches_filter(parse_filter("kind:push"), push, Health.new)


def _card(source: Scenario, row: DatasetRow, detail: bool = True) -> tuple[DatasetCard, str]:
    """Return the card of a dataset, and its text."""
    book = JobBook()
    book.load(*source.jobs())
    card = DatasetCard()
    health = dataset_healths([row], book)[row.id]
    card.load(row, health, source.detail(row.id) if detail else None, find_card_jobs(book, row.id))
    return card, _text(card)


def _text(card: DatasetCard) -> str:
    return "\n".join("".join(text for text, _ in card.spans(at)) for at in range(card.count()))


def test_the_card_shows_progress_and_the_last_verification(source: Scenario) -> None:
    row = source.rows_[0]
    card, text = _card(source, row)
    assert "verified   2024-03-11 09:00 UTC, not up to the head" in text
    assert "now" not in text.split("\n")[2]

    def verify(state: JobState, **more: object) -> Job:
        job = source.job(state, row.name, "verify", **{"id": "9", **more})
        source.changed(job)
        return job

    verify(JobState.running)
    card, text = _card(source, row)
    assert "now  verify" in text
    progress = Progress("verify", files=3, total_files=12)
    card.show_progress(verify(JobState.running, progress=progress), "5 blocks/s")
    assert "3 of 12 blocks · 5 blocks/s" in _text(card)
    verify(JobState.done, result=json.dumps({"valid": True, "head": row.head}))
    card, text = _card(source, row)
    assert "verified   2024-03-11 09:00 UTC, fully" in text
    assert "✓✓ verified" in text
    assert "now " not in text


def test_the_card_shows_the_last_pull_and_the_last_change_apart(source: Scenario) -> None:
    row, book = source.rows_[0], JobBook()
    book.load(*source.jobs())
    jobs = find_card_jobs(book, row.id)
    assert jobs.polled and jobs.ingest is not None and jobs.polled == jobs.ingest.ended
    card = DatasetCard()
    card.load(row, Health.current, DatasetDetail((("changed", "2024-03-01 07:00 UTC"),), (), ""), jobs)
    assert "pulled     2024-03-11 09:00 UTC\nchanged    2024-03-01 07:00 UTC" in _text(card)


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
    with max_calls(500_000):
        drawing = _drawing_of(rows, states)
    assert len(drawing.model.rows) == 1000
    with max_calls(500_000):
        _walk(drawing, 50)


def _walk(drawing: GraphDrawing, steps: int) -> None:
    node = drawing.first_dataset()
    for _ in range(steps):
        assert node is not None
        node = drawing.find_target(node, "down", 10)
        drawing.highlight(node)


def _drawing_of(rows: list[DatasetRow], states: dict[str, Health]) -> GraphDrawing:
    shown, edges = filter_graph(rows, "", states)
    drawing = GraphDrawing(GraphModel({row.id: row for row in shown}, states, {}, edges))
    drawing.load()
    drawing.highlight(drawing.first_dataset())
    for at in range(40):
        drawing.spans(at, None, "")
    return drawing


async def test_many_outputs_of_the_same_inputs_fold_until_one_is_selected(source: Scenario) -> None:
    outputs = [dataset(f"day-{number:03}", "tides", records=number) for number in range(100)]
    source.rows_ = [dataset("tides", records=9), *outputs, dataset("sum", "day-099")]
    async with driven(source, (100, 40)) as drive:
        view = drive.datasets_pane.view
        text = drive.text()
        assert "day-009" in text and "day-010" not in text and "▾ 89 more" in text
        assert "sum" in text and "day-099" in text  # it has an output
        assert view.count() < 20
        view.set_healths({**view.healths, did("day-050"): Health.failed})
        label = next(span for row in range(view.count()) for span in view.spans(row) if "more" in span[0])
        assert label[1] == "bad"
        await drive.press("right", "G")
        while view.row is not None and view.row.name != "day-010":
            await drive.press("up")
        assert view.count() >= 100 and "more" not in drive.text()
        await drive.press("L", "L")  # siblings that were shown stay
        assert view.count() >= 100


async def test_selecting_a_folded_dataset_unfolds_its_siblings(source: Scenario) -> None:
    outputs = [dataset(f"day-{number:03}", "tides") for number in range(40)]
    source.rows_ = [dataset("tides"), *outputs]
    async with driven(source, (100, 40)) as drive:
        assert "▾ 30 more" in drive.text()
        drive.datasets_pane.view.select(did("day-033"))
        await drive.until(lambda: f"{MARK}◆ day-033" in drive.text())
        assert "more" not in drive.text()
