"""Requests, commands and events between clients and the worker (JSON lines)."""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

import msgspec

from odf_engine.errors import UsageError


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """Brings a dataset up to date; ``dataset`` is an id.

    A root dataset's source is polled until it has no more, a derivative one takes in what its inputs
    have. It waits for jobs of the datasets ``after`` that were entered before it. With
    ``reset_on_divergence`` a derivative one begins anew where an input was reset or replaced.

    One that comes from elsewhere takes over what is new there: from ``url``, else from where it came. With
    ``force`` also where both have changed since; the head it had is kept as a reference. A dataset that is
    not here yet comes under the name ``alias``; ``dataset`` is then the URL.
    """

    dataset: str
    after: list[str] = []
    fetch_uncacheable: bool = False
    set_watermark: str | None = None
    force: bool = False
    strict: bool = False
    reset_on_divergence: bool = False
    url: str | None = None
    alias: str | None = None


class Push(msgspec.Struct, frozen=True, tag="push"):
    """Brings another place up to date with a dataset; ``dataset`` is an id, ``url`` where it goes.

    With ``force`` also what only that place has is given up there; where it can be, its head is kept as a
    reference. The result is JSON: name, url, label (how people call it), status (updated or up-to-date),
    old_head, new_head, blocks, objects, bytes.
    """

    dataset: str
    url: str
    force: bool = False


class Compare(msgspec.Struct, frozen=True, tag="compare"):
    """Looks how a dataset stands to where it comes from and goes to, and remembers it.

    ``dataset`` is an id; ``urls`` are by default all of its remotes. The result is JSON: name, and ``seen``
    as ``odf_engine.workspace.remotes.RemoteStatus``; ``problems`` are [{url, message}]; all of them
    have a ``label``, which is how people call the place.
    """

    dataset: str
    urls: list[str] = []


class Search(msgspec.Struct, frozen=True, tag="search"):
    """Looks for datasets in repositories: those named, by default all of them; ``dataset`` is empty.

    The result is JSON::

        datasets  [{repository, name, url, id, kind, head, blocks, records, size, description, keywords}]
        problems  [{repository, message}]: those that could not be asked
    """

    text: str
    repositories: list[str] = []
    dataset: str = ""


class Ingest(msgspec.Struct, frozen=True, tag="ingest"):
    """Pushes the rows of files into a push source; what is None, the source or the file itself says.

    ``files`` are absolute paths, read in this order; ``event_time`` is RFC 3339.
    """

    dataset: str
    files: list[str]
    source: str | None = None
    format: str | None = None
    event_time: str | None = None
    ignore_unknown: bool = False
    strict: bool = False


class Verify(msgspec.Struct, frozen=True, tag="verify"):
    """Checks chain, slices and checkpoints; ``first``..``last`` are sequence numbers, inclusive.

    Transactions are run again unless ``integrity`` is set. With ``rows`` also rows that were found right
    before are checked again, where the bytes of their slice are the same. In the result, ``head`` is the
    newest block, when the whole chain up to it was found right; else null.
    """

    dataset: str
    integrity: bool = False
    first: int | None = None
    last: int | None = None
    rows: bool = False


class Validate(msgspec.Struct, frozen=True, tag="validate"):
    """Looks whether the query of a derivative dataset can be run; nothing is changed.

    ``manifest`` is the definition as YAML; ``dataset`` is an id, or empty for a dataset that is not
    there yet. A wrong query fails the job; the result is JSON::

        name     the dataset's name
        checked  false when the query cannot be looked at yet, because an input has no schema
        message  what a person should know, or null
        schema   the columns that it makes, as DDL; null when it was not looked at
        new      names of the columns that the dataset does not have yet
        state    what becomes of the state with an Update: none (there is none), kept, or lost, when
                 it has to be flushed or rebuilt
    """

    manifest: str
    dataset: str = ""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Changes a derivative dataset to what a definition says, once its old query has done what lies before.

    ``dataset`` is an id and ``manifest`` the definition as YAML. ``state`` says what becomes of the state
    of the old query where the new one cannot go on from it: ``flush`` lets come out what was still to
    come and begins with none, ``rebuild`` makes the one that the new query would have by now; when empty
    the job fails. With ``accept_columns`` columns that the query gives and the dataset does not have yet
    come into its schema even where the definition changes nothing else. ``origin`` is the URL that the
    definition came from, when somebody else wrote it. The result is JSON::

        name, status (updated or unchanged), old_head, new_head, blocks, records
        state    none, kept, flushed or rebuilt
        changes  what was appended for people: [{title, lines}]
    """

    dataset: str
    manifest: str
    state: Literal["", "flush", "rebuild"] = ""
    accept_columns: bool = False
    origin: str | None = None


class ComputeStatistics(msgspec.Struct, frozen=True, tag="describe"):
    """Computes statistics of all columns; what is found is kept in the workspace's cache.

    They are of all rows of a dataset, or of those in ``file``, a Parquet file that a projection or a query
    made; ``dataset`` is empty when these are of none. The result is JSON: name, rows.
    """

    dataset: str
    file: str | None = None


class BuildProjection(msgspec.Struct, frozen=True, tag="project"):
    """Makes the current state of a changelog by key: a Parquet file in the workspace's cache.

    Without ``key`` it is the primary key of the dataset's merge strategy, or what its query groups by.
    ``as_at`` (a system time or a block, see ``odf_engine.views.as_at``) makes it of what was known
    then, ``as_of`` (RFC 3339) of what has happened until that event time. The result is JSON::

        name  the dataset's name
        key   the columns of the key
        rows  how many there are
        of    how many rows the changelog has
        file  the absolute path of the file
        pin   the block that it is made of, as ``odf_engine.views.as_at.PinnedVersion``
    """

    dataset: str
    key: list[str] = []
    as_at: str | None = None
    as_of: str | None = None


class Export(msgspec.Struct, frozen=True, tag="export"):
    """Writes rows to a file for other programs.

    They are the rows of the dataset, or those in ``file``, a Parquet file; ``dataset`` is empty when these
    are of none. ``ranges`` says which of them, in pairs of the number of a row from 0 and that after the
    last one; by default it is all. ``path`` is absolute; with ``replace`` a file that is there already goes
    away. Without ``system`` the columns that the system made are left out. The result is JSON: name, rows,
    size (in bytes), path.
    """

    dataset: str
    path: str
    format: Literal["csv", "json", "ndjson", "parquet"] = "csv"
    file: str | None = None
    ranges: list[tuple[int, int]] = []
    system: bool = True
    replace: bool = False


class Query(msgspec.Struct, frozen=True, tag="sql"):
    """Asks a query over datasets by their names; nothing is changed.

    At most ``limit`` rows of its result are kept, all of them where it is None: in the workspace's cache
    as Parquet, or with ``output``, an absolute path, there in another ``format``. ``dataset`` is empty: a
    query is of no dataset. ``as_at`` and ``as_of`` say how all datasets are seen that the query says
    nothing of by itself; ``pins`` name for some of them (names or ids) the block they are seen at. With
    ``proof`` the result has what proves it, signed with the key of the dataset ``sign`` when one is named.
    The result is JSON::

        sql        the query
        pins       the blocks that it was answered from, as ``odf_engine.views.as_at.PinnedVersion``
        proof      the document that proves it, or null; see ``odf_engine.query.query_proof``
        path       the Parquet file of the rows, from the workspace's folder on; it goes when newer ones come.
                   Empty with ``output``
        output     the file that they are in, or null
        columns    [{name, type}], the types as DDL has them
        rows       how many there are
        truncated  whether there would have been more
        seconds    from the start of the job
    """

    sql: str
    limit: int | None = 1_000_000
    dataset: str = ""
    as_at: str | None = None
    as_of: str | None = None
    pins: dict[str, str] = {}
    output: str | None = None
    format: Literal["csv", "json", "ndjson", "parquet"] = "parquet"
    proof: bool = False
    sign: str | None = None


class CheckProof(msgspec.Struct, frozen=True, tag="check-proof"):
    """Looks whether what proves the answer of a query is right, and asks the query again.

    ``proof`` is the document as text; ``dataset`` is empty. The result is JSON::

        valid      whether the same query over the same blocks gave the same rows, and the signature is right
        checked    false when blocks that it names are not here, so that the query was not asked
        findings   [{kind, message, hint}]
        query      the query
        rows       how many there are, as the proof says
        hash       of them
        signed_by  the id of the dataset whose key signed it, or null
        seconds    from the start of the job
    """

    proof: str
    dataset: str = ""


class Trace(msgspec.Struct, frozen=True, tag="trace"):
    """Finds out where rows of a dataset come from.

    ``runs`` are offsets, the last ones inclusive. With ``column`` it is the values of this column. It goes
    ``depth`` datasets up, by default to the sources. With ``check`` the newest step is run again with the
    rows that were found alone, and without them. The result is JSON: an
    ``odf_engine.provenance.model.TraceStep``; with ``check`` also ``checked``, a list of texts.
    """

    dataset: str
    runs: list[tuple[int, int]]
    column: str | None = None
    depth: int | None = None
    check: bool = False


class Diff(msgspec.Struct, frozen=True, tag="diff"):
    """Compares two versions of a dataset, or two datasets; nothing is changed.

    ``dataset`` is the id of the older one, ``other`` of the newer one, empty for the same. ``as_at`` and
    ``other_as_at`` are a system time or a block each. Rows are told apart by ``key``, by default by that of
    the datasets. The result is described with ``odf_engine.views.diff.Difference``.
    """

    dataset: str
    other: str = ""
    as_at: str | None = None
    other_as_at: str | None = None
    key: list[str] = []


Request = (
    Pull
    | Push
    | Compare
    | Search
    | Ingest
    | Verify
    | Validate
    | Update
    | Query
    | CheckProof
    | Trace
    | Diff
    | ComputeStatistics
    | BuildProjection
    | Export
)
READ_ONLY_JOBS: Final = frozenset(
    {"check-proof", "compare", "describe", "diff", "export", "project", "search", "sql", "trace"}
)
"""Kinds of jobs that only look at what a dataset has. They change nothing, and run beside those that do."""
_WITHOUT_SPARK: Final = (Push, Compare, Search, ComputeStatistics, BuildProjection, Export, Diff)


def needs_spark(request: Request) -> bool:
    """Whether a job is going to ask for Spark, as far as its request tells."""
    match request:
        case Pull():
            return request.url is None
        case Verify():
            return not request.integrity
        case _:
            return not isinstance(request, _WITHOUT_SPARK)


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
    """Makes a job; the answer is :class:`Accepted` or :class:`Rejected` with the same ``tag``.

    ``environment`` has the variables that the dataset's source may read, as the client's process has
    them. They may be secrets: they stay in memory, and are not logged or written down anywhere.
    """

    request: Request
    target: str
    tag: str
    environment: dict[str, str] = {}


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stops a job; what was committed stays. :class:`Rejected` when there is nothing to stop."""

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


class NotifyChanged(msgspec.Struct, frozen=True, tag="touch"):
    """Says that datasets were changed without a job; whoever subscribed hears :class:`DatasetsChanged`."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Ends the worker: running jobs are cancelled first."""


Command = Submit | Cancel | Subscribe | Ping | NotifyChanged | Stop


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


class DatasetsChanged(msgspec.Struct, frozen=True, tag="touched"):
    """Somebody changed datasets without a job: they were added, renamed, deleted."""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The command with this ``tag`` made this job."""

    tag: str
    job: str


class Rejected(msgspec.Struct, frozen=True, tag="refused"):
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
Event = WorkerStatus | Accepted | Rejected | JobProgress | Samples | DatasetsChanged | JournalEvent
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
