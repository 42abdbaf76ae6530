"""TerminalApp: themes, colour filters, clipboard, external editor, exit."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.console import RenderableType
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.binding import Binding, BindingType
from textual.css.stylesheet import Stylesheet
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.theme import Theme

from odf_engine.errors import OdfError
from odf_tui.services.terminal_driver import TerminalDriver
from odf_tui.services.terminal_input import BackgroundColour
from odf_tui.services.terminal_output import ScreenUpdate, TerminalOutput
from odf_tui.state import saved_session
from odf_tui.theming import terminal, themes
from odf_tui.theming.ascii_fallback import CharacterFallback
from odf_tui.theming.themes import EightBitColours
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.pane_frame import ThinScrollBar
from odf_tui.widgets.status_bar import Notice

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace


class ThemedStylesheet(Stylesheet):
    """Style rules that are parsed again only if the theme's variables change.

    Textual applies the theme once more after the first parse. This delayed the first paint.
    """

    _is_changed = True

    def set_variables(self, variables: dict[str, str]) -> None:
        """Set the variables of the theme."""
        if variables != self._variables:
            super().set_variables(variables)
            self._is_changed = True

    def parse(self) -> None:
        """Parse the rules."""
        super().parse()
        self._is_changed = False

    def reparse(self) -> None:
        """Parse the rules again if the variables have changed."""
        if self._is_changed:
            super().reparse()
            self._is_changed = False


class TerminalApp(App[None], inherit_bindings=False):
    """An application with the user's theme, adapted to the terminal.

    Attributes:
        workspace: the engine.
        farewell: text to print on the terminal after the exit, or "" if no job continues.
        palette: the styles of the current theme, see :func:`odf_tui.theming.themes.palette`.
        theme_names: the names of the valid themes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("ctrl+l", "repaint", show=False),
    ]

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        ScrollBar.renderer = ThinScrollBar
        self.workspace = workspace
        self.farewell = ""
        self.theme_names = themes.names()
        self.palette = themes.Palette({})
        self._few_colours = self.no_color or self.console.color_system in (None, "standard")
        self._nearest = EightBitColours(enabled=self.console.color_system == "256" and not self.no_color)
        self._filters.append(self._nearest)
        if self.no_color:  # no colours at all; Textual would show greys
            self._filters = [entry for entry in self._filters if not isinstance(entry, Monochrome)]
            self._filters.append(NoColor())
        if (characters := terminal.supported_characters(workspace.ui.ascii)) != "all":
            self._filters.append(CharacterFallback(characters))
        self._output = TerminalOutput()
        self._theme_problem = ""
        self._has_auto_theme = False  # the terminal decides between dark and light
        if not self.use_theme(self._configured_theme()):
            self._apply_theme(themes.load(themes.DEFAULT, few=self._few_colours, own=False))
        self.stylesheet = ThemedStylesheet(variables=self.get_css_variables())

    def get_driver_class(self) -> type[Driver]:
        """Return the driver for terminals."""
        return TerminalDriver

    def _configured_theme(self) -> str:
        """Return the name of the configured theme; for ``auto``, of one that suits the terminal."""
        if self.no_color:
            return themes.FEW_COLOURS
        theme = saved_session.effective_theme(
            saved_session.load_layout(self.workspace.folder), self.workspace.ui.theme
        )
        if theme != "auto":
            return theme
        self._has_auto_theme = not self._few_colours
        return themes.FEW_COLOURS if self._few_colours else themes.DEFAULT

    def on_mount(self) -> None:
        """Check the user's settings after the first paint. Paint again when a suspension ends."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_repaint())
        self.call_after_refresh(
            self.run_worker, self._check_settings, thread=True, group="settings", name="settings"
        )
        if self._has_auto_theme and terminal.reports_background():
            self.write("\x1b]11;?\x1b\\")

    def on_background_colour(self, message: BackgroundColour) -> None:
        """Use the light theme on a light terminal, if neither the user nor a setting has chosen one."""
        if self._has_auto_theme and message.is_light and self.theme == themes.DEFAULT:
            self.use_theme(themes.LIGHT)

    def _check_settings(self) -> None:
        invalid = themes.problems()
        self.theme_names = [name for name in self.theme_names if name not in invalid]
        problems = (
            [self._theme_problem]
            if self._theme_problem
            else [_problem_text(error) for error in invalid.values()]
        )
        if self.workspace.settings_problem:
            problems.insert(0, self.workspace.settings_problem)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.screen_stack[0].post_message(Notice(problems[0] + more, "warn"))

    def read_dialog_styles(self) -> None:
        """Read the style sheet of dialogs, before the first of them opens."""
        self.stylesheet.read(Path(__file__).parents[1] / "dialogs.tcss")

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return defaults of the workstation's own variables, for themes that lack them."""
        return {
            "muted": "ansi_bright_black",
            "rule": "ansi_bright_black",
            "cursor-style": "reverse",
            "idle-style": "bold",
            "bar-style": "reverse",
            **{f"{name}-{ground}": "ansi_default" for name in ("bar", "cursor", "idle")
               for ground in ("background", "foreground")},
        }  # fmt: skip

    def use_theme(self, name: str) -> bool:
        """Use a theme. Returns False if its file is missing or invalid; a notice shows the reason."""
        try:
            theme = themes.load(name, few=self._few_colours)
        except OdfError as error:
            self._theme_problem = _problem_text(error)
            if self.is_running:
                self.screen_stack[0].post_message(Notice(self._theme_problem, "warn"))
            return False
        self._apply_theme(theme)
        return True

    def _apply_theme(self, theme: Theme) -> None:
        self.register_theme(theme)
        self.palette = themes.palette(theme)
        self.theme = theme.name
        self.get_css_variables()  # updates `theme_variables`, which has the colours of panes

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters that adapt colours and characters to the terminal."""
        return [entry for entry in self._filters if entry.enabled]

    def action_repaint(self) -> None:
        """Paint the screen again, after another program has written to the terminal."""
        self._output.forget()
        self._display(self.screen, self._complete_update(self.screen))

    def _complete_update(self, screen: Screen[Any]) -> RenderableType | None:
        return screen._compositor.render_update(full=True, screen_stack=self._background_screens)

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """Write an update: only the cells that differ from what the terminal shows.

        The cursor of the terminal is put on the selected line, which screen readers and magnifiers follow.
        """
        if not hasattr(screen.focused, "cursor_screen_offset"):  # inputs put it on their own cursor
            active = (view for view in screen.query(LineView) if view.active and view.is_on_screen)
            self.cursor_position = next((view.cursor_cell for view in active), self.cursor_position)
        if isinstance(renderable, LayoutUpdate | ChopsUpdate) and not self.is_headless:
            if isinstance(renderable, ChopsUpdate) and not self._output.shows(screen.size):
                renderable = self._complete_update(screen)
            if isinstance(renderable, LayoutUpdate | ChopsUpdate):
                renderable = cast("RenderableType", ScreenUpdate(self._output, renderable))
        super()._display(screen, renderable)

    def on_resize(self, event: events.Resize) -> None:
        """Paint everything after a resize: some terminals wrap or clear what they show."""
        self._output.forget()

    def copy(self, text: str) -> str:
        """Copy a text to the clipboard. Returns a description of the method used."""
        return terminal.copy(text, self.write, self.workspace.folder / ".odf" / "cache")

    def write(self, sequence: str) -> None:
        """Write a control sequence to the terminal."""
        if self._driver is not None:
            self._driver.write(sequence)

    async def edit(self, path: Path, line: int | None = None) -> None:
        """Run the user's editor in the terminal until it ends. Events are still applied during this time.

        Raises:
            OdfError: there is no editor, it does not start, or it ends with an error.
        """
        editor = terminal.find_editor()
        suspension = nullcontext() if self.is_headless else self.suspend()
        with suspension, self.batch_update(), _ignored_interrupts():
            editing = asyncio.to_thread(terminal.run_editor, editor, path, line, self.workspace.folder)
            # An exception must not leave the block: the terminal would not be restored.
            (failure,) = await asyncio.gather(editing, return_exceptions=True)
        if failure is not None:
            raise failure

    def leave(self, jobs: Sequence[str]) -> None:
        """Exit, and name the jobs that continue in the farewell."""
        if jobs:
            verb = "continues" if len(jobs) == 1 else "continue"
            self.farewell = (
                f"{', '.join(jobs)} {verb} in the background.\n"
                "Run odf jobs to see the progress, or odf to open the workstation again."
            )
        self.exit()


def _problem_text(error: OdfError) -> str:
    return f"{error} – {error.hint}" if error.hint else str(error)


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Ignore ^C, which is meant for the editor.

    It sets a handler, because child processes inherit ignored signals.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
