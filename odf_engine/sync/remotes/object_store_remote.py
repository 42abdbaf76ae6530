"""Remote datasets in buckets of object stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from odf_engine.errors import (
    BadData,
    ConditionalWriteUnsupported,
    Conflict,
    InvalidIdentity,
    NotFound,
    SourceUnavailable,
    UsageError,
    WriteConditionFailed,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import is_valid_name
from odf_engine.net.bucket_client import (
    PART_BYTES,
    BucketClient,
    StoredObject,
)
from odf_engine.net.credentials import RemoteAccess
from odf_engine.storage.refs import HEAD
from odf_engine.sync.remotes.base import (
    MAX_BLOCK_BYTES,
    MAX_HEAD_BYTES,
    BlockwiseRemote,
    ObjectFile,
    ObjectKind,
    ObjectNames,
    RepositoryEntry,
    read_verified_chunks,
    require_empty_target,
)

if TYPE_CHECKING:
    from obstore import PutMode

_Condition = Literal["create", "update"]
_NO_VERSION: Final[PutMode] = {"e_tag": '"00000000000000000000000000000000"'}
_conditional_writes: dict[tuple[str, str, _Condition], bool] = {}
"""Whether a bucket of a service supports a condition, as far as this process has found out."""


class ObjectStoreRemote(BlockwiseRemote):
    """A dataset in a bucket, which can be read and, if the service allows it, written.

    ``reference`` is its head, or the branch that is read and written instead.
    """

    def __init__(self, url: str, access: RemoteAccess, reference: str = HEAD) -> None:
        self.url = url
        self._head_key = f"refs/{reference}"
        self._access = access
        self._client = BucketClient(url, access)
        self._was_case_tried = False
        self._reporter = access.reporter
        self._names = ObjectNames()
        self._is_empty = False

    def head(self) -> Multihash | None:
        """Return the newest block, or None if there is no dataset yet."""
        head, _ = self._read_head()
        if head is None and not self._was_case_tried:
            self._was_case_tried = True
            if (url := _find_other_case(self.url, self._access)) is not None:
                self._client = BucketClient(url, self._access)
                head, _ = self._read_head()
        return head

    def reference(self, name: str) -> Multihash | None:
        """Return the block of a reference, or None if it does not exist or is no hash."""
        stored = self._client.read(f"refs/{name}", MAX_HEAD_BYTES)
        try:
            return None if stored is None else Multihash.parse(stored.data.decode("ascii", "replace").strip())
        except InvalidIdentity:
            return None

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return a small object."""
        what = f"{kind}/{object_hash}"
        for name in self._names.candidates(object_hash, rare=True):
            if (stored := self._client.read(f"{kind}/{name}", at_most)) is not None:
                self._names.learn(name)
                if len(stored.data) > at_most:
                    raise BadData(f"{what} has more than {at_most:,} bytes", where=self.url)
                return stored.data
        raise NotFound(f"{what} not found", where=self.url)

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes]:
        """Yield a large object in chunks, from byte ``start``."""
        for name in self._names.candidates(file.hash, rare=True):
            chunks = self._client.chunks(f"{file.kind}/{name}", start, file.size + 1)
            if chunks is not None:
                self._names.learn(name)
                return chunks
        raise NotFound(f"{file.kind}/{file.hash} not found", where=self.url)

    def close(self) -> None:
        """Cancel the requests in other threads."""
        self._client.close()

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Return whether the object exists, with this size."""
        stored_size = self.size(kind, object_hash)
        return stored_size is not None and size in (None, stored_size)

    def size(self, kind: ObjectKind, object_hash: Multihash) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        # New objects have names in base16. Others are checked only if the dataset has such.
        for name in dict.fromkeys([next(self._names.candidates(object_hash)), str(object_hash)]):
            if (stored_size := self._client.size(f"{kind}/{name}")) is not None:
                return stored_size
        return None

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Store a small object; an existing one is overwritten with the same bytes."""
        self._check_target()
        self._client.write(f"{kind}/{object_hash}", data)

    def upload(self, file: ObjectFile, source: Path, on_progress: Callable[[int], None]) -> None:
        """Store a large object, if its bytes match its hash."""
        self._check_target()
        name = f"{file.kind}/{file.hash}"
        if file.size <= PART_BYTES:
            self._client.write(name, b"".join(read_verified_chunks(file, source)))
            on_progress(file.size)
            return

        def pieces() -> Iterator[bytes]:
            sent = 0
            for piece in read_verified_chunks(file, source):
                yield piece
                sent += len(piece)
                on_progress(sent)

        # An error of the iterator, such as a wrong hash at its end, aborts the upload.
        self._client.upload(name, file.size, pieces())

    def set_ref(self, name: str, block: Multihash) -> None:
        """Set a reference to a block; an existing one is not changed."""
        if self._client.read(f"refs/{name}", MAX_HEAD_BYTES) is None:
            self._client.write(f"refs/{name}", str(block).encode())

    def replace_ref(self, name: str, block: Multihash) -> None:
        """Set a reference to a block; an existing one is changed."""
        self._client.write(f"refs/{name}", str(block).encode())

    def set_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Move the head by a conditional write.

        Raises:
            Conflict: the head has moved.
        """
        head, stored = self._require_head(expected)
        if self._supports_condition("create" if stored is None else "update", new):
            self._swap_head(head, stored, new)
        else:
            self._reporter.log(
                f"{self.url}: the service has no conditional writes: if another client pushes at the same"
                " time, one of the two pushes may be lost",
                "warning",
            )
            # Of two clients within the same milliseconds, the later one wins. The earlier one gets a conflict
            # if it reads the head after that, else at its next push.
            self._client.write(self._head_key, str(new).encode())
            self._require_head(new)

    def _swap_head(self, expected: Multihash | None, stored: StoredObject | None, new: Multihash) -> None:
        """Write the head unless it has changed since it was read.

        A failed response does not mean that the head was not written, and a refusal may follow from a
        repeated request that was successful at first. Therefore the head is read again after each failure.
        """
        for attempt in range(self._client.config.retries + 1):
            mode: PutMode = "create" if stored is None else stored.version
            try:
                self._client.write(self._head_key, str(new).encode(), mode)
                return
            except (WriteConditionFailed, SourceUnavailable):
                head, stored = self._read_head()
                if head == new:
                    return
                if head != expected:
                    raise self._moved(head) from None
                if attempt == self._client.config.retries:
                    raise

    def _supports_condition(self, condition: _Condition, new: Multihash) -> bool:
        """Return whether the bucket supports conditional writes of a kind.

        Some services ignore the condition. Therefore the newest block is written once more, with a condition
        that is false: it is not changed by that, even without support.
        """
        location = self._client.location
        if location.provider != "s3" or self._client.service == "s3":
            return True
        key = self._client.service, location.bucket, condition
        if (known := _conditional_writes.get(key)) is None:
            data = self.read("blocks", new, MAX_BLOCK_BYTES)
            mode: PutMode = "create" if condition == "create" else _NO_VERSION
            known = False
            try:
                self._client.write(f"blocks/{next(self._names.candidates(new))}", data, mode)
            except WriteConditionFailed:
                known = True
            except ConditionalWriteUnsupported:
                pass
            _conditional_writes[key] = known
        return known

    def _read_head(self) -> tuple[Multihash | None, StoredObject | None]:
        stored = self._client.read(self._head_key, MAX_HEAD_BYTES)
        self._is_empty = stored is None and self._head_key == f"refs/{HEAD}"
        if stored is None:
            return None, None
        if len(stored.data) > MAX_HEAD_BYTES:
            raise BadData(f"{self._head_key} is not the hash of a block: too many bytes", where=self.url)
        text = stored.data.decode("ascii", "replace").strip(" \t\r\n\v\f")
        try:
            head = Multihash.parse(text)
        except InvalidIdentity as error:
            problem = f"{self._head_key} is not the hash of a block: {error.message}"
            raise BadData(problem, where=self.url) from None
        self._names.learn(text)
        return head, stored

    def _require_head(self, head: Multihash | None) -> tuple[Multihash | None, StoredObject | None]:
        current, stored = self._read_head()
        if current != head:
            raise self._moved(current)
        return current, stored

    def _moved(self, head: Multihash | None) -> Conflict:
        problem = f"the remote head was moved by another client, to {head or 'nothing'}"
        return Conflict(problem, where=self.url, hint="push again")

    def _check_target(self) -> None:
        """Check that a target without a dataset is not a repository of many datasets."""
        if self._is_empty:
            with suppress(NotFound, SourceUnavailable):  # write access does not imply list access
                folders, names = self._client.list("")
                require_empty_target([*folders, *names], self.url)
            self._is_empty = False


def _find_other_case(url: str, access: RemoteAccess) -> str | None:
    """Return the URL of a dataset whose name, or account, is written in another case, or None.

    Names are case-insensitive (chapter "Aliases and References" of the specification).
    """
    place, name = url.rstrip("/").rsplit("/", 1)
    for parent in (f"{place}/", *_same_names(place, access)):
        for dataset in _same_names(f"{parent}{name}", access):
            client = BucketClient(dataset, access)
            if client.read(f"refs/{HEAD}", MAX_HEAD_BYTES) is not None:
                return dataset
    return None


def _same_names(url: str, access: RemoteAccess) -> list[str]:
    """Return the URLs of folders beside a folder of a bucket whose names differ only in case."""
    place, name = url.rsplit("/", 1)
    if not urlsplit(place).netloc or not is_valid_name(name):
        return []
    # Read access does not imply list access, and the bucket itself has no siblings.
    with suppress(NotFound, SourceUnavailable, UsageError):
        folders, _ = BucketClient(f"{place}/", access).list("")
        return [f"{place}/{other}/" for other in folders if other.lower() == name.lower()]
    return []


class ObjectStoreRepository:
    """A bucket, or the keys below a prefix, with datasets by name. Those of accounts are one level deeper."""

    def __init__(self, url: str, access: RemoteAccess) -> None:
        self.url = url
        self._client = BucketClient(url, access)
        self._parallel = access.config.sync.parallel

    def datasets(self) -> Iterator[RepositoryEntry]:
        """Yield the datasets that have a head, sorted by name."""
        names = self._names("")
        with ThreadPoolExecutor(self._parallel, "list") as pool:
            for datasets in pool.map(self._find_datasets, names):
                yield from datasets

    def close(self) -> None:
        """Cancel the requests in other threads."""
        self._client.close()

    def _find_datasets(self, name: str) -> list[RepositoryEntry]:
        """Return the dataset with this name, or the datasets of an account."""
        if (dataset := self._dataset(name)) is not None:
            return [dataset]
        try:
            names = self._names(name)
        except NotFound:
            return []  # deleted since it was listed
        return list(filter(None, map(self._dataset, names)))

    def _dataset(self, name: str) -> RepositoryEntry | None:
        stored = self._client.read(f"{name}/refs/{HEAD}", MAX_HEAD_BYTES)
        if stored is None:
            return None
        head = None
        with suppress(InvalidIdentity):  # damaged: a pull reports it
            head = str(Multihash.parse(stored.data.decode("ascii", "replace").strip()))
        return RepositoryEntry(name, f"{self.url}{name}/", head=head)

    def _names(self, below: str) -> list[str]:
        """Return the names below a prefix that may be datasets or accounts, with their account."""
        folders, _ = self._client.list(below)
        names = sorted(filter(is_valid_name, folders), key=str.lower)
        return [f"{below}/{name}".lstrip("/") for name in names]
