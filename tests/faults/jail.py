"""Runs a command with a read-only root and one writable folder: fault tests cannot damage the machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


@functools.cache
def _missing() -> str:
    """Why the jail cannot be used here; empty when it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    probe = subprocess.run(
        ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if probe.returncode == 0 else f"bwrap does not work here: {probe.stderr.strip()}"


def jail_command(command: Sequence[str | Path], scratch: Path) -> list[str]:
    """The command line that runs ``command`` in ``scratch``, the only writable folder.

    The test skips where bubblewrap is missing.
    """
    if reason := _missing():
        pytest.skip(reason)
    folder = str(scratch.resolve())
    jail = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc"]
    jail += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    jail += ["--bind", folder, folder, "--chdir", folder, "--"]
    return jail + [str(each) for each in command]


def run_jailed(
    command: Sequence[str | Path],
    scratch: Path,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Runs a command in the jail. Temporary files go to ``scratch``; the project can be imported.

    Raises:
        subprocess.TimeoutExpired: the command took longer than ``timeout`` seconds.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, "TMPDIR": str(scratch), "HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch)}
    variables |= {"PYTHONPATH": str(_REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    return subprocess.run(
        jail_command(command, scratch),
        env=variables,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
