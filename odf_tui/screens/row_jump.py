"""Going to a row by its offset, its number or its time."""

from __future__ import annotations

import re
from collections.abc import Sequence
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

from odf_engine.errors import OdfError, UsageError
from odf_tui.humane import count, said
from odf_tui.screens.dialogs import Dialog
from odf_tui.source import RowWindow
from odf_tui.widgets.lines import Paragraphs, Span
from odf_tui.windows import StoredWindow, read_part

_NUMBER: Final = re.compile(r"[\d\s,_.]*\d")
_DAY: Final = re.compile(r"(\d{4})-(\d\d?)(?:-(\d\d?))?(?:[T ](\d\d?)(?::(\d\d)(?::(\d\d)(?:\.\d+)?)?)?)?Z?")


class Spot(msgspec.Struct, frozen=True):
    """Where to go: an offset, a row from 0, a part of all rows in percent, or a moment."""

    offset: int | None = None
    row: int | None = None
    percent: float | None = None
    moment: datetime | None = None


def parse(text: str) -> Spot:
    """What somebody typed: ``1200`` an offset, ``#1200`` a row, ``50%``, ``2024-03-01 14:00`` a time.

    Raises:
        UsageError: it is none of these.
    """
    text = text.strip()
    bare = re.sub(r"[\s,_.]", "", text.lstrip("#").rstrip("%"))
    if text.startswith("#") and bare.isdigit():
        return Spot(row=int(bare) - 1)
    if text.endswith("%") and re.fullmatch(r"\d+([.,]\d+)?\s*%", text):
        return Spot(percent=min(float(text.rstrip("% ").replace(",", ".")), 100.0))
    if found := _DAY.fullmatch(text):
        year, month, day, hour, minute, second = (int(part) if part else 0 for part in found.groups())
        try:
            start = datetime(year, month, day if found[3] else 1, hour % 24, minute, second, tzinfo=UTC)
            return Spot(moment=start + timedelta(days=hour // 24))
        except (ValueError, OverflowError) as error:
            raise UsageError(f"there is no such day or time: {error}") from None
    if _NUMBER.fullmatch(text):
        return Spot(offset=int(bare))
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
    lines.append(_line("#1200", "row", f"1 … {count(rows)}"))
    lines.append(_line("50%", "part of all rows", "0 … 100"))
    return lines


def _text(window: RowWindow, row: int, column: int) -> str:
    from odf_tui.widgets.cells import texts

    table, gaps = read_part(window, row, 1, [column])
    text = None if gaps or not table.num_rows else texts(table.column(0))[0]
    return "?" if text is None else count(int(text)) if text.isdigit() else text


def _line(hint: str, name: str, ends: str) -> list[Span]:
    return [(f" {hint:<18}", "key"), (f"{name:<17}", "name"), (ends, "muted")]


def find(window: RowWindow, spot: Spot) -> int:
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
            raise UsageError(f"there is no row with offset {count(spot.offset)}")
        return found
    assert spot.moment is not None
    worker = get_current_worker()
    found = window.row_at_time(spot.moment, lambda: worker.is_cancelled)
    if found is None:
        raise UsageError(f"there is no row at or after {spot.moment:%Y-%m-%d %H:%M:%S}")
    return found


def _there(row: int, rows: int) -> int:
    if not 0 <= row < rows:
        raise UsageError(f"there is no row {count(row + 1)}: the rows are 1 to {count(rows)}")
    return row


class RowJump(Dialog[int]):
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
            yield Paragraphs([[(" …", "muted")]] * 4)
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
            self.post_message(self.Found(None, said(error)))

    @on(Limits)
    def _show_limits(self, message: Limits) -> None:
        self._limits = message.lines
        self._show()

    def _show(self) -> None:
        wrong: list[Sequence[Span]] = [[(f" {self._wrong}", "bad")]] if self._wrong else []
        self.query_one(Paragraphs).set([*self._limits, *wrong])

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

    def _find(self, spot: Spot) -> None:
        worker = get_current_worker()
        try:
            message = self.Found(find(self._window, spot))
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            message = self.Found(None, said(error))
        if not worker.is_cancelled:
            self.post_message(message)

    @on(Found)
    def _found(self, message: Found) -> None:
        if message.row is None:
            self._say(message.error)
        else:
            self.dismiss(message.row)
