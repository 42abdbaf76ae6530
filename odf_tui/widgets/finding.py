"""Finding a text in the rows of pane 3: ``/`` and on with ``n`` and ``N``, all rows, in a thread."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from textual import on
from textual.message import Message
from textual.worker import get_current_worker

from odf_tui.humane import count, said
from odf_tui.messages import Notice
from odf_tui.widgets.views import ViewsPane

TELL_SECONDS: Final = 0.5


class FindingPane(ViewsPane):
    """Its filter is a text that is looked for: the cursor goes from one row that holds it to the next."""

    @dataclass
    class Looked(Message):
        """A search has come so far, or to its end: with the row and column that it found, if any."""

        serial: int
        looked: int
        place: tuple[int, int] | None
        done: bool
        error: str = ""

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self._origin = 0
        self._left_from: int | None = None
        self._back = False
        self._serial = 0
        self._looking = False
        self._waiting: list[bool] = []  # what was asked for while it looks: whether back

    def begin_finding(self) -> None:
        """A text is about to be typed: it is looked for from the cursor on."""
        self._origin = self.view.cursor

    def set_filter(self, text: str) -> None:
        """Looks for ``text``; empty: for nothing any more."""
        if text == self.filter:
            return
        super().set_filter(text)
        self.view.look_for(text.casefold())
        if text:
            self._find(self._origin, None, back=False)
        else:
            self.halt()
            self.tell_place()

    def find_again(self, *, back: bool) -> None:
        """Goes to the next row that holds the text, or to the one before."""
        rows, cursor = self.view.count(), self.view.cursor
        if self._looking:
            self._waiting.append(back)
        elif rows and self.filter:
            self._find((cursor + (-1 if back else 1)) % rows, cursor, back=back)

    def halt(self) -> bool:
        """Stops looking; whether it did."""
        there = self._looking
        self._serial += 1
        self._looking, self._waiting = False, []
        self.workers.cancel_group(self, "find")
        return there or super().halt()

    def _find(self, start: int, left: int | None, *, back: bool) -> None:
        self.halt()
        opened, text, serial = self.view.opened, self.filter, self._serial
        if opened is None or not self.view.count():
            return
        window, columns = opened.window, self.view.arrangement.shown
        self._looking, self._left_from, self._back = True, left, back

        def look() -> None:
            from odf_tui.widgets.cells import trim
            from odf_tui.widgets.derived import find

            worker, told = get_current_worker(), time.monotonic()
            place: tuple[int, int] | None = None
            looked = 0
            try:
                for found, looked in find(window, text, start, columns, back=back):
                    place = found
                    if worker.is_cancelled:
                        return
                    if time.monotonic() - told > TELL_SECONDS:
                        told = time.monotonic()
                        self.post_message(self.Looked(serial, looked, None, False))
            except Exception as error:  # whatever it is, it is shown, and the screen lives on
                self.post_message(self.Looked(serial, looked, None, True, said(error)))
            else:
                self.post_message(self.Looked(serial, looked, place, True))
            finally:
                trim()

        self.run_worker(look, thread=True, exclusive=True, group="find", name="find")

    @on(Looked)
    def _looked(self, message: Looked) -> None:
        """Shows how far a search is, or what it has found."""
        message.stop()
        if message.serial != self._serial:
            return
        rows = count(self.view.count())
        if not message.done:
            self.tell_below(f"looking: {count(message.looked)} of {rows} rows · esc stops")
            return
        waiting, self._looking, self._waiting = self._waiting, False, []
        if message.place is None:
            none = Notice(f"none of {rows} rows holds {self.filter}", "warn")
            self.post_message(Notice(message.error, "bad") if message.error else none)
            self.tell_place()
            return
        row, column = message.place
        self.view.go_centred(row)
        self.view.go_to(row, column)
        self.tell_place()
        if self._left_from is not None:
            self._say_where(row, self._left_from)
        if waiting:
            self.find_again(back=waiting[0])
            self._waiting = waiting[1:]

    def _say_where(self, row: int, left: int) -> None:
        """Says when the search went round."""
        if row == left:
            self.post_message(Notice("no other row holds it", "warn"))
        elif (row > left) == self._back:
            self.post_message(
                Notice("on from the last row" if self._back else "on from the first row", "warn")
            )
