"""Finds blocks: through the index, or by walking block files where a chain is damaged."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from odf_engine.chain.block_index import BLOCK_COLUMNS, BlockIndex, BlockPosition, block_row_of
from odf_engine.chain.block_summary import BlockSummary, summarize_block
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import (
    ChainRuleViolated,
    InvalidIdentity,
    MalformedBlock,
    NotFound,
    OdfError,
    UsageError,
)
from odf_engine.identity.multiformats import Multihash, hash_bytes
from odf_engine.metadata.model import DatasetKind, ExecuteTransform, Seed, SetTransform
from odf_engine.progress import Reporter
from odf_engine.storage.object_store import LocalObjectStore, find_object_name

if TYPE_CHECKING:
    from odf_engine.metadata.flatbuffers import DecodedBlock


SHORTEST_HASH: Final = 4
_OFFSET: Final = re.compile(r"(?:#|offset\s)\s*(\d[\d ,_]*)", re.IGNORECASE)
_TIME: Final = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d(?:\.\d+)?)?)?Z?)?)?")
_HEX: Final = re.compile(r"[0-9a-f]{1,72}")
_HASH_BYTES: Final = 36
_SHORT: Final = 8
_HASH_HEAD: Final = "f1620"  # of a SHA3-256 in base16: people leave it out
_Condition = tuple[str, list[Any]]


class BlockPage(msgspec.Struct, frozen=True):
    """Some of the blocks that were looked for: ``rows``, oldest first, from place ``first`` of ``total``.

    Places count from 0, the oldest block, so that new blocks leave them as they are.
    """

    total: int
    first: int
    rows: list[BlockSummary]


def find_blocks(
    dataset: Dataset, first: int | None, limit: int, kinds: Collection[str] = (), text: str = ""
) -> BlockPage:
    """At most ``limit`` blocks of these kinds of event (none: all) that hold ``text``.

    Args:
        first: the place of the oldest of them; None for the newest blocks.
        text: letters of the kind or of what the block did, its number, or of its hash at least 4
            characters of the beginning or the last 8.

    Raises:
        OdfError: the chain cannot be read.
    """
    if dataset.head() is None:
        return BlockPage(0, 0, [])

    def ask(index: BlockIndex, at: BlockPosition) -> BlockPage:
        where, values = _condition(at, kinds, text.strip().lower())
        if kinds or text:
            total = index.rows(f"SELECT COUNT(*) FROM blocks WHERE {where}", *values)[0][0]
        else:
            total = at.sequence + 1
        start = max(total - limit, 0) if first is None else max(first, 0)
        if kinds or text:  # only the numbers are sorted and passed over
            numbers = f"SELECT sequence FROM blocks WHERE {where} ORDER BY sequence LIMIT ? OFFSET ?"
            where, values = f"chain = ? AND sequence IN ({numbers})", [at.chain, *values, limit, start]
        else:  # places are numbers
            where, values = f"{where} AND sequence >= ?", [*values, start]
        query = f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE {where} ORDER BY sequence LIMIT ?"
        return BlockPage(total, start, [block_row_of(row) for row in index.rows(query, *values, limit)])

    return dataset.query_index(ask)


def _condition(at: BlockPosition, kinds: Collection[str], text: str) -> _Condition:
    where, values = "chain = ? AND sequence <= ?", [at.chain, at.sequence]
    if kinds:
        where += f" AND kind IN ({','.join('?' * len(kinds))})"
        values += sorted(kinds)
    if text:
        like = "%" + re.sub(r"([%_\\])", r"\\\1", text) + "%"
        number = int(text) if text.isdecimal() and len(text) < 16 else -1
        hashed, hash_values = _hash_condition(text)
        where += rf" AND (kind LIKE ? ESCAPE '\' OR summary LIKE ? ESCAPE '\' OR sequence = ? OR {hashed})"
        values += [like, like, number, *hash_values]
    return where, values


def _hash_condition(text: str) -> _Condition:
    """Hashes whose base16 begins with ``text``, or that have it as their last 8 characters."""
    where, values = "0", []
    if len(text) < SHORTEST_HASH:
        return where, values
    if _HEX.fullmatch(prefix := text.removeprefix("f")) and text[0] == "f":
        low = bytes.fromhex(prefix + "0" * (len(prefix) % 2))
        high = bytes.fromhex(prefix.ljust(2 * _HASH_BYTES, "f"))
        where += " OR hash BETWEEN ? AND ?"
        values += [low, high]
    if len(text) == _SHORT and _HEX.fullmatch(text):
        where += f" OR substr(hash, {-_SHORT // 2}) = ?"
        values += [bytes.fromhex(text)]
    return f"({where})", values


def count_kinds(dataset: Dataset) -> dict[str, int]:
    """How many blocks there are of each kind of event, most first."""
    if dataset.head() is None:
        return {}
    query = (
        "SELECT kind, COUNT(*) FROM blocks WHERE chain = ? AND sequence <= ?"
        " GROUP BY kind ORDER BY COUNT(*) DESC, kind"
    )
    return dataset.query_index(lambda index, at: dict(index.rows(query, at.chain, at.sequence)))


def block_numbers(dataset: Dataset, hashes: Iterable[str]) -> dict[str, int]:
    """The numbers of those blocks that the chain holds, by their hashes."""
    wanted: list[Multihash] = []
    for text in hashes:
        try:
            wanted.append(Multihash.parse(text))
        except InvalidIdentity:
            continue
    if dataset.head() is None or not wanted:
        return {}

    def ask(index: BlockIndex, at: BlockPosition) -> dict[str, int]:
        found = ((each, index.position(each)) for each in wanted)
        return {
            str(each): place.sequence
            for each, place in found
            if place is not None and place.chain == at.chain and place.sequence <= at.sequence
        }

    return dataset.query_index(ask)


def resolve_block_number(dataset: Dataset, text: str) -> int:
    """The number of the block that a person means.

    Args:
        text: a number; a hash, its beginning or its last 8 characters; a date or time (UTC), for the
            first block at or after it; ``#1204`` or ``offset 1204`` for the block that brought this row.

    Raises:
        NotFound: there is none; it says which there are.
        UsageError: it is nothing of the kind.
    """
    text = text.strip()
    newest = dataset.state()
    if (offset := _OFFSET.fullmatch(text)) is not None:
        return _by_offset(dataset, int(re.sub(r"\D", "", offset[1])))
    if _TIME.fullmatch(text):
        return _by_time(dataset, text)
    digits = re.sub(r"[ ,_]", "", text)
    if digits.isdecimal() and (int(digits) < newest.blocks or len(digits) < SHORTEST_HASH):
        if int(digits) >= newest.blocks:
            raise NotFound(f"there is no block {text}: they go from 0 to {_spaced(newest.sequence_number)}")
        return int(digits)
    if len(text) < SHORTEST_HASH or not re.fullmatch(r"[a-zA-Z0-9_+/=-]+", text):
        raise UsageError(f"'{text}' is no number, hash, date or offset such as #{newest.last_offset or 0}")
    return _by_hash(dataset, text, newest.sequence_number)


def _by_offset(dataset: Dataset, offset: int) -> int:
    found = dataset.slices(offset, offset)
    if found:
        return found[0].sequence_number
    state = dataset.state()
    if state.last_offset is None:
        raise NotFound(f"there is no row {_spaced(offset)}: this dataset has none")
    raise NotFound(f"there is no row {_spaced(offset)}: offsets go up to {_spaced(state.last_offset)}")


def _by_time(dataset: Dataset, text: str) -> int:
    # Without their Z, times are in the order of their texts, whatever their precision.
    bound = text.replace(" ", "T").removesuffix("Z")
    query = (
        "SELECT MIN(sequence) FROM blocks WHERE chain = ? AND sequence <= ? AND rtrim(system_time, 'Z') >= ?"
    )
    found = dataset.query_index(lambda index, at: index.rows(query, at.chain, at.sequence, bound))[0][0]
    if found is None:
        newest = str(dataset.state().system_time)[:19].replace("T", " ")
        raise NotFound(f"there is no block since {text}: the newest is of {newest}")
    return int(found)


def _by_hash(dataset: Dataset, text: str, newest: int) -> int:
    with suppress(InvalidIdentity):  # else it is a part of one
        block_hash = Multihash.parse(text)
        found = block_numbers(dataset, [str(block_hash)])
        if not found:
            raise NotFound(f"the chain holds no block {block_hash}")
        return found[str(block_hash)]
    numbers: list[int] = []
    for spelling in (text.lower(), _HASH_HEAD + text.lower()):
        numbers = numbers or dataset.query_index(partial(_numbers_with, spelling))
    if len(numbers) > 1:
        some = ", ".join(map(_spaced, numbers[:3]))
        raise NotFound(f"{text} means more than one block, such as {some}: give more of the hash")
    if not numbers:
        raise NotFound(f"no block's hash begins or ends with {text}; numbers go from 0 to {_spaced(newest)}")
    return numbers[0]


def _numbers_with(text: str, index: BlockIndex, at: BlockPosition) -> list[int]:
    where, values = _hash_condition(text)
    query = f"SELECT sequence FROM blocks WHERE chain = ? AND sequence <= ? AND {where} LIMIT 4"
    return [row[0] for row in index.rows(query, at.chain, at.sequence, *values)]


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


MAX_BLOCKS: Final = 1000
"""How many blocks are read at most, for people to look at."""


class PartialChain(msgspec.Struct, frozen=True):
    """What can be read of a chain.

    Attributes:
        rows: oldest first.
        number: of the block that cannot be read, where it is known.
        block: its hash; empty when not even the head is known.
        error: what is wrong; None when there is more, and it was not looked at.
    """

    rows: list[BlockSummary]
    number: int | None
    block: str
    error: OdfError | None


def read_from_head(dataset: Dataset, most: int = MAX_BLOCKS) -> PartialChain:
    """Reads blocks from the head on, at most so many."""
    rows: list[BlockSummary] = []
    number: int | None = None
    at: Multihash | None = None
    try:
        at = dataset.head()
        while at is not None and len(rows) < most:
            stored = dataset.block(at)
            if number is not None and stored.block.sequence_number != number:
                problem = f"number {number} comes here, not {stored.block.sequence_number}"
                raise ChainRuleViolated("sequence-number", problem, block=str(at))
            rows.append(summarize_block(stored))
            number, at = stored.block.sequence_number - 1, stored.block.prev_block_hash
    except OdfError as error:
        return PartialChain(rows[::-1], number, "" if at is None else str(at), error)
    return PartialChain(rows[::-1], number, "" if at is None else str(at), None)


class WalkedChain(NamedTuple):
    """What walking found.

    Attributes:
        hashes: the chain's blocks, oldest first, missing and damaged ones too.
        first_number: the sequence number that the first of them should have.
        complete: whether the walk came to a block that follows no other.
        head_problem: kind and message, when ``refs/head`` does not name a block.
    """

    hashes: list[Multihash]
    first_number: int
    complete: bool
    head_problem: tuple[str, str] | None


class BlockFiles:
    """The block files of a dataset, read without any cache."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._objects = LocalObjectStore(dataset.folder / "blocks")
        self._by_number: dict[int, list[Multihash]] | None = None

    def read(self, block_hash: Multihash) -> bytes:
        """The bytes stored under this hash, whatever they are; NotFound when there are none."""
        name = find_object_name(self._objects, block_hash)
        return self._objects.read(name or str(block_hash))

    def read_valid(self, block_hash: Multihash) -> DecodedBlock | None:
        """The block, if it is here, has the bytes that its hash was made of, and can be read."""
        from odf_engine.metadata.flatbuffers import decode_block

        try:
            data = self.read(block_hash)
            return decode_block(data) if hash_bytes(data, block_hash.code) == block_hash else None
        except (NotFound, MalformedBlock):
            return None

    def walk(self, reporter: Reporter) -> WalkedChain:
        """Follows the chain from its head; over a block that is not sound, by sequence numbers."""
        head, problem = self._head()
        at = head if head is not None else self._newest()
        number = None
        newest_first: list[Multihash] = []
        seen: set[Multihash] = set()
        complete = False
        while at is not None and at not in seen:
            reporter.raise_if_cancelled()
            seen.add(at)
            newest_first.append(at)
            decoded = self.read_valid(at)
            if decoded is not None:
                number = decoded.block.sequence_number
                at = decoded.block.prev_block_hash
                complete = at is None
                continue
            number = self._last_number() + 1 if number is None else number - 1
            at = self._only(number - 1)
        return WalkedChain(newest_first[::-1], 0 if complete else max(number or 0, 0), complete, problem)

    def _head(self) -> tuple[Multihash | None, tuple[str, str] | None]:
        try:
            head = self._dataset.head()
        except OdfError as error:
            return None, ("head-malformed", error.message)
        return head, None if head else ("head-missing", "the dataset has no head: refs/head is not there")

    def _numbers(self) -> dict[int, list[Multihash]]:
        """All sound blocks by sequence number, orphans too; only needed where a chain is damaged."""
        if self._by_number is None:
            self._by_number = {}
            for name in self._objects.names():
                try:
                    block_hash = Multihash.parse(name)
                except OdfError:
                    continue
                decoded = self.read_valid(block_hash)
                if decoded is not None:
                    self._by_number.setdefault(decoded.block.sequence_number, []).append(block_hash)
        return self._by_number

    def _last_number(self) -> int:
        return max(self._numbers(), default=-1)

    def _newest(self) -> Multihash | None:
        return self._only(self._last_number())

    def _only(self, number: int) -> Multihash | None:
        found = self._numbers().get(number, [])
        return found[0] if len(found) == 1 else None


def is_derivative(dataset: Dataset) -> bool:
    """Whether a dataset is a derivative one, as far as that can be told where blocks are damaged."""
    try:
        return dataset.state().kind is DatasetKind.Derivative
    except OdfError:
        blocks = BlockFiles(dataset)
        found = (blocks.read_valid(each) for each in blocks.walk(Reporter()).hashes)
        return any(decoded is not None and _only_derivative(decoded.block.event) for decoded in found)


def _only_derivative(event: object) -> bool:
    if isinstance(event, Seed):
        return event.dataset_kind is DatasetKind.Derivative
    return isinstance(event, SetTransform | ExecuteTransform)
