"""What the logical hash reads: types, names and values of Arrow columns as bytes (arrow-digest 0).

- a null is a single 0 byte;
- values of a fixed size are their raw little-endian bytes; a Boolean is 2 (true) or 1 (false);
- text and binary are a 64-bit length and the bytes; lists a 64-bit count and the items.

Everything is done by Arrow's kernels over whole columns. How a column is encoded in memory (large,
view, dictionary, sliced, cut into batches) makes no difference to these bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import types

from odf_engine.data.kernels import pc
from odf_engine.errors import InvalidSchema

_UNITS: Final = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_PIECE_ROWS: Final = 1 << 16  # small enough for the caches, large enough to make calls cheap
_PIECE_BYTES: Final = 64 << 20
_NULL: Final = pa.scalar(b"\0", pa.large_binary())
_EMPTY: Final = pa.scalar(b"", pa.large_binary())

_INT: Final = 1
_FLOAT: Final = 2
_BINARY: Final = 3
_UTF8: Final = 4
_BOOL: Final = 5
_DECIMAL: Final = 6
_DATE: Final = 7
_TIME: Final = 8
_TIMESTAMP: Final = 9
_LIST: Final = 11

_RESHAPE: Final = {
    "struct": "a list of structs can be split into one list column per member, or kept as JSON text",
    "map": "keep its keys and its values in two list columns, or the whole as JSON text",
    "duration": "cast it to BIGINT with its unit in the column's name",
    "interval": "cast it to BIGINT with its unit in the column's name",
    "null": "give the column a type, for example with CAST(... AS STRING)",
}


class Leaf(NamedTuple):
    """A column without children of its own: where it is, and its type.

    Attributes:
        path: indices from the schema down through structs.
        name: dotted name for people.
        type: as declared.
        type_bytes: what its hasher is started with.
    """

    path: tuple[int, ...]
    name: str
    type: pa.DataType
    type_bytes: bytes


def schema_bytes(schema: pa.Schema) -> tuple[bytes, list[Leaf]]:
    """The bytes of all field names with their levels, depth first, and the leaves in that order.

    Raises:
        InvalidSchema: a column that the logical hash cannot express.
    """
    names: list[bytes] = []
    leaves: list[Leaf] = []

    def walk(field: pa.Field, path: tuple[int, ...], prefix: str) -> None:
        raw = field.name.encode()
        names.append(struct.pack("<Q", len(raw)) + raw + struct.pack("<Q", len(path) - 1))
        name = prefix + field.name
        kind = plain_type(field.type)
        if types.is_struct(kind):
            for index, child in enumerate(kind):
                walk(child, (*path, index), f"{name}.")
        else:
            leaves.append(Leaf(path, name, field.type, type_bytes(kind, name)))

    for index, field in enumerate(schema):
        walk(field, (index,), "")
    return b"".join(names), leaves


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without its in-memory encoding: of a dictionary, run-end encoding or extension."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    return kind


def is_any_list(kind: pa.DataType) -> bool:
    """Whether it is a list, in any encoding."""
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def type_bytes(kind: pa.DataType, column: str) -> bytes:
    """The bytes of a type that is not a struct.

    Args:
        kind: the type.
        column: named in errors.

    Raises:
        InvalidSchema: the logical hash cannot express it.
    """
    kind = plain_type(kind)
    if types.is_integer(kind):
        return struct.pack("<HBQ", _INT, types.is_signed_integer(kind), kind.bit_width)
    if types.is_floating(kind):
        return struct.pack("<HQ", _FLOAT, kind.bit_width)
    if types.is_boolean(kind):
        return struct.pack("<H", _BOOL)
    if _is_text(kind):
        return struct.pack("<H", _UTF8)
    if _is_bytes(kind):
        return struct.pack("<H", _BINARY)
    if types.is_decimal(kind):
        return struct.pack("<HQQq", _DECIMAL, kind.bit_width, kind.precision, kind.scale)
    if types.is_date(kind):
        return struct.pack("<HQH", _DATE, kind.bit_width, types.is_date64(kind))
    if types.is_time(kind):
        return struct.pack("<HQH", _TIME, kind.bit_width, _UNITS[kind.unit])
    if types.is_timestamp(kind):
        zone = b"\0" if kind.tz is None else struct.pack("<Q", len(kind.tz.encode())) + kind.tz.encode()
        return struct.pack("<HH", _TIMESTAMP, _UNITS[kind.unit]) + zone
    if is_any_list(kind):
        return struct.pack("<H", _LIST) + type_bytes(kind.value_type, column)
    raise _inexpressible(kind, column)


def _inexpressible(kind: pa.DataType, column: str) -> InvalidSchema:
    name = str(kind)
    word = next((word for word in _RESHAPE if word in name.split("<")[0]), "")
    return InvalidSchema(
        f"column '{column}' has type {name}, which the logical hash cannot express",
        hint=_RESHAPE.get(word, "reshape it into text, numbers, times, structs or lists of those"),
    )


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def leaf_array(batch: pa.RecordBatch, path: tuple[int, ...]) -> pa.Array:
    """The leaf's values in a batch; null where it or any struct around it is null."""
    array = decoded(batch.column(path[0]))
    for index in path[1:]:
        array = decoded(pc.struct_field(array, [index]))
    return array


def decoded(array: pa.Array) -> pa.Array:
    """``array`` without dictionary, run-end encoding or extension type."""
    if isinstance(array, pa.ExtensionArray):
        return decoded(array.storage)
    if types.is_dictionary(array.type):
        return decoded(array.dictionary_decode())
    if types.is_run_end_encoded(array.type):
        return decoded(pc.run_end_decode(array))
    return array


def value_bytes(array: pa.Array) -> Iterator[pa.Buffer]:
    """The bytes of all values of a leaf, in pieces of bounded size.

    A column of fixed size without nulls is yielded as it lies in memory, without a copy.
    """
    array = decoded(array)
    width = _fixed_width(array.type)
    if width and not array.null_count:
        yield array.buffers()[1].slice(array.offset * width, len(array) * width)
        return
    for piece in _pieces(array):
        yield _piece_bytes(piece, width)


def _piece_bytes(piece: pa.Array, width: int | None) -> pa.Buffer:
    if types.is_boolean(piece.type):
        return _bool_bytes(piece).buffers()[1]
    if width is None and not is_any_list(piece.type):
        return _contents(_interleaved(*_lengths_and_values(piece)))
    return _contents(_cells(piece))


def _pieces(array: pa.Array) -> Iterator[pa.Array]:
    size = array.nbytes
    rows = max(1, min(_PIECE_ROWS, len(array) * _PIECE_BYTES // size)) if size else _PIECE_ROWS
    for start in range(0, len(array), rows):
        yield from _bounded(array.slice(start, rows))


def _bounded(piece: pa.Array) -> Iterator[pa.Array]:
    if len(piece) > 1 and piece.nbytes > 2 * _PIECE_BYTES:
        half = len(piece) // 2
        yield from _bounded(piece.slice(0, half))
        yield from _bounded(piece.slice(half))
    else:
        yield piece


def _fixed_width(kind: pa.DataType) -> int | None:
    """Bytes of a value whose raw bytes are hashed as they are, or None."""
    if types.is_primitive(kind) and not types.is_boolean(kind):
        return kind.bit_width // 8
    return kind.bit_width // 8 if types.is_decimal(kind) else None


def _cells(array: pa.Array) -> pa.Array:
    """Each value as its own bytes: large binary without nulls."""
    array = decoded(array)
    width = _fixed_width(array.type)
    if width:
        return _raw_cells(array, width)
    if types.is_boolean(array.type):
        return _raw_cells(_bool_bytes(array), 1)
    if is_any_list(array.type):
        return _list_cells(array)
    return pc.binary_join_element_wise(*_lengths_and_values(array), _EMPTY)


def _raw_cells(array: pa.Array, width: int) -> pa.Array:
    validity, data = array.buffers()
    raw = pa.Array.from_buffers(
        pa.binary(width), len(array), [validity, data], array.null_count, array.offset
    ).cast(pa.large_binary())
    return pc.fill_null(raw, _NULL) if array.null_count else raw


def _bool_bytes(array: pa.Array) -> pa.Array:
    return pc.fill_null(pc.add(array.cast(pa.uint8()), pa.scalar(1, pa.uint8())), 0)


def _list_cells(array: pa.Array) -> pa.Array:
    counts = pc.list_value_length(array).cast(pa.int64())
    ends = pc.cumulative_sum(pc.fill_null(counts, 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    items = pa.LargeListArray.from_arrays(offsets, _cells(array.flatten()))
    return pc.binary_join_element_wise(_raw_cells(counts, 8), pc.binary_join(items, _EMPTY), _EMPTY)


def _lengths_and_values(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """For text and binary: 64-bit lengths (one 0 byte for null) and contents (nothing for null)."""
    values = array.cast(pa.large_binary())
    lengths = pc.binary_length(values)
    if values.null_count:
        values = _without_nulls(values, pc.sum(lengths).as_py() or 0)
    return _raw_cells(lengths, 8), values


def _without_nulls(values: pa.Array, size: int) -> pa.Array:
    """Large binary values with nothing in place of nulls; ``size`` is how long all valid ones are."""
    buffers = values.buffers()
    bare = pa.Array.from_buffers(values.type, len(values), [None, *buffers[1:]], 0, values.offset)
    # Null slots are nearly always empty already, and then nothing needs to be copied.
    return bare if _contents(bare).size == size else pc.fill_null(values, _EMPTY)


def _interleaved(first: pa.Array, second: pa.Array) -> pa.Array:
    # Taking from the two laid end to end is much faster than joining them element by element.
    count = len(first)
    # 0, count, 1, count + 1, …: each pair of 32-bit numbers is made as one of 64 bits.
    pairs = pc.add(_even_pairs()[:count], count << 32)
    places = pa.Array.from_buffers(pa.int32(), 2 * count, [None, pairs.buffers()[1]])
    return pc.take(pa.concat_arrays([first, second]), places, boundscheck=False)


@lru_cache(maxsize=1)
def _even_pairs() -> pa.Array:
    """(0, 0), (1, 1), (2, 2), …"""
    return pc.multiply(pa.array(range(_PIECE_ROWS), pa.int64()), (1 << 32) + 1)


def _contents(cells: pa.Array) -> pa.Buffer:
    """All bytes of a large binary array without nulls, end to end."""
    _, offsets, data = cells.buffers()
    ends: Any = memoryview(offsets).cast("q")
    start, stop = ends[cells.offset], ends[cells.offset + len(cells)]
    return data.slice(start, stop - start) if data is not None else pa.py_buffer(b"")
