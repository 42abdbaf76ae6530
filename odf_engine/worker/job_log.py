"""Job log in SQLite: jobs, events, progress; reader and writer."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from odf_engine.base.progress import JobWarning
from odf_engine.errors import NotFound, OdfError, escape_surrogates
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.databases import connect_database
from odf_engine.storage.job_totals import TOTALS_TABLE, count_job
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.protocol import (
    Committed,
    Failure,
    Job,
    JobChanged,
    JobState,
    JournalEvent,
    LogLine,
    Progress,
    Request,
)

INTERRUPTED: Final = Failure(
    message="worker stopped while this job was running",
    hint="run it again; committed blocks are not lost",
)
VERSION: Final = 1
_LAST: Final = 2**63 - 1
T = TypeVar("T")
_job = msgspec.json.Decoder(Job)
_event = msgspec.json.Decoder(JournalEvent)
_request = msgspec.json.Decoder(Request)


class JobLogReader:
    """Reads a job log that a worker may write at the same time; a missing one is empty.

    ``worker_alive`` returns whether a worker runs. Without a worker, open jobs read as interrupted.
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
        """Return the jobs, newest first."""
        query = "SELECT body FROM jobs ORDER BY number DESC LIMIT ?"
        return self._decode(query, -1 if limit is None else limit)

    def open_jobs(self) -> list[Job]:
        """Return the queued and running jobs, oldest first."""
        return [
            job
            for job in self._decode("SELECT body FROM jobs WHERE NOT final ORDER BY number")
            if not job.state.final
        ]

    def job(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            NotFound: there is no such job, or it was deleted.
        """
        jobs = self._decode("SELECT body FROM jobs WHERE number = ?", _number(job_id))
        if not jobs:
            raise NotFound(f"job '{job_id}' not found", hint="list the jobs: odf jobs")
        return jobs[0]

    def events(
        self, since: int = 0, *, job: str | None = None, limit: int | None = None
    ) -> list[JournalEvent]:
        """Return the events after number ``since``, oldest first; of one job if given."""
        query = "SELECT seq, body FROM events WHERE seq > ?"
        parameters: list[object] = [since]
        if job is not None:
            query += " AND job = ?"
            parameters.append(_number(job))
        query += " ORDER BY seq LIMIT ?"
        return self._events(self._rows(query, *parameters, -1 if limit is None else limit))

    def tail(self, count: int, *, job: str | None = None, before: int | None = None) -> list[JournalEvent]:
        """Return the newest ``count`` events (before a number), oldest first; of one job if given."""
        query = "SELECT seq, body FROM events WHERE seq < ?"
        parameters: list[object] = [_LAST if before is None else before]
        if job is not None:
            query += " AND job = ?"
            parameters.append(_number(job))
        rows = self._rows(query + " ORDER BY seq DESC LIMIT ?", *parameters, count)
        return self._events(rows[::-1])

    def committed_rows(self, job: str) -> int:
        """Return the number of rows in the blocks that a job committed."""
        return sum(commit.rows for commit in self.commits(job, -1))

    def commits(self, job: str, limit: int = 1000) -> list[Committed]:
        """Return the blocks that a job committed, newest first."""
        query = "SELECT seq, body FROM events WHERE job = ? AND instr(body, ?) ORDER BY seq DESC LIMIT ?"
        marker = b'"type":"committed"'
        events = self._events(self._rows(query, _number(job), marker, limit))
        return [event for event in events if isinstance(event, Committed)]

    def request(self, job: str) -> Request | None:
        """Return the request of a job, or None if it is not stored, or of another version."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'requests'"):
            return None
        rows = self._rows("SELECT body FROM requests WHERE job = ?", _number(job))
        try:
            return _request.decode(rows[0][0]) if rows else None
        except ValueError:
            return None

    def last_seq(self) -> int:
        """Return the newest number of an event, or 0 if absent."""
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        return rows[0][0] if rows else 0

    def _decode(self, query: str, *parameters: object) -> list[Job]:
        dead = not self._worker_alive()
        jobs = [self._decoded(_job, body) for (body,) in self._rows(query, *parameters)]
        if all(job.state.final for job in jobs) or not dead or self._worker_alive():
            return jobs  # checked before and after: a worker may start or end
        return [job if job.state.final else self._interrupted(job) for job in jobs]

    def _interrupted(self, job: Job) -> Job:
        rows = self.committed_rows(job.id)
        return replace(job, state=JobState.interrupted, error=INTERRUPTED, committed_rows=rows)

    def _events(self, rows: list[tuple]) -> list[JournalEvent]:
        return [replace(self._decoded(_event, body), seq=seq) for seq, body in rows]

    def _decoded(self, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(self._path, error) from None


def read_journal(workspace: Path) -> JobLogReader:
    """Return a reader of a workspace's job log; ``workspace`` is its folder, or the ``.odf`` in it.

    It needs no worker. Open jobs of a worker that has ended read as interrupted.
    """
    endpoint = WorkerEndpoint(workspace)
    return JobLogReader(endpoint.journal, endpoint.worker_alive)


def _open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Open the database; return None if there is no job log of this version yet."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    for mode in ("mode=rw", "mode=ro", "immutable=1"):  # the later modes are for read-only file systems
        try:
            database = connect_database(path, mode, timeout=10, isolation_level=None)
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
        return None  # being created, or of another version, which the next worker replaces
    raise sqlite3.OperationalError("it cannot be opened")


def _damaged(path: Path, error: Exception) -> OdfError:
    return OdfError(
        f"the job log cannot be read: {error}",
        where=str(path),
        hint="restart the worker, which recreates it; no dataset depends on it",
    )


def _number(job_id: str) -> int:
    return int(job_id) if job_id.isascii() and job_id.isdigit() and len(job_id) < 18 else -1


KEEP_JOBS: Final = 1000
KEEP_EVENTS: Final = 200_000
MAX_LINE: Final = 4_000
_MAX_LINES: Final = 400
PROGRESS_SECONDS: Final = 1.0
_PRUNE_EVERY: Final = 10_000
Level = Literal["debug", "info", "warning", "error"]
_TABLES: Final = """
CREATE TABLE jobs(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    final INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX open_jobs ON jobs(number) WHERE NOT final;
CREATE TABLE events(seq INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX events_of_job ON events(job, seq);
"""
_REQUESTS: Final = "CREATE TABLE IF NOT EXISTS requests(job INTEGER PRIMARY KEY, body BLOB NOT NULL)"
"""Newer than the other tables: added to job logs that lack it."""
_NEXT: Final = {
    JobState.queued: {JobState.running, JobState.cancelled, JobState.interrupted, JobState.failed},
    JobState.running: {JobState.done, JobState.failed, JobState.cancelled, JobState.interrupted},
}
EventT = TypeVar("EventT", bound=JournalEvent)
_encode = msgspec.json.Encoder().encode


class JobLog(JobLogReader):
    """The worker's job log. Thread-safe; ``on_event`` is called after each stored event.

    A damaged file, or one that is not a job log, is renamed (``.damaged``) and replaced: datasets do not
    depend on it. A folder at its path is an error.
    """

    def __init__(self, path: Path, on_event: Callable[[JournalEvent], None] = lambda event: None) -> None:
        super().__init__(path)
        self._on_event = on_event
        self._lock = threading.RLock()
        self._open: dict[str, Job] = {}
        self._persisted: dict[str, float] = {}
        self._unpruned = 0
        try:
            self._open_database()
        except (sqlite3.DatabaseError, OdfError) as error:
            if isinstance(error, sqlite3.OperationalError) and (path.is_file() or path.is_dir()):
                raise  # locked, disk full or no permission: the file may be sound; or it is a folder
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    part = path.with_name(path.name + suffix)
                    part.replace(part.with_name(part.name + ".damaged"))
            self._open_database()

    def _open_database(self) -> None:
        self._database = _open_for_writing(self._path)
        try:
            self._open = {job.id: job for job in self.open_jobs()}
        except BaseException:
            self._database.close()
            raise

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._database

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.rollback()
                raise
            self._database.commit()

    def create(self, request: Request, target: str) -> Job:
        """Store a queued job and return it; ``target`` is the dataset's alias."""
        with self._transaction() as database:
            number = database.execute("INSERT INTO jobs(final, body) VALUES (0, x'')").lastrowid
            database.execute("INSERT INTO requests(job, body) VALUES (?, ?)", (number, _encode(request)))
            job = Job(
                id=str(number),
                kind=request.kind(),
                target=target,
                dataset=request.dataset_id,
                state=JobState.queued,
                created=_now(),
                branch=getattr(request, "branch", ""),
            )
            event = self._store(database, job)
        return self._publish(event)

    def transition(
        self,
        job_id: str,
        state: JobState,
        *,
        error: Failure | None = None,
        result: str | None = None,
        warnings: Sequence[JobWarning] = (),
    ) -> Job:
        """Change the state of an open job, store its newest progress, and return it.

        Raises:
            NotFound: the job is not open.
            ValueError: the transition is invalid.
        """
        with self._lock:
            job = self._open.get(job_id)
            if job is None:
                raise NotFound(f"job '{job_id}' is not queued or running")
            if state not in _NEXT[job.state]:
                raise ValueError(f"job {job_id}: invalid transition from {job.state.value} to {state.value}")
            job = replace(job, state=state, error=error, result=result, warnings=list(warnings))
            if state.final:
                rows = 0 if state is JobState.done else self.committed_rows(job_id)
                job = replace(job, ended=_now(), committed_rows=rows)
            else:
                job = replace(job, started=_now())
            with self._transaction() as database:
                event = self._store(database, job)
                if job.ended is not None:
                    count_job(database, job.kind, state.value, job.started, job.ended)
            return self._publish(event)

    def set_progress(self, job_id: str, progress: Progress) -> None:
        """Set a job's progress; stored at most once per second, and with the next state."""
        with self._lock:
            job = self._open.get(job_id)
            if job is None:
                return
            self._open[job_id] = job = replace(job, progress=progress)
            now = time.monotonic()
            if now - self._persisted.get(job_id, float("-inf")) >= PROGRESS_SECONDS:
                self._persisted[job_id] = now
                query = "UPDATE jobs SET body = ? WHERE number = ?"
                self._database.execute(query, (_encode(job), int(job_id)))

    def append_lines(self, job_id: str, text: str, level: Level = "info") -> None:
        """Append the lines of a text to a job's log; long lines and texts are truncated."""
        now = _now()
        texts = escape_surrogates(text[: MAX_LINE * _MAX_LINES]).splitlines()[:_MAX_LINES] or [""]
        cut = (line if len(line) <= MAX_LINE else line[:MAX_LINE] + " …" for line in texts)
        self._append(*(LogLine(seq=0, job=job_id, time=now, level=level, text=line) for line in cut))

    def append_commit(self, job_id: str, dataset: str, block: str, event: str, rows: int) -> None:
        """Store that a job committed a block."""
        self._append(Committed(seq=0, job=job_id, dataset=dataset, block=block, event=event, rows=rows))

    def interrupt_open_jobs(self) -> list[Job]:
        """Mark the open jobs of an earlier worker as interrupted; return them."""
        return [self.transition(job, JobState.interrupted, error=INTERRUPTED) for job in list(self._open)]

    def prune(self, keep_jobs: int = KEEP_JOBS, keep_events: int = KEEP_EVENTS) -> None:
        """Delete the oldest ended jobs with their events, and the oldest events above the limit."""
        with self._transaction() as database:
            self._unpruned = 0
            database.execute(
                "DELETE FROM jobs WHERE final AND number <= "
                "(SELECT number FROM jobs ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (keep_jobs,),
            )
            for table in ("events", "requests"):
                database.execute(f"DELETE FROM {table} WHERE job NOT IN (SELECT number FROM jobs)")
            database.execute(
                "DELETE FROM events WHERE seq <= (SELECT seq FROM events ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (keep_events,),
            )

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def _store(self, database: sqlite3.Connection, job: Job) -> JobChanged:
        """Write a job and its event; called within a transaction."""
        query = "UPDATE jobs SET body = ?, final = ? WHERE number = ?"
        database.execute(query, (_encode(job), job.state.final, int(job.id)))
        return self._insert(database, JobChanged(seq=0, job=job))

    def _publish(self, event: JobChanged) -> Job:
        job = event.job
        with self._lock:
            if job.state.final:
                self._open.pop(job.id, None)
                self._persisted.pop(job.id, None)
            else:
                self._open[job.id] = job
        self._notify(event)
        return job

    def _append(self, *events: LogLine | Committed) -> None:
        if len(events) == 1:  # a single statement is a transaction
            with self._lock:
                stored = [self._insert(self._database, events[0])]
        else:
            with self._transaction() as database:
                stored = [self._insert(database, event) for event in events]
        for event in stored:
            self._notify(event)

    def _insert(self, database: sqlite3.Connection, event: EventT) -> EventT:
        number = int(event.job.id if isinstance(event, JobChanged) else event.job)
        query = "INSERT INTO events(job, body) VALUES (?, ?)"
        seq = database.execute(query, (number, _encode(event))).lastrowid
        self._unpruned += 1
        return replace(event, seq=seq)

    def _notify(self, event: JournalEvent) -> None:
        if self._unpruned >= _PRUNE_EVERY:
            self.prune()
        self._on_event(event)


def _open_for_writing(path: Path) -> sqlite3.Connection:
    database = connect_database(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"the job log has version {version}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            database.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        database.execute(_REQUESTS)
        database.execute(TOTALS_TABLE)
    except BaseException:
        database.close()
        raise
    return database


def _now() -> str:
    return str(Timestamp.now())
