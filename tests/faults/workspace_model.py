"""A model in memory of a workspace and its peers: chains of blocks with their rows, without any files.

The model knows the rules of the protocol, and nothing of the engine. Hashes are unknown until a block was
committed: a predicted block has an empty hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

APPEND, RETRACT, CORRECT_FROM, CORRECT_TO = range(4)
Strategy = Literal["Append", "Ledger", "Snapshot"]
KEYS: Final[dict[str, tuple[str, ...]]] = {"Append": (), "Ledger": ("day", "city"), "Snapshot": ("city",)}
ON_CONFLICT: Final = {"c": "correct", "d": "correct", "e": "fail"}
"""What ledgers with these names do with a changed row; others only report it."""


class Row(NamedTuple):
    """A row: its operation, the day of its event time, and its values."""

    op: int
    day: int
    city: str
    people: int | None
    note: str | None = None


class Query(NamedTuple):
    """``SELECT event_time, city, people + plus AS people`` from all inputs, for cities from ``city`` on."""

    inputs: tuple[str, ...]
    plus: int
    city: str

    def rows(self, rows: Iterable[Row]) -> list[Row]:
        """Return the result for rows of an input."""
        return [
            Row(row.op, row.day, row.city, None if row.people is None else row.people + self.plus)
            for row in rows
            if row.city >= self.city
        ]


class Interval(NamedTuple):
    """What a transaction reads of an input: blocks and offsets after the first up to the second."""

    dataset: str
    prev_block: str | None
    new_block: str | None
    prev_offset: int | None
    new_offset: int | None


class Block(NamedTuple):
    """A block. ``detail`` is what its event defines: a source, a schema, a query, a text, a payload."""

    kind: str
    detail: Any = None
    rows: tuple[Row, ...] = ()
    watermark: int | None = None
    hash: str = ""


Chain = tuple[Block, ...]


def rows_of(chain: Chain) -> list[Row]:
    """Return all rows, in the order of their offsets."""
    return [row for block in chain for row in block.rows]


def watermark_of(chain: Chain) -> int | None:
    """Return the watermark."""
    return next((each.watermark for each in reversed(chain) if each.kind in DATA_KINDS), None)


DATA_KINDS: Final = ("AddData", "ExecuteTransform")


def newest(chain: Chain, kind: str) -> Any:
    """Return what the newest event of a kind defines, or None without one."""
    return next((block.detail for block in reversed(chain) if block.kind == kind), None)


def prefix_to(chain: Chain, block_hash: str) -> Chain | None:
    """Return the chain up to a block, or None if it does not contain the block."""
    return next((chain[: at + 1] for at, each in enumerate(chain) if each.hash == block_hash), None)


def relation(ours: Chain, theirs: Chain) -> Literal["equal", "ahead", "behind", "diverged"]:
    """Compare two chains of the same dataset."""
    if ours == theirs:
        return "equal"
    if ours[: len(theirs)] == theirs:
        return "ahead"
    return "behind" if theirs[: len(ours)] == ours else "diverged"


class Changed(Exception):
    """A ledger that rejects changed rows has a row with this key and other values."""


def live_rows(rows: Iterable[Row], strategy: Strategy) -> dict[tuple[Any, ...], Row]:
    """Return the latest state by key."""
    state: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in KEYS[strategy])
        if row.op in (APPEND, CORRECT_TO):
            state[key] = row
        else:
            state.pop(key, None)
    return state


def merge(strategy: Strategy, stored: Sequence[Row], new: Sequence[Row], on_conflict: str) -> list[Row]:
    """Return the rows that a payload adds to the stored ones.

    Raises:
        Changed: a known key has other values, and ``on_conflict`` is ``fail``.
    """
    if strategy == "Append":
        return list(new)
    live = live_rows(stored, strategy)
    added: list[Row] = []
    corrected: list[Row] = []
    for row in new:
        key = tuple(getattr(row, name) for name in KEYS[strategy])
        old = live.pop(key, None)
        if old is None:
            added.append(row)
        elif old[1:] != row[1:] and (strategy == "Snapshot" or on_conflict == "correct"):
            corrected += [old._replace(op=CORRECT_FROM), row._replace(op=CORRECT_TO)]
        elif old[1:] != row[1:] and on_conflict == "fail":
            raise Changed
    gone = [row._replace(op=RETRACT) for row in live.values()] if strategy == "Snapshot" else []
    return [*added, *gone, *corrected]


@dataclass(frozen=True)
class Copy:
    """A dataset in a workspace or a repository.

    Attributes:
        pulled: URLs that it is pulled from.
        pushed: URLs that it was pushed to.
        stored: heads that references retain.
    """

    alias: str
    chain: Chain
    pulled: frozenset[str] = frozenset()
    pushed: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()

    @property
    def head(self) -> str:
        """Hash of the newest block."""
        return self.chain[-1].hash

    @property
    def query(self) -> Query | None:
        """The query of a derivative, or None for a root."""
        return newest(self.chain, "SetTransform")

    def extended(self, *blocks: Block) -> Copy:
        """Return the dataset with further blocks."""
        return replace(self, chain=(*self.chain, *blocks))

    def moved_to(self, chain: Chain, *, force: bool) -> Copy:
        """Return the dataset with another chain; a reference retains a head that was discarded."""
        discarded = force and relation(self.chain, chain) in ("ahead", "diverged")
        return replace(self, chain=chain, stored=self.stored | {self.head} if discarded else self.stored)


@dataclass(frozen=True)
class Site:
    """A workspace or a repository: its datasets by their ids, and the ids of its private keys."""

    copies: dict[str, Copy] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()

    def with_copy(self, dataset: str, copy: Copy) -> Site:
        """Return the site with a dataset added or replaced."""
        return replace(self, copies={**self.copies, dataset: copy})

    def without(self, dataset: str) -> Site:
        """Return the site without a dataset; its key stays."""
        return replace(self, copies={each: copy for each, copy in self.copies.items() if each != dataset})

    def named(self, alias: str) -> str | None:
        """Return the id of the dataset with a name."""
        return next((each for each, copy in self.copies.items() if copy.alias == alias), None)

    def readers(self, dataset: str) -> list[str]:
        """Return the derivatives that read a dataset."""
        return [each for each, copy in self.copies.items() if copy.query and dataset in copy.query.inputs]


def ingest(copy: Copy, payload: str, rows: Sequence[Row], *, force: bool) -> Copy | None:
    """Return the dataset after a push of rows, or None if a changed row is refused.

    Args:
        copy: a root dataset.
        payload: hash of the file.
        rows: its rows.
        force: ingest a file again.
    """
    if not rows:
        return copy  # an empty file has no rows, also for a snapshot
    strategy, columns = newest(copy.chain, "AddPushSource")
    data = [block for block in copy.chain if block.rows]
    if not force:
        same = [block for block in data if block.detail == payload]
        # An earlier snapshot after another one is a change.
        if same and (strategy != "Snapshot" or data[-1].detail == payload):
            return copy
    try:
        merged = merge(strategy, rows_of(copy.chain), rows, ON_CONFLICT.get(copy.alias, "warn"))
    except Changed:
        return None
    if not merged:
        return copy
    marks = [row.day for row in merged] + [mark for mark in (watermark_of(copy.chain),) if mark is not None]
    schema = [] if newest(copy.chain, "SetDataSchema") else [Block("SetDataSchema", columns)]
    return copy.extended(*schema, Block("AddData", payload, tuple(merged), max(marks)))


def update(copy: Copy, text: str, columns: tuple[str, ...] | None, query: Query | None) -> Copy:
    """Return the dataset after an update of its definition: only what has changed becomes a block."""
    blocks: list[Block] = []
    source = newest(copy.chain, "AddPushSource")
    if columns is not None and source is not None and source[1] != columns:
        if newest(copy.chain, "SetDataSchema"):
            blocks.append(Block("SetDataSchema", columns))
        blocks.append(Block("AddPushSource", (source[0], columns)))
    if query is not None and copy.query != query:
        blocks.append(Block("SetTransform", query))
    if newest(copy.chain, "SetInfo") != text:
        blocks.append(Block("SetInfo", text))
    return copy.extended(*blocks)


class Broken(Exception):
    """A transaction differs from what its query and its inputs prescribe."""


def positions(chain: Chain) -> dict[str, tuple[str | None, int | None]]:
    """Return for each input the last block and offset that were read."""
    read: dict[str, tuple[str | None, int | None]] = {}
    for block in chain:
        for each in block.detail if block.kind == "ExecuteTransform" else ():
            last = each.prev_offset if each.new_offset is None else each.new_offset
            read[each.dataset] = (each.new_block or each.prev_block, last)
    return read


def diverged_inputs(site: Site, copy: Copy) -> list[str]:
    """Return the inputs whose chains do not contain the blocks that the derivative has read."""
    query = copy.query
    assert query is not None
    return [
        dataset
        for dataset, (block, _) in positions(copy.chain).items()
        if dataset in query.inputs
        and dataset in site.copies
        and block is not None
        and prefix_to(site.copies[dataset].chain, block) is None
    ]


def first_obstacle(site: Site, copy: Copy) -> Literal["absent", "diverged", "empty", ""]:
    """Return why no transaction runs. The inputs are planned in their order, until one has an obstacle."""
    assert copy.query is not None
    for dataset in copy.query.inputs:
        if dataset not in site.copies:
            return "absent"
        if dataset in diverged_inputs(site, copy):
            return "diverged"
        if not rows_of(site.copies[dataset].chain):
            return "empty"
    return ""


def pending(site: Site, copy: Copy) -> bool:
    """Return whether a derivative lacks rows or a watermark of its inputs."""
    query, read = copy.query, positions(copy.chain)
    assert query is not None
    is_due = False
    for dataset in query.inputs:
        chain = site.copies[dataset].chain if dataset in site.copies else ()
        if not rows_of(chain):
            return False
        block, offset = read.get(dataset, (None, None))
        before = None if block is None else watermark_of(prefix_to(chain, block) or ())
        is_due |= offset != len(rows_of(chain)) - 1 or before != watermark_of(chain)
    return is_due


def check_transactions(site: Site, chain: Chain) -> Iterator[str]:
    """Compare the transactions of a derivative with its query over the inputs; yield the differences.

    Inputs that are absent, or whose history was replaced since, are not compared.
    """
    query: Query | None = None
    read: dict[str, tuple[str | None, int | None]] = {}
    mark: int | None = None
    for number, block in enumerate(chain):
        if block.kind == "SetTransform":
            query = block.detail
        if block.kind != "ExecuteTransform" or query is None:
            continue
        if tuple(each.dataset for each in block.detail) != query.inputs:
            yield f"block {number} reads other inputs than its query"
        expected: list[Row] | None = []
        marks: list[int | None] = []
        for each in block.detail:
            if read.get(each.dataset, (None, None)) != (each.prev_block, each.prev_offset):
                yield f"block {number} does not continue after the last transaction"
            last = each.prev_offset if each.new_offset is None else each.new_offset
            read[each.dataset] = (each.new_block or each.prev_block, last)
            source = site.copies.get(each.dataset)
            part = None if source is None else prefix_to(source.chain, read[each.dataset][0] or "")
            if part is None or expected is None:
                expected = None
                continue
            rows = rows_of(part)
            if last != len(rows) - 1:
                yield f"block {number} reads up to offset {last}, its input has {len(rows)} rows"
            first = 0 if each.prev_offset is None else each.prev_offset + 1
            expected += query.rows(rows[first : len(rows) if last is None else last + 1])
            marks.append(watermark_of(part))
        if expected is None:
            mark = block.watermark
            continue
        if sorted(expected, key=repr) != sorted(block.rows, key=repr):
            yield f"block {number} has {block.rows}, its query returns {expected}"
        known = [each for each in marks if each is not None]
        minimum = min(known) if len(known) == len(marks) else mark
        mark = minimum if mark is None or minimum is None else max(mark, minimum)
        if block.watermark != mark:
            yield f"block {number} has watermark {block.watermark}, expected {mark}"


def rebuilt(copy: Copy) -> Copy:
    """Return a derivative with its settings and without rows; a reference retains its head."""
    kept = [copy.chain[0]]
    for kind in ("SetDataSchema", "SetTransform", "SetInfo"):
        detail = newest(copy.chain, kind)
        kept += [] if detail is None else [Block(kind, detail)]
    return replace(copy, chain=tuple(kept), stored=copy.stored | {copy.head})
