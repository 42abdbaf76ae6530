"""Verification of a compaction record: the new chain has the rows, settings and states of the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from odf_engine.base.arrow import pa
from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import BlockRun, extend_run, merge_key, merged_event, start_run
from odf_engine.chain.compaction_record import CompactionRecord
from odf_engine.data.digest import LogicalHasher
from odf_engine.data.parquet.slices import read_batches_of
from odf_engine.errors import BadData, MalformedBlock
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import decode_block
from odf_engine.metadata.model import AddData, DataSlice, MetadataBlock


class OffsetFile(NamedTuple):
    """A slice of the new chain: its first and last offset, and its file."""

    start: int
    end: int
    path: Path


def check_record(
    record: CompactionRecord,
    read_block: Callable[[Multihash], MetadataBlock],
    slices: Sequence[OffsetFile],
    reporter: Reporter,
) -> None:
    """Check that a compaction has changed neither rows nor settings.

    Args:
        record: the record.
        read_block: returns a block of the new chain, whose bytes match the hash.
        slices: with the rows of the merged slices, by ascending offsets.
        reporter: is checked for cancellation.

    Raises:
        BadData: the signature is invalid, the old chain is not linked, a new block does not follow from the
            old ones, or the rows of an old slice differ.
        NotFound: a slice is missing.
    """
    merged = check_chains(record, read_block, reporter)
    _check_rows(merged, slices, reporter)


def check_chains(
    record: CompactionRecord, read_block: Callable[[Multihash], MetadataBlock], reporter: Reporter
) -> list[DataSlice]:
    """Check the blocks of both chains, and return the old slices that were merged.

    Raises:
        BadData: as :func:`check_record`.
    """
    header = record.header
    record.check_signature()
    old = _old_blocks(record)
    before, number, new_number = header.fork, header.fork_number + 1, header.fork_number + 1
    merged: list[DataSlice] = []
    for entry in header.blocks:
        reporter.raise_if_cancelled()
        block = read_block(entry.block)
        if block.prev_block_hash != before or block.sequence_number != new_number:
            raise _wrong(entry.block, "it does not follow the previous new block")
        replaced = [next(old) for _ in range(number, entry.last + 1)]
        merged += _check_replacement(entry.block, block, replaced, number)
        before, number, new_number = entry.block, entry.last + 1, new_number + 1
    return merged


def _old_blocks(record: CompactionRecord) -> Iterator[MetadataBlock]:
    """Yield the old blocks; each must follow the previous one, and the first the fork."""
    before, number = record.header.fork, record.header.fork_number + 1
    for data in record.blocks():
        block_hash = Multihash.sha3_256(data)
        try:
            block = decode_block(data).block
        except MalformedBlock as error:
            raise _wrong(block_hash, error.message) from error
        if block.prev_block_hash != before or block.sequence_number != number:
            raise _wrong(block_hash, "it does not follow the previous old block")
        before, number = block_hash, number + 1
        yield block


def _check_replacement(
    block_hash: Multihash, new: MetadataBlock, old: Sequence[MetadataBlock], first: int
) -> list[DataSlice]:
    """Check that a new block follows from old ones, and return the slices that it merges."""
    if len(old) == 1:
        if (new.event, new.system_time) != (old[0].event, old[0].system_time):
            raise _wrong(block_hash, "it differs from the block that it replaces")
        return []
    run: BlockRun | None = None
    key = merge_key(old[0].event)
    for number, old_block in enumerate(old, first):
        if key is None or not isinstance(old_block.event, AddData) or merge_key(old_block.event) != key:
            raise _wrong(block_hash, "it replaces blocks that cannot be merged")
        if run is None:
            run = start_run(number, old_block.event, old_block.system_time)
        else:
            extend_run(run, old_block.event, old_block.system_time)
    assert run is not None
    data = new.event.new_data if isinstance(new.event, AddData) else None
    if new.event != merged_event(run, data) or new.system_time != run.system_time:
        raise _wrong(block_hash, "it differs from the blocks that it replaces")
    if len(run.slices) < 2:
        if data != (run.slices[0] if run.slices else None):
            raise _wrong(block_hash, "its slice differs from that of the blocks that it replaces")
        return []
    interval = None if data is None else data.offset_interval
    ends = run.slices[0].offset_interval.start, run.slices[-1].offset_interval.end
    if interval is None or (interval.start, interval.end) != ends:
        raise _wrong(block_hash, "its offsets differ from those of the blocks that it replaces")
    return run.slices


def _check_rows(merged: Sequence[DataSlice], slices: Sequence[OffsetFile], reporter: Reporter) -> None:
    """Compare the logical hash of each old slice with the hash of the same offsets in the new slices."""
    at = 0
    for file in slices:
        within: list[DataSlice] = []
        while at < len(merged) and merged[at].offset_interval.start <= file.end:
            if merged[at].offset_interval.start < file.start or merged[at].offset_interval.end > file.end:
                raise _lost(merged[at])
            within.append(merged[at])
            at += 1
        if not within:
            continue
        batches = _Batches(file, within[0].offset_interval.start, within[-1].offset_interval.end)
        for part in within:
            reporter.raise_if_cancelled()
            hasher = LogicalHasher(batches.schema)
            with hasher:
                for batch in batches.take(part.offset_interval.end - part.offset_interval.start + 1):
                    hasher.update(batch)
                if hasher.finish() != part.logical_hash:
                    raise BadData(
                        f"the rows of offsets {part.offset_interval.start} to {part.offset_interval.end} "
                        "differ from those before the compaction",
                        where=str(file.path),
                    )
    if at < len(merged):
        raise _lost(merged[at])


class _Batches:
    """The rows of a file from one offset to another, read in batches."""

    def __init__(self, file: OffsetFile, first: int, last: int) -> None:
        self.schema, self._source = read_batches_of(file.path, (first - file.start, last + 1 - file.start))
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows; fewer at the end of the file."""
        while rows:
            batch = self._rest if self._rest is not None else next(self._source, None)
            if batch is None:
                return
            part = batch.slice(0, rows)
            self._rest = batch.slice(rows) if batch.num_rows > rows else None
            rows -= part.num_rows
            yield part


def _wrong(block: Multihash, reason: str) -> BadData:
    return BadData(f"the compaction record is invalid: {reason}", where=f"block {block}")


def _lost(data: DataSlice) -> BadData:
    interval = data.offset_interval
    offsets = f"offsets {interval.start} to {interval.end}"
    return BadData(f"the compaction record is invalid: no slice has the rows of {offsets}")
