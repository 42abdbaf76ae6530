"""Queries that people wrote: one SELECT a step, over the views that they were given and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import ParseException, PySparkException

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import SqlQueryStep
from odf_engine.spark.casts import identifier
from odf_engine.spark.catalyst import Catalyst
from odf_engine.spark.confinement import check_analysed, check_confined
from odf_engine.spark.errors import QueryError, explain, translated
from odf_engine.spark.temporal import HOW, Table, has_clause, quoted, with_conditions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run_query(
    session: SparkSession,
    views: Mapping[str, DataFrame],
    steps: Sequence[SqlQueryStep],
    tables: Mapping[str, Table] | None = None,
) -> DataFrame:
    """The result of a query of one or more steps; nothing runs yet.

    Every step sees the views and the steps before it by their aliases; the last one, which has no
    alias, is the result.

    Args:
        session: the job's own, which the views belong to.
        views: frames by the name that the query uses.
        steps: in order.
        tables: the temporal tables by their names in small letters; each has a view of its own
            (:attr:`Table.view`) that stands for it where it is joined as of a time.

    Raises:
        InvalidQuery: no single SELECT, a syntax error, an unknown name, types that do not go
            together; with line and column (see :class:`odf_engine.spark.errors.QueryError`).
    """
    _check_aliases(views, steps)
    known = list(views)
    with translated():
        for name, frame in views.items():
            frame.createOrReplaceTempView(identifier(name))
    *others, last = steps
    for number, step in enumerate(others, 1):
        place = f"query step {number} of {len(steps)}"
        frame = _step(session, step, place, known, tables or {})
        with translated():
            frame.createOrReplaceTempView(identifier(str(step.alias)))
        known.append(str(step.alias))
    place = f"query step {len(steps)} of {len(steps)}" if others else "query"
    return _step(session, last, place, known, tables or {})


def _check_aliases(views: Mapping[str, DataFrame], steps: Sequence[SqlQueryStep]) -> None:
    if not steps:
        raise InvalidQuery("the query has no steps", hint="write `query:` or `queries:`")
    *others, last = steps
    if last.alias is not None:
        raise InvalidQuery(
            f"the last step of the query has the alias `{last.alias}`, so nothing is the result",
            hint="take its alias away",
        )
    taken = {name.lower() for name in views}
    for number, step in enumerate(others, 1):
        if step.alias is None:
            raise InvalidQuery(
                f"step {number} of the query has no alias, so later steps cannot see it",
                hint="give it an `alias`; only the last step has none",
            )
        if step.alias.lower() in taken:
            raise InvalidQuery(f"the alias `{step.alias}` of step {number} is taken", hint="choose another")
        taken.add(step.alias.lower())


def _step(
    session: SparkSession, step: SqlQueryStep, place: str, known: Sequence[str], tables: Mapping[str, Table]
) -> DataFrame:
    query = re.sub(r"(\s*;)+\s*\Z", "", step.query)
    try:
        if has_clause([step]):
            plan = only_select(session, quoted(query), place)
            check_confined(session, plan, known, clauses=True)
            plan = with_conditions(session, plan, tables, known)
            check_confined(session, plan, [*known, *(table.view for table in tables.values())])
        else:
            plan = only_select(session, query, place)
            check_confined(session, plan, known)
        frame = Catalyst(session).frame(plan)
        check_analysed(session, frame)
        return frame
    except (PySparkException, QueryError) as error:
        wrong = explain(error) if isinstance(error, PySparkException) else error
        where = f"{place}, {wrong.where}" if isinstance(wrong, QueryError) and wrong.where else place
        wrong.where = where
        if "time travel" in wrong.message:
            wrong.message = (
                "FOR SYSTEM_TIME AS OF names a column, the event time of the rows, and no other time"
            )
            wrong.hint = HOW
        if wrong.hint is None and "no table or view" in wrong.message:
            wrong.hint = f"the query sees {', '.join(f'`{name}`' for name in known)}"
        raise wrong from (None if wrong is error else error)


def only_select(session: SparkSession, query: str, place: str) -> Any:
    """The plan of what Spark's grammar calls a query; a command is refused by name.

    The plan is the one to run: parsed again, the text could mean something else than what was checked.

    Raises:
        InvalidQuery: a command.
        ParseException: a syntax error.
    """
    java_session: Any = session._jsparkSession
    parser = java_session.sessionState().sqlParser()
    try:
        parser.parseQuery(query)
        return parser.parsePlan(query)  # it keeps the text, which errors show
    except ParseException as error:
        try:
            parser.parsePlan(query)
        except ParseException:
            raise error from None
        verb = (re.findall(r"\w+", query) or ["it"])[0].upper()
        raise InvalidQuery(
            f"only a single SELECT is allowed, and this is {verb}",
            where=place,
            hint="a query gives rows; it cannot change settings, tables or files",
        ) from None
