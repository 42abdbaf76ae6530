"""Every action once: its key, where it is valid, what it is called. Keys, help and palette come from here.

An action's work is the method ``do_<id>`` of the workbench.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from odf_engine.coordinator.protocol import Job
from odf_tui.state import BlockLine, DatasetRow

PANES: Final = ("datasets", "blocks", "data", "jobs")
ANYWHERE: Final = "anywhere"


class Situation(msgspec.Struct, frozen=True):
    """What guards look at."""

    pane: str = "datasets"
    dataset: DatasetRow | None = None
    dataset_job: Job | None = None
    block: BlockLine | None = None
    job: Job | None = None
    has_rows: bool = False
    pullable: int = 0
    worker: str = "connected"  # starting, connected, gone
    up: str = ""  # what escape would leave: a filter, the zoom, a pane


_STANDINGS: Final = {"own": "your own", "trusted": "trusted", "not trusted": "not trusted"}

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


def _dataset(situation: Situation) -> str | None:
    if situation.dataset is None:
        return "no dataset is selected"
    if situation.dataset.missing:
        return f"{situation.dataset.name} is not in this workspace"
    return None


def _readable(situation: Situation) -> str | None:
    if (why := _dataset(situation)) or situation.dataset is None:
        return why
    return (
        f"{situation.dataset.name} is damaged: v tells what is wrong" if situation.dataset.problem else None
    )


def _pull(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := _readable(situation)) or row is None:
        return why
    if row.diverged:
        return f"its input {row.diverged[0]} was reset or replaced: D makes {row.name} anew"
    if not (row.polls or row.derivative) and row.push_sources:
        return f"there is nothing to poll: data is pushed with odf ingest {row.name} FILE"
    if not (row.polls or row.derivative):
        return f"{row.name} has no source: e edits its definition"
    if situation.dataset_job is not None and situation.dataset_job.kind == "pull":
        return f"{row.name} is being pulled already"
    return None


def _begin_anew(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := _readable(situation)) or row is None:
        return why
    if not row.diverged:
        return f"{row.name} has not diverged from its inputs: nothing is to be made anew"
    return f"{row.name} is being worked on already" if situation.dataset_job else None


def _take_columns(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := _readable(situation)) or row is None:
        return why
    if not row.derivative:
        return f"{row.name} has no query"
    return None if row.last_pulled else f"{row.name} has no data yet: its columns are those of its query"


def _trust(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := _readable(situation)) or row is None:
        return why
    return None if row.untrusted else f"{row.name} is {_STANDINGS[row.standing]} already"


def _untrust(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := _dataset(situation)) or row is None:
        return why
    return None if row.standing == "trusted" else f"{row.name} is {_STANDINGS[row.standing]}"


def _verify(situation: Situation) -> str | None:
    if why := _dataset(situation):
        return why
    if situation.dataset_job is not None and situation.dataset_job.kind == "verify":
        return "a verification runs already"
    return None


def _cancel(situation: Situation) -> str | None:
    if situation.pane == "jobs" and situation.job is not None and situation.job.state.final:
        return f"this job is {situation.job.state.value} already"
    if situation.pane == "jobs" and situation.job is not None:
        return None
    return None if situation.dataset_job else "no job runs for this dataset"


def _need(name: str, missing: str) -> Guard:
    return lambda situation: None if getattr(situation, name) else missing


def _move(name: str, keys: str, title: str) -> Action:
    return Action(name, tuple(keys.split()), title, listed=False)


ACTIONS: Final[tuple[Action, ...]] = (
    Action("pull", ("p",), "pull the dataset: take in what is new", hint="pull", guard=_pull),
    Action(
        "pull_all",
        ("P",),
        "pull all datasets, inputs first",
        guard=_need("pullable", "there is nothing to pull"),
    ),
    Action("verify", ("v",), "verify the dataset: chain, slices and hashes", guard=_verify),
    Action("add", ("a",), "add a dataset: write its manifest in your editor", hint="add"),
    Action("add_file", ("A",), "add datasets from a manifest file"),
    Action("edit", ("e",), "edit the dataset's definition in your editor", hint="edit", guard=_readable),
    Action(
        "take_columns",
        ("C",),
        "take new columns that the dataset's query gives into it",
        guard=_take_columns,
    ),
    Action("trust", ("t",), "show what somebody else's dataset would run, and trust it", guard=_trust),
    Action("untrust", ("U",), "take back that the dataset is trusted", guard=_untrust),
    Action(
        "begin_anew",
        ("D",),
        "make a diverged dataset anew from its inputs",
        hint="make anew",
        guard=_begin_anew,
    ),
    Action("cancel", ("x",), "cancel the running job", hint="cancel", guard=_cancel),
    Action("open_dataset", ("enter",), "show everything about the dataset", "datasets", "details", _dataset),
    Action(
        "open_block",
        ("enter",),
        "show the block in full",
        "blocks",
        "block",
        _need("block", "no block is selected"),
    ),
    Action(
        "open_row",
        ("enter",),
        "show the row, a line for each column",
        "data",
        "row",
        _need("has_rows", "there are no rows"),
    ),
    Action(
        "open_job", ("enter",), "show the job's whole log", "jobs", "log", _need("job", "no job is selected")
    ),
    Action(
        "job_dataset",
        ("o",),
        "go to the job's dataset",
        "jobs",
        "dataset",
        _need("job", "no job is selected"),
    ),
    Action("filter", ("slash",), "filter this pane", hint="filter"),
    Action("copy", ("y",), "copy what is selected: id, hash, cell or log"),
    Action("zoom", ("z",), "zoom this pane, and back", hint="zoom"),
    Action("palette", ("colon", "ctrl+p"), "find any action or dataset", hint="find"),
    Action("help", ("question_mark", "f1"), "show the keys that are valid now, and run them", hint="keys"),
    Action("up", ("escape",), "one level up: filter, zoom, pane", guard=_need("up", "this is the top")),
    Action("pane_1", ("1",), "go to the datasets"),
    Action("pane_2", ("2",), "go to the blocks"),
    Action("pane_3", ("3",), "go to the rows"),
    Action("pane_4", ("4",), "go to the jobs"),
    Action("next_pane", ("tab",), "next pane"),
    Action("previous_pane", ("shift+tab",), "previous pane"),
    Action("refresh", ("r", "ctrl+r"), "read everything again"),
    Action(
        "restart",
        ("R",),
        "start the worker again",
        guard=lambda now: None if now.worker == "gone" else "the worker is there",
    ),
    Action("next_theme", ("T",), "next colour theme"),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "leave; running jobs go on", hint="quit"),
    _move("down", "j down", "down"),
    _move("above", "k up", "up"),
    _move("left", "h left", "left; in the graph: to an input"),
    _move("right", "l right", "right; in the graph: to what is made of it"),
    _move("first", "g home", "first"),
    _move("last", "G end", "last"),
    _move("page_down", "pagedown ctrl+d ctrl+f", "page down"),
    _move("page_up", "pageup ctrl+u ctrl+b", "page up"),
)

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
