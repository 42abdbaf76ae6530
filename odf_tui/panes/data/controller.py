"""Actions on rows: open, go to, search, sort, filter, mark, copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from textual.message import Message

from odf_engine.api import LazyModule, Query
from odf_engine.api.model import DatasetRow, Target
from odf_engine.api.readers.row_window import RowWindow
from odf_engine.api.text import format_count, printable
from odf_tui.panes.data.derived_rows import MAX_LOADED_ROWS
from odf_tui.panes.data.row_queries import filter_query, sort_query
from odf_tui.panes.data.view import TESTS, DataPane, condition_text
from odf_tui.services.controller import Controller, Host, task
from odf_tui.services.navigation import TrailEntry
from odf_tui.state import saved_session
from odf_tui.state.app_state import JobNews
from odf_tui.state.model import Health
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import NULL, Span
from odf_tui.text.row_text import Record, read_record, rows_as_json, rows_as_tsv
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import PickerDialog, PromptDialog
from odf_tui.widgets.row_table import LoadedWindow, RowTable, load_window, open_rows

if TYPE_CHECKING:
    from odf_tui.panes.data import row_dialogs
else:
    row_dialogs = LazyModule("odf_tui.panes.data.row_dialogs")

COPIED_ROWS: Final = 20_000


class DataController(Controller):
    """Runs the actions of pane 3 on the rows of the selected dataset.

    Attributes:
        filter_all: filters all rows by a test against the cell under the cursor, also those that are not
            loaded; returns whether it does.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.pane = self.host.query_one(DataPane)
        self.view = self.pane.view
        self._health: object = None
        self.filter_all: Callable[[str], bool] = self._filter_dataset
        self.state.shown_changed.connect(self._show_dataset)
        self.state.jobs_changed.connect(self._jobs_changed)
        self.navigator.going.connect(self._leave_views)
        self.navigator.arriving.connect(self._target_selected)
        self.navigator.add_locator(self._locate)

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Return the handler of failed reads."""
        return {RowTable.Failed: lambda message: self.host.notice(message.error, "bad")}

    def leave(self) -> bool:
        """Leave a search, marks or the front view. Returns whether there was one."""
        return self.state.pane == "data" and self.pane.leave_innermost()

    def _show_dataset(self, row: DatasetRow | None) -> None:
        if row is None:
            self.pane.show_message("", [(" Select a dataset to see its rows", "muted")])
        elif row.missing or row.problem:
            why = printable(row.problem or "This input is not in the workspace")
            self.pane.show_message(row.id, [(f" {why}", "warn")])
        else:
            self._go_to_target()
            self._read_rows(row.id)

    def _read_rows(self, dataset: str) -> None:
        self._health = self.state.healths.get(dataset)
        self.host.read("rows", lambda: open_rows(self.workspace, dataset), partial(self._rows_read, dataset))

    def _rows_read(self, dataset: str, opened: LoadedWindow | None, error: str) -> None:
        row = self.state.row
        if row is None or row.id != dataset:
            return
        if opened is not None:
            self.pane.show(dataset, opened)
            self._go_to_target()
        elif error:
            self.pane.show_message(dataset, [(f" {error}", "bad")])
        else:
            self.pane.show_message(dataset, *self._no_rows(row))
        self.host.show_hints()

    def _jobs_changed(self, news: JobNews) -> None:
        """Read a dataset without rows again when its health changes, because the message depends on it."""
        row = self.state.row_of(self.state.shown[0])
        if row is None or row.records or row.missing or row.problem or not news.changed_jobs:
            return
        if self.state.healths.get(row.id) is not self._health:
            self._read_rows(row.id)

    def _no_rows(self, row: DatasetRow) -> list[list[Span]]:
        """Return the message for a dataset without rows."""
        health = self.state.healths.get(row.id)
        if health in (Health.queued, Health.running):
            return [[(" No rows yet. The job has not committed any rows.", "muted")]]
        if health is Health.failed:
            job = self.state.jobs.latest_ingest(row.id)
            return [
                [(f" No rows: last {job.kind if job else 'pull'} failed", "bad")],
                [
                    (" Press ", "muted"),
                    ("⏎", "key"),
                    (" in pane ", "muted"),
                    ("1", "key"),
                    (" to see the reason", "muted"),
                ],
            ]
        if row.last_pulled or health is Health.current:
            return [[(" No rows: the source returned none", "muted")]]
        if row.derivative:
            return [[(" No rows yet. Press ", "muted"), ("p", "key"), (" to run the query", "muted")]]
        if row.polls:
            return [
                [(" No rows yet. Press ", "muted"), ("p", "key"), (" to pull them from the source", "muted")]
            ]
        if row.push_sources:
            return [
                [(" No rows yet. Press ", "muted"), (", i", "key"), (" to push them from files", "muted")]
            ]
        return [
            [(" No rows: no source. Press ", "muted"), ("e", "key"), (" to edit the definition", "muted")]
        ]

    def _locate(self) -> TrailEntry | None:
        row = self.state.row
        if self.state.pane != "data" or row is None:
            return None
        return TrailEntry(row.id, "data", self.view.cursor)

    def _leave_views(self, target: Target) -> None:
        if target.pane == "data":  # a link leads to a row of the dataset, not of a view of it
            self.pane.leave_all()

    def _target_selected(self, target: Target) -> None:
        if target.pane == "data":
            if self.pane.filter:
                self.pane.set_filter("")
            self._go_to_target()

    def _go_to_target(self) -> None:
        """Put the cursor on the target, if its rows are loaded."""
        target = self.navigator.target_in("data", self.pane.dataset)
        if target is not None and self.pane.is_showing(target.dataset):
            self.view.go(target.at)
            self.navigator.clear_target()

    def find_rows(self) -> None:
        """Open the filter line, which searches from the cursor on."""
        self.host.perform("filter")
        self.pane.begin_search()

    def next_match(self) -> None:
        """Go to the next row that contains the text."""
        self._go_to_match(back=False)

    def previous_match(self) -> None:
        """Go to the previous row that contains the text."""
        self._go_to_match(back=True)

    def _go_to_match(self, *, back: bool) -> None:
        if self.pane.filter:
            self.pane.find_again(back=back)
        else:
            self.find_rows()

    def open_row(self) -> None:
        """Show the row under the cursor, with every value in full."""
        self._read_record(self.view.cursor)

    def _read_record(self, row: int) -> None:
        window, columns = self.pane.window, self.view.arrangement.order
        if window is None or not 0 <= row < window.row_count:
            return

        dataset = self.pane.dataset

        def read() -> tuple[Record, list[str]]:
            links = self.workspace.link_columns(dataset) if dataset else []
            return read_record(window, row, columns), links

        self.host.read("record", read, partial(self._show_record, window), opens=True)

    def _show_record(self, window: RowWindow, content: tuple[Record, list[str]] | None, error: str) -> None:
        dialog = self.host.top
        if content is None:
            self.host.notice(error, "bad")
            return
        record, links = content
        if window is not self.pane.window:
            return
        elif isinstance(dialog, row_dialogs.RecordDialog):
            self.view.go(record.row)
            dialog.show(record)
        elif self.host.is_front:
            save = partial(self._save_object, self.pane.dataset)
            dialog = row_dialogs.RecordDialog(
                record, self.view.column, self._step_record, self.host.copy_text, links, save
            )
            self.host.open(dialog, self._go_to_column)

    def _save_object(self, dataset: str, link: str) -> None:
        """Copy a linked object to a file that the user names."""

        def check(text: str) -> str:
            if not text:
                return "missing file name"
            return f"{Path(text).name} already exists" if Path(text).expanduser().exists() else ""

        def save(text: str | None) -> None:
            if text is None:
                return
            path = Path(text).expanduser().absolute()

            def written(done: bool | None, error: str) -> None:
                self.host.notice(error or f"saved as {path}", "bad" if error else "good")

            def write() -> bool:
                self.workspace.export_object(dataset, link, path)
                return True

            self.host.read("object", write, written, replaces=False)

        remark = f"relative to {printable(str(Path.cwd()))}"
        self.host.open(PromptDialog("Save object as", "", remark, check), save)

    def _step_record(self, by: int) -> None:
        """Show the next row. Skips unreadable rows."""
        row = self.view.cursor + by
        while 0 <= row < self.view.count() and self.view.problem(row):
            row += by
        if 0 <= row < self.view.count():
            self.view.go(row)
            self._read_record(row)

    def _go_to_column(self, column: int | None) -> None:
        if column is not None:
            self.view.go_to(self.view.cursor, column)

    def jump(self) -> None:
        """Open the dialog for a row, an offset or a time, and go there."""
        window = self.pane.window

        def go(row: int | None) -> None:
            if row is not None and window is self.pane.window:
                self.view.go_to_middle(row)

        if window is not None:
            self.host.open(row_dialogs.GoToRowDialog(window), go)

    def next_slice(self) -> None:
        """Go to the first row of the next slice."""
        if self._has_slices() and self.view.slice + 1 < len(self.view.slices):
            self.view.go_to_middle(self.view.slices[self.view.slice + 1].start)

    def previous_slice(self) -> None:
        """Go to the first row of the slice under the cursor; from that row, to the previous slice."""
        if self._has_slices():
            at = self.view.slice
            if self.view.slices[at].start == self.view.cursor:
                at = max(at - 1, 0)
            self.view.go_to_middle(self.view.slices[at].start)

    def _has_slices(self) -> bool:
        if not self.view.slices:
            self.host.notice("this view has no slices", "warn")
        return bool(self.view.slices)

    def choose_columns(self) -> None:
        """Show, hide, move and freeze columns."""
        if self.view.opened is None:
            return
        columns = self.view.opened.columns
        dialog = row_dialogs.ColumnsDialog(
            columns.names, columns.types, self.view.arrangement, self.view.column, self.pane.store_arrangement
        )
        self.host.open(dialog, self._go_to_column)

    def hide_column(self) -> None:
        """Hide the column under the cursor."""
        view = self.view
        name = view.opened.columns.names[view.column] if view.opened is not None else ""
        if view.arrangement.toggle(view.column):
            self.pane.store_arrangement()
            self.host.notice(f"column {name} is hidden · press c to show it again")
        else:
            self.host.notice("the last visible column cannot be hidden", "warn")

    def freeze_columns(self) -> None:
        """Freeze the columns up to the cursor, or unfreeze them."""
        frozen = self.view.arrangement.freeze(self.view.column)
        self.pane.store_arrangement()
        self.host.notice("columns up to this one are frozen" if frozen else "columns are no longer frozen")

    def sort(self, order: str) -> None:
        """Sort the rows by the column under the cursor, ``ascending`` or ``descending``."""
        down = order == "descending"
        if (front := self.pane.front_view) is not None and front.kind == "sorted" and front.source is None:
            self.pane.pop_view()
        row, opened = self.state.row, self._unloaded_rows()
        if row is None or opened is None:
            self.pane.sort(down=down)
            return
        name = opened.columns.names[self.view.column]
        note = f"by {name}, {order}"
        self._query_rows(row, sort_query(row.name, name, down=down), "Sorting", "sorted", note)

    def _unloaded_rows(self) -> LoadedWindow | None:
        """Return the rows of the dataset if they are visible, and too many to sort and filter here."""
        opened = self.view.opened
        is_long = opened is not None and opened.window.row_count > MAX_LOADED_ROWS
        return opened if is_long and self.pane.front_view is None else None

    @task
    async def _query_rows(self, row: DatasetRow, sql: str, title: str, kind: str, note: str) -> None:
        """Show the result of a query over all rows of a dataset."""
        result = await self.jobs.outcome(Query(sql, engine="duckdb"), row.name, title)

        def read() -> LoadedWindow:
            return load_window(self.workspace.file_rows(row.id, str(self.workspace.folder / result.path)))

        opened = await asyncio.to_thread(read)
        note = f"{note} · truncated" if result.truncated else note
        self.pane.show_view(row.id, opened, "sorted" if kind == "sorted" else "filtered", note, kind)
        self.host.show_hints()

    def filter_by_value(self) -> None:
        """Open the list of tests against the cell under the cursor, and filter by the chosen one."""
        pane, view = self.pane, self.view
        if view.opened is None:
            return
        name, value = view.opened.columns.names[view.column], view.value(view.cursor, view.column)
        keys = {"equal": "f", "other": "x", "less": "l", "greater": "g", "null": "0", "filled": "v"}
        tests = ("null", "filled") if value is NULL else TESTS
        choices = [
            Choice(test, condition_text(test, name, value or ""), (keys[test],), keys[test]) for test in tests
        ]
        if pane.filter:
            choices.append(Choice("found", f"any column contains {pane.filter}, in all rows", ("m",), "m"))
        self.host.open(PickerDialog("Filter rows where", choices, typing=False), self._filter_chosen)

    def _filter_chosen(self, test: str | None) -> None:
        if test == "found":
            self.pane.filter_matches()
        elif test is not None and not self.filter_all(test):
            self.pane.filter_by_test(test)

    def _filter_dataset(self, test: str) -> bool:
        """Filter all rows of a dataset that has too many to be loaded. Returns whether it has."""
        row, opened, view = self.state.row, self._unloaded_rows(), self.view
        if row is None or opened is None:
            return False
        name, offset_column = opened.columns.names[view.column], opened.window.system_columns[0]
        offset = view.value(view.cursor, opened.columns.names.index(offset_column))
        note = condition_text(test, name, view.value(view.cursor, view.column) or "")
        sql = filter_query(row.name, name, test, f'WHERE "{offset_column}" = {int(offset or 0)}')
        self._query_rows(row, sql, "Filtering", "kept", note)
        return True

    def reveal_in_all_rows(self) -> None:
        """Show the row among all rows."""
        if not self.pane.reveal_in_all_rows():
            self.host.notice("all rows are already shown, or the rows are not from a dataset", "warn")
        self.host.show_hints()

    def mark_row(self) -> None:
        """Mark the row, or the rows since the first mark."""
        self.view.mark()
        self.pane.show_position()
        if self.view.marks.anchor is not None:
            self.host.notice("row marked · space marks up to another row · Y copies · esc clears")

    def copy(self) -> None:
        """Copy the selection of the focused pane. In this pane it is the cell in full."""
        window, row, column = self.pane.window, self.view.cursor, self.view.column
        if self.state.pane != "data" or window is None or not self.view.count():
            selection = self.host.front.selection()
            if selection is None:
                self.host.notice("nothing is selected", "warn")
            else:
                self.host.copy_text(*selection)
            return

        def read() -> str:
            return read_record(window, row, [column]).values[0].text or ""

        self._read_and_copy("cell", read)

    def copy_rows(self) -> None:
        """Copy the marked rows, or the one under the cursor."""
        view, window = self.view, self.pane.window
        ranges = self.pane.marked_ranges() or [(view.cursor, view.cursor + 1)]
        rows = sum(stop - start for start, stop in ranges)
        if window is None or not view.count():
            return
        if rows > COPIED_ROWS:
            max_rows = format_count(COPIED_ROWS)
            self.host.notice(f"too many rows to copy: {format_count(rows)} (maximum {max_rows})", "warn")
            return
        columns = view.arrangement.shown
        what = "row" if rows == 1 else f"{format_count(rows)} rows"

        def copy(form: str | None) -> None:
            def read() -> str:
                return (rows_as_json if form == "json" else rows_as_tsv)(window, ranges, columns)

            if form is not None:
                self._read_and_copy(what, read)

        choices = [
            Choice("tsv", "tab-separated values with a header", ("Y", "t"), "Y"),
            Choice("json", "JSON, one object per line", ("j",), "j"),
        ]
        self.host.open(PickerDialog(f"Copy {what} as", choices, typing=False), copy)

    def _read_and_copy(self, what: str, read: Callable[[], str]) -> None:
        def then(text: str | None, error: str) -> None:
            if text is None:
                self.host.notice(error, "bad")
            else:
                self.host.copy_text(what, text)

        self.host.read("copy", read, then)

    def restore(self, layout: SavedLayout) -> None:
        """Restore the arrangement of columns."""
        for dataset, choice in layout.columns.items():
            self.pane.set_arrangement(dataset, choice)

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Save the arrangement of columns, the newest last."""
        columns = dict(layout.columns)
        for row in self.state.datasets:
            if (choice := self.pane.arrangement(row.id)) != columns.get(row.id, {}):
                columns.pop(row.id, None)
                columns |= {row.id: choice} if choice else {}
        return replace(layout, columns=dict(list(columns.items())[-saved_session.MAX_DATASETS :]))
