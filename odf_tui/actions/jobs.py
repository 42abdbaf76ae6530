"""Pane 4, and the worker."""

from __future__ import annotations

from typing import Final

from odf_tui.actions.base import Action, Situation, need


def _cancel(situation: Situation) -> str | None:
    if situation.pane == "jobs" and situation.job is not None and situation.job.state.final:
        return f"this job is {situation.job.state.value} already"
    if situation.pane == "jobs" and situation.job is not None:
        return None
    return None if situation.dataset_job else "no job runs for this dataset"


ACTIONS: Final = (
    Action("cancel", ("x",), "cancel the running job", hint="cancel", guard=_cancel),
    Action(
        "open_job", ("enter",), "show the job's whole log", "jobs", "log", need("job", "no job is selected")
    ),
    Action(
        "job_dataset",
        ("o",),
        "go to the job's dataset",
        "jobs",
        "dataset",
        need("job", "no job is selected"),
    ),
    Action(
        "restart",
        ("R",),
        "start the worker again",
        guard=lambda now: None if now.worker == "gone" else "the worker is there",
    ),
)
