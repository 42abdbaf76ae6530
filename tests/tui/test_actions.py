"""The table of actions: every one has a method and a key, and help and palette come from it."""

from __future__ import annotations

import pytest

from odf_tui.actions import table
from odf_tui.actions.model import ANYWHERE, PANES, Situation
from odf_tui.actions.table import ACTIONS
from odf_tui.actions.user_keys import PORTABLE_KEYS
from odf_tui.features.palette import KeysDialog
from odf_tui.registry import FEATURES
from odf_tui.widgets.choice_list import Choices
from tests.tui.conftest import driven
from tests.tui.fake import FakeSource, dataset


def test_every_action_has_a_scope_a_key_and_a_title() -> None:
    for action in ACTIONS:
        assert action.scope in (*PANES, ANYWHERE)
        assert action.keys
        assert action.title


def test_every_action_is_bound_once() -> None:
    bound = [action for feature in FEATURES for action in feature.actions]
    assert sorted(bound) == sorted(table.BY_ID)


def test_no_key_means_two_things_in_one_scope() -> None:
    """A pane's own key wins over one that is valid everywhere; two of the same scope would be a mistake."""
    seen: dict[tuple[str, str], str] = {}
    for action in ACTIONS:
        for key in action.keys:
            assert seen.setdefault((action.scope, key), action.id) == action.id, key


def test_the_keys_are_such_that_terminals_pass_them_on() -> None:
    for action in ACTIONS:
        assert action.keys[0] in PORTABLE_KEYS, action.id
        assert not set(action.keys) & {"ctrl+m", "ctrl+i", "ctrl+h", "ctrl+j", "ctrl+a", "ctrl+z"}
        assert not any(key.startswith(("alt+", "ctrl+enter", "shift+enter")) for key in action.keys)


def test_validity_follows_the_situation() -> None:
    nothing = {action.id for action in table.valid(Situation())}
    assert not nothing & {"pull", "verify", "cancel", "open_dataset", "restart", "pull_all"}
    assert {"add", "quit", "help", "palette"} <= nothing
    selected = {action.id for action in table.valid(Situation(dataset=dataset("a"), worker="gone"))}
    assert {"pull", "verify", "open_dataset", "restart"} <= selected
    assert "open_block" not in selected


@pytest.mark.app
async def test_hints_and_help_list_what_is_valid_and_help_runs_it(source: FakeSource) -> None:
    async with driven(source) as drive:
        assert "p pull" in drive.hint()
        assert "details" in drive.hint()
        await drive.press("4")
        assert "o dataset" in drive.hint()
        await drive.press("2")
        assert "⏎ block" in drive.hint()
        await drive.press("question_mark")
        assert isinstance(drive.app.screen, KeysDialog)
        choices = drive.app.screen.query_one(Choices)
        listed = {choice.id for choice in choices.choices if not choice.heading}
        valid = {action.id for action in table.valid(drive.situation())}
        assert listed == valid - {"help"}
        assert "open_block" in listed
        assert "open_row" not in listed
        assert "restart" not in listed
        await drive.press("z")  # the key of an action runs it
        assert drive.app.screen is drive.bench
        assert drive.bench.has_class("-zoomed")
        await drive.press("question_mark", "slash", "=pull the dataset", "enter")
        assert drive.app.screen is drive.bench
        assert source.link.submitted


@pytest.mark.app
async def test_every_listed_key_does_something_from_every_pane(source: FakeSource) -> None:
    """No key raises, whatever has the focus; each of them either acts or says why not."""
    panes = {action.id for action in ACTIONS if action.scope != ANYWHERE or not action.listed}
    panes |= {"filter", "copy", "zoom", "cancel", "up", "help"}  # what they do depends on the pane
    async with driven(source) as drive:
        for pane in PANES:
            wanted = [each for each in ACTIONS if pane == PANES[0] or each.id in panes]
            for action in wanted:
                if action.scope not in (pane, ANYWHERE) or action.id == "quit":
                    continue
                drive.bench.state.focus_pane(pane)
                drive.bench.action_press(action.keys[0])
                await drive.pilot.pause(0)
                while drive.app.screen is not drive.bench:
                    await drive.pilot.press("escape")
                if drive.bench.query_one("#filter").display:
                    await drive.pilot.press("escape")
        await drive.settle()


@pytest.mark.app
async def test_the_palette_finds_actions_datasets_and_themes(source: FakeSource) -> None:
    async with driven(source) as drive:
        await drive.press("colon", "=tides")
        await drive.press("enter")
        assert drive.graph.row is not None
        assert drive.graph.row.name == "harbour.tides"
        await drive.press("3", "colon", "=pull the dataset", "enter")
        assert [request.dataset for request in source.link.submitted] == ["did:odf:harbour.tides"]
        await drive.press("colon", "=paper", "enter")
        assert drive.app.theme == "paper"
        assert drive.bench.state.layout.theme == "paper"
        await drive.press("colon", "=zzzzzz")
        assert "nothing fits" in drive.text()
        await drive.press("enter", "escape")
        assert drive.app.screen is drive.bench
        # A dataset that the filter hid is shown again.
        await drive.press("1", "slash", "=clin", "enter", "colon", "=tides", "enter")
        assert drive.graph.row.name == "harbour.tides"
        assert drive.datasets_pane.filter == ""
