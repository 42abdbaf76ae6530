"""Makes a Parquet file fit for Spark: known to be one, in pieces that memory holds, with its time stamps."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.errors import BadData
from odf_engine.progress import Reporter
from odf_engine.spark.casts import identifier
from odf_engine.spark.text import linked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LARGEST_PIECE: Final = 128 << 20
"""Spark holds the rows of a few row groups at once; larger ones (in bytes, unpacked) are divided."""
_PIECE: Final = 16 << 20
_BATCH_ROWS: Final = 16384
_NANOS: Final = re.compile("Timestamp.*nanoseconds")


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
        with pq.ParquetFile(path) as file:
            footer = file.metadata
            largest = max((_size(footer, i) for i in range(footer.num_row_groups)), default=0)
            if largest <= _LARGEST_PIECE:
                return linked(path, scratch, ".parquet"), footer
            copy = Path(tempfile.mkdtemp(prefix="parquet-", dir=scratch)) / "divided.parquet"
            _divide(file, copy, reporter)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadData(f"this is not a Parquet file that can be read: {problem}", where=name) from None
    return copy, footer


def with_moments(frame: DataFrame, footer: pq.FileMetaData) -> DataFrame:
    """Time stamps of nanoseconds, which Spark gives as numbers, as time stamps cut to microseconds."""
    leaves = [footer.schema.column(i) for i in range(len(footer.schema))]
    nanos = {leaf.path for leaf in leaves if _NANOS.match(str(leaf.logical_type))}
    if not nanos:
        return frame
    return frame.selectExpr(*(_moment(name) if name in nanos else identifier(name) for name in frame.columns))


def _moment(name: str) -> str:
    column = identifier(name)
    return f"timestamp_micros(({column} - pmod({column}, 1000)) DIV 1000) AS {column}"


def _size(footer: pq.FileMetaData, group: int) -> int:
    """Bytes of a row group in memory, at least: dictionaries may make it look much smaller on disk."""
    found = footer.row_group(group)
    return max(found.total_byte_size, found.num_rows * found.num_columns * 8)


def _divide(file: pq.ParquetFile, copy: Path, reporter: Reporter) -> None:
    """Copies a file with row groups of moderate size, in bounded memory and the same order."""
    with pq.ParquetWriter(copy, file.schema_arrow, compression="lz4", version="2.6") as writer:
        batches: list[pa.RecordBatch] = []
        for batch in file.iter_batches(_BATCH_ROWS):
            reporter.check()
            batches.append(batch)
            if sum(each.nbytes for each in batches) >= _PIECE:
                writer.write_table(pa.Table.from_batches(batches))
                batches = []
        if batches:
            writer.write_table(pa.Table.from_batches(batches))
