"""A sync that fails after the change is made: the error says that the change is made."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.jail import run_jailed


def test_a_change_that_could_not_be_synced_is_not_reported_as_undone(tmp_path: Path) -> None:
    done = run_jailed([sys.executable, "-m", "tests.faults.unsynced"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
