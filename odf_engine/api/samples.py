"""Templates of manifests; files and datasets of the demo."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from odf_engine.errors import Conflict, OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.on_demand import definition_update, metadata_yaml
from odf_engine.worker.protocol import Request
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace

START: Final = datetime(2024, 3, 1, tzinfo=UTC)
DAYS: Final = 10
AIR_READINGS: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: port-haven.air-readings
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Url
        url: file:sources/air-readings.csv
      read:
        kind: Csv
        header: true
        schema:
          - station STRING NOT NULL
          - measured_at TIMESTAMP
          - pm25 DOUBLE
          - no2 DOUBLE
          - sensor STRING
      preprocess:
        kind: Sql
        engine: spark
        query: |
          SELECT measured_at AS event_time, station, pm25, no2, sensor
          FROM input
      # Station and hour identify a reading: reading the file again adds only new rows.
      merge:
        kind: Ledger
        primaryKey: [station, event_time]
    - kind: SetInfo
      description: Hourly air quality at the stations of Port Haven
      keywords: [air quality, health, sample]
    - kind: SetLicense
      shortName: CC0-1.0
      name: Creative Commons Zero 1.0
      spdxId: CC0-1.0
      websiteUrl: https://creativecommons.org/publicdomain/zero/1.0/
"""
CLINIC_VISITS: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: port-haven.clinic-visits
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch:
        kind: Url
        url: file:sources/clinic-visits.ndjson
      read:
        kind: NdJson
        schema:
          - visit_id BIGINT NOT NULL
          - arrived_at TIMESTAMP
          - clinic STRING
          - age INT
          - complaint STRING
          - triage STRING
      # Steps build on each other; the last one, without an alias, is the result.
      preprocess:
        kind: Sql
        engine: spark
        queries:
          - alias: dated
            query: SELECT arrived_at AS event_time, * EXCEPT (arrived_at) FROM input
          - query: |
              SELECT
                event_time, visit_id, clinic, age, complaint, triage,
                complaint IN ('asthma', 'cough', 'short of breath') AS respiratory
              FROM dated
      merge:
        kind: Append
    - kind: SetInfo
      description: Arrivals at the two clinics of Port Haven
      keywords: [clinics, health, sample]
"""
STATIONS: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: port-haven.stations
  kind: Root
  metadata:
    # One file per day with the complete list. The date in the name is the event time.
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: sources/stations/*.csv
        eventTime:
          kind: FromPath
          pattern: (\\d+-\\d+-\\d+)\\.csv
          timestampFormat: yyyy-MM-dd
        order: ByName
      read:
        kind: Csv
        header: true
        schema:
          - station STRING NOT NULL
          - name STRING
          - latitude DECIMAL(8, 5)
          - longitude DECIMAL(8, 5)
          - sensor STRING
          - state STRING
      # Differences to the previous day become +A, -R and -C/+C rows.
      merge:
        kind: Snapshot
        primaryKey: [station]
    - kind: SetInfo
      description: Where Port Haven measures its air, with every change since 1 March
      keywords: [air quality, stations, sample]
"""
AIR_BY_DAY: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: port-haven.air-by-day
  kind: Derivative
  metadata:
    # The row of a day is emitted once, when the watermark of the readings passes the end of the day.
    - kind: SetTransform
      inputs:
        - datasetRef: port-haven.air-readings
          alias: readings
      transform:
        kind: Sql
        engine: spark
        query: |
          SELECT
            window.start AS event_time,
            station,
            round(avg(pm25), 1) AS pm25,
            max(pm25) AS pm25_peak,
            count(*) AS readings
          FROM readings
          GROUP BY window(event_time, '1 day'), station
    - kind: SetInfo
      description: The air at each station of Port Haven, day by day
      keywords: [air quality, health, sample]
"""
SMOKE_AND_BREATH: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: port-haven.smoke-and-breath
  kind: Derivative
  metadata:
    # Joins each visit with the reading of its hour. The time bound limits how long rows stay in the state.
    - kind: SetTransform
      inputs:
        - datasetRef: port-haven.clinic-visits
          alias: visits
        - datasetRef: port-haven.air-readings
          alias: readings
      transform:
        kind: Sql
        engine: spark
        query: |
          SELECT v.event_time, v.visit_id, v.clinic, v.age, v.complaint, r.pm25
          FROM visits AS v
          JOIN readings AS r
            ON r.event_time = date_trunc('HOUR', v.event_time)
            AND r.event_time BETWEEN v.event_time - INTERVAL 1 HOUR AND v.event_time
          WHERE v.respiratory AND r.station = 'ph-01'
    - kind: SetInfo
      description: What the air was like when people came to the clinics short of breath
      keywords: [air quality, clinics, health, sample]
"""
MANIFESTS: Final = {
    "air-readings.yaml": AIR_READINGS,
    "clinic-visits.yaml": CLINIC_VISITS,
    "stations.yaml": STATIONS,
    "air-by-day.yaml": AIR_BY_DAY,
    "smoke-and-breath.yaml": SMOKE_AND_BREATH,
}
_STATIONS: Final = {
    "ph-01": ("Harbour Gate", "49.28410", "-123.10960", "PMS-5003", "active"),
    "ph-02": ("Mill Street", "49.27910", "-123.12070", "PMS-5003", "active"),
    "ph-03": ("Lighthouse", "49.29550", "-123.14110", "SDS-011", "active"),
    "ph-04": ("Orchard School", "49.26120", "-123.09840", "SDS-011", "active"),
}


def demo_files() -> dict[str, str]:
    """Return the manifests and sources by their paths in the workspace. The text is the same every time."""
    generator = random.Random(20240301)
    files = {f"manifests/{name}": text for name, text in MANIFESTS.items()}
    files |= {f"sources/stations/{day}.csv": text for day, text in _make_station_lists().items()}
    files["sources/air-readings.csv"] = _make_readings(generator)
    files["sources/clinic-visits.ndjson"] = _make_visits(generator)
    return files


def _smoke_at(hours: float) -> float:
    """Return the density of smoke, 0 to 1, at a number of hours after the start."""
    return math.exp(-(((hours - 130) / 30) ** 2))


def _make_readings(generator: random.Random) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["station", "measured_at", "pm25", "no2", "sensor"])
    for hour in range(24 * DAYS):
        time = START + timedelta(hours=hour)
        traffic = 1 + 0.6 * math.sin((time.hour - 8) / 24 * 2 * math.pi) ** 2
        for at, (station, facts) in enumerate(_STATIONS.items()):
            if station == "ph-03" and 60 <= hour < 63:
                continue  # power failure of the station
            pm25 = 6 + 2 * at + generator.gauss(0, 1.2) + _smoke_at(hour - at) * (70 - 9 * at)
            no2 = 11 * traffic + generator.gauss(0, 2) - at
            broken = generator.random() < 0.01
            sensor = "PMS-7003" if station == "ph-02" and hour >= 72 else facts[3]
            writer.writerow(
                [
                    station,
                    f"{time:%Y-%m-%dT%H:%M:%SZ}",
                    "" if broken else f"{max(pm25, 0.4):.1f}",
                    f"{max(no2, 0.2):.1f}",
                    sensor,
                ]
            )
    return out.getvalue()


def _make_visits(generator: random.Random) -> str:
    lines: list[str] = []
    complaints = ["injury", "fever", "cough", "asthma", "short of breath", "check-up", "rash"]
    for day in range(DAYS):
        smoke = _smoke_at(24 * day - 12)
        weights = [14, 10, 8 + 14 * smoke, 4 + 22 * smoke, 3 + 26 * smoke, 16, 6]
        count = round(38 + 45 * smoke + generator.gauss(0, 4))
        minutes = sorted(generator.randrange(7 * 60, 21 * 60) for _ in range(count))
        for minute in minutes:
            complaint = generator.choices(complaints, weights)[0]
            urgent = complaint in ("asthma", "short of breath") and generator.random() < 0.4
            visit = {
                "visit_id": 1000 + len(lines),
                "arrived_at": f"{START + timedelta(days=day, minutes=minute):%Y-%m-%dT%H:%M:%SZ}",
                "clinic": generator.choice(["Quayside", "Hillcrest"]),
                "age": max(0, min(97, round(generator.gauss(43, 22)))),
                "complaint": complaint,
                "triage": "urgent" if urgent else "standard",
            }
            lines.append(json.dumps(visit))
    return "\n".join(lines) + "\n"


def _make_station_lists() -> dict[str, str]:
    """Return the daily lists of stations of a week, with changes between them."""
    stations = {key: list(facts) for key, facts in _STATIONS.items()}
    lists: dict[str, str] = {}
    for day in range(7):
        if day == 2:  # a fifth station opens
            stations["ph-05"] = ["Ferry Terminal", "49.28890", "-123.11150", "PMS-7003", "testing"]
        elif day == 3:  # a sensor is replaced, the new station goes live
            stations["ph-02"][3] = "PMS-7003"
            stations["ph-05"][4] = "active"
        elif day == 5:  # a name is corrected
            stations["ph-03"][0] = "Old Lighthouse"
        elif day == 6:  # a station is taken down
            del stations["ph-04"]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["station", "name", "latitude", "longitude", "sensor", "state"])
        writer.writerows([key, *facts] for key, facts in stations.items())
        lists[f"{START + timedelta(days=day):%Y-%m-%d}"] = out.getvalue()
    return lists


_HEAD: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: KIND
  metadata:
"""
_MERGE: Final = """\
      # Optional query in Spark SQL. The column event_time is the event time of each row:
      # preprocess:
      #   kind: Sql
      #   engine: spark
      #   query: SELECT CAST(day AS TIMESTAMP) AS event_time, id, name, amount FROM input
      #
      # Merge strategies:
      #   Append    every row is new
      #   Ledger    rows with a new key are added
      #   Snapshot  the complete list each time; differences become retractions and corrections
      #   UpsertStream     rows insert or update the row of their key; a column op may retract
      #   ChangelogStream  rows are changes by key; a column op has their operation
"""
_TAIL: Final = """\
    # The schema, to fix the columns of a query before the first data:
    # - kind: SetDataSchema
    #   schema: [id BIGINT NOT NULL, name STRING, "amount DECIMAL(12, 2)"]
    - kind: SetInfo
      description: Describe the dataset in one sentence
      keywords: [example]
    # - kind: SetLicense
    #   shortName: CC-BY-4.0
    #   name: Creative Commons Attribution 4.0
    #   websiteUrl: https://creativecommons.org/licenses/by/4.0/
    # - kind: SetAttachments
    #   attachments:
    #     kind: Embedded
    #     items:
    #       - path: README.md
    #         content: |
    #           # Details
"""
ROOT: Final = (
    _HEAD.replace("KIND", "Root")
    + """\
    - kind: SetPollingSource
      # Origin of the data. Paths are relative to the workspace folder.
      fetch:
        kind: FilesGlob      # each file is ingested once, in one commit
        path: data/*.csv
        # Event time of the rows, if no column has it: here from a name such as 2024-01-31.csv
        eventTime:
          kind: FromPath
          pattern: (\\d+-\\d+-\\d+)
          timestampFormat: yyyy-MM-dd
        order: ByName
      # or one URL that is checked for changes (http, https, ftp, s3, a local file):
      # fetch:
      #   kind: Url
      #   url: https://example.com/cases.csv.gz
      #   headers:           # variables must be allowed: odf config set allowedEnv.NAME TOKEN
      #     - {name: Authorization, value: "Bearer ${{ env.TOKEN }}"}
      # or a program in a container that prints the data:
      # fetch:
      #   kind: Container
      #   image: ghcr.io/example/fetch:1.0
      #   args: [--since, 2024-01-01]
      #   env: [{name: TOKEN}]
      # or the messages of an MQTT broker, with read: {kind: NdJson}:
      # fetch:
      #   kind: Mqtt
      #   host: broker.example.com
      #   port: 1883
      #   topics: [{path: sensors/+/temperature, qos: AtLeastOnce}]
      # or the logs of an Ethereum chain, with read: {kind: Parquet}:
      # fetch:
      #   kind: EthereumLogs
      #   chainId: 1         # its node: odf config set ethereum.rpcEndpoints.1 URL
      #   filter: address = X'ae78736cd615f374d3085123a210448e74fc6393'
      #   signature: Transfer(address indexed from, address indexed to, uint256 value)
      #
      # Optional: unpack the data, or pipe it through a local program:
      # prepare:
      #   - kind: Decompress
      #     format: Gzip
      #   - kind: Decompress
      #     format: Zip
      #     subPath: cases.csv
      #   - kind: Pipe
      #     command: [jq, -c, ".items[]"]
      #
      read:
        kind: Csv
        header: true
        # separator: ";"
        # nullValue: NA
        # dateFormat: dd.MM.yyyy
        schema:
          - id BIGINT NOT NULL
          - name STRING
          - amount DECIMAL(12, 2)
      # or another format; all but Parquet and EsriShapefile accept a schema as Csv does:
      # read: {kind: NdJson}                        # one object per line
      # read: {kind: Json, subPath: data.items}     # a list of objects within a document
      # read: {kind: Parquet}
      # read: {kind: GeoJson}                       # features; NdGeoJson: one per line
      # read: {kind: EsriShapefile, subPath: "*.shp"}
      #
"""
    + _MERGE
    + """\
      merge:
        kind: Snapshot
        primaryKey: [id]
"""
    + _TAIL
)
PUSH: Final = (
    _HEAD.replace("KIND", "Root")
    + """\
    # Data is pushed: odf ingest NAME rows.ndjson, or from a pipe: … | odf ingest NAME -
    # A dataset can have several push sources with different names.
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson         # or Csv, Json, Parquet …; odf ingest --format overrides it
        schema:
          - id BIGINT NOT NULL
          - name STRING
          - amount DECIMAL(12, 2)
"""
    + _MERGE
    + """\
      merge:
        kind: Ledger
        primaryKey: [id]
"""
    + _TAIL
)
DERIVATIVE: Final = (
    _HEAD.replace("KIND", "Derivative")
    + """\
    - kind: SetTransform
      # The inputs, by name or id.
      inputs:
        - datasetRef: com.example.input
          alias: input
      transform:
        kind: Sql
        engine: spark
        query: |
          SELECT event_time, id, amount
          FROM input
          WHERE amount > 0
        # Several steps instead of one query; each can read the earlier ones:
        # queries:
        #   - {alias: large, query: SELECT * FROM input WHERE amount > 100}
        #   - {query: "SELECT event_time, id FROM large"}   # the last one has no alias
        #
        # Queries can be stateful. The state is stored in the folder of the dataset. Examples:
        #   a window; its row is emitted when the watermark passes its end
        #     SELECT window.start AS event_time, id, sum(amount) AS amount
        #     FROM input GROUP BY window(event_time, '1 day'), id
        #   groups without a window; each pull corrects them
        #     SELECT max(event_time) AS event_time, id, sum(amount) AS amount
        #     FROM input GROUP BY id
        #   a join of two inputs with a time bound
        #     SELECT a.event_time, a.id, b.amount FROM input AS a JOIN other AS b
        #     ON a.id = b.id AND b.event_time BETWEEN a.event_time AND a.event_time + INTERVAL 1 HOUR
        #   a join of each row with the version of its key at the event time
        #     SELECT t.event_time, t.id, t.amount * r.rate AS amount FROM input AS t
        #     LEFT JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.id = r.id
        #     which also requires, next to the query:
        # temporalTables: [{name: rates, primaryKey: [id]}]
"""
    + _TAIL
)


def write_files(folder: Path) -> None:
    """Write manifests and sources. Files with the same text are not rewritten.

    Raises:
        Conflict: another file has one of the names. Nothing is written.
        OdfError: the folder is not writable.
    """
    files = demo_files()
    try:
        for name, text in files.items():
            path = folder / name
            if path.exists() and not (path.is_file() and path.read_bytes() == text.encode()):
                raise Conflict(
                    f"{name} already exists with other contents: nothing was written",
                    hint="use odf demo FOLDER to create the demo in a separate folder",
                )
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():  # a new modification time would be new data
                path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OdfError(f"the demo cannot be written: {error.strerror}", where=str(error.filename)) from None


def add_datasets(workspace: Workspace) -> list[DatasetEntry]:
    """Add the missing datasets of the demo, and return all of its datasets, inputs first."""
    snapshots = {}
    for name in MANIFESTS:
        path = workspace.folder / "manifests" / name
        (snapshots[path],) = metadata_yaml.read_manifests(path.read_text(encoding="utf-8"), str(path))
    names = {str(entry.alias).lower() for entry in workspace.datasets()}
    workspace.add([snapshot for snapshot in snapshots.values() if snapshot.name.lower() not in names])
    entries = {path: workspace.resolve(snapshot.name) for path, snapshot in snapshots.items()}
    for path, entry in entries.items():
        definition_update.record_manifest(workspace.folder, entry, path)
    return list(entries.values())


def make_requests(workspace: Workspace, entries: Sequence[DatasetEntry]) -> list[tuple[Request, str]]:
    """Return a pull and a verification of each dataset, with its name."""
    graph = DatasetGraph(workspace.summaries())
    requests: list[tuple[Request, str]] = []
    for entry in entries:
        request = Pull.of_known_dataset(str(entry.id), (), map(str, graph.upstream(entry.id)))
        requests.append((request, str(entry.alias)))
        requests.append((Verify(dataset=str(entry.id)), str(entry.alias)))
    return requests


def make_demo(workspace: Workspace) -> list[tuple[Request, str]]:
    """Write the demo into a workspace, add its datasets, and return the requests to submit.

    Raises:
        OdfError: see :func:`write_files`.
    """
    write_files(workspace.folder)
    return make_requests(workspace, add_datasets(workspace))
