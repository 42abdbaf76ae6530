"""Plans and input frames of queries with state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow.parquet as pq
from pyarrow import types

from odf_engine.data.parquet.parquet_reader import parquet_errors
from odf_engine.engines.contract import QueryInput
from odf_engine.engines.stateful.checkpoint import (
    CheckpointMetadata,
    read_checkpoint_metadata,
    require_present_rules,
)
from odf_engine.metadata.model import DatasetVocabulary, Sql, TransformRequest
from odf_engine.spark.readers import query_schema, slices_frame
from odf_engine.spark.sql_types import identifier
from odf_engine.spark.stateful.stateful_query import StreamingPlan, StreamPlanner, stream_view
from odf_engine.spark.user_query import run_query

if TYPE_CHECKING:
    from odf_engine.spark import DataFrame, SparkSession


SMALL_ROWS: Final = 20_000
"""Rows that one task processes sooner than Spark compiles the query and starts several tasks."""
_SMALL_SLICES: Final = 200
_INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_PLANS: Final[dict[tuple[str | bytes, ...], StreamingPlan]] = {}
"""Plans of recent queries, which depend on the query and the schemas of its inputs."""
_MAX_PLANS: Final = 256


class QuerySource(NamedTuple):
    """The result of a query over streaming views: ``frame``, ``inputs`` and ``system`` of
    :class:`StreamPlanner`.
    """

    frame: DataFrame
    inputs: Mapping[str, DatasetVocabulary]
    system: Mapping[int, str] | None = None


def input_streams(session: SparkSession, inputs: Sequence[QueryInput]) -> dict[str, DataFrame]:
    """Return the inputs of a query as streams without rows, whose plan alone is used."""
    return {
        input.alias: stream_view(session, index, query_schema(input.schema, input.vocab), input.vocab)
        for index, input in enumerate(inputs)
    }


def plan_query(
    session: SparkSession, transform: Sql, inputs: Sequence[QueryInput], time: str
) -> tuple[StreamingPlan, QuerySource]:
    """Return the plan of a stateful query without as-of joins, and its result over streaming views.

    Args:
        session: session of the job.
        transform: the query.
        inputs: its inputs, in the order of declaration.
        time: event time column of the result.

    Raises:
        InvalidQuery, Unsupported: the query is invalid or not supported.
    """
    steps = transform.queries or []
    frame = run_query(session, input_streams(session, inputs), steps)
    vocabs = {input.alias: input.vocab for input in inputs}
    key = (
        msgspec.json.encode(steps),
        time,
        *(f"{input.alias} {input.vocab} {input.schema}" for input in inputs),
    )
    plan = _PLANS.get(key)
    if plan is None:
        plan = StreamPlanner(session, vocabs, time).plan_query(frame)
        if len(_PLANS) == _MAX_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan
    return plan, QuerySource(frame, vocabs)


def interpret_queries(session: SparkSession) -> None:
    """Let Spark interpret the queries of a session instead of compiling them: faster for few rows."""
    for name, value in _INTERPRETED.items():
        session.conf.set(name, value)


def has_few_rows(paths: Sequence[Path]) -> bool:
    """Return whether Spark interprets a query over these slices sooner than it compiles it.

    Raises:
        NotFound, BadData: a slice is missing or damaged.
    """
    if len(paths) > _SMALL_SLICES:
        return False
    try:
        return sum(pq.read_metadata(path).num_rows for path in paths) <= SMALL_ROWS
    except parquet_errors():
        return False  # the query reports it


def matching_checkpoint(request: TransformRequest) -> CheckpointMetadata | None:
    """Return the checkpoint's metadata if it belongs to exactly this query; else None.

    Raises:
        StateUnusable: an earlier version of the engine wrote the checkpoint.
        BadData, Unsupported: the checkpoint cannot be read.
    """
    path = request.prev_checkpoint_path
    metadata = None if path is None else read_checkpoint_metadata(Path(path))
    if path is None or metadata is None or metadata.query != query_hash(request):
        return None
    require_present_rules(metadata, path)
    return metadata


def query_hash(request: TransformRequest) -> str:
    """Return the hash of the query and its inputs, which identifies the owner of a state."""
    steps = msgspec.json.encode(request.transform.queries or [], order="sorted")
    if request.transform.temporal_tables:
        steps += msgspec.json.encode(request.transform.temporal_tables, order="sorted")
    aliases = [f"{input.dataset_id} {input.query_alias}" for input in request.query_inputs]
    return hashlib.sha3_256(b"\n".join([steps, *map(str.encode, aliases)])).hexdigest()


def input_views(session: SparkSession, request: TransformRequest) -> dict[str, DataFrame]:
    """Return the rows of the inputs of a transaction, by their alias."""
    return {
        input.query_alias: slices_frame(
            session, list(map(Path, input.data_paths)), pq.read_schema(input.schema_file), input.vocab
        )
        for input in request.query_inputs
    }


def input_frame(session: SparkSession, paths: Sequence[Path], input: QueryInput) -> DataFrame:
    """Return the rows of an input, with the types of a stream."""
    frame = slices_frame(session, paths, input.schema, input.vocab)
    time = input.vocab.event_time_column
    if types.is_date(input.schema.field(time).type):
        frame = frame.withColumn(time, frame[identifier(time)].cast("timestamp"))
    return frame
