"""What the screen reads from the workspace, each in a thread that ends in a message to the screen.

Newer reads of a kind replace older ones: what an older one still finds is not told any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from textual.message import Message
from textual.screen import Screen
from textual.worker import get_current_worker

from odf_engine.errors import OdfError
from odf_tui.messages import (
    BlocksRead,
    DatasetsRead,
    DetailRead,
    JobsRead,
    LogRead,
    RowsOpened,
    TextRead,
    ThemeSaved,
)
from odf_tui.state import Source

if TYPE_CHECKING:
    from odf_tui.widgets.data import Opened

T = TypeVar("T")

# What reading files can end in; anything else is a mistake of ours and may be seen as such.
UNREADABLE = (OdfError, OSError, sqlite3.Error, ValueError)


class Reads:
    """Starts reads for a screen."""

    def __init__(self, screen: Screen[Any], source: Source) -> None:
        self._screen = screen
        self._source = source

    def _start(
        self,
        group: str,
        read: Callable[[], T],
        tell: Callable[[T | None, str], Message],
        *,
        replaces: bool = True,
    ) -> None:
        def work() -> None:
            worker = get_current_worker()
            try:
                message = tell(read(), "")
            except UNREADABLE as error:
                message = tell(None, str(error))
            if not worker.is_cancelled:
                self._screen.post_message(message)

        self._screen.run_worker(work, thread=True, exclusive=replaces, group=group, name=group)

    def datasets(self) -> None:
        """Every dataset."""
        self._start("datasets", self._source.datasets, lambda rows, error: DatasetsRead(rows or [], error))

    def jobs(self) -> None:
        """Recent jobs."""
        self._start("jobs", self._source.jobs, lambda found, error: JobsRead(*(found or ([], 0)), error))

    def detail(self, dataset: str) -> None:
        """What is known of a dataset."""
        self._start(
            "detail",
            lambda: self._source.detail(dataset),
            lambda detail, error: DetailRead(dataset, detail, error),
        )

    def blocks(self, dataset: str, limit: int, before: int | None, text: str) -> None:
        """Some blocks."""
        self._start(
            "search blocks" if text else "blocks",
            lambda: self._source.blocks(dataset, limit, before, text),
            lambda blocks, error: BlocksRead(dataset, blocks or [], text, error),
            replaces=bool(text),
        )

    def rows(self, dataset: str) -> None:
        """The rows of a dataset, with the first of them."""

        def read() -> Opened | None:
            from odf_tui.widgets.data import open_rows

            return open_rows(self._source, dataset)

        self._start("rows", read, lambda opened, error: RowsOpened(dataset, opened, error))

    def block_text(self, dataset: str, sequence_number: int) -> None:
        """A block as YAML."""
        self._start(
            "text",
            lambda: self._source.block_text(dataset, sequence_number),
            lambda text, error: TextRead(dataset, sequence_number, text or "", error),
        )

    def dataset_text(self, dataset: str) -> None:
        """Everything about a dataset."""
        self._start(
            "text",
            lambda: self._source.detail(dataset).text,
            lambda text, error: TextRead(dataset, None, text or "", error),
        )

    def log(self, job: str) -> None:
        """The journal of a job."""
        self._start(
            "log",
            lambda: list(self._source.log(job)),
            lambda events, error: LogRead(job, events or [], error),
        )

    def save_theme(self, name: str) -> None:
        """Remembers the theme; a workspace that cannot be written to keeps the old one."""
        self._start("theme", lambda: self._source.save_theme(name), lambda _, error: ThemeSaved(name, error))
