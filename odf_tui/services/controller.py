"""Controller, and Host: the screen that loads controllers and runs their actions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.worker import Worker

from odf_engine.api import Reporter
from odf_engine.api.model import DatasetRow
from odf_engine.api.progress import JobStatus, StatusReporter
from odf_engine.errors import Cancelled
from odf_tui.actions import bindings, table, user_keys
from odf_tui.actions.model import Hint, Situation
from odf_tui.services import tasks
from odf_tui.services.jobs_client import JobsClient
from odf_tui.services.navigation import Navigator
from odf_tui.services.terminal_app import TerminalApp
from odf_tui.state import saved_session
from odf_tui.state.app_state import AppState
from odf_tui.state.notice_log import NoticeLog
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.job_text import progress_line
from odf_tui.widgets.dialogs import OverlayScreen, ProgressDialog
from odf_tui.widgets.pane_frame import Pane
from odf_tui.widgets.status_bar import KeyHints, Notice, StatusLine

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace

_DIALOG_SECONDS: Final = 0.5
"""Seconds until a dialog shows the progress of a function."""
T = TypeVar("T")
P = ParamSpec("P")
W = TypeVar("W", bound=Widget)
C = TypeVar("C", bound="Controller")


class Controller:
    """One topic of the workbench: runs its actions, and handles signals and messages of widgets.

    A controller is not a widget. It calls widgets, reads through the host and changes the AppState.
    """

    def __init__(self, host: Host) -> None:
        self.host, self.workspace, self.state = host, host.workspace, host.state
        self.jobs, self.navigator = host.jobs, host.navigator

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Return handlers of messages of widgets, by the exact class of the message."""
        return {}

    def leave(self) -> bool:
        """Leave the innermost view or filter of this controller. Returns whether there was one."""
        return False

    def hints(self) -> Sequence[Hint] | None:
        """Return the hints while a widget of this controller has the focus; else None."""
        return None

    def restore(self, layout: SavedLayout) -> None:
        """Restore a saved layout. Called before the first paint."""

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Return the layout with the values that this controller saves."""
        return layout


def task(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[C, P], None]:
    """Make a coroutine method one that starts it; an error in it becomes a notice."""

    @wraps(method)
    def start(self: C, *args: P.args, **options: P.kwargs) -> None:
        self.host.start(method(self, *args, **options))

    return start


def dataset_task(method: Callable[[C, DatasetRow], Coroutine[Any, Any, None]]) -> Callable[[C], None]:
    """Make a coroutine method one that starts it with the selected dataset, if one is selected."""

    @wraps(method)
    def start(self: C) -> None:
        if (row := self.state.row) is not None:
            self.host.start(method(self, row))

    return start


class Host(Screen[None], inherit_bindings=False):
    """The screen of the panes. Controllers show dialogs and notices, read, and run actions through it.

    Attributes:
        workspace: the engine.
        state: the state that controllers share.
        keys, key_problems: the keys in use, and the errors in the user's key maps.
        notices: the newest notices.
        jobs, navigator: submit jobs, and follow links.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"press('{key}')", show=False) for key in table.all_keys()
    ]

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self.workspace = workspace
        self.state = AppState(saved_session.load_layout(workspace.folder))
        self.keys, self.key_problems = user_keys.load(workspace.ui.keys, user_keys.user_keys_path())
        for key in set(self.keys.all_keys()) - set(table.all_keys()):
            self._bindings.bind(key, f"press('{key}')", show=False)
        self.jobs, self.navigator = JobsClient(workspace, self.state, self), Navigator(self.state)
        self.notices = NoticeLog()
        self._controllers: dict[str, Controller] = {}
        self._routes: dict[type[Message], list[Callable[[Any], object]]] = {}

    def load(self, name: str) -> Controller:
        """Return a controller by its name in the bindings; create it if it does not exist yet."""
        if name not in self._controllers:
            controller: Controller = bindings.import_controller(name)(self)
            self._controllers[name] = controller
            for message, handler in controller.routes().items():
                self._routes.setdefault(message, []).append(handler)
        return self._controllers[name]

    def loaded(self) -> Iterator[Controller]:
        """Yield the loaded controllers, in the order of the bindings."""
        return (self._controllers[name] for name in bindings.CONTROLLERS if name in self._controllers)

    def controller(self, kind: type[C]) -> C:
        """Return a controller that is loaded."""
        return next(controller for controller in self._controllers.values() if isinstance(controller, kind))

    @on(Message)
    def _deliver(self, message: Message) -> None:
        """Pass a message of a widget to the controllers that handle it."""
        for handler in self._routes.get(type(message), ()):
            handler(message)

    def action_press(self, key: str) -> None:
        """Run the action of a key."""
        action = self.keys.find(key, self.state.pane)
        if action is not None:
            self.perform(action.id)

    def perform(self, action: str) -> None:
        """Run an action by its id; a notice shows the reason if its guard refuses."""
        refusal = self.keys.by_id[action].guard(self.situation())
        if refusal is not None:
            self.notice(refusal, "warn")
            return
        bindings.run(self.load(bindings.CONTROLLER_OF[action]), action)
        self.state.performed.send(action)
        self.state.layout_changed.send(None)

    def situation(self) -> Situation:
        """Return the situation, which guards of actions check."""
        return Situation(pane=self.state.pane)

    def leave_innermost(self) -> None:
        """Leave the innermost of view, zoom and pane."""
        any(controller.leave() for controller in reversed(list(self.loaded())))

    def show_hints(self) -> None:
        """Show the hints of the widget that has the focus, else those for the situation."""
        special = (controller.hints() for controller in self.loaded())
        hints = next((hints for hints in special if hints is not None), None)
        self.query_one(KeyHints).show(self.keys.hints(self.situation()) if hints is None else hints)

    def collect_layout(self) -> SavedLayout:
        """Return the layout with what all controllers save."""
        layout = self.state.layout
        for controller in self._controllers.values():
            layout = controller.save(layout)
        return layout

    @property
    def terminal(self) -> TerminalApp:
        """The application: themes, clipboard, editor, exit."""
        return cast("TerminalApp", self.app)

    @property
    def top(self) -> Screen[Any]:
        """The top screen: a dialog, or this screen."""
        return self.app.screen

    @property
    def is_front(self) -> bool:
        """Whether no dialog is open."""
        return self.app.screen is self

    @property
    def is_current(self) -> bool:
        """Whether it can be seen: nothing is painted below a screen that covers it."""
        return super().is_current and not any(
            isinstance(screen, OverlayScreen) and screen.covers_workbench
            for screen in self.app.screen_stack
            if screen is not self
        )

    @property
    def front(self) -> Pane:
        """The focused pane."""
        return self.query_one(f"#{self.state.pane}", Pane)

    def find(self, kind: type[W]) -> W | None:
        """Return the first widget of a class, or None if absent."""
        return next(iter(self.query(kind)), None)

    def notice(self, text: str, style: str = "good") -> None:
        """Show a notice in the status line, and on the top screen; ``style``: good, warn, bad."""
        self.notices.add(text, style)
        self.query_one(StatusLine).show_notice(text, style, self.notices.unread)
        if isinstance(top := self.app.screen, OverlayScreen):
            top.show_notice(text)

    @on(StatusLine.ErrorRead)
    def mark_notices_read(self) -> None:
        """Mark the errors of all notices as read: the status line shows them no longer."""
        self.notices.mark_read()
        self.query_one(StatusLine).clear_error()

    @on(Notice)
    def _notice(self, message: Notice) -> None:
        self.notice(message.text, message.style)

    def copy_text(self, what: str, text: str) -> None:
        """Copy a text to the clipboard, with a notice that starts with ``what``."""
        self.notice(f"{what}: {self.terminal.copy(text)}")

    def open(self, dialog: Screen[T], then: Callable[[T | None], object] | None = None) -> None:
        """Open a dialog; ``then`` gets its result."""
        self.app.push_screen(dialog, cast("Any", then))

    async def ask(self, dialog: Screen[T]) -> T | None:
        """Open a dialog, and wait for its result. Only within :meth:`start`."""
        return await tasks.ask(self.app, dialog)

    async def run_shown(self, title: str, function: Callable[[Reporter], T]) -> T | None:
        """Run a function in a thread, and show its progress in a dialog. Only within :meth:`start`.

        Returns:
            The result, or None if the user cancelled the function.
        """
        status = JobStatus(title)
        reporter = StatusReporter(status)
        work = asyncio.create_task(asyncio.to_thread(function, reporter))
        try:
            ended, _ = await asyncio.wait([work], timeout=_DIALOG_SECONDS)
            if not ended:
                dialog = ProgressDialog(
                    title, lambda: progress_line(status.progress) or "running", partial(asyncio.wait, [work])
                )
                if await self.ask(dialog) == "stop":
                    reporter.cancel()
            with suppress(Cancelled):
                return await work
            return None
        finally:
            reporter.cancel()  # the workstation closes

    def start(self, coroutine: Coroutine[Any, Any, None], group: str = "stories") -> Worker[None]:
        """Run a coroutine, see :func:`odf_tui.services.tasks.start`."""
        return tasks.start(self, coroutine, group)

    def read(
        self,
        group: str,
        function: Callable[[], T],
        then: Callable[[T | None, str], object],
        *,
        replaces: bool = True,
        opens: bool = False,
    ) -> None:
        """Run a read in a thread, see :func:`odf_tui.services.tasks.read`."""
        tasks.read(self, group, function, then, replaces=replaces, opens=opens)
