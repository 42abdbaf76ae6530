"""Logical and physical hashes of data (specification: Data Hashing; arrow-digest 0 with SHA3-256).

SHA3-256 is OpenSSL's, through ``hashlib``: the fastest at hand (it does 470 MB/s where pycryptodome
does 400 and CPython's own implementation 160), and it lets other threads run while it works.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from odf_engine.data.parquet_reader import UNREADABLE, read_bounded, read_parquet_schema
from odf_engine.data.strands import Strand, Strands
from odf_engine.data.value_bytes import Leaf, leaf_array, schema_bytes, value_bytes
from odf_engine.errors import BadData, InvalidSchema, NotFound, has_surrogates
from odf_engine.identity.multiformats import ARROW0_SHA3_256, SHA3_256, Multihash
from odf_engine.processes import python_environment

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
        self._strands = Strands(threads)
        self._queues: list[Strand] = [self._strands.strand() for _ in leaves]

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds rows; returns before they are hashed, and waits when too many are under way.

        Raises:
            InvalidSchema: the batch has other columns than the schema.
        """
        self._check(batch.schema)
        for (leaf, hasher), queue in zip(self._columns, self._queues, strict=True):
            queue.put(lambda leaf=leaf, hasher=hasher: _feed(hasher, batch, leaf))

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


def _feed(hasher: Any, batch: pa.RecordBatch, leaf: Leaf) -> None:
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
    with Strands(1) as other, _batches(path) as (schema, batches), LogicalHasher(schema) as hasher:
        other.strand().put(lambda: physical.append(physical_hash(path)))
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
    done = subprocess.run(command, capture_output=True, env=python_environment(), check=False)
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
