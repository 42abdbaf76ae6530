"""Pane 3: the rows of a dataset, all slices as one table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.worker import get_current_worker

from odf_tui.humane import count, plain, said
from odf_tui.messages import Notice
from odf_tui.source import RowWindow
from odf_tui.widgets.lines import LineView, Span
from odf_tui.widgets.pane import Pane
from odf_tui.widgets.rows import Opened, RowsView, open_window

if TYPE_CHECKING:
    import pyarrow as pa

MATCHES: Final = 5000
_TELL_SECONDS: Final = 0.5


class View(msgspec.Struct, frozen=True):
    """A table in front of a dataset's rows: part of them, their current state, the result of a query.

    Attributes:
        opened: its rows.
        title: what it is, for the upper border.
        note: what to know about it, for the lower border.
        kind: which part of the workstation made it.
        below: cursor and column of what it covers.
    """

    opened: Opened
    title: str
    note: str
    kind: str
    below: tuple[int, int]


class DataPane(Pane):
    """The preview. Its filter is a search through all rows, in a thread."""

    number = 3
    label = "Data"

    @dataclass
    class Matched(Message):
        """A search has come to an end (with what it found, if anything), or so far."""

        opened: Opened
        text: str
        found: Opened | None
        rows: int
        done: bool

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self.dataset = ""
        self._opened: Opened | None = None
        self._views: list[View] = []

    def compose(self) -> ComposeResult:
        """The table."""
        yield RowsView()

    @property
    def view(self) -> RowsView:
        """The table."""
        return self.query_one(RowsView)

    def say(self, dataset: str, *lines: Sequence[Span]) -> None:
        """Shows words instead of rows."""
        self.dataset, self._opened, self._views = dataset, None, []
        self.workers.cancel_group(self, "search")
        self.view.say(*lines)
        self.tell_below("")
        self.retitle("")

    def show(self, dataset: str, opened: Opened) -> None:
        """Shows rows; for the same dataset the cursor stays where it is."""
        stay = dataset == self.dataset
        self.dataset, self._opened = dataset, opened
        if stay and self._views:
            return
        self._views = []
        if self.filter:
            self._look(opened, self.filter)
        else:
            self._show_all(opened, stay=stay)

    @property
    def window(self) -> RowWindow | None:
        """The rows that are shown now: the dataset's, or those of the view in front of them."""
        return None if self.view.opened is None else self.view.opened.window

    @property
    def front_view(self) -> View | None:
        """The view in front of the dataset's rows."""
        return self._views[-1] if self._views else None

    def show_view(self, dataset: str, opened: Opened, title: str, note: str = "", kind: str = "") -> None:
        """Puts a table in front of a dataset's rows, until :meth:`leave`.

        Args:
            dataset: whose rows it covers; for another one than is shown, it covers nothing.
            opened: its rows, which may be none.
            title: what it is, for the upper border.
            note: what to know about it, for the lower border.
            kind: which part of the workstation made it; see :attr:`front_view`.
        """
        if dataset != self.dataset:
            self.say(dataset)
        below = (self.view.cursor, self.view.column)
        self._views.append(View(opened, title, note, kind, below))
        self._show_view(self._views[-1], stay=False)

    def _show_view(self, view: View, *, stay: bool) -> None:
        self.retitle(f"{view.title} · {count(view.opened.window.row_count)} rows")
        self.view.open(view.opened, stay=stay)
        self._tell_place()

    def leave(self) -> bool:
        """Takes the front view away; whether there was one."""
        if not self._views:
            return False
        cursor, column = self._views.pop().below
        if self._views:
            self._show_view(self._views[-1], stay=False)
        elif self._opened is not None:
            self._show_all(self._opened, stay=False)
        else:
            self.say(self.dataset, [(" No rows are shown.", "muted")])
            return True
        self.view.go_to(cursor, column)
        return True

    def leave_all(self) -> None:
        """Takes all views away."""
        while self.leave():
            pass

    def shows(self, dataset: str) -> bool:
        """Whether all rows of this dataset are in the table."""
        return dataset == self.dataset and self._opened is not None and self.view.opened is self._opened

    def _show_all(self, opened: Opened, *, stay: bool) -> None:
        self.retitle(f"{count(opened.window.row_count)} rows")
        self.view.open(opened, stay=stay)
        self._tell_place()

    @on(LineView.Moved)
    def _tell_place(self) -> None:
        """Which row, which column."""
        view = self.view
        if view.opened is not None:
            columns = view.opened.columns
            place = f"row {count(view.cursor + 1)} of {count(view.count())}"
            about = f"{columns.names[view.column]} {columns.types[view.column]}"
            note = f" · {self._views[-1].note}" if self._views and self._views[-1].note else ""
            self.tell_below(f"{place} · {about}{note}")

    def copied(self) -> tuple[str, str] | None:
        """The cell under the cursor."""
        text = self.view.value(self.view.cursor, self.view.column) if self.view.count() else None
        return None if text is None else ("cell", text)

    # --- Filter ---

    def set_filter(self, text: str) -> None:
        """Shows only rows that hold ``text``."""
        super().set_filter(text)
        self.workers.cancel_group(self, "search")
        if self._opened is None or self._views:
            return
        if text:
            self._look(self._opened, text)
        else:
            self._show_all(self._opened, stay=False)

    def _look(self, opened: Opened, text: str) -> None:
        self.tell_below("looking …")
        self.run_worker(
            lambda: self._search(opened, text), thread=True, exclusive=True, group="search", name="search"
        )

    def _search(self, opened: Opened, text: str) -> None:
        import pyarrow as pa

        from odf_tui.widgets.cells import TableWindow, search

        worker = get_current_worker()
        window, told = opened.window, time.monotonic()
        tables: Sequence[pa.Table] = []
        looked = 0
        try:
            for matches, looked in search(window, text, MATCHES, lambda: worker.is_cancelled):
                tables = matches
                if time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    self.post_message(self.Matched(opened, text, None, looked, False))
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self.post_message(Notice(said(error), "bad"))
        if not worker.is_cancelled:
            found = pa.concat_tables(tables) if tables else None
            shown = open_window(TableWindow(found, window.system_columns)) if found is not None else None
            self.post_message(self.Matched(opened, text, shown, looked, True))

    def on_data_pane_matched(self, message: Matched) -> None:
        """Shows how far a search is, or what it has found."""
        message.stop()
        if message.text != self.filter or message.opened is not self._opened:
            return
        everything = message.opened.window.row_count
        if not message.done:
            self.tell_below(f"looking … {100 * message.rows // everything} %")
        elif message.found is None:
            self.retitle(f"none of {count(everything)} rows")
            self.view.say(
                [(f" none of {count(everything)} rows holds ", "muted"), (plain(message.text), "strong")]
            )
            self.tell_below("")
        else:
            rows = message.found.window.row_count
            first = "the first " if rows >= MATCHES else ""
            self.retitle(f"{first}{count(rows)} of {count(everything)} rows")
            self.view.open(message.found, stay=True)
            self._tell_place()
