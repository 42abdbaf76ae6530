"""Rows brought together by their key, with little memory.

Rows are tables with the columns of the key and others that a function combines: it turns the rows of a key
into fewer, and what it makes can be combined with further rows. Where there are too many
keys for the memory, they are shared out to files, and looked at one file after the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_engine.data.kernels import pc
from odf_engine.data.value_hash import value_hashes
from odf_engine.errors import InvalidSchema
from odf_engine.progress import Reporter

_COMPACT_ROWS: Final = 1 << 17
_MOST_SHARES: Final = 200  # each is an open file

SHARE_BYTES: Final = 24 << 20
"""About how many bytes of keys are looked at at once; that takes several times as much memory."""

Combine = Callable[[pa.Table], pa.Table]
Writer = pa.ipc.RecordBatchStreamWriter


def greatest(table: pa.Table, keys: Sequence[str], values: Sequence[str]) -> pa.Table:
    """One row a key, with the greatest of each of its values.

    Raises:
        InvalidSchema: values of these columns cannot be compared.
    """
    try:
        # Threads make tables of their own each, and put them together: twice the work, and the memory.
        grouped = table.group_by(list(keys), use_threads=False)
        grouped = grouped.aggregate([(value, "max") for value in values])
    except pa.ArrowNotImplementedError as error:
        raise InvalidSchema(f"these columns cannot be a key: {error}") from error
    found = {key: grouped.column(key) for key in keys}
    return pa.table(found | {value: grouped.column(f"{value}_max") for value in values})


class ByKey:
    """Combines the rows of each key.

    Args:
        keys: the columns of the key.
        combine: the function.
        folder: where temporary files may lie.
        total: about how many rows there are.
        reporter: is asked whether to stop.
        share_bytes: about how many bytes of keys are looked at at once.
    """

    def __init__(
        self,
        keys: Sequence[str],
        combine: Combine,
        folder: Path,
        total: int,
        reporter: Reporter,
        share_bytes: int,
    ) -> None:
        self._keys = keys
        self._combine = combine
        self._folder = folder
        self._total = total
        self._reporter = reporter
        self._share_bytes = share_bytes

    def combined(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The combined rows, a table for each share of the keys.

        Raises:
            InvalidSchema: columns that cannot be a key.
            Cancelled: the reporter was cancelled.
        """
        source, done = iter(tables), 0

        def counted() -> Iterator[pa.Table]:
            nonlocal done
            for table in source:
                done += table.num_rows
                yield table

        last: pa.Table | None = None
        for state in self._states(counted()):
            if state.nbytes > self._share_bytes:
                expected = state.nbytes * max(self._total, done) / done
                yield from self._in_shares(state, source, int(expected))
                return
            last = state
        if last is not None:
            yield last

    def _states(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """What the rows so far come to, from time to time and at the end."""
        state: pa.Table | None = None
        waiting: list[pa.Table] = []
        rows = size = 0
        for table in tables:
            waiting.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
            known, known_size = (0, 0) if state is None else (state.num_rows, state.nbytes)
            if rows >= max(_COMPACT_ROWS, known) or size >= max(self._share_bytes, known_size):
                state = self._combine(pa.concat_tables([*([] if state is None else [state]), *waiting]))
                waiting, rows, size = [], 0, 0
                yield state
        if waiting:
            yield self._combine(pa.concat_tables([*([] if state is None else [state]), *waiting]))

    def _in_shares(self, state: pa.Table, rest: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
        shares = min(max(2, -(-size // self._share_bytes)), _MOST_SHARES)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".keys-") as temporary:
            files = [Path(temporary) / str(share) for share in range(shares)]
            self._share_out(state, rest, files)
            for at, file in enumerate(files, 1):
                self._reporter.phase(f"find newest, part {at} of {shares}")
                self._reporter.check()
                with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
                    last: pa.Table | None = None
                    for state in self._states(pa.Table.from_batches([batch]) for batch in stream):
                        self._reporter.check()
                        last = state
                if last is not None:
                    yield last
                file.unlink()

    def _share_out(self, state: pa.Table, rest: Iterator[pa.Table], files: Sequence[Path]) -> None:
        """Writes rows to files, all of a key to the same one."""
        with ExitStack() as stack:
            sinks = [stack.enter_context(pa.OSFile(str(file), "wb")) for file in files]
            writers = [stack.enter_context(pa.ipc.new_stream(sink, state.schema)) for sink in sinks]
            _write_shares(state, self._keys, writers)
            for table in rest:
                _write_shares(table.select(state.column_names), self._keys, writers)


def _write_shares(table: pa.Table, keys: Sequence[str], writers: Sequence[Writer]) -> None:
    """Writes each row to the one of several files that its key belongs to."""
    for first in range(0, table.num_rows, _COMPACT_ROWS):
        part = table.slice(first, _COMPACT_ROWS)
        share = _share_of(part, keys, len(writers))
        ordered = part.take(pc.sort_indices(share))
        counts = pc.value_counts(share)
        of = dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))
        at = 0
        for number, writer in enumerate(writers):
            if count := of.get(number, 0):
                writer.write_table(ordered.slice(at, count))
                at += count


def _share_of(table: pa.Table, keys: Sequence[str], shares: int) -> pa.Array:
    """The number of the part that each row's key belongs to."""
    mixed: pa.Array | None = None
    for key in keys:
        hashes = _hashes(table.column(key).combine_chunks())
        mixed = hashes if mixed is None else value_hashes(pc.bit_wise_xor(mixed, hashes))
    assert mixed is not None
    high, of = pc.shift_right(mixed, pa.scalar(32, pa.uint64())), pa.scalar(shares, pa.uint64())
    return pc.subtract(high, pc.multiply(pc.divide(high, of), of))


def _hashes(column: pa.Array) -> pa.Array:
    if pa.types.is_primitive(column.type):
        return value_hashes(column)
    known = column.dictionary_encode(null_encoding="encode")  # texts are slow, and often the same
    return value_hashes(known.dictionary).take(known.indices)
