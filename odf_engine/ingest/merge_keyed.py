"""What the strategies with a primary key share: hashes of rows, the keys that are known, and new ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from odf_engine.chain.chain import SliceRow
from odf_engine.data.changelog import Op
from odf_engine.data.conform import conform
from odf_engine.data.ddl import TIMESTAMP, UUID
from odf_engine.data.kernels import pc
from odf_engine.ingest import sql
from odf_engine.ingest.key_hash import Hashes
from odf_engine.ingest.key_index import KeyIndex, Place, forget
from odf_engine.ingest.key_spool import KEY, OFFSET, TIME, KeySpool, RepeatedKey
from odf_engine.ingest.merge_base import POSITION, DoubtfulKeys, How, Inputs, normal
from odf_engine.ingest.merge_keys import check_keys
from odf_engine.spark.frames import arrow_batches

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame

_HISTORY: Final = "odf_history"
_NUMBER: Final = pa.int64()


class Keyed:
    """A merge by primary key.

    Args:
        compared: columns whose change makes a row another one, without key and event time; None for all.
        live: keys that were taken away are as good as never seen.
    """

    def __init__(
        self, inputs: Inputs, keys: Sequence[str], *, compared: Sequence[str] | None, live: bool
    ) -> None:
        self.inputs = inputs
        self.keys = list(keys)
        event_time = inputs.vocab.event_time_column
        values = tuple(name for name in inputs.names if name not in keys and name != event_time)
        self.hashes = Hashes(
            inputs.schema,
            tuple(keys),
            values,
            None if compared is None or set(compared) == set(values) else tuple(compared),
            uuid_texts(inputs),
        )
        self._place = Place(
            dataset=inputs.dataset,
            scratch=inputs.scratch,
            hashes=self.hashes,
            history=self._history,
            live=live,
            name=self.hashes.name(live),
            form=self.hashes.form(live, inputs.session.version),
            reporter=inputs.reporter,
        )
        self._index: KeyIndex | None = None
        self._made: Path | None = None

    def open(self) -> KeyIndex:
        """The keys of the dataset."""
        self._index = KeyIndex(self._place)
        return self._index

    def frame(self, how: How, order: str | None = None) -> DataFrame:
        """The new rows with their hashes, and with ``POSITION`` when keys are checked.

        Args:
            how: whether keys are to be checked.
            order: expressions to sort by.

        Raises:
            BadData: keys were to be checked, and are null or stand in different rows.
        """
        new = check_keys(self.keys, self.inputs) if how.check else normal(self.inputs)
        names = [*self.inputs.names, POSITION] if how.check else self.inputs.names
        query = f"SELECT {sql.columns(names)}, {self.hashes.of_new()} FROM n"
        return self.inputs.select({"n": new}, f"{query} ORDER BY {order}" if order else query)

    def spool(self, *, unique: bool = True) -> KeySpool:
        """A place for the keys of the rows that are written."""
        return KeySpool(self.hashes.columns, self.inputs.scratch, unique=unique)

    def written(
        self, batches: Iterator[pa.RecordBatch], spool: KeySpool, *, taken: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Rows in the order in which they are written, without their hashes: these go into the spool.

        With ``taken`` rows that take others back have hashes too, else they are left out.

        Raises:
            DoubtfulKeys: a key came twice.
        """
        inputs, offset = self.inputs, self.inputs.first_offset
        op, event_time = inputs.vocab.operation_type_column, inputs.vocab.event_time_column
        for batch in batches:
            ones = pa.repeat(pa.scalar(1, _NUMBER), batch.num_rows)
            offsets = pc.cumulative_sum(ones, start=offset - 1)
            offset += batch.num_rows
            columns = {name: batch.column(name) for name in self.hashes.names}
            columns |= {OFFSET: offsets, TIME: moments(batch.column(event_time))}
            if op in batch.schema.names:
                kinds = pa.array([Op.APPEND, Op.CORRECT_TO], batch.column(op).type)
                stays = pc.is_in(batch.column(op), kinds)
                if taken:
                    columns[OFFSET] = pc.if_else(stays, offsets, pc.bit_wise_not(offsets))
                else:
                    columns = {name: column.filter(stays) for name, column in columns.items()}
            spool.add([columns[name] for name in self.hashes.columns])
            yield batch.drop_columns(self.hashes.names)
        self._made = self._place.new_file()
        with doubtful():
            spool.finish(self._made, form=self._place.form)

    def keep(self, end: int, physical_hash: str) -> None:
        """Remembers the keys of the slice that was written."""
        if self._index is not None and self._made is not None:
            self._index.add(self._made, end, physical_hash)

    def forget(self) -> None:
        """Drops what is remembered of the dataset."""
        self._index = None
        forget(self._place)

    def _history(self, slices: Sequence[SliceRow]) -> Iterator[pa.RecordBatch]:
        inputs, vocab = self.inputs, self.inputs.vocab
        columns = self.hashes.of_old(
            vocab.offset_column, vocab.operation_type_column, vocab.event_time_column
        )
        frame = inputs.select({}, f"SELECT {columns} FROM {_HISTORY}", {_HISTORY: inputs.history(slices)})
        return arrow_batches(frame, inputs.reporter, progress=False)[1]


def uuid_texts(inputs: Inputs) -> frozenset[str]:
    """Columns of UUIDs that come in as text."""
    kinds = {name.casefold(): inputs.new.schema[name].dataType.typeName() for name in inputs.new.columns}
    uuids = [name for name in inputs.names if inputs.schema.field(name).type == UUID]
    return frozenset(name for name in uuids if kinds.get(name.casefold()) == "string")


@contextmanager
def doubtful() -> Iterator[None]:
    """A key that came twice is looked at again."""
    try:
        yield
    except RepeatedKey:
        raise DoubtfulKeys from None


def moments(times: pa.Array) -> pa.Array:
    """Event times as numbers: days, or milliseconds."""
    if pa.types.is_date(times.type):
        return times.cast(pa.date32()).cast(pa.int32()).cast(_NUMBER)
    return conform(times, pa.field("", TIMESTAMP), 0).cast(_NUMBER)


def check_null_keys(batch: pa.RecordBatch) -> None:
    """Raises:
    DoubtfulKeys: the key of a row is null.
    """
    if batch.column(KEY).null_count:
        raise DoubtfulKeys
