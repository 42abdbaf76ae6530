"""Plans of pushes: the datasets, their inputs, their remotes and their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from odf_engine.errors import UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.push import Push, PushedInput
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.remotes import Remotes, Repo, find_repository, resolve_address
from odf_engine.workspace.workspace import Workspace


class PushTarget(NamedTuple):
    """A dataset to push.

    Attributes:
        dataset, name: its id and name.
        url: the remote.
        label: the remote's display name.
        inputs: the inputs that are pushed first, direct and indirect.
    """

    dataset: str
    name: str
    url: str
    label: str
    inputs: Sequence[PushedInput] = ()


class PushPlan(NamedTuple):
    """The datasets to push, inputs before outputs.

    Attributes:
        targets: the datasets.
        inputs: the targets that were not selected, and whose newest blocks the remote lacked at the last
            comparison.
    """

    targets: Sequence[PushTarget]
    inputs: Sequence[PushTarget] = ()

    def requests(self, *, force: bool = False, branch: str = "") -> list[tuple[Push, str]]:
        """Return the requests, and the name of each dataset.

        Args:
            force: overwrite diverged histories of the remotes.
            branch: the branch to push, or "" for the head. The remotes of branches are not recorded, so the
                jobs do not check their inputs.
        """
        return [
            (Push(target.dataset, target.url, force, branch, [] if branch else list(target.inputs)),
             branch_title(target.name, branch))
            for target in self.targets
        ]  # fmt: skip


def plan_push(
    workspace: Workspace, datasets: Sequence[DatasetId], place: str | None = None, *, recursive: bool = False
) -> PushPlan:
    """Return the datasets to push, with their remotes, in order.

    Inputs are pushed to the repository of their output, except those that are pulled from it.

    Args:
        workspace: the workspace.
        datasets: the selected datasets. They are pushed even if the remote has their blocks.
        place: a repository, ``REPOSITORY/NAME`` or a URL. By default, the push remote of each dataset, else
            the only repository.
        recursive: push the inputs too.

    Raises:
        UsageError: a dataset has no address, or several.
    """
    return _Planner(workspace).plan(datasets, place, recursive=recursive)


class _Planner:
    """Finds the addresses of datasets and inputs."""

    def __init__(self, workspace: Workspace) -> None:
        self._remotes = Remotes(workspace.odf)
        self._repositories = self._remotes.repositories()
        self._entries = {entry.id: entry for entry in workspace.datasets()}
        self._summaries = {summary.id: summary for summary in workspace.summaries()}
        self._graph = DatasetGraph(self._summaries.values())

    def plan(self, datasets: Sequence[DatasetId], place: str | None, *, recursive: bool) -> PushPlan:
        selected = {(dataset, self._address(dataset, place, len(datasets) > 1)) for dataset in datasets}
        addresses = set(selected)
        if recursive:
            addresses.update(*[self._input_addresses(dataset, url) for dataset, url in selected])
        rank = {dataset: number for number, dataset in enumerate(self._graph.order())}
        ordered = sorted(addresses, key=lambda address: (rank[address[0]], address[1]))
        targets = [self._target(dataset, url, ordered) for dataset, url in ordered]
        inputs = [
            target
            for (dataset, url), target in zip(ordered, targets, strict=True)
            if (dataset, url) not in selected and not self._is_current(dataset, url)
        ]
        return PushPlan(targets, inputs)

    def _address(self, dataset: DatasetId, place: str | None, several: bool) -> str:
        alias = self._entries[dataset].alias
        if place is not None:
            return resolve_address(self._remotes, place, alias, several)
        known = self._remotes.get(dataset).push
        if len(known) == 1:
            return known[0]
        if known:
            raise UsageError(
                f"{alias} has several push remotes: {', '.join(known)}", hint="select one with --to"
            )
        if len(self._repositories) == 1:
            return resolve_address(self._remotes, self._repositories[0].name, alias)
        names = ", ".join(repository.name for repository in self._repositories)
        hint = f"use --to REPO, one of {names}" if names else "use --to URL, or odf repo add NAME URL"
        raise UsageError(f"{alias} has no push remote", hint=hint)

    def _input_addresses(self, dataset: DatasetId, url: str) -> Iterator[tuple[DatasetId, str]]:
        """Yield the inputs of a dataset, with their addresses in its repository."""
        inputs = [source for source in self._graph.upstream(dataset) if source in self._entries]
        if not inputs:
            return
        repository = find_repository(self._repositories, url)
        if repository is None:
            raise UsageError(
                f"the inputs of {self._entries[dataset].alias} have no address: {url} is in no repository",
                hint="name the repository with odf repo add NAME URL, and push to it",
            )
        for source in inputs:
            address = self._input_address(source, repository)
            if address is not None:
                yield source, address

    def _input_address(self, source: DatasetId, repository: Repo) -> str | None:
        """Return the address of an input in a repository, or None if it is pulled from there."""
        known = self._remotes.get(source)
        if any(url.startswith(repository.url) for url in known.pull):
            return None
        default = f"{repository.url}{quote(str(self._entries[source].alias))}/"
        return next((url for url in known.push if url.startswith(repository.url)), default)

    def _is_current(self, dataset: DatasetId, url: str) -> bool:
        """Return whether a remote had the newest blocks of a dataset at the last comparison."""
        status = self._remotes.get(dataset).find_status(url)
        if status is None or status.our_head != str(self._summaries[dataset].head):
            return False
        return status.relation in ("equal", "behind")

    def _target(self, dataset: DatasetId, url: str, addresses: Iterable[tuple[DatasetId, str]]) -> PushTarget:
        upstream, repository = self._graph.upstream(dataset), find_repository(self._repositories, url)
        inputs = [
            PushedInput(str(source), address, str(self._summaries[source].head))
            for source, address in addresses
            if source in upstream and find_repository(self._repositories, address) == repository
        ]
        label = self._remotes.display_name(url)
        return PushTarget(str(dataset), str(self._entries[dataset].alias), url, label, inputs)
