"""Warnings of jobs: stored with the job and its blocks, shown by commands, or a reason to fail."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from odf_engine.api.model import BlockFilter
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.automation.flows.store import FlowStore
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: counties
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: FilesGlob, path: "in/*.csv", order: ByName}
      read: {kind: Csv, header: true, schema: [county STRING NOT NULL, n BIGINT]}
      merge: {kind: Ledger, primaryKey: [county]}
"""
FLOW = """
headers: {name: strict}
spec:
  target: counties
  onWarning: fail
  stopAfterFailures: 0
  tasks: [{kind: Pull}]
"""
TEXT = "1 duplicate row dropped"
DUPLICATE = {"kind": "duplicate-rows", "text": TEXT, "count": 1, "dataset": "counties"}


@pytest.mark.complete
def test_warnings_are_stored_and_shown_or_fail_a_job(fresh: Odf, tmp_path: Path) -> None:
    assert fresh("add", "-", input=MANIFEST).code == 0
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("county,n\nA,1\nB,2\n")
    (tmp_path / "in" / "2.csv").write_text("county,n\nC,3\nC,3\n")

    # A job that must not commit with warnings: the file without warnings is committed.
    failed = fresh("pull", "counties", "--on-warning", "fail")
    assert failed.code == 1 and f"error: counties: warning: {TEXT}" in failed.err
    assert "earlier blocks of the job remain" in failed.err
    assert [each["county"] for each in fresh("tail", "counties", "--json").json] == ["A", "B"]
    assert "warnings" not in fresh("log", "counties", "-n", "1", "--json").json[0]

    # A flow: nothing is committed either.
    assert fresh("flow", "add", "-", input=FLOW).code == 0
    run = fresh("flow", "run", "strict")
    assert run.code == 1 and f"pull counties: warning: {TEXT}" in run.err
    (history,) = fresh("flow", "history", "strict", "--json").json
    assert (history["state"], history["warnings"]) == ("failed", [DUPLICATE])
    with closing(FlowStore(tmp_path / ".odf")) as flows:  # the log of jobs may lack the job later
        assert [warning.text for warning in flows.warnings(flows.runs())[history["id"]]] == [TEXT]
    assert len(fresh("tail", "counties", "--json").json) == 2

    # By default they are committed, with their warnings.
    (entry,) = fresh("pull", "counties", "--json").json
    assert (entry["status"], entry["warnings"]) == ("updated", [DUPLICATE])
    job = fresh("jobs", "--json").json[0]
    assert (job["state"], job["warnings"]) == ("done", [DUPLICATE])
    listed = fresh("jobs", "-n", "1").out
    assert "done !" in listed and f"1 warning: {TEXT}" in listed
    assert fresh("log", "counties", "-n", "1", "--json").json[0]["warnings"] == [DUPLICATE]
    assert f"1 warning: {TEXT}" in fresh("log", "counties", "-n", "1").out
    status = fresh("status").out
    assert "warned" in status and TEXT in status and "everything is up to date" not in status
    gateway = OpenWorkspace(Workspace(tmp_path))
    (row,) = gateway.datasets()
    assert gateway.blocks(row.id, None, 100, BlockFilter()).lines[-1].summary.startswith("! ")
    assert f"# warning: {TEXT}\n" in gateway.block(row.id, row.blocks - 1).yaml
    assert fresh("fsck").code == 0

    # The next pull has none.
    assert fresh("flow", "run", "strict").code == 0
    assert "everything is up to date" in fresh("status").out
    (history, _) = fresh("flow", "history", "strict", "--json").json
    assert (history["state"], history["warnings"]) == ("done", [])
    assert history["results"][0]["text"] == "up to date"
