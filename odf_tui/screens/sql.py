"""Queries over datasets: the editor over pane 3, and the jobs that it makes."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from textual import on
from textual.css.query import NoMatches

from odf_engine.coordinator.protocol import Job, JobState, Query
from odf_engine.coordinator.results import QueryResult
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.actions.model import PANES, Hint
from odf_tui.screens.pane_jobs import JobsPart
from odf_tui.services.controller import JobsRead
from odf_tui.state.app_state import WorkerEvents
from odf_tui.text.format import format_duration, printable
from odf_tui.text.job_text import job_seconds, known_result
from odf_tui.widgets.row_table import load_window
from odf_tui.widgets.status_bar import KeyHints, Notice

if TYPE_CHECKING:
    from textual.await_remove import AwaitRemove

    from odf_tui.features.sql import controller as told
    from odf_tui.features.sql.sql_editor import SqlPanel

_PLACE: Final = re.compile(r"line (\d+), column (\d+)")
_HINTS: Final = (
    ("^r", "run"),
    ("tab", "complete"),
    ("^p", "older"),
    ("^o", "newer"),
    ("shift+tab", "rows"),
    ("^l", "clear"),
    ("esc", "close"),
)


class SqlPart(JobsPart):
    """The part of the workbench about queries."""

    _query_text = ""  # of the editor, while it is closed
    _query_job = ""  # the job of the newest query; "?" while it is being handed to the worker
    _sql_history: tuple[str, ...] = ()
    _sql_at = 0
    _sql_open = _sql_opening = False
    _sql_leaving: AwaitRemove | None = None

    @property
    def sql_panel(self) -> SqlPanel | None:
        """The editor, while it is open."""
        if not self._sql_open:
            return None  # or it is just being opened or closed
        try:
            return self.query_one("#sql-panel")  # type: ignore[return-value]
        except NoMatches:
            return None

    @property
    def _editing(self) -> bool:
        return self.focused is not None and self.focused.id == "sql"

    def _query_state(self) -> Job | None:
        return self.book.jobs.get(self._query_job)

    @property
    def _asking(self) -> bool:
        job = self._query_state()
        return self._query_job == "?" or (job is not None and not job.state.final)

    # --- Opening and closing ---

    def do_sql(self) -> None:
        """Opens the editor, or goes back into it; on the job of a query: with that and its result."""
        job = self.jobs_pane.view.job if self.pane == PANES[3] else None
        if job is not None and job.kind == "sql":
            self._open_query(job)
            return
        self.go_to(PANES[2])
        self.run_worker(self._enter_editor(), group="sql", name="editor")

    def _first_query(self) -> str:
        row = self.graph.row
        names = [each.name for each in self.rows if not each.missing]
        name = row.name if row is not None and not row.missing else names[0] if names else ""
        return f"SELECT *\nFROM {name}\nLIMIT 100" if name else "SELECT 1 + 1 AS two"

    async def _open_panel(self, text: str) -> SqlPanel:
        from odf_tui.features.sql import controller as told
        from odf_tui.features.sql.sql_editor import SqlPanel

        panel = SqlPanel(text)
        panel.datasets = [row.name for row in self.rows if not row.missing]
        await self.data_pane.mount(panel, before=0)
        self._sql_open = True
        self.go_to(PANES[2])
        self._sql_at = len(self._sql_history)
        self.reads.start("queries", self.source.queries, lambda found, _: told.HistoryRead(found or []))
        return panel

    async def _enter_editor(self) -> None:
        """Gives the keys to the editor, once it is there."""
        if self._sql_opening:
            return
        panel = self.sql_panel
        if panel is None:
            self._sql_opening = True
            try:
                if self._sql_leaving is not None:
                    await self._sql_leaving
                panel = await self._open_panel(self._query_text or self._first_query())
            finally:
                self._sql_opening = False
        self.set_focus(panel.editor)
        self.data_pane.view.set_active(False)
        self._say_state()
        self.show_hints()

    def _close_panel(self) -> None:
        panel = self.sql_panel
        if panel is None:
            return
        self._query_text = panel.editor.text
        self._sql_leaving = panel.remove()
        self._sql_open = False
        self.go_to(PANES[2])

    def go_to(self, name: str) -> None:
        """In a small window pane 3 is alone while there is a query above its rows: see the style sheet."""
        self.set_class(self._sql_open and name == PANES[2], "-asking")
        super().go_to(name)

    def do_up(self) -> None:
        """From the rows: closes the editor first."""
        typing = self.query_one("#filter").display or self.front.filter
        if self.pane == PANES[2] and self.sql_panel is not None and not typing:
            self._close_panel()
        else:
            super().do_up()

    def show_hints(self) -> None:
        """In the editor its own keys."""
        if not self._editing:
            super().show_hints()
            return
        stop = [("^g", "cancel")] if self._asking else []
        self.query_one(KeyHints).show([Hint(key, word, "") for key, word in (*stop, *_HINTS)])

    def dress_panes(self) -> None:
        """The editor is in the colours of the theme, too."""
        super().dress_panes()
        panel = self.sql_panel
        if panel is not None and panel.is_mounted:
            panel.editor.dress()

    # --- What the editor asks for ---

    def on_sql_panel_wanted(self, message: SqlPanel.Wanted) -> None:
        """A key of the editor."""
        message.stop()
        match message.what:
            case "close":
                self._close_panel()
            case "rows":
                self.go_to(PANES[2])
            case "edit":
                self.go_to(PANES[2])
                self.run_worker(self._enter_editor(), group="sql", name="editor")
            case "stop":
                self._stop_query()
            case "older":
                self._step(-1)
            case "newer":
                self._step(1)

    def on_sql_panel_columns_wanted(self, message: SqlPanel.ColumnsWanted) -> None:
        """Reads columns."""
        from odf_tui.features.sql import controller as told

        message.stop()
        ids = {row.name: row.id for row in self.rows}
        for name in message.names:
            self.reads.start(
                f"columns of {name}",
                partial(self.source.columns, ids[name]),
                lambda columns, _, name=name: told.ColumnsRead(name, columns or []),
            )

    def on_columns_read(self, message: told.ColumnsRead) -> None:
        """The columns can be offered."""
        if (panel := self.sql_panel) is not None:
            panel.know_columns(message.name, message.columns)

    # --- History ---

    def on_history_read(self, message: told.HistoryRead) -> None:
        """What can be asked again."""
        self._sql_history = tuple(message.queries)
        self._sql_at = len(self._sql_history)

    def on_query_noted(self, message: told.QueryNoted) -> None:
        """Says when a query will not come back."""
        if message.error:
            self.notify_line(f"the query is not remembered: {message.error}", "warn")

    def _step(self, step: int) -> None:
        """Shows an older or newer query; behind the newest is what was being written."""
        panel = self.sql_panel
        if panel is None:
            return
        at = self._sql_at + step
        if (
            step < 0
            and 0 <= at < len(self._sql_history)
            and self._sql_history[at] == panel.editor.text.strip()
        ):
            at -= 1  # it was just asked
        if not 0 <= at <= len(self._sql_history):
            what = "no older query" if step < 0 else "this is the newest"
            panel.line.tell((what if self._sql_history else "nothing was asked before", "muted"))
            return
        if self._sql_at == len(self._sql_history):
            self._query_text = panel.editor.text
        self._sql_at = at
        newest = at == len(self._sql_history)
        panel.write(self._query_text if newest else self._sql_history[at])
        panel.show_failure(None)
        panel.line.tell(
            ("what you were writing" if newest else f"query {at + 1} of {len(self._sql_history)}", "muted")
        )

    # --- Asking ---

    def on_sql_panel_asked(self, message: SqlPanel.Asked) -> None:
        """Hands the query to the worker."""
        from odf_tui.features.sql import controller as told

        message.stop()
        panel = self.sql_panel
        if panel is None:
            return
        sql = message.sql.strip()
        if not sql:
            panel.line.tell(("the query is empty", "warn"))
        elif self._asking:
            panel.line.tell(("the query before still runs: ^g cancels it", "warn"))
        else:
            panel.show_failure(None)
            self._query_job = "?"
            panel.line.tell(("handed to the worker", "busy"))
            self.show_hints()
            self._sql_history = (*(each for each in self._sql_history if each != sql), sql)
            self._sql_at = len(self._sql_history)
            self.reads.start("note query", partial(self.source.note_query, sql), told.QueryNoted)
            self.run_worker(self._submit(message.sql), group="commands")

    async def _submit(self, sql: str) -> None:
        from odf_engine.sql.query_text import one_line_summary
        from odf_tui.features.sql import controller as told

        try:
            job = await (await self.follower.link()).submit(Query(sql=sql), one_line_summary(sql))
        except OdfError as error:
            hint = f" – {error.hint}" if error.hint else ""
            self.post_message(Notice(f"{error}{hint}", "bad"))
            job = ""
        self.post_message(told.Accepted(job))

    def on_accepted(self, message: told.Accepted) -> None:
        """The query is a job now, or was not taken."""
        self._query_job = message.job
        if not message.job and (panel := self.sql_panel) is not None:
            panel.line.tell()
        self._look_at_answer()

    def _stop_query(self) -> None:
        panel = self.sql_panel
        job = self._query_state()
        if job is not None and not job.state.final:
            self._cancel(job, True)
            if panel is not None:
                panel.line.tell(("cancelling …", "warn"))
        elif panel is not None:
            panel.line.tell(("no query runs; esc closes the editor", "muted"))

    # --- What becomes of it ---

    @on(WorkerEvents)
    def _query_events(self, message: WorkerEvents) -> None:
        if self._query_job:
            self.call_later(self._look_at_answer)  # once the book has them

    @on(JobsRead)
    def _query_read(self) -> None:
        if self._query_job:
            self.call_later(self._look_at_answer)

    def second(self) -> None:
        """The query says how long it runs."""
        super().second()
        self._say_state()

    def _look_at_answer(self) -> None:
        """Says how the newest query is; shows what it gave once it has ended."""
        job = self._query_state()
        self._say_state()
        if self._editing:
            self.show_hints()
        if job is None or not job.state.final or job.id == self._answered:
            return
        self._answered = job.id
        panel = self.sql_panel
        if job.state is JobState.done:
            self._open_result(job)
        elif panel is not None and job.error is not None:
            found = _PLACE.search(job.error.where or "")
            panel.show_failure(job.error, (int(found[1]), int(found[2])) if found else None)

    _answered = ""

    def _say_state(self) -> None:
        panel, job = self.sql_panel, self._query_state()
        if (
            panel is None
            or job is None
            or not panel.is_mounted
            or (job.state.final and job.id == self._answered)
        ):
            return
        from odf_tui.features.sql.sql_editor import state_spans

        panel.line.tell(*state_spans(job))

    # --- Results ---

    def _open_result(self, job: Job) -> None:
        from odf_tui.features.sql import controller as told

        result = known_result(job.result, Query) or QueryResult()
        if not result.path and result.output:
            self.notify_line(f"its rows are in {printable(result.output)}")
            return
        self.reads.start(
            "result",
            lambda: load_window(self.source.result(result.path)),
            lambda opened, error: told.ResultOpened(job, opened, error),
        )

    def on_result_opened(self, message: told.ResultOpened) -> None:
        """Shows rows in front of those of the dataset."""
        from odf_tui.features.sql.sql_editor import pin_words

        job, opened = message.job, message.opened
        if opened is None:
            self.notify_line(message.error, "bad")
            return
        pane = self.data_pane
        while pane.front_view is not None and pane.front_view.kind == "sql":
            pane.pop_view()
        took = job_seconds(job, Timestamp.now())
        result = known_result(job.result, Query) or QueryResult()
        note = "there are more, which are not kept" if result.truncated else format_duration(took or 0)
        if pins := pin_words(result.pins, most=1):
            note = f"{note} · {pins}"
        pane.show_view(pane.dataset, opened, "SQL", note, "sql")
        if self._editing:
            pane.view.set_active(False)
        self.show_hints()

    def _open_query(self, job: Job) -> None:
        from odf_tui.features.sql import controller as told

        self.reads.start(
            "question",
            partial(self.source.question, job),
            lambda sql, error: told.QuestionRead(job, sql or "", error),
        )

    def on_question_read(self, message: told.QuestionRead) -> None:
        """Shows the query of a job, and its result."""
        if message.error:
            self.notify_line(message.error, "bad")
            return
        if (panel := self.sql_panel) is not None:
            panel.write(message.sql)
            panel.show_failure(None)
        else:
            self._query_text = message.sql
        self._query_job, self._answered = message.job.id, ""
        self.go_to(PANES[2])
        self.do_sql()
        self.call_after_refresh(self._look_at_answer)
