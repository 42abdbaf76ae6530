"""Logical hashes: golden vectors, and independence of how rows are laid out in memory."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import struct
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.data.digest import LogicalHasher, SerialExecutors, digest_file, logical_hash, physical_hash
from odf_engine.errors import BadData, InvalidSchema, NotFound
from odf_engine.identity.multiformats import ARROW0_SHA3_256, Multihash

_SIMPLE = {
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "date32": pa.date32(),
}


def _type(text: str) -> pa.DataType:
    """A type as the vectors write it."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    if match := re.fullmatch(r"(large_)?list<(.+)>", text):
        return (pa.large_list if match[1] else pa.list_)(_type(match[2]))
    if match := re.fullmatch(r"fixed_size_binary\((\d+)\)", text):
        return pa.binary(int(match[1]))
    if match := re.fullmatch(r"decimal128\((\d+),(-?\d+)\)", text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"timestamp\[(\w+)(?:,(.+))?\]", text):
        return pa.timestamp(match[1], match[2])
    if match := re.fullmatch(r"time(32|64)\[(\w+)\]", text):
        return (pa.time32 if match[1] == "32" else pa.time64)(match[2])
    return getattr(pa, text)()


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return Decimal(value).scaleb(-kind.scale)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return value.encode()
    return value


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.array([_value(value, kind) for value in values], kind)


def _field(entry: dict[str, Any]) -> pa.Field:
    kind = (
        pa.struct([_field(child) for child in entry["fields"]]) if "fields" in entry else _type(entry["type"])
    )
    return pa.field(entry["name"], kind, entry["nullable"])


def _column(field: pa.Field, entry: dict[str, Any]) -> pa.Array:
    if "children" not in entry:
        return _array(field.type, entry["values"])
    children = [_column(child, data) for child, data in zip(field.type, entry["children"], strict=True)]
    valid = entry["valid"]
    mask = None if valid is None else pa.array([not flag for flag in valid])
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=mask)


def _of_one_column(digest: str) -> str:
    """What the hash of a record with one column ``x`` must be, whose column has ``digest``."""
    name = struct.pack("<Q", 1) + b"x" + struct.pack("<Q", 0)
    return hashlib.sha3_256(name + bytes.fromhex(digest)).hexdigest()


def _hash_one(array: pa.Array) -> str:
    batch = pa.record_batch([array], names=["x"])
    return logical_hash([batch], batch.schema).digest.hex()


def test_hashes_match_the_golden_vectors(shared: Path) -> None:
    vectors = json.loads((shared / "golden" / "digests.json").read_text())
    assert len(vectors) > 30
    for vector in vectors:
        if vector["kind"] == "array":
            array = _array(_type(vector["type"]), vector["values"])
            if cut := vector.get("slice"):
                array = array.slice(cut["offset"], cut["length"])
            assert _hash_one(array) == _of_one_column(vector["sha3_256"]), vector["name"]
        else:
            schema = pa.schema([_field(entry) for entry in vector["schema"]])
            batches = [
                pa.record_batch([_column(f, c) for f, c in zip(schema, columns, strict=True)], schema=schema)
                for columns in vector["batches"]
            ]
            found = logical_hash(batches, schema)
            assert found == Multihash.parse(vector["logical_hash_multibase"]), vector["name"]


def _plain_bytes(value: Any, kind: pa.DataType) -> bytes:
    if value is None:
        return b"\0"
    if pa.types.is_boolean(kind):
        return b"\2" if value else b"\1"
    if pa.types.is_list(kind):
        return struct.pack("<Q", len(value)) + b"".join(_plain_bytes(item, kind.value_type) for item in value)
    if pa.types.is_string(kind):
        value = value.encode()
    if isinstance(value, bytes):
        return struct.pack("<Q", len(value)) + value
    if pa.types.is_decimal(kind):
        return int(value.scaleb(kind.scale)).to_bytes(16, "little", signed=True)
    return struct.pack("<d" if pa.types.is_floating(kind) else "<q", value)


_TYPE_BYTES = {
    pa.int64(): struct.pack("<HBQ", 1, 1, 64),
    pa.float64(): struct.pack("<HQ", 2, 64),
    pa.string(): struct.pack("<H", 4),
    pa.binary(): struct.pack("<H", 3),
    pa.binary(3): struct.pack("<H", 3),
    pa.bool_(): struct.pack("<H", 5),
    pa.decimal128(20, 3): struct.pack("<HQQq", 6, 128, 20, 3),
}


def _plain_type(kind: pa.DataType) -> bytes:
    return (
        struct.pack("<H", 11) + _plain_type(kind.value_type) if pa.types.is_list(kind) else _TYPE_BYTES[kind]
    )


def _plain_hash(values: list[Any], kind: pa.DataType) -> str:
    column = hashlib.sha3_256(_plain_type(kind))
    for value in values:
        column.update(_plain_bytes(value, kind))
    return _of_one_column(column.hexdigest())


_ITEMS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.bool_(): st.booleans(),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3),
}


def _typed_lists(kind: pa.DataType, levels: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    items = _ITEMS[kind]
    for _ in range(levels):
        kind, items = pa.list_(kind), st.lists(st.none() | items, max_size=3)
    return kind, st.lists(st.none() | items, max_size=40)


@st.composite
def _columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind, values = _typed_lists(draw(st.sampled_from(list(_ITEMS))), draw(st.integers(0, 2)))
    return kind, draw(values)


@settings(max_examples=300, deadline=None)
@given(_columns(), st.lists(st.integers(0, 40), max_size=4))
def test_hash_matches_the_reference_for_any_column_and_batches(
    column: tuple[pa.DataType, list[Any]], cuts: list[int]
) -> None:
    kind, values = column
    array = pa.array(values, kind)
    bounds = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    pieces = [array[a:b] for a, b in pairwise(bounds)]
    schema = pa.schema([("x", kind)])
    batches = [pa.record_batch([piece], schema=schema) for piece in pieces]
    assert logical_hash(batches, schema).digest.hex() == _plain_hash(values, kind)


_TEXTS = ["a", None, "", "bé", None, "cc", "a", "a"]


@pytest.mark.parametrize(
    "encode",
    [
        lambda array: array.cast(pa.large_string()),
        lambda array: array.cast(pa.string_view()),
        lambda array: array.dictionary_encode(),
        lambda array: pc.run_end_encode(array),
        lambda array: pa.concat_arrays([pa.array(["zz", None]), array, pa.array(["y"])])[2:-1],
        lambda array: _filled_null_slots(array),
    ],
    ids=["large", "view", "dictionary", "run-end", "slice", "filled null slots"],
)
def test_the_encoding_of_text_makes_no_difference(encode: Any) -> None:
    plain = pa.array(_TEXTS)
    assert _hash_one(encode(plain)) == _hash_one(plain) == _plain_hash(_TEXTS, pa.string())


def _filled_null_slots(array: pa.Array) -> pa.Array:
    """The same values, with bytes lying where values are null."""
    full = pa.array([value if value is not None else "junk" for value in array.to_pylist()])
    return pa.Array.from_buffers(full.type, len(array), [array.buffers()[0], *full.buffers()[1:]])


@pytest.mark.parametrize(
    "encode",
    [
        lambda array: array.cast(pa.large_list(pa.int64())),
        lambda array: pa.array(array.to_pylist(), pa.list_view(pa.int64())),
        lambda array: array.cast(pa.list_(pa.int64(), 2)),
        lambda array: pa.concat_arrays([pa.array([[9]], array.type), array])[1:],
    ],
    ids=["large", "view", "fixed size", "slice"],
)
def test_the_encoding_of_lists_makes_no_difference(encode: Any) -> None:
    values = [[1, 2], [3, None], None, [5, 6]]
    plain = pa.array(values, pa.list_(pa.int64()))
    assert _hash_one(encode(plain)) == _plain_hash(values, plain.type)


def test_a_uuid_hashes_as_its_bytes() -> None:
    raw = pa.array([b"0123456789abcdef", None], pa.binary(16))
    assert _hash_one(pa.ExtensionArray.from_storage(pa.uuid(), raw)) == _hash_one(raw)


@pytest.mark.parametrize("garbage", [0, 77])
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_nulls_in_nested_structs_are_combined_by_and(garbage: int, cut: int) -> None:
    # Parent valid and child null, the reverse, both null, both valid.
    slots = pa.array([garbage, garbage, garbage, 4], pa.int64())
    child = pa.Array.from_buffers(pa.int64(), 4, [pa.py_buffer(b"\x0a"), slots.buffers()[1]])
    assert child.to_pylist() == [None, garbage, None, 4]
    mask = pa.array([False, True, True, False])
    parent = pa.StructArray.from_arrays([child], names=["y"], mask=mask)
    schema = pa.schema([("x", parent.type)])
    batches = [pa.record_batch([parent[at : at + cut]], schema=schema) for at in range(0, 4, cut)]
    names = struct.pack("<Q1sQQ1sQ", 1, b"x", 0, 1, b"y", 1)
    leaf = hashlib.sha3_256(struct.pack("<HBQ", 1, 1, 64) + b"\0\0\0" + struct.pack("<q", 4))
    assert logical_hash(batches, schema).digest == hashlib.sha3_256(names + leaf.digest()).digest()


@pytest.mark.complete
def test_large_columns_and_long_values_hash_as_the_algorithm_says() -> None:
    numbers = [None if n % 7 == 0 else n for n in range(100_000)]
    assert _hash_one(pa.array(numbers)) == _plain_hash(numbers, pa.int64())
    texts = [None if n % 5 == 0 else "x" * (n % 50) for n in range(100_000)]
    assert _hash_one(pa.array(texts)) == _plain_hash(texts, pa.string())
    long = ["x" * 40_000_000, "y" * 40_000_000, None, "z" * 80_000_000]
    assert _hash_one(pa.array(long)) == _plain_hash(long, pa.string())


def test_order_and_names_matter_and_nullability_does_not() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    hashed = logical_hash([batch], batch.schema)
    assert logical_hash([batch.take(pa.array([1, 0]))], batch.schema) != hashed
    renamed = batch.rename_columns(["b"])
    assert logical_hash([renamed], renamed.schema) != hashed
    required = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert logical_hash([batch.cast(required)], required) == hashed
    assert logical_hash([batch.cast(required)], batch.schema) == hashed
    assert hashed.code == ARROW0_SHA3_256


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (pa.list_(pa.struct([("y", pa.int64())])), "list column per member"),
        (pa.map_(pa.string(), pa.int64()), "keys"),
        (pa.duration("s"), "BIGINT"),
        (pa.month_day_nano_interval(), "BIGINT"),
        (pa.null(), "type"),
        (pa.list_(pa.null()), "type"),
        (pa.dense_union([pa.field("i", pa.int64())]), "convert"),
    ],
    ids=str,
)
def test_unsupported_type_is_rejected_with_the_column_name(kind: pa.DataType, hint: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        LogicalHasher(pa.schema([("outer", pa.struct([("inner", kind)]))]))
    assert "'outer.inner'" in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_a_batch_of_another_schema_is_refused() -> None:
    with LogicalHasher(pa.schema([("x", pa.int64())])) as hasher, pytest.raises(InvalidSchema):
        hasher.update(pa.record_batch({"x": ["text"]}))


def test_hash_does_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    batch = pa.record_batch({f"c{n}": list(range(n, n + 5000)) for n in range(9)})
    found = set()
    for threads in (1, 2, 7):
        with SerialExecutors(threads) as executors, LogicalHasher(batch.schema, executors) as hasher:
            for at in range(0, 5000, 100):
                hasher.update(batch.slice(at, 100))
            found.add(hasher.finish())
    assert found == {logical_hash([batch], batch.schema)}


@pytest.fixture
def table() -> pa.Table:
    return pa.table({"id": [1, 2, None], "name": ["a", None, "c"], "weight": [0.5, math.inf, None]})


def test_files_of_all_formats_have_the_logical_hash_of_their_rows(tmp_path: Path, table: pa.Table) -> None:
    expected = logical_hash(table.to_batches(), table.schema)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as file:
        file.write_table(table, 1)
    with pa.ipc.new_stream(str(tmp_path / "a.arrows"), table.schema) as stream:
        stream.write_table(table, 1)
    for name in ("a.parquet", "a.arrow", "a.arrows"):
        path = tmp_path / name
        found = digest_file(path)
        raw = path.read_bytes()
        assert found.logical_hash == expected
        assert found.physical_hash == Multihash.sha3_256(raw) == physical_hash(path)[0]
        assert (found.size, found.rows) == (len(raw), 3)


@pytest.mark.complete
def test_unreadable_or_missing_file_is_rejected(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    damaged = (tmp_path / "a.parquet").read_bytes()
    for name, content in {
        "empty": b"",
        "text": b"id,name\n1,a\n",
        "cut": damaged[:-30],
        "magic": b"PAR1",
        "ipc": b"ARROW1\0\0",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadData) as caught:
            digest_file(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(NotFound):
        digest_file(tmp_path / "absent")
    with pytest.raises(NotFound):
        digest_file(tmp_path)
    with pytest.raises(NotFound):
        physical_hash(tmp_path / "absent")


def test_non_utf8_column_or_file_name_is_rejected(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"name": [1]}), sink, store_schema=False)
    (tmp_path / "a.parquet").write_bytes(sink.getvalue().replace(b"name", b"na\xffe"))
    with pytest.raises(BadData, match=r"a\.parquet: the file cannot be read"):
        digest_file(tmp_path / "a.parquet")
    path = tmp_path / "caf\udce9.parquet"
    path.write_bytes(sink.getvalue())
    with pytest.raises(BadData, match="name is not UTF-8") as caught:
        digest_file(path)
    assert str(caught.value).isprintable()
