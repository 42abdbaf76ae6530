"""One widget or dialog in an app of its own, with the theme and styles of the workstation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual import on
from textual.app import App
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.widget import Widget

import odf_tui.app
from odf_tui.theming import themes
from odf_tui.widgets.pane_frame import ThinScrollBar
from tests.tui.waiting import screen_text


class _WidgetScreen(Screen[None]):
    @on(Message)
    def _deliver(self, message: Message) -> None:
        app = self.app
        if isinstance(app, WidgetApp) and (handler := app.routes.get(type(message))):
            handler(message)


class WidgetApp(App[None], inherit_bindings=False):
    """Shows a widget.

    Attributes:
        routes: the handlers of messages, by class: those of the controller under test.
        result: the result of the dialog, once it is closed.
    """

    CSS_PATH = [Path(odf_tui.app.__file__).with_name(name) for name in ("odf.tcss", "dialogs.tcss")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, widget: Widget) -> None:
        super().__init__()
        ScrollBar.renderer = ThinScrollBar
        self._widget = widget
        self.routes: Mapping[type[Message], Callable[[Any], object]] = {}
        self.result: Any = None
        theme = themes.load(themes.DEFAULT, few=False, own=False)
        self.register_theme(theme)
        self.palette, self.theme = themes.palette(theme), theme.name

    async def on_mount(self) -> None:
        """Show the widget, or open the dialog."""
        if isinstance(self._widget, Screen):
            await self.push_screen(self._widget, lambda result: setattr(self, "result", result))
        else:
            await self.screen.mount(self._widget)

    def get_default_screen(self) -> Screen[None]:
        """A screen that passes messages on, as the workbench does."""
        return _WidgetScreen()

    def text(self) -> str:
        """Return the screen as text."""
        return screen_text(self.screen)


@asynccontextmanager
async def shown(
    widget: Widget, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[WidgetApp, Pilot[None]]]:
    """Show a widget, or open a dialog, in an app of its own."""
    app = WidgetApp(widget)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot
