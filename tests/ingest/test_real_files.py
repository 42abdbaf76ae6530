"""Real files through whole pulls."""

from __future__ import annotations

import csv
import json
from datetime import UTC, date, datetime
from pathlib import Path

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


def test_every_day_of_new_york(pulled: Pulled, shared: Path) -> None:
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
    heads = [row.hash for row in reversed(pulled.dataset.page(100, kinds={"AddData"}))]
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


AIRPORTS = r"""
fetch: {kind: Url, url: "file:%s"}
read:
  kind: Csv
  separator: ","
  nullValue: \N
  schema:
    - id INT NOT NULL
    - name STRING
    - city STRING
    - country STRING
    - iata STRING
    - icao STRING
    - latitude DOUBLE
    - longitude DOUBLE
    - altitude INT
    - utc_offset DOUBLE
    - dst STRING
    - timezone STRING
    - kind STRING
    - source STRING
merge: {kind: Ledger, primaryKey: [id]}
"""


def test_airports(pulled: Pulled, shared: Path) -> None:
    path = shared / "data" / "openflights" / "airports.dat"
    pulled.add(AIRPORTS % path)
    assert pulled.pull().records == 7698
    table = pulled.table().drop_columns(["offset", "op", "system_time", "event_time"])
    with path.open(encoding="utf-8", newline="") as file:
        expected = list(csv.reader(file))
    assert len(expected) == 7698
    for row, texts in zip(table.to_pylist(), expected, strict=True):
        for value, text in zip(row.values(), texts, strict=True):
            assert value == (None if text == r"\N" else type(value)(text))
    assert any('"' in row[1] for row in expected)
    modified = datetime.fromtimestamp(int(path.stat().st_mtime * 1000) / 1000, UTC)
    assert {row[0] for row in pulled.rows("event_time")} == {modified}


def test_geojson(pulled: Pulled, shared: Path) -> None:
    path = shared / "data" / "nyc-modzcta.geo.json"
    pulled.add(f"fetch: {{kind: Url, url: '{path}'}}\nread: {{kind: GeoJson}}\nmerge: {{kind: Append}}")
    features = json.loads(path.read_text())["features"]
    assert pulled.pull().records == len(features)
    rows = pulled.rows("MODZCTA", "geometry")
    assert [(row[0], json.loads(row[1])) for row in rows] == [
        (feature["properties"]["MODZCTA"], feature["geometry"]) for feature in features
    ]


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


def test_parquet(pulled: Pulled, shared: Path) -> None:
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
