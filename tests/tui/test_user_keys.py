"""Keys that the user has changed: read, checked, shown and used."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.base.config import Config, UiConfig
from odf_engine.base.settings import load_config, render, set_value
from odf_tui.actions import user_keys
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.widgets.choice_list import Choices
from tests.tui.conftest import driven
from tests.tui.scripted_worker import Scenario


@pytest.fixture(autouse=True)
def _no_own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_keys, "user_keys_path", lambda: tmp_path / "own" / "keys.yaml")


def shown(wanted: user_keys.KeyOverrides, *actions: str) -> tuple[list[str], list[str]]:
    """Return the keys of actions, and the problems."""
    keys, problems = user_keys.load(wanted)
    return [keys.display_key(action) for action in actions], problems


def test_keys_have_several_notations() -> None:
    wanted = {"pull": "ctrl+l", "zoom": ["Z", "f1"], "add": "none", "verify": "^g", "copy": "C-o, /"}
    wanted |= {"filter": "n", "back": "none", "help": "?", "palette": "colon"}
    found, problems = shown(wanted, "pull", "zoom", "add", "verify", "copy", "filter")
    assert found == ["^l", "Z", "", "^g", "^o", "n"]
    assert problems == []  # F1 is free: the help has another one


def test_letters_of_all_languages_and_function_keys_can_be_used() -> None:
    wanted = {"pull": "ü", "zoom": "F12", "verify": ["ж", "f3"]}
    assert shown(wanted, "pull", "zoom", "verify") == (["ü", "f12", "ж"], [])


def test_invalid_entries_are_reported_and_the_others_work() -> None:
    wanted = {
        "pul": "p", "verify": "ctrl+m", "zoom": "alt+z", "copy": "alt+ü", "edit": "nokey",
        "pull": ["ctrl+i", "ctrl+l"],
    }  # fmt: skip
    found, problems = shown(wanted, "verify", "zoom", "copy", "edit", "pull")
    assert found == ["v", "z", "y", "e", "^l"]
    assert problems == [
        "unknown action 'pul': did you mean pull?",
        "verify: ctrl+m cannot be used: terminals send it as enter",
        "zoom: alt+z cannot be used: many terminals do not pass it on",
        "copy: alt+ü cannot be used: many terminals do not pass it on",
        "edit: nokey cannot be used: unknown key",
        "pull: ctrl+i cannot be used: terminals send it as tab",
    ]


def test_two_actions_of_a_scope_do_not_share_a_key() -> None:
    assert shown({"pull": "v", "verify": "p"}, "pull", "verify") == (["v", "p"], [])  # both are changed
    assert shown({"pull": "v"}, "pull", "verify") == (["p", "v"], ["pull: v is already used by verify"])
    assert shown({"pull": "o"}, "pull", "job_dataset") == (["o", "o"], [])  # a pane's own key wins there
    used = {"job_dataset": "b"}
    assert shown(used, "job_dataset")[1] == ["job_dataset: b is already used by job_block in pane jobs"]
    found, _ = shown({"pull": "none", "verify": "p", "zoom": "p"}, "verify", "zoom", "pull")
    assert sorted(found) == ["", "p", "v"]  # one of the two gets it


def test_keys_of_the_workspace_override_those_of_the_user(tmp_path: Path) -> None:
    own = tmp_path / "keys.yaml"
    own.write_text("pull: ctrl+l\nzoom: Z\nadd: [+, n]\n")
    keys, problems = user_keys.load({"pull": "ctrl+g"}, own)
    assert [keys.display_key(each) for each in ("pull", "zoom")] == ["^g", "Z"]
    assert problems == ["add: + is already used by grow"]
    for text, message in (
        ("- a\n", "is not a mapping of actions"),
        ("a: [\n", "is not valid YAML"),
        ("a: " + "[" * 5000, "is not valid YAML"),
        ("a: 2024-99-99\n", "is not valid YAML"),
        ("a: " + "9" * 5000, "is not valid YAML"),
        ('"\\ud800": a\n', "is not valid YAML"),
    ):
        own.write_text(text)
        keys, problems = user_keys.load({}, own)
        assert keys is DEFAULT_KEYMAP
        assert len(problems) == 1
        assert message in problems[0]
    assert user_keys.load({}, tmp_path / "elsewhere.yaml") == (DEFAULT_KEYMAP, [])


def test_key_bindings_are_saved_in_the_settings(tmp_path: Path) -> None:
    config = set_value(Config(), "ui.keys.pull", "ctrl+l")
    config = set_value(config, "ui.notifyAfterSeconds", "0")
    path = tmp_path / "config.yaml"
    path.write_text(render(config))
    assert load_config(path).ui == UiConfig(keys={"pull": "ctrl+l"}, notify_after_seconds=0)
    path.write_text("ui:\n  keys: {zoom: [Z, f1]}\n")
    assert load_config(path).ui.keys == {"zoom": ["Z", "f1"]}


@pytest.mark.app
async def test_changed_keys_work_and_are_shown(source: Scenario) -> None:
    source.ui = UiConfig(keys={"pull": "ctrl+l", "zoom": "Z", "xyzzy": "x", "pane_2": "alt+2"})
    async with driven(source) as drive:
        assert drive.hint().startswith(" unknown action 'xyzzy' (and 1 more: ?)  ")
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
