"""Dialogs about rows: one record, go to a row, arrange columns, choose key columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input
from textual.worker import get_current_worker

from odf_engine.errors import OdfError, UsageError
from odf_tui.gateway.row_window import RowWindow, StoredWindow, read_part
from odf_tui.text.format import NULL, Span, error_line, fit_width, format_count, printable, wrapped
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog
from odf_tui.widgets.line_view import LineView, StaticLines, WrappedLines
from odf_tui.widgets.row_table import ColumnArrangement

if TYPE_CHECKING:
    from odf_tui.gateway.row_text import Record, Value


class ColumnLines(LineView):
    """The columns in their order, hidden ones too."""

    def __init__(self, names: Sequence[str], types: Sequence[str], arrangement: ColumnArrangement) -> None:
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
            (fit_width(self._names[column], room), "muted" if hidden else "name"),
            (" " + fit_width(self._types[column], 16), "muted"),
            (f" {stays or ('hidden' if hidden else ''):<15}", "title" if stays else "muted"),
        ]


class ColumnsDialog(Dialog[int]):
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
        arrangement: ColumnArrangement,
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
            (fit_width(printable(name), max(self.room.width - 24, 10)), "name" if there else ""),
            (" " + fit_width(printable(kind), 18), "muted"),
        ]


class KeyColumnsDialog(Dialog[list[str]]):
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
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("space chooses · ⏎ shows the state · esc closes")
            about = "The newest row of each key stays, unless it takes the key away."
            yield StaticLines([[(f" {about}", "muted")], [(" Which columns tell rows apart?", "")]])
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


_WIDEST_NAME: Final = 28
_WIDEST_TYPE: Final = 18
_MIN_ROOM: Final = 24


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
        room = max(self.room.width - indent - 1, _MIN_ROOM)
        self._lines, self._firsts = [], []
        for at, value in enumerate(values):
            self._firsts.append(len(self._lines))
            head: list[Span] = [
                (f" {fit_width(printable(value.name), names)} ", "name"),
                (f" {fit_width(printable(value.type), types)}  ", "muted"),
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

    def scroll_to_cursor(self) -> None:
        """Scrolls to the cursor."""
        self._show_value()

    def click_at(self, x: int, y: int) -> bool:
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
    line = printable(line)
    while len(line) > room * 8:  # wrapping at words is for lines that people read
        pieces.append([(line[:room], "")])
        line = line[room:]
    return pieces + wrapped([(line, "")], room)


class RecordDialog(Dialog[int]):
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
        box.border_title = Content(
            f"Row {format_count(self._record.row + 1)} of {format_count(self._record.rows)}"
        )
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


_NUMBER: Final = re.compile(r"[\d\s,_.]*\d")
_DAY: Final = re.compile(r"(\d{4})-(\d\d?)(?:-(\d\d?))?(?:[T ](\d\d?)(?::(\d\d)(?::(\d\d)(?:\.\d+)?)?)?)?Z?")


class RowTarget(msgspec.Struct, frozen=True):
    """Where to go: an offset, a row from 0, a part of all rows in percent, or a moment."""

    offset: int | None = None
    row: int | None = None
    percent: float | None = None
    moment: datetime | None = None


def parse(text: str) -> RowTarget:
    """What somebody typed: ``1200`` an offset, ``#1200`` a row, ``50%``, ``2024-03-01 14:00`` a time.

    Raises:
        UsageError: it is none of these.
    """
    text = text.strip()
    bare = re.sub(r"[\s,_.]", "", text.lstrip("#").rstrip("%"))
    if text.startswith("#") and bare.isdigit():
        return RowTarget(row=int(bare) - 1)
    if text.endswith("%") and re.fullmatch(r"\d+([.,]\d+)?\s*%", text):
        return RowTarget(percent=min(float(text.rstrip("% ").replace(",", ".")), 100.0))
    if found := _DAY.fullmatch(text):
        year, month, day, hour, minute, second = (int(part) if part else 0 for part in found.groups())
        try:
            start = datetime(year, month, day if found[3] else 1, hour % 24, minute, second, tzinfo=UTC)
            return RowTarget(moment=start + timedelta(days=hour // 24))
        except (ValueError, OverflowError) as error:
            raise UsageError(f"there is no such day or time: {error}") from None
    if _NUMBER.fullmatch(text):
        return RowTarget(offset=int(bare))
    raise UsageError("this is neither a number nor a time")


def limits(window: RowWindow) -> list[Sequence[Span]]:
    """What there is to go to, from the first row to the last; in a thread."""
    rows = window.row_count
    lines: list[Sequence[Span]] = []
    if isinstance(window, StoredWindow):
        names, system = window.columns.names, window.system_columns
        for name, hint in ((system[0], "1200"), (system[3], "2024-03-01 14:00")):
            if name in names:
                ends = [_text(window, row, names.index(name)) for row in (0, rows - 1)]
                lines.append(_line(hint, name, f"{ends[0]} … {ends[1]}"))
    lines.append(_line("#1200", "row", f"1 … {format_count(rows)}"))
    lines.append(_line("50%", "part of all rows", "0 … 100"))
    return lines


def _text(window: RowWindow, row: int, column: int) -> str:
    from odf_tui.text.values import column_texts

    table, gaps = read_part(window, row, 1, [column])
    text = None if gaps or not table.num_rows else column_texts(table.column(0))[0]
    return "?" if text is None else format_count(int(text)) if text.isdigit() else text


def _line(hint: str, name: str, ends: str) -> list[Span]:
    return [(f" {hint:<18}", "key"), (f"{name:<17}", "name"), (ends, "muted")]


def find(window: RowWindow, spot: RowTarget) -> int:
    """The row of a spot; in a worker's thread, which may be cancelled.

    Raises:
        UsageError: there is none.
    """
    rows = window.row_count
    if spot.percent is not None:
        return min(int(rows * spot.percent / 100), rows - 1)
    if spot.row is not None:
        return _there(spot.row, rows)
    if not isinstance(window, StoredWindow):
        if spot.offset is None:
            raise UsageError("these rows are not in the order of their times: a number goes to a row")
        return _there(spot.offset - 1, rows)
    if spot.offset is not None:
        found = window.row_of_offset(spot.offset)
        if found is None:
            raise UsageError(f"there is no row with offset {format_count(spot.offset)}")
        return found
    assert spot.moment is not None
    worker = get_current_worker()
    found = window.row_at_time(spot.moment, lambda: worker.is_cancelled)
    if found is None:
        raise UsageError(f"there is no row at or after {spot.moment:%Y-%m-%d %H:%M:%S}")
    return found


def _there(row: int, rows: int) -> int:
    if not 0 <= row < rows:
        raise UsageError(f"there is no row {format_count(row + 1)}: the rows are 1 to {format_count(rows)}")
    return row


class GoToRowDialog(Dialog[int]):
    """Asks where to go, and says what there is. Ends with a row of the window."""

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    @dataclass
    class Found(Message):
        """The row, or why there is none."""

        row: int | None
        error: str = ""

    @dataclass
    class Limits(Message):
        """What there is to go to."""

        lines: list[Sequence[Span]]

    def __init__(self, window: RowWindow) -> None:
        super().__init__()
        self._window = window
        self._limits: list[Sequence[Span]] = []
        self._wrong = ""

    def compose(self) -> ComposeResult:
        """What there is, and a line to type in."""
        with Vertical(classes="dialog oath") as box:
            box.border_title = Content("Go to a row")
            box.border_subtitle = Content("⏎ goes there · esc closes")
            yield WrappedLines([[(" …", "muted")]] * 4)
            line = Input(placeholder="offset, #row, time or %", compact=True)
            line.cursor_blink = False
            yield line

    def on_mount(self) -> None:
        """Looks what there is to go to."""
        self.run_worker(self._read_limits, thread=True, group="limits", name="limits")

    def _read_limits(self) -> None:
        try:
            self.post_message(self.Limits(limits(self._window)))
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self.post_message(self.Found(None, error_line(error)))

    @on(Limits)
    def _show_limits(self, message: Limits) -> None:
        self._limits = message.lines
        self._show()

    def _show(self) -> None:
        wrong: list[Sequence[Span]] = [[(f" {self._wrong}", "bad")]] if self._wrong else []
        self.query_one(WrappedLines).set([*self._limits, *wrong])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Looks for the row, in a thread."""
        event.stop()
        try:
            spot = parse(event.value)
        except OdfError as error:
            self._say(str(error))
            return
        self._say("")
        self.run_worker(partial(self._find, spot), thread=True, exclusive=True, group="jump", name="jump")

    def _say(self, wrong: str) -> None:
        self._wrong = wrong
        self._show()

    def _find(self, spot: RowTarget) -> None:
        worker = get_current_worker()
        try:
            message = self.Found(find(self._window, spot))
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            message = self.Found(None, error_line(error))
        if not worker.is_cancelled:
            self.post_message(message)

    @on(Found)
    def _found(self, message: Found) -> None:
        if message.row is None:
            self._say(message.error)
        else:
            self.dismiss(message.row)
