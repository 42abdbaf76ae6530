"""`odf ingest`: rows from files, stdin and pipes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from odf_engine.ingest.push_source import FORMATS
from odf_engine.jobs.ingest import INGEST_FORMATS
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf, Ran, call_odf, run_odf
from tests.sync.linked import make_linked
from tests.waiting import wait_until

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: events
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: devices
      read: {kind: NdJson, schema: ["event_time TIMESTAMP", "id BIGINT NOT NULL", "note STRING"]}
      merge: {kind: Ledger, primaryKey: [id]}
"""


@pytest.fixture(scope="module")
def folder(demo: tuple[Path, Ran]) -> Path:
    """The workspace's folder, with a dataset that is pushed to."""
    added = call_odf("add", "-", cwd=demo[0], input=MANIFEST)
    assert added.code == 0, added.err
    return demo[0]


def event(number: int, **more: Any) -> str:
    import json

    return json.dumps({"event_time": f"2024-01-{number:02}", "id": number, "note": "n"} | more) + "\n"


def spools(folder: Path) -> list[Path]:
    return list((folder / ".odf" / "cache").glob("ingest-*"))


def test_result_has_added_retracted_and_corrected_rows(folder: Path, odf: Odf) -> None:
    read = "read: {kind: Csv, header: true, schema: [county STRING NOT NULL, n BIGINT]}"
    merge = "merge: {kind: Snapshot, primaryKey: [county]}"
    source = f"    - kind: AddPushSource\n      sourceName: all\n      {read}\n      {merge}\n"
    manifest = MANIFEST.split("    - kind")[0].replace("events", "counties") + source
    assert odf("add", "-", input=manifest).code == 0
    assert odf("ingest", "counties", input="county,n\nA,1\nB,2\nC,3\n").out == "counties: 3 rows\n"
    changed = odf("ingest", "counties", input="county,n\nA,1\nB,5\nD,4\nE,4\n")
    assert changed.out == "counties: 5 rows (+2 -1 ~1)\n"
    (entry,) = odf("ingest", "counties", "--json", input="county,n\nA,1\n").json
    assert (entry["records"], entry["retracted"]) == (3, 3)
    assert "added" not in entry and "corrected" not in entry


def test_attached_files_become_linked_objects(folder: Path, odf: Odf, tmp_path: Path) -> None:
    make_linked(Workspace(folder), "photos")
    (tmp_path / "a.txt").write_text("census_a")
    (folder / "rows.ndjson").write_text('{"photo": "a.txt", "n": 1}\n{"photo": null, "n": 2}\n')
    assert "photos has no linked objects" in odf("objects", "list", "photos").err
    missing = odf("ingest", "photos", "rows.ndjson", "--attach", "missing.txt")
    assert missing.code == 1 and "error: missing.txt: file not found" in missing.err
    assert odf("ingest", "photos", "rows.ndjson", "--attach", str(tmp_path)).code == 0
    (row,) = odf("objects", "list", "photos", "--json").json
    link = "f1620ffd8538233905b7fb9a9c7bff1315bbb3f9eaecd1746c6562426328835785dcb"
    assert row == {"hash": link, "links": 1, "size": 8}
    assert link in odf("objects", "list", "photos").out
    assert "1 linked object" in odf("log", "photos", "-n", "1").out
    assert odf("objects", "get", "photos", link, "copy.txt").code == 0
    assert (folder / "copy.txt").read_bytes() == b"census_a"
    assert "--force" in odf("objects", "get", "photos", link, "copy.txt").err
    unknown = odf("objects", "get", "photos", link.replace("d8", "d9"), "other.txt")
    assert unknown.code == 1 and "not found" in unknown.err and not (folder / "other.txt").exists()


def test_ingest_reads_stdin_files_and_pipes(folder: Path, odf: Odf) -> None:
    (entry,) = run_odf("ingest", "events", "--json", cwd=folder, input=event(1) + event(2)).json
    assert list(entry) == ["name", "status", "old_head", "new_head", "blocks", "records", "error", "added"]
    assert (entry["name"], entry["status"], entry["blocks"], entry["records"]) == ("events", "updated", 2, 2)
    # What stands under /dev is the client's own.
    script = f"exec '{sys.executable}' -m odf_tui ingest events <(echo '{event(3).strip()}') - </dev/stdin"
    piped = subprocess.run(["bash", "-c", script], cwd=folder, input=event(4).encode(), capture_output=True)
    assert (piped.returncode, piped.stdout) == (0, b"events: 2 rows\n"), piped.stderr
    (folder / "five.csv").write_text("note,id,event_time\nfive,5,\n")
    (folder / "six.json").write_text("[" + event(6) + "]")
    ran = odf("-v", "ingest", "EVENTS", "five.csv", "six.json", "--event-time", "2024-01-05T12:00:00+01:00")
    assert ran.out == "events: 2 rows\n"
    assert "five.csv is read as Csv, according to its file name" in ran.err
    rows = odf("tail", "events", "--json", "-n", "9").json
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[4]["event_time"] == "2024-01-05T11:00:00Z"
    again = odf("ingest", "events", "-", input=event(1))
    assert (again.code, again.out) == (0, "events: up to date\n")
    again = odf("ingest", "events", "five.csv", "--event-time", "2024-01-05T12:00:00+01:00")
    assert (again.code, again.out) == (0, "events: already ingested\n")
    assert "five.csv: already ingested: block " in again.err and "--force" in again.err
    (entry,) = odf(
        "ingest", "events", "five.csv", "six.json", "--event-time", "2024-01-05T11:00:00Z", "--json"
    ).json
    assert (entry["status"], entry["already_ingested"]) == ("up-to-date", 2)
    again = odf("ingest", "events", "-", "--idempotency-key", "six", "--force", input=event(6))
    assert (again.code, again.out) == (0, "events: up to date\n")  # no new rows in the ledger
    assert odf("jobs", "--json").json[0]["kind"] == "ingest"
    assert spools(folder) == []


def test_equal_readings_are_rows_and_a_key_is_ingested_once(folder: Path, odf: Odf) -> None:
    source = "    - kind: AddPushSource\n      sourceName: all\n      read: {kind: NdJson}\n"
    manifest = MANIFEST.split("    - kind")[0].replace("events", "readings") + source
    assert odf("add", "-", input=manifest + "      merge: {kind: Append}\n").code == 0
    reading = '{"value": 20.5}\n'
    for _ in range(2):
        assert odf("ingest", "readings", "-", input=reading).out == "readings: 1 row\n"
    assert Workspace(folder).resolve("readings").dataset.state().records == 2
    for added in (1, 0):
        (entry,) = odf("ingest", "readings", "-", "--idempotency-key", "r1", "--json", input=reading).json
        assert entry["records"] == added
    assert entry["already_ingested"] == 1


def test_invalid_input_and_options_are_rejected(folder: Path, odf: Odf) -> None:
    ran = run_odf("ingest", "events", cwd=folder, input=event(7, nott=1))
    assert ran.code == 1
    assert ran.out == ""
    assert (
        "error: events: stdin: line 1: the columns differ from those of the source: unknown columns: nott"
        in ran.err
    )
    assert "--ignore-unknown" in ran.err
    (entry,) = odf("ingest", "events", "--json", input=event(7) + '{"id": 8,\n').json
    assert (entry["status"], entry["error"]["where"].startswith("stdin: line 2")) == ("failed", True)
    ran = odf("ingest", "events", "--strict", input=event(1, note="changed"))
    assert (ran.code, "id=1" in ran.err) == (1, True)
    for code, text, arguments in (
        (1, "file not found", ["absent.csv"]),
        (2, "is a folder", ["sources"]),
        (2, "'csw' is not one of", ["five.csv", "--format", "csw"]),
        (2, "--event-time", ["five.csv", "--event-time", "noon"]),
        (
            2,
            "--idempotency-key identifies one file, not 2",
            ["five.csv", "six.json", "--idempotency-key", "k"],
        ),
        (2, "use one of: 'devices'", ["five.csv", "--source", "people"]),
    ):
        ran = odf("ingest", "events", *arguments)
        assert (ran.code, text in ran.err) == (code, True), ran.err
    ran = odf("ingest", "port-haven.stations", "-", input="")
    assert (ran.code, "has a polling source" in ran.err) == (1, True)
    ran = odf("pull", "events")
    assert (ran.code, ran.out) == (0, "events: up to date\n")
    assert odf("tail", "events", "--json", "-n", "1").json[0]["id"] == 6
    assert spools(folder) == []


def test_the_formats_are_those_of_the_engine() -> None:
    assert tuple(FORMATS) == INGEST_FORMATS


def test_interrupt_while_reading_stdin_commits_nothing(folder: Path, odf: Odf) -> None:
    head = odf("show", "events", "--json").json["head"]
    with subprocess.Popen(
        [sys.executable, "-m", "odf_tui", "ingest", "events"], cwd=folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(event(9).encode())
        process.stdin.flush()
        wait_until(lambda: any((spool / "stdin").exists() for spool in spools(folder)), 120)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert spools(folder) == []
    assert odf("show", "events", "--json").json["head"] == head


def test_invalid_rows_are_listed_or_rejected(folder: Path, odf: Odf) -> None:
    (folder / "bad.ndjson").write_text(event(20) + "{\n" + event(21, id="many") + event(22))
    (folder / "bad.csv").write_text("note,id,event_time\nx,23,\ny,many,\nz,24\n")
    failed = odf("ingest", "events", "bad.csv")
    assert failed.code == 1
    assert "bad.csv: 2 invalid rows, the first in line 3, column \"id\": 'many' is not a BIGINT" in failed.err
    assert "  line 4: 2 values for 3 columns: z,24\n" in failed.err
    assert "odf config set onBadRows.events reject" in failed.err
    assert odf("config", "set", "onBadRows.events", "reject").code == 0
    try:
        ran = odf("ingest", "events", "bad.ndjson")
        assert ran.out == "events: 2 rows, 2 rows rejected\n"
        (entry,) = odf("ingest", "events", "bad.csv", "--json").json
        assert (entry["status"], entry["records"], entry["rejected"]) == ("updated", 1, 2)
    finally:
        odf("config", "set", "onBadRows.events")
    newest, before, *_ = odf("jobs", "--json").json
    assert (newest["rejected"], before["rejected"]) == (2, 2)
    assert "2 rows rejected" in odf("jobs", "-n", "1").out
    assert "1 row, 2 rows rejected" in odf("logs", newest["id"]).out
    block, other = odf("log", "events", "-n", "2", "--json").json
    assert (block["rejected"], other["rejected"]) == (2, 2)
    lines = Path(block["rejects_file"]).read_text().splitlines()
    assert lines[1:] == ["bad.csv,3,id,'many' is not a BIGINT,\"y,many,\"",
                         'bad.csv,4,,"2 values for 3 columns: z,24","z,24"']  # fmt: skip
    assert "2 rows rejected" in odf("log", "events", "-n", "1").out
