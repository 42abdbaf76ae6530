"""Synchronizes datasets of a workspace with remotes, and records the state of the remotes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.references import create_branch, create_tag, delete_branch
from odf_engine.errors import AlreadyExists, Conflict, NotFound, OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.net.urls import normalize_url
from odf_engine.storage.refs import HEAD, TAG_PREFIX, is_branch_name
from odf_engine.sync.history import HistoriesDiverged, Relation, compare, walk_back
from odf_engine.sync.pull import ChainPull, DatasetAlreadyHere, clone_dataset, pull_dataset
from odf_engine.sync.push import ChainPush
from odf_engine.sync.push import push as push_chain
from odf_engine.sync.remotes.base import RemoteDataset
from odf_engine.sync.remotes.folder_remote import FolderRemote, FolderRepository, folder_of
from odf_engine.sync.remotes.repository_index import INDEX
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Kind, Remotes, RemoteStatus
from odf_engine.workspace.workspace import Workspace


@dataclass(frozen=True)
class RemotePull:
    """What to pull from a remote.

    Attributes:
        url: the remote.
        alias: the name of a dataset that is not in the workspace yet.
        branch: the branch that receives the blocks, or "" for the head.
        remote_branch: the branch of the remote, or "" for its head. A missing local branch is created.
        force: replace a diverged history.
        tag: the tag of the remote to pull as a tag, or "". A new dataset then ends at the tagged version.
        crate: the location in a crate that ``url`` was unpacked from, or "". The URL is then not recorded.
    """

    url: str
    alias: str | None = None
    branch: str = ""
    remote_branch: str = ""
    force: bool = False
    tag: str = ""
    crate: str = ""

    @property
    def reference(self) -> str:
        """The reference of the remote that is read."""
        return f"{TAG_PREFIX}{self.tag}" if self.tag else self.remote_branch or HEAD


def pull_from_remote(
    workspace: Workspace, entry: DatasetEntry | None, pull: RemotePull, reporter: Reporter
) -> tuple[DatasetEntry, ChainPull]:
    """Pull new blocks from a remote into a dataset, or into a new one without ``entry``.

    A dataset that is already in the workspace is updated instead of cloned.

    Returns:
        The dataset, or its tag, and the blocks that were appended.
    """
    if pull.tag and not is_branch_name(pull.tag):
        raise UsageError(f"'{pull.tag}' is not a valid tag name", hint="see odf help branches")
    remotes = Remotes(workspace.odf)
    existing = {known.id for known in workspace.datasets()}
    entry = entry or _find_dataset(workspace, remotes.find_by_url(pull.url))
    if entry is not None:
        entry.dataset.refresh_branches()
        if not pull.tag and (not pull.remote_branch or pull.branch in entry.dataset.branch_names()):
            entry = entry.on_branch(pull.branch, moves=True)
        warn_about_static(
            workspace,
            entry,
            f"the dataset is pulled from {pull.url}, so its watermark is set there (odf repo alias remove"
            f" {entry.alias} detaches it)",
            reporter,
        )
    elif pull.branch:
        raise UsageError("a new dataset has no branches", hint="pull it without --branch first")
    reporter.log(f"pulling from {pull.crate or pull.url}")
    with opened_remote(workspace, pull.url, reporter, pull.reference) as remote:
        if pull.crate and isinstance(remote, FolderRemote):
            remote.url = pull.crate
        if pull.reference != HEAD and remote.head() is None:
            what = f"tag '{pull.tag}'" if pull.tag else f"branch '{pull.remote_branch}'"
            hint = "to pull a branch, use --remote-branch" if pull.tag else None
            raise NotFound(f"{what} not found at the remote", where=pull.url, hint=hint)
        if entry is not None and pull.branch and entry.dataset.reference == HEAD:
            entry = _create_branch(entry, pull.branch, remote, reporter)
        if entry is None:
            entry, pulled = _pull_new(workspace, remote, pull, reporter)
        elif pull.tag:
            entry, pulled = _pull_tag(workspace, entry, remote, pull.tag, reporter)
        else:
            pulled = _pull_into(workspace, entry, remote, pull, reporter)
        # A dataset of this workspace is still polled or transformed here, and one with a pull remote keeps
        # that remote. Only for other datasets the URL becomes the pull remote.
        keeps_source = entry.id in existing and (
            workspace.keys.has_key(entry.id) or remotes.get(entry.id).pull
        )
        kind: Kind | None = None if keeps_source else "pull"
        if not pull.crate:
            _record_status(workspace, entry, pull.url, pulled.relation, pulled.their_head, kind)
    if pulled.status == "updated":
        blocks, rows = count_of(pulled.blocks, "block"), count_of(pulled.records, "row")
        reporter.log(f"{blocks}, {rows}, {count_of(pulled.bytes, 'byte')}")
    return entry, pulled


def _create_branch(entry: DatasetEntry, name: str, remote: RemoteDataset, reporter: Reporter) -> DatasetEntry:
    """Create a branch at the newest block that a remote chain has in common with the dataset.

    Raises:
        Conflict: it is another dataset.
    """
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
    workspace: Workspace, remote: RemoteDataset, pull: RemotePull, reporter: Reporter
) -> tuple[DatasetEntry, ChainPull]:
    if pull.alias is None:
        raise UsageError("missing name for a new dataset", hint="set the name: --as NAME")
    alias = DatasetAlias.parse(pull.alias)
    try:
        entry, pulled = clone_dataset(
            workspace, alias, remote, reporter, parallel=workspace.config.sync.parallel
        )
        if pull.tag:
            create_tag(entry.dataset, pull.tag, entry.dataset.state().head)
        return entry, pulled
    except DatasetAlreadyHere as error:
        entry = _find_dataset(workspace, error.dataset)
        if entry is None:
            raise
    reporter.log(f"already in this workspace: {entry.alias}")
    if pull.tag:
        return _pull_tag(workspace, entry, remote, pull.tag, reporter)
    return entry, _pull_into(workspace, entry, remote, pull, reporter)


def _pull_into(
    workspace: Workspace, entry: DatasetEntry, remote: RemoteDataset, pull: RemotePull, reporter: Reporter
) -> ChainPull:
    with _divergence_recorded(workspace, entry, remote):
        parallel = workspace.config.sync.parallel
        return pull_dataset(entry, remote, reporter, force=pull.force, parallel=parallel)


def _pull_tag(
    workspace: Workspace, entry: DatasetEntry, remote: RemoteDataset, name: str, reporter: Reporter
) -> tuple[DatasetEntry, ChainPull]:
    """Create the tag of a remote, with its blocks and data. The head does not move.

    Raises:
        AlreadyExists: there is a branch with this name.
        Conflict: the local tag points to a different version, or the remote is a different dataset.
    """
    dataset, parallel = entry.dataset, workspace.config.sync.parallel
    if name in dataset.tag_names():
        tag = entry.on_branch(name)
        if tag.dataset.head() != remote.head():
            hint = f"to replace it, run odf tag {entry.alias} -d {name}, then pull it again"
            raise Conflict(f"tag '{name}' points to a different version here", where=remote.url, hint=hint)
        return tag, pull_dataset(tag, remote, reporter, force=False, parallel=parallel)
    if name in dataset.branch_names():
        raise AlreadyExists(f"'{name}' is a branch here", hint=f"odf branch {entry.alias} -m {name} OTHER")
    # A tag cannot move: a branch receives the blocks. It remains if the process is killed.
    receiving = f"pulling-{name}"
    if receiving in dataset.branch_names():
        delete_branch(dataset, receiving, force=True)
    branch = _create_branch(entry, receiving, remote, reporter)
    try:
        pulled = pull_dataset(branch, remote, reporter, force=False, parallel=parallel)
        create_tag(dataset, name, branch.dataset.state().head)
    finally:
        delete_branch(dataset, receiving, force=True)
    return entry.on_branch(name), pulled


def _find_dataset(workspace: Workspace, dataset: DatasetId | None) -> DatasetEntry | None:
    if dataset is not None:
        try:
            return workspace.resolve(str(dataset))
        except NotFound:
            pass  # deleted; its remote-tracking state is still stored
    return None


def push_to_remote(
    workspace: Workspace, entry: DatasetEntry, url: str, reporter: Reporter, *, force: bool
) -> ChainPush:
    """Push a dataset or its branch to a remote; ``force`` replaces a diverged history."""
    reporter.log(f"pushing to {url}")
    with (
        opened_remote(workspace, url, reporter, entry.dataset.reference) as remote,
        _divergence_recorded(workspace, entry, remote),
    ):
        parallel = workspace.config.sync.parallel
        pushed = push_chain(entry, remote, reporter, force=force, parallel=parallel)
        _record_status(workspace, entry, url, pushed.relation, pushed.new_head, "push")
        if isinstance(remote, FolderRemote) and pushed.new_head == entry.dataset.head():
            _update_index(workspace, entry, remote, reporter)
    if pushed.status == "updated":
        blocks, objects = count_of(pushed.blocks, "block"), count_of(pushed.objects, "object")
        reporter.log(f"{blocks}, {objects}, {count_of(pushed.bytes, 'byte')}")
    return pushed


def _update_index(
    workspace: Workspace, entry: DatasetEntry, remote: FolderRemote, reporter: Reporter
) -> None:
    """Write a pushed dataset to the index of its repository, if it is in one."""
    if entry.dataset.reference != HEAD:
        return
    named = [
        folder_of(repo.url) for repo in Remotes(workspace.odf).repositories() if repo.url.startswith("file:")
    ]
    for folder in (remote.folder.parent, remote.folder.parent.parent):
        if folder in named or (folder / INDEX).is_file():
            name = remote.folder.relative_to(folder).as_posix()
            try:
                FolderRepository(f"{folder.as_uri()}/").update_index(name, entry.dataset.state())
            except (OSError, OdfError) as error:
                reporter.warn(
                    f"pushed, but the index of the repository was not updated: {error}; odf search may show "
                    "older data",
                    "index-not-written",
                )
            return


def compare_with_remote(
    workspace: Workspace, entry: DatasetEntry, url: str, reporter: Reporter
) -> RemoteStatus:
    """Compare a dataset with a remote."""
    with opened_remote(workspace, normalize_url(url), reporter) as remote:
        relation = compare(entry.dataset, remote, reporter)
        return _record_status(workspace, entry, remote.url, relation, remote.head())


def warn_about_static(workspace: Workspace, entry: DatasetEntry, reason: str, reporter: Reporter) -> None:
    """Log a warning if the setting ``watermark.static`` of a dataset has no effect, and why."""
    if workspace.config.watermark.lists_as_static(str(entry.alias), str(entry.id)):
        reporter.warn(f"watermark.static.{entry.alias} has no effect: {reason}", "ignored-option")


def remote_access(workspace: Workspace, reporter: Reporter) -> RemoteAccess:
    """Return the settings, credentials and reporter that access to remotes needs."""
    return RemoteAccess(workspace.config, Credentials(workspace.odf), reporter)


@contextmanager
def opened_remote(
    workspace: Workspace, url: str, reporter: Reporter, reference: str = HEAD
) -> Iterator[RemoteDataset]:
    """Open a remote, and close it at the end."""
    remote = open_remote(url, remote_access(workspace, reporter), reference)
    try:
        yield remote
    finally:
        remote.close()


@contextmanager
def _divergence_recorded(workspace: Workspace, entry: DatasetEntry, remote: RemoteDataset) -> Iterator[None]:
    """Record the relation of two diverged histories, when the divergence fails the job."""
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
    if entry.dataset.reference == HEAD:  # a branch has its own relation
        Remotes(workspace.odf).record_status(entry.id, status, kind)
    return status


def _text(value: object) -> str | None:
    return None if value is None else str(value)
