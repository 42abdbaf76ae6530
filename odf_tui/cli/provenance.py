"""provenance: where rows come from."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from odf_engine.coordinator.protocol import JobState, Trace
from odf_engine.errors import OdfError, UsageError
from odf_engine.provenance.model import (
    InputRows,
    OffsetRange,
    ProducingTransaction,
    RowSource,
    TraceResult,
    TraceStep,
)
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import exit_code, follow, print_failure
from odf_tui.cli.output import console, json_value, open_workspace, options_of, print_json, print_note, verb
from odf_tui.text import format
from odf_tui.text.lineage_text import format_quantity, runs_text

_ROWS: Final = re.compile(r"(\d+)(?:\.\.(\d+))?")
_LARGEST: Final = 1 << 62


@verb("provenance", example="odf provenance port-haven.air-by-day 3 --column pm25", json=True)
@click.argument("name")
@click.argument("rows", metavar="OFFSET[..OFFSET]")
@click.option("-c", "--column", metavar="NAME", help="Only where the values in this column come from.")
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help="Only so many datasets up.")
@click.option("--check", is_flag=True, help="Run the query again with only these rows, and without them.")
@click.option("--dot", is_flag=True, help="As a Graphviz document.")
def provenance_verb(
    name: str, rows: str, column: str | None, depth: int | None, check: bool, dot: bool
) -> None:
    """Shows where rows come from: which rows of its inputs made them, how, and which sources gave those.

    The rows are named by their offsets, which odf tail shows. Where the rows of an input cannot be told
    exactly, all that could have made them are shown, and why. A row that is taken back or corrected is
    shown with the earlier row that it is about.
    """
    if dot and options_of().json:
        raise UsageError("either --json or --dot")
    workspace = open_workspace()
    entry = workspace.resolve(name)
    request = Trace(str(entry.id), [_run(rows)], column, depth, check)
    (job,) = follow(workspace, [(request, str(entry.alias))])
    result = job.result_of(Trace)
    if job.state is not JobState.done or result is None:
        print_failure(job)
        sys.exit(exit_code([job]))
    if options_of().json:
        print_json(result)
    else:
        _show(result, dot)
    if any(line.startswith("no: ") for line in result.checked or ()):
        sys.exit(3)


def _show(result: TraceResult, dot: bool) -> None:
    from odf_tui.text.lineage_text import graphviz_document

    checked = result.checked or []
    if dot:
        sys.stdout.write(graphviz_document(result))
        for line in checked:
            print_note(line)
    else:
        draw(open_workspace(), result, checked)


def _run(text: str) -> OffsetRange:
    """The rows that a person names.

    Raises:
        UsageError: it does not read so.
    """
    found = _ROWS.fullmatch(text.strip())
    if found is None or max(map(int, filter(None, found.groups()))) > _LARGEST:
        raise UsageError(
            f"'{text}' is no row", hint="an offset, or a range of them: 7, or 7..9; odf tail shows offsets"
        )
    first = int(found[1])
    return first, int(found[2] or first)


_MAX_ROWS: Final = 3
_MAX_MADE: Final = 4
_MAX_SOURCES: Final = 8
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
            sys.stdout.write(format.printable(line) + "\n")
        return
    from rich.text import Text
    from rich.tree import Tree

    def branch(each: Node, tree: Tree | None = None) -> Tree:
        text = Text(format.printable(each.head), style="bold" if each.lines or each.below else "")
        for line in each.lines:
            text.append("\n" + format.printable(line), style="not bold")
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
    for made in step.made[:_MAX_MADE] if step.kind == "derivative" else ():
        node.lines += _made(made)
    if step.kind == "derivative" and (more := len(step.made) - _MAX_MADE) > 0:
        node.lines.append(f"and by {format_quantity(more, 'more transaction')}")
    node.lines += [f"how: {line}" for line in step.how]
    if not step.exact:
        node.lines.append(f"not exact, these are all rows that could have: {step.reason}")
    if step.earlier:
        node.lines.append(f"in place of the earlier {rows_text(step.earlier, None)}")
    node.below = [_of_feed(workspace, feed) for feed in step.feeds]
    if step.kind == "derivative" and not step.feeds and not step.problem:
        node.lines.append("no row of an input has part in it")
    shown: list[list[str]] = []
    for source in step.sources[:_MAX_SOURCES]:
        node.below.append(_of_source(source, known=source.steps in shown))
        shown.append(source.steps)
    if (more := len(step.sources) - _MAX_SOURCES) > 0:
        node.below.append(Node(f"and {format_quantity(more, 'more block')} of the same kind: --json has all"))
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
        f"rows {runs_text(source.runs)} taken in at {format.format_time(source.ingested)}, "
        f"block {source.block[-8:]}"
    ]
    lines += [source.state] if source.state else []
    steps = ["- the same steps as above"] if known else [f"- {line}" for line in source.steps]
    return Node(place, [*lines, *(format.ellipsize_middle(line, 300) for line in steps)])


def _made(made: ProducingTransaction) -> list[str]:
    lines = [
        f"made by {made.engine} at {format.format_time(made.system_time)}, "
        f"block {made.sequence_number} ({made.block[-8:]})"
    ]
    for alias, query in made.query:
        name = f"{alias} = " if alias else ""
        lines.append(format.ellipsize_middle(f"query: {name}{' '.join(query.split())}", 300))
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
        spans = [(first, last + 1) for first, last in step.runs[:_MAX_ROWS]]
        some = [(first, min(end, first + _MAX_ROWS)) for first, end in spans]
        for batch in rows.select(names).rows(some).batches():
            found += batch.slice(0, _MAX_ROWS - len(found)).to_pylist()
            if len(found) >= _MAX_ROWS:
                break
    except OdfError:
        return []  # the trace says what is wrong with it
    lines = [_row(each, system[0]) for each in found]
    return [*lines, "…"] if step.rows > len(found) > 0 else lines


def _row(row: dict[str, Any], offset: str) -> str:
    cells = [
        f"{name}={format.ellipsize_middle(str(json_value(value)), _WIDEST)}"
        for name, value in row.items()
        if name != offset and value is not None
    ]
    return f"{row[offset]}: {', '.join(cells)}"


def rows_text(runs: Sequence[OffsetRange], rows: int | None) -> str:
    """Rows by their offsets, such as ``rows 3, 5..9 (6)``."""
    alone = len(runs) == 1 and runs[0][0] == runs[0][1]
    count = "" if rows is None or alone else f" ({format.format_count(rows)})"
    return f"{'row' if alone else 'rows'} {runs_text(runs)}{count}"
