"""Counters of ended jobs by kind and state: a table in the file of the job log.

The job log deletes old jobs, so the worker also counts the jobs when they end.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from odf_engine.storage.databases import connect_database

TOTALS_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS totals(kind TEXT NOT NULL, state TEXT NOT NULL, jobs INTEGER NOT NULL,"
    " seconds REAL NOT NULL, last_end REAL NOT NULL, PRIMARY KEY (kind, state))"
)
"""The table of ended jobs, in the job log."""


class JobTotal(NamedTuple):
    """The ended jobs of a kind and a state.

    Attributes:
        kind: kind of the jobs.
        state: final state.
        jobs: their number.
        seconds: sum of their durations.
        last_end: end of the last one, in seconds since 1970.
    """

    kind: str
    state: str
    jobs: int
    seconds: float
    last_end: float


def count_job(database: sqlite3.Connection, kind: str, state: str, started: str | None, ended: str) -> None:
    """Count an ended job; times are RFC 3339. Called within the transaction that stores its end."""
    end = datetime.fromisoformat(ended).timestamp()
    seconds = 0.0 if started is None else max(end - datetime.fromisoformat(started).timestamp(), 0.0)
    database.execute(
        "INSERT INTO totals VALUES (?, ?, 1, ?, ?) ON CONFLICT (kind, state) DO UPDATE SET"
        " jobs = jobs + 1, seconds = seconds + excluded.seconds, last_end = excluded.last_end",
        (kind, state, seconds, end),
    )


def read_totals(odf: Path) -> list[JobTotal]:
    """Return the ended jobs by kind and state; none if there is no job log, or one of an older version."""
    path = odf / "jobs.sqlite"
    if not path.exists():
        return []
    try:
        with closing(connect_database(path, "mode=ro", timeout=10)) as database:
            rows = database.execute("SELECT kind, state, jobs, seconds, last_end FROM totals ORDER BY 1, 2")
            return [JobTotal(*row) for row in rows]
    except sqlite3.Error:
        return []
