"""Parts of rows that fit into the memory: how they are shared out, and what differs in one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from odf_engine.data.kernels import pc
from odf_engine.data.value_hash import value_hashes
from odf_engine.progress import Reporter
from odf_engine.workspace.differing_columns import CHANGE, Beside, comparable, others
from odf_engine.workspace.stored import Range, StoredRows

TIMES: Final = "times"
_WEIGHT: Final = "weight"
_MOST_SHARES: Final = 128
_NULL: Final = 0x9E3779B97F4A7C15
_AWAY: Final = pa.array([1, 2], pa.int64())


class Counted(msgspec.Struct):
    """How many rows differ, and in how many changed ones each column does."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    by_column: dict[str, int] = {}


class Side(msgspec.Struct, frozen=True):
    """Rows to be compared.

    Attributes:
        rows: all of them.
        ranges: those that are read; None: all.
        wanted: which of all rows are meant, as Boolean; None: what is read.
        weight: how often a row counts where rows are compared as a whole; negative on the older side.
    """

    rows: StoredRows
    ranges: list[Range] | None = None
    wanted: pa.Array | None = None
    weight: int = 1

    @property
    def read(self) -> int:
        """How many rows are read."""
        return (
            self.rows.row_count if self.ranges is None else sum(stop - start for start, stop in self.ranges)
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that are meant."""
        ranges = [(0, self.rows.row_count)] if self.ranges is None else self.ranges
        for start, stop in ranges:
            at = start
            for batch in self.rows.batches(ranges=[(start, stop)]):
                mask = None if self.wanted is None else self.wanted.slice(at, batch.num_rows)
                at += batch.num_rows
                yield batch if mask is None else batch.filter(mask)


def takes_away(op: pa.Array) -> pa.Array:
    """Which rows of a changelog take one away."""
    return pc.is_in(op.cast(pa.int64()), _AWAY)


# --- Sharing out -------------------------------------------------------------------------------------


def shares_for(places: Sequence[Side], share_bytes: int) -> int:
    """Into how many parts rows are shared out, judged by the first of them."""
    size = 0.0
    for place in places:
        first = next(place.batches(), None) if place.read else None
        if first is not None and first.num_rows:
            size += first.nbytes / first.num_rows * place.read
    return min(max(1, -(-int(size) // share_bytes)), _MOST_SHARES)


class Lay(msgspec.Struct, frozen=True):
    """How rows are laid for comparison.

    Columns of the key are called ``k0``, ``k1``, … then, in the type in which they are compared, and all
    others ``v`` with their number. Where rows are compared as a whole, ``v`` also has values of the key that
    are compared as text, and there is a weight.

    Attributes:
        columns: those of both sides.
        old: whether these are rows of the older side, where the two have columns of their own.
        whole: whether rows are compared as a whole.
    """

    columns: Sequence[Beside]
    old: bool
    whole: bool

    def laid(self, batch: pa.RecordBatch, place: Side) -> pa.Table:
        """Rows as they are compared."""
        found: dict[str, Any] = {}
        for at, each in enumerate(self.columns):
            name = each.old if self.old else each.new
            if name is None or (self.whole and not each.key):
                continue
            values = batch.column(name)
            if each.key:
                found[f"k{at}"] = comparable(values, each.type)
            if not each.key or (self.whole and _as_text(each)):
                found[f"v{at}"] = values
        if self.whole:
            away = takes_away(batch.column(place.rows.vocabulary.operation_type_column))
            weights = [pa.scalar(weight, pa.int64()) for weight in (-place.weight, place.weight)]
            found[_WEIGHT] = pc.if_else(away, *weights)
        return pa.table(found)


def shared_out(place: Side, lay: Lay, folder: Path, shares: int, reporter: Reporter) -> list[Path]:
    """Writes rows to files: all that have the same values in the key to the same one."""
    files = [folder / str(share) for share in range(shares)]
    done, total = 0, place.read
    with ExitStack() as stack:
        writers: list[pa.ipc.RecordBatchStreamWriter] = []
        for table in (lay.laid(batch, place) for batch in _with_none(place)):
            if not writers:
                for file in files:
                    sink = stack.enter_context(pa.OSFile(str(file), "wb"))
                    writers.append(stack.enter_context(pa.ipc.new_stream(sink, table.schema)))
            share = _share_of(table, shares) if shares > 1 else None
            for at, writer in enumerate(writers):
                mine = table if share is None else table.filter(pc.equal(share, pa.scalar(at, pa.uint64())))
                writer.write_table(mine)
            done += table.num_rows
            reporter.amount(rows=min(done, total), total_rows=total)
            reporter.check()
    return files


def _with_none(place: Side) -> Iterator[pa.RecordBatch]:
    """The rows, after a batch without any: files have columns even where there are no rows."""
    schema = place.rows.columns
    yield pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    yield from place.batches()


def _as_text(each: Beside) -> bool:
    """Whether values are compared as text, but have a type that both sides share."""
    return each.type is not None and pa.types.is_nested(each.type)


def _share_of(table: pa.Table, shares: int) -> pa.Array:
    """The number of the part that each row belongs to."""
    mixed: pa.Array | None = None
    for name in table.column_names:
        if not name.startswith("k"):
            continue
        hashes = _hashes(table.column(name).combine_chunks())
        mixed = hashes if mixed is None else value_hashes(pc.bit_wise_xor(mixed, hashes))
    assert mixed is not None
    high = pc.shift_right(mixed, pa.scalar(32, pa.uint64()))
    of = pa.scalar(shares, pa.uint64())
    return pc.subtract(high, pc.multiply(pc.divide(high, of), of))


def _hashes(array: pa.Array) -> pa.Array:
    """Hashes of values; of texts each that is different is looked at once."""
    kind = array.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return value_hashes(array)
    encoded = array.dictionary_encode()
    return pc.fill_null(value_hashes(encoded.dictionary).take(encoded.indices), pa.scalar(_NULL, pa.uint64()))


# --- What differs ------------------------------------------------------------------------------------


def compared_by_key(
    before: pa.Table, after: pa.Table, columns: Sequence[Beside], counted: Counted
) -> pa.Table:
    """The rows of two states that differ, in the columns of the file; they are counted."""
    keys = [name for name in before.column_names if name.startswith("k")]
    index = pa.concat_tables(
        [_numbered(before.select(keys), "a", "b"), _numbered(after.select(keys), "b", "a")]
    )
    grouped = index.group_by(keys).aggregate([("a", "max"), ("b", "max")])
    old, new = (grouped.column(f"{name}_max").combine_chunks() for name in "ab")
    both = pc.and_(pc.is_valid(old), pc.is_valid(new))
    laid: dict[str, Any] = {}
    changed = pc.and_(both, False)
    for at, each in enumerate(columns):
        if each.key:
            laid[f"k{at}"] = grouped.column(f"k{at}")
            continue
        values = _values(before, old, each.old, at, each), _values(after, new, each.new, at, each)
        if each.old is not None:
            laid[f"old{at}"] = values[0]
        if each.new is not None:
            laid[f"new{at}"] = values[1]
        if each.counts:
            mask = pc.and_(both, others(*values, each.type))
            counted.by_column[each.name] = counted.by_column.get(each.name, 0) + _count(mask)
            changed = pc.or_(changed, mask)
    lone = pc.if_else(pc.is_null(old), "added", "removed")
    table = pa.table({CHANGE: pc.if_else(both, "changed", lone), **laid})
    counted.changed += _count(changed)
    counted.added += _count(pc.is_null(old))
    counted.removed += _count(pc.is_null(new))
    counted.unchanged += _count(both) - _count(changed)
    return table.filter(pc.or_(changed, pc.invert(both)))


def _numbered(table: pa.Table, mine: str, theirs: str) -> pa.Table:
    rows = table.num_rows
    columns = {mine: pa.array(range(rows), pa.int64()), theirs: pa.nulls(rows, pa.int64())}
    for name in "ab":
        table = table.append_column(name, columns[name])
    return table


def _values(table: pa.Table, places: pa.Array, name: str | None, at: int, each: Beside) -> pa.Array:
    """The values of a column of one side by row, null where this has none."""
    if name is None:
        return pa.nulls(len(places), each.type)
    return table.column(f"v{at}").combine_chunks().take(places)


def compared_whole(parts: Sequence[pa.Table], columns: Sequence[Beside], counted: Counted) -> pa.Table:
    """The rows that are there more often on one side, with how often; they are counted."""
    table = pa.concat_tables(parts)
    keys = [name for name in table.column_names if name.startswith("k")]
    index = table.select([*keys, _WEIGHT]).append_column("row", pa.array(range(table.num_rows), pa.int64()))
    grouped = index.group_by(keys).aggregate([(_WEIGHT, "sum"), ("row", "min")])
    weights = grouped.column(f"{_WEIGHT}_sum").combine_chunks()
    differ = pc.not_equal(weights, 0)
    rows = grouped.column("row_min").combine_chunks().filter(differ)
    weights = weights.filter(differ)
    found = table.take(rows)
    more = pc.greater(weights, 0)
    times = pc.abs(weights)
    counted.added += pc.sum(times.filter(more)).as_py() or 0
    counted.removed += pc.sum(times.filter(pc.invert(more))).as_py() or 0
    values = {
        f"k{at}": found.column(f"v{at}" if _as_text(each) else f"k{at}")
        for at, each in enumerate(columns)
        if each.key
    }
    return pa.table({CHANGE: pc.if_else(more, "added", "removed"), **values, TIMES: times})


def _count(mask: pa.Array) -> int:
    return pc.sum(mask).as_py() or 0
