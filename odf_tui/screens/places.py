"""Going to datasets, blocks and rows, and reading blocks, whose inputs lead on to others."""

from __future__ import annotations

from odf_tui.actions import PANES
from odf_tui.screens.base import Parts
from odf_tui.state import Target


class Places(Parts):
    """The part of the workbench that goes to places.

    Attributes:
        target: a place to go to as soon as its dataset's blocks or rows are there.
    """

    target: Target | None = None

    def select_dataset(self, dataset: str) -> None:
        """Selects a dataset, and shows it even if the filter hid it."""
        pane = self.datasets_pane
        if pane.filter and all(row.id != dataset for row in pane.shown):
            pane.set_filter("")
        self.go_to(PANES[0])
        pane.view.select(dataset)

    def follow(self, target: Target) -> None:
        """Goes to a block or a row of a dataset."""
        self.select_dataset(target.dataset)
        self.go_to(target.pane)
        if self.front.filter:
            self.front.set_filter("")
        self.target = target
        self.arrive()

    def arrive(self) -> None:
        """Puts the cursor on the target, if it can be shown already."""
        target = self.target
        if target is None:
            return
        if target.pane == "blocks" and self.blocks_pane.view.dataset == target.dataset:
            view = self.blocks_pane.view
            view.go(view.total - 1 - target.at)
        elif target.pane == "data" and self.data_pane.shows(target.dataset):
            self.data_pane.view.go(target.at)
        else:
            return
        self.target = None

    def copy_text(self, what: str, text: str) -> None:
        """Copies, and says by which way."""
        self.notify_line(f"{what}: {self.station.copy(text)}")
