"""Compaction: merges adjacent small slices of a root dataset in a new chain.

Blocks are immutable, so a compaction writes a new chain. It shares the blocks up to the first merged one with
the old chain, at least the Seed: the dataset has the same identity.

- **Merged**: adjacent AddData blocks of the same source, up to a number of rows and bytes. The new block has
  ``prevOffset`` and ``prevCheckpoint`` of the first, and system time, ``newWatermark``, ``newSourceState``
  and ``newCheckpoint`` of the last. Watermarks never decrease, and RFC-014 makes each data block repeat them,
  so the last one is the maximum. Totals of linked objects are added.
- **Not merged**: blocks of different sources (name, and whether they are pushes); a block with a source state
  and one without; blocks with other extra attributes; slices with different columns or types; large slices.
  Every other event stays as it is, and ends the blocks before it.
- **Unchanged**: all rows with their offsets, system times, event times and order. The folded state of the
  chain is equal, except for the head and the numbers of blocks, slices and bytes.
- **Derivative datasets cannot be compacted.** Each row has the system time of its transaction, so one
  transaction over the merged inputs would not produce the same rows, and no peer could verify it.

The old head remains under ``refs/compacted-TIME``. A :mod:`record <odf_engine.chain.compaction_record>`
contains the old blocks. By it, datasets derived from the old chain remain valid: their transactions are
verified with the block intervals and watermarks of the old chain, and with the rows of the new slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from odf_engine.base.atomic_files import translate_commit_errors
from odf_engine.base.files import remove_temporary
from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.block_summary import StoredBlock
from odf_engine.chain.compaction_record import RecordHeader, RecordStore, Replacement, pack_record
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.quarantine import Quarantine
from odf_engine.chain.state import next_block, push_state
from odf_engine.data.parquet.parquet_reader import parquet_errors, read_declared_schema
from odf_engine.data.parquet.slices import read_batches, write_stored_rows
from odf_engine.errors import BadData, Conflict, NoOpEvent, OdfError, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import encode_block
from odf_engine.metadata.model import AddData, DatasetKind, DataSlice, OffsetInterval
from odf_engine.metadata.object_links import has_totals, read_totals, totals_attribute
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.object_store import hash_file
from odf_engine.storage.refs import COMPACTED_PREFIX, COMPACTION_REF

DEFAULT_MAX_ROWS: Final = 10_000_000
DEFAULT_MAX_BYTES: Final = 256 << 20
_SMALL_SHARE: Final = 2
"""A slice with at least half of the maximum is not merged again, which bounds the work of repeated runs."""


class CompactionPolicy(msgspec.Struct, frozen=True):
    """The largest slices that a compaction writes, in rows and in bytes of the merged files."""

    max_rows: int = DEFAULT_MAX_ROWS
    max_bytes: int = DEFAULT_MAX_BYTES


class CompactionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction, or of a dry run.

    Attributes:
        old_head, new_head: the heads; equal without a change, and ``new_head`` is None for a dry run.
        old_blocks, new_blocks: the numbers of blocks of the chain. For a dry run, more blocks may remain:
            slices with different columns are not merged.
        old_slices, new_slices: the numbers of slices.
        merged_bytes: size of the slices that are replaced.
        written_bytes: size of the new slices, or 0 for a dry run.
        reference: the reference to the old head, or "" without a change.
    """

    old_head: Multihash
    new_head: Multihash | None
    old_blocks: int
    new_blocks: int
    old_slices: int
    new_slices: int
    merged_bytes: int = 0
    written_bytes: int = 0
    reference: str = ""


@dataclass
class BlockRun:
    """Adjacent blocks that become one; ``first`` and ``last`` are their sequence numbers."""

    first: int
    last: int
    head: AddData
    tail: AddData
    system_time: Timestamp
    linked: Any
    slices: list[DataSlice] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return self.last - self.first + 1


def merge_key(event: object) -> tuple[object, ...] | None:
    """Return the source of a block's rows; only equal ones are merged. None: never merged."""
    if not isinstance(event, AddData):
        return None
    extra = {} if event.extra is None else event.extra.entries
    if len(extra) > has_totals(event):
        return None
    state = event.new_source_state
    source = None if state is None else (state.source_name, push_state(event) is not None)
    return source, bool(extra)


def start_run(number: int, event: AddData, system_time: Timestamp) -> BlockRun:
    """Return the run of one block."""
    run = BlockRun(number, number, event, event, system_time, read_totals(event))
    _add_slice(run, event)
    return run


def extend_run(run: BlockRun, event: AddData, system_time: Timestamp) -> None:
    """Add the next block to a run."""
    run.last, run.tail, run.system_time = run.last + 1, event, system_time
    run.linked = run.linked.plus(read_totals(event))
    _add_slice(run, event)


def _add_slice(run: BlockRun, event: AddData) -> None:
    if event.new_data is not None:
        interval = event.new_data.offset_interval
        run.slices.append(event.new_data)
        run.rows += interval.end - interval.start + 1
        run.bytes += event.new_data.size


def merged_event(run: BlockRun, data: DataSlice | None) -> AddData:
    """Return the event of the block that replaces a run, with its slice, or None if the run has no rows."""
    return replace(
        run.tail,
        prev_checkpoint=run.head.prev_checkpoint,
        prev_offset=run.head.prev_offset,
        new_data=data,
        extra=None if run.tail.extra is None else totals_attribute(run.linked),
    )


def plan_runs(
    dataset: Dataset, head: Multihash, policy: CompactionPolicy, reporter: Reporter
) -> Iterator[BlockRun]:
    """Yield the runs of at least two blocks of the chain up to ``head``, oldest first.

    Raises:
        Unsupported: a block is from a newer specification and would have to be written again.
        NotFound, MalformedBlock: a block is missing or damaged.
    """
    run: BlockRun | None = None
    key: tuple[object, ...] | None = None
    hashes = dataset.query_index(lambda index, at: index.list_hashes(at))
    if not hashes or hashes[-1] != head:
        raise _moved(dataset)
    rewritten = False
    for number, block_hash in enumerate(hashes):
        reporter.raise_if_cancelled()
        if not number % 256:
            reporter.set_amounts(files=number, total_files=len(hashes))
        stored = dataset.block(block_hash)
        event, system_time = stored.block.event, stored.block.system_time
        own = merge_key(event)
        is_same_source = own is not None and own == key
        if run is not None and is_same_source and isinstance(event, AddData) and _fits(run, event, policy):
            _require_known(stored)
            extend_run(run, event, system_time)
            continue
        if run is not None and run.blocks > 1:
            rewritten = True
            yield run
        if rewritten:
            _require_known(stored)
        run = key = None
        if own is not None and isinstance(event, AddData) and _is_small(event.new_data, policy):
            run, key = start_run(number, event, system_time), own
    if run is not None and run.blocks > 1:
        yield run


def _fits(run: BlockRun, event: AddData, policy: CompactionPolicy) -> bool:
    data = event.new_data
    if data is None:
        return True
    rows = data.offset_interval.end - data.offset_interval.start + 1
    return (
        _is_small(data, policy)
        and run.rows + rows <= policy.max_rows
        and run.bytes + data.size <= policy.max_bytes
    )


def _is_small(data: DataSlice | None, policy: CompactionPolicy) -> bool:
    if data is None:
        return True
    rows = data.offset_interval.end - data.offset_interval.start + 1
    return rows * _SMALL_SHARE < policy.max_rows and data.size * _SMALL_SHARE < policy.max_bytes


def _require_known(stored: StoredBlock) -> None:
    if stored.unknown:
        raise Unsupported(
            f"the block has parts from a newer specification: {stored.unknown[0]}",
            where=f"block {stored.block.sequence_number}",
            hint="compact the dataset with a newer version of odf",
        )


def require_compactable(dataset: Dataset, alias: str) -> None:
    """Check that a dataset can be compacted.

    Raises:
        Unsupported: it is a derivative dataset.
    """
    if dataset.state().kind is not DatasetKind.Root:
        raise Unsupported(
            f"{alias} is a derivative dataset: only root datasets can be compacted",
            hint="to get fewer slices, create the dataset again from compacted inputs",
        )


def plan_compaction(dataset: Dataset, policy: CompactionPolicy, reporter: Reporter) -> CompactionOutcome:
    """Return the outcome that :func:`compact` would have. Changes nothing.

    Raises:
        Unsupported, NotFound, MalformedBlock: as :func:`plan_runs`.
    """
    reporter.phase("plan")
    state = dataset.state()
    runs = list(plan_runs(dataset, state.head, policy, reporter))
    return CompactionOutcome(
        old_head=state.head,
        new_head=None if runs else state.head,
        old_blocks=state.blocks,
        new_blocks=state.blocks - sum(run.blocks - 1 for run in runs),
        old_slices=state.slices,
        new_slices=state.slices - sum(max(0, len(run.slices) - 1) for run in runs),
        merged_bytes=sum(run.bytes for run in runs if len(run.slices) > 1),
    )


def compact(
    dataset: Dataset,
    policy: CompactionPolicy,
    reporter: Reporter,
    *,
    block_version: int = 3,
    private_key_pem: str | None = None,
) -> CompactionOutcome:
    """Compact a root dataset. Atomic, also on a crash: the head is the old or the new one.

    Args:
        dataset: the dataset.
        policy: the largest slices to write.
        reporter: receives progress; checked for cancellation.
        block_version: manifest version of the new blocks.
        private_key_pem: private key of the dataset, which signs the record; None: it is not signed.

    Raises:
        Conflict: the dataset has changed in the meantime; nothing is changed.
        BadData, NotFound: a slice is damaged or missing.
        Unsupported, MalformedBlock: as :func:`plan_runs`.
        Cancelled: nothing is changed.
    """
    planned_head = dataset.state().head
    reporter.phase("plan")
    runs = list(plan_runs(dataset, planned_head, policy, reporter))
    if not runs:
        return plan_compaction(dataset, policy, Reporter())
    with translate_commit_errors(dataset.folder), ExitStack() as stack:
        writer = _SliceWriter(dataset, reporter, stack)
        if not writer.follows(planned_head):
            raise _moved(dataset)
        total = sum(len(run.slices) for run in runs)
        reporter.phase("write")
        merged: dict[int, tuple[BlockRun, DataSlice | None]] = {}
        for run in runs:
            for part in writer.split(run):
                reporter.set_amounts(
                    files=writer.read_files, total_files=total, rows=writer.rows, bytes=writer.bytes
                )
                merged[part.first] = part, writer.write(part)
        merged = {first: entry for first, entry in merged.items() if entry[0].blocks > 1}
        if not merged:
            return plan_compaction(dataset, CompactionPolicy(0, 0), Reporter())
        chain = _NewChain(dataset, planned_head, reporter, block_version, private_key_pem)
        return chain.commit(merged, writer)


class _NewChain:
    """The new chain of one compaction."""

    def __init__(
        self,
        dataset: Dataset,
        old_head: Multihash,
        reporter: Reporter,
        block_version: int,
        private_key_pem: str | None,
    ) -> None:
        self._dataset, self._old_head, self._reporter = dataset, old_head, reporter
        self._version, self._key = block_version, private_key_pem
        self._before = dataset.state()
        if self._before.head != old_head:
            raise _moved(dataset)

    def commit(
        self,
        merged: dict[int, tuple[BlockRun, DataSlice | None]],
        writer: _SliceWriter,
    ) -> CompactionOutcome:
        """Write the blocks and the record, and move the head."""
        dataset, reporter = self._dataset, self._reporter
        reporter.phase("commit")
        hashes = dataset.query_index(lambda index, at: index.list_hashes(at))
        if hashes[-1] != self._old_head:
            raise _moved(dataset)
        first = min(merged)
        fork = hashes[first - 1]
        with Quarantine(dataset) as quarantine:
            quarantine.set_parent(fork)
            blocks = list(self._rewrite(quarantine, hashes, first, merged))
            state = quarantine.state
            assert state is not None
            self._check_state(state)
            created = Timestamp.now()
            header = RecordHeader(
                dataset_id=state.dataset_id,
                created=created,
                old_head=self._old_head,
                new_head=state.head,
                fork=fork,
                fork_number=first - 1,
                blocks=blocks,
                previous=dataset.newest_compaction(),
            )
            record = pack_record(header, map(dataset.block_bytes, hashes[first:]), self._key)
            time = created.to_datetime().strftime("%Y%m%dT%H%M%SZ")
            reference = f"{COMPACTED_PREFIX}{time}-{self._old_head.abbreviated}"

            def publish() -> None:
                writer.publish()
                RecordStore(dataset.folder).store(state.head, record)
                reporter.raise_if_cancelled()

            try:
                quarantine.commit(self._old_head, backup_ref=reference, before_move=publish)
            except Conflict:  # by another machine that uses the same store
                dataset.compactions.remove(state.head)
                raise
        try:
            dataset.set_reference(COMPACTION_REF, state.head)
        except (OSError, OdfError) as error:  # the head has moved; only other copies use the reference
            reason = error.message if isinstance(error, OdfError) else error.strerror
            reporter.log(f"refs/{COMPACTION_REF} cannot be written: {reason}", "warning")
        reporter.log(
            f"compacted {count_of(self._before.slices, 'slice')} to {state.slices:,}, "
            f"{count_of(self._before.blocks, 'block')} to {state.blocks:,}"
        )
        return CompactionOutcome(
            old_head=self._old_head,
            new_head=state.head,
            old_blocks=self._before.blocks,
            new_blocks=state.blocks,
            old_slices=self._before.slices,
            new_slices=state.slices,
            merged_bytes=writer.merged_bytes,
            written_bytes=writer.written_bytes,
            reference=reference,
        )

    def _rewrite(
        self,
        quarantine: Quarantine,
        hashes: Sequence[Multihash],
        first: int,
        merged: dict[int, tuple[BlockRun, DataSlice | None]],
    ) -> Iterator[Replacement]:
        """Write the blocks after the fork, and yield each with the last block that it replaces."""
        number = first
        while number < len(hashes):
            self._reporter.raise_if_cancelled()
            run, data = merged.get(number, (None, None))
            if run is not None:
                try:
                    block = self._append(quarantine, merged_event(run, data), run.system_time)
                except NoOpEvent:  # for example a source state that changed twice, back to the first
                    pass
                else:
                    yield Replacement(block, run.last)
                    number = run.last + 1
                    continue
            stored = self._dataset.block(hashes[number])
            yield Replacement(self._append(quarantine, stored.block.event, stored.block.system_time), number)
            number += 1

    def _append(self, quarantine: Quarantine, event: Any, system_time: Timestamp) -> Multihash:
        block = next_block(quarantine.state, event, system_time)
        data = encode_block(block, self._version)
        block_hash = Multihash.sha3_256(data)
        quarantine.store(block_hash, data)
        quarantine.append(StoredBlock(block_hash, block, self._version, len(data)))
        return block_hash

    def _check_state(self, state: Any) -> None:
        """Check that the new chain has the same state. A difference is a bug."""
        old = self._before
        expected = replace(
            old,
            head=state.head,
            sequence_number=state.sequence_number,
            slices=state.slices,
            data_size=state.data_size,
            not_understood=state.not_understood,
        )
        if state != expected or set(state.not_understood) != set(old.not_understood):
            raise OdfError(
                "the state of the compacted chain differs from that of the old one",
                where=str(self._dataset.folder),
                hint="nothing was changed; report this as a bug",
            )


class _SliceWriter:
    """Merges slices into staged files, which are removed on errors."""

    def __init__(self, dataset: Dataset, reporter: Reporter, stack: ExitStack) -> None:
        self._dataset, self._reporter, self._stack = dataset, reporter, stack
        self._vocabulary = dataset.state().vocabulary
        self._hashes = dataset.query_index(lambda index, at: index.list_hashes(at))
        self._staged: list[tuple[Multihash, Path]] = []
        self.read_files = self.rows = self.bytes = 0
        self.merged_bytes = self.written_bytes = 0

    def follows(self, head: Multihash) -> bool:
        """Return whether the chain with the slices ends with this block."""
        return bool(self._hashes) and self._hashes[-1] == head

    def split(self, run: BlockRun) -> Iterator[BlockRun]:
        """Yield the parts of a run whose slices have equal columns."""
        part: BlockRun | None = None
        seen: Any = None
        for number in range(run.first, run.last + 1):
            stored = self._dataset.block(self._hashes[number])
            event = stored.block.event
            assert isinstance(event, AddData)
            schema = None
            if event.new_data is not None:
                path = self._dataset.slice_path(event.new_data.physical_hash)
                try:
                    schema = read_declared_schema(path).remove_metadata()
                except FileNotFoundError:
                    raise BadData("the slice is missing", where=str(path), hint=_VERIFY) from None
                except parquet_errors() as error:
                    raise BadData(
                        f"the slice cannot be read: {error}", where=str(path), hint=_VERIFY
                    ) from error
            differs = schema is not None and seen is not None and not schema.equals(seen)
            if part is None or differs:
                if part is not None:
                    yield part
                part, seen = start_run(number, event, stored.block.system_time), schema
            else:
                extend_run(part, event, stored.block.system_time)
                seen = seen if schema is None else schema
        if part is not None:
            yield part

    def write(self, run: BlockRun) -> DataSlice | None:
        """Merge the slices of a run; return the new slice, or the only one of the run, or None.

        Raises:
            BadData: a slice does not match its hash, or has other offsets.
        """
        if len(run.slices) < 2 or run.blocks < 2:
            self.read_files += len(run.slices)
            return run.slices[0] if run.slices else None
        staged = self._dataset.staging_path("data")
        self._stack.callback(remove_temporary, staged)
        written = write_stored_rows(
            self._batches(run.slices), vocab=self._vocabulary, path=staged, reporter=self._reporter
        )
        start, end = run.slices[0].offset_interval.start, run.slices[-1].offset_interval.end
        if written.rows != end - start + 1:
            raise BadData(
                f"the slices have {written.rows:,} rows, expected {end - start + 1:,}",
                where=str(self._dataset.folder),
                hint=_VERIFY,
            )
        self._staged.append((written.physical_hash, staged))
        self.merged_bytes += run.bytes
        self.written_bytes += written.size
        return DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=OffsetInterval(start, end),
            size=written.size,
        )

    def _batches(self, slices: Sequence[DataSlice]) -> Iterator[Any]:
        for data_slice in slices:
            self._reporter.raise_if_cancelled()
            path = self._dataset.slice_path(data_slice.physical_hash)
            if not path.is_file():
                raise BadData("the slice is missing", where=str(path), hint=_VERIFY)
            # A damaged slice must not become part of a new one with a valid hash.
            if hash_file(path, data_slice.physical_hash.code, lambda size: None) != data_slice.physical_hash:
                raise BadData(
                    "the slice is damaged: its bytes do not match its hash", where=str(path), hint=_VERIFY
                )
            expected = data_slice.offset_interval.start
            for batch in read_batches(path):
                _check_offsets(batch, self._vocabulary.offset_column, expected, path)
                expected += batch.num_rows
                self.rows += batch.num_rows
                yield batch
            self.read_files += 1
            self.bytes += data_slice.size

    def publish(self) -> None:
        """Move the staged files to their final names."""
        for physical_hash, staged in self._staged:
            self._dataset.store_slice(physical_hash, staged)


_VERIFY: Final = "run odf verify to find all errors, and restore it from a copy of the dataset"


def _check_offsets(batch: Any, column: str, expected: int, path: Path) -> None:
    offsets = batch.column(column)
    if len(offsets) and (offsets[0].as_py(), offsets[-1].as_py()) != (expected, expected + len(offsets) - 1):
        raise BadData("the offsets differ from those in the block", where=str(path), hint=_VERIFY)


def _moved(dataset: Dataset) -> Conflict:
    return Conflict(
        "the dataset has changed during the compaction",
        hint="nothing was changed; try again",
        where=str(dataset.folder),
    )
