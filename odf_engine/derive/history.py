"""The transactions of a derivative dataset, and the earlier transactions of its state."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec.structs import replace as structs_replace

from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.normal_form import allowed_lateness
from odf_engine.chain.state import ChainState, classify_transaction
from odf_engine.derive.plan import Transaction, transaction_of_block
from odf_engine.errors import BadData
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import (
    Checkpoint,
    ExecuteTransform,
    ExecuteTransformInput,
    SetTransform,
    Watermark,
)
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

_PAGE: Final = 100
MAX_TRANSACTIONS: Final = 1000
"""Maximum number of earlier transactions of a state."""


@dataclass(frozen=True)
class TransactionHistory:
    """A transaction, and the earlier transactions of its state.

    Attributes:
        entry: the derivative dataset.
        block: block of the transaction.
        event: event of the block.
        transform: the query of the transaction.
        before: earlier transactions that contributed to its state, oldest first.
        complete: whether ``before`` is complete; otherwise there are more than :data:`MAX_TRANSACTIONS`.
    """

    entry: DatasetEntry
    block: StoredBlock
    event: ExecuteTransform
    transform: SetTransform
    before: Sequence[tuple[StoredBlock, ExecuteTransform]]
    complete: bool

    @property
    def kind(self) -> str:
        """``execute``, ``finish`` or ``rebuild``."""
        return classify_transaction(self.event)

    @property
    def keeps_state(self) -> bool:
        """Whether it continues from a checkpoint or writes one."""
        return self.event.prev_checkpoint is not None or self.event.new_checkpoint is not None

    @property
    def carries_state(self) -> bool:
        """Whether it left the checkpoint unchanged."""
        after = self.event.new_checkpoint
        return after is not None and after.physical_hash == self.event.prev_checkpoint

    def intervals(self) -> list[tuple[int, int] | None]:
        """Return the offset range of each input that can have contributed to the result, or None if empty."""
        begins = self._start_offsets()
        ranges: list[tuple[int, int] | None] = []
        for begin, item in zip(begins, self.event.query_inputs, strict=True):
            end = item.last_offset
            ranges.append(None if end is None or end < begin else (begin, end))
        return ranges

    def _start_offsets(self) -> list[int]:
        first = self.before[0][1] if self.before else self.event
        if not self.complete or classify_transaction(first) == "rebuild":
            return [0] * len(self.event.query_inputs)
        begins = [0 if item.prev_offset is None else item.prev_offset + 1 for item in first.query_inputs]
        return begins if len(begins) == len(self.event.query_inputs) else [0] * len(self.event.query_inputs)

    def transaction(self, workspace: Workspace) -> Transaction:
        """Return the transaction, ready to run again.

        Raises:
            OdfError: an input is missing or has changed.
        """
        state = _state_before(self.entry, self.block, self.event, self.transform)
        return transaction_of_block(workspace, self.entry, state, self.event, self.block.block.system_time)

    def earlier_transactions(self, workspace: Workspace) -> Transaction | None:
        """Return the earlier transactions merged into one, or None if it continues from no state.

        The rows of a stateful query do not depend on how its inputs are split into transactions. Only the end
        of a transaction matters.

        Raises:
            OdfError: an input is missing or has changed.
        """
        return _merge_transactions(workspace, self.entry, self.transform, self.before)


def transaction_history(
    entry: DatasetEntry, number: int, limit: int | None = MAX_TRANSACTIONS
) -> TransactionHistory:
    """Return the transaction of block ``number`` with at most ``limit`` earlier transactions of its state.

    Raises:
        BadData: the block has no transaction, or no query.
    """
    stored = entry.dataset.block(number)
    event = stored.block.event
    (row,) = entry.dataset.list_blocks(1, before=number, kinds=("SetTransform",)) or (None,)
    transform = None if row is None else entry.dataset.block(row.hash).block.event
    if not isinstance(event, ExecuteTransform) or not isinstance(transform, SetTransform):
        raise BadData(f"block {number} of {entry.alias} has rows but no query")
    before: list[tuple[StoredBlock, ExecuteTransform]] = []
    complete = True
    if classify_transaction(event) != "rebuild":
        for transaction in _earlier_transactions(entry, number, event):
            if len(before) == limit:
                complete = False
                break
            before.append(transaction)
    return TransactionHistory(entry, stored, event, transform, before[::-1], complete)


def transactions_of_state(workspace: Workspace, transaction: Transaction) -> Transaction | None:
    """Return the transactions that produced the state before a transaction, merged into one without a state.

    None if their inputs had no blocks.

    Raises:
        OdfError: an input is missing or has changed.
    """
    entry, number = transaction.entry, transaction.state.sequence_number + 1
    rows = entry.dataset.list_blocks(1, before=number, kinds=("ExecuteTransform",))
    if not rows:
        return None
    history = transaction_history(entry, rows[0].sequence_number, limit=None)
    executed = [*history.before, (history.block, history.event)]
    return _merge_transactions(workspace, entry, transaction.transform, executed)


def without_state(transaction: Transaction) -> Transaction:
    """Return a transaction that continues from no state."""
    return replace(transaction, state=structs_replace(transaction.state, last_checkpoint=None))


def _merge_transactions(
    workspace: Workspace,
    entry: DatasetEntry,
    transform: SetTransform,
    executed: Sequence[tuple[StoredBlock, ExecuteTransform]],
) -> Transaction | None:
    """Return the transactions of a state as one, or None if there are none, or their inputs had no blocks."""
    if not executed:
        return None
    (block, first), (last_block, last) = executed[0], executed[-1]
    state = _state_before(entry, block, first, transform)
    from_start = classify_transaction(first) == "rebuild"
    if from_start:
        state = structs_replace(state, watermark=None)
    inputs = [
        _merge_intervals(begin, end, from_start=from_start)
        for begin, end in zip(first.query_inputs, last.query_inputs, strict=True)
    ]
    if not any(item.new_block_hash for item in inputs):
        return None
    merged = structs_replace(first, query_inputs=inputs, new_checkpoint=last.new_checkpoint)
    whole = transaction_of_block(workspace, entry, state, merged, last_block.block.system_time)
    parts = _split_by_transform(entry, executed)
    if len({str(allowed_lateness(query.transform)) for query, _ in parts}) < 2:
        return whole
    # Each watermark has the allowed lateness of its time.
    explicit: list[list[Watermark]] = [[] for _ in whole.inputs]
    for number, (own, part) in enumerate(parts):
        own_state = structs_replace(state, transform=own)
        event = structs_replace(
            merged,
            query_inputs=[
                _merge_intervals(begin, end, from_start=from_start and number == 0)
                for begin, end in zip(part[0].query_inputs, part[-1].query_inputs, strict=True)
            ],
        )
        planned = transaction_of_block(workspace, entry, own_state, event, last_block.block.system_time)
        for watermarks, plan in zip(explicit, planned.inputs, strict=True):
            watermarks += plan.explicit
    return replace(
        whole,
        inputs=[
            replace(plan, explicit=watermarks)
            for plan, watermarks in zip(whole.inputs, explicit, strict=True)
        ],
    )


def _split_by_transform(
    entry: DatasetEntry, executed: Sequence[tuple[StoredBlock, ExecuteTransform]]
) -> list[tuple[SetTransform, list[ExecuteTransform]]]:
    """Return consecutive transactions of the same query, with the query."""
    rows = entry.dataset.list_blocks(sys.maxsize, kinds=("SetTransform",))
    parts: dict[Multihash, list[ExecuteTransform]] = {}
    for stored, event in executed:
        own = next(row.hash for row in rows if row.sequence_number < stored.block.sequence_number)
        parts.setdefault(own, []).append(event)
    parts_by_query: list[tuple[SetTransform, list[ExecuteTransform]]] = []
    for block, events in parts.items():
        transform = entry.dataset.block(block).block.event
        assert isinstance(transform, SetTransform)
        parts_by_query.append((transform, events))
    return parts_by_query


def _earlier_transactions(
    entry: DatasetEntry, number: int, event: ExecuteTransform
) -> Iterator[tuple[StoredBlock, ExecuteTransform]]:
    """Yield the earlier transactions of a state, newest first."""
    while event.prev_checkpoint is not None:
        rows = entry.dataset.list_blocks(_PAGE, before=number, kinds=("ExecuteTransform",))
        if not rows:
            return
        for row in rows:
            stored = entry.dataset.block(row.hash)
            assert isinstance(stored.block.event, ExecuteTransform)
            event, number = stored.block.event, row.sequence_number
            yield stored, event
            if event.prev_checkpoint is None or classify_transaction(event) == "rebuild":
                return


def _state_before(
    entry: DatasetEntry, block: StoredBlock, event: ExecuteTransform, transform: SetTransform
) -> ChainState:
    """Return the part of the chain's state before a block that a transaction requires."""
    rows = entry.dataset.list_blocks(1, before=block.block.sequence_number, kinds=("ExecuteTransform",))
    last = entry.dataset.block(rows[0].hash).block.event if rows else None
    before = event.prev_checkpoint
    checkpoint = None if before is None else Checkpoint(physical_hash=before, size=0)
    return structs_replace(
        entry.dataset.state(),
        transform=transform,
        watermark=last.new_watermark if isinstance(last, ExecuteTransform) else None,
        last_inputs=last.query_inputs if isinstance(last, ExecuteTransform) else None,
        last_checkpoint=checkpoint,
        last_offset=event.prev_offset,
    )


def _merge_intervals(
    first: ExecuteTransformInput, last: ExecuteTransformInput, *, from_start: bool
) -> ExecuteTransformInput:
    """Merge the intervals of an input from the first transaction to the last."""
    end_block, end_offset = last.last_block, last.last_offset
    begin_block, begin_offset = (None, None) if from_start else (first.prev_block_hash, first.prev_offset)
    return structs_replace(
        first,
        prev_block_hash=begin_block,
        prev_offset=begin_offset,
        new_block_hash=end_block if end_block != begin_block else None,
        new_offset=end_offset if end_offset != begin_offset else None,
    )
