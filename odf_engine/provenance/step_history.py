"""What made rows of a derivative dataset: a transaction, and those whose state it goes on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from odf_engine.chain.rows import StoredBlock
from odf_engine.chain.state import ChainState
from odf_engine.chain.transactions import kind_of_transaction
from odf_engine.errors import BadData
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    Checkpoint,
    ExecuteTransform,
    ExecuteTransformInput,
    SetTransform,
)
from odf_engine.transform.plan import Transaction, recorded_transaction
from odf_engine.workspace.traced import Run
from odf_engine.workspace.workspace import DatasetEntry, Workspace

_PAGE: Final = 100
MOST_TRANSACTIONS: Final = 1000
"""So many transactions back a state is followed."""


@dataclass(frozen=True)
class History:
    """A transaction, and when the state began that it goes on from.

    Attributes:
        entry: the dataset that was made.
        block: of the transaction.
        event: what it says.
        transform: the query that ran.
        before: the transactions before it that went into its state, oldest first.
        complete: whether these are all; else there are more of them than are followed.
    """

    entry: DatasetEntry
    block: StoredBlock
    event: ExecuteTransform
    transform: SetTransform
    before: Sequence[tuple[StoredBlock, ExecuteTransform]]
    complete: bool

    @property
    def kind(self) -> str:
        """Whether the query was executed, or its state finished or rebuilt."""
        return kind_of_transaction(self.event)

    @property
    def keeps_state(self) -> bool:
        """Whether it goes on from a state or leaves one."""
        return self.event.prev_checkpoint is not None or self.event.new_checkpoint is not None

    @property
    def carries_state(self) -> bool:
        """Whether it left the very state that it found."""
        after = self.event.new_checkpoint
        return after is not None and after.physical_hash == self.event.prev_checkpoint

    def intervals(self) -> list[Run | None]:
        """The rows of each input that may have gone into the result, all of them.

        None where there were none.
        """
        begins = self._begins()
        found: list[Run | None] = []
        for begin, item in zip(begins, self.event.query_inputs, strict=True):
            end = item.prev_offset if item.new_offset is None else item.new_offset
            found.append(None if end is None or end < begin else (begin, end))
        return found

    def _begins(self) -> list[int]:
        first = self.before[0][1] if self.before else self.event
        if not self.complete or kind_of_transaction(first) == "rebuild":
            return [0] * len(self.event.query_inputs)
        begins = [0 if item.prev_offset is None else item.prev_offset + 1 for item in first.query_inputs]
        return begins if len(begins) == len(self.event.query_inputs) else [0] * len(self.event.query_inputs)

    def own(self, workspace: Workspace) -> Transaction:
        """The transaction itself, ready to be run again.

        Raises:
            OdfError: an input is not here, or is not what it was.
        """
        state = _state_before(self.entry, self.block, self.event, self.transform)
        return recorded_transaction(workspace, self.entry, state, self.event, self.block.block.system_time)

    def past(self, workspace: Workspace) -> Transaction | None:
        """The transactions before it as a single one; None where no state was gone on from.

        The rows of a query with state do not depend on how its inputs were taken in, only where a
        transaction ends does.

        Raises:
            OdfError: an input is not here, or is not what it was.
        """
        if not self.before:
            return None
        (block, first), (last_block, last) = self.before[0], self.before[-1]
        state = _state_before(self.entry, block, first, self.transform)
        anew = kind_of_transaction(first) == "rebuild"
        if anew:
            state = replace(state, watermark=None)
        inputs = [
            _joined(begin, end, anew=anew)
            for begin, end in zip(first.query_inputs, last.query_inputs, strict=True)
        ]
        whole = replace(first, query_inputs=inputs, new_checkpoint=last.new_checkpoint)
        if not any(item.new_block_hash for item in inputs):
            return None
        return recorded_transaction(workspace, self.entry, state, whole, last_block.block.system_time)


def histories(entry: DatasetEntry, runs: Sequence[Run]) -> Iterator[tuple[History, list[Run]]]:
    """The transactions that made rows, oldest first, each with which of the rows it made.

    Args:
        entry: a derivative dataset.
        runs: offsets of its rows, in ascending order.

    Raises:
        BadData: a block is not what it should be.
    """
    if not runs:
        return
    for row in entry.dataset.slices(runs[0][0], runs[-1][1]):
        own = [
            (max(first, row.start), min(last, row.end))
            for first, last in runs
            if first <= row.end and last >= row.start
        ]
        if own:
            yield _history(entry, row.sequence_number), own


def _history(entry: DatasetEntry, number: int) -> History:
    stored = entry.dataset.block(number)
    event = stored.block.event
    (row,) = entry.dataset.page(1, before=number, kinds=("SetTransform",)) or (None,)
    transform = None if row is None else entry.dataset.block(row.hash).block.event
    if not isinstance(event, ExecuteTransform) or not isinstance(transform, SetTransform):
        raise BadData(f"block {number} of {entry.alias} has rows, and no query that made them")
    before: list[tuple[StoredBlock, ExecuteTransform]] = []
    complete = True
    if kind_of_transaction(event) != "rebuild":
        for each in _back(entry, number, event):
            if len(before) == MOST_TRANSACTIONS:
                complete = False
                break
            before.append(each)
    return History(entry, stored, event, transform, before[::-1], complete)


def _back(
    entry: DatasetEntry, number: int, event: ExecuteTransform
) -> Iterator[tuple[StoredBlock, ExecuteTransform]]:
    """The transactions before one that went into its state, newest first."""
    while event.prev_checkpoint is not None:
        rows = entry.dataset.page(_PAGE, before=number, kinds=("ExecuteTransform",))
        if not rows:
            return
        for row in rows:
            stored = entry.dataset.block(row.hash)
            assert isinstance(stored.block.event, ExecuteTransform)
            event, number = stored.block.event, row.sequence_number
            yield stored, event
            if event.prev_checkpoint is None or kind_of_transaction(event) == "rebuild":
                return


def _state_before(
    entry: DatasetEntry, block: StoredBlock, event: ExecuteTransform, transform: SetTransform
) -> ChainState:
    """What of the chain's state before a block a transaction asks for."""
    rows = entry.dataset.page(1, before=block.block.sequence_number, kinds=("ExecuteTransform",))
    last = entry.dataset.block(rows[0].hash).block.event if rows else None
    return replace(
        entry.dataset.state(),
        transform=transform,
        watermark=last.new_watermark if isinstance(last, ExecuteTransform) else None,
        last_inputs=last.query_inputs if isinstance(last, ExecuteTransform) else None,
        last_checkpoint=_checkpoint(event.prev_checkpoint),
        last_offset=event.prev_offset,
    )


def _checkpoint(physical_hash: Multihash | None) -> Checkpoint | None:
    return None if physical_hash is None else Checkpoint(physical_hash=physical_hash, size=0)


def _joined(
    first: ExecuteTransformInput, last: ExecuteTransformInput, *, anew: bool
) -> ExecuteTransformInput:
    """What an input brought from the beginning of one transaction to the end of another."""
    end_block = last.new_block_hash or last.prev_block_hash
    end_offset = last.prev_offset if last.new_offset is None else last.new_offset
    begin_block, begin_offset = (None, None) if anew else (first.prev_block_hash, first.prev_offset)
    return replace(
        first,
        prev_block_hash=begin_block,
        prev_offset=begin_offset,
        new_block_hash=end_block if end_block != begin_block else None,
        new_offset=end_offset if end_offset != begin_offset else None,
    )
