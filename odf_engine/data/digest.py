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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from odf_engine.base.arrow import pa, pc, types
from odf_engine.base.processes import build_python_environment
from odf_engine.data.arrow_compute import decode_array, decoded_type, is_list_like
from odf_engine.data.parquet.parquet_reader import parquet_errors, read_bounded, read_parquet_schema
from odf_engine.data.sha3_lanes import LANES, Kernel, Sha3Stream, find_kernel
from odf_engine.errors import BadData, InvalidSchema, NotFound, has_surrogates
from odf_engine.identity.multiformats import ARROW0_SHA3_256, SHA3_256, Multihash


class SerialExecutors:
    """A thread pool with serial executors. Leaving the ``with`` block ends the threads.

    Args:
        threads: number of threads; by default one for each core.
        depth: number of tasks queued in one executor before :meth:`SerialExecutor.submit` blocks, which
            bounds memory; None: no limit.
    """

    def __init__(self, threads: int | None = None, depth: int | None = 2) -> None:
        self._pool = ThreadPoolExecutor(max(1, threads or os.cpu_count() or 1), "hash")
        self._depth = depth
        self._executors: list[SerialExecutor] = []

    def new_executor(self) -> SerialExecutor:
        """Create an executor."""
        executor = SerialExecutor(self._pool, self._depth)
        self._executors.append(executor)
        return executor

    def wait(self) -> None:
        """Wait until all executors are idle.

        Raises:
            BaseException: raised by a task.
        """
        for executor in self._executors:
            executor.wait()

    def close(self) -> None:
        """Cancel pending tasks and end the threads."""
        for executor in self._executors:
            executor.cancel_pending()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SerialExecutor:
    """Runs tasks one after the other, in the order of submission."""

    def __init__(self, pool: ThreadPoolExecutor, depth: int | None) -> None:
        self._pool = pool
        self._depth = depth
        self._queue: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._dropped = False

    def submit(self, work: Callable[[], None]) -> None:
        """Queue a task; blocks while the queue is full.

        Raises:
            BaseException: raised by an earlier task of this executor.
        """
        with self._changed:
            if (depth := self._depth) is not None:
                self._changed.wait_for(lambda: len(self._queue) < depth or self._error)
            self._raise()
            self._queue.append(work)
            if len(self._queue) == 1:
                self._pool.submit(self._step)

    def _step(self) -> None:
        # One task, then back to the end of the pool's queue, so that all executors advance together.
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
        """Wait until all tasks are done.

        Raises:
            BaseException: raised by a task.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._queue)
            self._raise()

    def cancel_pending(self) -> None:
        """Cancel the tasks that have not started."""
        with self._changed:
            self._dropped = True

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


_UNITS: Final = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_CHUNK_ROWS: Final = 1 << 16  # fits in processor caches, and amortizes the cost of a call
_CHUNK_BYTES: Final = 64 << 20
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
    "struct": "use one list column per member, or store it as JSON text",
    "map": "use two list columns for keys and values, or store it as JSON text",
    "duration": "cast it to BIGINT with the unit in the column name",
    "interval": "cast it to BIGINT with the unit in the column name",
    "null": "declare a type for the column, such as CAST(... AS STRING)",
}


class LeafColumn(NamedTuple):
    """A column without children: its location and type.

    Attributes:
        path: indices from the schema down through structs.
        name: dotted name for messages.
        type: the declared type.
        type_bytes: the first bytes of its hash.
    """

    path: tuple[int, ...]
    name: str
    type: pa.DataType
    type_bytes: bytes


def schema_bytes(schema: pa.Schema) -> tuple[bytes, list[LeafColumn]]:
    """Return the bytes of all field names with their levels, depth first, and the leaves in that order.

    Raises:
        InvalidSchema: a column that the logical hash cannot express.
    """
    names: list[bytes] = []
    leaves: list[LeafColumn] = []

    def walk(field: pa.Field, path: tuple[int, ...], prefix: str) -> None:
        raw = field.name.encode()
        names.append(struct.pack("<Q", len(raw)) + raw + struct.pack("<Q", len(path) - 1))
        name = prefix + field.name
        data_type = decoded_type(field.type)
        if types.is_struct(data_type):
            for index, child in enumerate(data_type):
                walk(child, (*path, index), f"{name}.")
        else:
            leaves.append(LeafColumn(path, name, field.type, type_bytes(data_type, name)))

    for index, field in enumerate(schema):
        walk(field, (index,), "")
    return b"".join(names), leaves


def type_bytes(data_type: pa.DataType, column: str) -> bytes:
    """Return the bytes of a type that is not a struct.

    Args:
        data_type: the type.
        column: its name in errors.

    Raises:
        InvalidSchema: the logical hash cannot express it.
    """
    data_type = decoded_type(data_type)
    if types.is_integer(data_type):
        return struct.pack("<HBQ", _INT, types.is_signed_integer(data_type), data_type.bit_width)
    if types.is_floating(data_type):
        return struct.pack("<HQ", _FLOAT, data_type.bit_width)
    if types.is_boolean(data_type):
        return struct.pack("<H", _BOOL)
    if _is_text(data_type):
        return struct.pack("<H", _UTF8)
    if _is_bytes(data_type):
        return struct.pack("<H", _BINARY)
    if types.is_decimal(data_type):
        return struct.pack("<HQQq", _DECIMAL, data_type.bit_width, data_type.precision, data_type.scale)
    if types.is_date(data_type):
        return struct.pack("<HQH", _DATE, data_type.bit_width, types.is_date64(data_type))
    if types.is_time(data_type):
        return struct.pack("<HQH", _TIME, data_type.bit_width, _UNITS[data_type.unit])
    if types.is_timestamp(data_type):
        zone = (
            b"\0"
            if data_type.tz is None
            else struct.pack("<Q", len(data_type.tz.encode())) + data_type.tz.encode()
        )
        return struct.pack("<HH", _TIMESTAMP, _UNITS[data_type.unit]) + zone
    if is_list_like(data_type):
        return struct.pack("<H", _LIST) + type_bytes(data_type.value_type, column)
    raise _inexpressible(data_type, column)


def _inexpressible(data_type: pa.DataType, column: str) -> InvalidSchema:
    name = str(data_type)
    word = next((word for word in _RESHAPE if word in name.split("<")[0]), "")
    return InvalidSchema(
        f"column '{column}' has type {name}, which the logical hash does not support",
        hint=_RESHAPE.get(word, "convert it to text, numbers, times, structs or lists of those"),
    )


def _is_text(data_type: pa.DataType) -> bool:
    return types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)


def _is_bytes(data_type: pa.DataType) -> bool:
    return (
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_fixed_size_binary(data_type)
        or types.is_binary_view(data_type)
    )


def leaf_array(batch: pa.RecordBatch, path: tuple[int, ...]) -> pa.Array:
    """Return the values of a leaf in a batch; null where the leaf or any struct around it is null."""
    array = decode_array(batch.column(path[0]))
    for index in path[1:]:
        array = decode_array(pc.struct_field(array, [index]))
    return array


def value_bytes(array: pa.Array) -> Iterator[pa.Buffer]:
    """Yield the bytes of all values of a leaf, in chunks of bounded size.

    A column of fixed size without nulls is not copied.
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
    rows = max(1, min(_CHUNK_ROWS, len(array) * _CHUNK_BYTES // size)) if size else _CHUNK_ROWS
    for start in range(0, len(array), rows):
        yield from _bounded(array.slice(start, rows))


def _bounded(piece: pa.Array) -> Iterator[pa.Array]:
    if len(piece) > 1 and piece.nbytes > 2 * _CHUNK_BYTES:
        half = len(piece) // 2
        yield from _bounded(piece.slice(0, half))
        yield from _bounded(piece.slice(half))
    else:
        yield piece


def _fixed_width(data_type: pa.DataType) -> int | None:
    """Return the bytes of a value whose raw bytes are hashed, or None for other types."""
    if types.is_primitive(data_type) and not types.is_boolean(data_type):
        return data_type.bit_width // 8
    return data_type.bit_width // 8 if types.is_decimal(data_type) else None


def _cells(array: pa.Array) -> pa.Array:
    """Return the hashed bytes of each value as large binary without nulls."""
    array = decode_array(array)
    width = _fixed_width(array.type)
    if width:
        return _raw_cells(array, width)
    if types.is_boolean(array.type):
        return _raw_cells(_bool_bytes(array), 1)
    if is_list_like(array.type):
        return _list_cells(array)
    return pc.binary_join_element_wise(*_lengths_and_values(array), _null_and_empty()[1])


@cache
def _null_and_empty() -> tuple[pa.Scalar, pa.Scalar]:
    """Return the cell of null and an empty one."""
    # Sliced from buffers, because pa.scalar and pa.array import pandas.
    cells = [None, pa.py_buffer(struct.pack("=3q", 0, 1, 1)), pa.py_buffer(b"\0")]
    null, empty = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2, cells)
    return null, empty


def _raw_cells(array: pa.Array, width: int) -> pa.Array:
    validity, data = array.buffers()
    raw = pa.Array.from_buffers(
        pa.binary(width), len(array), [validity, data], array.null_count, array.offset
    ).cast(pa.large_binary())
    return pc.fill_null(raw, _null_and_empty()[0]) if array.null_count else raw


def _bool_bytes(array: pa.Array) -> pa.Array:
    return pc.fill_null(pc.add(array.cast(pa.uint8()), pa.scalar(1, pa.uint8())), 0)


def _list_cells(array: pa.Array) -> pa.Array:
    counts = pc.list_value_length(array).cast(pa.int64())
    ends = pc.cumulative_sum(pc.fill_null(counts, 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    items = pa.LargeListArray.from_arrays(offsets, _cells(array.flatten()))
    _, empty = _null_and_empty()
    return pc.binary_join_element_wise(_raw_cells(counts, 8), pc.binary_join(items, empty), empty)


def _lengths_and_values(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return 64-bit lengths (one 0 byte for null) and contents (nothing for null) of text or binary."""
    values = array.cast(pa.large_binary())
    lengths = pc.binary_length(values)
    if values.null_count:
        values = _without_nulls(values, pc.sum(lengths).as_py() or 0)
    return _raw_cells(lengths, 8), values


def _without_nulls(values: pa.Array, size: int) -> pa.Array:
    """Return large binary values, empty for null; ``size`` is the total length of valid values."""
    buffers = values.buffers()
    bare = pa.Array.from_buffers(values.type, len(values), [None, *buffers[1:]], 0, values.offset)
    # Null slots are nearly always empty. Then no copy is needed.
    return bare if _contents(bare).size == size else pc.fill_null(values, _null_and_empty()[1])


def _interleaved(first: pa.Array, second: pa.Array) -> pa.Array:
    # Take from the concatenation is much faster than an element-wise join.
    count = len(first)
    # 0, count, 1, count + 1, …: each pair of 32-bit integers is computed as one of 64 bits.
    pairs = pc.add(_even_pairs()[:count], count << 32)
    places = pa.Array.from_buffers(pa.int32(), 2 * count, [None, pairs.buffers()[1]])
    return pc.take(pa.concat_arrays([first, second]), places, boundscheck=False)


@lru_cache(maxsize=1)
def _even_pairs() -> pa.Array:
    """Return (0, 0), (1, 1), (2, 2), …"""
    return pc.multiply(pa.array(range(_CHUNK_ROWS), pa.int64()), (1 << 32) + 1)


def _contents(cells: pa.Array) -> pa.Buffer:
    """Return all bytes of a large binary array without nulls, concatenated."""
    _, offsets, data = cells.buffers()
    ends: Any = memoryview(offsets).cast("q")
    start, stop = ends[cells.offset], ends[cells.offset + len(cells)]
    return data.slice(start, stop - start) if data is not None else pa.py_buffer(b"")


_PARQUET: Final = b"PAR1"
_MAX_WIDTH: Final = 64


class FileDigest(NamedTuple):
    """Hashes of a data file, its size in bytes and its number of rows."""

    logical_hash: Multihash
    physical_hash: Multihash
    size: int
    rows: int


class LogicalHasher:
    """Hashes batches of one schema, columns in parallel.

    The result does not depend on how rows are split into batches, on nullability flags, or on how
    columns are encoded in memory (dictionary, large, view). A leaf is null where any struct around it
    is null.

    Args:
        schema: names and types of the columns.
        executors: threads that the hasher shares with others; by default one for each core, which end with
            the hasher.

    Raises:
        InvalidSchema: a column that the logical hash cannot express.
    """

    def __init__(self, schema: pa.Schema, executors: SerialExecutors | None = None) -> None:
        names, leaves = schema_bytes(schema)
        self._schema = schema
        self._names = names
        self._leaves = leaves
        self._own = SerialExecutors() if executors is None else None
        shared = executors or self._own
        assert shared is not None
        self._groups = _group_columns(leaves, shared)

    def update(self, batch: pa.RecordBatch) -> None:
        """Add rows. Returns before they are hashed; blocks while too many batches are queued.

        Raises:
            InvalidSchema: the columns of the batch differ from the schema.
        """
        for queue, task in self.tasks(batch):
            queue.submit(task)

    def tasks(self, batch: pa.RecordBatch) -> list[tuple[SerialExecutor, Callable[[], None]]]:
        """Return the tasks that add rows, each with its executor, for callers that limit them.

        Raises:
            InvalidSchema: the columns of the batch differ from the schema.
        """
        self._check(batch.schema)
        find_kernel(batch.nbytes)
        return [(group.executor, partial(group.update, batch)) for group in self._groups]

    def _check(self, schema: pa.Schema) -> None:
        if schema is self._schema or schema.equals(self._schema):
            return
        names, leaves = schema_bytes(schema)
        expected = [leaf.type_bytes for leaf in self._leaves]
        if names != self._names or [leaf.type_bytes for leaf in leaves] != expected:
            raise InvalidSchema("the columns of a batch differ from the schema of the data")

    def finish(self) -> Multihash:
        """Return the hash of all rows."""
        digests: dict[LeafColumn, bytes] = {}
        for group in self._groups:
            group.executor.wait()
            digests |= group.digests()
        total = hashlib.sha3_256(self._names)
        for leaf in self._leaves:
            total.update(digests[leaf])
        return Multihash(ARROW0_SHA3_256, total.digest())

    def close(self) -> None:
        """End the threads, unless they are shared. Rows that are not hashed yet are discarded."""
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ColumnHasher:
    """Hashes one column with OpenSSL."""

    def __init__(self, leaf: LeafColumn, executor: SerialExecutor) -> None:
        self.executor = executor
        self._leaf, self._hasher = leaf, hashlib.sha3_256(leaf.type_bytes)

    def update(self, batch: pa.RecordBatch) -> None:
        for piece in value_bytes(leaf_array(batch, self._leaf.path)):
            self._hasher.update(piece)

    def digests(self) -> dict[LeafColumn, bytes]:
        return {self._leaf: self._hasher.digest()}


class _LaneHasher:
    """Hashes several columns at the same time."""

    def __init__(self, kernel: Kernel, leaves: Sequence[LeafColumn], executor: SerialExecutor) -> None:
        self.executor = executor
        self._kernel, self._leaves = kernel, leaves
        self._streams = [Sha3Stream(kernel, leaf.type_bytes) for leaf in leaves]

    def update(self, batch: pa.RecordBatch) -> None:
        columns = [value_bytes(leaf_array(batch, leaf.path)) for leaf in self._leaves]
        self._kernel.update(self._streams, columns)

    def digests(self) -> dict[LeafColumn, bytes]:
        return {leaf: stream.digest() for leaf, stream in zip(self._leaves, self._streams, strict=True)}


def _group_columns(
    leaves: Sequence[LeafColumn], executors: SerialExecutors
) -> Sequence[_ColumnHasher | _LaneHasher]:
    """Return hashers of the columns; columns with values of similar size are hashed together."""
    kernel = find_kernel()
    if kernel is None or len(leaves) < 2:
        return [_ColumnHasher(leaf, executors.new_executor()) for leaf in leaves]
    by_size = sorted(leaves, key=lambda leaf: _fixed_width(decoded_type(leaf.type)) or _MAX_WIDTH)
    count = -(-len(leaves) // LANES)
    bounds = [len(leaves) * number // count for number in range(count + 1)]
    return [
        _LaneHasher(kernel, by_size[start:end], executors.new_executor()) for start, end in pairwise(bounds)
    ]


def logical_hash(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Multihash:
    """Return the logical hash of rows given as batches.

    Raises:
        InvalidSchema: a column that the logical hash cannot express, or a batch of another schema.
    """
    with LogicalHasher(schema) as hasher:
        for batch in batches:
            hasher.update(batch)
        return hasher.finish()


def physical_hash(path: Path) -> tuple[Multihash, int]:
    """Return the SHA3-256 of a file's bytes, and its size.

    Raises:
        NotFound: there is no such file.
    """
    _must_exist(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, hashlib.sha3_256).digest()
        return Multihash(SHA3_256, digest), file.tell()


def _must_exist(path: Path) -> None:
    if not path.is_file():
        raise NotFound(f"file {path} not found")


def digest_file(path: Path) -> FileDigest:
    """Return both hashes of a Parquet file or an Arrow IPC file or stream.

    Arrow IPC is read in a separate process: damaged files crash Arrow's kernels, even validated ones.

    Raises:
        NotFound: there is no such file.
        BadData: the file has no such format, or is damaged.
        InvalidSchema: a column that the logical hash cannot express.
    """
    _must_exist(path)
    if has_surrogates(str(path)):
        problem = "the file name is not UTF-8 text"
        raise BadData(problem, where=str(path), hint="rename the file")
    with path.open("rb") as file:
        start = file.read(1 << 12)
    is_parquet = start.startswith(_PARQUET)
    if start and not is_parquet and b"\0" not in start:  # the other formats begin with numbers of four bytes
        raise BadData(
            "this is a text file: only Parquet and Arrow IPC files have a logical hash",
            where=str(path),
            hint="to prove rows in a text file, pull it into a dataset",
        )
    return _digest(path) if is_parquet else _digest_isolated(path)


def _digest(path: Path) -> FileDigest:
    physical: list[tuple[Multihash, int]] = []
    rows = 0
    with SerialExecutors(1) as other, _batches(path) as (schema, batches), LogicalHasher(schema) as hasher:
        other.new_executor().submit(lambda: physical.append(physical_hash(path)))
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
                batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
                yield reader.schema, map(_validated, batches)
            else:
                stream = pa.ipc.open_stream(file)
                yield stream.schema, map(_validated, stream)
    except parquet_errors() as error:
        raise BadData(
            f"the file cannot be read as Parquet, Arrow IPC file or Arrow IPC stream: {error}",
            where=str(path),
        ) from error


_ALLOWED_BYTES: Final = 4 << 30
_ALLOWED_RATIO: Final = 250
"""Memory limit of reading Arrow IPC: 4 GiB, or this many times the size of the file if that is more."""
_ERRORS: Final = {kind.__name__: kind for kind in (BadData, InvalidSchema)}


def _digest_isolated(path: Path) -> FileDigest:
    """Run this module on a file in a process that may crash.

    Raises:
        BadData, InvalidSchema: as :func:`digest_file`, or the process crashed.
    """
    command = [sys.executable, "-P", "-m", __name__, str(path)]
    done = subprocess.run(command, capture_output=True, env=build_python_environment(), check=False)
    if done.returncode < 0:
        raise BadData(f"damaged file: the Arrow reader crashed (signal {-done.returncode})", where=str(path))
    try:
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise _ERRORS[answer["error"]](answer["message"], hint=answer["hint"], where=str(path))
        return FileDigest(
            Multihash.parse(answer["logical"]),
            Multihash.parse(answer["physical"]),
            answer["size"],
            answer["rows"],
        )
    except ValueError:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise BadData(f"cannot be read: {lines[-1] if lines else 'unknown error'}", where=str(path)) from None


def _main(path: Path) -> None:
    limit = max(_ALLOWED_BYTES, _ALLOWED_RATIO * path.stat().st_size)
    with suppress(ValueError, OSError):  # the limit is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        digest = _digest(path)
    except (BadData, InvalidSchema) as error:
        answer = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    else:
        logical, physical = str(digest.logical_hash), str(digest.physical_hash)
        answer = {"logical": logical, "physical": physical, "size": digest.size, "rows": digest.rows}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
