"""Controller, the Context of its services, and Reader for reads in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from odf_tui.actions.model import Hint
from odf_tui.services.host import Host
from odf_tui.services.jobs_client import JobsClient
from odf_tui.services.navigation import Navigator
from odf_tui.state.app_state import AppState
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import error_with_hint

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace

T = TypeVar("T")


class Reader:
    """Runs reads in threads, and passes each result to a function on the event loop."""

    def __init__(self, screen: Screen[Any]) -> None:
        self._screen = screen

    def read(
        self,
        group: str,
        function: Callable[[], T],
        then: Callable[[T | None, str], object],
        *,
        replaces: bool = True,
    ) -> None:
        """Run a function in a thread, then call ``then`` with its result and an error message.

        Args:
            group: the name of the kind of read.
            function: the read. It runs in a thread and may block.
            then: gets the result and an empty text, or None and an error message.
            replaces: whether the results of older reads of the group are dropped.
        """

        def work() -> None:
            worker = get_current_worker()
            try:
                result, error_text = function(), ""
            except Exception as error:  # any error is shown, and the screen stays open
                result, error_text = None, error_with_hint(error)
            if not worker.is_cancelled:
                self._screen.call_later(then, result, error_text)

        self._screen.run_worker(work, thread=True, exclusive=replaces, group=group, name=group)


@dataclass
class Context:
    """The services that every controller gets."""

    workspace: Workspace
    state: AppState
    reader: Reader
    jobs: JobsClient
    navigator: Navigator
    host: Host


class Controller:
    """One topic of the workbench: runs its actions, and handles signals and messages of widgets.

    A controller is not a widget. It calls widgets, reads through the Reader and changes the AppState.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.workspace, self.state, self.reader = context.workspace, context.state, context.reader
        self.jobs, self.navigator, self.host = context.jobs, context.navigator, context.host

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
