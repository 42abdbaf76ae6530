"""Trace rows to their input rows and sources.

Rows are specified by their offsets, which `odf tail` shows. For each row, the trace shows the input
rows, the query, and the sources of the input rows. If the input rows cannot be determined exactly,
it shows all rows that may have contributed, and the reason. A retraction or correction is shown with
the earlier row that it refers to.

With --check, exits with 3 if a check fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import click

from odf_engine.api import OffsetRange, Trace, TraceResult, TraceStep
from odf_engine.api.text import printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError, UsageError
from odf_tui.cli.shared.job_progress import run_request
from odf_tui.cli.shared.options import DATASET, define_command, options_of
from odf_tui.cli.shared.output import console, json_records, print_note, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.graphviz import trace_to_dot
from odf_tui.text.row_trace import OutlineNode, row_text, trace_outline

ORDER = 180
MEANINGS = "trace origin why blame"

_ROWS: Final = re.compile(r"(\d+)(?:\.\.(\d+))?")
_MAX_OFFSET: Final = 1 << 62
_MAX_ROWS: Final = 3


@define_command(
    "provenance", help=__doc__, example="odf provenance port-haven.air-by-day 3 --column pm25", json=True
)
@click.argument("name", type=DATASET)
@click.argument("rows", metavar="OFFSET[..OFFSET]")
@click.option("-c", "--column", metavar="NAME", help="Trace only the values of this column.")
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help="Maximum number of steps upstream.")
@click.option(
    "--check", is_flag=True, help="Check the trace: replay the query with only these rows, and without them."
)
@click.option("--dot", is_flag=True, help="Print a Graphviz document.")
def command(name: str, rows: str, column: str | None, depth: int | None, check: bool, dot: bool) -> None:
    if dot and options_of().json:
        raise UsageError("--json and --dot exclude each other", hint="use only one of them")
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    request = Trace(dataset.id, [_parse_offsets(rows)], column, depth, check)
    result = run_request(workspace, request, dataset.name)
    show(result, lambda: _print_result(result, dot))
    if any(line.startswith("no: ") for line in result.checked or ()):
        sys.exit(3)


def _print_result(result: TraceResult, dot: bool) -> None:
    checked = result.checked or []
    if dot:
        sys.stdout.write(trace_to_dot(result))
        for line in checked:
            print_note(line)
    else:
        print_trace(open_workspace(), result, checked)


def _parse_offsets(text: str) -> OffsetRange:
    """Return the offsets of an argument, such as ``7`` or ``7..9``."""
    match = _ROWS.fullmatch(text.strip())
    if match is None or max(map(int, filter(None, match.groups()))) > _MAX_OFFSET:
        raise UsageError(
            f"invalid offset '{text}'",
            hint="use an offset or a range, such as 7 or 7..9; odf tail shows offsets",
        )
    first = int(match[1])
    return first, int(match[2] or first)


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
        subtree = Tree(text) if tree is None else tree.add(text)
        for inner in node.below:
            branch(inner, subtree)
        return subtree

    console().print(branch(outline))


def _read_rows(workspace: Workspace, step: TraceStep, columns: Sequence[str]) -> list[str]:
    """Return the first rows of a step as lines, with these columns or all; none if the dataset is missing."""
    try:
        dataset = workspace.resolve(step.dataset)
        rows, vocabulary = dataset.scan(), dataset.state.vocabulary
        system = vocabulary.offset_column, vocabulary.operation_type_column, vocabulary.system_time_column
        known = [name for name in columns if name in rows.columns]
        names = known or [name for name in rows.columns if name not in system]
        names = [system[0], *(name for name in names if name != system[0])]
        records: list[dict[str, Any]] = []
        for first, last in step.runs[:_MAX_ROWS]:
            part = dataset.scan(names, offsets=(first, min(last, first + _MAX_ROWS - 1) + 1))
            records += json_records(part.to_arrow())
        records = records[:_MAX_ROWS]
    except OdfError:
        return []  # the trace reports the problem
    lines = [
        row_text(
            row[system[0]],
            {name: str(value) for name, value in row.items() if name != system[0] and value is not None},
        )
        for row in records
    ]
    return [*lines, "…"] if step.rows > len(records) > 0 else lines
