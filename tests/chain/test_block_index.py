"""The index is a cache: it may be lost, broken, locked or of another version, and nothing is wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.metadata.model import SetInfo

if TYPE_CHECKING:
    from tests.chain.conftest import Chains


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite"


@pytest.fixture
def dataset(chains: Chains, tmp_path: Path, path: Path) -> Dataset:
    index = BlockIndex(path)
    made = chains.made(tmp_path / "ds", days=5, index=index)
    index.close()
    return made


def works(chains: Chains, dataset: Dataset, index: BlockIndex) -> None:
    """Everything that the index is asked, compared with what a fresh one says."""
    mine, fresh = chains.dataset(dataset.folder, index), chains.dataset(dataset.folder)
    assert mine.state() == fresh.state()
    assert mine.list_blocks(100) == fresh.list_blocks(100)
    assert mine.slices() == fresh.slices()
    mine.commit([SetInfo("x")], system_time=chains.day(9), expected_head=mine.head())
    assert mine.state() == fresh.state()


def test_index_keeps_states_and_positions_after_reopening(
    chains: Chains, dataset: Dataset, path: Path
) -> None:
    head = dataset.state().head
    again = BlockIndex(path)
    assert again.states([head]) == {head: dataset.state()}
    at = again.position(head)
    assert at is not None
    assert (at.sequence, at.head, at.head_sequence) == (6, head, 6)
    assert again.hash_at(at.chain, 6) == head
    assert again.hash_at(at.chain, 7) is None


def test_lost_index_is_rebuilt(chains: Chains, dataset: Dataset, path: Path) -> None:
    for file in path.parent.glob("index.sqlite*"):
        file.unlink()
    works(chains, dataset, BlockIndex(path))
    assert path.exists()


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_corrupt_index_is_rebuilt(chains: Chains, dataset: Dataset, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    works(chains, dataset, BlockIndex(path))
    again = BlockIndex(path)  # it was made anew
    head = dataset.head()
    assert head is not None and again.state(head) is not None


def test_index_corrupted_after_use_still_gives_correct_results(
    chains: Chains, dataset: Dataset, path: Path
) -> None:
    index = BlockIndex(path)
    mine = chains.dataset(dataset.folder, index)
    assert mine.list_blocks(1)
    index.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    works(chains, dataset, index)


def test_index_of_another_version_does_not_change_results(
    chains: Chains, dataset: Dataset, path: Path
) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("DROP TABLE snapshots")
        db.execute("CREATE TABLE newer(x)")
    db.close()
    works(chains, dataset, BlockIndex(path))


def test_a_state_that_cannot_be_read_is_folded_again(chains: Chains, dataset: Dataset, path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE chains SET state = x'00'")
    db.close()
    index = BlockIndex(path)
    works(chains, dataset, index)
    assert BlockIndex(path).state(dataset.state().head) is not None


def test_index_works_where_no_file_can_be_created(chains: Chains, dataset: Dataset, tmp_path: Path) -> None:
    works(chains, dataset, BlockIndex(tmp_path / "no" / "folder" / "index.sqlite"))
    works(chains, dataset, BlockIndex(tmp_path / "ds"))


def test_read_only_index_continues_in_memory(
    chains: Chains, dataset: Dataset, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = BlockIndex(path)
    index._connection().execute("PRAGMA query_only = ON")  # as in a folder that may only be read
    known = dataset.state()
    works(chains, dataset, index)
    untouched = BlockIndex(path)
    assert untouched.state(known.head) == known
    # What the file knew was taken over, so that the chain was not read again.
    read: list[object] = []
    mine = chains.dataset(dataset.folder, index)
    monkeypatch.setattr(Dataset, "block_bytes", lambda self, block: read.append(block))
    assert len(mine.list_blocks(100)) == 8
    assert read == []


def test_locked_index_does_not_block_reads_and_commits(
    chains: Chains, dataset: Dataset, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.chain.block_index._BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    works(chains, dataset, BlockIndex(path))
    other.close()


def test_conflicting_writes_to_one_index_are_rejected(chains: Chains, dataset: Dataset, path: Path) -> None:
    one, two = BlockIndex(path), BlockIndex(path)
    state = dataset.state()
    assert one.extend(state.head, state.sequence_number, [], state)
    assert not one.extend(chains.hash("moved"), 0, [], state)
    assert not two.extend(None, -1, [], state)  # it is a chain already
    works(chains, dataset, two)
    works(chains, dataset, one)


def test_remove_chain_deletes_state_and_position(chains: Chains, dataset: Dataset, path: Path) -> None:
    index = BlockIndex(path)
    head = dataset.state().head
    index.remove_chain(head)
    index.remove_chain(head)
    assert index.state(head) is None
    assert index.position(head) is None
    works(chains, dataset, index)


def test_states_looks_up_more_than_a_thousand_heads(chains: Chains, tmp_path: Path, path: Path) -> None:
    index = BlockIndex(path)
    heads = [chains.hash(str(number)) for number in range(1200)]
    assert index.states(heads) == {}
    dataset = chains.made(tmp_path / "a", index=index)
    head = dataset.state().head
    assert index.states([*heads, head]) == {head: dataset.state()}
