"""Transactions of queries with as-of joins: rows joined to the version of a key at their event time.

A row comes out of such a join once the watermark of all inputs has reached its event time, with the
version that is the newest by event time, then by offset, at or before it. Until then it waits; what
waits, and the versions that may still be asked for, are part of the checkpoint::

    as-of-0/rows.parquet       rows that are not due
    as-of-0/versions.parquet   the newest version of each key at the watermark, and all later ones

A version that comes too late changes the rows that have not come out. A row that comes too late comes
out at once; where the version at its time is no longer known, it has the oldest that is, which is said.
What follows the join sees the rows that came out as an input of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.kernels import pc
from odf_engine.ingest.ordering import Order, in_order
from odf_engine.metadata.model import Checkpoint
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.as_of import AsOfJoin, AsOfQuery, joined_schema
from odf_engine.spark.origins import OPERATION, POSITION, Followed
from odf_engine.spark.readers import spark_path
from odf_engine.spark.stateful import Stateful
from odf_engine.spark.types import arrow_schema
from odf_engine.spark.versions import DUE, TIME, as_versions, chosen, looked_up, with_due
from odf_engine.transform.as_of_query import input_frame, prepared
from odf_engine.transform.as_of_state import Waiting, nullable, still_needed
from odf_engine.transform.batches import Batch, Marks, Slice, batches_by_watermark
from odf_engine.transform.contract import QueryInput
from odf_engine.transform.output import Contract
from odf_engine.transform.pairs import torn, whole_pairs
from odf_engine.transform.streaming import Ready, Streaming

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from odf_engine.spark.frames import DataFrame

_ROWS: Final = "rows.parquet"
_VERSIONS: Final = "versions.parquet"


class AsOfStreaming(Streaming):
    """One transaction of a query with as-of joins."""

    _as_of: AsOfQuery
    _by_row: bool
    _inputs: list[QueryInput]
    _last: list[tuple[int, int]]

    # --- The query ----------------------------------------------------------------------------

    def _query(self, changing: set[str]) -> Stateful:
        request = self._request
        self._inputs = [
            QueryInput(each.query_alias, pq.read_schema(each.schema_file), each.vocab)
            for each in request.query_inputs
        ]
        self._as_of, query, self._by_row = prepared(
            self._session,
            self._streams,
            request.transform,
            self._inputs,
            request.vocab.event_time_column,
            changing,
        )
        self._last = [(-1, 0)] * len(self._as_of.joins)
        return query

    def _plain(self, query: Stateful) -> Mapping[str, str]:
        plain = dict(query.plain)
        for join in self._as_of.joins:
            if (why := plain.pop(join.view, None)) is not None:
                plain |= dict.fromkeys(self._as_of.reads(join), why)
        return plain

    def _streamed(self, query: Stateful) -> set[str]:
        if self._by_row:
            return set()
        return super()._streamed(query) - {join.table.name for join in self._as_of.joins}

    # --- Batches ------------------------------------------------------------------------------

    def _batches(self, ready: Ready, marks: Marks) -> list[Batch]:
        each = ready.emitted is not None or ready.query.by_commit
        return list(batches_by_watermark(ready.slices, self._request.query_inputs, marks, each=each))

    def _results(self, ready: Ready, todo: Sequence[Batch]) -> list[Iterator[pa.RecordBatch]]:
        if not self._by_row:
            return super()._results(ready, todo)
        files: list[list[Path]] = [[] for _ in self._as_of.joins]
        for number, batch in enumerate(todo):
            for known, new in zip(files, self._joined(batch, number), strict=True):
                known.append(new)
        slices = [each for batch in todo for each in batch.slices]
        views = self._views(slices, self._as_of.read_after())
        for join, paths in zip(self._as_of.joins, files, strict=True):
            views[join.view] = self._read(paths, joined_schema(join))
        return [self._row_by_row(self._as_of.follow_rest(views), ready.contract)]

    def _row_by_row(self, found: Followed, contract: Contract) -> Iterator[pa.RecordBatch]:
        """What comes after the joins, with the operation of each row."""
        if found.ordered:
            rows = in_order(lambda _: (found.frame, contract.checked), Order(), self._reporter)
            return (torn(batch, OPERATION) for batch in rows)
        sorted_rows = found.frame.sort(POSITION)
        rows = in_order(
            lambda sort: (sorted_rows if sort else found.frame, contract.checked),
            Order((POSITION,)),
            self._reporter,
        )
        return whole_pairs(rows, POSITION, OPERATION)

    def _files(self, batch: Batch, number: int) -> list[list[Path]]:
        return [*super()._files(batch, number), *([path] for path in self._joined(batch, number))]

    def _joined(self, batch: Batch, number: int) -> list[Path]:
        """Runs the joins of a batch: the rows that came out of each, in files."""
        views = self._views(batch.slices, self._as_of.joined())
        changing = {self._inputs[each.at].alias for each in batch.slices if each.changes}
        files: list[Path] = []
        for at, join in enumerate(self._as_of.joins):
            path = self._scratch / f"joined-{number}-{at}.parquet"
            self._join(at, join, views, changing, batch.watermark, path)
            views[join.view] = self._read([path], joined_schema(join))
            files.append(path)
        return files

    def _join(
        self,
        at: int,
        join: AsOfJoin,
        views: Mapping[str, DataFrame],
        changing: set[str],
        until: int | None,
        path: Path,
    ) -> None:
        """Runs one join: writes the rows that come out, and its state."""
        keys = [f"k{number}" for number in range(len(join.keys))]
        folder = self._kept / f"as-of-{at}"
        folder.mkdir(parents=True, exist_ok=True)
        # What comes out of a join before may have corrections that came earlier.
        pairs = self._by_row and (at > 0 or bool(changing & self._as_of.reads(join)))
        rows = with_due(self._as_of.rows(at, views), pairs=pairs)
        rows = self._with_kept(rows, folder / _ROWS, f"rows-{at}")
        new = self._as_of.versions(at, views[join.table.name])
        new = as_versions(new, keys, changes=join.table.name in changing)
        versions = self._with_kept(new, folder / _VERSIONS, f"versions-{at}")
        found = self._as_of.meets(at, looked_up(rows, versions, keys))
        waiting = Waiting(folder / _ROWS, nullable(rows), until, outer=join.outer)
        with pq.ParquetWriter(path, arrow_schema(joined_schema(join))) as writer, waiting:
            due = waiting.due(self._sorted(chosen(found), (DUE, POSITION)))
            for batch in whole_pairs(due, POSITION, OPERATION):
                writer.write_batch(self._numbered(at, batch, writer.schema))
        if waiting.unknown:
            self._reporter.line(
                f"{waiting.unknown:,} rows came so late that the version of '{join.table.name}' at their "
                "time is no longer known: they have the oldest that is",
                "warning",
            )
        # What waits will ask for versions at its own time.
        needed = until if waiting.least is None or until is None else min(until, waiting.least)
        known = self._sorted(versions, (*keys, TIME, POSITION))
        with pq.ParquetWriter(folder / _VERSIONS, nullable(versions)) as writer:
            for batch in still_needed(known, keys, needed):
                writer.write_batch(pa.record_batch(batch.columns, schema=writer.schema))

    def _save(self, ready: Ready, marks: Marks) -> Checkpoint:
        mark = marks.least([each.alias for each in self._inputs])
        for at, join in enumerate(self._as_of.joins):
            kept = self._kept / f"as-of-{at}" / _ROWS
            if kept.exists() and (count := pq.read_metadata(kept).num_rows):
                reached = "not at all" if mark is None else f"up to {Timestamp.from_ms(mark)}"
                self._reporter.line(
                    f"{count:,} rows wait to be joined to '{join.table.name}' until all inputs are complete "
                    f"up to their time (now: {reached}); for one that rarely changes: odf pull NAME "
                    "--set-watermark TIME"
                )
        return super()._save(ready, marks)

    def _with_kept(self, new: DataFrame, kept: Path, name: str) -> DataFrame:
        """New rows together with those of the state, which is about to be written anew."""
        if not kept.exists():
            return new
        before = kept.rename(self._scratch / f"{name}-{len(list(self._scratch.iterdir()))}.parquet")
        return self._read([before], new.schema).unionAll(new)

    def _numbered(self, at: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Rows that come out of a join, with their place in the order in which they do."""
        places = batch.column(POSITION)
        before = pa.concat_arrays([pa.array([self._last[at][0]], pa.int64()), places[:-1]])
        steps = pc.cast(pc.not_equal(places, before), pa.int64())
        numbers = pc.add(pc.cumulative_sum(steps), self._last[at][1])
        self._last[at] = (places[-1].as_py(), numbers[-1].as_py())
        width = len(schema) - 3
        left = [name for name in batch.schema.names if name[0] == "l"]
        right = [name for name in batch.schema.names if name[0] == "r"]
        columns = [batch.column(name) for name in (*left, *right)][:width]
        return pa.record_batch(
            [*columns, batch.column(TIME), numbers, batch.column(OPERATION)], schema=schema
        )

    # --- Rows as frames -----------------------------------------------------------------------

    def _views(self, slices: Sequence[Slice], names: set[str]) -> dict[str, DataFrame]:
        """Some inputs with the rows of some slices."""
        return {
            each.alias: input_frame(self._session, [one.path for one in slices if one.at == at], each)
            for at, each in enumerate(self._inputs)
            if each.alias in names
        }

    def _read(self, paths: Sequence[Path], schema: StructType) -> DataFrame:
        if not paths:
            return self._session.createDataFrame([], schema)
        return self._session.read.schema(schema).parquet(*map(spark_path, paths))

    def _sorted(self, frame: DataFrame, first: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rows by some columns and then by all that can be compared."""
        flat = [field.name for field in arrow_schema(frame.schema) if not types.is_nested(field.type)]
        keys = [*first, *(name for name in flat if name not in first)]
        ordered = frame.sort(*keys)
        return in_order(
            lambda sort: (ordered if sort else frame, lambda batch: batch), Order(tuple(keys)), self._reporter
        )
