"""The verb that asks a query: sql."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from odf_engine.coordinator.protocol import Job, JobState, Query
from odf_engine.errors import OdfError, UsageError
from odf_engine.metadata.sql_text import headline
from odf_tui import humane
from odf_tui.cli.data import exit_code
from odf_tui.cli.follow import follow
from odf_tui.cli.output import open_workspace, options_of, say, verb

if TYPE_CHECKING:
    from odf_engine.workspace.results import ResultRows

MOST_ROWS: Final = 1_000_000
_ENDINGS: Final = {".csv": "csv", ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": ""}


@verb(
    "sql",
    example='odf sql "SELECT station, avg(pm25) FROM port-haven.air-readings GROUP BY station"',
    json=True,
)
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True, help="The rows as CSV on stdout.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the rows to a .csv, .json, .ndjson or .parquet file.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=MOST_ROWS,
    metavar="ROWS",
    help="At most so many rows (1000000).",
)
def sql_verb(query: str, as_csv: bool, output: Path | None, limit: int) -> None:
    """Asks a query in Spark's SQL over datasets by their names.

    QUERY is the query itself, `@FILE` for a file that holds it, or `-` for stdin. Names of datasets are
    written as they are; between backquotes they can be anything. Tables have all rows of a dataset with
    its system columns: offset, op, system_time and event_time.
    """
    workspace = open_workspace()
    form = _form(as_csv, output)
    sql = _text(query)
    (job,) = follow(workspace, [(Query(sql=sql, limit=limit), headline(sql))])
    if job.state is not JobState.done or job.result is None:
        _say_failure(job)
        sys.exit(exit_code([job]))
    result = json.loads(job.result)
    file = workspace.folder / result["path"]
    shown = len(result["columns"])
    if output is not None and not form:
        _into(output, lambda partly: shutil.copyfile(file, partly))
    elif output is not None:
        _into(output, lambda partly: _write(file, form, partly))
    else:
        shown = _print(file, form)
    if form in ("", "table") or result["truncated"]:
        say(_summary(result, output, shown))


def _form(as_csv: bool, output: Path | None) -> str:
    """How the rows are written: table, csv, json or ndjson; empty for the file of the result itself."""
    if sum((as_csv, options_of().json, output is not None)) > 1:
        raise UsageError("the rows go one way", hint="give one of --json, --csv and -o FILE")
    if output is None:
        return "csv" if as_csv else "json" if options_of().json else "table"
    form = _ENDINGS.get(output.suffix.lower())
    if form is None:
        raise UsageError(f"{output.name} does not say its format", hint=f"end it with {', '.join(_ENDINGS)}")
    if not output.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {output.absolute().parent}")
    return form


def _text(query: str) -> str:
    """The query: the argument, or the stdin or file that it names."""
    if query == "-":
        return sys.stdin.read()
    if not query.startswith("@"):
        return query
    try:
        return Path(query[1:]).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"the file of the query cannot be read: {reason}", hint=query[1:]) from None


def _say_failure(job: Job) -> None:
    error = job.error
    if error is None:
        sys.stderr.write(f"{job.state.value}\n")
        return
    where = f"{error.where}: " if error.where else ""
    sys.stderr.write(f"error: {where}{error.message}\n")
    for line in error.excerpt:
        sys.stderr.write(f"  {line}\n")
    if error.hint:
        sys.stderr.write(f"  hint: {error.hint}\n")


def _print(file: Path, form: str) -> int:
    """Prints the rows; returns how many columns there was room for."""
    from odf_engine.workspace.results import ResultRows
    from odf_tui.cli.rows import write_csv, write_json, write_plain, write_table

    rows = ResultRows(file)
    if form == "csv":
        write_csv(rows, sys.stdout)
    elif form == "json":
        write_json(rows, sys.stdout)
    elif not sys.stdout.isatty():
        write_plain(rows, sys.stdout)
    else:
        return write_table(rows, _rows_that_fit(), shutil.get_terminal_size().columns)
    return len(rows.columns)


def _rows_that_fit() -> int:
    return max(shutil.get_terminal_size().lines - 5, 10)


def _write(file: Path, form: str, into: Path) -> None:
    from odf_engine.workspace.results import ResultRows
    from odf_tui.cli import rows as writers

    write = {"csv": writers.write_csv, "json": writers.write_json, "ndjson": writers.write_ndjson}[form]
    rows: ResultRows = ResultRows(file)
    with into.open("w", encoding="utf-8", newline="") as stream:
        write(rows, stream)


def _into(output: Path, make: Any) -> None:
    """Makes a file that is there whole or not at all."""
    partly = output.with_name(f".{output.name}.part")
    try:
        make(partly)
        partly.replace(output)
    except OSError as error:
        raise OdfError(f"{output} cannot be written: {error.strerror}") from None
    finally:
        partly.unlink(missing_ok=True)


def _summary(result: dict[str, Any], output: Path | None, shown: int) -> str:
    count = result["rows"]
    rows = f"{humane.count(count)} {'row' if count == 1 else 'rows'}"
    if output is not None:
        rows += f" in {output}"
    elif sys.stdout.isatty() and count > _rows_that_fit():
        rows += f", of which the first {_rows_that_fit()} are shown"
    of = len(result["columns"])
    some = f" · {shown} of {of} columns: --csv has all" if shown < of else ""
    more = " · there are more: --limit says how many are kept" if result["truncated"] else ""
    return f"{rows} · {result['seconds']:.1f} s{some}{more}"
