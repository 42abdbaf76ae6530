"""``odf sql``: datasets by name, rows in every format, errors with their position."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.rows.query_results import ResultRows, sweep, write
from odf_tui.cli.shared.query_rows import write_table
from tests.cli.conftest import Odf, Ran, _environment
from tests.waiting import wait_until

BY_STATION = (
    "SELECT station, count(*) AS n, max(event_time) AS last\n"
    "FROM port-haven.air-readings GROUP BY ALL ORDER BY station"
)


def test_query_rows_are_written_in_every_format(odf: Odf, tmp_path: Path) -> None:
    found = odf("sql", BY_STATION, "--json").json
    assert found[0] == {"station": "ph-01", "n": 240, "last": "2024-03-10T23:00:00Z"}
    assert [row["station"] for row in found] == ["ph-01", "ph-02", "ph-03", "ph-04"]
    plain = odf("sql", "-", input=BY_STATION)
    assert plain.out.splitlines()[0].split() == ["STATION", "N", "LAST"]
    assert "4 rows" in plain.err
    query = "SELECT 'a,\"b' AS text, map('k', DATE'2020-01-02') AS days, NULL AS nothing, true AS yes"
    rows = list(csv.DictReader(io.StringIO(odf("sql", query, "--csv").out)))
    assert rows == [{"text": 'a,"b', "days": '[["k", "2020-01-02"]]', "nothing": "", "yes": "true"}]
    for name in ("x.parquet", "x.ndjson", "x.json", "x.csv"):
        assert odf("sql", BY_STATION, "-o", str(tmp_path / name)).code == 0
    assert pq.read_table(tmp_path / "x.parquet").column("n").to_pylist() == [240, 240, 237, 240]
    assert [json.loads(line) for line in (tmp_path / "x.ndjson").read_text().splitlines()] == found
    assert json.loads((tmp_path / "x.json").read_text()) == found
    assert (tmp_path / "x.csv").read_text().splitlines()[1] == "ph-01,240,2024-03-10T23:00:00Z"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.csv", "x.json", "x.ndjson", "x.parquet"]


def test_duckdb_gives_the_same_rows_as_spark(odf: Odf, tmp_path: Path) -> None:
    by_spark = odf("sql", BY_STATION, "--json").json
    assert odf("sql", BY_STATION, "--json", "--engine", "duckdb").json == by_spark
    assert odf("sql", BY_STATION, "-o", str(tmp_path / "x.csv"), "--engine", "duckdb").code == 0
    assert (tmp_path / "x.csv").read_text().splitlines()[1] == "ph-01,240,2024-03-10T23:00:00Z"
    limited = odf("sql", "SELECT * FROM port-haven.air-readings", "-n", "2", "--engine", "duckdb")
    assert len(limited.out.splitlines()) == 3 and "truncated" in limited.err
    assert "port-haven.air-readings@" in limited.err
    proof = odf("sql", BY_STATION, "--proof", str(tmp_path / "proof"), "--engine", "duckdb")
    assert proof.code == 2 and "the engine duckdb cannot create a proof" in proof.err
    wrong = odf("sql", "SELECT 1,\n  statn FROM port-haven.stations", "--engine", "duckdb")
    assert wrong.code == 1
    assert wrong.err.splitlines() == [
        "error: query, line 2, column 3: column 'statn' not found",
        "  2 |   statn FROM port-haven.stations",
        "    |   ^",
        "  hint: did you mean station?",
    ]


def test_a_query_joins_files_with_datasets(odf: Odf, tmp_path: Path) -> None:
    (tmp_path / "it's limits.csv").write_text("station;limit\nph-01;12,5\nph-02;15\n")
    name = str(tmp_path / "it's limits.csv").replace("'", "''")
    joined = odf(
        "sql",
        f"SELECT s.name, l.limit AS n FROM '{name}' l JOIN port-haven.stations s USING (station)"
        " WHERE s.offset < 2 ORDER BY offset",
        "--json",
    )
    assert joined.json == [{"name": "Harbour Gate", "n": 12.5}, {"name": "Mill Street", "n": 15.0}]
    by_spark = odf("sql", f"SELECT * FROM '{name}'", "--engine", "spark")
    assert by_spark.code == 2 and "query, line 1, column 15: Spark cannot read the file" in by_spark.err
    missing = odf("sql", "SELECT * FROM 'missing.csv'")
    assert missing.code == 1 and "file not found" in missing.err


@pytest.mark.complete
def test_dataset_names_resolve_and_duplicate_columns_are_numbered(odf: Odf, demo: tuple[Path, Ran]) -> None:
    """However they are quoted; a join gives two columns a name, and older slices nulls in newer columns."""
    query = """
        WITH busy AS (SELECT port-haven.air-readings.station FROM port-haven.air-readings LIMIT 1)
        SELECT s.*, busy.station, struct() AS empty, INTERVAL 1 DAY AS day
        FROM `Port-Haven.Stations` s JOIN busy ON s.station = busy.station ORDER BY s.offset
    """
    first = odf("sql", query, "--json").json[0]
    assert list(first)[:4] == ["offset", "op", "system_time", "event_time"]
    assert first["station"] == first["station_2"]
    assert first["empty"] == "{}"
    assert first["day"] == "INTERVAL '1' DAY"
    cut = odf("sql", "SELECT id FROM range(0, 70000, 1, 4) ORDER BY id DESC", "-n", "40000")
    assert cut.out.splitlines()[1::40000][:1] == ["69999"]
    assert len(cut.out.splitlines()) == 40001
    assert "truncated" in cut.err
    newest = max((demo[0] / ".odf/cache/queries").glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    rows = ResultRows(newest)
    assert pq.read_metadata(newest).num_row_groups > 1
    assert rows.window(30_000, 2).to_pylist() == [{"id": 39_999}, {"id": 39_998}]
    assert rows.window(39_999, 10).to_pylist() == [{"id": 30_000}]
    sweep(demo[0] / ".odf", kept=2)
    assert len(list((demo[0] / ".odf/cache/queries").iterdir())) == 2


def test_query_reads_datasets_as_at_blocks_and_times(odf: Odf) -> None:
    """The blocks of an answer, given back, give the same answer."""
    blocks = odf("log", "port-haven.stations", "--json").json
    data = [block for block in blocks if block["event"].get("newData")][::-1]
    first, last = data[0], data[-1]
    sql = """SELECT (SELECT count(*) FROM port-haven.stations) AS now,
        (SELECT count(*) FROM as_at(port-haven.stations, '{hash}')) AS then,
        (SELECT count(DISTINCT station) FROM current(as_at(port-haven.stations, {sequence_number}))) AS each,
        (SELECT max(event_time) FROM as_of(port-haven.stations, '2024-03-03') s) AS newest,
        (SELECT count(*) FROM changelog(port-haven.stations)) AS all""".format(**first)
    ran = odf("sql", sql, "--json", "--as-at", last["system_time"])
    rows = first["event"]["newData"]["offsetInterval"]["end"] + 1
    total = last["event"]["newData"]["offsetInterval"]["end"] + 1
    (found,) = ran.json
    assert found == {"now": total, "then": rows, "each": rows, "newest": found["newest"], "all": total}
    assert found["newest"] <= "2024-03-03T00:00:00Z"
    assert f"port-haven.stations@{last['hash'][5:13]}" in ran.err
    assert f"@{first['hash'][5:13]}  block {first['sequence_number']}, " in ran.err

    again = "SELECT count(*) AS n FROM port-haven.stations"
    pin = f"port-haven.stations@{first['hash'][5:13]}"
    assert odf("sql", again, "--csv", "--at", pin).out.split() == ["n", str(rows)]
    for wrong, place, message in (
        ("as_at(port-haven.stations, '2020-01-01')", "column 15", "has no blocks at"),
        ("as_at(port-haven.stations, '2999-01-01')", "column 15", "is in the future"),
        ("current(port-haven.stations, nope)", "column 15", "column 'nope' not found"),
        ("current(port-haven.clinic-visits)", "column 15", "key"),
        ("current(port-haven.station)", "column 15", "dataset 'port-haven.station' not found"),
        ("as_at(port-haven.stations, now())", "column 42", "not an expression"),
    ):
        ran = odf("sql", f"SELECT 1 FROM {wrong}")
        assert ran.code == 1, wrong
        assert f"query, line 1, {place}: " in ran.err, wrong
        assert message in ran.err, wrong
    assert odf("sql", again, "--as-of", "yesterday").code == 2
    assert "only with its own time travel" in odf("sql", again, "--at", "port-haven.air-readings=1").err


@pytest.mark.complete
def test_query_proof_verifies_and_changes_to_it_are_found(odf: Odf, tmp_path: Path) -> None:
    sql = (
        "WITH s AS (SELECT * FROM current(port-haven.stations))"
        " SELECT s.station, avg(pm25) AS mean"
        " FROM s JOIN port-haven.air-readings USING (station) GROUP BY ALL"
    )
    file, other = tmp_path / "proof.json", tmp_path / "other.json"
    odf("config", "set", "sandbox.allowWithout", "true")  # also where nothing can shut a process in
    ran = odf("sql", sql, "--json", "--proof", str(file), "--sign", "port-haven.stations")
    document = json.loads(file.read_text())
    assert document["query"] == sql
    assert [each["state"] for each in document["tables"]] == ["current", "changelog"]
    assert document["result"]["rows"] == len(ran.json)
    right = odf("verify", "--proof", str(file))
    assert right.code == 0
    written = _written(tmp_path / "all.csv", odf("sql", sql, "--csv", "--proof", str(other)).out)
    assert odf("verify", "--proof", str(other), str(written)).code == 0  # sorted by all columns
    assert "signed with the key of port-haven.stations" in right.out

    def changed(**what: object) -> Ran:
        other.write_text(json.dumps(document | what))
        return odf("verify", "--proof", str(other), "--json")

    assert changed(query=sql + " HAVING true").json["findings"][0]["kind"] == "signature"
    unsigned = changed(signature=None, query=sql.replace("avg", "max"))
    assert (unsigned.code, unsigned.json["findings"][0]["kind"]) == (3, "hash")
    assert "odf verify port-haven" in unsigned.json["findings"][0]["hint"]
    lies = [document["tables"][0] | {"state": "changelog"}, document["tables"][1]]
    kinds = [each["kind"] for each in changed(signature=None, tables=lies).json["findings"]]
    assert kinds == ["table"]
    later = [document["tables"][0] | {"sequenceNumber": 99, "block": "f1620" + "0" * 64}]
    missing = changed(signature=None, tables=later)
    assert (missing.code, missing.json["checked"]) == (1, False)
    assert missing.json["findings"][0]["hint"] == "update the local copy: odf pull port-haven.stations"
    assert "not a query proof" in odf("verify", "--proof", str(_written(other, "{}"))).err
    for wrong, message in (
        ("SELECT * FROM port-haven.stations LIMIT 3", "column 35: LIMIT without ORDER BY"),
        ("SELECT now()", r"now() is not deterministic"),
        ("SELECT to_date('now')", "line 1, column 8: the time 'now' is not deterministic"),
        ("SELECT 1 WHERE 1 = (SELECT 1 WHERE CAST('today' AS DATE) > DATE '2024-01-01')", "the time 'today'"),
        ("SELECT (SELECT max(a) FROM (SELECT 1 AS a ORDER BY a LIMIT 1))", "LIMIT within an expression"),
    ):
        assert message in odf("sql", wrong, "--proof", str(other)).err
    # ORDER BY leaves no tie open, and the order it gives is part of what is proven; without one none is.
    sql = "SELECT id % 2 AS a, 9 - id AS b FROM range(0, 9, 1, 3) ORDER BY a DESC LIMIT 3"
    written = odf("sql", sql, "--csv", "--proof", str(file)).out
    assert written.split() == ["a,b", "1,2", "1,4", "1,6"]
    rows = _written(tmp_path / "rows.csv", written)
    assert odf("verify", "--proof", str(file), str(rows)).code == 0
    ran = odf("verify", "--proof", str(file), str(_written(rows, written.replace("1,4", "1,5"))))
    assert (ran.code, "the rows of rows.csv differ from the rows of the proof" in ran.out) == (3, True)
    ran = odf("verify", "--proof", str(file), str(_written(tmp_path / "rows.json", "[]")))
    assert (ran.code, "only CSV and Parquet files" in ran.err) == (1, True)
    assert json.loads(file.read_text())["result"]["order"] == "query"
    hashes: set[str] = set()
    for values in ("(1), (3), (2)", "(2), (1), (3)"):
        odf("sql", f"SELECT * FROM VALUES {values} AS t(a)", "--proof", str(file))
        hashes.add(json.loads(file.read_text())["result"]["hash"])
    assert len(hashes) == 1


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_query_errors_have_line_and_column(odf: Odf) -> None:
    ran = odf("sql", "SELECT port-haven.stations.station,\n  nope FROM port-haven.stations")
    assert ran.code == 1
    assert "query, line 2, column 3: column `nope` not found" in ran.err
    assert "  2 |   nope FROM port-haven.stations\n    |   ^\n" in ran.err
    ran = odf("sql", "SELECT port-haven.stations.station, nope FROM port-haven.stations")
    assert "column 37:" in ran.err  # and not where it is once the name before it is quoted
    ran = odf("sql", "SELECT 1 FROM range(3), port-haven.station")
    assert "column 25: dataset 'port-haven.station' not found" in ran.err
    assert "did you mean port-haven.stations?" in ran.err
    assert "did you mean port-haven.stations?" in odf("sql", "SELECT 1 FROM stations").err
    ran = odf("sql", "SELECT CAST(station AS INT) FROM port-haven.stations")
    assert "line 1, column 8: the value 'ph-01' is not an INT" in ran.err
    assert "line 1, column 9: a query cannot contain the variable" in odf("sql", "SELECT '${env:HOME}'").err
    assert odf("sql", " ").code == 2
    assert odf("sql", "SELECT 1", "-o", "x.txt").code == 2


def test_a_column_in_double_quotes_is_a_warning(odf: Odf) -> None:
    ran = odf("sql", 'SELECT "station", "a text", "PM25" AS `pm25` FROM port-haven.air-readings LIMIT 1')
    assert ran.code == 0
    assert '"station" is a string in Spark SQL; `station` is the column' in ran.err
    assert '"PM25" is a string' in ran.err and '"a text" is a string' not in ran.err
    assert "is a string" not in odf("sql", "SELECT station FROM port-haven.air-readings LIMIT 1").err


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
    running = ("sql", "running")
    wait_until(lambda: running in [(job["kind"], job["state"]) for job in odf("jobs", "--json").json])
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert not out
    assert odf("jobs", "--json").json[0]["state"] == "cancelled"
