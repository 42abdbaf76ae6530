"""Controller, the Context that it gets, and Reader for reads in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from odf_engine.coordinator.protocol import Job, JournalEvent
from odf_tui.gateway.protocol import Gateway
from odf_tui.state.model import DatasetDetail, DatasetRow
from odf_tui.text.format import error_with_hint
from odf_tui.widgets.row_table import open_rows

if TYPE_CHECKING:
    from odf_tui.widgets.row_table import LoadedWindow


@dataclass
class DatasetsRead(Message):
    """The workspace was read; ``error`` says why it could not be."""

    rows: list[DatasetRow]
    error: str = ""


@dataclass
class DetailRead(Message):
    """What is known of a dataset was read; ``wanted``: to be opened, not for the card alone."""

    dataset: str
    detail: DatasetDetail | None
    error: str = ""
    wanted: bool = False


@dataclass
class RowsOpened(Message):
    """The rows of a dataset can be shown."""

    dataset: str
    opened: LoadedWindow | None
    error: str = ""


@dataclass
class LogRead(Message):
    """The journal of a job was read."""

    job: str
    events: Sequence[JournalEvent]
    error: str = ""


@dataclass
class JobsRead(Message):
    """The jobs were read, as they stand at a journal number."""

    jobs: list[Job]
    last_seq: int
    error: str = ""


T = TypeVar("T")


class Reader:
    """Starts reads for a screen."""

    def __init__(self, screen: Screen[Any], source: Gateway) -> None:
        self._screen = screen
        self._source = source

    def start(
        self,
        group: str,
        read: Callable[[], T],
        tell: Callable[[T | None, str], Message],
        *,
        replaces: bool = True,
    ) -> None:
        """Reads in a thread, and tells the screen by a message: of what was read, or of the error.

        With ``replaces`` an older read of the group is forgotten.
        """

        def work() -> None:
            worker = get_current_worker()
            try:
                message = tell(read(), "")
            except Exception as error:  # whatever it is, it is shown, and the screen lives on
                message = tell(None, error_with_hint(error))
            if not worker.is_cancelled:
                self._screen.post_message(message)

        self._screen.run_worker(work, thread=True, exclusive=replaces, group=group, name=group)

    def datasets(self) -> None:
        """Every dataset."""
        self.start("datasets", self._source.datasets, lambda rows, error: DatasetsRead(rows or [], error))

    def jobs(self) -> None:
        """Recent jobs."""
        self.start("jobs", self._source.jobs, lambda found, error: JobsRead(*(found or ([], 0)), error))

    def detail(self, dataset: str, *, wanted: bool = False) -> None:
        """What is known of a dataset; ``wanted``: to be opened."""
        self.start(
            "wanted detail" if wanted else "detail",
            lambda: self._source.detail(dataset),
            lambda detail, error: DetailRead(dataset, detail, error, wanted),
        )

    def rows(self, dataset: str) -> None:
        """The rows of a dataset, with the first of them."""
        self.start(
            "rows",
            lambda: open_rows(self._source, dataset),
            lambda opened, error: RowsOpened(dataset, opened, error),
        )

    def log(self, job: str) -> None:
        """The journal of a job."""
        self.start(
            "log",
            lambda: list(self._source.log(job)),
            lambda events, error: LogRead(job, events or [], error),
        )
