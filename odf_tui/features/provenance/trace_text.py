"""Lines and details of a trace in words; a trace as text, JSON and Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from odf_engine.provenance.model import (
    InputRows,
    OffsetRange,
    ProducingTransaction,
    RowSource,
    TraceStep,
    row_count,
)
from odf_tui.features.provenance.trace_tree import (
    EarlierGroup,
    Group,
    Heading,
    InputGroup,
    Line,
    Node,
    NoteNode,
    QueryStep,
    SourceNode,
    TracedRows,
    TraceTree,
    TransactionNode,
)
from odf_tui.text.format import NULL, Span, count_of, ellipsize_middle, format_count, format_time, printable
from odf_tui.text.highlight import sql_spans
from odf_tui.text.row_trace import range_text, ranges_text

if TYPE_CHECKING:
    from odf_tui.gateway.row_text import Record


_MAX_LINES: Final = 5000


def complete_trace(tree: TraceTree) -> TraceStep | None:
    """All that is known, as one trace; None: nothing is."""
    asked = tree.top.touched.get(0)
    return None if asked is None or asked.step is None else _whole(asked, asked.step)


def _whole(asked: TracedRows, step: TraceStep) -> TraceStep:
    """A step with what is known of the rows that fed it."""
    groups = [node for node in asked.under if isinstance(node, InputGroup)]
    return replace(step, feeds=[feed for group in groups for feed in _parts(group)])


def _parts(group: InputGroup) -> list[InputRows]:
    """A feed; in several, where some of its rows were traced by themselves."""
    feed, whole = group.feed, group.whole
    if whole is not None and whole.step is not None:
        return [replace(feed, step=_whole(whole, whole.step))]
    known = [(each, each.step) for _, each in sorted(group.touched.items()) if each.step is not None]
    if not known:
        return [replace(feed, step=None)]
    found = [replace(feed, runs=each.runs, rows=1, step=_whole(each, step)) for each, step in known]
    rest = _without(feed.runs, [each.runs[0][0] for each, _ in known])
    return [*found, replace(feed, runs=rest, rows=row_count(rest), step=None)] if rest else found


def _without(runs: Sequence[OffsetRange], offsets: Sequence[int]) -> list[OffsetRange]:
    """Runs without some offsets, which are in order."""
    found: list[OffsetRange] = []
    for first, last in runs:
        start = first
        for offset in offsets:
            if start <= offset <= last:
                found += [(start, offset - 1)] if offset > start else []
                start = offset + 1
        found += [(start, last)] if start <= last else []
    return found


def json_of(step: TraceStep) -> str:
    """A trace as JSON, as ``odf provenance --json`` has it."""
    return msgspec.json.format(msgspec.json.encode(step), indent=2).decode() + "\n"


def text_of(lines: Iterable[Sequence[Span]]) -> str:
    """The lines of a tree as text, as many as people read."""
    found: list[str] = []
    for spans in lines:
        if len(found) == _MAX_LINES:
            found.append("…")
            break
        found.append("".join(text for text, _ in spans).rstrip())
    return "\n".join(found) + "\n"


def dot_of(step: TraceStep) -> str:
    """A trace as a graph for Graphviz, as ``odf provenance --dot`` has it; in a thread."""
    from odf_tui.text.graphviz import trace_to_dot

    return trace_to_dot(step)


Text = list[list[Span]]
LABEL: Final = 8
_NAME: Final = 12
_RUNS_SHOWN: Final = 3
_COLUMNS_SHOWN: Final = 2
_RUNS_LISTED: Final = 200
_LONG: Final = 40
_PLACE: Final = 12
_HOW: Final = {
    "identity": "taken over",
    "transformation": "computed",
    "aggregation": "aggregated",
    "unknown": "perhaps",
}


def rows_words(number: int) -> str:
    """How many rows."""
    return count_of(number, "row")


def exact_words(step: TraceStep) -> str:
    """Whether it is these rows, or whether they are all that could have been."""
    return "exact" if step.exact else "larger set"


# --- Lines of the tree ---


def node_spans(node: Node, room: int = 1000) -> list[Span]:
    """What the line of a node says in about so many cells; for all but rows."""
    match node:
        case QueryStep():
            alias = [(f"{printable(node.alias)}: ", "name")] if node.alias else []
            return [label("query"), *alias, (printable(node.text), "")]
        case NoteNode():
            return [label(node.label), (printable(node.text), node.style)]
        case TransactionNode():
            return _made_spans(node)
        case SourceNode():
            return _source_spans(node, room)
        case InputGroup():
            return _feed_spans(node)
        case EarlierGroup():
            words = f"{rows_words(len(node.offsets))} that came before, taken back or replaced"
            return [label("earlier"), (words, ""), (f" · {ranges_text(node.offsets.runs)}", "muted")]
        case TracedRows():
            return [label("all"), (f"{rows_words(len(node.group.offsets))} at once", "")]
        case _:
            return []


def label(text: str) -> Span:
    """What a line is about."""
    return (f"{text:<{LABEL}}", "muted")


def _made_spans(node: TransactionNode) -> list[Span]:
    made, step = node.made, node.step
    spans: list[Span] = [label("made by"), (f"block {format_count(made.sequence_number)}", "title")]
    spans.append((f" · {format_time(made.system_time)}", ""))
    if made.engine:
        spans.append((f" · {printable(made.engine)}", "muted"))
    if step.feeds:
        spans += [(" · ", "muted"), (exact_words(step), "good" if step.exact else "warn")]
    return spans


def _source_spans(node: SourceNode, room: int) -> list[Span]:
    source = node.source
    number = next((made.sequence_number for made in node.step.made if made.block == source.block), None)
    spans: list[Span] = [
        label("source"),
        (f"block {format_count(number)}" if number is not None else "", "title"),
    ]
    spans.append((f"{' · ' if number is not None else ''}{format_time(source.ingested)} · ", ""))
    left = room - sum(len(text) for text, _ in spans)
    return [*spans, (ellipsize_middle(printable(source.place), max(left, _PLACE)) or _pushed(source), "name")]


def _pushed(source: RowSource) -> str:
    if source.kind == "push":
        return f"pushed to {printable(source.name)}" if source.name else "pushed"
    return "from somewhere that the chain does not name"


def _feed_spans(node: InputGroup) -> list[Span]:
    feed = node.feed
    spans: list[Span] = [label("from"), (printable(feed.name), "name")]
    if not feed.name.endswith(feed.alias):
        spans.append((f" as {printable(feed.alias)}", "muted"))
    if not feed.rows:
        return [*spans, (" · no rows", "muted")]
    spans.append((f" · {rows_words(feed.rows)}", ""))
    for name, how in feed.columns[:_COLUMNS_SHOWN]:
        spans += [(" · ", "muted"), (printable(name), "lineage"), (f" {_HOW.get(how, printable(how))}", "")]
    spans.append((f" · {ranges_text(feed.runs)}", "muted"))
    if feed.missing:
        spans.append((" · not here", "warn"))
    return spans


# --- All about one of them ---


def column_at(node: Node) -> str | None:
    """Whose value is traced where a node is; None: whole rows."""
    above: Node | None = node
    while above is not None and not isinstance(above, TracedRows):
        above = above.above
    return None if above is None else above.group.column


def line_detail(line: Line, record: Record | None) -> Text:
    """All about a line; ``record`` is its row, as soon as that was read."""
    node = line.node
    if isinstance(node, Group) and line.row >= 0:
        return row_lines(node, line.row, record)
    match node:
        case TransactionNode():
            return transaction_lines(node.made, node.step, column_at(node))
        case SourceNode():
            return source_lines(node.source)
        case InputGroup():
            return feed_lines(node)
        case Heading():
            return columns_lines(node)
        case EarlierGroup():
            return [_title(f"Earlier rows of {node.name}"), [], *_runs(node.offsets.runs)]
        case QueryStep():
            step = node.above.step if isinstance(node.above, TransactionNode) else None
            return query_lines([(node.alias, node.query)], marked_by(step, column_at(node)))
        case NoteNode():
            return [_title(node.label.capitalize()), [], [("   ", ""), (printable(node.text), node.style)]]
        case TracedRows():
            return _asked_lines(node)
        case _:
            return []


def row_lines(group: Group, row: int, record: Record | None) -> Text:
    """A row with its values, those that were asked for first to see."""
    offset = group.offsets.at(row)
    lines: Text = [_title(f"Row {format_count(offset)} of {group.name}"), []]
    if record is None:
        lines.append([("   ", ""), (printable(group.trouble) or "…", "bad" if group.trouble else "muted")])
    for value in record.values if record is not None else ():
        marked = value.name in group.columns
        for at, text in enumerate(value.lines if value.text is not None else [NULL]):
            style = "lineage" if marked else "muted" if value.text is None else ""
            lines.append([_fact("" if at else value.name, marked=marked), (printable(text), style)])
    asked = group.touched.get(row)
    if asked is not None and asked.step is not None:
        lines += [[], *_step_lines(asked.step, group.column)]
    return lines


def _asked_lines(asked: TracedRows) -> Text:
    lines: Text = [_title(f"{rows_words(len(asked.group.offsets))} of {asked.group.name} at once"), []]
    if asked.step is None:
        return [*lines, [("   ", ""), ("⏎ looks where all of them come from, in one go", "muted")]]
    return lines + _step_lines(asked.step, asked.group.column)


def _step_lines(step: TraceStep, column: str | None) -> Text:
    """In short where rows come from, and by which query."""
    lines: Text = [_title("Where from")]
    for made in step.made[:_RUNS_SHOWN]:
        words = f"block {format_count(made.sequence_number)}, {format_time(made.system_time)}"
        lines.append([_fact("made by"), (words, "")])
    for feed in step.feeds:
        lines.append([_fact("from"), (printable(feed.name), "name"), (f" · {rows_words(feed.rows)}", "")])
    for source in step.sources[:_RUNS_SHOWN]:
        lines.append([_fact("source"), (printable(source.place) or _pushed(source), "")])
    if not step.exact:
        lines.append(
            [_fact("larger set"), (f"because {printable(step.reason or 'nobody said why')}", "warn")]
        )
    if step.problem:
        lines.append([_fact("problem"), (printable(step.problem), "warn")])
    queries = {tuple(made.query): made.query for made in step.made if made.query}
    for query in queries.values():
        lines += [[], *query_lines(query, marked_by(step, column))]
    return lines


def transaction_lines(made: ProducingTransaction, step: TraceStep, column: str | None) -> Text:
    """A transaction with its query."""
    lines: Text = [_title(f"Block {format_count(made.sequence_number)} of {step.name}"), []]
    lines.append([_fact("hash"), (made.block, "muted")])
    lines.append([_fact("when"), (printable(made.system_time), "")])
    if made.engine:
        lines.append([_fact("engine"), (printable(made.engine), "")])
    lines.append([_fact("made"), (f"{rows_words(row_count(made.runs))} · {ranges_text(made.runs)}", "")])
    if step.feeds:
        words = "exactly these rows, and no others" if step.exact else "these rows, or some of them"
        lines.append([_fact("out of"), (words, "good" if step.exact else "warn")])
    if not step.exact:
        lines.append([_fact("because"), (printable(step.reason or "nobody said why"), "warn")])
    lines += [[_fact("" if at else "how"), (printable(how), "")] for at, how in enumerate(step.how)]
    return lines + ([[], *query_lines(made.query, marked_by(step, column))] if made.query else [])


def marked_by(step: TraceStep | None, column: str | None) -> set[str]:
    """The columns that stand out in a query: that which is traced, and those that made it."""
    feeds = step.feeds if step is not None else ()
    return {name for feed in feeds for name, _ in feed.columns} | ({column} if column else set())


def query_lines(query: Sequence[tuple[str, str]], marked: Iterable[str]) -> Text:
    """The steps of a query, with some columns that stand out."""
    lines: Text = []
    for alias, text in query:
        lines += [[]] if lines else []
        lines.append(_title(f"Query of {alias}" if alias else "Query"))
        lines += [[("   ", ""), *spans] for spans in highlighted(sql_spans(text.strip("\n")), marked)]
    return lines


def highlighted(lines: Text, names: Iterable[str]) -> Text:
    """Lines of a query in which some names stand out."""
    wanted = sorted((name for name in names if name), key=len, reverse=True)
    if not wanted:
        return lines
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, wanted))})(?!\w)", re.IGNORECASE)
    return [[part for span in line for part in _split(span, pattern)] for line in lines]


def _split(span: Span, pattern: re.Pattern[str]) -> list[Span]:
    text, style = span
    if style == "muted":  # a comment
        return [span]
    parts = pattern.split(text)
    return [(part, "lineage" if at % 2 else style) for at, part in enumerate(parts) if part]


def source_lines(source: RowSource) -> Text:
    """Where rows came into the workspace."""
    lines: Text = [_title("Source"), []]
    lines.append([_fact("from"), (printable(source.place) or _pushed(source), "title")])
    lines.append([_fact("kind"), (source.kind + (f" · {printable(source.name)}" if source.name else ""), "")])
    lines.append([_fact("taken in"), (printable(source.ingested), "")])
    lines.append([_fact("block"), (source.block, "muted")])
    if source.state:
        lines.append([_fact("version"), (printable(source.state), "")])
    lines += [
        [_fact("" if at else "done since"), (printable(each), "")] for at, each in enumerate(source.steps)
    ]
    return [*lines, [], _title(rows_words(row_count(source.runs))), *_runs(source.runs)]


def feed_lines(node: InputGroup) -> Text:
    """Rows of an input."""
    feed = node.feed
    lines: Text = [_title(f"{rows_words(feed.rows)} of {feed.name}"), []]
    lines.append([_fact("id"), (printable(feed.dataset), "muted")])
    lines.append([_fact("the query"), (f"calls it {printable(feed.alias)}", "")])
    if feed.missing:
        known = feed.step.problem if feed.step is not None else None
        lines.append([_fact("problem"), (printable(known or "it is not in this workspace"), "warn")])
        lines += [
            [_fact("" if at else "next"), (text, "good")]
            for at, text in enumerate(missing_input_lines(feed.name))
        ]
    for at, (name, how) in enumerate(feed.columns):
        words: list[Span] = [(printable(name), "lineage"), (f"  {_HOW.get(how, printable(how))}", "muted")]
        lines.append([_fact("" if at else "columns"), *words])
    if len(feed.columns) > 1:
        lines.append([_fact("from here"), ("whole rows are followed: several columns made the value", "")])
    return [*lines, [], _title("Offsets"), *_runs(feed.runs)]


def missing_input_lines(name: str) -> list[str]:
    """What to do about an input that is not here."""
    return [
        "I on the workbench looks for it in repositories and at addresses",
        f"odf pull URL --as {printable(name)} brings it in from an address",
        "then w on the row again: the trace goes on from there",
    ]


def columns_lines(heading: Heading) -> Text:
    """The columns of rows, and which of them made a value."""
    group = heading.above
    assert isinstance(group, Group)
    lines: Text = [_title(f"Columns of {group.name}"), []]
    reader = group.reader
    for name in reader.names if reader is not None else ():
        how = group.columns.get(name)
        words = "" if how is None else _HOW.get(how, printable(how)) or "this is what is traced"
        lines.append([_fact(name, marked=how is not None), (words, "lineage" if how is not None else "")])
    return lines


def _runs(runs: Sequence[OffsetRange]) -> Text:
    lines: Text = [[("   ", ""), (range_text(run), "")] for run in runs[:_RUNS_LISTED]]
    more = len(runs) - _RUNS_LISTED
    return [*lines, [("   ", ""), (f"… and {format_count(more)} more", "muted")]] if more > 0 else lines


def _title(text: str) -> list[Span]:
    return [(f" {printable(text)}", "title")]


def _fact(name: str, *, marked: bool = False) -> Span:
    shown = printable(name)
    if len(shown) > _LONG:
        shown = shown[: _LONG - 1] + "…"
    return (f"   {shown:<{_NAME}}  ", "lineage" if marked else "muted")
