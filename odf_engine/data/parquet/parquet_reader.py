"""Reads untrusted Parquet files in bounded memory.

A Parquet file of a kilobyte can declare gigabytes: pages are compressed, and a run of equal values is stored
once. The footer alone cannot be trusted, because each page has its own header. Before a row group is
decoded, the headers of its pages are read and compared with a limit. Its rows are then decoded in batches of
bounded size.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from odf_engine.base.arrow import pa, pq, types
from odf_engine.data.arrow_schema import check_field
from odf_engine.data.parquet.parquet_headers import (
    DATA_PAGES,
    DICTIONARY_PAGE,
    WIDTHS,
    check_footer,
    read_page_header,
)
from odf_engine.data.parquet.row_groups import MAX_BYTES, MAX_ROWS, is_text, split_batch

_ALLOWED_BYTES: Final = 256 << 20
_ALLOWED_RATIO: Final = 250
"""Memory limit of a row group: 256 MiB, or this many times the size of its file if that is more."""

_PLAIN_DICTIONARY, _DELTA_LENGTH, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 6, 7, 8
_INDEX_BYTES: Final = 8
"""Memory of a value besides its bytes: offsets, levels, its index in a dictionary."""

_SMALL_BYTES: Final = 1 << 18


class RangedFile(Protocol):
    """A file that is read in parts, such as a slice in an object store."""

    def open(self) -> BinaryIO:
        """Return a seekable stream."""
        ...

    def load(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Prepare reads of these ranges: their first bytes, and the bytes after their last."""
        ...


def parquet_errors() -> tuple[type[Exception], ...]:
    """Return the errors of pyarrow for damaged files.

    Names of columns or files that are not UTF-8 raise UnicodeError.
    """
    return pa.ArrowException, OSError, UnicodeError


def _open_stream(source: Path | RangedFile) -> BinaryIO:
    return source.open("rb") if isinstance(source, Path) else source.open()


def open_parquet(path: Path | RangedFile, *, int96_unit: str | None = None) -> pq.ParquetFile:
    """Open a file and read its footer, so that all columns of it can be accessed safely.

    Rows are read by :func:`read_bounded`.

    Args:
        path: the file, or its parts.
        int96_unit: unit of 96-bit timestamps; nanoseconds by default, which overflow after the year 2262.

    Raises:
        InvalidSchema: its columns are nested too deeply.
        parquet_errors: it is missing or damaged, or a name in it is not UTF-8.
    """
    # Buffering ahead would hold the entire file in memory.
    source = path if isinstance(path, Path) else path.open()
    file = pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit=int96_unit)
    try:
        for field in file.schema_arrow:
            check_field(field)
        with _open_stream(path) as raw:
            check_footer(raw, file.metadata)
    except BaseException:
        file.close()
        raise
    return file


def read_declared_schema(path: Path) -> pa.Schema:
    """Return names and types of the columns, only to compare them: the file must not be read by them.

    Raises:
        parquet_errors: it is missing or damaged.
    """
    with pq.ParquetFile(path, pre_buffer=False) as file:
        return _without_dictionaries(file.schema_arrow)


def read_parquet_schema(path: Path) -> pa.Schema:
    """Return names and types of the columns as :func:`read_bounded` yields them, without dictionaries.

    Raises:
        InvalidSchema, parquet_errors: as in :func:`open_parquet`.
    """
    with open_parquet(path) as file:
        return _without_dictionaries(file.schema_arrow)


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        field.with_type(field.type.value_type) if types.is_dictionary(field.type) else field
        for field in schema
    )


def max_in_footer(metadata: pq.FileMetaData, schema: pa.Schema, name: str) -> int | None:
    """Return the max of an integer column from the statistics of a file, or None if they lack it."""
    # Times may be stored in another unit than the column has.
    if name not in schema.names or not types.is_signed_integer(schema.field(name).type):
        return None
    maxima: list[int] = []
    for group in range(metadata.num_row_groups):
        columns = (metadata.row_group(group).column(at) for at in range(metadata.num_columns))
        column = next((chunk for chunk in columns if chunk.path_in_schema == name), None)
        statistics = None if column is None else column.statistics
        if statistics is None or not statistics.has_min_max:
            return None
        maxima.append(statistics.max_raw)
    return max(maxima, default=None)


@dataclass(frozen=True)
class BatchLimits:
    """Maximum number of rows and size of a batch. A single row may be larger."""

    max_rows: int = MAX_ROWS
    max_bytes: int = MAX_BYTES


def read_bounded(
    path: Path | RangedFile,
    columns: Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    *,
    limits: BatchLimits = BatchLimits(),
    opened: pq.ParquetFile | None = None,
    int96_unit: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, in batches of bounded size.

    Args:
        path: the file, or its parts.
        columns: names of columns to read; all by default.
        start: the number of the first row, from 0.
        stop: the number of the row after the last; by default the end of the file. Row groups without rows
            in this range are not read.
        limits: the limits of a batch.
        opened: the file from :func:`open_parquet`, which saves time. It stays open.
        int96_unit: as in :func:`open_parquet`.

    Raises:
        pa.ArrowInvalid: a row group needs more memory than is allowed for a file of this size.
        InvalidSchema, parquet_errors: as in :func:`open_parquet`.
    """
    opening = nullcontext(opened) if opened else open_parquet(path, int96_unit=int96_unit)
    with opening as file, _open_stream(path) as raw:
        metadata, schema = file.metadata, _without_dictionaries(file.schema_arrow)
        names = schema.names if columns is None else list(columns)
        # A long text may be repeated in all rows. A dictionary holds it in memory once.
        texts = [at for at, kind in enumerate(_leaf_types(file.schema_arrow)) if is_text(kind)]
        end = 0
        for group in range(metadata.num_row_groups):
            row, end = end, end + metadata.row_group(group).num_rows
            if end <= start or (stop is not None and row >= stop):
                continue
            if not isinstance(path, Path):
                path.load(_find_chunks(metadata, group, names))
            chunks = _measure_group(raw, metadata, group, names)
            indexed = [chunk.path for chunk in chunks if chunk.has_dictionary and chunk.column in texts]
            with pq.ParquetFile(
                path if isinstance(path, Path) else path.open(),
                metadata=metadata,
                read_dictionary=indexed,
                pre_buffer=False,
                coerce_int96_timestamp_unit=int96_unit,
            ) as reader:
                leaves = list(_leaf_types(reader.schema_arrow))
                width = _check_memory(chunks, leaves, end - row, raw)
                rows = max(1, min(limits.max_rows, limits.max_bytes // max(width, 1)))
                # Threads take longer than they save on a few rows.
                threads = sum(chunk.pages for chunk in chunks) > _SMALL_BYTES
                for batch in reader.iter_batches(
                    rows, row_groups=[group], columns=names, use_threads=threads
                ):
                    first = max(start - row, 0)
                    last = batch.num_rows if stop is None else min(stop - row, batch.num_rows)
                    row += batch.num_rows
                    if first < last:
                        for part in split_batch(batch.slice(first, last - first), limits.max_bytes):
                            yield _decode(part, schema)
                    if stop is not None and row >= stop:
                        break


def _decode(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in the types of the schema."""
    if not batch.num_columns:
        return batch  # from_arrays would make a batch without rows
    types = {field.name: field.type for field in schema}
    fields = [field.with_type(types[field.name]) for field in batch.schema]
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class _Chunk(NamedTuple):
    """A column of a row group, measured by its page headers. Sizes are in bytes.

    Attributes:
        column: its number.
        path: its name, dotted if it is nested.
        values: number of values, with nulls and items of lists.
        width: the width of a value that is not in a dictionary.
        pages: the largest page plus the dictionary, decompressed.
        dictionary: the dictionary page; no value in it is longer.
        has_dictionary: whether Arrow can read it as a dictionary.
        is_repeated: whether it is in a list.
    """

    column: int
    path: str
    values: int
    width: int
    pages: int
    dictionary: int
    has_dictionary: bool
    is_repeated: bool

    def value_bytes(self, leaves: Sequence[pa.DataType]) -> int:
        """Return the maximum size of a decoded value."""
        is_index = self.column < len(leaves) and types.is_dictionary(leaves[self.column])
        return (self.width if is_index else max(self.width, self.dictionary)) + _INDEX_BYTES


def _check_memory(chunks: Sequence[_Chunk], leaves: Sequence[pa.DataType], rows: int, raw: BinaryIO) -> int:
    """Return the bytes of a row, on average if it has lists.

    Args:
        chunks: the columns of a row group.
        leaves: types of all columns of the file, in its order.
        rows: number of rows of the row group.
        raw: the file.

    Raises:
        pa.ArrowInvalid: a row group needs more memory than is allowed.
    """
    size = raw.seek(0, io.SEEK_END)
    allowed = max(_ALLOWED_BYTES, _ALLOWED_RATIO * size)
    needed = width = 0
    for chunk in chunks:
        value = chunk.value_bytes(leaves)
        width += value * max(1, -(-chunk.values // max(rows, 1)))
        # A row cannot be split, and all items of a column may be in one row.
        needed += chunk.pages + value * (chunk.values if chunk.is_repeated else 1)
        if needed > allowed:
            raise pa.ArrowInvalid(
                f"a file of {size:,} bytes declares {needed:,} bytes for a page or a row of '{chunk.path}'; "
                f"the limit is {allowed:,}"
            )
    return width


def _leaf_types(fields: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    """Yield the types of columns in the order of Parquet's numbers."""
    for field in fields:
        data_type = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        if data_type.num_fields:
            yield from _leaf_types(data_type.field(at) for at in range(data_type.num_fields))
        else:
            yield data_type


def _measure_group(
    raw: BinaryIO, metadata: pq.FileMetaData, group: int, names: Sequence[str]
) -> list[_Chunk]:
    """Measure the columns of a row group that have one of these names, or are nested in one."""
    about = metadata.row_group(group)
    return [
        _measure_chunk(raw, about.column(at), metadata.schema.column(at), at)
        for at in _find_columns(metadata, about, names)
    ]


def _find_columns(metadata: pq.FileMetaData, about: pq.RowGroupMetaData, names: Sequence[str]) -> list[int]:
    wanted = set(names)
    return [
        at
        for at in range(about.num_columns)
        if wanted.intersection(_prefixes(metadata.schema.column(at).path))
    ]


def _find_chunks(metadata: pq.FileMetaData, group: int, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return the ranges of bytes of columns of a row group."""
    about = metadata.row_group(group)
    columns = [about.column(at) for at in _find_columns(metadata, about, names)]
    return [
        (start, start + column.total_compressed_size)
        for column in columns
        for start in [_chunk_start(column)]
    ]


def _chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        return chunk.dictionary_page_offset
    return start


def _prefixes(path: str) -> Iterator[str]:
    """Yield the names that a column may be nested in. Names may contain dots."""
    parts = path.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _measure_chunk(raw: BinaryIO, chunk: pq.ColumnChunkMetaData, column: pq.ColumnSchema, at: int) -> _Chunk:
    """Measure a column of a row group by the headers of all pages that Arrow would read.

    Raises:
        pa.ArrowInvalid: a header is malformed, or pages are missing.
    """
    start, values = _chunk_start(chunk), 0
    is_bytes = column.physical_type == "BYTE_ARRAY"
    is_fixed = column.physical_type == "FIXED_LEN_BYTE_ARRAY"
    width = column.length if is_fixed else WIDTHS.get(column.physical_type, 0)
    largest = dictionary = entries = 0
    has_deltas = False
    raw.seek(start)
    while values < chunk.num_values:
        if raw.tell() >= start + chunk.total_compressed_size:
            raise pa.ArrowInvalid(f"column '{column.path}' has fewer values than the footer declares")
        page = read_page_header(raw)
        raw.seek(page.packed, io.SEEK_CUR)
        if page.type == DICTIONARY_PAGE:
            dictionary, entries = max(dictionary, page.size), max(entries, page.values)
        elif page.type in DATA_PAGES:
            needed = page.size
            if page.encoding in (_DELTA_LENGTH, _DELTA_BYTE_ARRAY):
                has_deltas = True
                needed += 8 * page.values  # lengths are decoded for the entire page
            if page.encoding == _DELTA_BYTE_ARRAY:
                width = max(width, page.size)  # a value may repeat all that came before it
            elif is_bytes and page.encoding not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                width = max(width, -(-page.size // max(page.values, 1)))
            values += page.values
            largest = max(largest, needed)
    return _Chunk(
        column=at,
        path=column.path,
        values=chunk.num_values,
        width=width,
        pages=largest + dictionary + 16 * entries,
        dictionary=dictionary if is_bytes else 0,
        has_dictionary=is_bytes and dictionary > 0 and not has_deltas,
        is_repeated=column.max_repetition_level > 0,
    )
