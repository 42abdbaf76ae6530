"""What the worker and its screens say to each other: one JSON document a line, over a Unix socket.

A client sends :data:`Command`; the worker answers on the same connection, in order. A connection that
subscribed is also told :data:`Event` by event what happens. Every event that belongs to the journal carries
its journal number ``seq``, so that a client that comes back asks for what it missed with
``Subscribe(since=seq)``. Progress is not journalled line by line: the newest one is kept with its job, and
sent at most four times a second.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

import msgspec

from odf_engine.coordinator.requests import (
    LOOKS,
    CheckProof,
    Compare,
    Describe,
    Diff,
    Export,
    Ingest,
    Project,
    Pull,
    Push,
    Query,
    Request,
    Search,
    Trace,
    Update,
    Validate,
    Verify,
)
from odf_engine.errors import UsageError

__all__ = [
    "LOOKS", "CheckProof", "Compare", "Describe", "Diff", "Export", "Ingest", "Project", "Pull", "Push",
    "Query", "Request", "Search", "Trace", "Update", "Validate", "Verify",
]  # fmt: skip
"""Requests are part of what is said, so they are found here too."""

PROTOCOL_VERSION: Final = 6


class JobState(Enum):
    """Where a job stands; the last four are final."""

    queued = "queued"
    running = "running"
    done = "done"
    failed = "failed"
    cancelled = "cancelled"
    interrupted = "interrupted"

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self not in (JobState.queued, JobState.running)


# --- What is known of a job ---------------------------------------------------------------------


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest amounts of a running job; what does not apply is None."""

    phase: str = ""
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    total_rows: int | None = None
    total_bytes: int | None = None
    total_files: int | None = None


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a person reads it, and the exit code of the command that waits for it.

    ``excerpt`` has the line of the file that the error is about, with its number before it.
    """

    message: str
    hint: str | None = None
    where: str | None = None
    exit_code: int = 1
    excerpt: list[str] = []


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as the journal knows it; times are RFC 3339.

    ``target`` is the dataset's alias when the job was made; ``result`` is JSON text whose shape
    depends on ``kind``: for ``pull``, ``ingest`` and ``verify`` the entry of that dataset in the
    command's ``--json`` output.
    """

    id: str
    kind: str
    target: str
    dataset: str
    state: JobState
    created: str
    started: str | None = None
    ended: str | None = None
    progress: Progress = Progress()
    error: Failure | None = None
    result: str | None = None


# --- Commands -----------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Makes a job; the answer is :class:`Accepted` or :class:`Refused` with the same ``tag``.

    ``environment`` has the variables that the dataset's source may read, as the client's process has
    them. They may be secrets: they stay in memory, and are not logged or written down anywhere.
    """

    request: Request
    target: str
    tag: str
    environment: dict[str, str] = {}


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stops a job; what was committed stays. :class:`Refused` when there is nothing to stop."""

    job: str
    tag: str = ""


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """Sends journal events after ``since`` and everything from then on; None: only from now on.

    The first answer is a :class:`WorkerStatus`, and there is another one whenever Spark's state changes;
    then come the :class:`Samples` of the last minutes, if there are some.
    """

    since: int | None = None


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks for a :class:`WorkerStatus`; with ``warm`` Spark begins to start, if nobody needed it yet."""

    warm: bool = False


class Touch(msgspec.Struct, frozen=True, tag="touch"):
    """Says that datasets were changed without a job; whoever subscribed hears :class:`Touched`."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Ends the worker: running jobs are cancelled first."""


Command = Submit | Cancel | Subscribe | Ping | Touch | Stop


# --- Events -------------------------------------------------------------------------------------


class WorkerStatus(msgspec.Struct, frozen=True, tag="worker"):
    """The worker itself; ``spark`` is ``starting``, ``ready``, ``failed`` or ``off``.

    ``spark_detail`` is which Spark that is, or why it failed; ``spark_hint`` what to do then.
    ``descriptors`` is the number of files and sockets that the worker has open; 0 if unknown.
    """

    pid: int
    protocol: int
    version: str
    spark: str
    spark_detail: str
    running: int
    queued: int
    last_seq: int
    spark_hint: str = ""
    descriptors: int = 0


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a running job did in a second."""

    rows: float = 0
    bytes: float = 0
    files: float = 0


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """How busy the worker was: ``at`` in seconds since 1970, the rate of each running job by its id.

    ``heap`` and ``heap_max`` are bytes of Spark's Java heap, 0 while it does not run; ``memory`` is what
    worker and Java hold of the machine's memory.
    """

    at: float
    rates: dict[str, Rate] = {}
    heap: int = 0
    heap_max: int = 0
    memory: int = 0


class Samples(msgspec.Struct, frozen=True, tag="samples"):
    """One a second while jobs run, none while they do not; all of the last minutes for who subscribes."""

    samples: list[Sample]


class Touched(msgspec.Struct, frozen=True, tag="touched"):
    """Somebody changed datasets without a job: they were added, renamed, deleted."""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The command with this ``tag`` made this job."""

    tag: str
    job: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The command with this ``tag`` was not taken."""

    tag: str
    error: Failure


class JobChanged(msgspec.Struct, frozen=True, tag="job"):
    """A job was made or changed its state."""

    seq: int
    job: Job


class JobProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The newest amounts of a running job (not in the journal)."""

    job: str
    progress: Progress


class LogLine(msgspec.Struct, frozen=True, tag="line"):
    """A line of a job's log; ``time`` is RFC 3339, ``level`` debug, info, warning or error."""

    seq: int
    job: str
    time: str
    level: Literal["debug", "info", "warning", "error"]
    text: str


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """A dataset has a new head; ``rows`` is how many records the block added."""

    seq: int
    job: str
    dataset: str
    block: str
    event: str
    rows: int


JournalEvent = JobChanged | LogLine | Committed
Event = WorkerStatus | Accepted | Refused | JobProgress | Samples | Touched | JournalEvent

MAX_COMMAND_BYTES: Final = 8 * 1024 * 1024
MAX_EVENT_BYTES: Final = 64 * 1024 * 1024

_encoder = msgspec.json.Encoder()
_commands = msgspec.json.Decoder(Command)
_events = msgspec.json.Decoder(Event)


def encode_line(message: Command | Event) -> bytes:
    """One JSON document and a newline.

    Raises:
        UsageError: it has text that is not Unicode, such as the name of a file that is not UTF-8.
    """
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{error.object[:200]!r} is not UTF-8 text, and cannot be sent to the worker",
            hint="rename the file or folder, or correct the text",
        ) from None


def decode_command(line: bytes) -> Command:
    """Reads what a client sent.

    Raises:
        ValueError: anything but a command.
    """
    return _commands.decode(line)


def decode_event(line: bytes) -> Event:
    """Reads what the worker sent.

    Raises:
        ValueError: anything but an event.
    """
    return _events.decode(line)
