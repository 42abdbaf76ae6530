"""Table functions of queries: a dataset as it was, or what its changelog amounts to.

In FROM, where the name of a dataset may stand::

    as_at(dataset, TIMESTAMP '2024-03-05 10:00:00')   what was known of it at a system time, or at a block
    as_of(dataset, '2024-03-05', key, …)              what had happened until an event time
    current(dataset, key, …)                          the newest row of each key
    changelog(dataset)                                all rows, whatever is said of all datasets

``as_at`` goes together with one of the others, whichever stands inside. Times without a zone are in UTC.
A system time and an event time that are given for all datasets count where the query says nothing of the
same kind: ``current(dataset)`` is of what was known at the system time of all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from odf_engine.errors import InvalidQuery, UsageError
from odf_engine.metadata.moments import moment_of
from odf_engine.metadata.sql_text import Token, chain_end, is_call, name_of, place_of, tokens
from odf_engine.metadata.timestamp import Timestamp

State = Literal["changelog", "current", "as of"]
"""What of a changelog a table shows."""

_TYPES: Final = ("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "DATE")
_EXAMPLES: Final[dict[str, str]] = {
    "as_at": "as_at(name, timestamp '2024-03-05 10:00:00'), or a block in place of the time",
    "as_of": "as_of(name, timestamp '2024-03-05 10:00:00')",
    "current": "current(name), or current(name, key, …)",
    "changelog": "changelog(name)",
}


@dataclass(frozen=True)
class TableCall:
    """What a query wants to see of a dataset.

    Attributes:
        text: the functions, in one way of writing them; what the table is called for Spark.
        dataset: its name or id.
        as_at: a system time (RFC 3339) or a block; None when nothing was said.
        state: None when nothing was said.
        as_of: an event time (RFC 3339), with the state ``as of``.
        key: the columns that tell rows apart; empty for those of the dataset.
    """

    text: str
    dataset: str
    as_at: str | None = None
    state: State | None = None
    as_of: str | None = None
    key: tuple[str, ...] = ()


def moment(text: str) -> Timestamp | None:
    """A time as people and SQL write it, in UTC where it has no zone; None when it is none."""
    try:
        return moment_of(text)
    except UsageError:
        return None


def read_call(sql: str, start: int) -> TableCall:
    """Reads the table functions that begin at a character of a query.

    Raises:
        InvalidQuery: they are not written as they have to be; with line and column.
    """
    words = tokens(sql)
    at = next(number for number, each in enumerate(words) if each.start == start)
    return _Reader(sql, words, at).call()


class _Reader:
    """Reads words from ``at`` on."""

    def __init__(self, sql: str, words: Sequence[Token], at: int) -> None:
        self._sql = sql
        self._words = words
        self._at = at

    def call(self) -> TableCall:
        function = self._words[self._at]
        name = function.text.lower()
        self._at += 2
        inner = self.call() if is_call(self._words, self._at) else self._dataset(name)
        arguments = self._arguments(name)
        if name == "as_at":
            made = self._as_at(function, inner, arguments)
        else:
            made = self._state(function, name, inner, arguments)
        said = [] if name == "changelog" else [made.as_at] if name == "as_at" else [made.as_of, *made.key]
        text = ", ".join([inner.text, *(each for each in said if each)])
        return replace(made, text=f"{name}({text})")

    def _dataset(self, function: str) -> TableCall:
        if self._at >= len(self._words) or self._words[self._at].kind not in ("word", "quoted"):
            raise self._wrong(f"{function} wants the name of a dataset", function)
        end = chain_end(self._words, self._at)
        name = name_of(self._words, self._at, end).name
        self._at = end
        return TableCall(name, name)

    def _arguments(self, function: str) -> list[list[Token]]:
        """What stands between commas, up to the bracket that closes."""
        found: list[list[Token]] = []
        depth = 0
        while self._at < len(self._words):
            token = self._words[self._at]
            if token.text == ")" and not depth:
                self._at += 1
                return found
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if token.text == "," and not depth:
                found.append([])
            elif not found:
                raise self._wrong(f"a comma was to come here, or the end of {function}", function)
            else:
                found[-1].append(token)
            self._at += 1
        raise self._wrong(f"the bracket of {function} is not closed", function)

    def _as_at(self, function: Token, inner: TableCall, arguments: list[list[Token]]) -> TableCall:
        if inner.as_at is not None:
            raise self._wrong("as_at stands there twice", "as_at", function)
        if len(arguments) != 1:
            raise self._wrong("as_at wants one time or block", "as_at", function)
        return replace(inner, as_at=self._time("as_at", arguments[0], function))

    def _state(self, function: Token, name: str, inner: TableCall, arguments: list[list[Token]]) -> TableCall:
        if inner.state is not None:
            other = inner.state.replace(" ", "_")
            raise self._wrong(f"{name} and {other} do not go together", name, function)
        if name == "changelog":
            if arguments:
                raise self._wrong("changelog wants nothing but a dataset", name, function)
            return replace(inner, state="changelog")
        if name == "current":
            return replace(inner, state="current", key=self._key(name, arguments, function))
        if not arguments:
            raise self._wrong("as_of wants a time", name, function)
        at = self._time(name, arguments[0], function)
        return replace(inner, state="as of", as_of=at, key=self._key(name, arguments[1:], function))

    def _time(self, function: str, argument: list[Token], before: Token) -> str:
        typed = len(argument) == 2 and argument[0].text.upper() in _TYPES
        value = argument[-1] if argument and (typed or len(argument) == 1) else None
        if value is None or value.kind not in ("string", "word") or (typed and value.kind != "string"):
            problem = f"{function} wants a time as text, and nothing to compute"
            raise self._wrong(problem, function, argument[0] if argument else before)
        text = value.text.strip("'\"") if value.kind == "string" else value.text
        at = moment(text)
        if at is None and (typed or function == "as_of" or not re.fullmatch(r"\w+", text)):
            raise self._wrong(f"'{text}' is not a time", function, value)
        return text if at is None else str(at)

    def _key(self, function: str, arguments: list[list[Token]], before: Token) -> tuple[str, ...]:
        for each in arguments:
            if len(each) != 1 or each[0].kind not in ("word", "quoted"):
                problem = f"{function} wants names of columns"
                raise self._wrong(problem, function, each[0] if each else before)
        return tuple(each[0].name for each in arguments)

    def _wrong(self, message: str, function: str, token: Token | None = None) -> InvalidQuery:
        at = min(self._at, len(self._words) - 1)
        line, column = place_of(self._sql, (token or self._words[at]).start)
        hint = f"write {_EXAMPLES[function]}"
        return InvalidQuery(message, hint=hint, where=f"query, line {line}, column {column}")
