"""Compare two versions of a dataset, two datasets, or a dataset with its branch.

The older side is NAME, and the newer side is OTHER, or NAME again. Two datasets are compared at
their newest blocks by default. For one dataset, the default is the newest block with data and the
block with data before it. If OTHER is a branch of NAME, or with --branch, the newest block of the branch
is compared with the head.

A version is a block, a time or a reference. A block is specified by its number, its hash, or a part
of the hash. A time specifies the newest block at that time. A reference such as before-reset-1a2b3c4d
specifies an earlier history.

Rows are compared by the primary key of the datasets, or by the columns of --key. Without a key,
entire rows are compared, and none are reported as changed. The offsets of the older and the newer
row follow each row, such as #12 → #57; odf provenance NAME OFFSET traces one.

--why prints below each row the input rows that it comes from, and their lines in the files of the
publisher. It traces the first 10 rows, or as many as -n says.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import click
import msgspec
from msgspec.structs import replace

from odf_engine.api import (
    GROUP_ROWS,
    HEAD,
    Diff,
    Difference,
    JobState,
    Request,
    ResultRows,
    Trace,
    TraceResult,
    changed_cells,
    escape_json,
)
from odf_engine.api.dataset import Dataset
from odf_engine.api.rows import Rows
from odf_engine.api.text import count_of, printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.provenance import read_rows
from odf_tui.cli.shared.job_progress import exit_code, follow, print_failures, run_request
from odf_tui.cli.shared.options import DATASET, FILE, branch_option, define_command
from odf_tui.cli.shared.output import console, data_stream, file_format, json_records, print_note, row_form
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text import diff_text
from odf_tui.text.row_trace import cause_lines

ORDER = 190
MEANINGS = "compare changes"

_ON_TERMINAL: Final = 100
_MAX_TRACED: Final = 10
_WIDEST: Final = 48
_STYLES: Final = {"good": "green", "bad": "red", "warn": "yellow", "strong": "bold", "muted": "dim"}


@define_command("diff", help=__doc__, example="odf diff port-haven.stations --from 2026-01-01", json=True)
@click.argument("name", type=DATASET)
@click.argument("other", required=False, type=DATASET)
@click.option("--from", "since", metavar="BLOCK|TIME|REF", help="Version of the older side.")
@click.option("--to", "until", metavar="BLOCK|TIME|REF", help="Version of the newer side.")
@branch_option("Compare the head with this branch; with OTHER, compare the branch with OTHER.")
@click.option("--key", multiple=True, metavar="COLUMN", help="Key column. Can be repeated.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    metavar="ROWS",
    help="Maximum number of rows. Default: all; on a terminal, 100.",
)
@click.option("--why", is_flag=True, help="Trace the rows that differ to their inputs and source files.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows that differ as CSV to stdout.")
@click.option(
    "-o", "--output", type=FILE, help="Write the rows that differ to a .csv, .json, .ndjson or .parquet file."
)
def command(
    name: str,
    other: str | None,
    key: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: Path | None,
    why: bool,
    branch: str,
    **versions: str | None,
) -> None:
    form = row_form(as_csv, output)
    if why and (output is not None or form == "csv"):
        raise UsageError("--why needs a text or --json", hint="omit --csv and --output")
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    since, until = versions["since"], versions["until"]
    if branch and other is None:
        other = dataset.on_branch(branch).branch
    elif branch:
        since = since or f"refs/{dataset.on_branch(branch).branch}"
    request = _make_request(workspace, dataset, other, since, until)
    difference = run_request(workspace, replace(request, key=list(key)), dataset.name)
    causes: Sequence[TraceResult] = ()
    if why:
        limit = _MAX_TRACED if limit is None else limit
        causes = _trace_rows(workspace, difference, _FirstRows(difference, limit))
    if output is not None:
        _write_file(difference, output)
    elif form == "csv":
        _write_csv(_FirstRows(difference, limit), data_stream())
    elif form == "json":
        _write_json(difference, _FirstRows(difference, limit), causes, sys.stdout)
    else:
        read = partial(read_rows, workspace)
        _print_difference(difference, limit, [list(cause_lines(step, read)) for step in causes])


def _make_request(
    workspace: Workspace, dataset: Dataset, other: str | None, since: str | None, until: str | None
) -> Diff:
    """Return the request that compares a dataset with another one, with its branch, or with itself."""
    if other is not None and other in (*dataset.branch_names, *dataset.tag_names):
        since, until, other = since or f"refs/{HEAD}", until or f"refs/{other}", None
    against = dataset if other is None else workspace.resolve(other)
    other_id = "" if against.id == dataset.id else against.id
    return Diff(dataset=dataset.id, other=other_id, as_at=since, other_as_at=until)


class _FirstRows(ResultRows):
    """The first rows of a difference; all rows if ``limit`` is None."""

    def __init__(self, difference: Difference, limit: int | None) -> None:
        super().__init__(Path(difference.file))
        self._max_rows = limit

    @property
    def row_count(self) -> int:
        """The number of these rows."""
        return super().row_count if self._max_rows is None else min(self._max_rows, super().row_count)


def _trace_rows(workspace: Workspace, difference: Difference, rows: ResultRows) -> list[TraceResult]:
    """Return the traces of rows, or print why one fails and exit."""
    requests: list[tuple[Request, str]] = []
    for start in range(0, rows.row_count, GROUP_ROWS):
        for old, new in diff_text.row_offsets(difference, rows.window(start, GROUP_ROWS)):
            side, offset = difference.traceable_row(old, new)
            requests.append((Trace(side.dataset, [(offset, offset)], branch=side.history), side.name))
    jobs = follow(workspace, requests) if requests else []
    results = [job.result_of(Trace) for job in jobs if job.state is JobState.done]
    print_failures(jobs)
    if len(results) < len(jobs):
        sys.exit(exit_code(jobs))
    return [result for result in results if result is not None]


def _print_difference(difference: Difference, limit: int | None, causes: Sequence[Sequence[str]]) -> None:
    terminal = sys.stdout.isatty()
    rows = _FirstRows(difference, _ON_TERMINAL if limit is None and terminal else limit)
    print_line = _line_printer(terminal)
    print_line([(diff_text.compared_versions_text(difference), "strong")])
    print_line([("  ", ""), *diff_text.row_counts_text(difference)])
    print_line([(f"  {diff_text.interval_text(difference)}", "muted")])
    for line in diff_text.settings_changes(difference):
        print_line(line)
    if rows.row_count:
        print_line([("rows", "strong")])
    for start in range(0, rows.row_count, GROUP_ROWS):
        table = rows.window(start, GROUP_ROWS)
        texts = diff_text.DiffRowFormatter(difference.columns, bool(difference.key), table)
        offsets = diff_text.offset_texts(difference, table)
        for at in range(len(texts.changes)):
            spans = texts.spans(at, _WIDEST if terminal else None)
            print_line([("  ", ""), *spans, (f"  {offsets[at]}", "muted")])
            for text in causes[start + at] if causes else ():
                print_line([(f"     {printable(text)}", "muted")])
    if rows.row_count < difference.rows:
        more = difference.rows - rows.row_count
        print_note(f"{count_of(more, 'more row')}, use -n, --csv or -o FILE to get them")


def _line_printer(terminal: bool) -> Callable[[Sequence[tuple[str, str]]], None]:
    if not terminal:
        return lambda spans: print("".join(text for text, _ in spans).rstrip())
    from rich.text import Text

    out = console()

    def print_line(spans: Sequence[tuple[str, str]]) -> None:
        out.print(Text.assemble(*((text, _STYLES.get(style, "")) for text, style in spans)), soft_wrap=True)

    return print_line


def _write_json(difference: Difference, rows: ResultRows, causes: Sequence[TraceResult], out: TextIO) -> None:
    """Write a :class:`Difference` and its ``changes`` as JSON; only a few changes are in memory at a time."""
    head = msgspec.json.format(msgspec.json.encode(difference), indent=2).decode()
    out.write(escape_json(head.removesuffix("\n}")) + ',\n  "changes": [')
    before = "\n    "
    for at, record in enumerate(_records(difference, rows)):
        if causes:
            record["why"] = msgspec.to_builtins(causes[at])
        text = json.dumps(record, ensure_ascii=False, indent=2)
        out.write(before + escape_json(text).replace("\n", "\n    "))
        before = ",\n    "
    out.write("\n  ]\n}\n" if rows.row_count else "]\n}\n")


def _records(difference: Difference, rows: ResultRows) -> Iterator[dict[str, Any]]:
    """Yield rows with ``key``, ``old`` and ``new`` values; of a changed row only the values that differ.

    ``offsets`` has the offsets of the row on each side that has it.
    """
    for start in range(0, rows.row_count, GROUP_ROWS):
        table = rows.window(start, GROUP_ROWS)
        differ = {name: mask.to_pylist() for name, mask in changed_cells(table, difference.columns).items()}
        for at, row in enumerate(json_records(table)):
            change = row["change"]
            record: dict[str, Any] = {"change": change, "key": {}, "old": {}, "new": {}}
            for column in difference.columns:
                if column.key and difference.key:
                    record["key"][column.name] = row[str(column.new)]
                    continue
                if change == "changed" and not (column.name in differ and differ[column.name][at]):
                    continue
                for side, name, without in (("old", column.old, "added"), ("new", column.new, "removed")):
                    if change != without and name is not None:
                        record[side][column.name] = row[name]
            offsets = zip(("old", "new"), (row[name] for name in difference.offsets or ()), strict=False)
            record["offsets"] = {side: offset for side, offset in offsets if offset is not None}
            yield record


def _write_csv(rows: ResultRows, out: TextIO) -> None:
    """Write a header and a line for each row; nulls are empty, nested values are JSON."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows.columns.names)
    for start in range(0, rows.row_count, GROUP_ROWS):
        for row in json_records(rows.window(start, GROUP_ROWS)):
            writer.writerow(list(map(_csv_cell, row.values())))


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if not isinstance(value, bool | list | dict) else json.dumps(value, ensure_ascii=False)


def _write_file(difference: Difference, output: Path) -> None:
    Rows.of_file(Path(difference.file), "changes").write(output, file_format(output), replace=True)
    print_note(f"{count_of(difference.rows, 'row')} in {output}")
