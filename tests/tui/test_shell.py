"""What holds the panes together: lists, mouse, status line, announcements."""

from __future__ import annotations

import inspect
import os
import pkgutil
import time
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual import events
from textual.color import Color
from textual.screen import ModalScreen

import odf_tui
from odf_engine.coordinator.protocol import Job, JobProgress, JobState, Progress, WorkerStatus
from odf_engine.settings import UiConfig
from odf_tui.actions import user_keys
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.features.palette import parse_block_reference
from odf_tui.state.app_state import WorkerConnectionState
from odf_tui.theming.terminal import notification_sequence
from odf_tui.widgets.choice_list import Choices
from odf_tui.widgets.dialogs import TextDialog
from odf_tui.widgets.status_bar import running_words, worker_words
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource, dataset
from tests.tui.test_pictures import GOLDEN

pytestmark = pytest.mark.app


@pytest.fixture(autouse=True)
def _no_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_keys, "user_keys_path", lambda: tmp_path / "own" / "keys.yaml")


# --- Lists ---


async def test_help_says_why_something_makes_no_sense_now(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("question_mark")
        assert "take back that the dataset is trusted" not in drive.text()
        assert "move about: h j k l" in drive.text() or drive.app.screen.query_one(Choices).count() > 20
        await drive.press("tab", "slash", "=take back that", "enter")
        assert drive.app.screen is drive.bench
        assert "is your own" in drive.hint()
        await drive.press("question_mark", "slash", "=zoom")
        assert [each.id for each in drive.app.screen.query_one(Choices).choices if not each.heading] == [
            "zoom"
        ]
        await drive.press("escape")
        assert drive.app.screen.query_one(Choices).count() > 10  # one level up: all of them again
        await drive.press("q")  # closes the list, and leaves nothing
        assert drive.app.screen is drive.bench
        assert drive.app.is_running


async def test_the_palette_finds_blocks_columns_and_jobs(source: FakeSource) -> None:
    async with driven(source) as drive:
        bench = drive
        await drive.press("colon", "=3", "enter")
        assert bench.pane == "blocks"
        assert bench.blocks_pane.view.block is not None
        assert bench.blocks_pane.view.block.sequence_number == 3
        await drive.press("colon", "=tides#2", "enter")
        await drive.until(
            lambda: bench.blocks_pane.view.block and bench.blocks_pane.view.block.sequence_number == 2
        )
        assert bench.graph.row is not None
        assert bench.graph.row.name == "harbour.tides"
        await drive.press("colon", "=pm25", "enter")
        assert bench.pane == "data"
        assert bench.data_pane.view.opened is not None
        assert bench.data_pane.view.opened.columns.names[bench.data_pane.view.column] == "pm25"
        await drive.press("colon", "=job 3", "enter")
        assert bench.pane == "jobs"
        assert bench.jobs_pane.view.job is not None
        assert bench.jobs_pane.view.job.id == "3"


async def test_the_palette_finds_a_block_by_its_hash(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "find_block", lambda dataset, text: {"f1620ab": 5}[text], raising=False)
    async with driven(source) as drive:
        await drive.press("colon", "=f1620ab", "enter")
        assert drive.blocks_pane.view.block is not None
        assert drive.blocks_pane.view.block.sequence_number == 5
        await drive.press("colon", "=f1620cd")
        assert "nothing fits" in drive.text()


async def test_what_was_chosen_last_comes_first(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("colon", "=tides#1", "enter", "colon", "=tides", "enter", "colon", "=zoom", "enter")
        await drive.press("colon")
        choices = drive.app.screen.query_one(Choices).choices
        tides = "did:odf:harbour.tides"
        assert [choice.id for choice in choices[:5]] == [
            "",
            "zoom",
            f"dataset {tides}",
            f"block {tides} 1",
            "",
        ]
        assert sum(choice.id == "zoom" for choice in choices) == 1
        await drive.press("enter")
        assert not drive.bench.has_class("-zoomed")  # it was, and is back


async def test_a_thousand_datasets_are_found_quickly(source: FakeSource) -> None:
    source.rows_ = [dataset(f"region-{n % 37}.station-{n:04d}.readings", records=10) for n in range(1000)]
    async with driven(source) as drive:
        await drive.press("colon")
        palette = drive.app.screen
        spent = []
        for text in ("s", "st", "sta 9", "station-0999", "rgn37"):
            began = time.process_time()
            found = palette.fitting(text)  # type: ignore[attr-defined]
            spent.append(time.process_time() - began)
            assert found
        assert sorted(spent)[2] < 0.02


def test_texts_that_mean_a_block() -> None:
    rows = [dataset("boats", records=10), dataset("long.boats", records=10), dataset("empty", blocks=0)]
    named = parse_block_reference("boats#12", rows, None)
    assert named is not None
    assert [row.name for row in named.rows] == ["boats", "long.boats"]
    assert (named.number, named.hash) == (12, "")
    named = parse_block_reference("f16204", rows, rows[1])
    assert named is not None
    assert (named.rows, named.number, named.hash) == ([rows[1]], None, "f16204")
    for text in ("boats", "12", "#", "abc", "empty#1"):
        assert parse_block_reference(text, rows, None) is None


async def test_themes_are_shown_while_the_cursor_is_on_them(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    async with driven(source) as drive:
        names = drive.app.theme_names
        await drive.press("T", "j", "j")
        assert drive.app.theme == names[2]
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


def dialogs() -> list[type[ModalScreen[object]]]:
    """Every dialog there is."""
    for module in pkgutil.walk_packages(odf_tui.__path__, "odf_tui."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found: list[type[ModalScreen[object]]] = []
    todo: list[type[ModalScreen[object]]] = [ModalScreen]
    while todo:
        for each in todo.pop().__subclasses__():
            todo.append(each)
            if each.__module__.startswith("odf_tui") and each.__name__ != "Dialog":
                found.append(each)
    return found


def test_every_dialog_names_its_keys() -> None:
    assert TextDialog in dialogs()
    for dialog in dialogs():
        told = [each for each in dialog.__mro__ if each.__module__.startswith("odf_tui")]
        words = ("border_subtitle", '"key")', "set_subtitle")
        assert any(word in inspect.getsource(each) for each in told for word in words), dialog


async def test_a_dialog_lists_and_runs_its_keys(source: FakeSource) -> None:
    async with driven(source) as drive:
        copied: list[str] = []
        drive.app.copy = lambda text: copied.append(text) or "copied"  # type: ignore[method-assign,func-returns-value]
        drive.app.push_screen(TextDialog("a text", [[("one", "")]], copied.append))
        await drive.press("question_mark")
        assert "copy the whole text" in drive.text()
        await drive.press("y")
        assert copied == ["one"]
        assert isinstance(drive.app.screen, TextDialog)
        await drive.press("q")
        assert drive.app.screen is drive.bench


async def test_the_mouse_runs_hints_and_takes_choices(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.pilot.click("#hints", offset=(drive.hint().index("? keys") + 1, 0))
        await drive.settle()
        choices = drive.app.screen.query_one(Choices)
        at = next(at for at, choice in enumerate(choices.choices) if choice.id == "verify")
        await drive.pilot.click(choices, offset=(5, at - choices.scroll_offset.y))
        await drive.settle()
        assert drive.app.screen is drive.bench
        assert [request.dataset for request in source.link.submitted] == ["did:odf:port-haven.air-readings"]


async def test_the_wheel_scrolls_and_leaves_the_keys_where_they_are(source: FakeSource) -> None:
    async with driven(source) as drive:
        view = drive.data_pane.view
        await drive.pilot._post_mouse_events([events.MouseScrollDown], view)
        await drive.settle()
        assert view.scroll_offset.y > 0
        assert drive.pane == "datasets"


# --- The status line ---


def job(**more: object) -> Job:
    """A job that runs for an hour."""
    known = {"id": "1", "kind": "pull", "target": "port-haven.air-readings", "dataset": "d"}
    known |= {"state": JobState.running, "created": "2024-03-11T09:00:00Z", "started": "2024-03-11T09:00:00Z"}
    return Job(**{**known, **more})  # type: ignore[arg-type]


def test_what_runs_in_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
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
        running_words([one], 90)
        == "▸ pull port-haven.air-readings 42 % · read · 4 200 of 10 000 rows · 2 m 05 s"
    )
    assert running_words([one], 40) == "▸ pull port-hav…readings 42 % · 2 m 05 s"
    assert running_words([one], 60, selected="d") == "▸ pull 42 % · read · 4 200 of 10 000 rows · 2 m 05 s"
    other = job(id="2", target="tides", started="2024-03-11T09:01:00Z")
    waits = job(id="3", state=JobState.queued, started=None)
    assert running_words([other, one, waits], 80) == (
        "▸ 2 jobs run, 1 waits, slowest port-haven.air-readings · 2 m 05 s"
    )
    assert running_words([other, one, waits], 32) == "▸ 2 jobs run, 1 waits"
    assert running_words([waits], 32) == "◦ 1 job waits"
    for width in range(12, 90):
        for jobs in ([one], [other, one, waits], [waits]):
            assert len(running_words(jobs, width)) <= max(width, 30)


def test_the_worker_and_spark_in_words() -> None:
    ready = WorkerStatus(4711, 1, "0.1.0", "ready", "Spark 4.3.0 on local[2], Java 21", 0, 0, 0)
    assert worker_words("connected", ready) == ("● ready on local[2]", "")
    cluster = replace(ready, spark_detail="Spark 4.3.0 on spark://cluster.example:7077, Java 21")
    assert worker_words("connected", cluster)[0] == "● ready on spark://cluster.example:7077"
    assert worker_words("other version", None) == ("! worker of another version, R stops it", "warn")


async def test_a_worker_of_another_version_is_not_the_same_as_none(source: FakeSource) -> None:
    async with driven(source) as drive:
        drive.bench.state.set_worker(
            WorkerConnectionState("gone", "a worker of version 9 works here", busy=2)
        )
        await drive.until(lambda: "worker of another version, R stops it" in drive.status())
        drive.bench.state.set_worker(WorkerConnectionState("gone", "the worker has ended"))
        await drive.until(lambda: "worker gone, R restarts it" in drive.status())


async def test_hints_are_never_cut_and_lead_to_all_others(source: FakeSource) -> None:
    for width in (60, 104):
        async with driven(source, (width, 24)) as drive:
            for pane in "1234":
                await drive.press(pane)
                line = drive.hint().rstrip()
                assert len(line) <= width
                assert line.endswith(": find  ? keys")


def test_what_matters_most_comes_first() -> None:
    hints = DEFAULT_KEYMAP.hints(Situation(dataset=dataset("a"), dataset_job=job()))
    assert hints[0].action == "cancel"
    order = [hint.action for hint in hints]
    assert order.index("open_dataset") < order.index("filter") < order.index("edit") < order.index("quit")
    assert [hint.action for hint in hints[-2:]] == ["palette", "help"]


# --- Announcing ---


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


async def test_long_jobs_that_end_are_announced(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    async with driven(source) as drive:
        written: list[str] = []
        drive.app.write = written.append  # type: ignore[method-assign]
        for seconds, ui, words in (
            (12, UiConfig(), "\a\x1b]9;odf: pull harbour.tides: failed, after 12 s\a"),
            (4, UiConfig(), ""),
            (12, UiConfig(notify_after_seconds=0), ""),
            (4, UiConfig(notify_after_seconds=3, notify_by="bell"), "\a"),
            (12, UiConfig(notify_by="none"), ""),
        ):
            source.ui = ui
            written.clear()
            running = source.job(JobState.running, "harbour.tides", ended=None)
            source.link.tell(source.changed(running))
            await drive.until(lambda: drive.book.active_jobs())
            ended = replace(running, state=JobState.failed, ended=f"2024-03-11T09:00:{seconds + 1:02d}Z")
            source.link.tell(source.changed(ended), source.changed(ended))  # told again, it is not news
            await drive.until(lambda: not drive.book.active_jobs())
            await drive.settle()
            assert written == ([words] if words else [])


async def test_what_a_dead_worker_left_is_announced_too(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    async with driven(source) as drive:
        written: list[str] = []
        drive.app.write = written.append  # type: ignore[method-assign]
        running = source.job(JobState.running, "harbour.tides", ended=None)
        source.link.tell(source.changed(running))
        await drive.until(lambda: drive.book.active_jobs())
        source.changed(replace(running, state=JobState.interrupted, ended="2024-03-11T10:00:01Z"))
        source.link.die()
        await drive.until(lambda: written)
        assert "pull harbour.tides: interrupted, after 1 h 00 m" in written[0]


# --- Pictures ---


def compare(drive: Driven, name: str) -> None:
    """Compares the dialog, and the two lines below, with their golden text."""
    box = drive.app.screen.query_one(".dialog").region
    lines = drive.text().splitlines()
    shown = [line[box.x : box.right] for line in lines[box.y : box.bottom]]
    text = "\n".join([*shown, "", drive.status(), drive.hint(), ""])
    path = GOLDEN / f"shell-{name}.txt"
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_pictures(source: FakeSource, size: tuple[int, int]) -> None:
    name = f"{size[0]}x{size[1]}"
    async with driven(source, size) as drive:
        await drive.press("colon", "=tid")
        compare(drive, f"{name}-palette")
        running = source.job(JobState.running, "harbour.tides", started=None, ended=None)
        source.link.tell(
            source.changed(running), JobProgress(running.id, Progress("read", rows=4200, total_rows=9000))
        )
        await drive.until(lambda: drive.book.active_jobs() and "46 %" in drive.status())
        await drive.press("escape", "T", "j")
        compare(drive, f"{name}-themes")
        await drive.press("escape", "4", "question_mark", "tab")
        compare(drive, f"{name}-keys")
