"""Folders of jobs: gone at the end, and swept when their process could not see to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from odf_engine.storage.scratch import job_scratch_folder


def test_scratch_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [tmp_path / f"{kind}-{gone.pid}-x" for kind in ("pull", "transform", "replay", "sandbox")]
    left.append(tmp_path / f"pull-{10**30}-x")  # no process can have this id
    others = [tmp_path / "spark", tmp_path / f"ingest-{gone.pid}-x", tmp_path / f"sandbox-{os.getpid()}-x"]
    for folder in (*left, *others):
        (folder / "in").mkdir(parents=True)
    with job_scratch_folder(tmp_path, "sandbox") as folder:
        assert folder.name.startswith(f"sandbox-{os.getpid()}-")
        assert sorted(tmp_path.iterdir()) == sorted([*others, folder])
    assert sorted(tmp_path.iterdir()) == sorted(others)
