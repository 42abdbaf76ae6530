"""The preprocess step: a query over the rows that were read, with Spark, DataFusion or an external engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import DATAFUSION, engine_version
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.errors import InvalidQuery
from odf_engine.ingest.raw_query import FindEngine, RawQueryEngine, find_built_in_engine
from odf_engine.metadata.model import DEFAULT_VOCABULARY, RawQueryRequest, Sql, SqlQueryStep
from odf_engine.query_process.client import QueryOptions, storable_rows
from odf_engine.query_process.client import run_query as run_in_process
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.plan_rewrite import merge_sessions_first
from odf_engine.spark.query_functions import register_functions
from odf_engine.spark.row_order import has_nondeterministic_order
from odf_engine.spark.sql_types import arrow_schema
from odf_engine.spark.user_query import run_query
from odf_engine.sql.query_text import attach_query_excerpt

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession

INPUT: Final = "input"
_INPUT: Final = "preprocess-input.parquet"
_RESULT: Final = "preprocess-result.parquet"


@dataclass(frozen=True)
class PreprocessedRows:
    """The result of the preprocess step.

    Attributes:
        frame: the rows.
        schema: their columns. Spark has fewer types than DataFusion.
        unordered: the query joins or groups rows, so that their order is not deterministic.
        version: version of the engine that ran the query, or None if it reports none, or without a query.
    """

    frame: DataFrame
    schema: pa.Schema
    unordered: bool = False
    version: str | None = None


class PreprocessContext(NamedTuple):
    """What the preprocess queries of a payload share.

    Attributes:
        session: Spark session.
        folder: for temporary files; the caller removes it.
        memory: memory of DataFusion for rows, in bytes.
        reporter: receives amounts; checked for cancellation.
        find_engine: returns external engines.
        columns: the columns of a result without rows, if an external engine writes no file for it; None if
            they are unknown.
    """

    session: SparkSession
    folder: Path
    memory: int
    reporter: Reporter
    find_engine: FindEngine = find_built_in_engine
    columns: pa.Schema | None = None


def runs_in_session(context: PreprocessContext, step: Sql | None) -> bool:
    """Return whether the Spark session that reads the rows runs a query too, so that it keeps their numbers.

    Raises:
        InvalidQuery: the query is for an unknown engine.
    """
    return step is None or (context.find_engine(step.engine) is None and not _is_datafusion(step))


def _is_datafusion(step: Sql) -> bool:
    return step.engine.lower() == DATAFUSION


def preprocess(context: PreprocessContext, frame: DataFrame, step: Sql | None) -> PreprocessedRows | None:
    """Return the result of the query over ``input``, the rows that were read.

    With Spark nothing runs yet. Other engines run here: the rows are written to a file before and after.

    Args:
        context: the environment of the query.
        frame: the rows that were read.
        step: the query, or None for no query.

    Returns:
        The result, or None if an external engine returned no rows, and the columns are unknown.

    Raises:
        InvalidQuery: the query is for another engine, or invalid.
        BadData: with another engine than Spark, a row cannot be read, or an expression fails.
        Unsupported: DataFusion is not installed.
        SourceUnavailable: an external engine is unreachable.
    """
    if step is None:
        return PreprocessedRows(frame, arrow_schema(frame.schema))
    external = context.find_engine(step.engine)
    steps = steps_of(step)
    with attach_query_excerpt(steps):
        if external is not None:
            return _run_external(external, context, frame, replace(step, query=None, queries=steps))
        if _is_datafusion(step):
            return _run_datafusion(context, frame, steps)
        register_functions(context.session, steps)
        result = merge_sessions_first(run_query(context.session, {INPUT: frame}, steps))
    return PreprocessedRows(
        result, arrow_schema(result.schema), has_nondeterministic_order(result), engine_version(step.engine)
    )


def steps_of(step: Sql) -> list[SqlQueryStep]:
    """Return the steps of a query.

    Raises:
        InvalidQuery: it has both ``query`` and ``queries``, or neither.
    """
    if (step.query is None) == (step.queries is None):
        raise InvalidQuery("a transform requires either query or queries", where="preprocess")
    return step.queries if step.queries is not None else [SqlQueryStep(query=step.query or "")]


def _run_datafusion(
    context: PreprocessContext, frame: DataFrame, steps: Sequence[SqlQueryStep]
) -> PreprocessedRows:
    folder, reporter = context.folder, context.reporter
    read, schema = _write_input(context, frame)
    result = folder / _RESULT
    table = TableFiles(INPUT, [read], schema, DEFAULT_VOCABULARY)
    options = QueryOptions(system_columns=False)
    with run_in_process(steps, [table], folder, context.memory, reporter, options) as rows:
        properties = rows.properties
        schema, batches = storable_rows(rows)
        with pq.ParquetWriter(result, schema) as writer:
            for batch in batches:
                reporter.raise_if_cancelled()
                writer.write_batch(batch)
    read.unlink()
    with translate_errors():
        preprocessed = parquet_frame(context.session, [result])
    is_unordered = not (properties.row_wise or properties.ordered)
    return PreprocessedRows(preprocessed, schema, is_unordered, engine_version(DATAFUSION))


def _run_external(
    engine: RawQueryEngine, context: PreprocessContext, frame: DataFrame, step: Sql
) -> PreprocessedRows | None:
    """Run a query with an external engine. The rows keep the order of its result."""
    result, columns = context.folder / _RESULT, context.columns
    result.unlink(missing_ok=True)  # without the invalid rows of a file, its query runs again
    read, _ = _write_input(context, frame)
    context.reporter.phase("query")
    version = engine.run_raw_query(RawQueryRequest([str(read)], step, str(result)), context.reporter).version
    read.unlink()
    schema = None
    if not result.exists():
        if columns is None:
            return None
        schema = columns
        pq.write_table(schema.empty_table(), result)
    with translate_errors():
        preprocessed = parquet_frame(context.session, [result])
    if schema is None:
        schema = arrow_schema(preprocessed.schema)
    return PreprocessedRows(preprocessed, schema, version=version)


def _write_input(context: PreprocessContext, frame: DataFrame) -> tuple[Path, pa.Schema]:
    """Write the rows that were read to a Parquet file; return the file and its schema."""
    path = context.folder / _INPUT
    schema, batches = arrow_batches(frame, context.reporter)
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path, schema
