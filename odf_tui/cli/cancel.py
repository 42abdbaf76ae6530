"""Cancel a job.

Blocks that the job has already committed remain.
"""

from __future__ import annotations

import asyncio
import time

import click

from odf_tui.cli.shared.options import define_command
from odf_tui.cli.shared.output import print_note
from odf_tui.cli.shared.workspace import connect, open_workspace

ORDER = 390
MEANINGS = "kill stop abort"


@define_command("cancel", help=__doc__, example="odf cancel 12")
@click.argument("job")
def command(job: str) -> None:
    workspace = open_workspace()
    journal = workspace.journal
    current = journal.job(job)
    if current.state.final:
        print_note(f"job {current.id} is already {current.state.value}")
        return

    async def cancel() -> None:
        async with connect(workspace, start=False) as client:
            await client.cancel(current.id)

    asyncio.run(cancel())
    deadline = time.monotonic() + 10
    while not (current := journal.job(job)).state.final and time.monotonic() < deadline:
        time.sleep(0.05)
    print_note(f"job {current.id} is {current.state.value}")
