"""Pane 3: the rows of a dataset, all slices as one table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from textual.app import ComposeResult
from textual.message import Message
from textual.worker import Worker, get_current_worker

from odf_engine.errors import OdfError
from odf_tui.humane import count, plain
from odf_tui.state import RowWindow, Source
from odf_tui.widgets.lines import LineScroll, Span
from odf_tui.widgets.pane import Pane

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_tui.widgets.table import RowsTable
    from odf_tui.workstation import Workstation

MATCHES: Final = 5000
_TELL_SECONDS: Final = 0.5


@dataclass
class Opened:
    """Rows that can be shown: the window over them, and its first chunk."""

    window: RowWindow
    first: pa.Table


def open_rows(source: Source, dataset: str) -> Opened | None:
    """Opens the rows of a dataset; in a thread. None when there are none."""
    from odf_tui.widgets.table import CHUNK  # brings Arrow and the table, off the event loop

    window = source.rows(dataset)
    if not window.row_count:
        return None
    return Opened(window, window.window(0, CHUNK))


class NoRows(LineScroll):
    """Says why there is no table."""

    def __init__(self) -> None:
        super().__init__(id="no-rows")
        self._lines: Sequence[Sequence[Span]] = [[(" Rows show here.", "muted")]]

    def say(self, *lines: Sequence[Span]) -> None:
        """Shows these lines."""
        self._lines = lines
        self.reset()

    def empty(self) -> Sequence[Sequence[Span]]:
        """The lines."""
        return self._lines


class DataPane(Pane):
    """The preview."""

    number = 3
    label = "Data"

    @dataclass
    class Matched(Message):
        """The search in the rows has come this far."""

        text: str
        first: pa.Table | None
        rows: int
        done: bool

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.dataset = ""
        self._opened: Opened | None = None
        self._search: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """Nothing yet."""
        yield NoRows()

    @property
    def table(self) -> RowsTable | None:
        """The table, when there are rows."""
        return next(iter(self.query("#rows").results()), None)  # type: ignore[return-value]

    @property
    def _words(self) -> NoRows:
        return self.query_one(NoRows)

    def move(self, move: str) -> None:
        """Moves the cursor in the table."""
        if self.table is not None:
            self.table.move(move)
            self._tell_place()

    async def say(self, dataset: str, *lines: Sequence[Span]) -> None:
        """Shows words instead of rows."""
        self.dataset, self._opened = dataset, None
        await self._clear()
        self._words.display = True
        self._words.say(*lines)
        self.border_subtitle = ""
        self.retitle("")

    async def show(self, dataset: str, opened: Opened) -> None:
        """Shows rows; for the same dataset the cursor stays where it is."""
        keep = self.table if dataset == self.dataset else None
        at = keep.cursor_coordinate if keep is not None else None
        self.dataset, self._opened = dataset, opened
        self.retitle(f"{count(opened.window.row_count)} rows")
        if self.filter:
            self._look(self.filter)
            return
        await self._mount(opened.window, opened.first)
        if at is not None and self.table is not None:
            self.table.move_cursor(row=at.row, column=at.column)

    async def _mount(self, window: RowWindow, first: pa.Table) -> None:
        from odf_tui.widgets.cells import Cells
        from odf_tui.widgets.table import RowsTable

        with self.app.batch_update():
            await self._clear()
            self._words.display = False
            cells = Cells(first, window.system_columns, cast("Workstation", self.app).palette)
            await self.mount(RowsTable(window, first, cells))
        self._tell_place()

    async def restyle(self) -> None:
        """Draws the table in another theme."""
        if (table := self.table) is not None and self._opened is not None:
            at = table.cursor_coordinate
            await self._mount(table.window, table.first)
            if self.table is not None:
                self.table.move_cursor(row=at.row, column=at.column)

    async def _clear(self) -> None:
        if self._search is not None:
            self._search.cancel()
            self._search = None
        await self.query("#rows").remove()

    def _tell_place(self) -> None:
        from odf_tui.widgets.cells import type_name

        table = self.table
        if table is None:
            return
        field = table.window.columns.field(table.cursor_column)
        place = f"row {count(table.cursor_row + 1)} of {count(table.row_count)}"
        self.border_subtitle = f"{place} · {plain(field.name)} {plain(type_name(field.type))}".replace(
            "[", "\\["
        )

    def on_click(self) -> None:
        """The mouse moved the cursor."""
        self.call_after_refresh(self._tell_place)

    def copied(self) -> tuple[str, str] | None:
        """The cell under the cursor."""
        text = None if self.table is None else self.table.cell()
        return None if text is None else ("cell", text)

    # --- Filter: a search through all rows, in a thread ---

    def set_filter(self, text: str) -> None:
        """Shows only rows that hold ``text``."""
        super().set_filter(text)
        if self._opened is None:
            return
        if text:
            self._look(text)
        else:
            self.post_message(self.Matched("", None, 0, True))

    def _look(self, text: str) -> None:
        opened = self._opened
        if opened is None:
            return
        self.border_subtitle = "looking …"
        self._search = self.run_worker(
            lambda: self._search_rows(opened.window, text), thread=True, exclusive=True, group="search"
        )

    async def on_data_pane_matched(self, message: Matched) -> None:
        """Shows what a search has found."""
        message.stop()
        if message.text != self.filter or self._opened is None:
            return
        window = self._opened.window
        everything = count(window.row_count)
        if not message.text:
            self.retitle(f"{everything} rows")
            await self._mount(window, self._opened.first)
        elif not message.done:
            self.border_subtitle = f"looking … {100 * message.rows // max(window.row_count, 1)} %"
        elif message.first is None or not message.first.num_rows:
            await self._clear()
            self._words.display = True
            self._words.say(
                [(f" none of {everything} rows holds ", "muted"), (plain(message.text), "strong")]
            )
            self.border_subtitle = ""
        else:
            from odf_tui.widgets.cells import TableWindow
            from odf_tui.widgets.table import CHUNK

            found = message.first
            first = "the first " if found.num_rows >= MATCHES else ""
            self.retitle(f"{first}{count(found.num_rows)} of {everything} rows")
            await self._mount(TableWindow(found, window.system_columns), found.slice(0, CHUNK))

    def _search_rows(self, window: RowWindow, text: str) -> None:
        import pyarrow as pa

        from odf_tui.widgets.cells import search

        worker = get_current_worker()
        told = time.monotonic()
        found: Sequence[pa.Table] = []
        looked = 0
        try:
            for matches, looked in search(window, text, MATCHES, lambda: worker.is_cancelled):
                found = matches
                if time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    self.post_message(self.Matched(text, None, looked, False))
        except (OdfError, OSError, pa.ArrowException) as error:
            from odf_tui.messages import Notice

            self.post_message(Notice(str(error), "bad"))
        if not worker.is_cancelled:
            table = pa.concat_tables(found) if found else window.columns.empty_table()
            self.post_message(self.Matched(text, table, looked, True))
