"""Row provenance of transactions, from the positions of input rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from odf_engine.base.progress import Reporter
from odf_engine.data.changelog import INPUT_BITS, OPERATION, POSITION, Op
from odf_engine.engines.contract import InputRows, RowProvenance
from odf_engine.errors import Unsupported
from odf_engine.metadata.model import OffsetInterval, TransformRequest


def provenance_of_positions(
    batches: Iterable[pa.RecordBatch],
    request: TransformRequest,
    rows: Sequence[OffsetInterval],
    reporter: Reporter,
) -> RowProvenance:
    """Return the provenance of rows of a stateless transaction.

    The positions of the input rows identify them. The other row of a correction pair contributes as well:
    without it, the operation would differ.

    Args:
        batches: all rows of the transaction, in order, with ``odf_position`` and ``odf_operation``.
        request: request of the transaction.
        rows: offsets of result rows.
        reporter: checked for cancellation.
    """
    offsets: dict[int, set[int]] = defaultdict(set)
    for position, operation in _select_rows(batches, request.next_offset, rows, reporter):
        index, offset = position >> INPUT_BITS, position & ((1 << INPUT_BITS) - 1)
        offsets[index].add(offset)
        other = {Op.CORRECT_FROM: offset + 1, Op.CORRECT_TO: offset - 1}.get(Op(operation))
        interval = request.query_inputs[index].offset_interval
        if other is not None and interval is not None and interval.start <= other <= interval.end:
            offsets[index].add(other)
    feeds = [
        InputRows(input.query_alias, to_intervals(sorted(offsets[index])))
        for index, input in enumerate(request.query_inputs)
        if index in offsets
    ]
    return RowProvenance(feeds)


def _select_rows(
    batches: Iterable[pa.RecordBatch], first: int, rows: Sequence[OffsetInterval], reporter: Reporter
) -> Iterator[tuple[int, int]]:
    """Yield position and operation of each of the rows."""
    ranges = [(row.start - first, row.end - first) for row in rows]
    number = 0
    for batch in batches:
        reporter.raise_if_cancelled()
        for part in slice_batch(batch, number, ranges):
            yield from zip(part[POSITION].to_pylist(), part[OPERATION].to_pylist(), strict=True)
        number += batch.num_rows


def slice_batch(
    batch: pa.RecordBatch, number: int, ranges: Sequence[tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges within a batch that starts at row ``number``."""
    for first, last in ranges:
        start, stop = max(first - number, 0), min(last + 1 - number, batch.num_rows)
        if start < stop:
            yield batch.slice(start, stop - start)


def all_input_rows(request: TransformRequest, reason: str) -> RowProvenance:
    """Return all rows that a transaction read, for a stateful query.

    Raises:
        Unsupported: it continues from a state, whose rows are not in the request.
    """
    if request.prev_checkpoint_path is not None:
        raise Unsupported(f"{reason}, and its rows also depend on earlier transactions", where="query")
    feeds = [
        InputRows(input.query_alias, [input.offset_interval])
        for input in request.query_inputs
        if input.offset_interval is not None
    ]
    return RowProvenance(feeds, exact=False, reason=reason)


def to_intervals(offsets: Sequence[int]) -> list[OffsetInterval]:
    """Return ascending offsets as intervals."""
    result: list[OffsetInterval] = []
    for offset in offsets:
        if result and offset == result[-1].end + 1:
            result[-1] = OffsetInterval(result[-1].start, offset)
        else:
            result.append(OffsetInterval(offset, offset))
    return result
