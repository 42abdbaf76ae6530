"""The part of the workbench that shows which columns feed which."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from odf_tui.screens.places import Navigator
from odf_tui.screens.waiting import JobsClient

if TYPE_CHECKING:
    from odf_engine.workspace.column_lineage import ColumnGraph


class ColumnLineagePart(JobsClient, Navigator):
    """The part of the workbench that shows which columns feed which."""

    def do_column_lineage(self) -> None:
        """The columns of the selected dataset, from that under the cursor on where rows are shown."""
        from odf_tui.features.column_lineage import ColumnScreen

        row = self.graph.row
        if row is None:
            return

        async def read(dataset: str) -> ColumnGraph:
            return await asyncio.to_thread(self.source.column_graph, dataset)

        def ended(dataset: str | None) -> None:
            if dataset is not None and dataset != row.id:
                self.select_dataset(dataset)

        screen = ColumnScreen(row.id, row.name, self._column_here(row.id), read, self.copy_text)
        self.app.push_screen(screen, ended)

    def _column_here(self, dataset: str) -> str | None:
        """The column under the cursor of pane 3, if that has the keys."""
        pane = self.data_pane
        if self.pane != "data" or pane.window is None or not pane.shows(dataset):
            return None
        names = pane.window.columns.names
        return names[pane.view.column] if pane.view.column < len(names) else None
