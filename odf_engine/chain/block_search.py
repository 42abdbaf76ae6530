"""Finds blocks: with the index, or by reading block files if a chain is damaged."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.chain.block_index import BLOCK_COLUMNS, BlockIndex, BlockPosition, parse_block_row
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
from odf_engine.metadata.flatbuffers import DecodedBlock, decode_block
from odf_engine.metadata.model import DatasetKind, ExecuteTransform, Seed, SetTransform
from odf_engine.storage.object_store import find_object_name

MIN_HASH_CHARACTERS: Final = 4
_OFFSET: Final = re.compile(r"(?:#|offset\s)\s*(\d[\d ,_]*)", re.IGNORECASE)
_TIME: Final = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d(?:\.\d+)?)?)?Z?)?)?")
_HEX: Final = re.compile(r"[0-9a-f]{1,72}")
_HASH_BYTES: Final = 36
_HASH_TAIL_CHARACTERS: Final = 8
_HASH_PREFIX: Final = "f1620"  # of a SHA3-256 in base16; users may omit it
_Condition = tuple[str, list[Any]]


class BlockPage(msgspec.Struct, frozen=True):
    """A page of search results: ``rows``, oldest first, starting at position ``first`` of ``total``.

    Positions count from 0, the oldest block, so that new blocks do not change them.
    """

    total: int
    first: int
    rows: list[BlockSummary]


def find_blocks(
    dataset: Dataset, first: int | None, limit: int, kinds: Collection[str] = (), text: str = ""
) -> BlockPage:
    """Return at most ``limit`` blocks with these kinds of event (none: all) that match ``text``.

    Args:
        dataset: the dataset.
        first: the position of the first block of the page, or None for the newest blocks.
        limit: the maximum number of blocks.
        kinds: the kinds of event.
        text: a part of the kind or the summary, the sequence number, the first characters of the hash or
            of its digest (at least 4), or its last 8.

    Raises:
        OdfError: the chain cannot be read.
    """
    if dataset.head() is None:
        return BlockPage(0, 0, [])

    def query_page(index: BlockIndex, at: BlockPosition) -> BlockPage:
        condition, values = _condition(at, kinds, text.strip().lower())
        if kinds or text:
            total = index.query_rows(f"SELECT COUNT(*) FROM blocks WHERE {condition}", *values)[0][0]
        else:
            total = at.sequence + 1
        start = max(total - limit, 0) if first is None else max(first, 0)
        if kinds or text:  # the subquery sorts and skips sequence numbers only, which is faster
            numbers = f"SELECT sequence FROM blocks WHERE {condition} ORDER BY sequence LIMIT ? OFFSET ?"
            condition, values = f"chain = ? AND sequence IN ({numbers})", [at.chain, *values, limit, start]
        else:  # positions are sequence numbers
            condition, values = f"{condition} AND sequence >= ?", [*values, start]
        query = f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE {condition} ORDER BY sequence LIMIT ?"
        return BlockPage(
            total, start, [parse_block_row(row) for row in index.query_rows(query, *values, limit)]
        )

    return dataset.query_index(query_page)


def _condition(at: BlockPosition, kinds: Collection[str], text: str) -> _Condition:
    condition, values = "chain = ? AND sequence <= ?", [at.chain, at.sequence]
    if kinds:
        condition += f" AND kind IN ({','.join('?' * len(kinds))})"
        values += sorted(kinds)
    if text:
        like = "%" + re.sub(r"([%_\\])", r"\\\1", text) + "%"
        number = int(text) if text.isdecimal() and len(text) < 16 else -1
        hashed, hash_values = _hash_condition(text)
        condition += (
            rf" AND (kind LIKE ? ESCAPE '\' OR summary LIKE ? ESCAPE '\' OR sequence = ? OR {hashed})"
        )
        values += [like, like, number, *hash_values]
    return condition, values


def _hash_condition(text: str) -> _Condition:
    """Return an SQL condition: the base16 hash, or its digest, starts or (8 characters) ends so."""
    condition, values = "0", []
    if len(text) < MIN_HASH_CHARACTERS:
        return condition, values
    prefixes = [_HASH_PREFIX[1:] + text, *([text[1:]] if text[0] == "f" else [])]
    for prefix in prefixes:
        if _HEX.fullmatch(prefix):
            low = bytes.fromhex(prefix + "0" * (len(prefix) % 2))
            high = bytes.fromhex(prefix.ljust(2 * _HASH_BYTES, "f"))
            condition += " OR hash BETWEEN ? AND ?"
            values += [low, high]
    if len(text) == _HASH_TAIL_CHARACTERS and _HEX.fullmatch(text):
        condition += f" OR substr(hash, {-_HASH_TAIL_CHARACTERS // 2}) = ?"
        values += [bytes.fromhex(text)]
    return f"({condition})", values


def count_kinds(dataset: Dataset) -> dict[str, int]:
    """Return the number of blocks for each kind of event, in descending order."""
    if dataset.head() is None:
        return {}
    query = (
        "SELECT kind, COUNT(*) FROM blocks WHERE chain = ? AND sequence <= ?"
        " GROUP BY kind ORDER BY COUNT(*) DESC, kind"
    )
    return dataset.query_index(lambda index, at: dict(index.query_rows(query, at.chain, at.sequence)))


def block_numbers(dataset: Dataset, hashes: Iterable[str]) -> dict[str, int]:
    """Return the sequence numbers of those blocks that the chain contains, by their hashes."""
    blocks: list[Multihash] = []
    for text in hashes:
        try:
            blocks.append(Multihash.parse(text))
        except InvalidIdentity:
            continue
    if dataset.head() is None or not blocks:
        return {}

    def query_numbers(index: BlockIndex, at: BlockPosition) -> dict[str, int]:
        positions = ((block, index.find_ancestor(at, block)) for block in blocks)
        return {str(block): position.sequence for block, position in positions if position is not None}

    return dataset.query_index(query_numbers)


def resolve_block_number(dataset: Dataset, text: str) -> int:
    """Return the sequence number of the block that ``text`` identifies.

    Args:
        dataset: the dataset.
        text: a sequence number; a hash, the beginning of it or of its digest, or its last 8 characters; a
            date or time (UTC), for the first block at or after it; ``#1204`` or ``offset 1204`` for the block
            that added this row.

    Raises:
        NotFound: there is no such block; the message has the valid range.
        UsageError: the text has none of these forms.
    """
    text = text.strip()
    newest = dataset.state()
    if (offset := _OFFSET.fullmatch(text)) is not None:
        return _find_by_offset(dataset, int(re.sub(r"\D", "", offset[1])))
    if _TIME.fullmatch(text):
        return _find_by_time(dataset, text)
    digits = re.sub(r"[ ,_]", "", text)
    if digits.isdecimal() and (int(digits) < newest.blocks or len(digits) < MIN_HASH_CHARACTERS):
        if int(digits) >= newest.blocks:
            raise NotFound(
                f"block {text} not found: sequence numbers are 0 to {_group_digits(newest.sequence_number)}"
            )
        return int(digits)
    if len(text) < MIN_HASH_CHARACTERS or not re.fullmatch(r"[a-zA-Z0-9_+/=-]+", text):
        raise UsageError(f"'{text}' is not a number, hash, date or offset such as #{newest.last_offset or 0}")
    return _find_by_hash(dataset, text, newest.sequence_number)


def _find_by_offset(dataset: Dataset, offset: int) -> int:
    slices = dataset.slices(offset, offset)
    if slices:
        return slices[0].sequence_number
    state = dataset.state()
    if state.last_offset is None:
        raise NotFound(f"row {_group_digits(offset)} not found: the dataset has no rows")
    raise NotFound(
        f"row {_group_digits(offset)} not found: the last offset is {_group_digits(state.last_offset)}"
    )


def _find_by_time(dataset: Dataset, text: str) -> int:
    # Without the Z, the texts of times sort in time order, whatever their precision.
    bound = text.replace(" ", "T").removesuffix("Z")
    query = (
        "SELECT MIN(sequence) FROM blocks WHERE chain = ? AND sequence <= ? AND rtrim(system_time, 'Z') >= ?"
    )
    number = dataset.query_index(lambda index, at: index.query_rows(query, at.chain, at.sequence, bound))[0][
        0
    ]
    if number is None:
        newest = str(dataset.state().system_time)[:19].replace("T", " ")
        raise NotFound(f"no block at or after {text}: the newest is from {newest}")
    return int(number)


def _find_by_hash(dataset: Dataset, text: str, newest: int) -> int:
    with suppress(InvalidIdentity):  # otherwise it is a part of a hash
        block_hash = Multihash.parse(text)
        numbers_by_hash = block_numbers(dataset, [str(block_hash)])
        if not numbers_by_hash:
            raise NotFound(f"block {block_hash} not found in this dataset")
        return numbers_by_hash[str(block_hash)]
    numbers = dataset.query_index(partial(_find_numbers, text.lower()))
    if len(numbers) > 1:
        examples = ", ".join(map(_group_digits, numbers[:3]))
        raise NotFound(f"'{text}' matches more than one block, such as {examples}: use more of the hash")
    if not numbers:
        raise NotFound(
            f"block {text} not found: no hash starts or ends with it; "
            f"sequence numbers are 0 to {_group_digits(newest)}"
        )
    return numbers[0]


def _find_numbers(text: str, index: BlockIndex, at: BlockPosition) -> list[int]:
    condition, values = _hash_condition(text)
    query = f"SELECT sequence FROM blocks WHERE chain = ? AND sequence <= ? AND {condition} LIMIT 4"
    return [row[0] for row in index.query_rows(query, at.chain, at.sequence, *values)]


def _group_digits(number: int) -> str:
    return f"{number:,}".replace(",", " ")


MAX_BLOCKS: Final = 1000
"""Default limit of :func:`read_from_head`."""


class PartialChain(msgspec.Struct, frozen=True):
    """The readable part of a chain.

    Attributes:
        rows: the blocks, oldest first.
        number: the sequence number of the next older block, if it is known.
        block: the hash of that block, or "" if the head cannot be read.
        error: why that block cannot be read, or None if the limit was reached or the chain is complete.
    """

    rows: list[BlockSummary]
    number: int | None
    block: str
    error: OdfError | None


def read_from_head(dataset: Dataset, max_blocks: int = MAX_BLOCKS) -> PartialChain:
    """Read at most ``max_blocks`` blocks, starting from the head."""
    rows: list[BlockSummary] = []
    number: int | None = None
    at: Multihash | None = None
    try:
        at = dataset.head()
        while at is not None and len(rows) < max_blocks:
            stored = dataset.block(at)
            if number is not None and stored.block.sequence_number != number:
                problem = f"sequence number is {stored.block.sequence_number}, expected {number}"
                raise ChainRuleViolated("sequence-number", problem, block=str(at))
            rows.append(summarize_block(stored))
            number, at = stored.block.sequence_number - 1, stored.block.prev_block_hash
    except OdfError as error:
        return PartialChain(rows[::-1], number, "" if at is None else str(at), error)
    return PartialChain(rows[::-1], number, "" if at is None else str(at), None)


class WalkedChain(NamedTuple):
    """The result of :meth:`BlockFiles.walk`.

    Attributes:
        hashes: the blocks of the chain, oldest first, including missing and damaged ones.
        first_number: the expected sequence number of the first of them.
        complete: whether a block without a predecessor was reached.
        head_problem: kind and message, if ``refs/head`` is not the hash of a block.
    """

    hashes: list[Multihash]
    first_number: int
    complete: bool
    head_problem: tuple[str, str] | None


class BlockFiles:
    """The block files of a dataset, read without a cache."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._objects = dataset.objects("blocks")
        self._by_number: dict[int, list[Multihash]] | None = None

    def read(self, block_hash: Multihash) -> bytes:
        """Return the bytes stored under this hash, unverified; raise NotFound if there are none."""
        name = find_object_name(self._objects, block_hash)
        return self._objects.read(name or str(block_hash))

    def read_valid(self, block_hash: Multihash) -> DecodedBlock | None:
        """Return the block if it exists, its bytes match the hash, and it can be decoded; otherwise None."""
        try:
            data = self.read(block_hash)
            return decode_block(data) if hash_bytes(data, block_hash.code) == block_hash else None
        except (NotFound, MalformedBlock):
            return None

    def walk(self, reporter: Reporter) -> WalkedChain:
        """Follow the chain from its head; skip damaged blocks by their sequence numbers."""
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
        return head, None if head else ("head-missing", "the dataset has no head: refs/head is missing")

    def _numbers(self) -> dict[int, list[Multihash]]:
        """Return all valid blocks by sequence number, including orphans. Only needed for damaged chains."""
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
        numbers = self._numbers().get(number, [])
        return numbers[0] if len(numbers) == 1 else None


def is_derivative(dataset: Dataset) -> bool:
    """Return whether a dataset is derivative, determined from the readable blocks if the chain is damaged."""
    try:
        return dataset.state().kind is DatasetKind.Derivative
    except OdfError:
        blocks = BlockFiles(dataset)
        decoded_blocks = (blocks.read_valid(block_hash) for block_hash in blocks.walk(Reporter()).hashes)
        return any(
            decoded is not None and _is_derivative_event(decoded.block.event) for decoded in decoded_blocks
        )


def _is_derivative_event(event: object) -> bool:
    if isinstance(event, Seed):
        return event.dataset_kind is DatasetKind.Derivative
    return isinstance(event, SetTransform | ExecuteTransform)
