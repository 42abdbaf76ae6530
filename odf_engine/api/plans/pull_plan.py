"""Plans of pulls: the datasets, their remotes and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from odf_engine.errors import AlreadyExists, InvalidIdentity, NotFound, UsageError
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.names import DatasetAlias, DatasetAliasRemote
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.remotes import FoundDataset
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import (
    Remotes,
    ResolvedUrl,
    find_repository,
    resolve_address,
    resolve_location,
)
from odf_engine.workspace.workspace import Workspace


class PullTarget(NamedTuple):
    """A dataset to pull.

    Attributes:
        name: its name for messages.
        entry: the dataset, or None if it is not in the workspace yet.
        url: the remote, or None if the dataset has its own source or query, or several remotes.
        alias: the name of a new dataset.
        after: ids of the datasets whose jobs run first.
        is_located: whether the selection names the remote, and not only the dataset.
        crate: the location in a crate that the remote was unpacked from, or "".
    """

    name: str
    entry: DatasetEntry | None
    url: str | None
    alias: str | None = None
    after: Sequence[str] = ()
    is_located: bool = False
    crate: str = ""

    def request(self, options: Pull) -> Pull:
        """Return the request of the job; ``options`` has the options of all pulls."""
        # A new dataset has no id yet.
        dataset = self.url or "" if self.entry is None else str(self.entry.id)
        request = replace(options, dataset=dataset, after=list(self.after), url=self.url, alias=self.alias)
        request = replace(request, crate=self.crate) if self.crate else request
        return replace(request, branch="", tag=options.branch) if self._names_tag(options) else request

    def _names_tag(self, options: Pull) -> bool:
        """Return whether the branch that is pulled into is a tag of the remote, and not a branch here."""
        if self.url is None or not options.branch or options.remote_branch:
            return False
        return self.entry is None or options.branch not in self.entry.dataset.branch_names()


class PullSelection(NamedTuple):
    """Selects the datasets to pull.

    Attributes:
        names: names of datasets, patterns with ``%``, or URLs.
        everything: all datasets of the workspace; with ``source``, all of that repository.
        recursive: also the inputs, which are pulled first.
        source: the remote to pull from: a URL, or ``REPOSITORY/NAME``; with ``everything`` a repository.
        alias: the name of the only new dataset.
        locations: datasets of remotes.
    """

    names: Sequence[str] = ()
    everything: bool = False
    recursive: bool = False
    source: str | None = None
    alias: str | None = None
    locations: Sequence[ResolvedUrl] = ()


class PullPlan(NamedTuple):
    """The datasets to pull: first the copies of remote datasets, then inputs before outputs."""

    targets: Sequence[PullTarget]

    def requests(self, options: Pull) -> list[tuple[Pull, str]]:
        """Return the requests, and the name of each dataset.

        Args:
            options: has the options of all pulls. Its dataset, remote and order are ignored.

        Raises:
            UsageError: a dataset cannot be pulled with these options.
        """
        for target in self.targets:
            self._check(target, options)
        return [
            (target.request(options), branch_title(target.name, options.branch or options.tag))
            for target in self.targets
        ]

    def _check(self, target: PullTarget, options: Pull) -> None:
        if target.crate and (options.branch or options.tag):
            raise UsageError("a crate has one version, and no branches", hint="omit --branch and --tag")
        if options.set_watermark is not None and target.url is not None:
            raise UsageError(
                f"{target.name} is pulled from {target.url}: its watermark is set there",
                hint=f"to detach it, use odf repo alias remove {target.name}" if target.entry else None,
            )
        if target.request(options).tag:
            return
        if options.branch and target.entry is None:
            raise UsageError(f"{target.name} is a new dataset: pull it without branches first")
        if options.branch and target.entry is not None and not options.remote_branch:
            target.entry.on_branch(options.branch, moves=True)


ListDatasets = Callable[[str], Sequence[FoundDataset]]
"""Returns the datasets of a repository by its name."""


def plan_pull(
    workspace: Workspace, selection: PullSelection, list_datasets: ListDatasets = lambda _: ()
) -> PullPlan:
    """Return the datasets that a selection pulls, with their remotes, in order.

    Args:
        workspace: the workspace.
        selection: what is pulled.
        list_datasets: lists a repository that is selected as a whole, or that has a dataset selected by its
            id. By default, no repository is listed.

    Raises:
        UsageError: parts of the selection exclude each other.
        NotFound: unknown dataset or repository.
        AlreadyExists: another dataset in the workspace has the name.
        OdfError: a repository cannot be listed.
    """
    return PullPlan(_TargetResolver(workspace, list_datasets).resolve(selection))


def plan_input_pulls(
    workspace: Workspace, pulled: Sequence[PullTarget], list_datasets: ListDatasets
) -> PullPlan:
    """Return the inputs to pull from remotes after the copies of their outputs; empty if there are none.

    Only outputs count whose remotes were named. Inputs that the workspace does not have are pulled from the
    repository of the output.

    Args:
        workspace: the workspace.
        pulled: all datasets that were pulled before. They are not pulled again.
        list_datasets: lists a repository.

    Raises:
        NotFound: the repository does not list an input, or the output is in no repository.
        AlreadyExists: another dataset in the workspace has the name of an input.
        OdfError: a repository cannot be listed.
    """
    return PullPlan(_TargetResolver(workspace, list_datasets).resolve_inputs(pulled))


class _TargetResolver:
    """Resolves a selection.

    Attributes:
        known: addresses that datasets are pulled from, by dataset.
        urls: the address to pull from, by dataset, where the selection names one.
        new: locations of datasets that are not in the workspace yet, by address.
    """

    def __init__(self, workspace: Workspace, list_datasets: ListDatasets) -> None:
        self._workspace = workspace
        self._list_datasets = list_datasets
        self.remotes = Remotes(workspace.odf)
        self.entries = {entry.id: entry for entry in workspace.datasets()}
        self.graph = DatasetGraph(workspace.summaries())
        self.known = {dataset: self.remotes.get(dataset).pull for dataset in self.entries}
        self.urls: dict[DatasetId, str] = {}
        self.new: dict[str, ResolvedUrl] = {}

    def resolve(self, selection: PullSelection) -> list[PullTarget]:
        _check_selection(selection)
        locations = selection.locations
        if selection.everything and selection.source is not None:
            locations = self._list_repository(self.remotes.repository(selection.source).name)
            if not locations:
                return []
        if locations:
            datasets = {dataset for place in locations for dataset in self._find_at(place)}
        else:
            datasets = set(self.entries) if selection.everything else self._find_named(selection)
        if selection.alias is not None:
            self._set_alias(selection.alias)
        if selection.recursive:
            datasets.update(*[self._find_inputs(dataset) for dataset in datasets])
        return self._make_targets(datasets)

    def resolve_inputs(self, pulled: Sequence[PullTarget]) -> list[PullTarget]:
        done = {target.url for target in pulled if target.url is not None}
        for url in [target.url for target in pulled if target.url is not None and target.is_located]:
            output = self.remotes.find_by_url(url)
            for dataset in self.graph.inputs(output) if output is not None else ():
                if dataset not in self.entries:
                    self._find_at(self._locate_input(dataset, url))
                elif len(self.known[dataset]) == 1:
                    self.urls[dataset] = self.known[dataset][0]
        self.new = {url: place for url, place in self.new.items() if url not in done}
        return self._make_targets({dataset for dataset, url in self.urls.items() if url not in done})

    def _locate_input(self, dataset: DatasetId, output_url: str) -> ResolvedUrl:
        repository = find_repository(self.remotes.repositories(), output_url)
        if repository is None:
            raise NotFound(
                f"input {dataset} is not in the workspace, and {output_url} is in no known repository",
                hint="add the repository with odf repo add NAME URL, then pull REPO/NAME",
            )
        return self._locate_id(repository.name, dataset)

    def _make_targets(self, datasets: Iterable[DatasetId]) -> list[PullTarget]:
        for place in self.new.values():
            self._check_name_is_free(place)
        new_targets = [
            PullTarget(self.remotes.display_name(place.url), None, place.url, place.name, is_located=True)
            for place in self.new.values()
        ]
        order = [dataset for dataset in self.graph.order(datasets) if dataset in self.entries]
        # Pulls from remotes need no other job and no Spark, and other jobs may wait for them: they go first.
        return new_targets + sorted(map(self._make_target, order), key=lambda target: target.url is None)

    def _make_target(self, dataset: DatasetId) -> PullTarget:
        entry, known = self.entries[dataset], self.known[dataset]
        url = self.urls.get(dataset) or (known[0] if len(known) == 1 else None)
        made_of = set() if known or url else self._find_inputs(dataset)
        after = [*map(str, made_of), *self.new] if made_of else []
        return PullTarget(str(entry.alias), entry, url, None, after, is_located=dataset in self.urls)

    def _find_inputs(self, dataset: DatasetId) -> set[DatasetId]:
        """Return all upstream datasets, but not those upstream of a dataset that is pulled from a remote."""
        inputs: set[DatasetId] = set()
        waiting = [dataset]
        while waiting:
            current = waiting.pop()
            if self.known.get(current) or current in self.urls:
                continue
            more = set(self.graph.inputs(current)) - inputs
            inputs |= more
            waiting += more
        return inputs

    def _find_named(self, selection: PullSelection) -> set[DatasetId]:
        if selection.source is None:
            return {dataset for name in selection.names for dataset in self._find_matching(name)}
        if not selection.names:
            place = self._locate(selection.source)
            if place is None:
                hint = "use a URL or REPO/NAME; odf repo list shows the repositories"
                raise UsageError(f"--from {selection.source}: not a remote", hint=hint)
            return set(self._find_at(place))
        try:
            entries = self._workspace.match(selection.names)
        except NotFound as error:
            hint = f"to create it, use odf pull --from {selection.source} --as NAME"
            raise NotFound(error.message, hint=hint) from None
        for entry in entries:
            url = resolve_address(self.remotes, selection.source, entry.alias, len(entries) > 1)
            self.urls[entry.id] = url
        return {entry.id for entry in entries}

    def _find_matching(self, name: str) -> Iterable[DatasetId]:
        place = self._locate(name)
        if place is not None:
            return self._find_at(place)
        return [entry.id for entry in self._workspace.match([name])]

    def _locate(self, text: str) -> ResolvedUrl | None:
        repository, _, dataset_id = text.partition("/")
        if not dataset_id.startswith(DID_PREFIX):
            return resolve_location(self.remotes, text)
        return self._locate_id(self.remotes.repository(repository).name, DatasetId.parse(dataset_id))

    def _locate_id(self, name: str, dataset_id: DatasetId) -> ResolvedUrl:
        listed = self._list_datasets(name)
        dataset = next((dataset for dataset in listed if dataset.id == str(dataset_id)), None)
        if dataset is not None:
            return self._location(name, dataset)
        hint = f"show its datasets: odf search --repo {name}"
        if any(dataset.id is None for dataset in listed):
            hint = f"it does not list the ids of all datasets: use {name}/NAME"
        raise NotFound(f"{name} lists no dataset {dataset_id}", hint=hint)

    def _list_repository(self, name: str) -> list[ResolvedUrl]:
        """Return the locations of all datasets of a repository; invalid names are skipped."""
        places: list[ResolvedUrl] = []
        for dataset in self._list_datasets(name):
            with suppress(InvalidIdentity):  # names are untrusted
                places.append(self._location(name, dataset))
        return places

    def _location(self, repository: str, dataset: FoundDataset) -> ResolvedUrl:
        ref = DatasetAliasRemote.parse(f"{repository}/{dataset.name}")
        return self.remotes.locate(ref)._replace(name=str(ref.alias))

    def _find_at(self, place: ResolvedUrl) -> Iterable[DatasetId]:
        dataset = self.remotes.find_by_url(place.url)
        if dataset is None or dataset not in self.entries:
            self.new[place.url] = place
            return ()
        self.urls[dataset] = place.url
        return (dataset,)

    def _set_alias(self, alias: str) -> None:
        name = DatasetAlias.parse(alias)
        here = [self.entries[dataset] for dataset in self.urls]
        if len(self.new) + len(here) != 1:
            raise UsageError(
                f"--as {alias} applies to exactly one new dataset", hint="pull the dataset alone"
            )
        for entry in here:
            if entry.alias != name:
                known_url = self.urls[entry.id]
                raise AlreadyExists(
                    f"the dataset already exists as {entry.alias}",
                    where=known_url,
                    hint=f"to rename it, run odf rename {entry.alias} {name}",
                )
        for url, place in self.new.items():
            self.new[url] = place._replace(name=str(name))

    def _check_name_is_free(self, place: ResolvedUrl) -> None:
        alias = DatasetAlias.parse(place.name)
        same_name = [entry for entry in self.entries.values() if entry.alias == alias]
        if same_name or [other.name for other in self.new.values()].count(place.name) > 1:
            exists, ambiguous = "a dataset with this name already exists", "several datasets have this name"
            problem = exists if same_name else ambiguous
            raise AlreadyExists(
                f"{alias}: {problem}",
                where=place.url,
                hint=f"use --as NAME; for the existing dataset, use odf pull {alias} --from {place.url}",
            )


def _check_selection(selection: PullSelection) -> None:
    if selection.everything and selection.source is not None and not selection.names:
        if selection.alias is not None:
            raise UsageError("--as applies to exactly one new dataset", hint="do not combine it with --all")
        return
    has_selection = bool(selection.names or selection.locations) or selection.source is not None
    if has_selection == selection.everything:
        hint = "specify names, patterns with % or URLs, or use --all"
        raise UsageError(
            "specify either datasets or --all" if has_selection else "no datasets specified", hint=hint
        )
    if selection.alias is not None and selection.everything:
        raise UsageError("--as applies to exactly one new dataset", hint="do not combine it with --all")
