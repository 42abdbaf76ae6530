"""Going to datasets, blocks and rows, and back again."""

from __future__ import annotations

from typing import Final, NamedTuple

from odf_tui.actions.model import PANES
from odf_tui.screens.base import Parts
from odf_tui.state.model import Target

_MAX_TRAIL: Final = 100


class TrailEntry(NamedTuple):
    """Where somebody was: a dataset, a pane, a block or row in it; and whether the block was being read."""

    dataset: str
    pane: str
    at: int
    reading: bool = False


class Navigator(Parts):
    """The part of the workbench that goes to places.

    Attributes:
        target: a place to go to as soon as its dataset's blocks or rows are there.
        trail: from where links were followed, the newest last.
    """

    target: Target | None = None
    trail: tuple[TrailEntry, ...] = ()

    def select_dataset(self, dataset: str) -> None:
        """Selects a dataset, and shows it even if the filter hid it."""
        pane = self.datasets_pane
        if pane.filter and all(row.id != dataset for row in pane.shown):
            pane.set_filter("")
        self.go_to(PANES[0])
        pane.view.select(dataset)

    def follow(self, target: Target) -> None:
        """Goes to a block, a row or a dataset; :meth:`return_to_spot` comes back."""
        spot = self.here()
        if spot is not None:
            self.trail = (*self.trail, spot)[-_MAX_TRAIL:]
        self._go(target)

    def _go(self, target: Target) -> None:
        self.select_dataset(target.dataset)
        if target.pane == "datasets":
            return
        self.go_to(target.pane)
        if target.pane == "blocks":
            self.blocks_pane.kinds = ()
        if self.front.filter or target.pane == "blocks":
            self.front.set_filter("")
        self.target = target
        self.arrive()

    def here(self) -> TrailEntry | None:
        """Where one is."""
        row = self.graph.row
        if row is None:
            return None
        block = self.blocks_pane.view.block
        if self.pane == "blocks" and block is not None:
            return TrailEntry(row.id, "blocks", block.sequence_number)
        return TrailEntry(row.id, self.pane, self.data_pane.view.cursor if self.pane == "data" else 0)

    def return_to_spot(self) -> TrailEntry | None:
        """Goes back to where a link was followed from; None when none was."""
        if not self.trail:
            return None
        *before, spot = self.trail
        self.trail = tuple(before)
        if spot.pane == "blocks":
            self._go(Target(spot.dataset, "blocks", spot.at))
        elif spot.pane == "data":
            self._go(Target(spot.dataset, "data", spot.at))
        else:
            self.select_dataset(spot.dataset)
            self.go_to(spot.pane)
        return spot

    def arrive(self) -> None:
        """Puts the cursor on the target, if it can be shown already."""
        target = self.target
        if target is None:
            return
        if target.pane == "blocks" and self.blocks_pane.view.dataset == target.dataset:
            view = self.blocks_pane.view
            index = view.index_of(target.at)
            if index is None:
                return
            view.go(index)
        elif target.pane == "data" and self.data_pane.shows(target.dataset):
            self.data_pane.view.go(target.at)
        else:
            return
        self.target = None

    def copy_text(self, what: str, text: str) -> None:
        """Copies, and says by which way."""
        self.notify_line(f"{what}: {self.station.copy(text)}")
