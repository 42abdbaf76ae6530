"""The screen of a trace: tree, details, jobs for further steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer

from odf_engine.coordinator.protocol import Job, JobState, Trace, decode_result
from odf_engine.errors import NotFound, OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.features.provenance.trace_text import column_at, line_detail, marked_by, query_lines, text_of
from odf_tui.features.provenance.trace_tree import (
    Group,
    Line,
    Node,
    TracedRows,
    TraceSession,
    TraceTree,
    place_of,
    transaction_at,
)
from odf_tui.features.provenance.trace_view import TraceView
from odf_tui.gateway.protocol import Gateway
from odf_tui.state.job_book import JobBook
from odf_tui.state.model import Target
from odf_tui.text.format import error_with_hint, format_count, printable
from odf_tui.text.job_text import job_activity
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import MOVE_KEYS, OverlayScreen, PickerDialog, TextDialog
from odf_tui.widgets.line_view import WrappedLines

if TYPE_CHECKING:
    from odf_tui.gateway.row_text import Record


_LOOK_SECONDS: Final = 0.1
_ASKING: Final = "asking"
_STOPPED: Final = "stopped: r looks again"


class TraceScreen(OverlayScreen[Target]):
    """Shows a trace; ends with a place to go to, or with none.

    Args:
        inquiry: what is asked.
        source: reads.
        book: learns of the jobs.
        ask: hands a request to the worker for a dataset of this name; gives the job.
        stop: stops a job.
        copy: copies a text, and says by which way.
        save: asks where to save the trace, and does.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 (as Textual declares it)
    CSS = """
    #trace-tree { width: 5fr; }
    #trace-detail { width: 4fr; border-left: solid $rule; overflow-x: hidden; }
    TraceScreen.-narrow #trace-detail { display: none; }
    TraceScreen.-reading #trace-tree { display: none; }
    TraceScreen.-reading #trace-detail { display: block; border-left: none; }
    """

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

    def __init__(
        self,
        inquiry: TraceSession,
        source: Gateway,
        book: JobBook,
        *,
        ask: Callable[[Trace, str], Awaitable[str]],
        stop: Callable[[str], Awaitable[None]],
        copy: Callable[[str], str],
        save: Callable[[TraceScreen], None],
    ) -> None:
        super().__init__()
        self.inquiry = inquiry
        self.source, self._book = source, book
        self._ask_worker, self.stops, self.copied, self.saves = ask, stop, copy, save
        self._record: tuple[Line, Record | None] | None = None
        self._reading = False
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """The tree, and all about a line."""
        with Vertical(classes="dialog log"), Horizontal():
            yield TraceView(self.inquiry.tree, self.inquiry.rows)
            yield WrappedLines(id="trace-detail")

    @property
    def view(self) -> TraceView:
        """The tree."""
        return self.query_one(TraceView)

    @property
    def detail(self) -> WrappedLines:
        """All about the line under the cursor."""
        return self.query_one("#trace-detail", WrappedLines)

    @property
    def trace(self) -> TraceTree:
        """What is shown."""
        return self.inquiry.tree

    def on_mount(self) -> None:
        """Looks for the first step."""
        for tree in self.inquiry.trees:
            for asked in [each for each in tree.asked() if each.job == _ASKING]:
                asked.fail(_STOPPED, "warn")  # the screen was closed before the worker had it
        self._timer = self.set_interval(_LOOK_SECONDS, self._look)
        self.begin()

    def on_resize(self) -> None:
        """There is room at the right, or none."""
        self.call_after_refresh(self.show_detail)

    def begin(self) -> None:
        """Says what is traced, and looks for the first step."""
        column = self.inquiry.column
        what = "whole row" if column is None else f"column {column}"
        title = f"Where row {format_count(self.inquiry.offset)} of {self.inquiry.name} comes from · {what}"
        self.query_one(".dialog").border_title = Content(printable(title))
        first = self.trace.top.row(0)
        if first.wanted and not first.failed:
            self.ask(first)

    # --- Jobs ---

    def ask(self, asked: TracedRows, *, check: bool = False) -> None:
        """Hands a step to the worker: to look for it, or to check it."""
        group = asked.group
        request = Trace(group.dataset, asked.runs, column=group.column, depth=1, check=check)
        asked.wait(_ASKING, "handed to the worker …", check=check)
        self.view.relay()
        tree = self.trace

        async def submit() -> None:
            try:
                asked.job = await self._ask_worker(request, group.name)
                tree.pending[asked.job] = asked
            except Exception as error:  # whatever it is, it is shown, and the screen lives on
                asked.fail(error_with_hint(error))
            self.view.relay()

        self.run_worker(submit(), group="asking", name="asking")

    def _look(self) -> None:
        """What the jobs do."""
        changed = False
        for tree in self.inquiry.trees:
            for job_id, asked in list(tree.pending.items()):
                job = self._book.jobs.get(job_id)
                if job is not None and job.state.final:
                    del tree.pending[job_id]
                    self.run_worker(self._end(asked, job), group="ends", name="ends")
                elif asked.tell(_doing(job)):
                    changed = True
        if changed:
            self.view.refresh()

    async def _end(self, asked: TracedRows, job: Job) -> None:
        """A job has ended."""
        try:
            if job.state is JobState.done:
                # In a thread: a trace can have a million ranges.
                found = await asyncio.to_thread(decode_result, job.result or "", Trace)
                await asyncio.to_thread(asked.take, found, found.checked or ())
            elif job.error is not None:
                error = OdfError(job.error.message, hint=job.error.hint, where=job.error.where)
                asked.fail(error_with_hint(error))
            else:
                asked.fail(_STOPPED, "warn")
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            asked.fail(error_with_hint(error))
        self.view.relay()

    def waiting(self) -> list[str]:
        """The jobs that are still at it."""
        return [job for tree in self.inquiry.trees for job in tree.pending]

    # --- What is shown ---

    def on_line_view_moved(self) -> None:
        """Another line."""
        self.trace.cursor = self.view.cursor
        self.show_detail()
        self.tell_keys()

    def show_detail(self) -> None:
        """Shows all about the line, if it can be seen."""
        if not self.detail.display:
            return
        line, record = self.view.line, None
        if self._record is not None and self._record[0] == line:
            record = self._record[1]
        lines = line_detail(line, record)
        if lines != self.detail.source_lines:
            self.detail.set(lines)
            self.detail.scroll_to(0, 0, animate=False)
        if record is None and line.row >= 0 and isinstance(line.node, Group):
            self._read_record()

    def _read_record(self) -> None:
        """Reads the row under the cursor; one at a time, however fast the cursor goes."""
        line = self.view.line
        group = line.node
        if self._reading or not isinstance(group, Group) or group.trouble or self._record == (line, None):
            return
        self._reading = True

        def read() -> Record | None:
            from odf_tui.features.provenance.trace_tree import RowReader

            reader = group.reader
            if reader is None:
                window = self.inquiry.rows(group.dataset)
                if window is None:
                    return None
                reader = RowReader(window, list(group.columns))
            try:
                return reader.record(group.offsets.at(line.row))
            except NotFound:
                return None

        async def show() -> None:
            try:
                record = await asyncio.to_thread(read)
            except Exception as error:  # whatever it is, it is shown, and the screen lives on
                record, group.trouble = None, error_with_hint(error)
            self._record, self._reading = (line, record), False
            self.show_detail()

        self.run_worker(show(), group="record", name="record")

    def tell_keys(self, said: str = "") -> None:
        """What the keys do at this line."""
        line = self.view.line
        node = self.node_at(line)
        words = [said] if said else []
        if self.has_class("-reading"):
            words += ["j k scroll", "q query", "y copies", "esc back to the tree"]
        else:
            if self.waiting():
                words.append("x stops it")
            asked = traced_rows_at(line)
            if asked is not None and asked.failed:
                words.append("r looks again")
            words.append("h closes" if node is not None and node.open else "⏎ opens")
            if self.inquiry.column or self.inquiry.ours:
                words.append(
                    "w whole row" if self.inquiry.column else f"w {printable(self.inquiry.value)} alone"
                )
            words += ["space all about it", "b block", "o row", "q query", "y copies", "? all keys", "esc"]
        self.query_one(".dialog").border_subtitle = Content(" · ".join(self._room_for(words)))

    def _room_for(self, words: list[str]) -> list[str]:
        """As many as there is room for; the last two always."""
        while len(" · ".join(words)) > self.size.width - 6 and len(words) > 3:
            words = [*words[:-3], *words[-2:]]
        return words

    def node_at(self, line: Line) -> Node | None:
        """What is opened at a line; None for rows that nobody has opened yet."""
        if line.row >= 0 and isinstance(line.node, Group):
            return line.node.touched.get(line.row)
        return line.node

    def say(self, text: str) -> None:
        """Says something until the cursor moves."""
        self.tell_keys(printable(text))

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
        if isinstance(node, TracedRows) and node.wanted:
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
        choices = [Choice(name, printable(name), (), "") for name in names]
        title = f"The value of which column of row {format_count(self.inquiry.offset)}?"
        self.app.push_screen(PickerDialog(title, choices, typing=True), self._trace_column)

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
        asked, waiting = traced_rows_at(self.view.line), self.waiting()
        job = asked.job if asked is not None and asked.job in waiting else (waiting or [""])[-1]
        if job:
            self.run_worker(self.stops(job), group="stop", name="stop")

    def action_again(self) -> None:
        """Looks again for what was not found."""
        asked = traced_rows_at(self.view.line)
        if asked is not None and asked.wanted:
            self.ask(asked)

    def action_check(self) -> None:
        """Lets the worker check a step."""
        asked = traced_rows_at(self.view.line)
        if asked is None or asked.step is None or asked.job:
            self.say("⏎ looks first where it comes from")
        elif not asked.step.feeds:
            self.say("nothing here made these rows: there is nothing to run again")
        else:
            self.ask(asked, check=True)

    # --- Elsewhere ---

    def action_query(self) -> None:
        """The query that made the rows."""
        making = transaction_at(self.view.line)
        if making is None or not making.made.query:
            self.say("no query made this: it came from a source, or ⏎ looks where it comes from")
            return
        lines = query_lines(making.made.query, marked_by(making.step, column_at(making)))
        title = f"{making.step.name} · block {format_count(making.made.sequence_number)}"
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
                self.say(error_with_hint(error))

        self.run_worker(go(), group="going", name="going")

    def action_copy(self) -> None:
        """Copies what is shown: the tree, or all about a line."""
        reading = self.has_class("-reading")
        lines = self.detail.source_lines if reading else map(self.view.spans_in_full, range(self.trace.count))
        self.say(f"{'text' if reading else 'trace'}: {self.copied(text_of(lines))}")

    def action_save(self) -> None:
        """Writes the trace to a file."""
        self.saves(self)


def traced_rows_at(line: Line) -> TracedRows | None:
    """The rows that a line is about, or that it is under, as far as somebody asked for them."""
    node: Node | None = line.node
    if line.row >= 0 and isinstance(node, Group):
        node = node.touched.get(line.row)
    while node is not None and not isinstance(node, TracedRows):
        node = node.above
    return node


def _doing(job: Job | None) -> str:
    if job is None or job.started is None:
        return "waits for its turn"
    return job_activity(job, Timestamp.now())


class QueryReader(TextDialog):
    """Reads a query; long lines go on in the next one."""

    def body(self) -> WrappedLines:
        """The lines."""
        return WrappedLines()
