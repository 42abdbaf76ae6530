"""The declaration against the reference tables of the specification, property by property."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from odf_engine.metadata import descriptors, model
from odf_engine.metadata.descriptors import describe_table, field_type_of, union_tag


@dataclass
class Section:
    """What the specification says about one type."""

    properties: list[tuple[str, str, bool, str]]
    members: list[str]
    values: list[str]


@pytest.fixture(scope="module")
def sections(shared: Path) -> dict[str, Section]:
    text = (shared / "spec" / "odf-0.34.1.md").read_text()
    found: dict[str, Section] = {}
    for part in re.split(r"^##### ", text[text.index("# Reference Information") :], flags=re.MULTILINE)[1:]:
        name = part.split("\n", 1)[0].strip()
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (V?) ?\| (.*?) ?\|", part, re.MULTILINE)
        values = re.search(r"\| Enum Value \|\n\| :---: \|\n((?:\| \w+ \|\n)+)", part)
        found[name] = Section(
            [(key, kind.replace("`", ""), required == "V", rest) for key, kind, required, rest in rows],
            re.findall(r"^\| \[([\w:]+)\]\(", part, re.MULTILINE),
            re.findall(r"\w+", values[1]) if values else [],
        )
    assert len(found) > 60
    return found


def declared(name: str) -> Any:
    """The type, union or enum that the specification calls ``name``."""
    union, _, member = name.partition("::")
    if not member:
        return getattr(model, union)
    shape, _ = field_type_of(getattr(model, union))
    assert isinstance(shape, descriptors.UnionType)
    return next(kind for kind in shape.members if union_tag(kind) == member)


def text_type(shape: descriptors.FieldType) -> str:
    match shape:
        case descriptors.VectorType(item):
            return f"array({text_type(item)})"
        case descriptors.IntegerType():
            return "integer"
        case descriptors.BoolType():
            return "boolean"
        case descriptors.TableType(kind):
            return kind.__name__
        case descriptors.UnionType(name):
            return name
        case descriptors.EnumType(enum) if enum is model.DatasetKind:
            return enum.__name__
        case _:
            return "string"


def test_every_property_is_declared_in_its_place(sections: dict[str, Section]):
    checked = 0
    for name, section in sections.items():
        if section.members or section.values or name == "Manifest":
            continue
        fields = describe_table(declared(name)).fields
        for (key, kind, required, form), field in zip(section.properties, fields, strict=False):
            assert field.key == key, name
            assert text_type(field.shape) == re.sub(r"\[(\w+)\]\([^)]*\)", r"\1", kind), (name, key)
            needed = not field.optional or field.name in field_names_needed(declared(name))
            assert needed == required, (name, key)
            if "multihash" in form:
                assert field.shape == descriptors.BytesType(model.Multihash)
            if "[dataset-id]" in form:
                assert field.shape == descriptors.BytesType(model.DatasetId)
            if "[dataset-ref]" in form:
                assert field.shape == descriptors.StringType(is_ref=True)
            if "date-time" in form:
                assert field.shape == descriptors.InstantType()
            if "uint64" in form:
                assert field.shape == descriptors.IntegerType("Q")
            checked += 1
        # What the specification of 0.34.1 does not name came later, and needs no value.
        assert len(fields) >= len(section.properties), name
        assert all(field.optional for field in fields[len(section.properties) :]), name
    assert checked > 120


def field_names_needed(kind: type[model.Model]) -> tuple[str, ...]:
    return kind.NEEDS_ONE_OF[:1]


def test_every_union_has_its_members_in_order(sections: dict[str, Section]):
    # The document lists the members of some unions in another order than the schemas number them.
    unions = {name: section.members for name, section in sections.items() if section.members}
    assert len(unions) == 11
    for name, members in unions.items():
        shape, _ = field_type_of(getattr(model, name))
        assert isinstance(shape, descriptors.UnionType)
        assert shape.name == name
        tags = [union_tag(kind) for kind in shape.members]
        expected = [member.split("::")[-1] for member in members]
        if name == "ReadStep":
            assert set(expected) == set(tags)
        else:
            assert tags[: len(expected)] == expected


def test_every_enum_has_its_values_in_order(sections: dict[str, Section]):
    enums = {name: section.values for name, section in sections.items() if section.values}
    assert enums == {"DatasetKind": ["Root", "Derivative"]}
    assert [member.name for member in model.DatasetKind] == enums["DatasetKind"]


def test_union_members_and_slots_have_their_wire_numbers():
    def members(union: Any) -> list[str | None]:
        shape, _ = field_type_of(union)
        assert isinstance(shape, descriptors.UnionType)
        return [union_tag(kind) for kind in shape.members]

    assert members(model.ReadStep) == [
        "Csv", "GeoJson", "EsriShapefile", "Parquet", "Json", "NdJson", "NdGeoJson",
    ]  # fmt: skip
    assert members(model.FetchStep) == ["Url", "FilesGlob", "Container", "Mqtt", "EthereumLogs"]
    assert members(model.MergeStrategy)[3:] == ["ChangelogStream", "UpsertStream"]
    assert members(model.DataType)[16:] == [
        "List", "Map", "Null", "Option", "Struct", "Time", "Timestamp", "String",
    ]  # fmt: skip
    slots = {field.name: field.slot for field in describe_table(model.SetPollingSource).fields}
    assert slots == {"fetch": 0, "prepare": 2, "read": 3, "preprocess": 5, "merge": 7}
    newer = {kind: describe_table(kind).fields[-1].slot for kind in (model.Csv, model.Json, model.NdJson)}
    assert newer == {model.Csv: 10, model.Json: 5, model.NdJson: 4}
    assert describe_table(model.Duration).fields[0].shape == descriptors.EnumType(model.TimeUnit, "h")


def test_model_round_trips_through_msgspec():
    event = model.AddData(prev_offset=5, extra=model.ExtraAttributes(entries={"a": [1]}))
    stored = msgspec.msgpack.encode(event, enc_hook=model.encode_hook)
    assert msgspec.msgpack.decode(stored, type=model.MetadataEvent, dec_hook=model.decode_hook) == event
