"""Every field of a definition either has an effect, which a test shows, or is refused."""

# ruff: noqa: E501 (the ids of tests)
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from odf_engine.data.ddl import parse_ddl
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.errors import InvalidManifest, OdfError
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata import descriptors, model
from odf_engine.metadata.descriptors import describe_table
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot
from odf_engine.workspace.definitions.definition import current_definition
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
    "SetPollingSource.fetch": "ingest/test_pull.py::test_append_orders_rows_by_event_time_and_commits_state",
    "SetPollingSource.prepare": "ingest/test_bad_input.py::test_truncated_gzip_is_rejected",
    "SetPollingSource.read": "ingest/test_read_options.py::test_date_formats_and_encodings_apply_to_csv_and_json",
    "SetPollingSource.preprocess": "ingest/test_preprocess.py::test_query_steps_see_the_input_and_earlier_steps",
    "SetPollingSource.merge": "ingest/test_pull.py::test_ledger_adds_only_new_keys",
    "Url.url": "ingest/test_http.py::test_local_file_is_fetched_by_path_or_file_url",
    "Url.event_time": "ingest/test_http.py::test_event_time_is_extracted_from_the_url",
    "Url.cache": "ingest/test_bad_input.py::test_source_with_cache_forever_is_fetched_once",
    "Url.headers": "ingest/test_http.py::test_variables_in_url_and_headers_are_filled_and_hidden",
    "RequestHeader.name": "ingest/test_http.py::test_variables_in_url_and_headers_are_filled_and_hidden",
    "RequestHeader.value": "ingest/test_http.py::test_variables_in_url_and_headers_are_filled_and_hidden",
    "FromPath.pattern": "ingest/test_event_time.py::test_event_time_is_extracted_from_the_path",
    "FromPath.timestamp_format": "ingest/test_event_time.py::test_event_time_is_extracted_from_the_path",
    "FilesGlob.path": "ingest/test_files_glob.py::test_each_file_is_fetched_once_in_name_order",
    "FilesGlob.event_time": "ingest/test_files_glob.py::test_files_are_ordered_by_event_time",
    "FilesGlob.cache": "ingest/test_files_glob.py::test_changed_file_is_skipped_with_a_warning_unless_forced",
    "FilesGlob.order": "ingest/test_files_glob.py::test_files_are_ordered_by_event_time",
    "Container.image": "ingest/test_container.py::test_container_runs_without_shell_and_with_limits",
    "Container.command": "ingest/test_container.py::test_container_runs_without_shell_and_with_limits",
    "Container.args": "ingest/test_container.py::test_container_runs_without_shell_and_with_limits",
    "Container.env": "ingest/test_container.py::test_container_gets_only_allowed_variables",
    "EnvVar.name": "ingest/test_container.py::test_container_gets_only_allowed_variables",
    "EnvVar.value": "ingest/test_container.py::test_container_gets_only_allowed_variables",
    "Mqtt.host": "ingest/test_mqtt.py::test_unresponsive_broker_is_reported",
    "Mqtt.port": "ingest/test_mqtt.py::test_unresponsive_broker_is_reported",
    "Mqtt.username": "ingest/test_mqtt.py::test_login_comes_from_source_or_credentials_and_stays_hidden",
    "Mqtt.password": "ingest/test_mqtt.py::test_login_comes_from_source_or_credentials_and_stays_hidden",
    "Mqtt.topics": "ingest/test_mqtt.py::test_a_session_lasts_between_polls",
    "MqttTopicSubscription.path": "ingest/test_mqtt.py::test_a_session_lasts_between_polls",
    "MqttTopicSubscription.qos": "ingest/test_mqtt.py::test_a_session_lasts_between_polls",
    "EthereumLogs.chain_id": "ingest/test_ethereum_logs.py::test_node_url_comes_from_config_and_keys_stay_hidden",
    "EthereumLogs.node_url": "ingest/test_ethereum_logs.py::test_node_url_comes_from_config_and_keys_stay_hidden",
    "EthereumLogs.filter": "ingest/test_ethereum_logs.py::test_logs_are_fetched_in_ranges_and_resumed_from_state",
    "EthereumLogs.signature": "ingest/test_ethereum_logs.py::test_logs_are_decoded_into_typed_columns",
    "Decompress.format": "ingest/test_prepare.py::test_gzip_members_are_decompressed",
    "Decompress.sub_path": "ingest/test_prepare.py::test_zip_requires_one_file_or_a_matching_sub_path",
    "Pipe.command": "ingest/test_prepare.py::test_prepare_steps_run_in_the_declared_order",
    "Csv.schema": "spark/test_read_csv.py::test_declared_columns_match_by_position",
    "Csv.separator": "spark/test_read_csv.py::test_separator_quote_and_escape_options_apply",
    "Csv.encoding": "spark/test_read_csv.py::test_csv_is_decoded_in_its_encoding",
    "Csv.quote": "spark/test_read_csv.py::test_separator_quote_and_escape_options_apply",
    "Csv.escape": "spark/test_read_csv.py::test_separator_quote_and_escape_options_apply",
    "Csv.header": "spark/test_read_csv.py::test_declared_columns_match_by_position",
    "Csv.infer_schema": "spark/test_read_csv.py::test_column_types_are_inferred",
    "Csv.null_value": "spark/test_read_csv.py::test_null_value_and_unquoted_empty_value_are_null",
    "Csv.date_format": "spark/test_read_csv.py::test_date_and_timestamp_formats_apply",
    "Csv.timestamp_format": "spark/test_read_csv.py::test_date_and_timestamp_formats_apply",
    "GeoJson.schema": "ingest/test_read_options.py::test_geojson_features_become_rows",
    "NdGeoJson.schema": "ingest/test_read_options.py::test_geojson_features_become_rows",
    "EsriShapefile.schema": "ingest/test_read_options.py::test_shapefile_in_an_archive_is_read_with_its_encoding",
    "EsriShapefile.sub_path": "ingest/test_read_options.py::test_shapefile_in_an_archive_is_read_with_its_encoding",
    "Parquet.schema": "ingest/test_real_world_files.py::test_slice_of_a_dataset_is_read_as_parquet",
    "Json.sub_path": "ingest/test_read_options.py::test_date_formats_and_encodings_apply_to_csv_and_json",
    "Json.schema": "ingest/test_read_options.py::test_date_formats_and_encodings_apply_to_csv_and_json",
    "Json.date_format": "ingest/test_read_options.py::test_date_formats_and_encodings_apply_to_csv_and_json",
    "Json.encoding": "ingest/test_read_options.py::test_date_formats_and_encodings_apply_to_csv_and_json",
    "Json.timestamp_format": "ingest/test_read_options.py::test_date_formats_and_encodings_apply_to_csv_and_json",
    "NdJson.schema": "spark/test_read_json.py::test_json_objects_become_rows_and_missing_keys_null",
    "NdJson.date_format": "spark/test_read_json.py::test_date_and_timestamp_formats_apply_at_any_depth",
    "NdJson.encoding": "spark/test_read_json.py::test_json_is_decoded_in_its_encoding",
    "NdJson.timestamp_format": "spark/test_read_json.py::test_date_and_timestamp_formats_apply_at_any_depth",
    "Sql.engine": "ingest/test_preprocess.py::test_invalid_queries_are_reported_with_their_location",
    "Sql.version": "derive/test_query_migration.py::test_run_requires_the_engine_version_of_the_chain",
    "Sql.query": "ingest/test_preprocess.py::test_invalid_queries_are_reported_with_their_location",
    "Sql.queries": "ingest/test_preprocess.py::test_query_steps_see_the_input_and_earlier_steps",
    "Sql.temporal_tables": "derive/test_as_of_join.py::test_temporal_tables_are_inputs_with_a_key",
    "SqlQueryStep.alias": "ingest/test_preprocess.py::test_query_steps_see_the_input_and_earlier_steps",
    "SqlQueryStep.query": "ingest/test_preprocess.py::test_query_steps_see_the_input_and_earlier_steps",
    "TemporalTable.name": "derive/test_as_of_join.py::test_temporal_tables_are_inputs_with_a_key",
    "TemporalTable.primary_key": "derive/test_as_of_join.py::test_temporal_tables_are_inputs_with_a_key",
    "Ledger.primary_key": "ingest/test_pull.py::test_ledger_adds_only_new_keys",
    "Snapshot.primary_key": "ingest/test_pull.py::test_snapshots_are_merged_as_a_changelog",
    "Snapshot.compare_columns": "ingest/test_pull.py::test_snapshot_compares_only_the_declared_columns",
    "ChangelogStream.primary_key": "ingest/test_upsert_and_changelog_streams.py::test_pushed_changelog_and_upsert_streams_are_merged_by_key",
    "UpsertStream.primary_key": "ingest/test_upsert_and_changelog_streams.py::test_polled_upserts_insert_update_and_retract_by_key",
    "AddPushSource.source_name": "ingest/test_push.py::test_dataset_can_switch_between_polling_and_push_sources",
    "AddPushSource.read": "ingest/test_push.py::test_pushed_format_comes_from_file_name_or_option",
    "AddPushSource.preprocess": "ingest/test_changelog.py::test_operations_need_an_order",
    "AddPushSource.merge": "ingest/test_push.py::test_pushed_format_comes_from_file_name_or_option",
    "DisablePushSource.source_name": "ingest/test_push.py::test_dataset_can_switch_between_polling_and_push_sources",
    "SetTransform.inputs": INPUTS,
    "SetTransform.transform": "derive/test_query_migration.py::test_stateless_query_change_applies_only_to_new_rows",
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
    "SetDataSchema.odf_schema": "workspace/test_definition_update.py::test_odf_schema_gets_system_columns_and_keeps_attributes",
    "SetDataSchema.schema": "workspace/test_definition_update.py::test_breaking_schema_changes_are_refused",
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
