"""What an action is, what its guard looks at, and guards that several panes need."""

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


def dataset(situation: Situation) -> str | None:
    if situation.dataset is None:
        return "no dataset is selected"
    if situation.dataset.missing:
        return f"{situation.dataset.name} is not in this workspace"
    return None


def readable(situation: Situation) -> str | None:
    if (why := dataset(situation)) or situation.dataset is None:
        return why
    return (
        f"{situation.dataset.name} is damaged: v tells what is wrong" if situation.dataset.problem else None
    )


def need(name: str, missing: str) -> Guard:
    return lambda situation: None if getattr(situation, name) else missing
