"""Datasets become what changed definitions say, by nothing but the events that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from odf_engine.base.config import MetadataConfig
from odf_engine.base.settings import save
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainState
from odf_engine.data.arrow_schema import decode_schema
from odf_engine.errors import (
    AlreadyExists,
    ChainRuleViolated,
    Conflict,
    InvalidManifest,
    InvalidSchema,
    NotFound,
    OdfError,
)
from odf_engine.metadata import model
from odf_engine.metadata.model import DatasetKind, DatasetSnapshot, kind_of
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests, snapshot_to_yaml
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import PlannedUpdate, current_definition
from odf_engine.workspace.workspace import Workspace
from tests.workspace.conftest import Append

POLLED = """
- kind: SetPollingSource
  fetch: {kind: Url, url: a.csv}
  read: {kind: Csv, schema: [id INT NOT NULL, city STRING]}
  merge: {kind: Ledger, primaryKey: [id]}
"""
PUSHED = """
- kind: AddPushSource
  sourceName: %s
  read: {kind: NdJson, schema: [id INT NOT NULL, city STRING]}
  merge: {kind: Append}
"""
QUERIED = POLLED + "  preprocess: {kind: Sql, engine: spark, query: SELECT * FROM input}\n"
MADE_OF = """
- kind: SetTransform
  inputs: [{datasetRef: %s, alias: it}]
  transform: {kind: Sql, engine: spark, query: %s}
"""


def manifest(events: str, name: str = "data", kind: str = "Root") -> DatasetSnapshot:
    indented = "".join(f"    {line}\n" for line in events.strip("\n").splitlines())
    head = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {name}\n  kind: {kind}\n  metadata:"
    (snapshot,) = read_manifests(f"{head}\n{indented}" if indented else f"{head} []", "test.yaml")
    return snapshot


def change(workspace: Workspace, events: str, **named: Any) -> PlannedUpdate:
    (update,) = workspace.update([manifest(events, **named)])
    return update


def kinds(update: PlannedUpdate) -> list[str]:
    return [kind_of(event) for event in update.events]


def schema_of(entry: DatasetEntry) -> pa.Schema:
    return decode_schema(entry.dataset.state().schema or b"")


@pytest.fixture
def data(workspace: Workspace) -> DatasetEntry:
    (entry,) = workspace.add([manifest(POLLED)])
    return entry


@pytest.fixture
def filled(data: DatasetEntry, append: Append) -> DatasetEntry:
    """The same with a row in it."""
    columns = pa.schema([pa.field("id", pa.int32(), False), ("city", pa.string())])
    append(data.dataset, pa.table({"id": [1], "city": ["Ghent"]}, schema=columns))
    return data


def test_only_what_differs_is_appended_in_one_commit(workspace: Workspace, data: DatasetEntry) -> None:
    before = data.dataset.head()
    update = change(
        workspace,
        POLLED.replace("a.csv", "b.csv")
        + "- {kind: SetInfo, description: All cities}\n"
        + "- {kind: SetVocab, eventTimeColumn: at}",
    )
    assert kinds(update) == ["SetVocab", "SetPollingSource", "SetInfo"]
    assert update.head == before
    rows = data.dataset.list_blocks(3)
    assert len({row.system_time for row in rows}) == 1
    state = data.dataset.state()
    assert (state.blocks, state.vocabulary.event_time_column) == (5, "at")
    assert state.info == model.SetInfo("All cities")
    source = next(shown for shown in update.changes if shown.title == "SetPollingSource")
    assert [line for line in source.lines if line[0] != " "] == ["-   url: a.csv", "+   url: b.csv"]
    assert all(line[0] in "+- " for shown in update.changes for line in shown.lines)


def test_equivalent_definition_changes_nothing(workspace: Workspace) -> None:
    workspace.add([manifest(QUERIED), manifest(MADE_OF % ("data", "SELECT 1"), "made", "Derivative")])
    heads = [entry.dataset.head() for entry in workspace.datasets()]
    source = workspace.resolve("data").id
    same = [
        manifest(QUERIED.replace("query: SELECT * FROM input", "queries: [{query: SELECT * FROM input}]")),
        manifest(MADE_OF % (f"'{source}'", "SELECT 1"), "MADE", "Derivative"),
        manifest("", "data"),
    ]
    for snapshot in same:
        (update,) = workspace.update([snapshot])
        assert (update.events, update.changes, update.is_new) == ([], [], False)
    assert [entry.dataset.head() for entry in workspace.datasets()] == heads


def test_dry_run_lists_changes_and_writes_nothing(workspace: Workspace, data: DatasetEntry) -> None:
    before = data.dataset.head(), sorted(workspace.odf.rglob("*"))
    shown = workspace.update(
        [manifest(POLLED.replace("a.csv", "b.csv")), manifest(PUSHED % "a", "new")], dry_run=True
    )
    assert [kinds(update) for update in shown] == [["SetPollingSource"], ["Seed", "AddPushSource"]]
    assert [(update.is_new, update.entry is None) for update in shown] == [(False, False), (True, True)]
    assert (data.dataset.head(), sorted(workspace.odf.rglob("*"))) == before


def test_new_datasets_are_made_and_read_by_old_ones_in_one_request(workspace: Workspace) -> None:
    workspace.add([manifest(POLLED), manifest(MADE_OF % ("data", "SELECT 1"), "made", "Derivative")])
    both = workspace.update(
        [manifest(MADE_OF % ("fresh", "SELECT 1"), "made", "Derivative"), manifest(PUSHED % "a", "fresh")]
    )
    assert [(str(update.alias), update.is_new) for update in both] == [("made", False), ("fresh", True)]
    fresh = both[1].entry
    assert fresh is not None
    assert workspace.resolve("made").dataset.state().inputs() == [fresh.id]
    shown = both[0].changes[0]
    assert [line for line in shown.lines if line[0] != " "] == [
        "-   - datasetRef: data",
        "+   - datasetRef: fresh",
    ]


def test_only_changed_attachments_and_license_are_appended(workspace: Workspace, data: DatasetEntry) -> None:
    events = """
- kind: SetLicense
  shortName: CC0
  name: Creative Commons Zero
  websiteUrl: https://creativecommons.org/publicdomain/zero/1.0/
- kind: SetAttachments
  attachments: {kind: Embedded, items: [{path: README.md, content: "# Cities\\nAll of them\\n"}]}
"""
    assert kinds(change(workspace, events)) == ["SetLicense", "SetAttachments"]
    assert not change(workspace, events).events
    update = change(workspace, events.replace("All of", "Some of"))
    (shown,) = update.changes
    assert [line.strip() for line in shown.lines if line[0] == "+"] == ["+         Some of them"]
    huge = model.SetAttachments(model.Embedded([model.AttachmentEmbedded("a", "x" * (5 << 20))]))
    with pytest.raises(InvalidManifest, match="5,242,880 bytes"):
        workspace.update([DatasetSnapshot("data", DatasetKind.Root, [huge])])


def test_long_diffs_are_truncated(workspace: Workspace, data: DatasetEntry) -> None:
    text = "\n".join(f"line {number} " + "x" * 300 for number in range(1000))
    attached = model.SetAttachments(model.Embedded([model.AttachmentEmbedded("a", text)]))
    (update,) = workspace.update([DatasetSnapshot("data", DatasetKind.Root, [attached])])
    lines = update.changes[0].lines
    assert len(lines) == 301
    assert max(map(len, lines)) == 200
    assert lines[-1] == "  … 706 more lines"


def test_switching_sources_disables_the_previous_ones(workspace: Workspace, data: DatasetEntry) -> None:
    update = change(workspace, PUSHED % "a" + PUSHED % "b")
    assert kinds(update) == ["DisablePollingSource", "AddPushSource", "AddPushSource"]
    assert update.changes[0].lines[0] == "- kind: SetPollingSource"
    update = change(workspace, PUSHED % "b" + PUSHED % "c")
    assert [shown.title for shown in update.changes] == ["DisablePushSource 'a'", "AddPushSource 'c'"]
    update = change(workspace, POLLED)
    assert [shown.title for shown in update.changes] == [
        "DisablePushSource 'b'", "DisablePushSource 'c'", "SetPollingSource"
    ]  # fmt: skip
    state = data.dataset.state()
    assert (state.push_sources, state.polling_source is not None) == ({}, True)
    # Both, for corrections of polled rows.
    update = change(workspace, POLLED + PUSHED % "a" + PUSHED % "b")
    assert [shown.title for shown in update.changes] == ["AddPushSource 'a'", "AddPushSource 'b'"]
    update = change(workspace, POLLED + PUSHED % "b")
    assert [shown.title for shown in update.changes] == ["DisablePushSource 'a'"]
    assert kinds(change(workspace, PUSHED % "b")) == ["DisablePollingSource"]
    assert kinds(change(workspace, POLLED + PUSHED % "b")) == ["SetPollingSource"]


def test_sources_can_be_disabled_by_name(workspace: Workspace, data: DatasetEntry) -> None:
    off = "- {kind: DisablePollingSource}"
    assert kinds(change(workspace, off)) == ["DisablePollingSource"]
    assert not change(workspace, off).events
    change(workspace, PUSHED % "a" + PUSHED % "b")
    change(workspace, "- {kind: SetInfo}")
    assert list(data.dataset.state().push_sources) == ["a", "b"]
    assert kinds(change(workspace, "- {kind: DisablePushSource, sourceName: a}")) == ["DisablePushSource"]
    assert list(data.dataset.state().push_sources) == ["b"]
    with pytest.raises(InvalidManifest, match="DisablePollingSource is not allowed"):
        workspace.update([manifest(off, "new")])
    for events, source in (
        (PUSHED % "b" + "- {kind: DisablePushSource, sourceName: b}", "push source 'b'"),
        (POLLED + off, "the polling source"),
    ):
        with pytest.raises(InvalidManifest, match=f"{source} is both defined and disabled"):
            change(workspace, events)


def test_new_source_columns_are_added_to_the_schema(workspace: Workspace, filled: DatasetEntry) -> None:
    before = schema_of(filled)
    grown = POLLED.replace("city STRING", "people BIGINT, CITY STRING, day DATE")
    update = change(workspace, grown)
    assert kinds(update) == ["SetDataSchema", "SetPollingSource"]
    assert [line for line in update.changes[0].lines if line[0] == "+"] == ["+ people BIGINT", "+ day DATE"]
    assert schema_of(filled) == pa.schema([*before, ("people", pa.int64()), ("day", pa.date32())])
    assert not change(workspace, grown).events


@pytest.mark.parametrize(
    ("columns", "problem", "advice"),
    [
        ("id INT NOT NULL", "'city' is missing", "CAST(NULL AS STRING) AS city"),
        ("id BIGINT NOT NULL, city STRING", "'id' changed from INT to BIGINT", "under another name"),
        ("id INT, city STRING", "changed from NOT NULL to nullable", "declare it NOT NULL"),
        ("id INT NOT NULL, city STRING, x INT NOT NULL", "'x' is NOT NULL", "without NOT NULL"),
        (
            "id INT NOT NULL, city STRING, event_time DATE",
            "'event_time' changed from TIMESTAMP",
            "another name",
        ),
    ],
)
def test_breaking_schema_changes_are_refused(
    workspace: Workspace, filled: DatasetEntry, columns: str, problem: str, advice: str
) -> None:
    head = filled.dataset.head()
    for events in (
        POLLED.replace("id INT NOT NULL, city STRING", columns) + "- {kind: SetInfo, description: x}",
        QUERIED + f"- {{kind: SetDataSchema, schema: [{columns}]}}",
    ):
        with pytest.raises(ChainRuleViolated) as caught:
            change(workspace, events)
        error = caught.value
        assert error.rule == "schema-evolution"
        assert problem in error.message and advice in (error.hint or ""), (error.message, error.hint)
        assert error.where is not None and error.where.startswith("dataset data")
    assert filled.dataset.head() == head


@pytest.mark.parametrize(
    "column", ["x VARCHAR(2)", "x VARBINARY(2)[]", "x STRUCT<a: STRUCT<b: INT NOT NULL>>"]
)
def test_limits_that_a_dataset_does_not_store_are_refused(
    workspace: Workspace, filled: DatasetEntry, column: str
) -> None:
    declared = f"- {{kind: SetDataSchema, schema: ['id INT NOT NULL, city STRING', '{column}']}}"
    for name in ("data", "new"):
        with pytest.raises(InvalidSchema, match=r"column 'x' is .*, but datasets do not store"):
            change(workspace, QUERIED + declared, name=name)


def test_preprocess_query_may_return_columns_not_read(workspace: Workspace, filled: DatasetEntry) -> None:
    """With a query in between, what is read says nothing about the columns."""
    other = QUERIED.replace("city STRING", "x INT").replace("*", "id + 1 AS id")
    assert kinds(change(workspace, other)) == ["SetPollingSource"]
    assert kinds(change(workspace, POLLED)) == ["SetPollingSource"]


def test_additional_push_source_may_have_fewer_columns(workspace: Workspace, append: Append) -> None:
    (entry,) = workspace.add([manifest(PUSHED % "a", "pushed")])
    columns = pa.schema([pa.field("id", pa.int32(), False), ("city", pa.string())])
    append(entry.dataset, pa.table({"id": [1], "city": ["Ghent"]}, schema=columns))
    fewer = (PUSHED % "b").replace(", city STRING", ", op TINYINT, more DATE")
    update = change(workspace, PUSHED % "a" + fewer, name="pushed")
    assert kinds(update) == ["SetDataSchema", "AddPushSource"]
    assert schema_of(entry).names[4:] == ["id", "city", "more"]


def test_listed_schema_reorders_and_adds_columns(workspace: Workspace, filled: DatasetEntry) -> None:
    """Order and new columns by a list; whatever else the chain declares stays as it is."""
    old = schema_of(filled)
    marked = [field.with_metadata({"unit": "m"}) if field.name == "id" else field for field in old]
    commit(filled.dataset, model.SetDataSchema(encoded(pa.schema(marked))))
    update = change(
        workspace, QUERIED + "- {kind: SetDataSchema, schema: [more DATE, city STRING, ID INT NOT NULL]}"
    )
    assert kinds(update) == ["SetDataSchema", "SetPollingSource"]
    new = schema_of(filled)
    assert new.names == [*old.names[:4], "more", "city", "id"]
    assert new.field("id").metadata == {b"unit": b"m"}
    assert current_definition(filled).metadata[-1] == model.SetDataSchema(
        ddl=["more DATE", "city STRING", "id INT NOT NULL"]
    )


def test_attributes_alone_can_change(workspace: Workspace, filled: DatasetEntry) -> None:
    marked = [field.with_metadata({"unit": "m"}) for field in schema_of(filled)]
    schema = model.SetDataSchema(encoded(pa.schema(marked)))
    (update,) = workspace.update([DatasetSnapshot("data", DatasetKind.Root, [schema])])
    assert update.changes[0].lines == ["  only column attributes"]


def test_external_schema_declarations_are_kept(workspace: Workspace, data: DatasetEntry) -> None:
    """Such as signed offsets, and required event times, which no list of columns says."""
    foreign = pa.schema(
        [
            pa.field("offset", pa.int64(), False),
            pa.field("op", pa.int32(), False),
            pa.field("system_time", pa.timestamp("ms", "UTC"), False),
            pa.field("event_time", pa.timestamp("ms", "UTC"), False),
            pa.field("id", pa.int32(), False),
            pa.field("city", pa.large_string(), False),
        ]
    )
    commit(data.dataset, model.SetDataSchema(encoded(foreign)))
    assert not change(workspace, POLLED).events
    assert current_definition(data).metadata[-1] == model.SetDataSchema(
        ddl=["id INT NOT NULL", "city STRING NOT NULL"]
    )
    assert kinds(change(workspace, POLLED.replace("a.csv", "b.csv"))) == ["SetPollingSource"]
    change(workspace, POLLED.replace("city STRING", "city STRING, more INT"))
    assert schema_of(data) == foreign.append(pa.field("more", pa.int32()))
    odd = schema_of(data).append(pa.field("at", pa.float16()))
    commit(data.dataset, model.SetDataSchema(encoded(odd)))
    printed = current_definition(data)
    assert printed.metadata[-1] == model.SetDataSchema(encoded(odd))  # no list could say it
    assert not workspace.update([printed])[0].events


DESCRIBED = """
- kind: SetDataSchema
  schema:
    fields:
      - {name: id, type: int32, extra: {opendatafabric.org/description: number of the city}}
      - {name: city, type: {kind: option, inner: string}}
      - {name: at, type: {kind: Option, inner: timestamp}}
    extra: {example.com/a: [1, {b: null}]}
"""
ODF_SOURCE = """
- kind: SetPollingSource
  fetch: {kind: Url, url: a.csv}
  read:
    kind: Csv
    schema: {fields: [{name: id, type: int32}, {name: city, type: {kind: option, inner: string}}]}
  merge: {kind: Ledger, primaryKey: [id]}
"""


def with_forms(workspace: Workspace, data_schema: Any, system_columns: Any) -> Workspace:
    forms = MetadataConfig(data_schema, system_columns)
    save(replace(workspace.config, metadata=forms), workspace.config_path)
    return Workspace(workspace.folder)


def odf_schema_of(entry: DatasetEntry) -> model.DataSchema:
    state = entry.dataset.state()
    assert state.schema is None and state.odf_schema is not None
    return state.odf_schema


def test_odf_schema_gets_system_columns_and_keeps_attributes(workspace: Workspace) -> None:
    """System columns are added; short forms and attributes are kept; an equal schema is no change."""
    (data,) = workspace.add([manifest(DESCRIBED)])
    fields = odf_schema_of(data).fields
    assert [(field.name, field.type) for field in fields] == [
        ("offset", model.UInt64()),
        ("op", model.UInt8()),
        ("system_time", model.TimestampType(model.TimeUnit.Millisecond, "UTC")),
        ("event_time", model.Option(model.TimestampType(model.TimeUnit.Millisecond, "UTC"))),
        ("id", model.Int32()),
        ("city", model.Option(model.String())),
        ("at", model.Option(model.TimestampType())),  # as written, without the default unit
    ]
    assert odf_schema_of(data).extra == model.ExtraAttributes({"example.com/a": [1, {"b": None}]})
    same = DESCRIBED.replace("inner: timestamp", "inner: {kind: timestamp, unit: millisecond, timezone: UTC}")
    assert not change(workspace, DESCRIBED).events
    assert not change(workspace, same).events
    assert not workspace.update([current_definition(data)])[0].events
    assert "opendatafabric.org/description: number" in snapshot_to_yaml(current_definition(data))
    told = change(workspace, DESCRIBED.replace("number of the city", "number"))
    assert kinds(told) == ["SetDataSchema"]
    assert "+ id INT NOT NULL COMMENT 'number'" in told.changes[0].lines
    columns = "id INT NOT NULL, more DATE, city STRING, at TIMESTAMP"
    grown = change(workspace, f"- {{kind: SetDataSchema, schema: [{columns}]}}")
    assert kinds(grown) == ["SetDataSchema"]
    assert odf_schema_of(data).extra is not None
    by_name = {field.name: field for field in odf_schema_of(data).fields}
    assert by_name["id"].extra == model.ExtraAttributes({"opendatafabric.org/description": "number"})
    assert by_name["more"].type == model.Option(model.Date())


def test_new_schemas_use_the_configured_form(workspace: Workspace) -> None:
    listed = "- {kind: SetDataSchema, schema: [id INT]}"
    workspace = with_forms(workspace, "odf", "kamu")
    (data,) = workspace.add([manifest(listed)])
    names = [(field.name, field.type) for field in odf_schema_of(data).fields]
    time = model.TimestampType(model.TimeUnit.Millisecond, "UTC")
    assert names == [
        ("offset", model.Int64()), ("op", model.Int32()), ("system_time", time), ("event_time", time),
        ("id", model.Option(model.Int32())),
    ]  # fmt: skip
    workspace = with_forms(workspace, "arrow", "kamu")
    (raw,) = workspace.add([manifest(listed, "raw")])
    assert schema_of(raw).field("op").type == pa.int32()
    change(workspace, "- {kind: SetDataSchema, schema: [id INT, x INT]}")
    assert len(odf_schema_of(data).fields) == 6  # the dataset keeps its form
    workspace = with_forms(workspace, "odf", "specification")
    change(workspace, "- {kind: SetDataSchema, schema: [id INT, x INT]}", name="raw")
    assert schema_of(raw).names[-1] == "x"
    (explicit,) = workspace.add([manifest(DESCRIBED, "explicit")])
    assert odf_schema_of(explicit).fields[1].type == model.UInt8()


def test_an_odf_schema_replaces_an_arrow_schema(workspace: Workspace, filled: DatasetEntry) -> None:
    """The first one may change optionality; without another change there is nothing to do."""
    columns = "{fields: [{name: id, type: int32}, {name: city, type: %s}%s]}"
    optional = "{kind: option, inner: string}"
    event = POLLED + "- {kind: SetDataSchema, schema: " + columns + "}"
    assert not change(workspace, event % (optional, "")).events
    with pytest.raises(ChainRuleViolated, match="'city' changed from STRING to INT"):
        change(workspace, QUERIED + "- {kind: SetDataSchema, schema: " + columns % ("int32", "") + "}")
    described = "{name: id, type: int32, extra: {opendatafabric.org/description: x}}"
    text = (event % (optional, "")).replace("{name: id, type: int32}", described)
    assert kinds(change(workspace, text)) == ["SetDataSchema"]
    assert [field.name for field in odf_schema_of(filled).fields][3:] == ["event_time", "id", "city"]
    with pytest.raises(ChainRuleViolated, match="nullable"):
        change(workspace, QUERIED + "- {kind: SetDataSchema, schema: " + columns % ("string", "") + "}")


def test_odf_source_columns_update_the_schema(workspace: Workspace) -> None:
    """Bare types are required, as NOT NULL."""
    workspace = with_forms(workspace, "odf", "specification")
    listed = "- {kind: SetDataSchema, schema: [id INT NOT NULL, city STRING]}"
    (data,) = workspace.add([manifest(ODF_SOURCE + listed)])
    assert not change(workspace, ODF_SOURCE).events
    assert kinds(change(workspace, POLLED)) == ["SetPollingSource"]  # columns of the same types
    assert kinds(change(workspace, ODF_SOURCE)) == ["SetPollingSource"]
    day = "inner: string}}, {name: day, type: {kind: option, inner: date}}"
    more = ODF_SOURCE.replace("inner: string}}", day)
    assert kinds(change(workspace, more)) == ["SetDataSchema", "SetPollingSource"]
    assert odf_schema_of(data).fields[-1] == model.DataField("day", model.Option(model.Date()))
    assert not any(isinstance(event, model.SetDataSchema) for event in current_definition(data).metadata)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("{name: op, type: int32}", "system column 'offset' is missing"),
        ("{name: offset, type: int64}, {name: op, type: int64}, {name: system_time, type: timestamp},"
         " {name: event_time, type: timestamp}", "'op' is BIGINT NOT NULL, expected INT or TINYINT UNSIGNED"),
        ("{name: offset, type: {kind: option, inner: int64}}, {name: op, type: int32},"
         " {name: system_time, type: timestamp}, {name: event_time, type: timestamp}",
         "'offset' is BIGINT, expected"),
        ("{name: event_time, type: string}", "event time column 'event_time' is a string"),
        ("{name: a, type: {kind: option, inner: {kind: option, inner: int8}}}", "an Option of an Option"),
        ("{name: a, type: {kind: decimal, precision: 77, scale: 0}}", "precision 77"),
        ("{name: a, type: {kind: timestamp, unit: nanosecond}}", "slices store timestamp"),
        ("{name: a, type: {kind: map, keyType: string, valueType: string}}", "column 'a'"),
        ("{name: a, type: duration}", "column 'a'"),
        ("{name: a, type: int8}, {name: A, type: int8}", "'a' and 'A' have the same name"),
    ],
)  # fmt: skip
def test_odf_schema_unsupported_by_slices_is_refused(workspace: Workspace, fields: str, message: str) -> None:
    with pytest.raises(OdfError, match=message):
        workspace.add([manifest(f"- {{kind: SetDataSchema, schema: {{fields: [{fields}]}}}}")])
    assert not list(workspace.datasets())


def test_refusals_leave_everything_as_it_was(workspace: Workspace, filled: DatasetEntry) -> None:
    before = sorted(workspace.odf.rglob("*"))
    lost = manifest(MADE_OF % ("nothing", "SELECT 1"), "made", "Derivative")
    refused: list[tuple[type[OdfError], str, DatasetSnapshot]] = [
        (InvalidManifest, "is Root, the definition is Derivative", manifest("", kind="Derivative")),
        (ChainRuleViolated, "cannot be renamed", manifest("- {kind: SetVocab, offsetColumn: x}")),
        (NotFound, r"'nothing' \(input of made\)", lost),
        (AlreadyExists, "DATA is defined twice", manifest("", "DATA")),
        (InvalidSchema, "unknown type STRNG", manifest("- {kind: SetDataSchema, schema: [x STRNG]}")),
        (
            InvalidSchema,
            "name of a system column",
            manifest("- {kind: SetDataSchema, schema: [op INT]}", "y"),
        ),
    ]
    for kind, message, snapshot in refused:
        further = [manifest(PUSHED % "a", "new"), *([manifest("")] if snapshot.name == "DATA" else [])]
        with pytest.raises(kind, match=message):
            workspace.update([*further, snapshot])
    assert sorted(workspace.odf.rglob("*")) == before


def test_cyclic_inputs_are_refused(workspace: Workspace) -> None:
    workspace.add(
        [
            manifest(POLLED),
            manifest(MADE_OF % ("data", "SELECT 1"), "one", "Derivative"),
            manifest(MADE_OF % ("one", "SELECT 1"), "two", "Derivative"),
        ]
    )
    with pytest.raises(InvalidManifest, match=r"form a cycle: .*two"):
        change(workspace, MADE_OF % ("two", "SELECT 1"), name="one", kind="Derivative")


def test_concurrent_commit_is_a_conflict(
    workspace: Workspace, data: DatasetEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Dataset.state
    done: list[ChainState] = []

    def late(self: Dataset) -> ChainState:
        done.append(real(self))
        if len(done) == 1:
            commit(self, model.SetInfo("from elsewhere"))
        return done[0]

    monkeypatch.setattr(Dataset, "state", late)
    with pytest.raises(Conflict) as caught:
        change(workspace, POLLED.replace("a.csv", "b.csv"))
    assert (caught.value.exit_code, str(caught.value.where)[:12]) == (4, "dataset data")
    monkeypatch.undo()
    assert data.dataset.list_blocks(1)[0].kind == "SetInfo"


def test_only_the_changes_that_were_shown_are_appended(workspace: Workspace, data: DatasetEntry) -> None:
    wanted = [manifest(POLLED.replace("a.csv", "b.csv") + "- {kind: SetInfo, description: x}")]
    shown = workspace.update(wanted, dry_run=True)
    commit(data.dataset, model.SetInfo("x"))
    with pytest.raises(Conflict, match="the datasets have changed"):
        workspace.update(wanted, shown=shown)
    commit(data.dataset, model.SetInfo("y"))
    commit(data.dataset, model.SetInfo("x"))
    shown = workspace.update(wanted, dry_run=True)
    commit(data.dataset, model.SetLicense(short_name="a", name="b", website_url="c"))
    assert kinds(workspace.update(wanted, shown=shown)[0]) == ["SetPollingSource"]


def test_third_party_update_makes_the_dataset_untrusted(workspace: Workspace, data: DatasetEntry) -> None:
    from odf_engine.workspace.trust import Trust

    origins = {"data": "https://example.com/data.yaml"}
    workspace.update([manifest(POLLED)], origins)
    assert Trust(workspace).is_own(data)
    workspace.update([manifest(POLLED.replace("a.csv", "b.csv"))], origins)
    assert Trust(workspace).read_origin(data) == origins["data"]
    assert not Trust(workspace).is_trusted(data)


def test_printed_definition_equals_the_written_manifest(workspace: Workspace, filled: DatasetEntry) -> None:
    workspace.add([manifest(MADE_OF % ("data", "SELECT 1"), "made", "Derivative")])
    names = {entry.id: str(entry.alias) for entry in workspace.datasets()}
    made = workspace.resolve("made")
    assert current_definition(made, names) == manifest(MADE_OF % ("data", "SELECT 1"), "made", "Derivative")
    assert current_definition(filled) == manifest(POLLED)
    printed = [snapshot_to_yaml(current_definition(entry)) for entry in workspace.datasets()]
    updates = workspace.update([read_manifests(text, "x")[0] for text in printed])
    assert [update.events for update in updates] == [[], []]


words = st.sampled_from(["", "a", "b: c", "two\nlines\n"])
queries = st.one_of(
    st.builds(model.Sql, st.just("spark"), query=st.sampled_from(["SELECT 1", "SELECT 2\nFROM input"])),
    st.builds(
        model.Sql,
        st.just("spark"),
        queries=st.just(
            [model.SqlQueryStep(query="SELECT 1", alias="x"), model.SqlQueryStep(query="SELECT 2")]
        ),
    ),
)
merges = st.sampled_from([model.Append(), model.Ledger(["id"]), model.Snapshot(["id"], ["x"])])
polling = st.builds(
    model.SetPollingSource,
    fetch=st.sampled_from([model.Url("a"), model.Url("b"), model.FilesGlob("*.csv")]),
    read=st.just(model.Parquet()),
    preprocess=st.none() | queries,
    merge=merges,
)
pushes = st.lists(
    st.builds(
        model.AddPushSource,
        source_name=st.sampled_from("xyz"),
        read=st.just(model.Parquet()),
        preprocess=st.none() | queries,
        merge=merges,
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda source: source.source_name,
)
both = st.builds(lambda polled, pushed: [polled, *pushed], polling, pushes)
sources = st.just([]) | polling.map(lambda source: [source]) | pushes | both
settings_of_it = st.tuples(
    st.none() | st.builds(model.SetVocab, event_time_column=st.sampled_from(["at", "when"])),
    st.none() | st.builds(model.SetLicense, short_name=words, name=words, website_url=words),
    st.none() | st.builds(model.SetInfo, words, st.none() | st.lists(words, max_size=2)),
    st.none()
    | st.dictionaries(st.sampled_from(["a", "b: c", "d/e"]), words, max_size=2).map(
        lambda texts: model.SetAttachments(
            model.Embedded([model.AttachmentEmbedded(path, text) for path, text in texts.items()])
        )
    ),
)
definitions = st.builds(
    lambda sources, settings: [*sources, *(setting for setting in settings if setting is not None)],
    sources,
    settings_of_it,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=definitions, second=definitions)
def test_any_definition_can_be_updated_to_any_other(
    workspace: Workspace, first: list[model.MetadataEvent], second: list[model.MetadataEvent]
) -> None:
    """What the second one says counts; of what it does not mention, the first."""
    name = f"data{len(workspace.datasets())}"
    (made,) = workspace.update([DatasetSnapshot(name, DatasetKind.Root, first)])
    assert made.entry is not None
    assert same(current_definition(made.entry).metadata, first)
    wanted = DatasetSnapshot(name, DatasetKind.Root, second)
    (update,) = workspace.update([wanted])
    now = current_definition(made.entry)
    assert same(now.metadata, over(first, second))
    assert bool(update.events) == bool(update.changes) == (not same(over(first, second), first))
    for unchanged in (wanted, now, read_manifests(snapshot_to_yaml(now), "x")[0]):
        assert not workspace.update([unchanged])[0].events


columns = st.dictionaries(
    st.sampled_from("abcde"), st.tuples(st.sampled_from(["INT", "STRING"]), st.booleans()), min_size=1
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=columns, after=columns, keep=st.booleans(), listed=st.booleans(), order=st.randoms())
def test_schema_update_only_adds_optional_columns(
    workspace: Workspace,
    before: dict[str, tuple[str, bool]],
    after: dict[str, tuple[str, bool]],
    keep: bool,
    listed: bool,
    order: Any,
) -> None:
    def ddl(columns: dict[str, tuple[str, bool]]) -> list[str]:
        return [f"{name} {kind}{' NOT NULL' if needed else ''}" for name, (kind, needed) in columns.items()]

    def source(columns: dict[str, tuple[str, bool]]) -> model.SetPollingSource:
        read = model.Csv(schema=ddl(columns))
        return model.SetPollingSource(fetch=model.Url("a"), read=read, merge=model.Append())

    if keep:
        after = {**after, **before}
    names = list(after)
    order.shuffle(names)
    after = {name: after[name] for name in names}
    name = f"data{len(workspace.datasets())}"
    first = [source(before), model.SetDataSchema(ddl=ddl(before))]
    (entry,) = workspace.add([DatasetSnapshot(name, DatasetKind.Root, first)])
    old = schema_of(entry)
    second = model.SetDataSchema(ddl=ddl(after)) if listed else source(after)
    wanted = [DatasetSnapshot(name, DatasetKind.Root, [second])]
    kept = all(after.get(column) == declared for column, declared in before.items())
    if not kept or any(needed for column, (_, needed) in after.items() if column not in before):
        with pytest.raises(ChainRuleViolated):
            workspace.update(wanted)
        assert schema_of(entry) == old
        return
    workspace.update(wanted)
    new = schema_of(entry).names[4:]
    added = [column for column in after if column not in before]
    assert new == (list(after) if listed else [*before, *added])
    assert not workspace.update(wanted)[0].events
    assert not workspace.update([current_definition(entry)])[0].events


def over(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """What both amount to."""
    sources = (model.SetPollingSource, model.AddPushSource)
    replaced = {type(event) for event in second}
    if replaced & set(sources):
        replaced |= set(sources)
    return [*second, *(event for event in first if type(event) not in replaced)]


def same(one: Sequence[Any], two: Sequence[Any]) -> bool:
    def plain(events: Sequence[Any]) -> list[str]:
        return sorted(snapshot_to_yaml(DatasetSnapshot("x", DatasetKind.Root, [event])) for event in events)

    return plain(one) == plain(two)


def commit(dataset: Dataset, *events: Any) -> None:
    dataset.commit(events, system_time=Timestamp.now(), expected_head=dataset.head())


def encoded(schema: pa.Schema) -> bytes:
    from odf_engine.data.arrow_schema import encode_schema

    return encode_schema(schema)
