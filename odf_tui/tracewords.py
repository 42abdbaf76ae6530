"""What the lines of a trace say, and all about one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from odf_engine.provenance.model import OffsetRange, ProducingTransaction, RowSource, TraceStep, row_count
from odf_tui.humane import count, moment, plain, shorten
from odf_tui.screens.texts import sql_spans
from odf_tui.tracenodes import (
    Asked,
    EarlierGroup,
    FeedGroup,
    Group,
    Heading,
    Making,
    Node,
    Note,
    Origin,
    QueryStep,
)
from odf_tui.tracetree import Line
from odf_tui.widgets.lines import Span
from odf_tui.windows import NULL

if TYPE_CHECKING:
    from odf_tui.records import Record

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
    return f"{count(number)} {'row' if number == 1 else 'rows'}"


def runs_words(runs: Sequence[OffsetRange], most: int = _RUNS_SHOWN) -> str:
    """Which offsets, such as ``120–126, 130 … 171``."""
    shown = ", ".join(run_words(run) for run in runs[:most])
    return shown if len(runs) <= most else f"{shown} … {run_words(runs[-1])}"


def run_words(run: OffsetRange) -> str:
    """Offsets that follow each other."""
    first, last = run
    return count(first) if first == last else f"{count(first)}–{count(last)}"


def exact_words(step: TraceStep) -> str:
    """Whether it is these rows, or whether they are all that could have been."""
    return "exact" if step.exact else "larger set"


# --- Lines of the tree ---


def spans_of(node: Node, room: int = 1000) -> list[Span]:
    """What the line of a node says in about so many cells; for all but rows."""
    match node:
        case QueryStep():
            alias = [(f"{plain(node.alias)}: ", "name")] if node.alias else []
            return [label("query"), *alias, (plain(node.text), "")]
        case Note():
            return [label(node.label), (plain(node.text), node.style)]
        case Making():
            return _made_spans(node)
        case Origin():
            return _source_spans(node, room)
        case FeedGroup():
            return _feed_spans(node)
        case EarlierGroup():
            words = f"{rows_words(len(node.offsets))} that came before, taken back or replaced"
            return [label("earlier"), (words, ""), (f" · {runs_words(node.offsets.runs)}", "muted")]
        case Asked():
            return [label("all"), (f"{rows_words(len(node.group.offsets))} at once", "")]
        case _:
            return []


def label(text: str) -> Span:
    """What a line is about."""
    return (f"{text:<{LABEL}}", "muted")


def _made_spans(node: Making) -> list[Span]:
    made, step = node.made, node.step
    spans: list[Span] = [label("made by"), (f"block {count(made.sequence_number)}", "title")]
    spans.append((f" · {moment(made.system_time)}", ""))
    if made.engine:
        spans.append((f" · {plain(made.engine)}", "muted"))
    if step.feeds:
        spans += [(" · ", "muted"), (exact_words(step), "good" if step.exact else "warn")]
    return spans


def _source_spans(node: Origin, room: int) -> list[Span]:
    source = node.source
    number = next((made.sequence_number for made in node.step.made if made.block == source.block), None)
    spans: list[Span] = [label("source"), (f"block {count(number)}" if number is not None else "", "title")]
    spans.append((f"{' · ' if number is not None else ''}{moment(source.ingested)} · ", ""))
    left = room - sum(len(text) for text, _ in spans)
    return [*spans, (shorten(plain(source.place), max(left, _PLACE)) or _pushed(source), "name")]


def _pushed(source: RowSource) -> str:
    if source.kind == "push":
        return f"pushed to {plain(source.name)}" if source.name else "pushed"
    return "from somewhere that the chain does not name"


def _feed_spans(node: FeedGroup) -> list[Span]:
    feed = node.feed
    spans: list[Span] = [label("from"), (plain(feed.name), "name")]
    if not feed.name.endswith(feed.alias):
        spans.append((f" as {plain(feed.alias)}", "muted"))
    if not feed.rows:
        return [*spans, (" · no rows", "muted")]
    spans.append((f" · {rows_words(feed.rows)}", ""))
    for name, how in feed.columns[:_COLUMNS_SHOWN]:
        spans += [(" · ", "muted"), (plain(name), "lineage"), (f" {_HOW.get(how, plain(how))}", "")]
    spans.append((f" · {runs_words(feed.runs)}", "muted"))
    if feed.missing:
        spans.append((" · not here", "warn"))
    return spans


# --- All about one of them ---


def column_at(node: Node) -> str | None:
    """Whose value is traced where a node is; None: whole rows."""
    above: Node | None = node
    while above is not None and not isinstance(above, Asked):
        above = above.above
    return None if above is None else above.group.column


def detail_of(line: Line, record: Record | None) -> Text:
    """All about a line; ``record`` is its row, as soon as that was read."""
    node = line.node
    if isinstance(node, Group) and line.row >= 0:
        return row_lines(node, line.row, record)
    match node:
        case Making():
            return made_lines(node.made, node.step, column_at(node))
        case Origin():
            return source_lines(node.source)
        case FeedGroup():
            return feed_lines(node)
        case Heading():
            return columns_lines(node)
        case EarlierGroup():
            return [_title(f"Earlier rows of {node.name}"), [], *_runs(node.offsets.runs)]
        case QueryStep():
            step = node.above.step if isinstance(node.above, Making) else None
            return query_lines([(node.alias, node.query)], marked_by(step, column_at(node)))
        case Note():
            return [_title(node.label.capitalize()), [], [("   ", ""), (plain(node.text), node.style)]]
        case Asked():
            return _asked_lines(node)
        case _:
            return []


def row_lines(group: Group, row: int, record: Record | None) -> Text:
    """A row with its values, those that were asked for first to see."""
    offset = group.offsets.at(row)
    lines: Text = [_title(f"Row {count(offset)} of {group.name}"), []]
    if record is None:
        lines.append([("   ", ""), (plain(group.trouble) or "…", "bad" if group.trouble else "muted")])
    for value in record.values if record is not None else ():
        marked = value.name in group.columns
        for at, text in enumerate(value.lines if value.text is not None else [NULL]):
            style = "lineage" if marked else "muted" if value.text is None else ""
            lines.append([_fact("" if at else value.name, marked=marked), (plain(text), style)])
    asked = group.touched.get(row)
    if asked is not None and asked.step is not None:
        lines += [[], *_step_lines(asked.step, group.column)]
    return lines


def _asked_lines(asked: Asked) -> Text:
    lines: Text = [_title(f"{rows_words(len(asked.group.offsets))} of {asked.group.name} at once"), []]
    if asked.step is None:
        return [*lines, [("   ", ""), ("⏎ looks where all of them come from, in one go", "muted")]]
    return lines + _step_lines(asked.step, asked.group.column)


def _step_lines(step: TraceStep, column: str | None) -> Text:
    """In short where rows come from, and by which query."""
    lines: Text = [_title("Where from")]
    for made in step.made[:_RUNS_SHOWN]:
        words = f"block {count(made.sequence_number)}, {moment(made.system_time)}"
        lines.append([_fact("made by"), (words, "")])
    for feed in step.feeds:
        lines.append([_fact("from"), (plain(feed.name), "name"), (f" · {rows_words(feed.rows)}", "")])
    for source in step.sources[:_RUNS_SHOWN]:
        lines.append([_fact("source"), (plain(source.place) or _pushed(source), "")])
    if not step.exact:
        lines.append([_fact("larger set"), (f"because {plain(step.reason or 'nobody said why')}", "warn")])
    if step.problem:
        lines.append([_fact("problem"), (plain(step.problem), "warn")])
    queries = {tuple(made.query): made.query for made in step.made if made.query}
    for query in queries.values():
        lines += [[], *query_lines(query, marked_by(step, column))]
    return lines


def made_lines(made: ProducingTransaction, step: TraceStep, column: str | None) -> Text:
    """A transaction with its query."""
    lines: Text = [_title(f"Block {count(made.sequence_number)} of {step.name}"), []]
    lines.append([_fact("hash"), (made.block, "muted")])
    lines.append([_fact("when"), (plain(made.system_time), "")])
    if made.engine:
        lines.append([_fact("engine"), (plain(made.engine), "")])
    lines.append([_fact("made"), (f"{rows_words(row_count(made.runs))} · {runs_words(made.runs)}", "")])
    if step.feeds:
        words = "exactly these rows, and no others" if step.exact else "these rows, or some of them"
        lines.append([_fact("out of"), (words, "good" if step.exact else "warn")])
    if not step.exact:
        lines.append([_fact("because"), (plain(step.reason or "nobody said why"), "warn")])
    lines += [[_fact("" if at else "how"), (plain(how), "")] for at, how in enumerate(step.how)]
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
    lines.append([_fact("from"), (plain(source.place) or _pushed(source), "title")])
    lines.append([_fact("kind"), (source.kind + (f" · {plain(source.name)}" if source.name else ""), "")])
    lines.append([_fact("taken in"), (plain(source.ingested), "")])
    lines.append([_fact("block"), (source.block, "muted")])
    if source.state:
        lines.append([_fact("version"), (plain(source.state), "")])
    lines += [[_fact("" if at else "done since"), (plain(each), "")] for at, each in enumerate(source.steps)]
    return [*lines, [], _title(rows_words(row_count(source.runs))), *_runs(source.runs)]


def feed_lines(node: FeedGroup) -> Text:
    """Rows of an input."""
    feed = node.feed
    lines: Text = [_title(f"{rows_words(feed.rows)} of {feed.name}"), []]
    lines.append([_fact("id"), (plain(feed.dataset), "muted")])
    lines.append([_fact("the query"), (f"calls it {plain(feed.alias)}", "")])
    if feed.missing:
        known = feed.step.problem if feed.step is not None else None
        lines.append([_fact("problem"), (plain(known or "it is not in this workspace"), "warn")])
        lines += [
            [_fact("" if at else "next"), (text, "good")] for at, text in enumerate(how_to_get(feed.name))
        ]
    for at, (name, how) in enumerate(feed.columns):
        words: list[Span] = [(plain(name), "lineage"), (f"  {_HOW.get(how, plain(how))}", "muted")]
        lines.append([_fact("" if at else "columns"), *words])
    if len(feed.columns) > 1:
        lines.append([_fact("from here"), ("whole rows are followed: several columns made the value", "")])
    return [*lines, [], _title("Offsets"), *_runs(feed.runs)]


def how_to_get(name: str) -> list[str]:
    """What to do about an input that is not here."""
    return [
        "I on the workbench looks for it in repositories and at addresses",
        f"odf pull URL --as {plain(name)} brings it in from an address",
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
        words = "" if how is None else _HOW.get(how, plain(how)) or "this is what is traced"
        lines.append([_fact(name, marked=how is not None), (words, "lineage" if how is not None else "")])
    return lines


def _runs(runs: Sequence[OffsetRange]) -> Text:
    lines: Text = [[("   ", ""), (run_words(run), "")] for run in runs[:_RUNS_LISTED]]
    more = len(runs) - _RUNS_LISTED
    return [*lines, [("   ", ""), (f"… and {count(more)} more", "muted")]] if more > 0 else lines


def _title(text: str) -> list[Span]:
    return [(f" {plain(text)}", "title")]


def _fact(name: str, *, marked: bool = False) -> Span:
    shown = plain(name)
    if len(shown) > _LONG:
        shown = shown[: _LONG - 1] + "…"
    return (f"   {shown:<{_NAME}}  ", "lineage" if marked else "muted")
