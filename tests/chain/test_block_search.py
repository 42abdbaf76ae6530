"""Finding blocks, also in chains that break."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.block_search import (
    block_numbers,
    count_kinds,
    find_blocks,
    read_from_head,
    resolve_block_number,
)
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.metadata.model import SetInfo

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from tests.chain.conftest import Chains


@pytest.fixture
def dataset(chains: Chains, tmp_path: Path) -> Dataset:
    """Seed, SetDataSchema, twenty days of one row each, and what it is about."""
    made = chains.made(tmp_path / "ds", days=20)
    about = [SetInfo("Boats of the harbour")]
    made.commit(about, system_time=chains.day(30), expected_head=made.head())
    return made


def numbers(
    dataset: Dataset, first: int | None, limit: int, *kinds: str, text: str = ""
) -> tuple[int, list[int]]:
    found = find_blocks(dataset, first, limit, kinds, text)
    return found.total, [row.sequence_number for row in found.rows]


def test_pages_can_be_filtered_by_kind(dataset: Dataset) -> None:
    assert numbers(dataset, None, 3) == (23, [20, 21, 22])
    assert numbers(dataset, 0, 3) == (23, [0, 1, 2])
    assert find_blocks(dataset, None, 3).first == 20
    assert numbers(dataset, None, 3, "AddData") == (20, [19, 20, 21])
    assert numbers(dataset, 17, 9, "AddData", "Seed") == (21, [18, 19, 20, 21])
    assert numbers(dataset, 22, 9) == (23, [22])
    assert numbers(dataset, 99, 9) == (23, [])
    assert count_kinds(dataset) == {"AddData": 20, "Seed": 1, "SetDataSchema": 1, "SetInfo": 1}


def test_search_finds_words_numbers_and_hash_parts(dataset: Dataset) -> None:
    head = str(dataset.head())
    assert numbers(dataset, None, 9, text="harbour") == (1, [22])
    assert numbers(dataset, None, 9, text="setinfo") == (1, [22])
    assert 7 in numbers(dataset, None, 99, text=" 7 ")[1]  # beside days that have a 7
    assert numbers(dataset, None, 9, "AddData", text="boats") == (0, [])
    assert all(numbers(dataset, None, 9, text=head[:end]) == (1, [22]) for end in (20, 21, None))
    assert all(numbers(dataset, None, 9, text=part) == (1, [22]) for part in (head[5:13], head[-8:]))
    assert numbers(dataset, None, 9, text="100%_") == (0, [])


def test_block_resolves_from_number_hash_offset_or_time(dataset: Dataset) -> None:
    hashes = {row.sequence_number: str(row.hash) for row in find_blocks(dataset, 0, 99).rows}
    seventh = hashes[7]
    for text, number in {
        "0": 0, " 22 ": 22, seventh: 7, seventh[:24]: 7, seventh[-8:]: 7, seventh[5:20]: 7,
        "#0": 2, "# 19": 21, "offset 5": 7, "1970-01-31": 22, "1970-01-01": 0, "1970": None,
        "1970-01-02T00:00Z": 22, "1970-01-01 00:00:00.5": 22,
    }.items():  # fmt: skip
        if number is not None:
            assert resolve_block_number(dataset, text) == number, text
    for text, words in {
        "23": "0 to 22", "#20": "last offset is 19", "2030-01-01": "newest is from 1970-01-31 00:00:00",
        "feed0000": "no hash starts or ends with", "f162": "more than one block",
    }.items():  # fmt: skip
        with pytest.raises(NotFound, match=words):
            resolve_block_number(dataset, text)
    for text in ("ab", "yesterday!", "", "-1"):
        with pytest.raises(UsageError):
            resolve_block_number(dataset, text)
    assert block_numbers(dataset, [seventh, "head", "f1620" + "00" * 32]) == {seventh: 7}


def test_an_empty_dataset_has_no_blocks(chains: Chains, tmp_path: Path) -> None:
    empty = chains.dataset(tmp_path / "none")
    assert find_blocks(empty, None, 9).total == 0
    assert (count_kinds(empty), block_numbers(empty, []), read_from_head(empty).rows) == ({}, {}, [])


def test_a_broken_chain_is_read_up_to_where_it_breaks(chains: Chains, dataset: Dataset) -> None:
    hashes = [str(row.hash) for row in find_blocks(dataset, 0, 99).rows]
    path = dataset.folder / "blocks" / hashes[18]
    path.write_bytes(path.read_bytes()[:-1])
    again = chains.dataset(dataset.folder, BlockIndex(":memory:"))
    with pytest.raises(OdfError):
        find_blocks(again, None, 9)
    broken = read_from_head(again)
    assert [row.sequence_number for row in broken.rows] == [19, 20, 21, 22]
    assert broken.rows[-1].summary == "Boats of the harbour"
    assert (broken.number, broken.block) == (18, hashes[18])
    assert "do not match its hash" in str(broken.error)
    few = read_from_head(again, max_blocks=2)
    assert (len(few.rows), few.number, few.error) == (2, 20, None)
    path.unlink()
    assert "is missing" in str(read_from_head(again).error)
    (dataset.folder / "refs" / "head").write_text("nonsense")
    assert (read_from_head(again).rows, read_from_head(again).block) == ([], "")
    assert read_from_head(again).error is not None
