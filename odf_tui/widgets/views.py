"""Pane 3's tables: the rows of a dataset, and other tables in front of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from odf_tui.humane import count, plain, shorten
from odf_tui.source import RowWindow
from odf_tui.widgets.chunks import Opened
from odf_tui.widgets.lines import LineView, Span
from odf_tui.widgets.pane import Pane
from odf_tui.widgets.rows import RowsView

_WIDEST_NAME: Final = 32
_WIDEST_TYPE: Final = 20


class View(msgspec.Struct, frozen=True):
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
    """

    opened: Opened
    title: str
    note: str
    kind: str
    below: tuple[int, int]
    of: str = ""
    source: Opened | None = None
    when: str = ""


TIME: Final = "time"
"""The kind of the view that shows the rows of another time."""
_MADE_OF_IT: Final = ("sorted", "kept")


class ViewsPane(Pane):
    """Shows tables one in front of the other, and remembers how their columns are arranged.

    Attributes:
        dataset: whose rows it shows.
    """

    number = 3
    label = "Data"

    class Other(Message):
        """The pane shows another dataset, or words in place of rows."""

    def __init__(self, id: str, classes: str = "") -> None:
        super().__init__(id, classes)
        self.dataset = ""
        self._opened: Opened | None = None
        self._views: list[View] = []
        self._choices: dict[str, dict[str, Any]] = {}

    def compose(self) -> ComposeResult:
        """The table."""
        yield RowsView()

    @property
    def view(self) -> RowsView:
        """The table."""
        return self.query_one(RowsView)

    @property
    def window(self) -> RowWindow | None:
        """The rows that are shown now: the dataset's, or those of the view in front of them."""
        return None if self.view.opened is None else self.view.opened.window

    @property
    def front_view(self) -> View | None:
        """The view in front of the dataset's rows."""
        return self._views[-1] if self._views else None

    def halt(self) -> bool:
        """Stops what is being looked for in what is shown; whether there was something."""
        return False

    # --- What is shown ---

    def say(self, dataset: str, *lines: Sequence[Span]) -> None:
        """Shows words instead of rows."""
        self.halt()
        self.dataset, self._opened, self._views = dataset, None, []
        self.view.say(*lines)
        self.tell_below("")
        self.retitle("")
        self.post_message(self.Other())

    def show(self, dataset: str, opened: Opened) -> None:
        """Shows rows. For the same dataset the cursor stays where it is, and so do the views before them."""
        stay = dataset == self.dataset and self._opened is not None
        self.dataset, self._opened = dataset, opened
        if not stay:
            self.halt()
            self._views = []
        if not self._views:
            self._show_all(stay=stay)
        if not stay:
            self.post_message(self.Other())

    def shows(self, dataset: str) -> bool:
        """Whether all rows of this dataset are in the table."""
        return dataset == self.dataset and self._opened is not None and self.view.opened is self._opened

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
        title = f"{title} · {count(opened.window.row_count)} rows"
        self.put(View(opened, title, note, kind, (self.view.cursor, self.view.column)))

    def put(self, view: View) -> None:
        """Puts a view before what is shown."""
        if view.kind in _MADE_OF_IT and self._views:
            view = replace(view, when=self._views[-1].when)
        self._views.append(view)
        self._show_front()

    def rows_of(self, dataset: str) -> RowWindow | None:
        """All rows of a dataset, when they are shown or lie under what is."""
        return self._opened.window if dataset == self.dataset and self._opened is not None else None

    @property
    def time_view(self) -> View | None:
        """The view of another time, wherever it is among the views."""
        return next((view for view in self._views if view.kind == TIME), None)

    def show_time(self, view: View) -> None:
        """Shows the rows of another time in place of all that is shown; cursor and columns stay."""
        self.halt()
        self.view.unmark()
        below = (self.view.cursor, self.view.column) if not self._views else self._views[0].below
        self._views = [replace(view, below=below)]
        self.retitle(view.title)
        self.view.open(view.opened, stay=True, choice=self._choices.get(self._table))
        self.tell_place()

    def leave_to_time(self) -> None:
        """Takes away the views that were made of what is shown at a time, or of all rows."""
        while self._views and self._views[-1].kind != TIME:
            self.leave()

    def retitle(self, context: str | None = None) -> None:
        """Title; the time at which the rows are seen comes first."""
        front = self.front_view
        if context is not None and front is not None and front.when:
            context = f"{front.when} · {context}"
        super().retitle(context)

    def leave(self) -> bool:
        """Takes the front view away; whether there was one."""
        if not self._views:
            return False
        cursor, column = self._views.pop().below
        if self._views:
            self._show_front()
        elif self._opened is not None:
            self._show_all(stay=False)
        else:
            self.say(self.dataset, [(" No rows are shown.", "muted")])
            return True
        self.view.go_centred(cursor)
        self.view.go_to(cursor, column)
        return True

    def leave_all(self) -> None:
        """Takes all views away."""
        while self.leave():
            pass

    def _show_front(self) -> None:
        self.halt()
        view = self._views[-1]
        self.retitle(view.title)
        self.view.open(view.opened, stay=False, choice=self._choices.get(self._table))
        self.tell_place()

    def _show_all(self, *, stay: bool) -> None:
        if self._opened is not None:
            self.retitle(f"{count(self._opened.window.row_count)} rows")
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
        self.view.rearranged()

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
            self.tell_below("")
            return
        parts = [f"row {count(view.cursor + 1)} of {count(view.count())}"]
        if marked := view.marks.count:
            parts.append(f"{count(marked)} marked")
        if view.problem(view.cursor):
            parts.append("cannot be read: v verifies the dataset")
        else:
            columns = view.opened.columns
            kind = shorten(columns.types[view.column], _WIDEST_TYPE)
            parts.append(f"{shorten(columns.names[view.column], _WIDEST_NAME)} {kind}")
        if (at := view.slice) >= 0:
            block = count(view.slices[at].block)
            parts.append(f"slice {count(at + 1)} of {count(len(view.slices))} · block {block}")
        if self.front_view is not None and self.front_view.note:
            parts.append(self.front_view.note)
        self._tell_part(self._fitting(parts))

    def _tell_part(self, text: str) -> None:
        """As :meth:`tell_below`, but paints only what has changed: at most steps, a digit or two."""
        before, after = str(self._border_subtitle or ""), plain(text)
        wide = cell_len(before + after) != len(before + after)
        if not before or not after or wide or max(len(before), len(after)) > self.size.width - 4:
            self.tell_below(text)
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
