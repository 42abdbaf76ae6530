"""A trace as a tree for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from odf_engine.errors import OdfError
from odf_engine.provenance.model import InputRows, OffsetRange, ProducingTransaction, RowSource, TraceStep
from odf_engine.workspace.workspace import Workspace
from odf_tui import humane
from odf_tui.cli.chain import json_value
from odf_tui.cli.output import console

if TYPE_CHECKING:
    from rich.tree import Tree

_MOST_RUNS: Final = 6
_MOST_ROWS: Final = 3
_MOST_MADE: Final = 4
_MOST_SOURCES: Final = 8
_WIDEST: Final = 40


@dataclass
class Node:
    """A line of the tree, lines that say more about it, and what is below it."""

    head: str
    lines: list[str] = field(default_factory=list[str])
    below: list[Node] = field(default_factory=list["Node"])


def draw(workspace: Workspace, step: TraceStep, checked: Sequence[str] = ()) -> None:
    """Prints a trace: with lines of a tree on a terminal, indented when piped.

    Args:
        workspace: where the rows are.
        step: the trace.
        checked: what came of checking it.
    """
    node = _of_step(workspace, step, f"{step.name}, {rows_text(step.runs, step.rows)}", [])
    node.below += [Node(f"checked: {line}") for line in checked]
    if not sys.stdout.isatty():
        for line in _indented(node, 0):
            sys.stdout.write(humane.plain(line) + "\n")
        return
    from rich.text import Text
    from rich.tree import Tree

    def branch(each: Node, tree: Tree | None = None) -> Tree:
        text = Text(humane.plain(each.head), style="bold" if each.lines or each.below else "")
        for line in each.lines:
            text.append("\n" + humane.plain(line), style="not bold")
        found = Tree(text) if tree is None else tree.add(text)
        for inner in each.below:
            branch(inner, found)
        return found

    console().print(branch(node))


def _indented(node: Node, depth: int) -> Iterator[str]:
    yield "  " * depth + node.head
    for line in node.lines:
        yield "  " * (depth + 1) + line
    for each in node.below:
        yield from _indented(each, depth + 1)


def _of_step(workspace: Workspace, step: TraceStep, head: str, columns: Sequence[str]) -> Node:
    node = Node(head, _values(workspace, step, columns))
    if step.problem:
        node.lines.append(f"no further: {step.problem}")
    for made in step.made[:_MOST_MADE] if step.kind == "derivative" else ():
        node.lines += _made(made)
    if step.kind == "derivative" and (more := len(step.made) - _MOST_MADE) > 0:
        node.lines.append(f"and by {numbered(more, 'more transaction')}")
    node.lines += [f"how: {line}" for line in step.how]
    if not step.exact:
        node.lines.append(f"not exact, these are all rows that could have: {step.reason}")
    if step.earlier:
        node.lines.append(f"in place of the earlier {rows_text(step.earlier, None)}")
    node.below = [_of_feed(workspace, feed) for feed in step.feeds]
    if step.kind == "derivative" and not step.feeds and not step.problem:
        node.lines.append("no row of an input has part in it")
    shown: list[list[str]] = []
    for source in step.sources[:_MOST_SOURCES]:
        node.below.append(_of_source(source, known=source.steps in shown))
        shown.append(source.steps)
    if (more := len(step.sources) - _MOST_SOURCES) > 0:
        node.below.append(Node(f"and {numbered(more, 'more block')} of the same kind: --json has all"))
    return node


def _of_feed(workspace: Workspace, feed: InputRows) -> Node:
    name = feed.name if feed.name == feed.alias else f"{feed.name} (as {feed.alias})"
    columns = ", ".join(f"{column} ({how})" for column, how in feed.columns)
    head = f"{name}, {rows_text(feed.runs, feed.rows)}" + (f": {columns}" if columns else "")
    only = list(dict.fromkeys(column for column, _ in feed.columns))
    step = feed.step or TraceStep(feed.dataset, feed.name, "root", feed.runs, feed.rows)
    return _of_step(workspace, step, head, only)


def _of_source(source: RowSource, *, known: bool) -> Node:
    """``known`` where the same steps were shown of another one."""
    place = source.place or (f"push source {source.name}" if source.name else "a source that is not known")
    lines = [
        f"rows {runs_text(source.runs)} taken in at {humane.moment(source.ingested)}, "
        f"block {source.block[-8:]}"
    ]
    lines += [source.state] if source.state else []
    steps = ["- the same steps as above"] if known else [f"- {line}" for line in source.steps]
    return Node(place, [*lines, *(humane.shorten(line, 300) for line in steps)])


def _made(made: ProducingTransaction) -> list[str]:
    lines = [
        f"made by {made.engine} at {humane.moment(made.system_time)}, "
        f"block {made.sequence_number} ({made.block[-8:]})"
    ]
    for alias, query in made.query:
        name = f"{alias} = " if alias else ""
        lines.append(humane.shorten(f"query: {name}{' '.join(query.split())}", 300))
    return lines


def _values(workspace: Workspace, step: TraceStep, columns: Sequence[str]) -> list[str]:
    """The first rows themselves, where they are here; in these columns, or all."""
    from odf_engine.views.scan import Scan

    try:
        rows = Scan.of_dataset(workspace.resolve(step.dataset).dataset)
        system = rows.system_columns
        known = [name for name in columns if name in rows.schema.names]
        names = known or [name for name in rows.schema.names if name not in system]
        names = [system[0], *(name for name in names if name != system[0])]
        found: list[dict[str, Any]] = []
        spans = [(first, last + 1) for first, last in step.runs[:_MOST_ROWS]]
        some = [(first, min(end, first + _MOST_ROWS)) for first, end in spans]
        for batch in rows.select(names).rows(some).batches():
            found += batch.slice(0, _MOST_ROWS - len(found)).to_pylist()
            if len(found) >= _MOST_ROWS:
                break
    except OdfError:
        return []  # the trace says what is wrong with it
    lines = [_row(each, system[0]) for each in found]
    return [*lines, "…"] if step.rows > len(found) > 0 else lines


def _row(row: dict[str, Any], offset: str) -> str:
    cells = [
        f"{name}={humane.shorten(str(json_value(value)), _WIDEST)}"
        for name, value in row.items()
        if name != offset and value is not None
    ]
    return f"{row[offset]}: {', '.join(cells)}"


def rows_text(runs: Sequence[OffsetRange], rows: int | None) -> str:
    """Rows by their offsets, such as ``rows 3, 5..9 (6)``."""
    alone = len(runs) == 1 and runs[0][0] == runs[0][1]
    count = "" if rows is None or alone else f" ({humane.count(rows)})"
    return f"{'row' if alone else 'rows'} {runs_text(runs)}{count}"


def runs_text(runs: Sequence[OffsetRange]) -> str:
    """Offsets, such as ``3, 5..9``; the first of them, when there are many."""
    shown = ", ".join(
        str(first) if first == last else f"{first}..{last}" for first, last in runs[:_MOST_RUNS]
    )
    more = len(runs) - _MOST_RUNS
    return f"{shown}, …{runs[-1][1]}" if more > 0 else shown


def numbered(number: int, what: str) -> str:
    """A number of things, such as ``1 more block`` or ``3 more blocks``."""
    return f"{humane.count(number)} {what}{'' if number == 1 else 's'}"
