"""The interactive shell of ``odf sql``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from odf_engine.api import Query, tokenize
from odf_engine.api.text import format_count
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError, UsageError
from odf_tui.cli.shared.output import print_note, print_table
from odf_tui.cli.shared.query_rows import print_rows, summary_text, try_query
from odf_tui.text.sql_completion import complete, datasets_in

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
    queries: list[str] = []
    start = 0
    for token in tokenize(text):
        if token.text == ";":
            queries.append(text[start : token.start].strip())
            start = token.end
    return [query for query in queries if tokenize(query)], text[start:]


class SqlShell:
    """An interactive shell for queries.

    Args:
        workspace: the workspace; its history of queries is shared with the workstation.
        settings: a request with the settings of all queries.
    """

    def __init__(self, workspace: Workspace, settings: Query) -> None:
        self._workspace = workspace
        self._settings = settings
        self._columns: dict[str, Sequence[tuple[str, str]]] = {}
        self._proposals: list[str] = []
        self._timing = False
        self._text = ""

    def run(self) -> None:
        """Read and run queries until the end of the input, which must be a terminal."""
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
                self._workspace.add_to_query_history(query)
            self._run_query(query)
        return True

    def _run_query(self, sql: str) -> None:
        result, _ = try_query(self._workspace, replace(self._settings, sql=sql))
        if result is None:
            return
        shown = print_rows(self._workspace.folder / result.path)
        words, *details = summary_text(result, None, shown).split(" · ")
        print_note(" · ".join([words, *(details if self._timing else details[1:])]))

    def _run_command(self, command: str, argument: str = "") -> None:
        match command:
            case "\\d" if argument:
                dataset = self._workspace.resolve(argument.rstrip(";").strip("`"))
                columns = self._workspace.columns(dataset.id)
                if columns:
                    print_table(["column", "type"], columns)
                else:
                    print_note(f"{dataset.name} has no data yet")
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
        for query in self._workspace.query_history():
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
        ids = {dataset.name: dataset.id for dataset in self._workspace}
        typed = line[begin:end]
        if line.startswith("\\"):
            return [name for name in ids if name.lower().startswith(typed.lower())]
        sql, start = self._text + line, len(self._text) + begin
        for name in datasets_in(sql, ids):
            if name.casefold() not in self._columns:
                self._columns[name.casefold()] = self._workspace.columns(ids[name])
        proposals = complete(sql, len(self._text) + end, list(ids), self._columns)
        if proposals.start < start:
            return []
        words = (sql[start : proposals.start] + word.text for word in proposals.words)
        # The editor replaces the word by the common beginning of all proposals: others would delete it.
        plain = typed.replace("`", "").lower()
        return [word for word in words if word.replace("`", "").lower().startswith(plain)]
