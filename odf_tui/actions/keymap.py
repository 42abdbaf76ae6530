"""Which key does what: the usual keys, or those that somebody has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace
from textual.keys import format_key

from odf_tui.actions.base import ANYWHERE, Action, Situation

_KEY_NAMES: Final = {
    "question_mark": "?", "escape": "esc", "enter": "⏎", "shift+tab": "shift+tab",
    "pagedown": "page down", "pageup": "page up", "f1": "F1", "tab": "tab", "space": "space",
    "up": "↑", "down": "↓", "left": "←", "right": "→", "home": "home", "end": "end",
}  # fmt: skip

_URGENT: Final = ("restart", "begin_anew", "cancel")
_LESS: Final = ("add", "edit", "sql", "zoom", "quit")
LAST: Final = ("palette", "help")
"""The actions whose hints come last, and are always there."""


def key_name(key: str) -> str:
    """A key as people write it."""
    if len(key) == 1:
        return key
    return _KEY_NAMES.get(key) or (key.replace("ctrl+", "^") if "+" in key else format_key(key))


class Hint(NamedTuple):
    """A key, a word for what it does, and the id of the action."""

    key: str
    word: str
    action: str


class KeyMap:
    """All actions with their keys.

    Attributes:
        actions: the actions, in the order of the table.
        by_id: the same by their ids.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions = tuple(actions)
        self.by_id = {action.id: action for action in actions}

    def with_keys(self, keys: Mapping[str, Sequence[str]]) -> KeyMap:
        """The same actions, some of them with other keys."""
        return KeyMap(
            [
                replace(action, keys=tuple(keys[action.id])) if action.id in keys else action
                for action in self.actions
            ]
        )

    def all_keys(self) -> list[str]:
        """Every key that means something somewhere."""
        return list(dict.fromkeys(key for action in self.actions for key in action.keys))

    def find(self, key: str, pane: str) -> Action | None:
        """What a key means in a pane: what it means there only, else what it means anywhere."""
        found = [action for action in self.actions if key in action.keys and action.scope in (pane, ANYWHERE)]
        return min(found, key=lambda action: action.scope == ANYWHERE, default=None)

    def shown(self, action: str) -> str:
        """The key of an action as people write it; empty when it has none."""
        keys = self.by_id[action].keys
        return key_name(keys[0]) if keys else ""

    def key_in(self, action: Action, pane: str) -> str:
        """The key that runs an action in a pane, as people write it; empty when none does."""
        found = (key for key in action.keys if (meant := self.find(key, pane)) and meant.id == action.id)
        return key_name(key) if (key := next(found, "")) else ""

    def reachable(self, pane: str) -> list[Action]:
        """The listed actions that a pane has, its own first, in the order of the table."""
        found = [action for action in self.actions if action.listed and action.scope in (pane, ANYWHERE)]
        return sorted(found, key=lambda action: action.scope == ANYWHERE)

    def valid(self, situation: Situation) -> list[Action]:
        """The listed actions that make sense now, those of the focused pane first."""
        return [action for action in self.reachable(situation.pane) if action.guard(situation) is None]

    def hints(self, situation: Situation) -> list[Hint]:
        """Hints for the line below, the most important first; those of :data:`LAST` last."""
        found = [
            Hint(key, action.hint, action.id)
            for action in self.valid(situation)
            if action.hint and (key := self.key_in(action, situation.pane))
        ]
        order = {name: at for at, name in enumerate((*_URGENT, "", *_LESS, *LAST))}
        usual = order[""]
        return sorted(found, key=lambda hint: order.get(hint.action, usual))
