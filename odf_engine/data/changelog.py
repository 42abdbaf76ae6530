"""Operations of a changelog, and the state that a changelog describes (specification: Representation
of Retractions and Corrections)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import pyarrow as pa

from odf_engine.data.conform import find_columns
from odf_engine.data.kernels import pc
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.model import DatasetVocabulary

_COMPACT_ROWS: Final = 1 << 17


class Op(IntEnum):
    """What a row does to the state: appends, takes back, or replaces in two rows, from and to."""

    APPEND = 0
    RETRACT = 1
    CORRECT_FROM = 2
    CORRECT_TO = 3

    @property
    def code(self) -> str:
        """The specification's short code: ``+A``, ``-R``, ``-C`` or ``+C``."""
        return ("+A", "-R", "-C", "+C")[self]


def replay(
    batches: Iterable[pa.RecordBatch | pa.Table], primary_key: Sequence[str], vocab: DatasetVocabulary
) -> pa.Table:
    """The state after all changes: of each key its newest row, unless that row takes the key away.

    Memory is bounded by the size of the state, not by the length of the changelog.

    Args:
        batches: rows of one schema in the order of their offsets.
        primary_key: columns that tell rows apart, at least one; null counts as a value.
        vocab: names of the system columns.

    Returns:
        Rows with all columns they came with, in the order of their offsets.

    Raises:
        InvalidSchema: a key or system column is missing, or of a type that cannot be a key.
    """
    if not primary_key:
        raise InvalidSchema("a changelog can be replayed only by a primary key")
    state: pa.Table | None = None
    waiting: list[pa.Table] = []
    rows = 0
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        waiting.append(table)
        rows += table.num_rows
        if rows >= max(_COMPACT_ROWS, state.num_rows if state else 0):
            state = _newest(state, waiting, primary_key, vocab)
            waiting, rows = [], 0
    return _newest(state, waiting, primary_key, vocab)


def _newest(
    state: pa.Table | None, waiting: list[pa.Table], primary_key: Sequence[str], vocab: DatasetVocabulary
) -> pa.Table:
    tables = [*([state] if state is not None else []), *waiting]
    if not tables:
        return pa.table({})
    table = pa.concat_tables(tables)
    names = [*primary_key, vocab.offset_column, vocab.operation_type_column]
    places = find_columns(table.column_names, names)
    for name, place in zip(names, places, strict=True):
        if place is None:
            raise InvalidSchema(f"there is no column '{name}' in the changelog")
    *keys, offset, op = (table.column(place) for place in places)
    index = pa.table({**{f"k{at}": key for at, key in enumerate(keys)}, "offset": offset})
    try:
        grouped = index.group_by([f"k{at}" for at in range(len(keys))]).aggregate([("offset", "max")])
    except pa.ArrowNotImplementedError as error:
        raise InvalidSchema(
            f"the columns {', '.join(primary_key)} cannot be a primary key: {error}"
        ) from error
    newest = pc.is_in(offset, value_set=grouped.column("offset_max"))
    stays = pc.is_in(op, value_set=pa.array([Op.APPEND, Op.CORRECT_TO], op.type))
    return table.filter(pc.and_(newest, stays))
