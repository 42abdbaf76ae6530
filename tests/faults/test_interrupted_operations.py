"""Operations that are interrupted anywhere leave a workspace that works: a part of two long forms."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.jail import run_jailed
from tests.faults.system_calls import UNTRACED


@pytest.mark.parametrize(
    ("program", "operations", "most"),
    [
        ("system_calls", "add delete compact transform pull push-force fsck", 3),
        ("crash_states", "add ingest clone push", 5),
    ],
)
def test_an_interrupted_operation(program: str, operations: str, most: int, tmp_path: Path) -> None:
    """All operations in all places: run the programs by hand, without arguments."""
    command = [sys.executable, "-m", f"tests.faults.{program}", *operations.split(), "--most", str(most)]
    done = run_jailed(command, tmp_path)
    if done.returncode == UNTRACED:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
