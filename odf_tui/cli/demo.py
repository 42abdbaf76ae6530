"""The verb that shows everything at work: demo."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from odf_engine.coordinator.client import Client
from odf_engine.coordinator.protocol import JobState, Pull, Request, Verify
from odf_engine.coordinator.results import PullResult, VerifyResult
from odf_engine.errors import Conflict
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.follow import follow
from odf_tui.cli.output import say, verb
from odf_tui.demo import add_datasets, requests_for, write_files


@verb("demo", example="odf demo")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="odf-demo")
@click.option("--no-tui", is_flag=True, help="Print what is done instead of opening the workstation.")
def demo_verb(folder: Path, no_tui: bool) -> None:
    """Makes a workspace with sample data, pulls and verifies it, and opens the workstation on it.

    Port Haven, a small harbour town, measures its air, counts the visits to its clinics and lists its
    measuring stations. In the first week of March smoke drifts in. Needs no network.
    """
    workspace = _workspace(folder)
    requests = requests_for(workspace, add_datasets(workspace))
    if no_tui:
        _print(workspace, folder, requests)
        return
    # The workstation opens at once and shows the jobs as they run.
    asyncio.run(_submit(workspace, requests))
    from odf_tui.app import run

    run(workspace.folder)


def _workspace(folder: Path) -> Workspace:
    if (folder / ".odf").is_dir():
        workspace = Workspace.find(folder, folder)
        if not (folder / "manifests" / "stations.yaml").is_file():
            raise Conflict(
                f"{folder} is a workspace of your own", hint="name another folder: odf demo FOLDER"
            )
        return workspace
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="name another folder: odf demo FOLDER")
    say(f"making a workspace with sample sources in {folder}")
    write_files(folder)
    return Workspace.init(folder)


async def _submit(workspace: Workspace, requests: list[tuple[Request, str]]) -> None:
    client = await Client.connect(workspace.folder)
    try:
        for request, target in requests:
            await client.submit(request, target)
    finally:
        await client.close()


def _print(workspace: Workspace, folder: Path, requests: list[tuple[Request, str]]) -> None:
    jobs = follow(workspace, requests)
    for job in jobs:
        if job.state is not JobState.done:
            sys.stdout.write(
                f"{job.kind:7} {job.target}: {job.error.message if job.error else job.state.value}\n"
            )
        elif job.kind == "pull":
            pulled = job.result_of(Pull) or PullResult()
            records = humane.count(pulled.records)
            sys.stdout.write(f"pulled  {job.target}: {records} new records in {pulled.blocks} blocks\n")
        else:
            report = job.result_of(Verify) or VerifyResult()
            verdict = "valid" if report.valid else f"NOT VALID, {len(report.findings)} findings"
            sys.stdout.write(f"checked {job.target}: {verdict}\n")
    # As it was called: the command may not be on the person's path.
    command = sys.argv[0] if sys.argv[0].endswith("odf") else "odf"
    sys.stdout.write(f"\nLook around:  {command} -w {folder}\n")
    if any(job.state is not JobState.done for job in jobs):
        sys.exit(1)
