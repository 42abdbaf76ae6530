"""Gateway, the protocol by which screens read and change a workspace, and its result types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from odf_engine.coordinator.protocol import Event, Job, JournalEvent, Request, WorkerStatus
from odf_engine.settings import UiConfig
from odf_engine.views.statistics import Statistics
from odf_tui.state.job_book import LogPage, WrittenBlock
from odf_tui.state.model import BlockSummary, DatasetDetail, DatasetRow, PendingEvent, TrustRequest

if TYPE_CHECKING:
    from odf_engine.workspace.column_lineage import ColumnGraph
    from odf_tui.gateway.row_window import RowWindow
    from odf_tui.state.model import (
        BlockBytes,
        BlockDocument,
        BlockFilter,
        BlockPage,
        BlockRef,
        CheckpointFacts,
        Revision,
    )


class TableDescription(msgspec.Struct, frozen=True):
    """What is known of a table's columns.

    Attributes:
        statistics: ``whole`` or only what its files tell at once.
        types: as people call them, by column.
        required: columns that cannot be null.
        comments: what the schema says of columns.
    """

    statistics: Statistics
    whole: bool
    types: Mapping[str, str] = {}
    required: Sequence[str] = ()
    comments: Mapping[str, str] = {}


class FileTimeRange(msgspec.Struct, frozen=True):
    """What the file of a stop says of itself.

    Attributes:
        stop: the number of the stop, from 0.
        changes: whether it has retractions or corrections.
        groups: rows, least and greatest event time of its parts, in milliseconds since 1970.
        moments: event times of some of its retractions and corrections.
    """

    stop: int
    changes: bool
    groups: tuple[tuple[int, int, int], ...] = ()
    moments: tuple[int, ...] = ()


class Timeline(Protocol):
    """The blocks of a dataset that brought rows, its stops, oldest first; as they were when this was read.

    Attributes:
        blocks: their numbers.
        rows: how many rows the changelog has up to each.
        times: their system times, in milliseconds since 1970.
        head: the number of the newest block of all.
        schemas: the stops before which the schema changed.
        timed: whether the rows have event times.
    """

    blocks: Sequence[int]
    rows: Sequence[int]
    times: Sequence[int]
    head: int
    schemas: Sequence[int]
    timed: bool

    def probe(self, stops: Sequence[int]) -> list[FileTimeRange]:
        """Reads what the files of some stops say of themselves; slow, and those that cannot be read say
        nothing."""
        ...


class NamedUrl(NamedTuple):
    """A repository, or a dataset in one: its name, and its URL."""

    name: str
    url: str


class DivergedBranches(msgspec.Struct, frozen=True):
    """What our chain has had since the newest block that it shares with another one.

    Attributes:
        ours: our newest blocks since then, newest first.
        more: how many of ours are older than these.
        common: the block that both have; None when it is not here any more.
    """

    ours: tuple[BlockSummary, ...]
    more: int
    common: BlockSummary | None


class WorkerLink(Protocol):
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


class Gateway(Protocol):
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

    def detail(self, dataset: str) -> DatasetDetail:
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

    def derivative_in_manifest(self, path: Path) -> str:
        """The name of the derivative dataset that a manifest file is about; empty when it is about others."""
        ...

    def definition(self, dataset: str) -> str:
        """A dataset's definition as its chain has it, as a manifest."""
        ...

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[PendingEvent]:
        """Makes a dataset what a manifest says; what is, or with ``dry_run`` would be, appended."""
        ...

    def trust_request(self, dataset: str) -> TrustRequest:
        """What a dataset that somebody else wrote would run."""
        ...

    def trust(self, dataset: str, shown: TrustRequest) -> None:
        """Lets a dataset run what was shown."""
        ...

    def untrust(self, dataset: str) -> bool:
        """Takes that back; whether it was trusted."""
        ...

    def save_snapshot(self) -> None:
        """Keeps what the first screen shows for the next start."""
        ...

    def jobs(self) -> tuple[list[Job], int]:
        """Recent jobs, newest first, and the journal number up to which they are known."""
        ...

    def log(self, job: str) -> Sequence[JournalEvent]:
        """The journal of one job."""
        ...

    async def connect(self) -> WorkerLink:
        """Attaches to the worker, and starts it if none runs."""
        ...

    # --- Blocks ---

    def blocks(self, dataset: str, first: int | None, limit: int, block_filter: BlockFilter) -> BlockPage:
        """At most ``limit`` blocks from a place on; without one the newest."""
        ...

    def block_kinds(self, dataset: str) -> dict[str, int]:
        """How many blocks there are of each kind of event."""
        ...

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """The numbers of those blocks that the chain holds."""
        ...

    def find_block(self, dataset: str, text: str) -> int:
        """The number of the block that a person means by a number, hash, time or offset."""
        ...

    def block(self, dataset: str, which: BlockRef) -> BlockDocument:
        """A block in full; of one that cannot be read, why not."""
        ...

    def holds_key(self, dataset: str) -> bool:
        """Whether the dataset's private key is here."""
        ...

    def sign_block(self, dataset: str, block: str) -> None:
        """Signs a block, by its hash, with the dataset's key: its owner stands behind it."""
        ...

    def revision(self, dataset: str, which: BlockRef) -> Revision:
        """What a block changed, against the one before it of the same kind."""
        ...

    def block_bytes(self, dataset: str, which: BlockRef) -> BlockBytes:
        """The bytes of a block, with the fields that lie in them."""
        ...

    def checkpoint(self, dataset: str, checkpoint: str, at: int) -> CheckpointFacts:
        """What is known of a checkpoint that block ``at`` names."""
        ...

    # --- Jobs ---

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = 2000
    ) -> LogPage:
        """Some events of a job: those after a journal number, those before one, or its last."""
        ...

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """The journal number of the next line, after or before another, that has a text in it."""
        ...

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Writes a job's whole log to a file; returns how many lines it has."""
        ...

    def blocks_of_job(self, job: str) -> list[WrittenBlock]:
        """The blocks that a job wrote, newest first."""
        ...

    def request_of_job(self, job: Job) -> Request:
        """What a job was asked to do, to be asked again; an error says why that cannot be."""
        ...

    async def stop_worker(self) -> None:
        """Ends the worker, of whatever version it is; its jobs are cancelled."""
        ...

    # --- Statistics, states, times ---

    def column_statistics(self, dataset: str, file: str | None) -> TableDescription:
        """What is known of the columns of a dataset, or of a Parquet file with rows of it."""
        ...

    def primary_key(self, dataset: str) -> list[str]:
        """The columns that tell a dataset's rows apart; empty when nothing says so."""
        ...

    def file_rows(self, dataset: str, file: str) -> RowWindow:
        """The rows of a Parquet file that was made of a dataset's."""
        ...

    def write_temporary_rows(self, window: RowWindow) -> str:
        """Writes the rows of a window to a file, from where the worker can take them."""
        ...

    def remove_temporary_rows(self, file: str) -> None:
        """Removes that file; does nothing to any other."""
        ...

    def timeline(self, dataset: str) -> Timeline:
        """The blocks of a dataset that brought rows, for going back in time."""
        ...

    def column_graph(self, dataset: str) -> ColumnGraph:
        """The columns of a dataset, of all that it is made of, and of all that is made of it."""
        ...

    # --- Queries ---

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """Names and types of the columns of a dataset; none before it has data."""
        ...

    def result(self, path: str) -> RowWindow:
        """The rows of a result, by its path within the workspace."""
        ...

    def query_of_job(self, job: Job) -> str:
        """The query that a job was asked."""
        ...

    def query_history(self) -> list[str]:
        """The queries that were asked, the newest last."""
        ...

    def add_to_query_history(self, sql: str) -> None:
        """Remembers a query."""
        ...

    # --- Repositories and remotes ---

    def repositories(self) -> list[NamedUrl]:
        """All of them, by name."""
        ...

    def add_repository(self, name: str, url: str) -> None:
        """Remembers a repository; an error says what is wrong with the name or the URL."""
        ...

    def remove_repository(self, name: str) -> None:
        """Forgets a repository; datasets keep their addresses."""
        ...

    def branches(self, dataset: str, common: str, limit: int) -> DivergedBranches:
        """Our blocks since a block; at most so many."""
        ...

    def detach(self, dataset: str, url: str) -> None:
        """Forgets that a dataset comes from a URL, or goes there."""
        ...
