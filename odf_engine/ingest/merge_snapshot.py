"""The snapshot strategy: what changed since the state so far, by primary key, then operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from odf_engine.data.changelog import Op
from odf_engine.data.conform import find_columns
from odf_engine.errors import InvalidSchema
from odf_engine.ingest import sql
from odf_engine.ingest.merge_base import HISTORY, Inputs, Merged, normal
from odf_engine.ingest.merge_keys import COPIES, check_keys, counted, key_columns, without_copies
from odf_engine.ingest.ordering import Order
from odf_engine.metadata.model import Snapshot

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame


_BEFORE: Final = "odf_before"
_AFTER: Final = "odf_after"


def merge_snapshot(strategy: Snapshot, inputs: Inputs) -> Merged:
    """Prepares the merge; rows of one key that differ become a correction, its two rows together."""
    keys = key_columns(strategy.primary_key, inputs)
    compared = _compared(strategy, keys, inputs)
    history = inputs.history(keys, True)
    op = inputs.vocab.operation_type_column

    def make(new: str, sort: bool) -> DataFrame:
        parts = {"n": f"SELECT *, {counted(keys)} FROM ({new})"}
        if history is None:
            names = sql.columns([*inputs.names, COPIES])
            query = f"SELECT CAST({Op.APPEND} AS INT) AS {sql.column(op)}, {names} FROM n"
        else:
            parts |= _difference(keys, compared, inputs)
            query = "SELECT inline(odf_rows) FROM pairs"
        if sort:
            query = f"SELECT * FROM ({query}) ORDER BY {sql.columns(keys)}, {sql.column(op)}"
        return inputs.select(parts, query, history)

    return Merged(make, Order((*keys, op)), without_copies, normal(inputs), lambda: check_keys(keys, inputs))


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


def _difference(keys: list[str], compared: list[str], inputs: Inputs) -> dict[str, str]:
    """Parts up to ``pairs``, whose ``odf_rows`` are the rows to write for each changed key."""
    op, event_time = inputs.vocab.operation_type_column, inputs.vocab.event_time_column
    offset = sql.column(inputs.vocab.offset_column)
    latest = sql.struct([(name, sql.column(name)) for name in [op, *inputs.names]])
    newest = sql.struct([(name, sql.column(name, "n")) for name in inputs.names])
    changes = [f"NOT {sql.same([name for name in compared if name != event_time], _AFTER, _BEFORE)}"]
    if event_time in compared:
        # A source that gives no event time says nothing about a change of it.
        time = sql.column(event_time, _AFTER)
        changes.append(f"({time} IS NOT NULL AND NOT {sql.same([event_time], _AFTER, _BEFORE)})")

    def row(number: Op, table: str) -> str:
        values = ((name, sql.column(name, table)) for name in inputs.names)
        return sql.struct([(op, f"CAST({number} AS INT)"), *values, (COPIES, f"coalesce({COPIES}, 1)")])

    cases = (
        f"CASE WHEN {_BEFORE} IS NULL THEN array({row(Op.APPEND, _AFTER)}) "
        f"WHEN {_AFTER} IS NULL THEN array({row(Op.RETRACT, _BEFORE)}) "
        f"ELSE array({row(Op.CORRECT_FROM, _BEFORE)}, {row(Op.CORRECT_TO, _AFTER)}) END"
    )
    listed = sql.columns(keys)
    last = f"max_by({latest}, {offset}) AS {_BEFORE}"
    return {
        "latest": f"SELECT {listed}, {last} FROM {HISTORY} GROUP BY {listed}",
        "state": f"SELECT * FROM latest WHERE {sql.column(op, _BEFORE)} IN ({Op.APPEND}, {Op.CORRECT_TO})",
        "now": f"SELECT {sql.columns(keys, 'n')}, n.{COPIES}, {newest} AS {_AFTER} FROM n",
        "both": f"SELECT n.{_AFTER}, n.{COPIES}, s.{_BEFORE} FROM now n "
        f"FULL OUTER JOIN state s ON {sql.equal(keys, 'n', 's')}",
        "pairs": f"SELECT {cases} AS odf_rows FROM both "
        f"WHERE {_BEFORE} IS NULL OR {_AFTER} IS NULL OR {COPIES} > 1 OR {' OR '.join(changes)}",
    }
