"""Schema and column statistics, with histograms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer

from odf_engine.api import ColumnStatistics, ComputeStatistics, JobState, Timestamp
from odf_engine.api.model import DatasetRow
from odf_engine.api.readers.row_window import RowPrefix
from odf_engine.api.text import count_of, format_count, printable
from odf_tui.features.export import dataset_of_view, parquet_file_of
from odf_tui.panes.data.view import TIME, DataPane
from odf_tui.services.controller import Controller, task
from odf_tui.state import typed_keys
from odf_tui.state.job_book import JobBook
from odf_tui.text.format import Span, error_with_hint, fit_width, format_count_short, right
from odf_tui.text.job_text import job_activity
from odf_tui.widgets.dialogs import Dialog
from odf_tui.widgets.line_view import LineView, StaticLines, WrappedLines

if TYPE_CHECKING:
    from odf_engine.api.readers.row_reader import TableDescription

BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BAR: Final = "▆"  # with a gap above, which separates the bars
_HEIGHT: Final = 4
_BIN_CELLS: Final = 2
_NAMES: Final = 10
_MAX_SHOWN: Final = 12
DescriptionLines = list[list[Span]]


def sparkline(bins: Sequence[int]) -> str:
    """Return a bar character for each count. Counts above zero are visible."""
    highest = max(bins, default=0)
    return "".join(" " if not count else BLOCKS[_level(count, highest, len(BLOCKS)) - 1] for count in bins)


def _level(amount: int, highest: int, levels: int) -> int:
    return max(1, -(-amount * levels // highest))


def distribution_sparkline(column: ColumnStatistics, cells: int) -> str:
    """Return a sparkline of the histogram, or of the most frequent values without one."""
    bins = column.bins
    while len(bins) > cells:  # merge neighbours: wider bins
        bins = [sum(bins[at : at + 2]) for at in range(0, len(bins), 2)]
    if bins:
        return sparkline(bins)
    if _has_frequent_values(column):
        return sparkline([value.count for value in column.frequent[:8]])
    return ""


def _has_frequent_values(column: ColumnStatistics) -> bool:
    """Return whether a value occurs more than once."""
    return bool(column.frequent) and column.frequent[0].count > 1


def format_percent(part: int, whole: int) -> str:
    """Format a share such as ``14.3 %``. It is 0 or 100 only if that is exact."""
    if not whole:
        return ""
    per_cent = 100 * part / whole
    if 0 < per_cent < 0.1:
        return "< 0.1 %"
    if 99.9 < per_cent < 100:
        return "> 99.9 %"
    return f"{per_cent:.1f} %" if part not in (0, whole) else f"{per_cent:.0f} %"


def format_distinct(column: ColumnStatistics) -> str:
    """Format the number of distinct values."""
    return "" if column.distinct is None else format_count(column.distinct)


def format_distinct_short(column: ColumnStatistics) -> str:
    """Format the number of distinct values in at most six cells."""
    return "" if column.distinct is None else format_count_short(column.distinct)


def format_value(text: str | None, column_type: str = "") -> str:
    """Format a value for the table."""
    if text is None:
        return ""
    if column_type.startswith("timestamp"):
        return printable(text.replace("T", " ").removesuffix("Z").removesuffix(" 00:00:00"))
    return printable(text) or "empty string"


def format_mean(mean: float) -> str:
    """Format a mean with about six digits."""
    if mean and not 1e-4 <= abs(mean) < 1e15:
        return f"{mean:.4g}"
    digits = max(6 - len(str(int(abs(mean)))), 0)
    text = f"{mean:,.{digits}f}".replace(",", " ")
    return text.rstrip("0").rstrip(".") if digits else text


def column_lines(column: ColumnStatistics, description: TableDescription, width: int) -> DescriptionLines:
    """Return the lines with all statistics of a column, for a width in cells."""
    rows = description.statistics.rows
    kind = description.types.get(column.name, column.type)
    lines: DescriptionLines = [[(f" {printable(column.name)}", "name"), (f"  {kind}", "muted")]]
    if column.name in description.required:
        lines[0].append(("  not null", "muted"))
    if comment := description.comments.get(column.name):
        lines.append([(f" {printable(comment)}", "")])
    lines.append([])
    facts = _facts(column, rows)
    if not description.whole and not column.distinct:
        facts.append(("distinct", "…"))
    lines += [[(f" {name:<{_NAMES}} ", "muted"), (text, "")] for name, text in facts]
    if column.bins:
        lines += [[], *_histogram(column, width)]
    if column.frequent:
        lines += [[], *_frequent(column, rows, width)]
    return lines


def _facts(column: ColumnStatistics, rows: int) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if column.nulls is not None:
        part = f" · {format_percent(column.nulls, rows)}" if column.nulls else ""
        facts.append(("nulls", f"{format_count(column.nulls) if column.nulls else 'none'}{part}"))
    if column.not_numbers:
        facts.append(
            ("NaN", f"{format_count(column.not_numbers)} · {format_percent(column.not_numbers, rows)}")
        )
    if column.distinct is not None:
        facts.append(("distinct", format_distinct(column)))
    if column.least is not None:
        facts.append(("minimum", format_value(column.least, column.type)))
        facts.append(("maximum", format_value(column.greatest, column.type)))
    if column.mean is not None:
        facts.append(("mean", format_mean(column.mean)))
    if column.shortest is not None and column.longest is not None:
        unit = "items" if column.type.startswith(("list", "large_list")) else "characters"
        unit = "bytes" if "binary" in column.type else unit
        ends = format_count(column.longest)
        if column.shortest != column.longest:
            ends = f"{format_count(column.shortest)} to {ends}"
        facts.append(("length", f"{ends} {unit if column.longest != 1 else unit[:-1]}"))
    return facts


def _histogram(column: ColumnStatistics, width: int) -> DescriptionLines:
    """Return the histogram as lines, with its limits below."""
    bins, highest = column.bins, max(column.bins)
    cells = _BIN_CELLS if len(bins) * _BIN_CELLS + 2 <= width else 1
    levels = [_level(count, highest, _HEIGHT * len(BLOCKS)) if count else 0 for count in bins]
    lines: DescriptionLines = []
    for row in range(_HEIGHT - 1, -1, -1):
        parts = [min(max(level - row * len(BLOCKS), 0), len(BLOCKS)) for level in levels]
        drawn = "".join((" " if not part else BLOCKS[part - 1]) * cells for part in parts)
        lines.append([(f" {drawn.rstrip()}", "busy")])
    low, high = format_value(column.least, column.type), format_value(column.greatest, column.type)
    across = len(bins) * cells
    if cell_len(low) + cell_len(high) + 3 <= max(across, width - 2):
        lines.append([(f" {low}{right(high, max(across - cell_len(low), cell_len(high) + 3))}", "muted")])
    lines.append([(f" highest bar: {count_of(highest, 'row')}", "muted")])
    return lines


def _frequent(column: ColumnStatistics, rows: int, width: int) -> DescriptionLines:
    """Return the most frequent values as lines with bars."""
    if not _has_frequent_values(column):
        return [[(" all values are distinct", "muted")]] if (column.distinct or 0) > 1 else []
    shown = column.frequent[:_MAX_SHOWN]
    numbers = max(len(format_count(value.count)) for value in shown)
    shares = max(len(format_percent(value.count, rows)) for value in shown)
    texts = [format_value(value.value, column.type) for value in shown]
    bar = max(min(16, (width - numbers - shares - 5) // 3), 4)
    name = max(min(max(map(cell_len, texts)), width - numbers - shares - bar - 5), 6)
    lines: DescriptionLines = [[(" most frequent", "title")]]
    for text, entry in zip(texts, shown, strict=True):
        drawn = _BAR * _level(entry.count, shown[0].count, bar)
        lines.append(
            [
                (f" {fit_width(text, name)} ", ""),
                (right(format_count(entry.count), numbers) + " ", "strong"),
                (right(format_percent(entry.count, rows), shares) + " ", "muted"),
                (drawn, "busy"),
            ]
        )
    return lines


_POLL_SECONDS: Final = 0.25
_KEYS: Final = "j k columns · y copies · esc closes"
_MORE: Final = 46
"""Width of the list in cells from which it shows numbers. :data:`_ALL` is that for everything."""
_ALL: Final = 72
_KIND: Final = 13
_NULLS: Final = 9
_DISTINCT: Final = 10
_DRAWING: Final = 24


class ColumnList(LineView):
    """The list of columns: name, type, nulls, distinct values, distribution as a sparkline."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="described")
        self.active = True
        self.description: TableDescription | None = None

    def show_description(self, description: TableDescription) -> None:
        """Show columns. The cursor stays."""
        self.description = description
        self.reset()

    def count(self) -> int:
        """Return the number of columns."""
        return 0 if self.description is None else len(self.description.statistics.columns)

    def _column_widths(self) -> tuple[int, int, int, int]:
        """Return the widths of name, type, numbers and sparkline in cells, or 0 for those without room."""
        width = self.room.width
        kind = _KIND if width >= _ALL else 0
        numbers = _NULLS + _DISTINCT if width >= _MORE else 0
        drawing = _DRAWING if width >= _ALL else _DRAWING // 2
        return max(width - kind - numbers - drawing - 3, 8), kind, numbers, drawing

    def header(self) -> Sequence[Span]:
        """Return the header line."""
        name, kind, numbers, drawing = self._column_widths()
        counts = f"{'nulls':>{_NULLS - 1}}{'distinct':>{_DISTINCT}} " if numbers else ""
        kinds = fit_width("type", kind) if kind else ""
        return [
            (
                f" {fit_width('column', name)} {kinds}{counts} {fit_width('distribution', drawing)}",
                "head",
            )
        ]

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line of a column."""
        if self.description is None:
            return ()
        column = self.description.statistics.columns[index]
        name, kind, numbers, drawing = self._column_widths()
        spans: list[Span] = [(f" {fit_width(printable(column.name), name)} ", "name")]
        if kind:
            spans.append(
                (fit_width(self.description.types.get(column.name, column.type), kind - 1) + " ", "muted")
            )
        if numbers:
            nulls = (
                ""
                if column.nulls is None
                else format_percent(column.nulls, self.description.statistics.rows) or "0 %"
            )
            different = format_distinct_short(column) or ("" if self.description.whole else "…")
            spans.append((right(nulls, _NULLS - 1), "" if column.nulls else "muted"))
            spans.append((right(different, _DISTINCT) + " ", ""))
        return [*spans, (" ", ""), (distribution_sparkline(column, drawing), "busy")]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Return the message for no columns."""
        return (
            [[(" no columns yet: the dataset has no data", "muted")]] if self.description is not None else []
        )


class StatisticsScreen(Dialog[None]):
    """Shows the stored statistics, and requests the missing ones from the worker.

    Args:
        title: title of the dialog.
        rows: describes the rows.
        read: reads the stored statistics; slow.
        submit: requests them from the worker. Returns the id of the job.
        stop: cancels the job.
        book: has the state of the job.
        copy: called with a label and the text to copy.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,i", "dismiss(None)", "close", show=False),
        Binding("y", "copy", "copy the statistics of the column", show=False),
        Binding("c", "stop", "cancel the job", show=False),
        Binding("j,down", "move('down')", "next column", show=False),
        Binding("k,up", "move('above')", "previous column", show=False),
        Binding("g,home", "move('first')", show=False),
        Binding("G,end", "move('last')", show=False),
        Binding("pagedown,ctrl+f", "move('page_down')", show=False),
        Binding("pageup,ctrl+b", "move('page_up')", show=False),
        Binding("ctrl+d,space,l,right", "scroll('down')", show=False),
        Binding("ctrl+u,h,left", "scroll('above')", show=False),
    ]

    def __init__(
        self,
        title: str,
        rows: str,
        read: Callable[[], Awaitable[TableDescription]],
        submit: Callable[[], Awaitable[str]],
        stop: Callable[[str], Awaitable[None]],
        book: JobBook,
        copy: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self._title, self._rows = title, rows
        self._read, self._submit, self._stop = read, submit, stop
        self._book, self._copy = book, copy
        self._job = ""
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Yield the list, the details of one column, and the progress."""
        with Vertical(classes="dialog reader statistics") as box:
            box.border_title = Content(printable(self._title))
            box.border_subtitle = Content(_KEYS)
            with Horizontal():
                yield ColumnList()
                yield WrappedLines(id="about-column")
            yield StaticLines(id="counting")

    @property
    def _list(self) -> ColumnList:
        return self.query_one(ColumnList)

    def on_mount(self) -> None:
        """Read the stored statistics, then request the missing ones."""
        self._show_status("reading …", "muted")
        typed_keys.hold(self)
        self.run_worker(self._start_count(), group="statistics", name="statistics")

    def on_resize(self) -> None:
        """Format the details for the new width."""
        self.call_after_refresh(self._show_column)

    def on_line_view_moved(self) -> None:
        """Show the details of the column under the cursor."""
        self._show_column()

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self._list.move(move)

    def action_scroll(self, move: str) -> None:
        """Scroll the details."""
        self.query_one("#about-column", WrappedLines).move(move)

    def action_copy(self) -> None:
        """Copy the details."""
        lines = self.query_one("#about-column", WrappedLines).source_lines
        if lines:
            self._copy("statistics", "\n".join("".join(text for text, _ in line) for line in lines).rstrip())

    def action_stop(self) -> None:
        """Cancel the job."""
        if self._job and self._timer is not None:
            self.run_worker(self._stop(self._job), group="stop")

    async def _start_count(self) -> None:
        try:
            description = await self._load_description()
            if description.whole:
                return
            self._show_status("queued …", "busy")
            self._job = await self._submit()
        except Exception as error:  # every error is shown, and the screen stays open
            self._show_status(error_with_hint(error), "bad")
            return
        self._show_keys("c cancels the job · esc closes, the job continues")
        self._timer = self.set_interval(_POLL_SECONDS, self._poll_job)

    async def _load_description(self) -> TableDescription:
        try:
            description = await self._read()
        finally:
            typed_keys.release(self)
        self._list.show_description(description)
        self._show_column()
        self._show_status(self._summary_text(description), "muted")
        return description

    def _summary_text(self, description: TableDescription) -> str:
        rows = count_of(description.statistics.rows, "row")
        return f"{rows} · {self._rows}" if description.whole else f"{rows} · from file metadata only"

    def _show_column(self) -> None:
        view, description = self.query_one("#about-column", WrappedLines), self._list.description
        if description is None or self._list.cursor >= len(description.statistics.columns):
            return
        column = description.statistics.columns[self._list.cursor]
        view.set(column_lines(column, description, max(view.size.width - 1, 20)))
        view.scroll_to(0, 0, animate=False)

    def _show_status(self, text: str, style: str) -> None:
        lines = [[(f" {printable(text)}", style)]]
        for view in self.query("#counting").results(StaticLines):  # none if the screen was closed meanwhile
            if lines != view.lines:
                view.lines = lines
                view.refresh()

    def _show_keys(self, text: str = _KEYS) -> None:
        for box in self.query(".dialog"):
            box.border_subtitle = Content(text)

    def _poll_job(self) -> None:
        job = self._book.jobs.get(self._job)
        if job is None or not job.state.final:
            activity = job_activity(job, Timestamp.now()) if job is not None and job.started else "queued"
            self._show_status(activity, "busy")
            return
        self._show_keys()
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if job.state is JobState.done:
            self.run_worker(self._show_result(), group="statistics", name="statistics")
        elif job.error is not None:
            error = job.error.to_error()
            self._show_status(error_with_hint(error), "bad")
        else:
            self._show_status(f"{job.state.value}: statistics are from file metadata only", "warn")

    async def _show_result(self) -> None:
        try:
            description = await self._load_description()
            if not description.whole:
                self._show_status("new rows were added: close this and press i again", "warn")
        except Exception as error:  # every error is shown, and the screen stays open
            self._show_status(error_with_hint(error), "bad")


_MAX_SPOOLED: Final = 1_000_000


class StatisticsController(Controller):
    """Shows schema and statistics of the front view of the data pane, or of the selected dataset."""

    def show_statistics(self) -> None:
        """Show the statistics of the front view if a file has its rows, else of the dataset."""
        row, pane = self.state.row, self.host.query_one(DataPane)
        view, window = pane.front_view, pane.window
        if row is None:
            return
        if view is not None and view.kind == TIME and isinstance(window, RowPrefix):
            self._show_prefix(row, window, view.when)
            return
        file = parquet_file_of(window)
        dataset, name = dataset_of_view(row, view)
        title, rows = f"Statistics of {name}", "entire changelog, with retractions"
        if file is not None and view is not None:
            when = f" {view.when}," if view.when else ""
            title, rows = f"{title}{when}: {view.title}", "rows of pane 3"
        self._open(dataset, name, file, title, rows)

    def _show_prefix(self, row: DatasetRow, window: RowPrefix, when: str) -> None:
        """Write the first rows of a dataset to a file, and show its statistics."""
        if not window.row_count:
            self.host.notice("no rows to describe", "warn")
        elif window.row_count > _MAX_SPOOLED:
            max_rows = format_count(_MAX_SPOOLED)
            self.host.notice(f"statistics are limited to {max_rows} rows: E exports the rows", "warn")
        else:
            self._spool_prefix(row, window, when)

    @task
    async def _spool_prefix(self, row: DatasetRow, window: RowPrefix, when: str) -> None:
        self.host.notice("writing the rows to a temporary file …")
        file = await asyncio.to_thread(self.workspace.write_temporary_rows, window)
        self._open(row.id, row.name, file, f"Statistics of {row.name} {when}", "rows of pane 3")

    def _open(self, dataset: str, name: str, file: str | None, title: str, rows: str) -> None:
        screen = StatisticsScreen(
            title,
            rows,
            lambda: asyncio.to_thread(self.workspace.column_statistics, dataset, file),
            lambda: self.jobs.submit_one(ComputeStatistics(dataset, file=file), name),
            self.jobs.cancel,
            self.state.jobs,
            self.host.copy_text,
        )
        self.host.open(screen)
