"""odf compact and odf gc."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from odf_engine.api.operations.file_check import collect_files
from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.worker.endpoint import WorkerEndpoint
from odf_engine.worker.protocol import Job, JobState
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.sync.builders import add_slices, describe, make_derivative, make_root


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    workspace = Workspace.init(tmp_path)
    make_derivative(workspace, make_root(workspace, slices=5))
    workspace.index.close()
    yield tmp_path
    call_odf("worker", "stop", cwd=tmp_path)


def files(folder: Path, kind: str) -> int:
    entry = Workspace(folder).resolve("numbers")
    return len(list((entry.dataset.folder / kind).iterdir()))


def test_compact_merges_slices_and_gc_removes_old_files(folder: Path) -> None:
    planned = call_odf("compact", "numbers", "--dry-run", cwd=folder)
    assert "would merge 5 slices to 1, 7 blocks to 3" in planned.out, planned.err
    done = call_odf("compact", "numbers", "--json", cwd=folder)
    result = json.loads(done.out)
    assert (result["status"], result["old_slices"], result["new_slices"]) == ("compacted", 5, 1)
    assert "no small slices" in call_odf("compact", "numbers", cwd=folder).out
    refused = call_odf("compact", "derived", cwd=folder)
    assert refused.code == 1 and "only root datasets" in refused.err

    # The new head is signed, and the derivative dataset has not diverged.
    verified = call_odf("verify", "numbers", "--integrity", cwd=folder)
    assert "ownership proven up to block 2" in verified.out
    (row,) = (
        row for row in json.loads(call_odf("list", "--json", cwd=folder).out) if row["name"] == "derived"
    )
    assert row["status"] == "stale"  # not diverged

    # The old head has not expired; then nothing of the dataset needs it.
    assert "0 files to remove" in call_odf("gc", "--dry-run", "--now", cwd=folder).err
    workspace = Workspace(folder)
    dataset = workspace.resolve("numbers").dataset
    long_ago = time.time() - 8 * 86_400
    os.utime(dataset.folder / "refs" / result["reference"], (long_ago, long_ago))
    listed = call_odf("gc", "numbers", "--dry-run", "--now", cwd=folder)
    assert "old-head" in listed.out and "orphan-slice" in listed.out
    assert files(folder, "data") == 6
    unconfirmed = call_odf("gc", cwd=folder)
    assert unconfirmed.code == 2 and "confirmation" in unconfirmed.err
    call_odf("config", "set", "compaction.keepLastOf.numbers", "1", cwd=folder)
    assert "0 files to remove" in call_odf("gc", "--dry-run", "--now", cwd=folder).err
    call_odf("config", "set", "compaction.keepLastOf.numbers", "0", cwd=folder)
    removed = call_odf("gc", "--yes", "--now", cwd=folder)
    assert removed.code == 0, removed.out + removed.err
    assert (files(folder, "data"), files(folder, "blocks"), files(folder, "compactions")) == (1, 3, 1)
    assert call_odf("verify", "numbers", "--integrity", "--rows", cwd=folder).code == 0
    assert "clean" in call_odf("fsck", cwd=folder).out


@pytest.mark.parametrize("target", ["derived", ""])
def test_gc_keeps_inputs_of_active_jobs(folder: Path, target: str) -> None:
    workspace = Workspace(folder)
    entry = workspace.resolve("numbers")
    compact(entry.dataset, CompactionPolicy(), Reporter())
    long_ago = time.time() - 8 * 86_400
    (reference,) = entry.dataset.references()
    os.utime(entry.dataset.folder / "refs" / reference, (long_ago, long_ago))
    dataset = str(workspace.resolve(target).id) if target else ""
    job = Job(id="1", kind="pull", target="", dataset=dataset, state=JobState.running, created="2024-05-01")
    with (
        mock.patch.object(WorkerEndpoint, "worker_alive", lambda self: True),
        mock.patch("odf_engine.api.operations.file_check._open_jobs", lambda endpoint: [job]),
    ):
        report = collect_files(workspace, [entry], Reporter(), dry_run=False, now=True)
    assert report.left and not [finding for finding in report.findings if finding.repaired]
    assert files(folder, "data") == 6


def test_gc_keeps_recent_files_and_unexpired_old_heads(folder: Path) -> None:
    workspace = Workspace(folder)
    entry = workspace.resolve("numbers")
    block = entry.dataset.head()
    describe(entry, "removed by the reset")
    add_slices(entry)
    head = entry.dataset.head()
    assert block is not None and head is not None
    entry.dataset.reset(block, expected_head=head)
    (reference,) = entry.dataset.references()
    # A job that started before may read the old rows, even if old heads expire at once.
    call_odf("config", "set", "compaction.keepDaysOf.numbers", "0", cwd=folder)
    assert "0 files removed" in call_odf("gc", "--yes", cwd=folder).err
    assert reference in entry.dataset.references()
    call_odf("config", "set", "compaction.keepDaysOf.numbers", "9000", cwd=folder)
    long_ago = time.time() - 1000 * 86_400
    os.utime(entry.dataset.folder / "refs" / reference, (long_ago, long_ago))
    assert "0 files removed" in call_odf("gc", "--yes", "--now", cwd=folder).err
    call_odf("config", "set", "compaction.keepDaysOf.numbers", "30", cwd=folder)
    # Without --now the files of the last hour stay.
    assert call_odf("gc", "--yes", cwd=folder).code == 3
    assert files(folder, "data") == 6
    assert call_odf("gc", "--yes", "--now", cwd=folder).code == 0
    assert files(folder, "data") == 5
