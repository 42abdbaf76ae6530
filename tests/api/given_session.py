"""A process with a Spark session of its own, like a notebook, that is given to a workspace.

Usage: ``python given_session.py WORKSPACE FOLDER``: verifies a workspace, and fills another one in a folder.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import odf_engine as odf
from odf_engine.errors import InvalidQuery, UsageError
from odf_engine.spark.runtime.class_data_archive import find_archive, use_flags
from odf_engine.spark.runtime.jvm import JvmOptions, SparkFailed, connect, find_java, launch

SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.compression.codec": "gzip",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
"""Settings of the session: each changes the results of some query."""
FLAGS = ("-Duser.timezone=America/New_York", "-Duser.language=de", "-Djavax.xml.accessExternalDTD=all")

CASES = """
kind: DatasetSnapshot
version: 1
content:
  name: my.cases
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: Csv
        header: true
        schema: [reported TIMESTAMP, area STRING, cases INT, rate DOUBLE]
      preprocess:
        kind: Sql
        engine: spark
        query: >
          SELECT to_timestamp(reported) AS event_time, date_format(reported, 'EEEE HH:mm') AS day,
                 area, cases, rate FROM input
      merge:
        kind: Ledger
        primaryKey: [event_time, area]
"""
TOTALS = """
kind: DatasetSnapshot
version: 1
content:
  name: my.totals
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: my.cases}]
      transform:
        kind: Sql
        engine: spark
        query: >
          SELECT window.start AS event_time, area, sum(cases) AS cases, count(*) AS n
          FROM `my.cases` GROUP BY window(event_time, '1 day'), area
"""
LINES = "reported,area,cases,rate\n" + "".join(
    f"2024-{month:02}-{day:02} 0{day % 10}:30:00,{area},{month * day},{day / 7}\n"
    for month in (1, 2, 3)
    for day in range(1, 28)
    for area in ("north", "south", "west")
)


def start_session(settings: dict[str, str] = SETTINGS) -> object:
    """Start Spark with the Java that the engine finds, and with none of its settings."""
    folder = Path(tempfile.mkdtemp())
    log = folder / "spark.log"
    java = find_java()
    flags = (*FLAGS, *use_flags(java, find_archive(java)))  # for a faster start
    process = launch(java, JvmOptions(memory="768m", flags=flags), settings=settings, folder=folder, log=log)
    gateway = connect(process, folder, log)
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    from pyspark.sql import SparkSession

    return SparkSession.builder.config(map=settings).getOrCreate()


def report(workspace: odf.Workspace, folder: Path) -> dict[str, object]:
    """Run jobs of several kinds; return their results as text."""
    cases, totals = workspace.add(CASES) + workspace.add(TOTALS)
    source = folder / "cases.csv"
    for stop in (len(LINES) // 2, len(LINES)):
        source.write_text(LINES[: LINES.rindex("\n", 0, stop) + 1])
        cases.ingest(source)
        totals.pull()
    query = "SELECT date_format(max(event_time), 'EEEE HH:mm z') AS last, 0.1 + 0.2 AS n FROM my.cases"
    return {
        "rows": [_content(dataset) for dataset in (cases, totals)],
        "sql": [str(row) for row in workspace.sql(query).to_arrow().to_pylist()],
        "trace": totals.provenance(0).tree().splitlines()[0],
    }


def _content(dataset: odf.Dataset) -> list[str]:
    """Return schema and rows without the system time, which differs between runs."""
    rows = dataset.scan()
    table = rows.select([name for name in rows.columns if name != "system_time"]).to_arrow()
    return [str(table.schema), *map(str, table.to_pylist())]


def check_given(workspace: odf.Workspace, spark: object) -> dict[str, object]:
    """Return what is true of a given session after jobs ran on it."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    assert session is not None
    found = {
        "settings stay": all(session.conf.get(name) == value for name, value in SETTINGS.items()),
        "it is the active session": session is spark,
        "views stay": [each.name for each in session.catalog.listTables()] == ["noted"],
        "checksum files": [str(path) for path in workspace.folder.rglob("*.crc")],
    }
    for name, query in {"xml": "SELECT xpath_string('<a/>', 'a')", "view": "SELECT * FROM noted"}.items():
        try:
            workspace.sql(query)
        except InvalidQuery as error:
            found[name] = error.message
    workspace.close()
    found["not stopped"] = session.range(3).count() == 3
    other = odf.open(workspace.folder, in_process=True)
    try:
        other.sql("SELECT 1")
    except UsageError as error:
        found["a second one"] = error.hint
    session.stop()
    try:
        workspace.sql("SELECT 1")
    except SparkFailed as error:
        found["stopped"] = error.message
    return found


if __name__ == "__main__":
    own, root = map(Path, sys.argv[1:])
    session = start_session()
    session.range(1).createTempView("noted")  # type: ignore[attr-defined]
    opened = odf.init(root / "ws", spark=session)
    result = report(opened, root)
    replayed = [dataset.verify().findings for dataset in odf.open(own, spark=session)]
    print(json.dumps([result, replayed, check_given(opened, session)]))
