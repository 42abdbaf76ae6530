"""ODF schemas (RFC-016): each row of the conversions to and from Arrow and DDL, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.data.ddl import parse_ddl
from odf_engine.data.odf_schema import declared_types, from_arrow, stored_schema, to_arrow
from odf_engine.data.schema_enforcement import find_mismatch
from odf_engine.errors import InvalidSchema
from odf_engine.metadata.data_types import (
    BUFFER_ENCODING,
    DATE_ENCODING,
    DECIMAL_ENCODING,
    adopt_attributes,
    same_meaning,
    schema_descriptions,
    strip_encodings,
)
from odf_engine.metadata.model import (
    Binary,
    Bool,
    DataField,
    DataSchema,
    Date,
    Decimal,
    Duration,
    ExtraAttributes,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    List,
    Map,
    Null,
    Option,
    String,
    Struct,
    Time,
    TimestampType,
    TimeUnit,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)

S, MS, US, NS = TimeUnit
KEYS = {"buffer": BUFFER_ENCODING, "date": DATE_ENCODING, "decimal": DECIMAL_ENCODING}


def buffers(kind: str, width: int) -> dict[str, Any]:
    return {"buffer": {"kind": kind, "offsetBitWidth": width}}


def schema_of(kind: Any, **encoding: Any) -> DataSchema:
    extra = {KEYS[name]: value for name, value in encoding.items()}
    return DataSchema([DataField("a", kind, ExtraAttributes(extra) if extra else None)])


C32, C64, V32, V64 = (buffers(kind, width) for kind in ("Contiguous", "View") for width in (32, 64))
PLAIN: list[tuple[pa.DataType, Any, dict[str, Any]]] = [
    (pa.bool_(), Bool(), {}),
    (pa.int8(), Int8(), {}),
    (pa.int16(), Int16(), {}),
    (pa.int32(), Int32(), {}),
    (pa.int64(), Int64(), {}),
    (pa.uint8(), UInt8(), {}),
    (pa.uint16(), UInt16(), {}),
    (pa.uint32(), UInt32(), {}),
    (pa.uint64(), UInt64(), {}),
    (pa.float16(), Float16(), {}),
    (pa.float32(), Float32(), {}),
    (pa.float64(), Float64(), {}),
    (pa.binary(), Binary(), C32),
    (pa.large_binary(), Binary(), C64),
    (pa.binary_view(), Binary(), V32),
    (pa.binary(7), Binary(7), {}),
    (pa.string(), String(), C32),
    (pa.large_string(), String(), C64),
    (pa.string_view(), String(), V32),
    (pa.date32(), Date(), {}),
    (pa.date64(), Date(), {"date": {"unit": "Millisecond"}}),
    (pa.time32("s"), Time(S), {}),
    (pa.time32("ms"), Time(MS), {}),
    (pa.time64("us"), Time(US), {}),
    (pa.time64("ns"), Time(NS), {}),
    (pa.timestamp("us", "Asia/Tokyo"), TimestampType(US, "Asia/Tokyo"), {}),
    (pa.duration("ns"), Duration(NS), {}),
    (pa.decimal32(9, 2), Decimal(9, 2), {"decimal": {"bitWidth": 32}}),
    (pa.decimal64(9, 2), Decimal(9, 2), {"decimal": {"bitWidth": 64}}),
    (pa.decimal128(38, -2), Decimal(38, -2), {"decimal": {"bitWidth": 128}}),
    (pa.decimal256(9, 2), Decimal(9, 2), {"decimal": {"bitWidth": 256}}),
    (pa.list_(pa.int8()), List(Option(Int8())), C32),
    (pa.large_list(pa.field("item", pa.int8(), nullable=False)), List(Int8()), C64),
    (pa.list_view(pa.int8()), List(Option(Int8())), V32),
    (pa.large_list_view(pa.int8()), List(Option(Int8())), V64),
    (pa.list_(pa.int8(), 3), List(Option(Int8()), 3), {}),
    (
        pa.struct([pa.field("b", pa.date64()), pa.field("c", pa.int8(), nullable=False)]),
        Struct([
            DataField("b", Option(Date()), ExtraAttributes({DATE_ENCODING: {"unit": "Millisecond"}})),
            DataField("c", Int8()),
        ]),
        {},
    ),
    (
        pa.map_(pa.int8(), pa.field("values", pa.int16(), nullable=False), keys_sorted=True),
        Map(Int8(), Int16(), True),
        {},
    ),
]  # fmt: skip
ONE_WAY: list[tuple[pa.DataType, Any, dict[str, Any]]] = [
    (pa.timestamp("ns"), TimestampType(NS), {}),  # then it is in UTC
    (pa.list_(pa.large_string()), List(Option(String())), C32),
    (pa.map_(pa.string(), pa.int8()), Map(String(), Option(Int8()), False), {}),
    (
        pa.run_end_encoded(pa.int32(), pa.string()),
        String(),
        {"buffer": {"kind": "RunEnd", "runEndsBitWidth": 32}},
    ),
]


@pytest.mark.parametrize(("arrow", "odf", "encoding"), [*PLAIN, *ONE_WAY], ids=str)
def test_arrow_types_convert_to_odf_types(arrow: pa.DataType, odf: Any, encoding: dict[str, Any]):
    required = pa.schema([pa.field("a", arrow, nullable=False, metadata={"lost": "x"})])
    assert from_arrow(required) == schema_of(odf, **encoding)
    assert from_arrow(pa.schema([("a", arrow)])) == schema_of(Option(odf), **encoding)


@pytest.mark.parametrize(("arrow", "odf", "encoding"), PLAIN, ids=str)
def test_odf_type_converts_to_the_arrow_layout_of_its_attribute(
    arrow: pa.DataType, odf: Any, encoding: dict[str, Any]
):
    for nullable, kind in ((False, odf), (True, Option(odf))):
        assert to_arrow(schema_of(kind, **encoding)) == pa.schema([pa.field("a", arrow, nullable)])
    assert declared_types(schema_of(odf, **encoding)).field("a").type == to_arrow(stored_schema(
        pa.schema([("a", arrow)])
    )).field("a").type  # fmt: skip


@pytest.mark.parametrize(
    ("odf", "arrow"),
    [
        (Binary(), pa.binary()),
        (String(), pa.string()),
        (List(String()), pa.list_(pa.field("item", pa.string(), nullable=False))),
        (List(Option(String()), 2), pa.list_(pa.field("item", pa.string()), 2)),
        (
            Map(String(), Option(Int8())),
            pa.map_(pa.field("keys", pa.string(), nullable=False), pa.field("values", pa.int8())),
        ),
        (Date(), pa.date32()),
        (Decimal(38, 10), pa.decimal128(38, 10)),
        (Decimal(39, 10), pa.decimal256(39, 10)),
        (Decimal(76, 76), pa.decimal256(76, 76)),
        (Decimal(3, -2), pa.decimal128(3, -2)),
        (Time(), pa.time32("ms")),
        (TimestampType(), pa.timestamp("ms", "UTC")),
        (TimestampType(S, "+00:00"), pa.timestamp("s", "+00:00")),
        (Duration(), pa.duration("ms")),
    ],
    ids=str,
)
def test_odf_type_without_attributes_converts_to_default_arrow_type(odf: Any, arrow: pa.DataType):
    assert to_arrow(schema_of(odf)) == pa.schema([pa.field("a", arrow, nullable=False)])


@pytest.mark.parametrize(
    ("kind", "encoding", "message"),
    [
        (Option(Option(Int8())), {}, "'a' is an Option of an Option"),
        (List(Option(Option(Int8()))), {}, r"'a\[\]' is an Option of an Option"),
        (Struct([DataField("b", Option(Option(Int8())))]), {}, "'a.b' is an Option of an Option"),
        (Map(Option(String()), Int8()), {}, "the keys of a Map cannot be an Option"),
        (Decimal(0, 0), {}, "precision 0"),
        (Decimal(77, 0), {}, "precision 77"),
        (Decimal(5, 6), {}, "scale 6"),
        (Decimal(5, -77), {}, "scale -77"),
        (Binary(0), {}, "fixedLength 0"),
        (Binary(2**40), {}, "fixedLength 1099511627776"),
        (List(Int8(), 2**31), {}, "fixedLength 2147483648"),
        (Int8(), C32, "bufferEncoding does not fit the type int8"),
        (String(), V64, "does not fit"),
        (String(), {"buffer": {"kind": "RunEnd"}}, "does not fit"),
        (String(), {"buffer": "View"}, "does not fit"),
        (Binary(3), C32, "does not fit"),
        (String(), {"date": {"unit": "Day"}}, "dateEncoding does not fit"),
        (Date(), {"date": {"unit": "Second"}}, "dateEncoding does not fit"),
        (Decimal(10, 0), {"decimal": {"bitWidth": 32}}, "decimalEncoding does not fit"),
        (Decimal(10, 0), {"decimal": {"bitWidth": "wide"}}, "decimalEncoding does not fit"),
        (Decimal(10, 0), {"decimal": {"bitWidth": [1]}}, "decimalEncoding does not fit"),
    ],
    ids=str,
)
def test_odf_schema_without_arrow_equivalent_is_rejected(kind: Any, encoding: dict[str, Any], message: str):
    with pytest.raises(InvalidSchema, match=message):
        to_arrow(schema_of(kind, **encoding))


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.month_day_nano_interval(),
        pa.dense_union([]),
        pa.decimal256(39, 0),
    ],
    ids=str,
)
def test_arrow_type_without_odf_equivalent_is_rejected(kind: pa.DataType):
    with pytest.raises(InvalidSchema, match=r"'a\.b"):
        from_arrow(pa.schema([("a", pa.struct([("b", kind)]))]))


def test_deep_types_are_refused():
    odf, arrow = Int8(), pa.int8()
    for _ in range(60):
        odf, arrow = List(odf), pa.list_(arrow)
    with pytest.raises(InvalidSchema, match="deeply"):
        to_arrow(schema_of(odf))
    with pytest.raises(InvalidSchema, match="deeply"):
        from_arrow(pa.schema([("a", arrow)]))


def test_null_is_always_nullable():
    assert from_arrow(pa.schema([("a", pa.null())])) == schema_of(Option(Null()))
    for kind in (Null(), Option(Null())):
        assert to_arrow(schema_of(kind)) == pa.schema([("a", pa.null())])


def test_attribute_spelling_ignores_case():
    for kind in ("View", "view"):
        assert to_arrow(schema_of(String(), buffer={"kind": kind})).field(0).type == pa.string_view()
    assert to_arrow(schema_of(Date(), date={"unit": "millisecond"})).field(0).type == pa.date64()


def test_layouts_are_not_stored():
    inner = [
        DataField("b", Option(String()), ExtraAttributes({BUFFER_ENCODING: {"kind": "View"}, "x.y/z": 1}))
    ]
    before = DataSchema([
        DataField("a", Option(Struct(inner)), ExtraAttributes({DATE_ENCODING: {"unit": "Day"}})),
        DataField("l", List(Struct(inner))),
    ])  # fmt: skip
    assert strip_encodings(before) == DataSchema([
        DataField("a", Option(Struct([DataField("b", Option(String()), ExtraAttributes({"x.y/z": 1}))]))),
        DataField("l", List(Struct(inner))),
    ])  # fmt: skip


def test_schemas_are_compared_by_meaning():
    def types_equal(left: Any, right: Any) -> bool:
        wrap = [lambda kind: kind, Option, List, lambda kind: Struct([DataField("b", kind)])]
        results = {same_meaning(schema_of(each(left)), schema_of(each(right))) for each in wrap}
        assert len(results) == 1
        return results.pop()

    assert types_equal(TimestampType(), TimestampType(MS, "UTC"))
    assert types_equal(Time(), Time(MS)) and types_equal(Duration(), Duration(MS))
    assert types_equal(Map(String(), Int8()), Map(String(), Int8(), False))
    assert not types_equal(TimestampType(), TimestampType(US))
    assert not types_equal(TimestampType(MS, "UTC"), TimestampType(MS, "+00:00"))
    assert not types_equal(Int8(), Option(Int8()))

    def extras_equal(left: Any, right: Any) -> bool:
        a, b = (DataSchema([], None if value is None else ExtraAttributes(value)) for value in (left, right))
        return same_meaning(a, b)

    assert extras_equal({"a.b/c": {"x": 1, "y": [None]}}, {"a.b/c": {"y": [None], "x": 1}})
    assert extras_equal({}, None)
    assert not extras_equal({"a.b/c": 1}, {"a.b/c": True})
    assert not extras_equal({"a.b/c": 1}, {"a.b/c": 1.0})
    assert not extras_equal({"a.b/c": 1}, None)


def test_attributes_survive_new_columns():
    described = ExtraAttributes({"opendatafabric.org/description": "when"})
    old = DataSchema(
        [DataField("t", TimestampType(), described)], ExtraAttributes({"kamu.dev/archetype": "C"})
    )
    new = stored_schema(
        pa.schema([pa.field("t", pa.timestamp("ms", "UTC"), nullable=False), ("x", pa.int8())])
    )
    adopted = adopt_attributes(new, old)
    assert adopted == DataSchema([*old.fields, DataField("x", Option(Int8()))], old.extra)
    assert schema_descriptions(adopted) == {"t": "when"}
    # Those of a declaration, which may have other defaults and nullability.
    member = DataField("m", Option(TimestampType()), described)
    declared = DataSchema([DataField("s", Option(List(Struct([member, DataField("gone", Int8())]))))])
    stored = stored_schema(pa.schema([("s", pa.list_(pa.struct([("m", pa.timestamp("ms", "UTC"))])))]))
    adopted = adopt_attributes(stored, declared, spelling=False)
    time = Option(TimestampType(TimeUnit.Millisecond, "UTC"))
    items = Option(Struct([DataField("m", time, described)]))
    assert adopted == DataSchema([DataField("s", Option(List(items)))])


def test_descriptions_of_nested_members_are_found():
    described = ExtraAttributes({"opendatafabric.org/description": " one  "})
    member = DataField("id", String(), described)
    odd = DataField("odd", String(), ExtraAttributes({"opendatafabric.org/description": ["not", "text"]}))
    schema = DataSchema([DataField("a", Option(List(Struct([member, odd]))))])
    assert schema_descriptions(schema) == {"a.id": "one"}


@pytest.mark.parametrize(
    ("ddl", "odf"),
    [
        ("BOOL", Bool()), ("boolean", Bool()),
        ("INT", Int32()), ("INTEGER", Int32()), ("SIGNED", Int32()), ("INT32", Int32()),
        ("INT UNSIGNED", UInt32()), ("INTEGER UNSIGNED", UInt32()), ("UNSIGNED", UInt32()),
        ("uint32", UInt32()),
        ("BIGINT", Int64()), ("BIGINT UNSIGNED", UInt64()),
        ("FLOAT", Float32()), ("FLOAT32", Float32()), ("DOUBLE", Float64()),
        ("DECIMAL(18,4)", Decimal(18, 4)), ("DATE", Date()),
        ("TIMESTAMP", TimestampType(MS, "UTC")), ("TIMESTAMP WITH TIME ZONE", TimestampType(MS, "UTC")),
        ("TIMESTAMP WITHOUT TIME ZONE", TimestampType(MS, "UTC")),
        ("STRING", String()), ("VARCHAR", String()), ("TEXT", String()), ("TINYTEXT", String()),
        ("MEDIUMTEXT", String()), ("LONGTEXT", String()), ("FixedString(9)", String()),
        ("ARRAY<INT>", List(Option(Int32()))),
    ],
)  # fmt: skip
def test_ddl_types_convert_to_odf_types(ddl: str, odf: Any):
    """All columns are Option unless NOT NULL, decimals and dates too."""
    assert stored_schema(parse_ddl([f"a {ddl}", f"b {ddl} NOT NULL"])).fields == [
        DataField("a", Option(odf)),
        DataField("b", odf),
    ]


_LEAVES = [arrow for arrow, *_ in PLAIN if not pa.types.is_nested(arrow)]
_types = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: (
        st.builds(pa.list_, st.builds(pa.field, st.just("item"), inner, st.booleans()))
        | st.builds(
            pa.map_, inner, st.builds(pa.field, st.just("values"), inner, st.booleans()), st.booleans()
        )
        | st.lists(st.builds(pa.field, st.text("ab"), inner, st.booleans()), max_size=3).map(pa.struct)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(_types, st.booleans())
def test_stored_types_are_stable(kind: pa.DataType, nullable: bool):
    """A stored schema converts to Arrow and back without a change."""
    stored = stored_schema(pa.schema([pa.field("a", kind, nullable)]))
    assert same_meaning(stored_schema(declared_types(stored)), stored)


STORED = DataSchema([
    DataField("i", Int32()),
    DataField("t", TimestampType()),
    DataField("d", Option(Decimal(9, 2))),
    DataField("s", Option(String())),
    DataField("b", Option(Binary())),
    DataField("l", Option(List(Option(String())))),
    DataField("p", Option(Struct([DataField("q", String())]))),
    DataField("day", Option(Date())),
])  # fmt: skip
FOUND: dict[str, pa.DataType] = {
    "i": pa.int32(),
    "t": pa.timestamp("ms", "UTC"),
    "d": pa.decimal128(9, 2),
    "s": pa.large_string(),
    "b": pa.binary_view(),
    "l": pa.large_list(pa.string_view()),
    "p": pa.struct([("q", pa.large_string())]),
    "day": pa.date32(),
}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"s": pa.string(), "b": pa.large_binary(), "l": pa.list_view(pa.string())}, None),
        ({"s": None}, "columns are i, t, d, b"),
        ({"more": pa.int8()}, "columns are .* more, expected i"),
        ({"i": pa.int64()}, "'i' is int64, expected int32"),
        ({"i": pa.uint32()}, "'i' is uint32"),
        ({"t": pa.timestamp("us", "UTC")}, "'t' is timestamp"),
        ({"t": pa.timestamp("ms", "+00:00")}, "'t' is timestamp"),
        ({"t": pa.timestamp("ms")}, "'t' is timestamp"),
        ({"d": pa.decimal128(10, 2)}, "'d' is decimal"),
        ({"d": pa.decimal128(9, 3)}, "'d' is decimal"),
        ({"s": pa.binary()}, "'s' is binary"),
        ({"l": pa.list_(pa.int8())}, "'l' is list"),
        ({"p": pa.struct([("r", pa.string())])}, "'p' is struct"),
        ({"p": pa.struct([("q", pa.int8())])}, "'p' is struct"),
        ({"day": pa.date64()}, "'day' is date64"),
    ],
)
def test_slice_columns_must_match_the_declared_types(
    changes: dict[str, pa.DataType | None], problem: str | None
):
    """Types are exact apart from the layout of texts, binaries and lists."""
    found = pa.schema([(name, kind) for name, kind in {**FOUND, **changes}.items() if kind is not None])
    mismatch = find_mismatch(found, declared_types(STORED))
    assert mismatch is None if problem is None else re.search(problem, mismatch or "")


def test_columns_of_new_slices_have_an_order():
    names = [*FOUND][::-1]
    found = pa.schema([(name, FOUND[name]) for name in names])
    assert "columns are day, p" in (find_mismatch(found, declared_types(STORED)) or "")
