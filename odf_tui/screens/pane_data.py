"""Pane 3: the rows of the selected dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.message import Message
from textual.widgets import Input

from odf_tui.gateway.row_window import RowWindow
from odf_tui.panes.data.view import TESTS, condition
from odf_tui.screens.verbs import Verbs
from odf_tui.services.controller import RowsOpened
from odf_tui.state.model import DatasetRow, Health, Target
from odf_tui.text.format import NULL, format_count
from odf_tui.widgets.row_table import RowTable

if TYPE_CHECKING:
    from odf_tui.gateway.row_text import Record

COPIED_ROWS = 20_000


@dataclass
class RecordRead(Message):
    """A row was read in full, to be shown."""

    window: RowWindow
    record: Record | None
    error: str = ""


@dataclass
class TextMade(Message):
    """What is to be copied was read."""

    what: str
    text: str | None
    error: str = ""


class DataPart(Verbs):
    """The part of the workbench about rows."""

    # --- What is learnt ---

    @on(RowsOpened)
    def _rows_opened(self, message: RowsOpened) -> None:
        row = self.graph.row
        if row is None or row.id != message.dataset:
            return
        if message.opened is not None:
            self.data_pane.show(row.id, message.opened)
            self.arrive()
        elif message.error:
            self.data_pane.show_message(row.id, [(f" {message.error}", "bad")])
        else:
            self.data_pane.show_message(row.id, *self._no_rows(row))
        self.show_hints()

    def _no_rows(self, row: DatasetRow) -> list[list[tuple[str, str]]]:
        health = self.healths.get(row.id)
        if health in (Health.queued, Health.running):
            return [[(" No rows yet. They show here as soon as the job commits them.", "muted")]]
        if health is Health.failed:
            job = self.book.latest_ingest(row.id)
            return [
                [(f" No rows: the last {job.kind if job else 'pull'} did not succeed.", "bad")],
                [
                    (" ⏎", "key"),
                    (" in pane ", "muted"),
                    ("1", "key"),
                    (" says why, and what to do.", "muted"),
                ],
            ]
        if row.last_pulled or health is Health.current:
            return [[(" No rows: there were none to take in.", "muted")]]
        if row.derivative:
            return [[(" No rows yet. ", "muted"), ("p", "key"), (" makes them of other datasets.", "muted")]]
        if row.polls:
            return [
                [(" No rows yet. Press ", "muted"), ("p", "key"), (" to pull them from the source.", "muted")]
            ]
        if row.push_sources:
            return [[(" No rows yet. They are pushed: ", "muted"), (f"odf ingest {row.name} FILE", "strong")]]
        return [
            [(" No rows: there is no source. ", "muted"), ("e", "key"), (" edits the definition.", "muted")]
        ]

    @on(RowTable.Failed)
    def _rows_failed(self, message: RowTable.Failed) -> None:
        self.notify_line(message.error, "bad")

    # --- What is done ---

    def do_up(self) -> None:
        """Leaves the innermost thing of the rows, then what every pane leaves."""
        pane = self.data_pane
        if self.pane != "data" or self.query_one("#filter").display or pane.filter:
            super().do_up()
        elif pane.halt():
            pane.tell_place()
        elif not pane.view.unmark() and not pane.pop_view():
            super().do_up()
        pane.tell_place()
        self.show_hints()

    def follow(self, target: Target) -> None:
        """Goes to a block or a row of a dataset: for a row, its rows come to the front."""
        if target.pane == "data":
            self.data_pane.leave_all()
        super().follow(target)

    def do_find_rows(self) -> None:
        """Opens the line to type a text in, which is looked for from the cursor on."""
        self.do_filter()
        self.data_pane.begin_finding()
        self.query_one("#filter", Input).placeholder = "a text to look for in all rows"

    def do_next_match(self) -> None:
        """The next row that holds the text."""
        self._match(back=False)

    def do_previous_match(self) -> None:
        """The row before that holds the text."""
        self._match(back=True)

    def _match(self, *, back: bool) -> None:
        if self.data_pane.filter:
            self.data_pane.find_again(back=back)
        else:
            self.do_find_rows()

    # --- One row ---

    def do_open_row(self) -> None:
        """A row, a block of lines for each column."""
        self._read_record(self.data_pane.view.cursor)

    def _read_record(self, row: int) -> None:
        window, columns = self.data_pane.window, self.data_pane.view.arrangement.order
        if window is None or not 0 <= row < window.row_count:
            return

        def read() -> Record:
            from odf_tui.gateway.row_text import read_record

            return read_record(window, row, columns)

        self.reads.start("record", read, lambda record, error: RecordRead(window, record, error))

    @on(RecordRead)
    def _record_read(self, message: RecordRead) -> None:
        from odf_tui.panes.data.row_dialogs import RecordDialog

        view, top, record = self.data_pane.view, self.app.screen, message.record
        if record is None:
            self.notify_line(message.error, "bad")
        elif message.window is not self.data_pane.window:
            return
        elif isinstance(top, RecordDialog):
            view.go(record.row)
            top.show(record)
        elif top is self:
            screen = RecordDialog(record, view.column, self._step_record, self.copy_text)
            self.app.push_screen(screen, self._record_left)

    def _step_record(self, by: int) -> None:
        """The record further on, past rows that cannot be read."""
        view = self.data_pane.view
        row = view.cursor + by
        while 0 <= row < view.count() and view.problem(row):
            row += by
        if 0 <= row < view.count():
            view.go(row)
            self._read_record(row)

    def _record_left(self, column: int | None) -> None:
        if column is not None:
            self.data_pane.view.go_to(self.data_pane.view.cursor, column)

    # --- Going ---

    def do_jump(self) -> None:
        """Asks for an offset, a row or a time, and goes there."""
        from odf_tui.panes.data.row_dialogs import GoToRowDialog

        window = self.data_pane.window

        def go(row: int | None) -> None:
            if row is not None and window is self.data_pane.window:
                self.data_pane.view.go_centred(row)

        if window is not None:
            self.app.push_screen(GoToRowDialog(window), go)

    def do_next_slice(self) -> None:
        """The first row of the next slice."""
        view = self.data_pane.view
        if self._sliced() and view.slice + 1 < len(view.slices):
            view.go_centred(view.slices[view.slice + 1].start)

    def do_previous_slice(self) -> None:
        """The first row of this slice; from there, of the one before."""
        view = self.data_pane.view
        if self._sliced():
            here = view.slice
            if view.slices[here].start == view.cursor:
                here = max(here - 1, 0)
            view.go_centred(view.slices[here].start)

    def _sliced(self) -> bool:
        if not self.data_pane.view.slices:
            self.notify_line("these rows are not in the order of slices", "warn")
        return bool(self.data_pane.view.slices)

    # --- Columns ---

    def do_columns(self) -> None:
        """Shows, hides, moves and freezes columns."""
        from odf_tui.panes.data.row_dialogs import ColumnsDialog

        view = self.data_pane.view
        if view.opened is None:
            return
        columns = view.opened.columns

        def go(column: int | None) -> None:
            if column is not None:
                view.go_to(view.cursor, column)

        screen = ColumnsDialog(
            columns.names, columns.types, view.arrangement, view.column, self.data_pane.rearranged
        )
        self.app.push_screen(screen, go)

    def do_hide_column(self) -> None:
        """Hides the column under the cursor."""
        view = self.data_pane.view
        name = view.opened.columns.names[view.column] if view.opened is not None else ""
        if view.arrangement.toggle(view.column):
            self.data_pane.rearranged()
            self.notify_line(f"{name} is hidden · c shows all columns")
        else:
            self.notify_line("this is the last column that is shown", "warn")

    def do_freeze_columns(self) -> None:
        """Keeps the columns up to the cursor in sight, or lets them go."""
        view = self.data_pane.view
        stay = view.arrangement.freeze(view.column)
        self.data_pane.rearranged()
        self.notify_line("columns up to here stay in sight" if stay else "columns move again")

    # --- Sorting and keeping ---

    def do_sort_up(self) -> None:
        """Sorts what is loaded, least first."""
        self.data_pane.sort(down=False)

    def do_sort_down(self) -> None:
        """Sorts what is loaded, greatest first."""
        self.data_pane.sort(down=True)

    def do_keep_rows(self) -> None:
        """Asks which rows to keep, by the cell under the cursor."""
        from odf_tui.widgets.choice_list import Choice
        from odf_tui.widgets.dialogs import PickerDialog

        pane, view = self.data_pane, self.data_pane.view
        if view.opened is None:
            return
        name, value = view.opened.columns.names[view.column], view.value(view.cursor, view.column)
        keys = {"equal": "f", "other": "x", "less": "l", "greater": "g", "null": "0", "filled": "v"}
        tests = ("null", "filled") if value is NULL else TESTS
        choices = [
            Choice(test, condition(test, name, value or ""), (keys[test],), keys[test]) for test in tests
        ]
        if pane.filter:
            choices.append(Choice("found", f"any column holds {pane.filter}, of all rows", ("m",), "m"))
        self.app.push_screen(PickerDialog("Keep the rows where", choices, typing=False), self._keep)

    def _keep(self, test: str | None) -> None:
        if test == "found":
            self.data_pane.keep_found()
        elif test is not None:
            self.data_pane.keep(test)

    def do_row_among_all(self) -> None:
        """Goes to the row among all rows."""
        if not self.data_pane.reveal_in_all_rows():
            self.notify_line("these are all rows already, or rows that no dataset has", "warn")
        self.show_hints()

    # --- Marking and copying ---

    def do_mark_row(self) -> None:
        """Marks the row, or the rows since the first mark."""
        view = self.data_pane.view
        view.mark()
        self.data_pane.tell_place()
        if view.marks.anchor is not None:
            self.notify_line("marked · space again marks up to there · Y copies · esc forgets")

    def do_copy(self) -> None:
        """Copies what is selected in the pane; of rows, the cell in full."""
        pane, view = self.data_pane, self.data_pane.view
        window, row, column = pane.window, view.cursor, view.column
        if self.pane != "data" or window is None or not view.count():
            super().do_copy()
            return

        def read() -> str:
            from odf_tui.gateway.row_text import read_record

            return read_record(window, row, [column]).values[0].text or ""

        self._copy_soon("cell", read)

    def do_copy_rows(self) -> None:
        """Copies the marked rows, or the one under the cursor."""
        from odf_tui.widgets.choice_list import Choice
        from odf_tui.widgets.dialogs import PickerDialog

        view, window = self.data_pane.view, self.data_pane.window
        ranges = self.data_pane.marked() or [(view.cursor, view.cursor + 1)]
        rows = sum(stop - start for start, stop in ranges)
        if window is None or not view.count():
            return
        if rows > COPIED_ROWS:
            self.notify_line(
                f"{format_count(rows)} rows are too many to copy: at most {format_count(COPIED_ROWS)}", "warn"
            )
            return
        columns = view.arrangement.shown
        what = "row" if rows == 1 else f"{format_count(rows)} rows"

        def copy(form: str | None) -> None:
            def read() -> str:
                from odf_tui.gateway.row_text import rows_as_json, rows_as_tsv

                return (rows_as_json if form == "json" else rows_as_tsv)(window, ranges, columns)

            if form is not None:
                self._copy_soon(what, read)

        choices = [
            Choice("tsv", "tabs between values, names on top", ("Y", "t"), "Y"),
            Choice("json", "JSON, a line for each row", ("j",), "j"),
        ]
        self.app.push_screen(PickerDialog(f"Copy {what} as", choices, typing=False), copy)

    def _copy_soon(self, what: str, read: Callable[[], str]) -> None:
        self.reads.start("copy", read, lambda text, error: TextMade(what, text, error))

    @on(TextMade)
    def _text_made(self, message: TextMade) -> None:
        if message.text is None:
            self.notify_line(message.error, "bad")
        else:
            self.copy_text(message.what, message.text)
