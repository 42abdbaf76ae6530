"""Every field of a definition either has an effect, which a test shows, or is refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from odf_engine.data.ddl import parse_ddl
from odf_engine.data.slices import slice_schema
from odf_engine.errors import InvalidManifest, OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import descriptors, model
from odf_engine.metadata.descriptors import describe_table
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot
from odf_engine.workspace.definition import current_definition
from odf_engine.workspace.workspace import Workspace
from tests.workspace.test_workspace import assert_no_trace, root

TESTS: Final = Path(__file__).parents[1]
EVENTS: Final = (
    model.SetPollingSource, model.DisablePollingSource, model.AddPushSource, model.DisablePushSource,
    model.SetTransform, model.SetVocab, model.SetDataSchema, model.SetInfo, model.SetLicense,
    model.SetAttachments,
)  # fmt: skip

INPUTS: Final = "workspace/test_workspace.py::test_datasets_of_one_request_may_name_each_other_in_any_order"
NAMES: Final = "workspace/test_ineffective_options.py::test_system_columns_have_the_names_of_the_vocabulary"
USED: Final = {
    "SetPollingSource.fetch": "ingest/test_pull.py::test_append",
    "SetPollingSource.prepare": "ingest/test_bad_input.py::test_truncated_gzip",
    "SetPollingSource.read": "ingest/test_read_options.py::test_dates_and_encodings",
    "SetPollingSource.preprocess": "ingest/test_preprocess.py::test_steps_that_see_each_other",
    "SetPollingSource.merge": "ingest/test_pull.py::test_ledger",
    "Url.url": "ingest/test_http.py::test_local_files",
    "Url.event_time": "ingest/test_http.py::test_event_time_from_the_url",
    "Url.cache": "ingest/test_bad_input.py::test_cached_forever",
    "Url.headers": "ingest/test_http.py::test_variables",
    "RequestHeader.name": "ingest/test_http.py::test_variables",
    "RequestHeader.value": "ingest/test_http.py::test_variables",
    "FromPath.pattern": "ingest/test_event_time.py::test_from_path",
    "FromPath.timestamp_format": "ingest/test_event_time.py::test_from_path",
    "FilesGlob.path": "ingest/test_files_glob.py::test_each_file_once_in_order",
    "FilesGlob.event_time": "ingest/test_files_glob.py::test_order_by_event_time",
    "FilesGlob.cache": "ingest/test_files_glob.py::test_changed_content",
    "FilesGlob.order": "ingest/test_files_glob.py::test_order_by_event_time",
    "Container.image": "ingest/test_container.py::test_the_command_line",
    "Container.command": "ingest/test_container.py::test_the_command_line",
    "Container.args": "ingest/test_container.py::test_the_command_line",
    "Container.env": "ingest/test_container.py::test_variables_are_given_as_the_configuration_allows",
    "EnvVar.name": "ingest/test_container.py::test_variables_are_given_as_the_configuration_allows",
    "EnvVar.value": "ingest/test_container.py::test_variables_are_given_as_the_configuration_allows",
    "Mqtt.host": "ingest/test_mqtt.py::test_brokers_that_do_not_answer",
    "Mqtt.port": "ingest/test_mqtt.py::test_brokers_that_do_not_answer",
    "Mqtt.username": "ingest/test_mqtt.py::test_logins",
    "Mqtt.password": "ingest/test_mqtt.py::test_logins",
    "Mqtt.topics": "ingest/test_mqtt.py::test_a_session_lasts_between_polls",
    "MqttTopicSubscription.path": "ingest/test_mqtt.py::test_a_session_lasts_between_polls",
    "MqttTopicSubscription.qos": "ingest/test_mqtt.py::test_a_session_lasts_between_polls",
    "EthereumLogs.chain_id": "ingest/test_ethereum_logs.py::test_nodes",
    "EthereumLogs.node_url": "ingest/test_ethereum_logs.py::test_nodes",
    "EthereumLogs.filter": "ingest/test_ethereum_logs.py::test_strides_commits_and_resumption",
    "EthereumLogs.signature": "ingest/test_ethereum_logs.py::test_columns",
    "Decompress.format": "ingest/test_prepare.py::test_gzip",
    "Decompress.sub_path": "ingest/test_prepare.py::test_zip",
    "Pipe.command": "ingest/test_prepare.py::test_steps_in_any_order",
    "Csv.schema": "spark/test_read_csv.py::test_names_go_by_position",
    "Csv.separator": "spark/test_read_csv.py::test_separators_quotes_escapes",
    "Csv.encoding": "spark/test_read_csv.py::test_encodings",
    "Csv.quote": "spark/test_read_csv.py::test_separators_quotes_escapes",
    "Csv.escape": "spark/test_read_csv.py::test_separators_quotes_escapes",
    "Csv.header": "spark/test_read_csv.py::test_names_go_by_position",
    "Csv.infer_schema": "spark/test_read_csv.py::test_inferred",
    "Csv.null_value": "spark/test_read_csv.py::test_null_values",
    "Csv.date_format": "spark/test_read_csv.py::test_formats",
    "Csv.timestamp_format": "spark/test_read_csv.py::test_formats",
    "GeoJson.schema": "ingest/test_read_options.py::test_features",
    "NdGeoJson.schema": "ingest/test_read_options.py::test_features",
    "EsriShapefile.schema": "ingest/test_read_options.py::test_shapefile",
    "EsriShapefile.sub_path": "ingest/test_read_options.py::test_shapefile",
    "Parquet.schema": "ingest/test_real_files.py::test_parquet",
    "Json.sub_path": "ingest/test_read_options.py::test_dates_and_encodings",
    "Json.schema": "ingest/test_read_options.py::test_dates_and_encodings",
    "Json.date_format": "ingest/test_read_options.py::test_dates_and_encodings",
    "Json.encoding": "ingest/test_read_options.py::test_dates_and_encodings",
    "Json.timestamp_format": "ingest/test_read_options.py::test_dates_and_encodings",
    "NdJson.schema": "spark/test_read_json.py::test_objects",
    "NdJson.date_format": "spark/test_read_json.py::test_formats",
    "NdJson.encoding": "spark/test_read_json.py::test_encodings_and_marks",
    "NdJson.timestamp_format": "spark/test_read_json.py::test_formats",
    "Sql.engine": "ingest/test_preprocess.py::test_wrong_queries_say_where",
    "Sql.version": "transform/test_evolution.py::test_rows_are_made_by_the_version_that_the_chain_says",
    "Sql.query": "ingest/test_preprocess.py::test_wrong_queries_say_where",
    "Sql.queries": "ingest/test_preprocess.py::test_steps_that_see_each_other",
    "Sql.temporal_tables": "transform/test_as_of.py::test_temporal_tables_are_inputs_with_a_key",
    "SqlQueryStep.alias": "ingest/test_preprocess.py::test_steps_that_see_each_other",
    "SqlQueryStep.query": "ingest/test_preprocess.py::test_steps_that_see_each_other",
    "TemporalTable.name": "transform/test_as_of.py::test_temporal_tables_are_inputs_with_a_key",
    "TemporalTable.primary_key": "transform/test_as_of.py::test_temporal_tables_are_inputs_with_a_key",
    "Ledger.primary_key": "ingest/test_pull.py::test_ledger",
    "Snapshot.primary_key": "ingest/test_pull.py::test_snapshot",
    "Snapshot.compare_columns": "ingest/test_pull.py::test_snapshot_compares_what_it_is_told_to",
    "ChangelogStream.primary_key": "ingest/test_streams.py::test_pushed_streams",
    "UpsertStream.primary_key": "ingest/test_streams.py::test_polled_upserts",
    "AddPushSource.source_name": "ingest/test_push.py::test_from_polling_to_pushing_and_back",
    "AddPushSource.read": "ingest/test_push.py::test_formats",
    "AddPushSource.preprocess": "ingest/test_changelog.py::test_operations_need_an_order",
    "AddPushSource.merge": "ingest/test_push.py::test_formats",
    "DisablePushSource.source_name": "ingest/test_push.py::test_from_polling_to_pushing_and_back",
    "SetTransform.inputs": INPUTS,
    "SetTransform.transform": "transform/test_evolution.py::test_a_new_query_without_state",
    "TransformInput.dataset_ref": INPUTS,
    "TransformInput.alias": INPUTS,
    "SetVocab.offset_column": NAMES,
    "SetVocab.operation_type_column": NAMES,
    "SetVocab.system_time_column": NAMES,
    "SetVocab.event_time_column": NAMES,
    **dict.fromkeys(
        ("Csv.odf_schema", "GeoJson.odf_schema", "NdGeoJson.odf_schema", "EsriShapefile.odf_schema",
         "Parquet.odf_schema", "Json.odf_schema", "NdJson.odf_schema"),
        "ingest/test_odf_schema.py::test_each_reader_takes_the_columns_of_an_odf_schema",
    ),
    "SetDataSchema.odf_schema": "workspace/test_definition_update.py::test_odf_schemas_of_definitions",
    "SetDataSchema.schema": "workspace/test_definition_update.py::test_what_would_break_readers_is_refused",
}  # fmt: skip
"""The fields that change what the engine does, each with a test that shows the effect."""

DESCRIPTIVE: Final = {
    "SetInfo", "SetLicense", "SetAttachments", "Embedded", "AttachmentEmbedded",
}  # fmt: skip
"""Types that describe a dataset for readers. Nothing is computed from them."""


def push(read: Any, **changes: Any) -> DatasetSnapshot:
    source = model.AddPushSource(**{"source_name": "s", "read": read, "merge": model.Append(), **changes})
    return DatasetSnapshot("a", DatasetKind.Root, [source])


TOPIC: Final = model.MqttTopicSubscription("t")
CSV: Final = model.Csv(schema=["id INT"])
TABLES: Final = [model.TemporalTable("input", ["id"])]
REFUSED: Final[list[tuple[str, DatasetSnapshot, type[OdfError]]]] = [
    ("Mqtt.topics", root("a", fetch=model.Mqtt(host="h", port=1, topics=[])), InvalidManifest),
    ("EthereumLogs.filter", root("a", read=model.Parquet(), fetch=model.EthereumLogs(1, filter="a = 1")),
     InvalidManifest),
    ("Mqtt.topics", root("a", read=model.Csv(), fetch=model.Mqtt(host="h", port=1, topics=[TOPIC])),
     InvalidManifest),
    # Fields that have an effect elsewhere.
    ("Decompress.sub_path", root("a", prepare=[model.Decompress(model.CompressionFormat.Gzip, "x.csv")]),
     InvalidManifest),
    ("Pipe.command", root("a", prepare=[model.Pipe([])]), InvalidManifest),
    ("Url.headers", root("a", fetch=model.Url("s3://b/k", headers=[model.RequestHeader("a", "b")])),
     InvalidManifest),
    ("Url.headers", root("a", fetch=model.Url("x.csv", headers=[model.RequestHeader("a", "b")])),
     InvalidManifest),
    ("FilesGlob.order", root("a", fetch=model.FilesGlob("*", order=model.SourceOrdering.ByEventTime)),
     InvalidManifest),
    ("Csv.infer_schema", root("a", read=model.Csv(schema=["id INT"], infer_schema=True)), InvalidManifest),
    ("Sql.version", root("a", preprocess=model.Sql("spark", "3.1", query="SELECT 1 AS id")), InvalidManifest),
    ("Sql.version", push(CSV, preprocess=model.Sql("Spark", "3.1", query="SELECT 1 AS id")), InvalidManifest),
    ("Sql.temporal_tables",
     root("a", preprocess=model.Sql("spark", query="SELECT 1 AS id", temporal_tables=TABLES)),
     InvalidManifest),
]  # fmt: skip


def definition_fields() -> Iterator[str]:
    """Every field that a definition can have, as ``Type.field``; types within an ODF schema excepted."""
    seen: set[type[model.Model]] = {model.DataSchema}
    pending: list[type[model.Model]] = list(EVENTS)
    while pending:
        kind = pending.pop()
        if kind in seen:
            continue
        seen.add(kind)
        for field in describe_table(kind).fields:
            yield f"{kind.__name__}.{field.name}"
            shape = field.shape
            while isinstance(shape, descriptors.VectorType):
                shape = shape.item
            if isinstance(shape, descriptors.TableType):
                pending.append(shape.type)
            elif isinstance(shape, descriptors.UnionType):
                pending += shape.members


@cache
def _source_of(path: str, name: str) -> str:
    """The source of a test, with the constants and helpers of its module."""
    text = (TESTS / path).read_text()
    parts = [
        ast.get_source_segment(text, node) or ""
        for node in ast.parse(text).body
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_") or node.name == name
    ]
    assert f"def {name}(" in "\n".join(parts), f"{path} has no test {name}"
    return "\n".join(parts)


def test_every_field_is_used_or_refused() -> None:
    fields = list(definition_fields())
    refused = {field for field, *_ in REFUSED}
    unproven = [
        field
        for field in fields
        if field.partition(".")[0] not in DESCRIPTIVE and field not in USED.keys() | refused
    ]
    assert not unproven
    assert set(USED) <= set(fields) and refused <= set(fields)


@pytest.mark.parametrize("field", USED)
def test_the_effect_of_a_field_is_tested(field: str) -> None:
    path, name = USED[field].split("::")
    attribute = field.partition(".")[2]
    key = re.sub(r"_(\w)", lambda match: match[1].upper(), attribute)
    kind = field.partition(".")[0]
    positional = rf"\b{kind}\("  # a required field without its name
    assert re.search(rf"\b({attribute}|{key})\b|{positional}", _source_of(path, name)), USED[field]


@pytest.mark.parametrize(
    ("field", "snapshot", "error"), REFUSED, ids=[f"{field}-{at}" for at, (field, *_) in enumerate(REFUSED)]
)
def test_parts_without_an_effect_are_refused(
    workspace: Workspace, field: str, snapshot: DatasetSnapshot, error: type[OdfError]
) -> None:
    with pytest.raises(error) as caught:
        workspace.add([snapshot])
    assert caught.value.where and caught.value.where.startswith("dataset a, ") and caught.value.hint
    assert_no_trace(workspace, 0)
    workspace.add([DatasetSnapshot("a", DatasetKind.Root, [])])
    with pytest.raises(error, match="dataset a, "):
        workspace.update([snapshot])


def test_an_existing_chain_keeps_its_ignored_options(workspace: Workspace) -> None:
    """A definition that repeats them changes nothing, and other parts can change."""
    gzip = model.Decompress(model.CompressionFormat.Gzip, "x.csv")
    (event,) = root("a", prepare=[gzip]).metadata
    entry = workspace.create_dataset(DatasetAlias.parse("a"), DatasetKind.Root, [event])
    snapshot = current_definition(entry)
    assert not workspace.update([snapshot])[0].events
    snapshot.metadata.append(model.SetInfo("text"))
    assert len(workspace.update([snapshot])[0].events) == 1


def test_system_columns_have_the_names_of_the_vocabulary() -> None:
    names = ["offset_column", "operation_type_column", "system_time_column", "event_time_column"]
    vocabulary = model.DatasetVocabulary(**{name: name.upper() for name in names})
    assert slice_schema(parse_ddl(["id INT"]), vocabulary).names == [*map(str.upper, names), "id"]
