"""Connections to SQLite files that are not symbolic links."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from odf_engine.errors import OdfError

_ENDINGS: Final = ("", "-wal", "-shm", "-journal")


def connect_database(path: Path, query: str = "", **options: Any) -> sqlite3.Connection:
    """Connect to a SQLite database without following symbolic links, as SQLite itself would.

    Args:
        path: the database file.
        query: parameters of the SQLite URI, such as ``mode=ro``.
        options: as for :func:`sqlite3.connect_database`.

    Raises:
        sqlite3.OperationalError: a file of the database is a symbolic link, or it cannot be opened.
    """
    for ending in _ENDINGS:
        if os.path.islink(f"{path}{ending}"):  # noqa: PTH114 (Path is slower; every command runs this)
            raise sqlite3.OperationalError(f"{path.name}{ending} is a symbolic link")
    return sqlite3.connect(f"{path.absolute().as_uri()}?{query}", uri=True, **options)


def open_shared_database(path: Path, schema: str) -> sqlite3.Connection:
    """Open a database that several processes write; create it if it does not exist.

    On a read-only file system it can be read, and is empty if it does not exist.

    Args:
        path: the database file.
        schema: statements that create its tables unless they exist.

    Raises:
        sqlite3.Error: it cannot be opened, or is damaged.
    """
    options: dict[str, Any] = {"timeout": 10, "isolation_level": None, "check_same_thread": False}
    try:
        connection = connect_database(path, **options)
        with _closed_on_error(connection):
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(schema)
        return connection
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise
        problem = error
    if not path.exists():
        connection = sqlite3.connect(":memory:", **options)
        connection.executescript(schema)
        connection.execute("PRAGMA query_only = 1")
        return connection
    for mode in ("mode=ro", "immutable=1"):  # the latter if the write-ahead log cannot be opened
        with suppress(sqlite3.OperationalError):
            connection = connect_database(path, mode, **options)
            with _closed_on_error(connection):
                connection.execute("SELECT count(*) FROM sqlite_master")
            return connection
    raise problem


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


@contextmanager
def write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction, which holds the write lock from the start; revert it on an error.

    Raises:
        sqlite3.Error: the database is locked, or cannot be written.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


class SharedStore:
    """A database that several processes write. Safe from several threads.

    Args:
        path: the database file.
        schema: statements that create its tables unless they exist.
        content: what it has, such as ``the state of the flows``, for errors.

    Raises:
        OdfError: the file cannot be opened or written (every method).
    """

    def __init__(self, path: Path, schema: str, content: str) -> None:
        self._path, self._content = path, content
        self._lock = threading.RLock()
        with self._translated():
            self._connection = open_shared_database(path, schema)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise OdfError(
                f"{self._content} cannot be read or written: {error}",
                where=str(self._path),
                hint="check the free space and the permissions; if the file is damaged, delete it",
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translated(), write_transaction(self._connection):
            yield self._connection
