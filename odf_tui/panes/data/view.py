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

from odf_tui.gateway.row_window import RowWindow, extends
from odf_tui.text.format import Span, ellipsize_middle, error_line, format_count, printable
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.pane_frame import Pane
from odf_tui.widgets.row_table import LoadedWindow, RowTable, load_window
from odf_tui.widgets.status_bar import Notice

STATE = "state"
QUERY = "sql"
"""Kinds of the views that show the current state, and what a query gave."""


_WIDEST_NAME: Final = 32
_WIDEST_TYPE: Final = 20


class TableView(msgspec.Struct, frozen=True):
    """A table in front of a dataset's rows: part of them, their current state, the result of a query.

    Attributes:
        opened: its rows.
        title: what it is, for the upper border.
        note: what to know about it, for the lower border.
        kind: which part of the workstation made it.
        below: cursor and column of what it covers.
        of: of which rows it was made, in words.
        source: what it was made of.
        when: the time at which the rows are seen, for the upper border; empty: as they are now.
        as_of: whether that is an event time, and not a block.
    """

    opened: LoadedWindow
    title: str
    note: str
    kind: str
    below: tuple[int, int]
    of: str = ""
    source: LoadedWindow | None = None
    when: str = ""
    as_of: bool = False


TIME: Final = "time"
"""The kind of the view that shows the rows of another time."""
_MADE_OF_IT: Final = ("sorted", "kept")


class TableStack(Pane):
    """Shows tables one in front of the other, and remembers how their columns are arranged.

    Attributes:
        dataset: whose rows it shows.
    """

    number = 3
    label = "Data"
    filter_placeholder = "a text to look for in all rows"

    class Other(Message):
        """The pane shows another dataset, or words in place of rows."""

    class Reloaded(Message):
        """The rows of the dataset were read again: ``opened`` replaces those from before."""

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
        """The table."""
        yield RowTable()

    @property
    def view(self) -> RowTable:
        """The table."""
        return self.query_one(RowTable)

    @property
    def window(self) -> RowWindow | None:
        """The rows that are shown now: the dataset's, or those of the view in front of them."""
        return None if self.view.opened is None else self.view.opened.window

    @property
    def front_view(self) -> TableView | None:
        """The view in front of the dataset's rows."""
        return self._views[-1] if self._views else None

    def halt(self) -> bool:
        """Stops what is being looked for in what is shown; whether there was something."""
        return False

    def leave_innermost(self) -> bool:
        """Stop a search, else unmark rows, else leave the front view. Returns whether it did."""
        left = self.halt() or self.view.clear_marks() or self.pop_view()
        self.tell_place()
        return left

    # --- What is shown ---

    def show_message(self, dataset: str, *lines: Sequence[Span]) -> None:
        """Shows words instead of rows."""
        self.halt()
        self.dataset, self._opened, self._views = dataset, None, []
        self.view.show_message(*lines)
        self.set_subtitle("")
        self.set_context("")
        self.post_message(self.Other())

    def show(self, dataset: str, opened: LoadedWindow) -> None:
        """Shows rows. For the same dataset the cursor stays where it is, and so do the views before them."""
        stay = dataset == self.dataset and self._opened is not None
        self.dataset, self._opened = dataset, opened
        if not stay:
            self.halt()
            self._views = []
        if not self._views:
            self._show_all(stay=stay)
        self.post_message(self.Reloaded(opened) if stay else self.Other())

    def shows(self, dataset: str) -> bool:
        """Whether all rows of this dataset are in the table."""
        return dataset == self.dataset and self._opened is not None and self.view.opened is self._opened

    def show_view(
        self, dataset: str, opened: LoadedWindow, title: str, note: str = "", kind: str = ""
    ) -> None:
        """Puts a table in front of a dataset's rows, until :meth:`leave`.

        Args:
            dataset: whose rows it covers; for another one than is shown, it covers nothing.
            opened: its rows, which may be none.
            title: what it is, for the upper border.
            note: what to know about it, for the lower border.
            kind: which part of the workstation made it; see :attr:`front_view`.
        """
        if dataset != self.dataset:
            self.show_message(dataset)
        title = f"{title} · {format_count(opened.window.row_count)} rows"
        self.push_view(TableView(opened, title, note, kind, (self.view.cursor, self.view.column)))

    def push_view(self, view: TableView) -> None:
        """Puts a view before what is shown."""
        if view.kind in _MADE_OF_IT and self._views:
            view = replace(view, when=self._views[-1].when)
        self._views.append(view)
        self._show_front()

    def rows_of(self, dataset: str) -> RowWindow | None:
        """All rows of a dataset, when they are shown or lie under what is."""
        return self._opened.window if dataset == self.dataset and self._opened is not None else None

    @property
    def time_view(self) -> TableView | None:
        """The view of another time, wherever it is among the views."""
        return next((view for view in self._views if view.kind == TIME), None)

    def show_time(self, view: TableView) -> None:
        """Shows the rows of another time in place of all that is shown; cursor and columns stay."""
        self.halt()
        self.view.clear_marks()
        below = (self.view.cursor, self.view.column) if not self._views else self._views[0].below
        self._views = [replace(view, below=below)]
        self.set_context(view.title)
        self.view.open(view.opened, stay=True, choice=self._choices.get(self._table))
        self.tell_place()

    def leave_to_time(self) -> None:
        """Takes away the views that were made of what is shown at a time, or of all rows."""
        while self._views and self._views[-1].kind != TIME:
            self.pop_view()

    def set_context(self, context: str | None = None) -> None:
        """Title; the time at which the rows are seen comes first."""
        front = self.front_view
        if context is not None and front is not None and front.when:
            context = f"{front.when} · {context}"
        super().set_context(context)

    def pop_view(self) -> bool:
        """Takes the front view away; whether there was one."""
        if not self._views:
            return False
        cursor, column = self._views.pop().below
        if self._views:
            self._show_front()
        elif self._opened is not None:
            self._show_all(stay=False)
        else:
            self.show_message(self.dataset, [(" No rows are shown.", "muted")])
            return True
        self.view.go_to_middle(cursor)
        self.view.go_to(cursor, column)
        return True

    def leave_all(self) -> None:
        """Takes all views away."""
        while self.pop_view():
            pass

    def _show_front(self) -> None:
        self.halt()
        view = self._views[-1]
        self.set_context(view.title)
        self.view.open(view.opened, stay=False, choice=self._choices.get(self._table))
        self.tell_place()

    def _show_all(self, *, stay: bool) -> None:
        if self._opened is not None:
            self.set_context(f"{format_count(self._opened.window.row_count)} rows")
            self.view.open(self._opened, stay=stay, choice=self._choices.get(self._table))
            self.tell_place()

    # --- Columns ---

    @property
    def _table(self) -> str:
        """What columns are arranged for: a dataset's rows and what is made of them, or another table."""
        view = self.front_view
        if view is None or self._opened is None or view.opened.columns.names == self._opened.columns.names:
            return self.dataset
        return f"{self.dataset} {view.kind}"

    def arrangement(self, dataset: str) -> dict[str, Any]:
        """How a reader arranged the columns of a dataset, as plain data; empty: as they are stored."""
        return self._choices.get(dataset, {})

    def set_arrangement(self, dataset: str, choice: Mapping[str, Any]) -> None:
        """Arranges the columns of a dataset, now or when it is shown."""
        self._choices[dataset] = dict(choice)
        if dataset == self._table and self.view.opened is not None:
            self.view.open(self.view.opened, stay=False, choice=choice)

    def rearranged(self) -> None:
        """The reader has changed the arrangement."""
        self._choices[self._table] = self.view.arrangement.choice()
        self.view.apply_arrangement()

    # --- Where the cursor is ---

    def on_resize(self) -> None:
        """There is room for more, or less."""
        if self.view.opened is not None and self.border_subtitle:
            self.tell_place()

    @on(LineView.Moved)
    def tell_place(self) -> None:
        """Says in the lower border which row, column and slice the cursor is on."""
        view = self.view
        if view.opened is None or not view.count():
            self.set_subtitle("")
            return
        parts = [f"row {format_count(view.cursor + 1)} of {format_count(view.count())}"]
        if marked := view.marks.count:
            parts.append(f"{format_count(marked)} marked")
        if view.problem(view.cursor):
            parts.append("cannot be read: v verifies the dataset")
        else:
            columns = view.opened.columns
            kind = ellipsize_middle(columns.types[view.column], _WIDEST_TYPE)
            parts.append(f"{ellipsize_middle(columns.names[view.column], _WIDEST_NAME)} {kind}")
        if (at := view.slice) >= 0:
            block = format_count(view.slices[at].block)
            parts.append(f"slice {format_count(at + 1)} of {format_count(len(view.slices))} · block {block}")
        if self.front_view is not None and self.front_view.note:
            parts.append(self.front_view.note)
        self._tell_part(self._fitting(parts))

    def _tell_part(self, text: str) -> None:
        """As :meth:`set_subtitle`, but paints only what has changed: at most steps, a digit or two."""
        before, after = str(self._border_subtitle or ""), printable(text)
        wide = cell_len(before + after) != len(before + after)
        if not before or not after or wide or max(len(before), len(after)) > self.size.width - 4:
            self.set_subtitle(text)
            return
        changed = [at for at, letters in enumerate(zip_longest(before, after)) if letters[0] != letters[1]]
        if changed:
            self._border_subtitle = Content(after)
            blanks = 2  # one before the text, one behind it
            self.refresh(Region(changed[0], self.size.height, changed[-1] - changed[0] + 2 * blanks, 1))

    def _fitting(self, parts: list[str]) -> str:
        """As many of the parts as there is room for."""
        while len(parts) > 1 and len(" · ".join(parts)) > self.size.width - 4:
            parts = parts[:-1]
        return " · ".join(parts)

    def marked(self) -> list[tuple[int, int]]:
        """The rows of :attr:`window` that are marked, as ranges: from a row to the one after the last."""
        rows = self.view.count()
        return [(start, min(stop, rows)) for start, stop in self.view.marks.ranges if start < rows]


TELL_SECONDS: Final = 0.5


class SearchableTables(TableStack):
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
        self.view.highlight(text.casefold())
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
            from odf_tui.panes.data.derived_rows import find
            from odf_tui.text.values import release_memory

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
                self.post_message(self.Looked(serial, looked, None, True, error_line(error)))
            else:
                self.post_message(self.Looked(serial, looked, place, True))
            finally:
                release_memory()

        self.run_worker(look, thread=True, exclusive=True, group="find", name="find")

    @on(Looked)
    def _looked(self, message: Looked) -> None:
        """Shows how far a search is, or what it has found."""
        message.stop()
        if message.serial != self._serial:
            return
        rows = format_count(self.view.count())
        if not message.done:
            self.set_subtitle(f"looking: {format_count(message.looked)} of {rows} rows · esc stops")
            return
        waiting, self._looking, self._waiting = self._waiting, False, []
        if message.place is None:
            none = Notice(f"none of {rows} rows holds {self.filter}", "warn")
            self.post_message(Notice(message.error, "bad") if message.error else none)
            self.tell_place()
            return
        row, column = message.place
        self.view.go_to_middle(row)
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


MATCHES: Final = 5000
TESTS: Final = ("equal", "other", "less", "greater", "null", "filled")


def condition(test: str, name: str, value: str) -> str:
    """One of :data:`TESTS` in words."""
    value = ellipsize_middle(value, 24)
    words = {"equal": f"is {value}", "other": f"is not {value}", "less": f"< {value}",
             "greater": f"> {value}", "null": "has no value", "filled": "has a value"}  # fmt: skip
    return f"{name} {words[test]}"


class DataPane(SearchableTables):
    """The preview. Sorting and keeping some rows look at what is loaded, and say so: see ``derived.py``."""

    @dataclass
    class Derived(Message):
        """Another table was made of what is shown, to be put in front of it (or of what that was made of)."""

        serial: int
        view: TableView | None
        replaces: TableView | None

    @dataclass
    class Progress(Message):
        """So many rows were looked at."""

        serial: int
        looked: int

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self._making = 0
        self._busy_making = False

    def selection(self) -> tuple[str, str] | None:
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

        def make(serial: int) -> TableView:
            from odf_tui.panes.data.derived_rows import RowSelection, loaded, sorted_rows

            start, stop = loaded(rows, cursor)
            numbers = sorted_rows(opened.window, start, stop, column, down=down)
            shown = load_window(RowSelection(opened.window, numbers))
            words = of or _range(start, stop, rows)
            return TableView(shown, f"sorted: {words}", note, "sorted", below, words, opened)

        self.set_subtitle("sorting …")
        self._make(make, replaces)

    def keep(self, test: str) -> None:
        """Keeps the loaded rows that pass a test of :data:`TESTS` against the cell under the cursor."""
        opened, row, column = self.view.opened, self.view.cursor, self.view.column
        if opened is None:
            return
        of, rows = self._of(), opened.window.row_count
        note = condition(test, opened.columns.names[column], self.view.value(row, column) or "")

        def make(serial: int) -> TableView:
            from odf_tui.panes.data.derived_rows import RowSelection, filter_rows, loaded

            start, stop = loaded(rows, row)
            numbers = filter_rows(opened.window, start, stop, column, test, row)
            shown = load_window(RowSelection(opened.window, numbers))
            words = f"{format_count(len(numbers))} of {of or _range(start, stop, rows)}"
            return TableView(shown, f"kept: {words}", note, "kept", (row, column), words)

        self.set_subtitle("looking …")
        self._make(make, None)

    def keep_found(self) -> None:
        """Keeps the rows, of all rows, that hold the text that is looked for."""
        opened, text = self.view.opened, self.filter
        if opened is None or not text:
            return
        columns, below = self.view.arrangement.shown, (self.view.cursor, self.view.column)
        rows, of = opened.window.row_count, self._of()

        def make(serial: int) -> TableView | None:
            import pyarrow as pa

            from odf_tui.panes.data.derived_rows import RowSelection, search

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
            words = f"{first}{format_count(len(numbers))} of {of or format_count(rows) + ' rows'}"
            shown = load_window(RowSelection(opened.window, numbers))
            return TableView(shown, f"kept: {words}", f"rows with {printable(text)}", "kept", below, words)

        self.set_subtitle("looking …")
        self._make(make, None)

    def reveal_in_all_rows(self) -> bool:
        """Goes to the row under the cursor among all rows of the dataset; whether it is one of them."""
        row, column = self._row_of_base(), self.view.column
        if row is None:
            return False
        self.leave_to_time()
        self.view.go_to_middle(row)
        self.view.go_to(row, column)
        return True

    def _row_of_base(self) -> int | None:
        front, at = self.front_view, self.time_view
        opened = at.opened if at is not None else self._opened
        if front is None or front is at or opened is None or not self.view.count():
            return None
        from odf_tui.panes.data.derived_rows import RowSelection  # Arrow is here by now: such a view was made

        window = front.opened.window
        if isinstance(window, RowSelection) and (
            window.base is opened.window or extends(window.base, opened.window)
        ):
            return window.numbers[self.view.cursor].as_py()
        return None

    def _of(self) -> str:
        """Which rows the front view has, when it was made of others."""
        return self.front_view.of if self.front_view is not None else ""

    def _make(self, make: Callable[[int], TableView | None], replaces: TableView | None) -> None:
        self.halt()
        serial = self._making
        self._busy_making = True

        def work(serial: int) -> None:
            try:
                view = make(serial)
            except Exception as error:  # whatever it is, it is shown, and the screen lives on
                self.post_message(Notice(error_line(error), "bad"))
                view = None
            self.post_message(self.Derived(serial, view, replaces))

        self.run_worker(partial(work, serial), thread=True, exclusive=True, group="make", name="make")

    @on(Progress)
    def _progress(self, message: Progress) -> None:
        """Shows how far it is."""
        message.stop()
        if message.serial == self._making:
            rows = format_count(self.view.count())
            self.set_subtitle(f"looking: {format_count(message.looked)} of {rows} rows · esc stops")

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
        self.push_view(message.view)
        self.view.go_to(0, column)


def _range(start: int, stop: int, rows: int) -> str:
    """Which rows are loaded, in words."""
    return f"rows {format_count(start + 1)}–{format_count(stop)} of {format_count(rows)}"
