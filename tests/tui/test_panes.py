"""The workbench, driven by keys: panes, navigation, filters, details, and the worker's news."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from odf_engine.coordinator.protocol import Failure, JobProgress, JobState, Pull, Verify
from odf_engine.errors import OdfError
from odf_tui.panes.blocks.view import PAGE
from odf_tui.state.model import Health, sort_by_dependency
from tests.tui.conftest import driven
from tests.tui.fake import FakeSource, dataset, progress

pytestmark = pytest.mark.app


async def test_the_selection_in_the_graph_moves_the_other_panes(source: FakeSource) -> None:
    async with driven(source) as drive:
        bench = drive
        assert bench.graph.row is not None
        assert bench.graph.row.name == "port-haven.air-readings"
        await drive.press("j")
        assert bench.graph.row.name == "port-haven.stations"
        assert bench.blocks_pane.view.dataset == "did:odf:port-haven.stations"
        assert bench.data_pane.view.count() == 31
        assert "port-haven.stations" in str(bench.blocks_pane.border_title)
        await drive.press("l")
        assert bench.graph.row.name == "air-by-day"
        await drive.press("l")
        assert bench.graph.row.name == "smoke-and-breath"
        assert bench.data_pane.view.count() == 0
        assert "p makes them of other datasets" in drive.text()
        await drive.press("h", "h")
        assert bench.graph.row.name == "port-haven.clinic-visits"
        await drive.press("G")
        assert bench.graph.row.name == "harbour.tides"
        await drive.press("g")
        assert bench.graph.row.name == "port-haven.air-readings"


async def test_numbers_and_tab_go_to_panes(source: FakeSource) -> None:
    async with driven(source) as drive:
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


async def test_blocks_are_read_by_the_page_as_they_come_into_view(source: FakeSource) -> None:
    source.rows_ = [dataset("big", records=1_000_000)]
    async with driven(source) as drive:
        total = source.rows_[0].blocks
        view = drive.blocks_pane.view
        assert view.count() == total == 1004
        asked = len(source.asked)
        assert asked <= 2
        await drive.press("2", "G")
        await drive.until(lambda: view.block is not None and view.block.event == "Seed")
        assert len(source.asked) <= asked + 2
        assert all(limit == PAGE for _, _, limit, _ in source.asked)
        await drive.press("g", "pagedown")
        await drive.until(lambda: view.block is not None)
        assert view.cursor == view.room.height - 1


async def test_new_blocks_leave_the_cursor_on_its_block(source: FakeSource) -> None:
    source.rows_ = [dataset("growing", records=9000)]
    async with driven(source) as drive:
        await drive.press("2", "j", "j")
        view = drive.blocks_pane.view
        assert view.block is not None
        before = view.block.sequence_number
        source.rows_ = [dataset("growing", records=11000)]
        await drive.press("r")
        assert view.total == source.rows_[0].blocks
        assert view.block is not None
        assert view.block.sequence_number == before


async def test_a_block_opens_as_yaml_and_steps_to_its_neighbours(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("2", "j", "enter")
        assert "sequenceNumber: 10" in drive.text()
        await drive.press("left_square_bracket")
        assert "sequenceNumber: 9" in drive.text()
        await drive.press("right_square_bracket", "right_square_bracket")
        assert "sequenceNumber: 11" in drive.text()
        await drive.press("escape")
        assert drive.app.screen is drive.bench
        assert drive.blocks_pane.view.cursor == 0


async def test_filters_of_all_panes(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        bench = drive
        await drive.press("slash", "=clin", "enter")
        assert [row.name for row in bench.datasets_pane.shown] == [
            "port-haven.clinic-visits",
            "port-haven.clinics",
        ]
        assert "/clin" in str(bench.datasets_pane.border_title)
        await drive.press("escape")
        assert len(bench.datasets_pane.shown) == 8
        await drive.press("g", "2", "slash", "=set", "enter")
        assert [bench.blocks_pane.view._at(index).event for index in range(3)] == [  # type: ignore[union-attr]
            "SetDataSchema",
            "SetInfo",
            "SetPollingSource",
        ]
        assert bench.blocks_pane.view.count() == 3
        await drive.press("escape", "4", "slash", "=verify", "enter")
        assert bench.jobs_pane.view.count() == 1
        await drive.press("escape")
        assert bench.jobs_pane.view.count() == 3


async def test_a_filtered_graph_keeps_who_feeds_whom(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("slash", "=a", "enter")
        await drive.press("escape", "slash", "=th", "enter")
        assert [row.name for row in drive.datasets_pane.shown] == ["smoke-and-breath"]
        await drive.press("escape")
        assert drive.graph.row is not None


async def test_zoom_and_escape_go_one_level_up(source: FakeSource) -> None:
    async with driven(source) as drive:
        bench = drive
        await drive.press("3", "z")
        assert bench.data_pane.size.width > 100
        assert not bench.datasets_pane.size
        await drive.press("2")
        assert bench.blocks_pane.size.width > 100
        await drive.press("slash", "=add", "enter")
        await drive.press("escape")
        assert not bench.blocks_pane.filter
        assert drive.bench.has_class("-zoomed")
        await drive.press("escape")
        assert not drive.bench.has_class("-zoomed")
        assert bench.pane == "blocks"
        await drive.press("escape")
        assert bench.pane == "datasets"
        await drive.press("escape")
        assert "this is the top" in drive.hint()


async def test_pulling_verifying_and_live_progress(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        await drive.press("p")
        assert source.link.submitted == [Pull(dataset="did:odf:port-haven.air-readings")]
        await drive.until(lambda: len(drive.book.jobs) == 4)
        assert drive.healths["did:odf:port-haven.air-readings"] is Health.queued
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
        assert "is being pulled already" in drive.hint()
        assert len(source.link.submitted) == 1
        done = replace(
            job,
            state=JobState.done,
            ended="2024-03-11T09:00:03Z",
            result='{"status": "updated", "records": 1000, "blocks": 1}',
        )
        source.rows_[0] = dataset("port-haven.air-readings", records=8200)
        source.link.tell(source.committed(job.id, job.dataset, 1000), source.changed(done))
        await drive.until(lambda: "pull port-haven.air-readings: +1 000 rows" in drive.hint())
        await drive.until(lambda: drive.data_pane.view.count() == 8200)
        assert drive.blocks_pane.view.total == source.rows_[0].blocks
        await drive.press("v")
        assert source.link.submitted[-1] == Verify(dataset="did:odf:port-haven.air-readings")


async def test_pulling_all_takes_inputs_first_and_leaves_out_what_is_busy(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("p")
        await drive.until(lambda: drive.book.active_jobs())
        await drive.press("P")
        await drive.until(lambda: len(source.link.submitted) == len(source.rows_))
        pulls = {request.dataset: request for request in source.link.submitted}
        assert sorted(pulls) == sorted(row.id for row in source.rows_)
        order = list(pulls)
        for row in source.rows_:
            assert all(order.index(each) < order.index(row.id) for each in row.inputs)
        assert set(pulls["did:odf:air-by-day"].after) == set(source.rows_[4].inputs)  # type: ignore[union-attr]
        assert len(pulls["did:odf:smoke-and-breath"].after) == 5  # type: ignore[union-attr]
    assert sort_by_dependency([dataset("a", "b"), dataset("b", "a")], ["did:odf:a"]) == [
        "did:odf:a",
        "did:odf:b",
    ]


async def test_a_failed_job_says_what_where_and_what_to_do(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("4")
        text = drive.text()
        assert "column 'age' has the value 'forty'" in text
        assert "sources/clinics.csv:212" in text
        assert "correct the file, or declare the" in text
        await drive.press("enter")
        assert "correct the file, or declare the column STRING" in drive.text()
        await drive.press("escape", "o")
        assert drive.graph.row is not None
        assert drive.graph.row.name == "port-haven.clinics"
        assert "the last pull did not succeed" in drive.text()


async def test_cancelling_asks_first(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("x")
        assert "no job runs for this dataset" in drive.hint()
        await drive.press("p")
        await drive.until(lambda: drive.book.active_jobs())
        await drive.press("x")
        assert "Cancel pull port-haven.air-readings?" in drive.text()
        await drive.press("n")
        assert source.link.cancelled == []
        await drive.press("x", "y")
        assert source.link.cancelled == ["4"]


async def test_a_worker_that_dies_shows_as_interrupted_jobs_and_comes_back(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        await drive.press("p")
        await drive.until(lambda: drive.book.active_jobs())
        job = source.known[-1]
        gone = Failure("the worker ended before this job did", hint="run it again")
        source.changed(replace(job, state=JobState.interrupted, error=gone))
        source.link.die()
        await drive.until(lambda: "worker gone, R restarts it" in drive.status())
        await drive.until(lambda: drive.book.jobs[job.id].state is JobState.interrupted)
        assert "R starts it again" in drive.hint()
        assert "the worker ended before this job did" in drive.text()
        assert drive.healths[job.dataset] is Health.failed
        await drive.press("j", "k")  # nothing is frozen
        await drive.press("R")
        await drive.until(lambda: len(source.links) == 2)
        await drive.until(lambda: "● ready" in drive.status())


async def test_a_command_brings_a_lost_worker_back_by_itself(source: FakeSource) -> None:
    async with driven(source) as drive:
        source.link.die()
        await drive.until(lambda: drive.worker_state == "gone")
        await drive.press("v")
        await drive.until(lambda: len(source.links) == 2)
        assert source.link.submitted == [Verify(dataset="did:odf:port-haven.air-readings")]


async def test_a_worker_that_does_not_start_is_told_of(source: FakeSource) -> None:
    source.connecting = [OdfError("the worker ended right after its start", hint="its log is worker.log")] * 2
    from odf_tui.app import Workstation
    from tests.tui.conftest import Driven

    app = Workstation(source)
    async with app.run_test(size=(120, 36)) as pilot:
        drive = Driven(app, pilot, source)
        await drive.until(lambda: app.bench.state.worker == "gone")
        await drive.settle()
        assert "the worker ended right after its start" in drive.hint()
        await drive.press("p")
        await drive.until(lambda: not source.connecting)
        await drive.until(lambda: "ended right after its start" in drive.hint())
        await drive.press("p")
        await drive.until(lambda: source.links and source.link.submitted)


async def test_empty_workspaces_teach(source: FakeSource) -> None:
    source.rows_, source.known, source.journal = [], [], []
    async with driven(source) as drive:
        text = drive.text()
        assert "There are no datasets yet" in text
        assert "look at a demo first" in text
        assert "No jobs yet" in text
        await drive.press("p")
        assert "no dataset is selected" in drive.hint()
        for key in ("2", "G", "enter", "3", "j", "y", "enter", "4", "enter", "z", "slash", "x", "escape"):
            await drive.press(key)


async def test_a_damaged_and_a_missing_dataset(source: FakeSource) -> None:
    source.rows_ = [
        dataset("broken", problem="block f1620: the field event is missing", blocks=0),
        dataset("far-away", missing=True),
        dataset("made", "far-away"),
    ]
    async with driven(source) as drive:
        assert drive.graph.row is not None
        assert "not in the workspace" in drive.text()
        await drive.press("v")
        assert "is not in this workspace" in drive.hint()
        await drive.press("G")
        assert "the field event is missing" in drive.text()
        assert drive.healths["did:odf:broken"] is Health.damaged


async def test_quitting_says_that_the_job_goes_on(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("p")
        await drive.until(lambda: drive.book.active_jobs())
        await drive.pilot.press("q")
        await drive.pilot.pause()
    assert "pull port-haven.air-readings goes on" in drive.app.farewell


async def test_control_c_leaves_even_from_a_dialog(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("colon")
        await drive.pilot.press("ctrl+c")
        await drive.pilot.pause()
        assert drive.app._exit
    assert drive.app.farewell == ""
