"""Run a SQL query over datasets.

QUERY is the text of the query, @FILE for a file that contains it, or - for stdin. Without QUERY, an
interactive shell opens, with history and completion. Its command \\? shows help.

Tables are datasets, referred to by name. Names with special characters are quoted in backticks. A
table has all rows of the dataset, with the system columns offset, op, system_time and event_time.

The dialect is Spark SQL, or with --engine duckdb the dialect of DuckDB, which does not start Spark.
DuckDB also reads files: SELECT * FROM 'cases.csv' JOIN my.areas USING (area).

\b
Functions in FROM:
  as_at(name, timestamp '2024-03-05 10:00:00')  as known at a system time
  as_of(name, '2024-03-05')                     as of an event time
  current(name)                                 latest state (by key)
  changelog(name)                               all rows

The blocks that the query has read are printed with the result. With the same blocks in --at, the
query returns the same result again.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from odf_engine.api import Query, QueryResult, open_file, temporary_result
from odf_engine.api.workspace import Workspace
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_tui.cli.shared.input import read_text
from odf_tui.cli.shared.options import DATASET, FILE, define_command
from odf_tui.cli.shared.output import check_parent_folder, file_format, print_note, row_form
from odf_tui.cli.shared.query_rows import copy_to_stdout, print_rows, summary_text, try_query
from odf_tui.cli.shared.sql_shell import SqlShell
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.pinned_blocks import pin_lines

ORDER = 170
MEANINGS = "query select shell psql spark-sql repl"

MAX_ROWS: Final = 1_000_000


@define_command(
    "sql",
    help=__doc__,
    example='odf sql "SELECT station, avg(pm25) FROM port-haven.air-readings GROUP BY station"',
    json=True,
)
@click.argument("query", required=False)
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV to stdout.")
@click.option("-o", "--output", type=FILE, help="Write the rows to a .csv, .json, .ndjson or .parquet file.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    metavar="ROWS",
    help="Maximum number of rows. Default: all; in a table, 1000000.",
)
@click.option("--as-at", metavar="TIME", help="State of all datasets as known at a system time.")
@click.option("--as-of", metavar="TIME", help="State of all datasets as of an event time.")
@click.option(
    "--at",
    "pins",
    multiple=True,
    metavar="NAME=BLOCK|REF",
    help="State of a dataset at a block. Can be repeated.",
)
@click.option("--proof", type=FILE, help="Write a proof of the result, which odf verify --proof checks.")
@click.option(
    "--sign", metavar="NAME", type=DATASET, help="Sign the proof with the private key of a dataset."
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "duckdb"]),
    help="Engine and SQL dialect. Default: duckdb for files, else the setting sql.engine, which is spark.",
)
def command(
    query: str | None,
    as_csv: bool,
    output: Path | None,
    limit: int | None,
    pins: tuple[str, ...],
    proof: Path | None,
    **options: Any,
) -> None:
    form = row_form(as_csv, output)
    if query is None and (form != "table" or proof is not None):
        raise UsageError("missing QUERY", hint="--json, --csv, -o and --proof apply to one query")
    if options["sign"] is not None and proof is None:
        raise UsageError("--sign requires --proof", hint="use --proof FILE")
    if proof is not None:
        check_parent_folder(proof)
    workspace = open_workspace()
    options["engine"] = options["engine"] or ""
    request = Query(
        "" if query is None else _read_query(query),
        limit=limit or (MAX_ROWS if form == "table" else None),
        pins=dict(map(_parse_pin, pins)),
        proof=proof is not None,
        **options,
    )
    if query is None:
        SqlShell(workspace, request).run()
        return
    result, shown = _run_query(workspace, request, form, output)
    if proof is not None:
        _write_file(proof, json.dumps(result.proof, indent=2, ensure_ascii=False) + "\n")
    if form in ("file", "table") or result.truncated:
        print_note(summary_text(result, output, shown))
    for line in pin_lines(result.pins):
        print_note(line)
    if proof is not None:
        print_note(f"proof in {proof}: check it with odf verify --proof {proof}")


def _run_query(
    workspace: Workspace, request: Query, form: str, output: Path | None
) -> tuple[QueryResult, int]:
    """Run a query and write its rows; return the result and the number of columns shown."""
    if output is not None:
        request = replace(request, output=str(output.absolute()), format=file_format(output))
        result = _submit_query(workspace, request)
    elif form in ("csv", "json"):
        with temporary_result(workspace.odf) as file:
            result = _submit_query(workspace, replace(request, output=str(file), format=form))
            copy_to_stdout(file, form)
    else:
        result = _submit_query(workspace, request)
        return result, print_rows(workspace.folder / result.path)
    return result, len(result.columns)


def _submit_query(workspace: Workspace, query: Query) -> QueryResult:
    result, code = try_query(workspace, query)
    if result is None:
        sys.exit(code)
    return result


def _parse_pin(text: str) -> tuple[str, str]:
    """Return a dataset and its block; also parses the notation that is printed below a result."""
    match = re.fullmatch(r"(.+)[=@]([^=@]+)", text)
    if match is None:
        raise UsageError(
            f"--at {text}: not of the form NAME=BLOCK", hint="for example port-haven.stations=12"
        )
    return match[1], match[2]


def _read_query(query: str) -> str:
    """Return the query: the argument, or the contents of stdin or of the file that it names."""
    if query != "-" and not query.startswith("@"):
        return query
    try:
        return read_text(query if query == "-" else str(Path(query[1:]).expanduser()))
    except NotFound as error:
        raise UsageError(error.message) from None
    except UnicodeDecodeError:
        raise UsageError(f"the query is not UTF-8 text: {query}") from None


def _write_file(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open_file(temporary, "wb") as file:
            file.write(text.encode())
        temporary.replace(path)
    except OSError as error:
        raise OdfError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
