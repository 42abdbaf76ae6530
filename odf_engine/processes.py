"""This process and other processes of this machine."""

from __future__ import annotations

import os


def runs(pid: int) -> bool:
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
