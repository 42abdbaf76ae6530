"""``odf sql``: datasets by their names, rows in every format, and what is wrong with its place."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.workspace.results import ResultRows, sweep, write
from odf_tui.cli.rows import write_table
from tests.cli.conftest import Odf, Ran, _environment

BY_STATION = (
    "SELECT station, count(*) AS n, max(event_time) AS last\n"
    "FROM port-haven.air-readings GROUP BY ALL ORDER BY station"
)


def test_rows_of_a_query_in_every_format(odf: Odf, tmp_path: Path) -> None:
    found = odf("sql", BY_STATION, "--json").json
    assert found[0] == {"station": "ph-01", "n": 240, "last": "2024-03-10T23:00:00Z"}
    assert [row["station"] for row in found] == ["ph-01", "ph-02", "ph-03", "ph-04"]
    plain = odf("sql", "-", input=BY_STATION)
    assert plain.out.splitlines()[0].split() == ["STATION", "N", "LAST"]
    assert "4 rows" in plain.err
    query = "SELECT 'a,\"b' AS text, map('k', DATE'2020-01-02') AS days, NULL AS nothing, true AS yes"
    rows = list(csv.DictReader(io.StringIO(odf("sql", query, "--csv").out)))
    assert rows == [{"text": 'a,"b', "days": '[["k","2020-01-02"]]', "nothing": "", "yes": "true"}]
    for name in ("x.parquet", "x.ndjson", "x.json", "x.csv"):
        assert odf("sql", BY_STATION, "-o", str(tmp_path / name)).code == 0
    assert pq.read_table(tmp_path / "x.parquet").column("n").to_pylist() == [240, 240, 237, 240]
    assert [json.loads(line) for line in (tmp_path / "x.ndjson").read_text().splitlines()] == found
    assert json.loads((tmp_path / "x.json").read_text()) == found
    assert (tmp_path / "x.csv").read_text().splitlines()[1] == "ph-01,240,2024-03-10T23:00:00Z"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.csv", "x.json", "x.ndjson", "x.parquet"]


def test_names_of_datasets_and_columns(odf: Odf, demo: tuple[Path, Ran]) -> None:
    """However they are quoted; a join gives two columns a name, and older slices nulls in newer columns."""
    query = """
        WITH busy AS (SELECT port-haven.air-readings.station FROM port-haven.air-readings LIMIT 1)
        SELECT s.*, busy.station, INTERVAL 1 DAY AS day
        FROM `Port-Haven.Stations` s JOIN busy ON s.station = busy.station ORDER BY s.offset
    """
    first = odf("sql", query, "--json").json[0]
    assert list(first)[:4] == ["offset", "op", "system_time", "event_time"]
    assert first["station"] == first["station_2"]
    assert first["day"] == "INTERVAL '1' DAY"
    cut = odf("sql", "SELECT id FROM range(0, 70000, 1, 4) ORDER BY id DESC", "-n", "40000", "--csv")
    assert cut.out.splitlines()[1::40000][:1] == ["69999"]
    assert len(cut.out.splitlines()) == 40001
    assert "there are more" in cut.err
    newest = max((demo[0] / ".odf/cache/queries").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    rows = ResultRows(newest)
    assert pq.read_metadata(newest).num_row_groups > 1
    assert rows.window(30_000, 2).to_pylist() == [{"id": 39_999}, {"id": 39_998}]
    assert rows.window(39_999, 10).to_pylist() == [{"id": 30_000}]
    sweep(demo[0] / ".odf", kept=2)
    assert len(list((demo[0] / ".odf/cache/queries").iterdir())) == 2


def test_what_is_wrong_has_its_place_in_the_query(odf: Odf) -> None:
    ran = odf("sql", "SELECT port-haven.stations.station,\n  nope FROM port-haven.stations")
    assert ran.code == 1
    assert "query, line 2, column 3: there is no column `nope`" in ran.err
    assert "  2 |   nope FROM port-haven.stations\n    |   ^\n" in ran.err
    ran = odf("sql", "SELECT port-haven.stations.station, nope FROM port-haven.stations")
    assert "column 37:" in ran.err  # and not where it is once the name before it is quoted
    ran = odf("sql", "SELECT 1 FROM range(3), port-haven.station")
    assert "column 25: there is no dataset 'port-haven.station'" in ran.err
    assert "did you mean port-haven.stations?" in ran.err
    assert "did you mean port-haven.stations?" in odf("sql", "SELECT 1 FROM stations").err
    ran = odf("sql", "SELECT CAST(station AS INT) FROM port-haven.stations")
    assert "line 1, column 8: the value 'ph-01' is not an INT" in ran.err
    assert odf("sql", " ").code == 2
    assert odf("sql", "SELECT 1", "-o", "x.txt").code == 2


def test_a_query_only_reads_datasets(odf: Odf, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for query in (
        f"SELECT * FROM csv.`{secret}`",
        f"SELECT * FROM `csv`.`{secret}`",
        "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
        "SELECT java_method('java.lang.System', 'getProperty', 'user.home')",
        "SELECT TRANSFORM(1) USING 'touch x'",
        "SELECT * FROM IDENTIFIER('port-haven.stations')",
        f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'out'}' USING csv SELECT 1",
        f"CREATE TABLE x USING csv LOCATION '{tmp_path / 'out'}' AS SELECT 1",
        "SET spark.sql.ansi.enabled = false",
        "ADD JAR 'x.jar'",
        "DROP VIEW `port-haven.stations`",
        "SELECT 1; SELECT 2",
        "DESCRIBE port-haven.stations",
    ):
        ran = odf("sql", query)
        assert ran.code == 1, query
        assert not ran.out, query
    assert list(tmp_path.iterdir()) == [secret]


def test_a_table_has_the_columns_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = pa.array([0, 86_400_000, 90_061_001], pa.timestamp("ms", "UTC"))
    table = pa.table({"id": [1, 2, 3], "at": times, "words": ["x" * 90, "a\tb", None], "more": [1, 2, 3]})
    assert write(tmp_path / "r.parquet", table.schema, table.to_batches(), 2) == (2, True)
    rows = ResultRows(tmp_path / "r.parquet")
    with click.Context(click.Command("sql")):
        assert write_table(rows, 2, 60) == 3
        assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["1", "1970-01-01"]
        assert [write_table(rows, 2, width) for width in (3, 200)] == [1, 4]


def test_ctrl_c_cancels_the_job(demo: tuple[Path, Ran], odf: Odf) -> None:
    query = "SELECT count(*) FROM range(0, 40000000000, 1, 4000) WHERE id % 7 = rand()"
    process = subprocess.Popen(
        [sys.executable, "-m", "odf_tui", "sql", query],
        cwd=demo[0],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    deadline = time.monotonic() + 60
    while not any(job["kind"] == "sql" and job["state"] == "running" for job in odf("jobs", "--json").json):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert not out
    assert odf("jobs", "--json").json[0]["state"] == "cancelled"
