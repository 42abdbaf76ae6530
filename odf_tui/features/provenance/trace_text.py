"""Texts of a trace: lines and details of its tree; the trace as JSON and Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from odf_engine.api import OffsetRange, ProducingTransaction, RowSource, TracedInput, TraceStep, row_count
from odf_engine.api.text import count_of, format_count, format_zoned_time, printable
from odf_tui.features.provenance.trace_tree import (
    UNKNOWN_REASON,
    EarlierGroup,
    Group,
    Heading,
    InputGroup,
    NoteNode,
    SourceNode,
    TracedQuery,
    TracedRows,
    TraceLine,
    TraceNode,
    TraceTree,
    TransactionNode,
)
from odf_tui.text.format import NULL, Span, ellipsize_middle
from odf_tui.text.graphviz import trace_to_dot
from odf_tui.text.highlight import sql_spans
from odf_tui.text.row_text import Record
from odf_tui.text.row_trace import line_texts, range_text, ranges_text

_MAX_LINES: Final = 5000


def complete_trace(tree: TraceTree) -> TraceStep | None:
    """Return all results of a tree as one trace, or None without results."""
    traced = tree.top.traced.get(0)
    return None if traced is None or traced.step is None else _complete_step(traced, traced.step)


def _complete_step(traced: TracedRows, step: TraceStep) -> TraceStep:
    """Return a step with the results for its inputs."""
    groups = [node for node in traced.children if isinstance(node, InputGroup)]
    return replace(step, feeds=[feed for group in groups for feed in _complete_input(group)])


def _complete_input(group: InputGroup) -> list[TracedInput]:
    """Return an input with its results. Rows that were traced alone become separate inputs."""
    feed, all_rows = group.feed, group.all_rows
    if all_rows is not None and all_rows.step is not None:
        return [replace(feed, step=_complete_step(all_rows, all_rows.step))]
    newest_first = sorted(group.traced.items())
    known = [(rows, rows.step) for _, rows in reversed(newest_first) if rows.step is not None]
    if not known:
        return [replace(feed, step=None)]
    feeds = [replace(feed, runs=rows.runs, rows=1, step=_complete_step(rows, step)) for rows, step in known]
    rest = _ranges_without(feed.runs, [rows.runs[0][0] for rows, _ in known])
    return [*feeds, replace(feed, runs=rest, rows=row_count(rest), step=None)] if rest else feeds


def _ranges_without(runs: Sequence[OffsetRange], offsets: Sequence[int]) -> list[OffsetRange]:
    """Return ranges without some offsets, which are in ascending order."""
    offset_ranges: list[OffsetRange] = []
    for first, last in runs:
        start = first
        for offset in offsets:
            if start <= offset <= last:
                offset_ranges += [(start, offset - 1)] if offset > start else []
                start = offset + 1
        offset_ranges += [(start, last)] if start <= last else []
    return offset_ranges


def trace_json(step: TraceStep) -> str:
    """Format a trace as JSON, like ``odf provenance --json``."""
    return msgspec.json.format(msgspec.json.encode(step), indent=2).decode() + "\n"


def plain_text(lines: Iterable[Sequence[Span]]) -> str:
    """Return lines of spans as text; beyond the limit an ellipsis follows."""
    texts: list[str] = []
    for spans in lines:
        if len(texts) == _MAX_LINES:
            texts.append("…")
            break
        texts.append("".join(text for text, _ in spans).rstrip())
    return "\n".join(texts) + "\n"


def trace_dot(step: TraceStep) -> str:
    """Format a trace as a Graphviz document, like ``odf provenance --dot``. Runs in a thread."""
    return trace_to_dot(step)


Lines = list[list[Span]]
LABEL: Final = 8
_NAME_WIDTH: Final = 12
_RUNS_SHOWN: Final = 3
_COLUMNS_SHOWN: Final = 2
_RUNS_LISTED: Final = 200
_MAX_NAME_WIDTH: Final = 40
_MIN_SOURCE_WIDTH: Final = 12
_TRANSFORMATIONS: Final = {
    "identity": "copied",
    "transformation": "computed",
    "aggregation": "aggregated",
    "unknown": "possibly",
}


def rows_text(number: int) -> str:
    """Format a number of rows."""
    return count_of(number, "row")


def exactness_text(step: TraceStep) -> str:
    """Return whether a step found exactly the contributing rows."""
    return "exact" if step.exact else "not exact"


def node_spans(node: TraceNode, room: int = 1000) -> list[Span]:
    """Return the spans of a node other than a row, in about ``room`` cells."""
    match node:
        case TracedQuery():
            alias = [(f"{printable(node.alias)}: ", "name")] if node.alias else []
            return [label("query"), *alias, (printable(node.text), "")]
        case NoteNode():
            return [label(node.label), (printable(node.text), node.style)]
        case TransactionNode():
            return _transaction_spans(node)
        case SourceNode():
            return _source_spans(node, room)
        case InputGroup():
            return _input_spans(node)
        case EarlierGroup():
            words = f"{rows_text(len(node.offsets))} retracted or corrected here"
            return [label("earlier"), (words, ""), (f" · {ranges_text(node.offsets.runs)}", "muted")]
        case TracedRows():
            return [label("all"), (f"{rows_text(len(node.group.offsets))} at once", "")]
        case _:
            return []


def label(text: str) -> Span:
    """Return the label of a line."""
    return (f"{text:<{LABEL}}", "muted")


def _transaction_spans(node: TransactionNode) -> list[Span]:
    transaction, step = node.made, node.step
    spans: list[Span] = [label("made by"), (f"block {format_count(transaction.sequence_number)}", "title")]
    spans.append((f" · {format_zoned_time(transaction.system_time)}", ""))
    if transaction.engine:
        spans.append((f" · {printable(transaction.engine)}", "muted"))
    if step.feeds:
        spans += [(" · ", "muted"), (exactness_text(step), "good" if step.exact else "warn")]
    return spans


def _source_spans(node: SourceNode, room: int) -> list[Span]:
    source = node.source
    number = next(
        (transaction.sequence_number for transaction in node.step.made if transaction.block == source.block),
        None,
    )
    spans: list[Span] = [
        label("source"),
        (f"block {format_count(number)}" if number is not None else "", "title"),
    ]
    spans.append((f"{' · ' if number is not None else ''}{format_zoned_time(source.ingested)} · ", ""))
    left = room - sum(len(text) for text, _ in spans)
    return [
        *spans,
        (ellipsize_middle(printable(source.place), max(left, _MIN_SOURCE_WIDTH)) or _pushed(source), "name"),
    ]


def _pushed(source: RowSource) -> str:
    if source.kind == "push":
        return f"pushed to {printable(source.name)}" if source.name else "pushed"
    return "unknown source"


def _input_spans(node: InputGroup) -> list[Span]:
    feed = node.feed
    spans: list[Span] = [label("from"), (printable(feed.name), "name")]
    if not feed.name.endswith(feed.alias):
        spans.append((f" as {printable(feed.alias)}", "muted"))
    if not feed.rows:
        return [*spans, (" · no rows", "muted")]
    spans.append((f" · {rows_text(feed.rows)}", ""))
    for name, how in feed.columns[:_COLUMNS_SHOWN]:
        spans += [
            (" · ", "muted"),
            (printable(name), "lineage"),
            (f" {_TRANSFORMATIONS.get(how, printable(how))}", ""),
        ]
    spans.append((f" · {ranges_text(feed.runs)}", "muted"))
    if feed.missing:
        spans.append((" · missing", "warn"))
    return spans


def traced_column(node: TraceNode) -> str | None:
    """Return the column whose value is traced at a node, or None for complete rows."""
    parent: TraceNode | None = node
    while parent is not None and not isinstance(parent, TracedRows):
        parent = parent.parent
    return None if parent is None else parent.group.column


def detail_lines(line: TraceLine, record: Record | None) -> Lines:
    """Return the details of a line. ``record`` is its row, once it was read."""
    node = line.node
    if isinstance(node, Group) and line.row >= 0:
        return row_lines(node, line.row, record)
    match node:
        case TransactionNode():
            return transaction_lines(node.made, node.step, traced_column(node))
        case SourceNode():
            return source_lines(node.source)
        case InputGroup():
            return input_lines(node)
        case Heading():
            return column_lines(node)
        case EarlierGroup():
            return [_title(f"Earlier rows of {node.name}"), [], *_runs(node.offsets.runs)]
        case TracedQuery():
            step = node.parent.step if isinstance(node.parent, TransactionNode) else None
            return query_lines([(node.alias, node.query)], highlighted_columns(step, traced_column(node)))
        case NoteNode():
            return [_title(node.label.capitalize()), [], [("   ", ""), (printable(node.text), node.style)]]
        case TracedRows():
            return _traced_lines(node)
        case _:
            return []


def row_lines(group: Group, row: int, record: Record | None) -> Lines:
    """Return the details of a row: its values, and its step."""
    offset = group.offsets.at(row)
    lines: Lines = [_title(f"Row {format_count(offset)} of {group.name}"), []]
    if record is None:
        lines.append([("   ", ""), (printable(group.problem) or "…", "bad" if group.problem else "muted")])
    for value in record.values if record is not None else ():
        marked = value.name in group.columns
        for at, text in enumerate(value.lines if value.text is not None else [NULL]):
            style = "lineage" if marked else "muted" if value.text is None else ""
            lines.append([_fact("" if at else value.name, marked=marked), (printable(text), style)])
    traced = group.traced.get(row)
    if traced is not None and traced.step is not None:
        lines += [[], *_step_lines(traced.step, group.column)]
    return lines


def _traced_lines(traced: TracedRows) -> Lines:
    lines: Lines = [_title(f"{rows_text(len(traced.group.offsets))} of {traced.group.name} at once"), []]
    if traced.step is None:
        return [*lines, [("   ", ""), ("⏎ traces all rows in one job", "muted")]]
    return lines + _step_lines(traced.step, traced.group.column)


def _step_lines(step: TraceStep, column: str | None) -> Lines:
    """Return a summary of a step and its queries."""
    lines: Lines = [_title("Provenance")]
    for transaction in step.made[:_RUNS_SHOWN]:
        words = (
            f"block {format_count(transaction.sequence_number)}, {format_zoned_time(transaction.system_time)}"
        )
        lines.append([_fact("made by"), (words, "")])
    for feed in step.feeds:
        lines.append([_fact("from"), (printable(feed.name), "name"), (f" · {rows_text(feed.rows)}", "")])
    for source in step.sources[:_RUNS_SHOWN]:
        lines.append([_fact("source"), (printable(source.place) or _pushed(source), "")])
    if not step.exact:
        lines.append([_fact("not exact"), (f"because {printable(step.reason or UNKNOWN_REASON)}", "warn")])
    if step.problem:
        lines.append([_fact("problem"), (printable(step.problem), "warn")])
    queries = {tuple(producer.query): producer.query for producer in step.made if producer.query}
    for query in queries.values():
        lines += [[], *query_lines(query, highlighted_columns(step, column))]
    return lines


def transaction_lines(transaction: ProducingTransaction, step: TraceStep, column: str | None) -> Lines:
    """Return the details of a transaction and its query."""
    lines: Lines = [_title(f"Block {format_count(transaction.sequence_number)} of {step.name}"), []]
    lines.append([_fact("hash"), (transaction.block, "muted")])
    lines.append([_fact("when"), (printable(transaction.system_time), "")])
    if transaction.engine:
        lines.append([_fact("engine"), (printable(transaction.engine), "")])
    lines.append(
        [_fact("rows"), (f"{rows_text(row_count(transaction.runs))} · {ranges_text(transaction.runs)}", "")]
    )
    if step.feeds:
        words = "exactly these rows" if step.exact else "all rows that may have contributed"
        lines.append([_fact("inputs"), (words, "good" if step.exact else "warn")])
    if not step.exact:
        lines.append([_fact("because"), (printable(step.reason or UNKNOWN_REASON), "warn")])
    lines += [[_fact("" if at else "how"), (printable(how), "")] for at, how in enumerate(step.how)]
    return lines + (
        [[], *query_lines(transaction.query, highlighted_columns(step, column))] if transaction.query else []
    )


def highlighted_columns(step: TraceStep | None, column: str | None) -> set[str]:
    """Return the columns to highlight in a query: the traced one and its inputs."""
    feeds = step.feeds if step is not None else ()
    return {name for feed in feeds for name, _ in feed.columns} | ({column} if column else set())


def query_lines(query: Sequence[tuple[str, str]], marked: Iterable[str]) -> Lines:
    """Return the steps of a query with highlighted columns."""
    lines: Lines = []
    for alias, text in query:
        lines += [[]] if lines else []
        lines.append(_title(f"Query of {alias}" if alias else "Query"))
        lines += [[("   ", ""), *spans] for spans in highlight_names(sql_spans(text.strip("\n")), marked)]
    return lines


def highlight_names(lines: Lines, names: Iterable[str]) -> Lines:
    """Highlight names in the lines of a query."""
    selected = sorted((name for name in names if name), key=len, reverse=True)
    if not selected:
        return lines
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, selected))})(?!\w)", re.IGNORECASE)
    return [[part for span in line for part in _split(span, pattern)] for line in lines]


def _split(span: Span, pattern: re.Pattern[str]) -> list[Span]:
    text, style = span
    if style == "muted":  # a comment
        return [span]
    parts = pattern.split(text)
    return [(part, "lineage" if at % 2 else style) for at, part in enumerate(parts) if part]


def source_lines(source: RowSource) -> Lines:
    """Return the details of the source of rows."""
    lines: Lines = [_title("Source"), []]
    lines.append([_fact("from"), (printable(source.place) or _pushed(source), "title")])
    lines.append([_fact("kind"), (source.kind + (f" · {printable(source.name)}" if source.name else ""), "")])
    lines.append([_fact("ingested"), (printable(source.ingested), "")])
    lines.append([_fact("block"), (source.block, "muted")])
    lines += [[_fact("line"), (printable(text), "")] for text in line_texts(source)]
    if source.unlocated:
        lines.append([_fact("line"), (f"unknown: {printable(source.unlocated)}", "muted")])
    if source.state:
        lines.append([_fact("version"), (printable(source.state), "")])
    lines += [[_fact("" if at else "steps"), (printable(text), "")] for at, text in enumerate(source.steps)]
    return [*lines, [], _title(rows_text(row_count(source.runs))), *_runs(source.runs)]


def input_lines(node: InputGroup) -> Lines:
    """Return the details of an input."""
    feed = node.feed
    lines: Lines = [_title(f"{rows_text(feed.rows)} of {feed.name}"), []]
    lines.append([_fact("id"), (printable(feed.dataset), "muted")])
    lines.append([_fact("alias"), (printable(feed.alias), "")])
    if feed.missing:
        known = feed.step.problem if feed.step is not None else None
        lines.append([_fact("problem"), (printable(known or "the dataset is not in this workspace"), "warn")])
        lines += [
            [_fact("" if at else "next"), (text, "good")]
            for at, text in enumerate(missing_input_lines(feed.name))
        ]
    for at, (name, how) in enumerate(feed.columns):
        words: list[Span] = [
            (printable(name), "lineage"),
            (f"  {_TRANSFORMATIONS.get(how, printable(how))}", "muted"),
        ]
        lines.append([_fact("" if at else "columns"), *words])
    if len(feed.columns) > 1:
        lines.append([_fact("upstream"), ("entire rows are traced: the value has several columns", "")])
    return [*lines, [], _title("Offsets"), *_runs(feed.runs)]


def missing_input_lines(name: str) -> list[str]:
    """Return the ways to get an input that is not in the workspace."""
    return [
        "press I on the workbench to import it from a repository",
        f"or run odf pull URL --as {printable(name)}",
        "then press w on the row again to continue the trace",
    ]


def column_lines(heading: Heading) -> Lines:
    """Return the columns of a group, and how they contribute to the traced value."""
    group = heading.parent
    assert isinstance(group, Group)
    lines: Lines = [_title(f"Columns of {group.name}"), []]
    reader = group.reader
    for name in reader.names if reader is not None else ():
        how = group.columns.get(name)
        words = "" if how is None else _TRANSFORMATIONS.get(how, printable(how)) or "traced column"
        lines.append([_fact(name, marked=how is not None), (words, "lineage" if how is not None else "")])
    return lines


def _runs(runs: Sequence[OffsetRange]) -> Lines:
    lines: Lines = [[("   ", ""), (range_text(run), "")] for run in runs[:_RUNS_LISTED]]
    more = len(runs) - _RUNS_LISTED
    return [*lines, [("   ", ""), (f"… and {format_count(more)} more", "muted")]] if more > 0 else lines


def _title(text: str) -> list[Span]:
    return [(f" {printable(text)}", "title")]


def _fact(name: str, *, marked: bool = False) -> Span:
    shown = printable(name)
    if len(shown) > _MAX_NAME_WIDTH:
        shown = shown[: _MAX_NAME_WIDTH - 1] + "…"
    return (f"   {shown:<{_NAME_WIDTH}}  ", "lineage" if marked else "muted")
