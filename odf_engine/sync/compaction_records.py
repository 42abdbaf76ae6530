"""Transfer and verification of compaction records of remote datasets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from odf_engine.base.progress import Reporter
from odf_engine.chain.compacted_history import reaches_chain, sequence_number
from odf_engine.chain.compaction_check import OffsetFile, check_record
from odf_engine.chain.compaction_record import MAX_RECORD_BYTES, CompactionRecord
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import BadData, Cancelled, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.flatbuffers import decode_block
from odf_engine.metadata.model import MetadataBlock
from odf_engine.storage.refs import COMPACTION_REF
from odf_engine.sync.check_reports import FileTarget
from odf_engine.sync.remotes.base import RemoteDataset, WritableRemote

_MAX_RECORDS: Final = 1000
_MAX_TOTAL_BYTES: Final = 256 << 20
"""Limit of the memory for the records of a remote."""


class OtherChain(BadData):
    """Compaction records do not lead to a chain, for example since the dataset was reset."""


class RemoteRecord:
    """A record of a remote, with its bytes."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.record = CompactionRecord(data, where)


def remote_records(remote: RemoteDataset) -> Iterator[RemoteRecord]:
    """Yield the records of a remote, newest first.

    Raises:
        BadData: a record is damaged.
        OdfError: as raised by the remote.
    """
    name, seen, size = remote.reference(COMPACTION_REF), set[Multihash](), 0
    while name is not None and name not in seen and len(seen) < _MAX_RECORDS:
        seen.add(name)
        try:
            remote_record = RemoteRecord(remote.read("compactions", name, MAX_RECORD_BYTES), remote.url)
        except NotFound:
            return
        if remote_record.record.header.new_head != name:
            raise BadData(f"compactions/{name} is the record of another block", where=remote.url)
        size += len(remote_record.data) + remote_record.record.size
        if size > _MAX_TOTAL_BYTES:
            raise BadData("the compaction records are too large", where=remote.url)
        yield remote_record
        name = remote_record.record.header.previous


def find_replacing_records(dataset: Dataset, remote: RemoteDataset, reporter: Reporter) -> list[RemoteRecord]:
    """Return the records that lead from the local chain to a remote's, newest first; else none.

    The oldest of them has replaced the local head, so all local blocks precede the compaction.
    """
    head, replacing = dataset.head(), list[RemoteRecord]()
    try:
        for record in remote_records(remote):
            reporter.raise_if_cancelled()
            if record.record.header.dataset_id != dataset.state().dataset_id:
                continue
            replacing.append(record)
            if head is not None and record.record.number_of(head) is not None:
                return replacing
    except BadData as error:
        reporter.log(f"compaction record ignored: {error.message}", "warning")
    return []


def check_remote_records(
    records: Sequence[CompactionRecord],
    read_block: Callable[[Multihash], bytes | None],
    head: Multihash,
    dataset: Dataset,
    reporter: Reporter,
    known: Sequence[CompactionRecord] = (),
) -> list[CompactionRecord]:
    """Check that a chain has the rows and settings of the chains that records replaced.

    Returns the checked records, which lead to the chain. After a reset, others may remain.

    Args:
        records: newest first.
        read_block: returns the bytes of a block of the new chain, or None.
        head: the head of the new chain, whose slices are stored.
        dataset: the dataset that stores them.
        reporter: receives the phase; checked for cancellation.
        known: verified records of the dataset.

    Raises:
        BadData: the rows or settings differ.
    """
    reporter.phase("compactions")

    def read(block: Multihash) -> MetadataBlock:
        data = read_block(block)
        for record in all_records:
            data = record.block_bytes(block) if data is None else data
        if data is None or Multihash.sha3_256(data) != block:
            raise BadData(
                "the compaction record refers to a block that is not in the chain", where=str(block)
            )
        return decode_block(data).block

    all_records = [*records, *known]
    chain: set[Multihash] = set()
    slices: list[OffsetFile] = []
    at: Multihash | None = head
    oldest = min(record.header.fork_number for record in records)
    while at is not None:
        block = read(at)
        chain.add(at)
        if (data := getattr(block.event, "new_data", None)) is not None:
            interval = data.offset_interval
            slices.append(OffsetFile(interval.start, interval.end, dataset.slice_path(data.physical_hash)))
        if block.sequence_number <= oldest:
            break
        at = block.prev_block_hash
    leading = _find_leading(all_records, chain)
    checked = [record for record in records if record.header.new_head in leading]
    for compaction in checked:
        check_record(compaction, read, slices[::-1], reporter)
    return checked


def _find_leading(records: Sequence[CompactionRecord], chain: Collection[Multihash]) -> set[Multihash]:
    """Return the new heads of the records that lead to a chain, also by other records."""
    leading: dict[Multihash, CompactionRecord] = {}
    while True:
        leading_records = {
            record.header.new_head: record
            for record in records
            if (new_head := record.header.new_head) not in leading
            and (new_head in chain or any(other.number_of(new_head) for other in leading.values()))
        }
        if not leading_records:
            return set(leading)
        leading |= leading_records


def download_records(dataset: Dataset, remote: RemoteDataset, reporter: Reporter) -> None:
    """Download and verify the records of a new copy, so that its derivative datasets can be verified.

    An invalid record is logged and ignored.
    """
    try:
        head = dataset.head()
        if head is None or not (candidates := list(remote_records(remote))):
            return
        records = [item.record for item in candidates]
        checked = check_remote_records(records, partial(_stored_bytes, dataset), head, dataset, reporter)
        if candidates := [item for item in candidates if item.record in checked]:
            store_records(dataset, candidates)
            set_newest_record(dataset, candidates, reporter)
    except Cancelled:
        return  # the pull itself is complete
    except OdfError as error:
        reporter.log(f"compaction records ignored: {error.message}", "warning")
    except OSError as error:
        reporter.log(f"compaction records cannot be stored: {error.strerror}", "warning")


def _stored_bytes(dataset: Dataset, block: Multihash) -> bytes | None:
    try:
        return dataset.block_bytes(block)
    except NotFound:
        return None


def receive_record(dataset: Dataset, new_head: Multihash, staged: Path) -> None:
    """Verify a record that was pushed after its chain, and move its file to its name.

    Raises:
        BadData: it is damaged, belongs to another chain, or rows or settings differ.
        OSError: it cannot be written.
    """
    with staged.open("rb") as file:
        record = CompactionRecord(file, "pushed record")
    header, head = record.header, dataset.head()
    if head is None or (header.new_head, header.dataset_id) != (new_head, dataset.state().dataset_id):
        raise BadData("the compaction record belongs to another dataset or block")
    known = list(dataset.compactions.all())
    read = partial(_stored_bytes, dataset)
    if not check_remote_records([record], read, head, dataset, Reporter(), known):
        raise BadData("the compaction record belongs to another chain", where=f"block {new_head}")
    dataset.compactions.store_file(new_head, staged)
    number, newest = sequence_number(dataset, new_head), dataset.newest_compaction()
    before = None if newest is None else sequence_number(dataset, newest)
    if number is not None and (before is None or before < number):
        dataset.set_reference(COMPACTION_REF, new_head)


def store_records(dataset: Dataset, records: Sequence[RemoteRecord]) -> None:
    """Store verified records, newest first.

    Raises:
        OSError: they cannot be written.
    """
    for record in records:
        dataset.compactions.store(record.record.header.new_head, record.data)


def set_newest_record(dataset: Dataset, records: Sequence[RemoteRecord], reporter: Reporter) -> None:
    """Set the local reference to the newest of stored records; a failure is logged."""
    try:
        dataset.set_reference(COMPACTION_REF, records[0].record.header.new_head)
    except (OSError, OdfError) as error:  # the pull itself is complete
        reporter.log(f"refs/{COMPACTION_REF} cannot be written: {error}", "warning")


def send_records(dataset: Dataset, target: FileTarget, reporter: Reporter) -> None:
    """Upload the records that lead to the current chain and that the remote lacks, newest first.

    Raises:
        OdfError: as raised by the remote.
    """
    records: list[CompactionRecord] = []
    for name in dataset.compactions.names():
        try:
            record = dataset.compactions.read(name)
        except (BadData, NotFound) as error:
            reporter.log(f"compaction record not sent: {error.message}", "warning")
            continue
        if reaches_chain(dataset, record.header.new_head):
            records.append(record)
    # A server verifies the record of a replaced chain by the newer ones.
    for record in sorted(records, key=lambda record: record.header.created, reverse=True):
        new_head = record.header.new_head
        data = (dataset.compactions.folder / str(new_head)).read_bytes()
        if not target.holds("compactions", new_head, len(data)):
            target.write("compactions", new_head, data)


def send_newest_record_name(dataset: Dataset, remote: WritableRemote) -> None:
    """Set the reference of the remote to the newest record.

    Raises:
        OdfError: as raised by the remote.
    """
    newest = dataset.newest_compaction()
    is_current = newest is not None and reaches_chain(dataset, newest)
    if newest is not None and is_current and remote.reference(COMPACTION_REF) != newest:
        remote.replace_ref(COMPACTION_REF, newest)
