"""Create a workspace with sample data.

Adds sample datasets, pulls and verifies them, and opens the workstation. Requires no network.

The data is about Port Haven, a small harbour town: its air quality, the visits to its clinics and
its measuring stations. In the first week of March, smoke drifts in.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

import odf_engine
from odf_engine.api import JobState, Pull, PullResult, Request, Verify, VerifyResult
from odf_engine.api.samples import write_files
from odf_engine.api.text import count_of
from odf_engine.api.workspace import Workspace
from odf_engine.errors import Conflict, UsageError
from odf_tui.cli.shared.job_progress import follow
from odf_tui.cli.shared.options import OpenWorkstation, define_command
from odf_tui.cli.shared.output import print_note, print_result
from odf_tui.cli.shared.workspace import connect
from odf_tui.state.saved_session import TOUR, SavedLayout, encode_layout, save_layout
from odf_tui.theming.terminal import require_capable_terminal

ORDER = 370


@define_command("demo", help=__doc__, example="odf demo")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="odf-demo")
@click.option("--no-tui", is_flag=True, help="Print the results instead of opening the workstation.")
def command(folder: Path, no_tui: bool) -> OpenWorkstation | None:
    if not no_tui:  # before jobs are started
        try:
            require_capable_terminal()
        except UsageError as error:
            hint = "to print the results instead, use odf demo --no-tui"
            raise UsageError(error.message, hint=hint) from None
    is_new = not (folder / ".odf").is_dir()
    workspace = _workspace(folder)
    requests = workspace.make_demo()
    if no_tui:
        _run_and_print(workspace, folder, requests)
        return None
    if is_new:
        save_layout(workspace.folder, encode_layout(SavedLayout(tour=list(TOUR))))
    # The workstation opens immediately and shows the running jobs.
    asyncio.run(_submit_jobs(workspace, requests))
    return OpenWorkstation(workspace.folder)


def _workspace(folder: Path) -> Workspace:
    if (folder / ".odf").is_dir():
        workspace = odf_engine.open(folder, progress=False)
        if not (folder / "manifests" / "stations.yaml").is_file():
            raise Conflict(f"{folder} is not a demo workspace", hint="use another folder: odf demo FOLDER")
        return workspace
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="use another folder: odf demo FOLDER")
    print_note(f"creating a workspace with sample data in {folder}")
    write_files(folder)
    return odf_engine.init(folder, progress=False)


async def _submit_jobs(workspace: Workspace, requests: list[tuple[Request, str]]) -> None:
    async with connect(workspace) as client:
        for request, target in requests:
            await client.submit(request, target)


def _run_and_print(workspace: Workspace, folder: Path, requests: list[tuple[Request, str]]) -> None:
    jobs = follow(workspace, requests)
    for job in jobs:
        if job.state is not JobState.done:
            sys.stdout.write(
                f"{job.kind:8}  {job.target}: {job.error.message if job.error else job.state.value}\n"
            )
        elif job.kind == "pull":
            pulled = job.result_of(Pull) or PullResult()
            rows, blocks = count_of(pulled.records, "new row"), count_of(pulled.blocks, "block")
            print_result(f"pulled    {job.target}: {rows} in {blocks}")
        else:
            report = job.result_of(Verify) or VerifyResult()
            verdict = "valid" if report.valid else f"INVALID, {count_of(len(report.findings), 'finding')}"
            print_result(f"verified  {job.target}: {verdict}")
    # The command as it was called: odf may not be on the path.
    command = sys.argv[0] if sys.argv[0].endswith("odf") else "odf"
    print_result(f"\nOpen the workstation:  {command} -w {folder}")
    if any(job.state is not JobState.done for job in jobs):
        sys.exit(1)
