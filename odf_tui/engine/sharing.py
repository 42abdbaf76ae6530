"""What the screen reads and remembers of other places; it asks none of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.errors import NotFound, OdfError
from odf_engine.workspace.dataset_summary import Summary
from odf_engine.workspace.remotes import DatasetRemotes, Remotes, RemoteStatus, Repo, find_display_name
from odf_tui.chain_state import Want
from odf_tui.engine.blocks import BlockReads
from odf_tui.remotes import Remote
from odf_tui.share_source import Branches, Place


class ShareReads(BlockReads):
    """Repositories, addresses, histories."""

    @property
    def _remotes(self) -> Remotes:
        return Remotes(self.workspace.odf)

    def repositories(self) -> list[Place]:
        """All of them, by name."""
        return [Place(repo.name, repo.url) for repo in self._remotes.repositories()]

    def add_repository(self, name: str, url: str) -> None:
        """Remembers a repository."""
        self._remotes.add(name, url)

    def remove_repository(self, name: str) -> None:
        """Forgets a repository."""
        self._remotes.remove(name)

    def branches(self, dataset: str, common: str, limit: int) -> Branches:
        """Our blocks since a block, at most so many, newest first."""
        number = self.block_numbers(dataset, (common,)).get(common)
        last = self.entry(dataset).dataset.state().blocks - 1
        first = max(last - limit + 1, 0 if number is None else number + 1)
        ours = self.blocks(dataset, first, last - first + 1, Want()).lines if first <= last else ()
        if number is None:
            return Branches(ours[::-1], first, None)
        (shared,) = self.blocks(dataset, number, 1, Want()).lines
        return Branches(ours[::-1], first - number - 1, shared)

    def detach(self, dataset: str, url: str) -> None:
        """Forgets that a dataset comes from a URL, or goes there."""
        entry = self.entry(dataset)
        if not self._remotes.detach(entry.id, url):
            raise NotFound(f"{entry.alias} has no remote {url} any more")
        notify_datasets_changed(self.folder)

    def remotes_of(self, summaries: list[Summary]) -> Mapping[str, tuple[Remote, ...]]:
        """Where datasets come from and go to, by their ids; those that have no remotes are left out."""
        try:
            there = set(os.listdir(self.workspace.odf / "remotes"))  # noqa: PTH208 (before the first paint)
        except OSError:
            return {}
        remotes, repositories = self._remotes, list[Repo]()
        with suppress(OdfError):  # they cannot be read: that is said where they are asked for
            repositories = remotes.repositories()
        found: dict[str, tuple[Remote, ...]] = {}
        for summary in summaries:
            if f"{summary.id.multibase}.json" in there:
                try:
                    known = remotes.get(summary.id)
                except OdfError:  # as if it had none: pulling and pushing say why it cannot be read
                    continue
                urls = dict.fromkeys([*known.pull, *known.push])
                labels = {url: find_display_name(repositories, url) for url in urls}
                found[str(summary.id)] = tuple(
                    self._remote(summary, known, url, label) for url, label in labels.items()
                )
        return found

    def _remote(self, summary: Summary, known: DatasetRemotes, url: str, label: str) -> Remote:
        remote = Remote(url=url, label=label, pull=url in known.pull, push=url in known.push)
        seen = known.find_status(url)
        return remote if seen is None else self._as_of_now(remote, seen, summary)

    def _as_of_now(self, remote: Remote, seen: RemoteStatus, summary: Summary) -> Remote:
        """How it stood, with what was committed here since."""
        common, theirs = seen.common or "", seen.their_head or ""
        found = replace(remote, common=common, their_head=theirs, at=seen.at)
        if seen.our_head == str(summary.head or ""):
            return replace(found, relation=seen.relation, ours=seen.ours, theirs=seen.theirs)
        if not theirs:
            return replace(found, relation="new", ours=summary.blocks)
        try:
            numbers = self.block_numbers(str(summary.id), (theirs, common))
        except OdfError:
            return found
        if theirs in numbers:  # all that they had is here
            ours = summary.blocks - 1 - numbers[theirs]
            return replace(found, relation="ahead" if ours else "equal", ours=ours, common=theirs)
        if common not in numbers:  # our history was reset or replaced
            return found
        ours = summary.blocks - 1 - numbers[common]
        return replace(
            found, relation="diverged" if ours else "behind", ours=ours, theirs=max(seen.theirs, 1)
        )
