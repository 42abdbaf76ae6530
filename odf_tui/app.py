"""The application of the workstation, with the workbench as its only permanent screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import Binding, BindingType

from odf_tui.services.terminal_app import TerminalApp
from odf_tui.state.app_state import EarlyReads
from odf_tui.workbench import Workbench

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace


class Workstation(TerminalApp):
    """The application.

    Args:
        workspace: the engine.
        early: datasets and jobs that are being read already.
        painted: called after the first paint.
        source: a data file to add as a dataset after the start, or "".
    """

    CSS_PATH = "odf.tcss"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    VERTICAL_BREAKPOINTS = Workbench.VERTICAL_BREAKPOINTS  # for dialogs
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "leave", show=False, priority=True),
    ]

    def __init__(
        self,
        workspace: Workspace,
        early: EarlyReads | None = None,
        painted: Callable[[], None] = lambda: None,
        source: str = "",
    ) -> None:
        super().__init__(workspace)
        self._early, self._painted, self._source = early, painted, source

    def get_default_screen(self) -> Workbench:
        """Return the workbench with the classes for the size of the terminal.

        Its layout is then computed only once.
        """
        bench = Workbench(self.workspace, self._early, self._painted, self._source)
        for breakpoints, cells in (
            (bench.HORIZONTAL_BREAKPOINTS, self.size.width),
            (bench.VERTICAL_BREAKPOINTS, self.size.height),
        ):
            fitting = [name for min_cells, name in breakpoints or () if cells >= min_cells]
            bench.add_class(*fitting[-1:])
        return bench

    def on_resize(self, event: events.Resize) -> None:
        """Resize the screens below a dialog too: Textual resizes only the top one."""
        for screen in self.screen_stack[:-1]:
            screen.post_message(events.Resize(event.size, event.size))

    @property
    def bench(self) -> Workbench:
        """The workbench, also while a dialog covers it."""
        return next(screen for screen in self.screen_stack if isinstance(screen, Workbench))

    def action_leave(self) -> None:
        """Quit, also from a dialog."""
        self.bench.perform("quit")
