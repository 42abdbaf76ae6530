"""LogScreen: the complete log of a job, with paging, search and follow mode."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.timer import Timer
from textual.widgets import Input

from odf_engine.api import Job, JournalEvent
from odf_engine.api.model import LogPage
from odf_engine.api.readers.job_log import Entry, format_log_line, log_search_text
from odf_engine.api.text import printable
from odf_tui.panes.jobs.view import Gauges, LogLines, end_lines
from odf_tui.services import tasks
from odf_tui.state.job_book import LogWindow
from odf_tui.text.job_text import JobRates, throughput
from odf_tui.widgets.dialogs import OverlayScreen

if TYPE_CHECKING:
    from odf_engine.api.workspace import Workspace

PAINT_SECONDS: Final = 0.4
_MIN_GAUGES_HEIGHT: Final = 36
_BEFORE_MATCH: Final = 200
_NO_MORE: Final = ("no match below, N: up", "no match above, n: down")


class LogScreen(OverlayScreen[str]):
    """Shows the log of a job. It covers the workbench, which would otherwise be repainted with each new line.

    Returns None, or the id of an action of the jobs pane to perform.

    Args:
        job: the job.
        workspace: reads the log.
        rates: the rates of jobs.
        copy: copies the lines in memory.
        save: saves the log of a job to a file that the user chooses.
        details: whether debug lines are shown.
        wrap: whether long lines are wrapped.
    """

    covers_workbench = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close the search, then the log", show=False),
        Binding("q", "dismiss(None)", "close", show=False),
        Binding("slash", "search", "search the log", show=False),
        Binding("n", "next(False)", "go to the next match", show=False),
        Binding("N", "next(True)", "go to the previous match", show=False),
        Binding("w", "wrap", "wrap or truncate long lines", show=False),
        Binding("i", "details", "show or hide debug lines", show=False),
        Binding("m", "gauges", "show or hide speed and memory", show=False),
        Binding("y", "copy", "copy the loaded lines", show=False),
        Binding("S", "save", "save the complete log to a file", show=False),
        Binding("full_stop", "dismiss('retry')", "run the job again", show=False),
        Binding("b", "dismiss('job_block')", "go to the block that the job wrote", show=False),
        Binding("o", "dismiss('job_dataset')", "go to the job's dataset", show=False),
        Binding("x", "dismiss('cancel')", "cancel the job", show=False),
        Binding("V", "dismiss('branches')", "compare both histories after a failed pull or push", show=False),
        Binding("j,down", "move('down')", show=False),
        Binding("k,up", "move('above')", show=False),
        Binding("h,left", "move('left')", show=False),
        Binding("l,right", "move('right')", show=False),
        Binding("g,home", "first", show=False),
        Binding("G,end", "last", "go to the end and follow it", show=False),
        Binding("pagedown,space,ctrl+d,ctrl+f", "move('page_down')", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "move('page_up')", show=False),
    ]

    def __init__(
        self,
        job: Job,
        workspace: Workspace,
        rates: JobRates,
        *,
        copy: Callable[[str], None],
        save: Callable[[Job], None],
        details: bool,
        wrap: bool,
    ) -> None:
        super().__init__()
        self.job = job
        self.details = details
        self.window = LogWindow()
        self._workspace, self._rates, self._copy, self._save = workspace, rates, copy, save
        self._lines = LogLines("lines")
        self._lines.wrap = wrap
        self._early_events: list[JournalEvent] = []  # events before the first page was read
        self._loaded = self._is_reading = False
        self._shown: list[Entry] = []
        self._paint_timer: Timer | None = None
        self._gauges_chosen: bool | None = None  # None until the user chooses

    @property
    def wraps(self) -> bool:
        """Whether long lines are wrapped."""
        return self._lines.wrap

    def compose(self) -> ComposeResult:
        """Yield the gauges, the log and the search field."""
        with Vertical(classes="dialog log"):
            gauges = Gauges("gauges")
            gauges.display = False
            yield gauges
            yield self._lines
            line = Input(placeholder="search text", compact=True, id="needle")
            line.cursor_blink = False
            line.display = False
            yield line

    def on_mount(self) -> None:
        """Read the end of the log."""
        self.query_one(".dialog").border_title = Content(printable(self._title()))
        self._show_keys()
        self._read("end")
        self._show_gauges()

    def apply_events(self, events: Sequence[JournalEvent], job: Job) -> None:
        """Add new lines of the log, and show the state of the job."""
        ended, self.job = job.state is not self.job.state, job
        if ended:
            box = self.query_one(".dialog")
            box._border_title = Content(printable(self._title()))
            box.refresh(Region(-1, -1, box.size.width + 2, 1))
        if not self._loaded:
            self._early_events += events
            return
        self.window.add(events)
        if ended:
            self._show()
        elif events and self._paint_timer is None:  # a repaint sends some kB to the terminal
            self._paint_timer = self.set_timer(PAINT_SECONDS, self._show)

    def apply_samples(self) -> None:
        """Show the newest samples."""
        self._show_gauges()

    def _page_read(self, position: str, line: int, page: LogPage | None, error: str) -> None:
        """Show a page: the ``end``, the ``start``, ``older`` or ``newer`` lines, or the surroundings of a
        match.
        """
        self._is_reading = False
        window = self.window
        if page is None:
            self.show_message(error)
            return
        if position == "older":
            window.prepend(page)
            self._show()
        elif position == "newer":
            window.extend(page)
            self._show()
        else:
            window.load(page)
            self._loaded = True
            window.add(self._early_events)
            self._early_events = []
            self._show()
        if position == "start":
            self._lines.move("first")
        elif position == "found":
            self._select_line(line)
        self._show_keys()

    def _read(self, position: str) -> None:
        if self._is_reading and position in ("older", "newer"):
            return
        self._is_reading = True
        job, workspace, window = self.job.id, self._workspace, self.window
        first, last = window.first_seq, window.last_seq

        def read() -> LogPage:
            if position == "end":
                return workspace.log_page(job)
            if position == "older":
                return workspace.log_page(job, before=first)
            return workspace.log_page(job, after=last if position == "newer" else 0)

        tasks.read(self, "page", read, partial(self._page_read, position, 0))

    def _title(self) -> str:
        return f"{self.job.kind} {self.job.target} · job {self.job.id} · {self.job.state.value}"

    def _show(self) -> None:
        self._paint_timer = None
        lines = self.window.lines
        self._shown = [line for line in lines if self.details or getattr(line, "level", "") != "debug"]
        end = end_lines(self.job, len(lines) - len(self._shown)) if not self.window.newer else ()
        self._lines.set(self._shown, end)

    def _show_keys(self, message: str = "") -> None:
        words = ["/ find"]
        if self._lines.search_text:
            words = ["n N next"]
        words += ["w wrap", "i details", "S save", "y copy", "esc"]
        state = message or ("following" if self._lines.follows and not self.window.newer else "G follows")
        box = self.query_one(".dialog")
        text = Content(printable(" · ".join([state, *words])))
        if text != box._border_subtitle:
            box._border_subtitle = text
            box.refresh(Region(-1, box.size.height, box.size.width + 2, 1))

    def show_notice(self, text: str) -> None:
        """Show a notice of the workbench, which is covered."""
        self.show_message(text)

    def show_message(self, text: str) -> None:
        """Show a message in the lower border until a key is pressed."""
        self._show_keys(text)

    def _show_gauges(self) -> None:
        gauges = self.query_one(Gauges)
        visible = (
            self._gauges_chosen if self._gauges_chosen is not None else self.size.height >= _MIN_GAUGES_HEIGHT
        )
        measured = throughput(self._rates, self.job) if visible else None
        if measured is not None and not measured.rates:
            measured = None
        if gauges.display != (measured is not None):
            gauges.display = measured is not None
        gauges.set(measured)

    def action_move(self, move: str) -> None:
        """Scroll. Beyond the lines in memory, more lines are read."""
        self._lines.move(move)
        self._read_more()
        self._show_keys()

    def _read_more(self) -> None:
        view = self._lines
        page = max(view.room.height, 1)
        if view.scroll_offset.y < page and self.window.older:
            self._read("older")
        elif view.scroll_offset.y > view.max_scroll_y - page and self.window.newer:
            self._read("newer")

    def action_first(self) -> None:
        """Go to the start of the log."""
        if self.window.older:
            self._lines.move("above")  # stops following the end
            self._read("start")
        else:
            self.action_move("first")

    def action_last(self) -> None:
        """Go to the end of the log, and follow it."""
        self._lines.follow()
        if self.window.newer:
            self._loaded = False
            self._read("end")
        self._show_keys()

    def action_wrap(self) -> None:
        """Wrap or truncate long lines."""
        self._lines.toggle_wrap()

    def action_details(self) -> None:
        """Show or hide debug lines."""
        self.details = not self.details
        self._show()

    def action_gauges(self) -> None:
        """Show or hide throughput and memory."""
        self._gauges_chosen = not self.query_one(Gauges).display
        self._show_gauges()
        if self._gauges_chosen and not self.query_one(Gauges).display:
            self.show_message("no throughput data")

    def action_copy(self) -> None:
        """Copy the lines in memory."""
        self._copy("\n".join(format_log_line(line) for line in self._shown))

    def action_save(self) -> None:
        """Save the complete log."""
        self._save(self.job)

    def action_leave(self) -> None:
        """Leave the search, or else the log."""
        line = self.query_one("#needle", Input)
        if line.display:
            self._close_search()
        elif self._lines.search_text:
            self._lines.search_text, self._lines.found = "", 0
            self._lines.refresh()
            self._show_keys()
        else:
            self.dismiss(None)

    def action_search(self) -> None:
        """Open the search field."""
        line = self.query_one("#needle", Input)
        line.display = True
        line.value = self._lines.search_text
        self.set_focus(line)  # at once: the next keys may be queued already

    def _close_search(self) -> None:
        self.query_one("#needle", Input).display = False
        self.set_focus(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search backwards while the end is followed, else forwards from the visible lines."""
        event.stop()
        self._close_search()
        self._lines.search_text, self._lines.found = event.value.strip(), 0
        self._show_keys()
        if self._lines.search_text:
            self.action_next(self._lines.follows)
        else:
            self._lines.refresh()

    def action_next(self, back: bool) -> None:
        """Go to the next match, or to the previous one."""
        view = self._lines
        search_text = view.search_text.lower()
        if not search_text:
            self.show_message("press / to search")
            return
        seqs = [line.seq for line in self._shown]
        if view.found:
            at = bisect_left(seqs, view.found)
        else:
            at = view.line_at(view.scroll_offset.y + (view.room.height if back else -1))
            at = max(min(at, len(seqs)), -1)
        steps = range(at - 1, -1, -1) if back else range(at + 1, len(seqs))
        match = next((line for line in steps if search_text in log_search_text(self._shown[line])), None)
        if match is not None:
            self._select_match(match)
        elif self.window.older if back else self.window.newer:
            self._search_journal(back)
        else:
            self.show_message(_NO_MORE[back])

    def _select_match(self, line: int) -> None:
        self._lines.found = self._shown[line].seq
        self._lines.go(line)
        self._show_keys()

    def _select_line(self, seq: int) -> None:
        at = next((at for at, line in enumerate(self._shown) if line.seq == seq), None)
        if at is not None:
            self._select_match(at)
        else:
            self.show_message("match in a debug line: press i to show")

    def _search_journal(self, back: bool) -> None:
        job, search_text = self.job.id, self._lines.search_text
        start = self.window.first_seq if back else self.window.last_seq
        workspace = self._workspace

        def find() -> tuple[int, LogPage] | None:
            seq = workspace.find_in_log(job, search_text, start, back=back)
            return None if seq is None else (seq, workspace.log_page(job, after=max(seq - _BEFORE_MATCH, 0)))

        def then(match: tuple[int, LogPage] | None, error: str) -> None:
            line, page = match or (0, None)
            self._page_read("found", line, page, error or _NO_MORE[back])

        self.show_message("searching …")
        tasks.read(self, "page", find, then)
