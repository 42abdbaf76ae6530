"""Schema and column statistics, with histograms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer

from odf_engine.coordinator.protocol import ComputeStatistics, JobState
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.views.statistics import ColumnStatistics
from odf_tui.features.export import file_of, subject_of
from odf_tui.gateway.protocol import TableDescription
from odf_tui.gateway.row_window import RowPrefix
from odf_tui.panes.data.view import TIME, DataPane
from odf_tui.services.controller import Controller
from odf_tui.state.job_book import JobBook
from odf_tui.state.model import DatasetRow
from odf_tui.text.format import (
    Span,
    error_with_hint,
    fit_width,
    format_count,
    format_count_short,
    printable,
    right,
)
from odf_tui.text.job_text import job_activity
from odf_tui.widgets.dialogs import Dialog
from odf_tui.widgets.line_view import LineView, StaticLines, WrappedLines

BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BAR: Final = "▆"  # with some air above, so that bars do not run into each other
_HEIGHT: Final = 4
_BIN_CELLS: Final = 2
_NAMES: Final = 10
_MAX_SHOWN: Final = 12
DescriptionLines = list[list[Span]]


def sparkline(bins: Sequence[int]) -> str:
    """A cell for each count; what is there at all can be seen."""
    most = max(bins, default=0)
    return "".join(" " if not each else BLOCKS[_level(each, most, len(BLOCKS)) - 1] for each in bins)


def _level(number: int, most: int, levels: int) -> int:
    return max(1, -(-number * levels // most))


def distribution_sparkline(column: ColumnStatistics, cells: int) -> str:
    """The column as a sparkline: its values by size, or its most frequent values."""
    bins = column.bins
    while len(bins) > cells:  # wider ones, as they would be if there were fewer
        bins = [sum(bins[at : at + 2]) for at in range(0, len(bins), 2)]
    if bins:
        return sparkline(bins)
    if _tells(column):
        return sparkline([each.count for each in column.frequent[:8]])
    return ""


def _tells(column: ColumnStatistics) -> bool:
    """Whether some values are more frequent than others can be."""
    return bool(column.frequent) and column.frequent[0].count > 1


def format_percent(part: int, whole: int) -> str:
    """A part in per cent, such as ``14.3 %``; never 0 or 100 when it is not."""
    if not whole:
        return ""
    per_cent = 100 * part / whole
    if 0 < per_cent < 0.1:
        return "< 0.1 %"
    if 99.9 < per_cent < 100:
        return "> 99.9 %"
    return f"{per_cent:.1f} %" if part not in (0, whole) else f"{per_cent:.0f} %"


def distinct(column: ColumnStatistics) -> str:
    """How many different values there are; an estimate has a sign before it."""
    if column.distinct is None:
        return ""
    if column.exact:
        return format_count(column.distinct)
    digits = max(len(str(column.distinct)) - 2, 0)  # more would look as if it were known
    return f"≈ {format_count(round(column.distinct, -digits))}"


def short_distinct(column: ColumnStatistics) -> str:
    """The same in at most six cells."""
    if column.distinct is None:
        return ""
    return ("" if column.exact else "≈") + format_count_short(column.distinct)


def value(text: str | None, column_type: str = "") -> str:
    """A value as the table shows it."""
    if text is None:
        return ""
    if column_type.startswith("timestamp"):
        return printable(text.replace("T", " ").removesuffix("Z").removesuffix(" 00:00:00"))
    return printable(text) or "an empty text"


def number(found: float) -> str:
    """A mean, with as many digits as tell something."""
    if found and not 1e-4 <= abs(found) < 1e15:
        return f"{found:.4g}"
    digits = max(6 - len(str(int(abs(found)))), 0)
    text = f"{found:,.{digits}f}".replace(",", " ")
    return text.rstrip("0").rstrip(".") if digits else text


# --- A column in full --------------------------------------------------------------------------------


def column_lines(column: ColumnStatistics, known: TableDescription, width: int) -> DescriptionLines:
    """All that is known of a column."""
    rows = known.statistics.rows
    kind = known.types.get(column.name, column.type)
    lines: DescriptionLines = [[(f" {printable(column.name)}", "name"), (f"  {kind}", "muted")]]
    if column.name in known.required:
        lines[0].append(("  never null", "muted"))
    if comment := known.comments.get(column.name):
        lines.append([(f" {printable(comment)}", "")])
    lines.append([])
    facts = _facts(column, rows)
    if not known.whole and not column.distinct:
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
        facts.append(("distinct", distinct(column)))
    if column.least is not None:
        facts.append(("least", value(column.least, column.type)))
        facts.append(("greatest", value(column.greatest, column.type)))
    if column.mean is not None:
        facts.append(("mean", number(column.mean)))
    if column.shortest is not None and column.longest is not None:
        unit = "items" if column.type.startswith(("list", "large_list")) else "characters"
        unit = "bytes" if "binary" in column.type else unit
        ends = format_count(column.longest)
        if column.shortest != column.longest:
            ends = f"{format_count(column.shortest)} to {ends}"
        facts.append(("length", f"{ends} {unit if column.longest != 1 else unit[:-1]}"))
    return facts


def _histogram(column: ColumnStatistics, width: int) -> DescriptionLines:
    """Values by size: a column of blocks for each bin, the ends below."""
    bins, most = column.bins, max(column.bins)
    cells = _BIN_CELLS if len(bins) * _BIN_CELLS + 2 <= width else 1
    levels = [_level(each, most, _HEIGHT * len(BLOCKS)) if each else 0 for each in bins]
    lines: DescriptionLines = []
    for row in range(_HEIGHT - 1, -1, -1):
        parts = [min(max(level - row * len(BLOCKS), 0), len(BLOCKS)) for level in levels]
        drawn = "".join((" " if not part else BLOCKS[part - 1]) * cells for part in parts)
        lines.append([(f" {drawn.rstrip()}", "busy")])
    least, greatest = value(column.least, column.type), value(column.greatest, column.type)
    across = len(bins) * cells
    if cell_len(least) + cell_len(greatest) + 3 <= max(across, width - 2):
        lines.append(
            [(f" {least}{right(greatest, max(across - cell_len(least), cell_len(greatest) + 3))}", "muted")]
        )
    lines.append([(f" the highest: {format_count(most)} rows", "muted")])
    return lines


def _frequent(column: ColumnStatistics, rows: int, width: int) -> DescriptionLines:
    """The most frequent values, with bars."""
    if not _tells(column):
        return (
            [[(" every value is there once", "muted")]] if column.exact and (column.distinct or 0) > 1 else []
        )
    title = "most frequent" if column.exact else f"most frequent, each up to {format_count(column.lost)} more"
    shown = column.frequent[:_MAX_SHOWN]
    numbers = max(len(format_count(each.count)) for each in shown)
    shares = max(len(format_percent(each.count, rows)) for each in shown)
    texts = [value(each.value, column.type) for each in shown]
    bar = max(min(16, (width - numbers - shares - 5) // 3), 4)
    name = max(min(max(map(cell_len, texts)), width - numbers - shares - bar - 5), 6)
    lines: DescriptionLines = [[(f" {title}", "title")]]
    for text, each in zip(texts, shown, strict=True):
        drawn = _BAR * _level(each.count, shown[0].count, bar)
        lines.append(
            [
                (f" {fit_width(text, name)} ", ""),
                (right(format_count(each.count), numbers) + " ", "strong"),
                (right(format_percent(each.count, rows), shares) + " ", "muted"),
                (drawn, "busy"),
            ]
        )
    return lines


_LOOK_SECONDS: Final = 0.25
_KEYS: Final = "j k columns · y copies · esc closes"
_MORE: Final = 46
"""Cells of the list from which on it has numbers, and then everything."""
_ALL: Final = 72
_KIND: Final = 13
_NULLS: Final = 9
_DISTINCT: Final = 10
_DRAWING: Final = 24


class ColumnList(LineView):
    """The columns: name, type, nulls, distinct values, the distribution as a sparkline."""

    headed = True

    def __init__(self) -> None:
        super().__init__(id="described")
        self.active = True
        self.known: TableDescription | None = None

    def show_known(self, known: TableDescription) -> None:
        """Shows columns; the cursor stays."""
        self.known = known
        self.reset()

    def count(self) -> int:
        """How many columns."""
        return 0 if self.known is None else len(self.known.statistics.columns)

    def _parts(self) -> tuple[int, int, int, int]:
        """Cells for name, type, numbers and drawing; 0 where there is no room."""
        width = self.room.width
        kind = _KIND if width >= _ALL else 0
        numbers = _NULLS + _DISTINCT if width >= _MORE else 0
        drawing = _DRAWING if width >= _ALL else _DRAWING // 2
        return max(width - kind - numbers - drawing - 3, 8), kind, numbers, drawing

    def header(self) -> Sequence[Span]:
        """What stands in the lines."""
        name, kind, numbers, drawing = self._parts()
        told = f"{'nulls':>{_NULLS - 1}}{'distinct':>{_DISTINCT}} " if numbers else ""
        kinds = fit_width("type", kind) if kind else ""
        return [(f" {fit_width('column', name)} {kinds}{told} {fit_width('distribution', drawing)}", "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """A column."""
        if self.known is None:
            return ()
        column = self.known.statistics.columns[index]
        name, kind, numbers, drawing = self._parts()
        found: list[Span] = [(f" {fit_width(printable(column.name), name)} ", "name")]
        if kind:
            found.append((fit_width(self.known.types.get(column.name, column.type), kind - 1) + " ", "muted"))
        if numbers:
            nulls = (
                ""
                if column.nulls is None
                else format_percent(column.nulls, self.known.statistics.rows) or "0 %"
            )
            different = short_distinct(column) or ("" if self.known.whole else "…")
            found.append((right(nulls, _NULLS - 1), "" if column.nulls else "muted"))
            found.append((right(different, _DISTINCT) + " ", ""))
        return [*found, (" ", ""), (distribution_sparkline(column, drawing), "busy")]

    def empty(self) -> Sequence[Sequence[Span]]:
        """Nothing is known."""
        return [[(" no columns are known yet: there is no data", "muted")]] if self.known is not None else []


class StatisticsScreen(Dialog[None]):
    """Shows what is known at once, asks the worker for the rest, and shows it when it has counted.

    Args:
        title: of what it is.
        rows: which rows these are, in words.
        request: for the worker.
        read: reads what is known; slow.
        ask: hands the request to the worker; gives the job.
        stop: stops the job.
        book: learns of the job.
        copy: takes what it is and its text.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,i", "dismiss(None)", "close", show=False),
        Binding("y", "copy", "copy what is said of the column", show=False),
        Binding("c", "stop", "stop counting", show=False),
        Binding("j,down", "move('down')", "the next column", show=False),
        Binding("k,up", "move('above')", "the column before", show=False),
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
        request: ComputeStatistics,
        read: Callable[[], Awaitable[TableDescription]],
        ask: Callable[[ComputeStatistics], Awaitable[str]],
        stop: Callable[[str], Awaitable[None]],
        book: JobBook,
        copy: Callable[[str, str], None],
    ) -> None:
        super().__init__()
        self._title, self._rows, self._request = title, rows, request
        self._read, self._ask, self._stop = read, ask, stop
        self._book, self._copy = book, copy
        self._job = ""
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Columns, one of them, and how far it is."""
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
        """Reads what is known, then asks for more."""
        self._tell("reading …", "muted")
        self.run_worker(self._begin(), group="statistics", name="statistics")

    def on_resize(self) -> None:
        """The right side has another width."""
        self.call_after_refresh(self._show_column)

    def on_line_view_moved(self) -> None:
        """Another column."""
        self._show_column()

    def action_move(self, move: str) -> None:
        """Moves in the list."""
        self._list.move(move)

    def action_scroll(self, move: str) -> None:
        """Scrolls what is said of a column."""
        self.query_one("#about-column", WrappedLines).move(move)

    def action_copy(self) -> None:
        """Copies what is said of the column."""
        lines = self.query_one("#about-column", WrappedLines).source_lines
        if lines:
            self._copy("statistics", "\n".join("".join(text for text, _ in line) for line in lines).rstrip())

    def action_stop(self) -> None:
        """Stops counting."""
        if self._job and self._timer is not None:
            self.run_worker(self._stop(self._job), group="stop")

    # --- What is known ---

    async def _begin(self) -> None:
        try:
            known = await self._show_known()
            if known.whole:
                return
            self._tell("handed to the worker …", "busy")
            self._job = await self._ask(self._request)
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self._tell(error_with_hint(error), "bad")
            return
        self._say_keys("c stops counting · esc closes, it goes on")
        self._timer = self.set_interval(_LOOK_SECONDS, self._look)

    async def _show_known(self) -> TableDescription:
        known = await self._read()
        self._list.show_known(known)
        self._show_column()
        self._tell(self._about(known), "muted")
        return known

    def _about(self, known: TableDescription) -> str:
        rows = format_count(known.statistics.rows)
        unit = "row" if known.statistics.rows == 1 else "rows"
        said = f"{rows} {unit} · {self._rows}" if known.whole else f"{rows} {unit}, not counted"
        estimated = known.whole and any(not column.exact for column in known.statistics.columns)
        return f"{said} · ≈ estimated" if estimated else said

    def _show_column(self) -> None:
        view, known = self.query_one("#about-column", WrappedLines), self._list.known
        if known is None or self._list.cursor >= len(known.statistics.columns):
            return
        column = known.statistics.columns[self._list.cursor]
        view.set(column_lines(column, known, max(view.size.width - 1, 20)))
        view.scroll_to(0, 0, animate=False)

    def _tell(self, text: str, style: str) -> None:
        view = self.query_one("#counting", StaticLines)
        lines = [[(f" {printable(text)}", style)]]
        if lines != view.lines:
            view.lines = lines
            view.refresh()

    # --- The job ---

    def _say_keys(self, text: str = _KEYS) -> None:
        self.query_one(".dialog").border_subtitle = Content(text)

    def _look(self) -> None:
        job = self._book.jobs.get(self._job)
        if job is None or not job.state.final:
            doing_ = (
                job_activity(job, Timestamp.now())
                if job is not None and job.started
                else "waits for its turn"
            )
            self._tell(doing_, "busy")
            return
        self._say_keys()
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if job.state is JobState.done:
            self.run_worker(self._finish(), group="statistics", name="statistics")
        elif job.error is not None:
            error = OdfError(job.error.message, hint=job.error.hint, where=job.error.where)
            self._tell(error_with_hint(error), "bad")
        else:
            self._tell(f"{job.state.value}: what is shown is what the files tell", "warn")

    async def _finish(self) -> None:
        try:
            known = await self._show_known()
            if not known.whole:
                self._tell("rows came meanwhile: close this and press i again", "warn")
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self._tell(error_with_hint(error), "bad")


# --- Controller ------------------------------------------------------------------------------------


_MAX_SPOOLED: Final = 1_000_000


class StatisticsController(Controller):
    """Shows schema and statistics of what the data pane shows, or of the selected dataset."""

    def show_statistics(self) -> None:
        """Show the statistics of the front view if a file has its rows, else those of the dataset."""
        row, pane = self.state.row, self.host.widget(DataPane)
        view, window = pane.front_view, pane.window
        if row is None:
            return
        if view is not None and view.kind == TIME and isinstance(window, RowPrefix):
            self._show_prefix(row, window, view.when)
            return
        file = file_of(window)
        dataset, name = subject_of(row, view)
        title, rows = f"Statistics of {name}", "the whole changelog, retractions too"
        if file is not None and view is not None:
            when = f" {view.when}," if view.when else ""
            title, rows = f"{title}{when}: {view.title}", "what pane 3 shows"
        self._open(dataset, name, file, title, rows)

    def _show_prefix(self, row: DatasetRow, window: RowPrefix, when: str) -> None:
        """Show the statistics of the first rows of a dataset. They are written to a file before."""
        if not window.row_count:
            self.host.notice("there are no rows to count", "warn")
        elif window.row_count > _MAX_SPOOLED:
            most = format_count(_MAX_SPOOLED)
            self.host.notice(f"statistics of more than {most} rows of another time: E writes them", "warn")
        else:
            self.host.start(self._spool_prefix(row, window, when))

    async def _spool_prefix(self, row: DatasetRow, window: RowPrefix, when: str) -> None:
        self.host.notice("the rows are written for counting …")
        file = await asyncio.to_thread(self.gateway.write_temporary_rows, window)
        self._open(row.id, row.name, file, f"Statistics of {row.name} {when}", "what pane 3 shows")

    def _open(self, dataset: str, name: str, file: str | None, title: str, rows: str) -> None:
        screen = StatisticsScreen(
            title,
            rows,
            ComputeStatistics(dataset, file=file),
            lambda: asyncio.to_thread(self.gateway.column_statistics, dataset, file),
            lambda request: self.jobs.submit_one(request, name),
            self.jobs.cancel,
            self.state.jobs,
            self.host.copy_text,
        )
        self.host.open(screen)
