"""The part of the workbench that goes back in time: rows as at a block, or as of an event time.

The slider is a panel below the rows, see ``widgets/timeline.py``; what it leads to is shown by ``timing.py``.
"""

from __future__ import annotations

import asyncio
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from textual import on

from odf_engine.coordinator.results import ProjectionResult
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import looks_like_time, parse_user_time
from odf_tui.actions.model import PANES, Hint
from odf_tui.features.time_travel.controller import BlockLocated, Probed, TimelineRead
from odf_tui.features.time_travel.timeline import MAX_PROBED, BlockAxis, EventTimeAxis, PointInTime
from odf_tui.gateway.protocol import Timeline
from odf_tui.gateway.row_window import RowPrefix, slices_of
from odf_tui.panes.data.view import STATE, TIME, TableStack
from odf_tui.screens.looking import ExportableRows
from odf_tui.screens.timing import Timing
from odf_tui.services.controller import RowsOpened
from odf_tui.state.model import DatasetRow, Target
from odf_tui.text.format import format_count
from odf_tui.widgets.status_bar import KeyHints

if TYPE_CHECKING:
    from textual.await_remove import AwaitRemove

    from odf_tui.features.time_travel.timeline import TimePanel, TimeSlider

_FIRST_PROBES: Final = 32
_PROBES: Final = 128
_SPOOLED: Final = 1_000_000


class TravellingPart(Timing):
    """The part of the workbench that goes back in time."""

    _slider_leaving: AwaitRemove | None = None

    @cached_property
    def _time_keys(self) -> dict[str, tuple[str, ...] | None]:
        """The keys of the states that are shown, by dataset."""
        return {}

    # --- Opening and closing ---

    def do_travel(self) -> None:
        """Opens the slider, or gives it the keys; when it has them: along the other axis."""
        row, panel = self.graph.row, self.time_panel
        if row is None:
            return
        if panel is not None and panel.dataset == row.id:
            if panel.track.has_keys:
                self._switch_axis(panel)
            else:
                self._focus_slider(panel)
        elif not row.records:
            self.notify_line(f"{row.name} has no rows yet: there is no earlier time to go to", "warn")
        else:
            self._read_timeline(row.id, wanted=True)

    def _read_timeline(self, dataset: str, *, wanted: bool) -> None:
        self.reads.start(
            "timeline",
            partial(self.source.timeline, dataset),
            lambda line, error: TimelineRead(dataset, line, wanted, error),
        )

    @on(TimelineRead)
    def _timeline_read(self, message: TimelineRead) -> None:
        dataset, line = message.dataset, message.line
        if self.data_pane.dataset != dataset:
            return
        if line is None:
            self.notify_line(message.error, "bad")
            return
        place = self.places.get(dataset)
        if place is not None and not BlockAxis(line).holds(place):
            self._forget_time(dataset)
            self.notify_line("its history is another one now: these are the newest rows", "warn")
            place = None
        if not (message.wanted or place is not None):
            return
        self.run_worker(
            self._show_slider(dataset, line, place, wanted=message.wanted),
            group="slider",
            name="slider",
            exclusive=True,
        )

    async def _show_slider(
        self, dataset: str, line: Timeline, place: PointInTime | None, *, wanted: bool
    ) -> None:
        from odf_tui.features.time_travel.timeline import TimePanel

        self._close_slider()
        if self._slider_leaving is not None:
            await self._slider_leaving
        panel = TimePanel(dataset, BlockAxis(line), place)
        await self.data_pane.mount(panel)
        front = self.data_pane.front_view
        if place is None and (front is None or front.kind != STATE):
            self._time_keys.pop(dataset, None)
        if wanted:
            self._focus_slider(panel)
        elif place is not None:
            self.go_to_time(dataset, place, rested=True, stay=True)
        self._probe(panel, _FIRST_PROBES)

    def _focus_slider(self, panel: TimePanel) -> None:
        self.go_to(PANES[2])
        self.set_focus(panel.track)
        self.show_hints()

    def _close_slider(self) -> None:
        panel = self.time_panel
        if panel is not None:
            had_keys = self.focused is not None and panel in self.focused.ancestors
            panel.closed = True
            self._slider_leaving = panel.remove()
            if had_keys:
                self.go_to(PANES[2])

    def _probe(self, panel: TimePanel, files: int) -> None:
        """Asks some more files what they know of themselves."""
        line, stops = panel.track.blocks.line, list(islice(panel.order, files))
        panel.probed += len(stops)
        if stops and panel.probed <= MAX_PROBED:
            self.reads.start("probe", partial(line.probe, stops), lambda found, _: Probed(line, found or []))

    @on(Probed)
    def _probed(self, message: Probed) -> None:
        panel = self.time_panel
        if panel is not None and panel.track.blocks.line is message.line:
            panel.track.learn(message.found)
            self._probe(panel, _PROBES)

    # --- Where the rows are ---

    @on(TableStack.Other)
    def _other_rows(self) -> None:
        """Another dataset is shown: its own slider comes, if a time was chosen for it."""
        pane, panel = self.data_pane, self.time_panel
        place = self.places.get(pane.dataset)
        if panel is not None and panel.dataset != pane.dataset:
            self.stop_asking()
            self._close_slider()
        if place is not None and pane.time_view is None and pane.rows_of(pane.dataset) is not None:
            self._read_timeline(pane.dataset, wanted=False)

    @on(RowsOpened)
    def _history_replaced(self, message: RowsOpened) -> None:
        """New blocks do not move what is shown; another history in place of this one does."""
        pane = self.data_pane
        view = pane.time_view
        if view is None or message.opened is None or pane.dataset != message.dataset:
            return
        known = slices_of(view.opened.window)
        if known and list(slices_of(message.opened.window)[: len(known)]) != list(known):
            self.back_to_now()
            self.notify_line("its history is another one now: these are the newest rows", "warn")

    def _forget_time(self, dataset: str) -> None:
        self.stop_asking()
        self.places.pop(dataset, None)
        self._time_keys.pop(dataset, None)

    def back_to_now(self) -> None:
        """Shows the newest rows."""
        pane = self.data_pane
        if pane.dataset in self.places:
            self.notify_line("these are the newest rows again")
        self._forget_time(pane.dataset)
        if pane.time_view is not None:
            pane.leave_all()
        self._close_slider()
        self.show_hints()

    def do_up(self) -> None:
        """Leaving the rows of another time goes back to now."""
        there = self.data_pane.time_view is not None
        super().do_up()
        if there and self.data_pane.time_view is None:
            self.back_to_now()

    def follow(self, target: Target) -> None:
        """A row that a link leads to is one of now."""
        if target.pane == "data":
            self._forget_time(target.dataset)
            if target.dataset == self.data_pane.dataset:
                self._close_slider()
        super().follow(target)

    # --- The slider's keys ---

    def show_hints(self) -> None:
        """On the slider its own keys."""
        panel = self.time_panel
        if panel is not None and self.focused is panel.line:
            self.query_one(KeyHints).show([Hint("⏎", "go there", ""), Hint("esc", "back to the slider", "")])
            return
        if panel is None or not panel.track.has_keys:
            super().show_hints()
            return
        other = "blocks" if isinstance(panel.track.axis, EventTimeAxis) else "event time"
        hints = [Hint("←→", "move", ""), Hint("[ ]", "further", ""), Hint("@", other, "travel")]
        hints += [Hint("t", "type", ""), Hint("K", "state", "current_state"), Hint("⏎", "keep", "")]
        self.query_one(KeyHints).show([*hints, Hint("esc", "now", "up"), Hint("?", "keys", "help")])

    def _switch_axis(self, panel: TimePanel) -> None:
        track = panel.track
        if isinstance(track.axis, EventTimeAxis):
            track.choose(track.blocks)
        elif not track.blocks.line.timed:
            self.notify_line("these rows have no event time: there are only blocks to move along", "warn")
            return
        elif not track.events.known:
            self.notify_line("the files of these rows do not say their event times", "warn")
            return
        else:
            track.choose(track.events)
        self.show_hints()
        if track.chosen:
            self._slid(panel)

    def on_time_slider_moved(self, message: TimeSlider.Moved) -> None:
        """The rows follow."""
        message.stop()
        if (panel := self.time_panel) is not None:
            self._slid(panel)

    def _slid(self, panel: TimePanel, *, rested: bool = False) -> None:
        place = panel.track.axis.place(self._time_keys.get(panel.dataset))
        self.go_to_time(panel.dataset, place, rested=rested)

    def on_time_slider_pressed(self, message: TimeSlider.Pressed) -> None:
        """A key of the slider."""
        message.stop()
        panel = self.time_panel
        if panel is None:
            return
        match message.what:
            case "type":
                panel.ask()
                self.query_one(KeyHints).clear()
                self.show_hints()
            case "keep":
                if not self.ask_now():
                    self._keep_time(panel)
            case "refocus":
                self._focus_slider(panel)
            case _:
                if self.stop_asking():
                    self.tell_time("stopped: the rows are those of the title · esc again: now", "warn")
                else:
                    self.back_to_now()

    def _keep_time(self, panel: TimePanel) -> None:
        if self.places.get(panel.dataset) is None:
            self.back_to_now()
            return
        self.go_to(PANES[2])
        self.notify_line("the rows stay at this time · @ moves on · esc back to now")

    def on_time_panel_typed(self, message: TimePanel.Typed) -> None:
        """Goes to what was typed."""
        message.stop()
        panel, text = self.time_panel, message.text
        if panel is None:
            return
        panel.close_line()
        self.show_hints()
        if not text:
            return
        track = panel.track
        try:
            if isinstance(track.axis, EventTimeAxis):
                self._arrive_at(panel, parse_user_time(text).ms)
            elif looks_like_time(text):
                self._arrive_at(panel, track.blocks.stop_at(parse_user_time(text).ms))
            else:
                dataset = panel.dataset
                self.reads.start(
                    "locate",
                    partial(self.source.find_block, dataset, text),
                    lambda number, error: BlockLocated(dataset, number, error),
                )
        except OdfError as error:
            self.refuse_time(error.format_line)

    @on(BlockLocated)
    def _block_located(self, message: BlockLocated) -> None:
        panel = self.time_panel
        if panel is None or panel.dataset != message.dataset:
            return
        if message.number is None:
            self.refuse_time(message.error)
        else:
            self._arrive_at(panel, panel.track.blocks.stop_of_block(message.number))

    def _arrive_at(self, panel: TimePanel, position: int) -> None:
        """Goes to a position that was typed."""
        track = panel.track
        if isinstance(track.axis, BlockAxis) and position < 0:
            line = track.blocks.line
            first = f"block {format_count(line.blocks[0])}, {track.blocks.ends()[0]}"
            self.refuse_time(f"nothing was known then: the first rows came with {first}")
            return
        if isinstance(track.axis, EventTimeAxis) and position < track.axis.least:
            self.refuse_time(f"nothing had happened by then: the first is of {track.axis.ends()[0]}")
            return
        track.go(position)
        self._slid(panel, rested=True)

    # --- States of a time ---

    def do_current_state(self) -> None:
        """Of another time: the state by key instead of all rows, and back."""
        row = self.graph.row
        place = self.places.get(row.id) if row is not None else None
        if row is None or place is None:
            super().do_current_state()
        elif place.key is not None:
            self._set_key(row.id, place, None)
        else:
            self.start(self._state_of_time(row, place, choose=False))

    def do_current_state_by(self) -> None:
        """The same by other columns."""
        row = self.graph.row
        place = self.places.get(row.id) if row is not None else None
        if row is None or place is None:
            super().do_current_state_by()
        else:
            self.start(self._state_of_time(row, place, choose=True))

    async def _state_of_time(self, row: DatasetRow, place: PointInTime, *, choose: bool) -> None:
        key = await self.key_for(row, choose=choose)
        if not key:
            return
        if place.axis == "of" and not choose:
            name = ", ".join(key)
            self.notify_line(f"these are the newest of each {name} by then: B takes other columns", "warn")
            return
        self._set_key(row.id, place, tuple(key))

    def _set_key(self, dataset: str, place: PointInTime, key: tuple[str, ...] | None) -> None:
        self._time_keys[dataset] = key
        self.go_to_time(dataset, replace(place, key=key), rested=True)

    async def _show_state(self, row: DatasetRow, result: ProjectionResult) -> None:
        """A state of now; back in time it stays one."""
        await super()._show_state(row, result)
        self._time_keys[row.id] = tuple(result.key)

    # --- What can be done with the rows ---

    def do_statistics(self) -> None:
        """Of the rows as at a block, which are in no file of their own: they are written to one first."""
        row, view, window = self.graph.row, self.data_pane.front_view, self.data_pane.window
        if row is None or view is None or view.kind != TIME or not isinstance(window, RowPrefix):
            super().do_statistics()
        elif not window.row_count:
            self.notify_line("there are no rows to count", "warn")
        elif window.row_count > _SPOOLED:
            most = format_count(_SPOOLED)
            self.notify_line(f"statistics of more than {most} rows of another time: E writes them", "warn")
        else:
            self.start(self._statistics_of_time(row, window, view.when))

    async def _statistics_of_time(self, row: DatasetRow, window: RowPrefix, when: str) -> None:
        self.notify_line("the rows are written for counting …")
        file = await asyncio.to_thread(self.source.spool, window)
        self.show_statistics(row.id, row.name, file, f"Statistics of {row.name} {when}", "what pane 3 shows")

    def _exportable(self, row: DatasetRow) -> list[ExportableRows]:
        """The first rows of a dataset need no file of their own."""
        pane = self.data_pane
        view, window, marked = pane.front_view, pane.window, pane.marked()
        if view is None or view.kind != TIME or window is None:
            return super()._exportable(row)
        place, first = self.places.get(row.id), isinstance(window, RowPrefix)
        what = "as of then" if place is not None and place.axis == "of" else "as at then"
        found: list[ExportableRows] = []
        if marked:
            rows = sum(stop - start for start, stop in marked)
            found.append(ExportableRows(f"{format_count(rows)} marked", None if first else window, marked))
        if window.row_count:
            shown = [(0, window.row_count)] if first else []
            found.append(
                ExportableRows(f"{what}: {format_count(window.row_count)}", None if first else window, shown)
            )
        return [*found, ExportableRows(f"all {format_count(row.records)} rows of now", None)]
