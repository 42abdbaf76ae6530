"""Real files through whole pulls."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from odf_engine.identity.multiformats import Multihash
from tests.ingest.pulling import Pulled

# The last two days have three columns more, in the middle: the query names those that all days have.
NYC = r"""
fetch:
  kind: FilesGlob
  path: in/*.csv
  eventTime: {kind: FromPath, pattern: '(\d+-\d+-\d+)\.csv'}
read: {kind: Csv, header: true}
preprocess:
  kind: Sql
  engine: spark
  query: |
    SELECT
      CAST(MODIFIED_ZCTA AS INT) AS MODIFIED_ZCTA, NEIGHBORHOOD_NAME, BOROUGH_GROUP,
      CAST(COVID_CASE_COUNT AS BIGINT) AS COVID_CASE_COUNT,
      CAST(COVID_CASE_RATE AS DECIMAL(10, 2)) AS COVID_CASE_RATE,
      CAST(POP_DENOMINATOR AS DECIMAL(12, 2)) AS POP_DENOMINATOR,
      CAST(COVID_DEATH_COUNT AS BIGINT) AS COVID_DEATH_COUNT,
      CAST(COVID_DEATH_RATE AS DECIMAL(10, 2)) AS COVID_DEATH_RATE,
      CAST(PERCENT_POSITIVE AS DOUBLE) AS PERCENT_POSITIVE,
      CAST(TOTAL_COVID_TESTS AS BIGINT) AS TOTAL_COVID_TESTS
    FROM input
merge: {kind: Snapshot, primaryKey: [MODIFIED_ZCTA]}
"""


@pytest.mark.complete
def test_snapshot_state_equals_the_file_of_each_day(pulled: Pulled, shared: Path) -> None:
    days = sorted((shared / "data" / "nyc-modzcta").glob("*[0-9].csv"))
    assert len(days) == 15
    pulled.add(NYC)
    for day in days[:1] + days[2:13]:
        (pulled.workspace.folder / "in").mkdir(exist_ok=True)
        (pulled.workspace.folder / "in" / day.name).symlink_to(day)
    first = pulled.pull()
    assert first.blocks == 13
    for day in days:
        if not (link := pulled.workspace.folder / "in" / day.name).exists():
            link.symlink_to(day)
    # A day that was late, and two of the new form.
    assert pulled.pull().blocks == 3
    assert pulled.kinds() == ["Seed", "SetPollingSource", "SetDataSchema", *["AddData"] * 15]
    order = [*days[:1], *days[2:13], days[1], *days[13:]]
    heads = [row.hash for row in reversed(pulled.dataset.list_blocks(100, kinds={"AddData"}))]
    for day, head in zip(order, heads, strict=True):
        assert_state_is(pulled, head, day)
    offsets = [row[0] for row in pulled.rows("offset")]
    assert offsets == list(range(len(offsets)))
    assert pulled.dataset.state().watermark is not None
    assert str(pulled.dataset.state().watermark) == "2021-03-13T00:00:00Z"


def assert_state_is(pulled: Pulled, head: Multihash, day: Path) -> None:
    """The changelog up to a block amounts to the file of that day."""
    with day.open(newline="") as file:
        wanted = {row["MODIFIED_ZCTA"]: row for row in csv.DictReader(file)}
    state = pulled.state_after(head, ["MODIFIED_ZCTA"]).to_pylist()
    assert len(state) == len(wanted) == 177
    for row in state:
        expected = wanted[str(row["MODIFIED_ZCTA"])]
        for name in ("NEIGHBORHOOD_NAME", "BOROUGH_GROUP"):
            assert row[name] == expected[name]
        for name in ("COVID_CASE_COUNT", "COVID_CASE_RATE", "POP_DENOMINATOR", "COVID_DEATH_COUNT",
                     "COVID_DEATH_RATE", "PERCENT_POSITIVE", "TOTAL_COVID_TESTS"):  # fmt: skip
            assert float(row[name]) == float(expected[name])


@pytest.mark.complete
def test_recounted_days_are_stored_as_corrections(pulled: Pulled, shared: Path) -> None:
    """Every file has all days until then, and numbers of days that were counted again."""
    days = sorted((shared / "data" / "nyc-cases-by-day").glob("*.csv"))
    files = [*days[:2], days[-1]]  # those between are alike
    for path in files:
        (pulled.workspace.folder / path.name).symlink_to(path)
    with files[0].open(newline="") as file:
        names = next(csv.reader(file))
    columns = ", ".join(f"{name} {'DATE' if name == names[0] else 'INT NOT NULL'}" for name in names)
    pulled.add(
        f"""
fetch: {{kind: FilesGlob, path: '20*.csv'}}
read: {{kind: Csv, header: true, dateFormat: MM/dd/yyyy, schema: [{columns}]}}
merge: {{kind: Snapshot, primaryKey: [date_of_interest]}}
"""
    )
    assert pulled.pull().blocks == 1 + len(files)
    heads = [row.hash for row in reversed(pulled.dataset.list_blocks(100, kinds={"AddData"}))]
    before: dict[str, list[str]] = {}
    changes = []
    for path, head in zip(files, heads, strict=True):
        with path.open(newline="") as file:
            wanted = {row[0]: row for row in list(csv.reader(file))[1:]}
        state = pulled.state_after(head, [names[0]]).select(names).to_pylist()
        assert {row[names[0]].strftime("%m/%d/%Y"): row for row in state}.keys() == wanted.keys()
        for row in state:
            day, *counts = row.values()
            assert [str(count) for count in counts] == wanted[day.strftime("%m/%d/%Y")][1:]
        corrected = sum(before[day] != wanted[day] for day in before)
        changes.append((len(wanted) - len(before), corrected))
        before = wanted
    assert changes[:2] == [(295, 0), (40, 238)]
    # A new day is one row, a correction two.
    assert [rows for _, rows in pulled.reporter.commits] == [new + 2 * other for new, other in changes]


OPENFLIGHTS = r"""
fetch: {kind: Url, url: "file:%s"}
read:
  kind: Csv
  separator: ","
  nullValue: \N
  schema: [%s]
merge: {kind: %s}
"""
AIRPORTS = (
    "id INT NOT NULL", "name STRING", "city STRING", "country STRING", "iata STRING", "icao STRING",
    "latitude DOUBLE", "longitude DOUBLE", "altitude INT", "utc_offset DOUBLE", "dst STRING",
    "timezone STRING", "kind STRING", "source STRING",
)  # fmt: skip
ROUTES = (
    "airline STRING NOT NULL", "airline_id INT", "from STRING NOT NULL", "from_id INT", "to STRING NOT NULL",
    "to_id INT", "codeshare STRING", "stops INT NOT NULL", "equipment STRING",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "columns", "merge", "count", "absent"),
    [
        ("airports", AIRPORTS, "Ledger, primaryKey: [id]", 7698, [r"\N"]),  # all texts are quoted
        ("routes", ROUTES, "Append", 67663, [r"\N", ""]),
    ],
)
@pytest.mark.complete
def test_openflights_rows_match_the_csv_module(
    pulled: Pulled,
    shared: Path,
    name: str,
    columns: tuple[str, ...],
    merge: str,
    count: int,
    absent: list[str],
) -> None:
    path = shared / "data" / "openflights" / f"{name}.dat"
    pulled.add(OPENFLIGHTS % (path, ", ".join(columns), merge))
    assert pulled.pull().records == count
    table = pulled.table().drop_columns(["offset", "op", "system_time", "event_time"])
    with path.open(encoding="utf-8", newline="") as file:
        expected = list(csv.reader(file))
    assert len(expected) == table.num_rows == count
    for row, texts in zip(zip(*table.to_pydict().values(), strict=True), expected, strict=True):
        for value, text in zip(row, texts, strict=True):
            assert value == (None if text in absent else type(value)(text))
    modified = datetime.fromtimestamp(int(path.stat().st_mtime * 1000) / 1000, UTC)
    assert {row[0] for row in pulled.rows("event_time")} == {modified}


def test_geojson_and_shapefile_of_the_same_areas_agree(pulled: Pulled, shared: Path) -> None:
    """Both are the same 178 areas: one in degrees and simplified, the other in feet and in full."""
    path = shared / "data" / "nyc-modzcta.geo.json"
    pulled.add(f"fetch: {{kind: Url, url: '{path}'}}\nread: {{kind: GeoJson}}\nmerge: {{kind: Append}}")
    features = json.loads(path.read_text())["features"]
    assert pulled.pull().records == len(features) == 178
    rows = pulled.rows("MODZCTA", "label", "geometry")
    assert [(*row[:2], json.loads(row[2])) for row in rows] == [
        (*feature["properties"].values(), feature["geometry"]) for feature in features
    ]

    pulled.add(
        f"fetch: {{kind: Url, url: '{shared / 'data' / 'nyc-modzcta-shapefile.zip'}'}}\n"
        "read: {kind: EsriShapefile, subPath: '*2010.shp',"
        " schema: [modzcta INT, label STRING, geometry STRING]}\n"
        "merge: {kind: Ledger, primaryKey: [modzcta]}",
        name="shapes",
    )
    assert pulled.pull().records == 178
    assert any(
        "coordinates are in 'Lambert_Conformal_Conic' (.prj), not WGS 84" in line
        for line in pulled.reporter.warnings
    )
    shapes = {str(area): (label, json.loads(shape)) for area, label, shape in
              pulled.rows("modzcta", "label", "geometry")}  # fmt: skip
    assert len(shapes) == 178
    for area, label, geometry in rows:
        (other, shape), simple = shapes[area], json.loads(geometry)
        assert other == (label or None)  # a blank text of a shapefile is no value
        assert geometry.startswith('{"coordinates":[[[') and list(shape) == list(simple)
        assert shape["type"] in (simple["type"], "MultiPolygon")
        corners = box([degrees(*point) for point in positions(shape["coordinates"])])
        for left, right in zip(corners, box(list(positions(simple["coordinates"]))), strict=True):
            assert left == pytest.approx(right, abs=0.001)


def positions(coordinates: list[Any]) -> Iterator[tuple[float, float]]:
    if isinstance(coordinates[0], list):
        for inner in coordinates:
            yield from positions(inner)
    else:
        yield coordinates[0], coordinates[1]


def box(points: list[tuple[float, float]]) -> list[float]:
    xs, ys = zip(*points, strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]


def degrees(x: float, y: float) -> tuple[float, float]:
    """The inverse of the projection that the .prj file names, Lambert's conformal conic (EPSG:2263)."""
    axis, ecc = 6378137 / 0.30480060960121924, math.sqrt(2 / 298.257222101 - 1 / 298.257222101**2)
    south, north, origin = map(math.radians, (40 + 2 / 3, 41 + 1 / 30, 40 + 1 / 6))

    def scale(lat: float) -> float:
        return math.cos(lat) / math.sqrt(1 - (ecc * math.sin(lat)) ** 2)

    def conformal(lat: float) -> float:
        flat = (1 - ecc * math.sin(lat)) / (1 + ecc * math.sin(lat))
        return math.tan(math.pi / 4 - lat / 2) / flat ** (ecc / 2)

    cone = math.log(scale(south) / scale(north)) / math.log(conformal(south) / conformal(north))
    factor = axis * scale(south) / (cone * conformal(south) ** cone)
    east, down = x - 984250, factor * conformal(origin) ** cone - y
    wanted = (math.hypot(east, down) / factor) ** (1 / cone)
    lat = math.pi / 2 - 2 * math.atan(wanted)
    for _ in range(5):
        flat = (1 - ecc * math.sin(lat)) / (1 + ecc * math.sin(lat))
        lat = math.pi / 2 - 2 * math.atan(wanted * flat ** (ecc / 2))
    return math.degrees(math.atan2(east, down) / cone) - 74, math.degrees(lat)


@pytest.mark.parametrize("shape", ["lines", "array", "within"])
def test_json_keeps_every_digit(pulled: Pulled, shape: str) -> None:
    objects = [
        '{"id": 9007199254740993, "price": 12345678901234567890.1234567890, '
        '"day": "2024-02-29", "tags": ["a", "b"]}',
        '{"id": -1, "price": 0.1, "at": {"lat": 1.5}, "extra": 1}',
    ]
    text = {
        "lines": "\n".join(objects),
        "array": "[" + ",\n".join(objects) + "]",
        "within": '{"meta": {"n": 2}, "data": {"rows": [' + ",\n".join(objects) + "]}}",
    }[shape]
    pulled.add(
        f"""
fetch: {{kind: Url, url: data.json}}
read:
  kind: {"NdJson" if shape == "lines" else "Json"}
  {"subPath: data.rows" if shape == "within" else ""}
  schema: [id BIGINT, "price DECIMAL(30, 10)", day DATE, "tags ARRAY<STRING>", "at STRUCT<lat: DOUBLE>"]
merge: {{kind: Append}}
"""
    )
    pulled.write("data.json", text)
    assert pulled.pull().records == 2
    (first, second) = pulled.rows("id", "price", "day", "tags", "at")
    assert (first[0], str(first[1]), first[2]) == (
        9007199254740993, "12345678901234567890.1234567890", date(2024, 2, 29)
    )  # fmt: skip
    assert first[3:] == (["a", "b"], None)
    assert second[3:] == (None, {"lat": 1.5})


def test_slice_of_a_dataset_is_read_as_parquet(pulled: Pulled, shared: Path) -> None:
    """A slice of a dataset is a Parquet file like any other."""
    read = "read: {kind: Csv, schema: [id INT, at TIMESTAMP]}"
    pulled.add(f"fetch: {{kind: Url, url: a.csv}}\n{read}\nmerge: {{kind: Append}}")
    pulled.write("a.csv", "1,2024-01-01T00:00:00.5Z\n2,\n")
    pulled.pull()
    (row,) = pulled.dataset.slices()
    source = pulled.dataset.slice_path(row)
    pulled.add(
        f"fetch: {{kind: Url, url: '{source}'}}\n"
        "read: {kind: Parquet, schema: [at TIMESTAMP, id BIGINT]}\nmerge: {kind: Append}",
        name="copy",
    )
    assert pulled.pull().records == 2
    assert pulled.rows("at", "id") == [(datetime(2024, 1, 1, 0, 0, 0, 500000, UTC), 1), (None, 2)]
