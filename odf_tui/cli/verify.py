"""verify, compact, gc, fsck, doctor: check and clean datasets, the workspace and the environment."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NoReturn

import click
import msgspec

from odf_engine import processes
from odf_engine.api.administration import read_proof
from odf_engine.api.file_check import check_files, collect_files
from odf_engine.api.text import count_of, format_bytes, format_time, format_time_seconds, printable
from odf_engine.chain.compaction import require_compactable
from odf_engine.chain.normal_form import DATAFUSION, INSTALL_DATAFUSION, engine_version
from odf_engine.config import Config
from odf_engine.coordinator.client import Client
from odf_engine.coordinator.endpoint import WorkerEndpoint
from odf_engine.coordinator.protocol import JobState, Request, WorkerStatus
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.compact import Compact, CompactResult
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.query import CheckProof, CheckProofResult
from odf_engine.jobs.verify import Verify
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.discovery import WORKSPACE_VARIABLE
from odf_engine.workspace.engine_versions import other_versions
from odf_engine.workspace.fsck import FsckReport
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import exit_code, follow, print_failure, run_request
from odf_tui.cli.output import (
    branch_option,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_result,
    verb,
)
from odf_tui.cli.pull import select_datasets
from odf_tui.text.format import with_spaced_thousands
from odf_tui.text.verification_text import (
    origin_lines,
    proof_verdict,
    report_lines,
    verdict_advice,
    workspace_check_lines,
)


def check_proof(workspace: Workspace, file: Path) -> NoReturn:
    """Check a proof and exit: 0 if it is valid, 3 if it is invalid, 1 if it cannot be checked."""
    report = run_request(workspace, CheckProof(proof=read_proof(file)), f"proof {file.name}")
    if options_of().json:
        print_json(report)
    else:
        _print_proof_report(report, workspace)
    sys.exit(0 if report.valid else 3 if report.checked else 1)


def _print_proof_report(report: CheckProofResult, workspace: Workspace) -> None:
    names = {str(entry.id): str(entry.alias) for entry in workspace.datasets()}
    sys.stdout.write(proof_verdict(report, names) + "\n")
    for finding in report.findings if not report.valid else ():
        sys.stdout.write(printable(f"  {finding.message}") + "\n")
        if finding.hint:
            print_note(printable(f"  hint: {finding.hint}"))


class _PhasePrinter(Reporter):
    """Prints the phases of a check with ``-v``."""

    def phase(self, name: str) -> None:
        if options_of().verbose:
            print_note(f"checking {name}")


@verb("fsck", example="odf fsck --repair", json=True)
@click.option("--repair", is_flag=True, help="Remove orphaned files, and rebuild damaged caches.")
@click.option("--now", is_flag=True, help="With --repair, also remove files modified within the last hour.")
def fsck_verb(repair: bool, now: bool) -> None:
    """Check the workspace for orphaned and damaged files.

    Finds orphaned files, incomplete files, damaged caches and missing slices. With --repair, removes or
    rebuilds them. Missing slices of a derivative dataset are rebuilt by a replay of its transactions.

    Blocks and data reachable from the head or another reference of a dataset are never removed. Neither
    are private keys of datasets, nor files of datasets with a running job. A damaged key of a dataset
    that is not in the workspace is renamed. To verify the contents of datasets, use `odf verify`.

    Exits with 3 if problems remain.
    """
    if now and not repair:
        raise UsageError("--now requires --repair")
    workspace = open_workspace()
    report = check_files(workspace, _PhasePrinter(), repair=repair, now=now)
    if repair:
        _rebuild_slices(workspace, report)
    if options_of().json:
        print_json(_report_json(report))
    else:
        _print_workspace_report(report)
    sys.exit(3 if report.left else 0)


def _rebuild_slices(workspace: Workspace, report: FsckReport) -> None:
    """Rebuild the missing slices of derivative datasets without a pull remote, and update the report."""
    lost = {each.where for each in report.left if each.kind == "missing-slice"}
    remotes = Remotes(workspace.odf)
    entries = [
        entry
        for entry in (workspace.resolve(name) for name in sorted(lost))
        if entry.dataset.state().kind is DatasetKind.Derivative and not remotes.get(entry.id).pull
    ]
    if not entries:
        return
    jobs = follow(workspace, [(Pull(str(each.id), rebuild=True), str(each.alias)) for each in entries])
    for job in jobs:
        if job.state is not JobState.done:
            print_failure(job)
    left = check_files(workspace, _PhasePrinter()).left
    still_lost = {each.where for each in left if each.kind == "missing-slice"}
    report.findings = [
        msgspec.structs.replace(finding, repaired=True, left="")
        if finding.kind == "missing-slice" and finding.where in lost - still_lost
        else finding
        for finding in report.findings
    ]


def _report_json(report: FsckReport) -> dict[str, object]:
    return {
        "clean": not report.left,
        "datasets": report.datasets,
        "findings": msgspec.to_builtins(report.findings),
        "remarks": msgspec.to_builtins(report.remarks),
    }


def _print_workspace_report(report: FsckReport) -> None:
    for line in workspace_check_lines(report) if report.left or not options_of().quiet else ():
        sys.stdout.write(line + "\n")
    if not report.findings:
        return
    if not report.repair:
        print_note("odf fsck --repair removes orphaned files and rebuilds damaged caches")
    elif report.left:
        print_note(f"{len(report.findings) - len(report.left)} repaired, {len(report.left)} not repaired")


@verb("compact", example="odf compact com.example.cases --dry-run", json=True)
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be merged, and change nothing.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=2),
    help="Maximum rows of a merged slice. Default: compaction.maxRows.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1024),
    help="Maximum total size of slices merged into one. Default: compaction.maxBytes.",
)
def compact_verb(name: str, dry_run: bool, max_rows: int | None, max_bytes: int | None) -> None:
    """Merge adjacent small slices of a root dataset.

    Rows, offsets, times and order do not change. Blocks are immutable, so this writes a new chain with the
    same identity. The old head remains under a reference such as compacted-20260103T040500Z-1a2b3c4d until
    `odf gc` removes it. Datasets derived from the old chain remain valid. See `odf help compaction`.

    Exits with 4 if the dataset changes during the compaction.
    """
    workspace = open_workspace()
    entry = workspace.resolve(name)
    require_compactable(entry.dataset, str(entry.alias))
    request = Compact(str(entry.id), dry_run=dry_run, max_rows=max_rows, max_bytes=max_bytes)
    result = run_request(workspace, request, str(entry.alias))
    if options_of().json:
        print_json(result)
    else:
        print_result(_compact_line(result))


def _compact_line(result: CompactResult) -> str:
    """Describe the result of a compaction in a line."""
    summary = with_spaced_thousands(Compact.summarize(result).text)
    if result.status == "unchanged":
        return f"{result.name}: {summary}"
    if result.status == "planned":
        size = format_bytes(result.merged_bytes)
        return f"{result.name}: would merge {summary}, and rewrite {size}"
    sizes = f"{format_bytes(result.merged_bytes)} to {format_bytes(result.written_bytes)}"
    return f"{result.name}: {summary}, {sizes}; the old head is refs/{result.reference}"


@verb("gc", example="odf gc --dry-run", json=True)
@click.argument("names", nargs=-1)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and change nothing.")
@click.option("--now", is_flag=True, help="Also remove files and old heads of the last hour.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
def gc_verb(names: tuple[str, ...], dry_run: bool, now: bool, yes: bool) -> None:
    """Remove expired old heads, and files that no reference uses.

    Without NAMES, cleans all datasets. Lists the files and prompts for confirmation first.

    Old heads of compactions expire after 7 days. The settings compaction.keepDays, compaction.keepLast,
    compaction.keepDaysOf and compaction.keepLastOf change this. See `odf help compaction`.
    """
    workspace = open_workspace()
    entries = workspace.match(names) if names else workspace.datasets()
    files = collect_files(workspace, entries, _PhasePrinter(), dry_run=True, now=now)
    if not dry_run and files.findings:
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError("removing files requires confirmation", hint="use --yes, or --dry-run")
            _print_garbage(files, "to remove")
            click.confirm("Remove them?", abort=True, err=True)
        files = collect_files(workspace, entries, _PhasePrinter(), dry_run=False, now=now)
    if options_of().json:
        print_json(_report_json(files))
    else:
        _print_garbage(files, "to remove" if dry_run else "removed")
    sys.exit(0 if dry_run or not files.left else 3)


def _print_garbage(report: FsckReport, state: str) -> None:
    """Print the removed or removable files, and their total size."""
    for line in workspace_check_lines(report) if report.findings else ():
        print_result(line)
    removed = [finding for finding in report.findings if not report.repair or finding.repaired]
    files = sum(each.count for each in removed)
    size = sum(each.size for each in removed)
    print_note(f"{files:,} file{'' if files == 1 else 's'} {state}, {format_bytes(size)}")


@verb("verify", example="odf verify --all", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Verify all datasets of the workspace.")
@click.option("-r", "--recursive", is_flag=True, help="Verify inputs too.")
@click.option(
    "--integrity", is_flag=True, help="Verify chains and files only, without replay of transactions."
)
@click.option("--rows", is_flag=True, help="Verify rows again that were valid in an earlier run.")
@click.option(
    "--recompute",
    is_flag=True,
    help="Instead of a replay, compare the rows with the query over the latest state of the inputs.",
)
@click.option(
    "--range",
    "span",
    metavar="FROM..TO",
    help="Verify only blocks FROM to TO, as sequence numbers or hashes.",
)
@click.option(
    "--proof",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Verify a proof of odf sql --proof by a replay of its query.",
)
@branch_option("Verify this branch of the datasets instead of their heads.")
def verify_verb(
    names: tuple[str, ...],
    everything: bool,
    recursive: bool,
    integrity: bool,
    rows: bool,
    recompute: bool,
    span: str | None,
    proof: Path | None,
    branch: str,
) -> None:
    """Verify the integrity of datasets, and replay their queries.

    NAMES are names of datasets, or patterns with %, such as 'weather.%'.

    Checks chain rules, hashes of blocks and slices, sizes, offsets, logical hashes, checkpoints and
    ownership proofs. Replays the transactions of derivative datasets and compares the results.

    Checks operations as well: a -C and its +C are adjacent, and a -R or -C repeats a row of the dataset. A
    dataset whose only findings are about operations is reported as intact.

    A replay repeats the transactions, and with them any fault of their rules. With --recompute, the query of
    a derivative dataset runs once over the latest state of its inputs instead, and the rows are compared.

    With --proof, checks the proof of a query result instead. Exits with 3 if a dataset or a proof is
    invalid.
    """
    workspace = open_workspace()
    if proof is not None:
        if names or everything or span:
            raise UsageError("--proof and datasets exclude each other", hint="use --proof FILE alone")
        check_proof(workspace, proof)
    if integrity and recompute:
        raise UsageError("--integrity and --recompute exclude each other", hint="use one of them")
    if branch and recursive:
        raise UsageError("--branch and --recursive exclude each other", hint="verify the inputs separately")
    entries = [entry.on_branch(branch) for entry in select_datasets(workspace, names, everything, recursive)]
    requests: list[tuple[Request, str]] = []
    for entry in entries:
        first, last = _parse_range(entry, span)
        request = Verify(str(entry.id), integrity, first, last, rows, branch, recompute)
        requests.append((request, branch_title(str(entry.alias), branch)))
    jobs = follow(workspace, requests)
    results = [job.result_of(Verify) for job in jobs if job.state is JobState.done]
    reports = [result for result in results if result is not None]
    failed = [job for job in jobs if job.state is not JobState.done]
    valid = not failed and all(report.valid for report in reports)
    for job in failed:
        print_failure(job)
    if options_of().json:
        print_json({"valid": valid, "datasets": reports})
    else:
        for report in reports:
            if report.valid and options_of().quiet:
                continue
            for line in report_lines(report):
                sys.stdout.write(line + "\n")
            for note in verdict_advice(report) if report.findings else ():
                print_note(f"  {note}")
        for line in origin_lines(reports):
            print_result(printable(line))
    sys.exit(exit_code(jobs) if failed else 0 if valid else 3)


def _parse_range(entry: DatasetEntry, span: str | None) -> tuple[int | None, int | None]:
    if span is None:
        return None, None
    first, dots, last = span.partition("..")
    if not dots:
        raise UsageError(
            f"--range {span}: not of the form FROM..TO", hint="FROM or TO can be omitted, as in 10.."
        )

    def number(text: str) -> int | None:
        if not text:
            return None
        if text.isdecimal() and len(text) < 8:
            return int(text)
        block = entry.dataset.find_stored_block(text)
        if not entry.dataset.contains_block(block):  # stored, but its number is of an earlier history
            raise NotFound(
                f"--range {span}: block {block} is not in the chain of {entry.alias}",
                hint=f"use a block that odf log {entry.alias} lists, or its sequence number",
            )
        return entry.dataset.block(block).block.sequence_number

    return number(first), number(last)


# --- doctor ------------------------------------------------------------------------------------------

_PACKAGES: Final = ("odf-workstation", "pyspark", "pyarrow", "textual")
_MIN_DISK: Final = 100 << 20
_LOW_DISK: Final = 1 << 30
_MAX_NAMES: Final = 5
_CLOCK_TOLERANCE_NS: Final = 60 * 10**9
_SPARK_SECONDS: Final = 180.0
_SIGNS: Final = {"ok": "✓", "warning": "!", "failed": "✗"}


class HealthCheck(msgspec.Struct, frozen=True):
    """The result of a check of the environment.

    Attributes:
        name: what was checked.
        state: whether it is fine, may cause problems, or prevents jobs.
        message: what was found.
        hint: the remedy, or "" if it is fine.
    """

    name: str
    state: Literal["ok", "warning", "failed"]
    message: str
    hint: str = ""


@verb("doctor", example="odf doctor --spark", json=True)
@click.option("--spark", "start", is_flag=True, help="Start Spark too, which takes some seconds.")
def doctor_verb(start: bool) -> None:
    """Check that jobs can run here.

    Checks the installed packages, Java, DataFusion, memory, and in a workspace its settings, disk,
    permissions, clock, versions of rows, worker and Spark. Each problem is printed with its remedy.
    Nothing is changed.

    Exits with 1 if a check failed. To check the files of the workspace, use `odf fsck`.
    """
    checks = [_check_packages(), _check_java(), _check_datafusion()]
    try:
        workspace = open_workspace()
        config = workspace.config
    except OdfError as error:
        if not isinstance(error, NotFound):
            checks.append(_failed_check("workspace", error))
        elif options_of().workspace is not None or os.environ.get(WORKSPACE_VARIABLE):
            raise
        else:
            checks.append(HealthCheck("workspace", "ok", "none here: only the installation is checked"))
        checks.append(_check_memory(Config()))
    else:
        checks.append(HealthCheck("workspace", "ok", str(workspace.folder)))
        checks += [_check_disk(workspace), _check_permissions(workspace), _check_clock(workspace)]
        checks.append(_check_engine_versions(workspace))
        worker, status = asyncio.run(_check_worker(workspace, start=start))
        checks += [*worker, _check_memory(config, status)]
    failed = [check.name for check in checks if check.state == "failed"]
    if options_of().json:
        print_json({"ok": not failed, "checks": checks})
    else:
        shown = [check for check in checks if check.state != "ok" or not options_of().quiet]
        for each in shown:
            sys.stdout.write(printable(f"{_SIGNS[each.state]} {each.name:<12} {each.message}") + "\n")
            if each.hint:
                sys.stdout.write(printable(f"{'':<15}hint: {each.hint}") + "\n")
    if failed:
        sys.stderr.write(f"error: failed checks: {', '.join(failed)}\n")
    sys.exit(1 if failed else 0)


def _failed_check(name: str, error: OdfError) -> HealthCheck:
    return HealthCheck(name, "failed", str(error), error.hint or "")


def _check_packages() -> HealthCheck:
    from importlib.metadata import PackageNotFoundError, version

    found: list[str] = [f"Python {platform.python_version()}"]
    missing: list[str] = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return HealthCheck(
            "packages", "failed", f"not installed: {', '.join(missing)}", "install odf-workstation again"
        )
    return HealthCheck("packages", "ok", ", ".join(found))


def _check_java() -> HealthCheck:
    from odf_engine.spark.runtime.jvm import find_java  # deferred: only this needs it

    try:
        java = find_java(os.environ.get("ODF_JAVA"))
    except OdfError as error:
        return _failed_check("Java", error)
    return HealthCheck("Java", "ok", f"{java.full_version} in {java.home} ({java.origin})")


def _check_datafusion() -> HealthCheck:
    version = engine_version(DATAFUSION)
    if version is None:
        return HealthCheck("DataFusion", "ok", "not installed, optional", INSTALL_DATAFUSION)
    return HealthCheck("DataFusion", "ok", version.partition("+")[0])


def _check_memory(config: Config, status: WorkerStatus | None = None) -> HealthCheck:
    """Check that the Java process fits into the memory; what a running Spark uses is not counted twice."""
    total, available = processes.read_memory()
    number, unit = config.spark.driver_memory[:-1], config.spark.driver_memory[-1:].lower()
    needed = int(number) << {"k": 10, "m": 20, "g": 30, "t": 40}[unit]
    message = f"{format_bytes(available)} of {format_bytes(total)} available"
    advice = "close other programs, or reduce it: odf config set spark.driverMemory 1g"
    if not total:
        return HealthCheck("memory", "ok", "unknown on this system")
    if needed > total:
        return HealthCheck(
            "memory", "failed", f"{message}; spark.driverMemory is {config.spark.driver_memory}", advice
        )
    if needed > available and (status is None or status.spark != "ready"):
        return HealthCheck(
            "memory", "warning", f"{message}; Spark may use {config.spark.driver_memory}", advice
        )
    return HealthCheck("memory", "ok", message)


def _check_disk(workspace: Workspace) -> HealthCheck:
    low: list[str] = []
    free = 0
    for folder in (Path(tempfile.gettempdir()), workspace.odf):
        free = shutil.disk_usage(folder).free
        if free < _LOW_DISK:
            low.append(f"{format_bytes(free)} free in {folder}")
    if not low:
        return HealthCheck("disk", "ok", f"{format_bytes(free)} free")
    full = shutil.disk_usage(workspace.odf).free < _MIN_DISK
    return HealthCheck(
        "disk",
        "failed" if full else "warning",
        "; ".join(low),
        "free disk space: odf fsck --repair removes orphaned files",
    )


def _check_permissions(workspace: Workspace) -> HealthCheck:
    odf = workspace.odf
    if os.statvfs(odf).f_flag & os.ST_RDONLY:
        hint = "make it writable to run jobs; browsing works without"
        return HealthCheck("permissions", "failed", f"{odf} is on a read-only file system", hint)
    for path in (odf, *(odf / name for name in ("datasets", "cache", "keys", "index.sqlite", "jobs.sqlite"))):
        needed = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
        if path.exists() and not os.access(path, needed):
            hint = f"change the owner or the permissions: chmod -R u+rwX {shlex.quote(str(odf))}"
            return HealthCheck("permissions", "failed", f"{path} is not writable", hint)
    keys = workspace.keys.folder
    exposed = [path for path in (keys, *keys.glob("*.pem")) if path.exists() and path.stat().st_mode & 0o077]
    if exposed:
        hint = f"restrict them: chmod -R go= {shlex.quote(str(keys))}"
        return HealthCheck("permissions", "warning", "other users can access private keys", hint)
    return HealthCheck("permissions", "ok", "the workspace is readable and writable")


def _check_clock(workspace: Workspace) -> HealthCheck:
    """Compare the clock with the newest block: system times of a chain never decrease."""
    now = Timestamp.now()
    newest = max(
        (
            (summary.last_pulled, summary.name)
            for summary in workspace.summaries()
            if summary.last_pulled is not None
        ),
        default=None,
    )
    if newest is not None and newest[0].ns > now.ns + _CLOCK_TOLERANCE_NS:
        message = (
            f"the time is {format_time(now)} UTC, but {newest[1]} has a block of {format_time(newest[0])} UTC"
        )
        return HealthCheck("clock", "failed", message, "correct the clock of this machine, or wait")
    return HealthCheck("clock", "ok", f"{format_time_seconds(now)} UTC")


def _check_engine_versions(workspace: Workspace) -> HealthCheck:
    """Find the datasets with rows of other versions of the engine."""
    names: list[str] = []
    for entry in workspace.datasets():
        with suppress(OdfError):  # a damaged dataset: odf verify and odf fsck report it
            if other_versions(entry.dataset, workspace.config.engines):
                names.append(str(entry.alias))
    if not names:
        return HealthCheck("rows", "ok", "written by the installed versions of the engines")
    shown = ", ".join(names[:_MAX_NAMES]) + (" …" if len(names) > _MAX_NAMES else "")
    return HealthCheck(
        "rows",
        "ok",
        f"of {count_of(len(names), 'dataset')} written by another version of the engine: {shown}",
        "compare them with the result of this version: odf verify --recompute NAME",
    )


async def _check_worker(
    workspace: Workspace, *, start: bool
) -> tuple[list[HealthCheck], WorkerStatus | None]:
    """Return the checks of the worker and of Spark, and the status of the worker."""
    if not start and not WorkerEndpoint(workspace.folder).worker_alive():
        spark = HealthCheck("Spark", "ok", "not started; --spark checks that it starts")
        return [HealthCheck("worker", "ok", "not running; the next job starts it"), spark], None
    try:
        client = await Client.connect(workspace.folder, start=start)
    except OdfError as error:
        return [_failed_check("worker", error)], None
    try:
        deadline = time.monotonic() + (_SPARK_SECONDS if start else 0)
        status = await client.ping(warm=start)
        while status.spark == "starting" and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            status = await client.ping()
    finally:
        await client.close()
    jobs = f"{status.running} running, {status.queued} queued"
    worker = HealthCheck("worker", "ok", f"version {status.version}, process {status.pid}: {jobs}")
    if status.spark == "failed":
        hint = status.spark_hint or "see the log .odf/spark.log"
        return [worker, HealthCheck("Spark", "failed", status.spark_detail, hint)], status
    if status.spark == "starting" and start:
        return [
            worker,
            HealthCheck("Spark", "failed", "it does not start", "see the log .odf/spark.log"),
        ], status
    words = "not started; the next job that needs it starts it" if status.spark == "off" else status.spark
    return [worker, HealthCheck("Spark", "ok", status.spark_detail or words)], status
