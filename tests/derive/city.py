"""New York's published numbers as a pipeline of datasets, and what they have to amount to.

The city publishes the counts of its 177 areas anew every day (a snapshot with its mistakes: on 7 December
2020 thousands of cases are taken back, and Staten Island is called "Staten Is"), all of its days anew every
few weeks, with those that were counted again, and the shapes of the areas once::

    nyc.areas ──────> nyc.boroughs ──────┐
                                         ├──> nyc.weeks
    nyc.geography ──> nyc.extents ───────┘
    nyc.days ───────> nyc.borough-days, nyc.borough-weeks
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from textwrap import indent
from typing import Any, Final

from odf_engine.base.progress import Reporter
from odf_engine.data.digest import LogicalHasher
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.model import IntegrityReport
from odf_engine.derive.verify.replay import Replay
from odf_engine.ingest.polling_source import PullOptions, pull
from odf_engine.metadata.model import DatasetKind
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving

_HEAD: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: {kind}
  metadata:
"""

AREAS: Final = (
    _HEAD.format(name="nyc.areas", kind="Root")
    + r"""
    - kind: SetPollingSource
      fetch:
        kind: FilesGlob
        path: areas/*.csv
        eventTime: {kind: FromPath, pattern: '(\d+-\d+-\d+)\.csv'}
        order: ByName
      read: {kind: Csv, header: true}
      # The last days have columns more: the query names those that all days have.
      preprocess:
        kind: Sql
        engine: spark
        query: |
          SELECT
            MODIFIED_ZCTA AS area, NEIGHBORHOOD_NAME AS name, BOROUGH_GROUP AS borough,
            CAST(COVID_CASE_COUNT AS BIGINT) AS cases,
            CAST(COVID_DEATH_COUNT AS BIGINT) AS deaths,
            CAST(POP_DENOMINATOR AS DECIMAL(12, 2)) AS people
          FROM input
      merge: {kind: Snapshot, primaryKey: [area]}
"""
)

DAYS: Final = (
    _HEAD.format(name="nyc.days", kind="Root")
    + """
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: days/*.csv, order: ByName}
      read: {kind: Csv, header: true}
      preprocess:
        kind: Sql
        engine: spark
        query: |
          SELECT
            to_timestamp(date_of_interest, 'MM/dd/yyyy') AS event_time,
            CAST(BX_CASE_COUNT AS INT) AS bronx, CAST(BK_CASE_COUNT AS INT) AS brooklyn,
            CAST(MN_CASE_COUNT AS INT) AS manhattan, CAST(QN_CASE_COUNT AS INT) AS queens,
            CAST(SI_CASE_COUNT AS INT) AS staten_island
          FROM input
      merge: {kind: Snapshot, primaryKey: [event_time]}
"""
)

GEOGRAPHY: Final = (
    _HEAD.format(name="nyc.geography", kind="Root")
    + """
    - kind: SetPollingSource
      fetch: {kind: Url, url: 'file:nyc-modzcta.geo.json'}
      read: {kind: GeoJson}
      # So were the areas before anybody counted.
      preprocess:
        kind: Sql
        engine: spark
        query: |
          SELECT TIMESTAMP'2020-01-01' AS event_time, MODZCTA AS area, label, geometry FROM input
          WHERE MODZCTA != '99999'
      merge: {kind: Snapshot, primaryKey: [area]}
"""
)

_DERIVED: Final = """
    - kind: SetTransform
      inputs: [{inputs}]
      transform:
        kind: Sql
        engine: spark
"""

BOROUGHS: Final = (
    _HEAD.format(name="nyc.boroughs", kind="Derivative")
    + _DERIVED.format(inputs="{datasetRef: nyc.areas, alias: areas}")
    + """\
        # The cases of each borough day by day: a total is corrected when an area's is, also downwards.
        query: |
          SELECT max(event_time) AS event_time, borough, count(*) AS areas,
            sum(cases) AS cases, sum(deaths) AS deaths
          FROM areas GROUP BY borough
"""
)

EXTENTS: Final = (
    _HEAD.format(name="nyc.extents", kind="Derivative")
    + _DERIVED.format(inputs="{datasetRef: nyc.geography, alias: geography}")
    + """\
        # Where each borough lies: the first digits of an area's number tell the borough.
        queries:
          - alias: placed
            query: |
              SELECT event_time, area,
                CASE
                  WHEN area RLIKE '^10[0-2]' THEN 'Manhattan' WHEN area LIKE '103%' THEN 'Staten Island'
                  WHEN area LIKE '104%' THEN 'Bronx' WHEN area LIKE '112%' THEN 'Brooklyn' ELSE 'Queens'
                END AS borough,
                transform(regexp_extract_all(geometry, '-7[0-9][.][0-9]+', 0), x -> CAST(x AS DOUBLE)) AS xs,
                transform(regexp_extract_all(geometry, '4[0-9][.][0-9]+', 0), y -> CAST(y AS DOUBLE)) AS ys
              FROM geography
          - query: |
              SELECT
                max(event_time) AS event_time, borough, count(*) AS shapes,
                min(array_min(xs)) AS west, max(array_max(xs)) AS east,
                min(array_min(ys)) AS south, max(array_max(ys)) AS north
              FROM placed GROUP BY borough
"""
)

WEEKS: Final = (
    _HEAD.format(name="nyc.weeks", kind="Derivative")
    + _DERIVED.format(
        inputs="{datasetRef: nyc.boroughs, alias: boroughs}, {datasetRef: nyc.extents, alias: extents}"
    )
    + """\
        temporalTables: [{name: extents, primaryKey: [borough]}]
        queries:
          # Each day's total as it became known, with the borough's place on the map.
          - alias: placed
            query: |
              SELECT b.event_time, b.borough, b.cases, e.shapes, e.west, e.north
              FROM boroughs AS b
              LEFT JOIN extents FOR SYSTEM_TIME AS OF b.event_time AS e ON b.borough = e.borough
              WHERE b.op IN (0, 3)
          # Weeks begin on Mondays.
          - query: |
              SELECT
                window.start AS event_time, borough, shapes, west, north, count(*) AS days,
                min(struct(event_time, cases)).cases AS cases_before,
                max(struct(event_time, cases)).cases AS cases
              FROM placed
              GROUP BY window(event_time, '7 days', '7 days', '4 days'), borough, shapes, west, north
"""
)

_LONG: Final = """\
SELECT event_time, borough, cases FROM days
LATERAL VIEW stack(5,
  'Bronx', bronx, 'Brooklyn', brooklyn, 'Manhattan', manhattan, 'Queens', queens,
  'Staten Island', staten_island
) AS borough, cases
"""

BOROUGH_DAYS: Final = (
    _HEAD.format(name="nyc.borough-days", kind="Derivative")
    + _DERIVED.format(inputs="{datasetRef: nyc.days, alias: days}")
    + """\
        # Five rows of one: when the city corrects a day, they are taken back and given anew.
        query: |
"""
    + indent(_LONG, " " * 10)
)

BOROUGH_WEEKS: Final = (
    _HEAD.format(name="nyc.borough-weeks", kind="Derivative")
    + _DERIVED.format(inputs="{datasetRef: nyc.days, alias: days}")
    + """\
        # Corrected for as long as the city corrects: no window closes here.
        queries:
          - alias: long
            query: |
"""
    + indent(_LONG, " " * 14)
    + """\
          - query: |
              SELECT max(event_time) AS event_time, date_trunc('WEEK', event_time) AS week, borough,
                sum(cases) AS cases, count(*) AS days
              FROM long GROUP BY date_trunc('WEEK', event_time), borough
"""
)

MANIFESTS: Final = (
    AREAS, DAYS, GEOGRAPHY, BOROUGHS, EXTENTS, WEEKS, BOROUGH_DAYS, BOROUGH_WEEKS,
)  # fmt: skip


class City(Deriving):
    """A workspace with the pipeline.

    Args:
        folder: where it is made.
        runtime: a started Spark.
        data: the folder of the published files.
    """

    def __init__(self, folder: Path, runtime: SparkRuntime, data: Path) -> None:
        folder.mkdir(parents=True)
        super().__init__(Workspace.init(folder), runtime)
        self._runtime = runtime
        for name in ("areas", "days"):
            (folder / name).mkdir()
        (folder / "nyc-modzcta.geo.json").symlink_to(data / "nyc-modzcta.geo.json")
        self.workspace.add([manifest for text in MANIFESTS for manifest in read_manifests(text, "city")])
        order = DatasetGraph(self.workspace.summaries()).order()
        self.entries = [self.workspace.resolve(str(each)) for each in order]

    def publish(self, *files: Path) -> None:
        """The city puts files out: counts of areas, or of days."""
        for file in files:
            name = "areas" if "modzcta" in file.parent.name else "days"
            (self.workspace.folder / name / file.name).symlink_to(file)

    def pull(self) -> int:
        """Pulls everything, inputs first; how many blocks there are more."""
        before = self._blocks()
        for entry in self.entries:
            if entry.dataset.state().kind is DatasetKind.Derivative:
                self.run(entry)
                continue
            files = self.workspace.folder / str(entry.alias).removeprefix("nyc.")
            if files.is_dir() and not any(files.iterdir()):
                continue  # nothing was put out yet
            pull(self.workspace, entry, self._runtime, Reporter())
            if str(entry.alias) == "nyc.geography":
                # Shapes are complete from now on, although they have not changed.
                pull(self.workspace, entry, self._runtime, Reporter(), PullOptions(set_watermark=END))
        return self._blocks() - before

    def entry(self, name: str) -> DatasetEntry:
        """A dataset by the last part of its name."""
        return self.workspace.resolve(f"nyc.{name}")

    def hashes(self) -> dict[str, str]:
        """The logical hash of all rows of each dataset, without the time of the transaction."""
        return {str(entry.alias): self._hashed(entry) for entry in self.entries}

    def verify(self, *names: str) -> list[IntegrityReport]:
        """What verification says of datasets, with all transactions run again."""
        return [self._verified(self.entry(name)) for name in names]

    def current(self, name: str, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        """What the changelog of a dataset amounts to: its rows by key."""
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.table(self.entry(name)).to_pylist():
            key = tuple(row[each] for each in keys)
            if row["op"] in (1, 2):
                assert {**rows.pop(key), "offset": 0, "op": 0, "system_time": 0} == {
                    **row, "offset": 0, "op": 0, "system_time": 0
                }  # fmt: skip
            else:
                rows[key] = row
        return rows

    def _verified(self, entry: DatasetEntry) -> IntegrityReport:
        derived = entry.dataset.state().kind is DatasetKind.Derivative
        replay = Replay(self.workspace, entry, self.engine, Reporter()) if derived else None
        return verify(entry.dataset, Reporter(), None, None, replay)

    def _blocks(self) -> int:
        return sum(entry.dataset.state().blocks for entry in self.entries)

    def _hashed(self, entry: DatasetEntry) -> str:
        table = self.table(entry).drop_columns(["system_time"])
        with LogicalHasher(table.schema) as hasher:
            for batch in table.combine_chunks().to_batches():
                hasher.update(batch)
            return str(hasher.finish())


END: Final = Timestamp.parse("2022-01-01T00:00:00Z")


def borough_totals(file: Path) -> dict[str, tuple[int, int, int]]:
    """Areas, cases and deaths of each borough in a day's file."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in _read(file):
        counts = (1, int(row["COVID_CASE_COUNT"]), int(row["COVID_DEATH_COUNT"]))
        found[row["BOROUGH_GROUP"]] = [
            a + b for a, b in zip(found[row["BOROUGH_GROUP"]], counts, strict=True)
        ]
    return {borough: (counts[0], counts[1], counts[2]) for borough, counts in found.items()}


def weeks(files: Sequence[Path]) -> dict[tuple[datetime, str], tuple[int, int, int]]:
    """By week and borough: on how many days its total changed, the first total and the last one.

    The week of the newest file is still open, and so is one that it merely begins after.
    """
    totals: dict[tuple[datetime, str], list[int]] = defaultdict(list)
    before: dict[str, tuple[int, int, int]] = {}
    for file in files:
        day = datetime.fromisoformat(file.stem).replace(tzinfo=UTC)
        now = borough_totals(file)
        for borough, total in now.items():
            if before.get(borough) != total:
                totals[day - timedelta(days=day.weekday()), borough].append(total[1])
        before = now
    last = datetime.fromisoformat(files[-1].stem).replace(tzinfo=UTC)
    closed = {key: values for key, values in totals.items() if key[0] + timedelta(days=7) <= last}
    return {key: (len(values), values[0], values[-1]) for key, values in closed.items()}


def extents(path: Path) -> dict[str, tuple[int, float, float, float, float]]:
    """Of each borough the number of its shapes, and west, east, south and north ends."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    shapes: Counter[str] = Counter()
    for feature in json.loads(path.read_text())["features"]:
        area = feature["properties"]["MODZCTA"]
        if area != "99999":
            borough = _borough(area)
            shapes[borough] += 1
            found[borough] += _points(feature["geometry"]["coordinates"])
    return {
        borough: (shapes[borough], min(x for x, _ in points), max(x for x, _ in points),
                  min(y for _, y in points), max(y for _, y in points))
        for borough, points in found.items()
    }  # fmt: skip


def day_counts(file: Path) -> dict[tuple[date, str], int]:
    """The cases by day and borough in a file of all days."""
    columns = {"BX": "Bronx", "BK": "Brooklyn", "MN": "Manhattan", "QN": "Queens", "SI": "Staten Island"}
    return {
        (datetime.strptime(row["date_of_interest"], "%m/%d/%Y").date(), borough): int(
            row[f"{short}_CASE_COUNT"]
        )
        for row in _read(file)
        for short, borough in columns.items()
    }


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _borough(area: str) -> str:
    prefixes = {"100": "Manhattan", "101": "Manhattan", "102": "Manhattan", "103": "Staten Island",
                "104": "Bronx", "112": "Brooklyn"}  # fmt: skip
    return prefixes.get(area[:3], "Queens")


def _points(coordinates: Any) -> Iterator[tuple[float, float]]:
    if isinstance(coordinates[0], list):
        for coordinate in coordinates:
            yield from _points(coordinate)
    else:
        yield coordinates[0], coordinates[1]
