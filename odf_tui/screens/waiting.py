"""Asking the worker for something whose outcome the next step needs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, TypeVar, cast

from odf_engine.coordinator.protocol import JobRequest, JobState, Request, decode_result
from odf_engine.errors import Cancelled, OdfError
from odf_tui.screens.base import Parts

_TICK_SECONDS: Final = 0.05
_STOPPING_TICKS: Final = 40
R = TypeVar("R")


class LeftRunning(Exception):
    """The person does not wait any longer; the job goes on."""


class JobsClient(Parts):
    """The part of the workbench that waits for jobs."""

    async def result_of(self, request: JobRequest[R], target: str, title: str, *, leaves: bool = False) -> R:
        """Submit a request, show the progress of its job until it ends, and return the result.

        Args:
            request: the request.
            target: name of the dataset.
            title: title of the dialog.
            leaves: whether the user may leave the dialog without cancelling the job.

        Raises:
            Left: the user left the dialog.
            Cancelled: the job was cancelled.
            OdfError: the job failed, or there is no worker.
        """
        from odf_tui.widgets.dialogs import JobProgressDialog

        link = await self.follower.link()
        job_id = await link.submit(cast("Request", request), target)
        how = await self.app.push_screen_wait(JobProgressDialog(title, self.book, job_id, leaves=leaves))
        if how == "leave":
            raise LeftRunning
        if how == "stop":
            with suppress(OdfError):  # it may have ended meanwhile
                await link.cancel(job_id)
            await self._end_of(job_id)
        return self._outcome_of(job_id, type(request), title)

    async def _end_of(self, job_id: str) -> None:
        for _ in range(_STOPPING_TICKS):
            job = self.book.jobs.get(job_id)
            if job is not None and job.state.final:
                return
            await asyncio.sleep(_TICK_SECONDS)

    def _outcome_of(self, job_id: str, request: type[JobRequest[R]], title: str) -> R:
        job = self.book.jobs.get(job_id)
        if job is None or not job.state.final or job.state is JobState.cancelled:
            raise Cancelled(f"{title}: stopped")
        if job.state is JobState.done:
            return decode_result(job.result or "{}", request)
        if job.error is None:
            raise OdfError(f"{title}: {job.state.value}", hint="its log in pane 4 says more")
        raise OdfError(job.error.message, hint=job.error.hint, where=job.error.where)
