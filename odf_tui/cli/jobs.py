"""Verbs about jobs and the worker: jobs, cancel, logs, worker."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click

from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.protocol import Job, JobChanged, LogLine
from odf_engine.errors import OdfError
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb


@verb("jobs", example="odf jobs --json", json=True)
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True)
def jobs_verb(limit: int) -> None:
    """Lists jobs, newest first."""
    jobs = read_journal(open_workspace().folder).jobs(limit)
    if options_of().json:
        print_json([_job_json(job) for job in jobs])
        return
    if not jobs:
        say("no jobs yet")
        return
    print_table(
        ["job", "kind", "target", "state", "rows", "started", "took", "error"],
        [
            [
                job.id,
                job.kind,
                job.target,
                job.state.value,
                humane.count(job.progress.rows),
                (job.started or "")[:19].replace("T", " "),
                _took(job),
                job.error.message if job.error else "",
            ]
            for job in jobs
        ],
        right=["rows", "took"],
    )


def _job_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "target": job.target,
        "state": job.state.value,
        "progress": job.progress,
        "started": job.started,
        "ended": job.ended,
        "error": job.error,
    }


def _took(job: Job) -> str:
    if job.started is None or job.ended is None:
        return ""
    from odf_engine.metadata.timestamp import Timestamp

    return f"{(Timestamp.parse(job.ended).ns - Timestamp.parse(job.started).ns) / 1e9:.1f} s"


@verb("cancel", example="odf cancel 12")
@click.argument("job")
def cancel_verb(job: str) -> None:
    """Stops a job; what it committed stays."""
    workspace = open_workspace()
    journal = read_journal(workspace.folder)
    found = journal.job(job)
    if found.state.final:
        say(f"job {found.id} is {found.state.value} already")
        return

    async def cancel() -> None:
        client = await Client.connect(workspace.folder, start=False)
        try:
            await client.cancel(found.id)
        finally:
            await client.close()

    asyncio.run(cancel())
    deadline = time.monotonic() + 10
    while not (found := journal.job(job)).state.final and time.monotonic() < deadline:
        time.sleep(0.05)
    say(f"job {found.id} is {found.state.value}")


@verb("logs", example="odf logs 12 -f")
@click.argument("job")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job ends.")
def logs_verb(job: str, following: bool) -> None:
    """Prints the log of a job (with -v also what is for debugging)."""
    workspace = open_workspace()
    journal = read_journal(workspace.folder)
    found = journal.job(job)
    seq = 0
    while True:
        final = journal.job(found.id).state.final
        for event in journal.events(seq, job=found.id):
            seq = event.seq
            if isinstance(event, LogLine) and (event.level != "debug" or options_of().verbose):
                sys.stdout.write(f"{event.time[11:19]} {event.level:7} {event.text}\n")
            elif isinstance(event, JobChanged) and event.job.error is not None:
                _print_failure(event.job)
        sys.stdout.flush()
        if final or not following:
            return
        time.sleep(0.25)


def _print_failure(job: Job) -> None:
    error = job.error
    if error is not None:
        where = f"{error.where}: " if error.where else ""
        sys.stdout.write(f"{(job.ended or '')[11:19]} {job.state.value:7} {where}{error.message}\n")
        for at, line in enumerate(error.excerpt):
            sys.stdout.write(f"{'':8} {'' if at else 'line':7} {line}\n")
        if error.hint:
            sys.stdout.write(f"{'':8} hint    {error.hint}\n")


@verb("worker", example="odf worker status", json=True)
@click.argument("what", type=click.Choice(["start", "status", "stop"]))
def worker_verb(what: str) -> None:
    """Starts, shows or stops the background worker; it starts by itself when something needs it."""
    workspace = open_workspace()
    try:
        status = asyncio.run(_worker(workspace, what))
    except OdfError:
        if what == "start":
            raise
        status = None
    if options_of().json:
        print_json({"running": status is not None, "status": status})
    elif status is None:
        say("no worker is running")
    elif what == "stop":
        say(f"the worker (process {status.pid}) stopped")
    else:
        sys.stdout.write(
            f"worker {status.version}, process {status.pid}:"
            f" {status.running} running, {status.queued} queued\n"
            f"Spark: {status.spark} {status.spark_detail}\n"
            f"open descriptors: {status.descriptors}\n"
        )


async def _worker(workspace: Workspace, what: str) -> Any:
    client = await Client.connect(workspace.folder, start=what == "start")
    try:
        status = await client.ping()
        if what == "stop":
            await client.stop()
        return status
    finally:
        await client.close()
