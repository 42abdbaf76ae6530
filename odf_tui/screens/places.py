"""Going to datasets, blocks and rows, and reading blocks, whose inputs lead on to others."""

from __future__ import annotations

from functools import partial

from textual import on

from odf_tui.actions import PANES
from odf_tui.messages import BlockRead
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

    # --- Blocks ---

    def do_open_block(self) -> None:
        """Reads the block under the cursor."""
        view = self.blocks_pane.view
        if view.block is not None:
            self.reads.block(view.dataset, view.block.sequence_number)

    @on(BlockRead)
    def _block_read(self, message: BlockRead) -> None:
        """Shows a block that was read; in the same dialog when one is open."""
        from odf_tui.screens.blocks import BlockReader

        if message.block is None:
            self.notify_line(message.error, "bad")
            return
        name = next((row.name for row in self.rows if row.id == message.dataset), message.dataset)
        title = f"{name} · block {message.sequence_number}"
        reader = self.app.screen
        if isinstance(reader, BlockReader):
            reader.open(title, message.dataset, message.block)
        else:
            copy = partial(self.copy_text, "text")
            self.app.push_screen(
                BlockReader(title, message.dataset, message.block, copy, self._step_block, self.follow)
            )

    def _step_block(self, by: int) -> None:
        """The next newer (1) or older (-1) block."""
        view = self.blocks_pane.view
        view.go(view.cursor - by)
        self.do_open_block()

    def copy_text(self, what: str, text: str) -> None:
        """Copies, and says by which way."""
        self.notify_line(f"{what}: {self.station.copy(text)}")
