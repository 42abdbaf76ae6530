"""Which rows of the inputs made rows of a transaction, where a query goes row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from odf_engine.data.changelog import Op
from odf_engine.errors import Unsupported
from odf_engine.ingest.ordering import Make, Order, OutOfOrder, Step, in_order
from odf_engine.metadata.model import OffsetInterval, TransformRequest
from odf_engine.progress import Reporter
from odf_engine.spark.origins import INPUT_BITS, OPERATION, POSITION, Followed
from odf_engine.transform.contract import Derived

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame


def row_origins(
    followed: Followed, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
) -> Derived:
    """Finds them: the rows of a transaction are in the order of their positions, which name input rows.

    The other half of a correction belongs to a row that one half of it made: without it, the operation
    would be another one.

    Args:
        followed: the result of the transaction's query.
        request: of the transaction.
        rows: offsets of rows that it made.
        reporter: is asked whether to stop.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for position, operation in _positions(followed, request.next_offset, rows, reporter):
        at, offset = position >> INPUT_BITS, position & ((1 << INPUT_BITS) - 1)
        found[at].add(offset)
        other = {Op.CORRECT_FROM: offset + 1, Op.CORRECT_TO: offset - 1}.get(Op(operation))
        interval = request.query_inputs[at].offset_interval
        if other is not None and interval is not None and interval.start <= other <= interval.end:
            found[at].add(other)
    feeds = [
        (each.query_alias, intervals(sorted(found[at])))
        for at, each in enumerate(request.query_inputs)
        if at in found
    ]
    return Derived(feeds, exact=True, reason=None)


def all_origins(request: TransformRequest, why: str) -> Derived:
    """Everything that a transaction read, for a query that keeps state.

    Raises:
        Unsupported: it goes on from a state, and what that was made of the request does not say.
    """
    if request.prev_checkpoint_path is not None:
        raise Unsupported(f"{why}, and its rows come from earlier transactions too", where="query")
    feeds = [
        (each.query_alias, [each.offset_interval])
        for each in request.query_inputs
        if each.offset_interval is not None
    ]
    return Derived(feeds, exact=False, reason=why)


def _positions(
    followed: Followed, first: int, rows: Sequence[OffsetInterval], reporter: Reporter
) -> Iterator[tuple[int, int]]:
    """Position and operation of each of the rows."""
    wanted = [(each.start - first, each.end - first) for each in rows]
    sort = False
    while True:
        found: list[tuple[int, int]] = []
        number = 0
        try:
            for batch in in_order(_make(followed), _order(followed), reporter, sort=sort):
                reporter.check()
                for begin, end in wanted:
                    start, stop = max(begin - number, 0), min(end + 1 - number, batch.num_rows)
                    if start < stop:
                        part = batch.slice(start, stop - start)
                        found += zip(part[POSITION].to_pylist(), part[OPERATION].to_pylist(), strict=True)
                number += batch.num_rows
        except OutOfOrder:
            sort = True
        else:
            yield from found
            return


def _order(followed: Followed) -> Order:
    return Order() if followed.ordered else Order((POSITION,), passes=True)


def _make(followed: Followed) -> Make:
    frame = followed.frame.select(POSITION, OPERATION)

    def make(sort: bool) -> tuple[DataFrame, Step]:
        return frame.sort(POSITION) if sort and not followed.ordered else frame, lambda batch: batch

    return make


def intervals(offsets: Sequence[int]) -> list[OffsetInterval]:
    """Offsets in ascending order as intervals."""
    found: list[OffsetInterval] = []
    for offset in offsets:
        if found and offset == found[-1].end + 1:
            found[-1] = OffsetInterval(found[-1].start, offset)
        else:
            found.append(OffsetInterval(offset, offset))
    return found
