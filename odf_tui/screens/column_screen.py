"""Which columns feed those of a dataset, and which they feed; from there on through the graph."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.workspace.column_lineage import ColumnGraph, ColumnRef, is_source
from odf_tui.columnmap import ColumnMap, words
from odf_tui.columnwords import title_of
from odf_tui.humane import explained, plain
from odf_tui.screens.dialogs import MOVE_KEYS, Dialog
from odf_tui.widgets.column_map import ColumnMapView
from odf_tui.widgets.lines import Paragraphs


class ColumnScreen(Dialog[str]):
    """Shows columns. Ends with the id of the dataset that was gone to.

    Args:
        dataset: its id.
        name: how it is called.
        column: the one to begin at.
        read: reads the columns of a dataset and of all around it; slow.
        copy: takes what it is and its text.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", "go to the dataset of the column", show=False),
        Binding("h,left", "turn(-1)", "to what it comes from", show=False),
        Binding("l,right", "turn(1)", "to what it goes into", show=False),
        Binding("o", "select", "close this, and select the dataset", show=False),
        Binding("y", "copy", "copy what is said of the column", show=False),
        Binding("J", "scroll('down')", "scroll what is said", show=False),
        Binding("K", "scroll('above')", "scroll it back", show=False),
        Binding("escape,backspace", "back", "back", show=False),
        Binding("q,number_sign", "dismiss(None)", "close", show=False),
        *MOVE_KEYS,
    ]

    def __init__(
        self,
        dataset: str,
        name: str,
        column: str | None,
        read: Callable[[str], Awaitable[ColumnGraph]],
        copy: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self._first = (dataset, column)
        self._name, self._read, self._copy = name, read, copy
        self._before: list[ColumnRef] = []

    def compose(self) -> ComposeResult:
        """The lists, and what is said of the column under the cursor."""
        with Vertical(classes="dialog reader column-lineage") as box:
            box.border_title = Content(f"Columns of {plain(self._name)}")
            yield ColumnMapView()
            yield Paragraphs(id="about-place")

    @property
    def view(self) -> ColumnMapView:
        """The lists."""
        return self.query_one(ColumnMapView)

    def on_mount(self) -> None:
        """Reads the columns."""
        self._tell_keys()
        self._open(*self._first)

    def _open(self, dataset: str, column: str | None, before: list[ColumnRef] | None = None) -> None:
        self.run_worker(self._show(dataset, column, before), group="columns", name="columns", exclusive=True)

    async def _show(self, dataset: str, column: str | None, before: list[ColumnRef] | None) -> None:
        try:
            graph = await self._read(dataset)
            shown = await asyncio.to_thread(ColumnMap, graph, dataset, column)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self._about.set([[(f" {explained(error)}", "bad")]])
            return
        if before is not None:
            self._before = before
        self.query_one(".dialog").border_title = Content(f"Columns of {plain(title_of(graph, dataset))}")
        self.view.set(shown)
        self._moved()

    @property
    def _about(self) -> Paragraphs:
        return self.query_one("#about-place", Paragraphs)

    def _moved(self) -> None:
        if self.view.shown is not None:
            self.view.follow()
            self._about.set(words(self.view.shown))
            self._about.scroll_to(0, 0, animate=False)
        self._tell_keys()

    def _tell_keys(self) -> None:
        aside = self.view.shown is not None and self.view.shown.side != "middle"
        back = "esc back" if aside or self._before else "esc closes"
        goes = "⏎ goes there" if aside else "⏎ follows it"
        self.query_one(".dialog").border_subtitle = Content(f"j k columns · h l sides · {goes} · {back}")

    # --- Keys ---

    def action_move(self, move: str) -> None:
        """Moves the cursor."""
        if self.view.shown is not None:
            self.view.shown.move(move, max(self.view.room.height - 1, 1))
            self._moved()

    def action_turn(self, by: int) -> None:
        """To the list beside this one."""
        if self.view.shown is not None and self.view.shown.turn(by):
            self._moved()

    def action_scroll(self, move: str) -> None:
        """Scrolls what is said."""
        self._about.move(move)

    def action_go(self) -> None:
        """From the middle to what is connected; from there to its dataset."""
        shown = self.view.shown
        if shown is None:
            return
        if shown.side == "middle":
            by = -1 if shown.connected("left") else 1 if shown.connected("right") else 0
            if by:
                self.action_turn(by)
            return
        here = shown.here
        if here is None or shown.place is None:
            return
        if shown.graph.is_in_workspace(here.dataset):
            self._open(here.dataset, here.column, [*self._before, shown.place])
        else:
            why = "nothing lies before what is read" if is_source(here.dataset) else "the dataset is not here"
            self._about.set([*words(shown), [(f" {why}", "warn")]])

    def action_back(self) -> None:
        """To where one came from."""
        if self.view.shown is not None and self.view.shown.side != "middle":
            self.view.shown.side = "middle"
            self._moved()
        elif self._before:
            *before, place = self._before
            self._open(*place, before)
        else:
            self.dismiss(None)

    def action_select(self) -> None:
        """Closes, and selects the dataset."""
        shown = self.view.shown
        here = shown.here if shown is not None else None
        if shown is not None and here is not None:
            self.dismiss(here.dataset if shown.graph.is_in_workspace(here.dataset) else shown.dataset)

    def action_copy(self) -> None:
        """Copies what is said."""
        lines = ["".join(text for text, _ in line).strip() for line in self._about.given]
        if lines:
            self._copy("columns", "\n".join(lines))
