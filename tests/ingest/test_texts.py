"""Text files before Spark: what is no text, JSON documents as lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.errors import BadData
from odf_engine.ingest import sniff
from odf_engine.ingest.json_lines import (
    JsonSource,
    array_to_lines,
    feature_lines_to_lines,
    features_to_lines,
)
from odf_engine.ingest.sniff import bad_bytes, check_is_text, encoding_of
from odf_engine.progress import Reporter
from tests.ingest.recorder import Recorder


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n  <!DOCTYPE html><html><body>404", "web page"),
        (b"<?xml version='1.0'?><Error>", "XML"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"PK\x03\x04", "zip"),
        (b"PAR1", "Parquet"),
    ],
)
def test_no_data_at_all(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(BadData, match=f"a.csv: is .*{message}"):
        check_is_text(path, "a.csv")
    path.write_bytes(b"a,b\n<html>")
    check_is_text(path, "a.csv")


def test_byte_order_marks(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("a,b", encoding="utf-8-sig")
    assert encoding_of(path, None) == "utf-8-sig"
    assert encoding_of(path, "latin1") == "latin1"
    path.write_text("a,b")
    assert encoding_of(path, None) is None


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_bad_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(sniff, "_CHUNK", chunk)
    path = tmp_path / "a"
    path.write_bytes(b"a,b\n1,\xc3\xa9\n2," + "größe".encode("latin-1") + b"\n")
    assert str(bad_bytes(path, "a", "utf-8")) == "a: line 3: byte 0xf6 at 13 is not UTF-8 text"
    path.write_bytes(b"ab\xc3")
    assert str(bad_bytes(path, "a", "utf-8")) == "a: line 1: byte 0xc3 at 2 is not UTF-8 text"


def lines(tmp_path: Path, text: str, sub_path: str | None = None) -> list[str]:
    (tmp_path / "in.json").write_text(text, encoding="utf-8")
    source = JsonSource(tmp_path / "in.json", "in.json")
    array_to_lines(source, sub_path, tmp_path / "out", Reporter())
    return (tmp_path / "out").read_text(encoding="utf-8").splitlines()


def test_arrays_keep_every_digit(tmp_path: Path) -> None:
    text = ' [ {"a": 1.10, "b":\n 123456789012345678901234567890} , {"c": "x\\ny"} ]'
    assert lines(tmp_path, text) == ['{"a": 1.10, "b":  123456789012345678901234567890}', '{"c": "x\\ny"}']
    assert lines(tmp_path, '{"x": [1], "d": {"e": [{"a": 1}]}, "z": 2}', "d.e") == ['{"a": 1}']
    assert lines(tmp_path, "[]") == []


@pytest.mark.parametrize(
    ("text", "sub_path", "message"),
    [
        ('[{"a": 1},\n{"b": ', None, "in.json: line 2: ends in the middle"),
        ('[{"a": 1},\n{"b": "x', None, "in.json: line 2: ends in the middle"),
        ('[{"a": 1}\n', None, "ends where ',' or '\\]' is missing"),
        ('[{"a": 1},\n\n{"b": oops}]', None, "in.json: line 3: is not JSON: Expecting value"),
        ('[{"a": 1}, 7]', None, "an element is a number, not an object"),
        ('[{"a": 1}] x', None, "goes on after the end"),
        ('{"a": 1}', None, "the document is not an array"),
        ("", None, "is empty"),
        ('{"a": {"b": []}}', "a.c", "there is no 'a.c'"),
        ('{"a": 1}', "a.c", "its parent is not an object"),
        ("[" * 100_000, None, "an element is an array|nested too deeply"),
    ],
)
def test_documents_that_are_wrong(tmp_path: Path, text: str, sub_path: str | None, message: str) -> None:
    with pytest.raises(BadData, match=message):
        lines(tmp_path, text, sub_path)


def test_json_in_another_encoding(tmp_path: Path, reporter: Recorder) -> None:
    path = tmp_path / "a"
    path.write_text('[{"größe": 1}]', encoding="utf-16")
    array_to_lines(JsonSource(path, "a", "utf-16"), None, tmp_path / "out", reporter)
    assert (tmp_path / "out").read_text(encoding="utf-8") == '{"größe": 1}\n'
    path.write_text('[\n{"größe": 1}]', encoding="latin-1")
    with pytest.raises(BadData, match="a: line 2: byte 0xf6 at 6 is not UTF-8"):
        array_to_lines(JsonSource(path, "a"), None, tmp_path / "out", reporter)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    rows=st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=5),
    before=VALUES,
    indent=st.sampled_from([None, 0, 2]),
    chunk=st.integers(1, 40),
)
def test_any_document(
    tmp_path_factory: pytest.TempPathFactory, rows: list, before: object, indent: int | None, chunk: int
) -> None:
    text = json.dumps({"before": before, "at": {"rows": rows}, "after": 1}, indent=indent)
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odf_engine.ingest.json_lines._CHUNK", chunk)
        assert [json.loads(line) for line in lines(folder, text, "at.rows")] == rows


def test_geojson(tmp_path: Path, reporter: Recorder) -> None:
    feature = {
        "type": "Feature", "id": 7, "properties": {"name": "x", "n": 10.50},
        "geometry": {"type": "Point", "coordinates": [1.0, -2]},
    }  # fmt: skip
    row = '{"name":"x","n":10.5,"geometry":"{\\"coordinates\\":[1.0,-2],\\"type\\":\\"Point\\"}"}\n'
    path, target = tmp_path / "a", tmp_path / "b"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature, feature]}))
    features_to_lines(JsonSource(path, "a"), target, reporter)
    assert target.read_text() == row * 2
    path.write_text(json.dumps(feature) + "\n\n" + json.dumps(feature) + "\n")
    feature_lines_to_lines(JsonSource(path, "a"), target, reporter)
    assert target.read_text() == row * 2
    path.write_text(json.dumps(feature) + '\n{"type": "Feature", "properties": null, "geometry": null}\n')
    with pytest.raises(BadData, match="a: line 2: a feature has no properties"):
        feature_lines_to_lines(JsonSource(path, "a"), target, reporter)
