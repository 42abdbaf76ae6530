"""The latest state after a changelog, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from odf_engine.data.changelog import Op
from odf_engine.metadata.model import DatasetVocabulary


def latest_state(
    batches: Iterable[pa.RecordBatch], primary_key: Sequence[str], vocab: DatasetVocabulary
) -> pa.Table:
    """Return the newest row of each key that is not retracted, in the order of the offsets."""
    rows = list(batches)
    if not rows:
        return pa.table({})
    table = pa.Table.from_batches(rows)
    newest: dict[tuple[object, ...], int] = {}
    for at, row in enumerate(table.select([*primary_key, vocab.operation_type_column]).to_pylist()):
        *key, operation = row.values()
        newest.pop(tuple(key), None)
        if operation in (Op.APPEND, Op.CORRECT_TO):
            newest[tuple(key)] = at
    return table.take(list(newest.values()))
