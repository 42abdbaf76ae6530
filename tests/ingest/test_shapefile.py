"""Shapefiles as lines, without Spark: archives, shapes, tables, and what is wrong with them."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import shapefile

from odf_engine.errors import BadData, InvalidSchema
from odf_engine.ingest.prep_step import PrepareLimits
from odf_engine.ingest.read.dbf import DbfColumn, DbfTable
from odf_engine.ingest.read.shapefile import shapefile_to_lines
from tests.ingest.recorder import Recorder

pytestmark = pytest.mark.net

Files = dict[str, bytes]


def make(kind: int, write: Callable[[Any], None], name: str = "a", **encoding: str) -> Files:
    """The files of a shapefile with the columns that ``write`` adds."""
    parts = {suffix: io.BytesIO() for suffix in ("shp", "shx", "dbf")}
    with shapefile.Writer(shapeType=kind, **parts, **encoding) as writer:  # type: ignore[arg-type]
        write(writer)
    return {f"{name}.{suffix}": part.getvalue() for suffix, part in parts.items()}


def points(*rows: tuple[Any, ...], **more: str) -> Files:
    def write(writer: Any) -> None:
        writer.field("NAME", "C", 10)
        writer.field("n", "N", 9, 0)
        for at, row in enumerate(rows):
            writer.point(at, 0.5)
            writer.record(*row)

    return make(shapefile.POINT, write, **more)


def read(
    tmp_path: Path, files: Files | bytes, sub_path: str | None = None, limits: PrepareLimits | None = None
) -> Any:
    """The rows, the columns, and what was said."""
    path, reporter = tmp_path / "in.zip", Recorder()
    if isinstance(files, bytes):
        path.write_bytes(files)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    found = shapefile_to_lines(path, "in.zip", sub_path, tmp_path, reporter, limits)
    rows = [json.loads(line) for line in found.path.read_text(encoding="utf-8").splitlines()]
    return rows, found, reporter


OUTER = [(0.0, 0.0), (0.0, 10.0), (10.0, 10.0), (10.0, 0.0), (0.0, 0.0)]
HOLE = [(2.0, 2.0), (4.0, 2.0), (4.0, 4.0), (2.0, 4.0), (2.0, 2.0)]
FAR = [(20.25, 0.0), (20.25, 1.0), (21.0, 1.0), (20.25, 0.0)]


def with_height(points: list[tuple[float, float]]) -> list[tuple[float, ...]]:
    return [(*point, 7.5) for point in points]


def shapes(kind: int, *write: Callable[[Any], None]) -> Files:
    def all_of_them(writer: Any) -> None:
        writer.field("id", "N", 4, 0)
        for number, each in enumerate(write):
            each(writer)
            writer.record(number)

    return make(kind, all_of_them)


def listed(points: list[tuple[float, ...]]) -> list[list[float]]:
    return [list(point) for point in points]


SHAPES = [
    (shapefile.POINT, lambda w: w.point(1, 2.5), {"type": "Point", "coordinates": [1, 2.5]}),
    (shapefile.POINTZ, lambda w: w.pointz(1, 2, 3, 9), {"type": "Point", "coordinates": [1, 2, 3]}),
    (shapefile.POINTM, lambda w: w.pointm(1, 2, 9), {"type": "Point", "coordinates": [1, 2]}),
    (shapefile.MULTIPOINT, lambda w: w.multipoint(FAR), {"type": "MultiPoint", "coordinates": listed(FAR)}),
    (shapefile.POLYLINE, lambda w: w.line([FAR]), {"type": "LineString", "coordinates": listed(FAR)}),
    (shapefile.POLYLINEZ, lambda w: w.linez([with_height(FAR), with_height(HOLE)]),
     {"type": "MultiLineString", "coordinates": [listed(with_height(FAR)), listed(with_height(HOLE))]}),
    (shapefile.POLYGON, lambda w: w.poly([OUTER, HOLE]),
     {"type": "Polygon", "coordinates": [listed(OUTER), listed(HOLE)]}),
    (shapefile.POLYGON, lambda w: w.poly([FAR, OUTER, HOLE]),
     {"type": "MultiPolygon", "coordinates": [[listed(FAR)], [listed(OUTER), listed(HOLE)]]}),
    (shapefile.POLYGONZ, lambda w: w.polyz([with_height(OUTER), with_height(HOLE)]),
     {"type": "Polygon", "coordinates": [listed(with_height(OUTER)), listed(with_height(HOLE))]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "write", "geometry"), SHAPES, ids=[each[2]["type"] for each in SHAPES])
def test_each_shape_type_is_converted_to_geojson(
    tmp_path: Path, kind: int, write: Callable[[Any], None], geometry: dict[str, Any]
) -> None:
    rows, _, _ = read(tmp_path, shapes(kind, write, lambda writer: writer.null()))
    assert [row["id"] for row in rows] == ["0", "1"]
    assert json.loads(rows[0]["geometry"]) == geometry
    assert rows[0]["geometry"].startswith('{"coordinates":[')  # the form of the GeoJSON reader
    assert " " not in rows[0]["geometry"]
    assert rows[1]["geometry"] is None


def test_multipatch_and_damaged_shapes_are_rejected(tmp_path: Path) -> None:
    patch = shapes(
        shapefile.MULTIPATCH, lambda w: w.multipatch([with_height(FAR)], [shapefile.TRIANGLE_STRIP])
    )
    with pytest.raises(
        BadData, match=r"in\.zip/a\.shp: record 1: the shape cannot be converted to GeoJSON: .*MULTIPATCH"
    ):
        read(tmp_path, patch)
    with pytest.raises(BadData, match=r"record 2: damaged shape: Out of range"):
        read(tmp_path, shapes(shapefile.POINT, lambda w: w.point(1, 1), lambda w: w.point(float("nan"), 1)))


def test_dbf_columns_and_values_are_typed(tmp_path: Path) -> None:
    def write(writer: Any) -> None:
        writer.field("Text", "C", 20)
        writer.field("whole", "N", 18, 0)
        writer.field("long", "N", 30, 0)
        writer.field("part", "N", 20, 6)
        writer.field("float", "F", 13, 11)
        writer.field("day", "D")
        writer.field("true", "L")
        writer.point(1, 2)
        writer.record('größe, "x"', -12, 10**25, "12345678901.500000", 1.5, "20240131", True)
        writer.point(1, 2)
        writer.record("", None, None, None, None, None, None)

    rows, found, reporter = read(
        tmp_path, make(shapefile.POINT, write) | {"a.prj": b'GEOGCS["GCS_WGS_1984",'}
    )
    assert found.columns == pa.schema(
        [
            ("Text", pa.string()), ("whole", pa.int64()), ("long", pa.decimal128(30, 0)),
            ("part", pa.float64()), ("float", pa.float64()), ("day", pa.date32()), ("true", pa.bool_()),
            ("geometry", pa.string()),
        ]
    )  # fmt: skip
    first, second = (list(row.values())[:-1] for row in rows)
    assert first[:4] == ['größe, "x"', "-12", "1" + "0" * 25, "12345678901.5"]
    assert float(first[4]) == 1.5
    assert first[5:] == ["2024-01-31", "true"]
    assert second == [None] * 7
    assert reporter.lines == []


def test_dbf_numbers_are_normalised(tmp_path: Path) -> None:
    """Without the zeros and exponents of their column, so that they may become whole numbers as well."""
    numbers = {
        "12.000": "12", "-.50": "-0.5", "1.5e+002": "150", "0.0": "0", "100": "100", "1" * 30: "1" * 30,
        "1,5": "1,5", "*" * 30: None, " ": None,
    }  # fmt: skip

    def write(writer: Any) -> None:
        writer.field("n", "N", 30, 3)
        for at in range(len(numbers)):
            writer.point(1, 2)
            writer.record(at)

    files = make(shapefile.POINT, write)
    for at, text in enumerate(numbers):
        files["a.dbf"] = files["a.dbf"].replace(
            f" {at}.000".rjust(31).encode(), b" " + text.rjust(30).encode(), 1
        )
    assert [row["n"] for row in read(tmp_path, files)[0]] == list(numbers.values())


@pytest.mark.parametrize(
    ("cpg", "language", "encoding", "warned"),
    [
        (b"UTF-8\r\n", 0, "utf-8", False),
        (b"1251", 0x57, "cp1251", False),
        (b"ANSI 1251", 3, "cp1251", False),
        (b"88595", 0, "iso8859-5", False),
        (b"ISO-8859-5", 0, "iso8859-5", False),
        (b"65001", 0, "utf-8", False),
        (None, 0xC9, "cp1251", False),
        (None, 0x65, "cp866", False),
        (None, 0, "utf-8", False),
        (b"who knows", 0xC9, "cp1251", False),
    ],
)
def test_dbf_encoding_comes_from_cpg_file_or_language_byte(
    tmp_path: Path, cpg: bytes | None, language: int, encoding: str, warned: bool
) -> None:
    files = points(("Жуков", 1), encoding=encoding)
    table = bytearray(files["a.dbf"])
    table[29] = language
    files["a.dbf"] = bytes(table)
    if cpg is not None:
        files["a.CPG"] = cpg
    rows, _, reporter = read(tmp_path, files)
    assert rows[0]["NAME"] == "Жуков"
    assert any("encoding" in line for line in reporter.warnings) == warned


def test_undeclared_dbf_encoding_falls_back_to_cp1252(tmp_path: Path) -> None:
    rows, _, reporter = read(tmp_path, points(("größe", 1), encoding="cp1252"))
    assert rows[0]["NAME"] == "größe"
    assert reporter.warnings == [
        "in.zip/a.shp: no .prj file, the coordinate system is unknown",
        "in.zip/a.dbf: no encoding declared, using cp1252",
    ]
    files = points(("größe", 1), ("größe", 2), encoding="cp1252")
    with pytest.raises(BadData, match=r'in\.zip/a\.dbf: record 1, column "NAME": .*xdf.* is not valid UTF-8'):
        read(tmp_path, files | {"a.cpg": b"UTF-8"})
    # Half a character at the end was cut by whoever wrote the file.
    cut = "ä" * 4 + "aä"
    files = points((cut[:5], 1), encoding="utf-8")
    files["a.dbf"] = files["a.dbf"].replace(cut[:5].encode() + b" ", cut.encode()[:10])
    assert read(tmp_path, files | {"a.cpg": b"UTF-8"})[0][0]["NAME"] == "ä" * 4 + "a"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"20240131", b"20240199", None),  # the column's type says later that there is no such day
        (b"20240131", b"2024-1-3", "column \"day\": '2024-1-3' is not a date"),
        (b"T    12", b"X    12", "column \"true\": 'X' is not a Boolean"),
        (b"T    12", b"?   ***", None),
    ],
)
def test_invalid_dbf_dates_and_booleans_are_rejected(
    tmp_path: Path, old: bytes, new: bytes, message: str | None
) -> None:
    def write(writer: Any) -> None:
        writer.field("day", "D")
        writer.field("true", "L")
        writer.field("n", "N", 6, 0)
        writer.point(1, 2)
        writer.record("20240131", True, 12)

    files = make(shapefile.POINT, write)
    assert old in files["a.dbf"]
    files["a.dbf"] = files["a.dbf"].replace(old, new)
    if message is None:
        row = read(tmp_path, files)[0][0]
        assert (row["day"], row["true"], row["n"]) in (
            ("2024-01-99", "true", "12"),
            ("2024-01-31", None, None),
        )
        return
    with pytest.raises(BadData, match=r"in\.zip/a\.dbf: record 1, " + message):
        read(tmp_path, files)


def test_deleted_dbf_records_are_dropped_with_a_warning(tmp_path: Path) -> None:
    files = points(("a", 1), ("b", 2), ("c", 3), ("d", 4))
    files["a.dbf"] = files["a.dbf"].replace(b" a  ", b"*a  ").replace(b" c  ", b"*c  ")
    rows, found, reporter = read(tmp_path, files)
    assert [(row["NAME"], json.loads(row["geometry"])["coordinates"][0]) for row in rows] == [
        ("b", 1),
        ("d", 3),
    ]
    assert [found.record(1), found.record(2)] == [2, 4]
    assert "in.zip/a.dbf: 2 deleted records dropped" in reporter.warnings


def test_sub_path_selects_the_shapefile_in_the_archive(tmp_path: Path) -> None:
    one, two = points(("one", 1), name="roads/x"), points(("two", 2), name="areas/x")
    for sub_path in ("areas/x.shp", "areas/*.shp", "*eas/*"):
        assert read(tmp_path, one | two, sub_path)[0][0]["NAME"] == "two"
    upper = {name.upper().replace("SHX", "shx"): data for name, data in one.items()}
    assert read(tmp_path, upper | {"__MACOSX/roads/._x.shp": b""})[0][0]["NAME"] == "one"
    with pytest.raises(BadData, match=r"in\.zip: the archive has 2 \.shp files") as caught:
        read(tmp_path, one | two)
    assert caught.value.hint == "set read.subPath to one of: roads/x.shp, areas/x.shp"
    with pytest.raises(BadData, match=r"the archive has no \.shp file matching subPath 'y\.shp'") as caught:
        read(tmp_path, one | two, "y.shp")
    assert caught.value.hint == "files in the archive: roads/x.shp, areas/x.shp"
    with pytest.raises(BadData, match=r"the archive has no \.shp file") as caught:
        read(tmp_path, {"readme.txt": b""})
    assert caught.value.hint == "files in the archive: readme.txt"


def test_duplicate_column_name_is_rejected(tmp_path: Path) -> None:
    def write(writer: Any) -> None:
        writer.field("Geometry", "C", 5)
        writer.point(1, 2)
        writer.record("x")

    with pytest.raises(InvalidSchema, match=r"in\.zip/a\.dbf: duplicate column 'geometry'"):
        read(tmp_path, make(shapefile.POINT, write))


def test_column_name_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    files = points(("a", 1))
    files["a.dbf"] = files["a.dbf"].replace(b"NAME", b"N\xff\xffE")
    with pytest.raises(BadData, match=r"in\.zip/a\.dbf: a column name is not valid UTF-8") as caught:
        read(tmp_path, files | {"a.cpg": b"UTF-8"})
    assert ".cpg" in str(caught.value.hint)
    assert "NÿÿE" in read(tmp_path, files | {"a.cpg": b"1252"})[1].columns.names


@pytest.mark.parametrize("said", [b"hex", b"zlib", b"rot13", b"undefined", b"mbcs", b"\0x", b"\xff\xfe"])
def test_code_pages_that_are_not_text_encodings_are_ignored(tmp_path: Path, said: bytes) -> None:
    rows = read(tmp_path, points(("a", 1)) | {"a.cpg": said})[0]
    assert rows[0]["NAME"] == "a"


def test_a_number_with_a_huge_exponent_stays_as_it_is(tmp_path: Path) -> None:
    def write(writer: Any) -> None:
        writer.field("x", "N", 14, 2)
        writer.point(1, 2)
        writer.record(1)

    files = make(shapefile.POINT, write)
    files["a.dbf"] = files["a.dbf"].replace(b"          1.00", b"1e999999999999")
    assert read(tmp_path, files)[0][0]["x"] == "1e999999999999"


def without(files: Files, name: str) -> Files:
    return {each: data for each, data in files.items() if each != name}


def test_damaged_or_incomplete_archives_are_rejected(tmp_path: Path) -> None:
    files = points(("a", 1), ("b", 2), ("c", 3))
    shp, dbf = files["a.shp"], files["a.dbf"]
    endless = shp[:104] + struct.pack(">i", -4) + shp[108:]
    other = points(("a", 1))
    cases: list[tuple[Files | bytes, str]] = [
        (b"<html>", r"in\.zip: not a zip archive"),
        (b"PK\x03\x04 and no more", r"in\.zip: truncated zip archive"),
        (without(files, "a.dbf"), r"in\.zip/a\.shp: missing \.dbf file in the archive"),
        (files | {"a.shp": shp[:-10]}, r"a\.shp: truncated or damaged file: record 3 of 3"),
        (files | {"a.shp": shp[:-28]}, r"a\.shp: truncated or damaged file: record 3 of 3"),
        (files | {"a.shp": shp[:50]}, r"a\.shp: not a \.shp file"),
        (files | {"a.shp": dbf}, r"a\.shp: not a \.shp file"),
        (files | {"a.shp": endless}, r"a\.shp: truncated or damaged file: record 1 of 3"),
        (files | {"a.shp": shp[:108] + b"\x63" + shp[109:]}, r"a\.shp: record 1: damaged shape"),
        (files | {"a.shp": shp[:108] + b"\x0d" + shp[109:]}, r"a\.shp: record 1: damaged shape"),
        (
            files | {"a.shp": other["a.shp"]},
            r"a\.shp: different numbers of shapes \(1\) and records in the \.dbf file \(3\)",
        ),
        (
            files | {"a.dbf": other["a.dbf"]},
            r"a\.shp: different numbers of shapes \(more than 1\) and records in the \.dbf file \(1\)",
        ),
        (files | {"a.dbf": dbf[:-30]}, r"a\.dbf: truncated file: 1 of 3 rows"),
        (files | {"a.dbf": dbf[:20]}, r"a\.dbf: not a dBASE table: file too short"),
        (files | {"a.dbf": dbf[:40]}, r"a\.dbf: not a dBASE table: incomplete header"),
        (
            files | {"a.dbf": dbf[:10] + b"\0\1" + dbf[12:]},
            r"a\.dbf: not a dBASE table: inconsistent header",
        ),
    ]
    for number, (archive, message) in enumerate(cases):
        with pytest.raises(BadData, match=message):
            read(tmp_path, archive)
            pytest.fail(f"case {number} is read")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    broken = packed.getvalue().replace(b"c         ", b"d         ")
    with pytest.raises(BadData, match=r"in\.zip: a\.dbf cannot be extracted: Bad CRC-32"):
        read(tmp_path, broken)
    # An archive that needs a newer program.
    needs = packed.getvalue().replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\xff")
    with pytest.raises(BadData, match=r"in\.zip: damaged zip archive: zip file version 25\.5"):
        read(tmp_path, needs)


def test_decompression_bombs_are_rejected(tmp_path: Path) -> None:
    files = points(*(("a" * 10, 1),) * 2000)
    with pytest.raises(
        BadData, match=r"in\.zip: decompression bomb suspected: a\.\w+ has more than 20,000 bytes"
    ):
        read(tmp_path, files, None, PrepareLimits(most_bytes=20_000))
    with pytest.raises(BadData, match="decompression bomb suspected"):
        read(tmp_path, files, None, PrepareLimits(most_ratio=2, ratio_from=1000))
    assert len(read(tmp_path, files)[0]) == 2000


def test_dbf_table_is_read_without_shapes(tmp_path: Path) -> None:
    path = tmp_path / "a.dbf"
    path.write_bytes(points(("a", 1))["a.dbf"])
    table = DbfTable.open(path, "a.dbf", None)
    assert table.columns == (DbfColumn("NAME", "C", 10, 0), DbfColumn("n", "N", 9, 0))
    assert list(table.rows()) == [["a", "1"]]
    for kind, decimals in (("M", 0), ("@", 0), ("B", 2)):
        assert DbfColumn("x", kind, 10, decimals).type is None
