"""A numbered pane: a border with a title, one view inside, and the keys while it has the focus."""

from __future__ import annotations

from typing import ClassVar

from textual.containers import Vertical
from textual.content import Content

from odf_tui.humane import plain
from odf_tui.widgets.lines import LineView


class Pane(Vertical, can_focus=True):
    """One of the four. Its id is the pane's name; moves go to its view."""

    number: ClassVar[int]
    label: ClassVar[str]

    def __init__(self, id: str) -> None:
        super().__init__(id=id, classes="pane")
        self.filter = ""
        self._about = ""

    def on_mount(self) -> None:
        """Shows the title."""
        self.retitle()

    @property
    def view(self) -> LineView | None:
        """Where the cursor is."""
        return None

    def move(self, move: str) -> None:
        """Moves the cursor."""
        if self.view is not None:
            self.view.move(move)

    def set_filter(self, text: str) -> None:
        """Shows only what matches; empty: everything."""
        self.filter = text
        self.retitle()

    def copied(self) -> tuple[str, str] | None:
        """What is selected, as (what it is, text)."""
        return None

    def retitle(self, context: str | None = None) -> None:
        """Title: number, name, what it is about, filter."""
        if context is not None:
            self._about = context
        about = f" · {self._about}" if self._about else ""
        filtered = f" /{self.filter}" if self.filter else ""
        self.border_title = Content(plain(f"{self.number} {self.label}{about}{filtered}"))

    def on_focus(self) -> None:
        """The keys go here now."""
        if self.view is not None:
            self.view.set_active(True)

    def on_blur(self) -> None:
        """The keys go elsewhere."""
        if self.view is not None:
            self.view.set_active(False)
