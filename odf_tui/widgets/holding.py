"""Which rows hold a text, whatever its case, in the words that their cells show.

Imported in a thread, because it brings Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from odf_engine.data.arrow_compute import pc
from odf_tui.widgets.cells import is_bytes, texts

_PERIOD: Final = re.compile(r"(\d{4})-(\d\d)(?:-(\d\d)(?: (\d\d):(\d\d)(?::(\d\d))?)?)?")


def able_to_hold(schema: pa.Schema, columns: Sequence[int], text: str) -> list[int]:
    """Those columns whose values may hold a text: no number holds a letter."""
    return [column for column in columns if set(text.lower()) <= _letters(schema.field(column).type, text)]


def _letters(kind: pa.DataType, text: str) -> set[str]:
    """What values of a type are written with."""
    if pt.is_integer(kind):
        return set("0123456789-")
    if pt.is_decimal(kind):
        return set("0123456789-.e+")
    if pt.is_floating(kind):
        return set("0123456789-.e+infa")
    if pt.is_boolean(kind):
        return set("truefals")
    if pt.is_temporal(kind):
        return set("0123456789-:. z")
    return set(text.lower())


def holding(table: pa.Table, text: str) -> tuple[Any | None, list[Any]]:
    """Which rows have a column that holds a text, and the same for each column; None: without columns."""
    whole: Any | None = None
    masks: list[Any] = []
    for column in table.columns:
        mask = _mask(column, text).fill_null(False)
        masks.append(mask)
        whole = mask if whole is None else pc.or_(whole, mask)
    return whole, masks


def _mask(column: pa.ChunkedArray, text: str) -> Any:
    kind = column.type
    if pt.is_timestamp(kind) and (period := _period(text, kind)) is not None:
        return pc.and_(pc.greater_equal(column, period[0]), pc.less(column, period[1]))
    if pt.is_temporal(kind):
        # Writing a time costs a microsecond: each is written once.
        coded = column.combine_chunks().dictionary_encode()
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.combine_chunks()
        words = pa.array(texts(pa.chunked_array([coded.dictionary])), pa.string())
        return _held(words, text).take(coded.indices)
    if pt.is_nested(kind) or is_bytes(kind):
        return _held(pa.array(texts(column), pa.string()), text)
    try:
        return _held(column if pt.is_string(kind) else column.cast(pa.string()), text)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return _held(pa.array(texts(column), pa.string()), text)


def _held(words: Any, text: str) -> Any:
    if text.isascii():  # several times quicker than to ignore the case
        return pc.match_substring(pc.ascii_lower(words), text.lower())
    return pc.match_substring(words, text, ignore_case=True)


def _period(text: str, kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """The time from the beginning to the end of what is written: a month, a day, a minute or a second."""
    found = _PERIOD.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in found.groups())
    try:
        start = datetime(year, month, day or 1, hour, minute, second, tzinfo=UTC)
        if found[6]:
            end = start + timedelta(seconds=1)
        elif found[4]:
            end = start + timedelta(minutes=1)
        elif found[3]:
            end = start + timedelta(days=1)
        else:
            end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if kind.tz is None:
            start, end = start.replace(tzinfo=None), end.replace(tzinfo=None)
        return pa.scalar(start, kind), pa.scalar(end, kind)
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None
