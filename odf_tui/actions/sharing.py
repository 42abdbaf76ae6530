"""Exchange with other places, for the selected dataset, from everywhere."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, Situation, need, readable

_SHARES: Final = ("pull", "push")


def _push(situation: Situation) -> str | None:
    if why := readable(situation):
        return why
    if situation.dataset_job is not None and situation.dataset_job.kind == "push":
        return f"{situation.dataset_job.target} is being pushed already"
    return None


def _shared(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := readable(situation)) or row is None:
        return why
    return None if row.remotes else f"{row.name} has no remote yet: u pushes it"


def _branches(situation: Situation) -> str | None:
    job = situation.job
    if situation.pane == "jobs" and job is not None and job.kind in _SHARES:
        return None
    return _shared(situation)


ACTIONS: Final = (
    Action("push", ("u",), "push the dataset: to where it goes, or ask where to", guard=_push),
    Action("push_to", ("W",), "push the dataset to another place", guard=_push),
    Action("look", ("m",), "look how the dataset stands to its remotes now", hint="remotes", guard=_shared),
    Action(
        "look_all",
        ("M",),
        "look how all datasets stand to their remotes",
        guard=need("remotes", "no dataset comes from elsewhere or goes there yet"),
    ),
    Action(
        "branches",
        ("V",),
        "show both histories of a dataset that diverged from a remote, and choose",
        guard=_branches,
    ),
    Action("browse", ("I",), "bring in datasets from elsewhere: repositories, or an address"),
    Action("detach", ("X",), "detach the dataset from a remote", guard=_shared),
)
