"""What the screen reads from the workspace, each in a thread that ends in a message to the screen.

Newer reads of a kind replace older ones: what an older one still finds is not told any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from odf_tui.humane import explained
from odf_tui.messages import (
    DatasetsRead,
    DetailRead,
    JobsRead,
    LogRead,
    RowsOpened,
)
from odf_tui.source import Source
from odf_tui.widgets.chunks import open_rows

T = TypeVar("T")


class Reads:
    """Starts reads for a screen."""

    def __init__(self, screen: Screen[Any], source: Source) -> None:
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
                message = tell(None, explained(error))
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
