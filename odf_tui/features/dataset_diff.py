"""Compares two versions of a dataset, or two datasets, row by row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace
from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.coordinator.protocol import Diff, Export
from odf_engine.errors import OdfError
from odf_engine.views.diff import CHANGE_COLUMN, Difference
from odf_tui.gateway.row_window import RowWindow, UnreadableRange, read_part
from odf_tui.services.controller import Controller
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.state.model import BlockFilter, DatasetRow
from odf_tui.text import diff_text
from odf_tui.text.diff_text import ARROW, SIGNS, STYLES, DiffRowFormatter
from odf_tui.text.format import (
    NULL,
    Span,
    error_with_hint,
    fit_width,
    format_count,
    format_time,
    printable,
)
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import MOVE_KEYS, Dialog, PickerDialog, TextDialog, TimeDialog
from odf_tui.widgets.line_view import StaticLines
from odf_tui.widgets.row_table import LoadedWindow, RowTable, load_window

if TYPE_CHECKING:
    import pyarrow as pa


_LONGEST: Final = 400
_NUMBERS: Final = ("int", "uint", "float", "double", "halffloat", "decimal")


class DiffWindow:
    """Rows that differ, as texts: what happened to a row, then each column once.

    After the key come the columns in which most rows have changed: they would be out of sight else.

    Attributes:
        found: the whole difference.
        shown: its columns in their order.
        file: the Parquet file.
    """

    system_columns = ("", "", "", "")

    def __init__(self, found: Difference, rows: RowWindow) -> None:
        import pyarrow as pa

        self.found = found
        self.file = found.file
        self._rows = rows
        self.row_count = rows.row_count
        self.shown = sorted(
            found.columns, key=lambda each: (not each.key, -found.by_column.get(each.name, 0))
        )
        names = [CHANGE_COLUMN, *(each.name for each in self.shown)]
        self.columns = pa.schema([pa.field(name, pa.string()) for name in names])

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        return self.part(start, count, range(len(self.columns)))[0]

    def part(
        self, start: int, count: int, columns: Sequence[int]
    ) -> tuple[pa.Table, Sequence[UnreadableRange]]:
        """Some columns of some rows."""
        import pyarrow as pa

        wanted = [column for column in columns if column]
        texts = self.texts(start, count, [column - 1 for column in wanted])
        rows = range(len(texts.changes))
        made = {column: [texts.cell(row, at) for row in rows] for at, column in enumerate(wanted)} | {
            0: [f"{SIGNS[change]} {change}" for change in texts.changes]
        }
        schema = pa.schema([self.columns.field(column) for column in columns])
        return pa.table([pa.array(made[column], pa.string()) for column in columns], schema=schema), ()

    def texts(self, start: int, count: int, columns: Sequence[int] | None = None) -> DiffRowFormatter:
        """Some rows; only these of the columns that are shown when they are named."""
        found = self.found.columns if columns is None else [self.shown[at] for at in columns]
        wanted = dict.fromkeys(name for each in found for name in (each.old, each.new) if name is not None)
        places = [self._rows.columns.names.index(name) for name in (CHANGE_COLUMN, *wanted)]
        table, _ = read_part(self._rows, start, count, places)
        return DiffRowFormatter(found, bool(self.found.key), table, None if columns is None else _LONGEST)


def open_difference(window: DiffWindow) -> LoadedWindow | None:
    """Reads what is needed to show rows; in a thread. None when there are none."""
    if not window.row_count:
        return None
    opened = load_window(window)
    opened.columns.right = [
        False,
        *(_is_number(each.new_type or each.old_type) for each in window.shown),
    ]
    opened.columns.fixed = 1 + len(window.found.key)
    return opened


def _is_number(kind: str | None) -> bool:
    return kind is not None and kind.startswith(_NUMBERS)


class DifferenceRows(RowTable):
    """The table. What differs has an arrow in it, and a colour where there are some."""

    def _cell(self, index: int, column: int, width: int, text: str | None) -> Span:
        fitted, style = super()._cell(index, column, width, text)
        if style in ("cursor", "strong") or text is None:
            return fitted, style
        if column == 0:
            return fitted, STYLES.get(text[:1], "")
        return (fitted, "warn") if ARROW in text and self.value(index, 0) == "~ changed" else (fitted, style)


_KEYS: Final = "⏎ row · m what else · B other key · d compare · E export · esc"
Lines_ = list[Sequence[Span]]


class DifferenceScreen(Dialog[str]):
    """Shows a difference; ends with ``key``, ``again`` or ``export`` where the person wants that.

    Args:
        title: what it is of.
        window: the rows.
        opened: what is shown of them at first; None when there are none.
        copy: takes what it is and its text.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "row", "show the row, every value in full", show=False),
        Binding("m", "settings", "show what else differs: columns, licence, sources, query", show=False),
        Binding("B", "dismiss('key')", "compare by other columns", show=False),
        Binding("d", "dismiss('again')", "compare something else", show=False),
        Binding("E", "dismiss('export')", "write the rows to a file", show=False),
        Binding("y", "copy", "copy the row", show=False),
        Binding("h,left", "move('left')", show=False),
        Binding("l,right", "move('right')", show=False),
        *MOVE_KEYS,
    ]

    def __init__(
        self, title: str, window: DiffWindow, opened: LoadedWindow | None, copy: Callable[[str, str], None]
    ) -> None:

        super().__init__()
        self._title, self._window, self._opened, self._copy = title, window, opened, copy
        self._rows: DifferenceRows = DifferenceRows()

    def compose(self) -> ComposeResult:
        """What was compared and how much differs, and the rows."""
        with Vertical(classes="dialog reader difference") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content(_KEYS)
            yield Head(head_lines(self._window.found), id="difference-head")
            yield self._rows

    def on_mount(self) -> None:
        """Shows the rows."""
        self._rows.active = True
        if self._opened is None:
            self._rows.show_message(*_no_rows(self._window.found))
        else:
            self._rows.open(self._opened, stay=False)

    @on(DifferenceRows.Failed)
    def _show_failure(self, message: DifferenceRows.Failed) -> None:
        """Rows cannot be read."""
        self.query_one("#difference-head", Head).set([[(f" {printable(message.error)}", "bad")]])

    def on_line_view_opened(self) -> None:
        """Clicked twice."""
        self.action_row()

    def action_move(self, move: str) -> None:
        """Moves through the rows and columns."""
        self._rows.move(move)

    def action_settings(self) -> None:
        """Columns, and all that describes the two."""
        lines: Lines_ = [[(" ", ""), *line] for line in diff_text.settings_changes(self._window.found)]
        lines = lines or [[(" nothing else differs", "muted")]]
        lines = [[(f" {diff_text.interval_text(self._window.found)}", "muted")], [], *lines]
        self.app.push_screen(
            TextDialog("What else differs", lines, lambda text: self._copy("what differs", text))
        )

    def action_row(self) -> None:
        """A row in full."""
        if self._opened is not None:
            self.run_worker(self._show_row(self._rows.cursor), group="row", exclusive=True)

    async def _show_row(self, row: int, reader: TextDialog | None = None) -> None:
        try:
            lines = await asyncio.to_thread(self._row_lines, row)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self.query_one("#difference-head", Head).set([[(f" {error_with_hint(error)}", "bad")]])
            return
        title = f"Row {row + 1} of {self._window.row_count}"
        if reader is not None:
            reader.show(title, lines)
            return
        shown: list[TextDialog] = []

        def step(by: int) -> None:
            to = self._rows.cursor + by
            if 0 <= to < self._window.row_count:
                self._rows.go(to)
                shown[0].run_worker(self._show_row(to, shown[0]), group="row", exclusive=True)

        shown.append(RowReader(title, lines, lambda text: self._copy("row", text), step))
        self.app.push_screen(shown[0])

    def _row_lines(self, row: int) -> Lines_:
        texts = self._window.texts(row, 1)
        lines: Lines_ = []
        width = max(len(each.name) for each in self._window.found.columns)
        for name, old, new, differs in texts.cells(0, only_changed=False):
            label = f" {printable(name):<{width}} "
            if differs:
                lines += [
                    [(label, "name"), (f" - {_said(old)}", "bad")],
                    [(" " * len(label), ""), (f" + {_said(new)}", "good")],
                ]
            else:
                value = old if texts.changes[0] == "removed" else new
                lines.append([(label, "name"), (f"   {_said(value)}", "muted" if value is None else "")])
        sign = diff_text.SIGNS[texts.changes[0]]
        return [[(f" {sign} {texts.changes[0]}", diff_text.STYLES[sign])], [], *lines]

    def action_copy(self) -> None:
        """Copies the row."""
        if self._opened is not None:
            self.run_worker(self._copy_row(self._rows.cursor), group="copy", exclusive=True)

    async def _copy_row(self, row: int) -> None:
        texts = await asyncio.to_thread(self._window.texts, row, 1)
        self._copy("row", diff_text.text_of(texts.spans(0)))


class Head(StaticLines):
    """Lines that end in an ellipsis where there is no room for all of them."""

    def spans(self, index: int) -> Sequence[Span]:
        """A line."""
        spans, room = list(super().spans(index)), self.room.width
        while room > 0 and sum(cell_len(text) for text, _ in spans) > room:
            *spans, (text, style) = spans
            left = room - sum(cell_len(text) for text, _ in spans)
            if left > 1:
                return [*spans, (fit_width(text, left), style)]
        return spans


class RowReader(TextDialog):
    """A row in full; those beside it are a key away."""

    def describe_keys(self) -> list[str]:
        """What the keys do."""
        return ["[ row before · ] next"]


def head_lines(found: Difference) -> list[list[Span]]:
    """What was compared, how much differs, and what else does."""
    lines = [
        [(f" {printable(diff_text.compared_versions_text(found, named=False))}", "strong")],
        [(" ", ""), *diff_text.row_counts_text(found)],
        [(f" {diff_text.interval_text(found)}", "muted")],
    ]
    other = diff_text.short_settings(found)
    lines.append([(f" {other}" if other else " nothing else differs", "warn" if other else "muted")])
    return lines


def _no_rows(found: Difference) -> list[list[Span]]:
    if not found.unchanged:
        return [[(" There are no rows on either side.", "muted")]]
    return [[(" No row differs.", "muted")]]


def _said(text: str | None) -> str:
    return NULL if text is None else printable(text)


_MAX_BLOCKS: Final = 1000
_SUBJECTS: Final = (
    Choice("before", "what it was before its newest data came", ("p",), "p"),
    Choice("block", "what it was at a block …", ("b",), "b"),
    Choice("time", "what it was at a time …", ("t",), "t"),
    Choice("other", "another dataset …", ("o",), "o"),
)


class DatasetDiffController(Controller):
    """Compares the selected dataset with an earlier version of it, or with another dataset."""

    def show_differences(self) -> None:
        """Compare the selected dataset with what the user chooses, and show the differences."""
        row = self.state.row
        if row is not None:
            self.host.start(self._show_differences(row))

    async def _show_differences(self, row: DatasetRow) -> None:
        request = await self._choose_comparison(row)
        while request is not None:
            try:
                found = await self.jobs.outcome(request, row.name, f"Comparing {row.name}", leaves=True)
            except LeftRunning:
                self.host.notice(f"{row.name} is being compared: d shows it once that is done")
                return
            answer = await self._show(row, found)
            if answer == "key":
                key = await self._choose_key(found)
                request = replace(request, key=key) if key else request
            elif answer == "again":
                request = await self._choose_comparison(row)
            else:
                if answer == "export":
                    await self._export(row, found)
                return

    async def _show(self, row: DatasetRow, found: Difference) -> str | None:
        """Show a difference. Returns the next step; None if the screen was closed."""

        def load() -> DifferenceScreen:
            window = DiffWindow(found, self.gateway.file_rows(row.id, found.file))
            names = dict.fromkeys((found.old.name, found.new.name))
            title = f"Differences: {' and '.join(names)}"
            return DifferenceScreen(title, window, open_difference(window), self.host.copy_text)

        return await self.host.ask(await asyncio.to_thread(load))

    # --- What to compare ---

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
        others = [each for each in self.state.datasets if each.id != row.id and not each.missing]
        if not others:
            raise OdfError("there is no other dataset in this workspace")
        choices = [Choice(each.id, each.name, remark=f"{format_count(each.records)} rows") for each in others]
        return await self.host.ask(PickerDialog(f"Compare {row.name} with", choices, typing=True))

    async def _choose_block(self, row: DatasetRow) -> str | None:
        page = await asyncio.to_thread(self.gateway.blocks, row.id, None, _MAX_BLOCKS, BlockFilter())
        lines = [line for line in reversed(page.lines) if not line.broken]
        choices = [
            Choice(
                line.hash,
                f"{format_count(line.sequence_number)}  {format_time(line.time)}  {line.event}",
                remark=printable(line.summary),
            )
            for line in lines[1:]  # the newest block is what it is compared with
        ]
        if not choices:
            raise OdfError(f"{row.name} has no earlier block")
        return await self.host.ask(PickerDialog(f"{row.name}: since which block?", choices, typing=True))

    async def _choose_time(self, row: DatasetRow) -> str | None:
        return await self.host.ask(
            TimeDialog(f"{row.name}: since when?", "what was known of it at that time")
        )

    async def _choose_key(self, found: Difference) -> list[str] | None:
        from odf_tui.panes.data.row_dialogs import KeyColumnsDialog  # deferred: loads faster

        columns = [
            (each.name, each.new_type)
            for each in found.columns
            if each.old_type and each.new_type is not None
        ]
        if not columns:
            raise OdfError("there are no columns that both have")
        return await self.host.ask(KeyColumnsDialog("Compare by which key?", columns, found.key))

    # --- Files ---

    async def _export(self, row: DatasetRow, found: Difference) -> None:
        from odf_tui.features.export import ExportDialog, export_summary

        words = f"all {format_count(found.rows)} rows that differ"
        short = f"{row.name.rpartition('/')[2].rpartition('.')[2]}-diff"
        options = await self.host.ask(ExportDialog("Export what differs", [words], short, system=False))
        if options is None:
            return
        request = Export(
            "", str(options.path), format=options.format, file=found.file, replace=options.replace
        )
        try:
            result = await self.jobs.outcome(request, row.name, "Exporting what differs", leaves=True)
        except LeftRunning:
            self.host.notice(f"{options.path.name} is being written: pane 4 says when it is there")
            return
        self.host.notice(export_summary(result))
