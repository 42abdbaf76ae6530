"""Where rows come from: a tree that opens step by step, and beside it all about the line under the cursor."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.binding import Binding, BindingType

from odf_tui.humane import count, explained, plain
from odf_tui.inquiry import making_of, place_of
from odf_tui.screens.dialogs import MOVE_KEYS, Picker, Reader
from odf_tui.screens.trace_base import TraceBase, asked_at
from odf_tui.state import Target
from odf_tui.tracefiles import text_of
from odf_tui.tracenodes import Asked, Group, Node
from odf_tui.tracetree import Line
from odf_tui.tracewords import column_at, marked_by, query_lines
from odf_tui.widgets.choices import Choice
from odf_tui.widgets.lines import Paragraphs


class QueryReader(Reader):
    """Reads a query; long lines go on in the next one."""

    def body(self) -> Paragraphs:
        """The lines."""
        return Paragraphs()


class TraceScreen(TraceBase):
    """What the keys do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "enter", "open it; or read all about it, if it is open", show=False),
        Binding("l,right", "open", "open it, or go into it", show=False),
        Binding("h,left", "close", "close it, or go to what it is under", show=False),
        Binding("space,i", "read", "read all about it, and back", show=False),
        Binding("w", "turn", "the value under the cursor instead of the whole row, and back", show=False),
        Binding("c", "column", "the value of another column", show=False),
        Binding("a", "all", "trace all rows of this input at once", show=False),
        Binding("q", "query", "show the query in full", show=False),
        Binding("b", "block", "go to the block in pane 2", show=False),
        Binding("o", "row", "go to the row in pane 3", show=False),
        Binding("x", "stop", "stop looking", show=False),
        Binding("r", "again", "look again", show=False),
        Binding("v", "check", "check the step: run it again with these rows alone, and without", show=False),
        Binding("y", "copy", "copy the tree as it is shown", show=False),
        Binding("e,E", "save", "write the trace to a file, as JSON or for Graphviz", show=False),
        Binding("J", "scroll('down')", "scroll what is at the right", show=False),
        Binding("K", "scroll('above')", "scroll it back", show=False),
        Binding("escape", "leave", "back", show=False),
        *MOVE_KEYS,
    ]

    def key_list(self) -> list[Choice]:
        """What the keys do, without those that every screen has."""
        return [each for each in super().key_list() if "." not in each.id]

    # --- Opening and closing ---

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
        self.action_enter()

    def action_move(self, move: str) -> None:
        """Through the tree, or through what is read."""
        (self.detail if self.has_class("-reading") else self.view).move(move)

    def action_scroll(self, move: str) -> None:
        """Through what is at the right."""
        self.detail.move(move)

    def action_enter(self) -> None:
        """Opens a line; reads one that is open, or has nothing under it."""
        node = self.node_at(self.view.line)
        if self.has_class("-reading"):
            self.action_read()
        elif self._can_open() and not (node is not None and node.open):
            self._open()
        else:
            self.action_read()

    def action_open(self) -> None:
        """Opens a line, or goes into it."""
        if self.has_class("-reading"):
            return
        node = self.node_at(self.view.line)
        if node is not None and node.open and node.opens:
            self.view.move("down")
        elif self._can_open():
            self._open()

    def action_close(self) -> None:
        """Closes a line, or goes to the one that it is under."""
        if self.has_class("-reading"):
            self.action_read()
            return
        line = self.view.line
        node = self.node_at(line)
        if node is not None and node.open and node.opens:
            node.open = False
            self.view.relay()
        elif (above := self.trace.above(line)) is not None:
            self.view.stand(above)

    def _can_open(self) -> bool:
        line = self.view.line
        return not line.node.missing if line.row >= 0 and isinstance(line.node, Group) else line.node.opens

    def _open(self) -> None:
        node = self.trace.opener(self.view.line)
        node.open = True
        if isinstance(node, Asked) and node.wanted:
            self.ask(node)
        else:
            self.view.relay()

    def action_read(self) -> None:
        """All about a line in the whole window, and back."""
        self.set_class(not self.has_class("-reading"), "-reading")
        self.call_after_refresh(self.show_detail)
        self.tell_keys()

    def action_leave(self) -> None:
        """From reading to the tree, from there to the workbench."""
        if self.has_class("-reading"):
            self.action_read()
        else:
            self.dismiss(None)

    def action_turn(self) -> None:
        """The value alone, or the whole row."""
        if self.inquiry.column is None and not self.inquiry.ours:
            self.action_column()  # what the system wrote has no origin of its own
        else:
            self._trace(self.inquiry.value if self.inquiry.column is None else None)

    def action_column(self) -> None:
        """Asks for another column."""
        reader = self.trace.top.reader
        names = [] if reader is None else reader.all_names
        if not names:
            self.say("the row has to be read first")
            return
        choices = [Choice(name, plain(name), (), "") for name in names]
        title = f"The value of which column of row {count(self.inquiry.offset)}?"
        self.app.push_screen(Picker(title, choices, typing=True), self._trace_column)

    def _trace_column(self, name: str | None) -> None:
        if name is not None:
            self.inquiry.value, self.inquiry.ours = name, True
            self._trace(name)

    def _trace(self, column: str | None) -> None:
        self.trace.cursor = self.view.cursor
        self.inquiry.column = column
        self.view.show_trace(self.trace)
        self.begin()

    def action_all(self) -> None:
        """Traces all rows of an input at once."""
        node: Node | None = self.view.line.node
        while node is not None and not isinstance(node, Group):
            node = node.above
        whole = node.whole if node is not None else None
        if node is None or whole is None:
            self.say("this is one row: ⏎ opens it")
            return
        node.open = whole.open = True
        if whole.wanted:
            self.ask(whole)
        else:
            self.view.relay()
        self.view.stand(Line(whole))

    def action_stop(self) -> None:
        """Stops the job of the line, else the newest."""
        asked, waiting = asked_at(self.view.line), self.waiting()
        job = asked.job if asked is not None and asked.job in waiting else (waiting or [""])[-1]
        if job:
            self.run_worker(self.stops(job), group="stop", name="stop")

    def action_again(self) -> None:
        """Looks again for what was not found."""
        asked = asked_at(self.view.line)
        if asked is not None and asked.wanted:
            self.ask(asked)

    def action_check(self) -> None:
        """Lets the worker check a step."""
        asked = asked_at(self.view.line)
        if asked is None or asked.step is None or asked.job:
            self.say("⏎ looks first where it comes from")
        elif not asked.step.feeds:
            self.say("nothing here made these rows: there is nothing to run again")
        else:
            self.ask(asked, check=True)

    # --- Elsewhere ---

    def action_query(self) -> None:
        """The query that made the rows."""
        making = making_of(self.view.line)
        if making is None or not making.made.query:
            self.say("no query made this: it came from a source, or ⏎ looks where it comes from")
            return
        lines = query_lines(making.made.query, marked_by(making.step, column_at(making)))
        title = f"{making.step.name} · block {count(making.made.sequence_number)}"
        self.app.push_screen(QueryReader(title, lines, lambda text: self.say(f"query: {self.copied(text)}")))

    def action_block(self) -> None:
        """Its block, in pane 2."""
        self._go(block=True)

    def action_row(self) -> None:
        """Its row, in pane 3."""
        self._go(block=False)

    def _go(self, *, block: bool) -> None:
        place = place_of(self.view.line)
        if place is None:
            return

        def target() -> Target:
            if not block:
                return Target(place.dataset, "data", self.inquiry.row_of(place.dataset, place.offset))
            if isinstance(place.block, int):
                return Target(place.dataset, "blocks", place.block)
            numbers = self.source.block_numbers(place.dataset, (place.block,)) if place.block else {}
            number = numbers.get(place.block or "")
            if number is None:
                number = self.source.find_block(place.dataset, f"#{place.offset}")
            return Target(place.dataset, "blocks", number)

        async def go() -> None:
            try:
                self.dismiss(await asyncio.to_thread(target))
            except Exception as error:  # whatever it is, it is shown, and the screen lives on
                self.say(explained(error))

        self.run_worker(go(), group="going", name="going")

    def action_copy(self) -> None:
        """Copies what is shown: the tree, or all about a line."""
        reading = self.has_class("-reading")
        lines = self.detail.given if reading else map(self.view.spans_in_full, range(self.trace.count))
        self.say(f"{'text' if reading else 'trace'}: {self.copied(text_of(lines))}")

    def action_save(self) -> None:
        """Writes the trace to a file."""
        self.saves(self)
