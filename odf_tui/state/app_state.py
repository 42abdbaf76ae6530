"""AppState, which controllers share and observe, and Signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from odf_engine.api import DatasetsChanged, Event, Job, WorkerStatus
from odf_engine.api.model import DatasetRow
from odf_tui.state.job_book import JobBook, JobChanges, dataset_healths, warned_datasets
from odf_tui.state.model import Health
from odf_tui.state.saved_session import SavedLayout
from odf_tui.text.job_text import JobRates

WORKER_ENDED: Final = "the worker has ended"
WORKSPACE_DELETED: Final = "the workspace folder was deleted"
T = TypeVar("T")


class EarlyRead(NamedTuple):
    """What the first screen shows.

    Attributes:
        datasets: all datasets, by name.
        jobs, last_seq: recent jobs, and the journal number of their last event.
        outdated: whether it was saved before a change, so that it must be read again after the first paint.
    """

    datasets: list[DatasetRow]
    jobs: list[Job]
    last_seq: int
    outdated: bool = False


EarlyReads = Future[EarlyRead]
"""Read while Textual is being imported."""


@dataclass
class WorkerConnectionState:
    """The state of the connection to the worker.

    Attributes:
        state: ``starting``, ``connected``, ``stalled`` if the worker does not respond, or ``gone``.
        detail: the reason, if it is stalled or gone.
        hint: what to do.
        busy: number of jobs of a worker of another version.
    """

    state: str
    detail: str = ""
    hint: str = ""
    busy: int = 0


class JobNews(NamedTuple):
    """A change of jobs.

    Attributes:
        changes: the changes.
        events: the events of the worker that caused them.
        reloaded: whether all jobs were read again; then there are no events.
    """

    changes: JobChanges
    events: Sequence[Event] = ()
    reloaded: bool = False

    @property
    def changed_jobs(self) -> bool:
        """Whether the state of a job may have changed."""
        return self.reloaded or bool(self.changes.jobs)

    @property
    def changed_datasets(self) -> bool:
        """Whether a dataset may have changed."""
        return bool(self.changes.datasets) or any(isinstance(event, DatasetsChanged) for event in self.events)


class Signal(Generic[T]):
    """Calls its listeners with each value, in the order of their connection."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], object]] = []

    def connect(self, listener: Callable[[T], object]) -> None:
        """Add a listener."""
        self._listeners.append(listener)

    def send(self, value: T) -> None:
        """Call all listeners. They run after the state has changed."""
        for listener in tuple(self._listeners):
            listener(value)


class AppState:
    """The state that controllers share. It is changed on the event loop only, by the methods here.

    Attributes:
        datasets: all datasets, by name.
        are_datasets_read: whether they were read.
        has_remotes: whether one of them has a remote.
        healths: the health of each dataset, by its id.
        warned: ids of the datasets with warnings, see :func:`odf_tui.state.job_book.warned_datasets`.
        seen_warnings: when the jobs ended whose warnings the user has seen. Job numbers start again in a new
            journal.
        jobs: the jobs.
        rates: the rates of running jobs.
        selected: the id of the dataset under the cursor, or "" if absent.
        shown: id and head of the dataset that the panes show.
        pane: the name of the focused pane.
        worker: the state of the connection, see :class:`WorkerConnectionState`.
        restarting: whether ``starting`` followed ``gone``.
        connection: the newest state of the connection other than ``starting``.
        worker_status: the newest status of the worker, or None without a worker.
        layout: the saved layout, as it was read; features change their own fields in it.

    Signals:
        datasets_changed: ``datasets`` were read.
        datasets_outdated, jobs_outdated: they must be read again.
        shown_changed: the panes must show a dataset, or a new head of it; None: no dataset.
        jobs_changed: jobs, logs or their datasets changed.
        warnings_seen: the user has seen all warnings.
        worker_changed: ``worker``, ``connection`` or ``worker_status`` changed.
        pane_changed: a pane was focused; its name.
        layout_changed: the layout must be saved.
        performed: an action was performed; its id.
        second: sent once a second while jobs run.
    """

    def __init__(self, layout: SavedLayout | None = None) -> None:
        self.datasets: list[DatasetRow] = []
        self.are_datasets_read = False
        self.has_remotes = False
        self.healths: dict[str, Health] = {}
        self.warned: set[str] = set()
        self.jobs, self.rates = JobBook(), JobRates()
        self.selected = ""
        self.shown = ("", "")
        self.pane = "datasets"
        self.worker, self.restarting = "starting", False
        self.connection: WorkerConnectionState | None = None
        self.worker_status: WorkerStatus | None = None
        self.layout = SavedLayout() if layout is None else layout
        self.seen_warnings = set(self.layout.seen_warnings)
        self.datasets_changed = Signal[None]()
        self.datasets_outdated = Signal[None]()
        self.jobs_outdated = Signal[None]()
        self.shown_changed = Signal["DatasetRow | None"]()
        self.jobs_changed = Signal[JobNews]()
        self.warnings_seen = Signal[None]()
        self.worker_changed = Signal[None]()
        self.pane_changed = Signal[str]()
        self.layout_changed = Signal[None]()
        self.performed = Signal[str]()
        self.second = Signal[None]()

    @property
    def row(self) -> DatasetRow | None:
        """The selected dataset."""
        return self.row_of(self.selected)

    @property
    def is_deleted(self) -> bool:
        """Whether the connection was lost because the workspace was deleted."""
        return self.connection is not None and self.connection.detail == WORKSPACE_DELETED

    def row_of(self, dataset: str) -> DatasetRow | None:
        """Return a dataset by its id."""
        return next((row for row in self.datasets if row.id == dataset), None)

    def name_of(self, dataset: str) -> str:
        """Return the name of a dataset; its id if it is not in the workspace."""
        row = self.row_of(dataset)
        return dataset if row is None else row.name

    def downstream_names(self, row: DatasetRow) -> list[str]:
        """Return the names of the datasets with data that read a dataset directly."""
        return [dataset.name for dataset in self.datasets if row.id in dataset.inputs and dataset.last_pulled]

    def set_datasets(self, rows: Sequence[DatasetRow]) -> None:
        """Replace all datasets."""
        self.datasets, self.are_datasets_read = list(rows), True
        self.has_remotes = any(row.remotes for row in rows)
        self._judge_datasets()
        self.datasets_changed.send(None)

    def select(self, dataset: str) -> None:
        """Set the dataset under the cursor."""
        self.selected = dataset

    def show(self, row: DatasetRow | None) -> None:
        """Show a dataset in all panes."""
        self.shown = ("", "") if row is None else (row.id, row.head)
        self.shown_changed.send(row)

    def focus_pane(self, name: str) -> None:
        """Focus a pane."""
        self.pane = name
        self.pane_changed.send(name)

    def load_jobs(self, jobs: Sequence[Job], last_seq: int) -> None:
        """Replace all jobs by those at a journal number."""
        open_before = {job.id for job in self.jobs.active_jobs()}
        self.jobs.load(jobs, last_seq)
        ended = [job for job in jobs if job.id in open_before and job.state.final]
        self._judge_datasets()
        self.jobs_changed.send(JobNews(JobChanges(ended=ended), reloaded=True))

    def apply_events(self, events: Sequence[Event]) -> None:
        """Apply events of the worker."""
        changes = self.jobs.apply(events)
        if changes.worker is not None:
            self.worker_status = changes.worker
        if changes.jobs:
            self._judge_datasets()
        self.jobs_changed.send(JobNews(changes, events))

    def _judge_datasets(self) -> None:
        self.healths = dataset_healths(self.datasets, self.jobs)
        self.warned = warned_datasets(self.jobs, self.seen_warnings)

    @property
    def unseen_warnings(self) -> int:
        """The number of warnings of recent jobs that the user has not seen."""
        return sum(
            len(job.warnings) for job in self.jobs.warned_jobs() if job.ended not in self.seen_warnings
        )

    def see_warnings(self) -> None:
        """Mark all warnings as seen."""
        self.seen_warnings = {job.ended for job in self.jobs.warned_jobs() if job.ended}
        self._judge_datasets()
        self.warnings_seen.send(None)

    def set_worker(self, connection: WorkerConnectionState) -> None:
        """Set the state of the connection to the worker."""
        self.worker, self.restarting = (
            connection.state,
            connection.state == "starting" and self.worker == "gone",
        )
        if connection.state == "gone":
            self.worker_status = None
        if connection.state != "starting":
            self.connection = connection
        self.worker_changed.send(None)
