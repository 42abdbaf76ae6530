"""Exports rows as CSV, JSON or Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.atomic_files import atomic_file
from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import pc, to_csv_fields, to_json_values
from odf_engine.data.parquet.slice_file import RowRange
from odf_engine.errors import AlreadyExists, UsageError
from odf_engine.rows.scan import Scan

Format = Literal["csv", "json", "ndjson", "parquet"]
"""``json`` is an array of objects, ``ndjson`` one object on each line."""

Write = Callable[[pa.RecordBatch], None]


class ExportedFile(msgspec.Struct, frozen=True):
    """A written file; ``size`` is in bytes."""

    path: Path
    rows: int
    size: int


def export(
    rows: Scan,
    path: Path,
    form: Format,
    reporter: Reporter,
    *,
    ranges: Sequence[RowRange] = (),
    system: bool = True,
    replace: bool = False,
) -> ExportedFile:
    """Write rows to a file. The file appears when it is complete.

    Args:
        rows: the rows.
        path: an absolute path.
        form: format of the file.
        reporter: receives rows and bytes, and can cancel.
        ranges: row numbers, or () for all rows.
        system: whether the system columns are written.
        replace: whether an existing file is replaced.

    Raises:
        AlreadyExists: the path exists.
        UsageError: the folder does not exist, or there are no columns to write.
        NotFound, BadData: rows cannot be read.
        OdfError: the file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    check_path(path, replace)
    names = [name for name in rows.schema.names if system or name not in rows.system_columns]
    if not names:
        raise UsageError("there are no columns to write")
    reporter.phase("write")
    scan = (rows.rows(ranges) if ranges else rows).select(names)
    done, total = 0, scan.row_count
    with atomic_file(path, 0o666) as temporary:
        with _WRITERS[form](temporary, scan.schema) as write:
            for batch in scan.batches():
                write(batch)
                done += batch.num_rows
                reporter.set_amounts(rows=done, total_rows=total)
                reporter.raise_if_cancelled()
        size = temporary.stat().st_size
        check_path(path, replace)
    return ExportedFile(path, done, size)


def write_stream(
    path: Path, form: Format, schema: pa.Schema, batches: Iterable[pa.RecordBatch], reporter: Reporter
) -> int:
    """Write a stream of rows to a file. The file appears when it is complete, and replaces an existing one.

    Args:
        path: an absolute path.
        form: format of the file.
        schema: the schema of the rows.
        batches: the rows; few are in memory at a time.
        reporter: can cancel.

    Returns:
        The number of rows.

    Raises:
        AlreadyExists: the path is a folder.
        UsageError: the folder of the file does not exist.
        OdfError: the file cannot be written.
        Cancelled: the reporter was cancelled.
    """
    check_path(path, replace=True)
    done = 0
    with atomic_file(path, 0o666) as temporary, _WRITERS[form](temporary, schema) as write:
        for batch in batches:
            reporter.raise_if_cancelled()
            write(batch)
            done += batch.num_rows
    return done


def check_path(path: Path, replace: bool) -> None:
    """Check before writing whether a file can be written at a path.

    Raises:
        AlreadyExists: the path exists; a file is allowed with ``replace``.
        UsageError: the path is not absolute, or its folder does not exist.
    """
    if not path.is_absolute():
        raise UsageError("the path is not absolute", where=str(path))
    if path.is_dir():
        raise AlreadyExists(
            "a folder with this name already exists", where=str(path), hint="choose another name"
        )
    if not path.parent.is_dir():
        raise UsageError(
            "folder not found", where=str(path.parent), hint="create it, or choose another folder"
        )
    if path.exists() and not replace:
        raise AlreadyExists("the file already exists", where=str(path), hint="choose another name")


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Write]:
    """Write CSV (RFC 4180)."""
    with path.open("wb") as file:
        head = to_csv_fields(pa.array(schema.names, pa.string())).to_pylist()
        file.write(",".join(head).encode() + b"\r\n")

        def write(batch: pa.RecordBatch) -> None:
            _write_lines(file, [to_csv_fields(column) for column in batch.columns], "", ",", "\r\n")

        yield write


@contextmanager
def _ndjson(path: Path, schema: pa.Schema) -> Iterator[Write]:
    with path.open("wb") as file:
        keys = _keys(schema)

        def write(batch: pa.RecordBatch) -> None:
            _write_lines(file, _json_members(batch, keys), "{", ",", "}\n")

        yield write


@contextmanager
def _json(path: Path, schema: pa.Schema) -> Iterator[Write]:
    with path.open("wb") as file:
        keys = _keys(schema)
        has_rows = False

        def write(batch: pa.RecordBatch) -> None:
            nonlocal has_rows
            for at in range(0, batch.num_rows, 1 if not has_rows else batch.num_rows):
                part = batch.slice(at, 1) if not has_rows else batch.slice(at)
                _write_lines(file, _json_members(part, keys), ",\n{" if has_rows else "[\n{", ",", "}")
                if has_rows:
                    return
                has_rows = True

        yield write
        file.write(b"\n]\n" if has_rows else b"[]\n")


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Write]:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        yield writer.write_batch


_WRITERS: Final[dict[Format, Callable[[Path, pa.Schema], AbstractContextManager[Write]]]] = {
    "csv": _csv,
    "json": _json,
    "ndjson": _ndjson,
    "parquet": _parquet,
}


def _keys(schema: pa.Schema) -> list[str]:
    return [f"{text}:" for text in to_json_values(pa.array(schema.names, pa.string())).to_pylist()]


def _json_members(batch: pa.RecordBatch, keys: Sequence[str]) -> list[pa.Array]:
    columns = zip(keys, batch.columns, strict=True)
    return [pc.binary_join_element_wise(key, to_json_values(column), "") for key, column in columns]


def _write_lines(file: BinaryIO, cells: Sequence[pa.Array], before: str, between: str, after: str) -> None:
    lines = pc.binary_join_element_wise(*cells, between)
    lines = pc.binary_join_element_wise(before, lines, after, "").cast(pa.large_binary())
    _, offsets, data = lines.buffers()
    ends = memoryview(offsets).cast("q")
    start, stop = ends[lines.offset], ends[lines.offset + len(lines)]
    file.write(data.slice(start, stop - start) if data is not None else b"")
