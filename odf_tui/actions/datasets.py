"""Pane 1, and what can be done with the selected dataset from everywhere."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, Situation, dataset, need, readable

_STANDINGS: Final = {"own": "your own", "trusted": "trusted", "not trusted": "not trusted"}
_NONE: Final = "there are no datasets yet"


def _pull(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := readable(situation)) or row is None:
        return why
    if row.comes_from_elsewhere:
        return _pulled_already(situation)
    if row.diverged:
        return f"its input {row.diverged[0]} was reset or replaced: D makes {row.name} anew"
    if not (row.polls or row.derivative) and row.push_sources:
        return f"there is nothing to poll: data is pushed with odf ingest {row.name} FILE"
    if not (row.polls or row.derivative):
        return f"{row.name} has no source: e edits its definition"
    return _pulled_already(situation)


def _pulled_already(situation: Situation) -> str | None:
    if situation.dataset_job is not None and situation.dataset_job.kind == "pull":
        return f"{situation.dataset_job.target} is being pulled already"
    return None


def _begin_anew(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := readable(situation)) or row is None:
        return why
    if row.comes_from_elsewhere:
        return f"{row.name} comes from elsewhere: V shows how it stands to that"
    if not row.diverged:
        return f"{row.name} has not diverged from its inputs: nothing is to be made anew"
    return f"{row.name} is being worked on already" if situation.dataset_job else None


def _take_columns(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := readable(situation)) or row is None:
        return why
    if not row.derivative:
        return f"{row.name} has no query"
    return None if row.last_pulled else f"{row.name} has no data yet: its columns are those of its query"


def _trust(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := readable(situation)) or row is None:
        return why
    return None if row.untrusted else f"{row.name} is {_STANDINGS[row.standing]} already"


def _untrust(situation: Situation) -> str | None:
    row = situation.dataset
    if (why := dataset(situation)) or row is None:
        return why
    return None if row.standing == "trusted" else f"{row.name} is {_STANDINGS[row.standing]}"


def _make_demo(situation: Situation) -> str | None:
    return "the demo is for an empty workspace: odf demo makes one beside it" if situation.datasets else None


def _verify(situation: Situation) -> str | None:
    if why := dataset(situation):
        return why
    if situation.dataset_job is not None and situation.dataset_job.kind == "verify":
        return "a verification runs already"
    return None


ACTIONS: Final = (
    Action("pull", ("p",), "pull the dataset: take in what is new", hint="pull", guard=_pull),
    Action(
        "pull_all",
        ("P",),
        "pull all datasets, inputs first",
        guard=need("pullable", "there is nothing to pull"),
    ),
    Action("verify", ("v",), "verify the dataset: chain, slices and hashes", guard=_verify),
    Action("add", ("n", "a"), "make a new dataset: from a file, a URL, a template", hint="new"),
    Action("add_file", ("A",), "add datasets from a manifest file"),
    Action("edit", ("e",), "edit the dataset's definition in your editor", hint="edit", guard=readable),
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
    Action(
        "make_demo",
        ("d",),
        "make the demo here: sample sources, five datasets",
        hint="demo",
        guard=_make_demo,
    ),
    Action(
        "column_lineage",
        ("number_sign",),
        "show which columns feed which, up and down the graph",
        guard=readable,
    ),
    Action("open_dataset", ("enter",), "show everything about the dataset", "datasets", "details", dataset),
    Action(
        "list",
        ("L",),
        "show the datasets as a list, or as a graph again",
        "datasets",
        "list",
        need("datasets", _NONE),
    ),
    Action("sort", ("o",), "sort the list by its next column", "datasets", guard=need("datasets", _NONE)),
    Action(
        "sort_back", ("O",), "sort the list the other way round", "datasets", guard=need("datasets", _NONE)
    ),
    Action(
        "narrow",
        ("f",),
        "show only datasets of a kind, or in a state",
        "datasets",
        guard=need("datasets", _NONE),
    ),
)
