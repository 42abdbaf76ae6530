"""One row: a block of lines for each column, its value in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_tui.humane import clip, count, plain
from odf_tui.screens.dialogs import Dialog
from odf_tui.widgets.lines import LineView, Span, wrapped
from odf_tui.windows import NULL

if TYPE_CHECKING:
    from odf_tui.records import Record, Value

_WIDEST_NAME: Final = 28
_WIDEST_TYPE: Final = 18
_LEAST_ROOM: Final = 24


class Values(LineView):
    """The lines of a row; the cursor is on a value."""

    def __init__(self, record: Record, column: int) -> None:
        super().__init__(id="values")
        self.active = True
        self.at = 0
        self._record = record
        self._lines: list[tuple[int, list[Span]]] = []
        self._firsts: list[int] = []
        self._wanted = column

    @property
    def value(self) -> Value | None:
        """The value under the cursor."""
        return self._record.values[self.at] if self._record.values else None

    def set(self, record: Record) -> None:
        """Shows another row; the cursor stays on its column."""
        self._record = record
        self._wrap()

    def on_mount(self) -> None:
        """Shows the row, with the cursor on the column that was asked for."""
        columns = [value.column for value in self._record.values]
        self.at = columns.index(self._wanted) if self._wanted in columns else 0
        self._wrap()

    def on_resize(self) -> None:
        """Breaks the lines anew."""
        self._wrap()

    def _wrap(self) -> None:
        values = self._record.values
        names = min(max((len(value.name) for value in values), default=0), _WIDEST_NAME)
        types = min(max((len(value.type) for value in values), default=0), _WIDEST_TYPE)
        indent = names + types + 5
        room = max(self.room.width - indent - 1, _LEAST_ROOM)
        self._lines, self._firsts = [], []
        for at, value in enumerate(values):
            self._firsts.append(len(self._lines))
            head: list[Span] = [
                (f" {clip(plain(value.name), names)} ", "name"),
                (f" {clip(plain(value.type), types)}  ", "muted"),
            ]
            for line in _shown(value, room):
                self._lines.append((at, [*head, *line]))
                head = [(" " * indent, "")]
        self.reset()
        self._show_value()

    def count(self) -> int:
        """Lines."""
        return len(self._lines)

    def style_of(self, index: int) -> str:
        """Lines of the value under the cursor."""
        return "idle" if self._lines[index][0] == self.at else ""

    def spans(self, index: int) -> Sequence[Span]:
        """A line; the name of the value under the cursor is marked."""
        at, spans = self._lines[index]
        if at == self.at and index == self._firsts[at]:
            return [(spans[0][0], "cursor"), *spans[1:]]
        return spans

    def move(self, move: str) -> None:
        """Goes from value to value; pages scroll."""
        last = len(self._firsts) - 1
        steps = {"down": self.at + 1, "above": self.at - 1, "first": 0, "last": last}
        if move in steps:
            self.go_to(max(0, min(steps[move], last)))
        elif move in ("page_down", "page_up"):
            page = max(self.room.height - 1, 1) * (1 if move == "page_down" else -1)
            self.scroll_to(y=self.scroll_offset.y + page, animate=False)

    def go_to(self, at: int) -> None:
        """Puts the cursor on a value."""
        if at != self.at and self._firsts:
            self.at = at
            self.refresh()
            self._show_value()
            self.post_message(self.Moved(self))

    def _show_value(self) -> None:
        if not self._firsts:
            return
        first = self._firsts[self.at]
        last = (self._firsts[self.at + 1] if self.at + 1 < len(self._firsts) else len(self._lines)) - 1
        self.cursor = first
        self.show(last)
        self.show(first)

    def keep_in_view(self) -> None:
        """Scrolls to the cursor."""
        self._show_value()

    def clicked(self, x: int, y: int) -> bool:
        """Puts the cursor on the value that the mouse points at."""
        line = y + int(self.scroll_offset.y)
        if not 0 <= line < len(self._lines):
            return False
        self.go_to(self._lines[line][0])
        return True


def _shown(value: Value, room: int) -> list[list[Span]]:
    """The lines of a value."""
    if value.text is None:
        return [[(NULL, "muted")]]
    return [part for line in value.lines for part in _pieces(line, room)] or [[]]


def _pieces(line: str, room: int) -> list[list[Span]]:
    """A line in pieces, however long it is."""
    pieces: list[list[Span]] = []
    line = plain(line)
    while len(line) > room * 8:  # wrapping at words is for lines that people read
        pieces.append([(line[:room], "")])
        line = line[room:]
    return pieces + wrapped([(line, "")], room)


class RecordScreen(Dialog[int]):
    """Reads a row, and those before and after it. Ends with the number of the column under the cursor.

    Args:
        step: asks for the row that is so many further.
        copy: copies a text, and says what it is.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "back to the table, to this column", show=False),
        Binding("j,down", "move('down')", "next column", show=False),
        Binding("k,up", "move('above')", "column before", show=False),
        Binding("g,home", "move('first')", "first column", show=False),
        Binding("G,end", "move('last')", "last column", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "move('page_down')", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
        Binding("J,right_square_bracket,l,right", "step(1)", "next row", show=False),
        Binding("K,left_square_bracket,h,left", "step(-1)", "row before", show=False),
        Binding("y", "copy", "copy the value", show=False),
        Binding("Y", "copy_all", "copy all names and values", show=False),
    ]

    def __init__(
        self, record: Record, column: int, step: Callable[[int], None], copy: Callable[[str, str], None]
    ) -> None:
        super().__init__()
        self._record, self._column, self._step, self._copy = record, column, step, copy

    @property
    def values(self) -> Values:
        """The lines."""
        return self.query_one(Values)

    def compose(self) -> ComposeResult:
        """The row."""
        with Vertical(classes="dialog reader"):
            yield Values(self._record, self._column)

    def on_mount(self) -> None:
        """Shows the title."""
        self._tell()

    def show(self, record: Record) -> None:
        """Shows another row."""
        self._record = record
        self.values.set(record)
        self._tell()

    def _tell(self) -> None:
        box = self.query_one(".dialog")
        box.border_title = Content(f"Row {count(self._record.row + 1)} of {count(self._record.rows)}")
        box.border_subtitle = Content("j k columns · J K rows · y value · Y all · esc closes")

    def action_move(self, move: str) -> None:
        """Another column."""
        self.values.move(move)

    def action_step(self, by: int) -> None:
        """Another row."""
        self._step(by)

    def action_copy(self) -> None:
        """Copies the value."""
        value = self.values.value
        if value is not None:
            self._copy(value.name, value.text or "")

    def action_copy_all(self) -> None:
        """Copies all names and values."""
        lines = (f"{value.name}\t{value.text or ''}" for value in self._record.values)
        self._copy("row", "\n".join(lines) + "\n")

    def action_leave(self) -> None:
        """Goes back to the table, to the column that was read."""
        value = self.values.value
        self.dismiss(value.column if value is not None else self._column)
