"""Asking the worker for something whose outcome the next step needs."""

from __future__ import annotations

import json
from typing import Any

from odf_engine.coordinator.protocol import JobState, Request
from odf_engine.errors import Cancelled, OdfError
from odf_tui.screens.base import Parts


class Left(Exception):
    """The person does not wait any longer; the job goes on."""


class Waiting(Parts):
    """The part of the workbench that waits for jobs."""

    async def result_of(
        self, request: Request, target: str, title: str, *, leaves: bool = False
    ) -> dict[str, Any]:
        """Hands a request to the worker, and waits for its end in sight of the person.

        Args:
            leaves: whether the person may stop waiting without stopping the job.

        Raises:
            Left: the person does not wait.
            Cancelled: the job was stopped.
            OdfError: why the job failed, or that there is no worker.
        """
        from odf_tui.screens.progress import JobDialog

        link = await self.follower.link()
        job_id = await link.submit(request, target)
        how = await self.app.push_screen_wait(JobDialog(title, self.book, job_id, leaves=leaves))
        if how == "leave":
            raise Left
        if how == "stop":
            await link.cancel(job_id)
            raise Cancelled(f"{title}: stopped")
        job = self.book.jobs[job_id]
        if job.state is JobState.done:
            return json.loads(job.result or "{}")
        if job.state is JobState.cancelled:
            raise Cancelled(f"{title}: stopped")
        failure = job.error
        if failure is None:
            raise OdfError(f"{title}: {job.state.value}", hint="its log in pane 4 says more")
        raise OdfError(failure.message, hint=failure.hint, where=failure.where)
