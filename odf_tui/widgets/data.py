"""Pane 3: the rows of a dataset, all slices as one table, in their order or another, all or some of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from textual import on
from textual.message import Message
from textual.worker import get_current_worker

from odf_tui.humane import count, plain, said, shorten
from odf_tui.messages import Notice
from odf_tui.widgets.chunks import open_window
from odf_tui.widgets.finding import TELL_SECONDS, FindingPane
from odf_tui.widgets.views import View
from odf_tui.windows import goes_on

MATCHES: Final = 5000

TESTS: Final = ("equal", "other", "less", "greater", "null", "filled")


def condition(test: str, name: str, value: str) -> str:
    """One of :data:`TESTS` in words."""
    value = shorten(value, 24)
    words = {"equal": f"is {value}", "other": f"is not {value}", "less": f"< {value}",
             "greater": f"> {value}", "null": "has no value", "filled": "has a value"}  # fmt: skip
    return f"{name} {words[test]}"


class DataPane(FindingPane):
    """The preview. Sorting and keeping some rows look at what is loaded, and say so: see ``derived.py``."""

    @dataclass
    class Derived(Message):
        """Another table was made of what is shown, to be put in front of it (or of what that was made of)."""

        serial: int
        view: View | None
        replaces: View | None

    @dataclass
    class Progress(Message):
        """So many rows were looked at."""

        serial: int
        looked: int

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self._making = 0
        self._busy_making = False

    def copied(self) -> tuple[str, str] | None:
        """The cell under the cursor, as it is shown."""
        text = self.view.value(self.view.cursor, self.view.column) if self.view.count() else None
        return None if text is None else ("cell", text)

    def halt(self) -> bool:
        """Stops what is being looked for or made; whether there was something."""
        there = self._busy_making
        self._making += 1
        self._busy_making = False
        self.workers.cancel_group(self, "make")
        return super().halt() or there

    def sort(self, *, down: bool) -> None:
        """Sorts what is loaded by the column under the cursor; what is sorted already is sorted anew."""
        front, column = self.front_view, self.view.column
        replaces = (
            front if front is not None and front.kind == "sorted" and front.source is not None else None
        )
        opened = replaces.source if replaces is not None else self.view.opened
        if opened is None:
            return
        cursor = replaces.below[0] if replaces is not None else self.view.cursor
        of = replaces.of if replaces is not None else self._of()
        below = replaces.below if replaces is not None else (self.view.cursor, column)
        how = "greatest first" if down else "least first"
        note = f"by {opened.columns.names[column]}, {how}"
        rows = opened.window.row_count

        def make(serial: int) -> View:
            from odf_tui.widgets.derived import PickedWindow, loaded, sorted_rows

            start, stop = loaded(rows, cursor)
            numbers = sorted_rows(opened.window, start, stop, column, down=down)
            shown = open_window(PickedWindow(opened.window, numbers))
            words = of or _range(start, stop, rows)
            return View(shown, f"sorted: {words}", note, "sorted", below, words, opened)

        self.tell_below("sorting …")
        self._make(make, replaces)

    def keep(self, test: str) -> None:
        """Keeps the loaded rows that pass a test of :data:`TESTS` against the cell under the cursor."""
        opened, row, column = self.view.opened, self.view.cursor, self.view.column
        if opened is None:
            return
        of, rows = self._of(), opened.window.row_count
        note = condition(test, opened.columns.names[column], self.view.value(row, column) or "")

        def make(serial: int) -> View:
            from odf_tui.widgets.derived import PickedWindow, kept_rows, loaded

            start, stop = loaded(rows, row)
            numbers = kept_rows(opened.window, start, stop, column, test, row)
            shown = open_window(PickedWindow(opened.window, numbers))
            words = f"{count(len(numbers))} of {of or _range(start, stop, rows)}"
            return View(shown, f"kept: {words}", note, "kept", (row, column), words)

        self.tell_below("looking …")
        self._make(make, None)

    def keep_found(self) -> None:
        """Keeps the rows, of all rows, that hold the text that is looked for."""
        opened, text = self.view.opened, self.filter
        if opened is None or not text:
            return
        columns, below = self.view.arrangement.shown, (self.view.cursor, self.view.column)
        rows, of = opened.window.row_count, self._of()

        def make(serial: int) -> View | None:
            import pyarrow as pa

            from odf_tui.widgets.derived import PickedWindow, search

            worker, told = get_current_worker(), time.monotonic()
            found: list[pa.Array] = []
            for matches, looked in search(opened.window, text, columns, MATCHES):
                found = matches
                if worker.is_cancelled:
                    return None
                if time.monotonic() - told > TELL_SECONDS:
                    told = time.monotonic()
                    self.post_message(self.Progress(serial, looked))
            numbers = pa.concat_arrays(found) if found else pa.array([], pa.int64())
            first = "the first " if len(numbers) == MATCHES else ""
            words = f"{first}{count(len(numbers))} of {of or count(rows) + ' rows'}"
            shown = open_window(PickedWindow(opened.window, numbers))
            return View(shown, f"kept: {words}", f"rows with {plain(text)}", "kept", below, words)

        self.tell_below("looking …")
        self._make(make, None)

    def among_all(self) -> bool:
        """Goes to the row under the cursor among all rows of the dataset; whether it is one of them."""
        row, column = self._row_of_base(), self.view.column
        if row is None:
            return False
        self.leave_to_time()
        self.view.go_centred(row)
        self.view.go_to(row, column)
        return True

    def _row_of_base(self) -> int | None:
        front, at = self.front_view, self.time_view
        opened = at.opened if at is not None else self._opened
        if front is None or front is at or opened is None or not self.view.count():
            return None
        from odf_tui.widgets.derived import PickedWindow  # Arrow is here by now: such a view was made

        window = front.opened.window
        if isinstance(window, PickedWindow) and (
            window.base is opened.window or goes_on(window.base, opened.window)
        ):
            return window.numbers[self.view.cursor].as_py()
        return None

    def _of(self) -> str:
        """Which rows the front view has, when it was made of others."""
        return self.front_view.of if self.front_view is not None else ""

    def _make(self, make: Callable[[int], View | None], replaces: View | None) -> None:
        self.halt()
        serial = self._making
        self._busy_making = True

        def work(serial: int) -> None:
            try:
                view = make(serial)
            except Exception as error:  # whatever it is, it is shown, and the screen lives on
                self.post_message(Notice(said(error), "bad"))
                view = None
            self.post_message(self.Derived(serial, view, replaces))

        self.run_worker(partial(work, serial), thread=True, exclusive=True, group="make", name="make")

    @on(Progress)
    def _progress(self, message: Progress) -> None:
        """Shows how far it is."""
        message.stop()
        if message.serial == self._making:
            rows = count(self.view.count())
            self.tell_below(f"looking: {count(message.looked)} of {rows} rows · esc stops")

    @on(Derived)
    def _derived(self, message: Derived) -> None:
        """Shows what was made."""
        message.stop()
        if message.serial != self._making:
            return
        self._busy_making = False
        if message.view is None:
            self.tell_place()
            return
        if message.replaces is not None and message.replaces is self.front_view:
            self._views.pop()
        column = self.view.column
        self.put(message.view)
        self.view.go_to(0, column)


def _range(start: int, stop: int, rows: int) -> str:
    """Which rows are loaded, in words."""
    return f"rows {count(start + 1)}–{count(stop)} of {count(rows)}"
