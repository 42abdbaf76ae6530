"""Chooses the columns that tell rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_tui.humane import clip, plain
from odf_tui.screens.dialogs import MOVE_KEYS, Dialog, Lines
from odf_tui.widgets.lines import LineView, Span


class KeyLines(LineView):
    """The columns, and which of them are of the key."""

    def __init__(self, columns: Sequence[tuple[str, str]], key: Sequence[str]) -> None:
        super().__init__(id="key-columns")
        self.active = True
        self.columns = columns
        self.key = list(key)

    def on_mount(self) -> None:
        """Shows them."""
        self.reset()

    def count(self) -> int:
        """How many."""
        return len(self.columns)

    def toggle(self) -> None:
        """Takes the column under the cursor into the key, or out of it."""
        name = self.columns[self.cursor][0]
        if name in self.key:
            self.key.remove(name)
        else:
            self.key.append(name)
        self.refresh()

    def spans(self, index: int) -> Sequence[Span]:
        """A column."""
        name, kind = self.columns[index]
        there = name in self.key
        return [
            (" ✓ " if there else " · ", "good" if there else "muted"),
            (clip(plain(name), max(self.room.width - 24, 10)), "name" if there else ""),
            (" " + clip(plain(kind), 18), "muted"),
        ]


class KeyChoice(Dialog[list[str]]):
    """Ends with the columns that were chosen.

    Args:
        title: what it is for.
        columns: names and types.
        key: those that are chosen at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "take", "take the columns that are chosen", show=False),
        Binding("space,x", "choose", "choose this one too, or not", show=False),
        *MOVE_KEYS,
    ]

    def __init__(self, title: str, columns: Sequence[tuple[str, str]], key: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = KeyLines(columns, key)

    def compose(self) -> ComposeResult:
        """What it is about, and the columns."""
        with Vertical(classes="dialog key-choice") as box:
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content("space chooses · ⏎ shows the state · esc closes")
            about = "The newest row of each key stays, unless it takes the key away."
            yield Lines([[(f" {about}", "muted")], [(" Which columns tell rows apart?", "")]])
            yield self._lines

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
        self._lines.toggle()

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        self._lines.move(move)

    def action_choose(self) -> None:
        """Chooses a column, or not."""
        self._lines.toggle()

    def action_take(self) -> None:
        """Takes what is chosen, or the column under the cursor when nothing is."""
        if not self._lines.key:
            self._lines.toggle()
        self.dismiss(self._lines.key)
