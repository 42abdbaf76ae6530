"""The four panes, driven by keys; jobs and the worker."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.worker.protocol import Failure, JobProgress, JobState
from odf_tui.app import Workstation
from odf_tui.features.dataset_actions import DatasetActionsController
from odf_tui.panes.blocks.view import PAGE
from odf_tui.state.model import Health, sort_by_dependency
from odf_tui.state.saved_session import TOUR, SavedLayout, encode_layout, save_layout
from odf_tui.widgets.dialogs import ProgressDialog
from odf_tui.widgets.line_view import MARK
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.haven import AIR, STATIONS, TIDES, append, create_root, dataset, did
from tests.tui.scripted_worker import Scenario, progress
from tests.tui.test_blocks import block_line, show_blocks


async def show_datasets(drive: Driven, *rows: object) -> None:
    """Replace the datasets of the workspace, and read them again."""
    drive.source.rows_ = list(rows)  # type: ignore[arg-type]
    await drive.press("1", "r")
    await drive.until(lambda: drive.rows == drive.source.rows_)
    await drive.settle()


@pytest.mark.app
async def test_a_long_function_shows_its_progress_and_can_be_cancelled(source: Scenario) -> None:
    results: list[int | None] = []

    def work(reporter: Reporter) -> int:
        reporter.phase("unpack")
        while True:
            reporter.raise_if_cancelled()
            time.sleep(0.01)

    async with driven(source, (80, 24)) as drive:

        async def run() -> None:
            results.append(await drive.bench.run_shown("Checking the crate", lambda _: 7))
            results.append(await drive.bench.run_shown("Checking the crate", work))

        drive.bench.start(run())
        await drive.until(lambda: isinstance(drive.app.screen, ProgressDialog))
        await drive.until(lambda: "Checking the crate" in drive.text() and "unpack" in drive.text())
        await drive.press("escape")
        await drive.until(lambda: results == [7, None])


@pytest.mark.app
async def test_panes_follow_the_keys(source: Scenario) -> None:
    async with driven(source) as drive:
        graph, blocks, data, jobs = drive.graph, drive.blocks_pane, drive.data_pane, drive.jobs_pane
        # The selection in the graph moves the other panes.
        assert graph.row is not None
        assert graph.row.name == "port-haven.air-readings"
        await drive.press("j")
        assert graph.row.name == "port-haven.stations"
        assert blocks.view.dataset == did("port-haven.stations")
        assert data.view.count() == 31
        assert "port-haven.stations" in str(blocks.border_title)
        await drive.press("l")
        assert graph.row.name == "air-by-day"
        await drive.press("l")
        assert graph.row.name == "smoke-and-breath"
        assert data.view.count() == 0
        assert "Press p to run the query" in drive.text()
        await drive.press("h", "h")
        assert graph.row.name == "port-haven.clinic-visits"
        await drive.press("G")
        assert graph.row.name == "port-haven.clinics"
        await drive.press("g")
        assert graph.row.name == "port-haven.air-readings"
        # Numbers and tab focus panes; escape goes back to the first.
        for key, name in zip("2341", ["blocks", "data", "jobs", "datasets"], strict=True):
            await drive.press(key)
            assert drive.pane == name
            assert drive.front.view is not None
            assert drive.front.view.active
        await drive.press("tab", "tab")
        assert drive.pane == "data"
        await drive.press("shift+tab")
        assert drive.pane == "blocks"
        await drive.press("escape")
        assert drive.pane == "datasets"
        # A block opens as YAML, and steps to its neighbours.
        await drive.press("2", "j", "enter")
        assert "sequenceNumber: 10" in drive.text()
        await drive.press("left_square_bracket")
        assert "sequenceNumber: 9" in drive.text()
        await drive.press("right_square_bracket", "right_square_bracket")
        assert "sequenceNumber: 11" in drive.text()
        await drive.press("escape")
        assert drive.app.screen is drive.bench
        assert blocks.view.cursor == 0
        # Filters of all panes.
        await drive.press("1", "slash", "=clin", "enter")
        assert [row.name for row in drive.datasets_pane.shown] == [
            "port-haven.clinic-visits",
            "port-haven.clinics",
        ]
        assert "/clin" in str(drive.datasets_pane.border_title)
        await drive.press("escape")
        assert len(drive.datasets_pane.shown) == 8
        await drive.press("slash", "=th", "enter")  # the only match is a derivative dataset
        assert [row.name for row in drive.datasets_pane.shown] == ["smoke-and-breath"]
        await drive.press("escape")
        assert graph.row is not None
        await drive.press("g", "2", "slash", "=set", "enter")
        events = [block.event for block in map(blocks.view._at, range(3)) if block is not None]
        assert events == ["SetDataSchema", "SetInfo", "SetPollingSource"]
        assert blocks.view.count() == 4  # and "root dataset"
        await drive.press("escape", "4", "slash", "=verify", "enter")
        assert jobs.view.count() == 1
        await drive.press("escape")
        assert jobs.view.count() == 3
        # Zoom; escape leaves the filter, then the zoom, then the pane.
        await drive.press("3", "z")
        assert data.size.width > 100
        assert not drive.datasets_pane.size
        await drive.press("2")
        assert blocks.size.width > 100
        await drive.press("slash", "=add", "enter", "escape")
        assert not blocks.filter
        assert drive.bench.has_class("-zoomed")
        await drive.press("escape")
        assert not drive.bench.has_class("-zoomed")
        assert drive.pane == "blocks"
        await drive.press("escape")
        assert drive.pane == "datasets"
        await drive.press("escape")
        assert "already at the top level" in drive.hint()
        # A failed job shows what failed, where, and what to do.
        await drive.press("4")
        text = drive.text()
        assert "column 'age' has the value 'forty'" in text
        assert "sources/clinics.csv:212" in text
        assert "correct the file, or declare the" in text
        await drive.press("enter")
        assert "correct the file, or declare the column STRING" in drive.text()
        await drive.press("escape", "o")
        assert graph.row.name == "port-haven.clinics"
        assert "last pull failed" in drive.text()


@pytest.mark.app
@pytest.mark.complete
async def test_workbench_recovers_from_worker_failures_and_damaged_datasets(source: Scenario) -> None:
    source.rows_ = []
    source.forget_jobs()
    source.connecting = [
        OdfError("the worker exited right after its start", hint="its log is worker.log")
    ] * 2
    app = Workstation(source)
    async with app.run_test(size=(160, 50)) as pilot:
        drive = Driven(app, pilot, source)
        # A worker that does not start: each submission tries again.
        await drive.until(lambda: drive.worker_state == "gone")
        await drive.settle()
        assert "the worker exited right after its start" in drive.hint()
        # An empty workspace names the first steps, and no key fails.
        text = drive.text()
        assert "No datasets yet" in text
        assert "create the demo" in text
        assert "No jobs yet" in text
        await drive.press("p")
        assert "no dataset is selected" in drive.hint()
        await drive.press(
            "2", "G", "enter", "3", "j", "y", "enter", "4", "enter", "z", "slash", "x", "escape", "escape"
        )
        # Damaged and missing datasets.
        await show_datasets(
            drive,
            dataset("broken", problem="block f1620: the field event is missing", blocks=0),
            dataset("far-away", missing=True),
            dataset("made", "far-away"),
        )
        await drive.press("g")
        assert drive.graph.row is not None
        assert drive.graph.row.missing
        assert "not in the workspace" in drive.text()
        await drive.press("v")
        assert "is not in this workspace" in drive.hint()
        await drive.press("G")
        assert "the field event is missing" in drive.text()
        assert drive.healths[did("broken")] is Health.damaged
        # Blocks are read by the page as they come into view.
        limits: list[int] = []
        lines = [block_line(number) for number in range(1004)]
        show_blocks(source, lines, limits)
        await show_datasets(drive, dataset("big", records=1_000_000))
        view = drive.blocks_pane.view
        assert view.count() == 1004
        asked = len(limits)
        assert asked <= 2
        await drive.press("2", "G")
        await drive.until(lambda: view.block == lines[0])
        assert len(limits) <= asked + 2
        assert set(limits) == {PAGE}
        await drive.press("g", "pagedown")
        await drive.until(lambda: view.block is not None)
        assert view.cursor == view.room.height - 1
        # New blocks leave the cursor on its block.
        del source.blocks, source.block_numbers
        growing = create_root(source._workspace, "growing", 5000)
        await show_datasets(drive, dataset("growing", records=5000))
        await drive.press("2", "g", "j", "j")
        assert view.block is not None
        before = view.block.sequence_number
        append(growing.dataset, 2000)
        await show_datasets(drive, dataset("growing", records=7000))
        await drive.until(lambda: view.total == growing.dataset.state().blocks)
        assert view.block.sequence_number == before
        # A submission connects to the worker again: it fails, then it succeeds.
        source._workspace.delete(growing)
        source.story()
        source.rows_ = None
        await drive.press("1", "r")
        await drive.until(lambda: len(drive.rows) == 8)
        await drive.settle()
        await drive.press("g", "p")
        await drive.until(lambda: not source.connecting)
        await drive.until(lambda: "exited right after its start" in drive.hint())
        await drive.press("p")
        await drive.until(lambda: source.links and source.link.submitted)
        assert source.link.submitted == [Pull(dataset=did("port-haven.air-readings"))]
        await drive.until(lambda: len(drive.book.jobs) == 4)
        assert drive.healths[did("port-haven.air-readings")] is Health.queued
        # Live progress, and the end of a pull.
        job = replace(source.known[-1], state=JobState.running, started="2024-03-11T09:00:01Z")
        source.link.tell(
            source.changed(job),
            source.line(job.id, "fetch file:sources/air-readings.csv"),
            JobProgress(job.id, progress(4200)),
        )
        await drive.until(lambda: "read · 4 200 rows" in drive.status())
        assert "fetch file:sources/air-readings.csv" in drive.text()
        assert drive.healths[job.dataset] is Health.running
        await drive.press("p")
        assert "is already being pulled" in drive.hint()
        assert len(source.link.submitted) == 1
        done = replace(
            job,
            state=JobState.done,
            ended="2024-03-11T09:00:03Z",
            result='{"status": "updated", "records": 1000, "blocks": 1}',
        )
        append(source.entry(AIR).dataset, 1000)
        source.link.tell(source.committed(job.id, job.dataset, 1000), source.changed(done))
        await drive.until(lambda: "pull port-haven.air-readings: +1 000 rows" in drive.hint())
        await drive.until(lambda: drive.data_pane.view.count() == 8200)
        assert drive.blocks_pane.view.total == 13
        # Cancelling asks first.
        await drive.press("x")
        assert "no job is running for this dataset" in drive.hint()
        await drive.press("v")
        await drive.until(lambda: drive.book.active_jobs())
        assert source.link.submitted[-1] == Verify(dataset=did("port-haven.air-readings"))
        await drive.press("x")
        assert "Cancel verify port-haven.air-readings?" in drive.text()
        await drive.press("n")
        assert source.link.cancelled == []
        await drive.press("x", "y")
        await drive.until(lambda: source.link.cancelled == ["5"])
        # The worker dies: its jobs are interrupted, keys still work, R restarts it.
        job = source.known[-1]
        gone = Failure("worker stopped while this job was running", hint="run it again")
        source.changed(replace(job, state=JobState.interrupted, error=gone))
        source.link.die()
        await drive.until(lambda: "no worker, R restarts it" in drive.status())
        # Without a worker, nothing reports a change by another program.
        source._workspace.rename(source.entry(TIDES), DatasetAlias.parse("harbour.tides.renamed"))
        await drive.until(lambda: ".renamed" in drive.text())
        await drive.until(lambda: drive.book.jobs[job.id].state is JobState.interrupted)
        assert "press R to restart it" in drive.hint()
        await drive.press("4", "g")
        assert "worker stopped while this job was running" in drive.text()
        await drive.press("1", "j", "k", "R")
        await drive.until(lambda: len(source.links) == 2)
        await drive.until(lambda: "● ready" in drive.status())
        # A submission starts a dead worker too.
        source.link.die()
        await drive.until(lambda: drive.worker_state == "gone")
        await drive.press("v")
        await drive.until(lambda: len(source.links) == 3 and source.link.submitted)
        assert source.link.submitted == [Verify(dataset=did("port-haven.air-readings"))]
        # Leaving names the jobs that continue.
        await drive.until(lambda: drive.book.active_jobs())
        await drive.pilot.press("q")
        await drive.pilot.pause()
    assert "verify port-haven.air-readings continues" in drive.app.farewell


def test_the_farewell_names_the_jobs_that_continue(source: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    for jobs, farewell in (
        ([], ""),
        (["pull a"], "pull a continues in the background."),
        (["pull a", "verify b"], "pull a, verify b continue in the background."),
    ):
        app = Workstation(source)
        monkeypatch.setattr(app, "exit", lambda: None)
        app.leave(jobs)
        assert app.farewell.partition("\n")[0] == farewell


def test_pull_all_orders_inputs_first_and_skips_busy_datasets(source: Scenario) -> None:
    pulled = source.job(JobState.queued, "port-haven.air-readings")
    source.changed(pulled)
    fakes = Fakes(source)
    DatasetActionsController(fakes.context).pull_all()
    pulls = {request.dataset: request for request in fakes.jobs.requests if isinstance(request, Pull)}
    assert sorted(pulls) == sorted(row.id for row in source.rows_ if row.id != pulled.dataset)
    order = [pulled.dataset, *pulls]
    for row in source.rows_:
        assert all(order.index(each) < order.index(row.id) for each in row.inputs)
    assert set(pulls[did("air-by-day")].after or ()) == {AIR, STATIONS}
    assert len(pulls[did("smoke-and-breath")].after or ()) == 5


def test_the_order_of_a_cycle_is_stable() -> None:
    rows = [dataset("a", "b"), dataset("b", "a")]
    assert sort_by_dependency(rows, [did("a")]) == [did("a"), did("b")]


def test_an_interrupted_pull_makes_its_dataset_failed(source: Scenario) -> None:
    fakes = Fakes(source)
    job = source.job(JobState.running, "port-haven.stations", ended=None)
    fakes.state.apply_events([source.changed(job)])
    assert fakes.state.healths[job.dataset] is Health.running
    fakes.state.apply_events([source.changed(replace(job, state=JobState.interrupted))])
    assert fakes.state.healths[job.dataset] is Health.failed


async def test_the_tour_shows_a_hint_until_its_action_was_performed(source: Scenario) -> None:
    save_layout(source.folder, encode_layout(SavedLayout(tour=list(TOUR))))
    async with driven(source, (80, 24)) as drive:
        assert "tour 1/3 · select stations, then 3 d p" in drive.text()
        await drive.press("3", "d", "escape")
        assert "tour 2/3 · w on a row" in drive.text()
        await drive.press("w", "escape")
        assert "tour 3/3 · v" in drive.text()
        assert drive.bench.collect_layout().tour == ["verify"]
        await drive.press("escape")  # leaves pane 3
        assert "tour 3/3" in drive.text()
        await drive.press("escape")
        assert "tour" not in drive.text()
        assert drive.bench.collect_layout().tour == []


async def test_cursor_of_the_terminal_is_on_the_selected_line(source: Scenario) -> None:
    async with driven(source, (160, 50)) as drive:

        def cell() -> tuple[int, str]:
            x, y = drive.app.cursor_position
            line = drive.text().splitlines()[y]
            return y, line[x : x + 30]

        await drive.press("j")
        await drive.until(lambda: cell()[1].startswith(MARK))
        selected = drive.app.bench.state.row
        assert selected is not None and selected.name in cell()[1]
        for keys in (["L"], ["2", "j"], ["3", "j"], ["4", "j"], ["1", "comma"], ["j"]):
            before = cell()
            await drive.press(*keys)
            await drive.until(lambda before=before: cell() != before and cell()[1].startswith(MARK))
