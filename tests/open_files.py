"""The files of a folder that a process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def count_open_files(folder: Path, pid: int | str = "self") -> int:
    """Return how many descriptors of a process refer to files of a folder, including deleted files.

    Descriptors of servers in other threads do not count.
    """
    count = 0
    for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):  # closed since it was listed
            count += Path(f"/proc/{pid}/fd/{descriptor}").readlink().is_relative_to(folder)
    return count
