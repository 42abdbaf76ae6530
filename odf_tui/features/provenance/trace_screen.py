"""TraceScreen: the tree of a trace, details of a line, jobs for further steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer

from odf_engine.api import Job, JobState, SourcePosition, Timestamp, Trace, decode_result
from odf_engine.api.model import Target
from odf_engine.api.text import format_count, printable
from odf_engine.errors import NotFound
from odf_tui.features.provenance.trace_text import (
    detail_lines,
    highlighted_columns,
    plain_text,
    query_lines,
    traced_column,
)
from odf_tui.features.provenance.trace_tree import (
    Group,
    TracedRowReader,
    TracedRows,
    TraceLine,
    TraceNode,
    TraceSession,
    TraceTree,
    location_of,
    transaction_at,
)
from odf_tui.features.provenance.trace_view import TraceView
from odf_tui.state.job_book import JobBook
from odf_tui.text.format import error_with_hint
from odf_tui.text.job_text import job_activity
from odf_tui.text.row_text import Record
from odf_tui.text.row_trace import source_positions
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import MOVE_KEYS, OverlayScreen, PickerDialog, TextDialog
from odf_tui.widgets.line_view import WrappedLines

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace


_POLL_SECONDS: Final = 0.1
_SUBMITTING: Final = "submitting"
_STOPPED: Final = "cancelled: r traces again"


class TraceScreen(OverlayScreen[Target]):
    """Shows a trace. Returns a target to go to, or None.

    Args:
        session: the row and its trees.
        workspace: reads rows and blocks.
        book: has the jobs and their progress.
        submit: submits a request for a dataset, given by name; returns the id of the job.
        cancel: cancels a job.
        copy: copies a text; returns a message about the clipboard.
        save: saves the trace to a file that the user chooses.
        edit: opens a file in the user's editor, at a line.
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
        Binding("enter", "enter", "open the line, or show its details if it is open", show=False),
        Binding("l,right", "open", "open the line, or go to its first child", show=False),
        Binding("h,left", "close", "close the line, or go to its parent", show=False),
        Binding("space,i", "read", "show the details, and back", show=False),
        Binding("w", "turn", "trace the value under the cursor or the entire row", show=False),
        Binding("c", "column", "trace the value of another column", show=False),
        Binding("a", "all", "trace all rows of this input at once", show=False),
        Binding("q", "query", "show the query in full", show=False),
        Binding("b", "block", "go to the block in pane 2", show=False),
        Binding("o", "row", "go to the row in pane 3", show=False),
        Binding("O", "source", "open the source file in the editor, at the line", show=False),
        Binding("x", "stop", "cancel the trace", show=False),
        Binding("r", "again", "trace again", show=False),
        Binding("v", "check", "check the step by replays with only these rows, and without", show=False),
        Binding("y", "copy", "copy the tree as shown", show=False),
        Binding("e,E", "save", "write the trace to a file, as JSON or for Graphviz", show=False),
        Binding("J", "scroll('down')", "scroll the details down", show=False),
        Binding("K", "scroll('above')", "scroll the details up", show=False),
        Binding("escape", "leave", "back", show=False),
        *MOVE_KEYS,
    ]

    def __init__(
        self,
        session: TraceSession,
        workspace: Workspace,
        book: JobBook,
        *,
        submit: Callable[[Trace, str], Awaitable[str]],
        cancel: Callable[[str], Awaitable[None]],
        copy: Callable[[str], str],
        save: Callable[[TraceScreen], None],
        edit: Callable[[Path, int | None], Awaitable[None]],
    ) -> None:
        super().__init__()
        self.session = session
        self.workspace, self._book = workspace, book
        self._submit_request, self._cancel_job, self._copy_text, self.save_trace = submit, cancel, copy, save
        self._edit = edit
        self._record: tuple[TraceLine, Record | None] | None = None
        self._reading = False
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Yield the tree and the details."""
        with Vertical(classes="dialog log"), Horizontal():
            yield TraceView(self.session.tree, self.session.rows)
            yield WrappedLines(id="trace-detail")

    @property
    def view(self) -> TraceView:
        """The widget of the tree."""
        return self.query_one(TraceView)

    @property
    def detail(self) -> WrappedLines:
        """The details of the line under the cursor."""
        return self.query_one("#trace-detail", WrappedLines)

    @property
    def _is_open(self) -> bool:
        """Whether the widgets exist. A screen that closes loses them before its coroutines are cancelled."""
        return bool(self.query("#trace-detail"))

    @property
    def trace(self) -> TraceTree:
        """The tree that is shown."""
        return self.session.tree

    def on_mount(self) -> None:
        """Trace the first step."""
        for tree in self.session.trees:
            for traced in [row for row in tree.all_traced_rows() if row.job == _SUBMITTING]:
                traced.fail(_STOPPED, "warn")  # the screen was closed before the submission
        self._timer = self.set_interval(_POLL_SECONDS, self._poll_jobs)
        self.start_trace()

    def on_resize(self) -> None:
        """Show the details if there is room for them now."""
        self.call_after_refresh(self.show_detail)

    def start_trace(self) -> None:
        """Show the title, and trace the first step."""
        column = self.session.column
        what = "entire row" if column is None else f"column {column}"
        title = f"Provenance of row {format_count(self.session.offset)} of {self.session.name} · {what}"
        self.query_one(".dialog").border_title = Content(printable(title))
        first = self.trace.top.row(0)
        if first.needs_trace and not first.failed:
            self.submit(first)

    def submit(self, traced: TracedRows, *, check: bool = False) -> None:
        """Submit a job that traces rows, or with ``check`` one that checks their step."""
        group = traced.group
        dataset, _, branch = group.dataset.partition("@")
        request = Trace(dataset, traced.runs, group.column, depth=1, check=check, branch=branch)
        traced.set_pending(_SUBMITTING, "queued", check=check)
        self.view.rebuild()
        tree = self.trace

        async def submit() -> None:
            try:
                traced.job = await self._submit_request(request, group.name)
                tree.pending[traced.job] = traced
            except Exception as error:  # any error is shown, and the screen stays open
                traced.fail(error_with_hint(error))
            self.view.rebuild()

        self.run_worker(submit(), group="submissions", name="submissions")

    def _poll_jobs(self) -> None:
        """Show the progress of the jobs, and their results."""
        changed = False
        for tree in self.session.trees:
            for job_id, traced in list(tree.pending.items()):
                job = self._book.jobs.get(job_id)
                if job is not None and job.state.final:
                    del tree.pending[job_id]
                    self.run_worker(self._finish(traced, job), group="ends", name="ends")
                elif traced.set_activity(_activity_text(job)):
                    changed = True
        if changed:
            self.view.refresh()

    async def _finish(self, traced: TracedRows, job: Job) -> None:
        """Show the result of a job, or its error."""
        try:
            if job.state is JobState.done:
                # In a thread: a trace can have a million ranges.
                trace = await asyncio.to_thread(decode_result, job.result or "", Trace)
                await asyncio.to_thread(traced.set_step, trace, trace.checked or ())
            elif job.error is not None:
                error = job.error.to_error()
                traced.fail(error_with_hint(error))
            else:
                traced.fail(_STOPPED, "warn")
        except Exception as error:  # any error is shown, and the screen stays open
            traced.fail(error_with_hint(error))
        if self._is_open:
            self.view.rebuild()

    def pending_jobs(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return [job for tree in self.session.trees for job in tree.pending]

    def on_line_view_moved(self) -> None:
        """Show the details and keys of another line."""
        self.trace.cursor = self.view.cursor
        self.show_detail()
        self.show_keys()

    def show_detail(self) -> None:
        """Show the details of the line if they are visible."""
        if not self.detail.display:
            return
        line, record = self.view.line, None
        if self._record is not None and self._record[0] == line:
            record = self._record[1]
        lines = detail_lines(line, record)
        if lines != self.detail.source_lines:
            self.detail.set(lines)
            self.detail.scroll_to(0, 0, animate=False)
        if record is None and line.row >= 0 and isinstance(line.node, Group):
            self._read_record()

    def _read_record(self) -> None:
        """Read the row under the cursor in a thread. One row is read at a time."""
        line = self.view.line
        group = line.node
        if self._reading or not isinstance(group, Group) or group.problem or self._record == (line, None):
            return
        self._reading = True

        def read() -> Record | None:
            reader = group.reader
            if reader is None:
                window = self.session.rows(group.dataset)
                if window is None:
                    return None
                reader = TracedRowReader(window, list(group.columns))
            try:
                return reader.record(group.offsets.at(line.row))
            except NotFound:
                return None

        async def show() -> None:
            try:
                record = await asyncio.to_thread(read)
            except Exception as error:  # any error is shown, and the screen stays open
                record, group.problem = None, error_with_hint(error)
            self._record, self._reading = (line, record), False
            if self._is_open:
                self.show_detail()

        self.run_worker(show(), group="record", name="record")

    def show_keys(self, message: str = "") -> None:
        """Show the keys of the line in the lower border, after a message."""
        line = self.view.line
        node = self.node_at(line)
        words = [message] if message else []
        if self.has_class("-reading"):
            words += ["j k scroll", "q query", "y copies", "esc back to the tree"]
        else:
            if self.pending_jobs():
                words.append("x cancels")
            traced = traced_rows_at(line)
            if traced is not None and traced.failed:
                words.append("r traces again")
            words.append("h closes" if node is not None and node.open else "⏎ opens")
            if self.session.column or self.session.is_data_column:
                words.append(
                    "w entire row" if self.session.column else f"w {printable(self.session.value)} only"
                )
            words += ["space details", "b block", "o row", "q query", "y copies", "? all keys", "esc"]
        self.query_one(".dialog").border_subtitle = Content(" · ".join(self._fit_keys(words)))

    def _fit_keys(self, words: list[str]) -> list[str]:
        """Return the texts that fit into the border. The last two are always among them."""
        while len(" · ".join(words)) > self.size.width - 6 and len(words) > 3:
            words = [*words[:-3], *words[-2:]]
        return words

    def node_at(self, line: TraceLine) -> TraceNode | None:
        """Return the node at a line, or None for a row that was never opened."""
        if line.row >= 0 and isinstance(line.node, Group):
            return line.node.traced.get(line.row)
        return line.node

    def show_message(self, text: str) -> None:
        """Show a message until the cursor moves."""
        self.show_keys(printable(text))

    def on_line_view_opened(self) -> None:
        """Handle a double click."""
        self.action_enter()

    def action_move(self, move: str) -> None:
        """Move the cursor, or scroll the details."""
        (self.detail if self.has_class("-reading") else self.view).move(move)

    def action_scroll(self, move: str) -> None:
        """Scroll the details."""
        self.detail.move(move)

    def action_enter(self) -> None:
        """Open a line. Show the details of a line that is open or cannot be opened."""
        node = self.node_at(self.view.line)
        if self.has_class("-reading"):
            self.action_read()
        elif self._can_open() and not (node is not None and node.open):
            self._open()
        else:
            self.action_read()

    def action_open(self) -> None:
        """Open a line, or move into an open one."""
        if self.has_class("-reading"):
            return
        node = self.node_at(self.view.line)
        if node is not None and node.open and node.can_open:
            self.view.move("down")
        elif self._can_open():
            self._open()

    def action_close(self) -> None:
        """Close a line, or move to its parent."""
        if self.has_class("-reading"):
            self.action_read()
            return
        line = self.view.line
        node = self.node_at(line)
        if node is not None and node.open and node.can_open:
            node.open = False
            self.view.rebuild()
        elif (parent := self.trace.parent(line)) is not None:
            self.view.select_line(parent)

    def _can_open(self) -> bool:
        line = self.view.line
        return not line.node.missing if line.row >= 0 and isinstance(line.node, Group) else line.node.can_open

    def _open(self) -> None:
        node = self.trace.opener(self.view.line)
        node.open = True
        if isinstance(node, TracedRows) and node.needs_trace:
            self.submit(node)
        else:
            self.view.rebuild()

    def action_read(self) -> None:
        """Show the details in the complete window, or return to the tree."""
        self.set_class(not self.has_class("-reading"), "-reading")
        self.call_after_refresh(self.show_detail)
        self.show_keys()

    def action_leave(self) -> None:
        """Return from the details to the tree, or close the screen."""
        if self.has_class("-reading"):
            self.action_read()
        else:
            self.dismiss(None)

    def action_turn(self) -> None:
        """Switch between the value and the complete row."""
        if self.session.column is None and not self.session.is_data_column:
            self.action_column()  # system columns have no provenance
        else:
            self._show_trace_of(self.session.value if self.session.column is None else None)

    def action_column(self) -> None:
        """Trace the value of a column that the user chooses."""
        reader = self.trace.top.reader
        names = [] if reader is None else reader.all_names
        if not names:
            self.show_message("the row is not read yet")
            return
        choices = [Choice(name, printable(name), (), "") for name in names]
        title = f"Column of row {format_count(self.session.offset)} to trace"
        self.app.push_screen(PickerDialog(title, choices, typing=True), self._trace_column)

    def _trace_column(self, name: str | None) -> None:
        if name is not None:
            self.session.value, self.session.is_data_column = name, True
            self._show_trace_of(name)

    def _show_trace_of(self, column: str | None) -> None:
        self.trace.cursor = self.view.cursor
        self.session.column = column
        self.view.show_trace(self.trace)
        self.start_trace()

    def action_all(self) -> None:
        """Trace all rows of an input together."""
        node: TraceNode | None = self.view.line.node
        while node is not None and not isinstance(node, Group):
            node = node.parent
        all_rows = node.all_rows if node is not None else None
        if node is None or all_rows is None:
            self.show_message("this is one row: ⏎ opens it")
            return
        node.open = all_rows.open = True
        if all_rows.needs_trace:
            self.submit(all_rows)
        else:
            self.view.rebuild()
        self.view.select_line(TraceLine(all_rows))

    def action_stop(self) -> None:
        """Cancel the job of the line, or else the newest one."""
        traced, pending_jobs = traced_rows_at(self.view.line), self.pending_jobs()
        job = traced.job if traced is not None and traced.job in pending_jobs else (pending_jobs or [""])[-1]
        if job:
            self.run_worker(self._cancel_job(job), group="stop", name="stop")

    def action_again(self) -> None:
        """Submit a failed or cancelled trace again."""
        traced = traced_rows_at(self.view.line)
        if traced is not None and traced.needs_trace:
            self.submit(traced)

    def action_check(self) -> None:
        """Check a step by replays with and without these rows."""
        traced = traced_rows_at(self.view.line)
        if traced is None or traced.step is None or traced.job:
            self.show_message("press ⏎ to trace it first")
        elif not traced.step.feeds:
            self.show_message("no replay: these rows have no inputs")
        else:
            self.submit(traced, check=True)

    def action_query(self) -> None:
        """Show the query that produced the rows."""
        transaction = transaction_at(self.view.line)
        if transaction is None or not transaction.made.query:
            self.show_message("no query: the rows are from a source, or not traced yet")
            return
        lines = query_lines(
            transaction.made.query, highlighted_columns(transaction.step, traced_column(transaction))
        )
        title = f"{transaction.step.name} · block {format_count(transaction.made.sequence_number)}"
        self.app.push_screen(
            QueryDialog(title, lines, lambda text: self.show_message(f"query: {self._copy_text(text)}"))
        )

    def action_block(self) -> None:
        """Go to the block in pane 2."""
        self._go(block=True)

    def action_row(self) -> None:
        """Go to the row in pane 3."""
        self._go(block=False)

    def _go(self, *, block: bool) -> None:
        location = location_of(self.view.line)
        if location is None:
            return
        if branch := location.dataset.partition("@")[2]:
            self.show_message(f"the row is in branch {branch}: close the trace, then press B in pane 2")
            return

        def target() -> Target:
            if not block:
                return Target(
                    location.dataset, "data", self.session.row_of(location.dataset, location.offset)
                )
            if isinstance(location.block, int):
                return Target(location.dataset, "blocks", location.block)
            numbers = (
                self.workspace.block_numbers(location.dataset, (location.block,)) if location.block else {}
            )
            number = numbers.get(location.block or "")
            if number is None:
                number = self.workspace.find_block(location.dataset, f"#{location.offset}")
            return Target(location.dataset, "blocks", number)

        async def go() -> None:
            try:
                self.dismiss(await asyncio.to_thread(target))
            except Exception as error:  # any error is shown, and the screen stays open
                self.show_message(error_with_hint(error))

        self.run_worker(go(), group="going", name="going")

    def action_source(self) -> None:
        """Open the file with the line's row, or with the newest traced row, in the user's editor."""
        position = position_at(self.view.line)
        if position is None:
            self.show_message("no source file with this row is known")
            return

        async def edit() -> None:
            try:
                await self._edit(Path(position.file), position.line or None)
            except Exception as error:  # any error is shown, and the screen stays open
                self.show_message(error_with_hint(error))

        self.run_worker(edit(), group="editor", name="editor")

    def action_copy(self) -> None:
        """Copy the tree, or the details if they are shown alone."""
        reading = self.has_class("-reading")
        lines = self.detail.source_lines if reading else map(self.view.spans_in_full, range(self.trace.count))
        self.show_message(f"{'text' if reading else 'trace'}: {self._copy_text(plain_text(lines))}")

    def action_save(self) -> None:
        """Save the trace to a file."""
        self.save_trace(self)


def traced_rows_at(line: TraceLine) -> TracedRows | None:
    """Return the traced rows of a line, or of its nearest parent, or None if there are none."""
    node: TraceNode | None = line.node
    if line.row >= 0 and isinstance(node, Group):
        node = node.traced.get(line.row)
    while node is not None and not isinstance(node, TracedRows):
        node = node.parent
    return node


def position_at(line: TraceLine) -> SourcePosition | None:
    """Return the position in a file of a line's row, or of the newest row of its nearest traced parent."""
    traced = traced_rows_at(line)
    positions = [] if traced is None or traced.step is None else list(source_positions(traced.step))
    location = location_of(line)
    own = (position for position in positions if location and position.offset == location.offset)
    return next(own, next(iter(positions), None))


def _activity_text(job: Job | None) -> str:
    if job is None or job.started is None:
        return "queued"
    return job_activity(job, Timestamp.now())


class QueryDialog(TextDialog):
    """Shows a query with wrapped lines."""

    def body(self) -> WrappedLines:
        """Return the widget of the text."""
        return WrappedLines()
