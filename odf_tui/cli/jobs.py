"""status, watch, jobs, cancel, logs, worker, serve, engine: jobs and background processes."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from msgspec import to_builtins

from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, format_count, format_time, format_time_seconds, printable
from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.endpoint import WorkerEndpoint
from odf_engine.coordinator.protocol import Job, JobChanged, LogLine
from odf_engine.data.waiting import Waiting
from odf_engine.errors import NotFound, OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.datasets import read_rows, status_word
from odf_tui.cli.output import (
    console,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_table,
    use_timezone,
    verb,
)
from odf_tui.state.job_book import JobBook, dataset_healths
from odf_tui.state.model import Health
from odf_tui.text.job_log_text import log_failure_lines, log_line_text
from odf_tui.text.job_text import job_outcome, job_seconds, known_result, warnings_text
from odf_tui.text.remotes import blocks_to_push, plain_block_count, push_remotes, relation_text_for_people

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


class StatusFinding(NamedTuple):
    """A reason why a dataset needs attention.

    Attributes:
        state: its status, ``waiting`` if its results wait for an input, ``warned`` if its newest pull or
            ingest has warnings, ``ahead`` if it has blocks to push, or ``drifted`` if its manifest file
            differs.
        reason: why.
        hint: the command that resolves it.
    """

    state: str
    reason: str
    hint: str


def find_attention(row: DatasetRow, health: Health, book: JobBook) -> StatusFinding | None:
    """Return why a dataset needs attention, or what runs, or None if it is up to date."""
    state = status_word(health)
    job, latest = book.active_job_of(row.id), book.latest_ingest(row.id)
    remote = next((each for each in row.remotes if each.relation in ("diverged", "behind")), None)
    match health:
        case Health.running | Health.queued if job is not None:
            return StatusFinding(state, f"{job.kind}, {job_outcome(job)[0]}", f"odf logs {job.id} -f")
        case Health.damaged:
            return StatusFinding(state, row.problem or "damaged", f"odf verify {row.name}")
        case Health.invalid:
            return StatusFinding(state, "the last verification found problems", f"odf verify {row.name}")
        case Health.failed if latest is not None:
            reason = latest.error.message.splitlines()[0] if latest.error else latest.state.value
            return StatusFinding(state, f"last {latest.kind} failed: {reason}", f"odf logs {latest.id}")
        case Health.diverged if row.diverged:
            names = ", ".join(row.diverged)
            return StatusFinding(
                state, f"inputs were reset or replaced: {names}", f"odf pull --reset-on-divergence {row.name}"
            )
        case Health.diverged | Health.stale if remote is not None and remote.pull:
            force = "--force " if health is Health.diverged else ""
            reason = f"{relation_text_for_people(remote)} {remote.label}"
            return StatusFinding(state, reason, f"odf pull {force}{row.name}")
        case Health.stale:
            return StatusFinding(state, "its inputs have new data", f"odf pull {row.name}")
        case Health.new if row.waiting is not None:
            return _waiting_finding(state, row.waiting)
        case Health.new:
            pulled = row.polls or row.derivative or row.has_pull_remote
            verb = "pull" if pulled else "ingest" if row.push_sources else "show"
            return StatusFinding(state, "no data yet", f"odf {verb} {row.name}{' FILE' * (verb == 'ingest')}")
    if row.waiting is not None:
        return _waiting_finding("waiting", row.waiting)
    if latest is not None and latest.warnings:
        return StatusFinding("warned", warnings_text(latest.warnings), f"odf logs {latest.id}")
    if blocks_to_push(row.remotes):
        unsent = next(
            each for each in push_remotes(row.remotes) if each.relation in ("ahead", "diverged", "new")
        )
        return StatusFinding(
            "ahead", f"{plain_block_count(unsent.ours)} to push to {unsent.label}", f"odf push {row.name}"
        )
    return None


def _waiting_finding(state: str, waiting: Waiting) -> StatusFinding:
    awaited = waiting.inputs[0]
    option = " --set-watermark TIME" if awaited.reason != "no-rows" else ""
    return StatusFinding(state, waiting.text, f"odf pull {awaited.name}{option}")


class WorkspaceState(NamedTuple):
    """The datasets and jobs of a workspace.

    Attributes:
        rows: all datasets.
        healths: their health, by id.
        book: the jobs.
    """

    rows: list[DatasetRow]
    healths: dict[str, Health]
    book: JobBook

    @classmethod
    def read(cls, workspace: Workspace) -> WorkspaceState:
        """Read the state from the chains, the journal of jobs, and the last comparison with remotes."""
        rows, book = read_rows(workspace, workspace.summaries(), print_note)
        return cls(rows, dataset_healths(rows, book), book)

    def findings(self) -> list[tuple[DatasetRow, StatusFinding]]:
        """Return the datasets that need attention, by name."""
        found = ((row, find_attention(row, self.healths[row.id], self.book)) for row in self.rows)
        return [(row, finding) for row, finding in found if finding is not None]

    def counts(self) -> Counter[str]:
        """Return the number of datasets by status."""
        return Counter(status_word(self.healths[row.id]) for row in self.rows)

    def summary(self) -> str:
        """Describe the number of datasets by status, such as ``3 datasets: 2 current, 1 stale``."""
        counts = ", ".join(f"{number} {state}" for state, number in self.counts().most_common())
        return count_of(len(self.rows), "dataset") + (f": {counts}" if counts else "")

    def jobs_summary(self) -> str:
        """Describe the number of running and queued jobs, or "" without jobs."""
        states = Counter(job.state.value for job in self.book.active_jobs())
        return ", ".join(f"{states[state]} {state}" for state in ("running", "queued") if states[state])


@verb("status", example="odf status", json=True)
def status_verb() -> None:
    """Show the datasets that need attention, running jobs and the worker.

    Lists datasets that are stale, failed, diverged, new or running, those whose results wait for an
    input, those whose newest pull or ingest has warnings, and those that are behind a remote or have
    blocks to push, each with the command that resolves it, and those that differ from their manifest
    file. Remotes are shown as last compared: `odf repo status` compares them now. Exits with 0 in all of
    these cases.
    """
    workspace = open_workspace()
    state = WorkspaceState.read(workspace)
    findings = state.findings()
    findings += _find_drift(workspace, state, {row.id for row, _ in findings})
    pid = WorkerEndpoint(workspace.folder).worker_pid()
    if options_of().json:
        print_json(_status_json(workspace, state, {row.id: each for row, each in findings}, pid))
        return
    sys.stdout.write(f"{workspace.folder}\n{state.summary()}\n")
    if findings:
        print_table(
            ["status", "dataset", "reason", "next step"],
            [[each.state, row.name, printable(each.reason), each.hint] for row, each in findings],
        )
    elif state.rows:
        sys.stdout.write("everything is up to date\n")
    else:
        print_note("no datasets yet: odf new NAME --root prints a manifest, odf add adds it")
    jobs = state.jobs_summary() or "no jobs"
    sys.stdout.write(f"worker: {f'process {pid}, {jobs}' if pid else 'not running'}\n")


def _find_drift(
    workspace: Workspace, state: WorkspaceState, others: Collection[str]
) -> list[tuple[DatasetRow, StatusFinding]]:
    """Return the datasets that differ from the manifest file that defines them, without some others."""
    from odf_engine.workspace.definition_update import find_manifest_drift  # deferred: loads YAML

    datasets = workspace.datasets()
    entries = {str(dataset.id): dataset for dataset in datasets}
    found: list[tuple[DatasetRow, StatusFinding]] = []
    for row in state.rows:
        if row.id in others or row.id not in entries:
            continue
        drift = find_manifest_drift(workspace.folder, entries[row.id], datasets)
        if drift is not None:
            reason = drift.problem or f"{count_of(len(drift.changes), 'difference')} to its manifest"
            found.append(
                (row, StatusFinding("drifted", reason, f"odf add --update {shlex.quote(str(drift.path))}"))
            )
    return found


def _status_json(
    workspace: Workspace, state: WorkspaceState, findings: Mapping[str, StatusFinding], pid: int | None
) -> dict[str, Any]:
    from odf_tui.cli.repositories import remote_json  # deferred: loads the network modules

    return {
        "workspace": str(workspace.folder),
        "counts": dict(state.counts()),
        "datasets": [
            {
                "id": row.id,
                "name": row.name,
                "status": status_word(state.healths[row.id]),
                "reason": finding.reason if (finding := findings.get(row.id)) else None,
                "hint": finding.hint if finding else None,
                "remotes": [remote_json(remote) for remote in row.remotes],
                "waiting": None if row.waiting is None else to_builtins(row.waiting),
            }
            for row in state.rows
        ],
        "jobs": [_job_json(job) for job in state.book.active_jobs()],
        "worker": {"running": pid is not None, "pid": pid},
    }


_MIN_INTERVAL: Final = 0.2


@verb("watch", example="odf watch --until-idle > watch.log")
@click.option(
    "--interval",
    type=click.FloatRange(min=_MIN_INTERVAL),
    default=2.0,
    show_default=True,
    help="Seconds between two reads.",
)
@click.option("--until-idle", is_flag=True, help="End when no job is queued or running.")
def watch_verb(interval: float, until_idle: bool) -> None:
    """Show datasets and jobs continuously.

    On a terminal, shows a table that is updated in place. Otherwise, prints a line for each change. Runs
    until ^C, or until all jobs have ended with --until-idle.
    """
    workspace = open_workspace()
    board = _WatchTable() if sys.stdout.isatty() else _WatchLines()
    try:
        with board:
            while True:
                if not workspace.odf.is_dir():
                    raise NotFound("the workspace was deleted", where=str(workspace.folder))
                state = WorkspaceState.read(workspace)
                board.show(state)
                if until_idle and not state.book.active_jobs():
                    return
                time.sleep(interval)
    except KeyboardInterrupt:
        return  # the normal end


class _WatchLines(nullcontext[None]):
    """Prints a line for each change of a dataset or a job."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, str] | None = None

    def show(self, state: WorkspaceState) -> None:
        """Print the changes since the last call; the first call prints a summary and the open jobs."""
        now = {f"job {job.id}": _watch_job_text(job) for job in state.book.jobs.values()}
        now |= {row.name: status_word(state.healths[row.id]) for row in state.rows}
        time_text = format_time_seconds(Timestamp.now())
        if self._before is None:
            lines = [state.summary(), *map(_watch_job_line, state.book.active_jobs())]
        else:
            old = self._before
            lines = [f"{name}: {text}" for name, text in now.items() if old.get(name) != text]
            lines += [f"{name}: deleted" for name in old if name not in now and not name.startswith("job ")]
        for line in lines:
            sys.stdout.write(f"{time_text}  {printable(line)}\n")
        sys.stdout.flush()
        self._before = now


def _watch_job_text(job: Job) -> str:
    """Return kind, target and state of a job, and the outcome of an ended one."""
    outcome = f": {job_outcome(job)[0]}" if job.state.final and job_outcome(job)[0] != job.state.value else ""
    return f"{job.kind} {job.target}, {job.state.value}{outcome}"


def _watch_job_line(job: Job) -> str:
    return f"job {job.id}: {_watch_job_text(job)}"


_RECENT_JOBS: Final = 5


class _WatchTable:
    """Shows a table of jobs and datasets on a terminal; what needs attention is first."""

    def __init__(self) -> None:
        from rich.live import Live  # deferred: only this needs it

        self._live = Live(console=console(), auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def show(self, state: WorkspaceState) -> None:
        """Show a new state."""
        from rich.console import Group
        from rich.table import Table

        datasets = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("status", "dataset", "rows", "last pulled"):
            datasets.add_column(header, no_wrap=True, justify="right" if header == "rows" else "left")
        attention = {row.id for row, _ in state.findings()}
        for row in sorted(state.rows, key=lambda each: each.id not in attention):
            health = state.healths[row.id]
            datasets.add_row(
                f"{health.glyph} {status_word(health)}",
                row.name,
                format_count(row.records),
                format_time(row.last_pulled),
            )
        jobs = Table(box=None, pad_edge=False, header_style="bold")
        for header, width in (("job", 3), ("kind", 8), ("target", 20), ("state", 9), ("outcome", 10)):
            jobs.add_column(header, no_wrap=True, overflow="ellipsis", min_width=width)
        active = state.book.active_jobs()
        ended = [job for job in state.book.newest_first() if job.state.final]
        for job in [*active, *ended[: max(_RECENT_JOBS - len(active), 1)]]:
            jobs.add_row(job.id, job.kind, job.target, job.state.value, job_outcome(job)[0])
        title = (
            f"{state.summary()} · {state.jobs_summary() or 'idle'} · {format_time_seconds(Timestamp.now())}"
        )
        self._live.update(Group(title, "", jobs, "", datasets), refresh=True)


@verb("jobs", example="odf jobs --json", json=True)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of jobs."
)
def jobs_verb(limit: int) -> None:
    """List jobs, newest first. A job with warnings has the mark ! after its state."""
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
            "error or warnings",
        ],
        [
            [
                job.id,
                job.kind,
                job.target,
                job.state.value + (" !" if job.warnings else ""),
                format_count(job.progress.rows),
                format_time_seconds(job.started),
                _duration_text(job),
                job.error.message if job.error else _remark(job),
            ]
            for job in jobs
        ],
        right=["rows", "duration"],
    )


def _rejected_rows(job: Job) -> int:
    result = known_result(job.result, Pull) if job.kind in ("pull", "ingest") and job.result else None
    return (result.rejected or 0) if result is not None else 0


def _remark(job: Job) -> str:
    """Return the number of rejected rows and the warnings of a job."""
    rows = _rejected_rows(job)
    rejected = f"{count_of(rows, 'row', separators=False)} rejected" if rows else ""
    return "; ".join(filter(None, [rejected, warnings_text(job.warnings) if job.warnings else ""]))


def _job_json(job: Job) -> dict[str, Any]:
    rejected = {"rejected": rows} if (rows := _rejected_rows(job)) else {}
    return {
        "id": job.id,
        "kind": job.kind,
        "target": job.target,
        "state": job.state.value,
        "progress": job.progress,
        "started": job.started,
        "ended": job.ended,
        "error": job.error,
        **rejected,
        **({"warnings": to_builtins(job.warnings)} if job.warnings else {}),
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
@click.argument("what", type=click.Choice(["start", "status", "stop", "install", "uninstall"]))
def worker_verb(what: str) -> None:
    """Start, show or stop the background worker, or install it as a service.

    Commands that need the worker start it automatically. As a service, it also runs without them, so that
    flows run: `odf worker install` writes a unit of systemd (on macOS, of launchd) for your user.
    """
    workspace = open_workspace()
    if what in ("install", "uninstall"):
        _change_service(workspace.folder, install=what == "install")
        return
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


def _change_service(folder: Path, *, install: bool) -> None:
    """Write or remove the service of a workspace's worker, and print the command that applies the change."""
    from odf_engine.coordinator.worker_service import find_service  # deferred: only this needs it

    service = find_service(folder)
    if install:
        service.write()
        print_note(f"wrote {service.path}; to start it now and with every session, run:")
    elif not service.remove():
        raise NotFound(f"{service.path} not found", hint="the worker is not installed as a service")
    else:
        print_note(f"removed {service.path}; to stop it, run:")
    for command in service.enable_commands if install else service.disable_commands:
        sys.stdout.write(f"{command}\n")


async def _contact_worker(workspace: Workspace, what: str) -> Any:
    client = await Client.connect(workspace.folder, start=what == "start")
    try:
        status = await client.ping()
        if what == "stop":
            await client.stop()
        return status
    finally:
        await client.close()


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
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="Answer requests for this host name too, and web pages of this host. Can be repeated.",
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
@click.option("--metrics", is_flag=True, help="Serve metrics for Prometheus at /metrics.")
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
    host_names: tuple[str, ...],
    patterns: tuple[str, ...],
    allow_push: bool,
    metrics: bool,
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

    With --metrics, every client that can connect can also read numbers of jobs, and names and states of
    flows and alerts. See odf help alerts.

    The server listens on this machine only, unless --host specifies another address. It answers requests
    for localhost, IP addresses, the host name of this machine, the name of --host and those of --host-name.
    Web pages of other sites are refused. Its limits are the
    settings serve.* of `odf config list`. With --json, prints one line with the URL when it is ready.
    """
    from odf_engine.api.server_process import SERVER_MODULE  # deferred: few verbs need it

    options = options_of()
    command = [sys.executable, "-m", SERVER_MODULE, "--workspace", str(open_workspace().folder)]
    command += ["--host", host, "--port", str(port)]
    command += [f"--host-name={name}" for name in host_names]
    for pattern in patterns:
        command.append(f"--dataset={pattern}")
    for name, value in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        if value is not None:
            command.append(f"{name}={value}")
    flags = {
        "--allow-push": allow_push,
        "--behind-proxy": behind_proxy,
        "--metrics": metrics,
        "--json": options.json,
        "--quiet": options.quiet,
        "--verbose": options.verbose,
    }
    command += [name for name, given in flags.items() if given]
    # The server replaces this process: it receives signals, and the command line uses no memory.
    os.execv(sys.executable, command)
