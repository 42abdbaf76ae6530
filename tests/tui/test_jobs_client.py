"""JobsClient: the outcome of a job, and the dialog that shows its progress."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.errors import Cancelled, OdfError
from odf_engine.jobs.definition import Validate
from odf_engine.worker.protocol import Failure, JobProgress, JobState
from odf_tui.services.jobs_client import JobsClient, LeftRunning, progress_text
from odf_tui.state.app_state import AppState
from odf_tui.widgets.dialogs import ProgressDialog
from tests.tui.scripted_worker import Scenario, progress
from tests.tui.widget_app import WidgetApp, shown
from tests.waiting import wait_until_async

REQUEST = Validate(manifest="x")


class Client:
    """A JobsClient whose dialogs are answered by a function; it is connected to a fake worker."""

    def __init__(self, source: Scenario, answer: Answer) -> None:
        self.source, self.state = source, AppState()
        self.state.load_jobs(*source.jobs())

        async def ask(dialog: ProgressDialog) -> Any:
            answer()
            if answer.key:
                return answer.key
            await dialog._wait()
            return "ended"

        screen: Any = SimpleNamespace(
            app=SimpleNamespace(push_screen_wait=ask), call_later=lambda call, value: call(value)
        )
        self.jobs = JobsClient(source, self.state, screen)  # type: ignore[arg-type]

    async def outcome(self, *, leaves: bool = False) -> Any:
        """Return the outcome of the request."""
        connection = asyncio.ensure_future(self.jobs.connection.run())
        try:
            return await asyncio.wait_for(
                self.jobs.outcome(REQUEST, "air-by-day", "Validating", leaves=leaves), 10
            )
        finally:
            connection.cancel()


class Answer:
    """Ends the newest job, or answers the dialog."""

    def __init__(self, source: Scenario, key: str = "", **job: object) -> None:
        self.source, self.key, self.job = source, key, job

    def __call__(self) -> None:
        if self.job:
            self.source.link.tell(self.source.changed(replace(self.source.known[-1], **self.job)))


async def test_successful_job_returns_its_result(source: Scenario) -> None:
    done = Answer(source, state=JobState.done, result='{"name": "x", "checked": true}')
    found = await Client(source, done).outcome()
    assert (found.name, found.checked) == ("x", True)
    assert source.link.submitted == [REQUEST]


async def test_failed_job_raises_its_error(source: Scenario) -> None:
    failure = Failure("there is no function `cuont`", hint="count?", where="query, line 1")
    with pytest.raises(OdfError, match="cuont") as error:
        await Client(source, Answer(source, state=JobState.failed, error=failure)).outcome()
    assert (error.value.hint, error.value.where) == ("count?", "query, line 1")
    with pytest.raises(OdfError, match="Validating: interrupted"):
        await Client(source, Answer(source, state=JobState.interrupted)).outcome()


async def test_leaving_the_dialog_leaves_the_job_running(source: Scenario) -> None:
    with pytest.raises(LeftRunning):
        await Client(source, Answer(source, "leave")).outcome(leaves=True)
    assert source.link.cancelled == []


async def test_stopping_cancels_the_job_and_awaits_its_end(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(source, Answer(source, "stop"))
    cancel = client.jobs.cancel

    async def cancel_and_end(job: str) -> None:
        await cancel(job)
        asyncio.get_running_loop().call_later(0.02, Answer(source, state=JobState.cancelled))

    monkeypatch.setattr(client.jobs, "cancel", cancel_and_end)
    with pytest.raises(Cancelled, match="Validating: cancelled"):
        await client.outcome()
    assert source.link.cancelled == [source.known[-1].id]
    assert client.state.jobs.jobs[source.known[-1].id].state is JobState.cancelled


async def test_a_job_that_ended_while_the_worker_was_gone_is_found_in_the_journal(source: Scenario) -> None:
    client = Client(source, Answer(source))
    job = source.job(JobState.running, "air-by-day")
    source.changed(job)
    client.state.load_jobs(*source.jobs())
    waiting = asyncio.ensure_future(client.jobs.wait_until_ended(job.id))
    await asyncio.sleep(0)
    assert not waiting.done()
    source.changed(replace(job, state=JobState.interrupted))
    client.state.load_jobs(*source.jobs())
    assert (await asyncio.wait_for(waiting, 60)).state is JobState.interrupted
    assert (await client.jobs.wait_until_ended(job.id)).state is JobState.interrupted  # known at once


class Running:
    """A running job of which a dialog shows the progress."""

    def __init__(self, source: Scenario, *, leaves: bool = False) -> None:
        self.state, self.end = AppState(), asyncio.Event()
        job = source.job(JobState.running, "air-by-day")
        source.changed(job)
        self.state.load_jobs(*source.jobs())
        self.state.apply_events([JobProgress(job.id, progress(1200))])
        text = partial(progress_text, self.state.jobs, job.id)
        self.dialog = ProgressDialog("Validating", text, self.end.wait, leaves=leaves)


async def until(app: WidgetApp, result: str) -> None:
    """Wait for the result of the dialog."""
    await wait_until_async(lambda: app.result is not None)
    assert app.result == result


async def test_the_dialog_closes_when_the_job_ends(source: Scenario) -> None:
    running = Running(source)
    async with shown(running.dialog) as (app, _):
        assert "Validating" in app.text() and "read · 1 200 rows" in app.text()
        assert app.result is None
        running.end.set()
        await until(app, "ended")


async def test_the_dialog_closes_after_the_list_of_keys_above_it(source: Scenario) -> None:
    running = Running(source)
    async with shown(running.dialog) as (app, pilot):
        await pilot.press("question_mark")
        assert "cancel the operation" in app.text() and app.screen is not running.dialog
        running.end.set()
        await pilot.pause()
        assert app.result is None
        await pilot.press("q")
        await until(app, "ended")


async def test_dialog_keys_stop_or_leave_the_job(source: Scenario) -> None:
    running = Running(source)
    async with shown(running.dialog) as (app, pilot):
        await pilot.press("b")  # this job cannot be left
        assert app.result is None
        await pilot.press("escape")
        await until(app, "stop")
    running = Running(source, leaves=True)
    async with shown(running.dialog) as (app, pilot):
        assert "b continues in the background" in app.text()
        await pilot.press("b")
        await until(app, "leave")
