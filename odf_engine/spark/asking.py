"""Queries that a person asks over datasets by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.sql import types as st

from odf_engine.errors import InvalidQuery, InvalidSchema, NotFound, OdfError, UsageError
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.metadata.quoting import excerpt_of, quoting
from odf_engine.metadata.sql_calls import TableCall
from odf_engine.metadata.sql_quoted import Quoted
from odf_engine.metadata.sql_text import TableName, tokens
from odf_engine.spark.casts import identifier
from odf_engine.spark.catalyst import Catalyst
from odf_engine.spark.confinement import check_analysed, tables_of, wrong
from odf_engine.spark.errors import QueryError, translated
from odf_engine.spark.query import only_select
from odf_engine.spark.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Find = Callable[[str], "DataFrame"]
"""The rows of a table by its name; raises NotFound, or what else is wrong with it."""

_PLACE: Final = re.compile(r"line (\d+), column (\d+)")

_COLUMNS: Final = "the columns of a dataset: odf schema NAME; its definition: odf show NAME"
_ELSEWHERE: Final = {
    "DESCRIBE": _COLUMNS,
    "DESC": _COLUMNS,
    "SHOW": "the datasets that a query can read: odf list",
    "EXPLAIN": "ask the query itself: the job's log says what it reads",
}
"""What other statements are for, and how that can be had."""


class Question:
    """One query, as a person wrote it.

    Args:
        sql: the query.
        known: the names of all datasets.

    Raises:
        InvalidQuery: a table function is not written as it has to be.
    """

    def __init__(self, sql: str, known: Collection[str]) -> None:
        self.sql = sql
        with quoting([SqlQueryStep(query=sql)]):
            self._query = Quoted(re.sub(r"(\s*;)+\s*\Z", "", sql), known)

    @property
    def calls(self) -> Mapping[str, TableCall]:
        """What tables stand for that were table functions, by the names that ``find`` is asked for."""
        return self._query.calls

    def ask(self, session: SparkSession, find: Find) -> DataFrame:
        """The result; nothing runs yet.

        Args:
            session: of its own, which the datasets become views of.
            find: gives the rows of a dataset.

        Raises:
            InvalidQuery: no query, a syntax error, an unknown name, types that do not go together.
        """
        first = next((each.text.upper() for each in tokens(self.sql) if each.text != "("), "")
        if first in _ELSEWHERE:
            raise InvalidQuery(f"a query is a SELECT, and this is {first}", hint=_ELSEWHERE[first])
        for each in self._query.unknown:
            _find(find, each.name, lambda error, each=each: self._at(each, error))
        with translated():
            plan = only_select(session, self._query.text, "query")
            _make_views(session, plan, find)
            frame = Catalyst(session).frame(plan)
            check_analysed(session, frame)
            return readable(frame)

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Errors within have their place in the query as it was written, and show it."""
        try:
            yield
        except OdfError as error:
            found = _PLACE.search(error.where or "")
            if found is not None:
                line, column = self._query.place(int(found[1]), int(found[2]))
                error.where = f"query, line {line}, column {column}"
            elif isinstance(error, InvalidQuery):
                error.where = "query"
            if "second one begins" in error.message:
                error.hint = "ask one at a time"
            error.excerpt = excerpt_of(error, [SqlQueryStep(query=self.sql)])
            raise

    def _at(self, name: TableName, error: OdfError) -> QueryError:
        line, column = self._query.place_of(name)
        where = f"line {line}, column {column}"
        return QueryError(error.message, hint=error.hint, where=where, line=line, column=column)


def readable(frame: DataFrame) -> DataFrame:
    """The result with a name of its own for each column, and values that a file of rows can hold."""
    with translated():
        names = unique(frame.columns)
        frame = frame.toDF(*names) if names != frame.columns else frame
        odd = [field.name for field in frame.schema if not _can_be_kept(field)]
        return frame.withColumns({name: sf.col(identifier(name)).cast("string") for name in odd})


def unique(names: Collection[str]) -> list[str]:
    """The names, with ``_2``, ``_3``, … behind one that is there already, whatever its case."""
    taken = {name.casefold() for name in names}
    seen: set[str] = set()
    found: list[str] = []
    for name in names:
        made, number = name, 1
        while made.casefold() in seen or (number > 1 and made.casefold() in taken):
            number += 1
            made = f"{name}_{number}"
        seen.add(made.casefold())
        found.append(made)
    return found


def _can_be_kept(field: st.StructField) -> bool:
    if _holds(field.dataType, st.NullType | st.DayTimeIntervalType):
        return False
    try:
        arrow_schema(st.StructType([field]))
    except InvalidSchema:
        return False
    return True


def _holds(kind: st.DataType, wanted: Any) -> bool:
    if isinstance(kind, st.ArrayType):
        return _holds(kind.elementType, wanted)
    if isinstance(kind, st.MapType):
        return _holds(kind.keyType, wanted) or _holds(kind.valueType, wanted)
    if isinstance(kind, st.StructType):
        return any(_holds(field.dataType, wanted) for field in kind)
    return isinstance(kind, wanted)


def _make_views(session: SparkSession, plan: Any, find: Find) -> None:
    """Makes a view of each dataset that a query names."""
    tables, own = tables_of(session, plan)
    made: set[str] = set()
    for parts, node in tables:
        name = ".".join(parts)
        if name.casefold() in made:
            continue
        if len(parts) > 1:  # a format and a path, or names that no dataset has
            _find(find, name, lambda error, node=node: wrong(node, error.message, error.hint))
        try:
            frame = find(name)
        except NotFound as error:
            if name.casefold() in own:
                continue
            raise wrong(node, error.message, error.hint) from None
        except (InvalidQuery, InvalidSchema, UsageError) as error:
            raise wrong(node, error.message, error.hint) from None
        made.add(name.casefold())
        frame.createOrReplaceTempView(identifier(name))


def _find(find: Find, name: str, placed: Callable[[OdfError], QueryError]) -> None:
    """Says what ``find`` has to say of a name that is no dataset's."""
    try:
        find(name)
    except OdfError as error:
        raise placed(error) from None
