"""The queue of deliveries: a SQLite file of the workspace, written by the worker and the command line.

Events enter the queue in the same transaction that advances the position in their source. So each event
enters the queue exactly once, however the worker ends. A delivery leaves the queue after the receiver has
confirmed it. If the worker ends between the two, the delivery is repeated with the same id.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from odf_engine.errors import NotFound
from odf_engine.storage.databases import SharedStore

FILE: Final = "alerts.sqlite"
MAX_QUEUED: Final = 1000
"""Maximum number of queued deliveries of an alert. Further ones go to the dead letters."""
MAX_DEAD: Final = 1000
"""Maximum number of dead letters of an alert. Older ones are deleted."""
MAX_SENT: Final = 200
"""Number of finished deliveries of an alert that are stored."""
MAX_DELAY: Final = 86_400.0
"""Maximum number of seconds until a delivery is repeated."""
_DUE: Final = f"CASE WHEN created > ?1 OR due > ?1 + {MAX_DELAY} THEN ?1 ELSE due END"
"""When a delivery is due; immediately if its times are of a clock that was set back since."""
DeliveryState = Literal["queued", "sent", "dead"]
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS deliveries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    alert TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    dataset TEXT NOT NULL,
    message TEXT NOT NULL,
    body BLOB NOT NULL,
    state TEXT NOT NULL,
    created REAL NOT NULL,
    due REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    ended REAL
);
CREATE INDEX IF NOT EXISTS deliveries_of_alert ON deliveries (alert, state, number);
CREATE INDEX IF NOT EXISTS queued_deliveries ON deliveries (due) WHERE state = 'queued';
CREATE TABLE IF NOT EXISTS positions (source TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS heads (dataset TEXT PRIMARY KEY, head TEXT NOT NULL);
"""


class Delivery(msgspec.Struct, frozen=True):
    """An event for an alert. Times are in seconds since 1970.

    Attributes:
        number: its number, in the order of the events.
        id: the idempotency id: the same for each attempt.
        alert: name of the alert.
        kind: the kind of the event that the alert selects.
        subject: name of the dataset or of the flow.
        dataset: id of the dataset, or "" for a flow.
        message: what happened.
        body: the message in the form of the sink, or b"" for terminals.
        state: ``queued``, ``sent`` or ``dead``.
        created: when the event was queued.
        due: when it is sent next.
        attempts: number of attempts, since the last `odf alert dead retry`.
        error: why the last attempt failed, or "" if none did.
        ended: when it was sent, or became a dead letter.
    """

    number: int
    id: str
    alert: str
    kind: str
    subject: str
    dataset: str
    message: str
    body: bytes
    state: DeliveryState
    created: float
    due: float
    attempts: int = 0
    error: str = ""
    ended: float | None = None


class NewDelivery(msgspec.Struct, frozen=True):
    """A delivery to queue; see :class:`Delivery`."""

    id: str
    alert: str
    kind: str
    subject: str
    dataset: str
    message: str
    body: bytes


_FIELDS: Final = ", ".join(Delivery.__struct_fields__)


class AlertStore(SharedStore):
    """The queue of a workspace.

    Args:
        odf: the ``.odf`` folder of the workspace.

    Raises:
        OdfError: the file cannot be opened or written (every method).
    """

    def __init__(self, odf: Path) -> None:
        path = odf / FILE
        with contextlib.suppress(OSError):  # a read-only file system
            # SQLite gives its other files the mode of this one. Messages can have parts of the data.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        super().__init__(path, _SCHEMA, "the queue of the alerts")

    def positions(self) -> dict[str, str]:
        """Return the position in each source of events."""
        with self._translated():
            return dict(self._connection.execute("SELECT source, value FROM positions"))

    def heads(self) -> dict[str, str]:
        """Return the last known head of each dataset, by its id."""
        with self._translated():
            return dict(self._connection.execute("SELECT dataset, head FROM heads"))

    def enqueue(
        self,
        deliveries: Iterable[NewDelivery],
        now: float,
        positions: Mapping[str, str] | None = None,
        heads: Mapping[str, str | None] | None = None,
    ) -> None:
        """Queue deliveries and store the positions after their events, in one transaction.

        Args:
            deliveries: the deliveries. One whose id is stored is ignored.
            now: the time.
            positions: new positions by source.
            heads: new heads by dataset id; None: the dataset was deleted.
        """
        with self._transaction() as connection:
            for delivery in deliveries:
                (count,) = connection.execute(
                    "SELECT count(*) FROM deliveries WHERE alert = ? AND state = 'queued'", (delivery.alert,)
                ).fetchone()
                full = count >= MAX_QUEUED
                values = (*msgspec.structs.astuple(delivery), "dead" if full else "queued", now, now)
                connection.execute(
                    "INSERT OR IGNORE INTO deliveries"
                    " (id, alert, kind, subject, dataset, message, body, state, created, due, error, ended)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, "the queue is full" if full else "", now if full else None),
                )
                if full:
                    _trim(connection, delivery.alert, "dead", MAX_DEAD)
            connection.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?)", (positions or {}).items()
            )
            for dataset, head in (heads or {}).items():
                if head is None:
                    connection.execute("DELETE FROM heads WHERE dataset = ?", (dataset,))
                else:
                    connection.execute("INSERT OR REPLACE INTO heads VALUES (?, ?)", (dataset, head))

    def next_due(self, now: float) -> dict[str, float]:
        """Return for each alert with queued deliveries when the first one is due."""
        query = f"SELECT alert, min({_DUE}) FROM deliveries WHERE state = 'queued' GROUP BY alert"
        with self._translated():
            return dict(self._connection.execute(query, (now,)))

    def due(self, alert: str, now: float, limit: int) -> list[Delivery]:
        """Return deliveries of an alert that are due, in their order."""
        condition = f"alert = ?2 AND state = 'queued' AND {_DUE} <= ?1 ORDER BY number LIMIT ?3"
        return self._read(condition, now, alert, limit)

    def finish(self, delivery: Delivery, now: float) -> None:
        """Store that the receiver has confirmed a delivery."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE deliveries SET state = 'sent', attempts = attempts + 1, ended = ?, error = ''"
                " WHERE number = ?",
                (now, delivery.number),
            )
            _trim(connection, delivery.alert, "sent", MAX_SENT)

    def fail(self, delivery: Delivery, error: str, now: float, due: float | None) -> None:
        """Store a failed attempt.

        Args:
            delivery: the delivery.
            error: why it failed.
            now: the time.
            due: when it is repeated; None: it becomes a dead letter.
        """
        state = "dead" if due is None else "queued"
        with self._transaction() as connection:
            connection.execute(
                "UPDATE deliveries SET state = ?, attempts = attempts + 1, error = ?, due = ?, ended = ?"
                " WHERE number = ? AND state = 'queued'",
                (state, error, due or now, None if due else now, delivery.number),
            )
            if due is None:
                _trim(connection, delivery.alert, "dead", MAX_DEAD)

    def counts(self) -> dict[tuple[str, DeliveryState], int]:
        """Return the number of stored deliveries by alert and state."""
        query = "SELECT alert, state, count(*) FROM deliveries GROUP BY alert, state"
        with self._translated():
            return {(alert, state): count for alert, state, count in self._connection.execute(query)}

    def list_newest(
        self, alert: str | None = None, state: DeliveryState | None = None, limit: int = 100, after: int = 0
    ) -> list[Delivery]:
        """Return the newest deliveries, newest first.

        Args:
            alert: only deliveries of this alert.
            state: only those in this state.
            limit: maximum number.
            after: only those with a larger number.
        """
        condition = "(?1 IS NULL OR alert = ?1) AND (?2 IS NULL OR state = ?2) AND number > ?4"
        return self._read(f"{condition} ORDER BY number DESC LIMIT ?3", alert, state, limit, after)

    def retry(self, numbers: Iterable[int] | None, now: float, alert: str | None = None) -> int:
        """Queue dead letters again; return their number.

        Args:
            numbers: their numbers, or None for all.
            now: the time.
            alert: only deliveries of this alert.

        Raises:
            NotFound: one of the numbers is not a dead letter.
        """
        action = "UPDATE deliveries SET state = 'queued', attempts = 0, ended = NULL, due = ?"
        return self._change_dead(action, (now,), numbers, alert)

    def remove_dead(self, numbers: Iterable[int] | None, alert: str | None = None) -> int:
        """Delete dead letters; return their number.

        Args:
            numbers: their numbers, or None for all.
            alert: only deliveries of this alert.

        Raises:
            NotFound: one of the numbers is not a dead letter.
        """
        return self._change_dead("DELETE FROM deliveries", (), numbers, alert)

    def _change_dead(
        self, action: str, values: tuple[object, ...], numbers: Iterable[int] | None, alert: str | None
    ) -> int:
        dead = " WHERE state = 'dead'"
        with self._transaction() as connection:
            if numbers is None:
                condition = " AND (?{0} IS NULL OR alert = ?{0})".format(len(values) + 1)
                return connection.execute(action + dead + condition, (*values, alert)).rowcount
            count = 0
            for number in numbers:
                if not connection.execute(f"{action}{dead} AND number = ?", (*values, number)).rowcount:
                    raise NotFound(f"dead letter {number} not found", hint="list them: odf alert dead list")
                count += 1
            return count

    def forget(self, alert: str) -> None:
        """Delete all deliveries of an alert."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM deliveries WHERE alert = ?", (alert,))

    def list_without_body(self, after: float, limit: int = 100) -> list[Delivery]:
        """Return the newest messages without a body that were sent after a time, in this order.

        Messages for terminals have no body.
        """
        condition = "state = 'sent' AND body = x'' AND ended > ? ORDER BY ended DESC LIMIT ?"
        return self._read(condition, after, limit)[::-1]

    def _read(self, condition: str, *parameters: object) -> list[Delivery]:
        with self._translated():
            rows = self._connection.execute(
                f"SELECT {_FIELDS} FROM deliveries WHERE {condition}", parameters
            ).fetchall()
        return [Delivery(*row) for row in rows]


def _trim(connection: sqlite3.Connection, alert: str, state: str, keep: int) -> None:
    """Delete the oldest deliveries of an alert in a state above a number."""
    connection.execute(
        "DELETE FROM deliveries WHERE alert = ? AND state = ? AND number <= ("
        " SELECT number FROM deliveries WHERE alert = ? AND state = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (alert, state, alert, state, keep),
    )


def has_queue(odf: Path) -> bool:
    """Return whether the workspace has a queue of alerts."""
    return (odf / FILE).exists()


def read_newest(
    odf: Path, limit: int, alert: str | None = None, state: DeliveryState | None = None
) -> list[Delivery]:
    """Return the newest deliveries, of an alert and in a state if given; none if there is no queue.

    Raises:
        OdfError: the queue cannot be read.
    """
    if not has_queue(odf):
        return []
    with contextlib.closing(AlertStore(odf)) as store:
        return store.list_newest(alert, state, limit)


def read_terminal_messages(odf: Path, after: float | None) -> tuple[float, list[Delivery]]:
    """Return the messages for terminals that the worker has handled since a time, and the newest such time.

    Args:
        odf: the ``.odf`` folder of the workspace.
        after: the time that the last call has returned; None: only the time is returned.

    Raises:
        OdfError: the queue cannot be read.
    """
    with contextlib.closing(AlertStore(odf)) as store:
        without_body = store.list_without_body(after or 0.0)
    newest = max([after or 0.0, *(delivery.ended or 0.0 for delivery in without_body)])
    return newest, [] if after is None else without_body
