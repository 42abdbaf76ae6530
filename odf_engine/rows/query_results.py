"""Saved query results: Parquet files. Only the newest are retained."""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Final

from odf_engine.base.arrow import pa, pq
from odf_engine.base.files import ensure_folder
from odf_engine.errors import BadData, NotFound

MAX_RESULTS: Final = 20
KEPT_BYTES: Final = 1 << 30
GROUP_ROWS: Final = 1 << 14
"""Rows of a row group. A window of a few rows decodes its row group."""
NO_LIMIT: Final = 1 << 62
"""A limit that is never reached."""
_GROUP_BYTES: Final = 8 << 20
_FOLDER: Final = Path("cache", "queries")
_PART: Final = ".part"
_STALE_SECONDS: Final = 24 * 3600.0

_DECODED: Final = 6
_GONE: Final = "run the query again; only the newest results are retained"


@contextmanager
def new_result(odf: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the path to write a new result to, and its path after the block has ended without an error.

    Old results are removed if there are too many, or they are too large.

    Args:
        odf: the workspace's ``.odf`` folder.
    """
    folder = odf / _FOLDER
    ensure_folder(folder)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:8]}.parquet"
    part = path.with_suffix(_PART)
    try:
        yield part, path
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sweep(odf)


@contextmanager
def temporary_result(odf: Path) -> Iterator[Path]:
    """Yield the path of a result file that is removed at the end of the block."""
    folder = odf / _FOLDER
    ensure_folder(folder)
    path = folder.absolute() / f"{uuid.uuid4().hex}{_PART}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int) -> tuple[int, bool]:
    """Write rows in order, in small row groups that are fast to read.

    Args:
        path: the file.
        schema: the schema of the rows.
        batches: the rows; no more are consumed than needed.
        limit: the maximum number of rows.

    Returns:
        The number of written rows, and whether there were more.
    """
    written = 0
    group: list[pa.RecordBatch] = []
    some = LimitedBatches(_split_batches(batches), limit)
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for batch in some:
            group.append(batch)
            written += batch.num_rows
            if _is_full(group):
                _write_group(writer, group)
        _write_group(writer, group)
    return written, some.more


class LimitedBatches:
    """The first rows of a stream of batches; no more are consumed than needed.

    Attributes:
        more: whether there were more rows.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], limit: int) -> None:
        self._batches = batches
        self._limit = limit
        self.more = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        left = self._limit
        for batch in self._batches:
            if batch.num_rows > left:
                self.more = True
                if left:
                    yield batch.slice(0, left)
                return
            left -= batch.num_rows
            yield batch


def _split_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, GROUP_ROWS):
            yield batch.slice(start, GROUP_ROWS)


def _is_full(group: list[pa.RecordBatch]) -> bool:
    rows, size = sum(batch.num_rows for batch in group), sum(batch.nbytes for batch in group)
    return rows >= GROUP_ROWS or size >= _GROUP_BYTES


def _write_group(writer: pq.ParquetWriter, group: list[pa.RecordBatch]) -> None:
    if group:
        writer.write_table(pa.Table.from_batches(group), row_group_size=2 * GROUP_ROWS)
        group.clear()


def sweep(odf: Path, kept: int = MAX_RESULTS, kept_bytes: int = KEPT_BYTES) -> None:
    """Remove all but the newest results, and stale partial files."""
    results: list[tuple[float, int, Path]] = []
    for path in (odf / _FOLDER).glob("*"):
        with suppress(FileNotFoundError):
            known = path.stat()
            if path.suffix == ".parquet":
                results.append((known.st_mtime, known.st_size, path))
            elif time.time() - known.st_mtime > _STALE_SECONDS:
                path.unlink()
    results.sort(reverse=True)
    total = 0
    for number, (_, size, path) in enumerate(results):
        total += size
        if number and (number >= kept or total > kept_bytes):
            path.unlink(missing_ok=True)


class ResultRows:
    """Random access to the rows of a result by their number from 0. Safe to use from several threads.

    Raises:
        NotFound: the result was removed.
        BadData: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._where = path.name
        self._lock = threading.Lock()
        self._groups: OrderedDict[tuple[int, tuple[str, ...]], pa.Table] = OrderedDict()
        try:
            self._file = pq.ParquetFile(path)
        except FileNotFoundError:
            raise NotFound("the result of this query was removed", hint=_GONE) from None
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        metadata = self._file.metadata
        groups = (metadata.row_group(at).num_rows for at in range(metadata.num_row_groups))
        self._ends = list(accumulate(groups))

    @property
    def columns(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._file.schema_arrow

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return self._ends[-1] if self._ends else 0

    def window(self, start: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows ``start`` to ``start + count``, as far as they exist; by default all columns.

        Raises:
            BadData: the file cannot be read.
        """
        names = tuple(self.columns.names if columns is None else columns)
        start = max(start, 0)
        stop = min(start + max(count, 0), self.row_count)
        parts: list[pa.Table] = []
        with self._lock:
            while start < stop:
                group = bisect_right(self._ends, start)
                first = self._ends[group - 1] if group else 0
                part = self._group(group, names).slice(start - first, stop - start)
                parts.append(part)
                start += part.num_rows
        if parts:
            return pa.concat_tables(parts)
        return pa.schema([self.columns.field(name) for name in names]).empty_table()

    def _group(self, group: int, names: tuple[str, ...]) -> pa.Table:
        key = (group, names)
        table = self._groups.get(key)
        if table is None:
            try:
                table = self._file.read_row_group(group, columns=list(names)).select(list(names))
            except (pa.ArrowException, OSError) as error:
                raise self._damaged(error) from error
            self._groups[key] = table
            if len(self._groups) > _DECODED:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return table

    def _damaged(self, error: Exception) -> BadData:
        return BadData(f"the result cannot be read: {error}", where=self._where, hint=_GONE)
