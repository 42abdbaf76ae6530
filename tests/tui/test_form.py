"""Forms, lists with descriptions, and the menus that open them."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from odf_tui.actions.model import Situation
from odf_tui.actions.table import BY_ID, DEFAULT_KEYMAP
from odf_tui.features.menus import MenuController
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.form import DescribedPicker, Field, FormDialog, FormValues, PathSuggester, required
from tests.tui.context import Fakes
from tests.tui.haven import dataset
from tests.tui.scripted_worker import Scenario
from tests.tui.waiting import until
from tests.tui.widget_app import shown

FIELDS = [
    Field("force", "force", "Fetch again.", value=False),
    Field("format", "format", "Of the files.", "csv", (("csv", "CSV"), ("json", "JSON array"))),
    Field("name", "name", "A short name.", check=required("enter a name"), example="cases"),
]


def check(form: FormValues) -> str:
    """Refuse the name ``no``."""
    return "no is refused" if form.text("name") == "no" else ""


async def test_a_form_is_completed_with_keys_and_shows_its_errors() -> None:
    async with shown(FormDialog("Pull", FIELDS, "pulls", check=check)) as (app, pilot):
        assert "> force   [ ]" in app.text() and "Fetch again." in app.text() and "⏎ pulls" in app.text()
        await pilot.press("space", "down", "right")
        assert "  force   [x]" in app.text() and "> format  < JSON array >  2 of 2" in app.text()
        await pilot.press("enter")
        assert "enter a name" in app.text()  # with the cursor on its field
        await pilot.press("n", "o", "enter")
        await until(pilot, lambda: "no is refused" in app.text())
        await pilot.press("t", "enter")
        await until(pilot, lambda: app.result is not None)
        form = app.result
        assert (form.flag("force"), form.text("format"), form.text("name")) == (True, "json", "not")
        assert (form.flag("other"), form.text("other")) == (False, "")


async def test_a_form_is_closed_without_a_result_and_fits_a_low_terminal() -> None:
    fields = [Field(str(number), f"field {number}", value=False) for number in range(12)]
    secret = Field("secret", "secret", secret=True)
    async with shown(FormDialog("Many", [*fields, secret], "continues"), (80, 16)) as (app, pilot):
        await pilot.press("up")  # to the last field
        await until(pilot, lambda: "> secret" in app.text())
        await pilot.press("x", "y")
        assert app.screen.query_one(Input).value == "xy"
        assert "xy" not in app.text()
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen_stack[1:])
        assert app.result is None


async def test_paths_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.csv").touch()
    suggest = PathSuggester().get_suggestion
    assert await suggest("da") == "data/"
    assert await suggest("data/r") == "data/rows.csv"
    assert await suggest(f"{tmp_path}/data/") == f"{tmp_path}/data/rows.csv"
    assert [await suggest(text) for text in ("", "none", "missing/a")] == [None, None, None]


@pytest.mark.complete
async def test_a_list_describes_the_line_under_the_cursor() -> None:
    choices = [Choice("a", "first"), Choice("b", "second")]
    about = {"a": [[("the first one", "")]], "b": [[("the other one", "")]]}
    async with shown(DescribedPicker("List", choices, about)) as (app, pilot):
        assert "the first one" in app.text()
        await pilot.press("j")
        await until(pilot, lambda: "the other one" in app.text())
        await pilot.press("enter")
        await until(pilot, lambda: app.result == "b")
    async with shown(DescribedPicker("List", choices, about, typing=True)) as (app, pilot):
        await pilot.press(*"sec")
        await until(pilot, lambda: "the other one" in app.text())


def test_menus_list_their_actions_with_keys_and_reasons(source: Scenario) -> None:
    fakes = Fakes(source, "harbour.tides", answers=["rename", None])
    fakes.host.now = Situation(dataset=dataset("harbour.tides"))
    controller = MenuController(fakes.context)
    controller.open_dataset_menu()
    assert fakes.host.performed == ["rename"]
    choices = {choice.id: choice for choice in fakes.host.dialogs[-1]._choices}
    assert choices["rename"].shown == "r" and not choices["rename"].disabled
    assert choices["ingest"].disabled
    controller.open_workspace_menu()
    assert next(choice.id for choice in fakes.host.dialogs[-1]._choices) == "settings"


def test_keys_of_menus_are_shown_and_follow_changed_keys() -> None:
    assert DEFAULT_KEYMAP.display_key("rename") == ", r"
    assert DEFAULT_KEYMAP.key_in(BY_ID["settings"], "jobs") == "; s"
    changed = DEFAULT_KEYMAP.with_keys({"dataset_menu": ["Q"], "delete": ["Z"]})
    assert [changed.display_key(each) for each in ("rename", "delete")] == ["Q r", "Z"]
    assert changed.find("Z", "data") is changed.by_id["delete"]


def test_a_watermark_is_set_without_a_polling_source() -> None:
    pushed = dataset("a", polls=False, push_sources=("default",))
    assert BY_ID["pull_options"].guard(Situation(dataset=pushed)) is None


@pytest.mark.parametrize(
    ("action", "row", "reason"),
    [
        ("ingest", dataset("a"), "a has no push source: press e to add one"),
        ("ingest", dataset("a", push_sources=("x",), standing="not trusted"), "a is untrusted: press t"),
        ("pull_options", dataset("a", standing="not trusted"), "a is untrusted: press t to review it"),
        ("pull_options", dataset("a", polls=False), "a has no source: press e to edit its definition"),
        ("variables", dataset("a", "b"), "a has no polling source, which could read variables"),
        ("trust_details", dataset("a", polls=False), "a has no source and no query: it runs nothing"),
        ("delete", dataset("a", missing=True), "a is not in this workspace"),
        ("rename", None, "no dataset is selected"),
    ],
)
def test_an_action_that_is_not_possible_has_a_reason(action: str, row: object, reason: str) -> None:
    assert reason in (BY_ID[action].guard(Situation(dataset=row)) or "")  # type: ignore[arg-type]
