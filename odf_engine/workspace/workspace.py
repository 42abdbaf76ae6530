"""A workspace: a folder with ``.odf/`` in it, and its datasets by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from odf_engine import settings
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import AlreadyExists, Conflict, NotFound, NotSynced, OdfError, Unsupported
from odf_engine.identity.did import DatasetId, KeyStore, new_key
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias, DatasetPattern, parse_ref
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot, MetadataEvent, Seed
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.settings import CONFIG_FILE
from odf_engine.storage.atomic_files import file_lock, read_small, replace_text_file
from odf_engine.workspace.dataset_folders import DatasetFolders, NamedDataset
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary, summarize
from odf_engine.workspace.discovery import ODF_FOLDER, make_workspace_folder, workspace_folder
from odf_engine.workspace.remotes import Remotes

if TYPE_CHECKING:
    from odf_engine.workspace.definition import NewDataset, Update


VERSION: Final = 1
"""Another one is given to workspaces in which programs that know only this one would do harm."""
_FILE: Final = "version"


def write_version(odf: Path) -> None:
    """Says in the ``.odf`` folder of a workspace which version it has."""
    replace_text_file(odf / _FILE, f"{VERSION}\n")


def check_version(odf: Path) -> None:
    """Reads it again; the first workspaces did not say it.

    Raises:
        Unsupported: it is another one.
    """
    path = odf / _FILE
    try:
        text = read_small(path)[:80].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OdfError(f"the workspace cannot be read: {error.strerror}", where=str(path)) from None
    if text != str(VERSION):
        said = f"of version {text}" if text.isdecimal() else f"of an unknown version, '{text}'"
        raise Unsupported(
            f"this workspace is {said}; this program knows version {VERSION}",
            where=str(path),
            hint="open it with the newer version of odf that made it; nothing was changed",
        )


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
        workspace = cls(folder)
        if workspace._folders.is_publishing():
            # Where nothing can be written, reading goes on.
            with suppress(OdfError, OSError), workspace._lock():
                pass
        return workspace

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
        return self.odf / CONFIG_FILE

    @cached_property
    def config(self) -> settings.Config:
        """The settings that hold here, as they were when first asked for."""
        return settings.load_workspace(self.odf)

    @cached_property
    def index(self) -> BlockIndex:
        """The index of blocks, a cache."""
        return BlockIndex(self.odf / "index.sqlite")

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
        entries = [self._entry(*named) for named in self._folders.aliases()]
        return sorted(entries, key=lambda entry: str(entry.alias).lower())

    def resolve(self, text: str) -> DatasetEntry:
        """The dataset with this id or alias.

        Raises:
            InvalidIdentity: neither an id nor an alias.
            NotFound: not in this workspace; the hint suggests a name that is close.
            OdfError: no dataset has it, and the name of one cannot be read.
        """
        ref = parse_ref(text)
        named = list(self._folders.aliases())
        for each in named:
            if ref in (each.id, each.alias):
                return self._entry(*each)
        problem = None if isinstance(ref, DatasetId) else _unreadable(named)
        raise problem or self._not_found(text)

    def match(self, texts: Sequence[str]) -> list[DatasetEntry]:
        """The datasets that ids, aliases and patterns with ``%`` mean, each once, in their order.

        Raises:
            InvalidIdentity: a malformed text.
            NotFound: a text that means no dataset.
            OdfError: a text that means no dataset, and the name of one cannot be read.
        """
        found: dict[DatasetId, DatasetEntry] = {}
        everything = self.datasets()
        for text in texts:
            pattern = DatasetPattern.parse(text)
            matches = [entry for entry in everything if pattern.matches(entry.alias, entry.id)]
            if not matches:
                problem = None if isinstance(pattern.ref, DatasetId) else _unreadable(everything)
                raise problem or self._not_found(text)
            found.update((entry.id, entry) for entry in matches)
        return list(found.values())

    def summaries(self, entries: Sequence[DatasetEntry] | None = None) -> list[Summary]:
        """What lists show of every dataset, by name; one query to the index, however many.

        Args:
            entries: what :meth:`datasets` has just given, to save looking again.
        """
        return summarize(self.datasets() if entries is None else entries, self.index, self._summaries)

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
        from odf_engine.workspace.definition import plan_datasets  # what only adding needs costs every start

        with self._lock():
            self._sweep()
            existing = {each.alias: each.id for each in self._readable_names()}
            keys = _NewKeys()
            return self._make(plan_datasets(existing, snapshots, keys.new), keys, origins)

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
        from odf_engine.workspace.definition import commit_update, require_no_state
        from odf_engine.workspace.definition_update import plan_updates

        with self._lock():
            if dry_run:
                return plan_updates(self._readable_datasets(), snapshots, None).updates
            self._sweep()
            keys = _NewKeys()
            planned = plan_updates(self._readable_datasets(), snapshots, keys.new)
            for each in planned.updates:
                require_no_state(each)
            if shown is not None and [each.changes for each in shown] != [
                each.changes for each in planned.updates
            ]:
                raise Conflict(
                    "the datasets changed meanwhile", hint="look at what changes now, and try again"
                )
            made = {entry.alias: entry for entry in self._make(planned.plans, keys, origins)}
            foreign = _by_alias(origins)
            for update in planned.updates:
                if update.entry is not None and update.events:
                    origin = foreign.get(update.alias)
                    commit_update(update.entry, update, origin, block_version=self.config.block_version)
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
        from odf_engine.workspace.definition import NewDataset

        with self._lock():
            self._check_free(alias)
            keys = _NewKeys()
            dataset_id = keys.new()
            plan = NewDataset(dataset_id, alias, [Seed(dataset_id, kind), *events])
            return self._make([plan], keys, system_time=system_time)[0]

    def check_arrival(self, alias: DatasetAlias, dataset_id: DatasetId | None = None) -> None:
        """Whether a dataset of others may get this name here.

        Raises:
            AlreadyExists: the name is taken, or the dataset is here under another one.
        """
        self._check_free(alias)
        for each in self._folders.aliases():
            if each.id == dataset_id:
                hint = f"bring that one up to date: odf pull {each.alias}"
                raise AlreadyExists(f"the dataset is here already, as {each.alias}", hint=hint)

    def take_in(self, folder: Path, alias: DatasetAlias, origin: str) -> DatasetEntry:
        """Lets others see a whole dataset that somebody else made; ``folder`` moves to its place.

        Raises:
            AlreadyExists: the name is taken, or the dataset is here under another one.
        """
        with self._lock():
            dataset_id = Dataset(folder, self.index).state().dataset_id
            self.check_arrival(alias, dataset_id)
            self._folders.import_dataset(folder, dataset_id, alias, origin)
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
            self._folders.set_alias(entry.id, alias)
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
                self._folders.remove(entry.id, self.keys.delete)
            except FileNotFoundError:
                raise self._not_found(str(entry.alias)) from None
            Remotes(self.odf).forget(entry.id)
            self._opened.pop(entry.id, None)
            self._summaries.pop(entry.id, None)

    # --- Inside -------------------------------------------------------------------------------

    def _entry(
        self, dataset_id: DatasetId, alias: DatasetAlias, problem: OdfError | None = None
    ) -> DatasetEntry:
        dataset = self._opened.get(dataset_id)
        if dataset is None:
            dataset = self._opened[dataset_id] = Dataset(self._folders.path(dataset_id), self.index)
        return DatasetEntry(dataset_id, alias, dataset, problem)

    def _not_found(self, text: str) -> NotFound:
        from difflib import get_close_matches

        names = {str(each.alias).lower(): str(each.alias) for each in self._folders.aliases()}
        close = get_close_matches(text.lower(), names, n=1)
        hint = f"did you mean '{names[close[0]]}'?" if close else "see what is here with: odf list"
        return NotFound(f"there is no dataset '{text}' in {self.folder}", hint=hint)

    def _readable_names(self, but: DatasetId | None = None) -> list[NamedDataset]:
        """The names of all datasets but one, to compare with a name that is about to be given.

        Raises:
            OdfError: one of them cannot be read, and may be the same.
        """
        named = [each for each in self._folders.aliases() if each.id != but]
        if problem := _unreadable(named):
            raise problem
        return named

    def _readable_datasets(self) -> list[DatasetEntry]:
        return [self._entry(*each) for each in self._readable_names()]

    def _check_free(self, alias: DatasetAlias, but: DatasetId | None = None) -> None:
        for each in self._readable_names(but):
            if each.alias == alias:
                raise AlreadyExists(
                    f"a dataset named {each.alias} exists already", hint="choose another name"
                )

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keeps other processes from making, renaming or deleting datasets."""
        with file_lock(self.odf / "lock"):
            if self._folders.is_publishing():
                self._folders.recover()
                self._sweep()
            yield

    def _make(
        self,
        plans: Sequence[NewDataset],
        keys: Mapping[DatasetId, str],
        origins: Mapping[str, str] | None = None,
        system_time: Timestamp | None = None,
    ) -> list[DatasetEntry]:
        """Makes all of these datasets, or none; only under the lock.

        Args:
            plans: the datasets.
            keys: their private keys.
            origins: as for :meth:`add`.
            system_time: of their blocks; by default now.
        """
        now = system_time or Timestamp.now()
        foreign = _by_alias(origins)
        version = self.config.block_version
        ids = [plan.id for plan in plans]
        heads: dict[DatasetId, Multihash] = {}
        try:
            for plan in plans:
                folder = self._folders.stage(plan.id, plan.alias, foreign.get(plan.alias))
                self.keys.store(plan.id, keys[plan.id])  # after its folder, which tells a sweep of the key
                heads[plan.id] = Dataset(folder, self.index).commit(
                    plan.events, system_time=now, expected_head=None, block_version=version
                )
            self._folders.publish(heads)
        except BaseException as error:
            for dataset_id in ids:
                self.keys.delete(dataset_id)
            self._folders.discard(ids)
            if isinstance(error, NotSynced):
                raise error.as_failure() from error  # what was committed is discarded again
            raise
        return [self._entry(plan.id, plan.alias) for plan in plans]

    def _sweep(self) -> None:
        for dataset_id in self._folders.unfinished_ids():
            self.keys.delete(dataset_id)  # before the folders go: a sweep that is killed is done again
        self._folders.sweep()


class _NewKeys(dict["DatasetId", str]):
    """Private keys of datasets that are about to be made."""

    def new(self) -> DatasetId:
        """Makes a key pair; the identity of the dataset."""
        dataset_id, self[dataset_id] = new_key()
        return dataset_id


def _unreadable(named: Iterable[NamedDataset | DatasetEntry]) -> OdfError | None:
    """Why the name of one of these datasets cannot be read; None if all can."""
    return next((each.problem for each in named if each.problem is not None), None)


def _by_alias(origins: Mapping[str, str] | None) -> dict[DatasetAlias, str]:
    return {DatasetAlias.parse(name): origin for name, origin in (origins or {}).items()}
