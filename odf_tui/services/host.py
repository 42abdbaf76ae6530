"""Host and Station: the interfaces of the main screen and the application for controllers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.worker import Worker

from odf_tui.actions.model import KeyMap, Situation
from odf_tui.state.saved_session import SavedLayout
from odf_tui.widgets.pane_frame import Pane

T = TypeVar("T")
W = TypeVar("W", bound=Widget)


class Station(Protocol):
    """The interface of the application for controllers: themes, terminal, editor."""

    theme_names: list[str]

    @property
    def current_theme_name(self) -> str:
        """The theme in use."""
        ...

    def use_theme(self, name: str) -> bool:
        """Use a theme. Returns False if its file is missing or invalid; a notice shows the reason."""
        ...

    def copy(self, text: str) -> str:
        """Copy a text to the clipboard. Returns a description of the method used."""
        ...

    def write(self, sequence: str) -> None:
        """Write a control sequence to the terminal."""
        ...

    async def edit(self, path: Path, line: int | None = None) -> None:
        """Open a file in the user's editor, at a line from 1, and wait until it ends.

        Raises:
            OdfError: there is no editor, it does not start, or it fails.
        """
        ...

    def read_dialog_styles(self) -> None:
        """Read the style sheet of dialogs, before the first of them opens."""
        ...

    def leave(self, jobs: Sequence[str]) -> None:
        """Close the workstation; ``jobs`` continue in the background."""
        ...


@runtime_checkable
class CoveringScreen(Protocol):
    """A screen that may cover the workbench.

    Attributes:
        covers_workbench: whether it hides the workbench completely.
    """

    covers_workbench: ClassVar[bool]

    def show_notice(self, text: str) -> None:
        """Show a notice of the workbench."""
        ...


class Host(Protocol):
    """The interface of the workbench for controllers.

    Attributes:
        keys, key_problems: the keys in use, and the errors in the user's key maps.
    """

    keys: KeyMap
    key_problems: list[str]

    @property
    def station(self) -> Station:
        """The application."""
        ...

    @property
    def top(self) -> Screen[Any]:
        """The top screen: a dialog, or the workbench."""
        ...

    @property
    def is_front(self) -> bool:
        """Whether no dialog is open."""
        ...

    @property
    def focused_widget(self) -> Widget | None:
        """The focused widget, or None while a pane has the focus."""
        ...

    @property
    def front(self) -> Pane:
        """The focused pane."""
        ...

    def widget(self, kind: type[W]) -> W:
        """Return the only widget of a class."""
        ...

    def find(self, kind: type[W]) -> W | None:
        """Return the first widget of a class, or None if absent."""
        ...

    def notice(self, text: str, style: str = "good") -> None:
        """Show a notice in the line of hints; ``style`` is good, warn or bad."""
        ...

    def copy_text(self, what: str, text: str) -> None:
        """Copy a text to the clipboard, with a notice that starts with ``what``."""
        ...

    def show_hints(self) -> None:
        """Update the line of hints."""
        ...

    def situation(self) -> Situation:
        """Return the situation, which guards of actions check."""
        ...

    def perform(self, action: str) -> None:
        """Run an action by its id; a notice shows the reason if its guard refuses."""
        ...

    def up(self) -> None:
        """Leave the innermost of filter, view, zoom and pane."""
        ...

    def open(self, dialog: Screen[T], then: Callable[[T | None], object] | None = None) -> None:
        """Open a dialog; ``then`` gets its result."""
        ...

    async def ask(self, dialog: Screen[T]) -> T | None:
        """Open a dialog, and wait for its result. Only within :meth:`start`."""
        ...

    def start(self, coroutine: Coroutine[Any, Any, None], group: str = "stories") -> Worker[None]:
        """Run a coroutine. An error in it becomes a notice.

        Args:
            coroutine: it may open dialogs and await jobs.
            group: the name of its group of workers. Those in ``stories`` may wait for the user.
        """
        ...

    def save_soon(self) -> None:
        """Save the layout in a few seconds."""
        ...

    def collect_layout(self) -> SavedLayout:
        """Return the layout with the changes of all controllers."""
        ...

    # Methods of Textual's screen:

    def set_timer(self, delay: float, callback: Callable[[], object]) -> Timer: ...
    def set_interval(
        self, interval: float, callback: Callable[[], object], *, pause: bool = False
    ) -> Timer: ...
    def call_later(self, callback: Callable[..., object], *args: Any) -> object: ...
    def call_after_refresh(self, callback: Callable[..., object], *args: Any) -> object: ...
    def set_focus(self, widget: Widget | None) -> None: ...
    def set_class(self, add: bool, *names: str) -> object: ...
    def has_class(self, *names: str) -> bool: ...
