"""Asks for a time; what is wrong with it is said in the same place."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from odf_engine.errors import UsageError
from odf_engine.metadata.timestamp import parse_user_time
from odf_tui.humane import explained, plain
from odf_tui.screens.dialogs import Dialog, Lines
from odf_tui.widgets.lines import Span

_WAYS = (("2026-03-01", "a day, at its beginning"), ("2026-03-01 14:00", "a time of day, in UTC"))


class MomentDialog(Dialog[str]):
    """Ends with the time as RFC 3339.

    Args:
        title: what it is for.
        about: what the time means.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, about: str) -> None:
        super().__init__()
        self._title, self._about = title, about

    def compose(self) -> ComposeResult:
        """A line to type in, and what may be typed."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content("⏎ takes it · esc closes")
            line = Input(placeholder=self._about, compact=True)
            line.cursor_blink = False
            yield line
            yield Lines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        ways: list[list[Span]] = [[(f" {text:<18}", "key"), (about, "muted")] for text, about in _WAYS]
        return [*ways, [(f" {error}", "bad")]]

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Takes it, when it is a time."""
        event.stop()
        try:
            moment = parse_user_time(event.value)
        except UsageError as error:
            self.query_one(Lines).set(self._lines(explained(error)))
        else:
            self.dismiss(str(moment))
