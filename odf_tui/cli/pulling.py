"""What `odf pull` is asked for: datasets that are here, and those of other places that come here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from odf_engine.errors import AlreadyExists, InvalidIdentity, NotFound, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import (
    DatasetAlias,
    DatasetAliasRemote,
    DatasetIdRemote,
    DatasetUrl,
    is_valid_name,
    parse_ref_any,
)
from odf_engine.net.urls import normalize_url
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes, ResolvedUrl
from odf_engine.workspace.workspace import Workspace

PATHS = ("/", "./", "../", "~/", "file:")
"""What begins so is a folder, and no name."""


class Wanted(NamedTuple):
    """A dataset to bring up to date.

    Attributes:
        target: how it is called.
        entry: the dataset; None: it is not here yet.
        url: where it is taken from; None: it is made here, or comes from several places.
        alias: the name that it gets.
        after: ids of datasets whose jobs go first.
    """

    target: str
    entry: DatasetEntry | None
    url: str | None
    alias: str | None = None
    after: Sequence[str] = ()


class Asked(NamedTuple):
    """The arguments of `odf pull` that say which datasets; ``places``: those of a whole repository."""

    names: Sequence[str]
    everything: bool = False
    recursive: bool = False
    source: str | None = None
    alias: str | None = None
    places: Sequence[ResolvedUrl] = ()


def wanted(workspace: Workspace, asked: Asked) -> list[Wanted]:
    """The datasets that the arguments mean: first those from elsewhere, then inputs before outputs.

    Raises:
        UsageError: the arguments do not go together.
        NotFound: there is no such dataset, or no such repository.
        AlreadyExists: a dataset of this name is here, and does not come from there.
    """
    return _Asking(workspace).wanted(asked)


def located(remotes: Remotes, text: str) -> ResolvedUrl | None:
    """The place that a text means: an address, a folder, ``repo/name``; None: it names what is here."""
    if "://" in text or text.startswith(PATHS) or text in (".", ".."):
        return remotes.locate(DatasetUrl(normalize_url(text)))
    if "%" in text:
        return None
    ref = parse_ref_any(text, remotes.is_repository)
    if isinstance(ref, DatasetAliasRemote | DatasetIdRemote):
        return remotes.locate(ref)
    return None


class _Asking:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.remotes = Remotes(workspace.odf)
        self.entries = {entry.id: entry for entry in workspace.datasets()}
        self.graph = DatasetGraph(workspace.summaries())
        self.known = {dataset: self.remotes.get(dataset).pull for dataset in self.entries}
        self.urls: dict[DatasetId, str] = {}
        self.new: dict[str, ResolvedUrl] = {}

    def wanted(self, asked: Asked) -> list[Wanted]:
        _check(asked)
        if asked.places:
            chosen = {dataset for place in asked.places for dataset in self._at(place)}
        else:
            chosen = set(self.entries) if asked.everything else self._named(asked)
        if asked.alias is not None:
            self._give_name(asked.alias)
        for place in self.new.values():
            self._check_free(place)
        if asked.recursive:
            chosen.update(*[self._made_of(dataset) for dataset in chosen])
        new = [
            Wanted(self.remotes.display_name(place.url), None, place.url, place.name)
            for place in self.new.values()
        ]
        order = [dataset for dataset in self.graph.order(chosen) if dataset in self.entries]
        # What comes from elsewhere waits for nobody here: others may wait for it, and for Spark.
        return new + sorted(map(self._of, order), key=lambda each: each.url is None)

    def _of(self, dataset: DatasetId) -> Wanted:
        entry, known = self.entries[dataset], self.known[dataset]
        url = self.urls.get(dataset) or (known[0] if len(known) == 1 else None)
        made_of = set() if known or url else self._made_of(dataset)
        after = [*map(str, made_of), *self.new] if made_of else []
        return Wanted(str(entry.alias), entry, url, None, after)

    def _made_of(self, dataset: DatasetId) -> set[DatasetId]:
        """What a dataset is made of here, however far: what comes from elsewhere is made there."""
        found: set[DatasetId] = set()
        waiting = [dataset]
        while waiting:
            each = waiting.pop()
            if self.known.get(each) or each in self.urls:
                continue
            more = set(self.graph.inputs(each)) - found
            found |= more
            waiting += more
        return found

    def _named(self, asked: Asked) -> set[DatasetId]:
        if asked.source is None:
            return {dataset for name in asked.names for dataset in self._meant(name)}
        if not asked.names:
            place = located(self.remotes, asked.source)
            if place is None:
                hint = "an address, or REPO/NAME; odf repo list shows the repositories"
                raise UsageError(f"--from {asked.source} is no place elsewhere", hint=hint)
            return set(self._at(place))
        try:
            entries = self.workspace.match(asked.names)
        except NotFound as error:
            hint = f"as a new one: odf pull --from {asked.source} --as NAME"
            raise NotFound(error.message, hint=hint) from None
        for entry in entries:
            self.urls[entry.id] = address_in(self.remotes, asked.source, entry, len(entries) > 1)
        return {entry.id for entry in entries}

    def _meant(self, name: str) -> Iterable[DatasetId]:
        place = located(self.remotes, name)
        if place is not None:
            return self._at(place)
        return [entry.id for entry in self.workspace.match([name])]

    def _at(self, place: ResolvedUrl) -> Iterable[DatasetId]:
        dataset = self.remotes.find_by_url(place.url)
        if dataset is None or dataset not in self.entries:
            self.new[place.url] = place
            return ()
        self.urls[dataset] = place.url
        return (dataset,)

    def _give_name(self, alias: str) -> None:
        name = DatasetAlias.parse(alias)
        here = [self.entries[dataset] for dataset in self.urls]
        if len(self.new) + len(here) != 1:
            raise UsageError(f"--as {alias} names one dataset that is new", hint="pull it by itself")
        for entry in here:
            if entry.alias != name:
                where = self.urls[entry.id]
                raise AlreadyExists(f"it is here as {entry.alias}", where=where, hint="odf rename OLD NEW")
        for url, place in self.new.items():
            self.new[url] = place._replace(name=str(name))

    def _check_free(self, place: ResolvedUrl) -> None:
        alias = DatasetAlias.parse(place.name)
        taken = [entry for entry in self.entries.values() if entry.alias == alias]
        if taken or [each.name for each in self.new.values()].count(place.name) > 1:
            name = f"{alias}: a dataset" if taken else f"{alias}: more than one dataset"
            raise AlreadyExists(
                f"{name} of this name is here already" if taken else f"{name} would have this name",
                where=place.url,
                hint=f"--as NAME gives it another; if it is the same: odf pull {alias} --from {place.url}",
            )


def address_in(remotes: Remotes, text: str, entry: DatasetEntry, several: bool = False) -> str:
    """The address of a dataset at a place: a repository's name, ``repo/name``, or an address.

    Raises:
        UsageError: the place is of one dataset, and there are several.
    """
    if is_valid_name(text):
        return f"{remotes.repository(text).url}{entry.alias}/"
    try:
        place = located(remotes, text)
    except InvalidIdentity:
        place = None
    if place is None:
        hint = "a repository, REPO/NAME, or an address; odf repo list shows the repositories"
        raise UsageError(f"{text} is no place elsewhere", hint=hint)
    if (repo := next((repo for repo in remotes.repositories() if repo.url == place.url), None)) is not None:
        return f"{repo.url}{entry.alias}/"
    if several:
        hint = "name a repository: each dataset has its own place in it"
        raise UsageError(f"{place.url} is the place of one dataset", hint=hint)
    return place.url


def all_of(remotes: Remotes, repository: str, names: Iterable[str]) -> list[ResolvedUrl]:
    """The datasets of a repository, by the names that it told; here each has the name that it has there."""
    places: list[ResolvedUrl] = []
    for name in names:
        with suppress(InvalidIdentity):  # names are of others, and may be anything
            ref = DatasetAliasRemote.parse(f"{repository}/{name}")
            places.append(remotes.locate(ref)._replace(name=str(ref.alias)))
    return places


def _check(asked: Asked) -> None:
    some = bool(asked.names or asked.places) or asked.source is not None
    if some == asked.everything:
        hint = "name some (patterns with % work, and addresses), or give --all"
        raise UsageError("which datasets?", hint=hint)
    if asked.alias is not None and asked.everything:
        raise UsageError("--as names one dataset that is new", hint="not with --all")
