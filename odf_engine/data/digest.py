"""Logical (arrow-digest) and physical hashes of data, columns hashed in parallel."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from pyarrow import types

from odf_engine.data.arrow_compute import decode_array, decoded_type, is_list_like, pc
from odf_engine.data.parquet_reader import UNREADABLE, read_bounded, read_parquet_schema
from odf_engine.errors import BadData, InvalidSchema, NotFound, has_surrogates
from odf_engine.identity.multiformats import ARROW0_SHA3_256, SHA3_256, Multihash
from odf_engine.processes import build_python_environment


class SerialExecutors:
    """A few threads for many strands. Leaving the ``with`` block ends the threads.

    Args:
        threads: how many; by default one a core.
        depth: how many pieces of work may wait in one strand before :meth:`SerialExecutor.put` blocks, so
            that memory stays bounded.
    """

    def __init__(self, threads: int | None = None, depth: int = 2) -> None:
        self._pool = ThreadPoolExecutor(max(1, threads or os.cpu_count() or 1), "strand")
        self._depth = depth
        self._strands: list[SerialExecutor] = []

    def strand(self) -> SerialExecutor:
        """A new strand."""
        strand = SerialExecutor(self._pool, self._depth)
        self._strands.append(strand)
        return strand

    def wait(self) -> None:
        """Returns when all strands are empty.

        Raises:
            BaseException: what some work raised.
        """
        for strand in self._strands:
            strand.wait()

    def close(self) -> None:
        """Drops what has not begun and ends the threads."""
        for strand in self._strands:
            strand.cancel_pending()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SerialExecutor:
    """Work done one piece after the other, in the order it was put."""

    def __init__(self, pool: ThreadPoolExecutor, depth: int) -> None:
        self._pool = pool
        self._depth = depth
        self._queue: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._dropped = False

    def submit(self, work: Callable[[], None]) -> None:
        """Adds work; waits while too much is queued.

        Raises:
            BaseException: what earlier work of this strand raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) < self._depth or self._error)
            self._raise()
            self._queue.append(work)
            if len(self._queue) == 1:
                self._pool.submit(self._step)

    def _step(self) -> None:
        # One piece at a time, then to the back of the pool's queue: strands advance together.
        try:
            self._queue[0]()
        except BaseException as error:
            self._advance(error)
        else:
            self._advance(None)

    def _advance(self, error: BaseException | None) -> None:
        with self._changed:
            self._queue.popleft()
            if error is not None or self._dropped:
                self._error = self._error or error
                self._queue.clear()
            if self._queue:
                self._pool.submit(self._step)
            self._changed.notify_all()

    def wait(self) -> None:
        """Returns when all work is done.

        Raises:
            BaseException: what some work raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queue)
            self._raise()

    def cancel_pending(self) -> None:
        """Forgets the work that has not begun."""
        with self._changed:
            self._dropped = True

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


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


class LeafColumn(NamedTuple):
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


def schema_bytes(schema: pa.Schema) -> tuple[bytes, list[LeafColumn]]:
    """The bytes of all field names with their levels, depth first, and the leaves in that order.

    Raises:
        InvalidSchema: a column that the logical hash cannot express.
    """
    names: list[bytes] = []
    leaves: list[LeafColumn] = []

    def walk(field: pa.Field, path: tuple[int, ...], prefix: str) -> None:
        raw = field.name.encode()
        names.append(struct.pack("<Q", len(raw)) + raw + struct.pack("<Q", len(path) - 1))
        name = prefix + field.name
        kind = decoded_type(field.type)
        if types.is_struct(kind):
            for index, child in enumerate(kind):
                walk(child, (*path, index), f"{name}.")
        else:
            leaves.append(LeafColumn(path, name, field.type, type_bytes(kind, name)))

    for index, field in enumerate(schema):
        walk(field, (index,), "")
    return b"".join(names), leaves


def type_bytes(kind: pa.DataType, column: str) -> bytes:
    """The bytes of a type that is not a struct.

    Args:
        kind: the type.
        column: named in errors.

    Raises:
        InvalidSchema: the logical hash cannot express it.
    """
    kind = decoded_type(kind)
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
    if is_list_like(kind):
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
    array = decode_array(batch.column(path[0]))
    for index in path[1:]:
        array = decode_array(pc.struct_field(array, [index]))
    return array


def value_bytes(array: pa.Array) -> Iterator[pa.Buffer]:
    """The bytes of all values of a leaf, in pieces of bounded size.

    A column of fixed size without nulls is yielded as it lies in memory, without a copy.
    """
    array = decode_array(array)
    width = _fixed_width(array.type)
    if width and not array.null_count:
        yield array.buffers()[1].slice(array.offset * width, len(array) * width)
        return
    for piece in _pieces(array):
        yield _piece_bytes(piece, width)


def _piece_bytes(piece: pa.Array, width: int | None) -> pa.Buffer:
    if types.is_boolean(piece.type):
        return _bool_bytes(piece).buffers()[1]
    if width is None and not is_list_like(piece.type):
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
    array = decode_array(array)
    width = _fixed_width(array.type)
    if width:
        return _raw_cells(array, width)
    if types.is_boolean(array.type):
        return _raw_cells(_bool_bytes(array), 1)
    if is_list_like(array.type):
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


_PARQUET: Final = b"PAR1"


class FileDigest(NamedTuple):
    """Hashes of a file of data, its size in bytes and its number of rows."""

    logical_hash: Multihash
    physical_hash: Multihash
    size: int
    rows: int


class LogicalHasher:
    """Hashes batches of one schema as they come, each column in its own order, columns in parallel.

    The result does not depend on how rows are cut into batches, on nullability flags, or on how
    columns are encoded in memory (dictionary, large, view). A leaf is null where any struct around it
    is null.

    Args:
        schema: names and types of the columns.
        threads: how many hash at once; by default one a core.

    Raises:
        InvalidSchema: a column that the logical hash cannot express.
    """

    def __init__(self, schema: pa.Schema, threads: int | None = os.cpu_count()) -> None:
        names, leaves = schema_bytes(schema)
        self._schema = schema
        self._names = names
        self._columns = [(leaf, hashlib.sha3_256(leaf.type_bytes)) for leaf in leaves]
        self._strands = SerialExecutors(threads)
        self._queues: list[SerialExecutor] = [self._strands.strand() for _ in leaves]

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds rows; returns before they are hashed, and waits when too many are under way.

        Raises:
            InvalidSchema: the batch has other columns than the schema.
        """
        self._check(batch.schema)
        for (leaf, hasher), queue in zip(self._columns, self._queues, strict=True):
            queue.submit(lambda leaf=leaf, hasher=hasher: _feed(hasher, batch, leaf))

    def _check(self, schema: pa.Schema) -> None:
        if schema is self._schema or schema.equals(self._schema):
            return
        names, leaves = schema_bytes(schema)
        expected = [leaf.type_bytes for leaf, _ in self._columns]
        if names != self._names or [leaf.type_bytes for leaf in leaves] != expected:
            raise InvalidSchema("a batch has other columns than the schema of the data")

    def finish(self) -> Multihash:
        """The hash of all rows so far."""
        self._strands.wait()
        total = hashlib.sha3_256(self._names)
        for _, hasher in self._columns:
            total.update(hasher.digest())
        return Multihash(ARROW0_SHA3_256, total.digest())

    def close(self) -> None:
        """Ends the threads; rows that are not hashed yet are forgotten."""
        self._strands.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _feed(hasher: Any, batch: pa.RecordBatch, leaf: LeafColumn) -> None:
    for piece in value_bytes(leaf_array(batch, leaf.path)):
        hasher.update(piece)


def logical_hash(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Multihash:
    """The logical hash of rows given as batches.

    Raises:
        InvalidSchema: a column that the logical hash cannot express, or a batch of another schema.
    """
    with LogicalHasher(schema) as hasher:
        for batch in batches:
            hasher.update(batch)
        return hasher.finish()


def physical_hash(path: Path) -> tuple[Multihash, int]:
    """SHA3-256 of a file's bytes, and its size.

    Raises:
        NotFound: there is no such file.
    """
    _must_exist(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, hashlib.sha3_256).digest()
        return Multihash(SHA3_256, digest), file.tell()


def _must_exist(path: Path) -> None:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")


def digest_file(path: Path) -> FileDigest:
    """Both hashes of a Parquet file or an Arrow IPC file or stream.

    Arrow IPC is read in a process of its own: damaged files crash Arrow's kernels, even validated ones.

    Raises:
        NotFound: there is no such file.
        BadData: the file is in no such format, or damaged.
        InvalidSchema: a column that the logical hash cannot express.
    """
    _must_exist(path)
    if has_surrogates(str(path)):
        problem = "the file's name is not UTF-8 text, and Arrow cannot open it"
        raise BadData(problem, where=str(path), hint="rename the file")
    with path.open("rb") as file:
        is_parquet = file.read(len(_PARQUET)) == _PARQUET
    return _digest(path) if is_parquet else _digest_isolated(path)


def _digest(path: Path) -> FileDigest:
    physical: list[tuple[Multihash, int]] = []
    rows = 0
    with SerialExecutors(1) as other, _batches(path) as (schema, batches), LogicalHasher(schema) as hasher:
        other.strand().submit(lambda: physical.append(physical_hash(path)))
        for batch in batches:
            hasher.update(batch)
            rows += batch.num_rows
        logical = hasher.finish()
        other.wait()
    return FileDigest(logical, *physical[0], rows)


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose offsets and indices are in bounds. Arrow's kernels crash on others."""
    batch.validate(full=True)
    return batch


@contextmanager
def _batches(path: Path) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
    try:
        with pa.OSFile(str(path), "rb") as file:
            magic = file.read(6)
            file.seek(0)
            if magic.startswith(_PARQUET):
                yield read_parquet_schema(path), read_bounded(path)
            elif magic == b"ARROW1":
                reader = pa.ipc.open_file(file)
                found = (reader.get_batch(at) for at in range(reader.num_record_batches))
                yield reader.schema, map(_validated, found)
            else:
                stream = pa.ipc.open_stream(file)
                yield stream.schema, map(_validated, stream)
    except UNREADABLE as error:
        raise BadData(
            f"the file cannot be read as Parquet, Arrow IPC file or Arrow IPC stream: {error}",
            where=str(path),
        ) from error


# --- In a process of its own -----------------------------------------------------------------------

_ALLOWED_BYTES: Final = 4 << 30
_ALLOWED_RATIO: Final = 250
"""Reading Arrow IPC may take 4 GiB of memory, or this many times the size of the file."""
_ERRORS: Final = {kind.__name__: kind for kind in (BadData, InvalidSchema)}


def _digest_isolated(path: Path) -> FileDigest:
    """Run this module on a file, in a process that may crash.

    Raises:
        BadData, InvalidSchema: as for :func:`digest_file`, or the process crashed.
    """
    command = [sys.executable, "-P", "-m", __name__, str(path)]
    done = subprocess.run(command, capture_output=True, env=build_python_environment(), check=False)
    if done.returncode < 0:
        raise BadData(
            f"is damaged: reading it crashed the Arrow reader (signal {-done.returncode})", where=str(path)
        )
    try:
        found = json.loads(done.stdout)
        if "error" in found:
            raise _ERRORS[found["error"]](found["message"], hint=found["hint"], where=str(path))
        return FileDigest(
            Multihash.parse(found["logical"]),
            Multihash.parse(found["physical"]),
            found["size"],
            found["rows"],
        )
    except ValueError:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise BadData(
            f"cannot be read: {lines[-1] if lines else 'no reason is known'}", where=str(path)
        ) from None


def _main(path: Path) -> None:
    limit = max(_ALLOWED_BYTES, _ALLOWED_RATIO * path.stat().st_size)
    with suppress(ValueError, OSError):  # it is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = _digest(path)
    except (BadData, InvalidSchema) as error:
        answer = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    else:
        logical, physical = str(found.logical_hash), str(found.physical_hash)
        answer = {"logical": logical, "physical": physical, "size": found.size, "rows": found.rows}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
