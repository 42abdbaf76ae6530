"""Trace rows to their input rows and sources.

Rows are specified by their offsets, which `odf tail` shows. For each row, the trace shows the input
rows, the query, and the sources of the input rows. If the input rows cannot be determined exactly,
it shows all rows that may have contributed, and the reason. A retraction or correction is shown with
the earlier row that it refers to.

For rows from local CSV and NDJSON files that did not change since, the trace shows the lines of the
publisher's file with the same values, also before filters. --open opens the file there.

With --check, exits with 3 if a check fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from odf_engine.api import OffsetRange, Trace, TraceResult, TraceStep
from odf_engine.api.text import count_of, printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_tui.cli.shared.job_progress import run_request
from odf_tui.cli.shared.options import DATASET, branch_option, define_command, options_of
from odf_tui.cli.shared.output import console, json_records, print_note, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.format import NULL
from odf_tui.text.graphviz import trace_to_dot
from odf_tui.text.row_trace import OutlineNode, row_text, source_positions, trace_outline
from odf_tui.theming.terminal import find_editor, run_editor

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
@click.option("--open", "opens", is_flag=True, help="Open the source file of the newest row in the editor.")
@branch_option("Trace rows of this branch. Inputs are traced in the branches that it was derived from.")
@click.option("--dot", is_flag=True, help="Print a Graphviz document.")
def command(
    name: str,
    rows: str,
    column: str | None,
    depth: int | None,
    check: bool,
    opens: bool,
    branch: str,
    dot: bool,
) -> None:
    if dot and options_of().json:
        raise UsageError("--json and --dot exclude each other", hint="use only one of them")
    workspace = open_workspace()
    dataset = workspace.resolve(name).on_branch(branch)
    request = Trace(dataset.id, [_parse_offsets(rows)], column, depth, check, branch)
    result = run_request(workspace, request, dataset.name)
    show(result, lambda: _print_result(result, dot, column))
    if opens:
        _open_source(result)
    if any(line.startswith("no: ") for line in result.checked or ()):
        sys.exit(3)


def _print_result(result: TraceResult, dot: bool, column: str | None) -> None:
    checked = result.checked or []
    if dot:
        sys.stdout.write(trace_to_dot(result))
        for line in checked:
            print_note(line)
    else:
        print_trace(open_workspace(), result, checked, column)


def _open_source(result: TraceResult) -> None:
    """Open the file with the newest traced row in the user's editor.

    Raises:
        OdfError: no position in a file is known, or the editor fails.
    """
    position = next(source_positions(result), None)
    if position is None:
        raise NotFound("no source file with these rows is known", hint="the trace shows the reasons")
    path = Path(position.file)
    run_editor(find_editor(), path, position.line or None, path.parent)


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


def print_trace(
    workspace: Workspace, step: TraceStep, checked: Sequence[str] = (), column: str | None = None
) -> None:
    """Print a trace: as a tree on a terminal, indented when piped.

    Args:
        workspace: the workspace that contains the rows.
        step: the trace.
        checked: results of replaying the query with the traced rows only, and without them.
        column: the traced column, or None for entire rows.
    """
    columns = [] if column is None else [column]
    outline = trace_outline(step, checked, partial(read_rows, workspace), columns)
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


def read_rows(workspace: Workspace, step: TraceStep, columns: Sequence[str]) -> list[str]:
    """Return the newest rows of a step as lines, or nothing for a missing dataset.

    Args:
        workspace: the workspace of the dataset.
        step: the step.
        columns: the columns to show beside the key, even if they are null. Rows without a key, or without
            these columns, are shown with all values that are not null.
    """
    wanted = {name.casefold() for name in columns}
    try:
        dataset = workspace.resolve(step.dataset).on_branch(step.branch)
        rows, vocabulary = dataset.scan(), dataset.state.vocabulary
        system = vocabulary.offset_column, vocabulary.operation_type_column, vocabulary.system_time_column
        names = [name for name in rows.columns if name not in system]
        key = [name for name in workspace.primary_key(dataset.id) if name in names] if wanted else []
        if key and (chosen := [name for name in names if name.casefold() in wanted]):
            names = [*key, *(name for name in chosen if name not in key)]
        names = [system[0], *names]
        records: list[dict[str, Any]] = []
        for first, last in reversed(step.runs[-_MAX_ROWS:]):
            part = dataset.scan(names, offsets=(max(first, last - _MAX_ROWS + 1), last + 1))
            records += reversed(json_records(part.to_arrow()))
        records = records[:_MAX_ROWS]
    except OdfError:
        return []  # the trace reports the problem
    lines = [
        row_text(
            row[system[0]],
            {
                name: NULL if value is None else str(value)
                for name, value in row.items()
                if name != system[0] and (value is not None or name.casefold() in wanted)
            },
        )
        for row in records
    ]
    more = step.rows - len(records)
    return [*lines, f"and {count_of(more, 'older row')}"] if lines and more else lines
