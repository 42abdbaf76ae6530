"""Signing a block as the dataset's owner."""

from __future__ import annotations

import asyncio

from odf_tui.screens.reading_blocks import BlockReading
from odf_tui.state.model import BlockSummary
from odf_tui.text.format import format_count


class Proving(BlockReading):
    """The part of the workbench that makes proofs of ownership."""

    def do_prove_block(self) -> None:
        """Signs the block under the cursor with the dataset's key, if that is here; asks before."""
        view = self.blocks_pane.view
        if view.block is not None:
            self.start(self._prove(view.dataset, view.block))

    async def _prove(self, dataset: str, block: BlockSummary) -> None:
        from odf_tui.widgets.dialogs import ConfirmDialog

        name = next((row.name for row in self.rows if row.id == dataset), dataset)
        if not await asyncio.to_thread(self.source.holds_key, dataset):
            self.notify_line(f"the key of {name} is not here: only who has it can sign as its owner", "warn")
            return
        view, number = self.blocks_pane.view, format_count(block.sequence_number)
        asked = ConfirmDialog(
            f"Sign block {number} as the owner?",
            f"of {name}",
            "You stand behind it and all blocks before it.",
            "The proof goes where the dataset goes."
            if block.sequence_number == view.total - 1
            else "Only the newest block's proof goes where the dataset goes.",
        )
        if not await self.app.push_screen_wait(asked):
            return
        await asyncio.to_thread(self.source.prove, dataset, block.hash)
        self.notify_line(f"block {number} of {name} is signed by its owner")
        if view.dataset == dataset:
            view.open(dataset, view.total)
        self.reads.datasets()
