"""This process and other processes of this machine."""

from __future__ import annotations

import os
import site
from pathlib import Path


def is_process_running(pid: int) -> bool:
    """Whether a process with this number is there, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def open_descriptors() -> int:
    """The number of files and sockets that this process has open; 0 where the system does not list them."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 (one of them lists the folder)
    except OSError:
        return 0


def python_environment() -> dict[str, str]:
    """Return the environment in which ``python -P -m`` finds this code, even in a source folder.

    With ``-P`` Python does not search the current folder, which may belong to someone else.
    """
    environment = dict(os.environ)
    root = Path(__file__).resolve().parents[1]
    if str(root) not in site.getsitepackages():
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else str(root)
    return environment
