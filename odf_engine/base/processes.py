"""Information about this process and other processes of this machine."""

from __future__ import annotations

import fcntl
import os
import site
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

_CGROUP: Final = Path("/sys/fs/cgroup")
_CGROUP_FILES: Final = ("memory.max", "memory.current")
_PIPE_BYTES: Final = 1 << 20  # the maximum that Linux allows to every user by default


def is_process_running(pid: int) -> bool:
    """Return whether a process with this id exists, also if another user owns it."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read_memory() -> tuple[int, int]:
    """Return the total and available memory in bytes, within the container's limit, or 0 if unknown."""
    try:
        fields = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        known = {name: int(amount) << 10 for name, amount, *_ in fields}  # kB
    except OSError:
        return 0, 0
    total, available = known["MemTotal:"], known["MemAvailable:"]
    try:
        limit, used = ((_CGROUP / name).read_text(encoding="ascii").strip() for name in _CGROUP_FILES)
    except OSError:
        return total, available  # no limit
    if limit.isdigit() and int(limit) < total:
        total, available = int(limit), min(available, max(int(limit) - int(used), 0))
    return total, available


def count_open_descriptors() -> int:
    """Return the number of open file descriptors of this process, or 0 if the system does not list them."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 (one of them lists the folder)
    except OSError:
        return 0


def build_python_environment() -> dict[str, str]:
    """Return the environment that lets ``python -P -m`` find this package.

    ``-P`` excludes the current folder from the search path, since another user may own it. This also supports
    a package in a source folder.
    """
    environment = dict(os.environ)
    root = Path(__file__).resolve().parents[2]
    if str(root) not in site.getsitepackages():
        search_path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{search_path}" if search_path else str(root)
    return environment


def enlarge_pipe(pipe: IO[bytes]) -> None:
    """Let a pipe hold 1 MiB, which saves changes between its processes, if the system allows it."""
    with suppress(AttributeError, OSError):  # only Linux has it, and limits the sum for a user
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


@cache
def program_version() -> str:
    """Return the version of this distribution. A worker and its clients must have the same one."""
    # Deferred: slow to import, and most clients do not need it immediately.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("odf-workstation")
    except PackageNotFoundError:
        return "unknown"
