"""Random operations on a workspace and its peers leave what a model predicts: the short form."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.net
@pytest.mark.complete
def test_operations_leave_what_the_model_predicts() -> None:
    # A process of its own: it forks, replaces os.fsync and ends other processes.
    command = [sys.executable, "-m", "tests.faults.workspace_machine", "--examples", "3", "--steps", "16"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
