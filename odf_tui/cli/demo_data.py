"""Sample sources for ``odf demo``: a small harbour town in the week the smoke came.

Port Haven measures its air (a CSV that only grows), its clinics log arrivals (NDJSON), and the list
of measuring stations is published anew every day (a snapshot with changes). Two datasets are made of
these: the air day by day, and each visit with the air of its hour. The numbers are made up, always the
same, and tell one story: on 5 March smoke drifts in, fine dust rises, and with a day's
delay more people come to the clinics short of breath.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
from datetime import UTC, datetime, timedelta
from typing import Final

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
      # A reading is known by its station and hour: reading the file again adds only what is new.
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
    # One file a day, each the whole list. The date in the name is when the list was true.
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
      # The difference to the day before becomes +A, -R and -C/+C rows.
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
    # A day's row is made once, as soon as the watermark of the readings says that the day is complete.
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
    # Each visit meets the reading of the hour before it; the bound of time says how long either waits.
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
    """The manifests and the sources, by their paths in the workspace's folder: the same text every time."""
    chance = random.Random(20240301)
    files = {f"manifests/{name}": text for name, text in MANIFESTS.items()}
    files |= {f"sources/stations/{day}.csv": text for day, text in _station_lists().items()}
    files["sources/air-readings.csv"] = _readings(chance)
    files["sources/clinic-visits.ndjson"] = _visits(chance)
    return files


def _smoke(hours: float) -> float:
    """How much smoke lies over the town, 0 to 1, so many hours after the start."""
    return math.exp(-(((hours - 130) / 30) ** 2))


def _readings(chance: random.Random) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["station", "measured_at", "pm25", "no2", "sensor"])
    for hour in range(24 * DAYS):
        moment = START + timedelta(hours=hour)
        traffic = 1 + 0.6 * math.sin((moment.hour - 8) / 24 * 2 * math.pi) ** 2
        for at, (station, facts) in enumerate(_STATIONS.items()):
            if station == "ph-03" and 60 <= hour < 63:
                continue  # the mast lost power
            pm25 = 6 + 2 * at + chance.gauss(0, 1.2) + _smoke(hour - at) * (70 - 9 * at)
            no2 = 11 * traffic + chance.gauss(0, 2) - at
            broken = chance.random() < 0.01
            sensor = "PMS-7003" if station == "ph-02" and hour >= 72 else facts[3]
            writer.writerow(
                [
                    station,
                    f"{moment:%Y-%m-%dT%H:%M:%SZ}",
                    "" if broken else f"{max(pm25, 0.4):.1f}",
                    f"{max(no2, 0.2):.1f}",
                    sensor,
                ]
            )
    return out.getvalue()


def _visits(chance: random.Random) -> str:
    lines: list[str] = []
    complaints = ["injury", "fever", "cough", "asthma", "short of breath", "check-up", "rash"]
    for day in range(DAYS):
        smoke = _smoke(24 * day - 12)
        weights = [14, 10, 8 + 14 * smoke, 4 + 22 * smoke, 3 + 26 * smoke, 16, 6]
        count = round(38 + 45 * smoke + chance.gauss(0, 4))
        minutes = sorted(chance.randrange(7 * 60, 21 * 60) for _ in range(count))
        for minute in minutes:
            complaint = chance.choices(complaints, weights)[0]
            urgent = complaint in ("asthma", "short of breath") and chance.random() < 0.4
            visit = {
                "visit_id": 1000 + len(lines),
                "arrived_at": f"{START + timedelta(days=day, minutes=minute):%Y-%m-%dT%H:%M:%SZ}",
                "clinic": chance.choice(["Quayside", "Hillcrest"]),
                "age": max(0, min(97, round(chance.gauss(43, 22)))),
                "complaint": complaint,
                "triage": "urgent" if urgent else "standard",
            }
            lines.append(json.dumps(visit))
    return "\n".join(lines) + "\n"


def _station_lists() -> dict[str, str]:
    """A list a day for a week, with what happened in between."""
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
