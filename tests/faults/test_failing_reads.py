"""Errors of the disk are reported, and never read as "there is nothing"."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.jail import run_jailed


def test_a_name_that_cannot_be_read_is_not_given_again(tmp_path: Path) -> None:
    done = run_jailed([sys.executable, "-m", "tests.faults.failing", "alias"], tmp_path / "scratch")
    assert done.returncode == 0, done.stderr
