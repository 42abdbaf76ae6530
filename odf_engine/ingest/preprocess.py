"""Preprocess phase: the manifest's own query over what was read (specification: Transform)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import Sql, SqlQueryStep, Transform
from odf_engine.metadata.quoting import quoting
from odf_engine.spark.query import run_query

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

ENGINES: Final = ("spark",)
INPUT: Final = "input"


def preprocess(session: SparkSession, frame: DataFrame, step: Transform | None) -> DataFrame:
    """The result of the query; ``input`` in it is what was read. Nothing runs yet.

    Raises:
        InvalidQuery: another engine, a syntax error, an unknown column, …
    """
    if step is None:
        return frame
    if step.engine.lower() not in ENGINES:
        raise InvalidQuery(
            f"the preprocess query is for the engine '{step.engine}', which is not here",
            where="preprocess",
            hint=f"engines: {', '.join(ENGINES)}. Set engine: spark and write the query in Spark SQL",
        )
    steps = steps_of(step)
    with quoting(steps):
        return run_query(session, {INPUT: frame}, steps)


def steps_of(step: Sql) -> list[SqlQueryStep]:
    """The steps of a query, however it was written.

    Raises:
        InvalidQuery: it has both ``query`` and ``queries``, or neither.
    """
    if (step.query is None) == (step.queries is None):
        raise InvalidQuery("a transform has either query or queries", where="preprocess")
    return step.queries if step.queries is not None else [SqlQueryStep(query=step.query or "")]
