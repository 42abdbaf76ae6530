"""The files of a folder that this process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def count_open_files(folder: Path) -> int:
    """Return how many descriptors of this process refer to files of a folder, including deleted files.

    Descriptors of servers in other threads do not count.
    """
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):  # closed since it was listed
            count += Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder)
    return count
