"""Dialogs about rows: one row, go to a row, arrange columns, choose key columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar, Final

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input
from textual.worker import get_current_worker

from odf_engine.api.readers.row_window import RowWindow, StoredWindow, read_part
from odf_engine.api.text import format_count, printable
from odf_engine.errors import OdfError, UsageError
from odf_tui.text.format import NULL, Span, error_line, fit_width, wrapped
from odf_tui.text.row_text import Record, Value
from odf_tui.text.values import column_texts
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog
from odf_tui.widgets.line_view import LineView, StaticLines, WrappedLines
from odf_tui.widgets.row_table import ColumnArrangement


class ColumnLines(LineView):
    """The list of all columns in their order, with the hidden ones."""

    def __init__(self, names: Sequence[str], types: Sequence[str], arrangement: ColumnArrangement) -> None:
        super().__init__(id="columns")
        self.active = True
        self._names, self._types, self._arrangement = names, types, arrangement

    def on_mount(self) -> None:
        """Show the list."""
        self.reset()
        self.show(self.cursor)

    def count(self) -> int:
        """Return the number of columns."""
        return len(self._arrangement.order)

    @property
    def column(self) -> int:
        """The number of the column under the cursor."""
        return self._arrangement.order[self.cursor]

    def spans(self, index: int) -> Sequence[Span]:
        """Return a line: whether the column is visible, its name, its type, and whether it is frozen."""
        column = self._arrangement.order[index]
        hidden = column in self._arrangement.hidden
        stays = "frozen" if index < self._arrangement.frozen else ""
        room = max(self.room.width - 36, 12)
        return [
            (" ✗ " if hidden else " ✓ ", "muted" if hidden else "good"),
            (fit_width(self._names[column], room), "muted" if hidden else "name"),
            (" " + fit_width(self._types[column], 16), "muted"),
            (f" {stays or ('hidden' if hidden else ''):<15}", "title" if stays else "muted"),
        ]


class ColumnsDialog(Dialog[int]):
    """Arranges columns. Each change is applied immediately. Returns the column to go to.

    Args:
        names, types: names and types of all columns.
        arrangement: the arrangement to change.
        column: the column under the cursor.
        changed: called after each change.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "go", "go to this column", show=False),
        *MOVE_KEYS,
        Binding("space,H", "toggle_column", "show or hide the column", show=False),
        Binding("J,greater_than_sign", "shift(1)", "move the column forward", show=False),
        Binding("K,less_than_sign", "shift(-1)", "move the column backward", show=False),
        Binding("F", "freeze", "freeze the columns up to here, or unfreeze them", show=False),
        Binding("r", "reset", "reset all columns", show=False),
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
        """Yield the list."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content("Columns")
            box.border_subtitle = Content("space shows, hides · J K move · F freezes · r resets · esc closes")
            yield self._lines

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._lines.move(move)

    def _update(self) -> None:
        self._lines.reset()
        self._changed()

    def action_toggle_column(self) -> None:
        """Hide or show a column. The last visible column stays."""
        if self._arrangement.toggle(self._lines.column):
            self._update()

    def action_shift(self, by: int) -> None:
        """Move a column."""
        column = self._lines.column
        self._arrangement.move(column, by)
        self._lines.go(self._arrangement.order.index(column))
        self._update()

    def action_freeze(self) -> None:
        """Freeze the columns up to this one, or unfreeze them."""
        self._arrangement.freeze(self._lines.column)
        self._update()

    def action_reset(self) -> None:
        """Restore the stored order, and show all columns."""
        self._arrangement.reset()
        self._update()

    def action_go(self) -> None:
        """Close the dialog with the column."""
        self.dismiss(self._lines.column)


class KeyLines(LineView):
    """The list of columns, with a mark on key columns."""

    def __init__(self, columns: Sequence[tuple[str, str]], key: Sequence[str]) -> None:
        super().__init__(id="key-columns")
        self.active = True
        self.columns = columns
        self.key = list(key)

    def on_mount(self) -> None:
        """Show the list."""
        self.reset()

    def count(self) -> int:
        """Return the number of columns."""
        return len(self.columns)

    def toggle(self) -> None:
        """Add the column under the cursor to the key, or remove it."""
        name = self.columns[self.cursor][0]
        if name in self.key:
            self.key.remove(name)
        else:
            self.key.append(name)
        self.refresh()

    def spans(self, index: int) -> Sequence[Span]:
        """Return a line."""
        name, kind = self.columns[index]
        in_key = name in self.key
        return [
            (" ✓ " if in_key else " · ", "good" if in_key else "muted"),
            (fit_width(printable(name), max(self.room.width - 24, 10)), "name" if in_key else ""),
            (" " + fit_width(printable(kind), 18), "muted"),
        ]


class KeyColumnsDialog(Dialog[list[str]]):
    """Selects the columns of a key. Returns their names.

    Args:
        title: title of the dialog.
        columns: names and types.
        key: the names that are selected first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "accept", "use the selected columns", show=False),
        Binding("space,x", "choose", "select or deselect the column", show=False),
        *MOVE_KEYS,
    ]

    def __init__(self, title: str, columns: Sequence[tuple[str, str]], key: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = KeyLines(columns, key)

    def compose(self) -> ComposeResult:
        """Yield the explanation and the columns."""
        with Vertical(classes="dialog key-choice") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("space selects · ⏎ shows the state · esc closes")
            about = "Shows the latest row of each key, without retracted keys."
            yield StaticLines([[(f" {about}", "muted")], [(" Which columns identify a row?", "")]])
            yield self._lines

    def on_line_view_opened(self) -> None:
        """Toggle the column that was double-clicked."""
        self._lines.toggle()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._lines.move(move)

    def action_choose(self) -> None:
        """Add the column to the key, or remove it."""
        self._lines.toggle()

    def action_accept(self) -> None:
        """Close the dialog with the selected columns; with the one under the cursor if none is selected."""
        if not self._lines.key:
            self._lines.toggle()
        self.dismiss(self._lines.key)


_WIDEST_NAME: Final = 28
_WIDEST_TYPE: Final = 18
_MIN_ROOM: Final = 24


class RecordText(LineView):
    """The values of one row, wrapped into lines. The cursor is on a value."""

    def __init__(self, record: Record, column: int) -> None:
        super().__init__(id="values")
        self.active = True
        self.at = 0
        self._record = record
        self._lines: list[tuple[int, list[Span]]] = []
        self._firsts: list[int] = []
        self._start_column = column

    @property
    def value(self) -> Value | None:
        """The value under the cursor."""
        return self._record.values[self.at] if self._record.values else None

    def set(self, record: Record) -> None:
        """Show another row. The cursor stays on its column."""
        self._record = record
        self._wrap()

    def on_mount(self) -> None:
        """Show the row, with the cursor on the requested column."""
        columns = [value.column for value in self._record.values]
        self.at = columns.index(self._start_column) if self._start_column in columns else 0
        self._wrap()

    def on_resize(self) -> None:
        """Wrap the lines for the new width."""
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
            for line in _value_lines(value, room):
                self._lines.append((at, [*head, *line]))
                head = [(" " * indent, "")]
        self.reset()
        self._show_value()

    def count(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def style_of(self, index: int) -> str:
        """Return the style of the lines of the value under the cursor."""
        return "idle" if self._lines[index][0] == self.at else ""

    def spans(self, index: int) -> Sequence[Span]:
        """Return a line. The name of the value under the cursor is highlighted."""
        at, spans = self._lines[index]
        if at == self.at and index == self._firsts[at]:
            return [(spans[0][0], "cursor"), *spans[1:]]
        return spans

    def move(self, move: str) -> None:
        """Move from value to value; page keys scroll."""
        last = len(self._firsts) - 1
        steps = {"down": self.at + 1, "above": self.at - 1, "first": 0, "last": last}
        if move in steps:
            self.go_to(max(0, min(steps[move], last)))
        elif move in ("page_down", "page_up"):
            page = max(self.room.height - 1, 1) * (1 if move == "page_down" else -1)
            self.scroll_to(y=self.scroll_offset.y + page, animate=False)

    def go_to(self, at: int) -> None:
        """Put the cursor on a value."""
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
        """Scroll to the cursor."""
        self._show_value()

    def click_at(self, x: int, y: int) -> bool:
        """Put the cursor on the clicked value."""
        line = y + int(self.scroll_offset.y)
        if not 0 <= line < len(self._lines):
            return False
        self.go_to(self._lines[line][0])
        return True


def _value_lines(value: Value, room: int) -> list[list[Span]]:
    """Return the lines of a value."""
    if value.text is None:
        return [[(NULL, "muted")]]
    return [part for line in value.lines for part in _wrap_line(line, room)] or [[]]


def _wrap_line(line: str, room: int) -> list[list[Span]]:
    """Wrap a line of any length."""
    pieces: list[list[Span]] = []
    line = printable(line)
    while len(line) > room * 8:  # very long lines are truncated: wrapping them at words is slow
        pieces.append([(line[:room], "")])
        line = line[room:]
    return pieces + wrapped([(line, "")], room)


class RecordDialog(Dialog[int]):
    """Shows a row with all values in full. Returns the number of the column under the cursor.

    Args:
        record: the row.
        column: the column under the cursor.
        step: called with the distance to the row to show next.
        copy: called with a label and the text to copy.
        links: columns with links to objects.
        save: called with the link to an object that is to be saved.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "return to the table, at this column", show=False),
        Binding("j,down", "move('down')", "go to the next column", show=False),
        Binding("k,up", "move('above')", "go to the previous column", show=False),
        Binding("g,home", "move('first')", "go to the first column", show=False),
        Binding("G,end", "move('last')", "go to the last column", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "move('page_down')", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
        Binding("J,right_square_bracket,l,right", "step(1)", "go to the next row", show=False),
        Binding("K,left_square_bracket,h,left", "step(-1)", "go to the previous row", show=False),
        Binding("y", "copy", "copy the value", show=False),
        Binding("Y", "copy_all", "copy all names and values", show=False),
        Binding("o", "save_object", "save the linked object", show=False),
    ]

    def __init__(
        self,
        record: Record,
        column: int,
        step: Callable[[int], None],
        copy: Callable[[str, str], None],
        links: Collection[str] = (),
        save: Callable[[str], None] = lambda link: None,
    ) -> None:
        super().__init__()
        self._record, self._column, self._step, self._copy = record, column, step, copy
        self._links, self._save = links, save

    @property
    def values(self) -> RecordText:
        """The lines."""
        return self.query_one(RecordText)

    def compose(self) -> ComposeResult:
        """Yield the lines."""
        with Vertical(classes="dialog reader"):
            yield RecordText(self._record, self._column)

    def on_mount(self) -> None:
        """Show the title."""
        self._show_title()

    def show(self, record: Record) -> None:
        """Show another row."""
        self._record = record
        self.values.set(record)
        self._show_title()

    def _show_title(self) -> None:
        box = self.query_one(".dialog")
        box.border_title = Content(
            f"Row {format_count(self._record.row + 1)} of {format_count(self._record.rows)}"
        )
        keys = "j k columns · J K rows · y copies value · Y copies all · esc closes"
        box.border_subtitle = Content(f"o saves object · {keys}" if self._links else keys)

    def action_move(self, move: str) -> None:
        """Move to another column."""
        self.values.move(move)

    def action_step(self, by: int) -> None:
        """Request another row."""
        self._step(by)

    def action_copy(self) -> None:
        """Copy the value under the cursor."""
        value = self.values.value
        if value is not None:
            self._copy(value.name, value.text or "")

    def action_copy_all(self) -> None:
        """Copy all names and values."""
        lines = (f"{value.name}\t{value.text or ''}" for value in self._record.values)
        self._copy("row", "\n".join(lines) + "\n")

    def action_save_object(self) -> None:
        """Save the object that the value under the cursor links to."""
        value = self.values.value
        if value is not None and value.text and value.name in self._links:
            self._save(value.text)

    def action_leave(self) -> None:
        """Close the dialog with the column under the cursor."""
        value = self.values.value
        self.dismiss(value.column if value is not None else self._column)


_NUMBER: Final = re.compile(r"[\d\s,_.]*\d")
_DAY: Final = re.compile(r"(\d{4})-(\d\d?)(?:-(\d\d?))?(?:[T ](\d\d?)(?::(\d\d)(?::(\d\d)(?:\.\d+)?)?)?)?Z?")


class RowTarget(msgspec.Struct, frozen=True):
    """A row to go to, given as an offset, a number from 0, a percentage of all rows or an event time."""

    offset: int | None = None
    row: int | None = None
    percent: float | None = None
    moment: datetime | None = None


def parse_row_target(text: str) -> RowTarget:
    """Parse a typed target: ``1200`` is an offset, ``#1200`` a row, ``50%``, ``2024-03-01 14:00`` a time.

    Raises:
        UsageError: the text is something else.
    """
    text = text.strip()
    bare = re.sub(r"[\s,_.]", "", text.lstrip("#").rstrip("%"))
    if text.startswith("#") and bare.isdigit():
        return RowTarget(row=int(bare) - 1)
    if text.endswith("%") and re.fullmatch(r"\d+([.,]\d+)?\s*%", text):
        return RowTarget(percent=min(float(text.rstrip("% ").replace(",", ".")), 100.0))
    if match := _DAY.fullmatch(text):
        year, month, day, hour, minute, second = (int(part) if part else 0 for part in match.groups())
        try:
            start = datetime(year, month, day if match[3] else 1, hour % 24, minute, second, tzinfo=UTC)
            return RowTarget(moment=start + timedelta(days=hour // 24))
        except (ValueError, OverflowError) as error:
            raise UsageError(f"invalid date or time: {error}") from None
    if _NUMBER.fullmatch(text):
        return RowTarget(offset=int(bare))
    raise UsageError("not a number or a time")


def row_limits(window: RowWindow) -> list[Sequence[Span]]:
    """Return lines with the first and the last valid target of each kind. Reads rows."""
    rows = window.row_count
    lines: list[Sequence[Span]] = []
    if isinstance(window, StoredWindow):
        names, system = window.columns.names, window.system_columns
        for name, hint in ((system[0], "1200"), (system[3], "2024-03-01 14:00")):
            if name in names:
                ends = [_text(window, row, names.index(name)) for row in (0, rows - 1)]
                lines.append(_line(hint, name, f"{ends[0]} … {ends[1]}"))
    lines.append(_line("#1200", "row", f"1 … {format_count(rows)}"))
    lines.append(_line("50%", "percentage", "0 … 100"))
    return lines


def _text(window: RowWindow, row: int, column: int) -> str:
    table, gaps = read_part(window, row, 1, [column])
    text = None if gaps or not table.num_rows else column_texts(table.column(0))[0]
    return "?" if text is None else format_count(int(text)) if text.isdigit() else text


def _line(hint: str, name: str, ends: str) -> list[Span]:
    return [(f" {hint:<18}", "key"), (f"{name:<17}", "name"), (ends, "muted")]


def find_row(window: RowWindow, target: RowTarget) -> int:
    """Return the row of a target. Runs in the thread of a worker that may be cancelled.

    Raises:
        UsageError: there is no such row.
    """
    rows = window.row_count
    if target.percent is not None:
        return min(int(rows * target.percent / 100), rows - 1)
    if target.row is not None:
        return _check_row(target.row, rows)
    if not isinstance(window, StoredWindow):
        if target.offset is None:
            raise UsageError("the rows are not ordered by time: enter a row number")
        return _check_row(target.offset - 1, rows)
    if target.offset is not None:
        row = window.row_of_offset(target.offset)
        if row is None:
            raise UsageError(f"there is no row with offset {format_count(target.offset)}")
        return row
    assert target.moment is not None
    worker = get_current_worker()
    row = window.row_at_time(target.moment, lambda: worker.is_cancelled)
    if row is None:
        raise UsageError(f"there is no row at or after {target.moment:%Y-%m-%d %H:%M:%S}")
    return row


def _check_row(row: int, rows: int) -> int:
    if not 0 <= row < rows:
        raise UsageError(f"row {format_count(row + 1)} does not exist: rows are 1 to {format_count(rows)}")
    return row


class GoToRowDialog(Dialog[int]):
    """Reads a target, and shows the valid ones. Returns the number of the row."""

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "close", show=False)]

    @dataclass
    class Found(Message):
        """Posted with the row, or with the reason why it is missing."""

        row: int | None
        error: str = ""

    @dataclass
    class Limits(Message):
        """Posted with the lines of valid targets."""

        lines: list[Sequence[Span]]

    def __init__(self, window: RowWindow) -> None:
        super().__init__()
        self._window = window
        self._limits: list[Sequence[Span]] = []
        self._problem = ""

    def compose(self) -> ComposeResult:
        """Yield the valid targets and the input."""
        with Vertical(classes="dialog oath") as box:
            box.border_title = Content("Go to a row")
            box.border_subtitle = Content("⏎ goes there · esc closes")
            yield WrappedLines([[(" …", "muted")]] * 4)
            line = Input(placeholder="offset, #row, time or %", compact=True)
            line.cursor_blink = False
            yield line

    def on_mount(self) -> None:
        """Read the valid targets in a thread."""
        self.run_worker(self._read_limits, thread=True, group="limits", name="limits")

    def _read_limits(self) -> None:
        try:
            self.post_message(self.Limits(row_limits(self._window)))
        except Exception as error:  # every error is shown, and the screen stays open
            self.post_message(self.Found(None, error_line(error)))

    @on(Limits)
    def _show_limits(self, message: Limits) -> None:
        self._limits = message.lines
        self._show()

    def _show(self) -> None:
        problem: list[Sequence[Span]] = [[(f" {self._problem}", "bad")]] if self._problem else []
        self.query_one(WrappedLines).set([*self._limits, *problem])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Find the row in a thread."""
        event.stop()
        try:
            target = parse_row_target(event.value)
        except OdfError as error:
            self._show_problem(str(error))
            return
        self._show_problem("")
        self.run_worker(partial(self._find, target), thread=True, exclusive=True, group="jump", name="jump")

    def _show_problem(self, problem: str) -> None:
        self._problem = problem
        self._show()

    def _find(self, target: RowTarget) -> None:
        worker = get_current_worker()
        try:
            message = self.Found(find_row(self._window, target))
        except Exception as error:  # every error is shown, and the screen stays open
            message = self.Found(None, error_line(error))
        if not worker.is_cancelled:
            self.post_message(message)

    @on(Found)
    def _found(self, message: Found) -> None:
        if message.row is None:
            self._show_problem(message.error)
        else:
            self.dismiss(message.row)
