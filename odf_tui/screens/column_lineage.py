"""The part of the workbench that shows which columns feed which."""

from __future__ import annotations

from odf_tui.screens.places import Places
from odf_tui.screens.waiting import Waiting


class ColumnLineagePart(Waiting, Places):
    """The part of the workbench that shows which columns feed which."""

    def do_column_lineage(self) -> None:
        """Not yet."""
        self.notify_line("columns cannot be followed yet", "warn")
