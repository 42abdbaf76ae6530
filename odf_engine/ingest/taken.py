"""Which files a dataset's chain says were taken: a cache of a walk over its blocks.

``info/taken.sqlite`` of the dataset holds the names and hashes found up to a head. It is never more
than a short cut: when it is missing, damaged, or its head is no more in the chain, the chain is read
again. It also remembers the hash of a file by its modification time and size, so that files are not
hashed again at every pull.

A name counts within its folder, that before the first wildcard of the pattern. When the source's
folder changes, other files go by the same names; only those that are also of the same content, which
somebody moved, were taken.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from odf_engine.chain.chain import Dataset
from odf_engine.chain.places import folder_of
from odf_engine.ingest.fetch import ETAG, SOURCE_NAME
from odf_engine.metadata.model import AddData, FilesGlob, SetPollingSource
from odf_engine.storage.databases import connect

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS taken (
  name TEXT, folder TEXT, digest TEXT NOT NULL, PRIMARY KEY (name, folder)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS floors (folder TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS hashes (
  name TEXT PRIMARY KEY, mtime INTEGER, size INTEGER, digest TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""

_FLOOR: Final = """
INSERT INTO floors VALUES (?, ?) ON CONFLICT DO UPDATE SET name = max(name, excluded.name)
"""


class TakenFiles:
    """The files taken according to the newest blocks; :meth:`close` it.

    ``parse`` reads the value of a source state: a name and its hash, or a name and None, which means
    that every name up to it was taken.
    """

    def __init__(self, dataset: Dataset, parse: Callable[[str], tuple[str, str | None]]) -> None:
        self._parse = parse
        path = dataset.folder / "info" / "taken.sqlite"
        path.parent.mkdir(exist_ok=True)
        try:
            self._open(path)
            self._catch_up(dataset)
        except sqlite3.DatabaseError:
            with suppress(AttributeError):
                self._db.close()
            path.unlink(missing_ok=True)
            self._open(path)
            self._catch_up(dataset)

    def close(self) -> None:
        """Lets the file go."""
        self._db.close()

    def any(self) -> bool:
        """Whether anything was ever taken."""
        return bool(self._taken) or self._floor is not None

    def has(self, name: str) -> bool:
        """Whether this file was taken."""
        return name in self._taken or (self._floor is not None and name <= self._floor)

    def digest(self, name: str) -> str | None:
        """The hash a file had when it was taken, if that is known."""
        return self._taken.get(name)

    def was_elsewhere(self, name: str) -> bool:
        """Whether a file of this name was taken from another folder."""
        return name in self._elsewhere

    def was_moved(self, name: str, digest: str) -> bool:
        """Whether this file was taken from another folder, with this content."""
        return digest in self._elsewhere.get(name, ())

    def greatest(self) -> str | None:
        """The greatest name that was taken."""
        return self._greatest

    def add(self, name: str, digest: str) -> None:
        """A file was taken just now; its block is read from the chain at the next opening."""
        self._taken[name] = digest
        self._greatest = max(name, self._greatest or name)

    def known_hash(self, name: str, stamp: tuple[int, int]) -> str | None:
        """The hash of a file that still has this modification time and size."""
        known = self._hashes.get(name)
        return known[2] if known is not None and known[:2] == stamp else None

    def note_hash(self, name: str, stamp: tuple[int, int], digest: str) -> None:
        """Remembers the hash of a file with this modification time and size."""
        self._hashes[name] = (*stamp, digest)
        with self._db:
            self._db.execute("REPLACE INTO hashes VALUES (?, ?, ?, ?)", (name, *stamp, digest))

    def _open(self, path: Path) -> None:
        self._db = connect(path, timeout=30)
        self._db.execute("PRAGMA synchronous = OFF")  # a cache: rebuilt when damaged
        self._db.executescript(_TABLES)
        facts = dict(self._db.execute("SELECT name, value FROM facts"))
        self._head: str | None = facts.get("head")
        self._folder: str | None = facts.get("folder")
        hashes = self._db.execute("SELECT name, mtime, size, digest FROM hashes")
        self._hashes: dict[str, tuple[int, int, str]] = {name: (*rest,) for name, *rest in hashes}

    def _catch_up(self, dataset: Dataset) -> None:
        """Reads the blocks since the head that was seen last."""
        head = dataset.head()
        if head is not None and str(head) != self._head:
            self._walk(dataset, str(head))
        self._taken: dict[str, str] = {}
        self._elsewhere: dict[str, set[str]] = {}
        for name, folder, digest in self._db.execute("SELECT name, folder, digest FROM taken"):
            if folder == self._folder:
                self._taken[name] = digest
            else:
                self._elsewhere.setdefault(name, set()).add(digest)
        floors = dict(self._db.execute("SELECT folder, name FROM floors"))
        self._floor: str | None = floors.get(self._folder)
        names = [*self._taken, *([self._floor] if self._floor is not None else [])]
        self._greatest = max(names, default=None)

    def _walk(self, dataset: Dataset, head: str) -> None:
        found: list[tuple[str, str]] = []  # folders, and values of states, newest first
        pending: list[str] = []  # values, until the source they came from is met
        folder: str | None = None
        source_met = reached = False
        for stored in dataset.blocks(newest_first=True):
            if str(stored.hash) == self._head:
                reached = True
                break
            event = stored.block.event
            if isinstance(event, AddData):
                state = event.new_source_state
                if state is not None and (state.source_name, state.kind) == (SOURCE_NAME, ETAG):
                    pending.append(state.value)
            elif isinstance(event, SetPollingSource):
                its = folder_of(event.fetch.path) if isinstance(event.fetch, FilesGlob) else None
                folder, source_met = (folder if source_met else its), True
                found += [] if its is None else [(its, value) for value in pending]
                pending = []
        if reached and self._folder is not None:
            found += [(self._folder, value) for value in pending]
        self._store(found, head, folder if source_met or not reached else self._folder, keep=reached)

    def _store(self, found: list[tuple[str, str]], head: str, folder: str | None, *, keep: bool) -> None:
        with self._db:
            if not keep:
                self._db.execute("DELETE FROM taken")
                self._db.execute("DELETE FROM floors")
            for its, value in reversed(found):
                name, digest = self._parse(value)
                if digest is not None:
                    self._db.execute("REPLACE INTO taken VALUES (?, ?, ?)", (name, its, digest))
                    continue
                self._db.execute(_FLOOR, (its, name))
            facts = {"head": head, "folder": folder}
            self._db.executemany("REPLACE INTO facts VALUES (?, ?)", facts.items())
        self._head, self._folder = head, folder
