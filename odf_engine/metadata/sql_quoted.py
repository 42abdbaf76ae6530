"""A query as Spark reads it: datasets between backquotes, and table functions of them as tables.

People write the name of a dataset as it is, ``port-haven.air-readings``; Spark wants it between backquotes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from odf_engine.metadata.sql_calls import TableCall, read_call
from odf_engine.metadata.sql_text import (
    ENDS_A_TABLE,
    TableName,
    Token,
    chain_end,
    name_of,
    place_of,
    table_names,
    tokens,
)


class Quoted:
    """A query in which names of datasets stand between backquotes.

    Attributes:
        text: the query for Spark.
        unknown: names that only a dataset could have, and none has.
        calls: what tables stand for that were table functions, by the tables' names.
    """

    def __init__(self, sql: str, known: Collection[str]) -> None:
        """``known`` are the names of the datasets.

        Raises:
            InvalidQuery: a table function is not written as it has to be; with line and column.
        """
        self._sql = sql
        names = {name.casefold() for name in known}
        words = tokens(sql)
        found = table_names(sql)
        tables = [each for each in found if each.call is None]
        read = [each for each in tables if each.name.casefold() in names]
        self.unknown = [each for each in tables if each not in read and set(each.name) & set("-/:")]
        self.unknown = [each for each in self.unknown if not each.quoted]
        self.calls: dict[str, TableCall] = {}
        edits = [(each.start, each.end, _backquoted(each.name)) for each in read if each.spelled_out]
        named = {each.name.casefold() for each in read if each.spelled_out}
        for each in found:
            if each.call is None:
                continue
            call = read_call(sql, each.call[0])
            self.calls[call.text] = call
            bare = not _has_alias(words, each.stop)
            edits.append(
                (*each.call, _backquoted(call.text) + (f" AS {_backquoted(each.name)}" if bare else ""))
            )
            named |= {each.name.casefold()} if bare and set(each.name) & set(".-/:") else set()
        taken = {each.start for each in read}
        edits += [each for each in _qualifiers(words, named, taken) if not _within(each[0], found)]
        self._edits = sorted(edits)
        self.text = self._edited()

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Line and column in the query as it was written, of those in :attr:`text`; both from 1."""
        lines = self.text.split("\n")
        at = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1
        shift = 0
        for start, end, text in self._edits:
            begin = start + shift
            length = len(text)
            if at < begin:
                break
            if at < begin + length:
                return place_of(self._sql, start)
            shift += length - (end - start)
        return place_of(self._sql, at - shift)

    def place_of(self, name: TableName) -> tuple[int, int]:
        """Line and column of a name in :attr:`text`; both from 1."""
        shift = sum(len(text) - (end - start) for start, end, text in self._edits if end <= name.start)
        return place_of(self.text, name.start + shift)

    def _edited(self) -> str:
        parts: list[str] = []
        done = 0
        for start, end, text in self._edits:
            parts += [self._sql[done:start], text]
            done = end
        return "".join([*parts, self._sql[done:]])


def _qualifiers(
    words: Sequence[Token], names: Collection[str], taken: Collection[int]
) -> Iterator[tuple[int, int, str]]:
    """Names of datasets before the names of their columns."""
    for at, token in enumerate(words):
        if token.kind != "word" or token.start in taken or (at and words[at - 1].text == "."):
            continue
        end = chain_end(words, at) - 2  # the column is the last part, or fields of it are
        while end > at:
            name = name_of(words, at, end)
            if words[end].text == "." and name.name.casefold() in names:
                yield name.start, name.end, _backquoted(name.name)
                break
            end -= 2


def _has_alias(words: Sequence[Token], stop: int) -> bool:
    """Whether a table that ends at this character gets a name of its own."""
    behind = next((each for each in words if each.start >= stop), None)
    if behind is None or behind.kind not in ("word", "quoted"):
        return False
    return behind.kind == "quoted" or behind.text.upper() not in ENDS_A_TABLE


def _within(at: int, tables: Sequence[TableName]) -> bool:
    return any(each.call is not None and each.call[0] <= at < each.call[1] for each in tables)


def _backquoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
