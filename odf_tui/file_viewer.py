"""Shows data files on the screen: the data pane over typed rows, without a workspace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, cast

from msgspec.structs import replace
from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from odf_engine.api import Failure, FileRows, FileTable, Reporter, UiConfig, is_url
from odf_engine.api.readers.file_rows import FileWindow, describe_rows
from odf_engine.api.rows import Rows
from odf_engine.api.text import count_of, format_bytes, format_count, printable
from odf_engine.errors import Cancelled, OdfError
from odf_tui.actions import bindings
from odf_tui.actions.model import Action, KeyMap, Situation, requires
from odf_tui.features.export import ExportDialog, ExportOptions
from odf_tui.features.sql.sql_editor import SqlEditor, SqlPanel
from odf_tui.features.statistics import StatisticsScreen
from odf_tui.panes.data.controller import DataController
from odf_tui.panes.data.row_queries import filter_query, sort_query
from odf_tui.panes.data.view import QUERY, DataPane, condition_text
from odf_tui.services.controller import Host
from odf_tui.services.terminal_app import TerminalApp
from odf_tui.text.format import Span, ellipsize_middle, error_with_hint
from odf_tui.widgets.row_table import LoadedWindow, load_window
from odf_tui.widgets.status_bar import FilterLine, KeyHints, Notice, StatusLine

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace

_MOVES: Final = ("down", "above", "left", "right", "first", "last", "page_down", "page_up")
_ROW_ACTIONS: Final = (
    "open_row", "find_rows", "next_match", "previous_match", "keep_rows", "row_among_all", "columns",
    "hide_column", "freeze_columns", "mark_row", "copy", "copy_rows", "help", "help_topics", "themes",
    "filter", "messages",
)  # fmt: skip
"""Actions of the workstation that work on any rows."""
_OWN_ACTIONS: Final = {
    "sort_up": "sort all rows by this column, ascending",
    "sort_down": "sort all rows by this column, descending",
    "statistics": "show statistics of all columns",
    "sql": "run SQL over the rows, in the dialect of DuckDB; the table is named file",
    "export": "export rows to a file: CSV, JSON or Parquet",
    "add_file": "keep the file as a dataset of the workspace",
    "up": "go one level up: filter, SQL, sorted or filtered rows",
    "quit": "quit",
}
"""Actions with another implementation here, and their titles."""
_REQUIRES_ROWS: Final = requires("has_rows", "there are no rows")
_FIRST_QUERY: Final = "SELECT *\nFROM file\nLIMIT 100"
_EDITOR_HINT: Final = "^r runs · ^g cancels · esc closes"
_MAX_TITLE: Final = 40


@dataclass(frozen=True)
class ViewerSettings:
    """What the screen needs of a workspace, of which there may be none.

    Attributes:
        folder, ui, settings_problem: see :class:`odf_engine.api.workspace.Workspace`.
    """

    folder: Path
    ui: UiConfig
    settings_problem: str = ""


class FilePane(DataPane):
    """The data pane with the rows of files."""

    label = "File"

    @property
    def heading(self) -> str:
        """The name in the title."""
        return "File"


class FileStatus(StatusLine):
    """The line with the name and format of the file, and what the reader must know about the rows."""

    def __init__(self, title: str, folder: Path) -> None:
        super().__init__(folder)
        self._title = ellipsize_middle(printable(title), _MAX_TITLE)
        self._text, self._style = "reading …", ""

    def show_text(self, text: str, style: str = "") -> None:
        """Show a text after the title."""
        self._text, self._style = printable(text), style
        self.refresh()

    def state_spans(self) -> list[Span]:
        """Return the line without a notice."""
        left: list[Span] = [(f" {self._title} ", "strong"), (f"· {self._text}", self._style)]
        room = self.size.width - sum(cell_len(text) for text, _ in left)
        return [*left, (" " * max(room, 1), "")]


class FileScreen(Host):
    """The only screen: the rows, a status line and a line of hints.

    Args:
        settings: the settings of the user.
        table: the files.
    """

    @dataclass
    class RowsRead(Message):
        """Posted when the first rows, or all rows, were read."""

        rows: FileRows
        opened: LoadedWindow

    @dataclass
    class ReadFailed(Message):
        """Posted when the files cannot be read."""

        error: str

    @dataclass
    class ReadProgress(Message):
        """Posted while rows are read."""

        percent: float

    def __init__(self, settings: ViewerSettings, table: FileTable) -> None:
        super().__init__(cast("Workspace", settings))
        self._table = table
        self._rows: FileRows | None = None
        self._reading = Reporter()
        self._query = Reporter()
        self._is_querying = False
        self._text = _FIRST_QUERY
        names = (*_ROW_ACTIONS, *_OWN_ACTIONS, *_MOVES)
        self.keys = KeyMap([_adapt(action) for action in self.keys.actions if action.id in names])
        self.state.pane = "data"

    def compose(self) -> ComposeResult:
        """Rows, status line, hints, filter line."""
        yield FilePane("data")
        yield FileStatus(self._table.title, self.workspace.folder)
        yield KeyHints()
        yield FilterLine()

    def on_mount(self) -> None:
        """Start to read the files."""
        self.load("panes.data.controller.DataController")
        self.controller(DataController).filter_all = self._filter_all
        pane = self.query_one(FilePane)
        pane.show_message("", [(" Reading …", "muted")])
        pane.apply_theme(True)
        self.app.theme_changed_signal.subscribe(self, lambda _: pane.apply_theme(True))
        self.show_hints()
        self.call_after_refresh(self.terminal.read_dialog_styles)
        self.run_worker(self._read_files, thread=True, group="files", name="files")

    def on_unmount(self) -> None:
        """End the processes."""
        self._reading.cancel()
        self._query.cancel()

    def _read_files(self) -> None:
        def show_progress(percent: float) -> None:
            self.post_message(self.ReadProgress(percent))

        def show(rows: FileRows) -> None:
            self.post_message(self.RowsRead(rows, load_window(FileWindow(rows))))

        try:
            show(self._table.read(self._reading, on_first=show, on_progress=show_progress))
        except Cancelled:
            return
        except Exception as error:  # every error is shown, and the screen stays open
            self.post_message(self.ReadFailed(error_with_hint(error)))

    @on(RowsRead)
    def _show_rows(self, message: RowsRead) -> None:
        rows = message.rows
        self._rows = rows
        pane, status = self.query_one(FilePane), self.query_one(FileStatus)
        pane.show("", message.opened)
        if not rows.row_count:
            pane.show_message("", [(" No rows", "muted")])
        if not rows.complete:
            status.show_text(f"{rows.format} · reading: the first {count_of(rows.row_count, 'row')}")
        elif rows.notes:
            more = f" (and {len(rows.notes) - 1} more)" if len(rows.notes) > 1 else ""
            status.show_text(f"{rows.notes[0]}{more}", "warn")
        else:
            status.show_text(f"{rows.format} · {count_of(rows.row_count, 'row')}")
        self.show_hints()

    @on(ReadFailed)
    def _show_failure(self, message: ReadFailed) -> None:
        if self._rows is None:
            self.query_one(FilePane).show_message("", [(f" {printable(message.error)}", "bad")])
        self.query_one(FileStatus).show_text(message.error, "bad")

    @on(ReadProgress)
    def _show_progress(self, message: ReadProgress) -> None:
        if self._rows is not None and not self._rows.complete:
            first = count_of(self._rows.row_count, "row")
            self.query_one(FileStatus).show_text(f"reading: {message.percent:.0f} % · the first {first}")

    def situation(self) -> Situation:
        """Return the situation, which guards of actions check."""
        pane = self.query_one(FilePane)
        line = self.query_one(FilterLine)
        up = line.display or pane.filter or pane.front_view is not None or self.find(SqlPanel) is not None
        return Situation(pane="data", has_rows=pane.view.count() > 0, up="filter" if up else "")

    def perform(self, action: str) -> None:
        """Run an action by its id; a notice shows the reason if its guard refuses."""
        if action not in self.keys.by_id:
            return
        refusal = self.keys.by_id[action].guard(self.situation())
        if refusal is not None:
            self.notice(refusal, "warn")
        elif action in _MOVES:
            self.query_one(FilePane).move(action)
        elif action in _OWN_ACTIONS or action == "filter":
            getattr(self, f"_run_{action}")()
            self.show_hints()
        else:
            bindings.run(self.load(bindings.CONTROLLER_OF[action]), action)

    @on(KeyHints.Chosen)
    def _hint_chosen(self, message: KeyHints.Chosen) -> None:
        self.perform(message.action)

    def _run_quit(self) -> None:
        self.app.exit()

    def _run_filter(self) -> None:
        line, pane = self.query_one(FilterLine), self.query_one(FilePane)
        self.query_one(KeyHints).display = False
        line.display = True
        line.placeholder = pane.filter_placeholder
        line.value = pane.filter
        line.focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        if event.input.display:
            self.query_one(FilePane).set_filter(event.value.strip())

    @on(Input.Submitted, "#filter")
    def _close_filter(self) -> None:
        self.query_one(FilterLine).display = False
        self.query_one(KeyHints).display = True
        self.set_focus(None)

    def _run_up(self) -> None:
        line, pane = self.query_one(FilterLine), self.query_one(FilePane)
        if line.display or pane.filter:
            self._close_filter()
            pane.set_filter("")
        elif not self.controller(DataController).leave():
            self._close_panel()

    def _run_sort_up(self) -> None:
        self._sort(down=False)

    def _run_sort_down(self) -> None:
        self._sort(down=True)

    def _sort(self, *, down: bool) -> None:
        """Sort all rows. Rows that are in no file are sorted by the pane."""
        pane = self.query_one(FilePane)
        while pane.front_view is not None and pane.front_view.kind == "sorted":
            pane.pop_view()
        opened = pane.view.opened
        if opened is None or not isinstance(opened.window, FileWindow):
            pane.sort(down=down)
            return
        name = opened.columns.names[pane.view.column]
        title = f"sorted by {name}, {'descending' if down else 'ascending'}"
        self._run_query(sort_query("file", name, down=down), opened.window.rows, title, "sorted")

    def _filter_all(self, test: str) -> bool:
        """Filter all rows by a test against the cell under the cursor, if they are in a file."""
        view = self.query_one(FilePane).view
        opened = view.opened
        if opened is None or not isinstance(opened.window, FileWindow):
            return False
        name = opened.columns.names[view.column]
        title = f"filtered: {condition_text(test, name, view.value(view.cursor, view.column) or '')}"
        sql = filter_query("file", name, test, f"LIMIT 1 OFFSET {view.cursor}")
        self._run_query(sql, opened.window.rows, title, "kept")
        return True

    def _run_sql(self) -> None:
        panel = self.find(SqlPanel)
        if panel is None:
            self.start(self._open_panel(), group="sql")
        else:
            self.set_focus(panel.editor)

    async def _open_panel(self) -> None:
        panel = SqlPanel(self._text)
        panel.datasets, panel.selected = ["file"], "file"
        rows = self._rows
        panel.columns["file"] = [(column.name, column.type) for column in rows.columns] if rows else []
        await self.query_one(FilePane).mount(panel, before=0)
        panel.line.show_text((_EDITOR_HINT, "muted"))
        self.set_focus(panel.editor)

    def _close_panel(self) -> None:
        if (panel := self.find(SqlPanel)) is not None:
            self._text = panel.editor.text
            panel.remove()
            self.set_focus(None)

    @on(SqlPanel.CommandRequested)
    def _run_command(self, message: SqlPanel.CommandRequested) -> None:
        match message.command:
            case "close":
                self._close_panel()
            case "rows":
                self.set_focus(None)
            case "edit":
                self._run_sql()
            case "stop":
                self._query.cancel()

    @on(SqlPanel.QuerySubmitted)
    def _query_submitted(self, message: SqlPanel.QuerySubmitted) -> None:
        if self._rows is not None and message.sql.strip():
            self._run_query(message.sql, self._rows, "SQL", QUERY)

    def _run_query(self, sql: str, rows: FileRows, title: str, kind: str) -> None:
        """Run a query over rows in its process, and show its result in front."""
        if not rows.complete:
            self._say("the file is still being read", "warn")
            return
        if self._is_querying:
            self._say("the previous query is running", "warn")
            return
        self._query, self._is_querying = Reporter(), True
        self._say("running …", "busy")
        reporter = self._query

        def run() -> LoadedWindow:
            result = self._table.query(sql, rows, reporter)
            return load_window(FileWindow(replace(result, columns=result.columns or rows.columns)))

        self.start(self._finish_query(asyncio.to_thread(run), title, kind), group="query")

    async def _finish_query(self, running: Awaitable[LoadedWindow], title: str, kind: str) -> None:
        panel = self.find(SqlPanel)
        try:
            opened = await running
        except OdfError as error:
            if panel is not None and kind == QUERY:
                panel.show_failure(Failure(error.message, error.hint, error.where))
                self._say("failed", "bad")
            else:
                self.notice(error_with_hint(error), "bad")
            return
        finally:
            self._is_querying = False
        pane = self.query_one(FilePane)
        if kind != "kept":  # a filter applies to what is visible
            while pane.front_view is not None and pane.front_view.kind in (QUERY, kind):
                pane.pop_view()
        if panel is not None:
            panel.show_failure(None)
        pane.show_view("", opened, title, "", kind)
        self._say(count_of(opened.window.row_count, "row"), "good")
        self.show_hints()

    def _say(self, text: str, style: str) -> None:
        """Show the state of a query in the panel, or in the status line."""
        panel = self.find(SqlPanel)
        if panel is not None and isinstance(self.focused, SqlEditor):
            panel.line.show_text((text, style))
        else:
            self.notice(text, style if style in ("warn", "bad") else "good")

    def _run_statistics(self) -> None:
        window = self.query_one(FilePane).window
        rows = window.rows if isinstance(window, FileWindow) else self._rows
        if rows is None:
            return
        reporter = Reporter()

        async def read() -> object:
            return await asyncio.to_thread(describe_rows, rows, self._table.folder, reporter)

        async def refuse(*_: str) -> str:
            raise AssertionError("the statistics are complete")

        what = "all rows" if rows.complete else f"the first {count_of(rows.row_count, 'row')}"
        title = f"Statistics of {self._table.title}"
        screen = StatisticsScreen(
            title,
            what,
            read,  # type: ignore[arg-type]
            refuse,
            refuse,  # type: ignore[arg-type]
            self.state.jobs,
            self.copy_text,
        )
        self.open(screen, lambda _: reporter.cancel())

    def _run_export(self) -> None:
        window = self.query_one(FilePane).window
        rows = window.rows if isinstance(window, FileWindow) else self._rows
        if rows is None or not rows.complete:
            self.notice("the file is still being read", "warn")
            return
        label = [f"all {count_of(rows.row_count, 'row')}"]
        name = Path(self._table.title).name.partition(".")[0] or "rows"
        dialog = ExportDialog(f"Export {self._table.title}", label, f"{name}-rows", system=False)

        def closed(options: ExportOptions | None) -> None:
            if options is not None:
                write = partial(self._write, rows, options)
                self.read("export", write, self._exported, replaces=False)

        self.open(dialog, closed)

    def _write(self, rows: FileRows, options: ExportOptions) -> str:
        size = Rows.of_file(rows.path, "").write(options.path, options.format, replace=options.replace)
        count = format_count(rows.row_count)
        return f"{count} rows in {printable(options.path.name)}, {format_bytes(size)}"

    def _exported(self, text: str | None, error: str) -> None:
        self.notice(text or error, "bad" if error else "good")

    def _run_add_file(self) -> None:
        """Leave, and open the workstation with the dialog of a new dataset."""
        locations = self._table.locations
        if len(locations) != 1 or Path(locations[0]).parent == self._table.folder:
            self.notice("only one file or URL can be kept as a dataset: open it alone", "warn")
        elif not (self.workspace.folder / ".odf").is_dir():
            self.notice("there is no workspace here: run odf init, then open the file again", "warn")
        else:
            cast("FileViewer", self.app).kept = _source_of(locations, self.workspace.folder)
            self.app.exit()

    @on(Notice)
    def _show_notice(self, message: Notice) -> None:
        self.notice(message.text, message.style)


def _adapt(action: Action) -> Action:
    """Return an action with its title and guard on this screen."""
    if action.id not in _OWN_ACTIONS or action.id in ("up", "quit"):
        return action
    hints = {"add_file": "keep as dataset", "sql": "SQL", "sort_up": "sort"}
    hint = hints.get(action.id, action.hint)
    return replace(
        action, title=_OWN_ACTIONS[action.id], scope="data", hint=hint, guard=_REQUIRES_ROWS, menu=""
    )


def _source_of(locations: Sequence[str], folder: Path) -> str:
    """Return the location for the manifest: relative to the workspace if the file is in it."""
    (location,) = locations
    if is_url(location) or not Path(location).is_relative_to(folder):
        return location
    return str(Path(location).relative_to(folder))


class FileViewer(TerminalApp):
    """The application.

    Args:
        settings: the settings of the user.
        table: the files.

    Attributes:
        kept: the file that becomes a dataset after the exit, or "".
    """

    CSS_PATH = "odf.tcss"
    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "leave", show=False, priority=True),
    ]

    def __init__(self, settings: ViewerSettings, table: FileTable) -> None:
        super().__init__(cast("Workspace", settings))
        self._settings, self._table = settings, table
        self.kept = ""

    def get_default_screen(self) -> FileScreen:
        """Return the screen with the rows."""
        return FileScreen(self._settings, self._table)

    def action_leave(self) -> None:
        """Quit, also from a dialog."""
        self.exit()
