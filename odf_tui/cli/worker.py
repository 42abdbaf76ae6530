"""Start, show or stop the background worker, or install it as a service.

Commands that need the worker start it automatically. As a service, it also runs without them, so that
flows run: `odf worker install` writes a unit of systemd (on macOS, of launchd) for your user.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from odf_engine.api import WorkerLost, WorkerStatus
from odf_engine.api.workspace import Workspace
from odf_engine.errors import NotFound
from odf_tui.cli.shared.options import CommandGroup, options_of
from odf_tui.cli.shared.output import print_json, print_note
from odf_tui.cli.shared.workspace import connect, open_workspace

ORDER = 410
MEANINGS = "daemon coordinator start restart"

command = CommandGroup("worker", help=__doc__, example="odf worker status")


@command.subcommand("start", example="odf worker start", json=True)
def start() -> None:
    """Start the worker, unless it is running."""
    _show_status(asyncio.run(_contact_worker(open_workspace(), start=True)))


@command.subcommand("status", example="odf worker status", json=True)
def status() -> None:
    """Show whether the worker is running, its jobs, and the state of Spark."""
    _show_status(_find_worker(open_workspace()))


@command.subcommand("stop", example="odf worker stop", json=True)
def stop() -> None:
    """Stop the worker. Running jobs are interrupted."""
    worker = _find_worker(open_workspace(), stop=True)
    if worker is None or options_of().json:
        _show_status(worker)
    else:
        print_note(f"stopped the worker (process {worker.pid})")


@command.subcommand("install", example="odf worker install")
def install() -> None:
    """Install the worker as a service, and print the command that starts it."""
    service = open_workspace().worker_service()
    service.write()
    print_note(f"wrote {service.path}; to start it now and with every session, run:")
    sys.stdout.writelines(f"{line}\n" for line in service.enable_commands)


@command.subcommand("uninstall", example="odf worker uninstall")
def uninstall() -> None:
    """Remove the service, and print the command that stops it."""
    service = open_workspace().worker_service()
    if not service.remove():
        raise NotFound(f"{service.path} not found", hint="the worker is not installed as a service")
    print_note(f"removed {service.path}; to stop it, run:")
    sys.stdout.writelines(f"{line}\n" for line in service.disable_commands)


def _show_status(worker: WorkerStatus | None) -> None:
    if options_of().json:
        print_json({"running": worker is not None, "status": worker})
    elif worker is None:
        print_note("no worker is running")
    else:
        sys.stdout.write(
            f"worker {worker.version}, process {worker.pid}:"
            f" {worker.running} running, {worker.queued} queued\n"
            f"Spark: {worker.spark} {worker.spark_detail}\n"
            f"open file descriptors: {worker.descriptors}\n"
        )


def _find_worker(workspace: Workspace, *, stop: bool = False) -> WorkerStatus | None:
    """Return the status of the running worker, which is stopped on request, or None if there is none."""
    with suppress(WorkerLost):
        return asyncio.run(_contact_worker(workspace, stop=stop))
    return None


async def _contact_worker(workspace: Workspace, *, start: bool = False, stop: bool = False) -> WorkerStatus:
    async with connect(workspace, start=start) as client:
        status = await client.ping()
        if stop:
            await client.stop()
        return status
