"""Shows the rows of a dataset at another time in pane 3, and keeps which time was chosen for which dataset.

Rows as at a block are the first ones of those that the pane has anyway: they are there at once. States, and
rows as of an event time, are files that the worker makes: it is asked once the person rests.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from textual import on
from textual.timer import Timer
from textual.worker import Worker

from odf_engine.coordinator.protocol import BuildProjection, Job
from odf_engine.coordinator.results import ProjectionResult
from odf_engine.errors import Cancelled, OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_tui.features.time_travel.controller import TimeOpened
from odf_tui.features.time_travel.timeline import PointInTime
from odf_tui.gateway.row_window import RowPrefix, slices_of
from odf_tui.panes.data.view import TIME, TableView
from odf_tui.screens.looking import LookingPart
from odf_tui.screens.pane_data import DataPart
from odf_tui.screens.pane_jobs import JobsPart
from odf_tui.state.model import BlockFilter
from odf_tui.text.format import error_with_hint, format_count, printable
from odf_tui.text.job_text import job_amounts
from odf_tui.widgets.row_table import load_window

if TYPE_CHECKING:
    from odf_tui.features.time_travel.timeline import TimePanel
    from odf_tui.widgets.row_table import LoadedWindow

REST_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.1
_BACK: Final = "esc back to now"


class Timing(JobsPart, DataPart, LookingPart):
    """The part of the workbench that shows rows at other times."""

    _time_wanted: tuple[str, PointInTime, bool] | None = None  # what is being read
    _time_next: tuple[str, PointInTime, bool] | None = None  # what is to be read after it
    _rest_timer: Timer | None = None
    _asking_time: Worker[Any] | None = None

    @cached_property
    def places(self) -> dict[str, PointInTime]:
        """The times that were chosen, by dataset."""
        return {}

    @cached_property
    def _time_jobs(self) -> set[str]:
        return set()

    @property
    def time_panel(self) -> TimePanel | None:
        """The slider, while it is there."""
        found = [panel for panel in self.query("#time-panel") if not getattr(panel, "closed", False)]
        return found[0] if found else None  # type: ignore[return-value]

    def tell_time(self, text: str = "", style: str = "busy") -> None:
        """Says on the slider what is being done."""
        if (panel := self.time_panel) is not None:
            panel.track.tell(text, style)

    def refuse_time(self, why: str) -> None:
        """Says why something cannot be shown: on the slider, which is narrow, and below."""
        self.tell_time(why, "bad")
        self.notify_line(why, "bad")

    # --- What is to be shown ---

    def go_to_time(
        self, dataset: str, place: PointInTime, *, rested: bool = False, stay: bool = False
    ) -> None:
        """Shows the rows of a time: at once where they are here, else once the person rests.

        Args:
            dataset: whose rows.
            place: the time.
            rested: nothing else will be chosen soon.
            stay: the cursor stays where it is.
        """
        self.places[dataset] = place
        self.stop_asking()
        if place.direct:
            self._time_next = (dataset, place, stay)
            self.tell_time()
            if self._time_wanted is None:
                self._read_time()
        elif rested:
            self._ask_for_time(dataset, place)
        else:
            self.tell_time("⏎ looks, or a moment's rest", "key")
            self._rest_timer = self.set_timer(REST_SECONDS, lambda: self._ask_for_time(dataset, place))

    def stop_asking(self) -> bool:
        """Nothing is waited for any more; whether something was."""
        there = self._rest_timer is not None or (
            self._asking_time is not None and not self._asking_time.is_finished
        )
        self._time_next = None
        if self._rest_timer is not None:
            self._rest_timer.stop()
            self._rest_timer = None
        if self._asking_time is not None:
            self._asking_time.cancel()
            self._asking_time = None
        return there

    def ask_now(self) -> bool:
        """Asks for what waits until the person rests; whether something does."""
        if self._rest_timer is None:
            return False
        dataset = self.data_pane.dataset
        self.stop_asking()
        self._ask_for_time(dataset, self.places[dataset])
        return True

    # --- Rows as at a block ---

    def _read_time(self) -> None:
        self._time_wanted, self._time_next = self._time_next, None
        if self._time_wanted is None:
            return
        dataset, place, stay = self._time_wanted
        base = self.data_pane.rows_of(dataset)

        def read() -> LoadedWindow:
            rows = base if base is not None and base.row_count >= place.rows else self.source.rows(dataset)
            if rows is None:
                raise OdfError("there are no rows any more")
            return load_window(RowPrefix(rows, place.rows))

        self.reads.start("time", read, lambda opened, error: TimeOpened(dataset, place, stay, opened, error))

    @on(TimeOpened)
    def _time_opened(self, message: TimeOpened) -> None:
        """Shows them; while the slider moves on, so do they."""
        self._time_wanted = None
        if self.places.get(message.dataset) is not None and self.data_pane.dataset == message.dataset:
            if message.opened is None:
                self.refuse_time(message.error)
            else:
                rows = message.opened.window.row_count
                title = f"{format_count(rows)} {'row' if rows == 1 else 'rows'}"
                self.show_time(message.dataset, message.place, message.opened, title)
                if not message.stay:
                    self._go_to_newest(message.opened)
        self._read_time()

    def _go_to_newest(self, opened: LoadedWindow) -> None:
        """To the first of the rows that the block brought."""
        slices = slices_of(opened.window)
        row = slices[-1].start if slices else opened.window.row_count - 1
        self.data_pane.view.go_centred(max(row, 0))

    def show_time(self, dataset: str, place: PointInTime, opened: LoadedWindow, title: str) -> None:
        """Puts the rows of a time in place of those of now."""
        pane = self.data_pane
        if pane.dataset == dataset:
            pane.show_time(TableView(opened, title, _BACK, TIME, (0, 0), when=place.words))
            self.show_hints()

    # --- States, and rows as of an event time ---

    def _ask_for_time(self, dataset: str, place: PointInTime) -> None:
        self._rest_timer = None
        self._asking_time = self.run_worker(
            self._time_story(dataset, place), group="asking time", name="story", exclusive=True
        )

    async def _time_story(self, dataset: str, place: PointInTime) -> None:
        """Asks the worker for rows, and shows them; errors stand on the slider."""
        row = self.row_of(dataset)
        try:
            result = await self._projected(dataset, "" if row is None else row.name, place)
            file = result.file
            opened = await asyncio.to_thread(lambda: load_window(self.source.file_rows(dataset, file)))
        except Cancelled:
            self.tell_time("stopped: the rows are those of the title", "warn")
        except Exception as error:  # whatever it is, it is told, and the screen lives on
            self.refuse_time(error_with_hint(error))
        else:
            self.tell_time()
            if self.places.get(dataset) == place:
                self.show_time(dataset, place, opened, _title(result))

    async def _projected(self, dataset: str, name: str, place: PointInTime) -> ProjectionResult:
        at = await asyncio.to_thread(self._block_hash, dataset, place) if place.axis == "at" else None
        self.tell_time("asks the worker")
        link = await self.follower.link()
        request = BuildProjection(dataset, list(place.key or ()), as_at=at, as_of=place.as_of)
        job = await link.submit(request, name)
        self._time_jobs.add(job)
        try:
            while not ((known := self.book.jobs.get(job)) and known.state.final):
                self.tell_time(_doing(known))
                await asyncio.sleep(_LOOK_SECONDS)
        except asyncio.CancelledError:
            self.run_worker(self._stop_job(job), name="story")
            raise
        return self._outcome_of(job, BuildProjection, place.words)

    def _block_hash(self, dataset: str, place: PointInTime) -> str:
        lines = self.source.blocks(dataset, place.block, 1, BlockFilter()).lines
        if not lines or lines[0].sequence_number != place.block:
            raise OdfError(f"there is no block {place.block} any more")
        return lines[0].hash

    def _ended(self, job: Job) -> None:
        """Of jobs that make the rows of a time, the rows tell."""
        if job.id not in self._time_jobs:
            super()._ended(job)


def _doing(job: Job | None) -> str:
    if job is None or job.started is None:
        return "waits for its turn · esc stops"
    seconds = (Timestamp.now().ns - Timestamp.parse(job.started).ns) / 1e9
    words = printable(job_amounts(job)) or "looks"
    return f"{words} · {max(seconds, 0):.0f} s · esc stops"


def _title(result: ProjectionResult) -> str:
    """Describe the rows of a projection."""
    key = ", ".join(result.key)
    rows = f"{format_count(result.rows)} {'row' if result.rows == 1 else 'rows'}"
    return f"by {key} · {rows}" if key else rows
