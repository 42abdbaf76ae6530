"""Pane 2: reading blocks, whose inputs lead on to others."""

from __future__ import annotations

from functools import partial

from textual import on

from odf_tui.messages import BlockRead, BlocksRead, BlocksWanted
from odf_tui.screens.places import Places


class BlocksPart(Places):
    """The part of the workbench about blocks."""

    # --- What is learnt ---

    @on(BlocksWanted)
    def _blocks_wanted(self, message: BlocksWanted) -> None:
        self.reads.blocks(message.dataset, message.limit, message.before, message.text)

    @on(BlocksRead)
    def _blocks_read(self, message: BlocksRead) -> None:
        if message.dataset == self.blocks_pane.view.dataset:
            self.blocks_pane.view.take(message.blocks, message.text, message.error)

    # --- What is done ---

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
