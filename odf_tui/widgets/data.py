"""Pane 3: the rows of a dataset, all slices as one table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from textual import on
from textual.app import ComposeResult
from textual.message import Message
from textual.worker import get_current_worker

from odf_tui.humane import count, plain, said
from odf_tui.messages import Notice
from odf_tui.widgets.lines import LineView, Span
from odf_tui.widgets.pane import Pane
from odf_tui.widgets.rows import Opened, RowsView, open_window

if TYPE_CHECKING:
    import pyarrow as pa

MATCHES: Final = 5000
_TELL_SECONDS: Final = 0.5


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

    def compose(self) -> ComposeResult:
        """The table."""
        yield RowsView()

    @property
    def view(self) -> RowsView:
        """The table."""
        return self.query_one(RowsView)

    def say(self, dataset: str, *lines: Sequence[Span]) -> None:
        """Shows words instead of rows."""
        self.dataset, self._opened = dataset, None
        self.workers.cancel_group(self, "search")
        self.view.say(*lines)
        self.tell_below("")
        self.retitle("")

    def show(self, dataset: str, opened: Opened) -> None:
        """Shows rows; for the same dataset the cursor stays where it is."""
        stay = dataset == self.dataset
        self.dataset, self._opened = dataset, opened
        if self.filter:
            self._look(opened, self.filter)
        else:
            self._show_all(opened, stay=stay)

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
            self.tell_below(f"{place} · {about}")

    def copied(self) -> tuple[str, str] | None:
        """The cell under the cursor."""
        text = self.view.value(self.view.cursor, self.view.column) if self.view.count() else None
        return None if text is None else ("cell", text)

    # --- Filter ---

    def set_filter(self, text: str) -> None:
        """Shows only rows that hold ``text``."""
        super().set_filter(text)
        self.workers.cancel_group(self, "search")
        if self._opened is None:
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
