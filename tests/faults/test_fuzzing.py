"""Every decoder of foreign bytes, with the inputs that once failed and some new ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.complete
def test_mutated_input_never_crashes_a_decoder() -> None:
    # A process of its own: it forks, which a process with threads must not do.
    command = [sys.executable, "-m", "tests.faults.fuzzing", "--inputs", "50", "--seconds", "60"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
