"""The ledger strategy: rows whose primary key was never seen, by event time, then as they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from odf_engine.data.kernels import pc
from odf_engine.errors import BadData
from odf_engine.ingest import sql
from odf_engine.ingest.diagnose import shown
from odf_engine.ingest.merge_base import HISTORY, POSITION, Inputs, Merged, filler, normal, time_of
from odf_engine.ingest.merge_keys import COPIES, EXAMPLES, check_keys, counted, key_columns, without_copies
from odf_engine.ingest.ordering import Order
from odf_engine.metadata.model import Ledger
from odf_engine.progress import Reporter

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame

_CHANGED: Final = "odf_changed"


def merge_ledger(strategy: Ledger, inputs: Inputs) -> Merged:
    """Prepares the merge; a known key with other values is a warning, or an error if that was asked for."""
    keys = key_columns(strategy.primary_key, inputs)
    history = inputs.history(keys, False)
    names = [*inputs.names, POSITION, COPIES]
    event_time = inputs.vocab.event_time_column

    def make(new: str, sort: bool) -> DataFrame:
        parts = {"n": f"SELECT *, {counted(keys)} FROM ({new})"}
        if history is None:
            query = f"SELECT {sql.columns(names)}, FALSE AS {_CHANGED} FROM n"
        else:
            parts |= _seen(keys, inputs)
            query = (
                f"SELECT {_hint('s', inputs)}{sql.columns(names, 'n')}, s.odf_old IS NOT NULL AS {_CHANGED} "
                f"FROM n LEFT JOIN seen s ON {sql.equal(keys, 'n', 's')} "
                f"WHERE s.odf_old IS NULL OR n.{COPIES} > 1 OR NOT {_unchanged(keys, inputs)}"
            )
        if sort:
            query = f"SELECT * FROM ({query}) ORDER BY {time_of(inputs, event_time)}, {POSITION}"
        return inputs.select(parts, query, history)

    known = _KnownRows(keys, filler(inputs, event_time), strict=inputs.strict)
    return Merged(
        make,
        Order((event_time, POSITION), extra=(POSITION,)),
        lambda batch: known.take_out(without_copies(batch)),
        normal(inputs),
        lambda: check_keys(keys, inputs),
        lambda: known.warn(inputs.reporter),
    )


def _seen(keys: list[str], inputs: Inputs) -> dict[str, str]:
    """Of the keys in the new rows those that the dataset has, with the newest values of the others."""
    offset = inputs.vocab.offset_column
    others = [offset, *(name for name in inputs.names if name not in keys)]
    latest = sql.struct([(name, sql.column(name, "h")) for name in others])
    return {
        "k": f"SELECT {sql.columns(keys)} FROM n",
        "seen": f"SELECT {_hint('k', inputs)}{sql.columns(keys, 'h')}, "
        f"max_by({latest}, {sql.column(offset, 'h')}) AS odf_old FROM {HISTORY} h "
        f"LEFT SEMI JOIN k ON {sql.equal(keys, 'h', 'k')} GROUP BY {sql.columns(keys, 'h')}",
    }


def _hint(table: str, inputs: Inputs) -> str:
    return f"/*+ BROADCAST({table}) */ " if inputs.small else ""


def _unchanged(keys: list[str], inputs: Inputs) -> str:
    """Whether a row that is known has the values it had; an event time that is not given does not count."""
    event_time = inputs.vocab.event_time_column
    others = [name for name in inputs.names if name not in keys]
    parts = [sql.same([name for name in others if name != event_time], "n", "s.odf_old")]
    if event_time in others:
        time = sql.column(event_time, "n")
        parts.append(f"({time} IS NULL OR {sql.same([event_time], 'n', 's.odf_old')})")
    return "(" + " AND ".join(parts) + ")"


class _KnownRows:
    """Takes out rows whose key was seen with other values, and says so at the end."""

    def __init__(
        self, keys: list[str], fill: Callable[[pa.RecordBatch], pa.RecordBatch], *, strict: bool
    ) -> None:
        self._keys = keys
        self._fill = fill
        self._strict = strict
        self._count = 0
        self._examples: list[dict[str, Any]] = []

    def take_out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch whose key is new."""
        changed = batch.column(_CHANGED)
        batch = batch.drop_columns([_CHANGED])
        if pc.any(changed).as_py():
            rows = batch.filter(changed)
            self._count += rows.num_rows
            missing = EXAMPLES - len(self._examples)
            self._examples += rows.select(self._keys).slice(0, missing).to_pylist()
            batch = batch.filter(pc.invert(changed))
        return self._fill(batch)

    def warn(self, reporter: Reporter) -> None:
        """Says how many there were.

        Raises:
            BadData: there were some, and that is not allowed.
        """
        if not self._count:
            return
        examples = " | ".join(", ".join(f"{key}={row[key]}" for key in self._keys) for row in self._examples)
        problem = f"{self._count:,} rows have a known primary key and other values than before"
        if self._strict:
            raise BadData(
                f"{problem}, such as: {shown(examples)}",
                hint="a ledger keeps the first values: without --strict such rows are only warned of",
            )
        reporter.line(f"{problem}; a ledger keeps the first ones. Such as: {shown(examples)}", "warning")
