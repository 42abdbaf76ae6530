"""Objects of a store that are read in parts, such as row groups of slices, with a cache on disk."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from uuid import uuid4

from odf_engine.base.files import remove_temporary, translate_os_errors
from odf_engine.errors import BadData
from odf_engine.storage.object_store import STAGING_PREFIX

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from odf_engine.mirror.dataset_store import DatasetStore

RANGES: Final = "info/ranges"
"""In the folder of a mirror: the cached blocks. They are removed as slices are."""
MIN_RANGED_BYTES: Final = 1 << 20
"""Smaller objects are fetched complete, by one request."""
_BLOCK_BYTES: Final = 1 << 18
_MAX_REQUEST_BLOCKS: Final = 16
"""A longer range is fetched by several requests at the same time."""
_FOOTER_BYTES: Final = 1 << 16


class RangedObject:
    """An object whose requested parts are fetched, in blocks. Thread-safe and process-safe.

    The bytes are not compared with the hash of the object, which covers all of it. Readers must treat them
    as untrusted, as :mod:`odf_engine.data.parquet.parquet_reader` does.

    Args:
        store: the store.
        keys: the possible keys of the object in the store.
        size: its size in bytes.
        cache: path prefix of the cached blocks; their numbers are appended to it.
    """

    def __init__(self, store: DatasetStore, keys: Sequence[str], size: int, cache: Path) -> None:
        self.size = size
        self._store = store
        self._keys = list(keys)
        self._cache = cache

    def open(self) -> BinaryIO:
        """Return a seekable stream of the object.

        Its reads raise FileNotFoundError if the object does not exist, and as :class:`StoreClient` does.
        """
        self.load([(self.size - _FOOTER_BYTES, self.size)])
        return io.BufferedReader(_RangedStream(self), _FOOTER_BYTES)

    def load(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch the missing blocks of some ranges of bytes, by several requests at the same time.

        Raises:
            FileNotFoundError: the object does not exist.
            BadData: it is shorter than declared.
            SourceUnavailable: the store cannot be read.
        """
        numbers: set[int] = set()
        for start, end in ranges:
            start, end = max(start, 0), min(end, self.size)
            if start < end:
                numbers.update(range(start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES + 1))
        missing = [number for number in sorted(numbers) if not self._is_cached(number)]
        if missing:
            with translate_os_errors(self._cache.parent):
                self._cache.parent.mkdir(parents=True, exist_ok=True)
            self._store.run_parallel(self._fetch, list(_requests(missing)))

    def read(self, start: int, size: int) -> bytes:
        """Return at most ``size`` bytes from ``start``, in one block. Raises as :meth:`load`."""
        number, begin = divmod(start, _BLOCK_BYTES)
        size = min(size, self._block_size(number) - begin)
        if size <= 0:
            return b""
        for _ in range(3):
            with suppress(OSError), self._path(number).open("rb", buffering=0) as file:
                if len(data := os.pread(file.fileno(), size, begin)) == size:
                    return data
            self._fetch(range(number, number + 1))  # it was evicted
        raise BadData("the cache of ranges cannot be read", where=str(self._cache.parent))

    def _is_cached(self, number: int) -> bool:
        path = self._path(number)
        try:
            # The cache evicts by the time of the last use, which file systems do not store at each access.
            os.utime(path)
            return path.stat().st_size == self._block_size(number)
        except OSError:
            return False

    def _fetch(self, numbers: range) -> None:
        start = numbers.start * _BLOCK_BYTES
        chunks = self._request(start, min(numbers.stop * _BLOCK_BYTES, self.size))
        with translate_os_errors(self._cache.parent):
            for number in numbers:
                size = self._block_size(number)
                if len(block := chunks.take(size)) < size:
                    problem = f"the object ends after {number * _BLOCK_BYTES + len(block)} bytes"
                    hint = "restore it from a copy of the dataset"
                    raise BadData(f"{problem}, expected {self.size}", where=self._keys[0], hint=hint)
                path = self._path(number)
                part = path.with_name(f"{STAGING_PREFIX}{uuid4().hex[:16]}")
                try:
                    part.write_bytes(block)
                    part.replace(path)  # without a sync: a block of another size is fetched again
                finally:
                    remove_temporary(part)

    def _request(self, start: int, end: int) -> _Chunks:
        for key in self._keys:
            if (chunks := self._store.client.chunks(key, start, end)) is not None:
                self._keys = [key]
                return _Chunks(chunks)
        raise FileNotFoundError(self._keys[0])

    def _block_size(self, number: int) -> int:
        return min(_BLOCK_BYTES, self.size - number * _BLOCK_BYTES)

    def _path(self, number: int) -> Path:
        return self._cache.with_name(f"{self._cache.name}-{number}")


class _Chunks:
    """A stream of chunks as blocks of other sizes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes, fewer at the end."""
        chunks = [self._rest]
        count = len(self._rest)
        while count < size and (chunk := next(self._chunks, b"")):
            chunks.append(chunk)
            count += len(chunk)
        data = b"".join(chunks)
        self._rest = data[size:]
        return data[:size]


def _requests(numbers: Sequence[int]) -> Iterator[range]:
    """Yield ranges of consecutive numbers, of limited length."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        for start in range(run[0], run[-1] + 1, _MAX_REQUEST_BLOCKS):
            yield range(start, min(start + _MAX_REQUEST_BLOCKS, run[-1] + 1))


class _RangedStream(io.RawIOBase):
    """A position in an object."""

    def __init__(self, source: RangedObject) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError(f"negative position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._source.read(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
