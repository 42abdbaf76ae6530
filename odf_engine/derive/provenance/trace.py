"""Traces rows through all steps down to root datasets and their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.state import ChainState, parse_column_names
from odf_engine.data.schema_enforcement import match_columns
from odf_engine.derive.plan import past_input
from odf_engine.derive.provenance.model import (
    OffsetRange,
    TracedInput,
    TraceStep,
    query_texts,
    row_count,
)
from odf_engine.derive.provenance.offset_set import normalize_ranges
from odf_engine.derive.provenance.root_origins import (
    ChangelogHistory,
    describe_operations,
    join_words,
    root_origin,
)
from odf_engine.derive.provenance.source_positions import locate_sources
from odf_engine.engines.engine_router import engines_for
from odf_engine.errors import Cancelled, InvalidSchema, NotFound, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.model import DatasetKind, SqlQueryStep
from odf_engine.sql.lineage_model import ANY_COLUMN, ColumnLineage
from odf_engine.sql.query_lineage import trace_columns
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.column_lineage import dataset_lineage
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.derive.provenance import step as transaction_step
    from odf_engine.derive.provenance import trace_check
    from odf_engine.derive.provenance.step import TransactionTrace
    from odf_engine.spark.runtime.session import SparkRuntime
else:  # these import PySpark, and are first used after Spark has started
    transaction_step = LazyModule("odf_engine.derive.provenance.step")
    trace_check = LazyModule("odf_engine.derive.provenance.trace_check")


TracedColumns = tuple[str, ...] | None
"""Column names, or None for entire rows."""


class CellLineage:
    """The input columns of traced columns.

    Args:
        workspace: the workspace of the inputs.
        entry: a derivative dataset.
        steps: transactions of its rows.
        columns_traced: the traced columns.

    Attributes:
        operations: descriptions of the column lineage.
    """

    def __init__(
        self,
        workspace: Workspace,
        entry: DatasetEntry,
        steps: Sequence[TransactionTrace],
        columns_traced: TracedColumns,
    ) -> None:
        state = entry.dataset.state()
        vocab = state.vocabulary
        system_columns = {vocab.offset_column, vocab.system_time_column}
        # System columns depend on the entire row.
        self._is_entire_row = columns_traced is None or bool(system_columns.intersection(columns_traced))
        self._found: dict[str, dict[tuple[str, str], None]] = {}
        self.operations: list[str] = []
        if columns_traced is None or self._is_entire_row:
            return
        names = parse_column_names(state.schema, state.odf_schema) or []
        outputs = [name for name in names if name not in system_columns]
        current = None if state.transform is None else query_texts(state.transform.transform.queries or ())
        queries = {tuple(step.made.query): step for step in steps}
        for query, lineage in queries.items():
            if list(query) == current:
                columns = dataset_lineage(workspace, entry)
            else:  # a past query
                columns = _past_query_lineage(workspace, query, lineage, outputs)
            for name in columns_traced:
                for source in columns.outputs.get(name, columns.outputs.get(ANY_COLUMN, [])):
                    sources = self._found.setdefault(source.input.casefold(), {})
                    sources[source.column, source.how] = None
            if columns.problem is not None:
                self.operations.append(f"unknown source columns: {columns.problem}")
        self._describe(columns_traced, steps)

    def contributes(self, alias: str) -> bool:
        """Return whether values of an input contribute to the traced columns."""
        return self._is_entire_row or not self._found or alias.casefold() in self._found

    def columns_of(self, alias: str) -> list[tuple[str, str]]:
        """Return the contributing columns of an input with their transformations, or [] for entire rows."""
        return list(self._found.get(alias.casefold(), ()))

    def _describe(self, columns_traced: tuple[str, ...], steps: Sequence[TransactionTrace]) -> None:
        names = join_words(columns_traced)
        if not self._found:
            self.operations.append(
                f"no input column contributes to {names}: it depends only on which rows exist"
            )
            return
        inputs = dict.fromkeys(alias for step in steps for alias, _, runs in step.feeds if runs)
        for alias in inputs:
            if not self.contributes(alias):
                self.operations.append(
                    f"no value of {names} comes from {alias}, whose rows decide which rows the result has"
                )


def root_column_sources(workspace: Workspace, entry: DatasetEntry, columns: TracedColumns) -> list[str]:
    """Describe the sources of columns of a root dataset in the queries of its ingest."""
    lineage = dataset_lineage(workspace, entry)
    lines: list[str] = []
    for name in columns or ():
        sources = lineage.outputs.get(name, ())
        if sources and all(source.column == name and source.how == "identity" for source in sources):
            lines.append(f"{name} is unchanged since it was read")
        elif sources:
            read = join_words(list(dict.fromkeys(f"{source.column} ({source.how})" for source in sources)))
            lines.append(f"{name} is derived from {read} as read")
    return lines


def _past_query_lineage(
    workspace: Workspace,
    query: Sequence[tuple[str, str]],
    step: TransactionTrace,
    outputs: Sequence[str],
) -> ColumnLineage:
    inputs: dict[str, list[str] | None] = {}
    times: dict[str, str] = {}
    for alias, dataset, _ in step.feeds:
        try:
            state = workspace.resolve(dataset).dataset.state()
        except OdfError:
            inputs[alias] = None
            continue
        inputs[alias] = parse_column_names(state.schema, state.odf_schema)
        times[alias] = state.vocabulary.event_time_column
    queries = [SqlQueryStep(alias=alias or None, query=text) for alias, text in query]
    return trace_columns(queries, inputs, outputs=outputs, times=times)


_MAX_REASONS: Final = 3


class Tracer:
    """Traces rows of datasets.

    Args:
        workspace: the workspace of the datasets.
        spark: starts Spark if a query must run again; not needed for rows of roots.
        reporter: receives phases and amounts; checked for cancellation.
    """

    def __init__(
        self, workspace: Workspace, spark: Callable[[Reporter], SparkRuntime], reporter: Reporter
    ) -> None:
        self._workspace = workspace
        self._spark = spark
        self._reporter = reporter
        self._steps: dict[tuple[str, str, tuple[OffsetRange, ...], TracedColumns, int | None], TraceStep] = {}
        self._traces: dict[tuple[str, str, tuple[OffsetRange, ...]], list[TransactionTrace]] = {}

    def trace(
        self,
        entry: DatasetEntry,
        runs: Sequence[OffsetRange],
        column: str | None = None,
        depth: int | None = None,
    ) -> TraceStep:
        """Trace rows.

        Args:
            entry: the dataset.
            runs: offset ranges of its rows, both ends inclusive.
            column: column to trace; entire rows by default.
            depth: maximum number of datasets upstream; unlimited by default.

        Raises:
            UsageError: the rows or the column do not exist.
            OdfError: the chain of the dataset or one of its slices cannot be read.
            Cancelled: the job was cancelled.
        """
        if depth is not None and depth < 1:
            raise UsageError("invalid depth: must be at least 1", hint="use --depth 1, or omit the option")
        state = entry.dataset.state()
        ranges = check_rows(entry, state, runs)
        wanted: TracedColumns = None if column is None else (check_column(entry, state, column),)
        return self._step(entry, ranges, wanted, depth)

    def check_newest_step(self, entry: DatasetEntry, step: TraceStep) -> list[str]:
        """Check the first step of a trace (:func:`odf_engine.derive.provenance.trace_check.check_trace`).

        Args:
            entry: the traced dataset.
            step: the result of :meth:`trace`.

        Raises:
            Cancelled: the job was cancelled.
        """
        traces = self._traces.get((step.dataset, step.branch, tuple(step.runs)))
        if traces is None:
            return ["not checked: the rows of a root dataset come from a source, not from a query"]
        spark = self._spark(self._reporter)
        self._reporter.phase("check")
        with engines_for(self._workspace, entry, lambda: spark) as engine:
            return trace_check.check_trace(self._workspace, entry, traces, engine, self._reporter)

    def _step(
        self, entry: DatasetEntry, runs: list[OffsetRange], wanted: TracedColumns, depth: int | None
    ) -> TraceStep:
        key = str(entry.id), entry.branch, tuple(runs), wanted, depth
        if (step := self._steps.get(key)) is None:
            self._reporter.phase("trace")
            self._reporter.log(f"{entry.alias}: {count_of(row_count(runs), 'row')}")
            step = TraceStep(
                str(entry.id), str(entry.alias), "root", runs, row_count(runs), branch=entry.branch
            )
            if entry.dataset.state().kind is DatasetKind.Root:
                step = self._trace_root(entry, step, wanted)
            else:
                step = self._trace_derivative(entry, step, wanted, depth)
            self._steps[key] = step
        return step

    def _trace_root(self, entry: DatasetEntry, step: TraceStep, wanted: TracedColumns) -> TraceStep:
        origin = root_origin(entry.dataset, step.runs, self._reporter)
        return replace(
            step,
            made=origin.transactions,
            how=[*origin.operations, *root_column_sources(self._workspace, entry, wanted)],
            sources=locate_sources(self._workspace, entry, origin, self._reporter),
            earlier=origin.superseded,
        )

    def _trace_derivative(
        self, entry: DatasetEntry, step: TraceStep, wanted: TracedColumns, depth: int | None
    ) -> TraceStep:
        runs = step.runs
        changes = ChangelogHistory(entry.dataset, runs, self._reporter)
        spark = self._spark(self._reporter)
        traces = transaction_step.trace_back(self._workspace, entry, runs, spark, self._reporter)
        traces = transaction_step.refine_with_engine(self._workspace, entry, traces, spark, self._reporter)
        self._traces[str(entry.id), entry.branch, tuple(runs)] = traces
        cells = CellLineage(self._workspace, entry, traces, wanted)
        return replace(
            step,
            kind="derivative",
            made=[trace.made for trace in traces],
            how=[
                *describe_operations(changes.counts),
                *dict.fromkeys(line for trace in traces for line in trace.operations),
                *cells.operations,
            ],
            exact=all(trace.exact for trace in traces),
            reason=_join_reasons(traces),
            feeds=self._merge_inputs(entry, traces, cells, depth),
            earlier=changes.superseded_rows(()),
        )

    def _merge_inputs(
        self, derived: DatasetEntry, steps: Sequence[TransactionTrace], cells: CellLineage, depth: int | None
    ) -> list[TracedInput]:
        merged: dict[tuple[str, str], list[OffsetRange]] = {}
        for step in steps:
            for alias, dataset, runs in step.feeds:
                merged.setdefault((alias, dataset), []).extend(runs)
        blocks = _blocks_read(derived, steps)
        feeds: list[TracedInput] = []
        for (alias, dataset), runs in merged.items():
            if runs and cells.contributes(alias):
                find = partial(past_input, derived=derived, block=blocks.get(dataset))
                feeds.append(self._trace_input(alias, dataset, normalize_ranges(runs), cells, depth, find))
        return feeds

    def _trace_input(
        self,
        alias: str,
        dataset: str,
        runs: list[OffsetRange],
        cells: CellLineage,
        depth: int | None,
        find_chain: Callable[[DatasetEntry], DatasetEntry],
    ) -> TracedInput:
        columns = cells.columns_of(alias)
        try:
            entry = find_chain(self._workspace.resolve(dataset))
        except NotFound:
            problem = (
                f"{alias} is not in this workspace: pull it to continue (odf pull --from; its id is "
                f"{dataset})"
            )
            end = TraceStep(dataset, alias, "root", runs, row_count(runs), problem=problem)
            return TracedInput(alias, dataset, alias, runs, row_count(runs), columns, missing=True, step=end)
        deeper = None
        if depth is None or depth > 1:
            wanted = (
                None if not columns or ANY_COLUMN in dict(columns) else tuple(name for name, _ in columns)
            )
            deeper = self._trace_upstream(entry, runs, wanted, None if depth is None else depth - 1)
        return TracedInput(
            alias,
            dataset,
            str(entry.alias),
            runs,
            row_count(runs),
            columns,
            step=deeper,
            branch=entry.branch,
        )

    def _trace_upstream(
        self, entry: DatasetEntry, runs: list[OffsetRange], wanted: TracedColumns, depth: int | None
    ) -> TraceStep:
        """Return the step of an input; an error there ends this branch only."""
        problem: str | None = None
        kind = "root"
        try:
            state = entry.dataset.state()
            kind = "root" if state.kind is DatasetKind.Root else "derivative"
            last = -1 if state.last_offset is None else state.last_offset
            if runs[-1][1] <= last:
                return self._step(entry, runs, wanted, depth)
            problem = f"the local copy of {entry.alias} ends at offset {last}: pull it to continue"
        except Cancelled:
            raise
        except OdfError as error:
            self._reporter.raise_if_cancelled()
            problem = error.format_line
        return TraceStep(
            str(entry.id),
            str(entry.alias),
            kind,
            runs,
            row_count(runs),
            problem=problem,
            branch=entry.branch,
        )


def _blocks_read(entry: DatasetEntry, steps: Sequence[TransactionTrace]) -> dict[str, Multihash]:
    """Return the last block of each input that transactions have read."""
    blocks: dict[str, Multihash] = {}
    for step in steps:
        event: Any = entry.dataset.block(step.made.sequence_number).block.event
        blocks |= {str(item.dataset_id): item.last_block for item in event.query_inputs if item.last_block}
    return blocks


def _join_reasons(steps: Sequence[TransactionTrace]) -> str | None:
    """Return why steps are not exact."""
    reasons = list(dict.fromkeys(step.reason or "unknown reason" for step in steps if not step.exact))
    more = f"; and {len(reasons) - _MAX_REASONS} more reasons" if len(reasons) > _MAX_REASONS else ""
    return "; ".join(reasons[:_MAX_REASONS]) + more if reasons else None


def check_rows(entry: DatasetEntry, state: ChainState, runs: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the normalized offset ranges.

    Raises:
        UsageError: the ranges are empty or invalid.
    """
    last = state.last_offset
    if last is None:
        raise UsageError(f"{entry.alias} has no rows yet", hint="run odf pull or odf ingest")
    if not runs:
        raise UsageError("no rows specified", hint="enter an offset, or a range such as 10..20")
    for first, end in runs:
        if first > end:
            raise UsageError(f"invalid rows {first}..{end}: the first is after the last")
        if first < 0 or end > last:
            missing = first if first < 0 or first > last else end
            raise UsageError(
                f"{entry.alias} has no row {missing}: its offsets are 0 to {last}",
                hint=f"show the newest rows with their offsets: odf tail {entry.alias}",
            )
    return normalize_ranges(runs)


def check_column(entry: DatasetEntry, state: ChainState, column: str) -> str:
    """Return the name of a column as spelled in the dataset.

    Raises:
        UsageError: there is no such column.
    """
    names = parse_column_names(state.schema, state.odf_schema) or []
    try:
        (index,) = match_columns(names, [column])
    except InvalidSchema as error:
        raise UsageError(error.message) from None
    if index is not None:
        return names[index]
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(column.casefold(), folded, 1)
    hint = f"did you mean {folded[close[0]]}?" if close else f"columns: {', '.join(names)}"
    raise UsageError(f"{entry.alias} has no column '{column}'", hint=hint)
