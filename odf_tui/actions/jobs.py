"""Pane 4, and the worker."""

from __future__ import annotations

from typing import Final

from odf_engine.coordinator.protocol import JobState
from odf_tui.actions.base import Action, Situation, need

_JOB: Final = need("job", "no job is selected")


def _cancel(situation: Situation) -> str | None:
    if situation.pane == "jobs" and situation.job is not None and situation.job.state.final:
        return f"this job is {situation.job.state.value} already"
    if situation.pane == "jobs" and situation.job is not None:
        return None
    return None if situation.dataset_job else "no job runs for this dataset"


def _retry(situation: Situation) -> str | None:
    job = situation.job
    if job is None:
        return "no job is selected"
    if not job.state.final:
        return "it has not ended: x cancels it"
    return None


def _written(situation: Situation) -> str | None:
    job = situation.job
    if job is None:
        return "no job is selected"
    return "this job has not begun" if job.state is JobState.queued else None


def _restart(situation: Situation) -> str | None:
    return None if situation.worker == "gone" else "the worker is there"


ACTIONS: Final = (
    Action("cancel", ("x",), "cancel the running job", hint="cancel", guard=_cancel),
    Action("open_job", ("enter",), "show the job's whole log", "jobs", "log", _JOB),
    Action("retry", ("full_stop",), "do the same again", "jobs", "again", _retry),
    Action("job_block", ("b",), "go to the block that the job wrote", "jobs", "block", _written),
    Action("job_dataset", ("o",), "go to the job's dataset", "jobs", "dataset", _JOB),
    Action("job_details", ("i",), "show lines for finding mistakes, and hide them", "jobs", guard=_JOB),
    Action("wrap_log", ("w",), "wrap long lines of the log, or cut them", "jobs", guard=_JOB),
    Action("save_log", ("S",), "save the job's whole log to a file", "jobs", guard=_JOB),
    Action("restart", ("R",), "start the worker again", guard=_restart),
)
