"""What pane 2 reads of one block: what it changed, its bytes, its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from odf_engine.chain.dataset import Dataset
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_tui.chain_state import REVISED, BlockBytes, CheckpointFacts, Piece, Revision, Which
from odf_tui.engine.base import Entries

_PAGE: Final = 50
_LOOKED: Final = 2000


class RevisionReads(Entries):
    """Reads blocks one by one."""

    def hash_of(self, chain: Dataset, which: Which) -> Multihash:
        """The hash of a block; of the newest one for no hash, which an error may have hidden."""
        if which == "":
            head = chain.head()
            if head is None:
                raise NotFound("this chain has no blocks")
            return head
        if isinstance(which, str):
            return Multihash.parse(which)
        rows = chain.list_blocks(1, before=which + 1)
        if not rows or rows[0].sequence_number != which:
            raise NotFound(f"there is no block {which} in this dataset")
        return rows[0].hash

    def revision(self, dataset: str, which: Which) -> Revision:
        """What a block changed, against the one before it of the same kind.

        Raises:
            UsageError: blocks of this kind change nothing that has revisions.
        """
        from odf_tui.revisions import difference

        chain = self.entry(dataset).dataset
        stored = chain.block(self.hash_of(chain, which))
        event, number = stored.block.event, stored.block.sequence_number
        kind = model.kind_of(event)
        if kind not in REVISED:
            raise UsageError(
                f"block {number} is {kind}: only queries, sources, schemas and descriptions change"
            )
        older = next(_older(chain, event, number), None)
        before = None if older is None else chain.block(older).block.event
        names = {each.id: str(each.alias) for each in self.workspace.datasets()}
        name = getattr(event, "source_name", None)
        return Revision(
            title=kind if name is None else f"{kind} '{name}'",
            number=number,
            before=older,
            older=older,
            newer=_newer(chain, event, number),
            lines=tuple(difference(event, before, names)),
        )

    def block_bytes(self, dataset: str, which: Which) -> BlockBytes:
        """The bytes of a block, with the fields that lie in them."""
        from odf_engine.metadata.block_layout import parse_block_layout

        chain = self.entry(dataset).dataset
        block_hash = self.hash_of(chain, which)
        data = chain.block_bytes(block_hash)
        anatomy = parse_block_layout(data)
        problems = []
        if Multihash.sha3_256(data) != block_hash:
            problems.append("these are not the bytes that its hash was made of")
        if (fault := anatomy.fault) is not None:
            problems.append(f"at {fault.at:#06x}, {fault.path or 'manifest'}: {fault.message}")
        pieces = (Piece(span.start, span.end, span.path, span.text, span.value) for span in anatomy.spans)
        number = which if isinstance(which, int) else None
        return BlockBytes(number, str(block_hash), data, tuple(pieces), "; ".join(problems))

    def checkpoint(self, dataset: str, checkpoint: str, at: int) -> CheckpointFacts:
        """What is known of a checkpoint that block ``at`` names."""
        chain = self.entry(dataset).dataset
        wanted = Multihash.parse(checkpoint)
        size, made_by, sure = _first_with(chain, wanted, at)
        try:
            on_disk = chain.checkpoint_path(wanted).stat().st_size
        except OSError:
            on_disk = None
        return CheckpointFacts(checkpoint, size, made_by, sure, on_disk)


def _older(chain: Dataset, event: Any, number: int) -> Iterator[int]:
    """Blocks before a number that said the same kind of thing, newest first."""
    kind, name = model.kind_of(event), getattr(event, "source_name", None)
    before = number
    while rows := chain.list_blocks(_PAGE, before=before, kinds={kind}):
        for row in rows:
            if name is None or getattr(chain.block(row.hash).block.event, "source_name", None) == name:
                yield row.sequence_number
        before = rows[-1].sequence_number


def _newer(chain: Dataset, event: Any, number: int) -> int | None:
    newest = chain.state().sequence_number + 1
    found = None
    for each in _older(chain, event, newest):
        if each <= number:
            break
        found = each
    return found


def _first_with(chain: Dataset, wanted: Multihash, at: int) -> tuple[int | None, int | None, bool]:
    """Size of a checkpoint, the oldest block of those in a row that have it, and whether that is sure."""
    size, first, looked, before = None, None, 0, at + 1
    while rows := chain.list_blocks(_PAGE, before=before, kinds={"AddData", "ExecuteTransform"}):
        for row in rows:
            try:
                event: Any = chain.block(row.hash).block.event
            except OdfError:
                return size, first, False
            new: model.Checkpoint | None = event.new_checkpoint
            if new is not None and new.physical_hash == wanted:
                size, first = new.size, row.sequence_number
            elif first is not None:
                return size, first, True
            looked += 1
            if looked >= _LOOKED:
                return size, first, False
        before = rows[-1].sequence_number
    return size, first, first is not None
