"""Checks the files of a workspace, and removes those that nothing needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from odf_engine.base.progress import Reporter
from odf_engine.errors import Conflict, OdfError
from odf_engine.on_demand import latest_state
from odf_engine.tables.latest_table import LatestTable, latest_tables
from odf_engine.worker.endpoint import WorkerEndpoint, notify_datasets_changed
from odf_engine.worker.job_log import JobLogReader
from odf_engine.worker.protocol import Job
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import FsckReport, check_workspace, collect_garbage
from odf_engine.workspace.workspace import Workspace


def collect_files(
    workspace: Workspace,
    entries: Sequence[DatasetEntry],
    reporter: Reporter,
    *,
    dry_run: bool,
    now: bool = False,
) -> FsckReport:
    """Remove expired old heads and unneeded files of datasets.

    Datasets of active jobs and their inputs are left out, because a transform reads the slices that its
    inputs had at its start. An active job without a dataset, such as a query, may read all.

    Args:
        workspace: the workspace.
        entries: the datasets.
        reporter: for progress.
        dry_run, now: see :func:`odf_engine.workspace.fsck.collect_garbage`.

    Raises:
        Conflict: the jobs of the running worker cannot be read.
    """
    endpoint = WorkerEndpoint(workspace.folder)
    jobs = _open_jobs(endpoint) if endpoint.worker_alive() else []
    busy = {job.dataset for job in jobs}
    if busy:
        summaries = workspace.summaries()
        graph = DatasetGraph(summaries)
        is_any = not busy <= {str(summary.id) for summary in summaries}
        for summary in summaries:
            if is_any or str(summary.id) in busy:
                busy |= {str(summary.id), *map(str, graph.upstream(summary.id))}
    report = collect_garbage(workspace, entries, reporter, dry_run=dry_run, now=now, busy=busy)
    if not dry_run and report.findings:
        notify_datasets_changed(workspace.folder)
    return report


def check_files(
    workspace: Workspace, reporter: Reporter, *, repair: bool = False, now: bool = False
) -> FsckReport:
    """Check the files of a workspace, and repair them if requested. Files of active jobs are not repaired.

    Args:
        workspace: the workspace.
        reporter: for progress.
        repair, now: see :class:`odf_engine.workspace.fsck.FsckReport`.

    Raises:
        Conflict: the jobs of the running worker cannot be read.
    """
    endpoint = WorkerEndpoint(workspace.folder)
    has_worker = endpoint.worker_alive()
    jobs = _open_jobs(endpoint) if has_worker else []
    report = check_workspace(
        workspace,
        reporter,
        repair=repair,
        now=now,
        busy={job.dataset for job in jobs if not job.read_only},
        has_jobs=bool(jobs),
        has_worker=has_worker,
    )
    for entry in workspace.datasets():
        with suppress(OdfError):  # a chain that cannot be read is reported above
            _check_latest_tables(report, workspace, entry, reporter)
    if repair and report.findings:
        notify_datasets_changed(workspace.folder)
    return report


def _check_latest_tables(
    report: FsckReport, workspace: Workspace, entry: DatasetEntry, reporter: Reporter
) -> None:
    """Report damaged tables of the latest state. The tables of large datasets may lack newer rows."""
    dataset, name = entry.dataset, str(entry.alias)
    for table_format in latest_tables(dataset):
        command = f"run odf view {name} --format {table_format} --latest"
        fix = partial(latest_state.write_latest_table, workspace.odf, dataset, table_format, reporter)
        table = LatestTable(dataset, table_format)
        is_damaged = table.is_damaged()
        if is_damaged:
            with table.locked():  # a job has updated it in the meantime, or is going to
                is_damaged = table.is_damaged()
        if is_damaged:
            message = f"the {table_format} table of the latest state is damaged, or was moved: {command}"
            report.add_finding("table-damaged", name, message, fix)
        elif not latest_state.is_latest_current(dataset, table_format):
            message = f"the {table_format} table of the latest state lacks newer rows: {command}"
            report.add_note("table-outdated", name, message)


def _open_jobs(endpoint: WorkerEndpoint) -> Sequence[Job]:
    try:
        return JobLogReader(endpoint.journal, endpoint.worker_alive).open_jobs()
    except OdfError as error:
        raise Conflict(
            f"the jobs of the running worker cannot be read: {error.message}", hint="run odf worker stop"
        ) from None
