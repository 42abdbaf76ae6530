"""Fakes of what controllers get, for tests without an app."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.worker.job_queue import failure_of
from odf_engine.worker.protocol import Job, JobState, Request
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.services.navigation import Navigator
from odf_tui.state.app_state import AppState
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import error_with_hint
from tests.tui.scripted_worker import Scenario


class FakeTerminal:
    """An application that notes what it is asked to do.

    Attributes:
        copied: the texts on the clipboard.
        written: what was written to the terminal.
        edits: functions that edit a file in place of an editor, in turn; they may raise OdfError.
    """

    def __init__(self) -> None:
        self.theme_names = ["tide", "paper"]
        self.theme = "tide"
        self.copied: list[str] = []
        self.written: list[str] = []
        self.edits: deque[Callable[[Path], object]] = deque()
        self.left: list[str] | None = None

    def use_theme(self, name: str) -> bool:
        self.theme = name
        return True

    def copy(self, text: str) -> str:
        self.copied.append(text)
        return "copied"

    def write(self, sequence: str) -> None:
        self.written.append(sequence)

    async def edit(self, path: Path, line: int | None = None) -> None:
        self.edits.popleft()(path)

    def read_dialog_styles(self) -> None: ...

    def leave(self, jobs: Sequence[str]) -> None:
        self.left = list(jobs)


class FakeTimer:
    """A timer that a test fires."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback, self.running = callback, True

    def stop(self) -> None:
        self.running = False

    pause = stop

    def resume(self) -> None:
        self.running = True


class FakeHost:
    """A host that answers dialogs, and notes everything else.

    Args:
        answers: the results of the dialogs, in turn; a function gets the dialog and returns its result.
        widgets: fakes of widgets, by the class that controllers ask for.

    Attributes:
        notices: (text, style) of each notice.
        dialogs: the dialogs that were opened.
        performed: ids of actions that controllers ran.
        loaded: names of controllers that were loaded.
        timers: the timers that were started.
        focus: the widget that got the focus last.
    """

    def __init__(self, answers: Sequence[Any] = (), widgets: dict[type, Any] | None = None) -> None:
        self.answers = deque(answers)
        self.widgets = widgets or {}
        self.keys, self.key_problems = DEFAULT_KEYMAP, ()
        self.terminal = FakeTerminal()
        self.notices: list[tuple[str, str]] = []
        self.dialogs: list[Any] = []
        self.performed: list[str] = []
        self.loaded: list[str] = []
        self.timers: list[FakeTimer] = []
        self.classes: set[str] = set()
        self.focus: Any = None
        self.now = Situation()
        self.is_front = True
        self._stories: list[asyncio.Task[None]] = []

    @property
    def top(self) -> Any:
        return self.dialogs[-1] if self.dialogs else self

    def load(self, name: str) -> None:
        """Note the name of a controller."""
        self.loaded.append(name)

    @property
    def last_notice(self) -> str:
        """The text of the newest notice."""
        return self.notices[-1][0] if self.notices else ""

    def _answer(self, dialog: Any) -> Any:
        self.dialogs.append(dialog)
        assert self.answers, f"no answer for {dialog}"
        answer = self.answers.popleft()
        return answer(dialog) if callable(answer) else answer

    def open(self, dialog: Any, then: Callable[[Any], object] | None = None) -> None:
        answer = self._answer(dialog)
        if then is not None:
            then(answer)

    async def ask(self, dialog: Any) -> Any:
        return self._answer(dialog)

    async def run_shown(self, title: str, function: Callable[[Reporter], Any]) -> Any:
        return await asyncio.to_thread(function, Reporter())

    def start(self, story: Coroutine[Any, Any, None], group: str = "stories") -> Any:
        async def guarded() -> None:
            try:
                await story
            except OdfError as error:  # anything else is a mistake in the code or in the test
                self.notice(error_with_hint(error), "bad")

        self._stories.append(asyncio.ensure_future(guarded()))
        return self._stories[-1]

    async def stories(self) -> None:
        """Wait until all that was started has ended."""
        while self._stories:
            await self._stories.pop(0)

    def read(
        self,
        group: str,
        function: Callable[[], Any],
        then: Callable[..., object],
        *,
        replaces: bool = True,
        opens: bool = False,
    ) -> None:
        """Read at once."""
        try:
            found, problem = function(), ""
        except Exception as error:
            found, problem = None, error_with_hint(error)
        then(found, problem)

    def notice(self, text: str, style: str = "good") -> None:
        self.notices.append((text, style))

    def copy_text(self, what: str, text: str) -> None:
        self.notice(f"{what}: {self.terminal.copy(text)}")

    def perform(self, action: str) -> None:
        self.performed.append(action)

    def situation(self) -> Situation:
        return self.now

    def query_one(self, kind: type) -> Any:
        return self.widgets[kind]

    def find(self, kind: type) -> Any:
        return self.widgets.get(kind)

    def set_timer(self, delay: float, callback: Callable[[], object]) -> Any:
        self.timers.append(FakeTimer(callback))
        return self.timers[-1]

    def set_interval(self, interval: float, callback: Callable[[], object], *, pause: bool = False) -> Any:
        return self.set_timer(interval, callback)

    def call_later(self, callback: Callable[..., object], *args: Any) -> object:
        return callback(*args)

    call_after_refresh = call_later

    def set_focus(self, widget: Any) -> None:
        self.focus = widget

    @property
    def focused(self) -> Any:
        return self.focus

    def set_class(self, add: bool, *names: str) -> None:
        (self.classes.update if add else self.classes.difference_update)(names)

    def has_class(self, *names: str) -> bool:
        return self.classes.issuperset(names)

    def show_hints(self) -> None: ...
    def leave_innermost(self) -> None: ...

    def collect_layout(self) -> SavedLayout:
        return SavedLayout()


class FakeJobs:
    """Jobs that end at once, with the results that a test prepared.

    Args:
        results: by the class of the request: its result, an exception, or a function of the request.

    Attributes:
        submitted: (request, name of the dataset) of each job.
        remarks: the remarks of the submissions.
        cancelled: ids of the cancelled jobs.
    """

    def __init__(self, state: AppState, results: dict[type, Any] | None = None) -> None:
        self._state, self.results = state, results or {}
        self.submitted: list[tuple[Request, str]] = []
        self.remarks: list[str] = []
        self.cancelled: list[str] = []
        self.quiet: set[str] = set()

    @property
    def requests(self) -> list[Request]:
        """The submitted requests."""
        return [request for request, _ in self.submitted]

    def submit(self, requests: Sequence[tuple[Request, str]], remark: str = "") -> None:
        self.submitted += requests
        self.remarks.append(remark)

    async def submit_one(self, request: Request, target: str, *, quiet: bool = False) -> str:
        self.submitted.append((request, target))
        number = str(len(self._state.jobs.jobs) + 1)
        kind = str(request.__struct_config__.tag)
        job = Job(number, kind, target, request.dataset, JobState.queued, "2024-03-11T09:00:00Z")
        self._state.load_jobs([job, *self._state.jobs.newest_first()], self._state.jobs.last_seq)
        if quiet:
            self.quiet.add(number)
        return number

    async def cancel(self, job: str) -> None:
        self.cancelled.append(job)

    async def wait_until_ended(self, job: str) -> Job:
        return self._state.jobs.jobs[job]

    async def run_all(self, requests: Sequence[tuple[Request, str]], remark: str = "") -> list[Job]:
        """End the jobs with the prepared results; an exception makes a job fail."""
        self.submitted += requests
        self.remarks.append(remark)
        jobs: list[Job] = []
        for request, target in requests:
            job = Job("1", request.kind(), target, request.dataset_id, JobState.done, "2024-03-11T09:00:00Z")
            try:
                result = msgspec.json.encode(self._result(request)).decode()
                jobs.append(msgspec.structs.replace(job, result=result))
            except OdfError as error:
                jobs.append(msgspec.structs.replace(job, state=JobState.failed, error=failure_of(error, job)))
        return jobs

    async def outcome(self, request: Any, target: str, title: str, *, leaves: bool = False) -> Any:
        self.submitted.append((request, target))
        return self._result(request)

    def result_of(self, job: str, request: type, title: str) -> Any:
        return self._result(next(each for each in reversed(self.requests) if isinstance(each, request)))

    def _result(self, request: Any) -> Any:
        result = self.results[type(request)]
        result = result(request) if callable(result) and not isinstance(result, type) else result
        if isinstance(result, Exception) or result is LeftRunning:
            raise result
        return result


class Fakes:
    """A context of fakes over a real workspace.

    Args:
        source: the engine.
        selected: name of the selected dataset.
        answers, widgets: see :class:`FakeHost`.
        results: see :class:`FakeJobs`.
    """

    def __init__(
        self,
        source: Scenario,
        selected: str = "",
        *,
        answers: Sequence[Any] = (),
        widgets: dict[type, Any] | None = None,
        results: dict[type, Any] | None = None,
    ) -> None:
        self.source, self.state = source, AppState()
        self.host = FakeHost(answers, widgets)
        self.jobs = FakeJobs(self.state, results)
        self.navigator = Navigator(self.state)
        self.state.load_jobs(*source.jobs())
        self.state.set_datasets(source.datasets())
        self.state.datasets_outdated.connect(lambda _: self.state.set_datasets(source.datasets()))
        self.navigator.selecting.connect(self.state.select)
        if selected:
            self.select(selected)

    def select(self, name: str) -> None:
        """Select a dataset by its name."""
        self.state.select(next(row.id for row in self.state.datasets if row.name == name))

    @property
    def context(self) -> Any:
        """The host that the controller under test gets."""
        host: Any = self.host
        host.workspace, host.state = self.source, self.state
        host.jobs, host.navigator = self.jobs, self.navigator
        return host
