"""Action, the guards that decide whether it is available, KeyMap, and display names of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from odf_engine.api import Job
from odf_engine.api.model import BlockLine, DatasetRow

PANES: Final = ("datasets", "blocks", "data", "jobs")
ANYWHERE: Final = "anywhere"


class Situation(msgspec.Struct, frozen=True):
    """The state that guards depend on.

    Attributes:
        pane: the focused pane.
        dataset: the selected dataset.
        dataset_job: its active job.
        block, job: the selected block and job.
        has_rows: whether the pane of rows shows rows.
        datasets: number of datasets.
        pullable: whether a dataset can be pulled.
        remotes: whether a dataset has remotes.
        worker: the state of the connection: ``starting``, ``connected``, ``stalled`` or ``gone``.
        up: what escape would leave: ``filter``, ``zoom``, ``pane`` or ``tour``, or "".
        findings: whether a verification found problems in the blocks that are shown.
        trail: whether a link was followed.
    """

    pane: str = "datasets"
    dataset: DatasetRow | None = None
    dataset_job: Job | None = None
    block: BlockLine | None = None
    job: Job | None = None
    has_rows: bool = False
    datasets: int = 0
    pullable: bool = False
    remotes: bool = False
    worker: str = "connected"
    up: str = ""
    findings: bool = False
    trail: bool = False


Guard = Callable[[Situation], str | None]


class Action(msgspec.Struct, frozen=True):
    """An action of the user.

    Attributes:
        id: its id. The keys.yaml of users refers to it: ids are not renamed.
        keys: its keys as Textual names them; the first is shown.
        title: its description in help and palette.
        scope: a pane, or ``anywhere``.
        hint: one word for the line of hints; empty: it has no hint.
        guard: returns why the action is not available now, or None if it is.
        listed: whether help and palette list it. Cursor movements are not listed.
        menu, menu_key: id of the action that opens its menu, and its key there, or "" if it has no menu.
    """

    id: str
    keys: tuple[str, ...]
    title: str
    scope: str = ANYWHERE
    hint: str = ""
    guard: Guard = lambda situation: None
    listed: bool = True
    menu: str = ""
    menu_key: str = ""


def require_dataset(situation: Situation) -> str | None:
    """Guard: a dataset of the workspace is selected."""
    if situation.dataset is None:
        return "no dataset is selected"
    if situation.dataset.missing:
        return f"{situation.dataset.name} is not in this workspace"
    return None


def require_readable_dataset(situation: Situation) -> str | None:
    """Guard: a dataset with a readable chain is selected."""
    if (refusal := require_dataset(situation)) or situation.dataset is None:
        return refusal
    return f"{situation.dataset.name} is damaged: press v to verify it" if situation.dataset.problem else None


def requires(name: str, missing: str) -> Guard:
    """Return a guard that requires a true field of :class:`Situation`; ``missing`` is its message."""
    return lambda situation: None if getattr(situation, name) else missing


_KEY_NAMES: Final = {
    "question_mark": "?", "escape": "esc", "enter": "⏎", "shift+tab": "shift+tab",
    "pagedown": "page down", "pageup": "page up", "f1": "F1", "tab": "tab", "space": "space",
    "up": "↑", "down": "↓", "left": "←", "right": "→", "home": "home", "end": "end",
}  # fmt: skip
_URGENT: Final = ("restart", "begin_anew", "cancel")
_MINOR: Final = ("add", "edit", "sql", "zoom", "quit")
LAST: Final = ("palette", "help")
"""The actions whose hints are last, and always shown."""


def key_name(key: str) -> str:
    """Return the display name of a key."""
    from textual.keys import format_key

    if len(key) == 1:
        return key
    return _KEY_NAMES.get(key) or (key.replace("ctrl+", "^") if "+" in key else format_key(key))


class Hint(NamedTuple):
    """A key, a word for its action, and the id of the action."""

    key: str
    word: str
    action: str


class KeyMap:
    """All actions and their keys.

    Attributes:
        actions: the actions, in the order of the table.
        by_id: the actions by id.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions = tuple(actions)
        self.by_id = {action.id: action for action in actions}

    def with_keys(self, keys: Mapping[str, Sequence[str]]) -> KeyMap:
        """Return a copy with other keys, by id of the action."""
        return KeyMap(
            [
                replace(action, keys=tuple(keys[action.id])) if action.id in keys else action
                for action in self.actions
            ]
        )

    def all_keys(self) -> list[str]:
        """Return all keys of all actions."""
        return list(dict.fromkeys(key for action in self.actions for key in action.keys))

    def find(self, key: str, pane: str) -> Action | None:
        """Return the action of a key in a pane. The pane's own actions precede the common ones."""
        hits = [action for action in self.actions if key in action.keys and action.scope in (pane, ANYWHERE)]
        return min(hits, key=lambda action: action.scope == ANYWHERE, default=None)

    def display_key(self, action: str) -> str:
        """Return the display name of the first key of an action, or of its menu, or "" if absent."""
        described = self.by_id[action]
        return key_name(described.keys[0]) if described.keys else self._menu_keys(described)

    def _menu_keys(self, action: Action) -> str:
        """Return the key of the menu of an action, and its key there, such as ``, r``."""
        menu = self.display_key(action.menu) if action.menu else ""
        return f"{menu} {key_name(action.menu_key)}" if menu else ""

    def key_in(self, action: Action, pane: str) -> str:
        """Return the display name of the key, or of the keys of the menu, that runs an action in a pane."""
        keys = (key for key in action.keys if (other := self.find(key, pane)) and other.id == action.id)
        return key_name(key) if (key := next(keys, "")) else self._menu_keys(action)

    def actions_in(self, pane: str) -> list[Action]:
        """Return the listed actions of a pane, the pane's own first, in the order of the table."""
        listed = [action for action in self.actions if action.listed and action.scope in (pane, ANYWHERE)]
        return sorted(listed, key=lambda action: action.scope == ANYWHERE)

    def available_actions(self, situation: Situation) -> list[Action]:
        """Return the listed actions that are available now, the focused pane's first."""
        return [action for action in self.actions_in(situation.pane) if action.guard(situation) is None]

    def hints(self, situation: Situation) -> list[Hint]:
        """Return the hints of available actions, the most important first, and :data:`LAST` last."""
        hints = [
            Hint(key, action.hint, action.id)
            for action in self.available_actions(situation)
            if action.hint and (key := self.key_in(action, situation.pane))
        ]
        ranks = {name: at for at, name in enumerate((*_URGENT, "", *_MINOR, *LAST))}
        default = ranks[""]
        return sorted(hints, key=lambda hint: ranks.get(hint.action, default))
