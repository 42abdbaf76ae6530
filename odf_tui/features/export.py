"""Writes rows to CSV, JSON or Parquet files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input

from odf_engine.api import Export, ExportResult
from odf_engine.api.model import DatasetRow
from odf_engine.api.readers.row_window import RowPrefix, RowWindow
from odf_engine.api.text import count_of, format_bytes, format_count, printable
from odf_engine.errors import OdfError
from odf_tui.panes.data.view import QUERY, STATE, TIME, DataPane, TableView
from odf_tui.services.controller import Controller, task
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.text.format import Span, ellipsize_middle
from odf_tui.widgets.dialogs import ConfirmDialog, Dialog
from odf_tui.widgets.line_view import LineView, StaticLines


def export_summary(result: ExportResult) -> str:
    """Describe an exported file, such as ``7 200 rows in air.csv, 412.0 kB``."""
    rows = count_of(result.rows, "row")
    return f"{rows} in {printable(result.path.rpartition('/')[2])}, {format_bytes(result.size)}"


def running_export_text(path: Path) -> str:
    """Return the notice that an export continues as a job in the background."""
    return f"{path.name} is being written: see its job in pane 4"


Format = Literal["csv", "ndjson", "json", "parquet"]
FORMATS: Final[Sequence[tuple[Format, str, str]]] = (
    ("csv", "CSV", ".csv"),
    ("ndjson", "JSON lines", ".ndjson"),
    ("json", "JSON array", ".json"),
    ("parquet", "Parquet", ".parquet"),
)
_SUFFIXES: Final = tuple(suffix for _, _, suffix in FORMATS)
_COLUMNS: Final = ("data and system", "data")
_LABELS: Final = 9
_FOLDER: Final = 40


class ExportOptions(msgspec.Struct, frozen=True):
    """The options of an export: index of the choice of rows, format, system columns, path, overwriting."""

    rows: int
    format: Format
    system: bool
    path: Path
    replace: bool


class OptionList(LineView):
    """One line for each option, with its choices. The chosen one is in brackets."""

    def __init__(self, rows: Sequence[str], columns: Sequence[str]) -> None:
        super().__init__(id="options")
        self.active = True
        self.labels = ("rows", "format", "columns")
        self.values = (
            list(rows),
            [name for _, name, _ in FORMATS],
            list(columns),
        )
        self.chosen = [0, 0, 0]
        self.cursor = 1

    def on_mount(self) -> None:
        """Show the options."""
        self.reset()

    def count(self) -> int:
        """Return the number of options."""
        return len(self.labels)

    def choose_next(self, by: int) -> None:
        """Choose the next or the previous choice of the option under the cursor."""
        values = self.values[self.cursor]
        self.chosen[self.cursor] = (self.chosen[self.cursor] + by) % len(values)
        self.refresh_line(self.cursor)

    def style_of(self, index: int) -> str:
        """Return the style of the line under the cursor."""
        return "idle" if self.active and index == self.cursor else ""

    def spans(self, index: int) -> Sequence[Span]:
        """Return the choices of an option."""
        spans: list[Span] = [(f" {self.labels[index]:<{_LABELS}}", "muted")]
        for at, text in enumerate(self.values[index]):
            if at == self.chosen[index]:
                spans += [("[", "key"), (printable(text), "strong"), ("] ", "key")]
            else:
                spans.append((f" {printable(text)}  ", ""))
        return spans


class ExportDialog(Dialog[ExportOptions]):
    """Reads the options of an export.

    Args:
        title: title of the dialog.
        rows: labels of the choices of rows.
        name: name of the file, without its suffix.
        system: whether the rows have system columns.
    """

    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("enter", "write", "write the file", show=False, priority=True),
        Binding("tab,down", "go(1)", "next option", show=False, priority=True),
        Binding("shift+tab,up", "go(-1)", "previous option", show=False, priority=True),
    ]

    def __init__(self, title: str, rows: Sequence[str], name: str, *, system: bool = True) -> None:
        super().__init__()
        self._title, self._name = title, name
        self._options = OptionList(rows, _COLUMNS if system else ("all",))

    def compose(self) -> ComposeResult:
        """Yield the options and the input of the path."""
        with Vertical(classes="dialog export") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content("↑ ↓ lines · ← → choose · ⏎ writes · esc closes")
            yield StaticLines([[]])
            yield self._options
            line = Input(self._name + FORMATS[0][2], compact=True)
            line.cursor_blink = False
            with Horizontal():
                yield StaticLines([[(" file", "muted")]])
                yield line
            folder = ellipsize_middle(printable(str(Path.cwd())), _FOLDER)
            yield StaticLines([[], [(" " * (_LABELS + 1) + f"relative to {folder}", "muted")]])

    @property
    def _line(self) -> Input:
        return self.query_one(Input)

    def action_go(self, by: int) -> None:
        """Go to the next or the previous line. The path is the last one."""
        options = self._options
        at = (options.cursor if options.active else options.count()) + by
        at %= options.count() + 1
        options.active = at < options.count()
        if options.active:
            self.set_focus(None)
            options.cursor = at
        else:
            self._line.focus()
        options.refresh()

    def on_key(self, event: events.Key) -> None:
        """Change an option. In the options, letters move like arrow keys."""
        if not self._options.active:
            return
        if event.key in ("left", "h", "right", "l", "space"):
            self._options.choose_next(-1 if event.key in ("left", "h") else 1)
            self._update_suffix()
        elif event.key in ("j", "k"):
            self.action_go(1 if event.key == "j" else -1)
        elif event.key == "q":
            self.dismiss(None)

    def _update_suffix(self) -> None:
        """Change the suffix of the path with the format, unless the user typed another suffix."""
        path, suffix = self._line.value, FORMATS[self._options.chosen[1]][2]
        known = next((known_suffix for known_suffix in _SUFFIXES if path.endswith(known_suffix)), None)
        if known is not None:
            self._line.value = path.removesuffix(known) + suffix

    def on_line_view_moved(self) -> None:
        """Leave the input after a click on an option."""
        self._options.active = True
        self.set_focus(None)

    def on_descendant_focus(self) -> None:
        """Leave the options after a click on the input."""
        self._options.active = False
        self._options.refresh()

    def action_write(self) -> None:
        """Close the dialog with the options. Overwriting a file requires a confirmation."""
        text = self._line.value.strip()
        if not text:
            return
        path = Path(text).expanduser().absolute()
        if path.is_file():
            question = ConfirmDialog(f"{path.name} already exists. Overwrite?", "Its contents will be lost.")
            self.app.push_screen(question, lambda yes: self._finish(path, replace=True) if yes else None)
        else:
            self._finish(path, replace=False)

    def _finish(self, path: Path, *, replace: bool) -> None:
        rows, form, columns = self._options.chosen
        self.dismiss(ExportOptions(rows, FORMATS[form][0], columns == 0, path, replace))


_KIND_LABELS: Final = {STATE: "latest state", QUERY: "query result"}


class ExportableRows(msgspec.Struct, frozen=True):
    """Rows that can be exported.

    Attributes:
        label: describes them.
        window: the table with the rows, or None for the dataset.
        ranges: ranges of row numbers with exclusive ends. If it is empty, all rows are exported.
    """

    label: str
    window: Any = None
    ranges: list[tuple[int, int]] = []


class ExportController(Controller):
    """Exports rows to files."""

    def export_rows(self) -> None:
        """Export rows of the selected dataset, or of the front view of the data pane."""
        row = self.state.row
        if row is None:
            return
        pane = self.host.query_one(DataPane)
        choices = exportable_rows(row, pane)
        dataset, name = dataset_of_view(row, pane.front_view)
        short = name.rpartition("/")[2].rpartition(".")[2] if dataset else "result"
        label = [choice.label for choice in choices]
        dialog = ExportDialog(f"Export {name}", label, short, system=_has_system_columns(pane.window))

        def closed(options: ExportOptions | None) -> None:
            if options is not None:
                self._export(dataset, name, choices[options.rows], options)

        self.host.open(dialog, closed)

    @task
    async def _export(self, dataset: str, name: str, rows: ExportableRows, options: ExportOptions) -> None:
        file = parquet_file_of(rows.window)
        spooled = ""
        if rows.window is not None and file is None:
            file = spooled = await asyncio.to_thread(self.workspace.write_temporary_rows, rows.window)
        request = Export(
            dataset,
            str(options.path),
            format=options.format,
            file=file,
            ranges=sorted(rows.ranges),
            system=options.system,
            replace=options.replace,
        )
        try:
            result = await self.jobs.outcome(request, name, f"Exporting {name}", leaves=True)
        except LeftRunning:  # the job still reads the spooled file
            self.host.notice(running_export_text(options.path))
            return
        except OdfError:
            await asyncio.to_thread(self.workspace.remove_temporary_rows, spooled)
            raise
        await asyncio.to_thread(self.workspace.remove_temporary_rows, spooled)
        self.host.notice(export_summary(result))


def exportable_rows(row: DatasetRow, pane: DataPane) -> list[ExportableRows]:
    """Return the rows that can be exported, the most specific choice first."""
    view, window, marked = pane.front_view, pane.window, pane.marked_ranges()
    if view is not None and view.kind == TIME and window is not None:
        return _exportable_at_time(row, view, window, marked)
    choices: list[ExportableRows] = []
    if marked:
        choices.append(_marked_rows(marked, window if view is not None else None))
    if view is not None and window is not None:
        label = _KIND_LABELS.get(view.kind, "shown rows")
        choices.append(ExportableRows(f"{label}: {format_count(window.row_count)}", window))
    if view is None or view.kind != QUERY:
        choices.append(ExportableRows(f"all {count_of(row.records, 'row')}", None))
    return choices


def _exportable_at_time(
    row: DatasetRow, view: TableView, window: RowWindow, marked: list[tuple[int, int]]
) -> list[ExportableRows]:
    """Return the rows of a view of another time. A prefix of the dataset is exported from the dataset."""
    prefix = isinstance(window, RowPrefix)
    table = None if prefix else window
    choices = [_marked_rows(marked, table)] if marked else []
    if window.row_count:
        label = f"{'as of this time' if view.as_of else 'as at this block'}: {format_count(window.row_count)}"
        choices.append(ExportableRows(label, table, [(0, window.row_count)] if prefix else []))
    return [*choices, ExportableRows(f"all {count_of(row.records, 'row')}", None)]


def _marked_rows(marked: list[tuple[int, int]], window: RowWindow | None) -> ExportableRows:
    rows = sum(stop - start for start, stop in marked)
    return ExportableRows(f"{format_count(rows)} marked", window, marked)


def dataset_of_view(row: DatasetRow, view: TableView | None) -> tuple[str, str]:
    """Return id and name of the dataset whose rows a view shows; the id is empty for a query."""
    return ("", "query result") if view is not None and view.kind == QUERY else (row.id, row.name)


def parquet_file_of(window: RowWindow | None) -> str | None:
    """Return the Parquet file with exactly the rows of a window, or None if absent."""
    return getattr(window, "file", None)


def _has_system_columns(window: RowWindow | None) -> bool:
    return window is None or not set(window.system_columns[:3]).isdisjoint(window.columns.names)
