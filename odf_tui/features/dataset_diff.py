"""Compares two versions of a dataset, or two datasets, row by row."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from msgspec.structs import replace
from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.api import (
    CHANGE_COLUMN,
    Diff,
    DiffColumn,
    Difference,
    Export,
    PinnedVersion,
    branch_title,
    pa,
)
from odf_engine.api.model import BlockFilter, DatasetRow
from odf_engine.api.readers.row_window import RowWindow, UnreadableRange, read_part
from odf_engine.api.text import count_of, format_count, format_zoned_time, printable
from odf_engine.errors import OdfError
from odf_tui.features.export import ExportDialog, export_summary, running_export_text
from odf_tui.panes.data.row_dialogs import KeyColumnsDialog
from odf_tui.services.controller import Controller, dataset_task
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.text import diff_text
from odf_tui.text.diff_text import ARROW, SIGNS, STYLES, DiffRowFormatter
from odf_tui.text.format import NULL, Span, error_with_hint, fit_width
from odf_tui.text.row_text import read_scalar
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog, PickerDialog, TextDialog, TimeDialog
from odf_tui.widgets.line_view import StaticLines, WrappedLines
from odf_tui.widgets.row_table import LoadedWindow, RowTable, load_window

_LONGEST: Final = 400
_NUMBERS: Final = ("int", "uint", "float", "double", "halffloat", "decimal")


class DiffWindow:
    """The rows of a difference as texts: the kind of change, then one column for each compared column.

    The changed columns follow the key, the most changed first. Times are last among them: the event time of
    a corrected row usually changes with its values.

    Attributes:
        difference: the difference.
        shown: its columns in the order of the table.
        file: path of the Parquet file.
    """

    system_columns = ("", "", "", "")

    def __init__(self, difference: Difference, rows: RowWindow) -> None:
        self.difference = difference
        self.file = difference.file
        self._rows = rows
        self.row_count = rows.row_count
        self.shown = sorted(
            difference.columns,
            key=lambda column: (
                not column.key,
                column.name not in difference.by_column,
                _is_time(column),
                -difference.by_column.get(column.name, 0),
            ),
        )
        names = [CHANGE_COLUMN, *(column.name for column in self.shown)]
        self.columns = pa.schema([pa.field(name, pa.string()) for name in names])

    def window(self, start: int, count: int) -> pa.Table:
        """Return rows with all columns."""
        return self.part(start, count, range(len(self.columns)))[0]

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Return some columns of rows."""
        requested = [column for column in columns if column]
        texts = self.formatter(start, count, [column - 1 for column in requested])
        rows = range(len(texts.changes))
        cells = {column: [texts.cell(row, at) for row in rows] for at, column in enumerate(requested)} | {
            0: [f"{SIGNS[change]} {change}" for change in texts.changes]
        }
        schema = pa.schema([self.columns.field(column) for column in columns])
        return pa.table([pa.array(cells[column], pa.string()) for column in columns], schema=schema), ()

    def offsets(self, row: int) -> tuple[int | None, int | None]:
        """Return the offsets of the older and the newer row, or None on a side that lacks it."""
        if self.difference.offsets is None:
            raise OdfError("this result has no offsets", hint="d compares the versions again")
        names = self._rows.columns.names
        old, new = (read_scalar(self._rows, row, names.index(name)) for name in self.difference.offsets)
        return None if old is None else old.as_py(), None if new is None else new.as_py()

    def changed_column(self, row: int) -> str | None:
        """Return the first column whose value differs, or None if the entire row was added or removed."""
        texts = self.formatter(row, 1, range(len(self.shown)))
        if texts.changes[0] != "changed":
            return None
        return next((name for name, _, _, differs in texts.cells(0, only_changed=False) if differs), None)

    def formatter(self, start: int, count: int, columns: Sequence[int] | None = None) -> DiffRowFormatter:
        """Return rows as texts; ``columns`` are indices of :attr:`shown`, None for all."""
        chosen = self.difference.columns if columns is None else [self.shown[at] for at in columns]
        requested = dict.fromkeys(
            name for column in chosen for name in (column.old, column.new) if name is not None
        )
        indices = [self._rows.columns.names.index(name) for name in (CHANGE_COLUMN, *requested)]
        table, _ = read_part(self._rows, start, count, indices)
        return DiffRowFormatter(
            chosen, bool(self.difference.key), table, None if columns is None else _LONGEST
        )


def open_difference(window: DiffWindow) -> LoadedWindow | None:
    """Load the first rows of a difference, or None if it has none. Slow."""
    if not window.row_count:
        return None
    opened = load_window(window)
    opened.columns.right = [
        False,
        *(_is_number(column.new_type or column.old_type) for column in window.shown),
    ]
    opened.columns.fixed = 1 + len(window.difference.key)
    return opened


def _is_number(kind: str | None) -> bool:
    return kind is not None and kind.startswith(_NUMBERS)


def _is_time(column: DiffColumn) -> bool:
    return (column.new_type or column.old_type or "").startswith("timestamp")


class DifferenceRows(RowTable):
    """The table of rows. Changed values contain an arrow, and are coloured."""

    def _cell(self, index: int, column: int, width: int, text: str | None) -> Span:
        fitted, style = super()._cell(index, column, width, text)
        if style in ("cursor", "strong") or text is None:
            return fitted, style
        if column == 0:
            return fitted, STYLES.get(text[:1], "")
        return (fitted, "warn") if ARROW in text and self.value(index, 0) == "~ changed" else (fitted, style)


_KEYS: Final = "⏎ row · w trace · m metadata · B key · d compare · E export · esc"
SpanLines = list[Sequence[Span]]


class DifferenceScreen(Dialog[str]):
    """Shows a difference. Returns the next step, or None.

    The step is ``key``, ``again``, ``export``, or ``trace`` with the number of a row.

    Args:
        title: title of the dialog.
        window: the rows.
        opened: the loaded rows, or None if there are none.
        row: the number of the row with the cursor.
        copy: called with a label and the text to copy.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "row", "show the row with all values in full", show=False),
        Binding("w", "trace", "trace the row to the rows and sources that it comes from", show=False),
        Binding("m", "settings", "show other differences: columns, licence, sources, query", show=False),
        Binding("B", "dismiss('key')", "compare by another key", show=False),
        Binding("d", "dismiss('again')", "compare other versions", show=False),
        Binding("E", "dismiss('export')", "write the rows to a file", show=False),
        Binding("y", "copy", "copy the row", show=False),
        Binding("h,left", "move('left')", show=False),
        Binding("l,right", "move('right')", show=False),
        *MOVE_KEYS,
    ]

    def __init__(
        self,
        title: str,
        window: DiffWindow,
        opened: LoadedWindow | None,
        row: int,
        copy: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self._title, self._window, self._opened, self._copy = title, window, opened, copy
        self._row = row
        self._described: int | None = None
        self._rows: DifferenceRows = DifferenceRows()

    def compose(self) -> ComposeResult:
        """Yield the summary and the rows."""
        with Vertical(classes="dialog reader difference") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content(_KEYS)
            yield DifferenceHead(head_lines(self._window.difference), id="difference-head")
            yield self._rows
            yield ChangedValues(id="difference-values")

    def on_mount(self) -> None:
        """Show the rows."""
        self._rows.active = True
        if self._opened is None:
            self._rows.show_message(*_no_rows(self._window.difference))
        else:
            self._rows.open(self._opened, stay=False)
            self._rows.go(self._row)
            self._show_values()

    @on(DifferenceRows.Moved)
    def _show_values(self) -> None:
        """Show the changed values of the row under the cursor."""
        if self._opened is not None and self._rows.cursor != self._described:
            self._described = self._rows.cursor
            self.run_worker(self._describe(self._described), group="values", exclusive=True)

    async def _describe(self, row: int) -> None:
        try:
            lines = await asyncio.to_thread(self._changed_lines, row)
        except Exception as error:  # every error is shown, and the screen stays open
            lines = [[(f" {error_with_hint(error)}", "bad")]]
        self.query_one(ChangedValues).set(lines)

    def _changed_lines(self, row: int) -> SpanLines:
        texts = self._window.formatter(row, 1)
        if texts.changes[0] != "changed":
            return [[(f" the entire row was {texts.changes[0]}: ⏎ shows it", "muted")]]
        order = {column.name: at for at, column in enumerate(self._window.shown)}
        return [
            [
                (" ", ""),
                (f"{printable(name)}: ", "name"),
                (f"{_value_text(old)}{ARROW}{_value_text(new)}", "warn"),
            ]
            for name, old, new, differs in sorted(
                texts.cells(0, only_changed=True), key=lambda cell: order[cell[0]]
            )
            if differs
        ]

    @on(DifferenceRows.Failed)
    def _show_failure(self, message: DifferenceRows.Failed) -> None:
        """Show why rows cannot be read."""
        self.query_one("#difference-head", DifferenceHead).set([[(f" {printable(message.error)}", "bad")]])

    def on_line_view_opened(self) -> None:
        """Show the row that was double-clicked."""
        self.action_row()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._rows.move(move)

    def action_settings(self) -> None:
        """Show the changed columns and metadata."""
        lines: SpanLines = [
            [(" ", ""), *line] for line in diff_text.settings_changes(self._window.difference)
        ]
        lines = lines or [[(" no other differences", "muted")]]
        lines = [[(f" {diff_text.interval_text(self._window.difference)}", "muted")], [], *lines]
        self.app.push_screen(
            TextDialog("Other differences", lines, lambda text: self._copy("other differences", text))
        )

    def action_trace(self) -> None:
        """Trace the row under the cursor."""
        if self._opened is not None:
            self.dismiss(f"trace {self._rows.cursor}")

    def action_row(self) -> None:
        """Show the row under the cursor with all values in full."""
        if self._opened is not None:
            self.run_worker(self._show_row(self._rows.cursor), group="row", exclusive=True)

    async def _show_row(self, row: int, dialog: TextDialog | None = None) -> None:
        try:
            lines = await asyncio.to_thread(self._row_lines, row)
        except Exception as error:  # every error is shown, and the screen stays open
            self.query_one("#difference-head", DifferenceHead).set([[(f" {error_with_hint(error)}", "bad")]])
            return
        title = f"Row {format_count(row + 1)} of {format_count(self._window.row_count)}"
        if dialog is not None:
            dialog.show(title, lines)
            return
        shown: list[TextDialog] = []

        def step(by: int) -> None:
            to = self._rows.cursor + by
            if 0 <= to < self._window.row_count:
                self._rows.go(to)
                shown[0].run_worker(self._show_row(to, shown[0]), group="row", exclusive=True)

        shown.append(DiffRowDialog(title, lines, lambda text: self._copy("row", text), step))
        self.app.push_screen(shown[0])

    def _row_lines(self, row: int) -> SpanLines:
        texts = self._window.formatter(row, 1)
        lines: SpanLines = []
        width = max(len(column.name) for column in self._window.difference.columns)
        for name, old, new, differs in texts.cells(0, only_changed=False):
            label = f" {printable(name):<{width}} "
            if differs:
                lines += [
                    [(label, "name"), (f" - {_value_text(old)}", "bad")],
                    [(" " * len(label), ""), (f" + {_value_text(new)}", "good")],
                ]
            else:
                value = old if texts.changes[0] == "removed" else new
                lines.append(
                    [(label, "name"), (f"   {_value_text(value)}", "muted" if value is None else "")]
                )
        sign = diff_text.SIGNS[texts.changes[0]]
        return [[(f" {sign} {texts.changes[0]}", diff_text.STYLES[sign])], [], *lines]

    def action_copy(self) -> None:
        """Copy the row under the cursor."""
        if self._opened is not None:
            self.run_worker(self._copy_row(self._rows.cursor), group="copy", exclusive=True)

    async def _copy_row(self, row: int) -> None:
        texts = await asyncio.to_thread(self._window.formatter, row, 1)
        self._copy("row", diff_text.text_of(texts.spans(0)))


class DifferenceHead(StaticLines):
    """Lines that end in an ellipsis if they do not fit."""

    def spans(self, index: int) -> Sequence[Span]:
        """Return a line."""
        spans, room = list(super().spans(index)), self.room.width
        while room > 0 and sum(cell_len(text) for text, _ in spans) > room:
            *spans, (text, style) = spans
            left = room - sum(cell_len(text) for text, _ in spans)
            if left > 1:
                return [*spans, (fit_width(text, left), style)]
        return spans


class UncutLines(WrappedLines):
    """Wrapped lines of any length."""

    max_lines = sys.maxsize


class ChangedValues(WrappedLines):
    """The changed values of a row as ``column: old → new``, as many as fit into half of the screen."""

    def set(self, lines: Sequence[Sequence[Span]]) -> None:
        """Replace the lines. If there are too many, the last one names the key that shows all."""
        super().set(lines)
        limit = max(self.app.size.height // 2 - 4, 2)
        if len(self._lines) > limit:
            self._lines[limit - 1 :] = [[(" … ⏎ shows the entire row", "muted")]]
            self.reset()


class DiffRowDialog(TextDialog):
    """A row with all values in full. Keys show the previous and the next row."""

    def body(self) -> WrappedLines:
        """Return the widget that wraps the values."""
        return UncutLines()

    def describe_keys(self) -> list[str]:
        """Return the keys that show other rows."""
        return ["[ previous · ] next"]


def head_lines(difference: Difference) -> list[list[Span]]:
    """Return the compared versions, the number of changed rows, and the changed metadata."""
    lines = [
        [(f" {printable(diff_text.compared_versions_text(difference, named=False))}", "strong")],
        [(" ", ""), *diff_text.row_counts_text(difference)],
        [(f" {diff_text.interval_text(difference)}", "muted")],
    ]
    other = diff_text.short_settings(difference)
    lines.append([(f" {other}" if other else " no other differences", "warn" if other else "muted")])
    return lines


def _no_rows(difference: Difference) -> list[list[Span]]:
    if not difference.unchanged:
        return [[(" Neither version has rows.", "muted")]]
    return [[(" No rows differ.", "muted")]]


def _value_text(text: str | None) -> str:
    return NULL if text is None else printable(text)


_MAX_BLOCKS: Final = 1000
_SUBJECTS: Final = (
    Choice("before", "its version before the newest data", ("p",), "p"),
    Choice("block", "its version at a block …", ("b",), "b"),
    Choice("time", "its version at a time …", ("t",), "t"),
    Choice("other", "another dataset …", ("o",), "o"),
)


class DatasetDiffController(Controller):
    """Compares the selected dataset with an earlier version of it, or with another dataset."""

    @dataset_task
    async def show_differences(self, row: DatasetRow) -> None:
        """Show the differences between the selected dataset and a version that the user chooses."""
        await self.compare(row, await self._choose_comparison(row))

    async def compare(self, row: DatasetRow, request: Diff | None) -> None:
        """Show the results of comparisons until the user is done."""
        while request is not None:
            try:
                difference = await self.jobs.outcome(request, row.name, f"Comparing {row.name}", leaves=True)
            except LeftRunning:
                self.host.notice(f"{row.name} is being compared: d shows the result when done")
                return
            answer = await self._show(row, difference)
            while answer is not None and answer.startswith("trace "):
                at = int(answer.removeprefix("trace "))
                back = await self._trace(row, difference, at)
                answer = await self._show(row, difference, at) if back else None
            if answer == "key":
                key = await self._choose_key(difference)
                request = replace(request, key=key) if key else request
            elif answer == "again":
                request = await self._choose_comparison(row)
            else:
                if answer == "export":
                    await self._export(row, difference)
                return

    async def _trace(self, row: DatasetRow, difference: Difference, at: int) -> bool:
        """Trace a differing row, on the newer side if it is there.

        Returns:
            Whether the user closed the trace, instead of following a link.
        """

        def read() -> tuple[PinnedVersion, int, str | None]:
            window = DiffWindow(difference, self.workspace.file_rows(row.id, difference.file))
            return *difference.traceable_row(*window.offsets(at)), window.changed_column(at)

        side, offset, column = await asyncio.to_thread(read)
        tracing: Any = self.host.load("features.provenance.controller.ProvenanceController")
        key, name = (branch_title(text, side.history) for text in (side.dataset, side.name))
        return await tracing.trace_offset(key, name, offset, column)

    async def _show(self, row: DatasetRow, difference: Difference, at: int = 0) -> str | None:
        """Show a difference with the cursor at a row.

        Returns:
            The next step, or None if the screen was closed.
        """

        def load() -> DifferenceScreen:
            window = DiffWindow(difference, self.workspace.file_rows(row.id, difference.file))
            names = dict.fromkeys((difference.old.name, difference.new.name))
            title = f"Differences: {' and '.join(names)}"
            return DifferenceScreen(title, window, open_difference(window), at, self.host.copy_text)

        return await self.host.ask(await asyncio.to_thread(load))

    async def _choose_comparison(self, row: DatasetRow) -> Diff | None:
        subject = await self.host.ask(PickerDialog(f"Compare {row.name} with", _SUBJECTS, typing=False))
        if subject == "before":
            return Diff(row.id)
        if subject == "other":
            other = await self._choose_dataset(row)
            return None if other is None else Diff(row.id, other)
        if subject is None:
            return None
        at = await (self._choose_block(row) if subject == "block" else self._choose_time(row))
        return None if at is None else Diff(row.id, as_at=at)

    async def _choose_dataset(self, row: DatasetRow) -> str | None:
        others = [dataset for dataset in self.state.datasets if dataset.id != row.id and not dataset.missing]
        if not others:
            raise OdfError("no other dataset in this workspace")
        choices = [Choice(other.id, other.name, remark=count_of(other.records, "row")) for other in others]
        return await self.host.ask(PickerDialog(f"Compare {row.name} with", choices, typing=True))

    async def _choose_block(self, row: DatasetRow) -> str | None:
        page = await asyncio.to_thread(self.workspace.blocks, row.id, None, _MAX_BLOCKS, BlockFilter())
        lines = [line for line in reversed(page.lines) if not line.broken]
        choices = [
            Choice(
                line.hash,
                f"{format_count(line.sequence_number)}  {format_zoned_time(line.time)}  {line.event}",
                remark=printable(line.summary),
            )
            for line in lines[1:]  # the other side is the newest block
        ]
        if not choices:
            raise OdfError(f"{row.name} has no earlier block")
        return await self.host.ask(PickerDialog(f"Compare {row.name} with a block", choices, typing=True))

    async def _choose_time(self, row: DatasetRow) -> str | None:
        return await self.host.ask(
            TimeDialog(f"Compare {row.name} with a time", "system time, such as 2026-03-01 14:00")
        )

    async def _choose_key(self, difference: Difference) -> list[str] | None:
        columns = [
            (column.name, column.new_type)
            for column in difference.columns
            if column.old_type and column.new_type is not None
        ]
        if not columns:
            raise OdfError("no common columns")
        return await self.host.ask(KeyColumnsDialog("Key of the comparison", columns, difference.key))

    async def _export(self, row: DatasetRow, difference: Difference) -> None:
        label = f"differing rows: {format_count(difference.rows)}"
        short = f"{row.name.rpartition('/')[2].rpartition('.')[2]}-diff"
        options = await self.host.ask(ExportDialog("Export differences", [label], short, system=False))
        if options is None:
            return
        request = Export(
            "", str(options.path), format=options.format, file=difference.file, replace=options.replace
        )
        try:
            result = await self.jobs.outcome(request, row.name, "Exporting differences", leaves=True)
        except LeftRunning:
            self.host.notice(running_export_text(options.path))
            return
        self.host.notice(export_summary(result))
