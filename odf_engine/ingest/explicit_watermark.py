"""Watermarks that a user sets: a block without rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from odf_engine.base.config import Config, parse_size
from odf_engine.base.progress import Reporter
from odf_engine.chain.schema_evolution import declare_schema
from odf_engine.data.odf_schema import columns_of_step
from odf_engine.data.schema_enforcement import finest_timestamp_unit
from odf_engine.errors import NotTrusted
from odf_engine.ingest.preprocess import PreprocessContext, preprocess
from odf_engine.ingest.result_schema import column_attributes, drop_column, operation_column, result_schema
from odf_engine.metadata.model import AddData, AddPushSource, MetadataEvent, SetPollingSource
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.sql_types import spark_schema
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import accepts_operations
from odf_engine.workspace.definitions.query_check import is_external
from odf_engine.workspace.documents.private_source import local_state
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.chain.state import ChainState
    from odf_engine.spark import SparkSession
    from odf_engine.spark.runtime.session import SparkRuntime

END_OF_TIME: Final = Timestamp.parse("9999-12-31T00:00:00Z")
"""Watermark of a dataset that is complete."""


def set_watermark(
    workspace: Workspace, entry: DatasetEntry, watermark: Timestamp, runtime: SparkRuntime, reporter: Reporter
) -> None:
    """Commit a watermark. A dataset without rows then is an empty table: its columns are committed too.

    Raises:
        OdfError: nothing was committed.
    """
    state = entry.dataset.state()
    events: list[MetadataEvent] = []
    if not state.has_schema:
        events += _declare_columns(workspace, entry, local_state(entry.dataset), runtime, reporter)
    if state.watermark is None or watermark > state.watermark:
        events.append(_watermark_event(state, watermark))
    elif watermark < state.watermark:
        reporter.warn(
            f"watermark {watermark} is ignored: the dataset has the later watermark {state.watermark},"
            " and a watermark never decreases",
            "ignored-option",
        )
    else:
        reporter.log(f"the watermark is already {watermark}")
    if not events:
        return
    reporter.phase("commit")
    reporter.raise_if_warned()
    head = entry.dataset.commit(
        events,
        system_time=max(Timestamp.now(), state.system_time),
        expected_head=state.head,
        block_version=workspace.config.block_version,
    )
    is_set = isinstance(events[-1], AddData)
    reporter.log(f"watermark set to {watermark}" if is_set else "columns declared")
    reporter.committed(str(entry.id), str(head), "AddData" if is_set else "SetDataSchema", 0)


def complete_static_dataset(
    workspace: Workspace, entry: DatasetEntry, runtime: SparkRuntime, reporter: Reporter
) -> None:
    """Set the watermark of a dataset with the setting ``watermark.static`` to the end of time.

    Raises:
        OdfError: nothing was committed.
    """
    is_static = workspace.config.watermark.is_static(str(entry.alias), str(entry.id))
    state = entry.dataset.state()
    if is_static and (state.watermark is None or state.watermark < END_OF_TIME):
        set_watermark(workspace, entry, END_OF_TIME, runtime, reporter)


def _watermark_event(state: ChainState, watermark: Timestamp) -> AddData:
    checkpoint = state.last_checkpoint
    return AddData(
        prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
        prev_offset=state.last_offset,
        new_checkpoint=checkpoint,
        new_watermark=watermark,
        new_source_state=state.source_state,
    )


def _declare_columns(
    workspace: Workspace, entry: DatasetEntry, state: ChainState, runtime: SparkRuntime, reporter: Reporter
) -> list[MetadataEvent]:
    """Return the event that declares the columns of the first rows, or [] if they are unknown."""
    sources = [state.polling_source, *state.push_sources.values()]
    source = next(
        (item for item in sources if item is not None and columns_of_step(item.read)),
        None,
    )
    if source is None:
        reporter.log("the columns are unknown: no source declares them, so queries wait for the first rows")
        return []
    if source.preprocess is not None:
        if is_external(source.preprocess.engine, workspace.config.engines):
            reporter.log("the columns are unknown: an external engine returns them, so queries wait for rows")
            return []
        try:
            Trust(workspace).require_trust(entry)
        except NotTrusted as error:
            reporter.log(f"the columns are unknown: {error.message}, so queries wait for the first rows")
            return []
    with job_scratch_folder(workspace.odf / "cache") as folder:
        schema = _first_schema(source, state, runtime.session(), folder, workspace.config, reporter)
    is_odf = workspace.config.metadata.data_schema == "odf"
    described = column_attributes(state, source, workspace.config)
    return [declare_schema(schema, None, odf=is_odf, described=described)]


def _first_schema(
    source: SetPollingSource | AddPushSource,
    state: ChainState,
    session: SparkSession,
    folder: Path,
    config: Config,
    reporter: Reporter,
) -> pa.Schema:
    """Return the schema of the first slice, from the source applied to no rows."""
    columns = columns_of_step(source.read)
    assert columns is not None
    frame = session.createDataFrame([], spark_schema(columns))
    memory = parse_size(config.datafusion.memory)
    result = preprocess(PreprocessContext(session, folder, memory, reporter), frame, source.preprocess)
    assert result is not None
    vocab = state.vocabulary
    operations = operation_column(result.schema.names, vocab) if accepts_operations(source) else None
    return result_schema(
        drop_column(result.schema, operations),
        drop_column(columns, operations) if source.preprocess is None else None,
        None,
        vocab,
        finest_timestamp_unit(columns.types),
        config.metadata.system_columns,
    )
