"""Commands that are killed at each of their steps leave a workspace that works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.jail import run_jailed


@pytest.mark.parametrize("program", ["delete", "delete_files", "keys", "add"])
def test_a_killed_command_leaves_a_workspace_that_works(program: str, tmp_path: Path) -> None:
    done = run_jailed([sys.executable, "-m", "tests.faults.killing", program], tmp_path / "scratch")
    assert done.returncode == 0, done.stderr
