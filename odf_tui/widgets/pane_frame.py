"""A numbered pane with title and subtitle; thin scroll bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.scrollbar import ScrollBarRender

from odf_engine.api.text import printable
from odf_tui.widgets.line_view import LineView


class Pane(Vertical):
    """One of the four panes. Its id is its name. Subclasses return their list in ``view``.

    Attributes:
        number: the number in the title, which is also its key.
        label: the name in the title.
        filter: the filter text, or "" if everything is shown.
    """

    number: ClassVar[int]
    label: ClassVar[str]
    filter_placeholder: ClassVar[str] = "text to filter by"

    class Chosen(Message):
        """The pane was clicked."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id=id, classes=f"pane {classes}")
        self.filter = ""
        self._about = ""
        self._others: Sequence[str] = ()

    def on_mount(self) -> None:
        """Show the title."""
        self.set_context()

    @property
    def view(self) -> LineView | None:
        """The view with the cursor, or None if the pane has no view."""
        return None

    def move(self, move: str) -> None:
        """Move the cursor of the view."""
        if self.view is not None:
            self.view.move(move)

    def set_filter(self, text: str) -> None:
        """Show only what matches a filter; everything if it is empty."""
        self.filter = text
        self.set_context()

    def selection(self) -> tuple[str, str] | None:
        """Return the kind and the text of what can be copied, or None if nothing is selected."""
        return None

    @property
    def heading(self) -> str:
        """The number and the name in the title."""
        return f"{self.number} {self.label}"

    def set_context(self, context: str | None = None) -> None:
        """Show number, name, context and filter in the title. None keeps the context."""
        if context is not None:
            self._about = context
        about = f" · {self._about}" if self._about else ""
        filtered = f" /{self.filter}" if self.filter else ""
        title = Content(printable(" ─ ".join([f"{self.heading}{about}{filtered}", *self._others])))
        if title != self._border_title:
            self._border_title = title
            self._refresh_border(-1)

    def set_others(self, names: Sequence[str]) -> None:
        """Show the names of hidden panes after the title."""
        if names != self._others:
            self._others = names
            self.set_context()

    def set_subtitle(self, text: str) -> None:
        """Show a text in the lower border."""
        subtitle = Content(printable(text)) if text else None
        if subtitle != self._border_subtitle:
            self._border_subtitle = subtitle
            self._refresh_border(self.size.height)

    def _refresh_border(self, row: int) -> None:
        # Setting ``border_title`` would repaint the complete pane at every move of the cursor.
        self.refresh(Region(-1, row, self.size.width + 2, 1))

    def apply_theme(self, active: bool) -> None:
        """Show in the colours of the theme whether the pane has the focus."""
        colours = self.app.theme_variables
        self.styles.border = ("round", colours["primary" if active else "rule"])
        self.styles.border_title_color = colours["primary" if active else "muted"]
        self.styles.border_title_style = "bold" if active else "none"
        if self.view is not None:
            self.view.set_active(active)

    def on_click(self) -> None:
        """Focus the pane."""
        self.post_message(self.Chosen(self.id or ""))


_GLYPHS = {True: "▐", False: "▂"}


class ThinScrollBar(ScrollBarRender):
    """A thumb of thin glyphs on an empty track. The mouse works as with Textual's scroll bar."""

    @classmethod
    def render_bar(
        cls,
        size: int = 25,
        virtual_size: float = 50,
        window_size: float = 20,
        position: float = 0,
        thickness: int = 1,
        vertical: bool = True,
        back_color: Color | None = None,
        bar_color: Color | None = None,
    ) -> Segments:
        """Return the segments of the bar.

        Args:
            size: length of the bar in cells.
            virtual_size: number of lines or columns of the content.
            window_size: how many of them are visible.
            position: the first visible one.
            thickness: width of the bar in cells.
            vertical: whether the bar is vertical.
            back_color: colour of the track.
            bar_color: colour of the thumb.
        """
        ground = Style(bgcolor=back_color)
        cells = [Segment(" " * (thickness if vertical else 1), ground)] * size
        if window_size and size and virtual_size > window_size:
            length = max(1, round(size * window_size / virtual_size))
            start = round((size - length) * position / (virtual_size - window_size))
            start = max(0, min(start, size - length))
            before = Segment(cells[0].text, ground + Style(meta={"@mouse.down": "scroll_up"}))
            after = Segment(cells[0].text, ground + Style(meta={"@mouse.down": "scroll_down"}))
            style = Style(color=bar_color, bgcolor=back_color, meta={"@mouse.down": "grab"})
            thumb = Segment(_GLYPHS[vertical] * (thickness if vertical else 1), style)
            cells = [before] * start + [thumb] * length + [after] * (size - start - length)
        if vertical:
            return Segments(cells, new_lines=True)
        return Segments([*cells, Segment.line()] * thickness, new_lines=False)
