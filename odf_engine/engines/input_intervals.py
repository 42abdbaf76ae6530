"""Input files of a request that have only the rows of the transaction."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.parquet_reader import open_parquet, parquet_errors
from odf_engine.data.parquet.slices import copy_rows, read_rows_at
from odf_engine.errors import BadData, NotFound
from odf_engine.metadata.model import TransformRequest, TransformRequestInput


@contextmanager
def with_rows_of_intervals(request: TransformRequest, scratch: Path) -> Iterator[TransformRequest]:
    """Yield a request whose input files have only the rows of the offset intervals.

    A coordinator may pass whole slices. An input without an interval has no new rows.

    Args:
        request: as received.
        scratch: folder for temporary files, which exist inside the `with` body.

    Raises:
        NotFound, BadData: an input file is missing or damaged.
    """
    with tempfile.TemporaryDirectory(prefix="inputs-", dir=scratch) as folder:
        inputs = [
            replace(input, data_paths=[str(path) for path in _files_of_interval(input, Path(folder))])
            for input in request.query_inputs
        ]
        yield replace(request, query_inputs=inputs)


def _files_of_interval(query_input: TransformRequestInput, folder: Path) -> Iterator[Path]:
    interval = query_input.offset_interval
    if interval is None:
        return
    for path in map(Path, query_input.data_paths):
        offsets = stored_offsets(path, query_input.vocab.offset_column)
        first, last = max(offsets.start, interval.start), min(offsets.end, interval.end)
        if first > last:
            continue
        if (first, last) == (offsets.start, offsets.end):
            yield path
            continue
        if offsets.end - offsets.start != offsets.rows - 1:
            raise BadData("the offsets of the slice are not consecutive", where=str(path))
        # A unique name: the engine names copies of the rows of one commit after the file.
        cut = folder / f"{uuid.uuid4().hex}.parquet"
        rows = (first - offsets.start, last + 1 - offsets.start)
        copy_rows(path, cut, rows, vocab=query_input.vocab, reporter=Reporter())
        yield cut


class SliceOffsets(NamedTuple):
    """The first and the last offset of a slice, and the number of its rows."""

    start: int
    end: int
    rows: int


def stored_offsets(path: Path, column: str) -> SliceOffsets:
    """Return the offsets of a slice; the end of an empty one precedes its start."""
    try:
        with open_parquet(path) as file:
            rows = file.metadata.num_rows
    except FileNotFoundError:
        raise NotFound("slice is missing", where=str(path)) from None
    except parquet_errors() as error:
        raise BadData("the data slice cannot be read", where=str(path)) from error
    if not rows:
        return SliceOffsets(0, -1, 0)
    positions = pa.array(sorted({0, rows - 1}), pa.int64())
    batches = list(read_rows_at(path, positions, [column]))
    if column not in batches[0].schema.names:
        raise BadData(f"the slice has no column '{column}'", where=str(path))
    values = [int(value) for batch in batches for value in batch.column(column).to_pylist()]
    return SliceOffsets(values[0], values[-1], rows)
