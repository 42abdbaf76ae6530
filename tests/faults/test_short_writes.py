"""Writes that take only a part of the bytes: nothing is committed, and the next try completes the work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.jail import run_jailed


@pytest.mark.complete
def test_a_short_write_commits_nothing(tmp_path: Path) -> None:
    done = run_jailed([sys.executable, "-m", "tests.faults.short_writes"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
