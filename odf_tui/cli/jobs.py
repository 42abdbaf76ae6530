"""jobs, cancel, logs, worker, serve, engine: jobs and background processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import click

from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.protocol import Job, JobChanged, LogLine
from odf_engine.errors import NotFound, OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.output import (
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_table,
    use_timezone,
    verb,
)
from odf_tui.text.format import format_count, format_time_seconds
from odf_tui.text.job_log_text import log_failure_lines, log_line_text
from odf_tui.text.job_text import job_seconds

_ENGINE_SERVER_MODULE = "odf_engine.transform.engines.grpc_server"


@verb("engine", example="odf engine serve --port 5544")
@click.argument("what", type=click.Choice(["serve"]))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5544,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
def engine_verb(what: str, host: str, port: int) -> None:
    """Serve the Spark engine over gRPC.

    Runs until ^C. The engine serves coordinators that have access to the same files. Every client that
    can connect can read and write files through the engine. It therefore listens on this machine only,
    unless --host specifies another address. Spark uses the settings of the workspace, if there is one.

    To run the queries of the engine NAME on a served engine, use
    `odf config set engines.NAME grpc://HOST:PORT`. If the engine can access only the folder DIR, under the
    path PATH, append ?folder=DIR&as=PATH to the address.
    """
    command = [sys.executable, "-m", _ENGINE_SERVER_MODULE, "--host", host, "--port", str(port)]
    try:
        command += ["--settings-of", str(open_workspace().odf)]
    except NotFound:
        pass  # the engine needs no workspace
    # The server replaces this process: Spark is never imported here, and the server receives signals.
    os.execv(sys.executable, command)


@verb("jobs", example="odf jobs --json", json=True)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of jobs."
)
def jobs_verb(limit: int) -> None:
    """List jobs, newest first."""
    workspace = open_workspace()
    jobs = read_journal(workspace.folder).jobs(limit)
    if options_of().json:
        print_json([_job_json(job) for job in jobs])
        return
    if not jobs:
        print_note("no jobs yet")
        return
    print_table(
        [
            "job",
            "kind",
            "target",
            "state",
            "rows",
            f"started ({use_timezone(workspace)})",
            "duration",
            "error",
        ],
        [
            [
                job.id,
                job.kind,
                job.target,
                job.state.value,
                format_count(job.progress.rows),
                format_time_seconds(job.started),
                _duration_text(job),
                job.error.message if job.error else "",
            ]
            for job in jobs
        ],
        right=["rows", "duration"],
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


def _duration_text(job: Job) -> str:
    seconds = None if job.ended is None else job_seconds(job, Timestamp.parse(job.ended))
    return "" if seconds is None else f"{seconds:.1f} s"


@verb("cancel", example="odf cancel 12")
@click.argument("job")
def cancel_verb(job: str) -> None:
    """Cancel a job.

    Blocks that the job has already committed remain.
    """
    workspace = open_workspace()
    journal = read_journal(workspace.folder)
    found = journal.job(job)
    if found.state.final:
        print_note(f"job {found.id} is already {found.state.value}")
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
    print_note(f"job {found.id} is {found.state.value}")


@verb("logs", example="odf logs 12 -f")
@click.argument("job")
@click.option("-f", "--follow", "following", is_flag=True, help="Print new lines until the job ends.")
def logs_verb(job: str, following: bool) -> None:
    """Print the log of a job.

    With -v, debug messages are included.
    """
    workspace = open_workspace()
    journal = read_journal(workspace.folder)
    found = journal.job(job)
    print_note(f"times: {use_timezone(workspace)}")
    seq = 0
    while True:
        final = journal.job(found.id).state.final
        for event in journal.events(seq, job=found.id):
            seq = event.seq
            if isinstance(event, LogLine) and (event.level != "debug" or options_of().verbose):
                sys.stdout.write(log_line_text(event) + "\n")
            elif isinstance(event, JobChanged) and event.job.error is not None:
                for line in log_failure_lines(event.job):
                    sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if final or not following:
            return
        time.sleep(0.25)


@verb("worker", example="odf worker status", json=True)
@click.argument("what", type=click.Choice(["start", "status", "stop"]))
def worker_verb(what: str) -> None:
    """Start, show or stop the background worker.

    Commands that need the worker start it automatically.
    """
    workspace = open_workspace()
    try:
        status = asyncio.run(_contact_worker(workspace, what))
    except OdfError:
        if what == "start":
            raise
        status = None
    if options_of().json:
        print_json({"running": status is not None, "status": status})
    elif status is None:
        print_note("no worker is running")
    elif what == "stop":
        print_note(f"stopped the worker (process {status.pid})")
    else:
        sys.stdout.write(
            f"worker {status.version}, process {status.pid}:"
            f" {status.running} running, {status.queued} queued\n"
            f"Spark: {status.spark} {status.spark_detail}\n"
            f"open file descriptors: {status.descriptors}\n"
        )


async def _contact_worker(workspace: Workspace, what: str) -> Any:
    client = await Client.connect(workspace.folder, start=what == "start")
    try:
        status = await client.ping()
        if what == "stop":
            await client.stop()
        return status
    finally:
        await client.close()


_SERVER_MODULE = "odf_engine.sync.server.__main__"


@verb("serve", example="odf serve --host 0.0.0.0 --port 8080 --dataset 'weather.%'", json=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
@click.option(
    "--dataset",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Serve only these datasets. Can be repeated.",
)
@click.option(
    "--allow-push", is_flag=True, help="Accept pushes by clients with a token (see odf keys token)."
)
@click.option(
    "--tls-cert", type=click.Path(), metavar="FILE", help="TLS certificate chain in PEM, for https."
)
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Private key of the certificate in PEM.")
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Trust X-Forwarded-Proto and X-Forwarded-Host, which a reverse proxy sets.",
)
def serve_verb(
    host: str,
    port: int,
    patterns: tuple[str, ...],
    allow_push: bool,
    tls_cert: str | None,
    tls_key: str | None,
    behind_proxy: bool,
) -> None:
    """Serve the datasets of the workspace over HTTP.

    Runs until ^C. Uses the simple and the smart transfer protocol. Clients pull a dataset with
    `odf pull odf+http://HOST:PORT/NAME/`. A browser shows the list of datasets.

    Every client that can connect can read all datasets, or those selected by --dataset. With
    --allow-push, clients with a token can push to the datasets of the token. Datasets whose private key
    is in this workspace do not accept pushes.

    The server listens on this machine only, unless --host specifies another address. Its limits are the
    settings serve.* of `odf config list`. With --json, prints one line with the URL when it is ready.
    """
    options = options_of()
    command = [sys.executable, "-m", _SERVER_MODULE, "--workspace", str(open_workspace().folder)]
    command += ["--host", host, "--port", str(port)]
    for pattern in patterns:
        command.append(f"--dataset={pattern}")
    for name, value in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        if value is not None:
            command.append(f"{name}={value}")
    flags = {
        "--allow-push": allow_push,
        "--behind-proxy": behind_proxy,
        "--json": options.json,
        "--quiet": options.quiet,
        "--verbose": options.verbose,
    }
    command += [name for name, given in flags.items() if given]
    # The server replaces this process: it receives signals, and the command line uses no memory.
    os.execv(sys.executable, command)
