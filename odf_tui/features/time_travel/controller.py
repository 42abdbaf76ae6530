"""Shows rows as at a block or as of an event time, and latest states by key, in the data pane.

The rows as at a block are the first rows of the dataset: they are read immediately. States by key,
and rows as of an event time, are files that a job writes: the job starts when the slider stops moving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from odf_engine.api import BuildProjection, Job, ProjectionResult, Timestamp, looks_like_time, parse_user_time
from odf_engine.api.model import BlockFilter, DatasetRow, FileTimeRange, Target
from odf_engine.api.readers.row_window import RowPrefix, slices_of
from odf_engine.api.text import count_of, format_count, printable
from odf_engine.errors import Cancelled, OdfError
from odf_tui.actions.model import Hint
from odf_tui.features.time_travel.timeline import (
    MAX_PROBED,
    BlockAxis,
    EventTimeAxis,
    PointInTime,
    TimePanel,
    TimeSlider,
)
from odf_tui.panes.data.row_dialogs import KeyColumnsDialog
from odf_tui.panes.data.view import STATE, TIME, DataPane, TableStack, TableView
from odf_tui.services.controller import Controller, Host, task
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.text.format import error_with_hint
from odf_tui.text.job_text import job_amounts
from odf_tui.widgets.row_table import LoadedWindow, load_window
from odf_tui.widgets.status_bar import StatusLine

if TYPE_CHECKING:
    from textual.await_remove import AwaitRemove
    from textual.message import Message
    from textual.timer import Timer
    from textual.worker import Worker

    from odf_engine.api import PinnedVersion
    from odf_engine.api.readers.row_reader import RowTimeline

REST_SECONDS: Final = 0.5
"""Seconds without a move of the slider after which a job starts."""
_FIRST_PROBES: Final = 32
_PROBES: Final = 128
_OTHER_HISTORY: Final = "the history was replaced: showing the newest rows"


class _PrefixRead(NamedTuple):
    """A read of the rows as at a block. With ``stay`` the cursor does not move."""

    dataset: str
    point: PointInTime
    stay: bool


class TimeTravelController(Controller):
    """Opens the slider, shows the rows of the chosen time, and shows latest states by key.

    Attributes:
        chosen_times: the chosen time of each dataset that is not shown with its newest rows.
        time_panel: the slider, or None while it is closed.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.chosen_times: dict[str, PointInTime] = {}
        self.time_panel: TimePanel | None = None
        self._removal: AwaitRemove | None = None
        self._opening: Worker[None] | None = None
        self._state_keys: dict[str, tuple[str, ...] | None] = {}  # of the states that are shown, by dataset
        self._chosen_keys: dict[str, list[str]] = {}  # chosen in the dialog, by dataset
        self._reading: _PrefixRead | None = None
        self._next_read: _PrefixRead | None = None
        self._rest_timer: Timer | None = None
        self._projection: Worker[None] | None = None
        self._projection_job = ""
        self.state.jobs_changed.connect(self._show_progress)
        self.state.second.connect(self._show_progress)
        self.navigator.going.connect(self._link_followed)

    def routes(self) -> Mapping[type[Message], Callable[[Any], object]]:
        """Return the handlers of messages of the slider, and of the data pane."""
        return {
            TableStack.DatasetReplaced: self._dataset_changed,
            TableStack.Reloaded: self._rows_reloaded,
            TimeSlider.Moved: self._slider_moved,
            TimeSlider.SliderCommand: self._run_command,
            TimePanel.Typed: self._go_to_typed,
        }

    @property
    def _pane(self) -> DataPane:
        return self.host.query_one(DataPane)

    def open_slider(self) -> None:
        """Open the slider, or focus it. If it has the focus, switch to its other axis."""
        row, panel = self.state.row, self.time_panel
        if row is None:
            return
        if panel is not None and panel.dataset == row.id:
            if panel.track.has_keys:
                self._switch_axis(panel)
            else:
                self._focus_slider(panel)
        elif not row.records:
            self.host.notice(f"{row.name} has no rows yet", "warn")
        else:
            self._read_timeline(row.id, focus=True)

    def leave(self) -> bool:
        """Leave the innermost view. After the view of another time, the newest rows are shown."""
        pane = self._pane
        if self.state.pane != "data" or pane.time_view is None:
            return False
        left = pane.leave_innermost()
        if pane.time_view is None:
            self._back_to_now()
        self.host.show_hints()
        return left

    def hints(self) -> list[Hint] | None:
        """Return the keys of the slider, or of its line, while that has the focus."""
        panel = self.time_panel
        if panel is None:
            return None
        if self.host.focused is panel.line:
            return [Hint("⏎", "go there", ""), Hint("esc", "back to the slider", "")]
        if not panel.track.has_keys:
            return None
        other = "blocks" if isinstance(panel.track.axis, EventTimeAxis) else "event time"
        return [
            Hint("←→", "move", ""),
            Hint("[ ]", "further", ""),
            Hint("@", other, "travel"),
            Hint("t", "type", ""),
            Hint("K", "state", "current_state"),
            Hint("⏎", "keep", ""),
            Hint("esc", "now", "up"),
            Hint("?", "keys", "help"),
        ]

    def _read_timeline(self, dataset: str, *, focus: bool) -> None:
        self.host.read(
            "timeline",
            partial(self.workspace.timeline, dataset),
            partial(self._timeline_read, dataset, focus),
        )

    def _timeline_read(self, dataset: str, focus: bool, line: RowTimeline | None, problem: str) -> None:
        """Open the slider if it gets the focus, or if a time is chosen for the dataset."""
        if self._pane.dataset != dataset:
            return
        if line is None:
            self.host.notice(problem, "bad")
            return
        point = self.chosen_times.get(dataset)
        if point is not None and not BlockAxis(line).contains(point):
            self._clear_time(dataset)
            self.host.notice(_OTHER_HISTORY, "warn")
            point = None
        if not (focus or point is not None):
            return
        if self._opening is not None:
            self._opening.cancel()
        self._opening = self.host.start(self._open_panel(dataset, line, point, focus=focus), group="slider")

    async def _open_panel(
        self, dataset: str, line: RowTimeline, point: PointInTime | None, *, focus: bool
    ) -> None:
        self._close_slider()
        if self._removal is not None:
            await self._removal
        panel = self.time_panel = TimePanel(dataset, BlockAxis(line), point)
        await self._pane.mount(panel)
        if self.time_panel is not panel:
            return  # it was closed since
        front = self._pane.front_view
        if point is None and (front is None or front.kind != STATE):
            self._state_keys.pop(dataset, None)
        if focus:
            self._focus_slider(panel)
        elif point is not None:
            self._go_to(dataset, point, immediate=True, stay=True)
        self._probe(panel, _FIRST_PROBES)

    def _focus_slider(self, panel: TimePanel) -> None:
        self.state.focus_pane("data")
        self.host.set_focus(panel.track)
        self.host.show_hints()

    def _close_slider(self) -> None:
        panel, self.time_panel = self.time_panel, None
        if panel is not None:
            focused = self.host.focused
            self._removal = panel.remove()
            if focused is not None and panel in focused.ancestors:
                self.state.focus_pane("data")

    def _probe(self, panel: TimePanel, files: int) -> None:
        """Read the event times of some more files, for the marks of the slider."""
        line, stops = panel.track.blocks.line, list(islice(panel.order, files))
        panel.probed += len(stops)
        if stops and panel.probed <= MAX_PROBED:
            self.host.read("probe", partial(line.probe, stops), partial(self._probed, line))

    def _probed(self, line: RowTimeline, ranges: Sequence[FileTimeRange] | None, problem: str) -> None:
        panel = self.time_panel
        if panel is not None and panel.track.blocks.line is line:
            panel.track.add_probes(ranges or [])
            self._probe(panel, _PROBES)

    def _dataset_changed(self, _: TableStack.DatasetReplaced) -> None:
        """Close the slider of another dataset. If a time is chosen for this one, open its own slider."""
        pane, panel = self._pane, self.time_panel
        if panel is not None and panel.dataset != pane.dataset:
            self._stop_request()
            self._close_slider()
        if (
            pane.dataset in self.chosen_times
            and pane.time_view is None
            and pane.rows_of(pane.dataset) is not None
        ):
            self._read_timeline(pane.dataset, focus=False)

    def _rows_reloaded(self, message: TableStack.Reloaded) -> None:
        """Keep the view if blocks were appended; show the newest rows if the history was replaced."""
        pane = self._pane
        view = pane.time_view
        if view is None or pane.rows_of(pane.dataset) is not message.opened.window:
            return
        point = self.chosen_times.get(pane.dataset)
        if point is not None and point.history:
            return  # an earlier history does not change
        known = slices_of(view.opened.window)
        if known and list(slices_of(message.opened.window)[: len(known)]) != list(known):
            self._back_to_now()
            self.host.notice(_OTHER_HISTORY, "warn")

    def _link_followed(self, target: Target) -> None:
        """Discard the chosen time: a link to a row leads to the newest rows."""
        if target.pane == "data":
            self._clear_time(target.dataset)
            if target.dataset == self._pane.dataset:
                self._close_slider()

    def _clear_time(self, dataset: str) -> None:
        self._stop_request()
        self.chosen_times.pop(dataset, None)
        self._state_keys.pop(dataset, None)

    def _back_to_now(self) -> None:
        """Show the newest rows, and close the slider."""
        pane = self._pane
        if pane.dataset in self.chosen_times:
            self.host.notice("showing the newest rows")
        self._clear_time(pane.dataset)
        if pane.time_view is not None:
            pane.leave_all()
        self._close_slider()
        self.host.show_hints()

    def _slider_moved(self, _: TimeSlider.Moved) -> None:
        if (panel := self.time_panel) is not None:
            self._follow_slider(panel)

    def _follow_slider(self, panel: TimePanel, *, immediate: bool = False) -> None:
        """Show the rows of the time that the slider is at."""
        point = panel.track.axis.point_in_time(self._state_keys.get(panel.dataset))
        self._go_to(panel.dataset, point, immediate=immediate)

    def _run_command(self, message: TimeSlider.SliderCommand) -> None:
        panel = self.time_panel
        if panel is None:
            return
        match message.command:
            case "type":
                panel.open_line()
                self.host.query_one(StatusLine).clear_notice()
                self.host.show_hints()
            case "keep":
                if not self._request_now():
                    self._keep_time(panel)
            case "refocus":
                self._focus_slider(panel)
            case _:
                if self._stop_request():
                    self._show_status("cancelled: rows unchanged · esc again: newest rows", "warn")
                else:
                    self._back_to_now()

    def _switch_axis(self, panel: TimePanel) -> None:
        track = panel.track
        if isinstance(track.axis, EventTimeAxis):
            track.choose(track.blocks)
        elif not track.blocks.line.timed:
            self.host.notice("the rows have no event time: only blocks can be selected", "warn")
            return
        elif not track.events.has_range:
            self.host.notice("the data files have no statistics of event times", "warn")
            return
        else:
            track.choose(track.events)
        self.host.show_hints()
        if track.chosen:
            self._follow_slider(panel)

    def _keep_time(self, panel: TimePanel) -> None:
        """Focus the rows, and keep the time."""
        if panel.dataset not in self.chosen_times:
            self._back_to_now()
            return
        self.state.focus_pane("data")
        self.host.notice("the rows stay at this time · @ changes it · esc newest rows")

    def _go_to_typed(self, message: TimePanel.Typed) -> None:
        """Go to the time or the block that was typed."""
        panel, text = self.time_panel, message.text
        if panel is None:
            return
        panel.close_line()
        self.host.show_hints()
        if not text:
            return
        track = panel.track
        try:
            if isinstance(track.axis, EventTimeAxis):
                self._go_to_position(panel, parse_user_time(text).ms)
            elif looks_like_time(text):
                self._go_to_position(panel, track.blocks.stop_at(parse_user_time(text).ms))
            else:
                find = partial(self.workspace.find_version, panel.dataset, text)
                self.host.read("locate", find, partial(self._block_found, panel.dataset))
        except OdfError as error:
            self._show_failure(error.format_line)

    def _block_found(self, dataset: str, number: int | PinnedVersion | None, problem: str) -> None:
        panel = self.time_panel
        if panel is None or panel.dataset != dataset:
            return
        if number is None:
            self._show_failure(problem)
        elif not isinstance(number, int):
            self._go_to_history(panel, number)
        else:
            self._go_to_position(panel, panel.track.blocks.stop_of_block(number))

    def _go_to_history(self, panel: TimePanel, version: PinnedVersion) -> None:
        """Show the rows as at a block of an earlier history."""
        if version.last_offset is None:
            self._show_failure("the earlier history has no rows")
            return
        moment, block = Timestamp.parse(version.system_time).ms, version.sequence_number
        key = self._state_keys.get(panel.dataset)
        rows = version.last_offset + 1
        point = PointInTime("at", moment, block, rows, block, key=key, history=version.block)
        self._go_to(panel.dataset, point, immediate=True)

    def _go_to_position(self, panel: TimePanel, position: int) -> None:
        """Go to a position on the axis that was typed."""
        track = panel.track
        if isinstance(track.axis, BlockAxis) and position < 0:
            line = track.blocks.line
            first = f"block {format_count(line.blocks[0])}, {track.blocks.end_labels()[0]}"
            self._show_failure(f"no rows at that time: the first rows are in {first}")
            return
        if isinstance(track.axis, EventTimeAxis) and position < track.axis.least:
            self._show_failure(f"no event time before {track.axis.end_labels()[0]}")
            return
        track.go(position)
        self._follow_slider(panel, immediate=True)

    def _show_status(self, text: str = "", style: str = "busy") -> None:
        """Show a text above the track of the slider; empty: the legend of the track."""
        if (panel := self.time_panel) is not None:
            panel.track.show_status(text, style)

    def _show_failure(self, problem: str) -> None:
        """Show why a time cannot be shown, on the slider and, because that is narrow, in a notice."""
        self._show_status(problem, "bad")
        self.host.notice(problem, "bad")

    def _go_to(
        self, dataset: str, point: PointInTime, *, immediate: bool = False, stay: bool = False
    ) -> None:
        """Show the rows of a time: immediately if they are the first rows of the dataset, else by a job.

        Args:
            dataset: id of the dataset.
            point: the time.
            immediate: whether a job starts immediately; else it starts when the slider stops moving.
            stay: whether the cursor does not move.
        """
        self.chosen_times[dataset] = point
        self._stop_request()
        if point.is_prefix:
            self._next_read = _PrefixRead(dataset, point, stay)
            self._show_status()
            if self._reading is None:
                self._read_prefix()
        elif immediate:
            self._start_projection(dataset, point)
        else:
            self._show_status("⏎ computes now, or wait", "key")
            self._rest_timer = self.host.set_timer(
                REST_SECONDS, partial(self._start_projection, dataset, point)
            )

    def _stop_request(self) -> bool:
        """Stop what was requested for the slider. Returns whether a job runs or was about to start."""
        job = self._projection
        stopped = self._rest_timer is not None or (job is not None and not job.is_finished)
        self._next_read = None
        if self._rest_timer is not None:
            self._rest_timer.stop()
            self._rest_timer = None
        if job is not None:
            job.cancel()
            self._projection, self._projection_job = None, ""
        return stopped

    def _request_now(self) -> bool:
        """Start the job that waits for the slider to stop moving. Returns whether there was one."""
        if self._rest_timer is None:
            return False
        dataset = self._pane.dataset
        self._stop_request()
        self._start_projection(dataset, self.chosen_times[dataset])
        return True

    def _read_prefix(self) -> None:
        """Read the rows for the newest position of the slider; one read at a time."""
        self._reading, self._next_read = self._next_read, None
        if self._reading is None:
            return
        dataset, point, _ = self._reading
        base = None if point.history else self._pane.rows_of(dataset)

        def read() -> LoadedWindow:
            enough = base is not None and base.row_count >= point.rows
            chain = f"{dataset}@{point.history}" if point.history else dataset
            rows = base if enough else self.workspace.rows(chain)
            if rows is None:
                raise OdfError("the dataset no longer has rows")
            return load_window(RowPrefix(rows, point.rows))

        self.host.read("time", read, partial(self._prefix_read, self._reading))

    def _prefix_read(self, request: _PrefixRead, opened: LoadedWindow | None, problem: str) -> None:
        self._reading = None
        if request.dataset in self.chosen_times and self._pane.dataset == request.dataset:
            if opened is None:
                self._show_failure(problem)
            else:
                rows = opened.window.row_count
                title = count_of(rows, "row")
                self._show_time(request.dataset, request.point, opened, title)
                if not request.stay:
                    self._go_to_newest(opened)
        self._read_prefix()

    def _go_to_newest(self, opened: LoadedWindow) -> None:
        """Put the cursor on the first row of the newest block."""
        slices = slices_of(opened.window)
        row = slices[-1].start if slices else opened.window.row_count - 1
        self._pane.view.go_to_middle(max(row, 0))

    def _show_time(self, dataset: str, point: PointInTime, opened: LoadedWindow, title: str) -> None:
        """Replace the views of the pane by the rows of a time."""
        pane = self._pane
        if pane.dataset == dataset:
            as_of = point.axis == "of"
            note = "esc newest rows"
            view = TableView(opened, title, note, TIME, (0, 0), when=point.label, as_of=as_of)
            pane.show_time(replace(view, history=point.history))
            self.host.show_hints()

    def _start_projection(self, dataset: str, point: PointInTime) -> None:
        self._rest_timer = None
        self._projection = self.host.start(self._show_projection(dataset, point))

    async def _show_projection(self, dataset: str, point: PointInTime) -> None:
        """Run the job that writes the rows of a time, and show them; errors are shown on the slider."""
        row = self.state.row_of(dataset)
        try:
            result = await self._project(dataset, "" if row is None else row.name, point)
            opened = await asyncio.to_thread(self._load_file, dataset, result.file)
        except Cancelled:
            self._show_status("cancelled: rows unchanged", "warn")
        except Exception as error:  # every error is shown, and the screen stays open
            self._show_failure(error_with_hint(error))
        else:
            self._show_status()
            if self.chosen_times.get(dataset) == point:
                self._show_time(dataset, point, opened, _projection_title(result))

    async def _project(self, dataset: str, name: str, point: PointInTime) -> ProjectionResult:
        """Run the job; it is cancelled if this coroutine is cancelled."""
        at = await asyncio.to_thread(self._block_hash, dataset, point) if point.axis == "at" else None
        self._show_status("queued")
        request = BuildProjection(dataset, list(point.key or ()), as_at=at, as_of=point.as_of)
        job = await self.jobs.submit_one(request, name, quiet=True)
        self._projection_job = job
        self._show_progress()
        try:
            await self.jobs.wait_until_ended(job)
        except asyncio.CancelledError:
            self.host.start(self.jobs.cancel(job))
            raise
        self._projection_job = ""
        return self.jobs.result_of(job, BuildProjection, point.label)

    def _show_progress(self, _: object = None) -> None:
        """Show the progress of the job on the slider until it ends."""
        if self._projection_job:
            job = self.state.jobs.jobs.get(self._projection_job)
            if job is None or not job.state.final:
                self._show_status(_progress_text(job))

    def _block_hash(self, dataset: str, point: PointInTime) -> str:
        if point.history:
            return point.history
        lines = self.workspace.blocks(dataset, point.block, 1, BlockFilter()).lines
        if not lines or lines[0].sequence_number != point.block:
            raise OdfError(f"block {point.block} no longer exists")
        return lines[0].hash

    def _load_file(self, dataset: str, file: str) -> LoadedWindow:
        return load_window(self.workspace.file_rows(dataset, file))

    def toggle_current_state(self) -> None:
        """Show the state by key instead of all rows, or all rows again. Keeps the chosen time."""
        row, view = self.state.row, self._pane.front_view
        point = self.chosen_times.get(row.id) if row is not None else None
        if row is not None and point is not None:
            if point.key is not None:
                self._set_key(row.id, point, None)
            else:
                self._show_state_at(row, point, choose=False)
        elif view is not None and view.kind == STATE:
            self._pane.pop_view()
            self.host.show_hints()
        elif row is not None:
            self._show_current_state(row, choose=False)

    def choose_state_key(self) -> None:
        """Let the user choose the columns of the key, and show the state by them. Keeps the chosen time."""
        row = self.state.row
        if row is None:
            return
        point = self.chosen_times.get(row.id)
        if point is not None:
            self._show_state_at(row, point, choose=True)
        else:
            self._show_current_state(row, choose=True)

    @task
    async def _show_state_at(self, row: DatasetRow, point: PointInTime, *, choose: bool) -> None:
        key = await self._key_of(row, choose=choose)
        if not key:
            return
        if point.axis == "of" and not choose:
            name = ", ".join(key)
            self.host.notice(f"this is the state by {name} already: B chooses another key", "warn")
            return
        self._set_key(row.id, point, tuple(key))

    def _set_key(self, dataset: str, point: PointInTime, key: tuple[str, ...] | None) -> None:
        self._state_keys[dataset] = key
        self._go_to(dataset, replace(point, key=key), immediate=True)

    @task
    async def _show_current_state(self, row: DatasetRow, *, choose: bool) -> None:
        key = await self._key_of(row, choose=choose)
        if not key:
            return
        title = f"Latest state of {row.name}"
        try:
            result = await self.jobs.outcome(BuildProjection(row.id, key), row.name, title, leaves=True)
        except LeftRunning:
            self.host.notice(f"the latest state of {row.name} is being computed: K shows it when done")
            return
        opened = await asyncio.to_thread(self._load_file, row.id, result.file)
        self._show_state(row, result, opened)
        self._state_keys[row.id] = tuple(result.key)  # the slider starts with this state

    def _show_state(self, row: DatasetRow, result: ProjectionResult, opened: LoadedWindow) -> None:
        pane = self._pane
        if self.state.selected != row.id or pane.dataset != row.id:
            self.host.notice(f"the latest state of {row.name} is ready: K shows it")
            return
        if pane.front_view is not None and pane.front_view.kind == STATE:
            pane.pop_view()
        key = ", ".join(result.key)
        rows = f"{format_count(result.rows)} of {count_of(result.of, 'row')}"
        below = (pane.view.cursor, pane.view.column)
        title = f"latest state by {key} · {rows}"
        pane.push_view(TableView(opened, title, "K shows all rows", STATE, below))
        self.host.show_hints()

    async def _key_of(self, row: DatasetRow, *, choose: bool) -> list[str] | None:
        """Return the key of a dataset. The user chooses it if it is missing, or with ``choose``."""
        primary = await asyncio.to_thread(self.workspace.primary_key, row.id)
        return primary if primary and not choose else await self._choose_key(row, primary)

    async def _choose_key(self, row: DatasetRow, primary: Sequence[str]) -> list[str] | None:
        columns = await asyncio.to_thread(self.workspace.columns, row.id)
        window = self._pane.window
        system = () if window is None else window.system_columns[:3]
        columns = [column for column in columns if column[0] not in system]
        if not columns:
            raise OdfError(f"{row.name} has no rows yet", hint="press p to pull it")
        before = [name for name in self._chosen_keys.get(row.id, primary) if name in dict(columns)]
        title = f"Key of the latest state of {row.name}"
        key = await self.host.ask(KeyColumnsDialog(title, columns, before))
        if key:
            self._chosen_keys[row.id] = key
        return key


def _progress_text(job: Job | None) -> str:
    """Describe the progress of a job, and the key that cancels it."""
    if job is None or job.started is None:
        return "queued · esc cancels"
    seconds = (Timestamp.now().ns - Timestamp.parse(job.started).ns) / 1e9
    words = printable(job_amounts(job)) or "running"
    return f"{words} · {max(seconds, 0):.0f} s · esc cancels"


def _projection_title(result: ProjectionResult) -> str:
    key = ", ".join(result.key)
    rows = count_of(result.rows, "row")
    return f"by {key} · {rows}" if key else rows
