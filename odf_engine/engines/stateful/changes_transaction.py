"""Transactions of queries whose rows can change at any time: joins without a time bound, subqueries, …

Their state is the inputs themselves: a transaction reads the earlier rows of its inputs again, for the keys
that have changed, and writes the changes of the result.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET

from odf_engine.base.progress import Reporter
from odf_engine.data.changelog import OPERATION, RETRACTS, Op
from odf_engine.engines.contract import QueryInput, TransactionResult, ValidatedQuery
from odf_engine.engines.output_contract import OutputContract, input_schemas, write_result
from odf_engine.engines.stateful.batches import read_slice
from odf_engine.engines.stateful.checkpoint import (
    ResultState,
    read_checkpoint,
    read_checkpoint_metadata,
    require_present_rules,
)
from odf_engine.engines.stateful.query_plan import has_few_rows, interpret_queries
from odf_engine.engines.stateful.stateful_transaction import BatchSorter, QueryTransaction
from odf_engine.errors import EarlierRowsRequired, InvalidQuery, Unsupported
from odf_engine.metadata.model import (
    DatasetVocabulary,
    Sql,
    SqlQueryStep,
    TransformRequest,
    TransformRequestInput,
)
from odf_engine.spark.arrow_batches import arrow_batches, cancellable
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.executors.slice_writer import write_session_slices
from odf_engine.spark.plan_rewrite import null_value, run_sql
from odf_engine.spark.readers import slices_frame
from odf_engine.spark.repeatability import check_repeatable
from odf_engine.spark.runtime.jvm import SparkFailed
from odf_engine.spark.sql_types import arrow_schema, identifier
from odf_engine.spark.stateful.incremental import IS_ADDITION
from odf_engine.spark.stateful.kept_groups import KeptGroups
from odf_engine.spark.stateful.result_changes import WEIGHT, InputState, ResultChanges
from odf_engine.spark.stateful.temporal_tables import AsOfTable
from odf_engine.spark.stateful.window_functions import comparable, first_values
from odf_engine.spark.user_query import run_query, uses_as_of_join
from odf_engine.sql.query_text import tokenize

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


def validate_changes_query(
    session: SparkSession,
    transform: Sql,
    inputs: Sequence[QueryInput],
    vocab: DatasetVocabulary,
    declared: pa.Schema | None,
) -> ValidatedQuery:
    """Check that the changes of a query's result can be computed.

    Raises:
        InvalidQuery, Unsupported: they cannot.
    """
    steps = transform.queries or []
    _check_text(steps)
    views = {
        input.alias: _data_rows(slices_frame(session, [], input.schema, input.vocab), input.vocab)
        for input in inputs
    }
    tables = computed_tables(transform, vocab)
    try:
        frame = run_query(session, views, steps, tables)
    except InvalidQuery as error:  # with all columns, it was valid
        raise Unsupported(
            "the query reads a system column of an input (offset, op or system_time), which rows that can "
            f"change do not have: {error.message}",
            where=error.where,
            hint="remove the column, or compute it in a separate dataset",
        ) from error
    check_repeatable(frame, steps, windows=True)
    _check_plan(ResultChanges(session, _unchanged(views)).all_rows(frame))
    contract = _contract(frame, vocab, declared, [input.schema for input in inputs])
    parts = ["changes", *(f"{step.alias or ''} {step.query}" for step in steps)]
    if uses_as_of_join(steps):
        parts += [f"{table.name} {table.time} by {', '.join(table.keys)}" for table in tables.values()]
    text = "\n".join(parts)
    return ValidatedQuery(contract.schema, hashlib.sha3_256(text.encode()).hexdigest(), rereads=True)


def _check_plan(frame: DataFrame) -> None:
    """Check that Spark can plan a query. Its optimizer fails for some, which a pull must not find out."""
    java: Any = frame._jdf
    try:
        with translate_errors():
            java.queryExecution().executedPlan()
    except SparkFailed as error:
        raise Unsupported(
            f"Spark cannot plan the query: {error.message.removeprefix('Spark failed: ')}",
            where="query",
            hint="compute a part of it in a separate dataset",
        ) from error


def computed_tables(transform: Sql, vocab: DatasetVocabulary) -> dict[str, AsOfTable]:
    """Return the temporal tables of a query whose rows can change: the query computes all that it joins."""
    return {
        table.name.lower(): AsOfTable(
            table.name, tuple(table.primary_key), vocab.event_time_column, of_query=True
        )
        for table in transform.temporal_tables or []
    }


def _unchanged(views: Mapping[str, DataFrame]) -> dict[str, InputState]:
    return {name: InputState(view, view, None) for name, view in views.items()}


def _check_text(steps: Sequence[SqlQueryStep]) -> None:
    for step in steps:
        tokens = [token.text.lower() for token in tokenize(step.query)]
        if ("system_time", "(") in pairwise(tokens):
            raise Unsupported(
                "the query uses system_time(), but its earlier rows can change in later transactions, which "
                "have another time",
                where="query",
                hint="remove system_time(), or compute the time in a separate dataset",
            )


def _contract(
    frame: DataFrame, vocab: DatasetVocabulary, declared: pa.Schema | None, inputs: Sequence[pa.Schema]
) -> OutputContract:
    contract = OutputContract(arrow_schema(frame.schema), vocab, declared, inputs)
    if contract.operation is not None:
        raise Unsupported(
            f"the query returns operations ('{contract.operation}'), but its rows can change at any time",
            where="query",
            hint="remove the column: the engine determines the operations",
        )
    return contract


def _data_rows(frame: DataFrame, vocab: DatasetVocabulary, *more: str) -> DataFrame:
    """Return rows without system columns."""
    system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
    return frame.selectExpr(*(identifier(name) for name in frame.columns if name not in system), *more)


def latest_rows(frame: DataFrame, vocab: DatasetVocabulary, *, retracted: bool) -> DataFrame:
    """Return the rows of a changelog that are not retracted, without system columns.

    Args:
        frame: all rows.
        vocab: names of the system columns.
        retracted: whether there may be retractions.
    """
    if not retracted:
        return _data_rows(frame, vocab)
    names = [identifier(name) for name in _data_rows(frame, vocab).columns]
    values, groups = first_values(names, frame.schema), comparable(names, frame.schema)
    sign = f"IF({identifier(vocab.operation_type_column)} {RETRACTS}, -1L, 1L)"
    return run_sql(
        f"SELECT {', '.join(names)} FROM (SELECT {', '.join(values)}, sum({sign}) AS odf_copies "
        f"FROM odf_rows GROUP BY {', '.join(groups)} HAVING sum({sign}) > 0) "
        "LATERAL VIEW explode(sequence(1L, odf_copies)) AS odf_copy",
        rows=frame,
    )


class ChangesTransaction(QueryTransaction):
    """A transaction that writes the changes of a query's result."""

    def __init__(
        self,
        session: SparkSession,
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
        state: str,
    ) -> None:
        super().__init__(session, request, declared, reporter, state)
        self._transform = request.transform
        self._steps = request.transform.queries or []
        self._tables = (request.transform.temporal_tables or []) if uses_as_of_join(self._steps) else UNSET

    def run(self) -> TransactionResult:
        """Run it; write the slice and the checkpoint.

        Raises:
            EarlierRowsRequired: the request lacks the rows that earlier transactions have read.
            BadData: a value or a slice is invalid.
            Cancelled: no output files remain.
        """
        with self._temporary_files():
            return self._run()

    def _run(self) -> TransactionResult:
        state, read = self._previous_state(), self._request.query_inputs
        self._check_state(state)
        if state is not None and self._request.prev_checkpoint_path is not None:
            read_checkpoint(Path(self._request.prev_checkpoint_path), self._kept_folder)
        paths = [path for input in read for path in (*(input.earlier_paths or ()), *input.data_paths)]
        if has_few_rows(list(map(Path, paths))):
            interpret_queries(self._session)
        retracted = self._retracted_inputs(() if state is None else state.retracted)
        inputs = {input.query_alias: self._rows(input, retracted) for input in read}
        after = self._query({name: rows.after for name, rows in inputs.items()}, self._transform)
        changes = KeptGroups(self._session, inputs, self._state)
        try:
            if state is None:
                changed = changes.all_rows(after)
            else:
                before = self._query({name: rows.before for name, rows in inputs.items()}, self._transform)
                with cancellable(self._session, self._reporter):
                    changed = changes.changes(before, after)
            return self._write(changes, after, changed, retracted, state)
        finally:
            changes.release()

    def finish(self) -> TransactionResult:
        """Write nothing: no rows wait, and the rows of the query stay."""
        return TransactionResult(None, self._declared or pa.schema([]), None, True)

    def rebuild(self) -> TransactionResult:
        """Write the changes from the result of the previous checkpoint's query to the result of this query.

        Raises:
            Unsupported: the previous query has another kind of state.
            OdfError: as for :meth:`run`.
        """
        state = self._previous_state()
        if state is None:
            raise Unsupported(
                "the rows of the old query cannot be compared with those of the new one, which can change at "
                "any time",
                where="query",
                hint="create a new dataset with the new query",
            )
        retracted = self._retracted_inputs(())
        views = {
            input.query_alias: self._rows(input, retracted).after for input in self._request.query_inputs
        }
        after = self._query(views, self._transform)
        tables = None if state.temporal_tables is UNSET else state.temporal_tables
        old = msgspec.structs.replace(self._transform, queries=state.queries, temporal_tables=tables)
        before = self._aligned(self._query(views, old), after)
        changes = KeptGroups(self._session, _unchanged(views), self._state)
        try:
            changed = changes.difference(before, after)
            return self._write(changes, after, changed, retracted, None)
        finally:
            changes.release()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _query(self, views: Mapping[str, DataFrame], transform: Sql) -> DataFrame:
        tables = computed_tables(transform, self._request.vocab)
        return run_query(self._session, views, transform.queries or [], tables)

    def _check_state(self, state: ResultState | None) -> None:
        """Check that the earlier transactions had the same query, and that their rows are known."""
        request = self._request
        is_first = request.prev_checkpoint_path is None and not any(
            input.offset_interval is not None and input.offset_interval.start
            for input in request.query_inputs
        )
        if is_first:
            return
        if state is None or (state.queries, state.temporal_tables) != (self._steps, self._tables):
            raise Unsupported(
                "earlier rows belong to another query, or to other inputs",
                where="query",
                hint="restore the old query, and change it with odf add --update and --rebuild",
            )
        if any(input.earlier_paths is None for input in request.query_inputs):
            raise EarlierRowsRequired(
                "the query reads earlier rows of its inputs again, which the request does not have",
                where="query",
                hint="run it with a coordinator that passes them, such as odf pull",
            )

    def _previous_state(self) -> ResultState | None:
        path = self._request.prev_checkpoint_path
        if path is None or (metadata := read_checkpoint_metadata(Path(path))).result is UNSET:
            return None
        require_present_rules(metadata, path)
        return metadata.result

    def _retracted_inputs(self, before: Collection[str]) -> list[str]:
        """Return the names of the inputs that have had retractions."""
        names = set(before)
        for query_input in self._request.query_inputs:
            paths = () if query_input.query_alias in names else map(Path, query_input.data_paths)
            if any(read_slice(path, 0, query_input.vocab)[0].changes for path in paths):
                names.add(query_input.query_alias)
        return sorted(names)

    def _rows(self, query_input: TransformRequestInput, retracted: Collection[str]) -> InputState:
        """Return the rows of an input before and after the transaction."""
        schema, vocab = pq.read_schema(query_input.schema_file), query_input.vocab
        earlier = list(map(Path, query_input.earlier_paths or ()))
        new = list(map(Path, query_input.data_paths))
        frames = [slices_frame(self._session, paths, schema, vocab, ordered=False)
                  for paths in (earlier, [*earlier, *new], new)]  # fmt: skip
        has_retracted = query_input.query_alias in retracted
        before, after = (latest_rows(frame, vocab, retracted=has_retracted) for frame in frames[:2])
        weight = f"IF({identifier(vocab.operation_type_column)} {RETRACTS}, -1L, 1L) AS {WEIGHT}"
        changes = _data_rows(frames[2], vocab, weight) if new else None
        removes = any(read_slice(path, 0, vocab)[0].changes for path in new)
        return InputState(before, after, changes, removes)

    def _aligned(self, before: DataFrame, after: DataFrame) -> DataFrame:
        """Return the rows of the old query with the columns of the new one; new columns are null."""
        names = {name.lower(): name for name in before.columns}
        columns = [
            identifier(names[name.lower()]) if name.lower() in names else null_value(after, name)
            for name in after.columns
        ]
        with translate_errors():
            aligned = before.selectExpr(*columns).toDF(*after.columns)
        for old, new in zip(aligned.schema, after.schema, strict=True):
            before_type, after_type = old.dataType.simpleString(), new.dataType.simpleString()
            if before_type != after_type:
                raise InvalidQuery(
                    f"column '{new.name}' was {before_type}, is {after_type}",
                    where="query",
                    hint=f"restore the type: CAST(… AS {before_type}) AS {new.name}",
                )
        return aligned

    def _write(
        self,
        changes: KeptGroups,
        result: DataFrame,
        changed: DataFrame | None,
        retracted: Sequence[str],
        state: ResultState | None,
    ) -> TransactionResult:
        request = self._request
        contract = _contract(result, request.vocab, self._declared, input_schemas(request))
        written = None
        if changed is not None:
            rows = self._sorted_rows(changed, contract)
            written = write_result(
                (contract.select_columns(batch, batch.column(OPERATION)) for batch in rows),
                contract.schema,
                request,
                self._reporter,
                partial(write_session_slices, self._session),
            )
        new_state = ResultState(
            queries=list(self._steps), retracted=list(retracted), temporal_tables=self._tables
        )
        checkpoint = None
        if changes.states or new_state != state:
            self._state.replace(changes.states, unchanged=changes.unchanged)
            checkpoint = self._store_checkpoint({}, None, new_state)
        return TransactionResult(written, contract.schema, checkpoint, retracts_emitted=True)

    def _sorted_rows(self, changed: DataFrame, contract: OutputContract) -> Iterator[pa.RecordBatch]:
        """Return the changed rows with their operation: retractions first, then by event time."""
        names = changed.columns[:-1]
        frame = changed.toDF(*(f"c{index}" for index in range(len(names))), WEIGHT)
        is_addition = f"IF({WEIGHT} < 0, 0, 1) AS {IS_ADDITION}"
        operation = f"IF({WEIGHT} < 0, {Op.RETRACT:d}, {Op.APPEND:d}) AS {OPERATION}"
        with translate_errors():
            rows = run_sql(
                f"SELECT {', '.join(frame.columns[:-1])}, {operation}, {is_addition} FROM odf_changed "
                f"LATERAL VIEW explode(sequence(1L, abs({WEIGHT}))) AS odf_copy",
                changed=frame,
            ).toDF(*names, OPERATION, IS_ADDITION)
        schema, batches = arrow_batches(rows, self._reporter)
        self._folder.mkdir(parents=True, exist_ok=True)
        sorter = BatchSorter(self._session, self._folder, self._reporter)
        checked = map(contract.require_event_time, batches)
        return sorter.sort_by_time(checked, schema, contract.event_time, 0)
