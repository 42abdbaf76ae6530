"""Requests, jobs, commands and events: the messages between clients and the worker (JSON lines)."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, ForwardRef, Generic, Literal, TypeVar, cast, get_args

import msgspec

from odf_engine import errors
from odf_engine.coordinator.results import (
    CheckProofResult,
    CheckResult,
    CompactResult,
    CompareResult,
    ExportResult,
    ProjectionResult,
    PullResult,
    PushResult,
    QueryResult,
    SearchResult,
    StatisticsResult,
    UpdateResult,
    ValidateResult,
    VerifyResult,
)
from odf_engine.errors import BadData, OdfError, UsageError
from odf_engine.progress import JobWarning

if TYPE_CHECKING:  # Deferred, see _DEFERRED; the linter does not see names in forward references.
    from odf_engine.provenance.model import TraceResult  # noqa: F401
    from odf_engine.views.diff import Difference  # noqa: F401

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


# --- Requests -----------------------------------------------------------------------------------


class JobRequest(msgspec.Struct, Generic[R_co], frozen=True):
    """A request whose job has a result of this type.

    Every request has a field ``dataset``: the dataset's id; empty where the job is not about one dataset.
    """


OnWarning = Literal["continue", "fail"]


class Pull(JobRequest[PullResult], frozen=True, tag="pull"):
    """Pull new data into a dataset.

    A root dataset polls its source until there are no more data. A derivative dataset transforms the new
    rows of its inputs. A dataset with a pull remote is synchronized from that remote instead.

    Attributes:
        dataset: id of the dataset; for one which is not in the workspace yet, its URL.
        after: ids of datasets. The job starts after the earlier jobs of these have ended.
        fetch_uncacheable: fetch sources that cannot report whether they have changed.
        set_watermark: only set the watermark to this time (RFC 3339).
        force: fetch an unchanged source. From a remote: replace a diverged history; the previous head stays
            as a reference. Without a remote, rebuild missing and damaged slices of a derivative dataset.
        rebuild: only rebuild the slices of a derivative dataset.
        rederive: derive a derivative dataset again from the start of its inputs, by the current rules of the
            engine; the previous head stays as a reference.
        strict: fail on rows which a ledger has with other values.
        reset_on_divergence: rebuild a derivative dataset when an input was reset or replaced.
        url: the remote to pull from; by default the dataset's pull remote.
        alias: name of a dataset which is not in the workspace yet.
        branch: the branch that receives the data; empty for the head.
        remote_branch: the branch of the remote to pull; empty for its head. A missing local branch is
            created.
        on_warning: ``fail``: rows and transactions with warnings are not committed, and the job fails.
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
    branch: str = ""
    remote_branch: str = ""
    rebuild: bool = False
    rederive: bool = False
    on_warning: OnWarning = "continue"


class Push(JobRequest[PushResult], frozen=True, tag="push"):
    """Push a dataset to the remote ``url``.

    With ``force``, a diverged history of the remote is replaced. Where the remote supports it, the previous
    head stays there as a reference. With ``branch``, this branch is pushed to that of the same name.
    """

    dataset: str
    url: str
    force: bool = False
    branch: str = ""


class Compare(JobRequest[CompareResult], frozen=True, tag="compare"):
    """Compare a dataset with ``urls``, by default all of its remotes, and store their state."""

    dataset: str
    urls: list[str] = []


class Search(JobRequest[SearchResult], frozen=True, tag="search"):
    """Search datasets in ``repositories``, by default in all; ``dataset`` is empty."""

    text: str
    repositories: list[str] = []
    dataset: str = ""


class Ingest(JobRequest[PullResult], frozen=True, tag="ingest"):
    """Push the rows of files into a push source.

    Attributes:
        dataset: id of the dataset.
        files: absolute paths, read in this order.
        source: name of the push source; not needed where the dataset has only one.
        format: format of the files; by default that of the source or of the file's name.
        event_time: event time of rows without one (RFC 3339).
        ignore_unknown: ignore columns that the schema does not have.
        strict: fail on rows which a ledger has with other values.
        force: ingest files that have not changed since the source ingested them.
        idempotency_key: identifies the push of the only file: another push with this key is skipped.
        attach: absolute paths of files, or folders of files, to store as linked objects.
        branch: the branch that receives the rows; empty for the head.
        on_warning: as for :class:`Pull`.
    """

    dataset: str
    files: list[str]
    source: str | None = None
    format: str | None = None
    event_time: str | None = None
    ignore_unknown: bool = False
    strict: bool = False
    force: bool = False
    idempotency_key: str | None = None
    attach: list[str] = []
    branch: str = ""
    on_warning: OnWarning = "continue"


INGEST_FORMATS: Final = ("csv", "json", "ndjson", "geojson", "ndgeojson", "parquet", "esrishapefile")
"""The values of ``format`` of :class:`Ingest`."""


class Verify(JobRequest[VerifyResult], frozen=True, tag="verify"):
    """Verify chain, slices and checkpoints of a dataset, and replay its transactions.

    Attributes:
        dataset: id of the dataset.
        integrity: do not replay transactions.
        first, last: sequence numbers of the blocks to verify, inclusive; by default the complete chain.
        rows: check also the rows of slices whose bytes are the same as in an earlier, valid check.
        branch: the branch to verify; empty for the head.
        recompute: instead of a replay, compare the latest state of a derivative dataset with its query over
            the latest state of the inputs.
    """

    dataset: str
    integrity: bool = False
    first: int | None = None
    last: int | None = None
    rows: bool = False
    branch: str = ""
    recompute: bool = False


class Check(JobRequest[CheckResult], frozen=True, tag="check"):
    """Evaluate the checks of a dataset, or of its branch, on its stored rows. Nothing is changed."""

    dataset: str
    branch: str = ""


class Validate(JobRequest[ValidateResult], frozen=True, tag="validate"):
    """Validate the query of a derivative dataset; nothing is changed, and an invalid query fails the job.

    ``manifest`` is the definition as YAML. ``dataset`` is empty for a dataset that does not exist yet.
    """

    manifest: str
    dataset: str = ""


class Update(JobRequest[UpdateResult], frozen=True, tag="update"):
    """Update a derivative dataset to a definition, after the current query has processed earlier rows.

    Attributes:
        dataset: id of the dataset.
        manifest: the definition as YAML.
        state: what to do if the new query cannot continue from the state of the current one: ``flush`` emits
            the pending rows and starts with an empty state, ``rebuild`` computes the state which the new
            query would have. Empty: the job fails.
        accept_columns: add new columns of the query to the schema, even if the definition is unchanged.
        origin: URL of a definition by another author.
    """

    dataset: str
    manifest: str
    state: Literal["", "flush", "rebuild"] = ""
    accept_columns: bool = False
    origin: str | None = None


class ComputeStatistics(JobRequest[StatisticsResult], frozen=True, tag="describe"):
    """Compute statistics of all columns and store them in the workspace's cache.

    The rows are those of the dataset, or of ``file``: a Parquet file of a projection or a query result.
    ``dataset`` is empty if that file is of no dataset.
    """

    dataset: str
    file: str | None = None


class BuildProjection(JobRequest[ProjectionResult], frozen=True, tag="project"):
    """Build the latest state of a changelog by key: a Parquet file in the workspace's cache.

    Attributes:
        dataset: id of the dataset.
        key: by default the primary key of the merge strategy, or the columns that the query groups by.
        as_at: a system time or a block, see :func:`odf_engine.views.as_at.resolve_as_at`. Only the rows up
            to it are used.
        as_of: an event time (RFC 3339). Only the events up to it are used.
    """

    dataset: str
    key: list[str] = []
    as_at: str | None = None
    as_of: str | None = None


class Export(JobRequest[ExportResult], frozen=True, tag="export"):
    """Write rows to a file.

    Attributes:
        dataset: id of the dataset; empty if ``file`` is of no dataset.
        path: absolute path of the file to write.
        format: its format.
        file: a Parquet file with the rows; by default all rows of the dataset are exported.
        ranges: the rows to export, as pairs of a row number from 0 and the number after the last row; by
            default all.
        system: export also the system columns.
        replace: overwrite an existing file.
    """

    dataset: str
    path: str
    format: Literal["csv", "json", "ndjson", "parquet"] = "csv"
    file: str | None = None
    ranges: list[tuple[int, int]] = []
    system: bool = True
    replace: bool = False


class Query(JobRequest[QueryResult], frozen=True, tag="sql"):
    """Run a query over datasets by name; nothing is changed.

    Attributes:
        sql: the query.
        limit: maximum number of rows of the result; None for all of them.
        dataset: empty.
        as_at, as_of: version and state of the datasets for which the query itself specifies none.
        pins: blocks of single datasets, by name or id.
        output: absolute path to write the rows to; by default a Parquet file in the workspace's cache.
        format: format of that file.
        proof: create a query proof.
        sign: the dataset whose key signs the proof.
        engine: runs the query; only Spark can create proofs.
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
    engine: Literal["spark", "datafusion"] = "spark"


class CheckProof(JobRequest[CheckProofResult], frozen=True, tag="check-proof"):
    """Check a query proof and run its query again; ``proof`` is its text, ``dataset`` is empty."""

    proof: str
    dataset: str = ""


class Trace(JobRequest["TraceResult"], frozen=True, tag="trace"):
    """Trace the provenance of rows.

    Attributes:
        dataset: id of the dataset.
        runs: inclusive ranges of offsets.
        column: trace the values of this column instead of complete rows.
        depth: number of datasets upstream; by default up to the sources.
        check: run the newest step again with only the traced rows, and without them.
    """

    dataset: str
    runs: list[tuple[int, int]]
    column: str | None = None
    depth: int | None = None
    check: bool = False


class Diff(JobRequest["Difference"], frozen=True, tag="diff"):
    """Compare two versions of a dataset, or two datasets; nothing is changed.

    Attributes:
        dataset: id of the older side.
        other: id of the newer side; empty for the same dataset.
        as_at, other_as_at: a system time or a block of either side.
        key: the columns that identify a row; by default the key of the datasets.
    """

    dataset: str
    other: str = ""
    as_at: str | None = None
    other_as_at: str | None = None
    key: list[str] = []


class Compact(JobRequest[CompactResult], frozen=True, tag="compact"):
    """Merge adjacent small slices of a root dataset in a new chain.

    Attributes:
        dataset: id of the dataset.
        dry_run: only report what would be merged.
        max_rows, max_bytes: the largest slices to write; None for the configured ones.
    """

    dataset: str
    dry_run: bool = False
    max_rows: int | None = None
    max_bytes: int | None = None


Request = (
    Pull
    | Push
    | Compare
    | Search
    | Ingest
    | Verify
    | Check
    | Validate
    | Update
    | Query
    | CheckProof
    | Trace
    | Diff
    | ComputeStatistics
    | BuildProjection
    | Export
    | Compact
)
READ_ONLY_JOBS: Final = frozenset(
    {"check", "check-proof", "compare", "describe", "diff", "export", "project", "search", "sql", "trace"}
)
"""Kinds of jobs that change no dataset. They run concurrently with the jobs that do."""
_REQUESTS: Final = {str(each.__struct_config__.tag): each for each in get_args(Request)}
_WITHOUT_SPARK: Final = (
    Push, Check, Compare, Search, ComputeStatistics, BuildProjection, Export, Diff, Compact
)  # fmt: skip
_DEFERRED: Final = {
    "TraceResult": "odf_engine.provenance.model",
    "Difference": "odf_engine.views.diff",
}
"""Modules of the result types that the start of a client must not load."""


def kind_of(request: Request) -> str:
    """Return the kind of a request's job, such as ``pull``."""
    return str(request.__struct_config__.tag)


def needs_spark(request: Request) -> bool:
    """Return whether a job is expected to use Spark, as far as its request shows."""
    match request:
        case Pull():
            return request.url is None
        case Verify():
            return not request.integrity
        case Query():
            return request.engine == "spark"
        case _:
            return not isinstance(request, _WITHOUT_SPARK)


def request_type(kind: str) -> type[JobRequest[Any]] | None:
    """Return the request type of a kind of job; None for a kind of another version."""
    return _REQUESTS.get(kind)


def result_type(request: type[JobRequest[R]]) -> type[R]:
    """Return the type of a request's result."""
    (declared,) = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    if isinstance(declared, ForwardRef):
        name = declared.__forward_arg__
        declared = getattr(import_module(_DEFERRED[name]), name)
    return cast("type[R]", declared)


def decode_result(text: str, request: type[JobRequest[R]]) -> R:
    """Decode a job's result, which is JSON; unknown fields are ignored.

    Raises:
        BadData: the text has another form, such as that of another version.
    """
    try:
        return msgspec.json.decode(text, type=result_type(request))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        kind = request.__struct_config__.tag
        raise BadData(
            f"the result of the {kind} job cannot be read: {error}", hint="run the job again"
        ) from None


# --- Jobs ---------------------------------------------------------------------------------------


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
    """The newest progress of a running job; amounts that do not apply are None."""

    phase: str = ""
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    total_rows: int | None = None
    total_bytes: int | None = None
    total_files: int | None = None


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of a job, and the exit code of the command that waits for it.

    ``excerpt`` is the line of a file that the error is about, preceded by its number. ``kind`` is the name of
    its class in :mod:`odf_engine.errors`; empty for other errors.
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
    has ``warnings``.
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

    def result_of(self, request: type[JobRequest[R]]) -> R | None:
        """Return the result of a job that was created by this type of request; None where it has none.

        Raises:
            BadData: see :func:`decode_result`.
        """
        return decode_result(self.result, request) if self.result else None


# --- Commands -----------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Create a job; the reply is :class:`Accepted` or :class:`Rejected` with the same ``tag``.

    ``environment`` has the variables of the client's process that the dataset's source may read. They may
    be secrets: they stay in memory, and are neither logged nor stored.
    """

    request: Request
    target: str
    tag: str
    environment: dict[str, str] = {}


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


# --- Events -------------------------------------------------------------------------------------


class WorkerStatus(msgspec.Struct, frozen=True, tag="worker"):
    """Status of the worker; ``spark`` is ``starting``, ``ready``, ``failed`` or ``off``.

    ``spark_detail`` is the version and home of Spark, or why it failed; ``spark_hint`` what to do then.
    ``descriptors`` is the number of the worker's open files and sockets; 0 if unknown.
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
    """Samples, one per second while jobs run; a new subscriber receives those of the last minutes."""

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
