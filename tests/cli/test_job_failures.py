"""Failures: bad files, tampering, cancelled jobs, a worker that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Odf, Ran, call_odf, run_odf
from tests.waiting import wait_until

MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "file:{name}.csv"}}
      read:
        kind: Csv
        header: true
        schema: ["id BIGINT NOT NULL", "amount DOUBLE", "note STRING"]
      merge: {{kind: Append}}
"""


@pytest.fixture
def trial(demo: tuple[Path, Ran]) -> Path:
    """The workspace's folder."""
    return demo[0]


def add(trial: Path, name: str, text: str) -> None:
    (trial / f"{name}.csv").write_text(text)
    added = call_odf("add", "-", cwd=trial, input=MANIFEST.format(name=name))
    assert added.code == 0, added.err


def head_of(trial: Path, name: str) -> str:
    return call_odf("show", name, "--json", cwd=trial).json["head"]


def test_invalid_value_fails_the_pull_and_names_the_line(trial: Path, odf: Odf) -> None:
    add(trial, "wrong", "id,amount,note\n1,2.5,fine\n2,many,not fine\n")
    head = head_of(trial, "wrong")
    ran = run_odf("pull", "wrong", cwd=trial)
    assert ran.code == 1
    assert "line 3" in ran.err
    assert "  3 | 2,many,not fine\n" in ran.err
    assert "amount" in ran.err
    assert "many" in ran.err
    assert "Traceback" not in ran.err + ran.out
    assert head_of(trial, "wrong") == head
    assert {each["name"]: each["status"] for each in odf("list", "--json").json}["wrong"] == "failed"
    (entry,) = odf("pull", "wrong", "--json").json
    assert (entry["status"], entry["blocks"]) == ("failed", 0)
    assert "many" in entry["error"]["message"]
    # Mended, the next pull takes everything.
    (trial / "wrong.csv").write_text("id,amount,note\n1,2.5,fine\n2,7,fine too\n")
    (entry,) = odf("pull", "wrong", "--json").json
    keys = ["name", "status", "old_head", "new_head", "blocks", "records", "error", "added"]
    assert list(entry) == keys
    assert (entry["status"], entry["records"], entry["error"]) == ("updated", 2, None)
    assert entry["old_head"] == head
    (entry,) = odf("pull", "wrong", "--json").json
    assert (entry["status"], entry["records"]) == ("up-to-date", 0)


def test_failed_pull_does_not_stop_other_datasets(trial: Path, odf: Odf) -> None:
    for name in ("absent", "present"):
        add(trial, name, "id,amount,note\n1,2.5,a\n")
    (trial / "absent.csv").unlink()
    ran = odf("pull", "%sent", "--json")
    assert ran.code == 1
    assert {each["name"]: each["status"] for each in ran.json} == {"absent": "failed", "present": "updated"}
    assert "absent.csv" in ran.json[0]["error"]["where"]


def test_verification_finds_tampering(trial: Path, odf: Odf) -> None:
    add(trial, "honest", "id,amount,note\n1,2.5,a\n2,3.5,b\n")
    assert odf("pull", "honest").code == 0
    assert odf("verify", "honest").code == 0
    folder = Path(odf("path", "honest").out.strip())
    (slice_,) = (folder / "data").iterdir()
    data = bytearray(slice_.read_bytes())
    data[len(data) // 2] ^= 1
    slice_.write_bytes(data)
    ran = odf("verify", "honest", "--json")
    assert ran.code == 3
    assert ran.json["valid"] is False
    assert "slice-physical-hash" in {finding["kind"] for finding in ran.json["datasets"][0]["findings"]}
    assert "INVALID" in odf("verify", "honest").out


def large(rows: int) -> str:
    lines = (
        f"{number},{number / 7:.6f},a note that is here to make the file long {number}"
        for number in range(rows)
    )
    return "id,amount,note\n" + "\n".join(lines) + "\n"


def start_pull(trial: Path, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "odf_tui", "pull", name, "--json"],
        cwd=trial, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_phase(odf: Odf, target: str, phases: set[str]) -> str:
    """The id of the running job on ``target``, once it is in one of the phases."""

    def find_job() -> str | None:
        for job in odf("jobs", "--json").json:
            running = job["target"] == target and job["state"] == "running"
            if running and job["progress"].get("phase") in phases:
                return job["id"]
        return None

    return wait_until(find_job, 120, what=f"a job on {target} is in a phase of {phases}")


def test_interrupting_a_pull_cancels_it(trial: Path, odf: Odf) -> None:
    add(trial, "long", large(600_000))
    head = head_of(trial, "long")
    process = start_pull(trial, "long")
    wait_for_phase(odf, "long", {"merge", "sort", "write"})
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert json.loads(out)[0]["status"] == "failed"
    assert head_of(trial, "long") == head
    folder = Path(odf("path", "long").out.strip())
    assert not list(folder.glob("data/*"))
    assert not list((trial / ".odf" / "cache").glob("pull-*/*"))


@pytest.mark.complete
def test_a_killed_worker_leaves_interrupted_jobs_and_a_whole_dataset(trial: Path, odf: Odf) -> None:
    if not (trial / "long.csv").exists():
        add(trial, "long", large(600_000))
    head = head_of(trial, "long")
    worker = odf("worker", "start", "--json").json["status"]["pid"]
    process = start_pull(trial, "long")
    job = wait_for_phase(odf, "long", {"merge", "sort", "write"})
    client = subprocess.Popen(["true"])  # one that was copying its input and died
    client.wait()
    spool = trial / ".odf" / "cache" / f"ingest-{client.pid}-x"
    spool.mkdir()
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "Traceback" not in err.decode()
    assert next(each for each in odf("jobs", "--json").json if each["id"] == job)["state"] == "interrupted"
    assert head_of(trial, "long") == head
    (trial / "long.csv").write_text(large(100))
    (entry,) = odf("pull", "long", "--json").json
    assert entry["records"] == 100
    assert not spool.exists()
    folder = Path(odf("path", "long").out.strip())
    assert len(list((folder / "data").iterdir())) == 1
    assert odf("verify", "long").code == 0
