"""Open slices whose columns are decoded row group by row group, and the newest of them kept."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from odf_engine.chain.chain import Dataset, SliceRow
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded
from odf_engine.data.row_groups import MAX_BYTES
from odf_engine.errors import BadData, NotFound
from odf_engine.identity.multiformats import Multihash

HINT: Final = "bring it back from a copy of the dataset; odf verify shows what else is wrong"


class Bounds(NamedTuple):
    """Least and greatest of a column in a row group, as the file stores them; None when it does not say."""

    least: int | None
    greatest: int | None


class SliceFile:
    """An open slice.

    Attributes:
        where: the slice as a person finds it.
        group_ends: for each row group, the number of the row after its last.
    """

    def __init__(self, dataset: Dataset, row: SliceRow) -> None:
        self.where = f"slice {row.physical_hash.short} (block {row.sequence_number})"
        self._path = dataset.slice_path(row)
        try:
            self._parquet = open_parquet(self._path)
        except FileNotFoundError:
            raise NotFound("the slice is not here", where=self.where, hint=HINT) from None
        except UNREADABLE as error:
            raise self._damaged(error) from error
        metadata = self._parquet.metadata
        groups = (metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
        self.group_ends = list(accumulate(groups))

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.group_ends[-1] if self.group_ends else 0

    @property
    def schema(self) -> pa.Schema:
        """Names and types of its columns."""
        return self._parquet.schema_arrow

    def group_of(self, row: int) -> tuple[int, int, int]:
        """The row group of a row: its number, its first row, and the row after its last."""
        group = bisect_right(self.group_ends, row)
        return group, self.group_ends[group - 1] if group else 0, self.group_ends[group]

    def group_rows(self, group: int) -> int:
        """How many rows a row group has."""
        return self.group_ends[group] - (self.group_ends[group - 1] if group else 0)

    def read(self, group: int, columns: Sequence[str], rows: range) -> pa.Table:
        """Read some columns of some rows of a row group. Columns that the slice lacks are left out.

        Where the rows need more than 64 MiB, only the first of them are read, and one at least.

        Raises:
            BadData: it is damaged, or needs too much memory.
        """
        known = [name for name in columns if name in self.schema.names]
        if not known:
            return pa.table({})
        first = self.group_ends[group] - self.group_rows(group)
        parts: list[pa.RecordBatch] = []
        size = 0
        try:
            start, stop = first + rows.start, first + rows.stop
            for batch in read_bounded(self._path, known, start, stop, opened=self._parquet):
                if parts and size + batch.nbytes > MAX_BYTES:
                    break
                size += batch.nbytes
                if batch.get_total_buffer_size() > 2 * batch.nbytes:  # holds rows that were not asked for
                    batch = batch.take(pa.array(range(batch.num_rows), pa.int64()))
                parts.append(batch)
        except UNREADABLE as error:
            raise self._damaged(error) from error
        if not parts:
            raise BadData("the slice has fewer rows than its footer declares", where=self.where, hint=HINT)
        return pa.Table.from_batches(parts)

    def bounds(self, group: int, field: pa.Field) -> Bounds:
        """What the file says of a column of whole numbers or times, if it has the type of ``field``."""
        index = self.schema.get_field_index(field.name)
        # Nested columns before it would shift the number that Parquet counts by.
        about = self._parquet.metadata
        metadata = about.row_group(group)
        at = next((i for i in range(about.num_columns) if about.schema.column(i).path == field.name), -1)
        if index < 0 or at < 0 or self.schema.field(index).type != field.type:
            return Bounds(None, None)
        found = metadata.column(at).statistics
        if found is None or not found.has_min_max or not isinstance(found.max_raw, int):
            return Bounds(None, None)
        return Bounds(found.min_raw, found.max_raw)

    def close(self) -> None:
        """Lets go of the file."""
        self._parquet.close()

    def _damaged(self, error: Exception) -> BadData:
        return BadData(f"the slice cannot be read: {error}", where=self.where, hint=HINT)


ColumnKey = tuple[Multihash, int, int, str]


class DecodedColumns:
    """Decoded columns of row groups, the least recently used of them forgotten first.

    What is decoded together stays together at least until the next, however large it is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._columns: OrderedDict[ColumnKey, pa.ChunkedArray] = OrderedDict()

    def get(self, key: ColumnKey) -> pa.ChunkedArray | None:
        """A column, if it is kept."""
        column = self._columns.get(key)
        if column is not None:
            self._columns.move_to_end(key)
        return column

    def put(self, columns: dict[ColumnKey, pa.ChunkedArray]) -> None:
        """Keeps columns."""
        room = self._limit - sum(column.nbytes for column in columns.values())
        while self._columns and self._bytes > max(room, 0):
            self._bytes -= self._columns.popitem(last=False)[1].nbytes
        self._columns |= columns
        self._bytes += sum(column.nbytes for column in columns.values())

    def clear(self) -> None:
        """Forgets all."""
        self._columns.clear()
        self._bytes = 0
