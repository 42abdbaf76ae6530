"""DDL schemas: every type, odd names, errors that say where."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.data.ddl import _OTHER_NAMES, max_length, parse_comments, parse_ddl, to_ddl
from odf_engine.errors import InvalidSchema

UTC_MS = pa.timestamp("ms", "UTC")


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("BOOLEAN", pa.bool_()),
        ("bool", pa.bool_()),
        ("TINYINT", pa.int8()),
        ("SMALLINT", pa.int16()),
        ("INT", pa.int32()),
        ("Integer", pa.int32()),
        ("BIGINT", pa.int64()),
        ("TINYINT UNSIGNED", pa.uint8()),
        ("SMALLINT UNSIGNED", pa.uint16()),
        ("INT UNSIGNED", pa.uint32()),
        ("bigint unsigned", pa.uint64()),
        ("FLOAT", pa.float32()),
        ("REAL", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("DOUBLE PRECISION", pa.float64()),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("DECIMAL(5)", pa.decimal128(5, 0)),
        ("NUMERIC ( 38 , 10 )", pa.decimal128(38, 10)),
        ("UUID", pa.binary(16)),
        ("STRING", pa.string()),
        ("TEXT", pa.string()),
        ("VARCHAR", pa.string()),
        ("VARCHAR(255)", pa.string()),
        ("CHAR(2)", pa.string()),
        ("BINARY", pa.binary()),
        ("BINARY(20)", pa.binary(20)),
        ("VARBINARY(20)", pa.binary()),
        ("DATE", pa.date32()),
        ("TIME", pa.time64("us")),
        ("TIME(0)", pa.time32("ms")),
        ("TIME(3)", pa.time32("ms")),
        ("TIME(9)", pa.time64("ns")),
        ("TIMESTAMP", UTC_MS),
        ("TIMESTAMP(0)", UTC_MS),
        ("TIMESTAMP(3)", UTC_MS),
        ("TIMESTAMP(6)", pa.timestamp("us", "UTC")),
        ("TIMESTAMP(4) WITH TIME ZONE", pa.timestamp("us", "UTC")),
        ("TIMESTAMP(9)", pa.timestamp("ns", "UTC")),
        ("TIMESTAMP WITH TIME ZONE", UTC_MS),
        ("TIMESTAMP WITHOUT TIME ZONE", UTC_MS),
        ("ARRAY<STRING>", pa.list_(pa.string())),
        ("INT[]", pa.list_(pa.int32())),
        ("ARRAY<ARRAY<INT[]>>", pa.list_(pa.list_(pa.list_(pa.int32())))),
        ("STRUCT<a: INT, `b c` DATE>", pa.struct([("a", pa.int32()), ("b c", pa.date32())])),
        ("ARRAY<STRUCT<a INT>>", pa.list_(pa.struct([("a", pa.int32())]))),
    ],
)
def test_ddl_types_map_to_arrow_types(ddl: str, kind: pa.DataType) -> None:
    assert parse_ddl([f"x {ddl}"]) == pa.schema([("x", kind)])
    assert parse_ddl([f"x {ddl} NOT NULL"]) == pa.schema([pa.field("x", kind, nullable=False)])


def test_example_of_the_specification_is_parsed() -> None:
    text = """
    registration_time TIMESTAMP(3),
    registration_id UUID,
    email STRING,
    first_name STRING,
    last_name STRING,
    date_of_birth DATE,
    """
    names = ["registration_time", "registration_id", "email", "first_name", "last_name", "date_of_birth"]
    assert parse_ddl([text]).names == names
    assert parse_ddl(text.strip().splitlines()) == parse_ddl([text])


def test_names_can_be_quoted() -> None:
    schema = parse_ddl(["`a ``b``` INT", '"c ""d""" INT', "zip-code INT", "größe INT", "2020 INT"])
    assert schema.names == ["a `b`", 'c "d"', "zip-code", "größe", "2020"]


def test_lengths_of_texts_and_binaries_are_kept() -> None:
    entries = ["a CHAR(2)", "b VARBINARY(3) NOT NULL", "c ARRAY<VARCHAR(4)>", "d STRUCT<x: CHAR(5) NOT NULL>"]
    schema = parse_ddl([*entries, "e VARCHAR", "f FIXEDSTRING(6)[]"])
    a, b, c, d, e, f = schema
    fields = [a, b, c.type.value_field, d.type.field("x"), e, f.type.value_field]
    assert [max_length(field) for field in fields] == [2, 3, 4, 5, None, 6]
    assert to_ddl(schema) == [*entries, "e STRING", "f ARRAY<FIXEDSTRING(6)>"]


def test_comments_and_null_are_accepted() -> None:
    commented = [
        "x INT NULL COMMENT 'it''s, a number'",
        'y INT, `b c` STRUCT<x: INT COMMENT "n"> COMMENT "z"',
    ]
    assert parse_ddl(commented[:1]) == pa.schema([("x", pa.int32())])
    assert parse_comments(commented) == {"x": "it's, a number", "b c": "z"}


@pytest.mark.parametrize(
    ("ddl", "message", "hint"),
    [
        ("population INTT", "column 'population': unknown type INTT", "did you mean INT?"),
        ("x LONG", "unknown type LONG", "did you mean BIGINT?"),
        ("x DateTime", "unknown type DATETIME", "did you mean TIMESTAMP?"),
        ("x ARRAY<BYTE>", "unknown type BYTE", "did you mean TINYINT?"),
        ("x MAP<STRING, INT>", "unknown type MAP", "types: BOOLEAN"),
        ("x", "column 'x': missing type", "name STRING"),
        ("", "missing column name", ""),
        ("x INT y", "unexpected 'y'", ""),
        ("x INT) y", "unexpected", ""),
        ("`x INT", "invalid syntax", "quotes"),
        ("x ARRAY<INT", "expected '>', found the end", ""),
        ("x ARRAY INT", "expected '<', found 'INT'", ""),
        ("x STRUCT<>", "empty STRUCT", ""),
        ("x STRUCT<a INT, A INT>", "'A' is defined twice", ""),
        ("x DECIMAL(39)", "invalid type DECIMAL(39,0)", "1 to 38"),
        ("x DECIMAL(5,6)", "invalid type DECIMAL(5,6)", "scale"),
        ("x DECIMAL(a)", "expected a number", ""),
        ("x VARCHAR(1,2)", "too many numbers", ""),
        ("x BINARY(0)", "invalid type", ""),
        ("x TIME(10)", "invalid type", "0 to 9"),
        ("x TIMESTAMP WITHOUT ZONE", "expected 'TIME', found 'ZONE'", ""),
        ("x INT NOT", "expected 'NULL'", ""),
        ("x INT COMMENT", "COMMENT", ""),
        ("x 'INT'", "invalid type", ""),
        ("x INT, x INT", "'x' is defined twice", ""),
        ("x " + "ARRAY<" * 5000, "nested too deeply", ""),
        ("x INT" + "[]" * 5000, "nested too deeply", ""),
    ],
    ids=lambda text: text[:30],
)
def test_errors_name_entry_and_column(ddl: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse_ddl(["first STRING", ddl])
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert (caught.value.where or "").startswith("schema entry 2 '")
    assert len(str(caught.value)) < 250


def test_names_that_differ_in_case_only_are_the_same() -> None:
    with pytest.raises(InvalidSchema, match="defined twice"):
        parse_ddl(["City STRING", "city STRING"])


_leaves = st.sampled_from(
    [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.binary(16), pa.binary(3), pa.date32(), UTC_MS),
        *(pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.decimal128(38, 37)),
    ]
)
_names = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=6)


def _fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    field = st.builds(pa.field, _names, types, st.booleans())
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda field: field.name.casefold())


_types = st.recursive(_leaves, lambda types: st.builds(pa.list_, types) | _fields(types).map(pa.struct))


@given(_fields(_types).map(pa.schema))
def test_ddl_round_trips(schema: pa.Schema) -> None:
    assert parse_ddl(to_ddl(schema)) == schema
    assert parse_ddl([",\n".join(to_ddl(schema))]) == schema


def test_types_without_ddl_are_still_shown() -> None:
    schema = pa.schema([("m", pa.map_(pa.string(), pa.int32())), ("l", pa.large_list(pa.large_string()))])
    assert to_ddl(schema) == ["m MAP<STRING, INT32>", "l ARRAY<STRING>"]


@pytest.mark.parametrize(("name", "suggested"), _OTHER_NAMES.items())
def test_suggested_types_are_supported(name: str, suggested: str) -> None:
    inner = {"ARRAY": "<INT>", "STRUCT": "<a: INT>"}.get(suggested, "")
    assert parse_ddl([f"x {suggested}{inner}"]).names == ["x"]
    with pytest.raises(InvalidSchema):
        parse_ddl([f"x {name}"])
