"""Metrics of a workspace: the command, the file, the server."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from odf_engine.jobs.pull import Pull
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import JobState
from tests.alerts.conftest import Odf

FLOW = "headers: {name: nightly}\nspec: {target: my.%, tasks: [{kind: Pull}]}\n"
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABELS = rf'(?:\{{(?:{_NAME}="(?:[^"\\\n]|\\["\\n])*",?)+\}})?'
SAMPLE = re.compile(rf"({_NAME})({_LABELS}) (-?[0-9.e+-]+)")
HEADER = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")


def read_samples(text: str) -> dict[str, float]:
    """The samples by name and labels; the text must follow the rules of the format."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            header = HEADER.fullmatch(line)
            assert header, line
            if header[1] == "TYPE":
                assert header[2] not in types and header[3] in ("gauge", "counter", "summary")
                types[header[2]] = header[3]
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        family = sample[1] if sample[1] in types else re.sub("_(sum|count)$", "", sample[1])
        assert family == list(types)[-1], "samples of a family follow its header"
        assert types[family] != "counter" or family.endswith("_total")
        key = sample[1] + sample[2]
        assert key not in found
        found[key] = float(sample[3])
    return found


@pytest.mark.complete
def test_command_file_and_server_report_the_same_metrics(folder: Path, odf: Odf) -> None:
    (folder / "nightly.yaml").write_text(FLOW)
    assert odf("flow", "add", "nightly.yaml").code == 0
    good = '{"id": 1, "name": "x"}\n{"id": 2, "name": "y"}\n'
    assert odf("ingest", "my.rows", "-", "--format", "ndjson", input=good).code == 0
    assert odf("ingest", "my.rows", "-", "--format", "ndjson", input="{bad\n").code == 1
    assert odf("flow", "pause", "nightly").code == 0
    found = read_samples(odf("metrics").out)
    assert found['odf_datasets{kind="root"}'] == 1
    assert found['odf_dataset_rows{dataset="my.rows"}'] == 2
    assert found['odf_dataset_watermark_timestamp_seconds{dataset="my.rows"}'] > 1.7e9
    assert 0 <= found['odf_dataset_watermark_age_seconds{dataset="my.rows"}'] < 600
    assert found['odf_jobs_total{kind="ingest",state="done"}'] == 1
    assert found['odf_jobs_total{kind="ingest",state="failed"}'] == 1
    assert 0 < found['odf_job_duration_seconds_sum{kind="ingest",state="done"}'] < 600
    assert found['odf_flow_state{flow="nightly",state="paused"}'] == 1
    assert found['odf_flow_state{flow="nightly",state="active"}'] == 0
    # The file for the textfile collector: readable by it, complete, and without other files.
    target = folder / "textfile"
    target.mkdir()
    assert odf("metrics", "-o", "textfile/odf.prom").code == 0
    assert [each.name for each in target.iterdir()] == ["odf.prom"]
    assert stat.S_IMODE((target / "odf.prom").stat().st_mode) == 0o644
    assert read_samples((target / "odf.prom").read_text()).keys() == found.keys()
    assert odf("metrics", "-o", "missing/odf.prom").code == 2
    command = [sys.executable, "-m", "odf_tui", "serve", "--json", "--port", "0"]
    for more, status in (["--metrics"], 200), ([], 404):
        with subprocess.Popen([*command, *more], cwd=folder, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                url = json.loads(server.stdout.readline())["url"]
                try:
                    with urllib.request.urlopen(f"{url}metrics", timeout=30) as response:
                        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                        assert read_samples(response.read().decode()).keys() == found.keys()
                        assert status == 200
                except urllib.error.HTTPError as error:
                    assert error.code == status == 404
            finally:
                server.terminate()


def test_counters_survive_the_removal_of_jobs(tmp_path: Path) -> None:
    from odf_engine.storage.job_totals import read_totals

    journal = JobLog(tmp_path / "jobs.sqlite")
    for _ in range(5):
        job = journal.create(Pull("did:odf:x"), "a")
        journal.transition(job.id, JobState.running)
        journal.transition(job.id, JobState.done)
    journal.prune(keep_jobs=2)
    assert len(journal.jobs()) == 2
    journal.close()
    (total,) = read_totals(tmp_path)
    assert (total.kind, total.state, total.jobs) == ("pull", "done", 5) and total.last_end > 1.7e9
