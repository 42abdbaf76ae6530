"""What holds the panes together: changed keys, lists, sizes, what is remembered, announcements."""

from __future__ import annotations

import inspect
import json
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

import odf_tui.screens
from odf_engine.coordinator.protocol import Job, JobProgress, JobState, Progress, WorkerStatus
from odf_engine.workspace.config import Config, UiConfig, load, render, set_value
from odf_tui import announcing, keymap, remembered
from odf_tui.actions import USUAL, Situation
from odf_tui.app import LateSource
from odf_tui.messages import WorkerChanged
from odf_tui.remembered import Remembered, Shares
from odf_tui.screens.dialogs import Choices, Reader
from odf_tui.screens.palette import named_block
from odf_tui.screens.sizing import LEAST, grown
from odf_tui.widgets.status import running_words, worker_words
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource, dataset
from tests.tui.test_pictures import GOLDEN


@pytest.fixture(autouse=True)
def _no_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keymap, "own_file", lambda: tmp_path / "own" / "keys.yaml")


# --- Keys that somebody has changed ---


def shown(wanted: keymap.Wanted, *actions: str) -> tuple[list[str], list[str]]:
    """The keys of actions, and what was wrong."""
    keys, problems = keymap.load(wanted)
    return [keys.shown(action) for action in actions], problems


def test_keys_are_taken_however_they_are_written() -> None:
    wanted = {"pull": "ctrl+l", "zoom": ["Z", "f1"], "add": "none", "verify": "^g", "copy": "C-o, /"}
    wanted |= {"filter": "n", "back": "none", "help": "?", "palette": "colon"}
    found, problems = shown(wanted, "pull", "zoom", "add", "verify", "copy", "filter")
    assert found == ["^l", "Z", "", "^g", "^o", "n"]
    assert problems == []  # F1 is free: the help has another one


def test_what_is_wrong_in_the_key_map_is_told_and_the_rest_works() -> None:
    wanted = {
        "pul": "p", "verify": "ctrl+m", "zoom": "alt+z", "copy": "f5", "edit": "nokey",
        "pull": ["ctrl+i", "ctrl+l"],
    }  # fmt: skip
    found, problems = shown(wanted, "verify", "zoom", "copy", "edit", "pull")
    assert found == ["v", "z", "y", "e", "^l"]
    assert problems == [
        "there is no action 'pul': pull?",
        "verify: ctrl+m cannot be used, terminals send it as enter",
        "zoom: alt+z cannot be used, many terminals do not pass it on",
        "copy: f5 cannot be used, terminals and desktops keep it for themselves",
        "edit: nokey cannot be used, it is no key",
        "pull: ctrl+i cannot be used, terminals send it as tab",
    ]


def test_two_actions_of_a_scope_do_not_share_a_key() -> None:
    assert shown({"pull": "v", "verify": "p"}, "pull", "verify") == (["v", "p"], [])  # both are changed
    assert shown({"pull": "v"}, "pull", "verify") == (["p", "v"], ["pull: v is the key of verify"])
    assert shown({"pull": "o"}, "pull", "job_dataset") == (["o", "o"], [])  # a pane's own key wins there
    taken = {"job_dataset": "b"}
    assert shown(taken, "job_dataset")[1] == ["job_dataset: b is the key of job_block in the pane of jobs"]
    found, _ = shown({"pull": "none", "verify": "p", "zoom": "p"}, "verify", "zoom", "pull")
    assert sorted(found) == ["", "p", "v"]  # one of the two gets it


def test_the_keys_of_the_workspace_win_over_those_of_the_person(tmp_path: Path) -> None:
    own = tmp_path / "keys.yaml"
    own.write_text("pull: ctrl+l\nzoom: Z\nadd: [+, n]\n")
    keys, problems = keymap.load({"pull": "ctrl+g"}, own)
    assert [keys.shown(each) for each in ("pull", "zoom")] == ["^g", "Z"]
    assert problems == ["add: + is the key of grow"]
    for text, told in (("- a\n", "is no list of actions"), ("a: [\n", "is not valid YAML")):
        own.write_text(text)
        keys, problems = keymap.load({}, own)
        assert keys is USUAL
        assert len(problems) == 1
        assert told in problems[0]
    assert keymap.load({}, tmp_path / "elsewhere.yaml") == (USUAL, [])


def test_keys_are_settings(tmp_path: Path) -> None:
    config = set_value(Config(), "ui.keys.pull", "ctrl+l")
    config = set_value(config, "ui.notifyAfterSeconds", "0")
    path = tmp_path / "config.yaml"
    path.write_text(render(config))
    assert load(path).ui == UiConfig(keys={"pull": "ctrl+l"}, notify_after_seconds=0)
    path.write_text("ui:\n  keys: {zoom: [Z, f1]}\n")
    assert load(path).ui.keys == {"zoom": ["Z", "f1"]}


async def test_changed_keys_work_and_are_shown(source: FakeSource) -> None:
    source.ui = UiConfig(keys={"pull": "ctrl+l", "zoom": "Z", "xyzzy": "x", "pane_2": "alt+2"})
    async with driven(source) as drive:
        assert drive.hint() == " there is no action 'xyzzy' (and 1 more: ?)"
        await drive.press("question_mark")
        listed = {choice.id: choice.shown for choice in drive.app.screen.query_one(Choices).choices}
        assert listed["pull"] == "^l"
        await drive.press("G")
        assert "! pane_2: alt+2 cannot be used" in drive.text()
        await drive.press("escape", "p")
        assert not source.link.submitted
        await drive.press("ctrl+l")
        assert source.link.submitted
        await drive.press("Z")
        assert drive.bench.has_class("-zoomed")


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
        bench = drive.bench
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
        assert drive.bench.blocks_pane.view.block is not None
        assert drive.bench.blocks_pane.view.block.sequence_number == 5
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
    named = named_block("boats#12", rows, None)
    assert named is not None
    assert [row.name for row in named.rows] == ["boats", "long.boats"]
    assert (named.number, named.hash) == (12, "")
    named = named_block("f16204", rows, rows[1])
    assert named is not None
    assert (named.rows, named.number, named.hash) == ([rows[1]], None, "f16204")
    for text in ("boats", "12", "#", "abc", "empty#1"):
        assert named_block(text, rows, None) is None


async def test_themes_are_shown_while_the_cursor_is_on_them(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    async with driven(source) as drive:
        names = drive.app.theme_names
        await drive.press("T", "j", "j")
        assert drive.app.theme == names[2]
        assert drive.bench.remembered.theme == ""
        primary, border = Color.parse(drive.app.current_theme.primary), drive.bench.front.styles.border.top[1]
        assert all(abs(one - other) <= 1 for one, other in zip(primary.rgb, border.rgb, strict=True))
        await drive.press("escape")
        assert drive.app.theme == "tide"
        await drive.press("T", "j", "enter")
        assert drive.app.theme == drive.bench.remembered.theme == names[1]
        await drive.press("T")
        assert drive.app.screen.query_one(Choices).cursor == 1
        await drive.press("escape", "colon", "=theme", "down")
        assert drive.app.theme != names[1]
        await drive.press("escape")
        assert drive.app.theme == names[1]


def dialogs() -> list[type[ModalScreen[object]]]:
    """Every dialog there is."""
    for module in pkgutil.iter_modules(odf_tui.screens.__path__):
        import_module(f"odf_tui.screens.{module.name}")
    found: list[type[ModalScreen[object]]] = []
    todo: list[type[ModalScreen[object]]] = [ModalScreen]
    while todo:
        for each in todo.pop().__subclasses__():
            todo.append(each)
            if each.__module__.startswith("odf_tui") and each.__name__ != "Dialog":
                found.append(each)
    return found


def test_every_dialog_names_its_keys() -> None:
    assert Reader in dialogs()
    for dialog in dialogs():
        told = [each for each in dialog.__mro__ if each.__module__.startswith("odf_tui")]
        words = ("border_subtitle", '"key")', "tell_below")
        assert any(word in inspect.getsource(each) for each in told for word in words), dialog


async def test_a_dialog_lists_and_runs_its_keys(source: FakeSource) -> None:
    async with driven(source) as drive:
        copied: list[str] = []
        drive.app.copy = lambda text: copied.append(text) or "copied"  # type: ignore[method-assign,func-returns-value]
        drive.app.push_screen(Reader("a text", [[("one", "")]], copied.append))
        await drive.press("question_mark")
        assert "copy the whole text" in drive.text()
        await drive.press("y")
        assert copied == ["one"]
        assert isinstance(drive.app.screen, Reader)
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
        view = drive.bench.data_pane.view
        await drive.pilot._post_mouse_events([events.MouseScrollDown], view)
        await drive.settle()
        assert view.scroll_offset.y > 0
        assert drive.bench.pane == "datasets"


# --- Sizes ---


def test_shares_stay_within_limits() -> None:
    shares = Shares()
    for _ in range(20):
        shares = grown(shares, "datasets", 5, single=False)
    assert shares == Shares(left=100 - LEAST, upper=100 - LEAST)
    assert grown(shares, "jobs", 5, single=False) == Shares(left=75, upper=75)
    assert grown(Shares(), "blocks", 5, single=True) == Shares(single=35)


async def test_panes_grow_and_shrink(source: FakeSource) -> None:
    async with driven(source, (160, 50)) as drive:
        before = drive.bench.front.size
        await drive.press("plus")
        grown_to = drive.bench.front.size
        assert grown_to.width > before.width
        assert grown_to.height > before.height
        await drive.press("4", "minus", "minus")
        assert drive.bench.front.size.width < 60
        await drive.pilot.resize_terminal(80, 24)  # two panes: they have shares of their own
        await drive.until(lambda: drive.bench.front.size.width == 78)
        height = drive.bench.front.size.height
        await drive.press("plus")
        assert drive.bench.front.size.height > height
        await drive.press("z", "plus")
        assert "one pane is shown alone" in drive.hint()
        await drive.press("z", "equals_sign", "1")
        await drive.pilot.resize_terminal(160, 50)
        await drive.until(lambda: drive.bench.front.size == before)


# --- What is remembered ---


async def leave(drive: Driven) -> None:
    """Leaves as with q."""
    await drive.settle()
    drive.bench.do_quit()


async def test_the_screen_is_as_it_was_left(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("slash", "=port", "enter", "j", "plus", "T", "j", "enter")
        await drive.press("3", "l", "l", "l", "l", "l", "H", "1", "L")
        await drive.press("4", "slash", "=pull", "enter", "z", "w")
        await leave(drive)
    async with driven(source) as drive:
        bench = drive.bench
        assert bench.pane == "jobs"
        assert bench.has_class("-zoomed")
        assert "/pull" in str(bench.jobs_pane.border_title)
        assert not bench.jobs_pane.log_view.wrap
        assert bench.datasets_pane.mode == "list"
        assert bench.data_pane.arrangement("did:odf:port-haven.stations") == {"hidden": ["pm25"]}
        await drive.press("z", "1")
        assert bench.graph.row is not None
        assert bench.graph.row.name == "port-haven.stations"
        assert "/port" in drive.text()
        assert bench.shares == Shares(left=65, upper=50)
        await drive.press("escape")  # the filter is there, and goes
        assert "harbour.tides" in drive.text()
        await leave(drive)
    assert remembered.load(source.folder).filters == {"jobs": "pull"}


async def test_a_filter_of_blocks_is_there_again_and_goes(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("2", "slash", "=Seed", "enter")
        assert drive.bench.blocks_pane.view.count() == 1
        await leave(drive)
    async with driven(source) as drive:
        assert "/Seed" in drive.text()
        assert drive.bench.blocks_pane.view.count() == 1
        assert "" not in [asked[0] for asked in source.asked]
        await drive.press("escape")
        assert drive.bench.blocks_pane.view.count() > 1


async def test_changes_are_written_after_a_while_and_only_then(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odf_tui.screens import remembering

    monkeypatch.setattr(remembering, "SAVE_SECONDS", 0.02)
    path = remembered.path_in(source.folder)
    async with driven(source) as drive:
        assert not path.exists()
        await drive.press("2")
        await drive.until(path.exists)
        assert json.loads(path.read_text())["pane"] == "blocks"
        path.unlink()
        await drive.press("question_mark", "escape")  # nothing that is remembered
        await drive.pilot.pause(0.1)
        await drive.settle()
        assert not path.exists()


def test_what_cannot_be_read_is_as_if_it_had_never_been_written(tmp_path: Path) -> None:
    path = remembered.path_in(tmp_path)
    path.parent.mkdir(parents=True)
    usual = Remembered()
    assert remembered.load(tmp_path) == usual
    for broken in (b"", b"\xff\xfe", b"[1]", b'{"pane": "blocks"', b"null"):
        path.write_bytes(broken)
        assert remembered.load(tmp_path) == usual
    path.write_text(
        '{"pane": "blocks", "shares": {"left": "wide"}, "zoomed": 3, "recent": ["zoom"], "newer": {}}'
    )
    assert remembered.load(tmp_path) == Remembered(pane="blocks", recent=["zoom"])


async def test_a_disk_that_cannot_be_written_to_is_no_trouble(source: FakeSource) -> None:
    (source.folder / ".odf").write_text("not a folder")
    async with driven(source) as drive:
        await drive.press("2")
        await leave(drive)
    async with driven(source) as drive:
        assert drive.bench.pane == "datasets"


async def test_what_is_no_more_is_not_restored(source: FakeSource) -> None:
    gone = Remembered(pane="kitchen", dataset="did:odf:gone", graph={"mode": "pie", "sort": 1}, theme="gone")
    remembered.save(source.folder, remembered.encode(gone))
    async with driven(source) as drive:
        assert drive.bench.pane == "datasets"
        assert drive.bench.graph.row is not None


def test_a_theme_of_the_settings_wins_when_it_was_set_later() -> None:
    chosen = Remembered(theme="paper", theme_setting="auto")
    assert remembered.theme(chosen, "auto") == "paper"
    assert remembered.theme(chosen, "ember") == "ember"
    assert remembered.theme(Remembered(), "auto") == "auto"


def test_the_theme_is_remembered_before_the_engine_is_there(tmp_path: Path) -> None:
    remembered.save(tmp_path, remembered.encode(Remembered(theme="paper", theme_setting="auto")))
    assert LateSource(tmp_path, UiConfig()).theme == "paper"
    assert LateSource(tmp_path, UiConfig(theme="ember")).theme == "ember"


# --- The status line ---


def job(**more: object) -> Job:
    """A job that runs for an hour."""
    known = {"id": "1", "kind": "pull", "target": "port-haven.air-readings", "dataset": "d"}
    known |= {"state": JobState.running, "created": "2024-03-11T09:00:00Z", "started": "2024-03-11T09:00:00Z"}
    return Job(**{**known, **more})  # type: ignore[arg-type]


def test_what_runs_in_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from odf_tui.widgets import status

    class Now:
        """Two minutes later."""

        @staticmethod
        def now() -> object:
            return status_time

    from odf_engine.metadata.timestamp import Timestamp

    status_time = Timestamp.parse("2024-03-11T09:02:05Z")
    monkeypatch.setattr(status, "Timestamp", Now)
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
        drive.bench.post_message(WorkerChanged("gone", "a worker of version 9 works here", busy=2))
        await drive.until(lambda: "worker of another version, R stops it" in drive.status())
        drive.bench.post_message(WorkerChanged("gone", "the worker has ended"))
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
    hints = USUAL.hints(Situation(dataset=dataset("a"), dataset_job=job()))
    assert hints[0].action == "cancel"
    order = [hint.action for hint in hints]
    assert order.index("open_dataset") < order.index("filter") < order.index("edit") < order.index("quit")
    assert [hint.action for hint in hints[-2:]] == ["palette", "help"]


# --- Announcing ---


def test_announcements_are_safe_and_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    xterm = {"TERM": "xterm-256color"}
    assert announcing.sequences("done \x1b[31m\a", "both", xterm) == "\a\x1b]9;done ␛[31m␇\a"
    assert announcing.sequences("done", "bell", xterm) == "\a"
    assert announcing.sequences("done", "osc9", xterm) == "\x1b]9;done\a"
    assert len(announcing.sequences("x" * 5000, "osc9", xterm)) < 140
    for terminal in ("linux", "screen-256color", "vt220"):
        assert announcing.sequences("done", "both", {"TERM": terminal}) == "\a"
    tmux = tmp_path / "tmux"
    monkeypatch.setenv("PATH", str(tmp_path))
    inside = {"TERM": "tmux-256color", "TMUX": "/tmp/tmux"}
    for says, sequence in (("on", "\a\x1bPtmux;\x1b\x1b]9;done\a\x1b\\"), ("off", "\a")):
        tmux.write_text(f"#!/bin/sh\necho {says}\n")
        tmux.chmod(0o755)
        assert announcing.sequences("done", "both", inside) == sequence
    tmux.unlink()
    assert announcing.sequences("done", "both", inside) == "\a"


async def test_long_jobs_that_end_are_announced(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    async with driven(source) as drive:
        written: list[str] = []
        drive.app._write = written.append  # type: ignore[method-assign]
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
            await drive.until(lambda: drive.bench.book.open())
            ended = replace(running, state=JobState.failed, ended=f"2024-03-11T09:00:{seconds + 1:02d}Z")
            source.link.tell(source.changed(ended), source.changed(ended))  # told again, it is not news
            await drive.until(lambda: not drive.bench.book.open())
            await drive.settle()
            assert written == ([words] if words else [])


async def test_what_a_dead_worker_left_is_announced_too(
    source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    async with driven(source) as drive:
        written: list[str] = []
        drive.app._write = written.append  # type: ignore[method-assign]
        running = source.job(JobState.running, "harbour.tides", ended=None)
        source.link.tell(source.changed(running))
        await drive.until(lambda: drive.bench.book.open())
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
        await drive.until(lambda: drive.bench.book.open() and "46 %" in drive.status())
        await drive.press("escape", "T", "j")
        compare(drive, f"{name}-themes")
        await drive.press("escape", "4", "question_mark", "tab")
        compare(drive, f"{name}-keys")
