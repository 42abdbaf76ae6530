"""The base of all kinds of jobs: the request, its properties and the environment of a running job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from odf_engine.base.html_text import fields_html
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, OdfError
from odf_engine.on_demand import latest_state, slice_downloads, workspaces

if TYPE_CHECKING:
    from odf_engine.mirror.signed_download import SignedDownload
    from odf_engine.spark import SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime
    from odf_engine.workspace.workspace import Workspace

R_co = TypeVar("R_co", covariant=True)
OnWarning = Literal["continue", "fail"]
Style = Literal["good", "warn", "bad", "muted"]


class JobSummary(NamedTuple):
    """The outcome of a job in a few words.

    Attributes:
        text: such as ``+1,200 rows``; "" if there is nothing to say.
        style: how the text is shown.
    """

    text: str
    style: Style = "good"


class WorkerHost(Protocol):
    """The interface of the worker for jobs."""

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        ...

    def spark(self, reporter: Reporter) -> SparkRuntime:
        """Return the worker's Spark; waits until it has started.

        Raises:
            OdfError: it does not start.
            Cancelled: the job was cancelled while waiting.
        """
        ...


@dataclass(frozen=True)
class JobContext:
    """The environment of a job; closed at the end of the job.

    Attributes:
        host: the worker.
        environment: the client's environment variables that the dataset's source may read.
    """

    host: WorkerHost
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def workspace(self) -> Workspace:
        """The worker's workspace, opened for this job.

        Raises:
            NotFound, Unsupported: see :meth:`odf_engine.workspace.workspace.Workspace.find`.
        """
        workspace = workspaces.Workspace.find(explicit=self.host.folder)
        workspace.use_downloads(self._run_downloads)
        return workspace

    def _run_downloads(self, downloads: Sequence[SignedDownload], reporter: Reporter) -> None:
        """Run downloads on the executors of Spark."""
        slice_downloads.run_downloads(self.session(reporter), downloads, reporter)

    def session(self, reporter: Reporter) -> SparkSession:
        """Return a new Spark session; Spark is started if it does not run.

        Raises:
            OdfError: Spark cannot be started.
            Cancelled: the job was cancelled.
        """
        return self.host.spark(reporter).session()

    def close(self) -> None:
        """Close the block index: reference cycles would keep its file open until a garbage collection."""
        if "workspace" in self.__dict__:
            self.workspace.close()


class JobRequest(msgspec.Struct, Generic[R_co], frozen=True):
    """A request whose job has a result of this type. The tag of a subclass is the kind of the job.

    Every subclass has a field ``dataset``, see :attr:`dataset_id`.

    Attributes:
        read_only: the job changes no dataset. It runs concurrently with the jobs that do.
        repeatable: the job can be repeated after it has succeeded.
        has_screen: the result is shown on a screen of its own, which repeats the job.
        is_silent: alerts do not report the job.
    """

    read_only: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False
    has_screen: ClassVar[bool] = False
    is_silent: ClassVar[bool] = False

    @classmethod
    def kind(cls) -> str:
        """Return the kind of the job, such as ``pull``."""
        return str(cls.__struct_config__.tag)

    @classmethod
    def result_type(cls) -> type[R_co]:
        """Return the type of the result."""
        (declared,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        return declared

    @classmethod
    def summarize(cls, result: Any) -> JobSummary:
        """Return the outcome of a job that has succeeded; ``result`` is of :meth:`result_type`."""
        raise NotImplementedError

    @classmethod
    def failure(cls, result: Any) -> str:
        """Return what is wrong with the dataset though the job has succeeded, or "" if nothing is.

        It fails the run of a flow. ``result`` is of :meth:`result_type`.
        """
        return ""

    @property
    def dataset_id(self) -> str:
        """The id of the dataset, or "" for a job that is not about one dataset."""
        return self.dataset  # type: ignore[attr-defined]  # a field of every subclass

    @property
    def needs_spark(self) -> bool:
        """Whether the job is expected to use Spark, as far as its request shows."""
        return True

    @property
    def is_transfer(self) -> bool:
        """Whether the job waits for the network, and not for Spark."""
        return False

    def run(self, context: JobContext, reporter: Reporter) -> R_co:
        """Run the job and return its result.

        Raises:
            OdfError: the job failed.
            Cancelled: it was cancelled.
        """
        raise NotImplementedError

    def command(self, name_of: Callable[[str], str]) -> list[str] | None:
        """Return the arguments of ``odf`` that submit the same request, or None if there is no such command.

        Args:
            name_of: returns the name of a dataset by its id.
        """
        return None


def run_request(request: JobRequest[R_co], context: JobContext, reporter: Reporter) -> R_co:
    """Run a job, see :meth:`JobRequest.run`, and update the tables of the latest state of its dataset."""
    result = request.run(context, reporter)
    if request.dataset_id and not request.read_only:
        with suppress(OdfError):  # the dataset was deleted
            dataset = context.workspace.resolve(request.dataset_id).dataset
            latest_state.update_latest_tables(context.workspace.odf, dataset)
    return result


def decode_result(text: str, request: type[JobRequest[R_co]]) -> R_co:
    """Decode a job's result, which is JSON; unknown fields are ignored.

    Raises:
        BadData: another version wrote the text, in another form.
    """
    try:
        return msgspec.json.decode(text, type=request.result_type())
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadData(
            f"the result of the {request.kind()} job cannot be read: {error}", hint="run the job again"
        ) from None


class JobResult(msgspec.Struct, frozen=True):
    """A result that notebooks display as a table of its fields."""

    def _repr_html_(self) -> str:
        names = self.__struct_fields__
        values = [(name, getattr(self, name)) for name in names]
        known = [(name.replace("_", " "), value) for name, value in values if value is not UNSET]
        return fields_html(known, type(self).__name__)


def branch_title(name: str, branch: str | UnsetType = "") -> str:
    """Return the name of a dataset, followed by the branch if a job is about one."""
    return f"{name}@{branch}" if branch else name


def branch_option(branch: str) -> list[str]:
    """Return the arguments that select a branch."""
    return ["--branch", branch] if branch else []


def text_or_none(value: object) -> str | None:
    """Return a value as text, or None for None."""
    return None if value is None else str(value)


@contextmanager
def release_arrow_memory() -> Iterator[None]:
    """Release Arrow's unused memory afterwards: the worker is a long-lived process."""
    import pyarrow as pa

    try:
        yield
    finally:
        pa.default_memory_pool().release_unused()
