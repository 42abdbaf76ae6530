"""The main screen: four panes. It passes keys, messages and results to controllers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.worker import Worker

from odf_engine.api.text import format_count, set_timezone
from odf_tui.actions import bindings, table, user_keys
from odf_tui.actions.model import PANES, Situation
from odf_tui.panes.blocks.view import BlocksPane
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.datasets.view import DatasetsPane
from odf_tui.panes.jobs.controller import JobsController
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.panes.pane_layout import PaneGrid, PaneLayout
from odf_tui.services.controller import Context, Controller, Reader
from odf_tui.services.host import CoveringScreen, Station
from odf_tui.services.jobs_client import JobsClient
from odf_tui.services.navigation import Navigator
from odf_tui.state import saved_session
from odf_tui.state.app_state import AppState, EarlyReads
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import error_with_hint
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.pane_frame import Pane
from odf_tui.widgets.status_bar import FilterLine, KeyHints, Notice, StatusLine

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace

_EARLY_SECONDS: Final = 0.2
C = TypeVar("C", bound=Controller)
T = TypeVar("T")
W = TypeVar("W", bound=Widget)


class Workbench(Screen[None], inherit_bindings=False):
    """Four panes, a status line and a line of hints. It is the host of the controllers.

    Args:
        workspace: the engine.
        early: the reads of datasets and jobs that have already started.
        painted: called after the first paint.

    Attributes:
        state: the state that controllers share.
        context: the services that controllers receive.
        keys, key_problems: the keys in use, and the errors in the user's key maps.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (104, "-wide")]  # noqa: RUF012 (as Textual declares it)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"press('{key}')", show=False) for key in table.all_keys()
    ]

    def __init__(
        self,
        workspace: Workspace,
        early: EarlyReads | None = None,
        painted: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.workspace, self._early, self._painted = workspace, early, painted
        set_timezone(workspace.ui.timezone)
        self.state = AppState(saved_session.load_layout(workspace.folder))
        self.keys, self.key_problems = user_keys.load(workspace.ui.keys, user_keys.user_keys_path())
        for key in set(self.keys.all_keys()) - set(table.all_keys()):
            self._bindings.bind(key, f"press('{key}')", show=False)
        jobs, navigator = JobsClient(workspace, self.state, self), Navigator(self.state)
        self.context = Context(workspace, self.state, Reader(self), jobs, navigator, self)
        self._controllers: dict[str, Controller] = {}
        self._routes: dict[type[Message], list[Callable[[Any], object]]] = {}

    def compose(self) -> ComposeResult:
        """Panes, status line, hints, filter line."""
        with PaneGrid(id="panes"):
            yield DatasetsPane("datasets", classes="-front")
            yield BlocksPane("blocks")
            yield DataPane("data", classes="-lower")
            yield JobsPane("jobs", self.state.jobs, self.state.rates)
        yield StatusLine(self.workspace.folder)
        yield KeyHints()
        yield FilterLine()

    def on_mount(self) -> None:
        """Load the controllers of the panes, and show what was read early."""
        for name in bindings.PANE_CONTROLLERS:
            self._load(name)
        layout = self.state.layout
        for controller in self._controllers.values():
            controller.restore(layout)
        self.state.focus_pane(layout.pane if layout.pane in PANES else PANES[0])
        self.state.worker_changed.send(None)
        self.app.theme_changed_signal.subscribe(self, lambda _: self._layout.apply_theme())
        if not self._show_early():
            self._reload()
        self.call_after_refresh(self._begin)

    def _reload(self) -> None:
        self.state.jobs_outdated.send(None)
        self.state.datasets_outdated.send(None)

    def _show_early(self) -> bool:
        if self._early is None:
            return False
        try:
            early = self._early.result(_EARLY_SECONDS)
        except Exception:  # late, or unreadable: it is read again, and a notice shows why it fails
            return False
        self.state.load_jobs(early.jobs, early.last_seq)
        self.state.set_datasets(early.datasets)
        if early.outdated:
            self.call_after_refresh(self._reload)
        return True

    def _begin(self) -> None:
        """Start what can wait until the first paint."""
        self._painted()
        self.controller(JobsController).save_snapshot_soon()
        self.station.read_dialog_styles()
        if self.key_problems:
            more = len(self.key_problems) - 1
            self.notice(
                self.key_problems[0] + (f" (and {format_count(more)} more: ?)" if more else ""), "warn"
            )
        self.run_worker(self.context.jobs.connection.run(), group="worker", name="worker")

    def _load(self, name: str) -> Controller:
        if name not in self._controllers:
            controller: Controller = bindings.import_controller(name)(self.context)
            self._controllers[name] = controller
            for message, handler in controller.routes().items():
                self._routes.setdefault(message, []).append(handler)
        return self._controllers[name]

    def _loaded(self) -> Iterator[Controller]:
        """The loaded controllers, in the order of the bindings."""
        return (self._controllers[name] for name in bindings.CONTROLLERS if name in self._controllers)

    def controller(self, kind: type[C]) -> C:
        """Return a controller that is loaded."""
        return next(controller for controller in self._controllers.values() if isinstance(controller, kind))

    @property
    def _layout(self) -> PaneLayout:
        return self.controller(PaneLayout)

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

    @on(LineView.Opened)
    def _opened(self) -> None:
        self.action_press("enter")

    @on(KeyHints.Chosen)
    def _hint_chosen(self, message: KeyHints.Chosen) -> None:
        if message.action:
            self.perform(message.action)

    def perform(self, action: str) -> None:
        """Run an action by its id; a notice shows the reason if its guard refuses."""
        refusal = self.keys.by_id[action].guard(self.situation())
        if refusal is not None:
            self.notice(refusal, "warn")
            return
        bindings.run(self._load(bindings.CONTROLLER_OF[action]), action)
        self.save_soon()

    def up(self) -> None:
        """Leave the innermost of filter, view, zoom and pane."""
        if not self._layout.clear_filter():
            any(controller.leave() for controller in reversed(list(self._loaded())))
        self.show_hints()

    def situation(self) -> Situation:
        """Return the situation, which guards of actions check."""
        return self._layout.situation()

    # The members up to collect_layout implement Host, the interface for controllers.

    @property
    def station(self) -> Station:
        """The application."""
        return cast("Station", self.app)

    @property
    def top(self) -> Screen[Any]:
        """The screen in front."""
        return self.app.screen

    @property
    def is_front(self) -> bool:
        """Whether no dialog is open."""
        return self.app.screen is self

    @property
    def focused_widget(self) -> Widget | None:
        """The focused widget, or None while a pane has the focus."""
        return self.focused

    @property
    def front(self) -> Pane:
        """The focused pane."""
        return self.query_one(f"#{self.state.pane}", Pane)

    def widget(self, kind: type[W]) -> W:
        """Return the only widget of a class."""
        return self.query_one(kind)

    def find(self, kind: type[W]) -> W | None:
        """Return the first widget of a class, or None if absent."""
        return next(iter(self.query(kind)), None)

    def notice(self, text: str, style: str = "good") -> None:
        """Show a notice in the status line, and on a screen that covers it."""
        self.query_one(StatusLine).show_notice(text, style)
        if isinstance(top := self.app.screen, CoveringScreen):
            top.show_notice(text)

    @on(Notice)
    def _notice(self, message: Notice) -> None:
        self.notice(message.text, message.style)

    def copy_text(self, what: str, text: str) -> None:
        """Copy a text to the clipboard; a notice shows the method used."""
        self.notice(f"{what}: {self.station.copy(text)}")

    def show_hints(self) -> None:
        """Show the hints of the widget that has the focus, else those for the situation."""
        special = (controller.hints() for controller in self._loaded())
        hints = next((hints for hints in special if hints is not None), None)
        self.query_one(KeyHints).show(self.keys.hints(self.situation()) if hints is None else hints)

    def open(self, dialog: Screen[T], then: Callable[[T | None], object] | None = None) -> None:
        """Open a dialog; ``then`` gets its result."""
        self.app.push_screen(dialog, cast("Any", then))

    async def ask(self, dialog: Screen[T]) -> T | None:
        """Open a dialog, and wait for its result."""
        return await self.app.push_screen_wait(dialog)

    def start(self, coroutine: Coroutine[Any, Any, None], group: str = "stories") -> Worker[None]:
        """Run a coroutine. An error in it becomes a notice."""

        async def guarded() -> None:
            try:
                await coroutine
            except Exception as error:  # whatever it is, it is shown, and the screen stays open
                self.notice(error_with_hint(error), "bad")

        return self.run_worker(guarded(), group=group, name=group)

    def save_soon(self) -> None:
        """Save the layout in a few seconds."""
        self._layout.save_soon()

    def collect_layout(self) -> SavedLayout:
        """Return the layout with what all controllers save."""
        layout = self.state.layout
        for controller in self._controllers.values():
            layout = controller.save(layout)
        return layout

    @property
    def is_current(self) -> bool:
        """Whether it can be seen: nothing is painted below a screen that covers it."""
        return super().is_current and not any(
            isinstance(screen, CoveringScreen) and screen.covers_workbench
            for screen in self.app.screen_stack
            if screen is not self
        )

    def on_resize(self) -> None:
        """Arrange the panes, once the breakpoints were applied."""
        self.call_next(self._layout.arrange)
