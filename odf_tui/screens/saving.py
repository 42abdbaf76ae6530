"""Asks where to save something."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from odf_tui.humane import plain
from odf_tui.screens.dialogs import Dialog, Lines


class SaveDialog(Dialog[Path]):
    """A line with the path of a file; relative ones start where the program was started.

    Args:
        title: what is saved.
        path: what stands there at first.
    """

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    def __init__(self, title: str, path: str) -> None:
        super().__init__()
        self._title, self._path = title, path

    def compose(self) -> ComposeResult:
        """The folder, and the line."""
        with Vertical(classes="dialog question") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = "⏎ saves · esc closes"
            yield Lines([[], [(" in ", "muted"), (plain(str(Path.cwd())), "")], []])
            line = Input(self._path, compact=True)
            line.cursor_blink = False
            yield line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Where to."""
        event.stop()
        if text := event.value.strip():
            self.dismiss(Path(text).expanduser().absolute())
