"""SQLite index of the blocks of several chains: positions, folded states, indexing up to the head.

The index is a cache. Everything in it can be read from the chains again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from odf_engine.chain.append_rules import CONTENT_ERRORS, content_error
from odf_engine.chain.block_summary import (
    BlockSummary,
    SliceSummary,
    StoredBlock,
    summarize_block,
    summarize_slice,
)
from odf_engine.chain.state import (
    MAX_NUMBER,
    ChainState,
    apply_block,
    decode_state,
    encode_state,
    push_state,
)
from odf_engine.errors import ChainRuleViolated, Conflict
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import SourceState
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.databases import connect_database

SNAPSHOT_EVERY: Final = 512
"""Number of blocks between two stored states, from which the states of earlier blocks are folded."""
_FORMAT: Final = 8  # increment it when the tables, summaries, ChainState or apply_block change
_BUSY_SECONDS: Final = 5.0
_TABLES: Final = """
CREATE TABLE chains(id INTEGER PRIMARY KEY, head BLOB NOT NULL UNIQUE, sequence INTEGER NOT NULL,
  state BLOB NOT NULL);
CREATE TABLE blocks(chain INTEGER, sequence INTEGER, hash BLOB NOT NULL UNIQUE, system_time TEXT,
  kind TEXT, rows INTEGER, summary TEXT, size INTEGER, PRIMARY KEY(chain, sequence)) WITHOUT ROWID;
CREATE INDEX blocks_by_kind ON blocks(chain, kind, sequence);
CREATE TABLE slices(chain INTEGER, sequence INTEGER, first INTEGER, last INTEGER, physical BLOB,
  logical BLOB, size INTEGER, system_time TEXT, PRIMARY KEY(chain, sequence)) WITHOUT ROWID;
CREATE INDEX slices_by_offset ON slices(chain, last);
CREATE TABLE pushes(chain INTEGER, sequence INTEGER, source TEXT, kind TEXT, value TEXT,
  PRIMARY KEY(chain, sequence)) WITHOUT ROWID;
CREATE INDEX pushes_by_value ON pushes(chain, value);
CREATE TABLE snapshots(chain INTEGER, sequence INTEGER, state BLOB, PRIMARY KEY(chain, sequence));
CREATE TABLE sound(key BLOB PRIMARY KEY) WITHOUT ROWID;
"""
_CHAIN_TABLES: Final = ("blocks", "slices", "pushes", "snapshots")
BLOCK_COLUMNS: Final = "sequence, hash, system_time, kind, rows, summary, size"
_SLICE_COLUMNS: Final = "sequence, first, last, physical, logical, size, system_time"
T = TypeVar("T")


class BlockPosition(NamedTuple):
    """Position of a block in the index: its chain, its sequence number, and the head of that chain."""

    chain: int
    sequence: int
    head: Multihash
    head_sequence: int


class BlockWithStates(NamedTuple):
    """A block with the state of its chain after it and before it."""

    stored: StoredBlock
    state: ChainState
    before: ChainState | None


class BlockIndex:
    """The index in a file, or in memory for ``":memory:"``. Thread-safe."""

    def __init__(self, path: Path | str) -> None:
        self._path = None if path == ":memory:" else Path(path)
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def state(self, head: Multihash) -> ChainState | None:
        """Return the folded state at ``head``, or None if it is not the head of an indexed chain."""
        return self.states([head]).get(head)

    def states(self, heads: Collection[Multihash]) -> dict[Multihash, ChainState]:
        """Return the folded states of those heads that are indexed, in one query."""
        hashes = [bytes(head) for head in heads]

        def query(db: sqlite3.Connection) -> list[tuple[bytes]]:
            rows: list[tuple[bytes]] = []
            for start in range(0, len(hashes), 500):  # below SQLite's limit of variables
                batch = hashes[start : start + 500]
                placeholders = ",".join("?" * len(batch))
                rows += db.execute(
                    f"SELECT state FROM chains WHERE head IN ({placeholders})", batch
                ).fetchall()
            return rows

        states = (_decode_state(row[0]) for row in self._run(query))
        return {state.head: state for state in states if state is not None}

    def position(self, block: Multihash) -> BlockPosition | None:
        """Return the position of this block, or None if it is not indexed."""
        row = self._one(
            "SELECT chain, blocks.sequence, head, chains.sequence FROM blocks"
            " JOIN chains ON chains.id = chain WHERE hash = ?",
            bytes(block),
        )
        return row and BlockPosition(row[0], row[1], Multihash.from_bytes(row[2]), row[3])

    def find_ancestor(self, head: BlockPosition, block: Multihash) -> BlockPosition | None:
        """Return the position of a block, or None if it is not part of the chain up to ``head``."""
        position = self.position(block)
        if position is None or position.chain != head.chain or position.sequence > head.sequence:
            return None
        return position

    def snapshot(self, chain: int, sequence: int) -> ChainState | None:
        """Return the newest stored state at or before this block, or None."""
        row = self._one(
            "SELECT state FROM snapshots WHERE chain = ? AND sequence <= ? ORDER BY sequence DESC LIMIT 1",
            chain,
            sequence,
        )
        return None if row is None else _decode_state(row[0])

    def hash_at(self, chain: int, sequence: int) -> Multihash | None:
        """Return the hash of the block with this sequence number, or None."""
        row = self._one("SELECT hash FROM blocks WHERE chain = ? AND sequence = ?", chain, sequence)
        return None if row is None else Multihash.from_bytes(row[0])

    def list_blocks(
        self, at: BlockPosition, limit: int, before: int | None = None, kinds: Collection[str] | None = None
    ) -> list[BlockSummary]:
        """Return at most ``limit`` blocks up to ``at`` and before number ``before``, newest first."""
        top = at.sequence + 1 if before is None else min(before, at.sequence + 1)

        def query(db: sqlite3.Connection) -> list[Any]:
            tail = "ORDER BY sequence DESC LIMIT ?"
            query = f"SELECT {BLOCK_COLUMNS} FROM blocks WHERE chain = ? AND sequence < ?"
            if kinds is None:
                return db.execute(f"{query} {tail}", (at.chain, top, limit)).fetchall()
            rows: list[Any] = []
            for kind in set(kinds):  # one query for each kind, to use the index for rare kinds
                rows += db.execute(f"{query} AND kind = ? {tail}", (at.chain, top, kind, limit))
            return sorted(rows, reverse=True)[:limit]

        return [parse_block_row(row) for row in self._run(query)]

    def slices(
        self, at: BlockPosition, first: int | None = None, last: int | None = None
    ) -> list[SliceSummary]:
        """Return the slices up to ``at`` that overlap this range of offsets (inclusive), oldest first."""
        rows = self.query_rows(
            f"SELECT {_SLICE_COLUMNS} FROM slices"
            " WHERE chain = ? AND last >= ? AND first <= ? AND sequence <= ? ORDER BY sequence",
            at.chain,
            _clamp(first or 0),
            MAX_NUMBER if last is None else _clamp(last),
            at.sequence,
        )
        return [_parse_slice_row(row) for row in rows]

    def find_push(self, at: BlockPosition, state: SourceState) -> int | None:
        """Return the number of the newest block up to ``at`` of a push with this state, or None."""
        rows = self.query_rows(
            "SELECT max(sequence) FROM pushes"
            " WHERE chain = ? AND value = ? AND kind = ? AND source = ? AND sequence <= ?",
            at.chain,
            state.value,
            state.kind,
            state.source_name,
            at.sequence,
        )
        return rows[0][0] if rows else None

    def list_hashes(self, at: BlockPosition) -> list[Multihash]:
        """Return the hashes of all blocks up to ``at``, oldest first."""
        rows = self.query_rows(
            "SELECT hash FROM blocks WHERE chain = ? AND sequence <= ? ORDER BY sequence",
            at.chain,
            at.sequence,
        )
        return [Multihash.from_bytes(row[0]) for row in rows]

    def find_hashes(self, at: BlockPosition, text: str, limit: int) -> list[Multihash]:
        """Return hashes up to ``at`` whose base16 text or digest starts with ``text``, or ends with it.

        ``text`` matches an end only if it has 8 characters.
        """
        rows = self.query_rows(
            "SELECT hash FROM blocks WHERE chain = ? AND sequence <= ?"
            " AND (substr('f' || lower(hex(hash)), 1, ?) = ? OR lower(substr(hex(hash), 5, ?)) = ?"
            " OR lower(substr(hex(hash), -8)) = ?) LIMIT ?",
            at.chain,
            at.sequence,
            len(text),
            text,
            len(text),
            text,
            text,
            limit,
        )
        return [Multihash.from_bytes(row[0]) for row in rows]

    def is_verified(self, key: bytes) -> bool:
        """Return whether this key, a hash of verified content, is recorded."""
        return self._one("SELECT 1 FROM sound WHERE key = ?", key) is not None

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Read one consistent state of the index within the block, despite changes by other processes."""
        with self._lock:
            self._run(lambda db: db.execute("BEGIN"))
            try:
                yield
            finally:
                self._run(lambda db: db.execute("COMMIT") if db.in_transaction else None)

    def extend(
        self,
        base: Multihash | None,
        keep: int,
        blocks: Sequence[BlockWithStates],
        state: ChainState,
    ) -> bool:
        """Append ``blocks`` and ``state`` to the chain with head ``base`` (None: to a new chain).

        Blocks with a sequence number above ``keep`` are removed from the index first.

        Returns:
            False, without a change, if another process has changed the chain in the index.
        """

        def change(db: sqlite3.Connection) -> bool:
            try:
                with _transaction(db):
                    chain = _find_or_insert_chain(db, base, state)
                    if chain is None:
                        return False
                    for table in _CHAIN_TABLES:
                        db.execute(f"DELETE FROM {table} WHERE chain = ? AND sequence > ?", (chain, keep))
                    _insert(db, chain, blocks)
                    db.execute(
                        "UPDATE chains SET head = ?, sequence = ?, state = ? WHERE id = ?",
                        (bytes(state.head), state.sequence_number, encode_state(state), chain),
                    )
                    return True
            except sqlite3.IntegrityError:  # another process has indexed the same blocks
                return False

        return self._run(change)

    def remove_chain(self, head: Multihash) -> None:
        """Remove the chain with this head from the index, if it is indexed, in one transaction."""

        def change(db: sqlite3.Connection) -> None:
            with _transaction(db):
                row = db.execute("SELECT id FROM chains WHERE head = ?", (bytes(head),)).fetchone()
                if row:
                    for table in _CHAIN_TABLES:
                        db.execute(f"DELETE FROM {table} WHERE chain = ?", row)
                    db.execute("DELETE FROM chains WHERE id = ?", row)

        self._run(change)

    def copy_chain(self, source: BlockIndex, at: BlockPosition, state: ChainState) -> None:
        """Add a chain of another index up to a block, in one transaction.

        Args:
            source: the other index.
            at: the position of the block in it.
            state: the state at the block.
        """

        def change(db: sqlite3.Connection) -> None:
            with _transaction(db):
                chain = _find_or_insert_chain(db, None, state)
                for table in _CHAIN_TABLES:
                    for first in range(0, at.sequence + 1, _MAX_BUFFERED):
                        last = min(at.sequence, first + _MAX_BUFFERED - 1)
                        condition = "chain = ? AND sequence BETWEEN ? AND ?"
                        rows = source.query_rows(
                            f"SELECT * FROM {table} WHERE {condition}", at.chain, first, last
                        )
                        if rows:
                            values = ",".join("?" * len(rows[0]))
                            db.executemany(
                                f"INSERT INTO {table} VALUES ({values})", [(chain, *row[1:]) for row in rows]
                            )
                db.execute("UPDATE chains SET state = ? WHERE id = ?", (encode_state(state), chain))

        self._run(change)

    def mark_verified(self, key: bytes) -> None:
        """Record this key, a hash of verified content."""
        self._run(lambda db: db.execute("INSERT OR IGNORE INTO sound VALUES (?)", (key,)))

    def reset(self) -> None:
        """Remove the index. Later queries read the chains again.

        Raises:
            OSError: the file cannot be removed.
        """
        with self._lock:
            self.close()
            if self._path is not None:
                _remove(self._path)

    def _one(self, sql: str, *values: Any) -> Any:
        return self._run(lambda db: db.execute(sql, values).fetchone())

    def query_rows(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a query over the tables of the index."""
        return self._run(lambda db: db.execute(sql, values).fetchall())

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            for repair in (self._replace_damaged, self._use_memory):
                try:
                    return action(self._connection())
                except sqlite3.Error as error:
                    repair(error)
            return action(self._connection())

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = _open(self._path)
        return self._db

    def _replace_damaged(self, error: sqlite3.Error) -> None:
        """Replace a damaged file; use memory for any other error."""
        if isinstance(error, sqlite3.OperationalError) or self._path is None:
            self._use_memory(error)
            return
        self.close()
        try:
            _remove(self._path)
        except OSError:
            self._use_memory(error)

    def _use_memory(self, error: sqlite3.Error) -> None:
        """Continue in memory, with a copy of the file if it can be read."""
        self.close()
        memory = _open(None)
        if self._path is not None:
            try:
                with closing(connect_database(self._path, "immutable=1")) as file:
                    if file.execute("PRAGMA user_version").fetchone()[0] == _FORMAT:
                        file.backup(memory)
            except sqlite3.Error:
                memory = _open(None)
        self._path, self._db = None, memory


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _open(path: Path | None) -> sqlite3.Connection:
    # Several threads share the connection under the lock of the index. Transactions are explicit.
    options: Any = {"timeout": _BUSY_SECONDS, "isolation_level": None, "check_same_thread": False}
    db = sqlite3.connect(":memory:", **options) if path is None else connect_database(path, **options)
    try:
        if db.execute("PRAGMA user_version").fetchone()[0] != _FORMAT:
            db.execute("PRAGMA journal_mode = WAL")
            _make_tables(db)
        db.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit the changes of the block, or roll back if it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _make_tables(db: sqlite3.Connection) -> None:
    with _transaction(db):
        if db.execute("PRAGMA user_version").fetchone()[0] == _FORMAT:
            return  # another process was faster
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            db.execute(f'DROP TABLE "{table}"')
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {_FORMAT}")


def _find_or_insert_chain(db: sqlite3.Connection, base: Multihash | None, state: ChainState) -> int | None:
    if base is not None:
        row = db.execute("SELECT id FROM chains WHERE head = ?", (bytes(base),)).fetchone()
        return None if row is None else row[0]
    cursor = db.execute(
        "INSERT INTO chains(head, sequence, state) VALUES (?, ?, '')",
        (bytes(state.head), state.sequence_number),
    )
    return cursor.lastrowid


def _insert(db: sqlite3.Connection, chain: int, blocks: Sequence[BlockWithStates]) -> None:
    db.executemany(
        f"INSERT INTO blocks(chain, {BLOCK_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [_block_values(chain, _summarize(item)) for item in blocks],
    )
    db.executemany(
        f"INSERT INTO slices(chain, {_SLICE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [_slice_values(chain, row) for item in blocks if (row := summarize_slice(item.stored)) is not None],
    )
    db.executemany(
        "INSERT INTO pushes VALUES (?, ?, ?, ?, ?)",
        [
            (chain, item.state.sequence_number, pushed.source_name, pushed.kind, pushed.value)
            for item in blocks
            if (pushed := push_state(item.stored.block.event)) is not None
        ],
    )
    db.executemany(
        "INSERT INTO snapshots VALUES (?, ?, ?)",
        [
            (chain, number, encode_state(item.state))
            for item in blocks
            if (number := item.state.sequence_number) % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1
        ],
    )


def _summarize(item: BlockWithStates) -> BlockSummary:
    try:
        return summarize_block(item.stored, item.before)
    except CONTENT_ERRORS as error:
        raise content_error(item.stored.hash, error) from error


def _block_values(chain: int, row: BlockSummary) -> tuple[Any, ...]:
    head = (chain, row.sequence_number, bytes(row.hash), str(row.system_time))
    return (*head, row.kind, _clamp(row.rows), row.summary, row.size)


def _slice_values(chain: int, row: SliceSummary) -> tuple[Any, ...]:
    offsets = (chain, row.sequence_number, _clamp(row.start), _clamp(row.end))
    hashes = (bytes(row.physical_hash), bytes(row.logical_hash))
    return (*offsets, *hashes, _clamp(row.size), str(row.system_time))


def _clamp(number: int) -> int:
    return min(number, MAX_NUMBER)


def _decode_state(data: bytes) -> ChainState | None:
    try:
        return decode_state(data)
    except ValueError:
        return None  # written by another version of this program: fold it again


def parse_block_row(row: Any) -> BlockSummary:
    """Return the block summary in a row of :data:`BLOCK_COLUMNS`."""
    sequence, block_hash, system_time, *rest = row
    return BlockSummary(sequence, Multihash.from_bytes(block_hash), Timestamp.parse(system_time), *rest)


def _parse_slice_row(row: Any) -> SliceSummary:
    sequence, first, last, physical, logical, size, system_time = row
    hashes = Multihash.from_bytes(physical), Multihash.from_bytes(logical)
    return SliceSummary(sequence, first, last, *hashes, size, Timestamp.parse(system_time))


_BATCH: Final = 1024
_MAX_BUFFERED: Final = 8192  # a long chain does not fit in memory: other blocks are read again
BlockReader = Callable[[Multihash], StoredBlock]


def index_to_head(index: BlockIndex, read: BlockReader, head: Multihash) -> None:
    """Index the chain up to ``head``, starting after its newest indexed block.

    Indexed blocks that are not ancestors of ``head`` are removed. If another process changes the index at the
    same time, nothing or only a part is indexed, and the caller must repeat the call.

    Raises:
        NotFound, MalformedBlock: a block is missing or damaged.
        ChainRuleViolated: the chain does not start with a Seed, or its sequence numbers have a gap.
    """
    missing, walked, fork = _walk_back(index, read, head)
    if fork is None:
        state, base, keep = None, None, -1
    else:
        state, base, keep = fold_state_at(index, read, fork), fork.head, fork.sequence
    pending: list[BlockWithStates] = []
    for stored in _oldest_first(read, missing, walked):
        before, state = state, _apply_stored(state, stored)
        pending.append(BlockWithStates(stored, state, before))
        if len(pending) == _BATCH:
            if not index.extend(base, keep, pending, state):
                return
            base, keep, pending = state.head, state.sequence_number, []
    if state is not None:
        index.extend(base, keep, pending, state)


def _walk_back(
    index: BlockIndex, read: BlockReader, head: Multihash
) -> tuple[list[Multihash], deque[StoredBlock], BlockPosition | None]:
    """Return the blocks that are not indexed.

    Returns:
        Their hashes, newest first; the oldest of them as blocks; the position of the newest indexed block.
    """
    missing: list[Multihash] = []
    walked: deque[StoredBlock] = deque(maxlen=_MAX_BUFFERED)
    at: Multihash | None = head
    while at is not None:
        position = index.position(at)
        if position is not None:
            return missing, walked, position
        stored = read(at)
        missing.append(at)
        walked.append(stored)
        at = stored.block.prev_block_hash
    return missing, walked, None


def _oldest_first(
    read: BlockReader, missing: list[Multihash], walked: deque[StoredBlock]
) -> Iterator[StoredBlock]:
    while missing:
        block_hash = missing.pop()
        yield walked.pop() if walked else read(block_hash)


def fold_state_at(index: BlockIndex, read: BlockReader, at: BlockPosition) -> ChainState:
    """Return the state at an indexed block, folded from the nearest stored state before it.

    Raises:
        Conflict: another process changes the index at the same time.
    """
    state = index.state(at.head) if at.sequence == at.head_sequence else None
    if state is None:
        state = index.snapshot(at.chain, at.sequence)
    first = 0 if state is None else state.sequence_number + 1
    for sequence in range(first, at.sequence + 1):
        block_hash = index.hash_at(at.chain, sequence)
        if block_hash is None:
            raise Conflict("the chain changed while it was read", where=f"block {sequence}", hint="try again")
        state = _apply_stored(state, read(block_hash))
    assert state is not None  # at.sequence >= 0
    return state


def _apply_stored(state: ChainState | None, stored: StoredBlock) -> ChainState:
    expected = 0 if state is None else state.sequence_number + 1
    if stored.block.sequence_number != expected:
        raise ChainRuleViolated(
            "sequence-number",
            f"sequence number is {stored.block.sequence_number}, expected {expected}",
            block=str(stored.hash),
        )
    try:
        return apply_block(state, stored.block, stored.hash)
    except CONTENT_ERRORS as error:
        raise content_error(stored.hash, error) from error
