"""A widget or screen in an app of its own, driven like the workstation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.widget import Widget

from tests.tui.conftest import Driven
from tests.tui.context import FakeHost
from tests.tui.scripted_worker import Scenario
from tests.tui.widget_app import WidgetApp


class UnfocusedApp(WidgetApp):
    """Focuses no widget by itself, like the workstation."""

    AUTO_FOCUS = None


class WidgetDrive(Driven):
    """A widget that a test drives."""

    app: WidgetApp  # type: ignore[assignment]

    @property
    def bench(self) -> Any:
        """The screen below the dialogs."""
        return self.app.screen_stack[0]

    def _busy(self) -> bool:
        return any(worker.name != "stories" and not worker.is_finished for worker in self.app.workers)


@asynccontextmanager
async def driven_widget(
    widget: Widget, source: Scenario, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[WidgetDrive]:
    """Show a widget, or open a screen, and wait until it has read what it shows."""
    app = UnfocusedApp(widget)
    async with app.run_test(size=size) as pilot:
        drive = WidgetDrive(app, pilot, source)  # type: ignore[arg-type]
        await drive.settle()
        yield drive


class MountedHost(FakeHost):
    """A fake host whose widgets are those of a running app; it has their focus too."""

    app: WidgetApp | None = None

    def query_one(self, kind: type) -> Any:
        return self.find(kind) or super().query_one(kind)

    def find(self, kind: type) -> Any:
        if kind in self.widgets or self.app is None:
            return super().find(kind)
        return next(iter(self.app.screen_stack[0].query(kind)), None)

    def set_focus(self, widget: Any) -> None:
        assert self.app is not None
        self.app.screen_stack[0].set_focus(widget)

    @property
    def focused(self) -> Any:
        return None if self.app is None else self.app.screen_stack[0].focused

    def call_later(self, callback: Any, *args: Any) -> object:
        assert self.app is not None
        return self.app.call_later(callback, *args)

    def call_after_refresh(self, callback: Any, *args: Any) -> object:
        assert self.app is not None
        return self.app.call_after_refresh(callback, *args)
