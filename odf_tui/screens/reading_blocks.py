"""Reading one block: in words, as YAML, what it changed, its bytes; and following what it names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from textual import on

from odf_tui.panes.blocks.controller import BlockAnswer
from odf_tui.screens.places import TrailEntry
from odf_tui.screens.verbs import Verbs
from odf_tui.state.model import (
    BlockBytes,
    BlockDocument,
    BlockLink,
    BlockRef,
    CheckpointFacts,
    Revision,
    Target,
)
from odf_tui.text.format import format_count

if TYPE_CHECKING:
    from odf_tui.panes.blocks.block_dialogs import BlockDialog

T = TypeVar("T")


class BlockReading(Verbs):
    """The part of the workbench that reads blocks."""

    # --- Asking the engine ---

    def ask_blocks(self, group: str, read: Callable[[], T], then: Callable[[T | None, str], None]) -> None:
        """Reads something in a thread, then goes on with it, or with why it could not be read."""
        self.reads.start(group, read, lambda found, error: BlockAnswer(then, found, error))

    @on(BlockAnswer)
    def _answered(self, message: BlockAnswer) -> None:
        message.then(message.found, message.error)

    # --- One block ---

    def do_open_block(self) -> None:
        """Reads the block under the cursor."""
        view = self.blocks_pane.view
        if view.block is not None:
            self.read_block(
                view.dataset, view.block.hash if view.block.broken else view.block.sequence_number
            )

    def read_block(self, dataset: str, which: BlockRef) -> None:
        """Reads a block, and shows it; in the same dialog when one is open."""
        self.ask_blocks("text", lambda: self.source.block(dataset, which), partial(self._show_block, dataset))

    def _show_block(self, dataset: str, block: BlockDocument | None, error: str) -> None:
        from odf_tui.panes.blocks.block_dialogs import BlockDialog

        if block is None:
            self.notify_line(error, "bad")
            return
        finding = self.blocks_pane.view.findings.get(block.hash)
        wrong = "" if finding is None else f"{finding.kind}: {finding.message}"
        title = self._title(dataset, block.number, block.hash)
        reader = self.app.screen
        if isinstance(reader, BlockDialog):
            reader.open(title, dataset, block, wrong)
        elif reader is self:
            self.app.push_screen(
                BlockDialog(title, dataset, block, wrong, partial(self.copy_text, "text"), self)
            )

    def _title(self, dataset: str, number: int | None, block: str = "") -> str:
        name = next((row.name for row in self.rows if row.id == dataset), dataset)
        line = self.blocks_pane.view.block
        if number is None and line is not None and line.hash == block and line.sequence_number >= 0:
            number = line.sequence_number
        return f"{name} · block {'?' if number is None else number}"

    def step_block(self, by: int) -> None:
        """The next newer (1) or older (-1) block."""
        view = self.blocks_pane.view
        view.go(view.cursor - by)
        number = view.total - 1 - view.cursor
        if view.block is None and not view.want and not view.broken:
            self.read_block(view.dataset, number)  # the list has not read it yet
        else:
            self.do_open_block()

    # --- Following ---

    def follow_link(self, reader: BlockDialog, link: BlockLink) -> None:
        """Goes where a link leads; a block is read in the same dialog, and so is a checkpoint."""
        if link.target is not None:
            self.follow(link.target)
            return
        at = reader.number if reader.number is not None else 0
        show = partial(self._show_checkpoint, reader)
        self.ask_blocks("text", lambda: self.source.checkpoint(reader.dataset, link.text, at), show)

    def _show_checkpoint(self, reader: BlockDialog, facts: CheckpointFacts | None, error: str) -> None:
        if facts is None:
            self.notify_line(error, "bad")
        elif self.app.screen is reader:
            reader.show_checkpoint(facts)

    def here(self) -> TrailEntry | None:
        """Where one is: the block that is being read, or the cursor of the pane."""
        from odf_tui.panes.blocks.block_dialogs import BlockDialog

        reader = self.app.screen
        if isinstance(reader, BlockDialog) and reader.number is not None:
            return TrailEntry(reader.dataset, "blocks", reader.number, reading=True)
        return super().here()

    def follow(self, target: Target) -> None:
        """Goes to a place; where a block is being read, a block is read there."""
        from odf_tui.panes.blocks.block_dialogs import BlockDialog

        reader = self.app.screen
        super().follow(target)
        if not isinstance(reader, BlockDialog):
            return
        if target.pane == "blocks":
            self.read_block(target.dataset, target.at)
        else:
            reader.dismiss(None)

    def do_back(self) -> None:
        """Back to where a link was followed from."""
        from odf_tui.panes.blocks.block_dialogs import BlockDialog

        spot = self.return_to_spot()
        if spot is None:
            return
        if spot.reading:
            self.read_block(spot.dataset, spot.at)
        elif isinstance(self.app.screen, BlockDialog):
            self.app.screen.dismiss(None)

    # --- What changed, and the bytes ---

    def _which(self) -> tuple[str, BlockRef] | None:
        """The block that is being read, or that under the cursor."""
        from odf_tui.panes.blocks.block_dialogs import BlockDialog

        reader, view = self.app.screen, self.blocks_pane.view
        if isinstance(reader, BlockDialog):
            return reader.dataset, reader.which
        if view.block is None:
            return None
        return view.dataset, view.block.hash if view.block.broken else view.block.sequence_number

    def do_diff_block(self) -> None:
        """What a block changed of a query, source, schema or description."""
        if (found := self._which()) is not None:
            self.read_revision(*found)

    def read_revision(self, dataset: str, which: BlockRef) -> None:
        """Reads a revision, and shows it; in the same dialog when one is open."""
        show = partial(self._show_revision, dataset)
        self.ask_blocks("text", lambda: self.source.revision(dataset, which), show)

    def _show_revision(self, dataset: str, revision: Revision | None, error: str) -> None:
        from odf_tui.panes.blocks.block_dialogs import RevisionDialog

        if revision is None:
            self.notify_line(error, "warn")
            return
        title = f"{self._title(dataset, revision.number)} · {revision.title}"
        reader = self.app.screen
        if isinstance(reader, RevisionDialog):
            reader.open(title, revision)
            return
        go = partial(self.read_revision, dataset)
        self.app.push_screen(RevisionDialog(title, revision, partial(self.copy_text, "text"), go))

    def do_block_bytes(self) -> None:
        """The bytes of a block."""
        if (found := self._which()) is not None:
            self.read_bytes(*found)

    def read_bytes(self, dataset: str, which: BlockRef) -> None:
        """Reads the bytes of a block, and shows them."""
        show = partial(self._show_bytes, dataset)
        self.ask_blocks("text", lambda: self.source.block_bytes(dataset, which), show)

    def _show_bytes(self, dataset: str, found: BlockBytes | None, error: str) -> None:
        from odf_tui.panes.blocks.block_dialogs import BlockBytesDialog

        if found is None:
            self.notify_line(error, "bad")
            return
        title = f"{self._title(dataset, found.number, found.hash)} · {format_count(len(found.data))} bytes"
        reader: Any = self.app.screen
        if isinstance(reader, BlockBytesDialog):
            reader.open(title, found)
            return
        last = next((row.blocks for row in self.rows if row.id == dataset), 0) - 1

        def go(number: int) -> None:
            if 0 <= number <= last:
                self.read_bytes(dataset, number)

        self.app.push_screen(BlockBytesDialog(title, found, partial(self.copy_text, "bytes"), go))
