"""Focus, zoom and sizes of the panes, the filter line, and the saved layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace
from textual.containers import Container
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from odf_tui.actions.model import PANES, Situation
from odf_tui.panes.blocks.view import BlocksPane
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.datasets.view import DatasetsPane
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.services.controller import Controller, Host
from odf_tui.state import saved_session
from odf_tui.state.saved_session import MIN_SHARE, PaneShares, SavedLayout
from odf_tui.widgets.pane_frame import Pane
from odf_tui.widgets.status_bar import FilterLine, KeyHints

SAVE_SECONDS: Final = 1.0
STEP: Final = 5
_LEFT_SHARE: Final = 60
_UPPER_SHARE: Final = 45
_SINGLE_SHARE: Final = 40
DEFAULT_SHARES: Final = PaneShares(left=_LEFT_SHARE, upper=_UPPER_SHARE, single=_SINGLE_SHARE)
"""The shares that the style sheet sets, in percent."""

_LEFT: Final = ("datasets", "data")
_UPPER: Final = ("datasets", "blocks")
_HIGH: Final = ("blocks", "data")
_MIN_HEIGHT: Final = 6
_BELOW_PANES: Final = 2  # the lines for status and hints
_FILTERED: Final = ("datasets", "blocks", "jobs")  # a search through all rows is not restored
_ONE_PANE: Final = ("-narrow", "-low", "-zoomed")


def resize_pane(shares: PaneShares, pane: str, by: int, *, single: bool) -> PaneShares:
    """Return the shares after a pane has grown by some percent, within limits that keep all visible.

    Args:
        shares: the shares before.
        pane: the pane that grows.
        by: percent of the screen; negative if it shrinks.
        single: whether the panes are arranged in one column.
    """

    def share(name: str, grows: bool) -> int:
        now = getattr(shares, name) or getattr(DEFAULT_SHARES, name)
        return max(MIN_SHARE, min(now + (by if grows else -by), 100 - MIN_SHARE))

    if single:
        return replace(shares, single=share("single", pane == PANES[0]))
    return replace(shares, left=share("left", pane in _LEFT), upper=share("upper", pane in _UPPER))


class PaneGrid(Container):
    """The grid of the four panes."""

    @property
    def panes(self) -> Sequence[Pane]:
        """The panes, in the order of their numbers."""
        return list(self.query_children(Pane))

    def set_tracks(self, columns: str, rows: str) -> None:
        """Set the sizes of columns and rows; an empty text resets to the style sheet.

        With three rows, the datasets are in the first one, and the blocks in the first two.
        """
        self.styles.grid_columns = columns or None  # type: ignore[assignment] # None resets to the style sheet
        self.styles.grid_rows = rows or None  # type: ignore[assignment]
        has_step = len(rows.split()) == 3
        self.styles.grid_size_rows = 3 if has_step else None  # type: ignore[assignment]
        for pane in self.panes:
            is_high = has_step and pane.id in _HIGH
            pane.styles.row_span = 2 if is_high else None  # type: ignore[assignment]


class PaneLayout(Controller):
    """Focus, zoom and sizes of the panes, the filter line, and the saved layout.

    Attributes:
        shares: how the panes share the screen.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._grid = self.host.query_one(PaneGrid)
        self.shares = PaneShares()
        self._applied_sizes = ("", "")
        self._content_key: object = None
        self._content_rows: list[int] = []
        self._lower = "data"  # the pane below the datasets in a narrow window
        self._save_timer: Timer | None = None
        self._saved: bytes | None = None
        self.state.pane_changed.connect(lambda _: self._show_focus())
        self.state.layout_changed.connect(lambda _: self.save_soon())

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Handle clicks into panes, the choice of graph or list, and the filter line."""
        return {
            DatasetsPane.ModeChanged: lambda _: self.arrange(),
            Pane.Chosen: lambda message: self.state.focus_pane(message.pane),
            Input.Changed: self._filter_changed,
            Input.Submitted: self._filter_submitted,
        }

    def situation(self) -> Situation:
        """Return what the guards of actions depend on."""
        widget, state = self.host.query_one, self.state
        row, blocks, data = widget(DatasetsPane).view.row, widget(BlocksPane).view, widget(DataPane).view
        state.select("" if row is None else row.id)  # keys may overtake the message of the cursor
        filtered = widget(FilterLine).display or self.host.front.filter
        up = "filter" if filtered else "zoom" if self.host.has_class("-zoomed") else ""
        rows = state.datasets
        return Situation(
            pane=state.pane,
            dataset=row,
            dataset_job=None if row is None else state.jobs.active_job_of(row.id),
            block=blocks.block,
            job=widget(JobsPane).view.job,
            has_rows=data.count() > 0,
            datasets=len(rows),
            pullable=any(row.polls or row.derivative or row.has_pull_remote for row in rows),
            remotes=state.has_remotes,
            worker=state.worker,
            up=up or ("pane" if state.pane != PANES[0] else "tour" if state.layout.tour else ""),
            findings=bool(blocks.findings),
            trail=bool(self.navigator.trail),
        )

    def move(self, move: str) -> None:
        """Move the cursor of the focused pane."""
        self.host.front.move(move)

    def focus(self, pane: str) -> None:
        """Focus a pane."""
        self.state.focus_pane(pane)

    def go_up(self) -> None:
        """Leave the innermost of filter, view, zoom and pane."""
        if not self.clear_filter():
            self.host.leave_innermost()
        self.host.show_hints()

    def go_back(self) -> None:
        """Go back to the position of the last followed link."""
        self.navigator.back()

    def next_pane(self) -> None:
        """Focus the next pane."""
        self._step_pane(1)

    def previous_pane(self) -> None:
        """Focus the previous pane."""
        self._step_pane(-1)

    def _step_pane(self, step: int) -> None:
        self._close_filter_line()
        self.state.focus_pane(PANES[(PANES.index(self.state.pane) + step) % len(PANES)])

    def _show_focus(self) -> None:
        self.host.set_focus(None)
        self.apply_theme()
        self.arrange()

    def apply_theme(self) -> None:
        """Show which pane has the focus, in the colours of the theme."""
        for pane in self._grid.panes:
            pane.apply_theme(pane.id == self.state.pane)

    @property
    def _shows_one_pane(self) -> bool:
        return self.host.has_class("-zoomed") or self.host.has_class("-low")

    def toggle_zoom(self) -> None:
        """Show the focused pane alone, or all panes again."""
        self.host.set_class(not self.host.has_class("-zoomed"), "-zoomed")
        self.arrange()

    def grow(self) -> None:
        """Enlarge the focused pane."""
        self._resize(STEP)

    def shrink(self) -> None:
        """Shrink the focused pane."""
        self._resize(-STEP)

    def reset_sizes(self) -> None:
        """Reset the sizes of all panes."""
        self.shares = PaneShares()
        self.arrange()

    def _resize(self, by: int) -> None:
        if self._shows_one_pane:
            self.host.notice("cannot resize: only one pane is shown", "warn")
            return
        is_narrow = self.host.has_class("-narrow")
        before = self.shares
        if rows := self._rows_of_content():  # these are what the user sees
            shown = round(100 * rows[0] / self._height) if self.state.pane in _LEFT else _UPPER_SHARE
            name = "single" if is_narrow else "upper"
            before = replace(before, **{name: getattr(before, name) or shown})
        shares = resize_pane(before, self.state.pane, by, single=is_narrow)
        if shares == before:
            self.host.notice(f"the pane already has its {'maximum' if by > 0 else 'minimum'} size", "warn")
            return
        self.shares = shares
        self.arrange()

    def arrange(self) -> None:
        """Apply the shares of the panes; in a small window, choose which panes are shown."""
        columns = rows = ""
        asks_alone = self.host.has_class("-asking") and not self.host.has_class("-wide")
        if not self._shows_one_pane and not asks_alone:
            is_narrow = self.host.has_class("-narrow")
            columns = "" if is_narrow else _tracks(self.shares.left)
            rows = _tracks(self.shares.single if is_narrow else self.shares.upper)
            if not rows and (heights := self._rows_of_content()):
                rows = " ".join([*map(str, heights), "1fr"])
        if (columns, rows) != self._applied_sizes:
            self._applied_sizes = (columns, rows)
            self._grid.set_tracks(columns, rows)
        if any(map(self.host.has_class, _ONE_PANE)):
            for pane in self._grid.panes:
                pane.set_class(pane.id == self.state.pane, "-front")
                if self.state.pane != PANES[0]:
                    pane.set_class(pane.id == self.state.pane, "-lower")
        self._name_hidden_panes()
        self.host.show_hints()

    @property
    def _height(self) -> int:
        """The lines of the grid."""
        return self.host.size.height - _BELOW_PANES - bool(self.state.layout.tour)

    def _rows_of_content(self) -> list[int]:
        """Return the heights of all rows but the last if the datasets need less than their share, else [].

        They change only with the number of datasets, the choice of graph or list, and the size of the window:
        nothing jumps during typing.
        """
        pane = next((pane for pane in self._grid.panes if isinstance(pane, DatasetsPane)), None)
        if pane is None:
            return []
        is_narrow = self.host.has_class("-narrow")
        key = (len(self.state.datasets), pane.mode, self.host.size, is_narrow, self.shares.left)
        if key == self._content_key:
            return self._content_rows
        self._content_key, self._content_rows = key, []
        share = self._height * (_SINGLE_SHARE if is_narrow else _UPPER_SHARE) // 100
        width = self.host.size.width * (100 if is_narrow else self.shares.left or _LEFT_SHARE) // 100
        height = max(pane.content_height(width - 2, share - 2) + 2, _MIN_HEIGHT)  # with a border
        if self.state.datasets and height < share:
            self._content_rows = [height] if is_narrow else [height, share - height]
        return self._content_rows

    def _name_hidden_panes(self) -> None:
        """Name the panes that are not shown in the border of the first one that is."""
        small = self._shows_one_pane or self.host.has_class("-narrow")
        if small and self.state.pane != PANES[0]:
            self._lower = self.state.pane
        shown = (self.state.pane,) if self._shows_one_pane else (PANES[0], self._lower)
        for pane in self._grid.panes:
            named = small and pane.id == shown[0]
            others = [f"{other.number} {other.label}" for other in self._grid.panes if other.id not in shown]
            pane.set_others(others if named else ())

    def open_filter(self) -> None:
        """Open the filter line of the focused pane."""
        line, front = self.host.query_one(FilterLine), self.host.front
        self.host.query_one(KeyHints).display = False
        line.display = True
        line.placeholder = front.filter_placeholder
        line.value = front.filter
        line.focus()

    def clear_filter(self) -> bool:
        """Close the filter line and clear the filter. Returns whether there was one of them."""
        line, front = self.host.query_one(FilterLine), self.host.front
        if not (line.display or front.filter):
            return False
        self._close_filter_line()
        line.value = ""
        front.set_filter("")
        return True

    def _filter_changed(self, event: Input.Changed) -> None:
        if isinstance(event.input, FilterLine) and event.input.display:
            self.host.front.set_filter(event.value.strip())

    def _filter_submitted(self, event: Input.Submitted) -> None:
        if isinstance(event.input, FilterLine):
            self._close_filter_line()

    def _close_filter_line(self) -> None:
        line = self.host.query_one(FilterLine)
        if line.display:
            line.display = False
            self.host.query_one(KeyHints).display = True
            self.state.focus_pane(self.state.pane)

    def leave(self) -> bool:
        """Leave the zoom, else the pane."""
        if self.host.has_class("-zoomed"):
            self.toggle_zoom()
        else:
            self.state.focus_pane(PANES[0])
        return True

    def restore(self, layout: SavedLayout) -> None:
        """Restore sizes, zoom and filters."""
        self.shares = layout.shares
        self.host.set_class(layout.zoomed, "-zoomed")
        for pane in self._grid.panes:
            if pane.id in _FILTERED and (text := layout.filters.get(pane.id, "")):
                pane.set_filter(text)

    def save(self, layout: SavedLayout) -> SavedLayout:
        """Save focus, sizes, zoom and filters."""
        filters = {pane.id: pane.filter for pane in self._grid.panes if pane.id in _FILTERED and pane.filter}
        return replace(
            layout,
            pane=self.state.pane,
            zoomed=self.host.has_class("-zoomed"),
            shares=self.shares,
            filters=filters,
        )

    def save_soon(self) -> None:
        """Write the layout in a second, in a thread, if it has changed."""
        if self._save_timer is None:
            self._save_timer = self.host.set_timer(SAVE_SECONDS, self._save)

    def _save(self) -> None:
        self._save_timer = None
        content, folder = saved_session.encode_layout(self.host.collect_layout()), self.workspace.folder
        if content != self._saved:
            self._saved = content
            self.host.read(
                "layout", lambda: saved_session.save_layout(folder, content), lambda *_: None, replaces=False
            )

    def quit(self) -> None:
        """Write the layout and leave; running jobs continue."""
        saved_session.save_layout(
            self.workspace.folder, saved_session.encode_layout(self.host.collect_layout())
        )
        self.host.terminal.leave([f"{job.kind} {job.target}" for job in self.state.jobs.active_jobs()])


def _tracks(share: int | None) -> str:
    return "" if share is None else f"{share}fr {100 - share}fr"
