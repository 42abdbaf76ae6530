"""The screen of a trace: the tree, all about the line under the cursor, and the jobs that look for steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer

from odf_engine.coordinator.protocol import Job, JobState, Trace, decode_result
from odf_engine.errors import NotFound, OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.humane import count, explained, plain
from odf_tui.inquiry import Inquiry
from odf_tui.jobwords import doing
from odf_tui.screens.dialogs import Above
from odf_tui.source import Source
from odf_tui.state import JobBook, Target
from odf_tui.tracenodes import Asked, Group, Node
from odf_tui.tracetree import Line, TraceTree
from odf_tui.tracewords import detail_of
from odf_tui.widgets.lines import Paragraphs
from odf_tui.widgets.trace import TraceView

if TYPE_CHECKING:
    from odf_tui.records import Record

_LOOK_SECONDS: Final = 0.1
_ASKING: Final = "asking"
_STOPPED: Final = "stopped: r looks again"


class TraceBase(Above[Target]):
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

    def __init__(
        self,
        inquiry: Inquiry,
        source: Source,
        book: JobBook,
        *,
        ask: Callable[[Trace, str], Awaitable[str]],
        stop: Callable[[str], Awaitable[None]],
        copy: Callable[[str], str],
        save: Callable[[TraceBase], None],
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
            yield Paragraphs(id="trace-detail")

    @property
    def view(self) -> TraceView:
        """The tree."""
        return self.query_one(TraceView)

    @property
    def detail(self) -> Paragraphs:
        """All about the line under the cursor."""
        return self.query_one("#trace-detail", Paragraphs)

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
        title = f"Where row {count(self.inquiry.offset)} of {self.inquiry.name} comes from · {what}"
        self.query_one(".dialog").border_title = Content(plain(title))
        first = self.trace.top.row(0)
        if first.wanted and not first.failed:
            self.ask(first)

    # --- Jobs ---

    def ask(self, asked: Asked, *, check: bool = False) -> None:
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
                asked.fail(explained(error))
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

    async def _end(self, asked: Asked, job: Job) -> None:
        """A job has ended."""
        try:
            if job.state is JobState.done:
                # In a thread: a trace can have a million ranges.
                found = await asyncio.to_thread(decode_result, job.result or "", Trace)
                await asyncio.to_thread(asked.take, found, found.checked or ())
            elif job.error is not None:
                error = OdfError(job.error.message, hint=job.error.hint, where=job.error.where)
                asked.fail(explained(error))
            else:
                asked.fail(_STOPPED, "warn")
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            asked.fail(explained(error))
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
        lines = detail_of(line, record)
        if lines != self.detail.given:
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
            from odf_tui.tracerows import RowReader

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
                record, group.trouble = None, explained(error)
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
            asked = asked_at(line)
            if asked is not None and asked.failed:
                words.append("r looks again")
            words.append("h closes" if node is not None and node.open else "⏎ opens")
            if self.inquiry.column or self.inquiry.ours:
                words.append("w whole row" if self.inquiry.column else f"w {plain(self.inquiry.value)} alone")
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
        self.tell_keys(plain(text))


def asked_at(line: Line) -> Asked | None:
    """The rows that a line is about, or that it is under, as far as somebody asked for them."""
    node: Node | None = line.node
    if line.row >= 0 and isinstance(node, Group):
        node = node.touched.get(line.row)
    while node is not None and not isinstance(node, Asked):
        node = node.above
    return node


def _doing(job: Job | None) -> str:
    if job is None or job.started is None:
        return "waits for its turn"
    return doing(job, Timestamp.now())
