"""sql, export: run SQL queries, interactively too; write datasets to files."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import click
import msgspec
from msgspec.structs import replace
from rich.cells import cell_len

from odf_engine.api.readers.query_history import add_to_history, load_history
from odf_engine.api.text import count_of, format_count, printable
from odf_engine.coordinator.protocol import JobState
from odf_engine.errors import AlreadyExists, NotFound, OdfError, UsageError
from odf_engine.files import open_file
from odf_engine.jobs.export import Export
from odf_engine.jobs.query import Query, QueryResult
from odf_engine.sql.query_text import one_line_summary, tokenize
from odf_engine.terminal_text import escape_controls, escape_json
from odf_engine.views.query_results import GROUP_ROWS, ResultRows
from odf_tui.cli.follow import exit_code, follow, print_failure
from odf_tui.cli.output import (
    aligned_line,
    check_one_format,
    check_parent_folder,
    file_format,
    json_records,
    open_workspace,
    options_of,
    print_note,
    print_table,
    read_text,
    verb,
)
from odf_tui.text.format import ellipsize_middle
from odf_tui.text.job_text import job_outcome, query_failure_lines
from odf_tui.text.pinned_blocks import pin_lines

if TYPE_CHECKING:
    from odf_engine.workspace.workspace import Workspace


_WIDEST: Final = 36


def write_plain(rows: ResultRows, out: TextIO) -> None:
    """Write aligned columns, for a pipe."""
    from odf_tui.text.values import is_number

    titles = [escape_controls(name.upper()) for name in rows.columns.names]
    widths = [len(title) for title in titles]
    for cells in _text_rows(rows, rows.row_count):
        widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)]
    right = [is_number(field.type) for field in rows.columns]
    for cells in chain([titles], _text_rows(rows, rows.row_count)):
        out.write(aligned_line(cells, widths, right) + "\n")


def write_table(rows: ResultRows, count: int, width: int) -> int:
    """Write the first rows as a table, for a terminal.

    Args:
        count: number of rows.
        width: cells of the terminal; columns that do not fit are omitted.

    Returns:
        The number of columns shown.
    """
    import pyarrow.types as pt

    from odf_tui.text.values import is_number

    names = rows.columns.names
    are_times = [pt.is_timestamp(field.type) for field in rows.columns]
    cells = [
        [
            ellipsize_middle(_shorten_time(cell) if is_time else cell, _WIDEST)
            for cell, is_time in zip(line, are_times, strict=True)
        ]
        for line in _text_rows(rows, count)
    ]
    shown, used = 0, 0
    for at, name in enumerate(names):
        title = escape_controls(name)
        used += max(map(cell_len, [title, *(line[at] for line in cells)])) + 3 * bool(at)
        if at and used > width:
            break
        shown += 1
    numbers = [field.name for field in rows.columns if is_number(field.type)]
    print_table(names[:shown], [line[:shown] for line in cells], numbers)
    return shown


def _shorten_time(text: str) -> str:
    """Return a time without its zone, and as a date if it is midnight."""
    day, _, time = text.removesuffix("Z").partition("T")
    return day if time in ("", "00:00:00") else f"{day} {time}"


def _text_rows(rows: ResultRows, count: int) -> Iterator[list[str]]:
    for record in _json_rows(rows, count):
        yield ["" if value is None else printable(_cell_text(value)) for value in record.values()]


def _cell_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    return str(value)


def _json_rows(rows: ResultRows, count: int | None = None) -> Iterator[dict[str, Any]]:
    count = rows.row_count if count is None else min(count, rows.row_count)
    for start in range(0, count, GROUP_ROWS):
        yield from json_records(rows.window(start, min(GROUP_ROWS, count - start)))


MAX_ROWS: Final = 1_000_000


@verb(
    "sql",
    example='odf sql "SELECT station, avg(pm25) FROM port-haven.air-readings GROUP BY station"',
    json=True,
)
@click.argument("query", required=False)
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV to stdout.")
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
@click.option(
    "--proof",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a proof of the result, which odf verify --proof checks.",
)
@click.option("--sign", metavar="NAME", help="Sign the proof with the private key of a dataset.")
@click.option(
    "--engine",
    type=click.Choice(["spark", "datafusion"]),
    help="Engine and SQL dialect. Default: the setting sql.engine, which is spark. See odf help engines.",
)
def sql_verb(
    query: str | None,
    as_csv: bool,
    output: Path | None,
    limit: int | None,
    as_at: str | None,
    as_of: str | None,
    pins: tuple[str, ...],
    proof: Path | None,
    sign: str | None,
    engine: Literal["spark", "datafusion"] | None,
) -> None:
    """Run a SQL query over datasets.

    QUERY is the text of the query, @FILE for a file that contains it, or - for stdin. Without QUERY, an
    interactive shell opens, with history and completion. Its command \\? shows help.

    Tables are datasets, referred to by name. Names with special characters are quoted in backticks. A
    table has all rows of the dataset, with the system columns offset, op, system_time and event_time.

    The dialect is that of the engine: Spark SQL, or with --engine datafusion that of DataFusion, which
    does not start Spark.

    \b
    Functions in FROM:
      as_at(name, timestamp '2024-03-05 10:00:00')  as known at a system time
      as_of(name, '2024-03-05')                     as of an event time
      current(name)                                 latest state (by key)
      changelog(name)                               all rows

    The blocks that the query has read are printed with the result. With the same blocks in --at, the
    query returns the same result again.
    """
    if query is None:
        if as_csv or output is not None or proof is not None or options_of().json:
            raise UsageError("missing QUERY", hint="--json, --csv, -o and --proof apply to one query")
        workspace = open_workspace()
        settings = Query(
            sql="",
            limit=limit or MAX_ROWS,
            as_at=as_at,
            as_of=as_of,
            pins=dict(map(_parse_pin, pins)),
            engine=engine or workspace.config.sql.engine,
        )
        SqlShell(workspace, settings).run()
        return
    form = _output_form(as_csv, output)
    if sign is not None and proof is None:
        raise UsageError("--sign requires --proof", hint="use --proof FILE")
    for each in (output, proof):
        if each is not None:
            check_parent_folder(each)
    workspace = open_workspace()
    request = Query(
        sql=_read_query(query),
        limit=limit or (MAX_ROWS if form == "table" else None),
        as_at=as_at,
        as_of=as_of,
        pins=dict(map(_parse_pin, pins)),
        proof=proof is not None,
        sign=sign,
        # Only Spark creates proofs.
        engine=engine or ("spark" if proof is not None else workspace.config.sql.engine),
    )
    result, shown = _run_query(workspace, request, form, output)
    if proof is not None:
        _write_file(proof, json.dumps(result.proof, indent=2, ensure_ascii=False) + "\n")
    if form in ("file", "table") or result.truncated:
        print_note(_summary_text(result, output, shown))
    for line in pin_lines(result.pins):
        print_note(line)
    if proof is not None:
        print_note(f"proof in {proof}: check it with odf verify --proof {proof}")


@verb("export", example="odf export port-haven.stations stations.csv")
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--no-system", is_flag=True, help="Omit the system columns, such as offset and op.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export_verb(name: str, file: Path, no_system: bool, force: bool) -> None:
    """Write all rows of a dataset to a file.

    The extension of FILE selects the format: .csv, .json, .ndjson or .parquet. To write only some rows or
    columns, or the latest state, use `odf sql QUERY -o FILE`.
    """
    form = file_format(file)
    check_parent_folder(file)
    workspace = open_workspace()
    entry = workspace.resolve(name)
    if file.exists() and not force:
        raise AlreadyExists(f"{file} already exists", hint="use --force to overwrite it")
    request = Export(str(entry.id), str(file.absolute()), format=form, system=not no_system, replace=force)
    (job,) = follow(workspace, [(request, str(entry.alias))])
    if job.state is not JobState.done:
        print_failure(job)
    else:
        print_note(job_outcome(job)[0])
    sys.exit(exit_code([job]))


def _run_query(
    workspace: Workspace, request: Query, form: str, output: Path | None
) -> tuple[QueryResult, int]:
    """Run a query and write its rows; return the result and the number of columns shown."""
    from odf_engine.views.query_results import temporary_result

    if output is not None:
        request = replace(request, output=str(output.absolute()), format=file_format(output))
        result = _submit_query(workspace, request)
    elif form in ("csv", "json"):
        with temporary_result(workspace.odf) as file:
            result = _submit_query(workspace, replace(request, output=str(file), format=form))
            _copy_to_stdout(file, form)
    else:
        result = _submit_query(workspace, request)
        return result, _print_rows(workspace.folder / result.path)
    return result, len(result.columns)


def _submit_query(workspace: Workspace, query: Query) -> QueryResult:
    result, code = _try_query(workspace, query)
    if result is None:
        sys.exit(code)
    return result


def _try_query(workspace: Workspace, query: Query) -> tuple[QueryResult | None, int]:
    """Run a query; return its result and the exit code. A failure is printed."""
    (job,) = follow(workspace, [(query, one_line_summary(query.sql))])
    result = job.result_of(Query)
    if job.state is JobState.done and result is not None:
        return result, 0
    for line in query_failure_lines(job):
        sys.stderr.write(line + "\n")
    return None, exit_code([job])


def _output_form(as_csv: bool, output: Path | None) -> str:
    """Return how rows are written: ``table``, ``csv`` or ``json`` on stdout, or ``file``.

    Raises:
        UsageError: several forms are requested, or the file has an unknown extension.
    """
    check_one_format(as_csv, output)
    if output is None:
        return "csv" if as_csv else "json" if options_of().json else "table"
    file_format(output)
    return "file"


def _parse_pin(text: str) -> tuple[str, str]:
    """Return a dataset and its block; also parses the notation that is printed below a result.

    Raises:
        UsageError: it has another form.
    """
    found = re.fullmatch(r"(.+)[=@]([^=@]+)", text)
    if found is None:
        raise UsageError(
            f"--at {text}: not of the form NAME=BLOCK", hint="for example port-haven.stations=12"
        )
    return found[1], found[2]


def _read_query(query: str) -> str:
    """Return the query: the argument, or the contents of stdin or of the file that it names.

    Raises:
        UsageError: the file cannot be read, or is not UTF-8 text.
    """
    if query != "-" and not query.startswith("@"):
        return query
    try:
        return read_text(query if query == "-" else str(Path(query[1:]).expanduser()))
    except NotFound as error:
        raise UsageError(error.message) from None
    except UnicodeDecodeError:
        raise UsageError(f"the query is not UTF-8 text: {query}") from None


def _print_rows(file: Path) -> int:
    """Print rows as a table; return the number of columns shown."""
    from odf_engine.views.query_results import ResultRows

    rows = ResultRows(file)
    if sys.stdout.isatty():
        return write_table(rows, _rows_that_fit(), shutil.get_terminal_size().columns)
    write_plain(rows, sys.stdout)
    return len(rows.columns)


def _rows_that_fit() -> int:
    return max(shutil.get_terminal_size().lines - 5, 10)


def _copy_to_stdout(file: Path, form: str) -> None:
    """Copy a file to stdout, as UTF-8 in any locale; on a terminal, control characters are escaped."""
    clean = escape_json if form == "json" else escape_controls if sys.stdout.isatty() else str
    sys.stdout.flush()
    with file.open(encoding="utf-8", newline="") as rows:
        while text := rows.read(1 << 20):
            sys.stdout.buffer.write(clean(text).encode())
    sys.stdout.buffer.flush()


def _write_file(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        OdfError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open_file(temporary, "wb") as file:
            file.write(text.encode())
        temporary.replace(path)
    except OSError as error:
        raise OdfError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _summary_text(result: QueryResult, output: Path | None, shown: int) -> str:
    count = result.rows
    rows = count_of(count, "row")
    if output is not None:
        rows += f" in {output}"
    elif sys.stdout.isatty() and count > _rows_that_fit():
        rows += f", the first {_rows_that_fit()} shown"
    of = len(result.columns)
    some = f" · {shown} of {of} columns shown, use --csv for all" if shown < of else ""
    more = " · truncated, use --limit for more" if result.truncated else ""
    return f"{rows} · {result.seconds:.1f} s{some}{more}"


# --- The interactive shell ---------------------------------------------------------------------------

_PROMPT: Final = "odf> "
_CONTINUED: Final = "  -> "
_DELIMITERS: Final = " \t\n,;()=<>+*|&'\""
_SHELL_HELP: Final = """\
A query ends with a semicolon and may have several lines. Tab completes names.
  \\d           list the datasets
  \\d NAME      list the columns of a dataset
  \\timing      show or hide the duration of queries
  \\?           show this help
  \\q           quit, as does ^D
^C discards the input, or cancels the running query.
"""


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the queries of a text that end with a semicolon, and the rest."""
    found: list[str] = []
    start = 0
    for token in tokenize(text):
        if token.text == ";":
            found.append(text[start : token.start].strip())
            start = token.end
    return [each for each in found if tokenize(each)], text[start:]


class SqlShell:
    """An interactive shell for queries.

    Args:
        workspace: the workspace; its history of queries is shared with the workstation.
        settings: a request with the settings of all queries.
    """

    def __init__(self, workspace: Workspace, settings: Query) -> None:
        from odf_engine.api.readers.row_reader import SqlReader  # deferred: only the shell needs it

        self._workspace = workspace
        self._settings = settings
        self._reader = SqlReader(workspace)
        self._columns: dict[str, Sequence[tuple[str, str]]] = {}
        self._proposals: list[str] = []
        self._timing = False
        self._text = ""

    def run(self) -> None:
        """Read and run queries until the end of the input.

        Raises:
            UsageError: the input is not a terminal.
        """
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("the shell requires a terminal", hint="to run one query from stdin: odf sql -")
        self._enable_editing()
        print_note(f"{self._workspace.folder}: end queries with a semicolon; \\? shows help")
        while True:
            try:
                line = input(_CONTINUED if self._text else _PROMPT)
            except EOFError:
                sys.stdout.write("\n")
                return
            except KeyboardInterrupt:
                self._text = ""
                sys.stdout.write("\n")
                continue
            try:
                if not self._accept(line):
                    return
            except OdfError as error:  # such as a lost worker: the shell continues
                sys.stderr.write(f"error: {error.format_line}\n")

    def _accept(self, line: str) -> bool:
        """Process a line; return False to quit."""
        word = "" if self._text else line.strip()
        if word.lower().rstrip(";") in ("\\q", "quit", "exit"):
            return False
        if word.startswith("\\"):
            self._remember(word)
            self._run_command(*word.split(maxsplit=1))
            return True
        queries, rest = split_statements(f"{self._text}{line}\n")
        self._text = rest if rest.strip() else ""
        for query in queries:
            self._remember(f"{query};")
            with suppress(OSError):  # such as a read-only file system
                add_to_history(self._workspace.odf, query)
            self._run_query(query)
        return True

    def _run_query(self, sql: str) -> None:
        result, _ = _try_query(self._workspace, replace(self._settings, sql=sql))
        if result is None:
            return
        shown = _print_rows(self._workspace.folder / result.path)
        words, *details = _summary_text(result, None, shown).split(" · ")
        print_note(" · ".join([words, *(details if self._timing else details[1:])]))

    def _run_command(self, command: str, argument: str = "") -> None:
        match command:
            case "\\d" if argument:
                entry = self._workspace.resolve(argument.rstrip(";").strip("`"))
                columns = self._reader.columns(str(entry.id))
                if columns:
                    print_table(["column", "type"], columns)
                else:
                    print_note(f"{entry.alias} has no data yet")
            case "\\d":
                rows = [
                    [summary.name, summary.kind.value, format_count(summary.records)]
                    for summary in self._workspace.summaries()
                ]
                print_table(["dataset", "kind", "rows"], rows, right=["rows"])
            case "\\timing":
                self._timing = argument == "on" if argument in ("on", "off") else not self._timing
                print_note(f"timing is {'on' if self._timing else 'off'}")
            case "\\?" | "\\h":
                sys.stdout.write(_SHELL_HELP)
            case _:
                raise UsageError(f"unknown command {command}", hint="\\? lists the commands")

    # --- Line editing ---

    def _enable_editing(self) -> None:
        try:
            import readline  # Python may be built without it
        except ImportError:
            return
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        readline.set_completer_delims(_DELIMITERS)
        readline.set_completer(self._complete)
        readline.set_auto_history(False)
        for query in load_history(self._workspace.odf):
            self._remember(f"{query};")

    def _remember(self, text: str) -> None:
        with suppress(ImportError):
            import readline

            # One line, which line editors handle better; a comment would hide the lines after it.
            readline.add_history(text if "--" in text else " ".join(text.splitlines()))

    def _complete(self, word: str, index: int) -> str | None:
        """Return a proposal for the word before the cursor, as readline requests them."""
        import readline

        if index == 0:
            line = readline.get_line_buffer()
            self._proposals = self.propose(line, readline.get_begidx(), readline.get_endidx())
        return self._proposals[index] if index < len(self._proposals) else None

    def propose(self, line: str, begin: int, end: int) -> list[str]:
        """Return the words that can replace the characters ``begin`` to ``end`` of a line."""
        from odf_tui.text.sql_completion import complete, datasets_in

        ids = {str(dataset.alias): str(dataset.id) for dataset in self._workspace.datasets()}
        typed = line[begin:end]
        if line.startswith("\\"):
            return [name for name in ids if name.lower().startswith(typed.lower())]
        sql, start = self._text + line, len(self._text) + begin
        for name in datasets_in(sql, ids):
            if name.casefold() not in self._columns:
                self._columns[name.casefold()] = self._reader.columns(ids[name])
        found = complete(sql, len(self._text) + end, list(ids), self._columns)
        if found.start < start:
            return []
        words = (sql[start : found.start] + word.text for word in found.words)
        # The editor replaces the word by the common beginning of all proposals: others would delete it.
        plain = typed.replace("`", "").lower()
        return [word for word in words if word.replace("`", "").lower().startswith(plain)]
