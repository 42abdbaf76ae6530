"""The part of the workbench that goes back in time: rows as at a block, or as of an event time."""

from __future__ import annotations

from odf_tui.screens.places import Places
from odf_tui.screens.waiting import Waiting


class TravellingPart(Waiting, Places):
    """The part of the workbench that goes back in time: rows as at a block, or as of an event time."""

    def do_travel(self) -> None:
        """Not yet."""
        self.notify_line("rows cannot be seen at other times yet", "warn")
