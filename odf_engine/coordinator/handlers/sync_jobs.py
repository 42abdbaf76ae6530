"""Pull, push, compare and search jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET
from msgspec.structs import asdict

from odf_engine.coordinator.handlers.row_counts import count_changes
from odf_engine.coordinator.protocol import Compare, Pull, Push, Search
from odf_engine.coordinator.results import (
    CompareResult,
    FoundDataset,
    PullResult,
    PushResult,
    RemoteProblem,
    RemoteRelation,
    RepositoryProblem,
    SearchResult,
)
from odf_engine.errors import Cancelled, Conflict, NotFound, OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.net.urls import normalize_url
from odf_engine.progress import Reporter, count_of
from odf_engine.storage.refs import HEAD
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Kind, Remotes, RemoteStatus
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.coordinator.job_queue import JobContext
    from odf_engine.sync.history import Relation
    from odf_engine.sync.pull import PullResult as ChainPull
    from odf_engine.sync.remotes.base import RemoteDataset, RepositoryEntry

MAX_FOUND: Final = 10_000
"""Maximum number of datasets in a result: all of them are held in memory and stored in the job log."""


# --- Pull ------------------------------------------------------------------------------------------


def pull_url(workspace: Workspace, entry: DatasetEntry, url: str | None) -> str | None:
    """Return the remote to pull a dataset from: ``url``, else its pull remote; None if it has none.

    Raises:
        UsageError: it has several pull remotes.
    """
    if url is not None:
        return url
    known = Remotes(workspace.odf).get(entry.id).pull
    if len(known) > 1:
        where = ", ".join(known)
        raise UsageError(f"{entry.alias} has several pull remotes: {where}", hint="select one: --from URL")
    return known[0] if known else None


def warn_about_upstream(workspace: Workspace, entry: DatasetEntry, reporter: Reporter) -> None:
    """Log a warning for pull remotes that are not push remotes: blocks appended here diverge from them."""
    known = Remotes(workspace.odf).get(entry.id)
    for url in known.pull:
        if url not in known.push:
            hint = f"to detach it, run odf repo alias remove {entry.alias}"
            reporter.log(f"blocks appended here diverge from the remote {url} ({hint})", "warning")


def warn_about_static(workspace: Workspace, entry: DatasetEntry, reason: str, reporter: Reporter) -> None:
    """Log a warning if the setting ``watermark.static`` of a dataset has no effect, and why."""
    if workspace.config.watermark.lists_as_static(str(entry.alias), str(entry.id)):
        reporter.warn(f"watermark.static.{entry.alias} has no effect: {reason}", "ignored-option")


def pull(
    workspace: Workspace, entry: DatasetEntry | None, url: str, request: Pull, reporter: Reporter
) -> PullResult:
    """Pull new blocks from a URL into ``entry``, or into a new dataset.

    A dataset that is already in the workspace is updated instead of cloned.
    """
    url = normalize_url(url)
    if request.set_watermark is not None:
        raise UsageError(
            f"the watermark cannot be set: the dataset is pulled from {url}",
            hint=f"run odf pull --from {url}",
        )
    remotes = Remotes(workspace.odf)
    existing = {each.id for each in workspace.datasets()}
    entry = entry or _find_dataset(workspace, remotes.find_by_url(url))
    if entry is not None:
        entry.dataset.refresh_branches()
        names = entry.dataset.branch_names()
        if not request.remote_branch or request.branch in names:
            entry = entry.on_branch(request.branch)
        warn_about_static(
            workspace,
            entry,
            f"the dataset is pulled from {url}, so its watermark is set there (odf repo alias remove"
            f" {entry.alias} detaches it)",
            reporter,
        )
    elif request.branch:
        raise UsageError("a new dataset has no branches", hint="pull it without --branch first")
    reporter.log(f"pulling from {url}")
    with _open_remote(workspace, url, reporter, request.remote_branch or HEAD) as remote:
        if request.remote_branch and remote.head() is None:
            raise NotFound(f"branch '{request.remote_branch}' not found at the remote", where=url)
        if entry is not None and request.branch and entry.dataset.reference == HEAD:
            entry = _create_branch(entry, request.branch, remote, reporter)
        if entry is None:
            entry, pulled = _pull_new(workspace, remote, request, reporter)
        else:
            pulled = _pull_into(workspace, entry, remote, request, reporter)
        # A dataset of this workspace is still polled or transformed here, and one with a pull remote keeps
        # that remote. Only for other datasets the URL becomes the pull remote.
        keeps_source = entry.id in existing and (
            workspace.keys.has_key(entry.id) or remotes.get(entry.id).pull
        )
        kind: Kind | None = None if keeps_source else "pull"
        _record_status(workspace, entry, url, pulled.relation, pulled.their_head, kind)
    if pulled.status == "updated":
        blocks, rows = count_of(pulled.blocks, "block"), count_of(pulled.records, "row")
        reporter.log(f"{blocks}, {rows}, {count_of(pulled.bytes, 'byte')}")
    appended = 0 if pulled.new_head == pulled.old_head else pulled.blocks  # else blocks were restored
    return PullResult(
        name=str(entry.alias),
        status=pulled.status,
        old_head=_text(pulled.old_head),
        new_head=_text(pulled.new_head),
        blocks=pulled.blocks,
        records=pulled.records,
        url=url,
        label=remotes.display_name(url),
        bytes=pulled.bytes,
        ahead=pulled.relation.ours,
        branch=request.branch or UNSET,
        **count_changes(entry.dataset, appended, reporter),
    )


def _create_branch(entry: DatasetEntry, name: str, remote: RemoteDataset, reporter: Reporter) -> DatasetEntry:
    """Create a branch at the newest block that a remote chain has in common with the dataset.

    Raises:
        Conflict: it is another dataset.
    """
    from odf_engine.chain.references import create_branch
    from odf_engine.sync.history import walk_back

    reporter.phase("compare")
    dataset, start = entry.dataset, remote.head()
    if start is not None and not dataset.contains_block(start):
        for walked in walk_back(remote, start, dataset.contains_block, reporter):
            start = walked.block.prev_block_hash
    if start is None:
        raise Conflict(f"a different dataset than {entry.alias}", where=remote.url)
    create_branch(dataset, name, start)
    return entry.on_branch(name)


def _pull_new(
    workspace: Workspace, remote: RemoteDataset, request: Pull, reporter: Reporter
) -> tuple[DatasetEntry, ChainPull]:
    # Deferred in this module: a job loads only the modules of its own kind of synchronization.
    from odf_engine.sync.pull import DatasetAlreadyHere, clone_dataset

    if request.alias is None:
        raise UsageError("missing name for a new dataset", hint="set the name: --as NAME")
    alias = DatasetAlias.parse(request.alias)
    try:
        return clone_dataset(workspace, alias, remote, reporter, parallel=workspace.config.sync.parallel)
    except DatasetAlreadyHere as error:
        entry = _find_dataset(workspace, error.dataset)
        if entry is None:
            raise
    reporter.log(f"already in this workspace: {entry.alias}")
    return entry, _pull_into(workspace, entry, remote, request, reporter)


def _pull_into(
    workspace: Workspace, entry: DatasetEntry, remote: RemoteDataset, request: Pull, reporter: Reporter
) -> ChainPull:
    from odf_engine.sync.pull import pull_dataset

    with _divergence_recorded(workspace, entry, remote):
        parallel = workspace.config.sync.parallel
        return pull_dataset(entry, remote, reporter, force=request.force, parallel=parallel)


def _find_dataset(workspace: Workspace, dataset: DatasetId | None) -> DatasetEntry | None:
    if dataset is not None:
        try:
            return workspace.resolve(str(dataset))
        except NotFound:
            pass  # deleted; its remote-tracking state is still stored
    return None


# --- Push, compare, search -------------------------------------------------------------------------


def push(request: Push, context: JobContext, reporter: Reporter) -> PushResult:
    """Push a dataset to a remote."""
    from odf_engine.sync.push import push as push_to

    workspace = context.workspace
    entry = workspace.resolve(request.dataset).on_branch(request.branch)
    url = normalize_url(request.url)
    reporter.log(f"pushing to {url}")
    with (
        _open_remote(workspace, url, reporter, request.branch or HEAD) as remote,
        _divergence_recorded(workspace, entry, remote),
    ):
        parallel = workspace.config.sync.parallel
        pushed = push_to(entry, remote, reporter, force=request.force, parallel=parallel)
        _record_status(workspace, entry, url, pushed.relation, pushed.new_head, "push")
    if pushed.status == "updated":
        blocks, objects = count_of(pushed.blocks, "block"), count_of(pushed.objects, "object")
        reporter.log(f"{blocks}, {objects}, {count_of(pushed.bytes, 'byte')}")
    return PushResult(
        name=str(entry.alias),
        url=url,
        label=Remotes(workspace.odf).display_name(url),
        status=pushed.status,
        old_head=_text(pushed.old_head),
        new_head=_text(pushed.new_head),
        blocks=pushed.blocks,
        objects=pushed.objects,
        bytes=pushed.bytes,
        branch=request.branch or UNSET,
    )


def compare(request: Compare, context: JobContext, reporter: Reporter) -> CompareResult:
    """Compare a dataset with its remotes."""
    from odf_engine.sync.history import compare as compare_chains

    workspace = context.workspace
    entry = workspace.resolve(request.dataset)
    remotes = Remotes(workspace.odf)
    known = remotes.get(entry.id)
    seen: list[RemoteRelation] = []
    problems: list[RemoteProblem] = []
    for url in request.urls or dict.fromkeys([*known.pull, *known.push]):
        reporter.phase("compare")
        try:
            with _open_remote(workspace, normalize_url(url), reporter) as remote:
                relation = compare_chains(entry.dataset, remote, reporter)
                status = _record_status(workspace, entry, remote.url, relation, remote.head())
                seen.append(RemoteRelation(**asdict(status), label=remotes.display_name(status.url)))
        except Cancelled:
            raise
        except OdfError as error:
            reporter.log(f"{url}: {error.message}", "warning")
            problems.append(RemoteProblem(url, remotes.display_name(url), error.message))
    return CompareResult(str(entry.alias), seen, problems)


def search(request: Search, context: JobContext, reporter: Reporter) -> SearchResult:
    """Search datasets in repositories."""
    from odf_engine.sync import open_repository

    workspace = context.workspace
    remotes = Remotes(workspace.odf)
    repositories = [remotes.repository(name) for name in request.repositories] or remotes.repositories()
    words = request.text.casefold().split()
    found: list[FoundDataset] = []
    problems: list[RepositoryProblem] = []
    reporter.phase("search")
    for repo in repositories:
        try:
            repository = open_repository(repo.url, remote_access(workspace, reporter))
            try:
                for listed in repository.datasets():
                    reporter.raise_if_cancelled()
                    if len(found) < MAX_FOUND and _matches(listed, words):
                        found.append(FoundDataset(repo.name, *listed))
                        reporter.set_amounts(files=len(found))
            finally:
                repository.close()
        except Cancelled:
            raise
        except OdfError as error:
            reporter.log(f"{repo.name}: {error.message}", "warning")
            problems.append(RepositoryProblem(repo.name, error.message))
    if len(found) == MAX_FOUND:
        text = f"result truncated at {MAX_FOUND:,} datasets: use a more specific search text"
        reporter.warn(text, "truncated-result", MAX_FOUND)
    return SearchResult(found, problems)


def _matches(listed: RepositoryEntry, words: list[str]) -> bool:
    text = " ".join((listed.name, listed.id or "", listed.description, *listed.keywords)).casefold()
    return all(word in text for word in words)


# --- Remotes ---------------------------------------------------------------------------------------


def remote_access(workspace: Workspace, reporter: Reporter) -> RemoteAccess:
    """Return the settings, credentials and reporter that access to remotes needs."""
    return RemoteAccess(workspace.config, Credentials(workspace.odf), reporter)


@contextmanager
def _open_remote(
    workspace: Workspace, url: str, reporter: Reporter, reference: str = HEAD
) -> Iterator[RemoteDataset]:
    from odf_engine.sync import open_remote

    remote = open_remote(url, remote_access(workspace, reporter), reference)
    try:
        yield remote
    finally:
        remote.close()


@contextmanager
def _divergence_recorded(workspace: Workspace, entry: DatasetEntry, remote: RemoteDataset) -> Iterator[None]:
    """Record the relation of two diverged histories, when the divergence fails the job."""
    from odf_engine.sync.history import HistoriesDiverged

    try:
        yield
    except HistoriesDiverged as error:
        if error.relation is not None:
            _record_status(workspace, entry, remote.url, error.relation, remote.head())
        raise


def _record_status(
    workspace: Workspace,
    entry: DatasetEntry,
    url: str,
    relation: Relation,
    their_head: Any,
    kind: Kind | None = None,
) -> RemoteStatus:
    status = RemoteStatus(
        url=url,
        relation=relation.kind,
        ours=relation.ours,
        theirs=relation.theirs,
        common=_text(relation.common),
        our_head=_text(entry.dataset.head()),
        their_head=_text(their_head),
        at=str(Timestamp.now()),
    )
    if entry.dataset.reference == HEAD:  # the state of a branch is not that of the dataset
        Remotes(workspace.odf).record_status(entry.id, status, kind)
    return status


def _text(value: object) -> str | None:
    return None if value is None else str(value)
