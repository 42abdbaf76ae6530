"""Transactions with as-of joins: pending rows and retained versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.arrow_compute import pc
from odf_engine.data.changelog import (
    OPERATION,
    POSITION,
    RETRACTS,
    Op,
    repair_correction_pairs,
    split_corrections,
)
from odf_engine.engines.contract import QueryInput
from odf_engine.engines.output_contract import OutputContract
from odf_engine.engines.stateful.batches import Batch, Watermarks, is_late
from odf_engine.engines.stateful.query_plan import QuerySource, input_frame, input_streams
from odf_engine.engines.stateful.stateful_transaction import PreparedQuery, StatefulTransaction
from odf_engine.errors import InvalidQuery, StateUnusable
from odf_engine.metadata.model import Checkpoint, Sql
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.arrow_batches import arrow_batches, sort_partitions
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.plan_rewrite import StatefulQueryError, TrackedResult
from odf_engine.spark.repeatability import check_repeatable
from odf_engine.spark.row_order import SortOrder, external_sort, keeps_order, map_batches, sorted_batches
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.stateful.as_of_join import (
    DUE,
    IS_ACTIVE,
    IS_VERSION_LOST,
    TIME,
    AsOfJoin,
    AsOfQuery,
    add_due_time,
    joined_schema,
    look_up_again,
    lookup_versions,
    match_late_rows,
    retained_versions,
    to_versions,
    version_corrections,
)
from odf_engine.spark.stateful.incremental import nullable_schema, sort_keys, write_batches
from odf_engine.spark.stateful.stateful_query import StreamingPlan, StreamPlanner, state_fingerprint
from odf_engine.spark.stateful.window_functions import comparable
from odf_engine.spark.user_query import run_query, temporal_tables

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession, StructType


class PreparedAsOfQuery(NamedTuple):
    """A query that is split at its as-of joins.

    Attributes:
        as_of: its parts.
        query: the part after the joins; only its columns are valid if it is stateless.
        rest: the result of that part over streaming views.
        by_row: whether the part after the joins is stateless.
    """

    as_of: AsOfQuery
    query: StreamingPlan
    rest: DataFrame
    by_row: bool


def split_at_joins(session: SparkSession, transform: Sql, inputs: Sequence[QueryInput]) -> AsOfQuery:
    """Return a query over streams without rows, split at its as-of joins.

    Args:
        session: session of the job.
        transform: the query.
        inputs: its inputs, in the order of declaration.

    Raises:
        InvalidQuery, Unsupported: the query cannot run.
    """
    steps, by_alias = transform.queries or [], {input.alias: input for input in inputs}
    columns = {input.alias: (input.schema.names, input.vocab) for input in inputs}
    tables = temporal_tables(session, transform, columns, event_time="")
    tables = {name: table for name, table in tables.items() if not table.of_query}  # joins use no others
    for table in tables.values():
        empty = input_frame(session, [], by_alias[table.name])
        empty.createOrReplaceTempView(identifier(table.view))
    frame = run_query(session, input_streams(session, inputs), steps, tables)
    check_repeatable(frame, steps)
    return AsOfQuery(session, frame, {input.alias: input.vocab for input in inputs}, tables)


def prepare_as_of_query(
    session: SparkSession, transform: Sql, inputs: Sequence[QueryInput], event_time: str
) -> PreparedAsOfQuery:
    """Prepare a query with as-of joins over streams without rows.

    Args:
        session, transform, inputs: as for :func:`split_at_joins`.
        event_time: event time column of the result.

    Raises:
        InvalidQuery, Unsupported: the query cannot run.
    """
    as_of = split_at_joins(session, transform, inputs)
    as_of.check_operations()
    try:
        empty = {input.alias: input_frame(session, [], input) for input in inputs}
        rows = as_of.track_rest(empty).frame.drop(POSITION, OPERATION)
        return PreparedAsOfQuery(
            as_of,
            StreamingPlan(arrow_schema(rows.schema), "append", (), {}, exact=False, by_commit=False),
            rows,
            by_row=True,
        )
    except StatefulQueryError:
        joined = as_of.joined_streams(len(inputs))
    rest = as_of.query_after_joins(joined)
    query = StreamPlanner(session, as_of.inputs, event_time, as_of.system).plan_query(rest)
    return PreparedAsOfQuery(as_of, query, rest, by_row=False)


def as_of_fingerprint(session: SparkSession, query: PreparedAsOfQuery, inputs: Sequence[QueryInput]) -> str:
    """Return a text that identifies the state of a query with as-of joins.

    It covers the joins, the rows before them, and the stateful operators after them.

    Args:
        session, inputs: as for :func:`prepare_as_of_query`.
        query: the prepared query.
    """
    as_of = query.as_of
    joined = as_of.joined_streams(len(inputs))
    parts = [f"rows {query.by_row}"]
    with translate_errors():
        for index, join in enumerate(as_of.joins):
            parts += as_of.join_fingerprint(join)
            parts.append(state_fingerprint(session, as_of.left_rows(index, joined), all_columns=True))
        if not query.by_row:
            parts.append(
                state_fingerprint(
                    session, as_of.query_after_joins(joined), all_columns=query.query.mode == "update"
                )
            )
    return "\n".join(parts)


_ROWS: Final = "rows.parquet"
_VERSIONS: Final = "versions.parquet"
_ALL_VERSIONS: Final = "versions-values.parquet"
"""All versions, which retractions of emitted rows require."""
_EMITTED_ROWS: Final = "emitted-values.parquet"
"""Emitted rows with their versions: retractions repeat them, and late versions correct them."""
_RETRACTING: Final = pa.array([Op.RETRACT, Op.CORRECT_FROM], pa.int32())
_PARTITION_ROWS: Final = 1 << 19
"""Rows in a partition of a join. Memory holds all rows of a few partitions."""


class AsOfTransaction(StatefulTransaction):
    """A transaction of a query with as-of joins."""

    _has_as_of_joins = True
    _as_of: AsOfQuery
    _by_row: bool
    _last_positions: list[tuple[int, int]]
    _reached: int | None
    """The watermark before the next batch."""
    _late: set[str]
    """The inputs of the joins with late rows in the batch."""
    _files_written: int = 0

    def _plan_query(self) -> tuple[StreamingPlan, QuerySource]:
        transform, time = self._request.transform, self._request.vocab.event_time_column
        self._as_of, query, rest, self._by_row = prepare_as_of_query(
            self._session, transform, self._inputs, time
        )
        self._last_positions = [(-1, 0)] * len(self._as_of.joins)
        return query, QuerySource(rest, self._as_of.inputs, self._as_of.system)

    def _unsupported_changes(self, query: StreamingPlan) -> Mapping[str, str]:
        unsupported = dict(query.unsupported_changes)
        for join in self._as_of.joins:
            if (operation := unsupported.pop(join.view, None)) is not None:
                changing = self._as_of.inputs_before_join(join) | {join.table.name}
                unsupported |= dict.fromkeys(changing, operation)
        return unsupported

    def _plan_batches(self, ready: PreparedQuery, watermarks: Watermarks) -> list[Batch]:
        batches = super()._plan_batches(ready, watermarks)
        late = self._late_inputs(batches, watermarks.combined(self._aliases))
        self._values = self._values or bool(late)
        unsupported = self._unsupported_changes(ready.query)
        for name in late & unsupported.keys() & self._tables_of_joins():
            raise InvalidQuery(
                f"the input '{name}' has late rows, which would correct emitted rows, and "
                f"{unsupported[name]} does not support corrections",
                where="query",
                hint="move the steps after the join FOR SYSTEM_TIME AS OF to another dataset",
            )
        return batches

    def _tables_of_joins(self) -> set[str]:
        return {join.table.name for join in self._as_of.joins}

    def _late_inputs(self, batches: Sequence[Batch], reached: int | None) -> set[str]:
        """Return the inputs of the joins that have late rows.

        Args:
            batches: in order.
            reached: the watermark before them in milliseconds, or None.
        """
        tables = self._tables_of_joins()
        late: set[str] = set()
        for batch in batches:
            for slice in batch.slices:
                name = self._alias(slice)
                # A version may arrive for the exact time up to which rows were emitted.
                if reached is not None and is_late(slice, reached + (name in tables)):
                    late.add(name)
            reached = batch.watermark
        return late & self._as_of.joined_inputs()

    def _run_batches(
        self, ready: PreparedQuery, batches: Sequence[Batch], before: Watermarks
    ) -> list[Iterator[pa.RecordBatch]]:
        self._reached = before.combined(self._aliases)
        if not self._by_row:
            return super()._run_batches(ready, batches, before)
        files: list[list[Path]] = [[] for _ in self._as_of.joins]
        for number, batch in enumerate(batches):
            for known, new in zip(files, self._run_joins(batch, number), strict=True):
                known.append(new)
        slices = [data_slice for batch in batches for data_slice in batch.slices]
        views = self._input_frames(slices, self._as_of.inputs_after_joins())
        for join, paths in zip(self._as_of.joins, files, strict=True):
            views[join.view] = self._read(paths, joined_schema(join))
        result = self._as_of.track_rest(views)
        return [self._stateless_rows(result, ready.contract, in_order=len(batches) == 1)]

    def _stateless_rows(
        self, result: TrackedResult, contract: OutputContract, *, in_order: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a stateless part after the joins, with their operations.

        Args:
            result: the rows.
            contract: checks them.
            in_order: the joined rows of each join are in one file.
        """
        if result.ordered:
            rows = sorted_batches(
                lambda _: (result.frame, contract.require_event_time), SortOrder(), self._reporter
            )
            return (split_corrections(batch, OPERATION) for batch in rows)
        rows = map_batches(result.frame, contract.require_event_time, self._reporter)
        # The joined rows are stored in order.
        if not (in_order and keeps_order(result.frame)):
            rows = external_sort(rows, SortOrder((POSITION,)), self._scratch / "sorted.arrow")
        return repair_correction_pairs(rows, POSITION, OPERATION)

    def _batch_tables(self, batch: Batch, number: int) -> dict[str, DataFrame]:
        tables = super()._batch_tables(batch, number)
        for join, path in zip(self._as_of.joins, self._run_joins(batch, number), strict=True):
            tables[join.view] = self._read([path], joined_schema(join))
        return tables

    def _run_joins(self, batch: Batch, number: int) -> list[Path]:
        """Run the joins of a batch; return the files of the joined rows."""
        views = self._input_frames(batch.slices, self._as_of.joined_inputs())
        self._late = self._late_inputs([batch], self._reached)
        rows = sum(pq.read_metadata(data_slice.path).num_rows for data_slice in batch.slices)
        changing = {self._alias(data_slice) for data_slice in batch.slices if data_slice.changes}
        files: list[Path] = []
        for index, join in enumerate(self._as_of.joins):
            path = self._scratch / f"joined-{number}-{index}.parquet"
            with sort_partitions(self._session, max(2, rows // _PARTITION_ROWS)):
                self._run_join(index, join, views, changing, batch.watermark, path)
            views[join.view] = self._read([path], joined_schema(join))
            files.append(path)
        self._reached = batch.watermark
        return files

    def _run_join(
        self,
        index: int,
        join: AsOfJoin,
        views: Mapping[str, DataFrame],
        changing: set[str],
        until: int | None,
        path: Path,
    ) -> None:
        """Run one join: write the joined rows and the new state."""
        keys = join.key_names
        folder = self._kept_folder / f"as-of-{index}"
        folder.mkdir(parents=True, exist_ok=True)
        # The joined rows of an earlier join may contain corrections from earlier batches.
        pairs = self._by_row and (index > 0 or bool(changing & self._as_of.inputs_before_join(join)))
        rows = add_due_time(self._as_of.left_rows(index, views), pairs=pairs)
        rows = self._add_stored_rows(rows, folder / _ROWS, f"rows-{index}")
        new = self._as_of.version_rows(index, views[join.table.name])
        new = to_versions(new, keys, changes=join.table.name in changing)
        is_due = "false" if until is None else f"{DUE} <= timestamp_millis({until}L)"
        with translate_errors():
            due, pending = rows.where(is_due), rows.where(f"NOT {is_due}")
        if self._needs_all_versions(folder):
            joined, corrections = self._correct_emitted_rows(index, due, new, folder)
            self._write_joined_rows(index, join, joined, corrections, path)
            self._write_state(pending, (DUE, POSITION), folder / _ROWS)
            return
        versions = self._add_stored_rows(new, folder / _VERSIONS, f"versions-{index}")
        joined = lookup_versions(due, versions, keys)
        self._write_joined_rows(index, join, self._as_of.select_versions(index, joined), None, path)
        self._write_state(pending, (DUE, POSITION), folder / _ROWS)
        times = pq.read_table(folder / _ROWS, columns=[TIME]).column(TIME)
        # Pending rows will need versions at their own times.
        if until is not None and len(times):
            until = min(until, pc.min(pc.cast(times, pa.int64())).as_py() // 1000)
        retained = retained_versions(versions, keys, until)
        self._write_state(retained, (*keys, TIME, POSITION), folder / _VERSIONS)

    def _correct_emitted_rows(
        self, index: int, due: DataFrame, new: DataFrame, folder: Path
    ) -> tuple[DataFrame, DataFrame | None]:
        """Return rows with their versions, and the corrections of emitted rows by late versions.

        A retraction repeats the version that its row was emitted with. Writes the state of the join.

        Args:
            index: index of the join.
            due: the rows that have reached their time.
            new: the versions that the batch reads.
            folder: folder of the state of the join.
        """
        join = self._as_of.joins[index]
        keys = join.key_names
        versions = self._materialize(new, folder / _ALL_VERSIONS, (*keys, TIME, POSITION))

        def look_up(rows: DataFrame) -> DataFrame:
            return self._as_of.select_versions(index, lookup_versions(rows, versions, keys))

        due_file = self._scratch_file("due")
        due = self._materialize(due, due_file)
        with translate_errors():
            added, retracted = due.where(f"{OPERATION} NOT {RETRACTS}"), due.where(f"{OPERATION} {RETRACTS}")
        joined = self._materialize(look_up(added), self._scratch_file("found"))
        emitted = self._add_stored_rows(joined, folder / _EMITTED_ROWS, f"emitted-{index}")
        operations = pq.read_table(due_file, columns=[OPERATION]).column(OPERATION)
        if pc.any(pc.is_in(operations, _RETRACTING)).as_py():
            names = [*(f"l{number}" for number in self._as_of.value_columns(join)), TIME]
            matched, others, emitted = match_late_rows(retracted, emitted, comparable(names, due.schema))
            joined = joined.unionByName(matched).unionByName(look_up(others))
        corrections = None
        if join.table.name in self._late:
            with translate_errors():
                late = new.where(f"{TIME} <= timestamp_millis({self._reached}L)")
            unaffected, again = look_up_again(emitted, late, versions, keys)
            again = self._materialize(self._as_of.select_versions(index, again), self._scratch_file("again"))
            left = len(join.output) - len(join.right)
            used = [join.names[number] for number in self._as_of.used_columns(join) if number >= left]
            corrections = version_corrections(again, used)
            emitted = unaffected.unionByName(again.select(*unaffected.columns))
        self._write_state(emitted, (TIME, POSITION), folder / _EMITTED_ROWS)
        return joined, corrections

    def _materialize(self, rows: DataFrame, path: Path, order: Sequence[str] = ()) -> DataFrame:
        """Write rows, together with those that the file has, and return the frame of the file."""
        rows = self._add_stored_rows(rows, path, path.stem)
        self._write_state(rows, order, path)
        return self._read([path], rows.schema)

    def _scratch_file(self, name: str) -> Path:
        self._files_written += 1
        return self._scratch / f"{name}-{self._files_written}.parquet"

    def _needs_all_versions(self, folder: Path) -> bool:
        """Return whether the state of a join, in a folder, has all versions.

        Raises:
            StateUnusable: rows are retracted or late, but the stored state does not have all versions.
        """
        if (folder / _ALL_VERSIONS).exists() or not self._values:
            return (folder / _ALL_VERSIONS).exists()
        if (folder / _VERSIONS).exists():
            error = StateUnusable("the state does not have all versions, so no row can be corrected")
            error.lacks_values = True
            raise error
        return True

    def _write_joined_rows(
        self, index: int, join: AsOfJoin, joined: DataFrame, corrections: DataFrame | None, path: Path
    ) -> None:
        """Write the rows that are due with their versions, in the order of emission, then the corrections."""
        used = range(len(join.output))
        order = self._total_order(joined, (DUE, POSITION))
        if self._by_row and self._as_of.has_unique_positions(join):
            used, order = self._as_of.used_columns(join), (DUE, POSITION)
        names = [join.names[number] for number in used]
        schema = arrow_schema(joined_schema(join))
        # Missing columns are read as null.
        schema = pa.schema([schema.field(number) for number in (*used, *range(-3, 0))])
        lost = 0

        def emit(frame: DataFrame, order: Sequence[str]) -> DataFrame:
            frame = frame if join.outer else frame.where(IS_ACTIVE)
            if len(order) > 2:
                return frame
            return frame.select(*names, TIME, POSITION, OPERATION, DUE, IS_VERSION_LOST)

        with pq.ParquetWriter(path, schema, compression="lz4") as writer:

            def write(batches: Iterator[pa.RecordBatch]) -> None:
                nonlocal lost
                self._last_positions[index] = (-1, self._last_positions[index][1])
                for batch in repair_correction_pairs(batches, POSITION, OPERATION):
                    lost += pc.sum(batch.column(IS_VERSION_LOST)).as_py() or 0
                    numbers = self._number_rows(index, batch)
                    columns = [*map(batch.column, (*names, TIME)), numbers, batch.column(OPERATION)]
                    writer.write_batch(pa.record_batch(columns, schema=schema))

            write(self._sorted(emit(joined, order), order))
            if corrections is not None:
                by_row = self._total_order(corrections, (TIME, POSITION, OPERATION))
                write(_number_corrections(self._sorted(emit(corrections, by_row), by_row)))
        if lost:
            self._reporter.warn(
                f"{lost:,} late row{'' if lost == 1 else 's'} got the oldest version of '{join.table.name}' "
                "that is kept, since the one at their time was dropped; odf pull --rederive joins them again",
                "other-version",
                lost,
            )

    def _write_state(self, frame: DataFrame, first: Sequence[str], path: Path) -> None:
        """Write rows of the state, sorted by some columns."""
        rows = self._sorted(frame, self._total_order(frame, first))
        write_batches(path, nullable_schema(frame), rows, "snappy")

    def _write_checkpoint(self, ready: PreparedQuery, watermarks: Watermarks) -> Checkpoint:
        watermark = watermarks.combined(self._aliases)
        self._pending = 0
        for index, join in enumerate(self._as_of.joins):
            pending_file = self._kept_folder / f"as-of-{index}" / _ROWS
            if pending_file.exists() and (count := pq.read_metadata(pending_file).num_rows):
                self._pending += count
                reached = "none" if watermark is None else str(Timestamp.from_ms(watermark))
                self._reporter.log(
                    f"pending rows of the join with '{join.table.name}': {count:,}, until the watermark of "
                    f"all inputs ({reached}) reaches their time; run odf pull NAME --set-watermark TIME "
                    "for inputs that rarely change"
                )
        return super()._write_checkpoint(ready, watermarks)

    def _add_stored_rows(self, new: DataFrame, stored: Path, name: str) -> DataFrame:
        """Return new rows together with the rows of the state, whose file is then rewritten."""
        if not stored.exists():
            return new
        moved = stored.rename(self._scratch_file(name))
        return self._read([moved], new.schema).unionAll(new)

    def _number_rows(self, index: int, batch: pa.RecordBatch) -> pa.Array:
        """Return the positions of joined rows in the order of emission."""
        positions = batch.column(POSITION)
        before = pa.concat_arrays([pa.array([self._last_positions[index][0]], pa.int64()), positions[:-1]])
        steps = pc.cast(pc.not_equal(positions, before), pa.int64())
        numbers = pc.add(pc.cumulative_sum(steps), self._last_positions[index][1])
        self._last_positions[index] = (positions[-1].as_py(), numbers[-1].as_py())
        return numbers

    def _read(self, paths: Sequence[Path], schema: StructType) -> DataFrame:
        if not paths:
            return self._session.createDataFrame([], schema)
        return parquet_frame(self._session, paths, schema)

    def _sorted(self, frame: DataFrame, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return the rows sorted by some columns."""
        batches = arrow_batches(frame, self._reporter)[1]
        return external_sort(batches, SortOrder(tuple(keys)), self._scratch / "sorted.arrow")

    def _total_order(self, frame: DataFrame, first: Sequence[str]) -> tuple[str, ...]:
        return sort_keys(arrow_schema(frame.schema), first)


def _number_corrections(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with consecutive positions for the -C and the +C of each row.

    Args:
        batches: the rows in the order of time, position and operation; both rows have the position of the
            row that they correct.
    """
    last, number = -1, -1
    for batch in batches:
        places = batch.column(POSITION)
        before = pa.concat_arrays([pa.array([last], pa.int64()), places[:-1]])
        steps = pc.cast(pc.not_equal(places, before), pa.int64())
        numbers = pc.add(pc.cumulative_sum(steps), number)
        last, number = places[-1].as_py(), numbers[-1].as_py()
        is_to = pc.cast(pc.equal(batch.column(OPERATION), int(Op.CORRECT_TO)), pa.int64())
        at = batch.schema.get_field_index(POSITION)
        yield batch.set_column(at, POSITION, pc.add(pc.multiply(numbers, 2), is_to))
