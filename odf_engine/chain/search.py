"""Finding blocks in a chain: by kind and words, by number, hash, time or offset; all from the index."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
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
_HASH_HEAD: Final = "f1620"  # of a SHA3-256 in base16: people leave it out
_MATCHES_TEXT: Final = (
    "(instr(lower(kind || ' ' || summary), ?) OR sequence = ?"
    " OR (? AND (substr('f' || lower(hex(hash)), 1, ?) = ? OR lower(substr(hex(hash), -8)) = ?)))"
)
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
        if kinds or text:
            tail, more = "LIMIT ? OFFSET ?", [limit, start]
        else:  # places are numbers
            tail, more = "LIMIT ?", [limit]
            where, values = f"{where} AND sequence >= ?", [*values, start]
        query = f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE {where} ORDER BY sequence {tail}"
        return Found(total, start, [block_row_of(row) for row in index.rows(query, *values, *more)])

    return dataset.indexed(ask)


def _condition(at: Position, kinds: Collection[str], text: str) -> _Condition:
    where, values = "chain = ? AND sequence <= ?", [at.chain, at.sequence]
    if kinds:
        where += f" AND kind IN ({','.join('?' * len(kinds))})"
        values += sorted(kinds)
    if text:
        number = int(text) if text.isdecimal() and len(text) < 16 else -1
        where += f" AND {_MATCHES_TEXT}"
        values += [text, number, len(text) >= SHORTEST_HASH, len(text), text, text]
    return where, values


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
    last: NotFound | None = None
    for spelling in (text, _HASH_HEAD + text.lower()):
        try:
            block_hash = dataset.find_block(spelling)
            number = numbers_of(dataset, [str(block_hash)]).get(str(block_hash))
            if number is None:
                raise NotFound("the chain does not hold this block any more")
            return number
        except NotFound as error:
            last = last or error
    assert last is not None
    if last.hint or "any more" in last.message:
        raise last
    raise NotFound(f"no block's hash begins or ends with {text}; numbers go from 0 to {_spaced(newest)}")


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
