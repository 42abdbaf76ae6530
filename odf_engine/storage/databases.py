"""Connections to SQLite files that are not symbolic links."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

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
