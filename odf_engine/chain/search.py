"""Finding blocks in a chain: by kind and words, by number, hash, time or offset; all from the index."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from odf_engine.chain.chain import Dataset
from odf_engine.chain.index import BLOCK_COLUMNS, ChainIndex, Position, block_row_of
from odf_engine.chain.rows import BlockRow
from odf_engine.errors import InvalidIdentity, NotFound, UsageError
from odf_engine.identity.multiformats import Multihash

SHORTEST_HASH: Final = 4
_OFFSET: Final = re.compile(r"(?:#|offset\s)\s*(\d[\d ,_]*)", re.IGNORECASE)
_TIME: Final = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[ T]\d\d(?::\d\d(?::\d\d(?:\.\d+)?)?)?Z?)?)?")
_HEX: Final = re.compile(r"[0-9a-f]{1,72}")
_HASH_BYTES: Final = 36
_SHORT: Final = 8
_HASH_HEAD: Final = "f1620"  # of a SHA3-256 in base16: people leave it out
_Condition = tuple[str, list[Any]]


class Found(msgspec.Struct, frozen=True):
    """Some of the blocks that were looked for: ``rows``, oldest first, from place ``first`` of ``total``.

    Places count from 0, the oldest block, so that new blocks leave them as they are.
    """

    total: int
    first: int
    rows: list[BlockRow]


def find_blocks(
    dataset: Dataset, first: int | None, limit: int, kinds: Collection[str] = (), text: str = ""
) -> Found:
    """At most ``limit`` blocks of these kinds of event (none: all) that hold ``text``.

    Args:
        first: the place of the oldest of them; None for the newest blocks.
        text: letters of the kind or of what the block did, its number, or of its hash at least 4
            characters of the beginning or the last 8.

    Raises:
        OdfError: the chain cannot be read.
    """
    if dataset.head() is None:
        return Found(0, 0, [])

    def ask(index: ChainIndex, at: Position) -> Found:
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
        return Found(total, start, [block_row_of(row) for row in index.rows(query, *values, limit)])

    return dataset.indexed(ask)


def _condition(at: Position, kinds: Collection[str], text: str) -> _Condition:
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
    return dataset.indexed(lambda index, at: dict(index.rows(query, at.chain, at.sequence)))


def numbers_of(dataset: Dataset, hashes: Iterable[str]) -> dict[str, int]:
    """The numbers of those blocks that the chain holds, by their hashes."""
    wanted: list[Multihash] = []
    for text in hashes:
        try:
            wanted.append(Multihash.parse(text))
        except InvalidIdentity:
            continue
    if dataset.head() is None or not wanted:
        return {}

    def ask(index: ChainIndex, at: Position) -> dict[str, int]:
        found = ((each, index.position(each)) for each in wanted)
        return {
            str(each): place.sequence
            for each, place in found
            if place is not None and place.chain == at.chain and place.sequence <= at.sequence
        }

    return dataset.indexed(ask)


def locate(dataset: Dataset, text: str) -> int:
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
    found = dataset.indexed(lambda index, at: index.rows(query, at.chain, at.sequence, bound))[0][0]
    if found is None:
        newest = str(dataset.state().system_time)[:19].replace("T", " ")
        raise NotFound(f"there is no block since {text}: the newest is of {newest}")
    return int(found)


def _by_hash(dataset: Dataset, text: str, newest: int) -> int:
    with suppress(InvalidIdentity):  # else it is a part of one
        block_hash = Multihash.parse(text)
        found = numbers_of(dataset, [str(block_hash)])
        if not found:
            raise NotFound(f"the chain holds no block {block_hash}")
        return found[str(block_hash)]
    numbers: list[int] = []
    for spelling in (text.lower(), _HASH_HEAD + text.lower()):
        numbers = numbers or dataset.indexed(partial(_numbers_with, spelling))
    if len(numbers) > 1:
        some = ", ".join(map(_spaced, numbers[:3]))
        raise NotFound(f"{text} means more than one block, such as {some}: give more of the hash")
    if not numbers:
        raise NotFound(f"no block's hash begins or ends with {text}; numbers go from 0 to {_spaced(newest)}")
    return numbers[0]


def _numbers_with(text: str, index: ChainIndex, at: Position) -> list[int]:
    where, values = _hash_condition(text)
    query = f"SELECT sequence FROM blocks WHERE chain = ? AND sequence <= ? AND {where} LIMIT 4"
    return [row[0] for row in index.rows(query, at.chain, at.sequence, *values)]


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
