"""Every action once: its key, where it is valid, what it is called. Keys, help and palette come from here.

An action's work is the method ``do_<id>`` of the workbench.
"""

from __future__ import annotations

from typing import Final

from odf_tui.actions import blocks, data, datasets, general, jobs
from odf_tui.actions.base import ANYWHERE, PANES, Action, Situation

__all__ = [
    "ACTIONS", "ANYWHERE", "BY_ID", "PANES", "Action", "Situation", "all_keys", "find", "hints", "key_name",
    "valid",
]  # fmt: skip

ACTIONS: Final[tuple[Action, ...]] = (
    *datasets.ACTIONS, *jobs.ACTIONS, *blocks.ACTIONS, *data.ACTIONS, *general.ACTIONS
)  # fmt: skip

BY_ID: Final = {action.id: action for action in ACTIONS}

_KEY_NAMES: Final = {
    "slash": "/", "colon": ":", "question_mark": "?", "escape": "esc", "enter": "⏎", "tab": "tab",
    "shift+tab": "shift+tab", "pagedown": "page down", "pageup": "page up",
}  # fmt: skip


def key_name(key: str) -> str:
    """A key as people write it."""
    return _KEY_NAMES.get(key, key.replace("ctrl+", "^"))


def all_keys() -> list[str]:
    """Every key that means something somewhere."""
    return list(dict.fromkeys(key for action in ACTIONS for key in action.keys))


def find(key: str, pane: str) -> Action | None:
    """What a key means in a pane."""
    found = [action for action in ACTIONS if key in action.keys and action.scope in (pane, ANYWHERE)]
    return min(found, key=lambda action: action.scope == ANYWHERE, default=None)


def valid(situation: Situation) -> list[Action]:
    """The listed actions that make sense now, those of the focused pane first."""
    found = [
        action
        for action in ACTIONS
        if action.listed and action.scope in (situation.pane, ANYWHERE) and action.guard(situation) is None
    ]
    return sorted(found, key=lambda action: action.scope == ANYWHERE)


def hints(situation: Situation) -> list[tuple[str, str]]:
    """Keys and words for the line of hints."""
    return [(key_name(action.keys[0]), action.hint) for action in valid(situation) if action.hint]
