"""The first minutes in an empty workspace: the demo."""

from __future__ import annotations

import asyncio

from odf_tui.actions import PANES
from odf_tui.humane import count
from odf_tui.screens.waiting import Waiting


class Beginning(Waiting):
    """The part of the workbench that makes the demo."""

    def do_make_demo(self) -> None:
        """Asks, and makes the demo in this workspace."""
        self.start(self._make_demo())

    async def _make_demo(self) -> None:
        from odf_tui.cli.demo_data import MANIFESTS, demo_files
        from odf_tui.screens.dialogs import Confirm

        files = len(await asyncio.to_thread(demo_files)) - len(MANIFESTS)
        remarks = (
            f"It writes {count(files)} files into sources/ and {count(len(MANIFESTS))} into manifests/,",
            "adds a small harbour town's datasets, pulls and verifies them.",
            "It needs no network. Starting Spark takes some seconds.",
        )
        if not await self.app.push_screen_wait(Confirm("Make the demo in this workspace?", *remarks)):
            self.notify_line("nothing was written", "warn")
            return
        requests = await asyncio.to_thread(self.source.make_demo)
        self.submit(requests)
        self.notify_line("the demo is here; pane 4 shows how its datasets are pulled and verified")
        self.reads.datasets()
        if self.has_class("-narrow"):
            self.go_to(PANES[-1])  # the jobs take the place of the rows, below the graph
