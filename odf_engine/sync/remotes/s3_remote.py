"""Remote datasets in S3 buckets."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from odf_engine.errors import (
    BadData,
    Conflict,
    InvalidIdentity,
    NotFound,
    SourceUnavailable,
    Unsupported,
    UsageError,
)
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import is_valid_name
from odf_engine.net.credentials import RemoteAccess
from odf_engine.net.s3_client import BUCKET, S3Bucket, S3Client, S3Credentials, endpoint_of
from odf_engine.storage.object_store import STAGING_PREFIX, candidate_names
from odf_engine.storage.refs import HEAD
from odf_engine.sync.remotes.base import (
    MAX_HEAD_BYTES,
    BlockwiseRemote,
    ObjectFile,
    ObjectKind,
    RepositoryEntry,
    read_verified_chunks,
    require_empty_target,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, S3FileSystem

_PIECE: Final = 8 << 20
"""Bytes of one read or write request. Smaller objects are written atomically."""
_MAX_COPIED: Final = 5 << 30
ProgressCallback = Callable[[int], None]


class S3Location(NamedTuple):
    """A bucket of a service (endpoint empty for Amazon), and the keys below a prefix.

    ``root`` is bucket and prefix, without a slash at its end.
    """

    endpoint: str
    bucket: str
    root: str

    @classmethod
    def of(cls, url: str) -> S3Location:
        """Parse an ``s3:`` or ``s3+http(s):`` URL.

        Raises:
            UsageError: it has no bucket.
        """
        parts = urlsplit(url)
        path = unquote(parts.path).strip("/")
        if parts.scheme == "s3":
            endpoint, bucket = "", parts.netloc
            root = f"{bucket}/{path}".rstrip("/")
        else:
            endpoint = f"{parts.scheme.removeprefix('s3+')}://{parts.netloc}"
            bucket, root = path.partition("/")[0], path
        if not BUCKET.fullmatch(bucket):
            hint = "use s3://BUCKET/PREFIX/ or s3+https://HOST/BUCKET/PREFIX/"
            raise UsageError("the URL has no S3 bucket", where=url, hint=hint)
        return cls(endpoint, bucket, root)


def _s3_client(url: str, location: S3Location, access: RemoteAccess) -> S3Client:
    config, login = access.config.fetch, access.credentials.of(url)
    keys = S3Credentials(login.user, login.secret, login.token or None) if login and login.user else None
    service = S3Bucket(location.bucket, location.endpoint or endpoint_of(config), keys, config)
    return S3Client(url, service, access.reporter)


class S3Remote(BlockwiseRemote):
    """A dataset in a bucket, which can be read and, if the service allows it, written."""

    def __init__(self, url: str, access: RemoteAccess) -> None:
        self.url = url
        self._location = S3Location.of(url)
        self._client = _s3_client(url, self._location, access)
        self._old_names = False
        self._is_empty = False

    # --- Reading ------------------------------------------------------------------------------

    def head(self) -> Multihash | None:
        """Return the newest block; None if there is no dataset yet."""
        data = self._client.run(
            "refs/head", lambda service: _read_small(service, self._ref(HEAD), MAX_HEAD_BYTES)
        )
        self._is_empty = data is None
        if data is None:
            self._client.run("the bucket", self._check_bucket)
            return None
        if len(data) > MAX_HEAD_BYTES:
            raise BadData("refs/head is not the hash of a block: too many bytes", where=self.url)
        text = data.decode("ascii", "replace").strip(" \t\r\n\v\f")
        try:
            found = Multihash.parse(text)
        except InvalidIdentity as error:
            problem = f"refs/head is not the hash of a block: {error.message}"
            raise BadData(problem, where=self.url) from None
        self._old_names = self._old_names or text != str(found)
        return found

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """Return a small object."""
        what = f"{kind}/{object_hash}"
        for name in self._names(object_hash):
            key = f"{self._location.root}/{kind}/{name}"
            data = self._client.run(what, lambda service, key=key: _read_small(service, key, at_most))
            if data is not None:
                self._old_names = name != str(object_hash)
                break
        else:
            raise NotFound(f"{what} not found", where=self.url)
        if len(data) > at_most:
            raise BadData(f"{what} has more than {at_most:,} bytes", where=self.url)
        return data

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes]:
        """Yield a large object in chunks, from byte ``start``."""
        what = f"{file.kind}/{file.hash}"
        source = self._open(file)
        try:
            at, end = start, min(source.size(), file.size + 1)
            while at < end:
                many = min(_PIECE, end - at)
                chunk = self._client.run(what, lambda _, at=at, many=many: source.read_at(many, at))
                if not chunk:
                    return
                at += len(chunk)
                yield chunk
        finally:
            source.close()

    def close(self) -> None:
        """Release the connections."""
        self._client.close()

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Return whether the object exists, with this size."""
        # New objects have canonical names. Older names are checked only if the dataset has such.
        for name in self._names(object_hash)[: 2 if self._old_names else 1]:
            key = f"{self._location.root}/{kind}/{name}"
            found = self._client.run(f"{kind}/{name}", lambda service, key=key: _object_size(service, key))
            if found is not None:
                return size in (None, found)
        return False

    # --- Writing ------------------------------------------------------------------------------

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Store a small object; an existing one is overwritten with the same bytes."""
        self._check_target()
        self._put(f"{kind}/{object_hash}", data)

    def upload(self, file: ObjectFile, source: Path, on_progress: ProgressCallback) -> None:
        """Store a large object, if its bytes match its hash."""
        self._check_target()
        name = f"{file.kind}/{file.hash}"
        if file.size <= _PIECE:
            self._put(name, b"".join(read_verified_chunks(file, source)))
            on_progress(file.size)
        elif file.size <= _MAX_COPIED:
            self._client.run(name, lambda service: self._put_large(service, file, source, on_progress))
        else:
            hint = "push the dataset to a folder or a server"
            raise Unsupported(f"{name} has more than 5 GiB, the limit of S3", where=self.url, hint=hint)

    def set_ref(self, name: str, block: Multihash) -> None:
        """Set a reference to a block; an existing one is not changed."""
        key = self._ref(name)
        if self._client.run(key, lambda service: _read_small(service, key, MAX_HEAD_BYTES)) is None:
            self._put(f"refs/{name}", str(block).encode())

    def set_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Move the head.

        The protocol has no compare-and-swap: the head is read immediately before and after it is written. Two
        writers
        within the same few milliseconds can both find the expected head. Then the later one wins, and the
        earlier one
        gets a conflict if its second read comes after that. Only the head is overwritten: the blocks and data
        of both
        exist, and the next push of the other writer detects the divergence.
        """
        self._require_head(expected)
        self._put(f"refs/{HEAD}", str(new).encode())
        self._require_head(new)

    # --- Private ------------------------------------------------------------------------------

    def _require_head(self, head: Multihash | None) -> None:
        if (found := self.head()) != head:
            problem = f"the remote head was moved by another client, to {found or 'nothing'}"
            raise Conflict(problem, where=self.url, hint="push again")

    def _check_target(self) -> None:
        """Check that a target without a dataset is not a repository of many datasets."""
        if self._is_empty:
            names: list[str] = []
            with suppress(NotFound, SourceUnavailable):  # write access does not imply list access
                names = [info.base_name for info in self._client.run("such folder", self._entries)]
            require_empty_target(names, self.url)
            self._is_empty = False

    def _entries(self, service: S3FileSystem) -> list[FileInfo]:
        # Deferred: Arrow is slow to import.
        from pyarrow.fs import FileSelector

        return service.get_file_info(FileSelector(self._location.root))

    def _put(self, name: str, data: bytes) -> None:
        """Store an object with one request, which is atomic."""
        key = f"{self._location.root}/{name}"

        def write(service: S3FileSystem) -> None:
            with service.open_output_stream(key, compression=None) as target:
                target.write(data)

        self._client.run(name, write)

    def _put_large(
        self, service: S3FileSystem, file: ObjectFile, source: Path, on_progress: ProgressCallback
    ) -> None:
        """Store an object with many requests, under a temporary name: an interrupted stream would publish a
        part.
        """
        folder, name = f"{self._location.root}/{file.kind}", str(file.hash)
        staged, sent = f"{folder}/{STAGING_PREFIX}{secrets.token_hex(8)}", 0
        try:
            with service.open_output_stream(staged, compression=None) as stream:
                for piece in read_verified_chunks(file, source):
                    stream.write(piece)
                    sent += len(piece)
                    on_progress(sent)
            if (size := service.get_file_info(staged).size) != file.size:
                raise OSError(f"{size or 0:,} of {file.size:,} bytes of {file.kind}/{name} were stored")
            service.copy_file(staged, f"{folder}/{name}")
        finally:
            with suppress(OSError):
                service.delete_file(staged)

    def _open(self, file: ObjectFile) -> Any:
        for name in self._names(file.hash):
            key = f"{self._location.root}/{file.kind}/{name}"
            try:
                found = self._client.run(name, lambda service, key=key: service.open_input_file(key))
            except NotFound:
                continue
            self._old_names = name != str(file.hash)
            return found
        raise NotFound(f"{file.kind}/{file.hash} not found", where=self.url)

    def _names(self, object_hash: Multihash) -> list[str]:
        """Return the possible names of an object, first the kind that was found last."""
        names = list(candidate_names(object_hash))
        return names[::-1] if self._old_names else names

    def _ref(self, name: str) -> str:
        return f"{self._location.root}/refs/{name}"

    def _check_bucket(self, service: S3FileSystem) -> None:
        with suppress(OSError):  # read access to objects does not imply access to the bucket
            if service.get_file_info(self._location.bucket).type:
                return
            raise NotFound(f"bucket {self._location.bucket} not found", where=self.url)


class S3Repository:
    """A bucket, or the keys below a prefix, with datasets by name. Those of accounts are one level deeper."""

    def __init__(self, url: str, access: RemoteAccess) -> None:
        self.url = url
        self._location = S3Location.of(url)
        self._client = _s3_client(url, self._location, access)
        self._parallel = access.config.sync.parallel

    def datasets(self) -> Iterator[RepositoryEntry]:
        """Yield the datasets that have a head, sorted by name."""
        names = self._names("")
        with ThreadPoolExecutor(self._parallel, "list") as pool:
            for found in pool.map(self._find_datasets, names):
                yield from found

    def close(self) -> None:
        """Release the connections."""
        self._client.close()

    def _find_datasets(self, name: str) -> list[RepositoryEntry]:
        """Return the dataset with this name, or those of an account."""
        if (found := self._dataset(name)) is not None:
            return [found]
        return list(filter(None, map(self._dataset, self._names(f"{name}/"))))

    def _dataset(self, name: str) -> RepositoryEntry | None:
        key = f"{self._location.root}/{name}/refs/{HEAD}"
        data = self._client.run(name, lambda service: _read_small(service, key, MAX_HEAD_BYTES))
        if data is None:
            return None
        head = None
        with suppress(InvalidIdentity):  # damaged: a pull reports it
            head = str(Multihash.parse(data.decode("ascii", "replace").strip()))
        return RepositoryEntry(name, f"{self.url}{name}/", head=head)

    def _names(self, below: str) -> list[str]:
        """Return the names below a prefix that may be datasets or accounts, with their account."""
        folder = f"{self._location.root}/{below}".rstrip("/")

        def list_folders(service: S3FileSystem) -> list[str]:
            from pyarrow.fs import FileSelector, FileType

            found = service.get_file_info(FileSelector(folder))
            return [info.base_name for info in found if info.type == FileType.Directory]

        names = sorted(filter(is_valid_name, self._client.run("such folder", list_folders)), key=str.lower)
        return [below + name for name in names]


def _object_size(service: S3FileSystem, key: str) -> int | None:
    """Return the size of an object in bytes; None if it does not exist."""
    try:
        with service.open_input_file(key) as source:
            return source.size()
    except FileNotFoundError:
        return None


def _read_small(service: S3FileSystem, key: str, at_most: int) -> bytes | None:
    """Return an object, or its first ``at_most`` + 1 bytes; None if it does not exist."""
    try:
        with service.open_input_file(key) as source:
            return source.read_at(min(source.size(), at_most + 1), 0)
    except FileNotFoundError:
        return None
