"""The demo, and every command that reads its datasets."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Odf, Ran

HASH = re.compile(r"f1620[0-9a-f]{64}")


def test_demo_pulls_and_verifies(demo: tuple[Path, Ran]) -> None:
    folder, ran = demo
    assert ran.code == 0, ran.err
    assert "pulled    port-haven.stations: " in ran.out
    assert ran.out.count(": valid") == 5
    # A query with windows, and one with a join.
    assert "pulled    port-haven.air-by-day: 36 new rows" in ran.out
    assert "pulled    port-haven.smoke-and-breath: 182 new rows" in ran.out
    assert (folder / "sources" / "stations" / "2024-03-07.csv").is_file()


@pytest.mark.complete
def test_demo_again_changes_nothing(odf: Odf, demo: tuple[Path, Ran]) -> None:
    before = odf("list", "--json").json
    again = odf("demo", str(demo[0]), "--no-tui")
    assert again.code == 0, again.err
    assert {each["name"]: each["head"] for each in odf("list", "--json").json} == {
        each["name"]: each["head"] for each in before
    }


def test_list_reports_status_watermark_and_last_pull(odf: Odf) -> None:
    listed = {each["name"]: each for each in odf("list", "--json").json}
    assert {"port-haven.air-readings", "port-haven.clinic-visits", "port-haven.stations"} <= set(listed)
    stations = listed["port-haven.stations"]
    assert list(stations) == [
        "id", "name", "kind", "head", "blocks", "records", "size", "watermark", "last_pulled",
        "last_polled", "status", "labels", "branches",
    ]  # fmt: skip
    assert stations["last_polled"] >= stations["last_pulled"]  # the job ends after its commit
    assert stations["id"].startswith("did:odf:fed01")
    assert HASH.fullmatch(stations["head"])
    assert stations["kind"] == "Root"
    assert stations["status"] == "current"
    assert stations["watermark"] == "2024-03-06T00:00:00Z"
    assert listed["port-haven.air-readings"]["records"] == 957
    assert "WATERMARK (UTC)   LAST CHANGE (UTC)  LAST PULL (UTC)" in odf("list").out
    odf("config", "set", "ui.timezone", "Asia/Tokyo")
    assert "WATERMARK (TOKYO)" in odf("list").out and "2024-03-06 09:00 " in odf("list").out
    assert odf("list", "--json").json == list(listed.values())
    odf("config", "set", "ui.timezone")


def test_list_prints_a_plain_table(odf: Odf) -> None:
    out = odf("list").out
    assert out.splitlines()[0].split()[:3] == ["NAME", "KIND", "STATUS"]
    assert "\x1b" not in out


def test_show_reports_source_vocabulary_and_verification(odf: Odf) -> None:
    shown = odf("show", "PORT-HAVEN.Stations", "--json").json
    assert shown["sources"][0]["fetch"]["kind"] == "FilesGlob"
    assert shown["vocabulary"]["offsetColumn"] == "offset"
    assert shown["info"]["keywords"] == ["air quality", "stations", "sample"]
    assert shown["last_verification"]["valid"] is True
    assert Path(shown["path"], "refs", "head").read_text() == shown["head"]
    assert "FilesGlob" in odf("show", "port-haven.stations").out


def test_log_has_the_events_as_in_a_manifest(odf: Odf) -> None:
    log = odf("log", "port-haven.stations", "--json").json
    assert [each["sequence_number"] for each in log] == list(reversed(range(len(log))))
    assert log[-1]["event"]["kind"] == "Seed"
    assert log[0]["event"]["newSourceState"]["sourceName"] == "default"
    assert all(newer["prev_block_hash"] == older["hash"] for newer, older in itertools.pairwise(log))
    assert {each["block_version"] for each in log} == {3}
    assert len(odf("log", "port-haven.stations", "--json", "-n", "2", "--kind", "adddata").json) == 2
    wrong = odf("log", "port-haven.stations", "--kind", "AddDatum")
    assert (wrong.code, "did you mean AddData" in wrong.err) == (1, True)


def test_tail_shows_corrections_and_retractions(odf: Odf) -> None:
    rows = odf("tail", "port-haven.stations", "-n", "100", "--json").json
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    story = [(row["op"], row["station"], row["event_time"][:10]) for row in rows]
    assert story == [
        (0, "ph-01", "2024-03-01"), (0, "ph-02", "2024-03-01"), (0, "ph-03", "2024-03-01"),
        (0, "ph-04", "2024-03-01"),
        (0, "ph-05", "2024-03-03"),
        (2, "ph-02", "2024-03-01"), (3, "ph-02", "2024-03-04"),
        (2, "ph-05", "2024-03-03"), (3, "ph-05", "2024-03-04"),
        (2, "ph-03", "2024-03-01"), (3, "ph-03", "2024-03-06"),
        (1, "ph-04", "2024-03-01"),
    ]  # fmt: skip
    assert "+C" in odf("tail", "port-haven.stations", "-n", "3").out


def test_schema_prints_ddl_arrow_parquet_and_json(odf: Odf) -> None:
    assert odf("schema", "port-haven.stations").out.splitlines()[0].startswith("offset BIGINT UNSIGNED")
    assert "uint64" in odf("schema", "port-haven.stations", "--format", "arrow").out
    assert "INT64" in odf("schema", "port-haven.stations", "--format", "parquet").out.upper()
    fields = odf("schema", "port-haven.stations", "--format", "json").out
    assert '"event_time"' in fields


def test_graph_lists_datasets_and_edges(odf: Odf) -> None:
    graph = odf("graph", "--json").json
    assert len(graph["datasets"]) >= 3
    edges = {(each["from"], each["to"]) for each in graph["edges"]}
    assert ("port-haven.air-readings", "port-haven.air-by-day") in edges
    assert len(edges) == 3
    assert odf("graph", "--dot").out.startswith("digraph")
    assert "port-haven.stations" in odf("graph").out


def test_path_is_a_repository_layout(odf: Odf, tmp_path: Path) -> None:
    folder = Path(odf("path", "port-haven.stations").out.strip())
    assert {"refs", "blocks", "data"} <= {each.name for each in folder.iterdir()}
    head = (folder / "refs" / "head").read_text()
    decoded = odf("block", "decode", str(folder / "blocks" / head))
    assert decoded.code == 0, decoded.err
    encoded = odf("block", "encode", "-", "-o", str(folder.parent / "again"), input=decoded.out)
    assert encoded.out.strip() == head
    assert (folder.parent / "again").read_bytes() == (folder / "blocks" / head).read_bytes()
    slice_ = next((folder / "data").iterdir())
    (tmp_path / "rows.csv").write_text("city,n\nBern,1\n")
    assert "rows.csv: this is a text file" in odf("digest", str(tmp_path / "rows.csv")).err
    digest = odf("digest", str(slice_), "--json").json
    assert digest["physical_hash"] == slice_.name
    assert digest["size"] == slice_.stat().st_size


def test_verify_accepts_pattern_and_range(odf: Odf) -> None:
    for options, counts in ((["--rows"], "transforms"), ([], "transforms_known")):  # the demo has verified
        report = odf("verify", "port-haven.%", *options, "--json").json
        assert report["valid"] is True
        assert {each["name"]: each.get(counts, 0) for each in report["datasets"]} == {
            "port-haven.air-readings": 0, "port-haven.clinic-visits": 0, "port-haven.stations": 0,
            "port-haven.air-by-day": 1, "port-haven.smoke-and-breath": 1,
        }  # fmt: skip
    part = odf("verify", "port-haven.stations", "--range", "2..3", "--json").json
    assert part["datasets"][0]["blocks"] == 2
    (part,) = odf("verify", "port-haven.air-by-day", "--range", "1..", "--json").json["datasets"]
    assert (part["transforms"], part.get("transforms_known", 0)) == (1, 0)


def test_jobs_are_listed_with_their_logs(odf: Odf) -> None:
    jobs = odf("jobs", "--json", "-n", "100").json
    assert list(jobs[0]) == ["id", "kind", "target", "state", "progress", "started", "ended", "error"]
    pull = next(job for job in reversed(jobs) if job["kind"] == "pull")
    log = odf("logs", pull["id"]).out
    assert "air-readings.csv" in log
    assert ", 957 rows, in " in log
    assert odf("cancel", pull["id"]).code == 0


def test_worker_status_reports_spark_and_few_descriptors(odf: Odf) -> None:
    status = odf("worker", "status", "--json").json
    assert status["running"] is True
    assert status["status"]["spark"] == "ready"
    # What Python, Spark's connections and the journal need; it does not grow with the jobs that ran.
    assert 0 < status["status"]["descriptors"] < 60


def test_misspelt_dataset_is_suggested(odf: Odf) -> None:
    ran = odf("tail", "port-haven.station")
    assert ran.code == 1
    assert "port-haven.stations" in ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
