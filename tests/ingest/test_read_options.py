"""Options of read steps through whole pulls: each has its effect, and the rows are right."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, date, datetime
from typing import Any

import shapefile

from tests.ingest.pulling import Pulled

ROWS = [{"id": 1, "day": "31.01.2024", "at": "31/01/2024 10:05", "name": "größe 表"},
        {"id": 2, "day": "29.02.2024", "at": "29/02/2024 23:59", "name": None}]  # fmt: skip
READ = [
    (1, date(2024, 1, 31), datetime(2024, 1, 31, 10, 5, tzinfo=UTC), "größe 表"),
    (2, date(2024, 2, 29), datetime(2024, 2, 29, 23, 59, tzinfo=UTC), None),
]
SCHEMA = "schema: [id BIGINT, day DATE, at TIMESTAMP, name STRING]"
FORMATS = "dateFormat: dd.MM.yyyy, timestampFormat: dd/MM/yyyy HH:mm"


def lines(rows: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)


def pull(pulled: Pulled, name: str, read: str, data: str | bytes) -> list[tuple[Any, ...]]:
    """The rows that come of a file."""
    pulled.add(f"fetch: {{kind: Url, url: {name}}}\nread: {{{read}}}\nmerge: {{kind: Append}}", name=name)
    pulled.write(name, data)
    pulled.pull()
    names = [field for field in pulled.table().column_names if field not in
             ("offset", "op", "system_time", "event_time")]  # fmt: skip
    return pulled.rows(*names)


def test_date_formats_and_encodings_apply_to_csv_and_json(pulled: Pulled) -> None:
    text = "id|day|at|name\n" + "\n".join(
        f"{row['id']}|{row['day']}|{row['at']}|'{row['name'] or 'none'}'" for row in ROWS
    )
    dialect = "header: true, separator: '|', quote: \"'\", nullValue: none, encoding: gb18030"
    assert pull(pulled, "csv", f"kind: Csv, {dialect}, {FORMATS}, {SCHEMA}", text.encode("gb18030")) == READ
    whole = json.dumps({"a": {"b": ROWS}}, ensure_ascii=False).encode("utf-16-be")
    assert (
        pull(pulled, "json", f"kind: Json, subPath: a.b, encoding: utf-16, {FORMATS}, {SCHEMA}", whole)
        == READ
    )
    many = lines(ROWS).encode("gb18030")
    assert pull(pulled, "nd", f"kind: NdJson, encoding: GB18030, {FORMATS}, {SCHEMA}", many) == READ


def test_json_keys_and_columns_that_differ_are_reported(pulled: Pulled) -> None:
    rows = [{"ID": 1, "Name": "x", "more": 2}, {"ID": 2, "other": {"id": 9}}]
    read = "kind: NdJson, schema: [id BIGINT NOT NULL, name STRING, absent STRING]"
    assert pull(pulled, "nd", read, lines(rows)) == [(1, "x", None), (2, None, None)]
    said = dict(reversed(line) for line in pulled.reporter.lines)
    assert said["nd: absent not found, null in all rows"] == "warning"
    assert said["nd: not in read.schema, dropped: more, other"] == "info"
    assert said["nd: names differ in case: 'ID' as `id`, 'Name' as `name`"] == "info"


def test_geojson_features_become_rows(pulled: Pulled) -> None:
    features = [
        {"type": "Feature", "id": 7, "properties": {"n": at, "name": name}, "geometry": shape}
        for at, name, shape in (
            (1, "a", {"type": "Point", "coordinates": [1.5, 2]}),
            (2, "b", {"coordinates": [[0, 0], [1, 1]], "type": "LineString"}),
        )
    ]
    shapes = ['{"coordinates":[1.5,2],"type":"Point"}', '{"coordinates":[[0,0],[1,1]],"type":"LineString"}']
    features.append({"type": "Feature", "properties": None, "geometry": None})
    rows = pull(
        pulled, "nd", "kind: NdGeoJson, schema: [name STRING, geometry STRING, n INT]", lines(features)
    )
    assert rows == [("a", shapes[0], 1), ("b", shapes[1], 2), (None, None, None)]
    rows = pull(pulled, "ids", "kind: NdGeoJson, schema: [Id STRING, n INT]", lines(features))
    assert rows == [("7", 1), ("7", 2), (None, None)]
    whole = json.dumps({"type": "FeatureCollection", "features": features})
    rows = [(shapes[0], 7, 1, "a"), (shapes[1], 7, 2, "b"), (None,) * 4]
    assert pull(pulled, "whole", "kind: GeoJson", whole) == rows


def test_feature_ids_add_no_column_to_an_existing_dataset(pulled: Pulled) -> None:
    """Earlier versions dropped them. A dataset without them goes on without them."""
    feature = {"type": "Feature", "properties": {"n": 1}, "geometry": None}
    assert pull(pulled, "a", "kind: NdGeoJson", lines([feature])) == [(None, 1)]
    pulled.write("a", lines([feature, {**feature, "id": 7}]))
    pulled.pull()
    assert pulled.table().column_names[4:] == ["geometry", "n"]
    assert any("declare the column id in read.schema" in text for _, text in pulled.reporter.lines)


def test_shapefile_in_an_archive_is_read_with_its_encoding(pulled: Pulled) -> None:
    parts = {suffix: io.BytesIO() for suffix in ("shp", "shx", "dbf")}
    with shapefile.Writer(shapeType=shapefile.POINT, encoding="cp1251", **parts) as writer:  # type: ignore[arg-type]
        writer.field("ID", "N", 9, 0)
        writer.field("NAME", "C", 20)
        writer.field("SHARE", "N", 9, 4)
        writer.field("SINCE", "D")
        for number in (1, 2):
            writer.point(number, 0.25)
            writer.record(
                number,
                "Жуков" if number == 1 else "",
                0.125 * number,
                date(2024, 2 + number // 2, 29 if number == 1 else 1),
            )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for suffix, part in parts.items():
            archive.writestr(f"deep/roads.{suffix}", part.getvalue())
        archive.writestr("deep/roads.cpg", "1251")
        archive.writestr("other.shp", parts["shp"].getvalue())
    shapes = [f'{{"coordinates":[{number}.0,0.25],"type":"Point"}}' for number in (1, 2)]
    read = "kind: EsriShapefile, subPath: deep/*.shp"
    assert pull(pulled, "as-it-is", read, packed.getvalue()) == [
        (1, "Жуков", 0.125, date(2024, 2, 29), shapes[0]), (2, None, 0.25, date(2024, 3, 1), shapes[1]),
    ]  # fmt: skip
    schema = "schema: ['share DECIMAL(4, 3)', id SMALLINT]"
    rows = pull(pulled, "declared", f"{read}, {schema}", packed.getvalue())
    assert [(str(share), number) for share, number in rows] == [("0.125", 1), ("0.250", 2)]
