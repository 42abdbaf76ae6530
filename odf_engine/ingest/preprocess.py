"""The preprocess step: a query over the rows that were read, with Spark or DataFusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import DATAFUSION
from odf_engine.data.parquet.slices import TableFiles
from odf_engine.datafusion.client import QueryOptions, storable_rows
from odf_engine.datafusion.client import run_query as run_in_process
from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import DEFAULT_VOCABULARY, Sql, SqlQueryStep
from odf_engine.spark.arrow_batches import arrow_batches
from odf_engine.spark.errors import translate_errors
from odf_engine.spark.parquet_files import parquet_frame
from odf_engine.spark.plan_rewrite import merge_sessions_first
from odf_engine.spark.query_functions import register_functions
from odf_engine.spark.row_order import has_nondeterministic_order
from odf_engine.spark.sql_types import arrow_schema
from odf_engine.spark.user_query import run_query
from odf_engine.sql.query_text import attach_query_excerpt
from odf_engine.workspace.definitions.query_check import check_preprocess_engine

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession

INPUT: Final = "input"


@dataclass(frozen=True)
class PreprocessedRows:
    """The result of the preprocess step.

    Attributes:
        frame: the rows.
        schema: their columns. Spark has fewer types than DataFusion.
        unordered: the query joins or groups rows, so that their order is not deterministic.
    """

    frame: DataFrame
    schema: pa.Schema
    unordered: bool = False


def is_datafusion(step: Sql | None) -> bool:
    """Return whether a preprocess query is for DataFusion."""
    return step is not None and step.engine.lower() == DATAFUSION


def preprocess(
    session: SparkSession, frame: DataFrame, step: Sql | None, folder: Path, memory: int, reporter: Reporter
) -> PreprocessedRows:
    """Return the result of the query over ``input``, the rows that were read.

    With Spark nothing runs yet. DataFusion runs here: the rows are written to a file before and after.

    Args:
        session: Spark session.
        frame: the rows that were read.
        step: the query, or None for no query.
        folder: for temporary files; the caller removes it.
        memory: memory of DataFusion for rows, in bytes.
        reporter: receives amounts; checked for cancellation.

    Raises:
        InvalidQuery: the query is for another engine, or invalid.
        BadData: with DataFusion, a row cannot be read, or an expression fails.
        Unsupported: DataFusion is not installed.
    """
    if step is None:
        return PreprocessedRows(frame, arrow_schema(frame.schema))
    check_preprocess_engine(step.engine)
    steps = steps_of(step)
    with attach_query_excerpt(steps):
        if is_datafusion(step):
            return _run_datafusion(session, frame, steps, folder, memory, reporter)
        register_functions(session, steps)
        result = merge_sessions_first(run_query(session, {INPUT: frame}, steps))
    return PreprocessedRows(result, arrow_schema(result.schema), has_nondeterministic_order(result))


def steps_of(step: Sql) -> list[SqlQueryStep]:
    """Return the steps of a query.

    Raises:
        InvalidQuery: it has both ``query`` and ``queries``, or neither.
    """
    if (step.query is None) == (step.queries is None):
        raise InvalidQuery("a transform requires either query or queries", where="preprocess")
    return step.queries if step.queries is not None else [SqlQueryStep(query=step.query or "")]


def _run_datafusion(
    session: SparkSession,
    frame: DataFrame,
    steps: Sequence[SqlQueryStep],
    folder: Path,
    memory: int,
    reporter: Reporter,
) -> PreprocessedRows:
    read, result = folder / "preprocess-input.parquet", folder / "preprocess-result.parquet"
    schema, batches = arrow_batches(frame, reporter)
    with pq.ParquetWriter(read, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    table = TableFiles(INPUT, [read], schema, DEFAULT_VOCABULARY)
    with run_in_process(steps, [table], folder, memory, reporter, QueryOptions(system_columns=False)) as rows:
        properties = rows.properties
        schema, batches = storable_rows(rows)
        with pq.ParquetWriter(result, schema) as writer:
            for batch in batches:
                reporter.raise_if_cancelled()
                writer.write_batch(batch)
    read.unlink()
    with translate_errors():
        preprocessed = parquet_frame(session, [result])
    return PreprocessedRows(preprocessed, schema, not (properties.row_wise or properties.ordered))
