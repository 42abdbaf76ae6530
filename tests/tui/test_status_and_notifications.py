"""The main screen: hints, mouse, lists, the status line, announcements."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from textual import events
from textual.color import Color

from odf_engine.base.config import UiConfig
from odf_engine.worker.protocol import Job, JobProgress, JobState, Progress, WorkerStatus
from odf_tui.actions import user_keys
from odf_tui.actions.model import PANES, Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.panes.jobs.controller import JobsController
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.state.app_state import WorkerConnectionState
from odf_tui.theming.terminal import notification_sequence
from odf_tui.widgets.choice_list import Choices
from odf_tui.widgets.status_bar import KeyHints, StatusLine, format_running_jobs, format_worker
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.haven import dataset, did
from tests.tui.scripted_worker import Scenario
from tests.tui.test_blocks import block_line
from tests.tui.test_golden_screens import GOLDEN
from tests.tui.widget_app import shown


@pytest.fixture(autouse=True)
def _no_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_keys, "user_keys_path", lambda: tmp_path / "own" / "keys.yaml")


def compare(drive: Driven, name: str) -> None:
    """Compare the dialog, and the two lines below, with their golden text."""
    box = drive.app.screen.query_one(".dialog").region
    lines = drive.text().splitlines()
    shown_lines = [line[box.x : box.right] for line in lines[box.y : box.bottom]]
    text = "\n".join([*shown_lines, "", drive.status(), drive.hint(), ""])
    path = GOLDEN / f"shell-{name}.txt"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


SIZES = ((80, 24), (160, 50))


async def compare_sizes(drive: Driven, name: str, *keys: str) -> None:
    """Compare a dialog that keys open with its golden texts of both sizes, and close it."""
    for width, height in SIZES:
        await drive.resize(width, height)
        await drive.until(lambda height=height: len(drive.text().splitlines()) == height)
        await drive.press(*keys)
        compare(drive, f"{width}x{height}-{name}")
        await drive.press("escape")


@pytest.mark.app
@pytest.mark.complete
async def test_palette_themes_and_key_list_work_by_key_and_mouse(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures: the palette, the themes and the list of keys, with the status line and the hints."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    async with driven(source, SIZES[0]) as drive:
        await drive.press("colon")
        box, choices = drive.app.screen.query_one(".dialog"), drive.app.screen.query_one(Choices)
        assert choices.count() > choices.size.height == box.size.height - 2  # no empty lines below the list
        await drive.press("escape")
        await compare_sizes(drive, "palette", "colon", "=tid")
        running = source.job(JobState.running, "harbour.tides", started=None, ended=None)
        source.link.tell(
            source.changed(running), JobProgress(running.id, Progress("read", rows=4200, total_rows=9000))
        )
        await drive.until(lambda: drive.book.active_jobs() and "46%" in drive.status())
        await compare_sizes(drive, "themes", "T", "j")
        await compare_sizes(drive, "keys", "4", "question_mark", "tab")
        await drive.press("1", "T", "j")
        # The theme under the cursor is shown, in the borders too; escape brings the previous one back.
        names = drive.app.theme_names
        assert drive.app.theme == names[1]
        assert drive.bench.state.layout.theme == ""
        primary, border = Color.parse(drive.app.current_theme.primary), drive.front.styles.border.top[1]
        assert all(abs(one - other) <= 1 for one, other in zip(primary.rgb, border.rgb, strict=True))
        await drive.press("escape")
        assert drive.app.theme == "tide"
        await drive.press("T", "j", "enter")
        assert drive.app.theme == drive.bench.state.layout.theme == names[1]
        await drive.press("T")
        assert drive.app.screen.query_one(Choices).cursor == 1
        await drive.press("escape", "colon", "=theme", "down")
        assert drive.app.theme != names[1]
        await drive.press("escape")
        assert drive.app.theme == names[1]
        # An action that the situation refuses says why.
        await drive.press("question_mark", "tab", "slash", "=revoke trust", "enter")
        assert drive.app.screen is drive.bench
        assert "is your own" in drive.hint()
        # The palette goes to blocks, columns and jobs.
        await drive.press("colon", "=tides#2", "enter")
        await drive.until(
            lambda: drive.blocks_pane.view.block and drive.blocks_pane.view.block.sequence_number == 2
        )
        assert drive.pane == "blocks"
        assert drive.graph.row is not None and drive.graph.row.name == "harbour.tides"
        await drive.press("colon", "=pm25", "enter")
        assert drive.pane == "data"
        opened = drive.data_pane.view.opened
        assert opened is not None and opened.columns.names[drive.data_pane.view.column] == "pm25"
        await drive.press("colon", "=job 3", "enter")
        assert drive.pane == "jobs"
        assert drive.jobs_pane.view.job is not None and drive.jobs_pane.view.job.id == "3"
        # A dataset that the filter hides is shown again.
        await drive.press("1", "slash", "=clin", "enter", "colon", "=stations", "enter")
        assert drive.graph.row.name == "port-haven.stations"
        assert drive.datasets_pane.filter == ""
        # A click runs a hint, and chooses a line of a list.
        await drive.clear_notice()
        await drive.pilot.click("#hints", offset=(drive.hint().index("? keys") + 1, 0))
        await drive.settle()
        choices = drive.app.screen.query_one(Choices)
        at = next(at for at, choice in enumerate(choices.choices) if choice.id == "verify")
        choices.show(at)
        await drive.settle()
        await drive.pilot.click(choices, offset=(5, at - choices.scroll_offset.y))
        await drive.until(lambda: source.link.submitted)
        assert drive.app.screen is drive.bench
        assert [request.dataset for request in source.link.submitted] == [did("port-haven.stations")]
        # The wheel scrolls a pane, and the keys stay where they are.
        await drive.press("1", "k")
        view = drive.data_pane.view
        await drive.pilot._post_mouse_events([events.MouseScrollDown], view)
        await drive.until(lambda: view.scroll_offset.y > 0)
        assert drive.pane == "datasets"
        # The status line tells a worker of another version from none.
        drive.bench.state.set_worker(
            WorkerConnectionState("gone", "a worker of version 9 works here", busy=2)
        )
        await drive.until(lambda: "worker of another version, R stops it" in drive.status())
        drive.bench.state.set_worker(WorkerConnectionState("gone", "the worker has ended"))
        await drive.until(lambda: "no worker, R restarts it" in drive.status())
        # ^C leaves even from a dialog.
        await drive.press("colon")
        await drive.pilot.press("ctrl+c")
        await drive.pilot.pause()
        assert drive.app._exit


def job(**more: object) -> Job:
    """A job that runs for an hour."""
    known = {"id": "1", "kind": "pull", "target": "port-haven.air-readings", "dataset": "d"}
    known |= {"state": JobState.running, "created": "2024-03-11T09:00:00Z", "started": "2024-03-11T09:00:00Z"}
    return Job(**{**known, **more})  # type: ignore[arg-type]


def test_running_jobs_text_fits_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    from odf_tui.widgets import status_bar

    class Now:
        """Two minutes later."""

        @staticmethod
        def now() -> object:
            return status_time

    from odf_engine.metadata.timestamp import Timestamp

    status_time = Timestamp.parse("2024-03-11T09:02:05Z")
    monkeypatch.setattr(status_bar, "Timestamp", Now)
    one = job(progress=Progress(phase="read", rows=4200, total_rows=10000))
    assert (
        format_running_jobs([one], 90)
        == "▸ pull port-haven.air-readings 42% · read · 4 200 of 10 000 rows · 2 m 05 s"
    )
    assert format_running_jobs([one], 40) == "▸ pull port-have…readings 42% · 2 m 05 s"
    assert (
        format_running_jobs([one], 60, selected="d") == "▸ pull 42% · read · 4 200 of 10 000 rows · 2 m 05 s"
    )
    other = job(id="2", target="tides", started="2024-03-11T09:01:00Z")
    waits = job(id="3", state=JobState.queued, started=None)
    assert format_running_jobs([other, one, waits], 80) == (
        "▸ 2 running, 1 queued, slowest port-haven.air-readings · 2 m 05 s"
    )
    assert format_running_jobs([other, one, waits], 32) == "▸ 2 running, 1 queued"
    assert format_running_jobs([waits], 32) == "◦ 1 queued"
    for width in range(12, 90):
        for jobs in ([one], [other, one, waits], [waits]):
            assert len(format_running_jobs(jobs, width)) <= max(width, 30)


def test_status_line_names_worker_and_spark_state() -> None:
    ready = WorkerStatus(4711, 1, "0.1.0", "ready", "Spark 4.3.0 on local[2], Java 21", 0, 0, 0)
    assert format_worker("connected", ready) == ("● ready on local[2]", "")
    cluster = replace(ready, spark_detail="Spark 4.3.0 on spark://cluster.example:7077, Java 21")
    assert format_worker("connected", cluster)[0] == "● ready on spark://cluster.example:7077"
    assert format_worker("other version", None) == ("! worker of another version, R stops it", "warn")


@pytest.mark.parametrize("width", [60, 104])
async def test_hints_are_never_cut_and_end_with_find_and_keys(width: int) -> None:
    hints = KeyHints()
    row, line = dataset("a", records=10), block_line(2)
    async with shown(hints, (width, 24)):
        for pane in PANES:
            situation = Situation(pane, dataset=row, block=line, job=job(), has_rows=True, datasets=8)
            found = DEFAULT_KEYMAP.hints(situation)
            hints.show(found)
            text = "".join(part for part, _ in hints.spans(0)).rstrip()
            assert len(text) <= width
            assert text.endswith(": find  ? keys")
            assert f"{found[0].key} {found[0].word}" in text


def test_the_most_important_hints_come_first() -> None:
    hints = DEFAULT_KEYMAP.hints(Situation(dataset=dataset("a"), dataset_job=job()))
    assert hints[0].action == "cancel"
    order = [hint.action for hint in hints]
    assert order.index("open_dataset") < order.index("filter") < order.index("edit") < order.index("quit")
    assert [hint.action for hint in hints[-2:]] == ["palette", "help"]


def test_announcements_are_safe_and_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    xterm = {"TERM": "xterm-256color"}
    assert notification_sequence("done \x1b[31m\a", "both", xterm) == "\a\x1b]9;done ␛[31m␇\a"
    assert notification_sequence("done", "bell", xterm) == "\a"
    assert notification_sequence("done", "osc9", xterm) == "\x1b]9;done\a"
    assert len(notification_sequence("x" * 5000, "osc9", xterm)) < 140
    for terminal in ("linux", "screen-256color", "vt220"):
        assert notification_sequence("done", "both", {"TERM": terminal}) == "\a"
    tmux = tmp_path / "tmux"
    monkeypatch.setenv("PATH", str(tmp_path))
    inside = {"TERM": "tmux-256color", "TMUX": "/tmp/tmux"}
    for says, sequence in (("on", "\a\x1bPtmux;\x1b\x1b]9;done\a\x1b\\"), ("off", "\a")):
        tmux.write_text(f"#!/bin/sh\necho {says}\n")
        tmux.chmod(0o755)
        assert notification_sequence("done", "both", inside) == sequence
    tmux.unlink()
    assert notification_sequence("done", "both", inside) == "\a"


class JobsFakes:
    """The controller of jobs over fakes, and what it wrote to the terminal."""

    def __init__(self, source: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TMUX", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        pane = Mock()
        pane.view.job = None
        self.source, self.fakes = source, Fakes(source, widgets={JobsPane: pane, StatusLine: Mock()})
        self.controller = JobsController(self.fakes.context)
        self.written = self.fakes.host.terminal.written

    def change(self, *jobs: Job) -> None:
        """Apply events of the worker."""
        self.fakes.state.apply_events([self.source.changed(each) for each in jobs])


def test_long_jobs_that_end_are_announced(source: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobsFakes(source, monkeypatch)
    for seconds, ui, text in (
        (12, UiConfig(), "\a\x1b]9;odf: pull harbour.tides: failed, after 12 s\a"),
        (4, UiConfig(), ""),
        (12, UiConfig(notify_after_seconds=0), ""),
        (4, UiConfig(notify_after_seconds=3, notify_by="bell"), "\a"),
        (12, UiConfig(notify_by="none"), ""),
    ):
        source.ui = ui
        jobs.written.clear()
        running = source.job(JobState.running, "harbour.tides", ended=None)
        jobs.change(running)
        ended = replace(running, state=JobState.failed, ended=f"2024-03-11T09:00:{seconds + 1:02d}Z")
        jobs.change(ended, ended)  # the second event is not news
        jobs.change(ended)
        assert jobs.written == ([text] if text else [])


def test_quiet_jobs_are_not_announced(source: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobsFakes(source, monkeypatch)
    running = source.job(JobState.running, "harbour.tides", ended=None)
    jobs.fakes.jobs.quiet.add(running.id)
    jobs.change(running)
    jobs.change(replace(running, state=JobState.failed, ended="2024-03-11T09:10:00Z"))
    assert (jobs.written, jobs.fakes.host.notices) == ([], [])


def test_jobs_of_a_dead_worker_are_announced(source: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobsFakes(source, monkeypatch)
    running = source.job(JobState.running, "harbour.tides", ended=None)
    jobs.change(running)
    source.changed(replace(running, state=JobState.interrupted, ended="2024-03-11T10:00:01Z"))
    jobs.fakes.state.set_worker(WorkerConnectionState("gone", "the worker has ended"))  # reads jobs again
    assert jobs.fakes.host.last_notice == "the worker has ended: press R to restart it"
    assert len(jobs.written) == 1
    assert "pull harbour.tides: interrupted, after 1 h 00 m" in jobs.written[0]
