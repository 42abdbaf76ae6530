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


def test_what_is_indexed_stays(chains: Chains, dataset: Dataset, path: Path) -> None:
    head = dataset.state().head
    again = BlockIndex(path)
    assert again.states([head]) == {head: dataset.state()}
    at = again.position(head)
    assert at is not None
    assert (at.sequence, at.head, at.head_sequence) == (6, head, 6)
    assert again.hash_at(at.chain, 6) == head
    assert again.hash_at(at.chain, 7) is None


def test_lost(chains: Chains, dataset: Dataset, path: Path) -> None:
    for file in path.parent.glob("index.sqlite*"):
        file.unlink()
    works(chains, dataset, BlockIndex(path))
    assert path.exists()


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_broken(chains: Chains, dataset: Dataset, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    works(chains, dataset, BlockIndex(path))
    again = BlockIndex(path)  # it was made anew
    head = dataset.head()
    assert head is not None and again.state(head) is not None


def test_broken_while_it_is_open(chains: Chains, dataset: Dataset, path: Path) -> None:
    index = BlockIndex(path)
    mine = chains.dataset(dataset.folder, index)
    assert mine.list_blocks(1)
    index.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    works(chains, dataset, index)


def test_of_another_version(chains: Chains, dataset: Dataset, path: Path) -> None:
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


def test_where_no_file_can_be(chains: Chains, dataset: Dataset, tmp_path: Path) -> None:
    works(chains, dataset, BlockIndex(tmp_path / "no" / "folder" / "index.sqlite"))
    works(chains, dataset, BlockIndex(tmp_path / "ds"))


def test_what_cannot_be_written_goes_on_in_memory(
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


def test_locked_for_too_long(
    chains: Chains, dataset: Dataset, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.chain.block_index._BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    works(chains, dataset, BlockIndex(path))
    other.close()


def test_two_writers_of_one_file(chains: Chains, dataset: Dataset, path: Path) -> None:
    one, two = BlockIndex(path), BlockIndex(path)
    state = dataset.state()
    assert one.extend(state.head, state.sequence_number, [], state)
    assert not one.extend(chains.hash("moved"), 0, [], state)
    assert not two.extend(None, -1, [], state)  # it is a chain already
    works(chains, dataset, two)
    works(chains, dataset, one)


def test_forgetting(chains: Chains, dataset: Dataset, path: Path) -> None:
    index = BlockIndex(path)
    head = dataset.state().head
    index.remove_chain(head)
    index.remove_chain(head)
    assert index.state(head) is None
    assert index.position(head) is None
    works(chains, dataset, index)


def test_many_states_in_one_query(chains: Chains, tmp_path: Path, path: Path) -> None:
    index = BlockIndex(path)
    heads = [chains.hash(str(number)) for number in range(1200)]
    assert index.states(heads) == {}
    dataset = chains.made(tmp_path / "a", index=index)
    head = dataset.state().head
    assert index.states([*heads, head]) == {head: dataset.state()}
