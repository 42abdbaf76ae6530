"""The Gateway of a workspace on disk: readers, changes of definitions, jobs and the worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from odf_engine.config import Config, UiConfig
from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.job_log import JobLogReader
from odf_engine.coordinator.protocol import Job, JobState, JournalEvent, Request
from odf_engine.errors import Conflict, InvalidManifest, NotFound, OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.ingest import Ingest
from odf_engine.metadata import model
from odf_engine.storage.atomic_files import rewrite_text_file, write_error
from odf_engine.workspace import trust
from odf_tui.gateway.block_reader import BlockReader
from odf_tui.gateway.dataset_reader import DatasetReads, WorkspaceEntries
from odf_tui.gateway.protocol import ManifestChange, WorkerLink
from odf_tui.gateway.row_reader import RowReader, SqlReader, StatisticsReader, TimelineReader
from odf_tui.state import saved_session
from odf_tui.state.job_book import (
    PAGE,
    LogPage,
    WrittenBlock,
    log_search_text,
    merge_log_entries,
)
from odf_tui.state.model import PendingEvent, TrustedStep, TrustRequest
from odf_tui.text.job_log_text import format_log_line, log_file_footer, log_file_header

if TYPE_CHECKING:
    from odf_engine.sql.manifest_translation import TranslatedQuery


class DatasetEditor(WorkspaceEntries):
    """Adds datasets, changes their definitions, grants and revokes trust."""

    def add(self, path: Path) -> dict[str, str]:
        """Add the datasets of a manifest file, all or none. Returns their names by id.

        Raises:
            NotFound: the file cannot be read.
            InvalidManifest: the manifest is invalid.
            OdfError: a dataset cannot be added.
        """
        entries = self.workspace.add(self._manifests(path))
        self.record_manifest([str(entry.id) for entry in entries], path)
        notify_datasets_changed(self.folder)
        return {str(entry.id): str(entry.alias) for entry in entries}

    def record_manifest(self, datasets: Iterable[str], path: Path) -> None:
        """Store that a manifest file defines these datasets. Errors are ignored."""
        from odf_engine.workspace.definition_update import record_manifest

        with suppress(OdfError):
            for dataset in datasets:
                record_manifest(self.folder, self.entry(dataset), path)

    def manifest_change(self, dataset: str, text: str, *, drifted: bool = False) -> ManifestChange | None:
        """Return the change of the manifest file that defines a dataset to a definition.

        None if no such file is known, or it already has this text.

        Args:
            dataset: id of the dataset.
            text: the definition.
            drifted: only if the file differs from the dataset by more than its text.

        Raises:
            OdfError: the file cannot be read, or no longer defines the dataset.
        """
        from odf_engine.workspace.definition_update import (
            find_manifest,
            find_manifest_drift,
            replace_definition,
        )

        entry = self.entry(dataset)
        path = find_manifest(self.folder, entry)
        if path is None:
            return None
        if drifted and find_manifest_drift(self.folder, entry, self.workspace.datasets()) is None:
            return None
        new = replace_definition(path, entry, text)
        old = path.read_text(encoding="utf-8")
        return None if new == old else ManifestChange(path, old, new)

    def write_manifest(self, change: ManifestChange) -> None:
        """Write a changed manifest file.

        Raises:
            Conflict: the file has changed since.
            OdfError: the file cannot be written.
        """
        try:
            if change.path.read_text(encoding="utf-8") != change.old:
                raise Conflict("the file has changed since", where=str(change.path), hint="press e again")
        except OSError as error:
            raise write_error(change.path, error) from error
        rewrite_text_file(change.path, change.new)

    def _manifests(self, path: Path) -> list[model.DatasetSnapshot]:
        from odf_engine.metadata.yaml import read_manifests

        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidManifest("is not UTF-8 text", where=str(path)) from None
        except FileNotFoundError:
            raise NotFound("file not found", where=str(path)) from None
        except OSError as error:
            raise NotFound(f"cannot be read: {error.strerror}", where=str(path)) from None
        name = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)
        return read_manifests(text, name)

    def can_translate(self, path: Path) -> bool:
        """Return whether a manifest file has a query for a missing engine that can be translated."""
        from odf_engine.workspace.query_check import can_translate

        try:
            return can_translate(self._manifests(path), self.workspace.config.engines)
        except OdfError:
            return False

    def translate(self, path: Path) -> tuple[ManifestChange, list[TranslatedQuery]]:
        """Return a manifest file with queries for Spark, and these queries.

        Raises:
            InvalidQuery: a part of a query has no translation.
            OdfError: the file cannot be read, or is invalid.
        """
        from odf_engine.sql.manifest_translation import translate_manifest  # deferred: loads sqlglot

        self._manifests(path)
        text = path.read_text(encoding="utf-8")
        found = translate_manifest(text, str(path), self.workspace.column_types)
        return ManifestChange(path, text, found.text), found.queries

    def make_demo(self) -> list[tuple[Request, str]]:
        """Write the demo into the workspace and add its datasets. Returns the requests to submit."""
        from odf_tui.gateway.samples import make_demo

        return make_demo(self.workspace)

    def derivative_in_manifest(self, path: Path) -> str:
        """Return the name of the derivative dataset of a manifest file.

        Empty if the file has a root dataset, or several datasets.

        Raises:
            RemoteInputs: inputs of the datasets are in remotes and were not pulled.
            OdfError: the file cannot be read, or is invalid.
        """
        snapshots = self.workspace.localize_inputs(self._manifests(path))
        derivative = len(snapshots) == 1 and snapshots[0].kind is model.DatasetKind.Derivative
        return snapshots[0].name if derivative else ""

    def definition(self, dataset: str) -> str:
        """Return the current definition of a dataset as a manifest; as its author wrote it, if possible."""
        from odf_engine.metadata.yaml import snapshot_to_yaml
        from odf_engine.workspace.definition import read_definition
        from odf_engine.workspace.definition_update import read_own_manifest

        entry, datasets = self.entry(dataset), self.workspace.datasets()
        own = read_own_manifest(self.folder, entry, datasets)
        return own or snapshot_to_yaml(read_definition(entry, datasets))

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[PendingEvent]:
        """Change the definition of a dataset to a manifest.

        Args:
            dataset: id of the dataset.
            path: the manifest file.
            dry_run: return the events without appending them.

        Raises:
            InvalidManifest: the manifest is invalid, or not the dataset's.
            OdfError: the change is not possible.
        """
        alias = self.entry(dataset).alias
        snapshots = self._manifests(path)
        if len(snapshots) != 1 or DatasetAlias.parse(snapshots[0].name) != alias:
            raise InvalidManifest(
                f"the manifest must define {alias}, and no other dataset",
                hint="use odf rename to rename a dataset; press A to add datasets from a manifest",
            )
        (update,) = self.workspace.update(snapshots, dry_run=dry_run)
        if not dry_run:
            notify_datasets_changed(self.folder)
        return [PendingEvent(change.title, tuple(change.lines)) for change in update.changes]

    def trust_request(self, dataset: str) -> TrustRequest:
        """Return what an untrusted dataset would execute."""
        entry = self.entry(dataset)
        return TrustRequest(
            self.trusts.read_origin(entry) or "",
            _trusted_steps(self.trusts.list_executions(entry)),
            self.trusts.find_grant(entry) is not None,
        )

    def trust(self, dataset: str, shown: TrustRequest, *, private_network: bool = False) -> None:
        """Trust a dataset to execute what was shown. ``private_network`` allows private addresses.

        Raises:
            Conflict: the dataset changed since.
        """
        entry = self.entry(dataset)
        runs = self.trusts.list_executions(entry)
        if _trusted_steps(runs) != shown.runs:
            raise Conflict("its sources have changed since they were shown", hint="review them again")
        self.trusts.grant(entry, private_network=private_network, shown=runs)

    def untrust(self, dataset: str) -> bool:
        """Revoke the trust in a dataset. Returns whether it was trusted."""
        return self.trusts.revoke(self.entry(dataset))


def _trusted_steps(runs: Sequence[trust.Execution]) -> tuple[TrustedStep, ...]:
    return tuple(TrustedStep(trust.KINDS.get(run.kind, run.kind), run.text, str(run.block)) for run in runs)


JOBS: Final = 200
_MAX_BLOCKS: Final = 200


class JobReader(WorkspaceEntries):
    """Reads jobs, their logs and requests; connects to the worker."""

    @property
    def _journal(self) -> JobLogReader:
        return read_journal(self.workspace.folder)

    def jobs(self) -> tuple[list[Job], int]:
        """Return the recent jobs, and the last journal number that was read."""
        journal = self._journal
        last = journal.last_seq()  # read before the jobs: events in between are repeated, not lost
        return journal.jobs(JOBS), last

    def log(self, job: str) -> Sequence[JournalEvent]:
        """Return the last events of a job."""
        from odf_tui.state.job_book import LOG_LINES

        return self._journal.tail(LOG_LINES, job=job)

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = PAGE
    ) -> LogPage:
        """Return a page of events of a job: after a journal number, before one, or the last ones."""
        journal = self._journal
        if after is not None:
            found = journal.events(after, job=job, limit=limit + 1)
            return LogPage(found[:limit], after > 0, len(found) > limit)
        found = journal.tail(limit + 1, job=job, before=before)
        return LogPage(found[-limit:], len(found) > limit, before is not None)

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """Return the journal number of the next line with a text; ``back`` searches backwards."""
        journal, needle = self._journal, text.lower()
        while True:
            if back:
                page = journal.tail(PAGE, job=job, before=start)[::-1]
            else:
                page = journal.events(start, job=job, limit=PAGE)
            if not page:
                return None
            for line in merge_log_entries(page):
                if needle in log_search_text(line):
                    return line.seq
            start = page[-1].seq

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Write the complete log of a job to a file. Returns the number of its lines.

        Raises:
            FileExistsError: the file exists, and ``replace`` is false.
            OSError: the file is not writable.
        """
        lines = 0
        with path.open("w" if replace else "x", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in log_file_header(job))
            after, written = 0, []
            while (page := self.log_page(job.id, after=after)).events:
                log_entries = merge_log_entries([*written, *page.events])[len(written) :]
                file.writelines(f"{format_log_line(line)}\n" for line in log_entries)
                lines += len(log_entries)
                after, written = page.events[-1].seq, [*written, *log_entries][-1:]
            file.writelines(f"{line}\n" for line in log_file_footer(job))
        return lines

    def blocks_of_job(self, job: str) -> list[WrittenBlock]:
        """Return the blocks that a job committed and that still exist, newest first."""
        written_blocks: list[WrittenBlock] = []
        for event in self._journal.commits(job, _MAX_BLOCKS):
            try:
                chain = self.entry(event.dataset).dataset
                number = chain.block(chain.find_block(event.block)).block.sequence_number
            except OdfError:
                continue  # reset, replaced or removed since
            written_blocks.append(WrittenBlock(event.dataset, number, event.block, event.event, event.rows))
        return written_blocks

    def request_of_job(self, job: Job) -> Request:
        """Return the request of a job, to submit it again.

        Raises:
            OdfError: it is unknown, or must not be repeated.
        """
        kind = job.request_type
        if kind is not None and kind.has_screen:
            raise OdfError(f"a {job.kind} job cannot be retried: open its screen again")
        if job.state is JobState.done and not (kind is not None and kind.repeatable):
            raise OdfError(f"this {job.kind} is already done")
        request = self._journal.request(job.id)
        if request is None:
            raise OdfError("the request of this job is no longer in the journal")
        if isinstance(request, Ingest):
            for file in request.files:
                if not Path(file).exists():
                    raise OdfError(f"input file not found: {Path(file).name}", hint="ingest the data again")
        if job.kind == "update" and any(
            other.kind == "update" and other.dataset == job.dataset and other.state is JobState.done
            for other in self._journal.jobs(JOBS)
            if int(other.id) > int(job.id)
        ):
            raise OdfError("a later change of the dataset would be reverted: press e to edit its definition")
        return request

    async def connect(self) -> WorkerLink:
        """Connect to the worker; start it if it does not run."""
        return cast("WorkerLink", await Client.connect(self.workspace.folder))

    async def stop_worker(self) -> None:
        """Stop the worker, of any version. Its jobs are cancelled.

        Raises:
            OdfError: there is no worker, or it does not stop.
        """
        await (await Client.connect(self.workspace.folder, start=False)).stop()


class WorkspaceGateway(
    DatasetReads,
    BlockReader,
    RowReader,
    DatasetEditor,
    JobReader,
    SqlReader,
    StatisticsReader,
    TimelineReader,
):
    """The Gateway of a workspace on disk."""

    @property
    def theme(self) -> str:
        """The theme that was selected last, else the configured one."""
        return saved_session.effective_theme(saved_session.load_layout(self.folder), self.ui.theme)

    @property
    def ui(self) -> UiConfig:
        """The settings of the workstation; the defaults if the file of settings is invalid."""
        return self._settings[0].ui

    @property
    def sql_engine(self) -> Literal["spark", "datafusion"]:
        """The engine of queries, as for ``odf sql``."""
        return self._settings[0].sql.engine

    @property
    def settings_problem(self) -> str:
        """Why the file of settings is invalid, or "" if it is valid."""
        return self._settings[1]

    def save_snapshot(self) -> None:
        """Save what the next start shows first."""
        from odf_tui.state import saved_session

        saved_session.save_snapshot(self.folder, self)

    def data_fingerprint(self) -> str:
        """Return a fingerprint of the files of datasets and jobs."""
        return saved_session.data_fingerprint(self.folder)

    @cached_property
    def _settings(self) -> tuple[Config, str]:
        try:
            return self.workspace.config, ""
        except OdfError as error:
            return Config(), error.format_line
