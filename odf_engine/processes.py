"""Information about this process and other processes of this machine."""

from __future__ import annotations

import os
import site
from pathlib import Path


def is_process_running(pid: int) -> bool:
    """Return whether a process with this id exists, also if another user owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def count_open_descriptors() -> int:
    """Return the number of open file descriptors of this process; 0 if the system does not list them."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 (one of them lists the folder)
    except OSError:
        return 0


def build_python_environment() -> dict[str, str]:
    """Return the environment in which ``python -P -m`` finds this package.

    ``-P`` excludes the current folder from the search path, since another user may own it. This also supports
    a package in a source folder.
    """
    environment = dict(os.environ)
    root = Path(__file__).resolve().parents[1]
    if str(root) not in site.getsitepackages():
        search_path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{search_path}" if search_path else str(root)
    return environment
