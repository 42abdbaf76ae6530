"""The part of the workbench that shows where rows come from."""

from __future__ import annotations

from odf_tui.screens.places import Places
from odf_tui.screens.waiting import Waiting


class TracingPart(Waiting, Places):
    """The part of the workbench that shows where rows come from."""

    def do_trace(self) -> None:
        """Not yet."""
        self.notify_line("rows cannot be traced yet", "warn")
