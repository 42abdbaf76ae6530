"""Reads datasets, their remotes, and repositories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from odf_engine.api.model import DatasetDetail, DatasetRow, NamedUrl, Remote
from odf_engine.api.readers.dataset_detail import read_dataset_detail
from odf_engine.chain.block_search import block_numbers
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary, find_waiting, is_behind
from odf_engine.workspace.remotes import (
    REMOTE_KINDS,
    DatasetRemotes,
    Kind,
    Remotes,
    RemoteStatus,
    Repo,
    find_display_name,
    resolve_address,
)
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace


class WorkspaceEntries:
    """Finds the datasets of a workspace by id.

    Attributes:
        workspace: the workspace.
        trusts: the trust in datasets of other authors.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._trusts = Trust(workspace)
        self._entries: dict[str, DatasetEntry] = {}

    @property
    def folder(self) -> Path:
        """The folder of the workspace."""
        return self._workspace.folder

    @property
    def odf(self) -> Path:
        """The folder ``.odf`` with the files of the workspace."""
        return self._workspace.odf

    def entry(self, dataset: str) -> DatasetEntry:
        """Return a dataset by its id.

        ``ID@HASH`` is an earlier history with its last block, and ``ID@NAME`` a branch or a tag.

        Raises:
            NotFound: the workspace has no such dataset.
        """
        dataset, _, block = dataset.partition("@")
        entry = self._entries.get(dataset)
        if entry is None or not entry.dataset.folder.is_dir():
            self._entries = {
                str(dataset_entry.id): dataset_entry for dataset_entry in self._workspace.datasets()
            }
            entry = self._entries.get(dataset)
        if entry is None:
            raise NotFound("this dataset is not in the workspace")
        if block in entry.dataset.branch_names() or block in entry.dataset.tag_names():
            return entry.on_branch(block)
        if block:
            return replace(entry, dataset=entry.dataset.at(Multihash.parse(block)))
        return entry

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """Return the numbers of blocks by hash. Blocks that are not in the chain are skipped."""
        return block_numbers(self.entry(dataset).dataset, hashes)


class RemoteReader(WorkspaceEntries):
    """Reads and changes repositories and the remotes of datasets."""

    @property
    def remotes(self) -> Remotes:
        """The repositories, and the remotes of datasets."""
        return Remotes(self._workspace.odf)

    def repositories(self) -> list[NamedUrl]:
        """Return all repositories, sorted by name."""
        return [NamedUrl(repo.name, repo.url) for repo in self.remotes.repositories()]

    def attach(self, dataset: str, url: str, kind: Kind) -> None:
        """Add a remote of a dataset, for pulls or pushes."""
        self.remotes.attach(self.entry(dataset).id, url, kind)
        notify_datasets_changed(self.folder)

    def detach(self, dataset: str, url: str, kinds: tuple[Kind, ...] = REMOTE_KINDS) -> list[Kind]:
        """Remove a remote of a dataset, for pulls, pushes or both. The data at its URL stays.

        Returns:
            What it was used for.

        Raises:
            NotFound: the dataset has no such remote.
        """
        entry = self.entry(dataset)
        removed = self.remotes.detach(entry.id, url, kinds)
        if not removed:
            hint = f"odf repo alias list {entry.alias}"
            raise NotFound(f"{entry.alias} has no such remote: {url}", hint=hint)
        notify_datasets_changed(self.folder)
        return removed

    def remote_url(self, dataset: str, place: str, *, several: bool = False) -> str:
        """Return the URL of a dataset at a remote: a repository, ``REPOSITORY/NAME``, or a URL.

        Raises:
            UsageError: it is no remote, or it is of one dataset and ``several`` are pushed or pulled.
        """
        return resolve_address(self.remotes, place, self.entry(dataset).alias, several)

    def read_remotes(self, summaries: list[Summary]) -> Mapping[str, tuple[Remote, ...]]:
        """Return the remotes of datasets by id. Datasets without remotes are skipped."""
        try:
            file_names = set(os.listdir(self._workspace.odf / "remotes"))  # noqa: PTH208 (before the first paint)
        except OSError:
            return {}
        remotes, repositories = self.remotes, list[Repo]()
        with suppress(OdfError):  # an error is shown where repositories are listed
            repositories = remotes.repositories()
        remotes_by_id: dict[str, tuple[Remote, ...]] = {}
        for summary in summaries:
            if f"{summary.id.multibase}.json" in file_names:
                try:
                    stored = remotes.get(summary.id)
                except OdfError:  # treated as no remotes; pull and push report the error
                    continue
                urls = dict.fromkeys([*stored.pull, *stored.push])
                labels = {url: find_display_name(repositories, url) for url in urls}
                remotes_by_id[str(summary.id)] = tuple(
                    self._make_remote(summary, stored, url, label) for url, label in labels.items()
                )
        return remotes_by_id

    def _make_remote(self, summary: Summary, known: DatasetRemotes, url: str, label: str) -> Remote:
        remote = Remote(url=url, label=label, pull=url in known.pull, push=url in known.push)
        status = known.find_status(url)
        return remote if status is None else self._update_status(remote, status, summary)

    def _update_status(self, remote: Remote, status: RemoteStatus, summary: Summary) -> Remote:
        """Return the last known state of a remote, updated by the blocks committed here since."""
        common, their_head = status.common or "", status.their_head or ""
        updated = replace(remote, common=common, their_head=their_head, at=status.at)
        if status.our_head == str(summary.head or ""):
            return replace(updated, relation=status.relation, ours=status.ours, theirs=status.theirs)
        if not their_head:
            return replace(updated, relation="new", ours=summary.blocks)
        try:
            numbers = self.block_numbers(str(summary.id), (their_head, common))
        except OdfError:
            return updated
        if their_head in numbers:  # all remote blocks are in our chain
            ours = summary.blocks - 1 - numbers[their_head]
            return replace(updated, relation="ahead" if ours else "equal", ours=ours, common=their_head)
        if common not in numbers:  # our chain was reset or replaced
            return updated
        ours = summary.blocks - 1 - numbers[common]
        return replace(
            updated, relation="diverged" if ours else "behind", ours=ours, theirs=max(status.theirs, 1)
        )


class DatasetReader(RemoteReader):
    """Reads lists and details of datasets."""

    def datasets(self) -> list[DatasetRow]:
        """Return all datasets, and inputs that are missing in the workspace."""
        entries = self._workspace.datasets()
        self._entries = {str(entry.id): entry for entry in entries}
        summaries = self._workspace.summaries(entries)
        remotes = self.read_remotes(summaries)
        rows = [
            add_remotes(replace(row, standing=self._trust_status(summary)), remotes.get(row.id, ()))
            for row, summary in zip(make_dataset_rows(summaries), summaries, strict=True)
        ]
        missing = (node for node in DatasetGraph(summaries).nodes.values() if node.missing)
        return rows + [DatasetRow(id=str(node.id), name=node.name, missing=True) for node in missing]

    def _trust_status(self, summary: Summary) -> Literal["own", "trusted", "not trusted"]:
        if not (summary.polls or summary.push_sources):
            return "own"  # it has no source that runs
        try:
            return self._trusts.describe_status(self._entries[str(summary.id)])
        except OdfError:
            return "not trusted"

    def detail(self, dataset: str) -> DatasetDetail:
        """Return the definition and state of a dataset."""
        entry = self.entry(dataset)
        return read_dataset_detail(self._workspace, entry, list(self._entries.values()))


def add_remotes(row: DatasetRow, remotes: tuple[Remote, ...]) -> DatasetRow:
    """Return a dataset with its remotes.

    For a dataset that is pulled from a remote, ``behind`` and ``diverged`` are reset: it is not derived
    here.
    """
    row = replace(row, remotes=remotes)
    return replace(row, behind=False, diverged=()) if row.has_pull_remote else row


def make_dataset_rows(summaries: Sequence[Summary]) -> list[DatasetRow]:
    """Return datasets as lists and graphs show them."""
    by_id = {summary.id: summary for summary in summaries}
    return [_make_dataset_row(summary, by_id) for summary in summaries]


def _make_dataset_row(summary: Summary, others: Mapping[DatasetId, Summary]) -> DatasetRow:
    return DatasetRow(
        id=str(summary.id),
        name=summary.name,
        derivative=summary.kind is model.DatasetKind.Derivative,
        inputs=tuple(str(input_id) for input_id in summary.inputs),
        head=str(summary.head or ""),
        blocks=summary.blocks,
        records=summary.records,
        size=summary.size,
        watermark=_format_time(summary.watermark),
        last_pulled=_format_time(summary.last_pulled),
        polls=summary.polls,
        push_sources=tuple(summary.push_sources),
        problem=summary.problem,
        behind=is_behind(summary, others),
        diverged=tuple(
            others[dataset_id].name if dataset_id in others else str(dataset_id)
            for dataset_id in summary.diverged
        ),
        branches=tuple(summary.branches),
        waiting=find_waiting(summary, others),
    )


def _format_time(value: Timestamp | None) -> str | None:
    return None if value is None else str(value)
