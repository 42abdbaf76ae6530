"""Controller, the Context that it gets, and Reader for reads in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from odf_tui.actions.model import Hint
from odf_tui.gateway.protocol import Gateway
from odf_tui.services.host import Host
from odf_tui.services.jobs_client import JobsClient
from odf_tui.services.navigation import Navigator
from odf_tui.state.app_state import AppState
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import error_with_hint

T = TypeVar("T")


class Reader:
    """Runs reads in threads, and passes each result to a method on the event loop."""

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
            group: what is read. With ``replaces``, the result of an older read of the group is dropped.
            function: the read. It may block.
            then: gets the result and an empty text, or None and why the read failed.
            replaces: whether the read replaces older ones of its group.
        """

        def work() -> None:
            worker = get_current_worker()
            try:
                result, error_text = function(), ""
            except Exception as error:  # whatever it is, it is shown, and the screen stays open
                result, error_text = None, error_with_hint(error)
            if not worker.is_cancelled:
                self._screen.call_later(then, result, error_text)

        self._screen.run_worker(work, thread=True, exclusive=replaces, group=group, name=group)


@dataclass
class Context:
    """What every controller gets."""

    gateway: Gateway
    state: AppState
    reader: Reader
    jobs: JobsClient
    navigator: Navigator
    host: Host


class Controller:
    """One topic of the workbench: runs its actions, and follows the signals that it needs.

    A controller is no widget. It calls widgets, reads through the Reader and changes the AppState.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.gateway, self.state, self.reader = context.gateway, context.state, context.reader
        self.jobs, self.navigator, self.host = context.jobs, context.navigator, context.host

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Return the handlers of messages of its widgets, by their exact class."""
        return {}

    def leave(self) -> bool:
        """Leave the innermost thing of the focused pane. Returns whether there was something to leave."""
        return False

    def hints(self) -> Sequence[Hint] | None:
        """Return the hints while its own widget has the focus; else None."""
        return None

    def restore(self, layout: SavedLayout) -> None:
        """Show what was saved. Called before the first paint."""

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Return the layout with what this controller saves."""
        return layout
