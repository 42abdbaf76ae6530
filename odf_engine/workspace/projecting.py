"""The current state of a changelog by key, as a file of rows that can be shown like any others.

Two passes with little memory: one over the columns of the key, which finds the rows that stay, and one
over everything, which writes them. Where there are too many keys for the memory, they are shared out to
files first, and looked at one file after the other.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.chain.chain import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.data.changelog import replay
from odf_engine.data.conform import find_columns
from odf_engine.data.kernels import pc
from odf_engine.data.value_hash import value_hashes
from odf_engine.errors import InvalidSchema, Unsupported, UsageError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.workspace.kept import begun, keep_newest
from odf_engine.workspace.stored import StoredRows

_ROW: Final = "row number"
_ROW_BYTES: Final = 40
_MOST_SHARES: Final = 64
_FILES: Final = 40
_BYTES: Final = 1_000_000_000
_GROUP_ROWS: Final = 1 << 15  # a screen decodes a whole group to show some rows
_ABOUT: Final = b"odf.projection"

SHARE_BYTES: Final = 24 << 20
"""About how many bytes of keys are looked at at once; that takes several times as much memory."""


class Projection(msgspec.Struct, frozen=True):
    """The current state of a dataset: its file, and how many rows of how many it has."""

    file: Path
    key: list[str]
    rows: int
    of: int


def primary_key(state: ChainState) -> list[str]:
    """The primary key of the sources of a dataset; empty when they have none, or not the same."""
    sources = [state.polling_source, *state.push_sources.values()]
    found = {tuple(getattr(each.merge, "primary_key", ())) for each in sources if each is not None}
    return list(found.pop()) if len(found) == 1 else []


def key_of(dataset: Dataset) -> list[str]:
    """The columns that tell the rows of a dataset apart; empty when nothing says so."""
    return primary_key(dataset.state())


def project(
    odf: Path,
    dataset: Dataset,
    key: Sequence[str],
    reporter: Reporter,
    *,
    until: int | None = None,
    as_of: Timestamp | None = None,
) -> Projection:
    """Makes the current state of a dataset by key: of each key its newest row, unless that takes it away.

    Args:
        odf: the workspace's ``.odf`` folder; its cache keeps the result.
        dataset: the changelog.
        key: columns that tell rows apart; empty for those of :func:`key_of`.
        reporter: hears of rows, and is asked whether to stop.
        until: the last offset of the changelog that counts (-1: none); by default the newest.
        as_of: leaves out what had not happened by then.

    Raises:
        UsageError: there is no key.
        InvalidSchema: the key has columns that are not there, or cannot be a key.
        NotFound, BadData: rows that cannot be read.
        OdfError: the file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    if as_of is not None:
        raise Unsupported("the state as of an event time cannot be made yet")
    rows = StoredRows.of_dataset(dataset, until)
    names = _columns(rows, key or key_of(dataset))
    path = _path(odf, rows, names)
    known = _read(path)
    if known is not None:
        with suppress(OSError):
            os.utime(path)  # it was used just now
        return known
    found = write_projection(path, rows, names, reporter)
    keep_newest(path.parent, _FILES, _BYTES)
    return found


def write_projection(
    path: Path, rows: StoredRows, key: Sequence[str], reporter: Reporter, share_bytes: int = SHARE_BYTES
) -> Projection:
    """Writes the current state of rows to a Parquet file.

    Args:
        path: the file.
        rows: a changelog.
        key: names of its columns.
        reporter: hears of rows, and is asked whether to stop.
        share_bytes: about how many bytes of keys are looked at at once.

    Raises:
        OdfError: as of :func:`project`.
    """
    with begun(path) as temporary:
        stays = _rows_that_stay(rows, key, path.parent, reporter, share_bytes)
        count = _write(temporary, rows, key, stays, reporter)
    return Projection(path, list(key), count, rows.row_count)


def _columns(rows: StoredRows, key: Sequence[str]) -> list[str]:
    """The columns of the key as the dataset writes them."""
    if not key:
        raise UsageError("the dataset has no primary key", hint="choose the columns that tell rows apart")
    available = rows.columns.names
    names: list[str] = []
    for name, place in zip(key, find_columns(available, list(key)), strict=True):
        if place is None:
            raise InvalidSchema(f"there is no column '{name}'", hint=f"there are {', '.join(available)}")
        names.append(available[place])
    return names


def _path(odf: Path, rows: StoredRows, names: Sequence[str]) -> Path:
    mark = hashlib.sha256("\0".join([rows.mark, *names]).encode()).hexdigest()[:40]
    return odf / "cache" / "projections" / f"{mark}.parquet"


def _read(path: Path) -> Projection | None:
    with suppress(OSError, pa.ArrowException, msgspec.MsgspecError):
        metadata = pq.read_metadata(path)
        about = msgspec.json.decode((metadata.metadata or {})[_ABOUT], type=_About)
        return Projection(path, about.key, metadata.num_rows, about.of)
    return None


class _About(msgspec.Struct):
    key: list[str]
    of: int


# --- Which rows stay ---------------------------------------------------------------------------------


def _rows_that_stay(
    rows: StoredRows, names: Sequence[str], folder: Path, reporter: Reporter, share_bytes: int
) -> pa.Array:
    """For each row whether it is the newest of its key, and does not take it away."""
    reporter.phase("find newest")
    shares = _shares(rows, names, share_bytes)
    tables = _keys(rows, names, reporter)
    if shares == 1:
        return _newest(tables, len(names), rows)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".keys-") as temporary:
        files = _shared_out(tables, len(names), [Path(temporary) / str(share) for share in range(shares)])
        stays = pc.fill_null(pa.nulls(rows.row_count, pa.bool_()), False)
        for at, file in enumerate(files, 1):
            reporter.phase(f"find newest, part {at} of {shares}")
            reporter.check()
            with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
                stays = pc.or_(stays, _newest(stream, len(names), rows))
            file.unlink()
    return stays


def _newest(tables: Iterable[pa.Table | pa.RecordBatch], keys: int, rows: StoredRows) -> pa.Array:
    state = replay(tables, [f"k{at}" for at in range(keys)], rows.vocabulary)
    nothing = pc.fill_null(pa.nulls(rows.row_count, pa.bool_()), False)
    if not state.num_rows:
        return nothing
    numbers = state.column(_ROW).combine_chunks()
    true = pc.fill_null(pa.nulls(len(numbers), pa.bool_()), True)
    return pc.fill_null(pc.scatter(true, numbers, max_index=rows.row_count - 1), False)


def _shares(rows: StoredRows, names: Sequence[str], share_bytes: int) -> int:
    """In how many parts keys fit into the memory, one after the other, judged by the first rows."""
    first = next(rows.batches(names), None)
    if first is None or not first.num_rows:
        return 1
    width = _ROW_BYTES + first.nbytes / first.num_rows
    return min(max(1, -(-int(width * rows.row_count) // share_bytes)), _MOST_SHARES)


def _keys(rows: StoredRows, names: Sequence[str], reporter: Reporter) -> Iterator[pa.Table]:
    """Keys, operations and offsets, with the numbers of their rows."""
    offset, op = rows.vocabulary.offset_column, rows.vocabulary.operation_type_column
    zero_up = pa.array([], pa.int64())
    done = 0
    for batch in rows.batches(list(dict.fromkeys([*names, offset, op]))):
        if len(zero_up) < batch.num_rows:
            zero_up = pa.array(range(batch.num_rows), pa.int64())
        columns = {f"k{at}": batch.column(name) for at, name in enumerate(names)}
        columns |= {offset: batch.column(offset), op: batch.column(op)}
        columns[_ROW] = pc.add(zero_up.slice(0, batch.num_rows), done)
        done += batch.num_rows
        reporter.amount(rows=done, total_rows=rows.row_count)
        reporter.check()
        yield pa.table(columns)


def _shared_out(tables: Iterable[pa.Table], keys: int, files: Sequence[Path]) -> Sequence[Path]:
    """Writes rows to files, all of a key to the same one, in their order."""
    with ExitStack() as stack:
        writers: list[pa.ipc.RecordBatchStreamWriter] = []
        for table in tables:
            if not writers:
                for file in files:
                    sink = stack.enter_context(pa.OSFile(str(file), "wb"))
                    writers.append(stack.enter_context(pa.ipc.new_stream(sink, table.schema)))
            share = _share_of(table, keys, len(files))
            for at, writer in enumerate(writers):
                writer.write_table(table.filter(pc.equal(share, pa.scalar(at, pa.uint64()))))
    return files


def _share_of(table: pa.Table, keys: int, shares: int) -> pa.Array:
    """The number of the part that each row's key belongs to."""
    mixed: pa.Array | None = None
    for at in range(keys):
        hashes = value_hashes(table.column(f"k{at}").combine_chunks())
        mixed = hashes if mixed is None else value_hashes(pc.bit_wise_xor(mixed, hashes))
    assert mixed is not None
    high, of = pc.shift_right(mixed, pa.scalar(32, pa.uint64())), pa.scalar(shares, pa.uint64())
    return pc.subtract(high, pc.multiply(pc.divide(high, of), of))


# --- Writing -----------------------------------------------------------------------------------------


def _write(path: Path, rows: StoredRows, names: Sequence[str], stays: pa.Array, reporter: Reporter) -> int:
    reporter.phase("write")
    about = msgspec.json.encode(_About(list(names), rows.row_count))
    schema = rows.columns.with_metadata({_ABOUT: about})
    done = 0
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
        for group in _groups(_staying(rows, stays)):
            writer.write_batch(group.replace_schema_metadata(schema.metadata), row_group_size=_GROUP_ROWS)
            done += group.num_rows
            reporter.amount(rows=done)
            reporter.check()
    return done


def _staying(rows: StoredRows, stays: pa.Array) -> Iterator[pa.RecordBatch]:
    at = 0
    for batch in rows.batches():
        mask = stays.slice(at, batch.num_rows)
        at += batch.num_rows
        if pc.any(mask).as_py():
            yield batch.filter(mask)


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in row groups of some size: what stays of a batch may be few."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= 16 << 20:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)
