"""Reads Parquet files of other authors in bounded memory.

A Parquet file of a kilobyte can declare gigabytes: pages are compressed, and a run of equal values is stored
once. The footer alone cannot be trusted, because each page has a header of its own. Before a row group is
decoded, the headers of its pages are read and compared with a limit. Its rows are then decoded in batches of
bounded size.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_schema import check_field
from odf_engine.data.row_groups import MAX_BYTES, MAX_ROWS, is_text, split_batch

UNREADABLE: Final = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises for damaged files. Names that are not UTF-8 end in a UnicodeDecodeError."""

_ALLOWED_BYTES: Final = 256 << 20
_ALLOWED_RATIO: Final = 250
"""A row group may need 256 MiB at once, or this many times the size of its file."""

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_TYPE, _UNPACKED, _PACKED = 1, 2, 3
_HEADERS: Final = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}
"""The field of a page header that holds the part for its type."""
_VALUES: Final = 1
_ENCODINGS: Final = {_DATA_PAGE: 2, _DATA_PAGE_V2: 4}
_PLAIN_DICTIONARY, _DELTA_LENGTH, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 2, 6, 7, 8
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_INDEX_BYTES: Final = 8
"""What a value needs besides its bytes: offsets, levels, its place in a dictionary."""


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file to read its footer. Its rows are read by :func:`read_bounded`.

    Raises:
        InvalidSchema: its columns are nested too deeply.
        UNREADABLE: it is missing or damaged, or a name in it is not UTF-8.
    """
    file = pq.ParquetFile(path, pre_buffer=False)  # buffering ahead would hold the entire file in memory
    try:
        for field in file.schema_arrow:
            check_field(field)
    except BaseException:
        file.close()
        raise
    return file


def read_parquet_schema(path: Path) -> pa.Schema:
    """Return the names and types of the columns as :func:`read_bounded` yields them, without dictionaries.

    Raises:
        InvalidSchema, UNREADABLE: as in :func:`open_parquet`.
    """
    with open_parquet(path) as file:
        return _without_dictionaries(file.schema_arrow)


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    )


def read_bounded(
    path: Path,
    columns: Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    *,
    most_rows: int = MAX_ROWS,
    most_bytes: int = MAX_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, in batches of bounded size.

    Args:
        path: the file.
        columns: names of columns to read; all by default.
        start: the number of the first row, from 0.
        stop: the number after that of the last row; that of the last row of the file by default. Row groups
            without rows in this range are not read.
        most_rows: the limit of rows in a batch.
        most_bytes: the limit of bytes in a batch. A single row may be larger.

    Raises:
        pa.ArrowInvalid: a row group needs more memory than is allowed for a file of this size.
        InvalidSchema, UNREADABLE: as in :func:`open_parquet`.
    """
    with open_parquet(path) as file, path.open("rb") as raw:
        metadata, schema = file.metadata, _without_dictionaries(file.schema_arrow)
        names = schema.names if columns is None else list(columns)
        # A long text can repeat in all rows. Read as a dictionary, it is in memory once.
        texts = [at for at, kind in enumerate(_leaf_types(file.schema_arrow)) if is_text(kind)]
        end = 0
        for group in range(metadata.num_row_groups):
            row, end = end, end + metadata.row_group(group).num_rows
            if end <= start or (stop is not None and row >= stop):
                continue
            chunks = _measure_group(raw, metadata, group, names)
            indexed = [each.path for each in chunks if each.has_dictionary and each.column in texts]
            with pq.ParquetFile(path, metadata=metadata, read_dictionary=indexed, pre_buffer=False) as reader:
                leaves = list(_leaf_types(reader.schema_arrow))
                width = _check_memory(chunks, leaves, end - row, raw)
                rows = max(1, min(most_rows, most_bytes // max(width, 1)))
                for batch in reader.iter_batches(rows, row_groups=[group], columns=names):
                    first = max(start - row, 0)
                    last = batch.num_rows if stop is None else min(stop - row, batch.num_rows)
                    row += batch.num_rows
                    if first < last:
                        for part in split_batch(batch.slice(first, last - first), most_bytes):
                            yield _decode(part, schema)
                    if stop is not None and row >= stop:
                        break


def _decode(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in the types of the schema."""
    if not batch.num_columns:
        return batch  # a batch made of no columns would have no rows
    types = {field.name: field.type for field in schema}
    fields = [field.with_type(types[field.name]) for field in batch.schema]
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


# --- The memory that a row group needs -------------------------------------------------------------


class _Chunk(NamedTuple):
    """A column of a row group, measured by its page headers. Sizes are in bytes.

    Attributes:
        column: its number.
        path: its name, dotted where it is nested.
        values: how many it has, with nulls and items of lists.
        width: of a value that is not in a dictionary.
        pages: the largest page and the dictionary, decompressed.
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
        """Return the most bytes that a value has as it is read."""
        is_index = self.column < len(leaves) and pa.types.is_dictionary(leaves[self.column])
        return (self.width if is_index else max(self.width, self.dictionary)) + _INDEX_BYTES


def _check_memory(chunks: Sequence[_Chunk], leaves: Sequence[pa.DataType], rows: int, raw: BinaryIO) -> int:
    """Return the bytes of a row, on the average where it has lists.

    Args:
        chunks: the columns of a row group.
        leaves: types of all columns of the file, in its order.
        rows: of the row group.
        raw: the file.

    Raises:
        pa.ArrowInvalid: a row group needs more memory than is allowed.
    """
    size = raw.seek(0, io.SEEK_END)
    allowed = max(_ALLOWED_BYTES, _ALLOWED_RATIO * size)
    needed = width = 0
    for each in chunks:
        value = each.value_bytes(leaves)
        width += value * max(1, -(-each.values // max(rows, 1)))
        # A row cannot be divided, and all items of a column may be in one.
        needed += each.pages + value * (each.values if each.is_repeated else 1)
        if needed > allowed:
            raise pa.ArrowInvalid(
                f"a file of {size:,} bytes declares {needed:,} bytes for a page or a row of '{each.path}'; "
                f"the limit is {allowed:,}"
            )
    return width


def _leaf_types(fields: Iterable[pa.Field]) -> Iterator[pa.DataType]:
    """Yield the types of columns in the order in which Parquet numbers them."""
    for field in fields:
        kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        if kind.num_fields:
            yield from _leaf_types(kind.field(at) for at in range(kind.num_fields))
        else:
            yield kind


def _measure_group(
    raw: BinaryIO, metadata: pq.FileMetaData, group: int, names: Sequence[str]
) -> list[_Chunk]:
    """Measure the columns of a row group that have one of these names, or are nested in one."""
    wanted = set(names)
    about = metadata.row_group(group)
    return [
        _measure_chunk(raw, about.column(at), metadata.schema.column(at), at)
        for at in range(min(about.num_columns, metadata.num_columns))
        if wanted.intersection(_prefixes(about.column(at).path_in_schema))
    ]


def _prefixes(path: str) -> Iterator[str]:
    """Yield the names that a column may be nested in: a name may have dots."""
    parts = path.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _measure_chunk(raw: BinaryIO, chunk: pq.ColumnChunkMetaData, column: pq.ColumnSchema, at: int) -> _Chunk:
    """Measure a column of a row group by the headers of its pages, which are all that Arrow would read.

    Raises:
        pa.ArrowInvalid: a header is malformed, or pages are missing.
    """
    start, values = chunk.data_page_offset, 0
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    is_bytes = chunk.physical_type == "BYTE_ARRAY"
    width = (
        column.length
        if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY"
        else _WIDTHS.get(chunk.physical_type, 0)
    )
    largest = dictionary = entries = 0
    has_deltas = False
    raw.seek(start)
    while values < chunk.num_values:
        if raw.tell() >= start + chunk.total_compressed_size:
            raise pa.ArrowInvalid(
                f"column '{chunk.path_in_schema}' has fewer values than the footer declares"
            )
        kind, unpacked, packed, part = _read_page_header(raw)
        raw.seek(packed, io.SEEK_CUR)
        if kind == _DICTIONARY_PAGE:
            dictionary, entries = max(dictionary, unpacked), max(entries, _positive(part, _VALUES))
        elif kind in _ENCODINGS:
            count, encoding = _positive(part, _VALUES), _positive(part, _ENCODINGS[kind])
            needed = unpacked
            if encoding in (_DELTA_LENGTH, _DELTA_BYTE_ARRAY):
                has_deltas = True
                needed += 8 * count  # lengths are decoded for the entire page
            if encoding == _DELTA_BYTE_ARRAY:
                width = max(width, unpacked)  # a value may repeat all that came before it
            elif is_bytes and encoding not in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                width = max(width, -(-unpacked // max(count, 1)))
            values += count
            largest = max(largest, needed)
    return _Chunk(
        column=at,
        path=chunk.path_in_schema,
        values=chunk.num_values,
        width=width,
        pages=largest + dictionary + 16 * entries,
        dictionary=dictionary if is_bytes else 0,
        has_dictionary=is_bytes and dictionary > 0 and not has_deltas,
        is_repeated=column.max_repetition_level > 0,
    )


# --- Page headers: a struct in Thrift's compact protocol --------------------------------------------

_Struct = dict[int, Any]
_I16, _I32, _I64, _BINARY, _STRUCT = 4, 5, 6, 8, 12
_SIZES: Final = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of true, false, a byte and a double."""
_MOST_DEPTH: Final = 4


def _read_page_header(raw: BinaryIO) -> tuple[int, int, int, _Struct]:
    """Return a page's type, its sizes decompressed and compressed, and the header of its type."""
    header = _read_struct(raw)
    kind = _positive(header, _TYPE)
    part = header.get(_HEADERS.get(kind, -1), {})
    if not isinstance(part, dict):
        raise _malformed()
    return kind, _positive(header, _UNPACKED), _positive(header, _PACKED), part


def _positive(fields: _Struct, number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise _malformed()
    return value


def _read_struct(raw: BinaryIO, depth: int = 0) -> _Struct:
    """Read the fields that page headers consist of. Others are skipped, and so is a field of another type."""
    fields: _Struct = {}
    number = 0
    while (head := _read_byte(raw)) != 0:
        kind = head & 15
        number = number + (head >> 4) if head >> 4 else _zigzag(_read_varint(raw))
        if not 0 < number < 1 << 15:
            raise _malformed()
        if kind == _I32:
            fields[number] = _zigzag(_read_varint(raw))
        elif kind == _STRUCT and depth < _MOST_DEPTH:
            fields[number] = _read_struct(raw, depth + 1)
        elif kind in (_I16, _I64):
            _read_varint(raw)
        elif kind in _SIZES or kind == _BINARY:
            raw.seek(_read_varint(raw) if kind == _BINARY else _SIZES[kind], io.SEEK_CUR)
        else:
            raise _malformed()
    return fields


def _read_byte(raw: BinaryIO) -> int:
    data = raw.read(1)
    if not data:
        raise _malformed()
    return data[0]


def _read_varint(raw: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _read_byte(raw)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise _malformed()


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _malformed() -> pa.ArrowInvalid:
    return pa.ArrowInvalid("a page header is malformed")
