"""Traces of rows as text: offsets, rows, and the outline of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final

import msgspec

from odf_engine.api import (
    OffsetRange,
    ProducingTransaction,
    RowSource,
    SourcePosition,
    TracedInput,
    TraceStep,
    branch_title,
    row_count,
    to_ranges,
)
from odf_engine.api.text import count_of, format_count, format_time, format_zoned_time, short_hash
from odf_tui.text.format import ellipsize_middle

_MAX_RANGES: Final = 6
_MAX_TRANSACTIONS: Final = 4
_MAX_SOURCES: Final = 8
_MAX_LINE: Final = 300
_MAX_POSITIONS: Final = 3
_MAX_VALUE: Final = 40
_RUNS_SHOWN: Final = 3


def runs_text(runs: Sequence[OffsetRange]) -> str:
    """Return offsets in the notation of ``odf provenance``, such as ``3, 5..9``.

    Of more than six ranges, the first six and the last offset are shown.
    """
    shown = ", ".join(
        str(first) if first == last else f"{first}..{last}" for first, last in runs[:_MAX_RANGES]
    )
    return f"{shown}, …{runs[-1][1]}" if len(runs) > _MAX_RANGES else shown


def rows_text(runs: Sequence[OffsetRange], rows: int | None) -> str:
    """Return rows by their offsets and their number, such as ``rows 3, 5..9 (6)``."""
    is_single = len(runs) == 1 and runs[0][0] == runs[0][1]
    count = "" if rows is None or is_single else f" ({format_count(rows)})"
    return f"{'row' if is_single else 'rows'} {runs_text(runs)}{count}"


def ranges_text(runs: Sequence[OffsetRange], max_ranges: int = _RUNS_SHOWN) -> str:
    """Return offsets as the screen shows them, such as ``120–126, 130 … 171``."""
    shown = ", ".join(range_text(run) for run in runs[:max_ranges])
    return shown if len(runs) <= max_ranges else f"{shown} … {range_text(runs[-1])}"


def range_text(run: OffsetRange) -> str:
    """Return a range of offsets as the screen shows it, such as ``1 200–1 260``."""
    first, last = run
    return format_count(first) if first == last else f"{format_count(first)}–{format_count(last)}"


def row_text(offset: int, values: Mapping[str, str]) -> str:
    """Return a row in a line: its offset, then names and values, long values shortened."""
    cells = [f"{name}={ellipsize_middle(value, _MAX_VALUE)}" for name, value in values.items()]
    return f"{offset}: {', '.join(cells)}"


def position_texts(positions: Iterable[SourcePosition]) -> list[str]:
    """Return the positions of rows in files as lines, such as ``row 5: w2.csv, line 4: north;1``."""
    rows: dict[str, list[int]] = {}
    for position in positions:
        name = PurePath(position.file).name
        place = f"{name}, {position.place}" if position.place else f"not in {name}"
        rows.setdefault(f"{place}: {position.text}" if position.text else place, []).append(position.offset)
    return [
        f"{rows_text(to_ranges(sorted(offsets)), len(offsets))}: {text}" for text, offsets in rows.items()
    ]


def line_texts(source: RowSource, max_positions: int | None = None) -> list[str]:
    """Return the positions of rows in files, and where rows are missing, as lines.

    A missing row is shown as ``row 7: not in w3.csv (2026-11-20)``.
    """
    lines = position_texts(source.positions[:max_positions])
    for retraction in source.retractions:
        verb = "not in" if retraction.is_absence else "retracted by"
        name = PurePath(retraction.place).name or "a push"
        rows = rows_text(retraction.runs, row_count(retraction.runs))
        lines.append(f"{rows}: {verb} {name} ({format_time(retraction.time)})")
    return lines


def source_positions(step: TraceStep) -> Iterator[SourcePosition]:
    """Yield the source positions of a step and its inputs, newest first within a dataset."""
    for source in reversed(step.sources):
        yield from (position for position in source.positions if position.place)
    for feed in step.feeds:
        if feed.step is not None:
            yield from source_positions(feed.step)


RowReader = Callable[[TraceStep, Sequence[str]], list[str]]
"""Returns the newest rows of a step as lines; of the named columns, or of all if there are no names."""


def cause_lines(step: TraceStep, read_rows: RowReader) -> Iterator[str]:
    """Yield the input rows behind a row, and their places in files, newest first, indented by level."""
    for feed in step.feeds:
        inner = feed.rows_step
        yield f"{branch_title(feed.name, feed.branch)}, {rows_text(feed.runs, feed.rows)}"
        yield from (f"  {line}" for line in read_rows(inner, [column for column, _ in feed.columns]))
        yield from (f"  {line}" for line in cause_lines(inner, read_rows))
    for source in reversed(step.sources):
        yield from line_texts(source, _MAX_POSITIONS)
        if not source.positions:
            runs, place = rows_text(source.runs, None), source.place or "pushed"
            why = f", unknown line: {source.unlocated}" if source.unlocated else ""
            yield f"{runs}: {place}, {format_zoned_time(source.ingested)}{why}"
    if step.problem:
        yield f"not traced further: {step.problem}"


class OutlineNode(msgspec.Struct):
    """A line of an outline, lines with its details, and the nodes below it. Texts may be untrusted."""

    head: str
    lines: list[str] = []
    below: list[OutlineNode] = []

    def indented_lines(self, depth: int = 0) -> Iterator[str]:
        """Yield all lines, indented by two blanks for each level."""
        yield "  " * depth + self.head
        for line in self.lines:
            yield "  " * (depth + 1) + line
        for node in self.below:
            yield from node.indented_lines(depth + 1)


def trace_outline(
    step: TraceStep, checked: Sequence[str], read_rows: RowReader, columns: Sequence[str] = ()
) -> OutlineNode:
    """Return the outline of a trace.

    Args:
        step: the trace.
        read_rows: reads the rows of its steps.
        columns: the traced column, or () for entire rows.
        checked: results of replaying the query with the traced rows only, and without them.
    """
    head = f"{branch_title(step.name, step.branch)}, {rows_text(step.runs, step.rows)}"
    node = _step_node(step, head, columns, read_rows)
    node.below += [OutlineNode(f"checked: {line}") for line in checked]
    return node


def _step_node(step: TraceStep, head: str, columns: Sequence[str], read_rows: RowReader) -> OutlineNode:
    node = OutlineNode(head, read_rows(step, columns))
    if step.problem:
        node.lines.append(f"not traced further: {step.problem}")
    for transaction in step.made[:_MAX_TRANSACTIONS] if step.kind == "derivative" else ():
        node.lines += _transaction_lines(transaction)
    if step.kind == "derivative" and (more := len(step.made) - _MAX_TRANSACTIONS) > 0:
        node.lines.append(f"and {count_of(more, 'more transaction')}")
    node.lines += [f"how: {line}" for line in step.how]
    if not step.exact:
        node.lines.append(f"not exact, all rows that may have contributed: {step.reason}")
    if step.earlier:
        node.lines.append(f"replaces the earlier {rows_text(step.earlier, None)}")
    node.below = [_input_node(feed, read_rows) for feed in step.feeds]
    if step.kind == "derivative" and not step.feeds and not step.problem:
        node.lines.append("no input rows")
    shown: list[list[str]] = []
    for source in step.sources[:_MAX_SOURCES]:
        node.below.append(_source_node(source, repeated=source.steps in shown))
        shown.append(source.steps)
    if (more := len(step.sources) - _MAX_SOURCES) > 0:
        node.below.append(
            OutlineNode(f"and {count_of(more, 'more block')} of the same kind, use --json for all")
        )
    return node


def _input_node(feed: TracedInput, read_rows: RowReader) -> OutlineNode:
    name = branch_title(feed.name, feed.branch)
    name = name if feed.name == feed.alias else f"{name} (as {feed.alias})"
    columns = ", ".join(f"{column} ({how})" for column, how in feed.columns)
    head = f"{name}, {rows_text(feed.runs, feed.rows)}" + (f": {columns}" if columns else "")
    names = list(dict.fromkeys(column for column, _ in feed.columns))
    return _step_node(feed.rows_step, head, names, read_rows)


def _source_node(source: RowSource, *, repeated: bool) -> OutlineNode:
    """Return the node of a source; ``repeated``: an earlier source has the same steps."""
    place = source.place or (f"push source {source.name}" if source.name else "unknown source")
    lines = [
        f"{rows_text(source.runs, None)} ingested at {format_zoned_time(source.ingested)}, "
        f"block {short_hash(source.block)}"
    ]
    lines += line_texts(source, _MAX_POSITIONS)
    lines += [f"unknown line: {source.unlocated}"] if source.unlocated else []
    lines += [source.state] if source.state else []
    steps = ["- the same steps as above"] if repeated else [f"- {line}" for line in source.steps]
    return OutlineNode(place, [*lines, *(ellipsize_middle(line, _MAX_LINE) for line in steps)])


def _transaction_lines(transaction: ProducingTransaction) -> list[str]:
    lines = [
        f"computed by {transaction.engine} at {format_zoned_time(transaction.system_time)}, "
        f"block {transaction.sequence_number} ({short_hash(transaction.block)})"
    ]
    for alias, query in transaction.query:
        name = f"{alias} = " if alias else ""
        lines.append(ellipsize_middle(f"query: {name}{' '.join(query.split())}", _MAX_LINE))
    return lines
