"""Sequential scans of Parquet rows with little memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.chain.dataset import Dataset
from odf_engine.data.arrow_compute import decode_array, decoded_type
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded
from odf_engine.errors import BadData, NotFound
from odf_engine.metadata.model import DEFAULT_VOCABULARY, DatasetVocabulary

_MAX_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 16 << 20
_HINT: Final = "odf verify shows everything that is wrong"

RowRange = tuple[int, int]
"""Numbers of rows: of the first, and of the one after the last."""


class ScanFile(msgspec.Struct, frozen=True):
    """A file with rows; ``mark`` tells its content apart, ``where`` is it as a person finds it."""

    path: Path
    rows: int
    mark: str
    where: str


class RowScan:
    """Rows in files.

    Attributes:
        columns: names and types.
        vocabulary: names of the system columns.
        parts: the files in order.
        mark: tells these rows apart from all others.
        offsets: they are less than this.
    """

    def __init__(
        self,
        columns: pa.Schema,
        vocabulary: DatasetVocabulary,
        parts: Sequence[ScanFile],
        mark: str,
        offsets: int | None = None,
    ) -> None:
        # Nothing is required here: a column that came later is null in older slices.
        self.columns = pa.schema([pa.field(field.name, _computable(field.type)) for field in columns])
        self.vocabulary = vocabulary
        self.parts = list(parts)
        self.mark = mark
        self.offsets = self.row_count if offsets is None else offsets

    @classmethod
    def of_dataset(cls, dataset: Dataset, until: int | None = None) -> Self:
        """All rows of a dataset as it is now, in slices that begin no later than at offset ``until``.

        A slice belongs to one block: where ``until`` is the last offset of a block, these are the rows up
        to there, in the columns that the dataset has now. -1: none.
        """
        state = dataset.state()
        slices = dataset.slices() if until is None else dataset.slices(0, until) if until >= 0 else []
        parts = [
            ScanFile(
                dataset.slice_path(row),
                row.end - row.start + 1,
                str(row.physical_hash),
                f"slice {row.physical_hash.abbreviated} (block {row.sequence_number})",
            )
            for row in slices
        ]
        if state.schema is not None:
            columns = decode_schema(state.schema)
        else:
            columns = open_part(parts[-1]).schema_arrow if parts else pa.schema([])
        mark = f"{state.head}{'' if until is None else f'-{until}'}"
        return cls(columns, state.vocabulary, parts, mark, slices[-1].end + 1 if slices else 0)

    @classmethod
    def of_file(cls, path: Path, vocabulary: DatasetVocabulary = DEFAULT_VOCABULARY) -> Self:
        """All rows of a Parquet file, whose name and size tell them apart from those of others.

        Raises:
            NotFound, BadData: it cannot be read.
        """
        part = ScanFile(path, 0, path.stem, path.name)
        file = open_part(part)
        part = msgspec.structs.replace(part, rows=file.metadata.num_rows)
        return cls(file.schema_arrow, vocabulary, [part], f"{path.stem}-{path.stat().st_size}")

    def of_parts(self, parts: Sequence[ScanFile]) -> Self:
        """Rows of other files with the same columns and some of the same offsets."""
        mark = f"{self.mark}-{parts[0].mark}"
        return type(self)(self.columns, self.vocabulary, parts, mark, self.offsets)

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return sum(part.rows for part in self.parts)

    @property
    def system_columns(self) -> tuple[str, str, str]:
        """The columns that the system made; the event time belongs to the data."""
        names = self.vocabulary
        return names.offset_column, names.operation_type_column, names.system_time_column

    def batches(
        self,
        names: Sequence[str] | None = None,
        ranges: Sequence[RowRange] | None = None,
        first_part: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order, some thousands at a time and never of two files at once.

        Args:
            names: the columns to read; by default all.
            ranges: rows by their number; by default all.
            first_part: the number of the file to begin with.

        Raises:
            NotFound: a file is not there.
            BadData: a file is damaged, or does not fit the columns.
        """
        columns = self.columns if names is None else pa.schema([self.columns.field(name) for name in names])
        ends = list(accumulate(part.rows for part in self.parts))
        stops = [stop for _, stop in ranges or ()]
        ordered = all(stop <= after[0] for (_, stop), after in pairwise(ranges or ()))
        for at, part in enumerate(self.parts[first_part:], first_part):
            begin = ends[at] - part.rows
            if ranges is None:
                yield from _read(part, columns, 0, part.rows)
                continue
            for start, stop in ranges[bisect_right(stops, begin) :] if ordered else ranges:
                if start < ends[at] and stop > begin:
                    yield from _read(part, columns, max(start - begin, 0), min(stop - begin, part.rows))
                elif ordered:
                    break


def _computable(kind: pa.DataType) -> pa.DataType:
    """The type without an encoding that Arrow does not compute with."""
    kind = decoded_type(kind)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def file_metadata(part: ScanFile) -> pq.FileMetaData:
    """What a file tells of itself.

    Raises:
        NotFound, BadData: it cannot be read.
    """
    with open_part(part) as file:
        return file.metadata


def open_part(part: ScanFile) -> pq.ParquetFile:
    try:
        return open_parquet(part.path)
    except FileNotFoundError:
        raise NotFound("the file with these rows is not there", where=part.where, hint=_HINT) from None
    except UNREADABLE as error:
        raise BadData(f"it cannot be read: {error}", where=part.where, hint=_HINT) from error


def _read(part: ScanFile, columns: pa.Schema, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    with open_part(part) as file:
        metadata = file.metadata
        if metadata.num_rows != part.rows:
            problem = f"it has {metadata.num_rows} rows where its block says {part.rows}"
            raise BadData(problem, where=part.where, hint=_HINT)
        known = [name for name in columns.names if name in file.schema_arrow.names]
        limits = {"most_rows": _MAX_ROWS, "most_bytes": _BATCH_BYTES}
        try:
            for batch in read_bounded(part.path, known, start, stop, **limits, opened=file):
                yield _fitted(batch, columns, part)
        except UNREADABLE as error:
            raise BadData(f"it cannot be read: {error}", where=part.where, hint=_HINT) from error


def _fitted(batch: pa.RecordBatch, columns: pa.Schema, part: ScanFile) -> pa.RecordBatch:
    arrays: list[pa.Array] = []
    for field in columns:
        if field.name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = decode_array(batch.column(field.name))
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            problem = f"column '{field.name}' is {array.type} where the dataset's schema says {field.type}"
            raise BadData(problem, where=part.where, hint=_HINT) from None
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
