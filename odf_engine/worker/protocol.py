"""Jobs, commands and events: the messages between clients and the worker (JSON lines)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Union

import msgspec

from odf_engine import errors
from odf_engine.base.progress import JobWarning
from odf_engine.errors import OdfError, UsageError
from odf_engine.jobs import JOB_KINDS
from odf_engine.jobs.base import JobRequest, decode_result

R = TypeVar("R")
if TYPE_CHECKING:
    Request = JobRequest[Any]
else:
    Request = Union[tuple(JOB_KINDS.values())]  # noqa: UP007


class JobState(Enum):
    """State of a job; the last four are final."""

    queued = "queued"
    running = "running"
    done = "done"
    failed = "failed"
    cancelled = "cancelled"
    interrupted = "interrupted"

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobState.queued, JobState.running)


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest progress of a running job; amounts that do not apply are None.

    ``file`` is the name of the newest file that ``files`` counts, or "".
    """

    phase: str = ""
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    total_rows: int | None = None
    total_bytes: int | None = None
    total_files: int | None = None
    file: str = ""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of a job, and the exit code of the command that waits for it.

    ``excerpt`` is the line of a file that the error is about, preceded by its number. ``kind`` is the name of
    its class in :mod:`odf_engine.errors`, or "" for other errors.
    """

    message: str
    hint: str | None = None
    where: str | None = None
    exit_code: int = 1
    excerpt: list[str] = []
    kind: str = ""

    def to_error(self) -> OdfError:
        """Return the failure as an error of the class that it had in the job."""
        known = getattr(errors, self.kind, OdfError) if self.kind else OdfError
        kind = known if isinstance(known, type) and issubclass(known, OdfError) else OdfError
        error = kind.__new__(kind)
        OdfError.__init__(error, self.message, hint=self.hint, where=self.where)  # whatever the class takes
        error.excerpt = tuple(self.excerpt)
        error.exit_code = self.exit_code
        return error


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as stored in the job log; times are RFC 3339.

    ``target`` is the alias of the dataset when the job was created. ``result`` is JSON text, see
    :meth:`result_of`. ``branch`` is empty unless the job was about a branch instead of the head. An ended job
    has ``warnings``. A job that ended without a result has ``committed_rows``, the rows of the blocks that it
    committed before.
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
    branch: str = ""
    warnings: list[JobWarning] = []
    committed_rows: int = 0

    @property
    def request_type(self) -> type[JobRequest[Any]] | None:
        """The type of the job's request, or None for a kind of another version."""
        return JOB_KINDS.get(self.kind)

    @property
    def read_only(self) -> bool:
        """Whether the job changes no dataset."""
        return self.request_type is not None and self.request_type.read_only

    def result_of(self, request: type[JobRequest[R]]) -> R | None:
        """Return the result of a job that was created by this type of request, or None where it has none.

        Raises:
            BadData: see :func:`decode_result`.
        """
        return decode_result(self.result, request) if self.result else None


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Create a job; the reply is :class:`Accepted` or :class:`Rejected` with the same ``tag``.

    ``environment`` has the variables of the client's process that the dataset's source may read. They may
    be secrets: they stay in memory, and are neither logged nor stored. If ``ends_with_client``, the job is
    cancelled when the connection ends.
    """

    request: Request
    target: str
    tag: str
    environment: dict[str, str] = {}
    ends_with_client: bool = False


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel a job; committed blocks stay. :class:`Rejected` if the job has ended."""

    job: str
    tag: str = ""


class Subscribe(msgspec.Struct, frozen=True, tag="subscribe"):
    """Send the events of the job log after ``since``, then all new events; None: only new events.

    The first event is a :class:`WorkerStatus`, which is sent again whenever Spark's state changes. The
    :class:`Samples` of the last minutes follow, if there are any.
    """

    since: int | None = None


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Request a :class:`WorkerStatus`; with ``warm``, start Spark if it is off."""

    warm: bool = False


class NotifyChanged(msgspec.Struct, frozen=True, tag="touch"):
    """Report that datasets were changed without a job; subscribers receive :class:`DatasetsChanged`."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop the worker, after its running jobs have been cancelled."""


Command = Submit | Cancel | Subscribe | Ping | NotifyChanged | Stop


class WorkerStatus(msgspec.Struct, frozen=True, tag="worker"):
    """Status of the worker; ``spark`` is ``starting``, ``ready``, ``failed`` or ``off``.

    ``spark_detail`` is the version and home of Spark, or why it failed; ``spark_hint`` what to do then.
    ``descriptors`` is the number of the worker's open files and sockets, or 0 if unknown.
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
    """Throughput of a running job, per second."""

    rows: float = 0
    bytes: float = 0
    files: float = 0


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """Load of the worker: time in seconds since 1970, and the rate of each running job by its id.

    ``heap`` and ``heap_max`` are bytes of Spark's Java heap, 0 while it does not run; ``memory`` is the
    resident memory of worker and Java, in bytes.
    """

    at: float
    rates: dict[str, Rate] = {}
    heap: int = 0
    heap_max: int = 0
    memory: int = 0


class Samples(msgspec.Struct, frozen=True, tag="samples"):
    """Samples, one per second while jobs run; a new subscriber receives the samples of the last minutes."""

    samples: list[Sample]


class DatasetsChanged(msgspec.Struct, frozen=True, tag="touched"):
    """Datasets were added, renamed, deleted or changed without a job."""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The command with this ``tag`` created or cancelled this job."""

    tag: str
    job: str


class Rejected(msgspec.Struct, frozen=True, tag="refused"):
    """The command with this ``tag`` was rejected."""

    tag: str
    error: Failure


class JobChanged(msgspec.Struct, frozen=True, tag="job"):
    """A job was created or changed its state."""

    seq: int
    job: Job


class JobProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The newest progress of a running job; not stored as an event."""

    job: str
    progress: Progress


class LogLine(msgspec.Struct, frozen=True, tag="line"):
    """A line of a job's log; ``time`` is RFC 3339."""

    seq: int
    job: str
    time: str
    level: Literal["debug", "info", "warning", "error"]
    text: str


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """A dataset has a new head; ``rows`` is the number of rows in the block."""

    seq: int
    job: str
    dataset: str
    block: str
    event: str
    rows: int


JournalEvent = JobChanged | LogLine | Committed
Event = WorkerStatus | Accepted | Rejected | JobProgress | Samples | DatasetsChanged | JournalEvent
PROTOCOL_VERSION: Final = 6
MAX_COMMAND_BYTES: Final = 8 * 1024 * 1024
MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
_encoder = msgspec.json.Encoder()
_commands = msgspec.json.Decoder(Command)
_events = msgspec.json.Decoder(Event)


def encode_line(message: Command | Event) -> bytes:
    """Return a message as one JSON document and a newline.

    Raises:
        UsageError: it has text that is not Unicode, such as the name of a file that is not UTF-8.
    """
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{error.object[:200]!r} cannot be sent to the worker: not UTF-8",
            hint="rename the file or folder, or correct the text",
        ) from None


def decode_command(line: bytes) -> Command:
    """Decode a command.

    Raises:
        ValueError: the line is not a command.
    """
    return _decode_line(_commands, line)


def decode_event(line: bytes) -> Event:
    """Decode an event.

    Raises:
        ValueError: the line is not an event.
    """
    return _decode_line(_events, line)


def _decode_line(decoder: msgspec.json.Decoder[R], line: bytes) -> R:
    try:
        return decoder.decode(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
