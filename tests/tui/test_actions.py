"""The table of actions, the list of keys, and the palette."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from textual.widgets import Input

from odf_engine.api.model import Target
from odf_engine.worker.protocol import Job, JobState
from odf_tui.actions import bindings, table
from odf_tui.actions.model import ANYWHERE, PANES, Situation
from odf_tui.actions.table import ACTIONS, DEFAULT_KEYMAP
from odf_tui.actions.user_keys import PORTABLE_KEYS
from odf_tui.features.administration.dataset_changes import DatasetChangesController
from odf_tui.features.menus import DESCRIPTIONS
from odf_tui.features.palette import (
    CommandPalette,
    KeysDialog,
    PaletteController,
    ThemePicker,
    parse_block_reference,
)
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.services.controller import Controller
from odf_tui.widgets.choice_list import Choices
from tests.call_count import max_calls
from tests.tui.conftest import driven
from tests.tui.context import Fakes
from tests.tui.haven import dataset, did
from tests.tui.scripted_worker import Scenario
from tests.tui.test_blocks import block_line
from tests.tui.waiting import until
from tests.tui.widget_app import shown


def test_every_action_has_a_scope_a_key_and_a_title() -> None:
    for action in ACTIONS:
        assert action.scope in (*PANES, ANYWHERE)
        assert action.keys or (action.menu in table.BY_ID and action.menu_key)
        assert action.title


def test_every_action_is_bound_once() -> None:
    bound = [action for methods in bindings.CONTROLLERS.values() for action in methods]
    assert sorted(bound) == sorted(table.BY_ID)


@pytest.mark.parametrize("name", bindings.CONTROLLERS)
def test_every_action_is_bound_to_a_method(name: str) -> None:
    kind = bindings.import_controller(name)
    assert issubclass(kind, Controller)
    for binding in bindings.CONTROLLERS[name].values():
        method, *arguments = binding.split()
        signature(getattr(kind, method), follow_wrapped=False).bind(None, *arguments)


async def test_an_action_is_for_the_dataset_selected_when_it_starts(fakes: Fakes) -> None:
    fakes.select("air-by-day")
    fakes.host.answers.append(None)
    DatasetChangesController(fakes.context).rename()
    fakes.select("harbour.tides")  # before the coroutine runs
    await fakes.host.stories()
    (dialog,) = fakes.host.dialogs
    assert dialog._title == "Rename air-by-day"
    fakes.state.select("")
    DatasetChangesController(fakes.context).rename()
    await fakes.host.stories()
    assert fakes.host.dialogs == [dialog]


def test_no_key_has_two_actions_in_one_scope() -> None:
    """A pane's own key wins over one that is valid everywhere; two of the same scope would be a mistake."""
    seen: dict[tuple[str, str], str] = {}
    for action in ACTIONS:
        for key in (*action.keys, action.menu and f"{action.menu} {action.menu_key}"):
            assert not key or seen.setdefault((action.scope, key), action.id) == action.id, key


def test_default_keys_reach_every_terminal() -> None:
    for action in ACTIONS:
        assert (action.keys or (action.menu_key,))[0] in PORTABLE_KEYS, action.id
        assert not set(action.keys) & {"ctrl+m", "ctrl+i", "ctrl+h", "ctrl+j", "ctrl+a", "ctrl+z"}
        assert not any(key.startswith(("alt+", "ctrl+enter", "shift+enter")) for key in action.keys)


def test_valid_actions_depend_on_selection_and_worker() -> None:
    nothing = {action.id for action in table.valid(Situation())}
    assert not nothing & {"pull", "verify", "cancel", "open_dataset", "restart", "pull_all"}
    assert {"add", "quit", "help", "palette"} <= nothing
    selected = {action.id for action in table.valid(Situation(dataset=dataset("a"), worker="gone"))}
    assert {"pull", "verify", "open_dataset", "restart"} <= selected
    assert "open_block" not in selected


def test_hints_of_a_pane_name_its_actions() -> None:
    row = dataset("a")
    job = Job("1", "pull", "a", row.id, JobState.failed, "2024-03-11T09:00:00Z")
    situations = {
        "p pull": Situation(dataset=row),
        "⏎ details": Situation(dataset=row),
        "o dataset": Situation("jobs", dataset=row, job=job),
        "⏎ block": Situation("blocks", dataset=row, block=block_line(2)),
    }
    for hint, situation in situations.items():
        shown_hints = [f"{each.key} {each.word}" for each in DEFAULT_KEYMAP.hints(situation)]
        assert hint in shown_hints, hint


def keys_dialog(situation: Situation) -> KeysDialog:
    """The list of keys in a situation."""
    dialog = KeysDialog(DEFAULT_KEYMAP, situation, "blocks", ["pane_2: alt+2 cannot be used"])
    dialog.AUTO_FOCUS = ""  # as in the workstation: keys are those of actions until the search is opened
    return dialog


async def test_the_key_list_shows_valid_actions_and_runs_them() -> None:
    situation = Situation("blocks", dataset=dataset("a"), block=block_line(2), datasets=8, pullable=True)
    async with shown(keys_dialog(situation)) as (app, pilot):
        choices = app.screen.query_one(Choices)
        listed = {choice.id for choice in choices.choices if not choice.heading}
        assert listed == {action.id for action in table.valid(situation)} - {"help"}
        assert "open_block" in listed
        assert not listed & {"open_row", "restart"}
        choices.move("last")
        await pilot.pause()
        assert "navigation: h j k l" in app.text()
        assert "≠ a finding of the verification · § signed by the owner" in app.text()
        assert "! pane_2: alt+2 cannot be used" in app.text()
        await pilot.press("z")  # the key of an action runs it
        await until(pilot, lambda: app.result == "zoom")


async def test_the_key_list_is_searched_and_shows_why_an_action_is_refused() -> None:
    async with shown(keys_dialog(Situation(dataset=dataset("a")))) as (app, pilot):
        choices = app.screen.query_one(Choices)
        assert "untrust" not in {choice.id for choice in choices.choices}
        await pilot.press("tab")
        refused = next(choice for choice in choices.choices if choice.id == "untrust")
        assert refused.disabled
        assert "is your own" in refused.remark
        await pilot.press("tab")
        assert "untrust" not in {choice.id for choice in choices.choices}
        line = app.screen.query_one(Input)
        await pilot.press("slash")
        await until(pilot, lambda: app.focused is line)
        await pilot.press(*"zoom")
        await until(pilot, lambda: [each.id for each in choices.choices if each.id] == ["zoom"])
        await pilot.press("escape")
        await until(pilot, lambda: len(choices.choices) > 20)  # the search is closed, the list is not
        assert app.screen_stack[1:]
        await pilot.press("slash")
        await until(pilot, lambda: app.focused is line)
        await pilot.press(*"pull the d", "enter")  # enter comes after the letters
        await until(pilot, lambda: app.result == "pull")
    async with shown(keys_dialog(Situation())) as (app, pilot):
        await pilot.press("q")  # closes the list only
        await until(pilot, lambda: not app.screen_stack[1:])
        assert app.result is None
        assert app.is_running


@pytest.mark.app
async def test_every_listed_key_does_something_from_every_pane(source: Scenario) -> None:
    """No key raises, whatever has the focus; each of them either acts or says why not."""
    panes = {action.id for action in ACTIONS if action.scope != ANYWHERE or not action.listed}
    panes |= {"filter", "copy", "zoom", "cancel", "up", "help"}  # what they do depends on the pane
    async with driven(source, (80, 24)) as drive:
        for pane in PANES:
            for action in ACTIONS:
                if action.scope not in (pane, ANYWHERE) or action.id == "quit":
                    continue
                if pane != PANES[0] and action.id not in panes:
                    continue
                drive.bench.state.focus_pane(pane)
                if not action.keys:
                    continue
                drive.bench.action_press(action.keys[0])
                await drive.pilot.pause(0)
                for _ in range(30):
                    if drive.app.screen is drive.bench:
                        break
                    await drive.pilot.press("escape")
                while drive.app.screen is not drive.bench:
                    await drive.app.pop_screen()  # other tests cover how dialogs close
                if drive.bench.query_one("#filter").display:
                    await drive.pilot.press("escape")
        await drive.settle()


def palette_of(fakes: Fakes, answer: str | None = None) -> CommandPalette:
    """Open the palette, and close it with a choice."""
    fakes.host.answers.append(answer)
    PaletteController(fakes.context).find()
    return cast("CommandPalette", fakes.host.dialogs[-1])


@pytest.fixture
def fakes(source: Scenario) -> Fakes:
    """A context with the widgets that the palette goes to."""
    columns = SimpleNamespace(names=["station", "pm25"])
    view = SimpleNamespace(opened=SimpleNamespace(columns=columns), cursor=7, go_to=Mock())
    widgets: dict[type, object] = {
        DataPane: SimpleNamespace(view=view),
        JobsPane: SimpleNamespace(view=SimpleNamespace(select=Mock())),
    }
    return Fakes(source, "port-haven.air-readings", widgets=widgets)


def first_found(fakes: Fakes, text: str) -> str:
    """Return the id of what the palette finds first."""
    found = palette_of(fakes).find_choices(text)
    return found[0].id if found else ""


def test_the_palette_finds_actions_datasets_columns_jobs_and_themes(fakes: Fakes) -> None:
    fakes.host.now = Situation(dataset=fakes.state.row)
    for text, choice in (
        ("pull the dataset", "pull"),
        ("tides", f"dataset {did('harbour.tides')}"),
        ("pm25", "column 1"),
        ("job 3", "job 3"),
        ("paper", "theme paper"),
        ("zzzzzz", ""),
    ):
        assert first_found(fakes, text) == choice


def test_choosing_a_palette_entry_performs_its_action(fakes: Fakes) -> None:
    palette_of(fakes, "pull")
    assert fakes.host.performed == ["pull"]
    palette_of(fakes, f"dataset {did('harbour.tides')}")
    assert fakes.state.row is not None and fakes.state.row.name == "harbour.tides"
    palette_of(fakes, "column 1")
    assert fakes.state.pane == "data"
    fakes.host.query_one(DataPane).view.go_to.assert_called_once_with(7, 1)
    palette_of(fakes, "job 3")
    assert fakes.state.pane == "jobs"
    fakes.host.query_one(JobsPane).view.select.assert_called_once_with("3")
    palette_of(fakes, "theme paper")
    assert fakes.host.terminal.theme == fakes.state.layout.theme == "paper"
    palette_of(fakes, f"block {did('port-haven.stations')} 2")
    assert fakes.navigator.target == Target(did("port-haven.stations"), "blocks", 2)
    assert fakes.state.pane == "blocks"
    palette_of(fakes, None)
    assert fakes.host.performed == ["pull"]


def test_the_palette_finds_blocks_by_number(fakes: Fakes) -> None:
    selected = did("port-haven.air-readings")
    assert first_found(fakes, "3") == f"block {selected} 3"
    assert first_found(fakes, "tides#2") == f"block {did('harbour.tides')} 2"
    assert first_found(fakes, "tides#99") == ""


async def test_the_palette_finds_a_block_by_its_hash(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes.source, "find_block", lambda dataset, text: {"f1620ab": 5}[text])
    reads: list[Callable[[], object]] = []
    read = fakes.host.read
    monkeypatch.setattr(fakes.host, "read", lambda *args: reads.append(partial(read, *args)))
    fakes.host.answers.append(None)
    PaletteController(fakes.context).find()
    palette = fakes.host.dialogs[-1]
    async with shown(palette) as (app, pilot):
        line, choices = palette.query_one(Input), palette.query_one(Choices)
        line.value = "f1620ab"
        await until(pilot, lambda: "no match" in app.text())  # it is being read
        reads.pop()()
        assert [choice.id for choice in choices.choices] == [f"block {did('port-haven.air-readings')} 5"]
        line.value = "f1620ab#"
        await until(pilot, lambda: not choices.choices)
        line.value = "f1620cd"
        await until(pilot, lambda: reads)
        reads.pop()()
        assert choices.choices == []
        await pilot.press("enter")  # there is nothing to choose
        await pilot.pause()
        assert app.screen is palette


def test_recent_choices_come_first(fakes: Fakes) -> None:
    tides = did("harbour.tides")
    for choice in (f"block {tides} 1", f"dataset {tides}", "zoom"):
        palette_of(fakes, choice)
    choices = palette_of(fakes)._choices
    assert [each.id for each in choices[:5]] == ["", "zoom", f"dataset {tides}", f"block {tides} 1", ""]
    assert sum(each.id == "zoom" for each in choices) == 1


def test_a_thousand_datasets_are_found_quickly(fakes: Fakes) -> None:
    fakes.state.set_datasets(
        [dataset(f"region-{n % 37}.station-{n:04d}.readings", records=10) for n in range(1000)]
    )
    palette = palette_of(fakes)
    for text in ("s", "st", "sta 9", "station-0999", "rgn37"):
        with max_calls(60_000):
            assert palette.find_choices(text)


def test_block_references_are_parsed() -> None:
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


def test_themes_are_previewed_and_the_previous_one_comes_back(fakes: Fakes) -> None:
    terminal = fakes.host.terminal
    terminal.theme_names = ["tide", "ember", "paper"]
    controller = PaletteController(fakes.context)
    for before, choice, after in (
        ("tide", None, "tide"),
        ("tide", "theme ember", "ember"),
        ("ember", None, "ember"),
    ):
        seen: list[object] = []

        def answer(picker: ThemePicker, choice: str | None = choice, seen: list[object] = seen) -> str | None:
            seen.append(picker.cursor)
            for name in ("ember", "paper"):
                picker._preview(name)
                seen.append(terminal.theme)
            return choice

        fakes.host.answers.append(answer)
        controller.choose_theme()
        assert seen == [terminal.theme_names.index(before), "ember", "paper"]
        assert terminal.theme == after
    assert fakes.state.layout.theme == "ember"


async def test_menus_describe_the_action_under_the_cursor(source: Scenario) -> None:
    actions = [*table.DATASET_MENU_ACTIONS, *table.WORKSPACE_MENU_ACTIONS, table.BY_ID["choose_branch"]]
    assert {action.id for action in actions if action.menu} == DESCRIPTIONS.keys()
    async with driven(source) as drive:
        await drive.press("comma")
        await drive.until(lambda: DESCRIPTIONS["pull_options"][:40] in drive.text())
        await drive.press("j", "j", "j")
        await drive.until(lambda: DESCRIPTIONS["ingest"][:40] in drive.text())
        assert "no push source" in drive.text()
