"""Checks that jobs can run here: packages, Java, memory, and in a workspace disk, worker and Spark."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from odf_engine.api.text import count_of, format_bytes, format_time, format_time_seconds
from odf_engine.base import processes
from odf_engine.base.config import Config
from odf_engine.chain.normal_form import DATAFUSION, INSTALL_DATAFUSION, engine_version
from odf_engine.errors import OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.jvm import find_java
from odf_engine.worker.client import Client
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.protocol import WorkerStatus
from odf_engine.workspace.engine_versions import other_versions
from odf_engine.workspace.workspace import Workspace

_PACKAGES: Final = ("odf-workstation", "pyspark", "pyarrow", "textual")
_MIN_DISK: Final = 100 << 20
_LOW_DISK: Final = 1 << 30
_MAX_NAMES: Final = 5
_CLOCK_TOLERANCE_NS: Final = 60 * 10**9
_SPARK_SECONDS: Final = 180.0


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


def check_installation() -> list[HealthCheck]:
    """Check the packages, Java and DataFusion."""
    return [_check_packages(), _check_java(), _check_datafusion()]


def check_workspace(workspace: Workspace, *, start: bool) -> list[HealthCheck]:
    """Check a workspace: its disk, permissions, clock, versions of rows, worker, Spark and memory.

    Args:
        workspace: the workspace.
        start: start Spark too, which takes some seconds.
    """
    checks = [HealthCheck("workspace", "ok", str(workspace.folder))]
    checks += [_check_disk(workspace), _check_permissions(workspace), _check_clock(workspace)]
    checks.append(_check_engine_versions(workspace))
    worker, status = asyncio.run(_check_worker(workspace, start=start))
    return [*checks, *worker, check_memory(workspace.config, status)]


def failed_check(name: str, error: OdfError) -> HealthCheck:
    """Return the check that failed with an error."""
    return HealthCheck(name, "failed", str(error), error.hint or "")


def _check_packages() -> HealthCheck:
    from importlib.metadata import PackageNotFoundError, version

    installed: list[str] = [f"Python {platform.python_version()}"]
    missing: list[str] = []
    for name in _PACKAGES:
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return HealthCheck(
            "packages", "failed", f"not installed: {', '.join(missing)}", "install odf-workstation again"
        )
    return HealthCheck("packages", "ok", ", ".join(installed))


def _check_java() -> HealthCheck:
    try:
        java = find_java(os.environ.get("ODF_JAVA"))
    except OdfError as error:
        return failed_check("Java", error)
    return HealthCheck("Java", "ok", f"{java.full_version} in {java.home} ({java.origin})")


def _check_datafusion() -> HealthCheck:
    version = engine_version(DATAFUSION)
    if version is None:
        return HealthCheck("DataFusion", "ok", "not installed, optional", INSTALL_DATAFUSION)
    return HealthCheck("DataFusion", "ok", version.partition("+")[0])


def check_memory(config: Config, status: WorkerStatus | None = None) -> HealthCheck:
    """Check that the Java process fits into the memory; what a running Spark uses is not counted twice."""
    total, available = processes.read_memory()
    number, unit = config.spark.driver_memory[:-1], config.spark.driver_memory[-1:].lower()
    needed = int(number) << {"k": 10, "m": 20, "g": 30, "t": 40}[unit]
    message = f"{format_bytes(available)} of {format_bytes(total)} available"
    advice = "close other programs, or reduce it: odf config set spark.driverMemory 1g"
    if not total:
        return HealthCheck("memory", "ok", "unknown on this system")
    driver_memory = config.spark.driver_memory
    if needed > total:
        return HealthCheck("memory", "failed", f"{message}; spark.driverMemory is {driver_memory}", advice)
    if needed > available and (status is None or status.spark != "ready"):
        return HealthCheck("memory", "warning", f"{message}; Spark may use {driver_memory}", advice)
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
    state = "failed" if shutil.disk_usage(workspace.odf).free < _MIN_DISK else "warning"
    hint = "free disk space: odf fsck --repair removes orphaned files"
    return HealthCheck("disk", state, "; ".join(low), hint)


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
    pulls = [(summary.last_pulled, summary.name) for summary in workspace.summaries() if summary.last_pulled]
    latest, name = max(pulls, default=(now, ""))
    if latest.ns > now.ns + _CLOCK_TOLERANCE_NS:
        message = f"the time is {format_time(now)} UTC, but {name} has a block of {format_time(latest)} UTC"
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
        return [failed_check("worker", error)], None
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
        spark = HealthCheck("Spark", "failed", "it does not start", "see the log .odf/spark.log")
        return [worker, spark], status
    words = "not started; the next job that needs it starts it" if status.spark == "off" else status.spark
    return [worker, HealthCheck("Spark", "ok", status.spark_detail or words)], status
