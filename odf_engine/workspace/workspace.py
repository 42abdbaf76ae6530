"""A workspace: a folder with ``.odf/`` in it, and its datasets by name."""

from __future__ import annotations

import fcntl
import getpass
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from odf_engine.base import settings
from odf_engine.base.atomic_files import file_lock
from odf_engine.base.config import Config, is_local
from odf_engine.base.files import open_file, remove_file, translate_os_errors
from odf_engine.base.lazy import LazyModule
from odf_engine.base.settings import CONFIG_FILE
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.chain.state import ChainState
from odf_engine.data.ddl import type_ddl
from odf_engine.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    NotSynced,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.identity.did import DatasetId, KeyStore, generate_key
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias, DatasetPattern, parse_ref
from odf_engine.identity.ownership_proof import PROOFS_FOLDER, create_and_store_proof, is_actor
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot, MetadataEvent, Seed
from odf_engine.metadata.resources import SourceDefinition
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.mirror.catalog import CatalogEntry
from odf_engine.mirror.dataset_mirror import DatasetMirror
from odf_engine.mirror.dataset_store import DatasetStore, normalize_url
from odf_engine.tables import METADATA_FOLDERS
from odf_engine.workspace.dataset_folders import DatasetFolders, NamedDataset
from odf_engine.workspace.dataset_summary import (
    DatasetEntry,
    NewDataset,
    Summary,
    summarize,
)
from odf_engine.workspace.discovery import (
    ODF_FOLDER,
    check_dataset_folder,
    check_version,
    make_workspace_folder,
    workspace_folder,
    write_version,
)
from odf_engine.workspace.documents.private_source import (
    list_private_sources,
    remove_private_source,
    store_private_source,
)
from odf_engine.workspace.remotes import Remotes, localize_inputs
from odf_engine.workspace.seals import mark_own
from odf_engine.workspace.store_overview import StoreOverview, read_local_head

if TYPE_CHECKING:
    from odf_engine.mirror.signed_download import RunDownloads
    from odf_engine.tables import dataset_tables
    from odf_engine.workspace.definitions import definition, definition_update, query_check
    from odf_engine.workspace.definitions.definition import PlannedUpdate
else:  # slow to import, and most commands do not need them
    dataset_tables = LazyModule("odf_engine.tables.dataset_tables")
    definition = LazyModule("odf_engine.workspace.definitions.definition")
    definition_update = LazyModule("odf_engine.workspace.definitions.definition_update")
    query_check = LazyModule("odf_engine.workspace.definitions.query_check")


_FRESH_SECONDS: Final = 0.5
"""Age of the state of a store after which a command that names datasets reads it again."""
_OFFLINE_SECONDS: Final = 30.0
"""Time after a failed request in which a store is not read, so that cached datasets can be browsed."""


class Workspace:
    """A workspace on disk. Creation is cheap. Thread-safe and process-safe.

    Attributes:
        folder: the folder that relative paths of sources refer to.
        odf: the ``.odf`` folder in it.
        store_problem: why the store of the datasets could not be read. The datasets are then in the state
            that was last read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.odf = folder / ODF_FOLDER
        self._folders = DatasetFolders(self.odf / "datasets")
        self._opened: dict[DatasetId, Dataset] = {}
        self._summaries: dict[DatasetId, Summary] = {}
        self._offline_until = 0.0
        self.store_problem: OdfError | None = None

    @classmethod
    def find(cls, start: Path | None = None, explicit: Path | None = None) -> Self:
        """Open a workspace.

        It is in ``explicit``, otherwise in ``$ODF_WORKSPACE``, otherwise in ``start`` or a parent of it.

        Raises:
            NotFound: there is no ``.odf`` folder; the hint has the command to create one.
            Unsupported: the workspace has a newer version; nothing is changed.
        """
        folder = workspace_folder(start, explicit)
        check_version(folder / ODF_FOLDER)
        workspace = cls(folder)
        with translate_os_errors(workspace.odf):
            is_publishing = workspace._folders.is_publishing()
        if is_publishing:
            # On a read-only file system, the workspace can still be read.
            with suppress(OdfError, OSError), workspace._lock():
                pass
        return workspace

    @classmethod
    def init(cls, folder: Path, store: str | None = None) -> Self:
        """Create a workspace in ``folder``, which is created if it is missing.

        Args:
            folder: the folder.
            store: the URL of an object store for the datasets, which may have datasets.

        Raises:
            AlreadyExists: it is already a workspace.
            UsageError: an unsupported URL of a store.
            SourceUnavailable: the store cannot be read or written.
            Unsupported: the store has no conditional writes.
        """
        workspace = cls(folder.expanduser().resolve())
        config = Config()
        if store is not None:
            if (workspace.odf).is_dir():
                raise AlreadyExists(f"{workspace.folder} is already a workspace")
            url = normalize_url(store, workspace.folder)
            config = replace(config, store=replace(config.store, url=url))
            effective = settings.load_workspace(workspace.odf)
            DatasetStore(url, workspace.odf, effective).prepare()
        make_workspace_folder(workspace.folder)
        workspace._folders.home.mkdir()
        write_version(workspace.odf)
        settings.save(config, workspace.config_path)
        return workspace

    @property
    def config_path(self) -> Path:
        """The file of settings."""
        return self.odf / CONFIG_FILE

    @cached_property
    def config(self) -> Config:
        """The effective settings, read once."""
        return settings.load_workspace(self.odf)

    @cached_property
    def actor(self) -> str:
        """The name of the actor in signatures: ``signing.actor``, by default the login name."""
        if self.config.signing.actor:
            return self.config.signing.actor
        try:
            login = getpass.getuser()
        except (OSError, KeyError):  # this user has no entry in the database of users
            return ""
        return login if is_actor(login) else ""

    @cached_property
    def store(self) -> DatasetStore | None:
        """The object store with the datasets, or None if they are in the ``.odf`` folder."""
        url = self.config.store.url
        if not url:
            return None
        return DatasetStore(url, self.odf, self.config)

    def use_downloads(self, run_downloads: RunDownloads) -> None:
        """Let the executors of a cluster download slices from the store, if there are both.

        Args:
            run_downloads: runs downloads on the executors.
        """
        if self._usable_store is not None and not is_local(self.config.spark.master):
            self._usable_store.run_downloads = run_downloads

    @cached_property
    def _listing(self) -> StoreOverview:
        """The datasets as the store lists them."""
        store = self.store
        assert store is not None
        return StoreOverview(store, self.index, self._open_mirror)

    def _open_mirror(self, dataset_id: DatasetId) -> DatasetEntry | None:
        if not self._folders.is_mirror(dataset_id):
            return None
        return self._entry(dataset_id, DatasetAlias(None, dataset_id.multibase))

    @property
    def _usable_store(self) -> DatasetStore | None:
        """The store, or None if absent or the settings are invalid, which must not prevent reading.

        Datasets of a store cannot be opened without valid settings.
        """
        try:
            return self.store
        except OdfError:
            return None

    def _store_of(self, dataset_id: DatasetId) -> DatasetStore | None:
        """Return the store of a dataset, or None if the dataset is only in the ``.odf`` folder.

        Raises:
            OdfError: the dataset is in a store, and the settings are invalid.
        """
        try:
            store = self.store
        except OdfError:
            if self._folders.is_mirror(dataset_id):
                raise
            return None
        return store if store is not None and self._folders.is_mirror(dataset_id) else None

    @cached_property
    def index(self) -> BlockIndex:
        """The index of blocks, a cache."""
        return BlockIndex(self.odf / "index.sqlite")

    @cached_property
    def keys(self) -> KeyStore:
        """The private keys of datasets, including datasets that are no longer in the workspace."""
        return KeyStore(self.odf / "keys")

    def grant_path(self, dataset_id: DatasetId) -> Path:
        """Return the file with the permission to run the sources of a dataset, which may not exist."""
        return self.odf / "trust" / f"{dataset_id.multibase}.json"

    def resolve_path(self, text: str) -> Path:
        """Return a path or ``file:`` URL of a manifest as an absolute path.

        Relative paths refer to the workspace's folder.
        """
        if text[:5].lower() == "file:":
            parts = urlsplit(text)
            # In file://data/x.csv, a common form of a relative path, `data` is parsed as the host.
            host = "" if parts.netloc == "localhost" else parts.netloc
            text = unquote(host + parts.path)
        path = Path(text)
        return self.folder / (path.expanduser() if path.parts[:1] == ("~",) else path)

    def close(self) -> None:
        """Close the files of the indexes of blocks. The next use opens them again."""
        if "_listing" in self.__dict__:
            self._listing.heads.finish()
        self.index.close()
        for dataset in self._opened.values():
            dataset.close_branches()

    def datasets(self) -> list[DatasetEntry]:
        """Return all datasets, sorted by name."""
        return self._list_datasets(is_overview=False)[0]

    def overview(self) -> list[Summary]:
        """Return the summaries of all datasets, sorted by name, for people.

        A dataset in a store that was never read is not read now: the store lists what another machine has
        read from it.
        """
        entries, listed = self._list_datasets(is_overview=True)
        return self._with_private_sources(summarize(entries, self.index, self._summaries, listed))

    def _list_datasets(self, *, is_overview: bool) -> tuple[list[DatasetEntry], dict[DatasetId, Summary]]:
        store = self._usable_store
        max_age = 0.0 if store is None else store.config.store.refresh_seconds
        named: list[NamedDataset] | None = None
        if store is not None and time.monotonic() >= self._offline_until:
            heads = self._listing.heads
            named, _ = store.run_parallel(lambda read: read(max_age), [self._read_catalog, heads.prefetch])
        entries = [self._entry(*item) for item in (self._folders.aliases() if named is None else named)]
        listed: dict[DatasetId, Summary] = {}
        if store is not None and time.monotonic() >= self._offline_until:
            with self._reported_offline():
                listed = self._listing.follow(entries, max_age, is_overview=is_overview)
        return sorted(entries, key=lambda entry: str(entry.alias).lower()), listed

    def resolve(self, text: str) -> DatasetEntry:
        """Return the dataset with this id or alias.

        Raises:
            InvalidIdentity: neither an id nor an alias.
            NotFound: there is no such dataset; the hint suggests a similar name.
            OdfError: there is no such dataset, and the name of one cannot be read.
        """
        ref = parse_ref(text)
        self._read_catalog(_FRESH_SECONDS)
        named = list(self._folders.aliases())
        for listed in named:
            if ref in (listed.id, listed.alias):
                entry = self._entry(*listed)
                self._refresh([entry], _FRESH_SECONDS)
                return entry
        problem = None if isinstance(ref, DatasetId) else _find_name_problem(named)
        raise problem or self._not_found(text)

    def match(self, texts: Sequence[str]) -> list[DatasetEntry]:
        """Return the datasets that match ids, aliases and patterns with ``%``, each once, in their order.

        Raises:
            InvalidIdentity: a malformed text.
            NotFound: a text without a match.
            OdfError: a text without a match, and the name of a dataset cannot be read.
        """
        dataset_entries: dict[DatasetId, DatasetEntry] = {}
        self._read_catalog(_FRESH_SECONDS)
        everything = sorted(
            (self._entry(*named) for named in self._folders.aliases()),
            key=lambda entry: str(entry.alias).lower(),
        )
        for text in texts:
            pattern = DatasetPattern.parse(text)
            matches = [entry for entry in everything if pattern.matches(entry.alias, entry.id)]
            if not matches:
                problem = None if isinstance(pattern.ref, DatasetId) else _find_name_problem(everything)
                raise problem or self._not_found(text)
            dataset_entries.update((entry.id, entry) for entry in matches)
        self._refresh(list(dataset_entries.values()), _FRESH_SECONDS)
        return list(dataset_entries.values())

    def summaries(self, entries: Sequence[DatasetEntry] | None = None) -> list[Summary]:
        """Return the summaries of all datasets, sorted by name, with one query to the index.

        Args:
            entries: the result of :meth:`datasets`, to avoid reading it again.
        """
        entries = self.datasets() if entries is None else entries
        return self._with_private_sources(summarize(entries, self.index, self._summaries))

    def _with_private_sources(self, summaries: list[Summary]) -> list[Summary]:
        private = list_private_sources(self.odf)
        if not private:
            return summaries
        return [replace(item, polls=True) if item.id in private else item for item in summaries]

    def column_types(self, ref: str) -> dict[str, str | None] | None:
        """Return the types of the columns of a dataset, by name in lower case: names of Spark's types.

        None if the dataset is not in the workspace or has no schema.
        """
        try:
            schema = declared_schema(self.resolve(ref).dataset.state())
        except OdfError:
            return None
        if schema is None:
            return None
        return {field.name.lower(): type_ddl(field.type).partition("(")[0].upper() for field in schema}

    def add(
        self,
        snapshots: Sequence[DatasetSnapshot],
        origins: Mapping[str, str] | None = None,
        *,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> list[DatasetEntry]:
        """Create datasets from their definitions, in any order: all or none.

        Args:
            snapshots: the definitions.
            origins: origins of definitions by other authors, by dataset name. Such a dataset runs nothing
                until it is trusted (see :mod:`odf_engine.workspace.trust`).
            on_progress: called with the progress in percent. If it raises an error, no dataset is created.

        Raises:
            AlreadyExists: a name exists.
            NotFound: inputs that neither exist nor are among ``snapshots``; the message lists all of them.
            RemoteInputs: inputs are in remotes and were not pulled.
            OdfError: a definition is invalid.
        """
        with self._lock():
            self._sweep()
            existing = {name.alias: name.id for name in self._readable_names()}
            keys = _NewKeys()
            _check_private_sources(snapshots, origins)
            snapshots = self.localize_inputs(snapshots)
            plans = definition.plan_datasets(existing, snapshots, keys.new, self.config.metadata)
            query_check.check_queries(plans, self.config.engines)
            return self._make(plans, keys, origins, on_progress=on_progress)

    def update(
        self,
        snapshots: Sequence[DatasetSnapshot],
        origins: Mapping[str, str] | None = None,
        *,
        dry_run: bool = False,
        shown: Sequence[PlannedUpdate] | None = None,
        accepts_columns: bool = False,
    ) -> list[PlannedUpdate]:
        """Append the events that make datasets match their definitions. Nothing is deleted.

        A definition of an unknown dataset creates it. All definitions are checked before anything is changed.
        Each dataset then changes by one commit. What a definition does not mention is unchanged.

        Args:
            snapshots: the definitions, in any order.
            origins: as for :meth:`add`; a dataset changed by a third party is no longer own.
            dry_run: return the changes without making them.
            shown: the result of a dry run that the user has confirmed.
            accepts_columns: whether preprocess queries may return columns that their datasets do not have.

        Returns:
            The changes, one for each definition, in their order; some may have no events.

        Raises:
            Conflict: another process committed to one of the datasets, which is unchanged; or the changes
                differ from ``shown``.
            ChainRuleViolated: a change that an append rule rejects, such as an incompatible schema.
            InvalidSchema: a preprocess query returns columns that its dataset does not have.
            UsageError: a query with a state changes, and the state requires a decision.
            RemoteInputs: inputs are in remotes and were not pulled.
            OdfError: a definition is invalid.
        """
        with self._lock():
            keys = None if dry_run else _NewKeys()
            if not dry_run:
                self._sweep()
            _check_private_sources(snapshots, origins)
            new_id, forms = None if keys is None else keys.new, self.config.metadata
            snapshots = self.localize_inputs(snapshots)
            planned = definition_update.plan_updates(self._readable_datasets(), snapshots, new_id, forms)
            query_check.check_queries(planned.updates, self.config.engines)
            if not accepts_columns:
                checked = [
                    replace(item, unused=query_check.check_result_columns(item)) for item in planned.updates
                ]
                planned = planned._replace(updates=checked)
            if keys is None:
                return planned.updates
            for planned_update in planned.updates:
                definition.require_no_state(planned_update)
            if shown is not None and [item.changes for item in shown] != [
                item.changes for item in planned.updates
            ]:
                raise Conflict("the datasets have changed", hint="review the changes, then try again")
            new_entries = {entry.alias: entry for entry in self._make(planned.plans, keys, origins)}
            foreign = _origins_by_alias(origins)
            changed = [str(alias) for alias in new_entries]
            for update in planned.updates:
                if update.entry is None or not update.changes:
                    continue
                try:
                    origin = foreign.get(update.alias)
                    definition.commit_update(
                        update.entry, update, origin, block_version=self.config.block_version
                    )
                except OdfError as error:
                    _add_progress(error, changed, update.alias, planned.updates)
                    raise
                changed.append(str(update.alias))
        return [
            replace(update, entry=new_entries[update.alias]) if update.is_new else update
            for update in planned.updates
        ]

    def localize_inputs(self, snapshots: Sequence[DatasetSnapshot]) -> list[DatasetSnapshot]:
        """Return definitions with local datasets instead of remote inputs; see
        :func:`odf_engine.workspace.remotes.localize_inputs`.
        """
        existing = {name.alias: name.id for name in self._readable_names()}
        return localize_inputs(snapshots, existing, Remotes(self.odf))

    def create_dataset(
        self,
        alias: DatasetAlias,
        kind: DatasetKind,
        events: Sequence[MetadataEvent] = (),
        system_time: Timestamp | None = None,
    ) -> DatasetEntry:
        """Create a dataset with a new id from complete events.

        Raises:
            AlreadyExists: the name exists.
            ChainRuleViolated: the events violate an append rule.
        """
        with self._lock():
            self._check_free(alias)
            keys = _NewKeys()
            dataset_id = keys.new()
            plan = NewDataset(dataset_id, alias, [Seed(dataset_id, kind), *events])
            return self._make([plan], keys, system_time=system_time)[0]

    def check_importable(self, alias: DatasetAlias, dataset_id: DatasetId | None = None) -> None:
        """Check that a received dataset may have this name.

        Raises:
            AlreadyExists: the name exists, or the workspace has the dataset under another name.
        """
        self._check_free(alias)
        for known in self._folders.aliases():
            if known.id == dataset_id:
                hint = f"update it: odf pull {known.alias}"
                raise AlreadyExists(
                    f"the dataset already exists in this workspace, as {known.alias}", hint=hint
                )

    def import_dataset(self, folder: Path, alias: DatasetAlias, origin: str) -> DatasetEntry:
        """Add a complete received dataset to the workspace by moving its ``folder``.

        Raises:
            AlreadyExists: the name exists, or the workspace has the dataset under another name.
        """
        with self._lock():
            dataset_id = Dataset(folder, self.index).state().dataset_id
            self.check_importable(alias, dataset_id)
            if self.store is not None:
                self._publish({dataset_id: folder}, {dataset_id: CatalogEntry(str(alias), origin)})
            self._folders.import_dataset(folder, dataset_id, alias, origin)
            self._opened.pop(dataset_id, None)
            entry = self._entry(dataset_id, alias)
            if self.store is not None:
                self._listing.note([entry])
            return entry

    def rename(self, entry: DatasetEntry, alias: DatasetAlias) -> DatasetEntry:
        """Rename a dataset.

        Raises:
            AlreadyExists: another dataset has the name.
            NotFound: the dataset no longer exists.
        """
        with self._lock():
            self._check_free(alias, but=entry.id)
            if not self._folders.path(entry.id).is_dir():
                raise self._not_found(str(entry.alias))
            if (store := self._store_of(entry.id)) is not None:
                store.rename(entry.id.multibase, str(alias))
            self._folders.set_alias(entry.id, alias)
            return self._entry(entry.id, alias)

    def check_deletable(self, entries: Sequence[DatasetEntry]) -> None:
        """Check that no other dataset reads these.

        Raises:
            OdfError: other datasets do; the message lists them.
        """
        ids = {entry.id for entry in entries}
        others = [other for other in self.summaries() if other.id not in ids]
        for entry in entries:
            readers = [other.name for other in others if entry.id in other.inputs]
            if readers:
                raise OdfError(
                    f"{entry.alias} has downstream datasets: " + ", ".join(readers),
                    hint="delete them first, or in the same command",
                )

    def delete(self, entry: DatasetEntry) -> None:
        """Delete a dataset: its data, remotes and permissions. Its private key remains, see
        :meth:`delete_key`.

        Raises:
            OdfError: other datasets read it; the message lists them.
            NotSynced: the dataset was deleted, but a power failure may undo it.
        """
        with self._lock():
            self.check_deletable([entry])
            with suppress(OdfError):
                if head := entry.dataset.head():
                    self.index.remove_chain(head)
            if (store := self._store_of(entry.id)) is not None:
                store.remove(entry.id.multibase)
                self._listing.heads.note({entry.id.multibase: None})
            try:
                self._folders.remove(entry.id)
            except FileNotFoundError:
                raise self._not_found(str(entry.alias)) from None
            # The dataset is deleted: an error must not report a failure. `odf fsck` finds what remains.
            with suppress(OdfError, OSError):
                Remotes(self.odf).forget(entry.id)
            with suppress(OdfError, OSError):
                remove_file(self.grant_path(entry.id))
            with suppress(OSError):
                remove_private_source(entry.dataset.folder)
            self._opened.pop(entry.id, None)
            self._summaries.pop(entry.id, None)

    def delete_key(self, dataset_id: DatasetId) -> None:
        """Delete the private key of a dataset, which cannot be created again.

        Raises:
            NotFound: the key is not in the workspace.
        """
        with self._lock():
            if not self.keys.has_key(dataset_id):
                raise NotFound(
                    f"private key of {dataset_id} not found in this workspace", hint="run odf keys list"
                )
            self.keys.delete(dataset_id)

    def _entry(
        self, dataset_id: DatasetId, alias: DatasetAlias, problem: OdfError | None = None
    ) -> DatasetEntry:
        dataset = self._opened.get(dataset_id)
        if dataset is None:
            dataset = self._open(dataset_id, self._folders.path(dataset_id))
            self._opened[dataset_id] = dataset
        return DatasetEntry(dataset_id, alias, dataset, problem)

    def _open(self, dataset_id: DatasetId, folder: Path) -> Dataset:
        check_dataset_folder(folder)
        if (store := self._store_of(dataset_id)) is None:
            return Dataset(folder, self.index, signer=self._sign_head, listener=_update_tables)
        mirror = DatasetMirror(store, folder, dataset_id.multibase, self._listing.heads)
        return Dataset(folder, self.index, mirror, signer=self._sign_head, listener=_update_tables)

    def _sign_head(self, folder: Path, state: ChainState) -> Path | None:
        """Sign the head of a commit, if ``signing.commits`` is set and the private key is here."""
        if not self.config.signing.commits or not self.keys.has_key(state.dataset_id):
            return None
        key = self.keys.private_key_pem(state.dataset_id)
        proof = create_and_store_proof(folder, state.dataset_id, key, state.head, self.actor)
        return folder / PROOFS_FOLDER / str(proof.head)

    def _read_catalog(self, max_age: float) -> list[NamedDataset] | None:
        """Read the list of datasets from the store, unless it was read in the last ``max_age`` seconds.

        Without access to the store, the datasets remain as they are; see :attr:`store_problem`.

        Returns:
            The datasets in this workspace, or None if they were not read or have changed.
        """
        store = self._usable_store
        if store is None or store.cache_age() <= max_age or time.monotonic() < self._offline_until:
            return None
        with (
            self._reported_offline(),
            translate_os_errors(self.odf),
            open_file(self.odf / "lock", "wb") as lock,
        ):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None  # another command changes datasets
            return self._folders.follow(store.read().catalog.datasets)
        return None

    def _refresh(self, entries: Sequence[DatasetEntry], max_age: float) -> None:
        """Read the heads of datasets from the store, unless read in the last ``max_age`` seconds."""
        store = self._usable_store
        if store is None or time.monotonic() < self._offline_until:
            return
        old = [
            entry.dataset
            for entry in entries
            if isinstance(origin := entry.dataset.origin, DatasetMirror)
            and (origin.age() > max_age or not read_local_head(entry))
        ]
        with self._reported_offline():
            store.run_parallel(Dataset.refresh, old)

    @contextmanager
    def _reported_offline(self) -> Iterator[None]:
        try:
            yield
            self.store_problem = None
        except (SourceUnavailable, NotFound) as error:
            self.store_problem = error
            self._offline_until = time.monotonic() + _OFFLINE_SECONDS

    def _publish(self, folders: Mapping[DatasetId, Path], entries: Mapping[DatasetId, CatalogEntry]) -> None:
        """Store complete new datasets, then add them to the list of the store: all or none."""
        store = self.store
        assert store is not None
        names = [new_id.multibase for new_id in folders]
        token = store.begin(names, "create")
        try:
            for dataset_id, folder in folders.items():
                head = Dataset(folder, self.index).head()
                assert head is not None, "the dataset is complete"
                DatasetMirror(store, folder, dataset_id.multibase).publish(None, None, head)
            store.add({new_id.multibase: entry for new_id, entry in entries.items()}, token)
        except BaseException:
            with suppress(OdfError):
                store.end(names, token)
            raise

    def _not_found(self, text: str) -> NotFound:
        from difflib import get_close_matches

        names = {str(alias.alias).lower(): str(alias.alias) for alias in self._folders.aliases()}
        close = get_close_matches(text.lower(), names, n=1)
        hint = f"did you mean '{names[close[0]]}'?" if close else "list all datasets: odf list"
        return NotFound(f"dataset '{text}' not found in {self.folder}", hint=hint)

    def _readable_names(self, but: DatasetId | None = None) -> list[NamedDataset]:
        """Return the names of all datasets but one, to compare them with a new name.

        Raises:
            OdfError: a name cannot be read, and may be the same.
        """
        named = [alias for alias in self._folders.aliases() if alias.id != but]
        if problem := _find_name_problem(named):
            raise problem
        return named

    def _readable_datasets(self) -> list[DatasetEntry]:
        return [self._entry(*name) for name in self._readable_names()]

    def _check_free(self, alias: DatasetAlias, but: DatasetId | None = None) -> None:
        for name in self._readable_names(but):
            if name.alias == alias:
                raise AlreadyExists(f"dataset {name.alias} already exists", hint="choose another name")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the creation, renaming and deletion of datasets; recover from an interrupted creation."""
        with translate_os_errors(self.odf), file_lock(self.odf / "lock"):
            if (store := self._usable_store) is not None:
                self._folders.follow(store.read().catalog.datasets)
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
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> list[DatasetEntry]:
        """Create all of these datasets, or none. Requires the lock.

        Args:
            plans: the datasets.
            keys: their private keys.
            origins: as for :meth:`add`.
            system_time: system time of their blocks; by default the current time.
            on_progress: as for :meth:`add`.
        """
        now = system_time or Timestamp.now()
        foreign = _origins_by_alias(origins)
        version = self.config.block_version
        ids = [plan.id for plan in plans]
        heads: dict[DatasetId, Multihash] = {}
        try:
            staged = [self._folders.stage(plan.id, plan.alias, foreign.get(plan.alias)) for plan in plans]
            self._folders.sync()
            for number, (plan, folder) in enumerate(zip(plans, staged, strict=True)):
                on_progress(100 * number / len(plans))
                self.keys.store(plan.id, keys[plan.id])  # after its folder, which leads a sweep to the key
                if plan.alias not in foreign:
                    mark_own(self.keys, plan.id)
                heads[plan.id] = Dataset(folder, self.index, signer=self._sign_head).commit(
                    plan.events, system_time=now, expected_head=None, block_version=version
                )
                if plan.private is not None:
                    store_private_source(self._folders.path(plan.id), plan.private)
            if self.store is not None and plans:
                self._publish(
                    dict(zip(ids, staged, strict=True)),
                    {plan.id: CatalogEntry(str(plan.alias), foreign.get(plan.alias) or "") for plan in plans},
                )
                self._complete_creation(heads)
            else:
                self._folders.publish(heads)
        except BaseException as error:
            if self.store is not None:
                try:
                    listed = self.store.read().catalog.datasets
                except OdfError:
                    raise error from None  # the store may list the datasets: their keys stay
                if any(dataset_id.multibase in listed for dataset_id in ids):
                    raise
            self._folders.discard(ids, self.keys.delete)
            for dataset_id in ids:
                remove_private_source(self._folders.path(dataset_id))
            if isinstance(error, NotSynced):
                raise error.as_failure() from error  # the commit was discarded
            raise
        entries = [self._entry(plan.id, plan.alias) for plan in plans]
        if self.store is not None:
            self._listing.note(entries)
        return entries

    def _complete_creation(self, heads: Iterable[DatasetId]) -> None:
        """Publish the folders of datasets that the store lists. An interruption is completed later."""
        for dataset_id in heads:
            self._folders.staging_path(dataset_id).rename(self._folders.path(dataset_id))

    def _sweep(self) -> None:
        for dataset_id in self._folders.find_uncreated_ids():
            self.keys.delete(dataset_id)  # before the folders, so that an interrupted sweep can be repeated
        self._folders.sweep()


def _update_tables(dataset: Dataset) -> None:
    if any((dataset.folder / name).exists() for name in METADATA_FOLDERS.values()):
        dataset_tables.update_tables(dataset)


class _NewKeys(dict["DatasetId", str]):
    """Private keys of datasets that are about to be created."""

    def new(self) -> DatasetId:
        """Generate a key pair; return the id of the dataset."""
        dataset_id, self[dataset_id] = generate_key()
        return dataset_id


def _find_name_problem(named: Iterable[NamedDataset | DatasetEntry]) -> OdfError | None:
    """Return why the name of one of these datasets cannot be read, or None if all can."""
    return next((item.problem for item in named if item.problem is not None), None)


def _add_progress(
    error: OdfError, changed: list[str], failed: DatasetAlias, updates: Sequence[PlannedUpdate]
) -> None:
    """Add to the error of an update which of the datasets are changed and which are not."""
    if isinstance(error, NotSynced):
        changed = [*changed, str(failed)]
    names = [str(update.alias) for update in updates if update.events]
    if not changed or names == changed == [str(failed)]:
        return
    rest = [name for name in names if name not in changed]
    parts = [f"changed before the error: {', '.join(changed)}"]
    if rest:
        parts.append(f"not changed: {', '.join(rest)}; run the same command again to change them")
    error.hint = error.hint and error.hint.removeprefix("nothing was committed; ")  # true of one dataset only
    error.message = f"{error.message} ({'; '.join(parts)})"


def _check_private_sources(definitions: Sequence[DatasetSnapshot], origins: Mapping[str, str] | None) -> None:
    for item in definitions:
        if isinstance(item, SourceDefinition) and item.name in (origins or {}):
            raise UsageError(
                f"the Source {item.name} is from {(origins or {})[item.name]}: it could send your values"
                " elsewhere",
                hint="save it as a file, check it, then add the file",
            )


def _origins_by_alias(origins: Mapping[str, str] | None) -> dict[DatasetAlias, str]:
    return {DatasetAlias.parse(name): origin for name, origin in (origins or {}).items()}
