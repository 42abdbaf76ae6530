"""Reads datasets, their remotes, and repositories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.errors import NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary, is_behind
from odf_engine.workspace.remotes import DatasetRemotes, Remotes, RemoteStatus, Repo, find_display_name
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from odf_tui.gateway.protocol import NamedUrl
from odf_tui.state.model import DatasetDetail, DatasetRow
from odf_tui.text.remotes import Remote


class WorkspaceEntries:
    """A workspace whose datasets are found by id.

    Attributes:
        workspace: the workspace.
        trusts: what others may run in it.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.trusts = Trust(workspace)
        self._entries: dict[str, DatasetEntry] = {}

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        return self.workspace.folder

    def entry(self, dataset: str) -> DatasetEntry:
        """A dataset by its id.

        Raises:
            NotFound: it is not here (any more).
        """
        entry = self._entries.get(dataset)
        if entry is None or not entry.dataset.folder.is_dir():
            self._entries = {str(each.id): each for each in self.workspace.datasets()}
            entry = self._entries.get(dataset)
        if entry is None:
            raise NotFound("this dataset is not in the workspace")
        return entry

    def block_numbers(self, dataset: str, hashes: tuple[str, ...]) -> dict[str, int]:
        """The numbers of those blocks that the chain holds."""
        from odf_engine.chain.block_search import block_numbers

        return block_numbers(self.entry(dataset).dataset, hashes)


class RemoteReader(WorkspaceEntries):
    """Repositories, addresses, histories."""

    @property
    def _remotes(self) -> Remotes:
        return Remotes(self.workspace.odf)

    def repositories(self) -> list[NamedUrl]:
        """All of them, by name."""
        return [NamedUrl(repo.name, repo.url) for repo in self._remotes.repositories()]

    def add_repository(self, name: str, url: str) -> None:
        """Remembers a repository."""
        self._remotes.add(name, url)

    def remove_repository(self, name: str) -> None:
        """Forgets a repository."""
        self._remotes.remove(name)

    def detach(self, dataset: str, url: str) -> None:
        """Forgets that a dataset comes from a URL, or goes there."""
        entry = self.entry(dataset)
        if not self._remotes.detach(entry.id, url):
            raise NotFound(f"{entry.alias} has no remote {url} any more")
        notify_datasets_changed(self.folder)

    def read_remotes(self, summaries: list[Summary]) -> Mapping[str, tuple[Remote, ...]]:
        """Where datasets come from and go to, by their ids; those that have no remotes are left out."""
        try:
            file_names = set(os.listdir(self.workspace.odf / "remotes"))  # noqa: PTH208 (before the first paint)
        except OSError:
            return {}
        remotes, repositories = self._remotes, list[Repo]()
        with suppress(OdfError):  # they cannot be read: that is said where they are asked for
            repositories = remotes.repositories()
        found: dict[str, tuple[Remote, ...]] = {}
        for summary in summaries:
            if f"{summary.id.multibase}.json" in file_names:
                try:
                    stored = remotes.get(summary.id)
                except OdfError:  # as if it had none: pulling and pushing say why it cannot be read
                    continue
                urls = dict.fromkeys([*stored.pull, *stored.push])
                labels = {url: find_display_name(repositories, url) for url in urls}
                found[str(summary.id)] = tuple(
                    self._make_remote(summary, stored, url, label) for url, label in labels.items()
                )
        return found

    def _make_remote(self, summary: Summary, known: DatasetRemotes, url: str, label: str) -> Remote:
        remote = Remote(url=url, label=label, pull=url in known.pull, push=url in known.push)
        status = known.find_status(url)
        return remote if status is None else self._update_status(remote, status, summary)

    def _update_status(self, remote: Remote, status: RemoteStatus, summary: Summary) -> Remote:
        """How it stood, with what was committed here since."""
        common, their_head = status.common or "", status.their_head or ""
        found = replace(remote, common=common, their_head=their_head, at=status.at)
        if status.our_head == str(summary.head or ""):
            return replace(found, relation=status.relation, ours=status.ours, theirs=status.theirs)
        if not their_head:
            return replace(found, relation="new", ours=summary.blocks)
        try:
            numbers = self.block_numbers(str(summary.id), (their_head, common))
        except OdfError:
            return found
        if their_head in numbers:  # all that they had is here
            ours = summary.blocks - 1 - numbers[their_head]
            return replace(found, relation="ahead" if ours else "equal", ours=ours, common=their_head)
        if common not in numbers:  # our history was reset or replaced
            return found
        ours = summary.blocks - 1 - numbers[common]
        return replace(
            found, relation="diverged" if ours else "behind", ours=ours, theirs=max(status.theirs, 1)
        )


class DatasetReads(RemoteReader):
    """Reads datasets."""

    def datasets(self) -> list[DatasetRow]:
        """Every dataset, and inputs that are not here."""
        entries = self.workspace.datasets()
        self._entries = {str(entry.id): entry for entry in entries}
        summaries = self.workspace.summaries(entries)
        remotes = self.read_remotes(summaries)
        rows = [
            add_remotes(replace(row, standing=self._trust_status(summary)), remotes.get(row.id, ()))
            for row, summary in zip(make_dataset_rows(summaries), summaries, strict=True)
        ]
        missing = (node for node in DatasetGraph(summaries).nodes.values() if node.missing)
        return rows + [DatasetRow(id=str(node.id), name=node.name, missing=True) for node in missing]

    def _trust_status(self, summary: Summary) -> Literal["own", "trusted", "not trusted"]:
        if not (summary.polls or summary.push_sources):
            return "own"  # nothing of it runs
        try:
            return self.trusts.describe_status(self._entries[str(summary.id)])
        except OdfError:
            return "not trusted"

    def detail(self, dataset: str) -> DatasetDetail:
        """What is known of a dataset."""
        from odf_tui.gateway.dataset_detail import read_dataset_detail

        return read_dataset_detail(self.workspace, self.entry(dataset))


def add_remotes(row: DatasetRow, remotes: tuple[Remote, ...]) -> DatasetRow:
    """A dataset with its remotes. One that comes from elsewhere is not made here: how it stands to its
    inputs says nothing."""
    row = replace(row, remotes=remotes)
    return replace(row, behind=False, diverged=()) if row.has_pull_remote else row


def make_dataset_rows(summaries: Sequence[Summary]) -> list[DatasetRow]:
    """Datasets as lists and graphs show them."""
    by_id = {summary.id: summary for summary in summaries}
    return [_make_dataset_row(summary, by_id) for summary in summaries]


def _make_dataset_row(summary: Summary, others: Mapping[DatasetId, Summary]) -> DatasetRow:
    return DatasetRow(
        id=str(summary.id),
        name=summary.name,
        derivative=summary.kind is model.DatasetKind.Derivative,
        inputs=tuple(str(each) for each in summary.inputs),
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
        diverged=tuple(others[each].name if each in others else str(each) for each in summary.diverged),
    )


def _format_time(value: Timestamp | None) -> str | None:
    return None if value is None else str(value)
