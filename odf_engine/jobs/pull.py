"""Pull: poll a source, transform new rows of inputs, or synchronize from a remote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from odf_engine.base.progress import JobWarning, Reporter, count_of
from odf_engine.data.waiting import Waiting
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.jobs.base import (
    JobContext,
    JobRequest,
    JobResult,
    JobSummary,
    OnWarning,
    branch_option,
    branch_title,
    text_or_none,
)
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.urls import normalize_url, short_url
from odf_engine.on_demand import (
    chain_state,
    crate_data,
    dataset_folders,
    dataset_summary,
    derive_run,
    engine_router,
    operation_counts,
    polling_source,
    rebuild,
    recorded_sync,
    remotes,
    trust,
)
from odf_engine.storage.refs import HEAD

if TYPE_CHECKING:
    from odf_engine.chain.dataset import Dataset
    from odf_engine.chain.state import ChainUpdate
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace

CRATE_HINT: Final = "pull another copy of the crate: odf pull CRATE"
_DERIVATIVE_WATERMARK: Final = "the watermark of a derivative dataset is the minimum of its inputs"


class ChangeCounts(TypedDict, total=False):
    """Numbers of rows by operation, see :class:`PullResult`."""

    added: int
    retracted: int
    corrected: int


class PullResult(JobResult, frozen=True):
    """Result of a pull or an ingest: an entry of ``odf pull --json``.

    Attributes:
        name: alias of the dataset.
        status: ``updated`` or ``up-to-date``; ``failed`` only in the output of the command line.
        old_head, new_head: head before and after the job.
        blocks, records: number of appended blocks, and of the rows in them.
        added, retracted, corrected: numbers of added rows (+A), retracted rows (-R) and corrections (a -C and
            a +C row) among the appended rows; each absent for 0.
        waiting: what the results of a derivative dataset wait for; absent if it waits for nothing.
        warnings: the warnings of the job, in the output of the command line and the Python API; absent if it
            has none.
        error: always null; the command line puts a failed job's error here.
        url, label: the remote and its display name. Only pulls from a remote have these and the next two.
        bytes: number of bytes transferred.
        ahead: number of blocks which the remote does not have.
        already_ingested: number of files that the push source has already ingested; absent for 0.
        repeated: number of appended rows from files that only repeat earlier rows; absent for 0.
        late: number of late rows that the transactions of a derivative dataset dropped; absent for 0.
        rejected: number of invalid rows that were left out of the appended blocks; absent for 0.
        branch: the branch that received the blocks; absent for the head.
    """

    name: str = ""
    status: str = ""
    old_head: str | None = None
    new_head: str | None = None
    blocks: int = 0
    records: int = 0
    error: None = None
    url: str | UnsetType = UNSET
    label: str | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    ahead: int | UnsetType = UNSET
    already_ingested: int | UnsetType = UNSET
    repeated: int | UnsetType = UNSET
    late: int | UnsetType = UNSET
    rejected: int | UnsetType = UNSET
    branch: str | UnsetType = UNSET
    added: int | UnsetType = UNSET
    retracted: int | UnsetType = UNSET
    corrected: int | UnsetType = UNSET
    waiting: Waiting | UnsetType = UNSET
    warnings: list[JobWarning] | UnsetType = UNSET

    @property
    def title(self) -> str:
        """The name of the dataset, followed by the branch."""
        return branch_title(self.name, self.branch)

    @property
    def new_rows(self) -> str:
        """The numbers of rows: ``+397 rows``, or with retractions or corrections ``+90 -5 ~151 rows``."""
        changes = change_counts(self.added, self.retracted, self.corrected)
        return f"{changes} rows" if changes else f"+{count_of(self.records, 'row')}"

    @property
    def summary(self) -> JobSummary:
        """The outcome in a few words."""
        if self.url:
            return self._remote_summary()
        if self.waiting:
            rows = f"{self.new_rows}, " if self.records else ""
            return JobSummary(f"{rows}{self.waiting.text}", "warn")
        if self.status != "updated":
            text = "already ingested" if self.already_ingested else self.status or "done"
            return JobSummary(text.replace("-", " "), "muted")
        if self.repeated:
            return JobSummary(f"{self.new_rows}, {self.repeated:,} repeat earlier rows", "warn")
        if self.late:
            return JobSummary(f"{self.new_rows}, {self.late:,} late", "warn")
        if self.rejected:  # first, because lists truncate the text
            return JobSummary(f"{self.rejected:,} rejected, {self.new_rows}", "warn")
        return JobSummary(self.new_rows)

    def _remote_summary(self) -> JobSummary:
        remote = short_url(self.label or self.url or "")
        if self.status == "updated":
            return JobSummary(f"{self.new_rows} in {count_of(self.blocks, 'block')} from {remote}")
        ahead = f", {count_of(self.ahead, 'block')} ahead of {remote}" if self.ahead else ""
        return JobSummary(f"up to date{ahead}", "muted")


def change_counts(added: int | UnsetType, retracted: int | UnsetType, corrected: int | UnsetType) -> str:
    """Return numbers of rows by operation, such as ``+90 -5 ~151``, or "" if rows were only added."""
    if not retracted and not corrected:
        return ""
    signs = (("+", added), ("-", retracted), ("~", corrected))
    return " ".join(f"{sign}{count:,}" for sign, count in signs if count)


class Pull(JobRequest[PullResult], frozen=True, tag="pull"):
    """Pull new data into a dataset.

    A root dataset polls its source until there are no more data. A derivative dataset transforms the new
    rows of its inputs. A dataset with a pull remote is synchronized from that remote instead.

    Attributes:
        dataset: id of the dataset; for one which is not in the workspace yet, its URL.
        after: ids of datasets. The job starts after earlier jobs of these datasets have ended.
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
        branch: the branch that receives the data, or "" for the head.
        remote_branch: the branch of the remote to pull, or "" for its head. A missing local branch is
            created.
        tag: the tag of the remote to pull as a tag, or "". A new dataset then ends at the tagged version.
        inputs: the branch that the query of a derivative dataset reads of the inputs that have it, or "" for
            their heads. It requires ``branch``.
        on_warning: ``fail``: rows and transactions with warnings are not committed, and the job fails.
        crate: the location in a crate that ``url`` was unpacked from, or "". It is the origin of a new
            dataset, and it is not recorded as a remote.
    """

    repeatable = True

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
    inputs: str = ""
    on_warning: OnWarning = "continue"
    tag: str = ""
    crate: str = ""

    @classmethod
    def of_new_dataset(cls, url: str, name: str | None) -> Pull:
        """Return the request that pulls a dataset which is not in the workspace yet, and names it."""
        return cls(dataset=url, url=url, alias=name)

    @classmethod
    def of_known_dataset(cls, dataset: str, remotes: Sequence[str], upstream: Iterable[str]) -> Pull:
        """Return the request that pulls a dataset of the workspace.

        Args:
            dataset: its id.
            remotes: its pull remotes. The first one is pulled.
            upstream: ids of all upstream datasets. Without a remote, their jobs run first.
        """
        if remotes:
            return cls(dataset=dataset, url=remotes[0])
        return cls(dataset=dataset, after=[other for other in upstream if other != dataset])

    @property
    def crate_path(self) -> Path:
        """The path of the crate that ``crate`` names."""
        return _path_of(self.crate)

    @property
    def needs_spark(self) -> bool:
        return self.url is None

    @property
    def is_transfer(self) -> bool:
        return self.url is not None

    def run(self, context: JobContext, reporter: Reporter) -> PullResult:
        return _Pull(self, context, reporter).run()

    @classmethod
    def summarize(cls, result: PullResult) -> JobSummary:
        return result.summary

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        if self.crate:
            return ["pull", str(self.crate_path)]
        if self.alias is not None and self.url is not None:
            tag = ["--tag", self.tag] if self.tag else []
            return ["pull", "--from", self.url, "--as", self.alias, *tag]
        options = {
            "--force": self.force,
            "--strict": self.strict,
            "--fetch-uncacheable": self.fetch_uncacheable,
            "--reset-on-divergence": self.reset_on_divergence,
            "--rederive": self.rederive,
        }
        arguments = [option for option, is_set in options.items() if is_set]
        arguments += ["--from", self.url] if self.url else []
        arguments += branch_option(self.branch)
        arguments += ["--inputs", self.inputs] if self.inputs else []
        arguments += ["--remote-branch", self.remote_branch] if self.remote_branch else []
        arguments += ["--tag", self.tag] if self.tag else []
        if self.set_watermark is not None:
            arguments += ["--set-watermark", self.set_watermark]
        return ["pull", name_of(self.dataset), *arguments]


class _Pull:
    """A running pull."""

    def __init__(self, request: Pull, context: JobContext, reporter: Reporter) -> None:
        self._request = request
        self._context = context
        self._workspace = context.workspace
        self._reporter = reporter

    def run(self) -> PullResult:
        request = self._request
        if request.crate:
            names = {request.dataset, request.alias}
            entries = self._workspace.datasets()
            entry = next((entry for entry in entries if names & {str(entry.id), str(entry.alias)}), None)
            with self._unpacked() as url:
                return self._synchronize(entry, url)
        if request.url is not None and request.url == request.dataset:  # a new dataset, perhaps
            return self._synchronize(None, request.url)
        entry = self._workspace.resolve(request.dataset)
        if (url := request.url or _pull_remote(self._workspace, entry)) is not None:
            if request.rederive:
                raise UsageError(
                    f"{entry.alias} is pulled from a remote: only its author can derive it again",
                    hint=f"compare it with its query: odf verify --recompute {entry.alias}",
                )
            return self._synchronize(entry, url)
        if request.remote_branch or request.tag:
            what = "tags" if request.tag else "branches"
            raise UsageError(
                f"{entry.alias} has no remote to pull {what} from", hint="select one: --from REPO|URL"
            )
        entry = entry.on_branch(request.branch, moves=True)
        if request.inputs:
            entry = self._with_inputs(entry)
        if request.set_watermark is None:
            # Checked again by the pull; here it fails before Spark starts.
            trust.Trust(self._workspace).require_trust(entry)
        if entry.dataset.state().kind is DatasetKind.Derivative:
            return self._transform(entry)
        if request.rederive:
            raise UsageError(
                f"{entry.alias} is a root dataset: only derivative datasets can be derived again"
            )
        return self._poll(entry)

    @contextmanager
    def _unpacked(self) -> Iterator[str]:
        """Yield the URL of the dataset of a crate. A repeated job unpacks and checks the archive again.

        Raises:
            NotFound: the crate was removed, or has no such dataset.
            BadData: the crate is damaged.
        """
        request, path = self._request, self._request.crate_path
        if request.url is not None and _path_of(request.url).exists():
            yield request.url
            return
        name = unquote(urlsplit(request.crate).fragment)
        with crate_data.opened_crate(self._workspace, path, self._reporter) as packed:
            urls = [dataset.url for dataset in packed if dataset.name == name]
            if not urls:
                raise NotFound(f"the crate has no dataset {name}", where=str(path), hint=CRATE_HINT)
            yield urls[0]

    def _with_inputs(self, entry: DatasetEntry) -> DatasetEntry:
        """Return a branch whose new transactions read the branch of the inputs that have it.

        Raises:
            UsageError: without a branch, the head would refer to blocks that the heads of the inputs lack.
            NotFound: no input has the branch.
        """
        branch, inputs = self._request.inputs, entry.dataset.state().inputs()
        if entry.dataset.reference == HEAD:
            raise UsageError("a head cannot be derived from branches", hint="add --branch BRANCH")
        datasets = [known.dataset for known in self._workspace.datasets() if known.id in inputs]
        for dataset in datasets:
            dataset.refresh_branches()
        if inputs and not any(branch in dataset.branch_names() for dataset in datasets):
            hint = f"odf branch INPUT {branch} creates it"
            raise NotFound(f"no input of {entry.alias} has a branch '{branch}'", hint=hint)
        return msgspec.structs.replace(entry, inputs=branch)

    def _poll(self, entry: DatasetEntry) -> PullResult:
        request, runtime = self._request, self._context.host.spark(self._reporter)
        set_watermark = request.set_watermark
        with engine_router.engines_for(self._workspace, entry, lambda: runtime) as engines:
            options = polling_source.PullOptions(
                fetch_uncacheable=request.fetch_uncacheable,
                set_watermark=None if set_watermark is None else Timestamp.parse(set_watermark),
                force=request.force,
                strict=request.strict,
                environment=self._context.environment,
                find_engine=engines.find_external,
            )
            update = polling_source.pull(self._workspace, entry, runtime, self._reporter, options)
        return pull_result(entry, update, self._reporter)

    def _transform(self, entry: DatasetEntry) -> PullResult:
        request, workspace, reporter = self._request, self._workspace, self._reporter
        if request.set_watermark is not None:
            text = f"watermark {request.set_watermark} is ignored: {_DERIVATIVE_WATERMARK}"
            reporter.warn(text, "ignored-option")
        recorded_sync.warn_about_static(workspace, entry, _DERIVATIVE_WATERMARK, reporter)
        run = derive_run.transform_or_reset if request.reset_on_divergence else derive_run.transform
        run = derive_run.rederive if request.rederive else run
        start = partial(self._context.host.spark, reporter)
        with engine_router.engines_for(workspace, entry, start) as engine:
            if request.force or request.rebuild:
                rebuild.rebuild_slices(workspace, entry, engine, reporter)
            if request.rebuild:
                state = entry.dataset.state()
                return pull_result(entry, chain_state.ChainUpdate.from_states(state, state), reporter)
            session = partial(self._context.session, reporter)
            result = pull_result(entry, run(workspace, entry, engine, reporter, session), reporter)
        if entry.dataset.reference != HEAD:
            return result
        summaries = {summary.id: summary for summary in workspace.summaries()}
        waiting = dataset_summary.find_waiting(summaries[entry.id], summaries)
        if waiting is None:
            return result
        reporter.log(waiting.text)
        return msgspec.structs.replace(result, waiting=waiting)

    def _synchronize(self, entry: DatasetEntry | None, url: str) -> PullResult:
        request, url = self._request, normalize_url(url)
        if request.set_watermark is not None:
            raise UsageError(
                f"the watermark cannot be set: the dataset is pulled from {url}",
                hint=f"run odf pull --from {url}",
            )
        pull = recorded_sync.RemotePull(
            url,
            request.alias,
            request.branch,
            request.remote_branch,
            request.force,
            request.tag,
            request.crate,
        )
        entry, pulled = recorded_sync.pull_from_remote(self._workspace, entry, pull, self._reporter)
        appended = 0 if pulled.new_head == pulled.old_head else pulled.blocks  # else blocks were restored
        return PullResult(
            name=str(entry.alias),
            status=pulled.status,
            old_head=text_or_none(pulled.old_head),
            new_head=text_or_none(pulled.new_head),
            blocks=pulled.blocks,
            records=pulled.records,
            url=request.crate or url,
            label=remotes.Remotes(self._workspace.odf).display_name(request.crate or url),
            bytes=pulled.bytes,
            ahead=pulled.relation.ours,
            branch=request.branch or request.tag or UNSET,
            **count_changes(entry.dataset, appended, self._reporter),
        )


def _path_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _pull_remote(workspace: Workspace, entry: DatasetEntry) -> str | None:
    """Return the pull remote of a dataset, or None if it has none.

    Raises:
        UsageError: it has several pull remotes.
    """
    known = remotes.Remotes(workspace.odf).get(entry.id).pull
    if len(known) > 1:
        urls = ", ".join(known)
        raise UsageError(f"{entry.alias} has several pull remotes: {urls}", hint="select one: --from URL")
    return known[0] if known else None


def pull_result(
    entry: DatasetEntry, update: ChainUpdate, reporter: Reporter, already_ingested: int = 0
) -> PullResult:
    """Return the result of a job that appended blocks to a dataset."""
    return PullResult(
        name=str(entry.alias),
        status=update.status,
        old_head=text_or_none(update.old_head),
        new_head=text_or_none(update.new_head),
        blocks=update.blocks,
        records=update.records,
        already_ingested=already_ingested or UNSET,
        repeated=update.repeated or UNSET,
        late=dataset_folders.count_late(entry.dataset, update.blocks) or UNSET,
        rejected=dataset_folders.count_rejected(entry.dataset, update.blocks) or UNSET,
        branch=UNSET if entry.dataset.reference == HEAD else entry.dataset.reference,
        **count_changes(entry.dataset, update.blocks, reporter),
    )


def count_changes(dataset: Dataset, blocks: int, reporter: Reporter) -> ChangeCounts:
    """Return the numbers of rows of the newest blocks by operation: the fields of a result that are not 0.

    The blocks are committed: if a slice cannot be read, a warning is logged and the result is empty.
    """
    if blocks <= 0:
        return {}
    state = dataset.state()
    first = state.sequence_number - blocks + 1
    try:
        newest = [row for row in dataset.slices() if row.sequence_number >= first]
        paths = dataset.slice_paths(newest, reporter)
        counts = operation_counts.count_operations(paths, state.vocabulary.operation_type_column)
    except OdfError as error:
        reporter.log(f"retractions and corrections are not counted: {error}", "warning")
        return {}
    changes = ChangeCounts()
    if counts.added:
        changes["added"] = counts.added
    if counts.retracted:
        changes["retracted"] = counts.retracted
    if counts.corrected:
        changes["corrected"] = counts.corrected
    return changes
