"""Host and Station: what the main screen and the application do for controllers."""

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
    """What the application does for controllers: themes, terminal, editor."""

    theme_names: list[str]

    @property
    def current_theme_name(self) -> str:
        """The theme in use."""
        ...

    def use_theme(self, name: str) -> bool:
        """Use a theme. Returns False if its file is invalid; a notice says why."""
        ...

    def copy(self, text: str) -> str:
        """Copy a text to the clipboard. Returns by which way, in words."""
        ...

    def write(self, sequence: str) -> None:
        """Write a control sequence to the terminal."""
        ...

    async def edit(self, path: Path, line: int | None = None) -> None:
        """Open a file in the user's editor, and wait until it ends.

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
        covers_workbench: whether nothing of the workbench can be seen below it.
    """

    covers_workbench: ClassVar[bool]

    def show_notice(self, text: str) -> None:
        """Show a notice of the workbench."""
        ...


class Host(Protocol):
    """What the workbench does for controllers.

    Attributes:
        keys, key_problems: the keys in use, and what is wrong with those that the user changed.
    """

    keys: KeyMap
    key_problems: Sequence[str]

    @property
    def station(self) -> Station:
        """The application."""
        ...

    @property
    def top(self) -> Screen[Any]:
        """The screen in front; a dialog, or the workbench."""
        ...

    @property
    def is_front(self) -> bool:
        """Whether no dialog is open."""
        ...

    @property
    def focused_widget(self) -> Widget | None:
        """The focused widget; None while a pane has the keys."""
        ...

    @property
    def front(self) -> Pane:
        """The pane that has the keys."""
        ...

    def widget(self, kind: type[W]) -> W:
        """Return the only widget of a class."""
        ...

    def find(self, kind: type[W]) -> W | None:
        """Return the first widget of a class that may not be there."""
        ...

    def notice(self, text: str, style: str = "good") -> None:
        """Show a notice in the line of hints; ``style`` is good, warn or bad."""
        ...

    def copy_text(self, what: str, text: str) -> None:
        """Copy a text to the clipboard, with a notice."""
        ...

    def show_hints(self) -> None:
        """Update the line of hints."""
        ...

    def situation(self) -> Situation:
        """Return what the guards of actions depend on."""
        ...

    def perform(self, action: str) -> None:
        """Run an action by its id; a notice says why if its guard refuses."""
        ...

    def up(self) -> None:
        """Leave the innermost thing: a filter, a view, the zoom, the pane."""
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
            story: the coroutine. It may open dialogs and await jobs.
            group: a name for what it does. ``stories`` may wait for the user.
        """
        ...

    def save_soon(self) -> None:
        """Save the layout in a few seconds."""
        ...

    def collect_layout(self) -> SavedLayout:
        """Return the layout with what all controllers save."""
        ...

    # Of Textual's screen:

    def set_timer(self, delay: float, callback: Callable[[], object]) -> Timer: ...
    def set_interval(
        self, interval: float, callback: Callable[[], object], *, pause: bool = False
    ) -> Timer: ...
    def call_later(self, callback: Callable[..., object], *args: Any) -> object: ...
    def call_after_refresh(self, callback: Callable[..., object], *args: Any) -> object: ...
    def set_focus(self, widget: Widget | None) -> None: ...
    def set_class(self, add: bool, *names: str) -> object: ...
    def has_class(self, *names: str) -> bool: ...
