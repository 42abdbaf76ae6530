"""Errors of the disk at certain files and at each call to a file, and output that cannot be written."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.jail import run_jailed


@pytest.mark.parametrize("program", ["alias", "partial_update", "foreign_index"])
@pytest.mark.complete
def test_io_error_of_certain_files_is_reported(program: str, tmp_path: Path) -> None:
    done = run_jailed([sys.executable, "-m", "tests.faults.failing", program], tmp_path / "scratch")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("program", ["commands", "jobs"])
@pytest.mark.complete(after=1)
def test_one_failing_call_leaves_a_valid_workspace(program: str, tmp_path: Path) -> None:
    """All calls: ``python -m tests.faults.io_errors commands`` and ``jobs``."""
    command = [sys.executable, "-m", "tests.faults.io_errors", program, "short"]
    done = run_jailed(command, tmp_path / "scratch")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "redirect", "code", "reported"),
    [
        (
            "help",
            ">/dev/full",
            1,
            "error: the output cannot be written: No space left on device\n  hint:",
        ),
        ("help", "2>/dev/full", 0, ""),
        ("help", ">/dev/full 2>/dev/full", 1, ""),
        ("help", ">&-", 0, ""),
        ("show nothing", "2>/dev/full", 1, ""),
        ("bogus", "2>/dev/full", 2, ""),
        ("show nothing", ">&- 2>&-", 1, ""),
        ("help", "| true", 0, ""),
    ],
)
@pytest.mark.complete(after=2)
def test_unwritable_output_is_reported_without_traceback(
    arguments: str, redirect: str, code: int, reported: str, tmp_path: Path
) -> None:
    command = f"{shlex.quote(sys.executable)} -m odf_tui {arguments} {redirect}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(reported)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
