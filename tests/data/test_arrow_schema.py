"""Bare Arrow schemas: round trip, a fixed image of the bytes, and safety against any bytes."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.errors import InvalidSchema

_LEAVES = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.binary(16), pa.date32(), pa.date64(), pa.decimal128(38, -3), pa.decimal256(76, 76)),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Tokyo")),
]
_NEWER_LEAVES = [
    *(pa.decimal32(9, 9), pa.decimal64(18, -2)),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
]
_names = st.text(max_size=8)
_metadata = st.none() | st.dictionaries(st.binary(max_size=4), st.binary(max_size=4), min_size=1, max_size=3)


def _fields(types: st.SearchStrategy[pa.DataType], least: int = 0) -> st.SearchStrategy[list[pa.Field]]:
    return st.lists(st.builds(pa.field, _names, types, st.booleans(), _metadata), min_size=least, max_size=4)


_types = st.recursive(
    st.sampled_from([*_LEAVES, *_NEWER_LEAVES]),
    lambda types: (
        st.builds(pa.list_, types)
        | st.builds(pa.large_list, types)
        | st.builds(pa.list_, types, st.integers(0, 9))
        | _fields(types).map(pa.struct)
        | st.sampled_from([pa.list_view, pa.large_list_view]).flatmap(lambda make: st.builds(make, types))
        | st.builds(pa.map_, types, types, st.booleans())
        | st.builds(pa.run_end_encoded, st.sampled_from([pa.int16(), pa.int32(), pa.int64()]), types)
    ),
    max_leaves=8,
)
_schemas = st.builds(pa.schema, _fields(_types), _metadata)

EVERY_LEAF = pa.schema([(str(at), kind) for at, kind in enumerate(_LEAVES)])
SYSTEM = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("event_time", pa.timestamp("ms", "UTC")),
        pa.field("city", pa.string()),
        pa.field("population", pa.int64()),
    ]
)


@settings(deadline=None)
@given(_schemas)
@pytest.mark.complete
def test_schema_round_trips(schema: pa.Schema) -> None:
    data = encode_schema(schema)
    assert decode_schema(data).equals(schema, check_metadata=True)
    assert encode_schema(decode_schema(data)) == data


def test_every_leaf_type_round_trips() -> None:
    assert decode_schema(encode_schema(EVERY_LEAF)) == EVERY_LEAF
    null = pa.schema([("null", pa.null())])  # is always nullable
    assert decode_schema(encode_schema(null)) == null


def test_the_bytes_do_not_change() -> None:
    # Equal schemas must give equal blocks for ever, and in every implementation. From the end: name,
    # vector of children, type with its vtable before it, field, vector of fields, root.
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    assert encode_schema(schema).hex(" ", 4) == (
        "0c000000 08000800 00000400 08000000 04000000 01000000 14000000 10001400 10000000 0f000400 00000800"
        " 10000000 18000000 20000000 00000002 1c000000 08000c00 04000b00 08000000 20000000 00000001 00000000"
        " 01000000 61000000"
    )
    digest = hashlib.sha3_256(encode_schema(SYSTEM)).hexdigest()
    assert digest == "4d69077d12845c1a938cbbee8f816c4f22fd1f713229380910a1aa4adb1f9b4a"
    digest = hashlib.sha3_256(encode_schema(EVERY_LEAF)).hexdigest()
    assert digest == "f19b7005d20aa5d09251337e5c772a232b256bbe72b13370d52560f4c7c2d719"
    digest = hashlib.sha3_256(_WHOLE).hexdigest()
    assert digest == "90ab1a310c8111241adfa70683ad32c356bed3570b557c860c6642befa73fa65"


def test_encoding_is_a_bare_flatbuffers_table() -> None:
    # A reader that knows only FlatBuffers: the root is a table whose slot 1 has the fields.
    data = encode_schema(SYSTEM)
    root = int.from_bytes(data[:4], "little")
    vtable = root - int.from_bytes(data[root : root + 4], "little", signed=True)
    slot = int.from_bytes(data[vtable + 6 : vtable + 8], "little")
    vector = root + slot + int.from_bytes(data[root + slot : root + slot + 4], "little")
    assert int.from_bytes(data[vector : vector + 4], "little") == len(SYSTEM)
    assert b"population" in data
    assert data[:4] != b"\xff\xff\xff\xff"


def test_schema_is_decoded_at_any_alignment() -> None:
    data = encode_schema(SYSTEM)
    for cut in range(8):
        padded = bytes(cut) + data
        assert decode_schema(bytes(memoryview(padded)[cut:])) == SYSTEM


@pytest.mark.parametrize(
    "kind",
    [pa.dictionary(pa.int8(), pa.string()), pa.month_day_nano_interval(), pa.dense_union([])],
)
def test_types_without_an_odf_type_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidSchema, match=r"'a\.b'"):
        encode_schema(pa.schema([("a", pa.struct([("b", kind)]))]))


def test_too_deep_a_type_is_refused() -> None:
    kind = pa.int8()
    for _ in range(200):
        kind = pa.list_(kind)
    with pytest.raises(InvalidSchema, match="deeply"):
        encode_schema(pa.schema([("a", kind)]))


@pytest.mark.parametrize(
    "data", [b"", b"\0", bytes(8), bytes(1000), b"\xff" * 64, b"\1\2\3\4\5", b"not a schema"]
)
def test_invalid_schema_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidSchema):
        decode_schema(data)


_WHOLE = encode_schema(
    pa.schema(
        [
            *SYSTEM,
            pa.field("s", pa.struct([("l", pa.list_(pa.decimal128(5, 2))), ("t", pa.time32("s"))])),
            pa.field("m", pa.binary(3), metadata={"k": "v"}),
        ],
        metadata={"x": "y"},
    )
)


def test_names_and_time_zones_are_utf8() -> None:
    kind = pa.struct(
        [("inner", pa.timestamp("ms", "Zone/Of")), ("list", pa.list_(pa.field("item_", pa.int8())))]
    )
    data = encode_schema(pa.schema([("outer", kind)]))
    for name in (b"outer", b"inner", b"Zone/Of", b"item_"):
        assert data.count(name) == 1
        with pytest.raises(InvalidSchema, match="invalid Arrow schema: 'utf-8' codec"):
            decode_schema(data.replace(name, name[:-1] + b"\xff"))
