"""The store of a workspace: the list of its datasets, and the requests for each of them.

Layout below the URL: ``odf-store.json`` lists names and ids of the datasets; each dataset is a folder
named by its id, in the layout of the specification ("Dataset Layout"), which other clients can pull.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from odf_engine.config import Config
from odf_engine.errors import (
    AlreadyExists,
    BadData,
    ConditionalWriteUnsupported,
    Conflict,
    InvalidIdentity,
    NotFound,
    ObjectUnchanged,
    SourceUnavailable,
    Unsupported,
    WriteConditionFailed,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.mirror.catalog import CATALOG, CachedCatalog, Catalog, CatalogEntry
from odf_engine.progress import Reporter
from odf_engine.storage.atomic_files import replace_file

if TYPE_CHECKING:
    from obstore import UpdateVersion

    from odf_engine.mirror.store_client import StoreClient

_MAX_CATALOG_BYTES: Final = 64 << 20
_ATTEMPTS: Final = 30
# Google compares versions, which are times in microseconds, and the others compare ETags.
_FALSE_VERSION: Final[UpdateVersion] = {"e_tag": '"00000000000000000000000000000000"', "version": "3"}


class DatasetStore:
    """The store at a URL. Creation sends no requests. Thread-safe and process-safe.

    Args:
        url: the URL, with a slash at its end.
        odf: the ``.odf`` folder of the workspace.
        config: the settings.
    """

    def __init__(self, url: str, odf: Path, config: Config) -> None:
        self.url = url
        self.config = config
        self._odf = odf
        self._cache = odf / "cache" / "store.json"

    @cached_property
    def client(self) -> StoreClient:
        """The client of the store."""
        # Deferred: a list of cached datasets sends no requests.
        from odf_engine.mirror.store_client import open_client
        from odf_engine.net.credentials import Credentials, RemoteAccess

        return open_client(self.url, RemoteAccess(self.config, Credentials(self._odf), Reporter()))

    # --- Setup --------------------------------------------------------------------------------

    def prepare(self) -> int:
        """Create the list of datasets, unless it exists; return its number of datasets.

        A folder is created if its parent exists.

        Raises:
            NotFound: the bucket, or the parent of the folder, does not exist.
            SourceUnavailable: access is denied, or the service does not respond.
            Unsupported: the service ignores the conditions of writes.
        """
        from odf_engine.mirror.store_client import FolderClient

        if isinstance(self.client, FolderClient):
            self.client.create_folder()
        found = self.client.read(CATALOG, _MAX_CATALOG_BYTES)
        if found is not None:
            return len(self._decode(found.data).datasets)
        data = msgspec.json.encode(Catalog(revision=uuid.uuid4().hex))
        try:
            self.client.write(CATALOG, data, "create")
        except WriteConditionFailed:
            return self.prepare()  # another machine has created it
        except ConditionalWriteUnsupported:
            raise self._unsupported() from None
        for mode in ("create", _FALSE_VERSION):
            try:
                self.client.write(CATALOG, data, mode)  # type: ignore[arg-type]
            except WriteConditionFailed:
                continue
            except ConditionalWriteUnsupported:
                pass
            self.client.delete([CATALOG])
            raise self._unsupported()
        return 0

    def _unsupported(self) -> Unsupported:
        problem = "the service does not support conditional writes, so concurrent commits could be lost"
        return Unsupported(
            problem, where=self.url, hint="use another service, or a repository (odf repo add)"
        )

    # --- The list of datasets -----------------------------------------------------------------

    def cached(self) -> CachedCatalog | None:
        """Return the list that was read last; None if there is none."""
        try:
            return msgspec.json.decode(self._cache.read_bytes(), type=CachedCatalog)
        except (OSError, msgspec.MsgspecError):
            return None

    def cache_age(self) -> float:
        """Return the seconds since the list was last compared with the store."""
        try:
            return max(0.0, time.time() - self._cache.stat().st_mtime)
        except OSError:
            return float("inf")

    def read(self) -> CachedCatalog:
        """Return the current list, by one conditional request.

        Raises:
            NotFound: the store does not exist.
            SourceUnavailable: it cannot be read.
        """
        known = self.cached()
        try:
            found = (
                self.client.read(CATALOG, _MAX_CATALOG_BYTES)
                if known is None
                else self.client.read_changed(CATALOG, _MAX_CATALOG_BYTES, _version(known.tag))
            )
        except ObjectUnchanged:
            assert known is not None
            self._cache.touch()
            return known
        if found is None:
            problem = "the store does not exist: its list of datasets is missing"
            raise NotFound(problem, where=self.url, hint="check the URL: odf config get store.url")
        current = CachedCatalog(self._decode(found.data), dict(found.version))  # type: ignore[arg-type]
        self._keep(current)
        return current

    def change(self, edit: Callable[[dict[str, CatalogEntry]], object]) -> Catalog:
        """Change the list by a conditional write, which is repeated after changes by other machines.

        Args:
            edit: changes the entries; its errors end the change.

        Raises:
            Conflict: other machines changed the list at each attempt.
            SourceUnavailable: the list cannot be read or written.
        """
        for attempt in range(_ATTEMPTS):
            current = self.read()
            entries = dict(current.catalog.datasets)
            edit(entries)
            new = Catalog(entries, uuid.uuid4().hex)
            try:
                tag = self.client.write(CATALOG, msgspec.json.encode(new), _version(current.tag))
            except (WriteConditionFailed, SourceUnavailable) as error:
                # A failed response does not mean that the list was not written.
                if self.read().catalog.revision == new.revision:
                    return new
                if isinstance(error, SourceUnavailable):
                    raise
                time.sleep(random.uniform(0, 0.02 * min(attempt + 1, 10)))
                continue
            self._keep(CachedCatalog(new, dict(tag)))  # type: ignore[arg-type]
            return new
        raise Conflict("other machines keep changing the list of datasets", where=self.url, hint="try again")

    def add(self, entries: Mapping[str, CatalogEntry]) -> None:
        """Add complete datasets, all or none.

        Raises:
            AlreadyExists: another machine has added a dataset with such a name or id.
        """

        def edit(known: dict[str, CatalogEntry]) -> None:
            names = {each.alias.lower() for each in known.values()}
            for name, entry in entries.items():
                if entry.alias.lower() in names or name in known:
                    raise AlreadyExists(f"dataset {entry.alias} already exists in the store")
            known.update(entries)

        self.change(edit)

    def rename(self, name: str, alias: str) -> None:
        """Rename a dataset.

        Raises:
            AlreadyExists: another dataset has the name.
            NotFound: the dataset was deleted.
        """

        def edit(known: dict[str, CatalogEntry]) -> None:
            if name not in known:
                raise NotFound("the dataset was deleted by another machine", where=self.url)
            if any(each.alias.lower() == alias.lower() for key, each in known.items() if key != name):
                raise AlreadyExists(f"dataset {alias} already exists in the store")
            known[name] = msgspec.structs.replace(known[name], alias=alias)

        self.change(edit)

    def remove(self, name: str) -> None:
        """Remove a dataset from the list, then its objects."""
        self.change(lambda known: known.pop(name, None))
        self.discard(name)

    def discard(self, name: str) -> None:
        """Delete the objects of a dataset that is not in the list."""
        self.client.delete([f"{name}/{each}" for each in self.client.list_all(name)])

    def run_parallel(self, work: Callable[[Any], object], items: list[Any]) -> None:
        """Call ``work`` for each item in several threads.

        Raises:
            Exception: the first error, after the running calls have finished.
        """
        if len(items) < 2:
            for each in items:
                work(each)
            return
        with ThreadPoolExecutor(min(32, len(items)), "store") as pool:
            for _ in pool.map(work, items):
                pass

    # --- Private ------------------------------------------------------------------------------

    def _decode(self, data: bytes) -> Catalog:
        try:
            catalog = msgspec.json.decode(data, type=Catalog)
        except msgspec.MsgspecError as error:
            raise BadData(f"{CATALOG} is damaged: {error}", where=self.url) from None
        if catalog.version != 1:
            problem = f"unsupported version {catalog.version} of {CATALOG}"
            raise Unsupported(problem, where=self.url, hint="use a newer version of odf")
        return catalog

    def _keep(self, current: CachedCatalog) -> None:
        replace_file(self._cache, msgspec.json.encode(current))


def _version(tag: Mapping[str, str]) -> UpdateVersion:
    return dict(tag)  # type: ignore[return-value]


def parse_head(data: bytes, where: str) -> Multihash:
    """Return the hash in a reference.

    Raises:
        BadData: it is not a hash.
    """
    try:
        return Multihash.parse(data[:4096].decode("ascii", "replace").strip(" \t\r\n\v\f"))
    except InvalidIdentity as error:
        raise BadData(f"refs/head is not the hash of a block: {error.message}", where=where) from None
