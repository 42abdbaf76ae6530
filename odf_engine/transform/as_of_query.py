"""Queries with as-of joins, made ready: cut at the joins, and what comes after as rows or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyarrow import types

from odf_engine.metadata.model import Sql
from odf_engine.spark.as_of import JOINED, AsOfQuery, joined_schema
from odf_engine.spark.casts import identifier
from odf_engine.spark.errors import translated
from odf_engine.spark.fingerprint import fingerprint
from odf_engine.spark.origins import OPERATION, POSITION, NeedsState, check_repeatable
from odf_engine.spark.query import run_query
from odf_engine.spark.slices import plain_schema, slices_frame
from odf_engine.spark.stateful import Stateful, stateful
from odf_engine.spark.streams import Streams
from odf_engine.spark.temporal import tables_of
from odf_engine.spark.types import arrow_schema
from odf_engine.transform.contract import QueryInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Prepared(NamedTuple):
    """A query that was cut at its joins.

    Attributes:
        as_of: its parts.
        query: what comes after the joins; of a query that goes row by row only the columns.
        by_row: whether what comes after the joins goes row by row.
    """

    as_of: AsOfQuery
    query: Stateful
    by_row: bool


def prepared(
    session: SparkSession,
    streams: Streams,
    transform: Sql,
    inputs: Sequence[QueryInput],
    event_time: str,
    changing: set[str],
) -> Prepared:
    """The query over streams without rows.

    Args:
        session: the job's own, which ``streams`` belongs to.
        streams: makes the streams.
        transform: the query.
        inputs: what it reads, in the order of declaration.
        event_time: what the result calls its event time.
        changing: inputs that bring retractions or corrections this time.

    Raises:
        InvalidQuery, Unsupported: the query cannot be run.
    """
    schemas = {each.alias: plain_schema(each.schema, each.vocab) for each in inputs}
    vocabs = {each.alias: each.vocab for each in inputs}
    columns = {each.alias: (each.schema.names, each.vocab) for each in inputs}
    tables = tables_of(transform.temporal_tables or [], columns)
    nothing = {each.alias: input_frame(session, [], each) for each in inputs}
    for table in tables.values():
        nothing[table.name].createOrReplaceTempView(identifier(table.view))
    views = {each.alias: streams.view(at, schemas[each.alias], each.vocab) for at, each in enumerate(inputs)}
    frame = run_query(session, views, transform.queries or [], tables)
    check_repeatable(frame, "query")
    as_of = AsOfQuery(session, frame, vocabs, tables)
    try:
        rows = as_of.follow_rest(nothing).frame.drop(POSITION, OPERATION)
        return Prepared(as_of, Stateful(rows, "append", (), {}, exact=False, by_commit=False), by_row=True)
    except NeedsState:
        joined = {
            join.view: streams.view(at, arrow_schema(joined_schema(join)), JOINED)
            for at, join in enumerate(as_of.joins, len(inputs))
        }
    rest = as_of.rest(joined)
    query = stateful(session, rest, as_of.inputs, event_time, {*changing, *joined}, as_of.system)
    return Prepared(as_of, query, by_row=False)


def input_frame(session: SparkSession, paths: Sequence[Path], input: QueryInput) -> DataFrame:
    """Rows of an input, with the types that they have as a stream."""
    frame = slices_frame(session, paths, input.schema, input.vocab)
    time = input.vocab.event_time_column
    if types.is_date(input.schema.field(time).type):
        frame = frame.withColumn(time, frame[identifier(time)].cast("timestamp"))
    return frame


def fingerprint_as_of(
    session: SparkSession, streams: Streams, query: Prepared, inputs: Sequence[QueryInput]
) -> str:
    """What the state of such a query depends on, as text: the joins and what comes before them, and what
    keeps something after them.

    Args:
        session, streams, inputs: as for :func:`prepared`.
        query: what that gave.
    """
    as_of = query.as_of
    joined = {
        join.view: streams.view(at, arrow_schema(joined_schema(join)), JOINED)
        for at, join in enumerate(as_of.joins, len(inputs))
    }
    parts = [f"rows {query.by_row}"]
    with translated():
        for at, join in enumerate(as_of.joins):
            parts += as_of.described(join)
            parts.append(fingerprint(session, as_of.rows(at, joined), whole=True))
        if not query.by_row:
            parts.append(fingerprint(session, as_of.rest(joined), whole=query.query.mode == "update"))
    return "\n".join(parts)
