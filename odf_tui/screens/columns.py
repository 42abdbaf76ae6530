"""All columns of a table: which are shown, in what order, and which stay in sight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_tui.humane import clip
from odf_tui.screens.dialogs import MOVE_KEYS, Dialog
from odf_tui.widgets.arrangement import Arrangement
from odf_tui.widgets.lines import LineView, Span


class ColumnLines(LineView):
    """The columns in their order, hidden ones too."""

    def __init__(self, names: Sequence[str], types: Sequence[str], arrangement: Arrangement) -> None:
        super().__init__(id="columns")
        self.active = True
        self._names, self._types, self._arrangement = names, types, arrangement

    def on_mount(self) -> None:
        """Shows them."""
        self.reset()
        self.show(self.cursor)

    def count(self) -> int:
        """How many."""
        return len(self._arrangement.order)

    @property
    def column(self) -> int:
        """The number of the column under the cursor."""
        return self._arrangement.order[self.cursor]

    def spans(self, index: int) -> Sequence[Span]:
        """Whether it is shown, its name and type, whether it stays in sight."""
        column = self._arrangement.order[index]
        hidden = column in self._arrangement.hidden
        stays = "stays in sight" if index < self._arrangement.frozen else ""
        room = max(self.room.width - 36, 12)
        return [
            (" ✗ " if hidden else " ✓ ", "muted" if hidden else "good"),
            (clip(self._names[column], room), "muted" if hidden else "name"),
            (" " + clip(self._types[column], 16), "muted"),
            (f" {stays or ('hidden' if hidden else ''):<15}", "title" if stays else "muted"),
        ]


class ColumnsScreen(Dialog[int]):
    """Arranges columns; each change shows at once. Ends with the column to go to.

    Args:
        changed: called after each change.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "go", "go to this column", show=False),
        *MOVE_KEYS,
        Binding("space,H", "flip", "show or hide the column", show=False),
        Binding("J,greater_than_sign", "shift(1)", "move the column on", show=False),
        Binding("K,less_than_sign", "shift(-1)", "move the column back", show=False),
        Binding("F", "freeze", "keep the columns up to here in sight, and back", show=False),
        Binding("r", "reset", "all columns as they are stored", show=False),
    ]

    def __init__(
        self,
        names: Sequence[str],
        types: Sequence[str],
        arrangement: Arrangement,
        column: int,
        changed: Callable[[], None],
    ) -> None:
        super().__init__()
        self._arrangement, self._changed = arrangement, changed
        self._lines = ColumnLines(names, types, arrangement)
        self._lines.cursor = arrangement.order.index(column)

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content("Columns")
            box.border_subtitle = Content(
                "space shows, hides · J K move · F keeps in sight · r all back · esc"
            )
            yield self._lines

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        self._lines.move(move)

    def _tell(self) -> None:
        self._lines.reset()
        self._changed()

    def action_flip(self) -> None:
        """Hides a column or shows it again; the last one stays."""
        if self._arrangement.toggle(self._lines.column):
            self._tell()

    def action_shift(self, by: int) -> None:
        """Moves a column."""
        column = self._lines.column
        self._arrangement.move(column, by)
        self._lines.go(self._arrangement.order.index(column))
        self._tell()

    def action_freeze(self) -> None:
        """Keeps the columns up to this one in sight, or lets them go."""
        self._arrangement.freeze(self._lines.column)
        self._tell()

    def action_reset(self) -> None:
        """All columns as they are stored."""
        self._arrangement.reset()
        self._tell()

    def action_go(self) -> None:
        """Goes to the column."""
        self.dismiss(self._lines.column)
