"""The Gateway of a workspace on disk: readers, changes of definitions, jobs and the worker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, cast

from odf_engine import settings
from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.job_log import JobLogReader
from odf_engine.coordinator.protocol import Ingest, Job, JobState, JournalEvent, Request
from odf_engine.errors import Conflict, InvalidManifest, NotFound, OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import model
from odf_engine.workspace import trust
from odf_tui.gateway.block_reader import BlockReader
from odf_tui.gateway.dataset_reader import DatasetReads, WorkspaceEntries
from odf_tui.gateway.protocol import WorkerLink
from odf_tui.gateway.row_reader import RowReads, SqlReads, StatisticsReader, TimelineReads
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


class DatasetEditor(WorkspaceEntries):
    """Changes datasets."""

    def add(self, path: Path) -> dict[str, str]:
        """Adds the datasets of a manifest file: all of them or none."""
        entries = self.workspace.add(self._manifests(path))
        notify_datasets_changed(self.folder)
        return {str(entry.id): str(entry.alias) for entry in entries}

    def _manifests(self, path: Path) -> list[model.DatasetSnapshot]:
        from odf_engine.metadata.yaml import read_manifests

        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidManifest("is not UTF-8 text", where=str(path)) from None
        except FileNotFoundError:
            raise NotFound("there is no such file", where=str(path)) from None
        except OSError as error:
            raise NotFound(f"cannot be read: {error.strerror}", where=str(path)) from None
        name = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)
        return read_manifests(text, name)

    def make_demo(self) -> list[tuple[Request, str]]:
        """Writes the demo into the workspace and adds its datasets."""
        from odf_tui.gateway.samples import make_demo

        return make_demo(self.workspace)

    def derivative_in_manifest(self, path: Path) -> str:
        """The name of the one derivative dataset of a manifest file; empty when it has another or several."""
        snapshots = self._manifests(path)
        derivative = len(snapshots) == 1 and snapshots[0].kind is model.DatasetKind.Derivative
        return snapshots[0].name if derivative else ""

    def definition(self, dataset: str) -> str:
        """A dataset's definition as its chain has it, as a manifest."""
        from odf_engine.metadata.yaml import snapshot_to_yaml
        from odf_engine.workspace.definition import current_definition

        names = {entry.id: str(entry.alias) for entry in self.workspace.datasets()}
        return snapshot_to_yaml(current_definition(self.entry(dataset), names))

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[PendingEvent]:
        """Makes a dataset what a manifest says."""
        alias = self.entry(dataset).alias
        snapshots = self._manifests(path)
        if len(snapshots) != 1 or DatasetAlias.parse(snapshots[0].name) != alias:
            raise InvalidManifest(
                f"this has to be the definition of {alias}, and of nothing else",
                hint="odf rename gives a dataset another name; a adds another dataset",
            )
        (update,) = self.workspace.update(snapshots, dry_run=dry_run)
        if not dry_run:
            notify_datasets_changed(self.folder)
        return [PendingEvent(change.title, tuple(change.lines)) for change in update.changes]

    def trust_request(self, dataset: str) -> TrustRequest:
        """What a dataset that somebody else wrote would run."""
        entry = self.entry(dataset)
        return TrustRequest(
            self.trusts.read_origin(entry) or "",
            _shown(self.trusts.list_executions(entry)),
            self.trusts.find_grant(entry) is not None,
        )

    def trust(self, dataset: str, shown: TrustRequest) -> None:
        """Lets a dataset run what was shown."""
        entry = self.entry(dataset)
        runs = self.trusts.list_executions(entry)
        if _shown(runs) != shown.runs:
            raise Conflict("its sources changed meanwhile", hint="look at what they run now, and decide")
        self.trusts.grant(entry, shown=runs)

    def untrust(self, dataset: str) -> bool:
        """Takes that back."""
        return self.trusts.revoke(self.entry(dataset))


def _shown(runs: Sequence[trust.Execution]) -> tuple[TrustedStep, ...]:
    return tuple(TrustedStep(trust.KINDS.get(run.kind, run.kind), run.text, str(run.block)) for run in runs)


JOBS: Final = 200
_MAX_BLOCKS: Final = 200
_AGAIN: Final = ("pull", "verify", "push", "compare")
"""What makes sense again although it was done."""
_FOR_SCREENS: Final = ("validate", "describe", "project", "sql", "search", "trace", "diff", "check-proof")


class JobReads(WorkspaceEntries):
    """Reads jobs."""

    @property
    def _journal(self) -> JobLogReader:
        return read_journal(self.workspace.folder)

    def jobs(self) -> tuple[list[Job], int]:
        """Recent jobs, and up to where the journal was read."""
        journal = self._journal
        last = journal.last_seq()  # before the jobs: what comes between is told twice, never lost
        return journal.jobs(JOBS), last

    def log(self, job: str) -> Sequence[JournalEvent]:
        """The end of the journal of one job."""
        from odf_tui.state.job_book import LOG_LINES

        return self._journal.tail(LOG_LINES, job=job)

    def log_page(
        self, job: str, *, after: int | None = None, before: int | None = None, limit: int = PAGE
    ) -> LogPage:
        """Some events of a job: those after a journal number, those before one, or its last."""
        journal = self._journal
        if after is not None:
            found = journal.events(after, job=job, limit=limit + 1)
            return LogPage(found[:limit], after > 0, len(found) > limit)
        found = journal.tail(limit + 1, job=job, before=before)
        return LogPage(found[-limit:], len(found) > limit, before is not None)

    def find_in_log(self, job: str, text: str, start: int, *, back: bool) -> int | None:
        """The journal number of the next line, after or before another, that has a text in it."""
        journal, wanted = self._journal, text.lower()
        while True:
            if back:
                page = journal.tail(PAGE, job=job, before=start)[::-1]
            else:
                page = journal.events(start, job=job, limit=PAGE)
            if not page:
                return None
            for line in merge_log_entries(page):
                if wanted in log_search_text(line):
                    return line.seq
            start = page[-1].seq

    def save_log(self, job: Job, path: Path, *, replace: bool) -> int:
        """Writes a job's whole log to a file; returns how many lines it has.

        Raises:
            FileExistsError: the file is there, and shall not be replaced.
        """
        lines = 0
        with path.open("w" if replace else "x", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in log_file_header(job))
            after, said = 0, []
            while (page := self.log_page(job.id, after=after)).events:
                found = merge_log_entries([*said, *page.events])[len(said) :]
                file.writelines(f"{format_log_line(line)}\n" for line in found)
                lines += len(found)
                after, said = page.events[-1].seq, [*said, *found][-1:]
            file.writelines(f"{line}\n" for line in log_file_footer(job))
        return lines

    def blocks_of_job(self, job: str) -> list[WrittenBlock]:
        """The blocks that a job wrote and that are in their chains still, newest first."""
        found: list[WrittenBlock] = []
        for event in self._journal.commits(job, _MAX_BLOCKS):
            try:
                chain = self.entry(event.dataset).dataset
                number = chain.block(chain.find_block(event.block)).block.sequence_number
            except OdfError:
                continue  # reset, replaced or removed since
            found.append(WrittenBlock(event.dataset, number, event.block, event.event, event.rows))
        return found

    def request_of_job(self, job: Job) -> Request:
        """What a job was asked to do, to be asked again.

        Raises:
            OdfError: why that cannot or should not be.
        """
        if job.kind in _FOR_SCREENS:
            raise OdfError(f"what {job.kind} finds is for the screen that asked: open that again")
        if job.state is JobState.done and job.kind not in _AGAIN:
            raise OdfError(f"this {job.kind} is done already")
        request = self._journal.request(job.id)
        if request is None:
            raise OdfError("what this job was asked is not in the journal: it is too old")
        if isinstance(request, Ingest):
            for file in request.files:
                if not Path(file).exists():
                    raise OdfError(f"what it read is gone: {Path(file).name}", hint="push it again")
        if job.kind == "update" and any(
            other.kind == "update" and other.dataset == job.dataset and other.state is JobState.done
            for other in self._journal.jobs(JOBS)
            if int(other.id) > int(job.id)
        ):
            raise OdfError("the dataset was changed since, and this would take it back: e edits it")
        return request

    async def connect(self) -> WorkerLink:
        """Attaches to the worker, or starts it."""
        return cast("WorkerLink", await Client.connect(self.workspace.folder))

    async def stop_worker(self) -> None:
        """Ends the worker, of whatever version it is; its jobs are cancelled.

        Raises:
            OdfError: there is none, or it does not end.
        """
        await (await Client.connect(self.workspace.folder, start=False)).stop()


class WorkspaceGateway(
    DatasetReads, BlockReader, RowReads, DatasetEditor, JobReads, SqlReads, StatisticsReader, TimelineReads
):
    """What the screen needs of a workspace."""

    @property
    def theme(self) -> str:
        """The theme that was chosen last, else the configured one."""
        return saved_session.effective_theme(saved_session.load_layout(self.folder), self.ui.theme)

    @property
    def ui(self) -> settings.UiConfig:
        """The settings of the workstation; the usual ones when the file cannot be read."""
        return self._settings[0]

    @property
    def settings_problem(self) -> str:
        """Why the file of settings cannot be read."""
        return self._settings[1]

    def save_snapshot(self) -> None:
        """Keeps what the first screen shows for the next start."""
        from odf_tui.state import saved_session

        saved_session.save_snapshot(self.folder, self)

    @cached_property
    def _settings(self) -> tuple[settings.UiConfig, str]:
        try:
            return self.workspace.config.ui, ""
        except OdfError as error:
            return settings.UiConfig(), error.format_line
