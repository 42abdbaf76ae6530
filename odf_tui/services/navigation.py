"""Navigator: follows links to datasets, blocks and rows, and goes back along the trail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from odf_engine.api.model import Target
from odf_tui.state.app_state import AppState, Signal

_MAX_TRAIL: Final = 100


class TrailEntry(NamedTuple):
    """The position of a followed link.

    Attributes:
        dataset: id of the selected dataset.
        pane: the focused pane.
        at: the number of the block, or of the row from 0.
        reading: whether the block was open in a dialog.
        reopen: opens the dialog again that was open there.
    """

    dataset: str
    pane: str
    at: int = 0
    reading: bool = False
    reopen: Callable[[], object] | None = None


class Navigator:
    """Follows links, and goes back.

    Attributes:
        target: the pending target; it is reached once the blocks or rows of its dataset are loaded.
        trail: the positions of followed links, the newest last.

    Signals:
        going: sent before a link is followed.
        selecting: requests the selection of a dataset, by its id, even if the filter hides it.
        arriving: dataset and pane of a target are shown; its block or row may not be loaded yet.
        returned: the trail was followed back to this entry.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._locators: list[Callable[[], TrailEntry | None]] = []
        self.target: Target | None = None
        self.trail: tuple[TrailEntry, ...] = ()
        self.going = Signal[Target]()
        self.selecting = Signal[str]()
        self.arriving = Signal[Target]()
        self.returned = Signal[TrailEntry]()

    def add_locator(self, locator: Callable[[], TrailEntry | None]) -> None:
        """Add a function that returns the position in a pane, or None if another pane has the focus."""
        self._locators.append(locator)

    def select_dataset(self, dataset: str) -> None:
        """Focus the datasets and select one of them, even if the filter hides it."""
        self._state.focus_pane("datasets")
        self.selecting.send(dataset)

    def follow(self, target: Target, reopen: Callable[[], object] | None = None) -> None:
        """Go to a block, a row or a dataset, and add the current position to the trail.

        Args:
            target: the block, row or dataset.
            reopen: called by :meth:`back`, to open the current dialog again.
        """
        self.going.send(target)
        position = self._locate()
        if position is not None:
            self.trail = (*self.trail, position._replace(reopen=reopen))[-_MAX_TRAIL:]
        self._show_target(target)

    def back(self) -> None:
        """Go back to the position of the last followed link."""
        if not self.trail:
            return
        *before, entry = self.trail
        self.trail = tuple(before)
        if entry.pane in ("blocks", "data"):
            self._show_target(Target(entry.dataset, "blocks" if entry.pane == "blocks" else "data", entry.at))
        else:
            self.select_dataset(entry.dataset)
            self._state.focus_pane(entry.pane)
        self.returned.send(entry)
        if entry.reopen is not None:
            entry.reopen()

    def target_in(self, pane: str, dataset: str) -> Target | None:
        """Return the pending target if it is in this pane and dataset."""
        target = self.target
        return target if target is not None and (target.pane, target.dataset) == (pane, dataset) else None

    def clear_target(self) -> None:
        """Clear the pending target."""
        self.target = None

    def _show_target(self, target: Target) -> None:
        self.select_dataset(target.dataset)
        if target.pane != "datasets":
            self._state.focus_pane(target.pane)
            self.target = target
        self.arriving.send(target)

    def _locate(self) -> TrailEntry | None:
        entries = (locator() for locator in reversed(self._locators))
        entry = next((candidate for candidate in entries if candidate is not None), None)
        row = self._state.row
        return entry or (None if row is None else TrailEntry(row.id, self._state.pane))
