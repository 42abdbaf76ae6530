"""Changelogs in files, made in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.changelog import Op
from odf_engine.metadata.model import DEFAULT_VOCABULARY
from odf_engine.rows.scan import Scan, ScanFile

Row = tuple[Op, str | None, int | None, str]
"""An operation, a key, an event time in seconds since 1970, and a value."""

TIME = pa.timestamp("ms", "UTC")


def table_of(rows: Iterable[Row], kind: pa.DataType = TIME) -> pa.Table:
    """Rows as a slice has them, without their offsets; event times of another type are days."""
    ops, keys, times, values = zip(*rows, strict=True) if (rows := list(rows)) else ((), (), (), ())
    scale = 1000 if kind == TIME else 1
    numbers = pa.array([None if at is None else at * scale for at in times])
    event_time = numbers.cast(pa.int64() if kind == TIME else pa.int32()).cast(kind)
    return pa.table(
        {
            "op": pa.array([int(op) for op in ops], pa.uint8()),
            "event_time": event_time,
            "station": pa.array(keys, pa.string()),
            "value": pa.array(values, pa.string()),
        }
    )


def stored(folder: Path, tables: Sequence[pa.Table]) -> Scan:
    """Tables as slices, in small row groups. Slice n is recorded n days after 1970-01-01."""
    parts: list[ScanFile] = []
    for number, table in enumerate(tables):
        recorded = pa.array([number * 86_400_000] * table.num_rows, pa.int64()).cast(TIME)
        table = table.add_column(1, "system_time", recorded)
        offset = sum(part.rows for part in parts)
        offsets = pa.array(range(offset, offset + table.num_rows), pa.uint64())
        path = folder / f"{len(parts)}.parquet"
        pq.write_table(table.add_column(0, "offset", offsets), path, row_group_size=5)
        parts.append(ScanFile(path, table.num_rows, f"{path.stem}-{table.num_rows}", path.name))
    schema = pq.read_schema(parts[0].path)
    return Scan(schema, DEFAULT_VOCABULARY, parts, "here")


def offsets(file: Path) -> list[int]:
    """The offsets of the rows in a file, which are in order."""
    found: list[Any] = pq.read_table(file)["offset"].to_pylist()
    assert found == sorted(found)
    return found
