"""Action, the guards that say when it is available, KeyMap, and key names for display."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from odf_engine.coordinator.protocol import Job
from odf_tui.state.model import BlockSummary, DatasetRow

PANES: Final = ("datasets", "blocks", "data", "jobs")
ANYWHERE: Final = "anywhere"


class Situation(msgspec.Struct, frozen=True):
    """What guards look at."""

    pane: str = "datasets"
    dataset: DatasetRow | None = None
    dataset_job: Job | None = None
    block: BlockSummary | None = None
    job: Job | None = None
    has_rows: bool = False
    datasets: int = 0
    pullable: int = 0
    remotes: int = 0  # how many datasets come from somewhere else, or go there
    worker: str = "connected"  # starting, connected, gone
    up: str = ""  # what escape would leave: a filter, the zoom, a pane
    findings: bool = False  # whether a verification found something on the blocks that are shown
    trail: bool = False  # whether a link was followed from somewhere


Guard = Callable[[Situation], str | None]


class Action(msgspec.Struct, frozen=True):
    """Something a person can do.

    Attributes:
        keys: as Textual names them, the one to show first.
        scope: a pane, or anywhere.
        title: what it does, for help and palette.
        hint: one word for the line of hints; empty: it is not shown there.
        guard: why it makes no sense now, or None when it does.
        listed: whether help and palette name it (moving about is one line there).
    """

    id: str
    keys: tuple[str, ...]
    title: str
    scope: str = ANYWHERE
    hint: str = ""
    guard: Guard = lambda situation: None
    listed: bool = True


def require_dataset(situation: Situation) -> str | None:
    if situation.dataset is None:
        return "no dataset is selected"
    if situation.dataset.missing:
        return f"{situation.dataset.name} is not in this workspace"
    return None


def require_readable_dataset(situation: Situation) -> str | None:
    if (refusal := require_dataset(situation)) or situation.dataset is None:
        return refusal
    return (
        f"{situation.dataset.name} is damaged: v tells what is wrong" if situation.dataset.problem else None
    )


def requires(name: str, missing: str) -> Guard:
    return lambda situation: None if getattr(situation, name) else missing


_KEY_NAMES: Final = {
    "question_mark": "?", "escape": "esc", "enter": "⏎", "shift+tab": "shift+tab",
    "pagedown": "page down", "pageup": "page up", "f1": "F1", "tab": "tab", "space": "space",
    "up": "↑", "down": "↓", "left": "←", "right": "→", "home": "home", "end": "end",
}  # fmt: skip
_URGENT: Final = ("restart", "begin_anew", "cancel")
_MINOR: Final = ("add", "edit", "sql", "zoom", "quit")
LAST: Final = ("palette", "help")
"""The actions whose hints come last, and are always there."""


def key_name(key: str) -> str:
    """A key as people write it."""
    from textual.keys import format_key

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

    def display_key(self, action: str) -> str:
        """The key of an action as people write it; empty when it has none."""
        keys = self.by_id[action].keys
        return key_name(keys[0]) if keys else ""

    def key_in(self, action: Action, pane: str) -> str:
        """The key that runs an action in a pane, as people write it; empty when none does."""
        found = (key for key in action.keys if (other := self.find(key, pane)) and other.id == action.id)
        return key_name(key) if (key := next(found, "")) else ""

    def actions_in(self, pane: str) -> list[Action]:
        """The listed actions that a pane has, its own first, in the order of the table."""
        found = [action for action in self.actions if action.listed and action.scope in (pane, ANYWHERE)]
        return sorted(found, key=lambda action: action.scope == ANYWHERE)

    def available_actions(self, situation: Situation) -> list[Action]:
        """The listed actions that make sense now, those of the focused pane first."""
        return [action for action in self.actions_in(situation.pane) if action.guard(situation) is None]

    def hints(self, situation: Situation) -> list[Hint]:
        """Hints for the line below, the most important first; those of :data:`LAST` last."""
        found = [
            Hint(key, action.hint, action.id)
            for action in self.available_actions(situation)
            if action.hint and (key := self.key_in(action, situation.pane))
        ]
        ranks = {name: at for at, name in enumerate((*_URGENT, "", *_MINOR, *LAST))}
        default = ranks[""]
        return sorted(found, key=lambda hint: ranks.get(hint.action, default))
