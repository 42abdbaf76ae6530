"""Comparison of a derivative dataset with its query over the latest state of its inputs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from odf_engine.base.progress import Reporter
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.data.arrow_compute import python_rows
from odf_engine.data.row_differences import Recomputed, RowDifference
from odf_engine.derive.plan import boundary_transaction
from odf_engine.derive.run import make_request
from odf_engine.engines.contract import Engine
from odf_engine.engines.stateful.recomputation import latest_state
from odf_engine.errors import NotFound, UsageError
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.plan_rewrite import run_sql
from odf_engine.spark.readers import slices_frame
from odf_engine.spark.sql_types import identifier
from odf_engine.spark.stateful.window_functions import comparable
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_folders import list_late_rows
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession

_MAX_DIFFERENCES: Final = 100
"""Maximum number of rows in a report."""
_MAX_PAIRED: Final = 100_000
"""Maximum number of differing rows that are compared up to rounding."""
_RELATIVE: Final = 1e-9


def recompute_dataset(
    workspace: Workspace, entry: DatasetEntry, engine: Engine, session: SparkSession, reporter: Reporter
) -> Recomputed:
    """Compare a derivative dataset with its query over the inputs up to the blocks that it has read.

    Args:
        workspace: has the inputs.
        entry: the dataset.
        engine: runs the query.
        session: a session of the job, for the comparison.
        reporter: receives amounts; checked for cancellation.

    Raises:
        UsageError: a root dataset.
        Unsupported: the result depends on the division into transactions, or the engine cannot recompute it.
        NotFound, Diverged: an input is missing, or has another history.
        OdfError: the query fails, or a slice is damaged.
    """
    dataset, state = entry.dataset, entry.dataset.state()
    if state.kind is not DatasetKind.Derivative:
        raise UsageError(
            f"{entry.alias} is a root dataset, which has no query to recompute",
            hint="verify its chain and files: odf verify NAME",
        )
    if state.last_inputs is None:
        raise NotFound(f"{entry.alias} has no transactions yet", hint=f"run odf pull {entry.alias}")
    transaction = boundary_transaction(workspace, entry, state, "rebuild", state.system_time)
    declared, vocab = declared_schema(state), state.vocabulary
    with job_scratch_folder(workspace.odf / "cache", "recompute") as folder:
        staged = folder / "rows.parquet"
        reporter.phase("recompute")
        request = make_request(transaction, folder, staged, state.system_time, reporter)
        result = engine.run("recompute", request, declared, reporter)
        reporter.phase("compare")
        paths = dataset.slice_paths(dataset.slices(), reporter)
        stored = latest_state(slices_frame(session, paths, result.schema, vocab), vocab)
        recomputed = slices_frame(session, [] if result.written is None else [staged], result.schema, vocab)
        until = (
            None if result.watermark is None else min(result.watermark, state.watermark or result.watermark)
        )
        system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
        comparison = _Comparison(stored, recomputed, system, vocab.event_time_column, reporter)
        return comparison.run(str(state.head), until, sum(file.rows for file in list_late_rows(dataset)))


class _Comparison:
    """Comparison of two sets of rows by all columns that are not system columns.

    Args:
        stored, recomputed: the rows.
        system: names of the offset column and the other system columns.
        event_time: name of the event time column.
        reporter: receives amounts; checked for cancellation.
    """

    def __init__(
        self,
        stored: DataFrame,
        recomputed: DataFrame,
        system: Sequence[str],
        event_time: str,
        reporter: Reporter,
    ) -> None:
        self._stored = stored
        self._recomputed = recomputed
        self._offset = identifier(system[0])
        self._event_time = identifier(event_time)
        self._reporter = reporter
        self._names = [name for name in stored.columns if name not in system]
        kinds = {field.name: field.dataType.typeName() for field in stored.schema}
        self._floats = [name for name in self._names if kinds[name] in ("double", "float")]
        self._others = [name for name in self._names if name not in self._floats]

    def run(self, block: str, until: Timestamp | None, late: int) -> Recomputed:
        """Return the report. Rows after ``until`` may be missing."""
        with translate_errors(self._reporter):
            rows = self._stored.count()
            differing = self._differing_rows(until).persist()
            try:
                by_kind = run_sql("SELECT kind, count(*) AS n FROM odf_rows GROUP BY kind", rows=differing)
                counts = {row["kind"]: row["n"] for row in by_kind.collect()}
                total, rounded = sum(counts.values()), 0
                differing_rows = self._read(differing.limit(_MAX_PAIRED)) if total else []
            finally:
                differing.unpersist()
        if self._floats and total <= _MAX_PAIRED:
            differing_rows = _without_rounding(differing_rows, len(self._floats))
            rounded = (total - len(differing_rows)) // 2
        missing, extra = (counts.get(kind, 0) - rounded for kind in ("missing", "extra"))
        differences = [self._difference(row) for row in differing_rows[:_MAX_DIFFERENCES]]
        complete = None if until is None else str(until)
        return Recomputed(block, rows, missing, extra, differences, rounded, complete, late)

    def _differing_rows(self, until: Timestamp | None) -> DataFrame:
        """Return ``kind``, ``place`` (an offset), the values as text, and the floating point numbers."""
        quoted = [identifier(name) for name in self._names]
        groups = comparable(quoted, self._stored.schema)
        columns = ", ".join(quoted)
        texts = [
            f"CAST(first({identifier(name)}) AS STRING) AS t{at}" for at, name in enumerate(self._others)
        ]
        numbers = [f"CAST(first({identifier(name)}) AS DOUBLE) AS n{at}"
                   for at, name in enumerate(self._floats)]  # fmt: skip
        selected = ", ".join(
            [
                "sum(side) AS net",
                "max(place) AS place",
                f"first({self._event_time}) AS time",
                *texts,
                *numbers,
            ]
        )
        complete = "" if until is None else f"AND (net < 0 OR time <= timestamp_millis({until.ms}L))"
        return run_sql(
            f"""
            SELECT * EXCEPT (net, time), IF(net > 0, 'missing', 'extra') AS kind FROM (
                SELECT {selected} FROM (
                    SELECT {columns}, 1 AS side, CAST(NULL AS BIGINT) AS place FROM odf_recomputed
                    UNION ALL
                    SELECT {columns}, -1, CAST({self._offset} AS BIGINT) FROM odf_stored
                ) GROUP BY {", ".join(groups)}
            ) LATERAL VIEW explode(sequence(1L, abs(net))) AS copy WHERE net <> 0 {complete}
            """,
            recomputed=self._recomputed, stored=self._stored,
        )  # fmt: skip

    def _read(self, differing: DataFrame) -> list[dict[str, Any]]:
        texts = [f"t{at}" for at in range(len(self._others))]
        ordered = differing.sort("kind", "place", *texts)
        return [row for batch in arrow_batches(ordered, self._reporter)[1] for row in python_rows(batch)]

    def _difference(self, row: Mapping[str, Any]) -> RowDifference:
        values = {name: row[f"t{at}"] for at, name in enumerate(self._others)}
        values |= {name: None if row[f"n{at}"] is None else repr(row[f"n{at}"])
                   for at, name in enumerate(self._floats)}  # fmt: skip
        return RowDifference(row["kind"], {name: values[name] for name in self._names}, row["place"])


def _without_rounding(rows: Sequence[dict[str, Any]], floats: int) -> list[dict[str, Any]]:
    """Return rows without the pairs that differ only in the last digits of floating point numbers."""
    numbers = [f"n{at}" for at in range(floats)]
    groups = defaultdict[tuple[Any, ...], dict[str, list[dict[str, Any]]]](lambda: defaultdict(list))
    for row in rows:
        key = tuple(value for name, value in row.items() if name[0] == "t")
        groups[key][row["kind"]].append(row)
    paired: set[int] = set()
    for group in groups.values():
        candidates = list(group["extra"])
        for row in group["missing"]:
            match = next(
                (
                    candidate
                    for candidate in candidates
                    if all(_is_close(row[name], candidate[name]) for name in numbers)
                ),
                None,
            )
            if match is not None:
                candidates.remove(match)
                paired |= {id(row), id(match)}
    return [row for row in rows if id(row) not in paired]


def _is_close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_RELATIVE) or (
        math.isnan(one) and math.isnan(other)
    )
