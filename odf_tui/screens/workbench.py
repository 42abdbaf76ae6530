"""The one screen: it starts, and hands each key to its action."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType

from odf_tui.actions import table
from odf_tui.screens.announcing import Announcing
from odf_tui.screens.column_lineage import ColumnLineagePart
from odf_tui.screens.differing import DifferingPart
from odf_tui.screens.editing import Editing
from odf_tui.screens.looking import LookingPart
from odf_tui.screens.pane_blocks import BlocksPart
from odf_tui.screens.pane_data import DataPart
from odf_tui.screens.pane_jobs import JobsPart
from odf_tui.screens.remembering import Remembering
from odf_tui.screens.sql import SqlPart
from odf_tui.screens.tracing import TracingPart
from odf_tui.screens.travelling import TravellingPart
from odf_tui.services.controller import DetailRead
from odf_tui.text.format import format_count
from odf_tui.widgets.line_view import LineView

_EARLY_SECONDS: Final = 0.2


class Workbench(
    Remembering,
    SqlPart,
    TravellingPart,
    TracingPart,
    DifferingPart,
    ColumnLineagePart,
    Announcing,
    JobsPart,
    BlocksPart,
    DataPart,
    LookingPart,
    Editing,
    inherit_bindings=False,
):
    """Four panes, see ``base.py``."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (104, "-wide")]  # noqa: RUF012 (as Textual declares it)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"press('{key}')", show=False) for key in table.all_keys()
    ]

    def on_mount(self) -> None:
        """Shows what was read early; the worker is looked for after the first paint."""
        self.tick = self.set_interval(1.0, self.second, pause=True)
        self.restore()
        self.show_worker()
        if not self._show_early():
            self.reads.jobs()
            self.reads.datasets()
        self.call_after_refresh(self._begin)

    def _show_early(self) -> bool:
        if self.early is None:
            return False
        try:
            rows, jobs = self.early.result(_EARLY_SECONDS)
        except Exception:  # too late, or unreadable: it is read again, and then said why not
            return False
        self.book.load(*jobs)
        self.jobs_pane.view.load()
        self.show_datasets(rows)
        if self.book.active_jobs():
            self._news_of_jobs()  # a second passes for them, too
        return True

    def _begin(self) -> None:
        self.station.painted()
        self.keep_soon()
        self.station.read_dialog_styles()
        if self.key_problems:
            more = len(self.key_problems) - 1
            self.notify_line(
                self.key_problems[0] + (f" (and {format_count(more)} more: ?)" if more else ""), "warn"
            )
        self.run_worker(self.follower.run(), group="worker", name="worker")

    @on(DetailRead)
    def _detail_wanted(self, message: DetailRead) -> None:
        if message.wanted and message.error:
            self.notify_line(message.error, "bad")
        elif message.wanted and message.detail is not None:
            self.show_detail(message.dataset, message.detail)

    @on(LineView.Opened)
    def _opened(self) -> None:
        self.press("enter")
