"""Symbolic links in a workspace never lead to a file that is changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.jail import run_jailed


@pytest.mark.app
@pytest.mark.complete
def test_writes_do_not_follow_symbolic_links(tmp_path: Path) -> None:
    done = run_jailed(
        [sys.executable, "-m", "tests.faults.linking", "short"], tmp_path / "scratch", timeout=600
    )
    assert done.returncode == 0, done.stderr[-5000:]
