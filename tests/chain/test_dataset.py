"""A dataset on disk: committing, reading, and what the index makes cheap."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import (
    BadData,
    ChainRuleViolated,
    Conflict,
    MalformedBlock,
    NoOpEvent,
    NotFound,
    OdfError,
    UsageError,
)
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.metadata.flatbuffers import decode_block, encode_block
from odf_engine.metadata.model import MetadataBlock, Opaque, Seed, SetInfo

if TYPE_CHECKING:
    from tests.chain.conftest import Chains


def append_raw(dataset: Dataset, data: bytes) -> Multihash:
    """Puts a block's bytes in as a foreign tool would, and moves the head."""
    block_hash = Multihash.sha3_256(data)
    (dataset.folder / "blocks" / str(block_hash)).write_bytes(data)
    (dataset.folder / "refs" / "head").write_text(str(block_hash))
    return block_hash


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_first_commit_creates_blocks_and_head(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.dataset(tmp_path / "ds")
    assert dataset.head() is None
    assert (dataset.list_blocks(5), list(dataset.blocks()), dataset.slices()) == ([], [], [])
    with pytest.raises(NotFound):
        dataset.state()
    head = dataset.commit([chains.root, SetInfo("x")], system_time=chains.day(1), expected_head=None)
    assert dataset.head() == head == dataset.state().head
    assert dataset.state().info == SetInfo("x")
    assert [row.kind for row in dataset.list_blocks(5)] == ["SetInfo", "Seed"]
    first = dataset.block(0)
    assert files(dataset.folder) == {
        "refs/head",
        "info/lock",
        f"blocks/{first.hash}",
        f"blocks/{head}",
    }
    assert (dataset.folder / "refs" / "head").read_text() == str(head)
    assert dataset.block(head).block.prev_block_hash == first.hash


def test_a_dataset_is_created_once(chains: Chains, tmp_path: Path) -> None:
    chains.made(tmp_path / "ds")
    with pytest.raises(Conflict, match="already exists"):
        chains.made(tmp_path / "ds")


def test_schema_and_data_move_the_head_once(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.dataset(tmp_path / "ds")
    seed = dataset.commit([chains.root], system_time=chains.day(0), expected_head=None)
    staged = dataset.staging_path("data")
    staged.write_bytes(b"rows")
    checkpoint = dataset.staging_path("checkpoints")
    checkpoint.write_bytes(b"check")
    event = chains.add_data(
        dataset.state(), new_data=chains.slice(0, 9), new_checkpoint=chains.checkpoint(b"check")
    )
    head = dataset.commit(
        [chains.schema(), event],
        system_time=chains.day(1),
        expected_head=seed,
        data=staged,
        checkpoint=checkpoint,
    )
    assert dataset.state().records == 10
    assert [row.rows for row in dataset.list_blocks(9)] == [10, 0, 0]
    (row,) = dataset.slices()
    assert dataset.slice_path(row).read_bytes() == b"rows"
    assert dataset.checkpoint_path(chains.checkpoint(b"check").physical_hash).read_bytes() == b"check"
    assert (row.start, row.end, row.size, row.sequence_number) == (0, 9, 4, 2)
    assert not staged.exists() and not checkpoint.exists()
    # The checkpoint is carried on: its object is there already.
    again = chains.add_data(dataset.state(), new_watermark=chains.day(1))
    dataset.commit([again], system_time=chains.day(2), expected_head=head)


def test_blocks_can_be_committed_as_version_two(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.dataset(tmp_path / "ds")
    head = dataset.commit([chains.root], system_time=chains.day(0), expected_head=None, block_version=2)
    assert dataset.block(head).version == 2
    assert decode_block(dataset.block_bytes(head)).version == 2


def test_a_stale_head_is_a_conflict_and_loses_nothing(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=1)
    before, head = files(dataset.folder), dataset.head()
    other = chains.dataset(tmp_path / "ds")
    other.commit([SetInfo("first")], system_time=chains.day(1), expected_head=head)
    staged = dataset.staging_path("data")
    staged.write_bytes(b"rows")
    event = chains.add_data(dataset.state(), rows=1)
    with pytest.raises(Conflict):
        dataset.commit([event], system_time=chains.day(1), expected_head=head, data=staged)
    assert staged.read_bytes() == b"rows"
    assert dataset.state().info == SetInfo("first")
    staged.unlink()
    assert files(dataset.folder) - before == {f"blocks/{dataset.head()}"}


def test_a_broken_rule_commits_nothing(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=1)
    before, head = files(dataset.folder), dataset.head()
    with pytest.raises(ChainRuleViolated) as caught:
        dataset.commit([SetInfo("ok"), chains.root], system_time=chains.day(1), expected_head=head)
    assert (caught.value.rule, caught.value.block) == ("seed-once", "4")
    with pytest.raises(NoOpEvent):
        dataset.commit([chains.add_data(dataset.state())], system_time=chains.day(1), expected_head=head)
    with pytest.raises(ChainRuleViolated, match="is before"):
        dataset.commit([SetInfo("x")], system_time=chains.day(-1), expected_head=head)
    with pytest.raises(UsageError):
        dataset.commit([], system_time=chains.day(1), expected_head=head)
    assert files(dataset.folder) == before


def test_staged_file_must_match_its_event(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds")
    head = dataset.head()
    staged = dataset.staging_path("data")
    staged.write_bytes(b"too long")
    event: Any = chains.add_data(dataset.state(), rows=1)
    for events, error, word in [
        ([event], BadData, "8 bytes"),
        ([SetInfo("x")], BadData, "no event"),
    ]:
        with pytest.raises(error, match=word):
            dataset.commit(events, system_time=chains.day(1), expected_head=head, data=staged)
    with pytest.raises(NotFound, match=r"data object .* is missing"):
        dataset.commit([event], system_time=chains.day(1), expected_head=head)
    with pytest.raises(NotFound, match="gone not found"):
        gone = tmp_path / "gone"
        dataset.commit([event], system_time=chains.day(1), expected_head=head, data=gone)
    assert dataset.head() == head


def test_full_disk_fails_the_commit_and_changes_nothing(
    chains: Chains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = chains.made(tmp_path / "ds")
    head, before = dataset.head(), files(dataset.folder)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OdfError, match="No space left") as caught:
        dataset.commit([SetInfo("x")], system_time=chains.day(1), expected_head=head)
    assert caught.value.hint
    monkeypatch.undo()
    assert dataset.head() == head
    assert files(dataset.folder) == before
    dataset.commit([SetInfo("x")], system_time=chains.day(1), expected_head=head)


def test_a_deleted_dataset_does_not_come_back(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds")
    head = dataset.head()
    (tmp_path / "ds").rename(tmp_path / "gone")
    with pytest.raises(OdfError):
        dataset.commit([SetInfo("x")], system_time=chains.day(1), expected_head=head)
    assert not (tmp_path / "ds").exists()


def test_stale_files_of_killed_process_are_removed(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=1)
    before = files(dataset.folder)
    staged = dataset.staging_path("data")
    staged.write_bytes(b"rows")
    (dataset.folder / "refs" / ".pending-x").write_text("f1620")
    assert dataset.remove_stale_files() == 0  # somebody may be at work on them
    assert dataset.remove_stale_files(untouched_for=0) == 2
    assert files(dataset.folder) == before


def test_blocks_are_listed_newest_first_and_filtered_by_kind(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=20)
    numbers = [row.sequence_number for row in dataset.list_blocks(5)]
    assert numbers == [21, 20, 19, 18, 17]
    assert [row.sequence_number for row in dataset.list_blocks(3, before=17)] == [16, 15, 14]
    assert dataset.list_blocks(3, before=0) == []
    assert [row.kind for row in dataset.list_blocks(9, kinds={"Seed", "SetDataSchema"})] == [
        "SetDataSchema",
        "Seed",
    ]
    mixed = dataset.list_blocks(3, before=4, kinds=["AddData", "SetDataSchema"])
    assert [row.sequence_number for row in mixed] == [3, 2, 1]
    newest = dataset.list_blocks(1)[0]
    assert newest.summary == "+1 row, watermark → 1970-01-20"
    assert newest.size == len(dataset.block_bytes(newest.hash))


def test_slices_are_selected_by_offset_range(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=10)
    assert [row.start for row in dataset.slices()] == list(range(10))
    assert [row.start for row in dataset.slices(7)] == [7, 8, 9]
    assert [row.start for row in dataset.slices(2, 3)] == [2, 3]
    assert dataset.slices(50) == []


def test_blocks_iterate_in_both_directions(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=3)
    newest = list(dataset.blocks())
    assert [stored.block.sequence_number for stored in newest] == [4, 3, 2, 1, 0]
    assert list(dataset.blocks(newest_first=False)) == newest[::-1]


def test_block_is_found_by_full_or_abbreviated_hash(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=10)
    block = dataset.block(5).hash
    text = str(block)
    for name in (
        text,
        "F" + text[1:].upper(),
        base58btc_encode(bytes(block)),
        text[:20],
        text[5:13],
        text[-8:],
    ):
        assert dataset.find_block(name) == block
    for wrong in ("", "f1620", "f1620zz", "%", text[:-1] + ("0" if text[-1] != "0" else "1"), "12345678"):
        with pytest.raises(NotFound):
            dataset.find_block(wrong)
    with pytest.raises(NotFound):
        dataset.block(99)
    with pytest.raises(NotFound):
        dataset.block(-1)
    with pytest.raises(NotFound):
        dataset.block(chains.hash("no"))


def test_repository_with_base58_names_is_readable(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=2)
    before = dataset.state()
    for folder in ("blocks", "data"):
        for path in (dataset.folder / folder).iterdir():
            path.rename(path.with_name(base58btc_encode(bytes(Multihash.parse(path.name)))))
    (dataset.folder / "refs" / "head").write_text(base58btc_encode(bytes(before.head)) + "\n")
    again = chains.dataset(dataset.folder)
    assert again.state() == before
    assert again.slice_path(again.slices()[0]).read_bytes() == b"rows of 0"


def test_blocks_of_third_party_writers_are_read(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=2)
    state = dataset.state()
    # Another version of the manifest, and an event that the rules here would refuse.
    data = encode_block(chains.block(state, chains.add_data(state)), version=2)
    head = append_raw(dataset, data)
    assert dataset.state().head == head
    assert dataset.block_bytes(head) == data
    assert dataset.list_blocks(1)[0].kind == "AddData"


def test_events_of_a_newer_specification_are_shown(
    chains: Chains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = chains.made(tmp_path / "ds")
    state = dataset.state()
    head = append_raw(dataset, encode_block(chains.block(state, SetInfo("x"))))

    def newer(data: bytes) -> Any:
        found = decode_block(data)
        strange: Any = msgspec.structs.replace(found.block, event=Opaque("MetadataEvent", 14))
        return msgspec.structs.replace(found, block=strange, unknown=("event: member 14",))

    monkeypatch.setattr("odf_engine.chain.dataset.decode_block", newer)
    assert dataset.state().not_understood == {"event 14": 2}
    row = dataset.list_blocks(1)[0]
    assert (row.hash, row.kind, row.summary) == (head, "Opaque", "event from a newer specification")
    assert dataset.block(head).unknown == ("event: member 14",)
    # Nothing stops blocks from following it.
    monkeypatch.undo()
    dataset.commit([SetInfo("y")], system_time=chains.day(9), expected_head=head)


def test_damaged_or_missing_block_is_named_in_the_error(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=3)
    victim = dataset.block(2).hash
    path = dataset.folder / "blocks" / str(victim)
    good = path.read_bytes()
    for spoil in (lambda: path.write_bytes(good[:-1] + b"\xff"), path.unlink):
        spoil()
        for ask in (
            Dataset.state,
            lambda ds: ds.list_blocks(5),
            lambda ds: list(ds.blocks()),
            lambda ds: ds.block(2),
        ):
            with pytest.raises((MalformedBlock, NotFound), match=str(victim)):
                ask(chains.dataset(dataset.folder))


def test_invalid_chain_is_rejected(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=1)
    state = dataset.state()
    append_raw(dataset, encode_block(chains.block(state, SetInfo("x"), sequence_number=77)))
    with pytest.raises(ChainRuleViolated) as caught:
        dataset.state()
    assert caught.value.rule == "sequence-number"
    info = MetadataBlock(system_time=chains.day(0), sequence_number=0, event=SetInfo("x"))
    append_raw(dataset, encode_block(info))
    with pytest.raises(ChainRuleViolated) as caught:
        dataset.list_blocks(5)
    assert caught.value.rule == "seed-first"
    append_raw(dataset, b"nonsense")
    with pytest.raises(MalformedBlock):
        dataset.state()
    assert len(list(chains.made(tmp_path / "other").blocks())) == 2


@pytest.fixture
def shared_index(tmp_path: Path) -> BlockIndex:
    return BlockIndex(tmp_path / "index.sqlite")


def truth(chains: Chains, dataset: Dataset) -> tuple[Any, ...]:
    fresh = chains.dataset(dataset.folder)
    return fresh.state(), fresh.list_blocks(10_000), fresh.slices()


def test_commit_of_another_process_is_visible(
    chains: Chains, tmp_path: Path, shared_index: BlockIndex
) -> None:
    dataset = chains.made(tmp_path / "ds", days=3, index=shared_index)
    assert len(dataset.list_blocks(100)) == 5
    chains.grow(chains.dataset(dataset.folder), days=3)  # with an index of its own
    assert (dataset.state(), dataset.list_blocks(10_000), dataset.slices()) == truth(chains, dataset)
    assert dataset.state().blocks == 8


@pytest.mark.parametrize("snapshots_every", [4, 512])
def test_index_follows_a_head_that_is_reset(
    chains: Chains,
    tmp_path: Path,
    shared_index: BlockIndex,
    monkeypatch: pytest.MonkeyPatch,
    snapshots_every: int,
) -> None:
    monkeypatch.setattr("odf_engine.chain.block_index.SNAPSHOT_EVERY", snapshots_every)
    dataset = chains.made(tmp_path / "ds", days=20, index=shared_index)
    head = dataset.folder / "refs" / "head"
    for number in (20, 9, 1, 0):
        head.write_text(str(dataset.block(number).hash))
        assert (dataset.state(), dataset.list_blocks(10_000), dataset.slices()) == truth(chains, dataset)
        assert dataset.state().sequence_number == number
    dataset.commit([chains.schema()], system_time=chains.day(1), expected_head=dataset.head())
    chains.grow(chains.dataset(dataset.folder), days=5)
    assert (dataset.state(), dataset.list_blocks(10_000), dataset.slices()) == truth(chains, dataset)
    assert dataset.state().schema == chains.schema().schema


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["grow", "elsewhere", "back"]), st.integers(1, 6)), max_size=8))
def test_the_index_is_right_wherever_the_head_goes(chains: Chains, moves: list[tuple[str, int]]) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch("odf_engine.chain.block_index.SNAPSHOT_EVERY", 3),
        mock.patch("os.fsync", lambda descriptor: None),
    ):
        index = BlockIndex(Path(name) / "index.sqlite")
        dataset = chains.made(Path(name) / "ds", days=2, index=index)
        for move, amount in moves:
            if move == "grow":
                chains.grow(dataset, amount)
            elif move == "elsewhere":
                chains.grow(chains.dataset(dataset.folder), amount)
            else:
                back = dataset.block(max(0, dataset.state().sequence_number - amount)).hash
                (dataset.folder / "refs" / "head").write_text(str(back))
                if dataset.state().schema is None:
                    dataset.commit([chains.schema()], system_time=chains.day(0), expected_head=back)
            assert (dataset.state(), dataset.list_blocks(10_000), dataset.slices()) == truth(chains, dataset)
        index.close()


def test_index_separates_two_histories_of_one_dataset(
    chains: Chains, tmp_path: Path, shared_index: BlockIndex
) -> None:
    import shutil

    one = chains.made(tmp_path / "one", days=5, index=shared_index)
    shutil.copytree(one.folder, tmp_path / "two")
    two = chains.dataset(tmp_path / "two", shared_index)
    assert two.state() == one.state()
    for dataset, text in ((one, "1"), (two, "2"), (one, "3"), (two, "4")):
        dataset.commit([SetInfo(text)], system_time=chains.day(9), expected_head=dataset.head())
        for each in (one, two):
            again = chains.dataset(each.folder, shared_index)
            assert (again.state(), again.list_blocks(10_000), again.slices()) == truth(chains, each)


def test_threads_read_consistent_blocks_during_commits(
    chains: Chains, tmp_path: Path, shared_index: BlockIndex
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    dataset = chains.made(tmp_path / "ds", days=2, index=shared_index)

    def look(_: int) -> bool:
        page, state = dataset.list_blocks(10_000), dataset.state()
        return [row.sequence_number for row in page] == list(range(len(page)))[::-1] and state.blocks > 0

    with ThreadPoolExecutor(4) as pool:
        looks = pool.map(look, range(60))
        chains.grow(chains.dataset(dataset.folder, shared_index), days=15)
        assert all(looks)
    assert dataset.state().records == 17


def test_two_datasets_in_one_index_stay_separate(
    chains: Chains, tmp_path: Path, shared_index: BlockIndex
) -> None:
    one = chains.made(tmp_path / "one", days=1, index=shared_index)
    two = chains.dataset(tmp_path / "two", shared_index)
    two.commit([Seed(chains.ids[1], chains.root.dataset_kind)], system_time=chains.day(0), expected_head=None)
    heads = [one.head(), two.head(), chains.hash("nobody")]
    states = shared_index.states([head for head in heads if head])
    assert states == {one.head(): one.state(), two.head(): two.state()}


def test_column_can_be_added_but_not_removed(chains: Chains, tmp_path: Path) -> None:
    dataset = chains.made(tmp_path / "ds", days=1)
    wider = chains.schema(pa.field("a", pa.int64()), pa.field("b", pa.string()))
    dataset.commit([wider], system_time=chains.day(1), expected_head=dataset.head())
    with pytest.raises(ChainRuleViolated, match="'a'"):
        dataset.commit([chains.schema()], system_time=chains.day(1), expected_head=dataset.head())
