"""Opens the workspace of a command, and selects its datasets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

import odf_engine
from odf_engine import api
from odf_engine.api import escape_controls
from odf_engine.api.dataset import Dataset
from odf_engine.api.text import set_timezone, zone_label
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError, UsageError
from odf_tui.cli.shared.options import options_of
from odf_tui.cli.shared.output import print_note

if TYPE_CHECKING:
    from odf_engine.api import Client


def start_worker(workspace: Workspace) -> None:
    """Start the worker, which runs flows and delivers the messages of alerts."""
    import asyncio  # slow to import

    async def start() -> None:
        # A task starts Spark if it needs it.
        await (await api.Client.connect(workspace.folder, warm=False)).close()

    asyncio.run(start())


@asynccontextmanager
async def connect(workspace: Workspace, *, start: bool = True) -> AsyncIterator[Client]:
    """Connect to the worker, which is started on request."""
    client = await workspace.connect(start=start)
    try:
        yield client
    finally:
        await client.close()


def open_workspace() -> Workspace:
    """Open the workspace that the options, the environment or the current folder selects."""
    workspace = odf_engine.open(options_of().workspace, progress=False)
    click.get_current_context().call_on_close(lambda: _note_store_problem(workspace))
    return workspace


def _note_store_problem(workspace: Workspace) -> None:
    """Note that the command has used the local copy of datasets, because their store cannot be read."""
    if workspace.store_problem is not None:
        print_note(
            f"the datasets are shown as they were last read: {escape_controls(str(workspace.store_problem))}"
        )


def use_timezone(workspace: Workspace) -> str:
    """Show times in the time zone of the settings. Returns its label, for the headings of tables."""
    try:
        set_timezone(workspace.config.ui.timezone)
    except OdfError as error:  # Reading does not require valid settings.
        print_note(f"times are in UTC: {error}")
    return zone_label()


def match_datasets(workspace: Workspace, names: tuple[str, ...], everything: bool) -> list[Dataset]:
    """Return the datasets that names or ``--all`` select; both or none of them are a UsageError."""
    if bool(names) == everything:
        raise UsageError(
            "specify either datasets or --all" if names else "no datasets specified",
            hint="specify names or patterns with %, or use --all",
        )
    return list(workspace) if everything else workspace.match(names)


def select_datasets(
    workspace: Workspace, names: tuple[str, ...], everything: bool, recursive: bool
) -> list[Dataset]:
    """Return datasets as :func:`match_datasets` does, inputs before their outputs."""
    return workspace.in_order(match_datasets(workspace, names, everything), recursive=recursive)
