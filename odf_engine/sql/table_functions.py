"""Table functions ``as_at``, ``as_of``, ``current``, ``changelog``, and quoting of dataset names for
Spark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from odf_engine.errors import InvalidQuery, OdfError, UsageError
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.metadata.timestamp import Timestamp, parse_user_time
from odf_engine.sql.query_text import (
    TABLE_TERMINATORS,
    TableName,
    Token,
    file_names,
    is_table_function,
    line_and_column,
    qualified_name,
    qualified_name_end,
    query_excerpt,
    spark_spelling,
    table_names,
    tokenize,
)

TableState = Literal["changelog", "current", "as of"]
"""The state of a changelog that a table shows."""
_LAST_SEMICOLONS: Final = re.compile(r"(\s*;)+\s*\Z")
_POSITION: Final = re.compile(r"line (\d+), column (\d+)")
_TYPES: Final = ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "DATE")
_BLOCK: Final = re.compile(r"\w+|(refs/)?[A-Za-z][\w.-]*")
_EXPECT_EXPRESSION: Final = frozenset({
    "SELECT", "DISTINCT", "WHERE", "HAVING", "QUALIFY", "BY", "ON", "AND", "OR", "NOT", "WHEN", "THEN",
    "ELSE", "CASE", "BETWEEN", "IN", "IS", "LIKE",
})  # fmt: skip
"""Words before an expression."""
_EXAMPLES: Final[dict[str, str]] = {
    "as_at": "as_at(name, timestamp '2024-03-05 10:00:00'), or a block or reference instead of the time",
    "as_of": "as_of(name, timestamp '2024-03-05 10:00:00')",
    "current": "current(name), or current(name, key, …)",
    "changelog": "changelog(name)",
}


@dataclass(frozen=True)
class TableFunctionCall:
    """A dataset inside table functions.

    Attributes:
        text: the functions in normalized form; the table's name for Spark.
        dataset: its name or id.
        as_at: system time (RFC 3339) or block, or None if not specified.
        state: None if not specified.
        as_of: event time (RFC 3339), for the state ``as of``.
        key: columns of the primary key, or () for the key of the dataset.
    """

    text: str
    dataset: str
    as_at: str | None = None
    state: TableState | None = None
    as_of: str | None = None
    key: tuple[str, ...] = ()


def parse_sql_timestamp(text: str) -> Timestamp | None:
    """Parse a time as users and SQL write it, in UTC if it has no zone. None if it is invalid."""
    try:
        return parse_user_time(text)
    except UsageError:
        return None


def parse_table_function(sql: str, start: int) -> TableFunctionCall:
    """Parse the table functions that start at a character offset of a query.

    Raises:
        InvalidQuery: the syntax is invalid; with line and column.
    """
    words = tokenize(sql)
    index = next(number for number, word in enumerate(words) if word.start == start)
    return _Reader(sql, words, index).call()


class _Reader:
    """Reads tokens from an index on."""

    def __init__(self, sql: str, words: Sequence[Token], index: int) -> None:
        self._sql = sql
        self._words = words
        self._index = index

    def call(self) -> TableFunctionCall:
        function = self._words[self._index]
        name = function.text.lower()
        self._index += 2
        inner = self.call() if is_table_function(self._words, self._index) else self._dataset(name)
        arguments = self._arguments(name)
        if name == "as_at":
            call = self._as_at(function, inner, arguments)
        else:
            call = self._state(function, name, inner, arguments)
        parameters = (
            [] if name == "changelog" else [call.as_at] if name == "as_at" else [call.as_of, *call.key]
        )
        text = ", ".join([inner.text, *(parameter for parameter in parameters if parameter)])
        return replace(call, text=f"{name}({text})")

    def _dataset(self, function: str) -> TableFunctionCall:
        if self._index >= len(self._words) or self._words[self._index].kind not in ("word", "quoted"):
            raise self._syntax_error(f"{function} requires the name of a dataset", function)
        end = qualified_name_end(self._words, self._index)
        name = qualified_name(self._words, self._index, end).name
        self._index = end
        return TableFunctionCall(name, name)

    def _arguments(self, function: str) -> list[list[Token]]:
        """Return the tokens between commas, up to the closing bracket."""
        arguments: list[list[Token]] = []
        depth = 0
        while self._index < len(self._words):
            token = self._words[self._index]
            if token.text == ")" and not depth:
                self._index += 1
                return arguments
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if token.text == "," and not depth:
                arguments.append([])
            elif not arguments:
                raise self._syntax_error(f"expected a comma or the end of {function}", function)
            else:
                arguments[-1].append(token)
            self._index += 1
        raise self._syntax_error(f"the parenthesis of {function} is not closed", function)

    def _as_at(
        self, function: Token, inner: TableFunctionCall, arguments: list[list[Token]]
    ) -> TableFunctionCall:
        if inner.as_at is not None:
            raise self._syntax_error("as_at occurs twice", "as_at", function)
        if len(arguments) != 1:
            raise self._syntax_error("as_at requires one time or block", "as_at", function)
        return replace(inner, as_at=self._time("as_at", arguments[0], function))

    def _state(
        self, function: Token, name: str, inner: TableFunctionCall, arguments: list[list[Token]]
    ) -> TableFunctionCall:
        if inner.state is not None:
            other = inner.state.replace(" ", "_")
            raise self._syntax_error(f"{name} and {other} cannot be combined", name, function)
        if name == "changelog":
            if arguments:
                raise self._syntax_error("changelog accepts only a dataset", name, function)
            return replace(inner, state="changelog")
        if name == "current":
            return replace(inner, state="current", key=self._key(name, arguments, function))
        if not arguments:
            raise self._syntax_error("as_of requires a time", name, function)
        time = self._time(name, arguments[0], function)
        return replace(inner, state="as of", as_of=time, key=self._key(name, arguments[1:], function))

    def _time(self, function: str, argument: list[Token], before: Token) -> str:
        typed = len(argument) == 2 and argument[0].text.upper() in _TYPES
        value = argument[-1] if argument and (typed or len(argument) == 1) else None
        if value is None or value.kind not in ("string", "word") or (typed and value.kind != "string"):
            problem = f"{function} requires a time as text, not an expression"
            raise self._syntax_error(problem, function, argument[0] if argument else before)
        text = value.text.strip("'\"") if value.kind == "string" else value.text
        time = parse_sql_timestamp(text)
        if time is None and (typed or function == "as_of" or not _BLOCK.fullmatch(text)):
            raise self._syntax_error(f"invalid time '{text}'", function, value)
        return text if time is None else str(time)

    def _key(self, function: str, arguments: list[list[Token]], before: Token) -> tuple[str, ...]:
        for argument in arguments:
            if len(argument) != 1 or argument[0].kind not in ("word", "quoted"):
                problem = f"{function} requires column names"
                raise self._syntax_error(problem, function, argument[0] if argument else before)
        return tuple(argument[0].name for argument in arguments)

    def _syntax_error(self, message: str, function: str, token: Token | None = None) -> InvalidQuery:
        index = min(self._index, len(self._words) - 1)
        line, column = line_and_column(self._sql, (token or self._words[index]).start)
        hint = f"write {_EXAMPLES[function]}"
        return InvalidQuery(message, hint=hint, where=f"query, line {line}, column {column}")


class RewrittenQuery:
    """A query with dataset names in quotes.

    Attributes:
        text: the query for Spark or DuckDB.
        read: names of datasets in table positions, as the query spells them; also names in a WITH clause that
            has the name of a dataset.
        unknown: names that only a dataset can have, and that no dataset has.
        calls: table functions by the names of the tables that replace them.
        files: paths and URLs of files in table positions, of a query for DuckDB.
    """

    def __init__(self, sql: str, dataset_names: Collection[str], *, for_duckdb: bool = False) -> None:
        """Rewrite a query.

        Args:
            sql: the query.
            dataset_names: the names of the datasets.
            for_duckdb: whether it is in the dialect of DuckDB. By default, it is in the dialect of Spark.

        Raises:
            InvalidQuery: the syntax of a table function is invalid; with line and column.
        """
        self._original = sql
        self._sql = sql = _LAST_SEMICOLONS.sub("", sql)
        self._quote = '"' if for_duckdb else "`"
        files = file_names(sql) if for_duckdb else []
        sql = spark_spelling(sql) if for_duckdb else sql  # the positions are the same
        names = {name.casefold() for name in dataset_names}
        words = tokenize(sql)
        tables_found = table_names(sql)
        tables = [source for source in tables_found if source.call is None]
        read = [table for table in tables if table.name.casefold() in names]
        self.read = list(dict.fromkeys(source.name for source in read))
        self.unknown = [table for table in tables if table not in read and set(table.name) & set("-/:")]
        self.unknown = [source for source in self.unknown if not source.quoted]
        self.calls: dict[str, TableFunctionCall] = {}
        edits = [
            (source.start, source.end, self._quoted(source.name)) for source in read if source.needs_quotes
        ]
        self.files = list(dict.fromkeys(file.name for file in files))
        for file in files:
            alias = "" if _has_alias(words, file.end) else f" AS {self._quoted(Path(file.name).stem)}"
            edits.append((file.start, file.end, self._quoted(file.name) + alias))
        edits += [(word.start, word.end, '"offset"') for word in _offset_columns(words) if for_duckdb]
        named = {source.name.casefold() for source in read if source.needs_quotes}
        for source in tables_found:
            if source.call is None:
                continue
            call = parse_table_function(sql, source.call[0])
            self.calls[call.text] = call
            bare = not _has_alias(words, source.alias_start)
            alias = f" AS {self._quoted(source.name)}" if bare else ""
            edits.append((*source.call, self._quoted(call.text) + alias))
            named |= {source.name.casefold()} if bare and set(source.name) & set(".-/:") else set()
        quoted_starts = {source.start for source in read}
        edits += [
            (name.start, name.end, self._quoted(name.name))
            for name in _qualifiers(words, named, quoted_starts)
            if not _in_table_function(name.start, tables_found)
        ]
        self._edits = sorted(edits)
        self.text = self._apply_edits()

    @contextmanager
    def locate_errors(self) -> Iterator[None]:
        """Convert positions of errors in the block to positions in the original query, and add an excerpt."""
        try:
            yield
        except OdfError as error:
            match = _POSITION.search(error.where or "")
            if match is not None:
                line, column = self.original_position(int(match[1]), int(match[2]))
                error.where = f"query, line {line}, column {column}"
            elif isinstance(error, InvalidQuery):
                error.where = "query"
            if "second one begins" in error.message:
                error.hint = "run one query at a time"
            error.excerpt = query_excerpt(error, [SqlQueryStep(query=self._original)])
            raise

    def original_position(self, line: int, column: int) -> tuple[int, int]:
        """Return the line and column in the original query of a position in :attr:`text`; all from 1."""
        lines = self.text.split("\n")
        offset = sum(len(previous) + 1 for previous in lines[: line - 1]) + column - 1
        shift = 0
        for start, end, text in self._edits:
            begin = start + shift
            length = len(text)
            if offset < begin:
                break
            if offset < begin + length:
                return line_and_column(self._sql, start)
            shift += length - (end - start)
        return line_and_column(self._sql, offset - shift)

    def position_of(self, name: TableName) -> tuple[int, int]:
        """Return the line and column of a name in :attr:`text`; both from 1."""
        shift = sum(len(text) - (end - start) for start, end, text in self._edits if end <= name.start)
        return line_and_column(self.text, name.start + shift)

    def _quoted(self, name: str) -> str:
        return f"{self._quote}{name.replace(self._quote, 2 * self._quote)}{self._quote}"

    def _apply_edits(self) -> str:
        parts: list[str] = []
        position = 0
        for start, end, text in self._edits:
            parts += [self._sql[position:start], text]
            position = end
        return "".join([*parts, self._sql[position:]])


def _qualifiers(
    words: Sequence[Token], names: Collection[str], excluded_starts: Collection[int]
) -> Iterator[TableName]:
    """Yield dataset names used as qualifiers of columns."""
    for index, token in enumerate(words):
        if token.kind != "word" or token.start in excluded_starts or (index and words[index - 1].text == "."):
            continue
        # the last part is a column, or several are a column and its fields
        end = qualified_name_end(words, index) - 2
        while end > index:
            name = qualified_name(words, index, end)
            if words[end].text == "." and name.name.casefold() in names:
                yield name
                break
            end -= 2


def _has_alias(words: Sequence[Token], offset: int) -> bool:
    """Return whether a table that ends at this offset has an alias."""
    following = next((word for word in words if word.start >= offset), None)
    if following is None or following.kind not in ("word", "quoted"):
        return False
    return following.kind == "quoted" or following.text.upper() not in TABLE_TERMINATORS


def _in_table_function(offset: int, tables: Sequence[TableName]) -> bool:
    return any(table.call is not None and table.call[0] <= offset < table.call[1] for table in tables)


def _offset_columns(words: Sequence[Token]) -> Iterator[Token]:
    """Yield each column ``offset`` that is not in quotes, unlike the keyword of a clause.

    The word is reserved in DuckDB. The clause follows a complete expression.
    """
    before = Token("sign", "(", 0, 0)
    for word in words:
        if word.kind == "word" and word.text.lower() == "offset":
            is_operator = before.kind == "sign" and before.text not in ").]"
            if is_operator or before.text.upper() in _EXPECT_EXPRESSION:
                yield word
        before = word
