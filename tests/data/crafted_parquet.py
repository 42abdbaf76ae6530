"""Parquet files written byte by byte: legal ones no writer makes, and ones that contradict themselves."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

INT64, BYTE_ARRAY, FIXED = 2, 6, 7
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
PLAIN, DELTA_LENGTH, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 0, 6, 7, 8
_ZSTD = 6
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else -2 * value - 1)


@dataclass(frozen=True)
class Long:
    """A number of 64 bits."""

    value: int


def _value(value: Any) -> tuple[int, bytes]:
    """The kind and the bytes of a value: structs are dictionaries, and numbers have 32 bits."""
    if isinstance(value, Long):
        return 6, zigzag(value.value)
    if isinstance(value, int):
        return 5, zigzag(value)
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, dict):
        return 12, thrift(value)
    items = [_value(each) for each in value]
    return 9, bytes([0xF0 | (items[0][0] if items else 5)]) + varint(len(items)) + b"".join(
        data for _, data in items
    )


def thrift(fields: dict[int, Any]) -> bytes:
    """A struct, its fields by their number."""
    data = b""
    for number, value in fields.items():
        kind, content = _value(value)
        data += bytes([kind]) + zigzag(number) + content
    return data + b"\0"


def run(count: int, value: int) -> bytes:
    """A run of equal levels or places, of at most 8 bits each."""
    return varint(count << 1) + bytes([value])


def levels(*runs: bytes) -> bytes:
    """Repetition or definition levels of a page."""
    data = b"".join(runs)
    return struct.pack("<I", len(data)) + data


def deltas(first: int, then: int, count: int) -> bytes:
    """``count`` numbers, more than 128: the first, and from then on always another one."""
    least, rest = min(then - first, 0), max(then - first, 0)
    widths = bytes([32, 32, 32, 32])
    packed = [rest, *[-least] * 127]
    data = varint(128) + varint(4) + varint(count) + zigzag(first)
    data += zigzag(least) + widths + struct.pack("<128I", *packed)
    blocks = -(-(count - 1) // 128) - 1
    return data + (zigzag(0) + bytes(4)) * blocks


def texts(*values: bytes) -> bytes:
    """Values as they are."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def zeros(size: int) -> bytes:
    """So many zeros, compressed, made in little memory."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
    return sink.getvalue().to_pybytes()


def page(
    values: int,
    encoding: int,
    content: bytes = b"",
    *,
    packed: bytes | None = None,
    size: int | None = None,
    dictionary: bool = False,
) -> bytes:
    """A page: its content, or ``packed`` and the ``size`` it declares."""
    packed = pa.compress(content, "zstd", asbytes=True) if packed is None else packed
    kind, number = (_DICTIONARY_PAGE, 7) if dictionary else (_DATA_PAGE, 5)
    part = {1: values, 2: encoding} if dictionary else {1: values, 2: encoding, 3: 3, 4: 3}
    header = {1: kind, 2: len(content) if size is None else size, 3: len(packed), number: part}
    return thrift(header) + packed


@dataclass
class Column:
    """A column of one row group.

    Attributes:
        data: its data page.
        dictionary: the page before it.
        schema: its elements in the file's schema; by default one of its type.
        path: its name, with those it is nested in.
        about: further fields of its metadata, or other ones.
    """

    name: str
    type: int
    values: int
    data: bytes
    dictionary: bytes = b""
    length: int = 0
    repetition: int = REQUIRED
    schema: list[dict[int, Any]] = field(default_factory=list)
    path: tuple[str, ...] = ()
    about: dict[int, Any] = field(default_factory=dict)

    @property
    def elements(self) -> list[dict[int, Any]]:
        element: dict[int, Any] = {1: self.type, 3: self.repetition, 4: self.name.encode()}
        if self.length:
            element = {1: self.type, 2: self.length, 3: self.repetition, 4: self.name.encode()}
        return self.schema or [element]


def parquet(rows: int, *columns: Column) -> bytes:
    """A file with one row group."""
    data = b"PAR1"
    chunks: list[dict[int, Any]] = []
    for column in columns:
        at, size = len(data), len(column.dictionary) + len(column.data)
        data += column.dictionary + column.data
        about: dict[int, Any] = {
            1: column.type,
            2: [PLAIN, RLE_DICTIONARY],
            3: [name.encode() for name in column.path or (column.name,)],
            4: _ZSTD,
            5: Long(column.values),
            6: Long(size),
            7: Long(size),
            9: Long(at + len(column.dictionary)),
        }
        if column.dictionary:
            about[11] = Long(at)
        chunks.append({2: Long(at), 3: about | column.about})
    elements: list[dict[int, Any]] = [{4: b"schema", 5: len(columns)}]
    elements += [element for column in columns for element in column.elements]
    group = {1: chunks, 2: Long(len(data)), 3: Long(rows)}
    footer = thrift({1: 2, 2: elements, 3: Long(rows), 4: [group]})
    return data + footer + struct.pack("<I", len(footer)) + b"PAR1"


def repeated(name: str, kind: int, value: bytes, rows: int) -> Column:
    """A column of one value in all rows, in a dictionary: a few bytes, however many rows there are."""
    dictionary = page(1, PLAIN, value, dictionary=True)
    return Column(name, kind, rows, page(rows, RLE_DICTIONARY, b"\1" + run(rows, 0)), dictionary)


def shared_prefix(name: str, value: bytes, rows: int) -> Column:
    """A column of one text in all rows, each stored as the beginning of the one before."""
    content = deltas(0, len(value), rows) + deltas(len(value), 0, rows) + value
    return Column(name, BYTE_ARRAY, rows, page(rows, DELTA_BYTE_ARRAY, content))


def one_list(name: str, items: int) -> Column:
    """A column of one row, a list of equal numbers."""
    content = levels(run(1, 0), run(items - 1, 1)) + levels(run(items, 1)) + b"\1" + run(items, 0)
    schema: list[dict[int, Any]] = [
        {3: REQUIRED, 4: name.encode(), 5: 1, 6: 3},
        {3: REPEATED, 4: b"list", 5: 1},
        {1: INT64, 3: REQUIRED, 4: b"element"},
    ]
    dictionary = page(1, PLAIN, bytes(8), dictionary=True)
    data = page(items, RLE_DICTIONARY, content)
    return Column(name, INT64, items, data, dictionary, schema=schema, path=(name, "list", "element"))


def swollen(name: str, size: int) -> Column:
    """A column of ten numbers whose page declares, and has, many more bytes than they need."""
    return Column(name, INT64, 10, page(10, PLAIN, packed=zeros(size), size=size))


def wide(name: str, rows: int, length: int) -> Column:
    """A column of nulls, each of which takes ``length`` bytes."""
    data = page(rows, PLAIN, levels(run(rows, 0)))
    return Column(name, FIXED, rows, data, length=length, repetition=OPTIONAL)


def many_entries(name: str, entries: int) -> Column:
    """A column of ten numbers whose dictionary declares more entries than it has."""
    dictionary = page(entries, PLAIN, bytes(8), dictionary=True)
    return Column(name, INT64, 10, page(10, RLE_DICTIONARY, b"\1" + run(10, 0)), dictionary)
