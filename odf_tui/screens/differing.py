"""The part of the workbench that compares versions of datasets."""

from __future__ import annotations

from odf_tui.screens.places import Places
from odf_tui.screens.waiting import Waiting


class DifferingPart(Waiting, Places):
    """The part of the workbench that compares versions of datasets."""

    def do_differences(self) -> None:
        """Not yet."""
        self.notify_line("versions cannot be compared yet", "warn")
