"""Makes a Parquet file fit for Spark: known to be one, in pieces that memory holds, with its time stamps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.parquet_reader import UNREADABLE, open_parquet, read_bounded, read_parquet_schema
from odf_engine.errors import BadData
from odf_engine.progress import Reporter
from odf_engine.spark.casts import identifier, text
from odf_engine.spark.text import linked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LARGEST_PIECE: Final = 128 << 20
"""Spark holds the rows of a few row groups at once; larger ones (in bytes, unpacked) are divided."""
_PIECE: Final = 16 << 20
_UNPACKED: Final = 32 << 20
_LEAST_AT_ONCE: Final = 1 << 20
_BATCH_ROWS: Final = 16384


def prepare(path: Path, scratch: Path, name: str, reporter: Reporter) -> tuple[Path, pq.FileMetaData]:
    """A file to give to Spark in place of this one, and the footer of this one.

    Args:
        path: the file.
        scratch: a folder for a link or copy; whoever calls removes it after the job.
        name: how errors name the file.
        reporter: is asked whether to stop.

    Raises:
        BadData: it is not a Parquet file, or it is damaged.
    """
    try:
        with open_parquet(path) as file:
            footer = file.metadata
            largest = max((_size(footer, i) for i in range(footer.num_row_groups)), default=0)
            if largest <= _LARGEST_PIECE:
                return linked(path, scratch, ".parquet"), footer
            copy = Path(tempfile.mkdtemp(prefix="parquet-", dir=scratch)) / "divided.parquet"
            _divide(path, copy, reporter)
    except UNREADABLE as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadData(f"this is not a Parquet file that can be read: {problem}", where=name) from None
    return copy, footer


def with_moments(frame: DataFrame, footer: pq.FileMetaData) -> DataFrame:
    """Time stamps of nanoseconds, which Spark gives as numbers, as time stamps cut to microseconds."""
    made = [_moments(identifier(field.name), field.type, 0) for field in footer.schema.to_arrow_schema()]
    if len(made) != len(frame.columns) or not any(made):
        return frame
    names = map(identifier, frame.columns)
    return frame.selectExpr(*(f"{value or name} AS {name}" for value, name in zip(made, names, strict=True)))


def _moments(value: str, kind: pa.DataType, depth: int) -> str | None:
    """An expression for a value at any depth with its time stamps; None where it has no such ones."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return f"timestamp_micros(({value} - pmod({value}, 1000)) DIV 1000)"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = f"item_{depth}"
        made = _moments(item, kind.value_type, depth + 1)
        return made and f"transform({value}, {item} -> {made})"
    if pa.types.is_struct(kind):
        members = {field.name: f"{value}.{identifier(field.name)}" for field in kind}
        made = {field.name: _moments(members[field.name], field.type, depth) for field in kind}
        if any(made.values()):
            pairs = ", ".join(f"{text(name)}, {made[name] or member}" for name, member in members.items())
            return f"if({value} IS NULL, NULL, named_struct({pairs}))"
    return None


def bytes_at_once(footer: pq.FileMetaData, size: int) -> int:
    """How many bytes of the file Spark should take for one partition, so that memory holds its rows:
    Parquet packs, and 16 MB of it may be some hundred in memory.

    Args:
        footer: of the file.
        size: of the file, in bytes.
    """
    unpacked = sum(_size(footer, at) for at in range(footer.num_row_groups))
    return max(_LEAST_AT_ONCE, min(_PIECE, size * _UNPACKED // max(unpacked, 1)))


def _size(footer: pq.FileMetaData, group: int) -> int:
    """Bytes of a row group in memory, at least: dictionaries may make it look much smaller on disk."""
    found = footer.row_group(group)
    return max(found.total_byte_size, found.num_rows * found.num_columns * 8)


def _divide(path: Path, copy: Path, reporter: Reporter) -> None:
    """Copies a file with row groups of moderate size, in bounded memory and the same order."""
    schema = read_parquet_schema(path)
    with pq.ParquetWriter(copy, schema, compression="lz4", version="2.6") as writer:
        batches: list[pa.RecordBatch] = []
        for batch in read_bounded(path, most_rows=_BATCH_ROWS, most_bytes=_PIECE):
            reporter.check()
            batches.append(batch)
            if sum(each.nbytes for each in batches) >= _PIECE:
                writer.write_table(pa.Table.from_batches(batches))
                batches = []
        if batches:
            writer.write_table(pa.Table.from_batches(batches))
