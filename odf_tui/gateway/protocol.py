"""Gateway, the protocol by which screens read and change a workspace, and its result types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from odf_engine.config import UiConfig
from odf_engine.coordinator.protocol import Event, Job, JournalEvent, Request, WorkerStatus
from odf_engine.views.statistics import Statistics
from odf_tui.state.job_book import LogPage, WrittenBlock
from odf_tui.state.model import BlockLine, DatasetDetail, DatasetRow, PendingEvent, TrustRequest

if TYPE_CHECKING:
    from odf_engine.chain.references import Branch
    from odf_engine.sql.manifest_translation import TranslatedQuery
    from odf_engine.views.as_at import PinnedVersion
    from odf_engine.workspace.column_lineage import ColumnGraph
    from odf_tui.gateway.row_window import RowWindow
    from odf_tui.state.model import (
        BlockBytes,
        BlockDocument,
        BlockFilter,
        BlockLines,
        BlockRef,
        CheckpointFacts,
        Revision,
    )


class TableDescription(msgspec.Struct, frozen=True):
    """Statistics and types of the columns of a table.

    Attributes:
        statistics: the statistics of all columns.
        whole: whether they were computed from all rows. Otherwise they are from file footers.
        types: display names of the types, by column.
        required: columns that the schema declares as NOT NULL.
        comments: comments of the schema, by column.
    """

    statistics: Statistics
    whole: bool
    types: Mapping[str, str] = {}
    required: Sequence[str] = ()
    comments: Mapping[str, str] = {}


class ManifestChange(NamedTuple):
    """A manifest file, its text, and its new text."""

    path: Path
    old: str
    new: str


class FileTimeRange(msgspec.Struct, frozen=True):
    """Event times in the data file of a stop of a :class:`RowTimeline`.

    Attributes:
        stop: index of the stop, from 0.
        changes: whether the file has retractions or corrections.
        groups: number of rows, least and greatest event time of each row group, in milliseconds since 1970.
        moments: event times of some retractions and corrections, in milliseconds since 1970.
    """

    stop: int
    changes: bool
    groups: tuple[tuple[int, int, int], ...] = ()
    moments: tuple[int, ...] = ()


class RowTimeline(Protocol):
    """The blocks of a dataset that added rows, oldest first. Each is a stop.

    It does not change when new blocks are committed. The sequences have one value per stop.

    Attributes:
        blocks: numbers of the blocks.
        rows: number of rows of the changelog up to and including each block.
        times: system times of the blocks, in milliseconds since 1970.
        head: number of the newest block of the chain.
        schemas: indexes of the stops before which the schema changed.
        timed: whether the rows have event times.
    """

    blocks: Sequence[int]
    rows: Sequence[int]
    times: Sequence[int]
    head: int
    schemas: Sequence[int]
    timed: bool

    def probe(self, stops: Sequence[int]) -> list[FileTimeRange]:
        """Read the event times in the files of some stops. Slow.

        Stops whose files cannot be read are left out.
        """
        ...


class NamedUrl(NamedTuple):
    """The name and the URL of a repository, or of a dataset in one."""

    name: str
    url: str


class DivergedBranches(msgspec.Struct, frozen=True):
    """The local blocks after the newest block that two chains share.

    Attributes:
        ours: the newest of these blocks, newest first.
        more: number of older blocks that ``ours`` leaves out.
        common: the newest shared block, or None if it is not in the local chain.
    """

    ours: tuple[BlockLine, ...]
    more: int
    common: BlockLine | None


class WorkerLink(Protocol):
    """A connection to the worker."""

    @property
    def status(self) -> WorkerStatus:
        """The status of the worker when the connection was made."""
        ...

    async def submit(self, request: Request, target: str) -> str:
        """Submit a request and return the id of its job.

        Args:
            request: the request.
            target: name of the dataset, for display.

        Raises:
            OdfError: the connection is lost, or the worker rejected the request.
        """
        ...

    async def cancel(self, job: str) -> None:
        """Request the cancellation of a job; its end is reported as an event.

        Raises:
            OdfError: the connection is lost, or the job does not exist or has ended.
        """
        ...

    def events(self, since: int | None = None) -> AsyncIterator[Event]:
        """Yield events until the worker stops. The first is its status.

        Args:
            since: a journal number. Events of the journal after it come next; None: new events only.
        """
        ...

    async def close(self) -> None:
        """Close the connection. The worker continues."""
        ...


class Gateway(Protocol):
    """The engine, as screens use it.

    All methods except :meth:`connect` and :meth:`stop_worker` may block: call them in a thread. Methods that
    get the id of a dataset raise OdfError if it does not exist or its chain cannot be read.
    """

    @property
    def folder(self) -> Path:
        """The folder of the workspace."""
        ...

    @property
    def theme(self) -> str:
        """The theme that was used last, else the configured one, or ``auto``."""
        ...

    @property
    def ui(self) -> UiConfig:
        """The settings of the workstation."""
        ...

    @property
    def sql_engine(self) -> Literal["spark", "datafusion"]:
        """The engine of queries: the setting ``sql.engine``."""
        ...

    @property
    def settings_problem(self) -> str:
        """Why the settings cannot be read, or "" if they can."""
        ...

    def datasets(self) -> list[DatasetRow]:
        """Return all datasets, by name."""
        ...

    def detail(self, dataset: str) -> DatasetDetail:
        """Return the details of a dataset."""
        ...

    def rows(self, dataset: str) -> RowWindow | None:
        """Return the rows of a dataset, or None if it has no data."""
        ...

    def add(self, path: Path) -> dict[str, str]:
        """Add the datasets of a manifest file, all or none. Return their names by id.

        Raises:
            OdfError: the file cannot be read or is invalid, or a dataset already exists.
        """
        ...

    def make_demo(self) -> list[tuple[Request, str]]:
        """Write the files of the demo and add its datasets.

        Returns:
            Requests that pull and verify the datasets, with their names.

        Raises:
            Conflict: a file of the workspace has the name of one of the demo, and other content.
            OdfError: the files cannot be written.
        """
        ...

    def can_translate(self, path: Path) -> bool:
        """Return whether a manifest file has a query for a missing engine that can be translated."""
        ...

    def translate(self, path: Path) -> tuple[ManifestChange, list[TranslatedQuery]]:
        """Return a manifest file with queries for Spark, and these queries."""
        ...

    def derivative_in_manifest(self, path: Path) -> str:
        """Return the name of the only dataset of a manifest file if it is a derivative, else an empty text.

        Raises:
            OdfError: the file cannot be read or is invalid.
        """
        ...

    def definition(self, dataset: str) -> str:
        """Return the current definition of a dataset as a manifest (YAML)."""
        ...

    def record_manifest(self, datasets: Iterable[str], path: Path) -> None:
        """Store that a manifest file defines these datasets."""
        ...

    def manifest_change(self, dataset: str, text: str, *, drifted: bool = False) -> ManifestChange | None:
        """Return the diff between a dataset's manifest file and a definition, or None if they are equal.

        Args:
            dataset: id of the dataset.
            text: the definition as a manifest.
            drifted: only if the file differs from the dataset by more than its text.

        Raises:
            OdfError: the file cannot be read, or no longer defines the dataset.
        """
        ...

    def write_manifest(self, change: ManifestChange) -> None:
        """Write a changed manifest file.

        Raises:
            OdfError: the file has changed since, or cannot be written.
        """
        ...

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[PendingEvent]:
        """Append the events that change a dataset to its new definition.

        Args:
            dataset: id of the dataset.
            path: the manifest file with the new definition.
            dry_run: append nothing.

        Returns:
            The events, or those that would be appended.

        Raises:
            OdfError: the manifest is invalid or describes another dataset.
        """
        ...

    def trust_request(self, dataset: str) -> TrustRequest:
        """Return the commands and queries that an untrusted dataset would run."""
        ...

    def trust(self, dataset: str, shown: TrustRequest, *, private_network: bool = False) -> None:
        """Trust a dataset.

        Args:
            dataset: id of the dataset.
            shown: the commands and queries that the user has seen.
            private_network: whether its sources may access private addresses.

        Raises:
            Conflict: the dataset would now run others.
        """
        ...

    def untrust(self, dataset: str) -> bool:
        """Revoke the trust in a dataset. Return whether it was trusted."""
        ...

    def save_snapshot(self) -> None:
        """Save what the first screen shows for the next start."""
        ...

    def data_fingerprint(self) -> str:
        """Return a fingerprint of the files of datasets and jobs, which any change to them changes."""
        ...

    def jobs(self) -> tuple[list[Job], int]:
        """Return recent jobs, newest first, and the journal number up to which they are current."""
        ...

    def log(self, job: str) -> Sequence[JournalEvent]:
        """Return the last entries of the journal of a job."""
        ...

    async def connect(self) -> WorkerLink:
        """Connect to the worker; start one if none runs.

        Raises:
            OdfError: no worker starts, or one of another version has unfinished jobs.
            OSError: the connection failed.
        """
        ...

    # --- Blocks ---

    def blocks(self, dataset: str, first: int | None, limit: int, block_filter: BlockFilter) -> BlockLines:
        """Return a page of the blocks that match a filter, oldest first.

        Args:
            dataset: id of the dataset.
            first: index of the first block among the matching ones, from 0; None: the newest page.
            limit: greatest number of blocks.
            block_filter: the filter.
        """
        ...

    def block_kinds(self, dataset: str) -> dict[str, int]:
        """Return the number of blocks by kind of event."""
        ...

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """Return the numbers of blocks by hash. Hashes that are not in the chain are left out."""
        ...

    def find_block(self, dataset: str, text: str) -> int:
        """Return the number of the block that a text describes: a number, hash, time or offset.

        Raises:
            OdfError: the text is something else, or no block matches.
        """
        ...

    def histories(self, dataset: str) -> Sequence[tuple[str, PinnedVersion]]:
        """Return the earlier histories by their references, newest first.

        ``ID@HASH``, with the hash of the last block, is the id of such a history in other methods.
        """
        ...

    def list_branches(self, dataset: str) -> Sequence[Branch]:
        """Return the branches. ``ID@NAME`` is the id of a branch in other methods."""
        ...

    def find_version(self, dataset: str, text: str) -> int | PinnedVersion:
        """Return the number of a block, as ``find_block``, or a block of an earlier history.

        Raises:
            OdfError: as ``find_block``.
        """
        ...

    def block(self, dataset: str, which: BlockRef) -> BlockDocument:
        """Return a block with all its fields; if it cannot be read, the result contains the reason."""
        ...

    def holds_key(self, dataset: str) -> bool:
        """Whether the dataset's private key is in the workspace."""
        ...

    def sign_block(self, dataset: str, block: str) -> None:
        """Sign a block with the private key of its dataset: add an ownership proof.

        Args:
            dataset: id of the dataset.
            block: hash of the block.

        Raises:
            OdfError: the key is missing.
        """
        ...

    def revision(self, dataset: str, which: BlockRef) -> Revision:
        """Return the difference between a block and the one before it of the same kind.

        Raises:
            OdfError: blocks of this kind have no revisions.
        """
        ...

    def block_bytes(self, dataset: str, which: BlockRef) -> BlockBytes:
        """Return the bytes of a block and the byte ranges of its fields."""
        ...

    def checkpoint(self, dataset: str, checkpoint: str, at: int) -> CheckpointFacts:
        """Return the facts about a checkpoint of a transaction.

        Args:
            dataset: id of the dataset.
            checkpoint: hash of the checkpoint.
            at: number of the block that refers to it.
        """
        ...

    # --- Jobs ---

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = 2000
    ) -> LogPage:
        """Return a page of the journal of a job.

        Args:
            job: id of the job.
            after: the page begins after this journal number.
            before: the page ends before this journal number. With neither, it is the last page.
            limit: greatest number of events.
        """
        ...

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """Return the journal number of the next line that contains a text, or None if absent.

        Args:
            job: id of the job.
            text: the text; upper and lower case are the same.
            start: the journal number from which the search starts; its own line is skipped.
            back: search backwards.
        """
        ...

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Write the log of a job to a file. Return the number of its lines.

        Raises:
            FileExistsError: the file exists, and ``replace`` is False.
            OSError: the file cannot be written.
        """
        ...

    def blocks_of_job(self, job: str) -> list[WrittenBlock]:
        """Return the blocks that a job wrote and that are still in their chains, newest first."""
        ...

    def request_of_job(self, job: Job) -> Request:
        """Return the request of a job, to submit it again.

        Raises:
            OdfError: it is not in the journal, or must not be submitted again.
        """
        ...

    async def stop_worker(self) -> None:
        """Stop the worker, of any version; its jobs are cancelled.

        Raises:
            OdfError: no worker runs, or it does not stop.
        """
        ...

    # --- Statistics, states, times ---

    def column_statistics(self, dataset: str, file: str | None) -> TableDescription:
        """Return statistics and types of columns, without reading rows.

        Args:
            dataset: id of the dataset.
            file: a Parquet file with rows of the dataset; None: its changelog.
        """
        ...

    def primary_key(self, dataset: str) -> list[str]:
        """Return the columns that identify the rows of a dataset; empty if they are unknown."""
        ...

    def link_columns(self, dataset: str) -> list[str]:
        """Return the columns of a dataset with links to objects; empty if its chain cannot be read."""
        ...

    def export_object(self, dataset: str, link: str, target: Path) -> None:
        """Copy a linked object to a file, which is replaced.

        Raises:
            InvalidIdentity: the link is not a hash.
            OdfError: the object is missing or damaged, or the file cannot be written.
        """
        ...

    def file_rows(self, dataset: str, file: str) -> RowWindow:
        """Return the rows of a Parquet file that was derived from a dataset.

        Raises:
            NotFound: the file was evicted.
        """
        ...

    def write_temporary_rows(self, window: RowWindow) -> str:
        """Write the rows of a window to a temporary file for the worker. Return its path."""
        ...

    def remove_temporary_rows(self, file: str) -> None:
        """Remove a temporary file of :meth:`write_temporary_rows`; ignore all others."""
        ...

    def timeline(self, dataset: str) -> RowTimeline:
        """Return the timeline of a dataset."""
        ...

    def column_graph(self, dataset: str) -> ColumnGraph:
        """Return the column lineage of a dataset and all its upstream and downstream datasets."""
        ...

    # --- Queries ---

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """Return names and types of the columns of a dataset; empty before its first data."""
        ...

    def result(self, path: str) -> RowWindow:
        """Return the rows of a query result, by its path in the workspace.

        Raises:
            NotFound: the result was evicted.
        """
        ...

    def query_of_job(self, job: Job) -> str:
        """Return the SQL of a query job.

        Raises:
            NotFound: its request is not in the journal.
        """
        ...

    def query_history(self) -> list[str]:
        """Return the queries that were run, newest last."""
        ...

    def add_to_query_history(self, sql: str) -> None:
        """Add a query to the history."""
        ...

    # --- Repositories and remotes ---

    def repositories(self) -> list[NamedUrl]:
        """Return all repositories, by name.

        Raises:
            OdfError: the file of repositories is damaged.
        """
        ...

    def add_repository(self, name: str, url: str) -> None:
        """Add a repository.

        Raises:
            AlreadyExists: the name is used.
            OdfError: the name or the URL is invalid.
        """
        ...

    def remove_repository(self, name: str) -> None:
        """Remove a repository. Remotes of datasets keep their URLs."""
        ...

    def branches(self, dataset: str, common: str, limit: int) -> DivergedBranches:
        """Return the blocks of a dataset after the newest block that it shares with a remote.

        Args:
            dataset: id of the dataset.
            common: hash of the shared block.
            limit: greatest number of blocks.
        """
        ...

    def detach(self, dataset: str, url: str) -> None:
        """Remove a remote of a dataset. The data at its URL stays.

        Raises:
            NotFound: the dataset has no remote with this URL.
        """
        ...
