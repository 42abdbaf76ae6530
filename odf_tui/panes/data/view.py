"""The data pane: a stack of tables over the rows of a dataset, searched, sorted and filtered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.worker import get_current_worker

from odf_engine.api import pa
from odf_engine.api.readers.row_window import RowWindow, extends
from odf_engine.api.text import count_of, format_count, printable
from odf_tui.panes.data.derived_rows import (
    RowSelection,
    filter_rows,
    find_matches,
    find_next_match,
    loaded_range,
    sorted_rows,
)
from odf_tui.text.format import Span, ellipsize_middle, error_line
from odf_tui.text.values import release_memory
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.pane_frame import Pane
from odf_tui.widgets.row_table import LoadedWindow, RowTable, load_window
from odf_tui.widgets.status_bar import Notice

STATE = "state"
QUERY = "sql"
"""Kinds of the views that show the current state, and the result of a query."""


_WIDEST_NAME: Final = 32
_WIDEST_TYPE: Final = 20


class TableView(msgspec.Struct, frozen=True):
    """A table in front of the rows of a dataset: derived rows, the current state, or a query result.

    Attributes:
        opened: the loaded rows.
        title: the text in the upper border.
        note: a text about the rows, for the lower border.
        kind: the feature that created the view, such as :data:`STATE`.
        below: cursor and column of the table that the view covers.
        of: describes the rows that the view was derived from.
        source: the rows that the view was derived from.
        when: the time of the shown rows, for the upper border, or "" for the newest rows.
        as_of: whether that time is an event time and not a block.
        history: the hash of the newest block, if the rows are of a branch or an earlier history, or "".
    """

    opened: LoadedWindow
    title: str
    note: str
    kind: str
    covered_position: tuple[int, int]
    base_text: str = ""
    source: LoadedWindow | None = None
    when: str = ""
    as_of: bool = False
    history: str = ""


TIME: Final = "time"
"""Kind of the view that shows the rows of another time."""
_DERIVED_KINDS: Final = ("sorted", "kept")


class TableStack(Pane):
    """A stack of tables; only the front table is visible. Stores the arrangement of columns by dataset.

    Attributes:
        dataset: id of the dataset.
    """

    number = 3
    label = "Data"
    filter_placeholder = "text to search for in all rows"

    class DatasetReplaced(Message):
        """Posted when the pane shows another dataset, or a message instead of rows."""

    class Reloaded(Message):
        """Posted when the rows of the same dataset were read again as ``opened``."""

        def __init__(self, opened: LoadedWindow) -> None:
            super().__init__()
            self.opened = opened

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self.dataset = ""
        self._opened: LoadedWindow | None = None
        self._views: list[TableView] = []
        self._choices: dict[str, dict[str, Any]] = {}

    def compose(self) -> ComposeResult:
        """Yield the table."""
        yield RowTable()

    @property
    def view(self) -> RowTable:
        """The table."""
        return self.query_one(RowTable)

    @property
    def window(self) -> RowWindow | None:
        """The visible rows, which the front view or else the dataset provides."""
        return None if self.view.opened is None else self.view.opened.window

    @property
    def front_view(self) -> TableView | None:
        """The view in front of the dataset's rows, or None if absent."""
        return self._views[-1] if self._views else None

    def cancel_work(self) -> bool:
        """Cancel background work on the visible rows. Returns whether there was any."""
        return False

    def leave_innermost(self) -> bool:
        """Cancel a search, else unmark rows, else leave the front view. Returns False if there was none."""
        left = self.cancel_work() or self.view.clear_marks() or self.pop_view()
        self.show_position()
        return left

    def show_message(self, dataset: str, *lines: Sequence[Span]) -> None:
        """Show a message instead of rows."""
        self.cancel_work()
        self.dataset, self._opened, self._views = dataset, None, []
        self.view.show_message(*lines)
        self.set_subtitle("")
        self.set_context("")
        self.post_message(self.DatasetReplaced())

    def show(self, dataset: str, opened: LoadedWindow) -> None:
        """Show the rows of a dataset. If it is shown already, cursor and views stay."""
        stay = dataset == self.dataset and self._opened is not None
        self.dataset, self._opened = dataset, opened
        if not stay:
            self.cancel_work()
            self._views = []
        if not self._views:
            self._show_all(stay=stay)
        self.post_message(self.Reloaded(opened) if stay else self.DatasetReplaced())

    def is_showing(self, dataset: str) -> bool:
        """Return whether the table shows all rows of a dataset."""
        return dataset == self.dataset and self._opened is not None and self.view.opened is self._opened

    def show_view(
        self, dataset: str, opened: LoadedWindow, title: str, note: str = "", kind: str = ""
    ) -> None:
        """Put a table in front of the rows of a dataset, until it is popped.

        Args:
            dataset: id of the covered dataset. If it is not the shown one, the view covers no rows.
            opened: the loaded rows; there may be none.
            title: the text in the upper border.
            note: a text about the rows, for the lower border.
            kind: the feature that created the view; see :attr:`front_view`.
        """
        if dataset != self.dataset:
            self.show_message(dataset)
        title = f"{title} · {count_of(opened.window.row_count, 'row')}"
        self.push_view(TableView(opened, title, note, kind, (self.view.cursor, self.view.column)))

    def push_view(self, view: TableView) -> None:
        """Put a view in front of the visible table."""
        if view.kind in _DERIVED_KINDS and self._views:
            view = replace(view, when=self._views[-1].when)
        self._views.append(view)
        self._show_front()

    def rows_of(self, dataset: str) -> RowWindow | None:
        """Return all rows of a dataset, if they are visible or covered by views; else None."""
        return self._opened.window if dataset == self.dataset and self._opened is not None else None

    @property
    def time_view(self) -> TableView | None:
        """The view of another time, at any position in the stack, or None if absent."""
        return next((view for view in self._views if view.kind == TIME), None)

    def show_time(self, view: TableView) -> None:
        """Replace all views by the rows of another time. Cursor and columns stay."""
        self.cancel_work()
        self.view.clear_marks()
        covered_position = (
            (self.view.cursor, self.view.column) if not self._views else self._views[0].covered_position
        )
        self._views = [replace(view, covered_position=covered_position)]
        self.set_context(view.title)
        self.view.open(view.opened, stay=True, choice=self._choices.get(self._table))
        self.show_position()

    def leave_derived_views(self) -> None:
        """Pop all views in front of the view of another time, or of the dataset's rows."""
        while self._views and self._views[-1].kind != TIME:
            self.pop_view()

    def set_context(self, context: str | None = None) -> None:
        """Set the title. The time of the shown rows comes first; rows have times in UTC."""
        front = self.front_view
        opened = self._opened if front is None else front.opened
        if context and opened is not None and opened.columns.has_times:
            context = f"{context} · times in UTC"
        if context is not None and front is not None and front.when:
            context = f"{front.when} · {context}"
        super().set_context(context)

    def pop_view(self) -> bool:
        """Remove the front view. Returns whether there was one."""
        if not self._views:
            return False
        cursor, column = self._views.pop().covered_position
        if self._views:
            self._show_front()
        elif self._opened is not None:
            self._show_all(stay=False)
        else:
            self.show_message(self.dataset, [(" No rows", "muted")])
            return True
        self.view.go_to_middle(cursor)
        self.view.go_to(cursor, column)
        return True

    def leave_all(self) -> None:
        """Remove all views."""
        while self.pop_view():
            pass

    def _show_front(self) -> None:
        self.cancel_work()
        view = self._views[-1]
        self.set_context(view.title)
        self.view.open(view.opened, stay=False, choice=self._choices.get(self._table))
        self.show_position()

    def _show_all(self, *, stay: bool) -> None:
        if self._opened is not None:
            self.set_context(count_of(self._opened.window.row_count, "row"))
            self.view.open(self._opened, stay=stay, choice=self._choices.get(self._table))
            self.show_position()

    @property
    def _table(self) -> str:
        """The key of the arrangement of columns: the dataset, or the dataset and the kind of the view."""
        view = self.front_view
        if view is None or self._opened is None or view.opened.columns.names == self._opened.columns.names:
            return self.dataset
        return f"{self.dataset} {view.kind}"

    def arrangement(self, dataset: str) -> dict[str, Any]:
        """Return the arrangement of a dataset's columns as plain data, or {} for the stored order."""
        return self._choices.get(dataset, {})

    def set_arrangement(self, dataset: str, choice: Mapping[str, Any]) -> None:
        """Arrange the columns of a dataset, now or when it is shown."""
        self._choices[dataset] = dict(choice)
        if dataset == self._table and self.view.opened is not None:
            self.view.open(self.view.opened, stay=False, choice=choice)

    def store_arrangement(self) -> None:
        """Store the arrangement that the user changed, and repaint the table."""
        self._choices[self._table] = self.view.arrangement.choice()
        self.view.apply_arrangement()

    def on_resize(self) -> None:
        """Update the lower border, which may have room for more or less text."""
        if self.view.opened is not None and self.border_subtitle:
            self.show_position()

    @on(LineView.Moved)
    def show_position(self) -> None:
        """Show row, column and slice of the cursor in the lower border."""
        view = self.view
        if view.opened is None or not view.count():
            self.set_subtitle("")
            return
        parts = [f"row {format_count(view.cursor + 1)} of {format_count(view.count())}"]
        if marked := view.marks.count:
            parts.append(f"{format_count(marked)} marked")
        if view.problem(view.cursor):
            parts.append("cannot be read: press v to verify the dataset")
        else:
            columns = view.opened.columns
            kind = ellipsize_middle(columns.types[view.column], _WIDEST_TYPE)
            parts.append(f"{ellipsize_middle(columns.names[view.column], _WIDEST_NAME)} {kind}")
        if (at := view.slice) >= 0:
            block = format_count(view.slices[at].block)
            parts.append(f"slice {format_count(at + 1)} of {format_count(len(view.slices))} · block {block}")
            if checks := view.slices[at].checks:
                parts.append(f"checks: {checks}")
        if self.front_view is not None and self.front_view.note:
            parts.append(self.front_view.note)
        self._update_subtitle(self._fit_parts(parts))

    def _update_subtitle(self, text: str) -> None:
        """Set the subtitle like :meth:`set_subtitle`, but repaint only the characters that changed."""
        before, after = str(self._border_subtitle or ""), printable(text)
        wide = cell_len(before + after) != len(before + after)
        if not before or not after or wide or max(len(before), len(after)) > self.size.width - 4:
            self.set_subtitle(text)
            return
        changed = [at for at, letters in enumerate(zip_longest(before, after)) if letters[0] != letters[1]]
        if changed:
            self._border_subtitle = Content(after)
            blanks = 2  # one before and one after the text
            self.refresh(Region(changed[0], self.size.height, changed[-1] - changed[0] + 2 * blanks, 1))

    def _fit_parts(self, parts: list[str]) -> str:
        """Join as many of the first parts as fit into the border."""
        while len(parts) > 1 and len(" · ".join(parts)) > self.size.width - 4:
            parts = parts[:-1]
        return " · ".join(parts)

    def marked_ranges(self) -> list[tuple[int, int]]:
        """Return the marked rows of :attr:`window` as ranges; the end of a range is exclusive."""
        rows = self.view.count()
        return [(start, min(stop, rows)) for start, stop in self.view.marks.ranges if start < rows]


PROGRESS_SECONDS: Final = 0.5


class SearchableTables(TableStack):
    """Tables whose filter text is searched in all rows. The cursor moves from match to match."""

    @dataclass
    class SearchProgress(Message):
        """Posted while a search runs, and at its end with the row and column of the match."""

        serial: int
        scanned: int
        match: tuple[int, int] | None
        done: bool
        error: str = ""

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self._origin = 0
        self._previous_row: int | None = None
        self._backwards = False
        self._serial = 0
        self._searching = False
        self._queued_steps: list[bool] = []  # steps requested during a search: True is backwards

    def begin_search(self) -> None:
        """Start the next search at the cursor."""
        self._origin = self.view.cursor

    def set_filter(self, text: str) -> None:
        """Search for a text; an empty text ends the search."""
        if text == self.filter:
            return
        super().set_filter(text)
        self.view.highlight(text.casefold())
        if text:
            self._find(self._origin, None, back=False)
        else:
            self.cancel_work()
            self.show_position()

    def find_again(self, *, back: bool) -> None:
        """Go to the next or the previous row that contains the text."""
        rows, cursor = self.view.count(), self.view.cursor
        if self._searching:
            self._queued_steps.append(back)
        elif rows and self.filter:
            self._find((cursor + (-1 if back else 1)) % rows, cursor, back=back)

    def cancel_work(self) -> bool:
        """Cancel the search. Returns whether one was running."""
        was_active = self._searching
        self._serial += 1
        self._searching, self._queued_steps = False, []
        self.workers.cancel_group(self, "find")
        return was_active or super().cancel_work()

    def _find(self, start: int, previous: int | None, *, back: bool) -> None:
        self.cancel_work()
        opened, text, serial = self.view.opened, self.filter, self._serial
        if opened is None or not self.view.count():
            return
        window, columns = opened.window, self.view.arrangement.shown
        self._searching, self._previous_row, self._backwards = True, previous, back

        def search_rows() -> None:
            worker, reported = get_current_worker(), time.monotonic()
            match: tuple[int, int] | None = None
            scanned = 0
            try:
                for position, scanned in find_next_match(window, text, start, columns, back=back):
                    match = position
                    if worker.is_cancelled:
                        return
                    if time.monotonic() - reported > PROGRESS_SECONDS:
                        reported = time.monotonic()
                        self.post_message(self.SearchProgress(serial, scanned, None, False))
            except Exception as error:  # every error is shown, and the screen stays open
                self.post_message(self.SearchProgress(serial, scanned, None, True, error_line(error)))
            else:
                self.post_message(self.SearchProgress(serial, scanned, match, True))
            finally:
                release_memory()

        self.run_worker(search_rows, thread=True, exclusive=True, group="find", name="find")

    @on(SearchProgress)
    def _show_search_progress(self, message: SearchProgress) -> None:
        """Show the progress of a search, or go to its match."""
        message.stop()
        if message.serial != self._serial:
            return
        rows = format_count(self.view.count())
        if not message.done:
            self.set_subtitle(f"searching: {format_count(message.scanned)} of {rows} rows · esc cancels")
            return
        waiting, self._searching, self._queued_steps = self._queued_steps, False, []
        if message.match is None:
            none = Notice(f"{self.filter} not found in {rows} rows", "warn")
            self.post_message(Notice(message.error, "bad") if message.error else none)
            self.show_position()
            return
        row, column = message.match
        self.view.go_to_middle(row)
        self.view.go_to(row, column)
        self.show_position()
        if self._previous_row is not None:
            self._note_wraparound(row, self._previous_row)
        if waiting:
            self.find_again(back=waiting[0])
            self._queued_steps = waiting[1:]

    def _note_wraparound(self, row: int, previous: int) -> None:
        """Post a notice if the search continued at the other end of the rows."""
        if row == previous:
            self.post_message(Notice("no other match", "warn"))
        elif (row > previous) == self._backwards:
            self.post_message(
                Notice(
                    "search continued at the last row"
                    if self._backwards
                    else "search continued at the first row",
                    "warn",
                )
            )


MATCHES: Final = 5000
TESTS: Final = ("equal", "other", "less", "greater", "null", "filled")


def condition_text(test: str, name: str, value: str) -> str:
    """Describe a test of :data:`TESTS` on a column."""
    value = ellipsize_middle(value, 24)
    words = {"equal": f"is {value}", "other": f"is not {value}", "less": f"< {value}",
             "greater": f"> {value}", "null": "is null", "filled": "is not null"}  # fmt: skip
    return f"{name} {words[test]}"


class DataPane(SearchableTables):
    """The data pane. Sorting and filtering read a limited number of rows; the title states which."""

    @dataclass
    class Derived(Message):
        """Posted when a view was derived. It goes in front of the visible table, or replaces another view."""

        serial: int
        view: TableView | None
        replaces: TableView | None

    @dataclass
    class ScanProgress(Message):
        """Posted while rows are scanned for matches."""

        serial: int
        scanned: int

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self._derive_serial = 0
        self._deriving = False

    def selection(self) -> tuple[str, str] | None:
        """Return the cell under the cursor, as it is shown."""
        text = self.view.value(self.view.cursor, self.view.column) if self.view.count() else None
        return None if text is None else ("cell", text)

    def cancel_work(self) -> bool:
        """Cancel a search or a derivation. Returns whether one was running."""
        was_active = self._deriving
        self._derive_serial += 1
        self._deriving = False
        self.workers.cancel_group(self, "make")
        return super().cancel_work() or was_active

    def sort(self, *, down: bool) -> None:
        """Sort the loaded rows by the column under the cursor. A sorted view is replaced."""
        front, column = self.front_view, self.view.column
        replaces = (
            front if front is not None and front.kind == "sorted" and front.source is not None else None
        )
        opened = replaces.source if replaces is not None else self.view.opened
        if opened is None:
            return
        cursor = replaces.covered_position[0] if replaces is not None else self.view.cursor
        base_text = replaces.base_text if replaces is not None else self._base_text()
        covered_position = replaces.covered_position if replaces is not None else (self.view.cursor, column)
        how = "descending" if down else "ascending"
        note = f"by {opened.columns.names[column]}, {how}"
        rows = opened.window.row_count

        def derive(serial: int) -> TableView:
            start, stop = loaded_range(rows, cursor)
            numbers = sorted_rows(opened.window, start, stop, column, down=down)
            shown = load_window(RowSelection(opened.window, numbers))
            words = base_text or _range_text(start, stop, rows)
            return TableView(shown, f"sorted: {words}", note, "sorted", covered_position, words, opened)

        self.set_subtitle("sorting …")
        self._derive(derive, replaces)

    def filter_by_test(self, test: str) -> None:
        """Show the loaded rows that pass a test of :data:`TESTS` against the cell under the cursor."""
        opened, row, column = self.view.opened, self.view.cursor, self.view.column
        if opened is None:
            return
        base_text, rows = self._base_text(), opened.window.row_count
        note = condition_text(test, opened.columns.names[column], self.view.value(row, column) or "")

        def derive(serial: int) -> TableView:
            start, stop = loaded_range(rows, row)
            numbers = filter_rows(opened.window, start, stop, column, test, row)
            shown = load_window(RowSelection(opened.window, numbers))
            words = f"{format_count(len(numbers))} of {base_text or _range_text(start, stop, rows)}"
            return TableView(shown, f"filtered: {words}", note, "kept", (row, column), words)

        self.set_subtitle("searching …")
        self._derive(derive, None)

    def filter_matches(self) -> None:
        """Show the rows, of all rows, that contain the search text."""
        opened, text = self.view.opened, self.filter
        if opened is None or not text:
            return
        columns, covered_position = self.view.arrangement.shown, (self.view.cursor, self.view.column)
        rows, base_text = opened.window.row_count, self._base_text()

        def derive(serial: int) -> TableView | None:
            worker, reported = get_current_worker(), time.monotonic()
            chunks: list[pa.Array] = []
            for matches, scanned in find_matches(opened.window, text, columns, MATCHES):
                chunks = matches
                if worker.is_cancelled:
                    return None
                if time.monotonic() - reported > PROGRESS_SECONDS:
                    reported = time.monotonic()
                    self.post_message(self.ScanProgress(serial, scanned))
            numbers = pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())
            first = "the first " if len(numbers) == MATCHES else ""
            words = f"{first}{format_count(len(numbers))} of {base_text or format_count(rows) + ' rows'}"
            shown = load_window(RowSelection(opened.window, numbers))
            return TableView(
                shown, f"filtered: {words}", f"rows with {printable(text)}", "kept", covered_position, words
            )

        self.set_subtitle("searching …")
        self._derive(derive, None)

    def reveal_in_all_rows(self) -> bool:
        """Go to the row under the cursor among all rows. Returns False if it is absent there."""
        row, column = self._row_of_base(), self.view.column
        if row is None:
            return False
        self.leave_derived_views()
        self.view.go_to_middle(row)
        self.view.go_to(row, column)
        return True

    def _row_of_base(self) -> int | None:
        front, at = self.front_view, self.time_view
        opened = at.opened if at is not None else self._opened
        if front is None or front is at or opened is None or not self.view.count():
            return None
        window = front.opened.window
        if isinstance(window, RowSelection) and (
            window.base is opened.window or extends(window.base, opened.window)
        ):
            return window.numbers[self.view.cursor].as_py()
        return None

    def _base_text(self) -> str:
        """Describe the rows of the front view, or "" for all rows."""
        return self.front_view.base_text if self.front_view is not None else ""

    def _derive(self, derive: Callable[[int], TableView | None], replaces: TableView | None) -> None:
        self.cancel_work()
        serial = self._derive_serial
        self._deriving = True

        def work(serial: int) -> None:
            try:
                view = derive(serial)
            except Exception as error:  # every error is shown, and the screen stays open
                self.post_message(Notice(error_line(error), "bad"))
                view = None
            self.post_message(self.Derived(serial, view, replaces))

        self.run_worker(partial(work, serial), thread=True, exclusive=True, group="make", name="make")

    @on(ScanProgress)
    def _show_scan_progress(self, message: ScanProgress) -> None:
        """Show the number of scanned rows."""
        message.stop()
        if message.serial == self._derive_serial:
            rows = format_count(self.view.count())
            self.set_subtitle(f"searching: {format_count(message.scanned)} of {rows} rows · esc cancels")

    @on(Derived)
    def _show_derived(self, message: Derived) -> None:
        """Show the derived view."""
        message.stop()
        if message.serial != self._derive_serial:
            return
        self._deriving = False
        if message.view is None:
            self.show_position()
            return
        if message.replaces is not None and message.replaces is self.front_view:
            self._views.pop()
        column = self.view.column
        self.push_view(message.view)
        self.view.go_to(0, column)


def _range_text(start: int, stop: int, rows: int) -> str:
    """Describe the range of loaded rows."""
    return f"rows {format_count(start + 1)}–{format_count(stop)} of {format_count(rows)}"
