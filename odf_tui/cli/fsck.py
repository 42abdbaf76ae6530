"""The verb that looks over a workspace: fsck."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec

from odf_engine.coordinator.endpoint import WorkerEndpoint, notify_datasets_changed
from odf_engine.coordinator.job_log import JobLogReader
from odf_engine.coordinator.protocol import READ_ONLY_JOBS, Job
from odf_engine.errors import Conflict, OdfError, UsageError
from odf_engine.progress import Reporter
from odf_engine.workspace.fsck import FsckFinding, FsckReport, check_workspace
from odf_tui import humane
from odf_tui.cli.output import open_workspace, options_of, print_json, say, verb
from odf_tui.verdict import of


class _Telling(Reporter):
    """Says with ``-v`` what is looked at."""

    def phase(self, name: str) -> None:
        if options_of().verbose:
            say(f"looking at {name}")


@verb("fsck", example="odf fsck --repair", json=True)
@click.option("--repair", is_flag=True, help="Remove what nobody needs, and make caches anew.")
@click.option("--now", is_flag=True, help="With --repair: also what was touched within the last hour.")
def fsck_verb(repair: bool, now: bool) -> None:
    """Looks for orphans, half-written files and broken caches; repairs without touching history.

    What the head of a dataset or a kept reference needs is never removed, nor the private key of a
    dataset, nor anything of a dataset that a job works on. A damaged key of a dataset that is not here is
    moved aside. The exit code is 3 while there is something. Whether datasets are right, `odf verify` tells.
    """
    if now and not repair:
        raise UsageError("--now goes with --repair")
    workspace = open_workspace()
    files = WorkerEndpoint(workspace.folder)
    has_worker = files.worker_alive()
    jobs = _open_jobs(files) if has_worker else []
    checkup = check_workspace(
        workspace,
        _Telling(),
        repair=repair,
        now=now,
        busy={job.dataset for job in jobs if job.kind not in READ_ONLY_JOBS},
        has_jobs=bool(jobs),
        has_worker=has_worker,
    )
    if repair and checkup.findings:
        notify_datasets_changed(workspace.folder)
    if options_of().json:
        print_json(_document(checkup))
    else:
        _show(checkup)
    sys.exit(3 if checkup.left else 0)


def _open_jobs(files: WorkerEndpoint) -> Sequence[Job]:
    try:
        return JobLogReader(files.journal, files.worker_alive).open_jobs()
    except OdfError as error:
        raise Conflict(
            f"a worker runs, and what it does is not known: {error.message}", hint="odf worker stop"
        ) from None


def _document(checkup: FsckReport) -> dict[str, object]:
    return {
        "clean": not checkup.left,
        "datasets": checkup.datasets,
        "findings": msgspec.to_builtins(checkup.findings),
        "remarks": msgspec.to_builtins(checkup.remarks),
    }


def _show(checkup: FsckReport) -> None:
    for each in checkup.findings:
        state = "repaired" if each.repaired else "left" if checkup.repair else "found"
        why = f" ({each.left})" if each.left else ""
        sys.stdout.write(f"{state}  {_words(each)}{why}\n")
    for each in checkup.remarks:
        sys.stdout.write(f"note  {_words(each)}\n")
    looked = of(checkup.datasets, "dataset")
    if not checkup.findings:
        sys.stdout.write(f"clean: {looked}, nothing to repair\n")
    elif not checkup.repair:
        say("odf fsck --repair removes what nobody needs, and makes caches anew")
    elif checkup.left:
        say(f"{len(checkup.findings) - len(checkup.left)} repaired, {len(checkup.left)} left")


def _words(each: FsckFinding) -> str:
    amount = f", {of(each.count, 'file')}" if each.count > 1 else ""
    size = f", {humane.size(each.size)}" if each.size else ""
    return humane.plain(f"{each.kind}  {each.where}{amount}{size}: {each.message}")
