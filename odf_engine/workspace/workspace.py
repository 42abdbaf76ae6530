"""A workspace: a folder with ``.odf/`` in it, and its datasets by name.

On disk: ``.odf/datasets/<id>/`` holds each dataset in repository layout, its alias in
``info/alias``. The folder's name is the id, so renaming a dataset writes one small file.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from odf_engine.chain.chain import Dataset
from odf_engine.chain.index import ChainIndex
from odf_engine.errors import AlreadyExists, Conflict, NotFound, NotSynced, OdfError
from odf_engine.identity.did import DatasetId, KeyStore
from odf_engine.identity.refs import DatasetAlias, DatasetPattern, parse_ref
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot, MetadataEvent, Seed
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace import config as settings
from odf_engine.workspace.folders import ORIGIN_FILE, DatasetFolders
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.small_files import not_writable
from odf_engine.workspace.summary import DatasetEntry, Summary, summarise
from odf_engine.workspace.version import check_version, write_version
from odf_engine.workspace.where import ODF_FOLDER, make_workspace_folder, workspace_folder

if TYPE_CHECKING:
    from odf_engine.workspace.adding import Plan
    from odf_engine.workspace.updating import Update

__all__ = ["ORIGIN_FILE", "DatasetEntry", "Summary", "Workspace"]


class Workspace:
    """A workspace on disk. Cheap to make; safe to use from several threads and processes.

    Attributes:
        folder: where relative paths of sources start.
        odf: the ``.odf`` folder within.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.odf = folder / ODF_FOLDER
        self._folders = DatasetFolders(self.odf / "datasets")
        self._opened: dict[DatasetId, Dataset] = {}
        self._summaries: dict[DatasetId, Summary] = {}

    @classmethod
    def find(cls, start: Path | None = None, explicit: Path | None = None) -> Self:
        """The workspace in ``explicit``, else in ``$ODF_WORKSPACE``, else around ``start``.

        Raises:
            NotFound: no ``.odf`` folder there; the hint says how to make one.
            Unsupported: it was made by a newer version of this program; nothing is written into it.
        """
        folder = workspace_folder(start, explicit)
        check_version(folder / ODF_FOLDER)
        return cls(folder)

    @classmethod
    def init(cls, folder: Path) -> Self:
        """Makes a workspace in ``folder``, which is made if it is not there.

        Raises:
            AlreadyExists: it is a workspace already.
        """
        workspace = cls(folder.expanduser().resolve())
        make_workspace_folder(workspace.folder)
        workspace._folders.home.mkdir()
        write_version(workspace.odf)
        settings.save(settings.Config(), workspace.config_path)
        return workspace

    @property
    def config_path(self) -> Path:
        """The file of settings."""
        return self.odf / "config.yaml"

    @cached_property
    def config(self) -> settings.Config:
        """The settings, as they were when first asked for."""
        return settings.load(self.config_path)

    @cached_property
    def index(self) -> ChainIndex:
        """The index of blocks, a cache."""
        return ChainIndex(self.odf / "index.sqlite")

    @cached_property
    def keys(self) -> KeyStore:
        """The private keys of the datasets made here."""
        return KeyStore(self.odf / "keys")

    def resolve_path(self, text: str) -> Path:
        """A path or ``file:`` URL of a manifest as an absolute path; relative ones start here."""
        if text[:5].lower() == "file:":
            parts = urlsplit(text)
            # In file://data/x.csv, a relative path as people write it, `data` reads as a host.
            host = "" if parts.netloc == "localhost" else parts.netloc
            text = unquote(host + parts.path)
        path = Path(text)
        return self.folder / (path.expanduser() if path.parts[:1] == ("~",) else path)

    # --- Finding datasets ---------------------------------------------------------------------

    def datasets(self) -> list[DatasetEntry]:
        """Every dataset, by name."""
        entries = [self._entry(dataset_id, alias) for dataset_id, alias in self._folders.aliases()]
        return sorted(entries, key=lambda entry: str(entry.alias).lower())

    def resolve(self, text: str) -> DatasetEntry:
        """The dataset with this id or alias.

        Raises:
            InvalidIdentity: neither an id nor an alias.
            NotFound: not in this workspace; the hint suggests a name that is close.
        """
        ref = parse_ref(text)
        for dataset_id, alias in self._folders.aliases():
            if ref in (dataset_id, alias):
                return self._entry(dataset_id, alias)
        raise self._not_found(text)

    def match(self, texts: Sequence[str]) -> list[DatasetEntry]:
        """The datasets that ids, aliases and patterns with ``%`` mean, each once, in their order.

        Raises:
            InvalidIdentity: a malformed text.
            NotFound: a text that means no dataset.
        """
        found: dict[DatasetId, DatasetEntry] = {}
        everything = self.datasets()
        for text in texts:
            pattern = DatasetPattern.parse(text)
            matches = [entry for entry in everything if pattern.matches(entry.alias, entry.id)]
            if not matches:
                raise self._not_found(text)
            found.update((entry.id, entry) for entry in matches)
        return list(found.values())

    def summaries(self, entries: Sequence[DatasetEntry] | None = None) -> list[Summary]:
        """What lists show of every dataset, by name; one query to the index, however many.

        Args:
            entries: what :meth:`datasets` has just given, to save looking again.
        """
        return summarise(self.datasets() if entries is None else entries, self.index, self._summaries)

    # --- Changing datasets --------------------------------------------------------------------

    def add(
        self, snapshots: Sequence[DatasetSnapshot], origins: Mapping[str, str] | None = None
    ) -> list[DatasetEntry]:
        """Makes datasets from their definitions, in any order among them: all of them or none.

        Args:
            snapshots: the definitions.
            origins: where definitions of these names came from, when somebody else wrote them: such a
                dataset runs nothing until it is trusted (see :mod:`odf_engine.workspace.trust`).

        Raises:
            AlreadyExists: a name is taken.
            NotFound: inputs that are neither here nor among ``snapshots``; it names them all.
            OdfError: a definition is wrong.
        """
        from odf_engine.workspace.adding import plan_datasets  # what only adding needs costs every start

        with self._lock():
            self._sweep()
            existing = {alias: dataset_id for dataset_id, alias in self._folders.aliases()}
            return self._make(plan_datasets(existing, snapshots, self.keys.generate), origins)

    def update(
        self,
        snapshots: Sequence[DatasetSnapshot],
        origins: Mapping[str, str] | None = None,
        *,
        dry_run: bool = False,
        shown: Sequence[Update] | None = None,
    ) -> list[Update]:
        """Makes datasets what their definitions say: appends the events that differ, deletes nothing.

        A definition of a dataset that is not here makes it. Everything is checked before anything is
        changed; then each dataset changes by one commit. What a definition does not mention stays.

        Args:
            snapshots: the definitions, in any order among them.
            origins: as for :meth:`add`; what somebody else changes is not one's own any more.
            dry_run: only say what would change.
            shown: what a dry run said to the person who wants it so.

        Returns:
            What changed, one for each definition, in their order; some may have no events.

        Raises:
            Conflict: somebody else committed to one of the datasets meanwhile, which stays as it is; or
                something else would change than what was ``shown``.
            ChainRuleViolated: a change that a dataset's chain does not allow, such as one of the
                schema that breaks readers.
            UsageError: a query changes whose state somebody has to see to.
            OdfError: a definition is wrong.
        """
        from odf_engine.workspace.appending import append, check_no_state
        from odf_engine.workspace.updating import plan_updates

        with self._lock():
            if dry_run:
                return plan_updates(self.datasets(), snapshots, None).updates
            self._sweep()
            ids: list[DatasetId] = []

            def new_id() -> DatasetId:
                ids.append(self.keys.generate())
                return ids[-1]

            try:
                planned = plan_updates(self.datasets(), snapshots, new_id)
                for each in planned.updates:
                    check_no_state(each)
                if shown is not None and [each.changes for each in shown] != [
                    each.changes for each in planned.updates
                ]:
                    raise Conflict(
                        "the datasets changed meanwhile", hint="look at what changes now, and try again"
                    )
            except BaseException:
                for dataset_id in ids:
                    self.keys.forget(dataset_id)
                raise
            made = {entry.alias: entry for entry in self._make(planned.plans, origins)}
            foreign = _by_alias(origins)
            for update in planned.updates:
                if update.entry is not None and update.events:
                    origin = foreign.get(update.alias)
                    append(update.entry, update, origin, block_version=self.config.block_version)
        return [
            replace(update, entry=made[update.alias]) if update.is_new else update
            for update in planned.updates
        ]

    def dataset_new(
        self,
        alias: DatasetAlias,
        kind: DatasetKind,
        events: Sequence[MetadataEvent] = (),
        system_time: Timestamp | None = None,
    ) -> DatasetEntry:
        """Makes a dataset of a fresh identity from events that are ready to be committed.

        Raises:
            AlreadyExists: the name is taken.
            ChainRuleViolated: the events may not follow each other.
        """
        from odf_engine.workspace.adding import Plan

        with self._lock():
            self._check_free(alias)
            dataset_id = self.keys.generate()
            plan = Plan(dataset_id, alias, [Seed(dataset_id, kind), *events])
            return self._make([plan], system_time=system_time)[0]

    def check_arrival(self, alias: DatasetAlias, dataset_id: DatasetId | None = None) -> None:
        """Whether a dataset of others may get this name here.

        Raises:
            AlreadyExists: the name is taken, or the dataset is here under another one.
        """
        self._check_free(alias)
        for known, name in self._folders.aliases():
            if known == dataset_id:
                hint = f"bring that one up to date: odf pull {name}"
                raise AlreadyExists(f"the dataset is here already, as {name}", hint=hint)

    def take_in(self, folder: Path, alias: DatasetAlias, origin: str) -> DatasetEntry:
        """Lets others see a whole dataset that somebody else made; ``folder`` moves to its place.

        Raises:
            AlreadyExists: the name is taken, or the dataset is here under another one.
        """
        with self._lock():
            dataset_id = Dataset(folder, self.index).state().dataset_id
            self.check_arrival(alias, dataset_id)
            self._folders.take_in(folder, dataset_id, alias, origin)
            self._opened.pop(dataset_id, None)
            return self._entry(dataset_id, alias)

    def rename(self, entry: DatasetEntry, alias: DatasetAlias) -> DatasetEntry:
        """Gives a dataset another name.

        Raises:
            AlreadyExists: another dataset has it.
            NotFound: the dataset is not here any more.
        """
        with self._lock():
            self._check_free(alias, but=entry.id)
            if not self._folders.path(entry.id).is_dir():
                raise self._not_found(str(entry.alias))
            self._folders.name(entry.id, alias)
            return self._entry(entry.id, alias)

    def delete(self, entry: DatasetEntry) -> None:
        """Removes a dataset, its data, its private key, and what is known of its remotes.

        Raises:
            OdfError: other datasets read it; the message names them.
        """
        with self._lock():
            readers = [other.name for other in self.summaries() if entry.id in other.inputs]
            if readers:
                raise OdfError(
                    f"{entry.alias} is read by " + ", ".join(readers),
                    hint="delete those first, or name them in the same command",
                )
            with suppress(OdfError):
                if head := entry.dataset.head():
                    self.index.forget(head)
            try:
                self._folders.remove(entry.id)
            except FileNotFoundError:
                raise self._not_found(str(entry.alias)) from None
            self.keys.forget(entry.id)
            Remotes(self.odf).forget(entry.id)
            self._opened.pop(entry.id, None)
            self._summaries.pop(entry.id, None)

    # --- Inside -------------------------------------------------------------------------------

    def _entry(self, dataset_id: DatasetId, alias: DatasetAlias) -> DatasetEntry:
        dataset = self._opened.get(dataset_id)
        if dataset is None:
            dataset = self._opened[dataset_id] = Dataset(self._folders.path(dataset_id), self.index)
        return DatasetEntry(dataset_id, alias, dataset)

    def _not_found(self, text: str) -> NotFound:
        from difflib import get_close_matches

        names = {str(alias).lower(): str(alias) for _, alias in self._folders.aliases()}
        close = get_close_matches(text.lower(), names, n=1)
        hint = f"did you mean '{names[close[0]]}'?" if close else "see what is here with: odf list"
        return NotFound(f"there is no dataset '{text}' in {self.folder}", hint=hint)

    def _check_free(self, alias: DatasetAlias, but: DatasetId | None = None) -> None:
        for dataset_id, taken in self._folders.aliases():
            if taken == alias and dataset_id != but:
                raise AlreadyExists(f"a dataset named {taken} exists already", hint="choose another name")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keeps other processes from making, renaming or deleting datasets."""
        path = self.odf / "lock"
        try:
            file = path.open("w")
        except OSError as error:
            raise not_writable(path, error) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make(
        self,
        plans: Sequence[Plan],
        origins: Mapping[str, str] | None = None,
        system_time: Timestamp | None = None,
    ) -> list[DatasetEntry]:
        """Makes all of these datasets, or none; only under the lock."""
        now = system_time or Timestamp.now()
        foreign = _by_alias(origins)
        version = self.config.block_version
        try:
            for plan in plans:
                folder = self._folders.stage(plan.id, plan.alias, foreign.get(plan.alias))
                made = Dataset(folder, self.index)
                made.commit(plan.events, system_time=now, expected_head=None, block_version=version)
            for plan in plans:
                self._folders.publish(plan.id)
        except BaseException as error:
            for plan in plans:
                self._folders.discard(plan.id)
                self.keys.forget(plan.id)
            if isinstance(error, NotSynced):
                raise error.as_failure() from error  # what was committed is discarded again
            raise
        return [self._entry(plan.id, plan.alias) for plan in plans]

    def _sweep(self) -> None:
        for dataset_id in self._folders.sweep():
            self.keys.forget(dataset_id)


def _by_alias(origins: Mapping[str, str] | None) -> dict[DatasetAlias, str]:
    return {DatasetAlias.parse(name): origin for name, origin in (origins or {}).items()}
