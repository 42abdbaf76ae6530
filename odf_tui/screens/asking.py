"""Asking where to go; what is wrong with the answer is said in the same place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from odf_tui.humane import plain
from odf_tui.screens.dialogs import Dialog, Lines
from odf_tui.widgets.lines import Span

_EXAMPLES = 18


class Jump(Dialog[None]):
    """A line to type in.

    Args:
        ways: examples of what may be typed, and what each means.
        range: what there is.
        look: takes what was typed, goes there, and tells what is wrong with it; nothing: it was right.
    """

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(
        self,
        title: str,
        ways: Sequence[tuple[str, str]],
        range: str,
        look: Callable[[str, Callable[[str], None]], None],
    ) -> None:
        super().__init__()
        self._title, self._ways, self._range, self._look = title, ways, range, look

    def compose(self) -> ComposeResult:
        """A line to type in, and what may be typed."""
        with Vertical(classes="dialog jump") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content("⏎ goes there · esc closes")
            line = Input(placeholder=plain(self._range), compact=True)
            line.cursor_blink = False
            yield line
            yield Lines(self._lines(""))

    def _lines(self, error: str) -> list[list[Span]]:
        shown: list[list[Span]] = [
            [(f" {example:<{_EXAMPLES}}", "key"), (meaning, "muted")] for example, meaning in self._ways
        ]
        return [*shown, [(f" {plain(error)}", "bad")]]

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Goes there."""
        event.stop()
        if event.value.strip():
            self._look(event.value, self._told)

    def _told(self, error: str) -> None:
        if not self.is_attached:
            return
        if error:
            self.query_one(Lines).set(self._lines(error))
        else:
            self.dismiss(None)
