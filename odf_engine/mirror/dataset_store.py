"""The store of a workspace: the list of its datasets, and the requests for each of them.

Layout below the URL: ``odf-store.json`` lists names and ids of the datasets; each dataset is a folder
named by its id, in the layout of the specification ("Dataset Layout"), which other clients can pull.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from odf_engine.base.atomic_files import replace_file
from odf_engine.base.config import Config
from odf_engine.base.lazy import LazyModule
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
    UsageError,
    WriteConditionFailed,
)
from odf_engine.identity.did import DID_PREFIX, DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.mirror.catalog import CATALOG, HEADS, CachedCatalog, Catalog, CatalogEntry, Heads, Operation

if TYPE_CHECKING:
    from obstore import UpdateVersion

    from odf_engine.mirror import store_client
    from odf_engine.mirror.signed_download import RunDownloads
else:  # imports urllib3, and a list of cached datasets sends no requests
    store_client = LazyModule("odf_engine.mirror.store_client")

SCHEMES: Final = ("s3", "s3+http", "s3+https", "gs", "az", "file")
_MAX_CATALOG_BYTES: Final = 64 << 20
_ATTEMPTS: Final = 30
DELETED_BATCH: Final = 500
"""Number of objects that are deleted between two checks of who owns them."""
_LEASE_SECONDS: Final = 3600.0
"""A creation or deletion without an end counts as interrupted after this time."""
_UNKNOWN_AGE: Final = timedelta(days=1)
_MAX_TOKENS: Final = 100
# Google compares versions, which are times in microseconds, and the others compare ETags.
_FALSE_VERSION: Final[UpdateVersion] = {"e_tag": '"00000000000000000000000000000000"', "version": "3"}


def normalize_url(text: str, folder: Path) -> str:
    """Return the URL of a store with a slash at its end; relative paths start at ``folder``.

    Raises:
        UsageError: an unsupported URL, or one with a query, a fragment or a login.
    """
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        hint = "use s3://BUCKET/PREFIX, s3+https://HOST/BUCKET/PREFIX, gs://BUCKET, az://NAME or file:FOLDER"
        raise UsageError("unsupported URL of a store", where=text, hint=hint)
    if parts.scheme == "file":
        path = (folder / unquote(parts.netloc + parts.path)).resolve()
        return f"{path.as_uri()}/"
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(
            "the URL of a store has no login, query or fragment", hint="store the login: odf repo login"
        )
    return text.rstrip("/") + "/"


class DatasetStore:
    """The store at a URL. Creation sends no requests. Thread-safe and process-safe.

    Attributes:
        heads_cache: the copy of the list of heads, see :mod:`odf_engine.mirror.heads_list`.
        run_downloads: lets other machines download objects, or None if there are none.

    Args:
        url: the URL, with a slash at its end.
        odf: the ``.odf`` folder of the workspace.
        config: the settings.
    """

    def __init__(self, url: str, odf: Path, config: Config) -> None:
        self.url = url
        self.config = config
        self.run_downloads: RunDownloads | None = None
        self._odf = odf
        self._cache = odf / "cache" / "store.json"
        self.heads_cache = odf / "cache" / "store-heads.json"
        self._tokens = odf / "cache" / "store-operations.json"

    @cached_property
    def client(self) -> store_client.StoreClient:
        """The client of the store."""
        return store_client.open_client(self.url, self.config, self._odf)

    def prepare(self) -> int:
        """Create the list of datasets, unless it exists; return its number of datasets.

        A folder is created if its parent exists.

        Raises:
            NotFound: the bucket, or the parent of the folder, does not exist.
            SourceUnavailable: access is denied, or the service does not respond.
            Unsupported: the service ignores the conditions of writes.
        """
        if isinstance(self.client, store_client.FolderClient):
            self.client.create_folder()
        stored = self.client.read(CATALOG, _MAX_CATALOG_BYTES)
        if stored is not None:
            return len(self._decode(stored.data).datasets)
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
        with suppress(WriteConditionFailed):
            self.client.write(HEADS, msgspec.json.encode(Heads(checked=time.time())), "create")
        return 0

    def _unsupported(self) -> Unsupported:
        problem = "the service does not support conditional writes, so concurrent commits could be lost"
        return Unsupported(
            problem, where=self.url, hint="use another service, or a repository (odf repo add)"
        )

    def cached(self) -> CachedCatalog | None:
        """Return the list that was read last, or None if absent."""
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
            stored = (
                self.client.read(CATALOG, _MAX_CATALOG_BYTES)
                if known is None
                else self.client.read_changed(CATALOG, _MAX_CATALOG_BYTES, _version(known.tag))
            )
        except ObjectUnchanged:
            assert known is not None
            self._cache.touch()
            return known
        if stored is None:
            problem = "the store does not exist: its list of datasets is missing"
            raise NotFound(problem, where=self.url, hint="check the URL: odf config get store.url")
        current = CachedCatalog(self._decode(stored.data), dict(stored.version))  # type: ignore[arg-type]
        self._keep(current)
        return current

    def change(self, edit: Callable[[dict[str, CatalogEntry], dict[str, Operation]], object]) -> Catalog:
        """Change the list by a conditional write, which is repeated after changes by other machines.

        Args:
            edit: changes the entries and the operations in progress; its errors end the change.

        Raises:
            Conflict: other machines changed the list at each attempt.
            SourceUnavailable: the list cannot be read or written.
        """
        for attempt in range(_ATTEMPTS):
            current = self.read()
            entries, pending = dict(current.catalog.datasets), dict(current.catalog.pending)
            edit(entries, pending)
            if (entries, pending) == (current.catalog.datasets, current.catalog.pending):
                return current.catalog
            new = Catalog(entries, uuid.uuid4().hex, pending=pending)
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

    def begin(self, names: Collection[str], kind: Literal["create", "delete"]) -> str:
        """Reserve datasets that are not in the list for a creation or deletion; return its token.

        Objects that an interrupted operation has left are deleted.

        Raises:
            AlreadyExists: the list has a dataset.
            Conflict: another machine is creating or deleting a dataset.
        """
        token = self._new_token()
        operation = Operation(kind, token, time.time())

        def edit(known: dict[str, CatalogEntry], pending: dict[str, Operation]) -> None:
            for name in names:
                if name in known:
                    raise AlreadyExists("the dataset already exists in the store", where=self.url)
                self._require_ended(pending.get(name))
                pending[name] = operation

        self.change(edit)
        for name in names:
            self._erase(name, token)
        return token

    def add(self, entries: Mapping[str, CatalogEntry], token: str) -> None:
        """Add complete datasets that were reserved with :meth:`begin`, all or none.

        Raises:
            AlreadyExists: another machine has added a dataset with such a name.
            Conflict: the reservation has expired, and another machine has taken it over.
        """

        def edit(known: dict[str, CatalogEntry], pending: dict[str, Operation]) -> None:
            names = {other.alias.lower() for other in known.values()}
            for name, entry in entries.items():
                if not _is_owned(pending, name, token):
                    raise self._lost()
                if entry.alias.lower() in names:
                    raise AlreadyExists(f"dataset {entry.alias} already exists in the store")
                del pending[name]
            known.update(entries)

        self.change(edit)

    def end(self, names: Collection[str], token: str) -> None:
        """Delete the objects of datasets that an operation still owns, and end it."""
        mine: list[str] = []

        def edit(known: dict[str, CatalogEntry], pending: dict[str, Operation]) -> None:
            mine[:] = [name for name in names if _is_owned(pending, name, token)]
            pending.update({name: Operation("delete", token, time.time()) for name in mine})

        self.change(edit)
        for name in mine:
            self._erase(name, token)

        def finish(known: dict[str, CatalogEntry], pending: dict[str, Operation]) -> None:
            for name in mine:
                if _is_owned(pending, name, token):
                    del pending[name]

        if mine:
            self.change(finish)

    def rename(self, name: str, alias: str) -> None:
        """Rename a dataset.

        Raises:
            AlreadyExists: another dataset has the name.
            NotFound: the dataset was deleted.
        """

        def edit(known: dict[str, CatalogEntry], pending: dict[str, Operation]) -> None:
            if name not in known:
                raise NotFound("the dataset was deleted by another machine", where=self.url)
            if any(other.alias.lower() == alias.lower() for key, other in known.items() if key != name):
                raise AlreadyExists(f"dataset {alias} already exists in the store")
            known[name] = msgspec.structs.replace(known[name], alias=alias)

        self.change(edit)

    def remove(self, name: str) -> None:
        """Remove a dataset from the list, then its objects; nothing if another machine has removed it."""
        token = self._new_token()

        def edit(known: dict[str, CatalogEntry], pending: dict[str, Operation]) -> None:
            if known.pop(name, None) is not None:
                pending[name] = Operation("delete", token, time.time())

        self.change(edit)
        self.end([name], token)

    def interrupted(self) -> list[str]:
        """Return the datasets with objects that an interrupted creation or deletion has left.

        Unknown folders count if their newest object is older than a day: their owner can be an earlier
        version.
        """
        catalog = self.read().catalog
        newest: dict[str, datetime] = {}
        for path, stored in self.client.list_all("").items():
            name, slash, _ = path.partition("/")
            if slash and name not in catalog.datasets and name not in catalog.pending:
                newest[name] = max(stored, newest.get(name, stored))
        before = datetime.now(UTC) - _UNKNOWN_AGE
        ended = [name for name, operation in catalog.pending.items() if self._has_ended(operation)]
        unknown = [name for name, stored in newest.items() if stored < before and _is_dataset(name)]
        return sorted([*ended, *unknown])

    def run_parallel(self, work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        """Call ``work`` for each item in several threads; return the results.

        Raises:
            Exception: the first error, after the running calls have finished.
        """
        if len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(32, len(items)), "store") as pool:
            return list(pool.map(work, items))

    def _new_token(self) -> str:
        """Return a token that shows a later command whether its operation was interrupted."""
        token = uuid.uuid4().hex
        replace_file(self._tokens, msgspec.json.encode([*self._own_tokens()[-_MAX_TOKENS:], token]))
        return token

    def _own_tokens(self) -> list[str]:
        try:
            return msgspec.json.decode(self._tokens.read_bytes(), type=list[str])
        except (OSError, msgspec.MsgspecError):
            return []

    def _has_ended(self, operation: Operation) -> bool:
        """Return whether an operation was interrupted. The caller has the lock of the workspace."""
        return time.time() - operation.since > _LEASE_SECONDS or operation.token in self._own_tokens()

    def _require_ended(self, operation: Operation | None) -> None:
        if operation is not None and not self._has_ended(operation):
            word = "creating" if operation.kind == "create" else "deleting"
            raise Conflict(
                f"another machine is {word} the dataset",
                where=self.url,
                hint="try again later; if that machine was interrupted, run odf fsck --repair there, or wait"
                " an hour",
            )

    def _lost(self) -> Conflict:
        problem = (
            "the creation took longer than an hour, and another machine has created or deleted the dataset"
        )
        return Conflict(problem, where=self.url, hint="try again")

    def _erase(self, name: str, token: str) -> None:
        """Delete the objects of a dataset, references first, while the operation owns it.

        Raises:
            Conflict: another machine has taken it over.
        """
        names = sorted(self.client.list_all(name), key=lambda key: (not key.startswith("refs/"), key))
        for start in range(0, len(names), DELETED_BATCH):
            if not _is_owned(self.read().catalog.pending, name, token):
                raise self._lost()
            self.client.delete([f"{name}/{part}" for part in names[start : start + DELETED_BATCH]])

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


def _is_owned(pending: Mapping[str, Operation], name: str, token: str) -> bool:
    return name in pending and pending[name].token == token


def _is_dataset(name: str) -> bool:
    try:
        return DatasetId.parse(DID_PREFIX + name).multibase == name
    except InvalidIdentity:
        return False


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
