"""Datasets in folders: the repository layout in files, as backups, USB sticks and network drives have it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from odf_engine.errors import BadData, MalformedBlock, NotFound, SourceUnavailable
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.refs import is_name
from odf_engine.storage.objects import LocalObjects, find_name, make_folder
from odf_engine.storage.refs import HEAD, LocalRefs
from odf_engine.sync.remote import Listed, ObjectFile, ObjectKind

_CHUNK = 1 << 20


def folder_of(url: str) -> Path:
    """The folder that a ``file:`` URL names."""
    return Path(unquote(urlsplit(url).path))


class FolderRemote:
    """A dataset in a folder, which can be read and written."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder = folder_of(url)
        self._refs = LocalRefs(self.folder / "refs")

    def head(self) -> Multihash | None:
        """The newest block; None when there is no dataset yet."""
        try:
            return self._refs.get(HEAD)
        except MalformedBlock as error:
            raise BadData(error.message, where=self.url) from None

    def read(self, kind: ObjectKind, object_hash: Multihash, at_most: int) -> bytes:
        """A small object as a whole."""
        data = b"".join(self._read(kind, object_hash, 0, at_most + 1))
        if len(data) > at_most:
            raise BadData(f"{kind}/{object_hash} has more than {at_most:,} bytes", where=self.url)
        return data

    def chunks(self, file: ObjectFile, start: int = 0) -> Iterator[bytes]:
        """A large object piece by piece from byte ``start`` on."""
        return self._read(file.kind, file.hash, start, file.size + 1 - start)

    def prepare(self, files: Sequence[ObjectFile]) -> None:
        """Nothing has to be known before."""

    def batch(self, after: Multihash | None, head: Multihash) -> Iterator[tuple[Multihash, bytes]] | None:
        """Blocks are read one by one."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def holds(self, kind: ObjectKind, object_hash: Multihash, size: int | None = None) -> bool:
        """Whether the object is there, of this size."""
        objects = self._objects(kind)
        name = find_name(objects, object_hash)
        return name is not None and size in (None, objects.size(name))

    def write(self, kind: ObjectKind, object_hash: Multihash, data: bytes) -> None:
        """Stores a small object durably; one that is there stays as it is."""
        self._make()
        objects = self._objects(kind)
        make_folder(objects.folder)
        objects.put(str(object_hash), data)

    def upload(self, file: ObjectFile, source: Path, told: Callable[[int], None]) -> None:
        """Stores a large object durably."""
        self._make()
        objects, sent = self._objects(file.kind), 0
        staged = objects.staging_path()
        try:
            with source.open("rb") as read, staged.open("xb") as write:
                while chunk := read.read(_CHUNK):
                    write.write(chunk)
                    sent += len(chunk)
                    told(sent)
            objects.put_file(str(file.hash), staged)
        finally:
            staged.unlink(missing_ok=True)

    def set_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Moves the head, under the lock that programs beside this one use."""
        self._make()
        self._refs.compare_and_set(HEAD, expected, new)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def _objects(self, kind: ObjectKind) -> LocalObjects:
        return LocalObjects(self.folder / kind)

    def _read(self, kind: ObjectKind, object_hash: Multihash, start: int, at_most: int) -> Iterator[bytes]:
        objects = self._objects(kind)
        name = find_name(objects, object_hash) or str(object_hash)
        try:
            with objects.open(name) as file:
                file.seek(start)
                while at_most > 0 and (chunk := file.read(min(_CHUNK, at_most))):
                    at_most -= len(chunk)
                    yield chunk
        except OSError as error:
            raise SourceUnavailable(
                f"{kind}/{name} cannot be read: {error.strerror}", where=self.url
            ) from error


class FolderRepository:
    """A folder with a folder for each dataset; those of accounts lie one level deeper."""

    def __init__(self, url: str) -> None:
        self.url = url

    def datasets(self) -> Iterator[Listed]:
        """The folders in it that have a head, in the order of names."""
        yield from self._within(folder_of(self.url), "")

    def close(self) -> None:
        """Nothing is open."""

    def _within(self, folder: Path, account: str) -> Iterator[Listed]:
        try:
            names = sorted(os.listdir(folder), key=str.lower)  # noqa: PTH208
        except FileNotFoundError:
            raise NotFound(f"there is no folder {folder}", where=self.url) from None
        except OSError as error:
            raise SourceUnavailable(f"the folder cannot be read: {error.strerror}", where=self.url) from error
        for name in filter(is_name, names):
            if (folder / name / "refs" / HEAD).is_file():
                remote = FolderRemote(f"{self.url}{account}{name}/")
                head = remote.head()
                yield Listed(account + name, remote.url, head=None if head is None else str(head))
            elif not account and (folder / name).is_dir():
                yield from self._within(folder / name, f"{name}/")
