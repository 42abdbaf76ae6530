"""Merge phase: new rows against what the dataset already holds (specification: MergeStrategy).

What comes out is a changelog in the order in which rows get their offsets:

- Append: all rows, by event time, those of the same time as they came;
- Ledger: rows whose primary key was never seen, in the same order;
- Snapshot: the difference to the state so far, by primary key and then operation, so that the two
  rows of a correction stand together.

Rows without an event time get the one of their source before they are sorted. Null and duplicate
keys within one input are errors; copies of a row that are alike in every column count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from odf_engine.data.kernels import pc

from odf_engine.data.changelog import Op
from odf_engine.data.conform import find_columns
from odf_engine.errors import BadData, InvalidSchema, Unsupported
from odf_engine.ingest import sql
from odf_engine.ingest.diagnose import shown
from odf_engine.ingest.ordering import Order, in_order
from odf_engine.metadata.model import (
    Append,
    DatasetVocabulary,
    Ledger,
    MergeStrategy,
    Snapshot,
    SqlQueryStep,
    kind_of,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.progress import Reporter
from odf_engine.spark.frames import arrow_batches
from odf_engine.spark.query import run_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NEW: Final = "odf_new"
_HISTORY: Final = "odf_history"
_POSITION: Final = "odf_position"
_CHANGED: Final = "odf_changed"
_EXAMPLES: Final = 5


@dataclass(frozen=True)
class Inputs:
    """What a merge needs.

    Attributes:
        new: rows as they came out of preprocessing.
        schema: of the slice.
        history: all slices so far, with offset and operation; None when there are none.
        event_time: for rows that have none.
        small: the new rows are few enough to be sent to every executor.
    """

    session: SparkSession
    new: DataFrame
    schema: pa.Schema
    vocab: DatasetVocabulary
    history: DataFrame | None
    event_time: Timestamp
    small: bool
    reporter: Reporter

    @property
    def names(self) -> list[str]:
        """Event time and data columns, in the order of the slice."""
        system = (self.vocab.offset_column, self.vocab.operation_type_column, self.vocab.system_time_column)
        return [name for name in self.schema.names if name not in system]

    def select(self, *steps: str, last: str, **frames: DataFrame) -> DataFrame:
        """The result of a query over ``frames``; steps are ``name: query``."""
        named = [step.partition(": ") for step in steps]
        queries = [SqlQueryStep(alias=name, query=query) for name, _, query in named]
        return run_query(self.session, frames, [*queries, SqlQueryStep(query=last)])

    def rows(self, frame: DataFrame) -> list[dict[str, Any]]:
        """All rows of a small result."""
        schema, batches = arrow_batches(frame, self.reporter, progress=False)
        return pa.Table.from_batches(batches, schema).to_pylist()


Merged = Callable[[Reporter, bool], Iterator[pa.RecordBatch]]
"""Runs the merge: batches in order; the flag asks to sort in Spark (see ``ordering.OutOfOrder``)."""


def merge(strategy: MergeStrategy, inputs: Inputs) -> Merged:
    """Prepares the merge; primary keys are checked now, the rest runs when batches are asked for.

    Raises:
        BadData: null or duplicate primary keys; the message shows the rows.
        InvalidSchema: key columns that are not there, or cannot be keys.
        Unsupported: a strategy of a newer specification.
    """
    if isinstance(strategy, Append):
        return _append(inputs)
    if isinstance(strategy, Ledger):
        return _ledger(strategy, inputs)
    if isinstance(strategy, Snapshot):
        return _snapshot(strategy, inputs)
    raise Unsupported(
        f"the merge strategy {kind_of(strategy)} is not known",  # type: ignore[arg-type]
        hint="use Append, Ledger or Snapshot",
    )


# --- Append ------------------------------------------------------------------------------------


def _append(inputs: Inputs) -> Merged:
    position = f", monotonically_increasing_id() AS {_POSITION}"

    def make(sort: bool) -> DataFrame:
        if not sort:
            return inputs.select(last=f"SELECT {_normal(inputs)} FROM {_NEW}", **{_NEW: inputs.new})
        return inputs.select(
            f"placed: SELECT {_normal(inputs)}{position} FROM {_NEW}",
            last=f"SELECT {sql.columns(inputs.names)} FROM placed ORDER BY {_time(inputs)}, {_POSITION}",
            **{_NEW: inputs.new},
        )

    keys = (inputs.vocab.event_time_column,) if _has_event_time(inputs) else ()
    order = Order(keys, passes=True)
    return lambda reporter, sort: in_order(make, order, _filler(inputs), reporter, sort=sort)


def _normal(inputs: Inputs) -> str:
    """The new rows' columns in the names, order and precision of the slice."""
    parts: list[str] = []
    for name, place in zip(inputs.names, find_columns(inputs.new.columns, inputs.names), strict=True):
        kind = inputs.schema.field(name).type
        if place is None or inputs.new.schema[place].dataType.typeName() == "void":
            parts.append(f"{sql.null(kind, name)} AS {sql.column(name)}")
        else:
            value = sql.in_milliseconds(sql.column(inputs.new.columns[place]), kind)
            parts.append(f"{value} AS {sql.column(name)}")
    return ", ".join(parts)


def _has_event_time(inputs: Inputs) -> bool:
    return find_columns(inputs.new.columns, [inputs.vocab.event_time_column]) != [None]


def _time(inputs: Inputs) -> str:
    """The event time in SQL, the source's where a row has none."""
    name = inputs.vocab.event_time_column
    fallback = f"timestamp_millis({inputs.event_time.ms}L)"
    if pa.types.is_date(inputs.schema.field(name).type):
        fallback = f"CAST({fallback} AS DATE)"
    return f"coalesce({sql.column(name)}, {fallback})"


def _filler(inputs: Inputs) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Gives rows of a batch without an event time the one of their source."""
    name = inputs.vocab.event_time_column

    def fill(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(name)
        times = batch.column(at)
        if times.null_count == 0:
            return batch
        moment = pa.scalar(inputs.event_time.ms, pa.timestamp("ms", "UTC")).cast(times.type, safe=False)
        return batch.set_column(at, name, pc.fill_null(times, moment))

    return fill


# --- Primary keys --------------------------------------------------------------------------------


def _key_columns(primary_key: Sequence[str], inputs: Inputs) -> list[str]:
    """The names of the key columns as the slice has them."""
    keys: list[str] = []
    for name, place in zip(primary_key, find_columns(inputs.names, list(primary_key)), strict=True):
        if place is None:
            raise InvalidSchema(
                f"the primary key column '{name}' is not there",
                where="merge.primaryKey",
                hint=f"the columns are {', '.join(inputs.names)}",
            )
        if pa.types.is_nested(inputs.schema.field(inputs.names[place]).type):
            raise InvalidSchema(f"column '{name}' is nested: it cannot be a key", where="merge.primaryKey")
        keys.append(inputs.names[place])
    if not keys:
        raise InvalidSchema("the primary key has no columns", where="merge.primaryKey")
    return keys


def _checked(keys: list[str], inputs: Inputs) -> DataFrame:
    """The new rows with their position; each key once.

    Raises:
        BadData: a key that is null, or that rows have which are not alike.
    """
    listed, having = sql.columns(keys), f"HAVING count(*) > 1 OR {sql.any_null(keys)}"
    new = inputs.select(
        last=f"SELECT {_normal(inputs)}, monotonically_increasing_id() AS {_POSITION} FROM {_NEW}",
        **{_NEW: inputs.new},
    )
    query = f"SELECT {listed}, count(*) AS times FROM {_NEW} GROUP BY {listed} {having} LIMIT {_EXAMPLES}"
    found = inputs.rows(inputs.select(last=query, **{_NEW: new}))
    if not found:
        return new
    shown_columns = sql.columns(inputs.names)
    if any(row[key] is None for row in found for key in keys):
        query = f"SELECT {shown_columns} FROM {_NEW} WHERE {sql.any_null(keys)} LIMIT {_EXAMPLES}"
        _refuse("has no value in rows", keys, inputs.rows(inputs.select(last=query, **{_NEW: new})))
    _refuse_different(keys, new, inputs)
    query = f"SELECT sum(times - 1) AS n FROM (SELECT count(*) AS times FROM {_NEW} GROUP BY {listed})"
    copies = inputs.rows(inputs.select(last=query, **{_NEW: new}))[0]["n"]
    inputs.reporter.line(f"{copies:,} rows were exact copies of others and count once", "warning")
    number = f"row_number() OVER (PARTITION BY {listed} ORDER BY {_POSITION}) AS odf_copy"
    return inputs.select(
        f"numbered: SELECT *, {number} FROM {_NEW}",
        last=f"SELECT {shown_columns}, {_POSITION} FROM numbered WHERE odf_copy = 1",
        **{_NEW: new},
    )


def _refuse_different(keys: list[str], new: DataFrame, inputs: Inputs) -> None:
    listed, everything = sql.columns(keys), sql.columns(inputs.names)
    rows = inputs.rows(
        inputs.select(
            f"kinds: SELECT DISTINCT {everything} FROM {_NEW}",
            f"double: SELECT {listed} FROM kinds GROUP BY {listed} HAVING count(*) > 1 LIMIT {_EXAMPLES}",
            last=f"SELECT {sql.columns(inputs.names, 'k')} FROM kinds k LEFT SEMI JOIN double d "
            f"ON {sql.same(keys, 'k', 'd')} ORDER BY {sql.columns(keys, 'k')} LIMIT {_EXAMPLES}",
            **{_NEW: new},
        )
    )
    if rows:
        _refuse("stands in several different rows", keys, rows)


def _refuse(problem: str, keys: list[str], rows: list[dict[str, Any]]) -> None:
    examples = " | ".join(shown(", ".join(f"{name}={value}" for name, value in row.items())) for row in rows)
    raise BadData(
        f"the primary key {', '.join(keys)} {problem}: {examples}",
        hint="choose a primary key that tells rows apart, or filter the rows in the preprocess query",
    )


# --- Ledger --------------------------------------------------------------------------------------


def _ledger(strategy: Ledger, inputs: Inputs) -> Merged:
    keys = _key_columns(strategy.primary_key, inputs)
    new = _checked(keys, inputs)
    names = sql.columns(inputs.names, "n")
    others = [name for name in inputs.names if name not in keys]
    query = f"SELECT {names}, n.{_POSITION}, FALSE AS {_CHANGED} FROM {_NEW} n"
    steps, frames = [], {_NEW: new}
    if inputs.history is not None:
        frames[_HISTORY] = inputs.history
        latest = sql.struct([(name, sql.column(name, "h")) for name in [inputs.vocab.offset_column, *others]])
        steps = [
            f"keys: SELECT {sql.columns(keys)} FROM {_NEW}",
            f"seen: SELECT {_hint('k', inputs)}{sql.columns(keys, 'h')}, "
            f"max_by({latest}, {sql.column(inputs.vocab.offset_column, 'h')}) AS odf_old FROM {_HISTORY} h "
            f"LEFT SEMI JOIN keys k ON {sql.same(keys, 'h', 'k')} GROUP BY {sql.columns(keys, 'h')}",
        ]
        query = (
            f"SELECT {_hint('s', inputs)}{names}, n.{_POSITION}, s.odf_old IS NOT NULL AS {_CHANGED} "
            f"FROM {_NEW} n LEFT JOIN seen s ON {sql.same(keys, 'n', 's')} "
            f"WHERE s.odf_old IS NULL OR NOT {_unchanged(others, inputs)}"
        )

    def make(sort: bool) -> DataFrame:
        order = f" ORDER BY {_time(inputs)}, {_POSITION}" if sort else ""
        return inputs.select(*steps, last=query + order, **frames)

    order = Order((inputs.vocab.event_time_column, _POSITION), extra=(_POSITION,))

    def run(reporter: Reporter, sort: bool) -> Iterator[pa.RecordBatch]:
        known = _KnownRows(keys, _filler(inputs))
        yield from in_order(make, order, known.take_out, reporter, sort=sort)
        known.warn(reporter)

    return run


def _hint(table: str, inputs: Inputs) -> str:
    return f"/*+ BROADCAST({table}) */ " if inputs.small else ""


def _unchanged(others: list[str], inputs: Inputs) -> str:
    """Whether a row that is known has the values it had; an event time that is not given does not count."""
    event_time = inputs.vocab.event_time_column
    parts = [sql.same([name for name in others if name != event_time], "n", "s.odf_old")]
    if event_time in others:
        time = sql.column(event_time, "n")
        parts.append(f"({time} IS NULL OR {sql.same([event_time], 'n', 's.odf_old')})")
    return "(" + " AND ".join(parts) + ")"


class _KnownRows:
    """Takes out rows whose key was seen with other values, and says so at the end."""

    def __init__(self, keys: list[str], fill: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._keys = keys
        self._fill = fill
        self._count = 0
        self._examples: list[dict[str, Any]] = []

    def take_out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        changed = batch.column(_CHANGED)
        batch = batch.drop_columns([_CHANGED])
        if pc.any(changed).as_py():
            rows = batch.filter(changed)
            self._count += rows.num_rows
            missing = _EXAMPLES - len(self._examples)
            self._examples += rows.select(self._keys).slice(0, missing).to_pylist()
            batch = batch.filter(pc.invert(changed))
        return self._fill(batch)

    def warn(self, reporter: Reporter) -> None:
        if self._count:
            examples = " | ".join(
                ", ".join(f"{key}={row[key]}" for key in self._keys) for row in self._examples
            )
            reporter.line(
                f"{self._count:,} rows have a known primary key and other values than before; a ledger"
                f" keeps the first ones. Such as: {shown(examples)}",
                "warning",
            )


# --- Snapshot ------------------------------------------------------------------------------------


def _snapshot(strategy: Snapshot, inputs: Inputs) -> Merged:
    keys = _key_columns(strategy.primary_key, inputs)
    compared = _compared(strategy, keys, inputs)
    new = _checked(keys, inputs)
    op = inputs.vocab.operation_type_column
    frames = {_NEW: new}
    steps: list[str] = []
    query = f"SELECT CAST({Op.APPEND} AS INT) AS {sql.column(op)}, {sql.columns(inputs.names)} FROM {_NEW}"
    if inputs.history is not None:
        frames[_HISTORY] = inputs.history
        steps = _difference(keys, compared, inputs)
        query = "SELECT inline(odf_rows) FROM pairs"

    def make(sort: bool) -> DataFrame:
        if not sort:
            return inputs.select(*steps, last=query, **frames)
        order = f"ORDER BY {sql.columns(keys)}, {sql.column(op)}"
        return inputs.select(*steps, f"unsorted: {query}", last=f"SELECT * FROM unsorted {order}", **frames)

    order = Order((*keys, op))
    return lambda reporter, sort: in_order(make, order, lambda batch: batch, reporter, sort=sort)


def _compared(strategy: Snapshot, keys: list[str], inputs: Inputs) -> list[str]:
    """The columns whose change makes a row another one."""
    if strategy.compare_columns is None:
        return [name for name in inputs.names if name not in keys]
    if not strategy.compare_columns:
        raise InvalidSchema("compareColumns is empty", where="merge.compareColumns")
    names: list[str] = []
    for name, place in zip(
        strategy.compare_columns, find_columns(inputs.names, strategy.compare_columns), strict=True
    ):
        if place is None:
            raise InvalidSchema(
                f"the column '{name}' to compare is not there",
                where="merge.compareColumns",
                hint=f"the columns are {', '.join(inputs.names)}",
            )
        names.append(inputs.names[place])
    return names


def _difference(keys: list[str], compared: list[str], inputs: Inputs) -> list[str]:
    """Steps that end in ``pairs``, whose ``odf_rows`` are the rows to write for each changed key."""
    op, event_time = inputs.vocab.operation_type_column, inputs.vocab.event_time_column
    offset = sql.column(inputs.vocab.offset_column)
    latest = sql.struct((name, sql.column(name)) for name in [op, *inputs.names])
    changes = [f"NOT {sql.same([name for name in compared if name != event_time], 'r', 'o')}"]
    if event_time in compared:
        # A source that gives no event time says nothing about a change of it.
        time = sql.column(event_time, "r")
        changes.append(f"({time} IS NOT NULL AND NOT {sql.same([event_time], 'r', 'o')})")
    changed = " OR ".join(changes)

    def row(number: Op, table: str) -> str:
        values = ((name, sql.column(name, table)) for name in inputs.names)
        return sql.struct([(op, f"CAST({number} AS INT)"), *values])

    cases = (
        f"CASE WHEN o IS NULL THEN array({row(Op.APPEND, 'r')}) "
        f"WHEN r IS NULL THEN array({row(Op.RETRACT, 'o')}) "
        f"ELSE array({row(Op.CORRECT_FROM, 'o')}, {row(Op.CORRECT_TO, 'r')}) END"
    )
    old = f"SELECT {sql.columns(keys)}, max_by({latest}, {offset}) AS o FROM {_HISTORY} GROUP BY {sql.columns(keys)}"
    now = f"SELECT {sql.columns(keys)}, {sql.struct((name, sql.column(name)) for name in inputs.names)} AS r FROM {_NEW}"
    stays = f"o.{sql.column(op)} IN ({Op.APPEND}, {Op.CORRECT_TO})"
    return [
        f"state: SELECT * FROM ({old}) WHERE {stays}",
        f"now: {now}",
        f"both: SELECT n.r, s.o FROM now n FULL OUTER JOIN state s ON {sql.same(keys, 'n', 's')}",
        f"pairs: SELECT {cases} AS odf_rows FROM both WHERE o IS NULL OR r IS NULL OR {changed}",
    ]
