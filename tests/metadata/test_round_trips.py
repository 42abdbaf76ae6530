"""Whatever the model can hold survives every form it takes; whatever bytes come, nothing breaks."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import ARROW0_SHA3_256, SHA2_256, SHA3_256, Multihash
from odf_engine.metadata import descriptors, model
from odf_engine.metadata.data_types import find_type_problem
from odf_engine.metadata.descriptors import describe_table, field_type_of
from odf_engine.metadata.flatbuffers import decode_block, decode_table, encode_block, encode_table
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

FAST = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

hashes = st.builds(
    Multihash, st.sampled_from([SHA2_256, SHA3_256, ARROW0_SHA3_256]), st.binary(min_size=32, max_size=32)
)
dataset_ids = st.builds(DatasetId, st.binary(min_size=32, max_size=32))
moments = st.builds(
    Timestamp, st.integers(Timestamp.parse("0001-01-01T00:00:00Z").ns, Timestamp.from_ms(253402300799999).ns)
)
# Few letters, but all that YAML could trip over.
texts = st.text(
    st.sampled_from("ab01.-+:#'\"\\|>&*!%@`{}[], \t\n\r\0\x85\u2028\ufeff~?éÿ😀\x7f"), max_size=8
) | st.text(max_size=5)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@cache
def values_of(shape: descriptors.FieldType) -> st.SearchStrategy[Any]:
    """Any value of a shape, from the declaration alone."""
    match shape:
        case descriptors.IntegerType():
            return st.sampled_from([0, 1, shape.low, shape.high]) | st.integers(shape.low, shape.high)
        case descriptors.BoolType():
            return st.booleans()
        case descriptors.EnumType(enum):
            return st.sampled_from(list(enum))
        case descriptors.StringType(is_ref):
            return texts | dataset_ids.map(str) if is_ref else texts
        case descriptors.JsonType():
            return st.dictionaries(texts, json_values, max_size=3)
        case descriptors.BytesType(kind):
            return {bytes: st.binary(max_size=9), Multihash: hashes, DatasetId: dataset_ids}[kind]
        case descriptors.InstantType():
            return moments
        case descriptors.TableType(kind) if kind is model.ExtraAttributes:
            keys = st.from_regex(model.ExtraAttributes.KEY, fullmatch=True)
            return st.builds(kind, st.dictionaries(keys, json_values, max_size=3))
        case descriptors.TableType(kind):
            return st.deferred(lambda: tables(kind))
        case descriptors.UnionType(_, members):
            return st.deferred(lambda: st.one_of([tables(kind) for kind in members]))
        case descriptors.VectorType(item):
            return st.lists(values_of(item), max_size=2)


@cache
def tables(kind: type[model.Model]) -> st.SearchStrategy[Any]:
    fields = {
        field.name: st.none() | values_of(field.shape) if field.optional else values_of(field.shape)
        for field in describe_table(kind).fields
    }
    built = st.builds(kind, **fields)
    needed, exclusive = kind.NEEDS_ONE_OF, kind.AT_MOST_ONE_OF

    def is_valid(value: model.Model) -> bool:
        given = [
            [name for name in names if getattr(value, name) is not None] for names in (needed, exclusive)
        ]
        return bool(given[0] or not needed) and len(given[1]) < 2

    return built.filter(is_valid)


events = values_of(field_type_of(model.MetadataEvent)[0])


@FAST
@given(block=tables(model.MetadataBlock), version=st.sampled_from([2, 3]))
def test_blocks_survive_bytes_and_yaml(block: model.MetadataBlock, version: int):
    decoded = decode_block(encode_block(block, version))
    assert (decoded.block, decoded.version, decoded.unknown) == (block, version, ())
    assert read_block_manifest(block_to_yaml(block, version), "block") == (block, version)


@pytest.mark.parametrize("kind", descriptors.get_args(model.MetadataEvent), ids=lambda kind: kind.__name__)
@settings(FAST, max_examples=20)
@given(data=st.data())
def test_every_event_survives_bytes_yaml_and_json(kind: type[model.Model], data: st.DataObject):
    event = data.draw(tables(kind))
    assert decode_table(encode_table(event), model.MetadataEvent) == event
    assert read_event(to_yaml(event), "event") == event
    as_json = json.dumps(to_builtins(event))
    if "\\ud" not in as_json:  # YAML has no surrogate pairs
        assert read_event(as_json, "event") == event


@FAST
@given(data_type=values_of(field_type_of(model.DataType)[0]))
def test_data_types_survive_bytes_and_yaml(data_type: Any):
    schema = model.DataSchema(fields=[model.DataField(name="a", type=data_type)])
    event = model.SetDataSchema(odf_schema=schema)
    assert decode_table(encode_table(event), model.MetadataEvent) == event
    assert read_event(to_yaml(event), "event") == event


@FAST
@given(
    kind=st.sampled_from(field_type_of(model.DataType)[0].members),
    spelling=st.integers(0, 2),
    place=st.sampled_from(
        [
            "%s",
            "{kind: Option, inner: %s}",
            "{kind: list, itemType: {kind: option, inner: %s}}",
            "{kind: Map, keyType: %s, valueType: string}",
            "{kind: Map, keyType: int8, valueType: %s}",
            "{kind: Struct, fields: [{name: b, type: %s}]}",
        ]
    ),
)
def test_short_forms_equal_long_forms(kind: type[model.Model], spelling: int, place: str):
    """At each place of a type, in each accepted spelling; only for kinds without required fields."""
    name = descriptors.union_tag(kind) or ""
    written = (name, name[0].lower() + name[1:], name.lower())[spelling]
    event = "kind: SetDataSchema\nschema: {fields: [{name: a, type: " + place + "}]}"
    if descriptors.required_keys(kind):
        with pytest.raises(OdfError, match=f"{name} requires"):
            read_event(event % written, "e")
        return
    quoted = f"'{written}'" if name == "Null" else written
    assert read_event(event % quoted, "e") == read_event(event % f"{{kind: '{written}'}}", "e")


def _has_only_possible_types(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_has_only_possible_types, value))
    if not isinstance(value, model.Model):
        return True
    parts = [getattr(value, name) for name in value.__struct_fields__]
    return find_type_problem(value) is None and all(map(_has_only_possible_types, parts))


@settings(FAST, max_examples=30)
@given(snapshot=tables(model.DatasetSnapshot).filter(_has_only_possible_types))
def test_snapshots_survive_yaml(snapshot: model.DatasetSnapshot):
    assert read_manifests(snapshot_to_yaml(snapshot), "snapshot") == [snapshot]


@pytest.mark.parametrize(
    "kind",
    [model.RawQueryRequest, model.RawQueryResponse, model.TransformRequest, model.TransformResponse],
    ids=["RawQueryRequest", "RawQueryResponse", "TransformRequest", "TransformResponse"],
)
@settings(FAST, max_examples=30)
@given(data=st.data())
def test_engine_messages_survive_bytes(kind: Any, data: st.DataObject):
    message = data.draw(values_of(field_type_of(kind)[0]))
    assert decode_table(encode_table(message), kind) == message


def test_what_cannot_be_read_back_is_not_written():
    deep: Any = model.Bool()
    for _ in range(200):
        deep = model.Option(inner=deep)
    schema = model.DataSchema(fields=[model.DataField(name="a", type=deep)])
    with pytest.raises(OdfError, match="nest"):
        encode_table(model.SetDataSchema(odf_schema=schema))
    with pytest.raises(OdfError, match="newer specification"):
        encode_table(
            model.SetPollingSource(fetch=model.Opaque("FetchStep", 9), read=model.Csv(), merge=model.Append())
        )
