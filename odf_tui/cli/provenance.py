"""The verb that finds out where rows come from: provenance."""

from __future__ import annotations

import re
import sys
from typing import Final

import click

from odf_engine.coordinator.protocol import JobState, Trace
from odf_engine.errors import UsageError
from odf_engine.provenance.model import OffsetRange, TraceResult
from odf_tui.cli.data import exit_code, say_failure
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, print_json, say, verb

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
        say_failure(job)
        sys.exit(exit_code([job]))
    if options_of().json:
        print_json(result)
    else:
        _show(result, dot)
    if any(line.startswith("no: ") for line in result.checked or ()):
        sys.exit(3)


def _show(result: TraceResult, dot: bool) -> None:
    from odf_tui.cli.provenance_dot import graph
    from odf_tui.cli.provenance_tree import draw

    checked = result.checked or []
    if dot:
        sys.stdout.write(graph(result))
        for line in checked:
            say(line)
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
