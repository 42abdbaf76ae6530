"""Rows that a dataset has, by their offsets: only the parts of the slices that hold some are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from odf_engine.data.conform import conform
from odf_engine.data.kernels import pc
from odf_engine.data.slices import take_rows
from odf_engine.errors import NotFound
from odf_engine.ingest.merge_base import Inputs


def rows_at(inputs: Inputs, offsets: pa.Array) -> Iterator[pa.RecordBatch]:
    """Event time and data columns of the rows at these offsets.

    Args:
        offsets: 64-bit integers, ascending.

    Returns:
        The rows in that order, as the slice's schema has them; a column that an older slice lacks is
        null.

    Raises:
        NotFound: a slice is missing.
        BadData: a slice is damaged.
    """
    if not len(offsets):
        return
    for row in inputs.dataset.slices(offsets[0].as_py(), offsets[-1].as_py()):
        start, stop = pc.search_sorted(offsets, pa.array([row.start, row.end + 1], pa.int64())).to_pylist()
        if start == stop:
            continue
        path = inputs.dataset.slice_path(row)
        if not path.exists():
            raise NotFound("a data slice is missing", where=str(path), hint="see: odf verify")
        places = pc.subtract(offsets[start:stop], row.start)
        for batch in take_rows(path, places, inputs.names):
            inputs.reporter.check()
            yield _fitted(batch, inputs)


def examples(inputs: Inputs, offsets: Sequence[int]) -> list[dict[str, object]]:
    """A few rows, in the order of the offsets that are given."""
    ascending = sorted(offsets)
    rows = [row for batch in rows_at(inputs, pa.array(ascending, pa.int64())) for row in batch.to_pylist()]
    found = dict(zip(ascending, rows, strict=True))
    return [found[offset] for offset in offsets]


def _fitted(batch: pa.RecordBatch, inputs: Inputs) -> pa.RecordBatch:
    fields = [inputs.schema.field(name).with_nullable(True) for name in inputs.names]
    columns = [
        conform(batch.column(field.name), field, 0)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
