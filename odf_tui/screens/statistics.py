"""Schema and statistics: the columns of a table at the left, all about one of them at the right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer

from odf_engine.coordinator.protocol import ComputeStatistics, JobState
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.humane import clip, count, explained, plain
from odf_tui.jobwords import doing
from odf_tui.looks import Known, chart, column_lines, share, short_distinct
from odf_tui.screens.dialogs import Dialog, Lines
from odf_tui.state import JobBook
from odf_tui.widgets.lines import LineView, Paragraphs, Span, right

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
        self.known: Known | None = None

    def show_known(self, known: Known) -> None:
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
        kinds = clip("type", kind) if kind else ""
        return [(f" {clip('column', name)} {kinds}{told} {clip('distribution', drawing)}", "head")]

    def spans(self, index: int) -> Sequence[Span]:
        """A column."""
        if self.known is None:
            return ()
        column = self.known.statistics.columns[index]
        name, kind, numbers, drawing = self._parts()
        found: list[Span] = [(f" {clip(plain(column.name), name)} ", "name")]
        if kind:
            found.append((clip(self.known.types.get(column.name, column.type), kind - 1) + " ", "muted"))
        if numbers:
            nulls = "" if column.nulls is None else share(column.nulls, self.known.statistics.rows) or "0 %"
            different = short_distinct(column) or ("" if self.known.whole else "…")
            found.append((right(nulls, _NULLS - 1), "" if column.nulls else "muted"))
            found.append((right(different, _DISTINCT) + " ", ""))
        return [*found, (" ", ""), (chart(column, drawing), "busy")]

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
        read: Callable[[], Awaitable[Known]],
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
            box.border_title = Content(plain(self._title))
            box.border_subtitle = Content(_KEYS)
            with Horizontal():
                yield ColumnList()
                yield Paragraphs(id="about-column")
            yield Lines(id="counting")

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
        self.query_one("#about-column", Paragraphs).move(move)

    def action_copy(self) -> None:
        """Copies what is said of the column."""
        lines = self.query_one("#about-column", Paragraphs).given
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
            self._tell(explained(error), "bad")
            return
        self._say_keys("c stops counting · esc closes, it goes on")
        self._timer = self.set_interval(_LOOK_SECONDS, self._look)

    async def _show_known(self) -> Known:
        known = await self._read()
        self._list.show_known(known)
        self._show_column()
        self._tell(self._about(known), "muted")
        return known

    def _about(self, known: Known) -> str:
        rows = count(known.statistics.rows)
        unit = "row" if known.statistics.rows == 1 else "rows"
        said = f"{rows} {unit} · {self._rows}" if known.whole else f"{rows} {unit}, not counted"
        estimated = known.whole and any(not column.exact for column in known.statistics.columns)
        return f"{said} · ≈ estimated" if estimated else said

    def _show_column(self) -> None:
        view, known = self.query_one("#about-column", Paragraphs), self._list.known
        if known is None or self._list.cursor >= len(known.statistics.columns):
            return
        column = known.statistics.columns[self._list.cursor]
        view.set(column_lines(column, known, max(view.size.width - 1, 20)))
        view.scroll_to(0, 0, animate=False)

    def _tell(self, text: str, style: str) -> None:
        view = self.query_one("#counting", Lines)
        lines = [[(f" {plain(text)}", style)]]
        if lines != view.lines:
            view.lines = lines
            view.refresh()

    # --- The job ---

    def _say_keys(self, text: str = _KEYS) -> None:
        self.query_one(".dialog").border_subtitle = Content(text)

    def _look(self) -> None:
        job = self._book.jobs.get(self._job)
        if job is None or not job.state.final:
            doing_ = doing(job, Timestamp.now()) if job is not None and job.started else "waits for its turn"
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
            self._tell(explained(error), "bad")
        else:
            self._tell(f"{job.state.value}: what is shown is what the files tell", "warn")

    async def _finish(self) -> None:
        try:
            known = await self._show_known()
            if not known.whole:
                self._tell("rows came meanwhile: close this and press i again", "warn")
        except Exception as error:  # whatever it is, it is shown, and the screen lives on
            self._tell(explained(error), "bad")
