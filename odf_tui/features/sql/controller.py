"""SqlController: runs queries as jobs, shows their results, stores the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from textual.widgets import TextArea

from odf_engine.api import Job, JobState, Query, QueryResult, Timestamp, one_line_summary
from odf_engine.api.text import printable
from odf_engine.errors import OdfError
from odf_tui.actions.model import Hint
from odf_tui.features.sql.sql_editor import SqlEditor, SqlPanel, error_position, state_spans
from odf_tui.panes.data.view import QUERY, DataPane
from odf_tui.services.controller import Controller, Host
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.format import format_duration
from odf_tui.text.job_text import job_seconds, known_result
from odf_tui.text.pinned_blocks import pins_text
from odf_tui.widgets.row_table import LoadedWindow, load_window

if TYPE_CHECKING:
    from textual.await_remove import AwaitRemove
    from textual.message import Message

_HINTS: Final = (
    ("^r", "run"),
    ("tab", "complete"),
    ("^p", "older"),
    ("^o", "newer"),
    ("shift+tab", "rows"),
    ("^l", "clear"),
    ("esc", "close"),
)
_SUBMITTING: Final = "?"


class SqlController(Controller):
    """Opens the SQL editor in the data pane, runs queries, and shows their results."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._open = self._opening = False
        self._removal: AwaitRemove | None = None
        # The text while the editor is closed, or while an older query is shown.
        self._text = self.state.layout.query
        self._template = ""
        self._job = ""  # id of the job of the newest query; _SUBMITTING until there is one
        self._shown_job = ""  # the job whose outcome is shown
        self._history: tuple[str, ...] = ()
        self._history_index = 0
        self.state.jobs_changed.connect(self._jobs_changed)
        self.state.second.connect(self._second_passed)
        self.state.pane_changed.connect(self._pane_changed)

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Return the handlers of the editor's messages."""
        return {
            SqlPanel.CommandRequested: self._run_command,
            SqlPanel.ColumnsRequested: self._read_columns,
            SqlPanel.QuerySubmitted: self._run_query,
            TextArea.Changed: lambda _: self.state.layout_changed.send(None),
        }

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Save the text of the editor, which may not have run yet."""
        panel, text = self.sql_panel, self._text
        if panel is not None and self._history_index == len(self._history):
            text = panel.editor.text
        return replace(layout, query="" if text == self._template else text)

    @property
    def sql_panel(self) -> SqlPanel | None:
        """The editor, or None while it is closed, opens or closes."""
        return self.host.find(SqlPanel) if self._open else None

    @property
    def _pane(self) -> DataPane:
        return self.host.query_one(DataPane)

    @property
    def _editing(self) -> bool:
        return isinstance(self.host.focused, SqlEditor)

    @property
    def _query_job(self) -> Job | None:
        return self.state.jobs.jobs.get(self._job)

    @property
    def _running(self) -> bool:
        job = self._query_job
        return self._job == _SUBMITTING or (job is not None and not job.state.final)

    def open_query(self) -> None:
        """Open the editor, or focus it. For the job of a query, show the query and its result."""
        job = self.host.situation().job if self.state.pane == "jobs" else None
        if job is not None and job.kind == "sql":
            self.host.read(
                "question", partial(self.workspace.query_of_job, job), partial(self._show_query, job)
            )
        else:
            self._focus_editor()

    def leave(self) -> bool:
        """Close the editor."""
        if self.state.pane != "data" or self.sql_panel is None:
            return False
        self._close_panel()
        return True

    def hints(self) -> list[Hint] | None:
        """Return the keys of the editor while it has the focus."""
        if not self._editing:
            return None
        stop = [("^g", "cancel")] if self._running else []
        return [Hint(key, word, "") for key, word in (*stop, *_HINTS)]

    def _focus_editor(self) -> None:
        self.state.focus_pane("data")
        self.host.start(self._enter_editor(), group="sql")

    async def _enter_editor(self) -> None:
        """Focus the editor, and open it first if it is closed."""
        if self._opening:
            return
        panel = self.sql_panel
        if panel is None:
            self._opening = True
            try:
                if self._removal is not None:
                    await self._removal
                self._template = self._first_query()
                panel = await self._open_panel(self._text or self._template)
                if panel.editor.text == self._template:
                    panel.editor.select_all()  # the first key replaces it
            finally:
                self._opening = False
        row = self.state.row
        panel.selected = row.name if row is not None and not row.missing else ""
        self.host.set_focus(panel.editor)
        self._pane.view.set_active(False)
        self._show_state()
        self.host.show_hints()

    async def _open_panel(self, text: str) -> SqlPanel:
        panel = SqlPanel(text)
        panel.datasets = [row.name for row in self.state.datasets if not row.missing]
        await self._pane.mount(panel, before=0)
        self._open = True
        self.state.focus_pane("data")
        self._history_index = len(self._history)
        self.host.read("queries", self.workspace.query_history, self._history_read)
        return panel

    def _first_query(self) -> str:
        """Return a query over the selected dataset, or else over the first one."""
        row = self.state.row
        names = [dataset.name for dataset in self.state.datasets if not dataset.missing]
        name = row.name if row is not None and not row.missing else names[0] if names else ""
        return f"SELECT *\nFROM {name}\nLIMIT 100" if name else "SELECT 1 + 1 AS two"

    def _close_panel(self) -> None:
        panel = self.sql_panel
        if panel is None:
            return
        self._text = panel.editor.text
        self._removal = panel.remove()
        self._open = False
        self.state.focus_pane("data")

    def _pane_changed(self, pane: str) -> None:
        """Show only the data pane in a narrow window while the editor is open (see the style sheet)."""
        self.host.set_class(self._open and pane == "data", "-asking")

    def _run_command(self, message: SqlPanel.CommandRequested) -> None:
        match message.command:
            case "close":
                self._close_panel()
            case "rows":
                self.state.focus_pane("data")
            case "edit":
                self._focus_editor()
            case "stop":
                self._cancel_query()
            case "older":
                self._step(-1)
            case "newer":
                self._step(1)

    def _read_columns(self, message: SqlPanel.ColumnsRequested) -> None:
        ids = {row.name: row.id for row in self.state.datasets}
        for name in message.names:
            self.host.read(
                f"columns of {name}",
                partial(self.workspace.columns, ids.get(name, name)),  # fails if the dataset was deleted
                partial(self._columns_read, name),
            )

    def _columns_read(self, name: str, columns: list[tuple[str, str]] | None, problem: str) -> None:
        if (panel := self.sql_panel) is not None:
            panel.set_columns(name, columns or [])

    def _history_read(self, queries: list[str] | None, problem: str) -> None:
        self._history = tuple(queries or ())
        self._history_index = len(self._history)

    def _query_noted(self, _: None, problem: str) -> None:
        if problem:
            self.host.notice(f"the query history cannot be saved: {problem}", "warn")

    def _step(self, step: int) -> None:
        """Show an older or newer query. The unsubmitted text follows the newest query."""
        panel = self.sql_panel
        if panel is None:
            return
        history, at = self._history, self._history_index + step
        if step < 0 and 0 <= at < len(history) and history[at] == panel.editor.text.strip():
            at -= 1  # the editor shows this query already: it was just run
        if not 0 <= at <= len(history):
            what = "no older query" if step < 0 else "no newer query"
            panel.line.show_text((what if history else "the query history is empty", "muted"))
            return
        if self._history_index == len(history):
            self._text = panel.editor.text
        self._history_index = at
        newest = at == len(history)
        panel.set_text(self._text if newest else history[at])
        panel.show_failure(None)
        panel.line.show_text(("your draft" if newest else f"query {at + 1} of {len(history)}", "muted"))

    def _run_query(self, message: SqlPanel.QuerySubmitted) -> None:
        """Submit the query, unless the previous one is still running."""
        panel = self.sql_panel
        if panel is None:
            return
        sql = message.sql.strip()
        if not sql:
            panel.line.show_text(("the query is empty", "warn"))
        elif self._running:
            panel.line.show_text(("the previous query is running: ^g cancels it", "warn"))
        else:
            panel.show_failure(None)
            self._job = _SUBMITTING
            panel.line.show_text(("queued", "busy"))
            self.host.show_hints()
            self._history = (*(query for query in self._history if query != sql), sql)
            self._history_index = len(self._history)
            self.host.read("note query", partial(self.workspace.add_to_query_history, sql), self._query_noted)
            self.host.start(self._submit(message.sql), group="commands")

    async def _submit(self, sql: str) -> None:
        try:
            request = self.workspace.complete_query(Query(sql=sql, engine=""))
            self._job = await self.jobs.submit_one(request, one_line_summary(sql))
        except OdfError as error:
            hint = f" – {error.hint}" if error.hint else ""
            self.host.notice(f"{error}{hint}", "bad")
            self._job = ""
            if (panel := self.sql_panel) is not None:
                panel.line.show_text()
        self._show_outcome()

    def _cancel_query(self) -> None:
        panel, job = self.sql_panel, self._query_job
        if job is not None and not job.state.final:
            self.host.start(self.jobs.cancel(job.id), group="commands")
            if panel is not None:
                panel.line.show_text(("cancelling …", "warn"))
        elif panel is not None:
            panel.line.show_text(("no query is running; esc closes the editor", "muted"))

    def _jobs_changed(self, _: object) -> None:
        if self._job:
            self._show_outcome()

    def _second_passed(self, _: None) -> None:
        self._show_state()

    def _show_outcome(self) -> None:
        """Show the state of the newest query. Once it has ended, show its rows or its error."""
        job = self._query_job
        self._show_state()
        if self._editing:
            self.host.show_hints()
        if job is None or not job.state.final or job.id == self._shown_job:
            return
        self._shown_job = job.id
        panel = self.sql_panel
        if job.state is JobState.done:
            self._read_result(job)
        elif panel is not None and job.error is not None:
            panel.show_failure(job.error, error_position(job.error))

    def _show_state(self) -> None:
        """Show the state of the newest query below the editor, until its outcome is shown."""
        panel, job = self.sql_panel, self._query_job
        if panel is None or job is None or not panel.is_mounted:
            return
        if not (job.state.final and job.id == self._shown_job):
            panel.line.show_text(*state_spans(job))

    def _read_result(self, job: Job) -> None:
        result = known_result(job.result, Query) or QueryResult()
        if not result.path and result.output:
            self.host.notice(f"rows are in {printable(result.output)}")
            return
        self.host.read(
            "result",
            lambda: load_window(self.workspace.result(result.path)),
            partial(self._show_result, job, result),
        )

    def _show_result(self, job: Job, result: QueryResult, opened: LoadedWindow | None, problem: str) -> None:
        """Show the rows of a query in front of the rows of the dataset."""
        if opened is None:
            self.host.notice(problem, "bad")
            return
        pane = self._pane
        while pane.front_view is not None and pane.front_view.kind == QUERY:
            pane.pop_view()
        duration = job_seconds(job, Timestamp.now())
        note = "truncated: the query has more rows" if result.truncated else format_duration(duration or 0)
        if pins := pins_text(result.pins, max_names=1):
            note = f"{note} · {pins}"
        pane.show_view(pane.dataset, opened, "SQL", note, QUERY)
        if self._editing:
            pane.view.set_active(False)
        self.host.show_hints()

    def _show_query(self, job: Job, sql: str | None, problem: str) -> None:
        """Show the query of a job and its outcome in the editor."""
        if problem:
            self.host.notice(problem, "bad")
            return
        if (panel := self.sql_panel) is not None:
            panel.set_text(sql or "")
            panel.show_failure(None)
        else:
            self._text = sql or ""
        self._job, self._shown_job = job.id, ""
        self._focus_editor()
        self.host.call_after_refresh(self._show_outcome)
