"""State and runs of flows: a SQLite file of the workspace, written by the worker and the command line."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from odf_engine.base.progress import JobWarning
from odf_engine.errors import NotFound, OdfError
from odf_engine.storage.databases import SharedStore

FILE: Final = "flows.sqlite"
REQUEST: Final = "request"
"""Trigger of a run that the user has requested."""
RunState = Literal["running", "done", "failed", "skipped", "interrupted"]
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS flows (
    name TEXT PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0,
    pause_reason TEXT NOT NULL DEFAULT '',
    requested INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    handled_until REAL NOT NULL,
    last_start REAL,
    retry_at REAL
);
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY,
    flow TEXT NOT NULL,
    trigger TEXT NOT NULL,
    due REAL NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    begun REAL NOT NULL,
    ended REAL,
    jobs TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX IF NOT EXISTS runs_of_flow ON runs (flow, id);
CREATE INDEX IF NOT EXISTS open_runs ON runs (state) WHERE state = 'running';
CREATE TABLE IF NOT EXISTS outputs (run INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS delete_output AFTER DELETE ON runs BEGIN
    DELETE FROM outputs WHERE run = old.id;
END;
CREATE TABLE IF NOT EXISTS warnings (run INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS delete_warnings AFTER DELETE ON runs BEGIN
    DELETE FROM warnings WHERE run = old.id;
END;
"""
_Time = Annotated[float, msgspec.Meta(ge=0, le=datetime(9999, 1, 1, tzinfo=UTC).timestamp())]
_MAX_RUNS: Final = 1000
"""Number of runs that are stored for each flow."""
_MAX_OUTPUTS: Final = 200
"""Number of the newest runs of each flow whose outputs are stored."""


class FlowState(msgspec.Struct):
    """The state of a flow. Times are in seconds since 1970.

    Attributes:
        name: name of the flow.
        paused: no trigger starts runs.
        pause_reason: why the flow is paused, or "" if it is not.
        requested: the user has requested a run.
        failures: number of failed runs in a row, without their repetitions.
        attempt: number of repetitions of the last run.
        handled_until: all times of schedules up to this one have been handled.
        last_start: start of the last run.
        retry_at: when a failed run is repeated.
    """

    name: str
    handled_until: _Time
    paused: bool = False
    pause_reason: str = ""
    requested: bool = False
    failures: int = 0
    attempt: int = 0
    last_start: _Time | None = None
    retry_at: float | None = None


_SCHEDULED: Final = ("failures", "attempt", "handled_until", "last_start", "retry_at")
"""Columns that the scheduler writes. The others may be changed by other processes at any time."""


class Run(msgspec.Struct, frozen=True):
    """A run, or a decision not to run.

    Attributes:
        id: number of the run.
        flow: name of the flow.
        trigger: what started it, such as ``Schedule``, ``retry``, ``request``.
        due: when it was due.
        attempt: 0, or the number of the repetition.
        state: state of the run.
        reason: why it failed, was skipped or interrupted; empty otherwise.
        begun, ended: its times.
        jobs: ids of its jobs.
    """

    id: int
    flow: str
    trigger: str
    due: _Time
    attempt: int
    state: RunState
    reason: str
    begun: _Time
    ended: _Time | None
    jobs: list[str]


class FlowStore(SharedStore):
    """The stored state and runs of a workspace's flows.

    Args:
        odf: the ``.odf`` folder of the workspace.

    Raises:
        OdfError: the file cannot be opened or written (every method).
    """

    def __init__(self, odf: Path) -> None:
        super().__init__(odf / FILE, _SCHEMA, "the state of the flows")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with super()._translated():
                yield
        except msgspec.MsgspecError as error:
            raise OdfError(
                f"the state of the flows is damaged: {error}",
                where=str(self._path),
                hint="delete the file; flows then continue without their history",
            ) from error

    def version(self) -> int:
        """Return a number that changes when another process has written."""
        with self._translated():
            return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def states(self) -> dict[str, FlowState]:
        """Return the states of all flows by name."""
        names = FlowState.__struct_fields__
        with self._translated():
            rows = self._connection.execute(f"SELECT {', '.join(names)} FROM flows").fetchall()
            records = [dict(zip(names, row, strict=True)) for row in rows]
            return {record["name"]: msgspec.convert(record, FlowState, strict=False) for record in records}

    def save(self, states: Iterable[FlowState]) -> None:
        """Store the states of flows."""
        with self._transaction() as connection:
            for state in states:
                _save(connection, state)

    def forget(self, name: str) -> None:
        """Delete the state of a flow. Its runs stay stored."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM flows WHERE name = ?", (name,))

    def change(self, name: str, now: float, **values: object) -> None:
        """Change fields of a flow's state, from any process."""
        columns = ", ".join(f"{key} = ?" for key in values)
        with self._transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO flows (name, handled_until) VALUES (?, ?)", (name, now))
            connection.execute(f"UPDATE flows SET {columns} WHERE name = ?", (*values.values(), name))

    def begin(self, state: FlowState, trigger: str, due: float, now: float) -> Run:
        """Store the start of a run together with the state of its flow; a request for it is fulfilled."""
        with self._transaction() as connection:
            _save(connection, state)
            if trigger == REQUEST:
                connection.execute("UPDATE flows SET requested = 0 WHERE name = ?", (state.name,))
            cursor = connection.execute(
                "INSERT INTO runs (flow, trigger, due, attempt, state, begun)"
                " VALUES (?, ?, ?, ?, 'running', ?)",
                (state.name, trigger, due, state.attempt, now),
            )
        number = cursor.lastrowid
        assert number is not None
        return Run(number, state.name, trigger, due, state.attempt, "running", "", now, None, [])

    def skip(self, state: FlowState, trigger: str, due: float, now: float, reason: str) -> None:
        """Store the decision not to run, together with the state of the flow."""
        with self._transaction() as connection:
            _save(connection, state)
            connection.execute(
                "INSERT INTO runs (flow, trigger, due, attempt, state, reason, begun, ended)"
                " VALUES (?, ?, ?, ?, 'skipped', ?, ?, ?)",
                (state.name, trigger, due, state.attempt, reason, now, now),
            )

    def end(
        self, run: Run, outcome: RunState, reason: str, now: float, state: FlowState, *, pause: str = ""
    ) -> None:
        """Store the end of a run together with the state of its flow; delete its oldest runs.

        Args:
            run: the run.
            outcome: its final state.
            reason: why it failed, was skipped or interrupted.
            now: the time.
            state: state of the flow.
            pause: why the flow is paused, or "" if it is not.
        """
        with self._transaction() as connection:
            _save(connection, state)
            if pause:
                connection.execute(
                    "UPDATE flows SET paused = 1, pause_reason = ? WHERE name = ?", (pause, state.name)
                )
            connection.execute(
                "UPDATE runs SET state = ?, reason = ?, ended = ? WHERE id = ?",
                (outcome, reason, now, run.id),
            )
            connection.execute(
                "DELETE FROM runs WHERE flow = ? AND id <= ("
                " SELECT id FROM runs WHERE flow = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
                (run.flow, run.flow, _MAX_RUNS),
            )
            connection.execute(
                "DELETE FROM outputs WHERE run IN ("
                " SELECT id FROM runs WHERE flow = ? ORDER BY id DESC LIMIT -1 OFFSET ?)",
                (run.flow, _MAX_OUTPUTS),
            )

    def add_job(self, run: int, job: str) -> None:
        """Add a job to a run."""
        with self._transaction() as connection:
            connection.execute("UPDATE runs SET jobs = json_insert(jobs, '$[#]', ?) WHERE id = ?", (job, run))

    def set_output(self, run: int, text: str) -> None:
        """Store the output of the programs of a run."""
        with self._transaction() as connection:
            connection.execute("REPLACE INTO outputs VALUES (?, ?)", (run, text))

    def set_warnings(self, run: int, warnings: Sequence[JobWarning]) -> None:
        """Store the warnings of the tasks of a run."""
        text = msgspec.json.encode(warnings).decode()
        with self._transaction() as connection:
            connection.execute("REPLACE INTO warnings VALUES (?, ?)", (run, text))

    def outputs(self, runs: Sequence[Run]) -> dict[int, str]:
        """Return the outputs of the programs of runs, by the number of the run. Other runs have none."""
        return self._texts("outputs", runs)

    def warnings(self, runs: Sequence[Run]) -> dict[int, list[JobWarning]]:
        """Return the warnings of the tasks of runs, by the number of the run. Other runs have none."""
        texts = self._texts("warnings", runs)
        with self._translated():
            return {run: msgspec.json.decode(text, type=list[JobWarning]) for run, text in texts.items()}

    def _texts(self, table: str, runs: Sequence[Run]) -> dict[int, str]:
        numbers = msgspec.json.encode([run.id for run in runs]).decode()
        with self._translated():
            if not self._connection.execute(
                "SELECT 1 FROM sqlite_master WHERE name = ?", (table,)
            ).fetchone():
                return {}  # a file of an earlier version on a read-only file system
            query = f"SELECT run, text FROM {table} WHERE run IN (SELECT value FROM json_each(?))"
            return dict(self._connection.execute(query, (numbers,)).fetchall())

    def open_runs(self) -> list[Run]:
        """Return the runs that have not ended, oldest first."""
        return self._runs("WHERE state = 'running' ORDER BY id")

    def runs(self, flow: str | None = None, limit: int = 100) -> list[Run]:
        """Return the newest runs, of one flow if given, newest first."""
        if flow is None:
            return self._runs("ORDER BY id DESC LIMIT ?", limit)
        return self._runs("WHERE flow = ? ORDER BY id DESC LIMIT ?", flow, limit)

    def runs_after(self, number: int, others: Sequence[int]) -> list[Run]:
        """Return the runs after ``number``, and the runs with the numbers ``others``, oldest first."""
        marks = ", ".join("?" * len(others))
        return self._runs(f"WHERE id > ? OR id IN ({marks}) ORDER BY id LIMIT 5000", number, *others)

    def times_after(self, flow: str, after: float) -> list[float]:
        """Return the times of a flow's schedules after ``after`` that have been handled."""
        with self._translated():
            rows = self._connection.execute(
                "SELECT due FROM runs WHERE flow = ? AND trigger = 'Schedule' AND due > ?", (flow, after)
            ).fetchall()
        return [due for (due,) in rows]

    def first_attempt(self, run: Run) -> float:
        """Return when the first attempt of a repeated run began."""
        with self._translated():
            row = self._connection.execute(
                "SELECT begun FROM runs WHERE flow = ? AND id < ? AND state != 'skipped' AND attempt = 0"
                " ORDER BY id DESC LIMIT 1",
                (run.flow, run.id),
            ).fetchone()
        return run.begun if row is None else row[0]

    def run(self, number: int) -> Run:
        """Return a run.

        Raises:
            NotFound: there is no such run.
        """
        runs = self._runs("WHERE id = ?", number)
        if not runs:
            raise NotFound(f"run {number} not found", hint="list the runs: odf flow history")
        return runs[0]

    def _runs(self, condition: str, *parameters: object) -> list[Run]:
        columns = ", ".join(Run.__struct_fields__)
        with self._translated():
            rows = self._connection.execute(f"SELECT {columns} FROM runs {condition}", parameters).fetchall()
            records = [dict(zip(Run.__struct_fields__, row, strict=True)) for row in rows]
            return [
                msgspec.convert(record | {"jobs": msgspec.json.decode(record["jobs"])}, Run)
                for record in records
            ]


def _save(connection: sqlite3.Connection, state: FlowState) -> None:
    columns = ", ".join(_SCHEDULED)
    marks = ", ".join("?" * len(_SCHEDULED))
    changes = ", ".join(f"{column} = excluded.{column}" for column in _SCHEDULED)
    connection.execute(
        f"INSERT INTO flows (name, {columns}) VALUES (?, {marks}) ON CONFLICT (name) DO UPDATE SET {changes}",
        (state.name, *(getattr(state, column) for column in _SCHEDULED)),
    )
