"""Compaction of a root dataset: rows, states and records; changes and damage in the meantime."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain.compacted_history import find_archived_push, find_current_number
from odf_engine.chain.compaction import CompactionOutcome, CompactionPolicy, compact, plan_compaction
from odf_engine.chain.compaction_record import CompactionRecord, RecordStore, Replacement, pack_record
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.references import create_branch
from odf_engine.data.parquet.slices import read_batches
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import BadData, Conflict, Unsupported
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import AddData, SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.fsck import collect_garbage
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import DAY, add_blocks, add_slices, commit, describe, make_root


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path)


def rows(dataset: Dataset) -> pa.Table:
    paths = [dataset.slice_path(row) for row in dataset.slices()]
    return pa.concat_tables(pa.Table.from_batches(read_batches(path)) for path in paths)


def run(entry: DatasetEntry, **policy: int) -> CompactionOutcome:
    return compact(entry.dataset, CompactionPolicy(**policy), Reporter())


def findings(entry: DatasetEntry) -> list[tuple[str, str]]:
    return [(finding.kind, finding.message) for finding in verify(entry.dataset, Reporter()).findings]


def test_compaction_merges_small_slices_and_keeps_rows(workspace: Workspace) -> None:
    entry = make_root(workspace, slices=4, rows=10)
    add_blocks(entry, 2)  # watermarks alone
    describe(entry, "ends the run")
    add_slices(entry, 1, rows=60)  # too large to be merged
    add_slices(entry, 3, rows=10)
    old, table, state = entry.dataset.head(), rows(entry.dataset), entry.dataset.state()
    planned = plan_compaction(entry.dataset, CompactionPolicy(max_rows=100), Reporter())
    assert (planned.old_slices, planned.new_slices, planned.new_head) == (8, 3, None)
    assert (planned.old_blocks, planned.new_blocks) == (13, 6)
    assert entry.dataset.head() == old

    outcome = run(entry, max_rows=100)

    assert (outcome.new_slices, outcome.new_blocks, outcome.old_head) == (3, 6, old)
    assert rows(entry.dataset) == table
    new = Dataset(entry.dataset.folder, type(workspace.index)(":memory:")).state()
    assert new == entry.dataset.state()
    assert (new.dataset_id, new.watermark, new.records, new.system_time) == (
        state.dataset_id, state.watermark, state.records, state.system_time
    )  # fmt: skip
    kinds = [each.kind for each in entry.dataset.list_blocks(10)]
    assert kinds == ["AddData", "AddData", "SetInfo", "AddData", "SetDataSchema", "Seed"]
    assert entry.dataset.references() == {outcome.reference: old}
    assert findings(entry) == []
    assert run(entry, max_rows=100).new_head == outcome.new_head  # nothing more to merge

    assert old is not None
    block = entry.dataset.block_bytes(old)
    (entry.dataset.folder / "blocks" / str(old)).unlink()  # as `odf gc` does
    assert Dataset(entry.dataset.folder, workspace.index).at(old).block_bytes(old) == block


def test_compaction_keeps_the_newest_state_of_each_source(workspace: Workspace) -> None:
    """The newest state of each source stays; blocks of different sources stay apart."""
    entry = make_root(workspace, slices=1)
    polled = [SourceState(source_name="default", kind="odf/etag", value=value) for value in "12"]
    first, second, other = (
        SourceState(source_name=name, kind="odf/idempotency-key", value=value)
        for name, value in (("a", "k1"), ("a", "k2"), ("b", "k3"))
    )
    for state in (*polled, first, second, other, None, None):
        last = entry.dataset.state()
        mark = Timestamp((last.watermark or last.system_time).ns + DAY)
        commit(entry, [AddData(prev_offset=last.last_offset, new_watermark=mark, new_source_state=state)])
    before = entry.dataset.state()

    outcome = run(entry)

    assert (outcome.old_blocks, outcome.new_blocks) == (10, 7)
    assert entry.dataset.state().source_state == before.source_state == polled[1]
    assert [entry.dataset.find_push(each) for each in (first, second, other)] == [None, 4, 5]
    assert find_archived_push(entry.dataset, first) == 4
    assert findings(entry) == []


def test_compaction_keeps_blocks_whose_merge_changes_nothing(workspace: Workspace) -> None:
    """Blocks that would become one without a change stay."""
    entry = make_root(workspace, slices=3)
    states = [SourceState(source_name="s", kind="odf/etag", value=value) for value in "aba"]
    for state in states:
        last = entry.dataset.state()
        event = AddData(prev_offset=last.last_offset, new_watermark=last.watermark, new_source_state=state)
        commit(entry, [event])
    before = entry.dataset.state()
    outcome = run(entry)
    assert (outcome.new_slices, entry.dataset.state().source_state) == (1, before.source_state)
    assert findings(entry) == []


def test_a_commit_in_the_meantime_is_a_conflict(workspace: Workspace) -> None:
    entry = make_root(workspace, slices=3)
    other = Workspace(workspace.folder).resolve("numbers")

    def commit_first(self: Reporter, name: str) -> None:
        if name == "commit":
            add_slices(other)

    with mock.patch.object(Reporter, "phase", commit_first), pytest.raises(Conflict) as raised:
        run(entry)
    assert raised.value.exit_code == 4
    assert entry.dataset.state().slices == 4
    assert not list((entry.dataset.folder / "data").glob(".pending-*"))
    assert (run(entry).new_slices, findings(entry)) == (1, [])


def test_compaction_of_damaged_or_missing_slice_fails(workspace: Workspace) -> None:
    entry = make_root(workspace, slices=3)
    head = entry.dataset.head()
    path = entry.dataset.slice_path(entry.dataset.slices()[1])
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(BadData, match="damaged"):
        run(entry)
    path.unlink()
    with pytest.raises(BadData, match="missing"):
        run(entry)
    assert entry.dataset.head() == head and not list(path.parent.glob(".pending-*"))


def rewrite(path: Path, change: object) -> None:
    """Change the header or the blocks of a record."""
    line, _, packed = path.read_bytes().partition(b"\n")
    header, blocks = msgspec.json.decode(line), zlib.decompress(packed)
    header, blocks = change(header, blocks)  # type: ignore[operator]
    path.write_bytes(msgspec.json.encode(header) + b"\n" + zlib.compress(blocks))


def test_a_forged_record_is_found(workspace: Workspace) -> None:
    entry = make_root(workspace, slices=4, rows=5)
    outcome = run(entry)
    path = entry.dataset.folder / "compactions" / str(outcome.new_head)
    valid = path.read_bytes()

    def broken(change: object) -> str:
        rewrite(path, change)
        entry.dataset.compactions = RecordStore(entry.dataset.folder)
        ((kind, message),) = findings(entry)
        path.write_bytes(valid)
        assert kind == "compaction-record"
        return message

    assert "does not end with the old head" in broken(lambda header, blocks: (header, blocks[:-1] + b"x"))
    assert "do not replace all" in broken(lambda h, blocks: ({**h, "blocks": h["blocks"][:-1]}, blocks))
    fork = {"fork": str(entry.dataset.block(0).hash)}
    assert "does not follow" in broken(lambda header, blocks: ({**header, **fork}, blocks))
    # Other rows in the new slice, consistent with its block.
    other = make_root(workspace, "other", slices=1, rows=20)
    (row,) = entry.dataset.slices()
    entry.dataset.slice_path(row).write_bytes(
        other.dataset.slice_path(other.dataset.slices()[0]).read_bytes()
    )
    entry.dataset.compactions = RecordStore(entry.dataset.folder)
    assert any(kind == "compaction-record" and "rows" in text for kind, text in findings(entry))


def test_a_record_is_signed(workspace: Workspace) -> None:
    entry = make_root(workspace, slices=3)
    key = workspace.keys.private_key_pem(entry.id)
    outcome = compact(entry.dataset, CompactionPolicy(), Reporter(), private_key_pem=key)
    path = entry.dataset.folder / "compactions" / str(outcome.new_head)
    data = path.read_bytes()
    assert CompactionRecord(data, "").check_signature() and findings(entry) == []
    line, _, blocks = data.partition(b"\n")
    created = CompactionRecord(data, "").header.created
    for wrong in (
        line.replace(str(created).encode(), b"2024-01-01T00:00:00Z"),
        line[:-1] + b',"created":"2024-01-01T00:00:00Z"}',  # not signed
    ):
        path.write_bytes(wrong + b"\n" + blocks)
        entry.dataset.compactions = RecordStore(entry.dataset.folder)
        ((kind, message),) = findings(entry)
        assert kind == "compaction-record" and "not signed with the key" in message


def test_a_record_with_many_tiny_blocks_is_refused(workspace: Workspace) -> None:
    """Their number would need more memory than their bytes."""
    entry = make_root(workspace, slices=2)
    outcome = run(entry)
    (name,) = entry.dataset.compactions.names()
    header = entry.dataset.compactions.read(name).header
    assert header.new_head == outcome.new_head
    with pytest.raises(BadData, match="invalid size"):
        CompactionRecord(pack_record(header, [b""] * 1000), "a remote")


def linked_blocks(fork: Multihash, count: int, size: int) -> Iterator[bytes]:
    """Blocks of zeros that contain the hash of the previous block."""
    previous = fork.digest
    for _ in range(count):
        block = previous + bytes(size - len(previous))
        previous = Multihash.sha3_256(block).digest
        yield block


def test_memory_for_a_record_is_limited_by_its_size(workspace: Workspace) -> None:
    entry = make_root(workspace, slices=2)
    run(entry)
    (name,) = entry.dataset.compactions.names()
    header = entry.dataset.compactions.read(name).header
    with pytest.raises(BadData, match="does not follow the previous one"):
        CompactionRecord(pack_record(header, [bytes(64)] * 100_000), "a remote")
    for count, size in ((20_000, 64), (200, 1 << 20)):
        blocks = list(linked_blocks(header.fork, count, size))
        last = header.fork_number + count
        changed = replace(
            header,
            old_head=Multihash.sha3_256(blocks[-1]),
            blocks=[Replacement(header.new_head, last)],
        )
        data = pack_record(changed, blocks)
        record = CompactionRecord(io.BytesIO(data), "a remote")
        assert record.size < 8 * len(data)
        for number in (0, count // 2, count - 1):
            block = Multihash.sha3_256(blocks[number])
            assert record.block_bytes(block) == blocks[number]
            assert record.number_of(block) == header.fork_number + 1 + number
        assert record.number_of(header.fork) is None
        assert list(record.blocks()) == blocks
        for cut in (data[: len(data) // 2], data[:-1]):
            with pytest.raises(BadData, match="incomplete"):
                CompactionRecord(cut, "a remote")
    with pytest.raises(Unsupported, match="too many blocks"):
        pack_record(changed, [bytes(1 << 20)] * 257)


def test_records_of_other_chains_are_not_checked_against_this_one(workspace: Workspace) -> None:
    """Two compactions, of which the second record contains the head of the first, then other rows."""
    entry = make_root(workspace, slices=1)
    dataset, base = entry.dataset, entry.dataset.state().head
    create_branch(dataset, "staging", base)
    for _ in range(2):
        add_slices(entry, 1)
        run(entry)
    compacted = dataset.state().head
    assert verify(dataset.branch("staging"), Reporter()).findings == []
    assert findings(entry) == []

    dataset.reset(base, expected_head=compacted)
    add_slices(entry, 1, city="Thun")
    assert findings(entry) == []

    # The records still lead to the old head, which can be restored, until it expires.
    records = dataset.compactions.names()
    assert len(records) == 2
    collect_garbage(workspace, [entry], Reporter(), dry_run=False, now=True)
    assert dataset.compactions.names() == records
    dataset.reset(compacted, expected_head=dataset.state().head)
    assert findings(entry) == [] and find_current_number(dataset, base) is not None


def test_block_replaced_by_two_compactions_is_found_in_the_current_chain(workspace: Workspace) -> None:
    """A reset to the chain before a compaction, then another one: two records have the same old blocks."""
    for city in ("Thun", "Chur", "Biel", "Brig"):  # the order of the names of the records is random
        entry = make_root(workspace, city, slices=3)
        dataset, old = entry.dataset, entry.dataset.state().head
        run(entry)
        dataset.reset(old, expected_head=dataset.state().head)
        add_slices(entry, 1, city=city)
        assert findings(entry) == []
        run(entry)
        assert find_current_number(dataset, old) == dataset.state().sequence_number
        assert findings(entry) == []
