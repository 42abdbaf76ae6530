"""Pulls a remote dataset into an existing or a new dataset."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import AlreadyExists, Conflict, MalformedBlock, NotFound, NotSynced
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import Seed
from odf_engine.mirror.catalog import ORIGIN_FILE
from odf_engine.sync.chain_download import (
    DownloadOptions,
    DownloadTotals,
    download_chain,
    download_proof,
    restore,
)
from odf_engine.sync.check_reports import download_reports
from odf_engine.sync.compaction_records import (
    OtherChain,
    download_records,
    find_replacing_records,
    set_newest_record,
)
from odf_engine.sync.history import HistoriesDiverged, Relation, RemoteBlock
from odf_engine.sync.remotes.base import RemoteDataset
from odf_engine.workspace.dataset_folders import incoming_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import record_origin
from odf_engine.workspace.workspace import Workspace


class ChainPull(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a pull.

    Attributes:
        status: ``updated`` or ``up-to-date``; the latter also if the local dataset is ahead.
        old_head, new_head: heads of the local dataset.
        their_head: head of the remote one.
        blocks, records: number of downloaded blocks and their rows.
        bytes: downloaded bytes of slices and checkpoints.
        relation: relation after the pull.
    """

    status: Literal["updated", "up-to-date"]
    old_head: Multihash | None
    new_head: Multihash | None
    their_head: Multihash | None
    blocks: int
    records: int
    bytes: int = 0
    relation: Relation


class DatasetAlreadyHere(AlreadyExists):
    """The remote dataset is in the workspace under another name; ``dataset`` is its id."""

    dataset: DatasetId | None = None


def pull_dataset(
    entry: DatasetEntry, remote: RemoteDataset, reporter: Reporter, *, force: bool, parallel: int
) -> ChainPull:
    """Pull the new blocks of a remote.

    With ``force`` the dataset becomes equal to the remote one, even if that has fewer blocks. The reference
    ``refs/before-pull-…``, named after the end of its hash, stores the old head. If the remote has nothing
    new, ``force`` checks the local objects and downloads damaged or missing ones.

    A remote that was compacted is followed without ``force`` if its records show that both chains have the
    same rows, and all local blocks are in the chain before the compaction.

    Raises:
        MalformedBlock: a local block is damaged, without ``force``.
        HistoriesDiverged: both have changed since their common block, without ``force``.
        Conflict: it is another dataset; or another process has committed.
        BadData, ChainRuleViolated: the source is damaged.
        NotFound, SourceUnavailable, Cancelled: the dataset is unchanged; complete objects are stored for the
            next attempt.
        NotSynced: the dataset is updated, but a power failure may revert it.
    """
    reporter.phase("compare")
    dataset, remote_head = entry.dataset, _require_head(remote)
    local_head = dataset.head()
    restored_totals = DownloadTotals(0, 0, 0)
    if local_head is not None and _needs_restoring(dataset, local_head, remote_head, force):
        check_dataset = partial(_check_same, entry.id, remote.url)
        restored_totals = restore(
            dataset, remote, remote_head, reporter, parallel=parallel, check_block=check_dataset
        )
    if local_head is not None and (
        local_head == remote_head or (not force and dataset.contains_block(remote_head))
    ):
        download_proof(dataset, remote, remote_head, reporter)
        return _up_to_date_result(dataset, remote_head, restored_totals)

    def record_origin_first() -> None:  # before the blocks: no untrusted query may run in between
        if not (dataset.folder / ORIGIN_FILE).exists():
            record_origin(entry, remote.url)

    options = DownloadOptions(parallel, force, first=record_origin_first)
    try:
        totals = download_chain(dataset, remote, remote_head, reporter, options)
    except HistoriesDiverged as diverged:
        records = [] if force else find_replacing_records(dataset, remote, reporter)
        if not records:
            raise
        reporter.log("the dataset was compacted at the remote")
        try:
            options = replace(options, replacing=records)
            totals = download_chain(dataset, remote, remote_head, reporter, options)
        except OtherChain:
            raise diverged from None
        set_newest_record(dataset, records, reporter)
    download_proof(dataset, remote, remote_head, reporter)
    download_reports(dataset, remote, reporter, blocks=totals.blocks, parallel=parallel)
    return _updated_result(local_head, remote_head, totals)


def _needs_restoring(dataset: Dataset, local_head: Multihash, remote_head: Multihash, force: bool) -> bool:
    """Return whether local objects must be checked, and downloaded again if they are damaged.

    Raises:
        MalformedBlock, NotFound: a local block is damaged or missing, without ``force``.
    """
    try:
        dataset.state()
        is_contained = dataset.contains_block(remote_head)
        for block in (local_head, remote_head) if is_contained else (local_head,):
            dataset.block(block)  # the index may hide a damaged block file
    except (MalformedBlock, NotFound) as error:
        if not force:
            error.hint = "use --force to download damaged blocks again"
            raise
        return True
    return is_contained and force


def _check_same(owner: DatasetId, url: str, block: RemoteBlock) -> None:
    """Check the first block's dataset id.

    Raises:
        Conflict: it is the block of another dataset.
    """
    event = block.block.event
    if isinstance(event, Seed) and event.dataset_id != owner:
        raise Conflict(f"a different dataset: {event.dataset_id}, the local one is {owner}", where=url)


def clone_dataset(
    workspace: Workspace, alias: DatasetAlias, remote: RemoteDataset, reporter: Reporter, *, parallel: int
) -> tuple[DatasetEntry, ChainPull]:
    """Create a local dataset from a remote one; it appears in the workspace when it is complete.

    Raises:
        AlreadyExists: the name is in use.
        DatasetAlreadyHere: the dataset is in the workspace under another name.
        OdfError: as :func:`pull_dataset`.
    """
    workspace.check_importable(alias)
    reporter.phase("compare")
    remote_head = _require_head(remote)
    with incoming_folder(workspace.odf, remote.url) as folder:
        try:
            pulled = _pull_new(workspace, folder, remote, remote_head, reporter, parallel)
            return _add_to_workspace(workspace, folder, alias, remote), pulled
        except AlreadyExists:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _add_to_workspace(
    workspace: Workspace, folder: Path, alias: DatasetAlias, remote: RemoteDataset
) -> DatasetEntry:
    try:
        return workspace.import_dataset(folder, alias, remote.url)
    except AlreadyExists:  # another process may have pulled it, from another URL
        _check_absent(workspace, Dataset(folder, workspace.index).state().dataset_id)
        raise


def _pull_new(
    workspace: Workspace,
    folder: Path,
    remote: RemoteDataset,
    remote_head: Multihash,
    reporter: Reporter,
    parallel: int,
) -> ChainPull:
    dataset = Dataset(folder, workspace.index)
    options = DownloadOptions(parallel, check_block=_absence_check(workspace))
    if dataset.head() == remote_head:  # an earlier attempt failed only at the name
        totals = restore(dataset, remote, remote_head, reporter, parallel=parallel)
    else:
        try:
            totals = download_chain(dataset, remote, remote_head, reporter, options)
        except NotSynced as error:  # the dataset is not visible yet
            raise error.as_failure() from error
        except Conflict:
            if dataset.head() is None:
                raise
            # The source was reset after an earlier attempt had failed at the name: start again.
            shutil.rmtree(folder)
            folder.mkdir()
            totals = download_chain(dataset, remote, remote_head, reporter, options)
    state = dataset.state()
    _check_absent(workspace, state.dataset_id)
    download_proof(dataset, remote, remote_head, reporter)
    download_records(dataset, remote, reporter)
    download_reports(dataset, remote, reporter, blocks=state.blocks, parallel=parallel)
    return _updated_result(None, remote_head, DownloadTotals(state.blocks, state.records, totals.bytes))


def _require_head(remote: RemoteDataset) -> Multihash:
    head = remote.head()
    if head is None:
        raise NotFound("no dataset found", where=remote.url, hint="check the URL")
    return head


def _up_to_date_result(dataset: Dataset, remote_head: Multihash, restored: DownloadTotals) -> ChainPull:
    state = dataset.state()
    ahead = state.sequence_number - dataset.block(remote_head).block.sequence_number
    return ChainPull(
        status="updated" if restored.blocks or restored.bytes else "up-to-date",
        old_head=state.head,
        new_head=state.head,
        their_head=remote_head,
        **restored._asdict(),
        relation=Relation("ahead" if ahead else "equal", ahead, 0, remote_head),
    )


def _updated_result(
    local_head: Multihash | None, remote_head: Multihash, totals: DownloadTotals
) -> ChainPull:
    relation = Relation("equal", 0, 0, remote_head)
    return ChainPull(
        status="updated",
        old_head=local_head,
        new_head=remote_head,
        their_head=remote_head,
        relation=relation,
        **totals._asdict(),
    )


def _absence_check(workspace: Workspace) -> Callable[[RemoteBlock], None]:
    """Return a check that detects, as early as possible, that a dataset is in the workspace already."""

    def check(block: RemoteBlock) -> None:
        event = block.block.event
        if isinstance(event, Seed):
            _check_absent(workspace, event.dataset_id)
        elif workspace.index.position(block.hash) is not None:
            for entry in workspace.datasets():
                if entry.dataset.head() is not None and entry.dataset.contains_block(block.hash):
                    _check_absent(workspace, entry.id)

    return check


def _check_absent(workspace: Workspace, dataset_id: DatasetId) -> None:
    for entry in workspace.datasets():
        if entry.id == dataset_id:
            error = DatasetAlreadyHere(
                f"the dataset already exists in this workspace, as {entry.alias}",
                hint=f"update it: odf pull {entry.alias}",
            )
            error.dataset = dataset_id
            raise error
