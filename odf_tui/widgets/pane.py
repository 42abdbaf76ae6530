"""A numbered pane: a border with a title, and one view inside.

Panes do not use Textual's focus: that would paint the whole screen anew at each change of the pane.
"""

from __future__ import annotations

from typing import ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.message import Message

from odf_tui.humane import plain
from odf_tui.widgets.lines import LineView


class Pane(Vertical):
    """One of the four. Its id is the pane's name; moves go to its view."""

    number: ClassVar[int]
    label: ClassVar[str]

    class Chosen(Message):
        """Somebody clicked into the pane."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=f"pane {classes}")
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
        title = Content(plain(f"{self.number} {self.label}{about}{filtered}"))
        if title != self._border_title:
            self._border_title = title
            self._refresh_border(-1)

    def tell_below(self, text: str) -> None:
        """Says something in the lower border."""
        subtitle = Content(plain(text)) if text else None
        if subtitle != self._border_subtitle:
            self._border_subtitle = subtitle
            self._refresh_border(self.size.height)

    def _refresh_border(self, row: int) -> None:
        # Setting ``border_title`` would paint the whole pane anew, at every move of a cursor.
        self.refresh(Region(-1, row, self.size.width + 2, 1))

    def dress(self, active: bool) -> None:
        """Shows whether the keys go here, in the colours of the theme."""
        colours = self.app.theme_variables
        self.styles.border = ("round", colours["primary" if active else "rule"])
        self.styles.border_title_color = colours["primary" if active else "muted"]
        self.styles.border_title_style = "bold" if active else "none"
        if self.view is not None:
            self.view.set_active(active)

    def on_click(self) -> None:
        """The mouse chooses the pane."""
        self.post_message(self.Chosen(self.id or ""))
