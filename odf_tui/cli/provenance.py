"""provenance: the input rows and sources of rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import click

from odf_engine.coordinator.protocol import JobState, Trace
from odf_engine.errors import OdfError, UsageError
from odf_engine.provenance.model import OffsetRange, TraceResult, TraceStep
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import exit_code, follow, print_failure
from odf_tui.cli.output import console, json_value, open_workspace, options_of, print_json, print_note, verb
from odf_tui.text.format import printable
from odf_tui.text.row_trace import OutlineNode, row_text, trace_outline

_ROWS: Final = re.compile(r"(\d+)(?:\.\.(\d+))?")
_LARGEST: Final = 1 << 62


@verb("provenance", example="odf provenance port-haven.air-by-day 3 --column pm25", json=True)
@click.argument("name")
@click.argument("rows", metavar="OFFSET[..OFFSET]")
@click.option("-c", "--column", metavar="NAME", help="Trace only the values of this column.")
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help="Maximum number of steps upstream.")
@click.option(
    "--check", is_flag=True, help="Check the trace: replay the query with only these rows, and without them."
)
@click.option("--dot", is_flag=True, help="Print a Graphviz document.")
def provenance_verb(
    name: str, rows: str, column: str | None, depth: int | None, check: bool, dot: bool
) -> None:
    """Trace rows to their input rows and sources.

    Rows are specified by their offsets, which `odf tail` shows. For each row, the trace shows the input
    rows, the query, and the sources of the input rows. If the input rows cannot be determined exactly,
    it shows all rows that may have contributed, and the reason. A retraction or correction is shown with
    the earlier row that it refers to.

    With --check, exits with 3 if a check fails.
    """
    if dot and options_of().json:
        raise UsageError("--json and --dot exclude each other", hint="use only one of them")
    workspace = open_workspace()
    entry = workspace.resolve(name)
    request = Trace(str(entry.id), [_parse_offsets(rows)], column, depth, check)
    (job,) = follow(workspace, [(request, str(entry.alias))])
    result = job.result_of(Trace)
    if job.state is not JobState.done or result is None:
        print_failure(job)
        sys.exit(exit_code([job]))
    if options_of().json:
        print_json(result)
    else:
        _print_result(result, dot)
    if any(line.startswith("no: ") for line in result.checked or ()):
        sys.exit(3)


def _print_result(result: TraceResult, dot: bool) -> None:
    from odf_tui.text.graphviz import trace_to_dot

    checked = result.checked or []
    if dot:
        sys.stdout.write(trace_to_dot(result))
        for line in checked:
            print_note(line)
    else:
        print_trace(open_workspace(), result, checked)


def _parse_offsets(text: str) -> OffsetRange:
    """Return the offsets of an argument, such as ``7`` or ``7..9``.

    Raises:
        UsageError: it has another form.
    """
    found = _ROWS.fullmatch(text.strip())
    if found is None or max(map(int, filter(None, found.groups()))) > _LARGEST:
        raise UsageError(
            f"invalid offset '{text}'",
            hint="use an offset or a range, such as 7 or 7..9; odf tail shows offsets",
        )
    first = int(found[1])
    return first, int(found[2] or first)


_MAX_ROWS: Final = 3


def print_trace(workspace: Workspace, step: TraceStep, checked: Sequence[str] = ()) -> None:
    """Print a trace: as a tree on a terminal, indented when piped.

    Args:
        workspace: the workspace that contains the rows.
        checked: results of replaying the query with the traced rows only, and without them.
    """
    outline = trace_outline(step, checked, partial(_read_rows, workspace))
    if not sys.stdout.isatty():
        for line in outline.indented_lines():
            sys.stdout.write(printable(line) + "\n")
        return
    from rich.text import Text
    from rich.tree import Tree

    def branch(node: OutlineNode, tree: Tree | None = None) -> Tree:
        text = Text(printable(node.head), style="bold" if node.lines or node.below else "")
        for line in node.lines:
            text.append("\n" + printable(line), style="not bold")
        found = Tree(text) if tree is None else tree.add(text)
        for inner in node.below:
            branch(inner, found)
        return found

    console().print(branch(outline))


def _read_rows(workspace: Workspace, step: TraceStep, columns: Sequence[str]) -> list[str]:
    """Return the first rows of a step as lines, with these columns or all; none if the dataset is missing."""
    from odf_engine.views.scan import Scan

    try:
        rows = Scan.of_dataset(workspace.resolve(step.dataset).dataset)
        system = rows.system_columns
        known = [name for name in columns if name in rows.schema.names]
        names = known or [name for name in rows.schema.names if name not in system]
        names = [system[0], *(name for name in names if name != system[0])]
        found: list[dict[str, Any]] = []
        ranges = [(first, last + 1) for first, last in step.runs[:_MAX_ROWS]]
        ranges = [(first, min(end, first + _MAX_ROWS)) for first, end in ranges]
        for batch in rows.select(names).rows(ranges).batches():
            found += batch.slice(0, _MAX_ROWS - len(found)).to_pylist()
            if len(found) >= _MAX_ROWS:
                break
    except OdfError:
        return []  # the trace reports the problem
    lines = [
        row_text(
            row[system[0]],
            {
                name: str(json_value(value))
                for name, value in row.items()
                if name != system[0] and value is not None
            },
        )
        for row in found
    ]
    return [*lines, "…"] if step.rows > len(found) > 0 else lines
