"""provenance, diff, branch: the sources of rows, differences between versions, and branches."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import click
import msgspec

from odf_engine.api.text import count_of, format_count, format_time_seconds, printable
from odf_engine.chain import references
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.errors import OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.jobs.diff import Diff
from odf_engine.jobs.trace import Trace
from odf_engine.provenance.model import OffsetRange, TraceResult, TraceStep
from odf_engine.storage.refs import HEAD
from odf_engine.terminal_text import escape_json
from odf_engine.views.diff import Difference
from odf_engine.views.query_results import GROUP_ROWS, ResultRows
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import run_request
from odf_tui.cli.output import (
    check_one_format,
    check_parent_folder,
    console,
    data_stream,
    file_format,
    json_records,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_result,
    print_table,
    use_timezone,
    verb,
)
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
    result = run_request(workspace, request, str(entry.alias))
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
            found += json_records(batch.slice(0, _MAX_ROWS - len(found)))
            if len(found) >= _MAX_ROWS:
                break
    except OdfError:
        return []  # the trace reports the problem
    lines = [
        row_text(
            row[system[0]],
            {name: str(value) for name, value in row.items() if name != system[0] and value is not None},
        )
        for row in found
    ]
    return [*lines, "…"] if step.rows > len(found) > 0 else lines


# --- Differences -----------------------------------------------------------------------------------


_ON_TERMINAL: Final = 100
_WIDEST: Final = 48
_STYLES: Final = {"good": "green", "bad": "red", "warn": "yellow", "strong": "bold", "muted": "dim"}


@verb("diff", example="odf diff port-haven.stations --from 2026-01-01", json=True)
@click.argument("name")
@click.argument("other", required=False)
@click.option("--from", "since", metavar="BLOCK|TIME|REF", help="Version of the older side.")
@click.option("--to", "until", metavar="BLOCK|TIME|REF", help="Version of the newer side.")
@click.option("--key", multiple=True, metavar="COLUMN", help="Key column. Can be repeated.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    metavar="ROWS",
    help="Maximum number of rows. Default: all; on a terminal, 100.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows that differ as CSV to stdout.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the rows that differ to a .csv, .json, .ndjson or .parquet file.",
)
def diff_verb(
    name: str,
    other: str | None,
    since: str | None,
    until: str | None,
    key: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: Path | None,
) -> None:
    """Compare two versions of a dataset, two datasets, or a dataset with its branch.

    The older side is NAME, and the newer side is OTHER, or NAME again. Two datasets are compared at
    their newest blocks by default. For one dataset, the default is the newest block with data and the
    block with data before it. If OTHER is a branch of NAME, its newest block is compared with the head.

    A version is a block, a time or a reference. A block is specified by its number, its hash, or a part
    of the hash. A time specifies the newest block at that time. A reference such as before-reset-1a2b3c4d
    specifies an earlier history.

    Rows are compared by the primary key of the datasets, or by the columns of --key. Without a key,
    entire rows are compared, and none are reported as changed.
    """
    check_one_format(as_csv, output)
    if output is not None:
        file_format(output)
        check_parent_folder(output)
    workspace = open_workspace()
    entry = workspace.resolve(name)
    if other is not None:
        entry.dataset.refresh_branches()
    is_branch = other is not None and other in entry.dataset.branch_names()
    if is_branch:
        since, until, other = since or f"refs/{HEAD}", until or f"refs/{other}", None
    against = entry if other is None else workspace.resolve(other)
    request = Diff(
        dataset=str(entry.id),
        other="" if against.id == entry.id else str(against.id),
        as_at=since,
        other_as_at=until,
        key=list(key),
    )
    found = run_request(workspace, request, str(entry.alias))
    if output is not None:
        _write_file(found, output)
    elif as_csv:
        _write_csv(_FirstRows(found, limit), data_stream())
    elif options_of().json:
        _write_json(found, _FirstRows(found, limit), sys.stdout)
    else:
        _print_difference(found, limit)


class _FirstRows(ResultRows):
    """The first rows of a difference; all rows if ``limit`` is None."""

    def __init__(self, found: Difference, limit: int | None) -> None:
        super().__init__(Path(found.file))
        self._max_rows = limit

    @property
    def row_count(self) -> int:
        """The number of these rows."""
        return super().row_count if self._max_rows is None else min(self._max_rows, super().row_count)


# --- Text --------------------------------------------------------------------------------------------


def _print_difference(found: Difference, limit: int | None) -> None:
    from odf_tui.text import diff_text

    terminal = sys.stdout.isatty()
    rows = _FirstRows(found, _ON_TERMINAL if limit is None and terminal else limit)
    print_line = _line_printer(terminal)
    print_line([(diff_text.compared_versions_text(found), "strong")])
    print_line([("  ", ""), *diff_text.row_counts_text(found)])
    print_line([(f"  {diff_text.interval_text(found)}", "muted")])
    for line in diff_text.settings_changes(found):
        print_line(line)
    if rows.row_count:
        print_line([("rows", "strong")])
    for start in range(0, rows.row_count, GROUP_ROWS):
        texts = diff_text.DiffRowFormatter(found.columns, bool(found.key), rows.window(start, GROUP_ROWS))
        for at in range(len(texts.changes)):
            print_line([("  ", ""), *texts.spans(at, _WIDEST if terminal else None)])
    if rows.row_count < found.rows:
        more = found.rows - rows.row_count
        print_note(f"{count_of(more, 'more row')}, use -n, --csv or -o FILE to get them")


def _line_printer(terminal: bool) -> Callable[[Sequence[tuple[str, str]]], None]:
    if not terminal:
        return lambda spans: print("".join(text for text, _ in spans).rstrip())
    from rich.text import Text

    out = console()

    def print_line(spans: Sequence[tuple[str, str]]) -> None:
        out.print(Text.assemble(*((text, _STYLES.get(style, "")) for text, style in spans)), soft_wrap=True)

    return print_line


# --- JSON, CSV and files -----------------------------------------------------------------------------


def _write_json(found: Difference, rows: ResultRows, out: TextIO) -> None:
    """Write a :class:`Difference` and its ``changes`` as JSON; only a few changes are in memory at a time."""
    head = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    out.write(escape_json(head.removesuffix("\n}")) + ',\n  "changes": [')
    before = "\n    "
    for record in _records(found, rows):
        text = json.dumps(record, ensure_ascii=False, indent=2)
        out.write(before + escape_json(text).replace("\n", "\n    "))
        before = ",\n    "
    out.write("\n  ]\n}\n" if rows.row_count else "]\n}\n")


def _records(found: Difference, rows: ResultRows) -> Iterator[dict[str, Any]]:
    """Yield rows with ``key``, ``old`` and ``new`` values; of a changed row only the values that differ."""
    from odf_engine.views.diff_columns import changed_cells

    for start in range(0, rows.row_count, GROUP_ROWS):
        table = rows.window(start, GROUP_ROWS)
        differ = {name: mask.to_pylist() for name, mask in changed_cells(table, found.columns).items()}
        for at, row in enumerate(json_records(table)):
            change = row["change"]
            record: dict[str, Any] = {"change": change, "key": {}, "old": {}, "new": {}}
            for column in found.columns:
                if column.key and found.key:
                    record["key"][column.name] = row[str(column.new)]
                    continue
                if change == "changed" and not (column.name in differ and differ[column.name][at]):
                    continue
                for side, name, without in (("old", column.old, "added"), ("new", column.new, "removed")):
                    if change != without and name is not None:
                        record[side][column.name] = row[name]
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


def _write_file(found: Difference, output: Path) -> None:
    from odf_engine.progress import Reporter
    from odf_engine.views.export import export
    from odf_engine.views.scan import Scan

    rows = Scan.of_file(Path(found.file))
    export(rows, output.absolute(), file_format(output), Reporter(), replace=True)
    print_note(f"{count_of(found.rows, 'row')} in {output}")


# --- Branches ----------------------------------------------------------------------------------------


@verb("branch", example="odf branch port-haven.stations staging", json=True)
@click.argument("name", required=False)
@click.argument("branch", required=False)
@click.option("--at", "start", metavar="BLOCK|TIME|REF", help="Start at this version. Default: the head.")
@click.option("-f", "--force", is_flag=True, help="Move an existing branch; delete an unpromoted one.")
@click.option("--promote", metavar="BRANCH", help="Move the head of the dataset to this branch.")
@click.option("-d", "--delete", metavar="BRANCH", help="Delete this branch.")
@click.option("-m", "--rename", nargs=2, metavar="OLD NEW", help="Rename a branch.")
def branch_verb(
    name: str | None,
    branch: str | None,
    start: str | None,
    force: bool,
    promote: str | None,
    delete: str | None,
    rename: tuple[str, str] | None,
) -> None:
    """List, create, promote and delete branches of a dataset.

    Without BRANCH, lists the branches of a dataset, or of all datasets. With BRANCH, creates a branch: a
    second chain that begins with the blocks of the dataset. Commands with the option --branch, such as
    `odf pull`, change or read the branch instead of the dataset. See `odf help branches`.

    --promote moves the head of the dataset to the newest block of the branch. If the head has blocks
    that the branch lacks, nothing is changed, and the exit code is 4.
    """
    actions = [value for value in (branch, promote, delete, rename) if value is not None]
    if len(actions) > 1:
        raise UsageError("BRANCH, --promote, --delete and --rename exclude each other")
    if start is not None and branch is None:
        raise UsageError("--at requires the name of a new branch", hint="odf branch NAME BRANCH --at BLOCK")
    if force and branch is None and delete is None:
        raise UsageError("--force requires a branch to move or to delete")
    workspace = open_workspace()
    if not actions:
        _list_branches(workspace, [workspace.resolve(name)] if name is not None else workspace.datasets())
        return
    if name is None:
        raise UsageError("no dataset specified", hint="odf branch NAME lists the branches of a dataset")
    entry = workspace.resolve(name)
    dataset, alias = entry.dataset, str(entry.alias)
    shown: str
    document: dict[str, Any]
    if branch is not None:
        block = _find_start(entry, start)
        references.create_branch(dataset, branch, block, replace=force)
        document = {"dataset": alias, "branch": branch, "head": block}
        shown = f"{alias}: branch {branch} at block {block.abbreviated}"
    elif promote is not None:
        done = references.promote_branch(dataset, promote)
        document = {"dataset": alias, "branch": promote, **msgspec.structs.asdict(done)}
        document["status"] = "updated" if done.blocks else "up-to-date"
        added = f"{count_of(done.blocks, 'block')}, {count_of(done.records, 'row')}"
        shown = f"{alias}: promoted {promote}, {added}, head {done.new_head.abbreviated}"
        if not done.blocks:
            shown = f"{alias}: up to date, the head has all blocks of {promote}"
    elif delete is not None:
        block = references.delete_branch(dataset, delete, force=force)
        document = {"dataset": alias, "branch": delete, "head": block}
        shown = f"{alias}: deleted branch {delete}, which was at block {block.abbreviated}"
    else:
        assert rename is not None
        references.rename_branch(dataset, *rename)
        document = {"dataset": alias, "branch": rename[1], "head": dataset.branch(rename[1]).head()}
        shown = f"{alias}: renamed branch {rename[0]} to {rename[1]}"
    notify_datasets_changed(workspace.folder)
    if options_of().json:
        print_json(document)
    else:
        print_result(shown)


def _find_start(entry: DatasetEntry, start: str | None) -> Multihash:
    """Return the first block of a branch.

    Raises:
        NotFound: there is no such block.
    """
    from odf_engine.views.as_at import resolve_as_at  # deferred: slow to import

    return Multihash.parse(resolve_as_at(entry, start).block)


def _list_branches(workspace: Workspace, entries: Sequence[DatasetEntry]) -> None:
    found = [(entry, branch) for entry in entries for branch in references.list_branches(entry.dataset)]
    if options_of().json:
        print_json(
            [
                {
                    "dataset": str(entry.alias),
                    "branch": branch.name,
                    **{key: value for key, value in msgspec.structs.asdict(branch).items() if key != "name"},
                }
                for entry, branch in found
            ]
        )
        return
    if not found:
        print_note("no branches: odf branch NAME BRANCH creates one")
        return
    zone = use_timezone(workspace)
    print_table(
        ["dataset", "branch", "head", "blocks", "rows", "ahead", "behind", f"system time ({zone})"],
        [
            [
                str(entry.alias),
                each.name,
                each.head.abbreviated if each.head else printable(each.problem or ""),
                format_count(each.blocks),
                format_count(each.records),
                str(each.ahead),
                str(each.behind),
                format_time_seconds(each.system_time) if each.system_time else "",
            ]
            for entry, each in found
        ],
        right=["blocks", "rows", "ahead", "behind"],
    )
