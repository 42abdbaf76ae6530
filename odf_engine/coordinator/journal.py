"""Reading the journal of jobs (``.odf/jobs.sqlite``), while a worker writes it or none does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from odf_engine.coordinator.protocol import Committed, Failure, Job, JobState, JournalEvent, Request
from odf_engine.errors import NotFound, OdfError
from odf_engine.storage.databases import connect

INTERRUPTED: Final = Failure(
    message="the worker ended before this job did",
    hint="run it again: what was committed stays, and the rest starts afresh",
)

VERSION: Final = 1
_LAST: Final = 2**63 - 1

T = TypeVar("T")

_job = msgspec.json.Decoder(Job)
_event = msgspec.json.Decoder(JournalEvent)
_request = msgspec.json.Decoder(Request)


class JournalReader:
    """Reads a journal while somebody else may write it; an absent one is empty.

    ``worker_alive`` tells whether a worker runs: without one, jobs that the journal leaves open are
    shown as interrupted, because nobody works on them any more.
    """

    def __init__(self, path: Path, worker_alive: Callable[[], bool] = lambda: True) -> None:
        self._path = path
        self._worker_alive = worker_alive

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection | None]:
        try:
            connection = _open_for_reading(self._path)
        except sqlite3.Error as error:
            raise _damaged(self._path, error) from None
        try:
            yield connection
        except sqlite3.Error as error:
            raise _damaged(self._path, error) from None
        finally:
            if connection is not None:
                connection.close()

    def _rows(self, query: str, *parameters: object) -> list[tuple]:
        with self._connection() as connection:
            return [] if connection is None else connection.execute(query, parameters).fetchall()

    def jobs(self, limit: int | None = None) -> list[Job]:
        """Jobs, newest first."""
        query = "SELECT body FROM jobs ORDER BY number DESC LIMIT ?"
        return self._decode(query, -1 if limit is None else limit)

    def open_jobs(self) -> list[Job]:
        """Jobs that are queued or running, oldest first."""
        return [
            job
            for job in self._decode("SELECT body FROM jobs WHERE NOT final ORDER BY number")
            if not job.state.final
        ]

    def job(self, job_id: str) -> Job:
        """One job.

        Raises:
            NotFound: the journal has no such job (any more).
        """
        found = self._decode("SELECT body FROM jobs WHERE number = ?", _number(job_id))
        if not found:
            raise NotFound(f"there is no job '{job_id}'", hint="'odf jobs' lists them")
        return found[0]

    def events(
        self, since: int = 0, *, job: str | None = None, limit: int | None = None
    ) -> list[JournalEvent]:
        """Events after the journal number ``since``, oldest first; of one job when it is named."""
        query = "SELECT seq, body FROM events WHERE seq > ?"
        parameters: list[object] = [since]
        if job is not None:
            query += " AND job = ?"
            parameters.append(_number(job))
        query += " ORDER BY seq LIMIT ?"
        return self._events(self._rows(query, *parameters, -1 if limit is None else limit))

    def tail(self, count: int, *, job: str | None = None, before: int | None = None) -> list[JournalEvent]:
        """The newest ``count`` events (before a number), the oldest of them first; of one job when named."""
        query = "SELECT seq, body FROM events WHERE seq < ?"
        parameters: list[object] = [_LAST if before is None else before]
        if job is not None:
            query += " AND job = ?"
            parameters.append(_number(job))
        rows = self._rows(query + " ORDER BY seq DESC LIMIT ?", *parameters, count)
        return self._events(rows[::-1])

    def commits(self, job: str, limit: int = 1000) -> list[Committed]:
        """The blocks that a job committed, newest first."""
        query = "SELECT seq, body FROM events WHERE job = ? AND instr(body, ?) ORDER BY seq DESC LIMIT ?"
        mark = b'"type":"committed"'
        found = self._events(self._rows(query, _number(job), mark, limit))
        return [event for event in found if isinstance(event, Committed)]

    def request(self, job: str) -> Request | None:
        """What a job was asked to do; None when that is not known (any more)."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'requests'"):
            return None
        rows = self._rows("SELECT body FROM requests WHERE job = ?", _number(job))
        try:
            return _request.decode(rows[0][0]) if rows else None
        except ValueError:  # of another version
            return None

    def last_seq(self) -> int:
        """The newest journal number; 0 when nothing was ever written."""
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        return rows[0][0] if rows else 0

    def _decode(self, query: str, *parameters: object) -> list[Job]:
        dead = not self._worker_alive()
        jobs = [self._decoded(_job, body) for (body,) in self._rows(query, *parameters)]
        if all(job.state.final for job in jobs) or not dead or self._worker_alive():
            return jobs  # asked before and after: a worker that starts or ends meanwhile does not confuse
        return [job if job.state.final else _interrupted(job) for job in jobs]

    def _events(self, rows: list[tuple]) -> list[JournalEvent]:
        return [msgspec.structs.replace(self._decoded(_event, body), seq=seq) for seq, body in rows]

    def _decoded(self, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(self._path, error) from None


def _open_for_reading(path: Path) -> sqlite3.Connection | None:
    """None when there is no journal yet."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    for mode in ("mode=rw", "mode=ro", "immutable=1"):  # the later ones where nothing may be written
        try:
            database = connect(path, mode, timeout=10, isolation_level=None)
        except sqlite3.OperationalError:
            continue
        try:
            database.execute("PRAGMA query_only = 1")
            version = database.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.OperationalError:
            database.close()
            continue
        except sqlite3.Error:
            database.close()
            raise
        if version == VERSION:
            return database
        database.close()
        return None  # being made, or of another version, which the next worker moves aside
    raise sqlite3.OperationalError("it cannot be opened")


def _damaged(path: Path, error: Exception) -> OdfError:
    return OdfError(
        f"the journal of jobs cannot be read: {error}",
        where=str(path),
        hint="no dataset depends on it; it is made anew when the worker starts next",
    )


def _interrupted(job: Job) -> Job:
    return msgspec.structs.replace(job, state=JobState.interrupted, error=INTERRUPTED)


def _number(job_id: str) -> int:
    return int(job_id) if job_id.isascii() and job_id.isdigit() and len(job_id) < 18 else -1
