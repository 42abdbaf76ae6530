"""Processes that die while they commit, and processes that commit at the same time."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

COMMITTER = Path(__file__).with_name("committer.py")
ROOT = COMMITTER.parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, COMMITTER, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_a_kill_at_any_instant_leaves_the_old_head_or_the_new(tmp_path: Path) -> None:
    process = start("crash", tmp_path / "ds", 30)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    kills, after_commits, _ = (int(word) for word in output.split() if word.isdigit())
    assert kills == 30
    assert after_commits > 5  # or the kills came too early to say anything


def test_concurrent_writers_conflict_and_lose_no_commits(tmp_path: Path) -> None:
    committer = runpy.run_path(str(COMMITTER))
    folder = tmp_path / "ds"
    committer["create"](folder)
    processes = [start("race", folder, 20) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    lines = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    committed = [line for each in lines for line in each if line != "conflict"]
    assert len(committed) == 40
    assert any("conflict" in each for each in lines)
    assert committer["check"](folder) == 2 + 2 * 40
    chain = {str(stored.hash) for stored in committer["opened"](folder).blocks()}
    assert set(committed) <= chain
