"""The first minutes in an empty workspace: the demo."""

from __future__ import annotations

import asyncio
from typing import Final

from odf_tui.actions.model import PANES
from odf_tui.screens.waiting import JobsClient
from odf_tui.text.format import format_count

_TICK_SECONDS: Final = 0.1
_TICKS: Final = 30


class Beginning(JobsClient):
    """The part of the workbench that makes the demo."""

    def do_make_demo(self) -> None:
        """Asks, and makes the demo in this workspace."""
        self.start(self._make_demo())

    async def _make_demo(self) -> None:
        from odf_tui.gateway.samples import MANIFESTS, demo_files
        from odf_tui.widgets.dialogs import ConfirmDialog

        files = len(await asyncio.to_thread(demo_files)) - len(MANIFESTS)
        remarks = (
            f"It writes {format_count(files)} files to sources/, "
            f"{format_count(len(MANIFESTS))} to manifests/,",
            "and adds the datasets of a small harbour town.",
            "They are pulled and verified: pane 4 shows how.",
            "No network is needed. Spark takes a moment to start.",
        )
        if not await self.app.push_screen_wait(ConfirmDialog("Make the demo in this workspace?", *remarks)):
            self.notify_line("nothing was written", "warn")
            return
        requests = await asyncio.to_thread(self.source.make_demo)
        self.submit(requests)
        self.notify_line("the demo is here; pane 4 shows how its datasets are pulled and verified")
        self.reads.datasets()
        if self.has_class("-narrow"):
            self.go_to(PANES[-1])  # the jobs take the place of the rows, below the graph
        for _ in range(_TICKS):
            if len(self.book.active_jobs()) >= len(requests):
                break
            await asyncio.sleep(_TICK_SECONDS)
        self.jobs_pane.view.move("last")  # the one that runs first was made first
