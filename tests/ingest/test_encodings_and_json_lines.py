"""Text files before Spark: what is no text, JSON documents as lines."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, InvalidManifest
from odf_engine.ingest.read.file_kind import reject_binary
from odf_engine.ingest.read.json_lines import (
    JsonSource,
    array_to_lines,
    feature_lines_to_lines,
    features_to_lines,
)
from odf_engine.spark import text_files
from odf_engine.spark.text_files import detect_encoding, undecodable_error
from tests.ingest.recorder import Recorder


def zipped(name: str, content: bytes) -> bytes:
    """A zip archive of one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), content)  # without the time of day
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\n  <!DOCTYPE html><html><body>404", "HTML page"),
        (b"<?xml version='1.0'?><Error>", "XML"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"PK\x03\x04", "zip"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Excel workbook"),
        pytest.param(zipped("xl/workbook.xml", b"<x/>"), "Excel workbook", id="xlsx"),
        pytest.param(
            zipped("mimetype", b"application/vnd.oasis.opendocument.spreadsheet"),
            "OpenDocument spreadsheet",
            id="ods",
        ),
        (b"SQLite format 3\x00", "SQLite database"),
    ],
)
def test_binary_and_markup_files_are_rejected_as_text(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(BadData, match=f"a.csv: not a .* file: .*{message}"):
        reject_binary(path, "a.csv")
    for text in (b"a,b\n<html>", b"PAR1,PAR2\n", b"BZh,PK\n"):
        path.write_bytes(text)
        reject_binary(path, "a.csv")
    path.write_text("<html>", encoding="utf-16")
    with pytest.raises(BadData, match="HTML page"):
        reject_binary(path, "a.csv", "utf-16")


def test_damaged_archives_are_no_workbooks(tmp_path: Path) -> None:
    data = zipped("mimetype", b"spreadsheet" * 100)
    for changed in (
        data[:-30],
        data.replace(b"spreadsheet", b"spreadshit!", 1),
        data[:6] + b"\x01" + data[7:],
    ):
        (tmp_path / "a").write_bytes(changed)
        with pytest.raises(BadData, match=r"not a text file: (zip archive|OpenDocument)"):
            reject_binary(tmp_path / "a", "a.csv")


@pytest.mark.parametrize(
    ("data", "declared", "found"),
    [
        ("a,b".encode("utf-8-sig"), None, "utf-8-sig"),
        ("a,b".encode("utf-8-sig"), "UTF8", "utf-8-sig"),
        (b"a,b", None, None),
        (b"a,b", "utf-8", None),
        (b"a,b", "latin1", "iso8859-1"),
        ("a,b".encode("utf-16"), None, "utf-16"),
        ("a,b".encode("utf-16"), "utf-16-le", "utf-16"),
        ("a,б".encode("utf-16-le"), "UTF-16", "utf-16-le"),
        ("а,b".encode("utf-16-be"), "UTF-16", "utf-16-be"),
        ("a,b".encode("utf-32"), None, "utf-32"),
        ("a,b".encode("utf-32-be"), "utf-32", "utf-32-be"),
        ("a,b".encode("utf-32-le"), "utf-32", "utf-32-le"),
        (b"", "utf-16", "utf-16-be"),
        ("表".encode("shift_jis"), "Shift_JIS", "shift_jis"),
    ],
)
def test_encoding_comes_from_byte_order_mark_or_declaration(
    tmp_path: Path, data: bytes, declared: str | None, found: str | None
) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    assert detect_encoding(path, declared) == found
    assert data.decode(found or "utf-8").lstrip("\ufeff") == data.decode(found or "utf-8")


@pytest.mark.parametrize("name", ["klingon", "base64", "rot13", "", "\0"])
def test_unknown_encoding_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(InvalidManifest, match="unknown encoding"):
        detect_encoding(tmp_path / "a", name)


@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_undecodable_byte_is_located_by_line_and_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(text_files, "_CHUNK_BYTES", chunk)
    path = tmp_path / "a"
    path.write_bytes(b"a,b\n1,\xc3\xa9\n2," + "größe".encode("latin-1") + b"\n")
    assert str(undecodable_error(path, "a", "utf-8")) == "a: line 3: byte 0xf6 at 13 is not UTF-8 text"
    path.write_bytes(b"ab\xc3")
    assert str(undecodable_error(path, "a", "utf-8")) == "a: line 1: byte 0xc3 at 2 is not UTF-8 text"
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes("ab\nc\u0a0a\n\ud800\ud800".encode(encoding, "surrogatepass"))
        assert str(undecodable_error(path, "a", encoding)).startswith("a: line 3: byte 0x")
    path.write_bytes("表\n示".encode("shift_jis") + b"\n\x81\xff")
    assert str(undecodable_error(path, "a", "shift_jis")) == "a: line 3: byte 0x81 at 6 is not SHIFT_JIS text"


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
        ('[{"a": 1},\n{"b": ', None, "in.json: line 2: unexpected end of file"),
        ('[{"a": 1},\n{"b": "x', None, "in.json: line 2: unexpected end of file"),
        ('[{"a": 1}\n', None, "expected ',' or '\\]', found the end of the file"),
        ('[{"a": 1},\n\n{"b": oops}]', None, "in.json: line 3: invalid JSON: Expecting value"),
        ('[{"a": 1}, 7]', None, "the element is a number, not an object"),
        ('[{"a": 1}] x', None, "unexpected text after the end"),
        ('{"a": 1}', None, "the document is not an array"),
        ("", None, "empty or truncated document"),
        ('{"a": {"b": []}}', "a.c", "'a.c' .*not found"),
        ('{"a": 1}', "a.c", "its parent is not an object"),
        ('{"a": {"c": []},\n"b": 1, "b": 2, "a": 3}', "a.c", "line 2: the key 'a' occurs twice in an object"),
        ("[" * 100_000, None, "the element is an array|nested too deeply"),
    ],
)
def test_invalid_json_documents_are_rejected(
    tmp_path: Path, text: str, sub_path: str | None, message: str
) -> None:
    with pytest.raises(BadData, match=message):
        lines(tmp_path, text, sub_path)


def test_json_array_is_decoded_in_its_declared_encoding(tmp_path: Path, reporter: Recorder) -> None:
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
def test_array_elements_of_any_document_become_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: list, before: object, indent: int | None, chunk: int
) -> None:
    text = json.dumps({"before": before, "at": {"rows": rows}, "after": 1}, indent=indent)
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("odf_engine.ingest.read.json_lines._CHUNK", chunk)
        assert [json.loads(line) for line in lines(folder, text, "at.rows")] == rows


def test_geojson_features_become_json_lines(tmp_path: Path, reporter: Recorder) -> None:
    feature = {
        "type": "Feature", "id": 7, "properties": {"name": "größe", "n": 10.50},
        "geometry": {"type": "Point", "coordinates": [1.0, -2]},
    }  # fmt: skip
    # Numbers stay as they are written; the shape has its keys in order and no white space.
    shape = json.dumps('{"coordinates":[1.0,-2],"type":"Point"}')
    row = '{"name": "gr\\u00f6\\u00dfe", "n": 10.5,"geometry":' + shape + "}\n"
    path, target = tmp_path / "a", tmp_path / "b"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature, feature]}, indent=1))
    features_to_lines(JsonSource(path, "a"), target, reporter)
    assert [json.loads(line) for line in target.read_text().splitlines()] == [json.loads(row)] * 2
    path.write_text(json.dumps(feature) + "\n\n" + json.dumps(feature) + "\n")
    feature_lines_to_lines(JsonSource(path, "a"), target, reporter)
    assert target.read_text() == row * 2


@pytest.mark.parametrize(
    ("geometry", "written"),
    [
        ('{"type": "Point", "coordinates": [1.10, NaN]}', '{"coordinates":[1.10,NaN],"type":"Point"}'),
        (
            '{"type": "GeometryCollection", "geometries": [{"type": "Point", "coordinates": []}, 1 ]}',
            '{"geometries":[{"coordinates":[],"type":"Point"},1],"type":"GeometryCollection"}',
        ),
        ('{"type": "Point", "a b": "x y", "c": [1, "ß z"]}', '{"a b":"x y","c":[1,"ß z"],"type":"Point"}'),
    ],
)
def test_geometry_is_written_compactly_with_sorted_keys(
    tmp_path: Path, reporter: Recorder, geometry: str, written: str
) -> None:
    path, target = tmp_path / "a", tmp_path / "b"
    path.write_text(f'{{"type": "Feature", "properties": {{ }}, "geometry": {geometry}}}', encoding="utf-8")
    feature_lines_to_lines(JsonSource(path, "a"), target, reporter)
    assert json.loads(target.read_text(encoding="utf-8")) == {"geometry": written}


def test_feature_nulls_are_kept_and_ids_are_optional(tmp_path: Path, reporter: Recorder) -> None:
    """RFC 7946: geometry and properties may be null, and the id is text or a number."""
    path, target = tmp_path / "a", tmp_path / "b"
    path.write_text(
        '{"type": "Feature", "id": "x\\ny", "properties": null, "geometry": null}\n'
        '{"type": "Feature", "id": 12345678901234567890, "properties": {"a": 1}, "geometry": null}\n'
        '{"type": "Feature", "id": 1, "properties": {"ID": 2}, "geometry": null}\n'
        '{"type": "Feature", "id": null, "properties": {}, "geometry": null}\n'
    )
    feature_lines_to_lines(JsonSource(path, "a"), target, reporter, with_id=True)
    assert target.read_text().splitlines() == [
        '{"id":"x\\ny","geometry":null}', '{"a": 1,"id":12345678901234567890,"geometry":null}',
        '{"ID": 2,"geometry":null}', '{"geometry":null}',
    ]  # fmt: skip
    assert reporter.lines == [
        ("info", "a: ids of 1 feature dropped: the features have another property of this name")
    ]
    feature_lines_to_lines(JsonSource(path, "a"), target, reporter)
    assert json.loads(target.read_text().splitlines()[1]) == {"a": 1, "geometry": None}
    assert reporter.lines[1][1].startswith("a: ids of 3 features dropped: declare the column id in read.sch")


SYSTEMS = [
    ('{"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}', True),
    ('{"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::4326"}}', True),
    ('{"type": "name", "properties": {"name": "http://www.opengis.net/def/crs/OGC/1.3/CRS84"}}', True),
    ('{"type": "EPSG", "properties": {"code": 4326}}', True),
    ('{"type": "link", "properties": {"href": "http://spatialreference.org/ref/epsg/4326/proj4/"}}', True),
    ('"EPSG:4326"', True),
    ('{"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::2154"}}', False),
    ('{"type": "name", "properties": {"name": "EPSG:14326"}}', False),
    ('{"type": "EPSG", "properties": {"code": 3857}}', False),
    ('{"type": "name"}', False),
    ("7", False),
]


@pytest.mark.parametrize(("crs", "is_wgs_84"), SYSTEMS)
def test_only_wgs_84_coordinates_are_read(
    tmp_path: Path, reporter: Recorder, crs: str, is_wgs_84: bool
) -> None:
    path, target = tmp_path / "a", tmp_path / "b"
    plain = '"type": "Feature", "properties": {"crs": 7}, "geometry": '
    documents = [
        f'{{"type": "FeatureCollection", "features": [{{{plain}null}}],\n "crs": {crs}}}',
        f'{{"features": [{{{plain}null}},\n {{{plain}null, "crs": {crs}}}]}}',
        f'{{"features": [{{{plain}null}},\n {{{plain}{{"type": "Point", "crs": {crs}}}}}]}}',
    ]
    for text in documents:
        path.write_text(text)
        if is_wgs_84:
            features_to_lines(JsonSource(path, "a"), target, reporter)
        else:
            with pytest.raises(BadData, match="a: line 2: the coordinates are in the system '"):
                features_to_lines(JsonSource(path, "a"), target, reporter)
    assert reporter.warnings == []


def test_an_unknown_coordinate_system_is_a_warning(tmp_path: Path, reporter: Recorder) -> None:
    (tmp_path / "a").write_text('{"crs": null, "features": []}')
    features_to_lines(JsonSource(tmp_path / "a", "a"), tmp_path / "b", reporter)
    assert reporter.warnings == ["a: line 1: crs is null, the coordinate system is unknown"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"type": "Feature", "geometry": {}}', "the feature has no properties"),
        ('{"type": "Feature", "properties": [], "geometry": {}}', "the feature has no properties"),
        ('{"type": "Feature", "properties": {"a": 1}, "geometry": "x"}', "the feature has no geometry"),
        ('{"type": "Feature", "properties": {"a": 1}}', "the feature has no geometry"),
        ('{"type": "Feature", "properties": {"geometry": 1}, "geometry": {}}', "has a property 'geometry'"),
        ('{"type": "Point"}', "is not a GeoJSON feature"),
        ("[1]", "the element is an array, not a GeoJSON feature"),
        ('{"type": ', "invalid JSON"),
    ],
)
def test_invalid_features_are_rejected_with_their_line(tmp_path: Path, line: str, message: str) -> None:
    path, good = tmp_path / "a", '{"type": "Feature", "properties": {}, "geometry": {}}'
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(BadData, match=f"a: line 2: .*{message}"):
        feature_lines_to_lines(JsonSource(path, "a"), tmp_path / "b", Reporter())


def test_skipped_json_values_may_exceed_the_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.ingest.read.json_lines._CHUNK", 1 << 12)
    monkeypatch.setattr("odf_engine.ingest.read.json_lines._MAX_CHARACTERS", 1 << 14)
    large = json.dumps([{"x": [i, {"y": "z" * 9}]} for i in range(5000)])
    assert lines(tmp_path, f'{{"a": {large}, "b": [{{"c": 1}}], "d": {{"e": {large}}}}}', "b") == ['{"c": 1}']
    with pytest.raises(BadData, match="a value exceeds"):
        lines(tmp_path, f'[{{"a": {large}}}]')
    with pytest.raises(BadData, match="nested too deeply"):
        lines(tmp_path, '{"a": ' + "[" * 20_000 + "1" + "]" * 20_000 + ', "b": []}', "b")
    with pytest.raises(BadData, match="expected ',' or '\\]', found '}'"):
        lines(tmp_path, f'{{"a": {large[:-1]}}}, "b": []}}', "b")
