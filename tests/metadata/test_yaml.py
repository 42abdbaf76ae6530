"""Manifests as people write them: accepted spellings, mistakes with their places, readable output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from odf_engine.errors import InvalidManifest
from odf_engine.identity.did import DatasetId
from odf_engine.metadata import model
from odf_engine.metadata.flatbuffers import decode_block, encode_block
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import (
    block_to_yaml,
    read_block_manifest,
    read_event,
    read_manifests,
    snapshot_to_yaml,
    to_builtins,
    to_yaml,
)

SNAPSHOT = """\
# Airports of the world
kind: DatasetSnapshot
version: 1
content:
  name: org/openflights.airports
  kind: root
  metadata:
    - kind: setPollingSource
      fetch:
        kind: url
        url: https://example.com/airports.dat
        cache:
          kind: forever
      prepare:
        - kind: pipe
          command: [sh, -c, "sed 's/\\\\N//'"]
      read:
        kind: csv
        separator: ","
        header: false
        nullValue: '\\N'
        schema:
          - airport_id BIGINT
          - name STRING
      preprocess:
        kind: sql
        engine: spark
        query: |
          SELECT
            airport_id, name
          FROM input
      merge:
        kind: Snapshot
        primaryKey: [airport_id]
    - kind: SetInfo
      description: Airports
      keywords: []
---
kind: DatasetSnapshot
version: 1
content:
  name: second
  kind: Derivative
  metadata: []
"""


def problem(text: str | bytes) -> InvalidManifest:
    with pytest.raises(InvalidManifest) as caught:
        read_manifests(text, "m.yaml")
    return caught.value


def event_problem(text: str) -> InvalidManifest:
    with pytest.raises(InvalidManifest) as caught:
        read_event(text, "e.yaml")
    return caught.value


def test_stream_of_snapshots_is_read_and_written_back():
    first, second = read_manifests(SNAPSHOT, "m.yaml")
    assert (first.name, first.kind) == ("org/openflights.airports", model.DatasetKind.Root)
    assert (second.name, second.kind, second.metadata) == ("second", model.DatasetKind.Derivative, [])
    source, info = first.metadata
    assert isinstance(source, model.SetPollingSource)
    assert isinstance(source.fetch, model.Url)
    assert source.fetch.cache == model.Forever()
    assert source.prepare == [model.Pipe(command=["sh", "-c", "sed 's/\\N//'"])]
    assert isinstance(source.read, model.Csv)
    assert source.read.schema == ["airport_id BIGINT", "name STRING"]
    assert (source.read.header, source.read.null_value, source.read.quote) == (False, "\\N", None)
    assert source.preprocess == model.Sql(engine="spark", query="SELECT\n  airport_id, name\nFROM input\n")
    assert source.merge == model.Snapshot(primary_key=["airport_id"])
    assert info == model.SetInfo(description="Airports", keywords=[])
    assert read_manifests(snapshot_to_yaml(first) + "---\n" + snapshot_to_yaml(second), "m") == [
        first,
        second,
    ]


def test_manifests_are_read_from_bytes_with_bom_and_json():
    expected = read_manifests(SNAPSHOT, "m.yaml")
    assert read_manifests(SNAPSHOT.encode(), "m.yaml") == expected
    assert read_manifests(SNAPSHOT.encode("utf-8-sig"), "m.yaml") == expected
    assert read_manifests("\n---\n" + SNAPSHOT + "---\n", "m.yaml") == expected
    plain = {"kind": "DatasetSnapshot", "version": 1, "content": to_builtins(expected[0])}
    assert read_manifests(json.dumps(plain), "m.json") == expected[:1]


def without_entries(value: Any) -> Any:
    """Return JSON with custom attributes as in YAML; the vectors have them as in FlatBuffers."""
    if isinstance(value, list):
        return [without_entries(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: item["entries"] if key == "extra" else without_entries(item) for key, item in value.items()}


def test_golden_events_round_trip(shared: Path):
    vectors: list[dict[str, Any]] = json.loads((shared / "golden" / "blocks.json").read_text())
    for vector in vectors:
        event = read_event(to_yaml(vector["event"]), vector["name"])
        raw = bytes.fromhex(vector["manifest_hex"])
        decoded = decode_block(raw)
        assert decoded.block.event == event, vector["name"]
        block = model.MetadataBlock(
            system_time=Timestamp.parse(vector["system_time"]),
            prev_block_hash=decoded.block.prev_block_hash,
            sequence_number=vector["sequence_number"],
            event=event,
        )
        assert encode_block(block, vector["block_version"]) == raw, vector["name"]
        if vector["schema_generation"] == "0.34.1" or "odf" in vector["name"]:
            assert to_builtins(event) == without_entries(vector["event"])
        text = block_to_yaml(block, decoded.version)
        assert read_block_manifest(text, "block") == (block, decoded.version)


@pytest.mark.parametrize("kind", ["NdGeoJson", "ndGeoJson", "ndgeojson"])
def test_three_spellings_of_a_kind_are_accepted(kind: str):
    text = f"kind: AddPushSource\nsourceName: a\nread: {{kind: {kind}}}\nmerge: {{kind: append}}"
    event = read_event(text, "e")
    assert isinstance(event, model.AddPushSource)
    assert event.read == model.NdGeoJson()


@pytest.mark.parametrize("kind", ["NDGEOJSON", "Ndgeojson", "nDGeoJson", "nd_geo_json"])
def test_other_spellings_are_refused_with_a_suggestion(kind: str):
    text = f"kind: AddPushSource\nsourceName: a\nread: {{kind: {kind}}}\nmerge: {{kind: append}}"
    error = event_problem(text)
    assert error.where == "e.yaml:3:14"
    assert error.message == f"read.kind: unknown ReadStep '{kind}'"
    assert error.hint == "did you mean 'NdGeoJson'?"


@pytest.mark.parametrize(
    ("order", "good"),
    [("ByEventTime", True), ("byEventTime", True), ("byeventtime", True), ("bYeventtime", False)],
)
def test_only_three_spellings_of_an_enum_are_accepted(order: str, good: bool):
    text = (
        "kind: SetPollingSource\n"
        f"fetch: {{kind: FilesGlob, path: x, order: {order}}}\n"
        "read: {kind: Parquet}\nmerge: {kind: Append}"
    )
    if good:
        event = read_event(text, "e.yaml")
        assert isinstance(event, model.SetPollingSource)
        assert isinstance(event.fetch, model.FilesGlob)
        assert event.fetch.order is model.SourceOrdering.ByEventTime
    else:
        assert event_problem(text).where == "e.yaml:2:42"


# Each mistake: what is replaced, by what (^ marks the place that is reported), message and hint.
MISTAKES = [
    ("        url: http", "        ^ulr: http", "fetch: unknown field 'ulr'", "did you mean 'url'?"),
    ("separator:", "^null_value:", "unknown field 'null_value'", "did you mean 'nullValue'?"),
    ("header: false", "header: ^no", "expected true or false, found the text 'no'", None),
    ("header: false", "header: ^0", "expected true or false, found the number 0", None),
    ("- name STRING", "- ^12", "read.schema[1]: expected text, found the number 12", "quote it: '12'"),
    ("tion: Airports", "tion: ^true", "found the boolean true", "quote it: 'true'"),
    ("tion: Airports", "tion: ^1.5", "found the number 1.5", "quote it: '1.5'"),
    ("keywords: []", "^description: a", "duplicate field 'description'", None),
    ("- kind: SetInfo", "- ^Kind: SetInfo", "missing field 'kind'", None),
    ("primaryKey: [", "primaryKey: ^{a: b} # [", "expected a list, found a mapping", None),
    ("keywords: []", "keywords: [^null]", "expected text, found nothing", None),
    ("engine: spark", "engine:^", "missing value", None),
    ("kind: root", "kind: ^roots", "unknown DatasetKind 'roots'", "did you mean 'Root'?"),
    ("kind: setPolling", "kind: ^setPoling", "unknown MetadataEvent", "did you mean 'SetPollingSource'?"),
    ("version: 1", "version: ^7", "unknown version 7 of DatasetSnapshot", "use a newer version of odf"),
    ("version: 1", "version: ^one", "expected 1", None),
    ("kind: DatasetSnapshot", "kind: ^Dataset", "expected DatasetSnapshot, found 'Dataset'", None),
    (
        "kind: DatasetSnapshot",
        "kind: ^MetadataBlock",
        "expected DatasetSnapshot, found 'MetadataBlock'",
        None,
    ),
    ("version: 1", "version: 1\n^extra: 1", "unknown field 'extra'", None),
    ("  name: org/", "^\tname: org/", "invalid YAML", "spaces"),
    ("description: Airports", "description: ^&a b", "anchors", None),
    ("description: Airports", "description: ^*a", "aliases", None),
    ("description: Airports", "description: ^!!str 5", "tags", None),
    ("description: Airports", "? ^[a]\n      : b", "a key must be text", None),
]


@pytest.mark.parametrize(("old", "new", "message", "hint"), MISTAKES)
def test_mistakes_are_reported_at_their_location(old: str, new: str, message: str, hint: str | None):
    assert old in SNAPSHOT
    marked = SNAPSHOT.replace(old, new, 1)
    before = marked[: marked.index("^")]
    place = f"m.yaml:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
    error = problem(marked.replace("^", "", 1))
    if "\n" not in error.message:
        assert error.where == place
        assert message in error.message
        assert (hint or "") in (error.hint or "")
    else:  # one mistake may show as several problems, such as a misspelt field that is then missing
        line = next(line for line in str(error).splitlines() if message in line)
        assert line.startswith(place + ": ")
        assert (hint or "") in line


def test_all_problems_of_a_stream_are_reported():
    text = SNAPSHOT.replace("url: ", "uri: ").replace("merge:", "marge:").replace("second", "2")
    lines = str(problem(text)).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "m.yaml:8:7", "m.yaml:10:9", "m.yaml:11:9", "m.yaml:32:7", "m.yaml:42:9",
    ]  # fmt: skip
    assert "did you mean 'merge'?" in lines[3]


def test_text_that_is_no_manifest_is_rejected():
    assert "no manifest" in str(problem(""))
    assert "no manifest" in str(problem("---\n# nothing\n---\n"))
    assert "expected a manifest" in str(problem("- a"))
    assert "start it with" in (problem("name: a\nkind: Root\nmetadata: []").hint or "")
    assert problem(b"a\nb\xff").where == "m.yaml:2:2"
    assert problem("a: \x07").where == "m.yaml:1:4"
    assert problem("a: \ud800").where == "m.yaml:1:4"
    assert "too deeply" in str(problem("[" * 100_000))
    assert "too deeply" in str(problem("- " * 5_000))
    assert problem("a: [1,\nb: }").where == "m.yaml:2:4"


def test_times_and_hashes_are_normalised():
    text = """
kind: AddData
prevCheckpoint: F1620894B355F91B194F31C1116DCEC200B68D5CFD90A3DF19032829FA643BC711FCB
prevOffset: null
newWatermark: 2020-01-01T12:00:00.120+02:00
"""
    event = read_event(text, "e.yaml")
    assert to_builtins(event) == {
        "kind": "AddData",
        "prevCheckpoint": "f1620894b355f91b194f31c1116dcec200b68d5cfd90a3df19032829fa643bc711fcb",
        "newWatermark": "2020-01-01T10:00:00.120Z",
    }
    assert "not an RFC 3339 time" in str(event_problem("kind: AddData\nnewWatermark: 2020-01-01"))
    assert "multibase" in str(event_problem("kind: AddData\nprevCheckpoint: f16zz"))
    assert "not between 0" in str(event_problem("kind: AddData\nprevOffset: -1"))
    assert "not between 0" in str(event_problem(f"kind: AddData\nprevOffset: {2**64}"))
    assert "expected an integer" in str(event_problem("kind: AddData\nprevOffset: 1.0"))
    assert "expected an integer" in str(event_problem("kind: AddData\nprevOffset: '1'"))


def test_references_by_id_keep_their_text_and_are_written_in_one_form():
    old = "did:odf:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    text = f"kind: SetTransform\ninputs: [{{datasetRef: '{old}'}}]\ntransform: {{kind: Sql, engine: spark}}"
    event = read_event(text, "e.yaml")
    assert isinstance(event, model.SetTransform)
    assert event.inputs[0].dataset_ref == old
    block = model.MetadataBlock(system_time=Timestamp.from_ms(0), sequence_number=0, event=event)
    written = decode_block(encode_block(block)).block.event
    assert isinstance(written, model.SetTransform)
    assert written.inputs[0].dataset_ref == str(DatasetId.parse(old))
    assert "malformed" in str(event_problem(text.replace("z6Mk", "z6M0")))


def test_old_and_new_schema_field_names_are_read():
    old = read_event("kind: SetDataSchema\nschema: AQIDBAU=", "e")
    assert old == model.SetDataSchema(schema=b"\1\2\3\4\5")
    assert read_event("kind: SetDataSchema\nrawArrowSchema: AQIDBAU=", "e") == old
    assert to_builtins(old) == {"kind": "SetDataSchema", "schema": "AQIDBAU="}
    both = read_event(
        "kind: SetDataSchema\nrawArrowSchema: AQ==\nschema: {fields: [{name: a, type: {kind: bool}}]}", "e"
    )
    assert isinstance(both, model.SetDataSchema)
    assert both.schema == b"\1"
    assert both.odf_schema == model.DataSchema(fields=[model.DataField(name="a", type=model.Bool())])
    assert to_builtins(both) == {
        "kind": "SetDataSchema",
        "rawArrowSchema": "AQ==",
        "schema": {"fields": [{"name": "a", "type": {"kind": "Bool"}}]},
    }
    assert "missing field: 'rawArrowSchema' or 'schema'" in str(event_problem("kind: SetDataSchema"))
    assert "invalid base64" in str(event_problem("kind: SetDataSchema\nschema: AQ"))
    twice = "kind: SetDataSchema\nschema: AQ==\nrawArrowSchema: AQ=="
    assert "duplicate field" in str(event_problem(twice))
    assert "unknown field 'odfSchema'" in str(event_problem("kind: SetDataSchema\nodfSchema: {fields: []}"))


def test_definitions_may_list_the_columns_of_a_schema():
    """The key goes by what is there: bytes, columns, or a schema in newer terms."""
    listed = model.SetDataSchema(ddl=["id INT NOT NULL", "x STRING"])
    snapshot = model.DatasetSnapshot("a", model.DatasetKind.Root, [listed])
    text = snapshot_to_yaml(snapshot)
    assert "schema:\n        - id INT NOT NULL\n" in text
    assert read_manifests(text, "x") == [snapshot]
    with pytest.raises(InvalidManifest, match="schema: expected bytes in base64, found a list"):
        read_event("kind: SetDataSchema\nschema: [id INT]\n", "x")  # chains have no place for it
    with pytest.raises(InvalidManifest, match="expected text, found the number 1"):
        read_manifests(text.replace("id INT NOT NULL", "1"), "x")


def test_attributes_are_json():
    def attributes(text: str) -> str:
        return str(event_problem(f"kind: AddData\nextra: {text}"))

    text = "kind: AddData\nextra:\n  a:\n    - 1\n    - -2500.0\n    - true\n    - null\n    - x\n"
    text += "    - b: 'no'\n"
    event = read_event(text, "e")
    assert isinstance(event, model.AddData)
    assert event.extra == model.ExtraAttributes(entries={"a": [1, -2500.0, True, None, "x", {"b": "no"}]})
    assert to_yaml(event) == text
    assert read_event("kind: AddData\nextra: {entries: {a: 1}}", "e") == model.AddData(
        extra=model.ExtraAttributes({"a": 1})  # as earlier versions wrote them
    )
    assert "extra: expected an object, found a list" in attributes("[]")
    assert "extra.a: .inf is not a JSON number" in attributes("{a: .inf}")
    assert "extra.a[0]: .NaN is not a JSON number" in attributes("{a: [.NaN]}")
    assert "duplicate field 'a'" in attributes("{a: 1, a: 2}")
    assert "expected text as a key, found the number 1" in attributes("{1: a}")
    assert "nested too deeply" in attributes("{a: " + "[" * 70 + "]" * 70 + "}")


def test_block_manifest_version_is_read_and_checked():
    content = "systemTime: 2020-01-01T12:00:00Z\nsequenceNumber: 0\nevent: {kind: setinfo}\n"
    block, version = read_block_manifest(content, "b")
    assert (block.event, version) == (model.SetInfo(), None)
    wrapped = block_to_yaml(block, 2)
    assert wrapped.startswith(
        "kind: MetadataBlock\nversion: 2\ncontent:\n  systemTime: 2020-01-01T12:00:00Z\n"
    )
    assert read_block_manifest(wrapped, "b") == (block, 2)
    with pytest.raises(InvalidManifest, match="obsolete"):
        read_block_manifest(wrapped.replace("version: 2", "version: 1"), "b")
    with pytest.raises(InvalidManifest, match="version 4"):
        read_block_manifest(wrapped.replace("version: 2", "version: 4"), "b")
    with pytest.raises(InvalidManifest, match="found 2 documents"):
        read_block_manifest(wrapped + "---\n" + wrapped, "b")
    assert read_event("kind: MetadataEvent\nversion: 1\ncontent: {kind: SetInfo}", "e") == model.SetInfo()


def test_written_yaml_uses_literals_and_quotes_ambiguous_text():
    event = model.SetInfo(
        description="First line\n  indented: yes\n\nlast",
        keywords=["yes", "1", "1e3", "0o7", "2020-01-01", "~", "", "a: b", " x", "a\n b ", "\tt\n", "été"],
    )
    text = to_yaml(event)
    assert "description: |-\n  First line\n    indented: yes\n\n  last\n" in text
    assert "  - '1e3'\n" in text
    assert "  - '2020-01-01'\n" in text
    assert "  - été\n" in text
    assert read_event(text, "e") == event


SOURCE = """kind: DatasetSnapshot
version: 1
content:
  name: a
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: '*.csv', eventTime: %s, cache: %s}
      read:
        kind: Csv
        %s
      merge: {kind: Append}
"""


def read_source(event_time: str, cache: str, schema: str) -> Any:
    (snapshot,) = read_manifests(SOURCE % (event_time, cache, schema), "m.yaml")
    return snapshot.metadata[0]


def test_short_forms_and_both_schema_forms_are_read():
    long = read_source("{kind: FromMetadata}", "{kind: Forever}", "schema: [a INT]")
    assert long.read.schema == ["a INT"]
    for spelling in ("FromMetadata", "fromMetadata", "frommetadata"):
        assert read_source(spelling, "forever", "ddlSchema: [a INT]") == long
    declared = read_source("fromSystemTime", "Forever", "schema: {fields: [{name: a, type: int64}]}")
    assert declared.fetch.event_time == model.FromSystemTime()
    assert declared.read.odf_schema == model.DataSchema([model.DataField("a", model.Int64())])
    text = to_yaml(declared)
    assert "eventTime:\n    kind: FromSystemTime" in text and "type:\n          kind: Int64" in text


@pytest.mark.parametrize(
    ("schema", "line", "message", "hint"),
    [
        (
            "schema: {fields: []}\n        ddlSchema: [a INT]",
            10,
            "'ddlSchema' and 'schema' exclude each other",
            "remove",
        ),
        ("schema: {fields: []}\n        ddlschema: [a INT]", 12, "unknown field 'ddlschema'", "ddlSchema"),
        (
            "schema:\n          fields: [{name: a, type: int65}]",
            12,
            "type: unknown DataType 'int65'",
            "did you mean 'Int64'",
        ),
        ("schema: {fields: [{name: a, type: INT64}]}", 11, "unknown DataType 'INT64'", "Int64"),
        (
            "schema: {fields: [{name: a, type: int64?}]}",
            11,
            "unknown DataType 'int64?'",
            "{kind: Option, inner: …}",
        ),
        (
            "schema: {fields: [{name: a, type: option<int64>}]}",
            11,
            "unknown DataType",
            "{kind: Option, inner: …}",
        ),
        (
            "schema: {fields: [{name: a, type: 'Decimal(9,2)'}]}",
            11,
            "unknown DataType",
            "precision: …, scale: …",
        ),
        (
            "schema: {fields: [{name: a, type: decimal}]}",
            11,
            "type: Decimal requires precision, scale",
            "{kind: Decimal",
        ),
        ("schema: {fields: [{name: a, type: [int64]}]}", 11, "type: expected a DataType", None),
        (
            "schema: {fields: [{name: a, type: {kind: option, inner: list}}]}",
            11,
            "inner: List requires itemType",
            "itemType",
        ),
        (
            "schema: {fields: [{name: a, type: {kind: Timestamp, unit: Day}}]}",
            11,
            "unit: unknown TimeUnit 'Day'",
            None,
        ),
        ("schema: {fields: [{name: a, type: int64, nullable: true}]}", 11, "unknown field 'nullable'", None),
        (
            "schema: {fields: [{name: a, type: {kind: Int64, optional: true}}]}",
            11,
            "unknown field 'optional'",
            None,
        ),
        (
            "schema: {fields: [{name: a, type: int64, extra: {note: x}}]}",
            11,
            "extra: invalid key 'note'",
            "domain/name",
        ),
    ],
)
def test_mistakes_in_odf_schemas_are_reported_with_line(
    schema: str, line: int, message: str, hint: str | None
):
    error = problem(SOURCE % ("FromMetadata", "Forever", schema))
    assert (error.where or "").startswith(f"m.yaml:{line}:")
    assert message in str(error)
    assert hint is None or hint in (error.hint or "")


def test_incomplete_and_unknown_short_forms_are_rejected():
    assert "FromPath requires pattern" in str(problem(SOURCE % ("FromPath", "Forever", "header: true")))
    assert "unknown SourceCaching 'Always'" in str(
        problem(SOURCE % ("FromMetadata", "Always", "header: true"))
    )


@pytest.mark.parametrize(
    ("data_type", "where", "message"),
    [
        ("{kind: Decimal, precision: 6, scale: 19}", "11:64", "the scale 19 is greater than the precision 6"),
        ("{kind: Decimal, precision: 0, scale: 0}", "11:54", "the precision 0 is not in 1 to 76"),
        ("int7", "11:27", "unknown DataType 'int7'"),
        ("{kind: Option, inner: {kind: Binary, fixedLength: 0}}", "11:77", "fixedLength is 0"),
        ("{kind: List, itemType: string, fixedLength: 0}", "11:71", "fixedLength is 0"),
        ("{kind: List, itemType: {kind: Struct, fields: []}}", "11:73", "a Struct has no fields"),
        ("{kind: Option, inner: {kind: Option, inner: string}}", "11:49", "an Option of an Option"),
    ],
)
def test_impossible_data_types_are_refused_with_their_position(
    data_type: str, where: str, message: str
) -> None:
    manifest = f"""\
kind: DatasetSnapshot
version: 1
content:
  name: a
  kind: Root
  metadata:
    - kind: SetDataSchema
      schema:
        fields:
        # the type
        - {{name: y, type: {data_type}}}
"""
    with pytest.raises(InvalidManifest) as caught:
        read_manifests(manifest, "test")
    assert caught.value.where == f"test:{where}"
    assert message in str(caught.value) and caught.value.hint
