"""The narrow door through which the screen learns of the engine, and asks it for something.

:class:`Source` and :class:`Link` are all that the workstation needs of the engine. The real ones are
in ``odf_tui.engine``; tests have some in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from odf_engine.coordinator.protocol import Event, Job, JournalEvent, Request, WorkerStatus
from odf_engine.settings import UiConfig
from odf_tui.chain_state import BlockSource
from odf_tui.job_source import JobSource
from odf_tui.look_source import LookSource
from odf_tui.questions import Questions
from odf_tui.share_source import ShareSource
from odf_tui.state import Change, DatasetRow, Detail, Standing

if TYPE_CHECKING:
    import pyarrow as pa


class RowWindow(Protocol):
    """All rows of a dataset, read a window at a time; slow, so never called on the event loop."""

    @property
    def columns(self) -> pa.Schema:
        """Names and types."""
        ...

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        ...

    @property
    def system_columns(self) -> tuple[str, str, str, str]:
        """Names of the columns for offset, operation, system time and event time."""
        ...

    def window(self, start: int, count: int) -> pa.Table:
        """Some rows."""
        ...


class Link(Protocol):
    """A connection to the worker."""

    @property
    def status(self) -> WorkerStatus:
        """The worker when the connection was made."""
        ...

    async def submit(self, request: Request, target: str) -> str:
        """Makes a job."""
        ...

    async def cancel(self, job: str) -> None:
        """Stops a job."""
        ...

    def events(self, since: int | None = None) -> AsyncIterator[Event]:
        """What happens, until the worker is gone."""
        ...

    async def close(self) -> None:
        """Leaves; the worker goes on."""
        ...


class Source(Questions, BlockSource, JobSource, LookSource, ShareSource, Protocol):
    """The engine as the screen sees it. Everything but :meth:`connect` may block: call it in a thread."""

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        ...

    @property
    def theme(self) -> str:
        """The theme that was chosen last, else the configured one, or ``auto``."""
        ...

    @property
    def ui(self) -> UiConfig:
        """The settings of the workstation."""
        ...

    @property
    def settings_problem(self) -> str:
        """Why they cannot be read; empty when they can."""
        ...

    def datasets(self) -> list[DatasetRow]:
        """Every dataset, by name."""
        ...

    def detail(self, dataset: str) -> Detail:
        """What is known of a dataset."""
        ...

    def rows(self, dataset: str) -> RowWindow | None:
        """The rows of a dataset; None when there are none."""
        ...

    def add(self, path: Path) -> dict[str, str]:
        """Adds datasets from a manifest file: all of them or none; their names by id."""
        ...

    def make_demo(self) -> list[tuple[Request, str]]:
        """Writes the demo into the workspace and adds its datasets; the jobs that fill and check them."""
        ...

    def query_in(self, path: Path) -> str:
        """The name of the derivative dataset that a manifest file is about; empty when it is about others."""
        ...

    def definition(self, dataset: str) -> str:
        """A dataset's definition as its chain has it, as a manifest."""
        ...

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[Change]:
        """Makes a dataset what a manifest says; what is, or with ``dry_run`` would be, appended."""
        ...

    def standing(self, dataset: str) -> Standing:
        """What a dataset that somebody else wrote would run."""
        ...

    def trust(self, dataset: str, shown: Standing) -> None:
        """Lets a dataset run what was shown."""
        ...

    def untrust(self, dataset: str) -> bool:
        """Takes that back; whether it was trusted."""
        ...

    def keep(self) -> None:
        """Keeps what the first screen shows for the next start."""
        ...

    def jobs(self) -> tuple[list[Job], int]:
        """Recent jobs, newest first, and the journal number up to which they are known."""
        ...

    def log(self, job: str) -> Sequence[JournalEvent]:
        """The journal of one job."""
        ...

    async def connect(self) -> Link:
        """Attaches to the worker, and starts it if none runs."""
        ...
